package api_test

import (
	"net/http"
	"strconv"
	"testing"

	"intentd/internal/api"
)

// TestRateLimit: a merchant has its bucket, and what it is refused was not looked
// at: the same key runs later.
func TestRateLimit(t *testing.T) {
	t.Parallel()
	eachStoreWith(t, setup{limit: api.RateLimit{PerSecond: 0.001, Burst: 3}}, func(t *testing.T, s *service) {
		key := newKey()
		first := s.created(t, call{key: key})
		s.replayed(t, call{key: key}, first) // a replay counts as any request does
		s.do(t, call{method: "GET"}).want(t, http.StatusOK, "")

		late := newKey()
		for _, c := range []call{{key: late}, {key: key}, {method: "GET"}, {method: "GET", path: keysPath, key: key}, {token: aliceToo}} {
			a := s.do(t, c)
			a.want(t, http.StatusTooManyRequests, "rate_limited")
			if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 900 || n > 1000 {
				t.Errorf("Retry-After = %q, want the seconds until there is a token", a.header.Get("Retry-After"))
			}
			if got := a.header.Get("Idempotency-Key-Expires") + a.header.Get("Idempotent-Replayed"); got != "" {
				t.Errorf("a 429 speaks of the record: %q", got)
			}
		}
		// Not before it is known whose bucket it is; and others have theirs.
		s.do(t, call{token: "nobody"}).want(t, http.StatusUnauthorized, "unauthorized")
		s.created(t, call{token: bob, key: key})
		s.created(t, call{token: aliceTest})
		s.do(t, call{method: "GET", path: "/healthz"}).want(t, http.StatusOK, "")
		// Nothing is on record.
		s.do(t, call{method: "GET", path: keysPath, key: late, token: bob}).want(t, http.StatusNotFound, "not_found")
		if s.db != nil && s.records(t) != 3 {
			t.Errorf("%d records, want those of the three creates", s.records(t))
		}
	})
}
