package pgidem_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/idempotency"
	"intentd/internal/idempotency/pgidem"
	"intentd/internal/localpg"
	"intentd/migrations"
)

// BenchmarkStore_Create is a request from its claim to its commit, with one row
// of work, on a server that syncs its log: alone and in groups, side by side, for
// so many requests at a time.
func BenchmarkStore_Create(b *testing.B) {
	url := benchServer(b)
	for _, parallel := range []int{1, 8, 16, 32, 64} {
		for _, kind := range []struct {
			name       string
			committers int
		}{{"Alone", 0}, {"Group", 2}} {
			b.Run(fmt.Sprintf("%s-%d", kind.name, parallel), func(b *testing.B) {
				store, pool := benchStore(b, url)
				store.WithCommitters(kind.committers)
				defer pool.Close()
				run := strconv.FormatInt(time.Now().UnixNano(), 36)
				b.ReportAllocs()
				inParallel(b, parallel, func(ctx context.Context, n int64) error {
					id := idempotency.ID{Scope: "merchant-a", Key: run + strconv.FormatInt(n, 36)}
					c, err := store.Claim(ctx, id, fp)
					if err != nil {
						return err
					}
					if c.Outcome != idempotency.Fresh {
						return fmt.Errorf("claim = %v", c.Outcome)
					}
					tx, _ := pgidem.FromContext(c.Attempt.Bind(ctx))
					tx.Queue("insert into work (name, at) values ($1, $2)", id.Key, tx.Time())
					return c.Attempt.Complete(ctx, resp)
				})
			})
		}
	}
}

// BenchmarkStore_Replay is the replay of one key that all ask for.
func BenchmarkStore_Replay(b *testing.B) {
	url := benchServer(b)
	for _, parallel := range []int{1, 64} {
		for _, committers := range []int{0, 2} {
			b.Run(fmt.Sprintf("Committers%d-%d", committers, parallel), func(b *testing.B) {
				store, pool := benchStore(b, url)
				store.WithCommitters(committers)
				defer pool.Close()
				id := idempotency.ID{Scope: "merchant-a", Key: b.Name()}
				c, err := store.Claim(b.Context(), id, fp)
				if err != nil {
					b.Fatal(err)
				}
				if c.Outcome == idempotency.Fresh {
					if err := c.Attempt.Complete(b.Context(), resp); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportAllocs()
				inParallel(b, parallel, func(ctx context.Context, _ int64) error {
					c, err := store.Claim(ctx, id, fp)
					if err == nil && c.Outcome != idempotency.Replay {
						err = fmt.Errorf("claim = %v", c.Outcome)
					}
					return err
				})
			})
		}
	}
}

// inParallel calls do b.N times, so many at a time.
func inParallel(b *testing.B, parallel int, do func(context.Context, int64) error) {
	var (
		last atomic.Int64
		wg   sync.WaitGroup
	)
	b.ResetTimer()
	for range parallel {
		wg.Go(func() {
			for {
				n := last.Add(1)
				if n > int64(b.N) {
					return
				}
				if err := do(b.Context(), n); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

func benchServer(b *testing.B) (url string) {
	b.Helper()
	server, err := localpg.Start(b.Context(), localpg.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = server.Stop(context.Background()) })
	if err := migrations.Up(b.Context(), server.URL()); err != nil {
		b.Fatal(err)
	}
	return server.URL()
}

func benchStore(b *testing.B, url string) (*pgidem.Store, *pgxpool.Pool) {
	b.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = 20 // the service's default
	pgidem.Configure(config)
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(b.Context(), "create table if not exists work (name text primary key, at timestamptz not null)"); err != nil {
		b.Fatal(err)
	}
	return pgidem.New(pool, time.Hour, 30*time.Second), pool
}
