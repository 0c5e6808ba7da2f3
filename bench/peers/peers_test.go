package peers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"intentd/bench/localredis"
	"intentd/internal/idempotency"
	"intentd/internal/localpg"
	"intentd/migrations"
)

// servers are started once for all tests; each has a database of its own, and
// keys of its own in Redis.
var servers struct {
	postgres *localpg.Server
	redis    *localredis.Server
	count    atomic.Int64
}

func TestMain(m *testing.M) {
	code, err := withServers(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withServers(m *testing.M) (code int, err error) {
	ctx := context.Background()
	quick := map[string]string{"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
	if servers.postgres, err = localpg.Start(ctx, localpg.Options{Settings: quick}); err != nil {
		return 0, err
	}
	defer servers.postgres.Stop(ctx)
	if servers.redis, err = localredis.Start(ctx, "everysec"); err != nil {
		return 0, err
	}
	defer servers.redis.Stop()
	return m.Run(), nil
}

// each runs test for every kind of peer, on a database of its own.
func each(t *testing.T, lease time.Duration, test func(t *testing.T, o Options)) {
	t.Helper()
	for _, kind := range []string{Redis, ThreeCommits, OneTransaction} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("peer%d", servers.count.Add(1))
			connect(t, servers.postgres.URL(), func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, "create database "+name)
				return err
			})
			url := strings.Replace(servers.postgres.URL(), "/"+localpg.Name+"?", "/"+name+"?", 1)
			if err := migrations.Up(t.Context(), url); err != nil {
				t.Fatal(err)
			}
			connect(t, url, Migrate)
			test(t, Options{
				Kind: kind, DatabaseURL: url, Redis: servers.redis.Socket(), Conns: 5, TTL: time.Hour, Lease: lease,
				// The merchant is the scope: no test meets another's keys.
				Merchants: map[string]string{"token": name, "other-token": name + "-other"},
				Log:       slog.New(slog.DiscardHandler),
			})
		})
	}
}

func connect(t *testing.T, url string, do func(context.Context, *pgx.Conn) error) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if err := do(ctx, conn); err != nil {
		t.Fatal(err)
	}
}

func (o Options) intents(t *testing.T) (n int) {
	t.Helper()
	connect(t, o.DatabaseURL, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select count(*) from payment_intents").Scan(&n)
	})
	return n
}

func serve(t *testing.T, o Options) *httptest.Server {
	t.Helper()
	h, end, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv
}

// answer is what a test compares of an HTTP answer.
type answer struct {
	Status   int
	Location string
	Replayed string
	Body     string
}

func post(t *testing.T, srv *httptest.Server, token, key, amount string) answer {
	t.Helper()
	body := `{"chain":"evm:31337","token":"0x5FbDB2315678afecb367f032d93F642f64180aa3","payer":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8",` +
		`"merchant":"0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC","amount":"` + amount + `"}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/v1/payment_intents", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header.Get("Location"), resp.Header.Get("Idempotent-Replayed"), string(raw)}
}

func TestNew(t *testing.T) {
	t.Parallel()
	t.Run("SameKeyTwice", func(t *testing.T) {
		t.Parallel()
		each(t, 30*time.Second, func(t *testing.T, o Options) {
			srv := serve(t, o)
			first := post(t, srv, "token", "k", "1")
			if first.Status != http.StatusCreated || first.Replayed != "" {
				t.Fatalf("the first was answered %+v", first)
			}
			want := first
			want.Replayed = "true"
			if diff := cmp.Diff(want, post(t, srv, "token", "k", "1")); diff != "" {
				t.Errorf("the second differs (-want +got):\n%s", diff)
			}
			if n := o.intents(t); n != 1 {
				t.Errorf("%d intents, want 1", n)
			}
		})
	})
	t.Run("ThreeAtOnce", func(t *testing.T) {
		t.Parallel()
		each(t, 30*time.Second, func(t *testing.T, o Options) {
			srv := serve(t, o)
			const rounds, copies = 20, 3
			for round := range rounds {
				key := fmt.Sprint("k", round)
				bodies := make([]string, copies)
				var group sync.WaitGroup
				for i := range bodies {
					group.Go(func() {
						deadline := time.Now().Add(10 * time.Second)
						for time.Now().Before(deadline) {
							a := post(t, srv, "token", key, "1")
							if a.Status == http.StatusCreated {
								bodies[i] = a.Body
								return
							}
							if a.Status != http.StatusConflict {
								t.Errorf("a copy was answered %+v", a)
								return
							}
						}
					})
				}
				group.Wait()
				for _, b := range bodies {
					if b == "" || b != bodies[0] {
						t.Fatalf("the copies were answered\n%s", strings.Join(bodies, ""))
					}
				}
			}
			if n := o.intents(t); n != rounds {
				t.Errorf("%d intents, want %d", n, rounds)
			}
		})
	})
	t.Run("AnotherRequest", func(t *testing.T) {
		t.Parallel()
		each(t, 30*time.Second, func(t *testing.T, o Options) {
			srv := serve(t, o)
			post(t, srv, "token", "k", "1")
			if a := post(t, srv, "token", "k", "2"); a.Status != http.StatusUnprocessableEntity {
				t.Errorf("another body was answered %+v", a)
			}
			if a := post(t, srv, "other-token", "k", "2"); a.Status != http.StatusCreated {
				t.Errorf("another merchant was answered %+v", a)
			}
		})
	})
	t.Run("FaultyRequest", func(t *testing.T) {
		t.Parallel()
		each(t, 30*time.Second, func(t *testing.T, o Options) {
			srv := serve(t, o)
			for _, replayed := range []string{"", "true"} {
				if a := post(t, srv, "token", "k", "0"); a.Status != http.StatusBadRequest || a.Replayed != replayed {
					t.Errorf("a faulty request was answered %+v, want a 400, replayed: %q", a, replayed)
				}
			}
		})
	})
}

// claim claims id with a fingerprint that is mark repeated.
func claim(t *testing.T, s idempotency.Store, id idempotency.ID, mark byte) idempotency.Claim {
	t.Helper()
	c, err := s.Claim(t.Context(), id, fingerprintOf(mark))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func fingerprintOf(mark byte) (fp idempotency.Fingerprint) {
	copy(fp[:], bytes.Repeat([]byte{mark}, len(fp)))
	return fp
}

func TestStore_Claim(t *testing.T) {
	t.Parallel()
	resp := idempotency.Response{
		Status: 201, Header: http.Header{"Location": {"/there"}, "Content-Type": {"application/json"}}, Body: []byte("\x00\xff bytes\n"),
	}
	t.Run("InFlight", func(t *testing.T) {
		t.Parallel()
		each(t, 30*time.Second, func(t *testing.T, o Options) {
			s, _, end, err := open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer end()
			id := idempotency.ID{Scope: o.Merchants["token"], Key: "k"}
			first := claim(t, s, id, 1)
			if first.Outcome != idempotency.Fresh {
				t.Fatalf("the first claim was %v", first.Outcome)
			}
			if c := claim(t, s, id, 1); c.Outcome != idempotency.InFlight {
				t.Errorf("a copy's claim was %v", c.Outcome)
			}
			if err := first.Attempt.Abandon(t.Context()); err != nil {
				t.Fatal(err)
			}
			again := claim(t, s, id, 2)
			if again.Outcome != idempotency.Fresh {
				t.Fatalf("after Abandon the claim was %v", again.Outcome)
			}
			if err := again.Attempt.Complete(again.Attempt.Bind(t.Context()), resp); err != nil {
				t.Fatal(err)
			}
			if err := again.Attempt.Abandon(t.Context()); err != nil { // it is deferred, and must change nothing
				t.Fatal(err)
			}
			replay := claim(t, s, id, 2)
			if replay.Outcome != idempotency.Replay {
				t.Fatalf("after Complete the claim was %v", replay.Outcome)
			}
			if diff := cmp.Diff(resp, replay.Record.Response); diff != "" {
				t.Errorf("the record differs (-want +got):\n%s", diff)
			}
			if c := claim(t, s, id, 1); c.Outcome != idempotency.Mismatch || c.Record == nil || c.Record.Fingerprint != fingerprintOf(2) {
				t.Errorf("another request's claim was %+v", c)
			}
		})
	})
	t.Run("LeftBehind", func(t *testing.T) {
		t.Parallel()
		each(t, 50*time.Millisecond, func(t *testing.T, o Options) {
			s, _, end, err := open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer end()
			id := idempotency.ID{Scope: o.Merchants["token"], Key: "k"}
			lost := claim(t, s, id, 1)
			defer lost.Attempt.Abandon(context.Background()) // where it holds a connection still
			for deadline := time.Now().Add(10 * time.Second); ; {
				c := claim(t, s, id, 1)
				if c.Outcome == idempotency.Fresh {
					_ = c.Attempt.Abandon(t.Context()) // the lease is short, and may be over
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("the key of an attempt that was left behind stays %v", c.Outcome)
				}
			}
		})
	})
	t.Run("Expired", func(t *testing.T) {
		t.Parallel()
		each(t, 30*time.Second, func(t *testing.T, o Options) {
			o.TTL = 100 * time.Millisecond
			s, _, end, err := open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer end()
			id := idempotency.ID{Scope: o.Merchants["token"], Key: "k"}
			c := claim(t, s, id, 1)
			if err := c.Attempt.Complete(c.Attempt.Bind(t.Context()), resp); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(10 * time.Second); ; {
				c := claim(t, s, id, 2)
				if c.Outcome == idempotency.Fresh {
					_ = c.Attempt.Abandon(t.Context())
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("an expired key stays %v", c.Outcome)
				}
			}
		})
	})
	t.Run("OneTakesOver", func(t *testing.T) {
		t.Parallel()
		each(t, 30*time.Second, func(t *testing.T, o Options) {
			short := o
			short.TTL = 100 * time.Millisecond
			s, _, end, err := open(t.Context(), short)
			if err != nil {
				t.Fatal(err)
			}
			defer end()
			id := idempotency.ID{Scope: o.Merchants["token"], Key: "k"}
			c := claim(t, s, id, 1)
			if err := c.Attempt.Complete(c.Attempt.Bind(t.Context()), resp); err != nil {
				t.Fatal(err)
			}
			if s, _, end, err = open(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			defer end()
			for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
				claims := make([]idempotency.Claim, 4)
				var group sync.WaitGroup
				for i := range claims {
					group.Go(func() {
						var err error
						if claims[i], err = s.Claim(t.Context(), id, fingerprintOf(1)); err != nil {
							t.Error(err)
						}
					})
				}
				group.Wait()
				fresh := 0
				for _, c := range claims {
					if c.Outcome == idempotency.Fresh {
						fresh++
						defer c.Attempt.Abandon(context.Background())
					}
				}
				if fresh > 1 {
					t.Fatalf("%d at once took an expired key over", fresh)
				}
				if fresh == 1 {
					return
				}
			}
			t.Fatal("nobody took an expired key over")
		})
	})
}
