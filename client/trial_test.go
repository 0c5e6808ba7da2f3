package client_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"intentd/client"
	"intentd/internal/pgtest"
)

// TestClient_EachPaymentOnce makes 2,000 payments through a proxy that harms more
// than every second request, and counts what was made. CLIENT_SEED=n is another
// trial, or the same one again.
func TestClient_EachPaymentOnce(t *testing.T) {
	t.Parallel()
	seed := uint64(1)
	if s := os.Getenv("CLIENT_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	const payments, callers = 2000, 40
	db := pgtest.New(t)
	p, baseURL := newProxy(t, seed, strings.TrimPrefix(serve(t, onPostgres(t, db.URL)), "http://"))
	transport := &http.Transport{MaxIdleConnsPerHost: callers}
	t.Cleanup(transport.CloseIdleConnections)
	// Few attempts, so that calls end with an open outcome, and the caller has to
	// settle it.
	c := newClient(t, baseURL, merchantToken, client.WithHTTPClient(&http.Client{Transport: transport}),
		client.WithAttempts(3), client.WithAttemptTimeout(patience), client.WithBackoff(time.Millisecond, 20*time.Millisecond))

	results := make([]*client.Result, payments)
	queue := make(chan int)
	var wg sync.WaitGroup
	var attempts, replayed, settledByCaller atomic.Int64
	for range callers {
		wg.Go(func() {
			for i := range queue {
				var opts []client.CallOption
				for {
					r, err := c.CreatePaymentIntent(t.Context(), order(fmt.Sprintf("order-%d", i)), opts...)
					var e *client.Error
					if errors.As(err, &e) && e.Retryable() && e.Key != "" {
						attempts.Add(int64(e.Attempts))
						if opts == nil {
							settledByCaller.Add(1)
						}
						opts = []client.CallOption{client.WithKey(e.Key)}
						continue
					}
					if err != nil {
						t.Errorf("order-%d: %v", i, err)
						break
					}
					attempts.Add(int64(r.Attempts))
					if r.Replayed {
						replayed.Add(1)
					}
					results[i] = r
					break
				}
			}
		})
	}
	for i := range payments {
		queue <- i
	}
	close(queue)
	wg.Wait()
	p.after.Wait() // what comes late comes to what is there

	t.Logf("seed %d: %d attempts for %d payments, %d answers were replays, %d calls ended open and were settled by their callers",
		seed, attempts.Load(), payments, replayed.Load(), settledByCaller.Load())
	p.tally(t)
	if replayed.Load() == 0 || settledByCaller.Load() == 0 {
		t.Error("the trial was none")
	}
	if got := pgtest.QueryVal[int](t, db, "select count(*) from payment_intents"); got != payments {
		t.Errorf("%d payment intents for %d payments", got, payments)
	}
	if got := pgtest.QueryVal[int](t, db, "select count(distinct reference) from payment_intents"); got != payments {
		t.Errorf("intents for %d payments, want %d", got, payments)
	}
	if got := pgtest.QueryVal[int](t, db, "select count(*) from idempotency_keys where status = 201"); got != payments {
		t.Errorf("%d records, want %d", got, payments)
	}
	made := make(map[string]bool)
	for pi, err := range newClient(t, baseURLOf(p), merchantToken).List(t.Context(), client.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		made[pi.Reference+" "+pi.ID] = true
	}
	for i, r := range results {
		if r == nil {
			continue // reported
		}
		if !made[fmt.Sprintf("order-%d %s", i, r.ID)] || r.Reference != fmt.Sprintf("order-%d", i) {
			t.Errorf("order-%d was told of %s, which is not its own", i, r.ID)
		}
	}
}

// baseURLOf is the way past the proxy.
func baseURLOf(p *proxy) string { return "http://" + p.service }
