package memidem_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"intentd/internal/idempotency"
	"intentd/internal/idempotency/idemtest"
	"intentd/internal/idempotency/memidem"
)

// clock is a time that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock {
	return &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)}
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestStore(t *testing.T) {
	t.Parallel()
	open := func(_ *testing.T, lease time.Duration) idemtest.Harness {
		var (
			c    = newClock()
			mu   sync.Mutex
			kept = map[string]int{}
		)
		return idemtest.Harness{
			Store:  memidem.New(idemtest.TTL, lease, c.Now),
			Age:    func(_ *testing.T, d time.Duration) { c.Advance(d) },
			Expire: func(*testing.T) { c.Advance(lease) },
			Work: func(t *testing.T, ctx context.Context, name string) {
				a, ok := memidem.FromContext(ctx)
				if !ok {
					t.Error("the context is bound to no attempt")
					return
				}
				a.Queue(func() (func(), error) {
					mu.Lock()
					defer mu.Unlock()
					kept[name]++
					return func() { t.Error("undone without need") }, nil
				})
			},
			Kept: func(_ *testing.T, name string) int {
				mu.Lock()
				defer mu.Unlock()
				return kept[name]
			},
		}
	}
	idemtest.Run(t, open)
	t.Run("Search", func(t *testing.T) {
		t.Parallel()
		idemtest.RunSearch(t, open)
	})
}

func TestAttempt_Complete(t *testing.T) {
	t.Parallel()
	id, fp := idempotency.ID{Scope: "s", Key: "k"}, idempotency.Fingerprint{1}

	t.Run("AllWorkOrNone", func(t *testing.T) {
		t.Parallel()
		store := memidem.New(time.Hour, time.Minute, time.Now)
		c, _ := store.Claim(t.Context(), id, fp)
		a, _ := memidem.FromContext(c.Attempt.Bind(t.Context()))
		var did []string
		step := func(name string, err error) {
			a.Queue(func() (func(), error) {
				did = append(did, name)
				return func() { did = append(did, "undo "+name) }, err
			})
		}
		broken := errors.New("broken")
		step("one", nil)
		step("two", nil)
		step("three", broken)
		step("four", nil)
		if err := c.Attempt.Complete(t.Context(), idempotency.Response{Status: 200}); !errors.Is(err, broken) {
			t.Errorf("Complete = %v, want the work's error", err)
		}
		if want := []string{"one", "two", "three", "undo two", "undo one"}; !slices.Equal(did, want) {
			t.Errorf("did %q, want %q", did, want)
		}
		if c, _ := store.Claim(t.Context(), id, fp); c.Outcome != idempotency.Fresh {
			t.Errorf("the next claim is %v, want fresh", c.Outcome)
		}
	})

	t.Run("LeaseEndsToTheMicrosecond", func(t *testing.T) {
		t.Parallel()
		clk := newClock()
		store := memidem.New(time.Hour, time.Minute, clk.Now)
		c, _ := store.Claim(t.Context(), id, fp)
		clk.Advance(time.Minute - time.Microsecond)
		if _, running, _ := store.Lookup(t.Context(), id); !running {
			t.Error("a microsecond before the end of the lease: the request is not running")
		}
		if d, _ := store.Claim(t.Context(), id, fp); d.Outcome != idempotency.InFlight {
			t.Errorf("a microsecond before the end of the lease: %v, want in_flight", d.Outcome)
		}
		clk.Advance(time.Microsecond)
		if _, running, _ := store.Lookup(t.Context(), id); running {
			t.Error("at the end of the lease: the request is running")
		}
		if d, _ := store.Claim(t.Context(), id, fp); d.Outcome != idempotency.Fresh {
			t.Errorf("at the end of the lease: %v, want fresh", d.Outcome)
		}
		if err := c.Attempt.Complete(t.Context(), idempotency.Response{Status: 200}); !errors.Is(err, idempotency.ErrSuperseded) {
			t.Errorf("late Complete = %v, want ErrSuperseded", err)
		}
	})
}

func TestNew(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]struct{ ttl, lease time.Duration }{
		"NoLease":            {time.Hour, 0},
		"LeaseLongerThanTTL": {time.Minute, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if recover() == nil {
					t.Error("New did not panic")
				}
			}()
			memidem.New(d.ttl, d.lease, time.Now)
		})
	}
}

func TestStore_Overdue(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := memidem.New(time.Hour, time.Minute, c.Now)
	claim := func(key string) idempotency.Attempt {
		t.Helper()
		got, err := s.Claim(t.Context(), idempotency.ID{Scope: "m", Key: key}, idempotency.Fingerprint{})
		if err != nil || got.Outcome != idempotency.Fresh {
			t.Fatalf("claim = %+v, %v", got, err)
		}
		return got.Attempt
	}
	complete := func(key string) {
		t.Helper()
		if err := claim(key).Complete(t.Context(), idempotency.Response{Status: 200}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(age time.Duration) {
		t.Helper()
		if got := s.Overdue(); got != age {
			t.Errorf("Overdue = %v, want %v", got, age)
		}
	}
	want(0)
	claim("never answered")
	c.Advance(10 * time.Second)
	complete("again")
	c.Advance(10 * time.Second)
	complete("once")
	c.Advance(time.Hour - 1*time.Second)
	want(9 * time.Second) // of the key that was answered first
	complete("again")     // expired, so it is new
	want(0)
	c.Advance(5 * time.Second)
	want(4 * time.Second)
	if n, err := s.DeleteExpired(t.Context(), 10); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	want(0)
}
