package pgidem_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/idempotency"
	"intentd/internal/idempotency/idemtest"
	"intentd/internal/idempotency/pgidem"
	"intentd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	longLease = time.Minute
	patience  = 10 * time.Second // for what only the server can bring about
)

var (
	id   = idempotency.ID{Scope: "merchant-a", Key: "order-1001"}
	fp   = idempotency.FingerprintOf("POST", "/things", []byte("one"))
	resp = idempotency.Response{
		Status: http.StatusCreated,
		Header: http.Header{"Location": {"/things/1"}},
		Body:   []byte("made"),
	}
)

// fixture is a store on a database of its own, with a table for the work that
// takes part in its attempts.
type fixture struct {
	db    *pgtest.DB
	pool  *pgxpool.Pool
	made  *pgidem.Store
	store idempotency.Store // made, or its view for interactive requests
	wire  *wire
	left  bool // attempts are left behind by their groups
}

func newFixture(t *testing.T, lease time.Duration, change ...func(*pgxpool.Config)) *fixture {
	t.Helper()
	f := &fixture{db: pgtest.New(t), wire: new(wire)}
	f.db.Exec(t, "create table work (name text not null constraint work_name_check check (name <> 'forbidden'))")
	c, err := pgxpool.ParseConfig(f.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = 10 // the suite holds several attempts at once
	pgidem.Configure(c)
	f.wire.dial = c.ConnConfig.DialFunc
	c.ConnConfig.DialFunc = f.wire.Dial
	for _, change := range change {
		change(c)
	}
	if f.pool, err = pgxpool.NewWithConfig(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		eventually(t, "a request has left something behind", func() bool { return pgidem.Idle(f.made) })
		closed := make(chan struct{})
		go func() {
			f.pool.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(patience):
			t.Error("a connection was not given back to the pool")
		}
	})
	f.made = pgidem.New(f.pool, idemtest.TTL, lease)
	f.store = f.made.Interactive()
	return f
}

// committers has attempts share transactions.
func (f *fixture) committers() *fixture {
	f.store = f.made.WithCommitters(2)
	return f
}

// grouped has all attempts do so, be one the only member, and wait for handlers
// however slow they are.
func (f *fixture) grouped() *fixture {
	f.committers()
	pgidem.Gather(f.made, time.Hour)
	return f
}

// leftBehind has every attempt's group commit without it.
func (f *fixture) leftBehind() *fixture {
	f.committers()
	f.left = true
	pgidem.Gather(f.made, time.Nanosecond)
	pgidem.HandOver(f.made)
	return f
}

// each runs test on attempts that have a transaction of their own, that share
// one, and that were left behind in the next one.
func each(t *testing.T, test func(*testing.T, func(*fixture) *fixture)) {
	t.Helper()
	for name, kind := range map[string]func(*fixture) *fixture{
		"Alone":      func(f *fixture) *fixture { return f },
		"Group":      (*fixture).grouped,
		"LeftBehind": (*fixture).leftBehind,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

func (f *fixture) claim(t *testing.T) idempotency.Claim {
	t.Helper()
	c, err := f.store.Claim(t.Context(), id, fp)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	if c.Attempt != nil {
		t.Cleanup(func() { _ = c.Attempt.Abandon(context.Background()) })
	}
	return c
}

// fresh claims until the claim may run: a lock may outlive its connection's end
// by a moment, in which the key is in flight.
func (f *fixture) fresh(t *testing.T) (idempotency.Attempt, *pgidem.Tx) {
	t.Helper()
	var c idempotency.Claim
	eventually(t, "the key is not free", func() bool {
		c = f.claim(t)
		return c.Outcome == idempotency.Fresh
	})
	tx, ok := pgidem.FromContext(c.Attempt.Bind(t.Context()))
	if !ok {
		t.Fatal("the context is bound to no transaction")
	}
	if f.left {
		eventually(t, "the attempt is not left behind", func() bool { return pgidem.LeftBehind(c.Attempt) })
	}
	return c.Attempt, tx
}

func (f *fixture) work(t *testing.T) int {
	t.Helper()
	return pgtest.QueryVal[int](t, f.db, "select count(*) from work")
}

func (f *fixture) records(t *testing.T) int {
	t.Helper()
	return pgtest.QueryVal[int](t, f.db, "select count(*) from idempotency_keys")
}

// wantNothingKept checks that an attempt left no trace: its key is free, and the
// next one makes the first record and the first work.
func (f *fixture) wantNothingKept(t *testing.T) {
	t.Helper()
	if w, r := f.work(t), f.records(t); w != 0 || r != 0 {
		t.Errorf("%d rows of work and %d records were kept, want none", w, r)
	}
	a, tx := f.fresh(t)
	tx.Queue("insert into work values ('again')")
	if err := a.Complete(t.Context(), resp); err != nil {
		t.Errorf("the next attempt: %v", err)
	}
	if w, r := f.work(t), f.records(t); w != 1 || r != 1 {
		t.Errorf("the next attempt kept %d rows of work and %d records, want one each", w, r)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond) // only the server knows when
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	suite := func(kind func(*fixture) *fixture, change ...func(*pgxpool.Config)) func(*testing.T, time.Duration) idemtest.Harness {
		return func(t *testing.T, lease time.Duration) idemtest.Harness {
			f := kind(newFixture(t, lease, change...))
			return idemtest.Harness{
				Store: f.store,
				Age: func(t *testing.T, d time.Duration) {
					f.db.Exec(t, "update idempotency_keys set created_at = created_at - $1::interval, expires_at = expires_at - $1::interval", d)
				},
				Expire: func(t *testing.T) {
					eventually(t, "an attempt is still running", func() bool {
						return pgidem.Running(f.made) == 0 &&
							pgtest.QueryVal[int](t, f.db, "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'") == 0
					})
				},
				Work: func(t *testing.T, ctx context.Context, name string) {
					tx, ok := pgidem.FromContext(ctx)
					if !ok {
						t.Error("the context is bound to no transaction")
						return
					}
					tx.Queue("insert into work values ($1)", name)
				},
				Kept: func(t *testing.T, name string) int {
					return pgtest.QueryVal[int](t, f.db, "select count(*) from work where name = $1", name)
				},
			}
		}
	}
	t.Run("Default", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, kind func(*fixture) *fixture) { idemtest.Run(t, suite(kind)) })
		t.Run("AsItComes", func(t *testing.T) {
			t.Parallel()
			idemtest.Run(t, suite((*fixture).committers))
		})
	})
	t.Run("Search", func(t *testing.T) {
		t.Parallel()
		idemtest.RunSearch(t, suite((*fixture).committers))
	})
	// What a pooler in transaction mode can carry: no named statements.
	t.Run("ExecMode", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, kind func(*fixture) *fixture) {
			idemtest.Run(t, suite(kind, func(c *pgxpool.Config) {
				c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
			}))
		})
	})
	// A database whose defaults are not those that the claim is made for.
	t.Run("HostileDefaults", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, kind func(*fixture) *fixture) {
			idemtest.Run(t, suite(kind, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
				c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
			}))
		})
	})
}

func TestStore_Claim(t *testing.T) {
	t.Parallel()

	t.Run("SurvivesTheLossOfIdleConnections", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, kind func(*fixture) *fixture) {
			f := kind(newFixture(t, longLease))
			f.connect(t, 4)
			f.terminateAll(t)
			if c := f.claim(t); c.Outcome != idempotency.Fresh {
				t.Errorf("claim = %v, want fresh", c.Outcome)
			} else if err := c.Attempt.Complete(t.Context(), resp); err != nil {
				t.Errorf("Complete: %v", err)
			}
		})
	})

	t.Run("NoConnectionLeft", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, kind func(*fixture) *fixture) {
			f := kind(newFixture(t, longLease, func(c *pgxpool.Config) { c.MaxConns = 1 }))
			a, _ := f.fresh(t)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if c, err := f.store.Claim(ctx, idempotency.ID{Scope: "s", Key: "k"}, fp); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Claim = %v, %v; want the deadline's error", c.Outcome, err)
			}
			if err := a.Complete(t.Context(), resp); err != nil {
				t.Errorf("the attempt that has the connection: %v", err)
			}
		})
	})

	t.Run("NoServer", func(t *testing.T) {
		t.Parallel()
		pool, err := pgxpool.New(t.Context(), "postgres://u:p@127.0.0.1:1/none")
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if c, err := pgidem.New(pool, time.Hour, time.Minute).Claim(t.Context(), id, fp); err == nil {
			t.Errorf("Claim = %v without a server", c.Outcome)
		}
	})

	t.Run("SilentServer", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, kind func(*fixture) *fixture) {
			f := kind(newFixture(t, longLease))
			f.connect(t, 1)
			f.wire.silence()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if c, err := f.store.Claim(ctx, id, fp); err == nil {
				t.Errorf("Claim = %v from a silent server", c.Outcome)
			}
			f.wire.heal()
			f.wantNothingKept(t)
		})
	})

	// As when a firewall forgets its flows: what is open hears nothing any more,
	// what is opened anew does.
	t.Run("OldConnectionsGoSilent", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, kind func(*fixture) *fixture) {
			f := kind(newFixture(t, longLease))
			f.connect(t, 8)
			f.wire.deafen()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // the middleware's patience
			defer cancel()
			c, err := f.store.Claim(ctx, id, fp)
			if err != nil || c.Outcome != idempotency.Fresh {
				t.Fatalf("Claim = %v, %v; want fresh", c.Outcome, err)
			}
			if err := c.Attempt.Complete(t.Context(), resp); err != nil {
				t.Errorf("Complete: %v", err)
			}
			f.wire.heal()
		})
	})

	// Where every attempt hangs, nobody else has to.
	t.Run("PoolFullOfAttempts", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, kind func(*fixture) *fixture) {
			f := kind(newFixture(t, longLease, func(c *pgxpool.Config) { c.MaxConns = 5 }))
			key := func(k string) idempotency.ID { return idempotency.ID{Scope: "s", Key: k} }
			ask := func(k string, fp idempotency.Fingerprint) (idempotency.Claim, error) {
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				return f.store.Claim(ctx, key(k), fp)
			}
			done, err := ask("done", fp)
			if err != nil {
				t.Fatal(err)
			}
			if err := done.Attempt.Complete(t.Context(), resp); err != nil {
				t.Fatal(err)
			}
			var running []idempotency.Attempt
			for _, k := range []string{"a", "b", "c", "d"} {
				c, err := ask(k, fp)
				if err != nil || c.Outcome != idempotency.Fresh {
					t.Fatalf("Claim = %v, %v; want fresh", c.Outcome, err)
				}
				t.Cleanup(func() { _ = c.Attempt.Abandon(context.Background()) })
				running = append(running, c.Attempt)
			}
			for _, want := range []struct {
				key     string
				fp      idempotency.Fingerprint
				outcome idempotency.Outcome
			}{
				{"a", fp, idempotency.InFlight},
				{"a", idempotency.Fingerprint{1}, idempotency.Mismatch},
				{"done", fp, idempotency.Replay},
				{"done", idempotency.Fingerprint{1}, idempotency.Mismatch},
			} {
				if c, err := ask(want.key, want.fp); err != nil || c.Outcome != want.outcome {
					t.Errorf("Claim(%s) = %v, %v; want %v", want.key, c.Outcome, err, want.outcome)
				}
			}
			if c, err := ask("e", fp); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a fifth attempt: %v, %v; want the deadline's error", c.Outcome, err)
			}
			if got := pgtest.QueryVal[int](t, f.db, "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"); got != 8 {
				t.Errorf("%d locks are held by 4 attempts, want 8", got)
			}
			if err := running[0].Complete(t.Context(), resp); err != nil {
				t.Fatal(err)
			}
			c, err := ask("e", fp)
			if err != nil || c.Outcome != idempotency.Fresh {
				t.Fatalf("when there is a place: %v, %v; want fresh", c.Outcome, err)
			}
			if err := c.Attempt.Abandon(t.Context()); err != nil {
				t.Error(err)
			}
			// Places come back however an attempt, or a claim, ends.
			for range 20 {
				if c, err := ask("f", fp); err != nil || c.Outcome != idempotency.Fresh {
					t.Fatalf("Claim = %v, %v; want fresh", c.Outcome, err)
				} else if err := c.Attempt.Abandon(t.Context()); err != nil {
					t.Fatal(err)
				}
				if _, err := ask("done", fp); err != nil {
					t.Fatal(err)
				}
			}
		})
	})

	t.Run("BoundsTheSession", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, 7*time.Second)
		_, tx := f.fresh(t)
		for name, want := range map[string]string{
			"idle_in_transaction_session_timeout": "7s",
			"statement_timeout":                   "7s",
			"client_connection_check_interval":    "500ms",
			"transaction_isolation":               "read committed",
			"transaction_read_only":               "off",
		} {
			if got := queryText(t, tx, "select current_setting($1)", name); got != want {
				t.Errorf("%s = %s, want %s", name, got, want)
			}
		}
	})

	// The bounds are the transaction's, not the session's: a pooler hands the
	// session to somebody else.
	t.Run("LeavesTheSessionAsItWas", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease, func(c *pgxpool.Config) { c.MaxConns = 1 })
		a, _ := f.fresh(t)
		if err := a.Complete(t.Context(), resp); err != nil {
			t.Fatal(err)
		}
		var idle, statement string
		err := f.pool.QueryRow(t.Context(), "select current_setting('idle_in_transaction_session_timeout'), current_setting('statement_timeout')").Scan(&idle, &statement)
		if err != nil || idle != "0" || statement != "0" {
			t.Errorf("timeouts after the attempt: %q, %q, %v; want 0", idle, statement, err)
		}
	})
}

// Only both locks are the right to run: what is no answer of the statement's is
// a fault.
func TestStore_Claim_Locks(t *testing.T) {
	t.Parallel()
	for locked, want := range map[int]idempotency.Outcome{
		0: idempotency.InFlight, 1: idempotency.Mismatch, 2: idempotency.Fresh, -1: 0, 3: 0,
	} {
		if got, err := pgidem.Decide(locked); got != want || (err != nil) != (want == 0) {
			t.Errorf("with %d locks: %v, %v; want %v", locked, got, err, want)
		}
	}
}

func TestStore_TTL(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease)
	// PostgreSQL keeps microseconds; what an answer says of the expiry must not
	// differ by one that turns a second.
	store := pgidem.New(f.pool, time.Hour+1999*time.Nanosecond, longLease)
	if got, want := store.TTL(), time.Hour+time.Microsecond; got != want {
		t.Errorf("TTL() = %v, want %v", got, want)
	}
	c, err := store.Claim(t.Context(), id, fp)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Attempt.Complete(t.Context(), resp); err != nil {
		t.Fatal(err)
	}
	rec, _, err := store.Lookup(t.Context(), id)
	if want := c.Attempt.Time().Add(store.TTL()); err != nil || !rec.ExpiresAt.Equal(want) {
		t.Errorf("Lookup = %+v, %v; want one that expires at %v", rec, err, want)
	}
}

func TestStore_Lookup(t *testing.T) {
	t.Parallel()
	look := func(t *testing.T, f *fixture, wantRecord, wantRunning bool) {
		t.Helper()
		rec, running, err := f.store.Lookup(t.Context(), id)
		if (rec != nil) != wantRecord || running != wantRunning || err != nil {
			t.Errorf("Lookup = %+v, running %t, %v; want a record %t, running %t", rec, running, err, wantRecord, wantRunning)
		}
	}

	t.Run("RoundTrips", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease, func(c *pgxpool.Config) { c.MaxConns = 2 })
		f.connect(t, 2)
		trips := func(wantRecord, wantRunning bool) {
			t.Helper()
			for range 2 { // both connections have the statements prepared
				look(t, f, wantRecord, wantRunning)
			}
			before := f.wire.trips()
			look(t, f, wantRecord, wantRunning)
			if got := f.wire.trips() - before; got != 1 {
				t.Errorf("a lookup takes %d round trips, want 1", got)
			}
		}
		trips(false, false)
		a, _ := f.fresh(t)
		trips(false, true)
		if err := a.Complete(t.Context(), resp); err != nil {
			t.Fatal(err)
		}
		trips(true, false)
	})

	// A lookup that has looked for the lock, and waits for the table, holds none
	// that a claim would meet.
	t.Run("TakesNoAdvisoryLock", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease, func(c *pgxpool.Config) { c.MaxConns = 1 })
		look(t, f, false, false) // prepares the statements
		lock, err := f.db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Rollback(context.Background())
		if _, err := lock.Exec(t.Context(), "lock table idempotency_keys"); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			look(t, f, false, false)
		}()
		const waiting = "select count(*) from pg_locks where relation = 'idempotency_keys'::regclass and not granted"
		eventually(t, "the lookup does not wait", func() bool { return pgtest.QueryVal[int](t, f.db, waiting) == 1 })
		const held = "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"
		if got := pgtest.QueryVal[int](t, f.db, held); got != 0 {
			t.Errorf("the lookup holds %d advisory locks", got)
		}
		if err := lock.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-done
	})

	// What another program locks is not the key's: the same number in another
	// database, in two halves, or in another's number space.
	t.Run("KnowsTheKeysLock", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		number := pgidem.KeyLock(id)
		session := func(db *pgtest.DB) func(sql string, args ...any) {
			conn, err := pgx.Connect(t.Context(), db.URL)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
			return func(sql string, args ...any) {
				t.Helper()
				if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
					t.Error(err)
				}
			}
		}
		const take, give = "select pg_advisory_lock($1)", "select pg_advisory_unlock($1)"
		session(pgtest.New(t))(take, number)
		holder := session(f.db)
		holder("select pg_advisory_lock($1, $2)", int32(number>>32), int32(number))
		holder(take, number^1)
		holder(take, number^(1<<32))
		look(t, f, false, false)
		holder(take, number)
		look(t, f, false, true)
		holder(give, number)
		look(t, f, false, false)

		// A claim that is about to replay the record holds the lock too.
		a, _ := f.fresh(t)
		if err := a.Complete(t.Context(), resp); err != nil {
			t.Fatal(err)
		}
		holder(take, number)
		look(t, f, true, false)
	})

	t.Run("SeesEveryKindOfNumber", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		var seen [4]bool // by the signs of the number's two halves
		for k := 'a'; seen != [4]bool{true, true, true, true}; k++ {
			id := idempotency.ID{Scope: "s", Key: string(k)}
			number := pgidem.KeyLock(id)
			kind := 0
			if number < 0 {
				kind |= 1
			}
			if int32(number) < 0 {
				kind |= 2
			}
			if seen[kind] {
				continue
			}
			seen[kind] = true
			c, err := f.store.Claim(t.Context(), id, fp)
			if err != nil {
				t.Fatal(err)
			}
			if _, running, err := f.store.Lookup(t.Context(), id); !running || err != nil {
				t.Errorf("lock %x: running %t, %v", uint64(number), running, err)
			}
			if err := c.Attempt.Abandon(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("PoolFullOfAttempts", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease, func(c *pgxpool.Config) { c.MaxConns = 5 })
		f.fresh(t)
		for _, k := range []string{"b", "c", "d"} {
			c, err := f.store.Claim(t.Context(), idempotency.ID{Scope: "s", Key: k}, fp)
			if err != nil || c.Outcome != idempotency.Fresh {
				t.Fatalf("Claim = %v, %v; want fresh", c.Outcome, err)
			}
			t.Cleanup(func() { _ = c.Attempt.Abandon(context.Background()) })
		}
		for range 3 {
			look(t, f, false, true)
		}
	})

	t.Run("SurvivesTheLossOfIdleConnections", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		f.connect(t, 4)
		f.terminateAll(t)
		look(t, f, false, false)
	})

	t.Run("OldConnectionsGoSilent", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		f.connect(t, 8)
		f.wire.deafen()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // Find's patience
		defer cancel()
		if rec, running, err := f.store.Lookup(ctx, id); rec != nil || running || err != nil {
			t.Errorf("Lookup = %+v, %t, %v; want nothing", rec, running, err)
		}
		f.wire.heal()
	})

	t.Run("SilentServer", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		f.connect(t, 1)
		f.wire.silence()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if rec, running, err := f.store.Lookup(ctx, id); err == nil {
			t.Errorf("Lookup = %+v, %t from a silent server", rec, running)
		}
		f.wire.heal()
		look(t, f, false, false)
	})

	t.Run("TableIsLocked", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		look(t, f, false, false)
		lock, err := f.db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lock.Exec(t.Context(), "lock table idempotency_keys"); err != nil {
			t.Fatal(err)
		}
		if rec, running, err := f.store.Lookup(t.Context(), id); err == nil {
			t.Errorf("Lookup = %+v, %t of a table that is locked", rec, running)
		}
		if err := lock.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		look(t, f, false, false)
	})

	// The bounds of a lookup are its transaction's: a pooler hands the session to
	// somebody else.
	t.Run("LeavesTheSessionAsItWas", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease, func(c *pgxpool.Config) { c.MaxConns = 1 })
		look(t, f, false, false)
		var idle, statement string
		err := f.pool.QueryRow(t.Context(), "select current_setting('idle_in_transaction_session_timeout'), current_setting('statement_timeout')").Scan(&idle, &statement)
		if err != nil || idle != "0" || statement != "0" {
			t.Errorf("timeouts after a lookup: %q, %q, %v; want 0", idle, statement, err)
		}
	})
}

func TestAttempt_RoundTrips(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease, func(c *pgxpool.Config) { c.MaxConns = 1 })
	one := func(key string, handle func(tx *pgidem.Tx)) int {
		t.Helper()
		before := f.wire.trips()
		c, err := f.store.Claim(t.Context(), idempotency.ID{Scope: "s", Key: key}, fp)
		if err != nil {
			t.Fatal(err)
		}
		if c.Outcome == idempotency.Fresh {
			tx, _ := pgidem.FromContext(c.Attempt.Bind(t.Context()))
			handle(tx)
			if err := c.Attempt.Complete(t.Context(), resp); err != nil {
				t.Fatal(err)
			}
		}
		return f.wire.trips() - before
	}
	queue := func(tx *pgidem.Tx) {
		tx.Queue("insert into work values ($1)", "one")
		tx.Queue("insert into work values ($1)", "two")
	}
	ask := func(tx *pgidem.Tx) {
		queue(tx)
		if _, err := tx.Exec(t.Context(), "insert into work values ('three')"); err != nil {
			t.Fatal(err)
		}
	}
	one("warm", queue) // prepares the statements on the connection
	one("warm too", ask)
	f.db.Exec(t, "update idempotency_keys set created_at = created_at - interval '2 days', expires_at = expires_at - interval '2 days' where key in ('warm', 'warm too')")
	one("warm", queue) // and the one that deletes an expired record

	if got := one("k", queue); got != 2 {
		t.Errorf("a create takes %d round trips, want 2", got)
	}
	if got := one("k", queue); got != 2 {
		t.Errorf("a replay takes %d round trips, want 2", got)
	}
	if got := one("warm too", queue); got != 2 {
		t.Errorf("a create in place of an expired record takes %d round trips, want 2", got)
	}
	if got := one("l", ask); got != 3 {
		t.Errorf("a create that asks one question takes %d round trips, want 3", got)
	}
}

func TestAttempt_Complete(t *testing.T) {
	t.Parallel()

	t.Run("OneTransaction", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		a, tx := f.fresh(t)
		tx.Queue("insert into work values ('one')")
		if _, err := tx.Exec(t.Context(), "insert into work values ('two')"); err != nil {
			t.Fatal(err)
		}
		if err := a.Complete(t.Context(), resp); err != nil {
			t.Fatal(err)
		}
		const distinct = "select count(distinct xmin::text) from (select xmin from work union all select xmin from idempotency_keys) x"
		if got := pgtest.QueryVal[int](t, f.db, distinct); got != 1 {
			t.Errorf("work and record come from %d transactions, want 1", got)
		}
		if w, r := f.work(t), f.records(t); w != 2 || r != 1 {
			t.Errorf("%d rows of work and %d records, want 2 and 1", w, r)
		}
	})

	t.Run("FailedStatement", func(t *testing.T) {
		t.Parallel()
		for name, handle := range map[string]func(*testing.T, *pgidem.Tx){
			"Queued":    func(_ *testing.T, tx *pgidem.Tx) { tx.Queue("insert into work values ('forbidden')") },
			"NotATable": func(_ *testing.T, tx *pgidem.Tx) { tx.Queue("insert into nothing values (1)") },
			"QueuedBeforeAGoodOne": func(t *testing.T, tx *pgidem.Tx) {
				tx.Queue("insert into work values ('forbidden')")
				if _, err := tx.Exec(t.Context(), "insert into work values ('good')"); err == nil {
					t.Error("Exec told nothing of the failed statement before it")
				}
			},
			// The handler goes on as if nothing had happened.
			"Ignored": func(t *testing.T, tx *pgidem.Tx) {
				if _, err := tx.Exec(t.Context(), "insert into work values ('forbidden')"); err == nil {
					t.Error("Exec of a failing statement succeeded")
				}
				tx.Queue("insert into work values ('good')")
			},
			"InTheRows": func(t *testing.T, tx *pgidem.Tx) {
				rows, err := tx.Query(t.Context(), "select 1 / (3 - n) from generate_series(1, 5) n")
				if err == nil {
					for rows.Next() {
					}
					rows.Close()
					err = rows.Err()
				}
				if err == nil {
					t.Error("Query of a failing statement succeeded")
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, longLease)
				a, tx := f.fresh(t)
				tx.Queue("insert into work values ('first')")
				handle(t, tx)
				err := a.Complete(t.Context(), resp)
				if err == nil {
					t.Error("Complete succeeded")
				}
				var cause *pgconn.PgError
				if !errors.As(err, &cause) || cause.Code == "25P02" {
					t.Errorf("Complete = %v, want the failure that came first", err)
				}
				for _, other := range []error{idempotency.ErrInDoubt, idempotency.ErrTaken, idempotency.ErrSuperseded} {
					if errors.Is(err, other) {
						t.Errorf("Complete = %v, which it is not", err)
					}
				}
				f.wantNothingKept(t)
			})
		}
	})

	t.Run("BackendKilled", func(t *testing.T) {
		t.Parallel()
		for name, handle := range map[string]func(*testing.T, *pgidem.Tx){
			"AfterTheClaim": func(_ *testing.T, tx *pgidem.Tx) { tx.Queue("insert into work values ('w')") },
			"AfterAStatement": func(t *testing.T, tx *pgidem.Tx) {
				if _, err := tx.Exec(t.Context(), "insert into work values ('w')"); err != nil {
					t.Error(err)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, longLease)
				a, tx := f.fresh(t)
				handle(t, tx)
				f.terminateAll(t)
				if err := a.Complete(t.Context(), resp); err == nil {
					t.Error("Complete succeeded on a killed backend")
				}
				f.wantNothingKept(t)
			})
		}
		t.Run("InsideTheCommittingPipeline", func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, kind func(*fixture) *fixture) {
				f := kind(newFixture(t, longLease))
				a, tx := f.fresh(t)
				tx.Queue("insert into work values ('w')")
				tx.Queue("select pg_sleep(60)")
				done := make(chan error)
				go func() { done <- a.Complete(t.Context(), resp) }()
				eventually(t, "the pipeline is not running", func() bool {
					return pgtest.QueryVal[int](t, f.db, "select count(*) from pg_stat_activity where wait_event = 'PgSleep'") == 1
				})
				f.terminateAll(t)
				// The server said so before it came to COMMIT.
				if err := <-done; err == nil || errors.Is(err, idempotency.ErrInDoubt) {
					t.Errorf("Complete = %v, want a plain error", err)
				}
				f.wantNothingKept(t)
			})
		})
	})

	t.Run("ConnectionLost", func(t *testing.T) {
		t.Parallel()
		t.Run("BeforeTheServerHeard", func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, kind func(*fixture) *fixture) {
				f := kind(newFixture(t, longLease))
				a, tx := f.fresh(t)
				tx.Queue("insert into work values ('w')")
				f.wire.dropNextWrite()
				if err := a.Complete(t.Context(), resp); err == nil {
					t.Error("Complete succeeded")
				}
				f.wantNothingKept(t)
			})
		})
		t.Run("BeforeTheClientHeard", func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, kind func(*fixture) *fixture) {
				f := kind(newFixture(t, longLease))
				a, tx := f.fresh(t)
				tx.Queue("insert into work values ('w')")
				f.wire.loseAnswer("COMMIT\x00")
				if err := a.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrInDoubt) {
					t.Errorf("Complete = %v, want ErrInDoubt", err)
				}
				if c := f.claim(t); c.Outcome != idempotency.Replay {
					t.Errorf("the next claim is %v, want replay: it was committed", c.Outcome)
				}
				if w, r := f.work(t), f.records(t); w != 1 || r != 1 {
					t.Errorf("%d rows of work and %d records, want one each", w, r)
				}
			})
		})
		t.Run("BetweenClaimAndQuestion", func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, longLease)
			a, tx := f.fresh(t)
			f.wire.loseAnswer("INSERT 0 1\x00")
			if _, err := tx.Exec(t.Context(), "insert into work values ('w')"); err == nil {
				t.Error("Exec succeeded")
			}
			// COMMIT was never sent, so there is no doubt.
			if err := a.Complete(t.Context(), resp); err == nil || errors.Is(err, idempotency.ErrInDoubt) {
				t.Errorf("Complete = %v, want a plain error", err)
			}
			f.wantNothingKept(t)
		})
	})

	t.Run("DeadlineInsideThePipeline", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, kind func(*fixture) *fixture) {
			f := kind(newFixture(t, longLease))
			a, tx := f.fresh(t)
			tx.Queue("insert into work values ('w')")
			tx.Queue("select pg_sleep(60)")
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if err := a.Complete(ctx, resp); !errors.Is(err, idempotency.ErrInDoubt) {
				t.Errorf("Complete = %v, want ErrInDoubt", err)
			}
			f.wantNothingKept(t) // and the backend has noticed that nobody listens
		})
	})

	// A record that the locks did not keep out: another program's, or a lock
	// that was lost.
	t.Run("RecordStandsAlready", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, kind func(*fixture) *fixture) {
			f := kind(newFixture(t, longLease))
			a, tx := f.fresh(t)
			tx.Queue("insert into work values ('w')")
			f.db.Exec(t, `insert into idempotency_keys (scope, key, fingerprint, status, header, body, created_at, expires_at)
				values ($1, $2, $3, 200, '{}', 'theirs', now(), now() + interval '1 day')`, id.Scope, id.Key, fp[:])
			if err := a.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrTaken) {
				t.Errorf("Complete = %v, want ErrTaken", err)
			}
			if got := f.work(t); got != 0 {
				t.Errorf("%d rows of work were kept beside another's record", got)
			}
			if c := f.claim(t); c.Outcome != idempotency.Replay || string(c.Record.Response.Body) != "theirs" {
				t.Errorf("the next claim is %+v, want a replay of theirs", c)
			}
		})
	})

	// PostgreSQL answers COMMIT of a failed transaction with success, and ROLLBACK.
	t.Run("NotATagOfCommit", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, kind func(*fixture) *fixture) {
			f := kind(newFixture(t, longLease))
			a, _ := f.fresh(t)
			f.wire.forgeNextCommit()
			if err := a.Complete(t.Context(), resp); err == nil {
				t.Error("Complete succeeded")
			}
		})
	})

	t.Run("UniqueViolationOfTheWork", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, kind func(*fixture) *fixture) {
			f := kind(newFixture(t, longLease))
			f.db.Exec(t, "create unique index on work (name)")
			f.db.Exec(t, "insert into work values ('w')")
			a, tx := f.fresh(t)
			tx.Queue("insert into work values ('w')")
			if err := a.Complete(t.Context(), resp); err == nil || errors.Is(err, idempotency.ErrTaken) {
				t.Errorf("Complete = %v, want a plain error", err)
			}
			if got := f.records(t); got != 0 {
				t.Errorf("%d records were kept", got)
			}
		})
	})
}

func TestAttempt_Lease(t *testing.T) {
	t.Parallel()
	const lease = 300 * time.Millisecond

	t.Run("InsideOneStatement", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, lease)
		a, tx := f.fresh(t)
		tx.Queue("insert into work values ('w')")
		if _, err := tx.Exec(t.Context(), "select pg_sleep(60)"); err == nil {
			t.Error("a statement outlived the lease")
		}
		if err := a.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrSuperseded) {
			t.Errorf("Complete = %v, want ErrSuperseded", err)
		}
		f.wantNothingKept(t)
	})

	t.Run("InsideTheCommittingPipeline", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, kind func(*fixture) *fixture) {
			f := kind(newFixture(t, lease))
			lock, err := f.db.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := lock.Exec(t.Context(), "lock table work in share mode"); err != nil {
				t.Fatal(err)
			}
			a, tx := f.fresh(t)
			tx.Queue("insert into work values ('w')")
			if err := a.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrSuperseded) {
				t.Errorf("Complete = %v, want ErrSuperseded", err)
			}
			if err := lock.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.wantNothingKept(t)
		})
	})

	// A lease is for the whole attempt: a statement that begins late gets what
	// is left of it, not another one.
	t.Run("LateStatementGetsTheRest", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, time.Minute)
		_, tx := f.fresh(t)
		if got := queryText(t, tx, "select current_setting('statement_timeout')"); got != "1min" {
			t.Errorf("an early statement may take %s, want 1min", got)
		}
		pgidem.Age(tx, 20*time.Second)
		if got := queryText(t, tx, "select current_setting('statement_timeout')"); !strings.HasSuffix(got, "ms") && got != "40s" {
			t.Errorf("a statement after 20 s may take %s, want 40 s or less", got)
		}
	})
}

func TestTx_Query(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease)
	a, tx := f.fresh(t)
	tx.Queue("insert into work values ('one')")
	tx.Queue("insert into work values ('two')")
	rows, err := tx.Query(t.Context(), "select name from work order by name")
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || strings.Join(names, " ") != "one two" {
		t.Errorf("Query after Queue = %q, %v; want one two", names, err)
	}
	if n, err := tx.Exec(t.Context(), "delete from work where name = 'one'"); err != nil || n != 1 {
		t.Errorf("Exec = %d, %v; want 1", n, err)
	}
	if err := a.Complete(t.Context(), resp); err != nil {
		t.Fatal(err)
	}
	if got := f.work(t); got != 1 {
		t.Errorf("%d rows of work, want 1", got)
	}
	if rows, err := tx.Query(t.Context(), "select 1"); err == nil {
		rows.Close()
		t.Error("Query after the end succeeded")
	}
	if _, err := tx.Exec(t.Context(), "select 1"); err == nil {
		t.Error("Exec after the end succeeded")
	}
}

func TestStore_DeleteExpired(t *testing.T) {
	t.Parallel()
	t.Run("WaitsForNobody", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease, func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["lock_timeout"] = "1s"
		})
		f.db.Exec(t, insertDue, 3)
		tx, err := f.db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), "select from idempotency_keys where key = '2' for update"); err != nil {
			t.Fatal(err)
		}
		if n, err := f.store.DeleteExpired(t.Context(), 10); n != 2 || err != nil {
			t.Errorf("DeleteExpired = %d, %v; want the 2 that nobody holds", n, err)
		}
	})
	t.Run("GoesByTheIndex", testDeleteExpiredPlan)
}

// insertDue makes records of which up to a hundred are due.
const insertDue = `
insert into idempotency_keys (scope, key, fingerprint, status, header, body, created_at, expires_at)
select 's', n::text, sha256('x'), 200, '{}', '', now() - interval '1 day', now() + make_interval(secs => n - 100)
from generate_series(1, $1) n`

func testDeleteExpiredPlan(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease)
	f.db.Exec(t, insertDue, 20_000)
	f.db.Exec(t, "analyze idempotency_keys")
	rows, err := f.pool.Query(t.Context(), "explain "+pgidem.DeleteExpiredSQL, 50)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(plan, "\n"); !strings.Contains(text, "idempotency_keys_expires_at_idx") || strings.Contains(text, "Seq Scan") {
		t.Errorf("the sweep does not go by the index:\n%s", text)
	}
}

func queryText(t *testing.T, tx *pgidem.Tx, sql string, args ...any) string {
	t.Helper()
	rows, err := tx.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	s, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// connect opens n connections of the pool.
func (f *fixture) connect(t *testing.T, n int) {
	t.Helper()
	var conns []*pgxpool.Conn
	for range n {
		c, err := f.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	for _, c := range conns {
		c.Release()
	}
}

// terminateAll ends every backend of the database but the one that asks.
func (f *fixture) terminateAll(t *testing.T) {
	t.Helper()
	f.db.Exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'")
}

// wire is the way to the server, which counts round trips and can be cut.
type wire struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu      sync.Mutex
	count   int
	silent  bool
	deaf    int // connections made before this one are silent
	conns   []net.Conn
	dropOut bool   // the next write never arrives, and the connection ends
	lose    string // the answer with this in it never arrives, and the connection ends
	forge   bool   // the next COMMIT is told to be something else
}

func (w *wire) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := w.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	wc := &wireConn{Conn: c, wire: w}
	w.set(func() {
		wc.number = len(w.conns)
		w.conns = append(w.conns, c)
	})
	return wc, nil
}

func (w *wire) trips() int             { w.mu.Lock(); defer w.mu.Unlock(); return w.count }
func (w *wire) silence()               { w.set(func() { w.silent = true }) }
func (w *wire) dropNextWrite()         { w.set(func() { w.dropOut = true }) }
func (w *wire) forgeNextCommit()       { w.set(func() { w.forge = true }) }
func (w *wire) loseAnswer(with string) { w.set(func() { w.lose = with }) }

// deafen silences the connections that there are, and not the next ones.
func (w *wire) deafen() { w.set(func() { w.deaf = len(w.conns) }) }

// heal ends the silence, and the connections that fell into it.
func (w *wire) heal() {
	w.set(func() {
		w.silent, w.deaf = false, 0
		for _, c := range w.conns {
			_ = c.Close()
		}
	})
}

func (w *wire) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

type wireConn struct {
	net.Conn
	wire   *wire
	number int
	asked  bool // guarded by wire.mu: written to since the last read
}

func (c *wireConn) Write(p []byte) (int, error) {
	c.wire.mu.Lock()
	silent, drop := c.wire.silent || c.number < c.wire.deaf, c.wire.dropOut
	c.wire.dropOut = false
	c.asked = true
	c.wire.mu.Unlock()
	switch {
	case silent:
		return len(p), nil
	case drop:
		_ = c.Close()
		return 0, io.ErrClosedPipe
	}
	return c.Conn.Write(p)
}

func (c *wireConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wire.mu.Lock()
	defer c.wire.mu.Unlock()
	if c.wire.lose != "" && bytes.Contains(p[:n], []byte(c.wire.lose)) {
		c.wire.lose = ""
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	if tag := []byte("COMMIT\x00"); c.wire.forge && bytes.Contains(p[:n], tag) {
		c.wire.forge = false
		copy(p, bytes.Replace(p[:n], tag, []byte("NOTHIN\x00"), 1))
	}
	if c.asked && n > 0 {
		c.asked = false
		c.wire.count++
	}
	return n, err
}

// What it spells reads as what encoding/json would have spelt.
func TestEncodeHeader(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.Header{
		"Empty":   {},
		"Usual":   {"Content-Type": {"application/json"}, "Location": {"/v1/things/1"}, "Etag": {`"1"`}},
		"Several": {"Link": {`</a>; rel="next"`, "", "</b>\t\\"}},
		"NoUTF8":  {"Location": {"/caf\xe9", "/ü\u2028"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reference, err := json.Marshal(h)
			if err != nil {
				t.Fatal(err)
			}
			var got, want http.Header
			if err := errors.Join(json.Unmarshal([]byte(pgidem.EncodeHeader(h)), &got), json.Unmarshal(reference, &want)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("encodeHeader (-want +got):\n%s", diff)
			}
		})
	}
}
