package pgidem_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/idempotency"
	"intentd/internal/idempotency/pgidem"
	"intentd/internal/pgtest"
)

var other = idempotency.FingerprintOf("POST", "/things", []byte("two"))

func key(n int) idempotency.ID {
	return idempotency.ID{Scope: "merchant-a", Key: fmt.Sprintf("order-%d", n)}
}

// ask is a request that a test makes of a group.
type ask struct {
	id idempotency.ID
	fp idempotency.Fingerprint
}

func keys(n int) (asks []ask) {
	for i := range n {
		asks = append(asks, ask{key(i), fp})
	}
	return asks
}

// told is what a claim came to.
type told struct {
	idempotency.Claim
	err error
}

// together claims all that is asked for in one group, in that order.
func (f *fixture) together(t *testing.T, asks ...ask) []told {
	t.Helper()
	release := pgidem.Hold(f.made)
	answers := make([]told, len(asks))
	var wg sync.WaitGroup
	for i, a := range asks {
		wg.Go(func() { answers[i].Claim, answers[i].err = f.made.Claim(t.Context(), a.id, a.fp) })
		eventually(t, "a claim does not wait", func() bool { return pgidem.Waiting(f.made) == i+1 })
	}
	release()
	wg.Wait()
	for _, a := range answers {
		if a.Attempt != nil {
			t.Cleanup(func() { _ = a.Attempt.Abandon(context.Background()) })
		}
	}
	return answers
}

// members is together for requests that are all to run.
func (f *fixture) members(t *testing.T, n int) (attempts []idempotency.Attempt) {
	t.Helper()
	for i, a := range f.together(t, keys(n)...) {
		if a.err != nil || a.Outcome != idempotency.Fresh {
			t.Fatalf("claim %d = %v, %v; want fresh", i, a.Outcome, a.err)
		}
		attempts = append(attempts, a.Attempt)
	}
	return attempts
}

// complete completes attempts at the same time, each with a row of work, and
// returns their errors. change may queue more.
func complete(t *testing.T, attempts []idempotency.Attempt, change func(n int, tx *pgidem.Tx)) []error {
	t.Helper()
	errs := make([]error, len(attempts))
	var wg sync.WaitGroup
	for i, a := range attempts {
		wg.Go(func() {
			tx, _ := pgidem.FromContext(a.Bind(t.Context()))
			tx.Queue("insert into work values ($1)", fmt.Sprint("w", i))
			if change != nil {
				change(i, tx)
			}
			errs[i] = a.Complete(t.Context(), resp)
		})
	}
	wg.Wait()
	return errs
}

// transactions returns how many wrote the records, and how many wrote work and
// records.
func (f *fixture) transactions(t *testing.T) (records, all int) {
	t.Helper()
	return pgtest.QueryVal[int](t, f.db, "select count(distinct xmin::text) from idempotency_keys"),
		pgtest.QueryVal[int](t, f.db, "select count(distinct xmin::text) from (select xmin from work union all select xmin from idempotency_keys) x")
}

func (f *fixture) wantStored(t *testing.T, n int) {
	t.Helper()
	if w, r := f.work(t), f.records(t); w != n || r != n {
		t.Errorf("%d rows of work and %d records, want %d each", w, r, n)
	}
}

// wantTimes checks that each record has the time that its attempt told.
func (f *fixture) wantTimes(t *testing.T, attempts map[idempotency.ID]idempotency.Attempt) {
	t.Helper()
	for id, a := range attempts {
		at := pgtest.QueryVal[time.Time](t, f.db, "select created_at from idempotency_keys where key = $1", id.Key)
		until := pgtest.QueryVal[time.Time](t, f.db, "select expires_at from idempotency_keys where key = $1", id.Key)
		if !at.Equal(a.Time()) || !until.Equal(a.Time().Add(f.made.TTL())) {
			t.Errorf("%s: on record from %v to %v, but claimed at %v", id.Key, at, until, a.Time())
		}
	}
}

func TestGroup_OneTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease, func(c *pgxpool.Config) { c.MaxConns = 1 }).grouped()
	const n = 20
	run := func() (trips int) {
		before := f.wire.trips()
		for i, err := range complete(t, f.members(t, n), nil) {
			if err != nil {
				t.Errorf("Complete of %d: %v", i, err)
			}
		}
		return f.wire.trips() - before
	}
	run() // prepares the statements
	f.wantStored(t, n)
	if _, all := f.transactions(t); all != 1 {
		t.Errorf("work and records come from %d transactions, want 1", all)
	}
	f.db.Exec(t, "delete from idempotency_keys")
	if got := run(); got != 2 {
		t.Errorf("%d creates take %d round trips, want 2", n, got)
	}
}

// What members queue as rows is sent as one statement, where it can be.
func TestGroup_Rows(t *testing.T) {
	t.Parallel()
	const (
		alone = "insert into work values ('alone ' || $1::text)"
		many  = "insert into work select 'many ' || name from unnest($1::text[]) as r (name)"
	)
	for name, test := range map[string]struct {
		queue      func(n int, tx *pgidem.Tx)
		members    int
		want       []string
		statements int
	}{
		"Together": {
			func(n int, tx *pgidem.Tx) { tx.QueueRow(alone, many, fmt.Sprint(n)) },
			3, []string{"many 0", "many 1", "many 2"}, 1,
		},
		"One": {
			func(n int, tx *pgidem.Tx) { tx.QueueRow(alone, many, fmt.Sprint(n)) },
			1, []string{"alone 0"}, 1,
		},
		"OneOfMany": {
			func(n int, tx *pgidem.Tx) {
				if n == 1 {
					tx.QueueRow(alone, many, fmt.Sprint(n))
				}
			},
			3, []string{"alone 1"}, 1,
		},
		// Each member's statements keep their order.
		"OthersBehind": {
			func(n int, tx *pgidem.Tx) {
				tx.QueueRow(alone, many, fmt.Sprint(n))
				tx.Queue("update work set name = name || ' and more' where name = 'many ' || $1::text", fmt.Sprint(n))
			},
			2, []string{"many 0 and more", "many 1 and more"}, 2, // each row has the cmin of its update
		},
		"OthersBefore": {
			func(n int, tx *pgidem.Tx) {
				tx.Queue("insert into work values ($1)", fmt.Sprint("before ", n))
				tx.QueueRow(alone, many, fmt.Sprint(n))
			},
			2, []string{"alone 0", "alone 1", "before 0", "before 1"}, 4,
		},
		"SeveralEach": {
			func(n int, tx *pgidem.Tx) {
				tx.QueueRow(alone, many, fmt.Sprint(n, "a"))
				tx.QueueRow(alone, many, fmt.Sprint(n, "b"))
			},
			2, []string{"alone 0b", "alone 1b", "many 0a", "many 1a"}, 3,
		},
		"OfTwoKinds": {
			func(n int, tx *pgidem.Tx) {
				if n%2 == 0 {
					tx.QueueRow(alone, many, fmt.Sprint(n))
					return
				}
				tx.QueueRow(alone, "insert into work select 'odd ' || name from unnest($1::text[]) as r (name)", fmt.Sprint(n))
			},
			4, []string{"many 0", "many 2", "odd 1", "odd 3"}, 2,
		},
		"NotAlike": {
			func(n int, tx *pgidem.Tx) {
				var arg any = fmt.Sprint(n)
				if n == 1 {
					arg = &[]string{"1"}[0]
				}
				tx.QueueRow(alone, many, arg)
			},
			3, []string{"alone 0", "alone 1", "alone 2"}, 3,
		},
		"Nil": {
			func(n int, tx *pgidem.Tx) {
				tx.QueueRow("insert into work values (coalesce($1::text, 'nil'))", many, nil)
			},
			2, []string{"nil", "nil"}, 2,
		},
		"MoreArguments": {
			func(n int, tx *pgidem.Tx) {
				if n == 1 {
					tx.QueueRow("insert into work values ($1::text || $2::text)", many, "1", "+")
					return
				}
				tx.QueueRow(alone, many, fmt.Sprint(n))
			},
			3, []string{"1+", "alone 0", "alone 2"}, 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, longLease).grouped()
			f.db.Exec(t, "delete from work")
			attempts := f.members(t, test.members)
			var wg sync.WaitGroup
			for i, a := range attempts {
				wg.Go(func() {
					tx, _ := pgidem.FromContext(a.Bind(t.Context()))
					test.queue(i, tx)
					if err := a.Complete(t.Context(), resp); err != nil {
						t.Errorf("Complete of %d: %v", i, err)
					}
				})
			}
			wg.Wait()
			got := pgtest.QueryVal[[]string](t, f.db, "select array_agg(name order by name) from work")
			if !slices.Equal(got, test.want) {
				t.Errorf("work: %q, want %q", got, test.want)
			}
			// A row's cmin is the number of its statement within the transaction.
			if n := pgtest.QueryVal[int](t, f.db, "select count(distinct cmin::text) from work"); n != test.statements {
				t.Errorf("%d statements, want %d", n, test.statements)
			}
		})
	}

	// One row is refused: only its own member fails.
	t.Run("Guilty", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		attempts := f.members(t, 3)
		errs := make([]error, 3)
		var wg sync.WaitGroup
		for i, a := range attempts {
			wg.Go(func() {
				tx, _ := pgidem.FromContext(a.Bind(t.Context()))
				name := []string{"a", "forbidden", "c"}[i]
				tx.QueueRow("insert into work values ($1)", "insert into work select unnest($1::text[])", name)
				errs[i] = a.Complete(t.Context(), resp)
			})
		}
		wg.Wait()
		if errs[0] != nil || errs[1] == nil || errs[2] != nil {
			t.Errorf("Complete = %v, want the second one's to fail", errs)
		}
		f.wantStored(t, 2)
	})
}

// counter keeps what a store tells its observer.
type counter struct {
	mu     sync.Mutex
	groups [][2]int // how many were committed and left behind
	alone  int
}

func (c *counter) Committed(size, leftBehind int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups = append(c.groups, [2]int{size, leftBehind})
}

func (c *counter) Alone() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alone++
}

func (c *counter) want(t *testing.T, alone int, groups ...[2]int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.groups, groups) || c.alone != alone {
		t.Errorf("told of groups %v and %d alone, want %v and %d", c.groups, c.alone, groups, alone)
	}
}

func TestGroup_Observed(t *testing.T) {
	t.Parallel()

	t.Run("TogetherAndAlone", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		c := new(counter)
		f.made.Observed(c)
		complete(t, f.members(t, 3), nil)
		c.want(t, 0, [2]int{3, 0})
		claim, err := f.made.Interactive().Claim(t.Context(), key(9), fp)
		if err != nil {
			t.Fatal(err)
		}
		complete(t, []idempotency.Attempt{claim.Attempt}, nil)
		if claim, err := f.made.Interactive().Claim(t.Context(), key(9), fp); err != nil || claim.Outcome != idempotency.Replay {
			t.Errorf("a replay: %v, %v", claim.Outcome, err)
		}
		c.want(t, 1, [2]int{3, 0})
	})

	t.Run("LeftBehind", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).leftBehind()
		c := new(counter)
		f.made.Observed(c)
		attempts := f.members(t, 3)
		want := [][2]int{{1, 2}, {1, 0}, {1, 0}} // each is left behind once
		for i := range attempts {
			complete(t, attempts[i:i+1], nil)
			c.want(t, 0, want[:i+1]...)
		}
	})

	// What a failed group undoes is no group; then each is alone.
	t.Run("Undone", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		c := new(counter)
		f.made.Observed(c)
		complete(t, f.members(t, 3), func(n int, tx *pgidem.Tx) {
			if n == 0 {
				tx.Queue("insert into work values ('forbidden')")
			}
		})
		c.want(t, 3)
	})
}

// Whatever the moments at which they come.
func TestGroup_AsTheyCome(t *testing.T) {
	t.Parallel()
	for name, conns := range map[string]int32{"Pool": 10, "PoolOfOne": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, longLease, func(c *pgxpool.Config) { c.MaxConns = conns }).committers()
			const parallel, each = 30, 5
			var wg sync.WaitGroup
			for i := range parallel {
				wg.Go(func() {
					for j := range each {
						c, err := f.store.Claim(t.Context(), key(i*each+j), fp)
						if err != nil || c.Outcome != idempotency.Fresh {
							t.Errorf("Claim = %v, %v; want fresh", c.Outcome, err)
							return
						}
						tx, _ := pgidem.FromContext(c.Attempt.Bind(t.Context()))
						tx.Queue("insert into work values ('w')")
						if err := c.Attempt.Complete(t.Context(), resp); err != nil {
							t.Errorf("Complete: %v", err)
						}
					}
				})
			}
			wg.Wait()
			f.wantStored(t, parallel*each)
			if records, _ := f.transactions(t); records >= parallel*each {
				t.Errorf("%d creates took %d transactions, want some to share one", parallel*each, records)
			}
		})
	}
}

func TestGroup_Bound(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease).grouped()
	for i, err := range complete(t, f.members(t, pgidem.MostMembers+1), nil) {
		if err != nil {
			t.Errorf("Complete of %d: %v", i, err)
		}
	}
	if records, _ := f.transactions(t); records != 2 {
		t.Errorf("%d transactions for one more than the bound, want 2", records)
	}
	// The one that came last is the one that had to wait.
	const alone = "select min(key) from idempotency_keys group by xmin::text having count(*) = 1"
	if got, want := pgtest.QueryVal[string](t, f.db, alone), key(pgidem.MostMembers).Key; got != want {
		t.Errorf("%s was alone, want the last, %s", got, want)
	}
}

func TestGroup_GuiltyMember(t *testing.T) {
	t.Parallel()
	for name, guilt := range map[string]func(tx *pgidem.Tx){
		"Check":     func(tx *pgidem.Tx) { tx.Queue("insert into work values ('forbidden')") },
		"NotATable": func(tx *pgidem.Tx) { tx.Queue("insert into nothing values (1)") },
		"NUL":       func(tx *pgidem.Tx) { tx.Queue("insert into work values ($1)", "a\x00b") },
		// It is refused at COMMIT.
		"Deferred": func(tx *pgidem.Tx) { tx.Queue("insert into late values (1), (1)") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, longLease).grouped()
			f.db.Exec(t, "create table late (n int, constraint late_key unique (n) deferrable initially deferred)")
			attempts := f.members(t, 5)
			innocent := make(map[idempotency.ID]idempotency.Attempt)
			errs := complete(t, attempts, func(n int, tx *pgidem.Tx) {
				if n == 2 {
					guilt(tx)
				}
			})
			for i, err := range errs {
				switch {
				case i != 2 && err != nil:
					t.Errorf("Complete of %d: %v", i, err)
				case i != 2:
					innocent[key(i)] = attempts[i]
				case err == nil, errors.Is(err, idempotency.ErrInDoubt), errors.Is(err, idempotency.ErrTaken), errors.Is(err, idempotency.ErrSuperseded):
					t.Errorf("Complete of the guilty one = %v, want a plain error", err)
				}
			}
			f.wantStored(t, 4)
			if records, all := f.transactions(t); records != 4 || all != 4 {
				t.Errorf("%d and %d transactions, want one for each that was run alone", records, all)
			}
			f.wantTimes(t, innocent)
			if c := f.claimed(t, key(2), fp); c.Outcome != idempotency.Fresh {
				t.Errorf("the guilty one's key: %v, want fresh", c.Outcome)
			}
		})
	}

	// A record that somebody else's locks did not keep out.
	t.Run("Taken", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		attempts := f.members(t, 3)
		f.insertRecord(t, key(1))
		for i, err := range complete(t, attempts, nil) {
			if got := errors.Is(err, idempotency.ErrTaken); got != (i == 1) || !got && err != nil {
				t.Errorf("Complete of %d: %v", i, err)
			}
		}
		if w, r := f.work(t), f.records(t); w != 2 || r != 3 {
			t.Errorf("%d rows of work and %d records, want 2 and 3", w, r)
		}
	})

	// One whose statement waits for somebody does not take the others' leases.
	t.Run("Waiting", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		f.db.Exec(t, "create table held ()")
		lock, err := f.db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Rollback(context.Background())
		if _, err := lock.Exec(t.Context(), "lock table held"); err != nil {
			t.Fatal(err)
		}
		attempts := f.members(t, 3)
		done := make(chan error, 1)
		tx, _ := pgidem.FromContext(attempts[0].Bind(t.Context()))
		tx.Queue("insert into held default values")
		go func() { done <- attempts[0].Complete(t.Context(), resp) }()
		for i, err := range complete(t, attempts[1:], nil) {
			if err != nil {
				t.Errorf("Complete of %d: %v", i+1, err)
			}
		}
		if err := lock.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("Complete of the one that waited: %v", err)
		}
	})
}

func TestGroup_LeftBehind(t *testing.T) {
	t.Parallel()
	// leave returns a slow member of a group whose others have completed.
	leave := func(t *testing.T, f *fixture) idempotency.Attempt {
		t.Helper()
		attempts := f.members(t, 4)
		pgidem.LeaveBehind(attempts[0])
		for i, err := range complete(t, attempts[1:], nil) {
			if err != nil {
				t.Fatalf("Complete of %d: %v", i+1, err)
			}
		}
		return attempts[0]
	}

	t.Run("Completes", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		a := leave(t, f)
		eventually(t, "it is not left behind", func() bool { return pgidem.LeftBehind(a) })
		// For this process and for any other the key is the slow one's.
		elsewhere := pgidem.New(f.pool, time.Hour, time.Minute)
		for name, s := range map[string]*pgidem.Store{"here": f.made, "elsewhere": elsewhere} {
			if c, err := s.Claim(t.Context(), key(0), fp); err != nil || c.Outcome != idempotency.InFlight {
				t.Errorf("a copy %s: %v, %v; want in_flight", name, c.Outcome, err)
			}
			if c, err := s.Claim(t.Context(), key(0), other); err != nil || c.Outcome != idempotency.Mismatch {
				t.Errorf("another request %s: %v, %v; want mismatch", name, c.Outcome, err)
			}
			if rec, running, err := s.Lookup(t.Context(), key(0)); rec != nil || !running || err != nil {
				t.Errorf("Lookup %s = %v, %t, %v; want running", name, rec, running, err)
			}
		}
		for _, err := range complete(t, []idempotency.Attempt{a}, nil) {
			if err != nil {
				t.Errorf("Complete: %v", err)
			}
		}
		f.wantStored(t, 4)
		f.wantTimes(t, map[idempotency.ID]idempotency.Attempt{key(0): a})
		if records, _ := f.transactions(t); records != 2 {
			t.Errorf("%d transactions, want that of the group and one more", records)
		}
		if c := f.claimed(t, key(0), fp); c.Outcome != idempotency.Replay {
			t.Errorf("the next claim is %v, want replay", c.Outcome)
		}
		f.wantNoLocks(t)
	})

	// There is no moment in which the key is nobody's: a lock that is let go is at
	// once whose who waits for it.
	t.Run("KeepsItsLocks", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		attempts := f.members(t, 3)
		thief, err := f.db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer thief.Rollback(context.Background())
		stolen := make(chan error, 1)
		go func() {
			_, err := thief.Exec(t.Context(), "select pg_advisory_xact_lock($1)", pgidem.KeyLock(key(0)))
			stolen <- err
		}()
		eventually(t, "nobody waits for the lock", func() bool {
			return pgtest.QueryVal[int](t, f.db, "select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())") == 1
		})
		pgidem.LeaveBehind(attempts[0])
		for _, err := range complete(t, attempts[1:], nil) {
			if err != nil {
				t.Errorf("Complete: %v", err)
			}
		}
		eventually(t, "it is not left behind", func() bool { return pgidem.LeftBehind(attempts[0]) })
		select {
		case err := <-stolen:
			t.Errorf("the lock was let go: %v", err)
		default:
		}
		if err := attempts[0].Complete(t.Context(), resp); err != nil {
			t.Errorf("Complete: %v", err)
		}
		if err := <-stolen; err != nil {
			t.Error(err)
		}
	})

	t.Run("Abandons", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		a := leave(t, f)
		if err := a.Abandon(t.Context()); err != nil {
			t.Errorf("Abandon: %v", err)
		}
		if c := f.claimed(t, key(0), other); c.Outcome != idempotency.Fresh {
			t.Errorf("the next claim is %v, want fresh", c.Outcome)
		}
		f.wantStored(t, 3)
	})

	// Several are late, and come to their ends one by one.
	t.Run("OneByOne", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).leftBehind()
		attempts := f.members(t, 5)
		if err := attempts[3].Abandon(t.Context()); err != nil {
			t.Errorf("Abandon: %v", err)
		}
		if c := f.claimed(t, key(3), other); c.Outcome != idempotency.Fresh {
			t.Errorf("the abandoned one's key: %v, want fresh", c.Outcome)
		}
		elsewhere := pgidem.New(f.pool, time.Hour, time.Minute)
		for _, i := range []int{2, 0, 4, 1} {
			if c, err := elsewhere.Claim(t.Context(), key(i), fp); err != nil || c.Outcome != idempotency.InFlight {
				t.Errorf("a copy of %d elsewhere: %v, %v; want in_flight", i, c.Outcome, err)
			}
			for _, err := range complete(t, attempts[i:i+1], nil) {
				if err != nil {
					t.Errorf("Complete of %d: %v", i, err)
				}
			}
		}
		f.wantStored(t, 4)
	})

	// The group fails while one of its handlers still runs: with the transaction
	// go that one's locks.
	adrift := func(t *testing.T, f *fixture, fault string) idempotency.Attempt {
		t.Helper()
		attempts := f.members(t, 3)
		pgidem.LeaveBehind(attempts[0])
		errs := complete(t, attempts[1:], func(n int, tx *pgidem.Tx) {
			if n == 0 {
				tx.Queue(fault)
			}
		})
		if errs[0] == nil || errs[1] != nil {
			t.Fatalf("Complete of the guilty one: %v; of the other: %v", errs[0], errs[1])
		}
		eventually(t, "it is not adrift", func() bool { return pgidem.Adrift(attempts[0]) })
		return attempts[0]
	}
	for name, fault := range map[string]string{
		"AStatement": "insert into work values ('forbidden')",
		"AtCommit":   "insert into late values (1), (1)", // when the session has the locks too
	} {
		t.Run("GroupFails/"+name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, longLease).grouped()
			f.db.Exec(t, "create table late (n int, constraint late_key unique (n) deferrable initially deferred)")
			a := adrift(t, f, fault)
			f.wantNoLocks(t)
			if rec, running, err := f.made.Lookup(t.Context(), key(0)); rec != nil || !running || err != nil {
				t.Errorf("Lookup = %v, %t, %v; want running", rec, running, err)
			}
			if c := f.claimed(t, key(0), fp); c.Outcome != idempotency.InFlight {
				t.Errorf("a copy: %v, want in_flight", c.Outcome)
			}
			for _, err := range complete(t, []idempotency.Attempt{a}, nil) {
				if err != nil {
					t.Errorf("Complete: %v", err)
				}
			}
			f.wantStored(t, 2)
			f.wantTimes(t, map[idempotency.ID]idempotency.Attempt{key(0): a})
		})
	}
	t.Run("GroupFailsAbandon", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		a := adrift(t, f, "insert into work values ('forbidden')")
		if err := a.Abandon(t.Context()); err != nil {
			t.Error(err)
		}
		if c := f.claimed(t, key(0), fp); c.Outcome != idempotency.Fresh {
			t.Errorf("the next claim is %v, want fresh", c.Outcome)
		}
	})
	t.Run("OnRecordMeanwhile", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		a := adrift(t, f, "insert into work values ('forbidden')")
		f.insertRecord(t, key(0))
		if err := a.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrTaken) {
			t.Errorf("Complete = %v, want ErrTaken", err)
		}
	})
	t.Run("TakenMeanwhile", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		a := adrift(t, f, "insert into work values ('forbidden')")
		c, err := pgidem.New(f.pool, time.Hour, time.Minute).Claim(t.Context(), key(0), fp)
		if err != nil || c.Outcome != idempotency.Fresh {
			t.Fatalf("Claim elsewhere = %v, %v; want fresh", c.Outcome, err)
		}
		if err := a.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrSuperseded) {
			t.Errorf("Complete = %v, want ErrSuperseded", err)
		}
		if err := c.Attempt.Abandon(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// wantNoLocks checks that no session has a lock that outlives its transaction.
func (f *fixture) wantNoLocks(t *testing.T) {
	t.Helper()
	eventually(t, "there are advisory locks", func() bool {
		return pgtest.QueryVal[int](t, f.db, "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())") == 0
	})
}

func TestGroup_Abandon(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease).grouped()
	attempts := f.members(t, 4)
	tx, _ := pgidem.FromContext(attempts[0].Bind(t.Context()))
	tx.Queue("insert into work values ('undone')")
	abandoned := make(chan error, 1)
	go func() { abandoned <- attempts[0].Abandon(t.Context()) }()
	for i, err := range complete(t, attempts[1:], nil) {
		if err != nil {
			t.Errorf("Complete of %d: %v", i+1, err)
		}
	}
	if err := <-abandoned; err != nil {
		t.Errorf("Abandon: %v", err)
	}
	for _, fp := range []idempotency.Fingerprint{other, fp} {
		c := f.claimed(t, key(0), fp)
		if c.Outcome != idempotency.Fresh {
			t.Fatalf("claim after Abandon = %v, want fresh", c.Outcome)
		}
		if err := c.Attempt.Abandon(t.Context()); err != nil {
			t.Error(err)
		}
	}
	f.wantStored(t, 3)
}

// A handler that panics harms nobody else.
func TestGroup_Panic(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease).grouped()
	handler := idempotency.Middleware(f.made, idempotency.Options{Scope: func(*http.Request) string { return "merchant-a" }})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tx, _ := pgidem.FromContext(r.Context())
			tx.Queue("insert into work values ($1)", r.URL.Path)
			if r.URL.Path == "/2" {
				panic("on purpose")
			}
			w.WriteHeader(http.StatusCreated)
		}))
	const n = 5
	statuses := make([]int, n)
	release := pgidem.Hold(f.made)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprint("/", i), nil)
			r.Header.Set("Idempotency-Key", fmt.Sprint(i))
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			statuses[i] = w.Code
		})
	}
	eventually(t, "the requests do not wait", func() bool { return pgidem.Waiting(f.made) == n })
	release()
	wg.Wait()
	for i, status := range statuses {
		if want := map[bool]int{true: 500, false: 201}[i == 2]; status != want {
			t.Errorf("request %d: %d, want %d", i, status, want)
		}
	}
	f.wantStored(t, n-1)
	if records, _ := f.transactions(t); records != 1 {
		t.Errorf("%d transactions, want 1", records)
	}
}

func TestGroup_MeetInMemory(t *testing.T) {
	t.Parallel()

	t.Run("InOneGroup", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		got := f.together(t, ask{key(0), fp}, ask{key(0), fp}, ask{key(1), fp}, ask{key(0), other})
		for i, want := range []idempotency.Outcome{idempotency.Fresh, idempotency.InFlight, idempotency.Fresh, idempotency.Mismatch} {
			if got[i].err != nil || got[i].Outcome != want || got[i].Record != nil {
				t.Errorf("claim %d = %v, %v; want %v", i, got[i].Outcome, got[i].err, want)
			}
		}
		for i, err := range complete(t, []idempotency.Attempt{got[0].Attempt, got[2].Attempt}, nil) {
			if err != nil {
				t.Errorf("Complete of %d: %v", i, err)
			}
		}
		f.wantStored(t, 2)
	})

	t.Run("WithoutTheDatabase", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		a := f.members(t, 1)[0]
		before := f.wire.trips()
		if c := f.claimed(t, key(0), fp); c.Outcome != idempotency.InFlight {
			t.Errorf("a copy: %v, want in_flight", c.Outcome)
		}
		if c := f.claimed(t, key(0), other); c.Outcome != idempotency.Mismatch {
			t.Errorf("another request: %v, want mismatch", c.Outcome)
		}
		if got := f.wire.trips() - before; got != 0 {
			t.Errorf("%d round trips, want none", got)
		}
		if err := a.Complete(t.Context(), resp); err != nil {
			t.Errorf("Complete: %v", err)
		}
	})

	t.Run("OnRecord", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease, func(c *pgxpool.Config) { c.MaxConns = 1 }).grouped()
		if err := f.members(t, 1)[0].Complete(t.Context(), resp); err != nil {
			t.Fatal(err)
		}
		before := f.wire.trips()
		got := f.together(t, ask{key(0), fp}, ask{key(0), fp}, ask{key(0), other})
		if got := f.wire.trips() - before; got != 2 {
			t.Errorf("all three took %d round trips, want 2", got)
		}
		for i, want := range []idempotency.Outcome{idempotency.Replay, idempotency.Replay, idempotency.Mismatch} {
			if got[i].err != nil || got[i].Outcome != want || got[i].Record == nil || got[i].Record.Fingerprint != fp {
				t.Fatalf("claim %d = %+v; want %v with its record", i, got[i], want)
			}
		}
		got[0].Record.Response.Body[0] = 'X'
		got[0].Record.Response.Header["Location"][0] = "changed"
		if r := got[1].Record.Response; string(r.Body) != "made" || r.Header.Get("Location") != "/things/1" {
			t.Errorf("two share a record: %+v", r)
		}
	})

	// The key is another process's.
	t.Run("Elsewhere", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		c, err := pgidem.New(f.pool, time.Hour, time.Minute).Claim(t.Context(), key(0), fp)
		if err != nil || c.Outcome != idempotency.Fresh {
			t.Fatalf("Claim = %v, %v", c.Outcome, err)
		}
		t.Cleanup(func() { _ = c.Attempt.Abandon(context.Background()) })
		got := f.together(t, ask{key(0), fp}, ask{key(0), other}, ask{key(1), fp})
		for i, want := range []idempotency.Outcome{idempotency.InFlight, idempotency.Mismatch, idempotency.Fresh} {
			if got[i].err != nil || got[i].Outcome != want {
				t.Errorf("claim %d = %v, %v; want %v", i, got[i].Outcome, got[i].err, want)
			}
		}
		// The second one's own lock was not tried: 409 may come before 422, and
		// nothing else.
		if err := got[2].Attempt.Abandon(t.Context()); err != nil {
			t.Error(err)
		}
		got = f.together(t, ask{key(0), other}, ask{key(0), fp})
		for i, want := range []idempotency.Outcome{idempotency.Mismatch, idempotency.InFlight} {
			if got[i].err != nil || got[i].Outcome != want {
				t.Errorf("claim %d = %v, %v; want %v", i, got[i].Outcome, got[i].err, want)
			}
		}
	})

	// One that hangs loses its key in memory too.
	t.Run("PastTheLease", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, 300*time.Millisecond).grouped()
		a := f.members(t, 1)[0]
		eventually(t, "the key is not free", func() bool { return f.claimed(t, key(0), other).Outcome == idempotency.Fresh })
		if err := a.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrSuperseded) {
			t.Errorf("Complete = %v, want ErrSuperseded", err)
		}
	})
}

func TestGroup_Patience(t *testing.T) {
	t.Parallel()

	// Whose time runs out while it waits is gone, and the next one is the first.
	t.Run("InTheQueue", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		release := pgidem.Hold(f.made)
		short, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 2)
		for i, k := range []idempotency.ID{key(0), key(1)} {
			go func() {
				_, err := f.made.Claim(short, k, fp)
				gone <- err
			}()
			eventually(t, "a claim does not wait", func() bool { return pgidem.Waiting(f.made) == i+1 })
		}
		next := make(chan told, 1)
		go func() {
			c, err := f.made.Claim(t.Context(), key(0), other)
			next <- told{c, err}
		}()
		eventually(t, "a claim does not wait", func() bool { return pgidem.Waiting(f.made) == 3 })
		cancel()
		for range 2 {
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Errorf("Claim = %v, want its context's error", err)
			}
		}
		release()
		c := <-next
		if c.err != nil || c.Outcome != idempotency.Fresh {
			t.Fatalf("the next one's claim: %v, %v; want fresh", c.Outcome, c.err)
		}
		if err := c.Attempt.Complete(t.Context(), resp); err != nil {
			t.Errorf("Complete: %v", err)
		}
	})

	// Whose time runs out while its group claims runs no more, and nobody is told
	// that it does.
	t.Run("WhileItClaims", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease, func(c *pgxpool.Config) { c.MaxConns = 1 }).grouped()
		only, err := f.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		release := pgidem.Hold(f.made)
		short, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := f.made.Claim(short, key(0), fp)
			gone <- err
		}()
		eventually(t, "a claim does not wait", func() bool { return pgidem.Waiting(f.made) == 1 })
		next := make(chan told, 1)
		go func() {
			c, err := f.made.Claim(t.Context(), key(0), other)
			next <- told{c, err}
		}()
		eventually(t, "a claim does not wait", func() bool { return pgidem.Waiting(f.made) == 2 })
		release()
		eventually(t, "no group has taken them", func() bool { return pgidem.Waiting(f.made) == 0 })
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("Claim = %v, want its context's error", err)
		}
		only.Release()
		if c := <-next; c.err != nil || c.Outcome != idempotency.InFlight {
			t.Errorf("the other's claim: %v, %v; want in_flight: it may try again", c.Outcome, c.err)
		}
		eventually(t, "the group has not ended", func() bool { return pgidem.Idle(f.made) })
		if c := f.claimed(t, key(0), other); c.Outcome != idempotency.Fresh {
			t.Errorf("the next claim is %v, want fresh", c.Outcome)
		}
	})

	// Whose time runs out while the group commits is in doubt; the others are not.
	t.Run("WhileItCommits", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		attempts := f.members(t, 2)
		short, cancel := context.WithCancel(t.Context())
		cancel()
		if err := attempts[0].Complete(short, resp); !errors.Is(err, idempotency.ErrInDoubt) {
			t.Errorf("Complete = %v, want ErrInDoubt", err)
		}
		for _, err := range complete(t, attempts[1:], nil) {
			if err != nil {
				t.Errorf("Complete: %v", err)
			}
		}
		if c := f.claimed(t, key(0), fp); c.Outcome != idempotency.Replay {
			t.Errorf("the next claim is %v, want replay: the group has committed", c.Outcome)
		}
	})

	// When nobody waits for the group any more, it ends.
	t.Run("OfNobody", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		a := f.members(t, 1)[0]
		f.wire.silence()
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := a.Complete(short, resp); !errors.Is(err, idempotency.ErrInDoubt) {
			t.Errorf("Complete = %v, want ErrInDoubt", err)
		}
		eventually(t, "the group has not ended", func() bool { return pgidem.Idle(f.made) })
		f.wire.heal()
	})

	// A committer that waits for something makes room for another.
	t.Run("OfTheOthers", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		f.store = f.made.WithCommitters(1)
		pgidem.Gather(f.made, time.Hour)
		f.members(t, 1)
		if c := f.claimed(t, key(1), fp); c.Outcome != idempotency.Fresh {
			t.Errorf("Claim = %v, want fresh", c.Outcome)
		}
	})
}

func TestGroup_LostAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease).grouped()
	attempts := f.members(t, 3)
	f.wire.loseAnswer("COMMIT\x00")
	for i, err := range complete(t, attempts, nil) {
		if !errors.Is(err, idempotency.ErrInDoubt) {
			t.Errorf("Complete of %d = %v, want ErrInDoubt", i, err)
		}
		if c := f.claimed(t, key(i), fp); c.Outcome != idempotency.Replay {
			t.Errorf("the next claim of %d is %v, want replay: it was committed", i, c.Outcome)
		}
	}
	f.wantStored(t, 3)
}

// A question where the answer would have to come from a shared transaction is a
// mistake that shows at once, shared or not.
func TestTx_QueryInAGroup(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, kind func(*fixture) *fixture) {
		f := kind(newFixture(t, longLease))
		f.store = f.made // as a route that is not interactive has it
		f.left = false
		_, tx := f.fresh(t)
		for name, ask := range map[string]func(){
			"Query": func() {
				if rows, err := tx.Query(t.Context(), "select 1"); err == nil {
					rows.Close()
				}
			},
			"Exec": func() { _, _ = tx.Exec(t.Context(), "select 1") },
		} {
			func() {
				defer func() {
					if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), "Interactive") {
						t.Errorf("%s: recovered %v, want a panic that names the option", name, v)
					}
				}()
				ask()
			}()
		}
	})
	t.Run("Interactive", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease).grouped()
		handler := idempotency.Middleware(f.made, idempotency.Options{
			Scope: func(*http.Request) string { return "m" }, Interactive: true,
		})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tx, _ := pgidem.FromContext(r.Context())
			if _, err := tx.Exec(r.Context(), "insert into work values ('w')"); err != nil {
				t.Error(err)
			}
			w.WriteHeader(http.StatusCreated)
		}))
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != http.StatusCreated {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		f.wantStored(t, 1)
	})
}

// For each key one look into the index, however big the table, and whether or not
// the planner knows.
func TestGroup_RecordsByTheIndex(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease)
	scopes, names := make([]string, pgidem.MostMembers), make([]string, pgidem.MostMembers)
	for i := range scopes {
		scopes[i], names[i] = "s", fmt.Sprint(i)
	}
	look := func(when string) {
		t.Helper()
		rows, err := f.pool.Query(t.Context(), "explain "+pgidem.GroupRecordSQL, scopes, names)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(plan, "\n"); !strings.Contains(text, "Index Scan using idempotency_keys_pkey") || strings.Contains(text, "Seq Scan") {
			t.Errorf("%s the records are not looked up by the key's index:\n%s", when, text)
		}
	}
	look("while empty")
	f.db.Exec(t, insertDue, 50_000)
	look("not analyzed")
	f.db.Exec(t, "analyze idempotency_keys")
	look("analyzed")
}

func TestGroup_BackendKilled(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease)
	f.store = f.made.WithCommitters(3)
	pgidem.Gather(f.made, time.Hour)
	attempts := f.members(t, 10)
	f.terminateAll(t)
	for i, err := range complete(t, attempts, nil) {
		var pgErr *pgconn.PgError
		if err == nil || errors.As(err, &pgErr) && pgErr.SeverityUnlocalized == "ERROR" {
			t.Errorf("Complete of %d = %v, want the loss of the session", i, err)
		}
	}
	f.wantStored(t, 0)
	eventually(t, "a committer is still there", func() bool { return pgidem.Idle(f.made) })
}

// claimed claims, and lets go of what it got when the test ends.
func (f *fixture) claimed(t *testing.T, id idempotency.ID, fp idempotency.Fingerprint) idempotency.Claim {
	t.Helper()
	c, err := f.made.Claim(t.Context(), id, fp)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	if c.Attempt != nil {
		t.Cleanup(func() { _ = c.Attempt.Abandon(context.Background()) })
	}
	return c
}

// insertRecord puts a record under the key, whoever has its locks.
func (f *fixture) insertRecord(t *testing.T, id idempotency.ID) {
	t.Helper()
	f.db.Exec(t, `insert into idempotency_keys (scope, key, fingerprint, status, header, body, created_at, expires_at)
		values ($1, $2, $3, 200, '{}', 'theirs', now(), now() + interval '1 day')`, id.Scope, id.Key, fp[:])
}
