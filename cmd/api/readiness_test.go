package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"intentd/internal/pgtest"
	"intentd/internal/secret"
)

// TestReadiness_Run: each change is one line, however long it lasts and whatever
// its reason becomes, and the end of the service is none.
func TestReadiness_Run(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		began := time.Now()
		text := slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Duration("at", a.Value.Time().Sub(began))
			}
			return a
		}})
		answers := make(chan func(context.Context) error)
		r := &readiness{log: slog.New(text), ask: func(ctx context.Context) error { return (<-answers)(ctx) }}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()

		ready := func(context.Context) error { return nil }
		away := func(context.Context) error { return errors.New("away") }
		standby := func(context.Context) error { return errors.New("a standby") }
		silent := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		for _, answer := range []func(context.Context) error{ready, ready, away, away, standby, ready, ready, silent, ready, silent} {
			answers <- answer // to who asks at last
		}
		time.Sleep(time.Second)
		end() // in the middle of a question
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
		const want = `at=10s level=WARN msg="not ready" error=away
at=25s level=INFO msg="ready again" after=15s
at=37s level=WARN msg="not ready" error="context deadline exceeded"
at=40s level=INFO msg="ready again" after=5s
`
		if diff := cmp.Diff(want, log.String()); diff != "" {
			t.Errorf("the log (-want +got):\n%s", diff)
		}
	})
}

// TestSchemaReady_Silent: the reason tells who has not answered.
func TestSchemaReady_Silent(t *testing.T) {
	t.Parallel()
	const noAnswer = "the database did not answer in time"
	for name, c := range map[string]struct {
		url  func(t *testing.T) string
		want string
	}{
		"NoServer": {func(t *testing.T) string {
			t.Helper()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = ln.Close() })
			return "postgres://intentd@" + ln.Addr().String() + "/intentd?sslmode=disable"
		}, noAnswer},
		"Statement": {func(t *testing.T) string {
			t.Helper()
			db := pgtest.New(t)
			hold(t, db, "lock table schema_migrations in access exclusive mode")
			return db.URL
		}, noAnswer},
		"NoConnection": {func(t *testing.T) string { t.Helper(); return pgtest.New(t).URL }, "none of the 1 connections to the database was free in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, err := openPool(t.Context(), secret.New(c.url(t)), 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			if name == "NoConnection" {
				conn, err := pool.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Release()
			}
			ctx, cancel := context.WithTimeout(t.Context(), readinessTimeout)
			defer cancel()
			if err := schemaReady(ctx, pool); !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), c.want+": ") {
				t.Errorf("schemaReady = %v, want %q", err, c.want)
			}
		})
	}
}

// TestKeepInRedis_Silent has a server of Redis that takes connections and says
// nothing.
func TestKeepInRedis_Silent(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	b := memoryBackend(config{TTL: time.Hour, Lease: time.Minute})
	if err := keepInRedis(b, config{RedisURL: secret.New("redis://" + ln.Addr().String()), TTL: time.Hour, Lease: time.Minute}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	defer b.close()
	ctx, cancel := context.WithTimeout(t.Context(), readinessTimeout)
	defer cancel()
	if err := b.ready(ctx); err == nil || !strings.HasPrefix(err.Error(), "Redis did not answer in time: ") {
		t.Errorf("ready = %v", err)
	}
}
