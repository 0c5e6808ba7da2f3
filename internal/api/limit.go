package api

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// RateLimit is a token bucket for each merchant: PerSecond requests a second in
// the long run, and Burst at once after a pause. The zero RateLimit is none.
//
// Each process has buckets of its own: behind n replicas a merchant may send up
// to n times as much.
type RateLimit struct {
	PerSecond float64
	Burst     int
}

// limiter holds the merchants' buckets. There are no more of them than there
// are merchants with a key, so none is ever thrown away.
type limiter struct {
	RateLimit
	mu      sync.Mutex
	buckets map[string]*rate.Limiter
}

func newLimiter(l RateLimit) *limiter {
	return &limiter{RateLimit: l, buckets: make(map[string]*rate.Limiter)}
}

// wait takes a token of the merchant's at the time now, and returns for how long
// there is none.
func (l *limiter) wait(merchant string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.buckets[merchant]
	if !ok {
		b = rate.NewLimiter(rate.Limit(l.PerSecond), l.Burst)
		l.buckets[merchant] = b
	}
	token := b.ReserveN(now, 1)
	delay := token.DelayFrom(now)
	if delay > 0 {
		token.CancelAt(now) // who is refused has used nothing
	}
	return delay
}

// limit refuses what a merchant sends too fast. It stands before the idempotency
// layer, so a refusal costs the database nothing, and leaves the key as it was.
func (s *server) limit(next http.Handler) http.Handler {
	if s.RateLimit == (RateLimit{}) {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if delay := s.limiter.wait(callerOf(r).scope(), time.Now()); delay > 0 {
			s.Observer.Limited()
			seconds := int(math.Ceil(delay.Seconds()))
			s.fail(w, r, &problem{
				status: http.StatusTooManyRequests, code: "rate_limited", retryAfter: seconds,
				detail: fmt.Sprintf("more than %s requests a second; try again in %d s",
					strconv.FormatFloat(s.RateLimit.PerSecond, 'f', -1, 64), seconds),
			})
			return
		}
		next.ServeHTTP(w, r)
	})
}
