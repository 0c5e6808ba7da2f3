package api_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"intentd/internal/api"
	"intentd/internal/apikey"
	"intentd/internal/idempotency/pgidem"
	"intentd/internal/intent"
	"intentd/internal/pgtest"
)

// BenchmarkCreate makes intents through the whole handler on a real PostgreSQL,
// alone and at once. What it counts is ours and the driver's: the requests are
// made beforehand, and the answers go nowhere.
func BenchmarkCreate(b *testing.B) {
	for _, committers := range []int{0, 2} {
		for _, parallel := range []int{1, 64} {
			b.Run(fmt.Sprintf("committers=%d/parallel=%d", committers, parallel), func(b *testing.B) {
				db := pgtest.New(b)
				p := postgresParts(b, db.URL, lease)
				h := api.New(api.Config{
					Intents: intent.New(p.intents), Idempotency: p.keys.(*pgidem.Store).WithCommitters(committers),
					Authenticator: apikey.NewStatic(holders), Ready: p.ready, Log: slog.New(slog.DiscardHandler),
				})
				requests := make(chan *http.Request, b.N)
				for range b.N {
					r := httptest.NewRequest(http.MethodPost, intentsPath, strings.NewReader(exampleBody))
					r.Header.Set("Authorization", "Bearer "+alice)
					r.Header.Set("Idempotency-Key", newKey())
					requests <- r
				}
				b.ReportAllocs()
				b.SetParallelism(parallel)
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					w := &nowhere{header: make(http.Header)}
					for pb.Next() {
						clear(w.header)
						h.ServeHTTP(w, <-requests)
						if w.status != http.StatusCreated {
							b.Errorf("answered %d", w.status)
							return
						}
					}
				})
			})
		}
	}
}

// nowhere is a client that takes an answer and keeps its status. Like net/http's it
// has deadlines, since to say that there are none would cost objects.
type nowhere struct {
	header http.Header
	status int
}

func (n *nowhere) Header() http.Header             { return n.header }
func (n *nowhere) WriteHeader(status int)          { n.status = status }
func (n *nowhere) SetReadDeadline(time.Time) error { return nil }
func (n *nowhere) Write(p []byte) (int, error)     { return len(p), nil }
