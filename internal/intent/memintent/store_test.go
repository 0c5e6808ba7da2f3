package memintent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"intentd/internal/intent"
	"intentd/internal/intent/intenttest"
	"intentd/internal/intent/memintent"
)

// clock stands still until it is moved, or ticks with every second reading.
type clock struct {
	mu       sync.Mutex
	at       time.Time
	ticks    bool
	readings int
}

// newClock is off UTC and in nanoseconds, which a store must not let through.
func newClock() *clock {
	return &clock{at: time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.FixedZone("east", 7200))}
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readings++; c.ticks && c.readings%2 == 0 {
		c.at = c.at.Add(time.Microsecond)
	}
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func TestStore(t *testing.T) {
	t.Parallel()
	intenttest.Run(t, func(*testing.T) intenttest.Harness {
		c := newClock()
		c.ticks = true
		store := memintent.New(c.now, nil)
		return intenttest.Harness{
			Store:   store,
			Advance: func(_ *testing.T, d time.Duration) { c.advance(d) },
			Insert:  store.Insert,
		}
	})
}

// attempt keeps what is queued until the test completes it.
type attempt struct {
	at    time.Time
	queue []func() (func(), error)
}

type attemptKey struct{}

func joined(ctx context.Context) (memintent.Joined, bool) {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	return a, ok
}

func (a *attempt) Queue(apply func() (func(), error)) { a.queue = append(a.queue, apply) }
func (a *attempt) Time() time.Time                    { return a.at }

func (a *attempt) complete() error {
	var undos []func()
	for _, apply := range a.queue {
		undo, err := apply()
		if err != nil {
			for _, undo := range slices.Backward(undos) {
				undo()
			}
			return err
		}
		undos = append(undos, undo)
	}
	return nil
}

const merchant = "m-1"

func params() intent.Params {
	return intent.Params{
		Chain:    "evm:1",
		Token:    "0x5FbDB2315678afecb367f032d93F642f64180aa3",
		Payer:    "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
		Merchant: "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
		Amount:   "1",
	}
}

// TestStore_Joined is about writes inside an attempt.
func TestStore_Joined(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) (*attempt, context.Context, *intent.Service, *clock) {
		c := newClock()
		a := &attempt{at: c.now().Add(-time.Minute)}
		return a, context.WithValue(t.Context(), attemptKey{}, a), intent.New(memintent.New(c.now, joined)), c
	}

	t.Run("CreateWaitsForCompletion", func(t *testing.T) {
		t.Parallel()
		a, ctx, svc, _ := begin(t)
		in, err := svc.Create(ctx, merchant, params())
		if err != nil {
			t.Fatal(err)
		}
		if want := a.at.UTC().Truncate(time.Microsecond); !in.CreatedAt.Equal(want) {
			t.Fatalf("created at %s, want the attempt's %s", in.CreatedAt, want)
		}
		if first := intent.FirstID(a.at); !bytes.Equal(in.ID[:8], first[:8]) {
			t.Fatalf("%s is not of the attempt's time", in.ID)
		}
		if _, err := svc.Get(t.Context(), merchant, in.ID); !errors.Is(err, intent.ErrNotFound) {
			t.Fatalf("seen before the attempt completed: %v", err)
		}
		if err := a.complete(); err != nil {
			t.Fatal(err)
		}
		got, err := svc.Get(t.Context(), merchant, in.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(in, got); diff != "" {
			t.Fatalf("Get (-created +got):\n%s", diff)
		}
	})

	t.Run("AbandonedLeavesNothing", func(t *testing.T) {
		t.Parallel()
		_, ctx, svc, c := begin(t)
		in, err := svc.Create(ctx, merchant, params())
		if err != nil {
			t.Fatal(err)
		}
		c.advance(time.Hour)
		if n, err := svc.CancelDue(t.Context(), 10); n != 0 || err != nil {
			t.Fatalf("CancelDue = %d, %v", n, err)
		}
		if _, err := svc.Get(t.Context(), merchant, in.ID); !errors.Is(err, intent.ErrNotFound) {
			t.Fatalf("error %v, want ErrNotFound", err)
		}
	})

	t.Run("MoveIsCheckedAgain", func(t *testing.T) {
		t.Parallel()
		a, ctx, svc, _ := begin(t)
		in, err := svc.Create(t.Context(), merchant, params())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := svc.Move(ctx, merchant, in.ID, intent.Step{To: intent.Authorized, Actor: intent.API}); err != nil {
			t.Fatal(err)
		}
		if got, err := svc.Get(t.Context(), merchant, in.ID); err != nil || got.State != intent.Created {
			t.Fatalf("state %s, %v before the attempt completed", got.State, err)
		}
		if _, err := svc.Move(t.Context(), merchant, in.ID, intent.Step{To: intent.Canceled, Actor: intent.API, Reason: "faster"}); err != nil {
			t.Fatal(err)
		}
		if err := a.complete(); !errors.Is(err, intent.ErrVersionConflict) {
			t.Fatalf("completed with %v, want ErrVersionConflict", err)
		}
		if ts, _, err := svc.Transitions(t.Context(), merchant, in.ID, 0, 100); err != nil || len(ts) != 1 {
			t.Fatalf("trail %+v, %v", ts, err)
		}
	})

	t.Run("ReadsWhatIsThere", func(t *testing.T) {
		t.Parallel()
		a, ctx, svc, _ := begin(t)
		in, err := svc.Create(t.Context(), merchant, params())
		if err != nil {
			t.Fatal(err)
		}
		authorized, err := svc.Move(t.Context(), merchant, in.ID, intent.Step{To: intent.Authorized, Actor: intent.API})
		if err != nil {
			t.Fatal(err)
		}
		got, err := svc.Get(ctx, merchant, in.ID)
		if diff := cmp.Diff(authorized, got); diff != "" || err != nil {
			t.Fatalf("Get: %v (-want +got):\n%s", err, diff)
		}
		if page, _, err := svc.List(ctx, merchant, intent.Query{Limit: 1}); err != nil || len(page) != 1 || page[0].Version != 2 {
			t.Fatalf("List = %+v, %v", page, err)
		}
		if ts, _, err := svc.Transitions(ctx, merchant, in.ID, 0, 1); err != nil || len(ts) != 1 {
			t.Fatalf("trail %+v, %v", ts, err)
		}
		if _, err := svc.Move(ctx, merchant, in.ID, intent.Step{To: intent.Canceled, Actor: intent.API, Reason: "r", IfVersion: 2}); err != nil {
			t.Fatal(err)
		}
		if err := a.complete(); err != nil {
			t.Fatal(err)
		}
		if ts, _, err := svc.Transitions(t.Context(), merchant, in.ID, 0, 100); err != nil || len(ts) != 2 || ts[1].Version != 3 {
			t.Fatalf("trail %+v, %v", ts, err)
		}
	})

	t.Run("AllOrNothing", func(t *testing.T) {
		t.Parallel()
		a, ctx, svc, c := begin(t)
		moved, err := svc.Create(t.Context(), merchant, params())
		if err != nil {
			t.Fatal(err)
		}
		created, err := svc.Create(ctx, merchant, params())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := svc.Move(ctx, merchant, moved.ID, intent.Step{To: intent.Authorized, Actor: intent.API}); err != nil {
			t.Fatal(err)
		}
		refusal := errors.New("no")
		a.Queue(func() (func(), error) {
			// A sweep now finds nothing in state created, and forgets it.
			c.advance(time.Hour)
			n, err := svc.CancelDue(t.Context(), 10)
			if n != 1 || err != nil {
				t.Errorf("CancelDue = %d, %v, want 1: the one that is not authorized", n, err)
			}
			return nil, refusal
		})
		if err := a.complete(); !errors.Is(err, refusal) {
			t.Fatalf("completed with %v", err)
		}

		if _, err := svc.Get(t.Context(), merchant, created.ID); !errors.Is(err, intent.ErrNotFound) {
			t.Fatalf("the new one is still there: %v", err)
		}
		got, err := svc.Get(t.Context(), merchant, moved.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(moved, got); diff != "" {
			t.Fatalf("the moved one (-before +after):\n%s", diff)
		}
		if ts, _, err := svc.Transitions(t.Context(), merchant, moved.ID, 0, 100); err != nil || len(ts) != 0 {
			t.Fatalf("its trail: %+v, %v", ts, err)
		}
		if n, err := svc.CancelDue(t.Context(), 10); n != 1 || err != nil {
			t.Fatalf("CancelDue = %d, %v, want it to be due again", n, err)
		}
	})

	t.Run("MoveIsApplied", func(t *testing.T) {
		t.Parallel()
		a, ctx, svc, _ := begin(t)
		in, err := svc.Create(t.Context(), merchant, params())
		if err != nil {
			t.Fatal(err)
		}
		moved, err := svc.Move(ctx, merchant, in.ID, intent.Step{To: intent.Authorized, Actor: intent.API})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.complete(); err != nil {
			t.Fatal(err)
		}
		got, err := svc.Get(t.Context(), merchant, in.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(moved, got); diff != "" {
			t.Fatalf("Get (-moved +got):\n%s", diff)
		}
	})
}

// BenchmarkStore_CancelDue shows that a sweep's cost is that of what is due,
// not of what is stored.
func BenchmarkStore_CancelDue(b *testing.B) {
	for _, stored := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(stored), func(b *testing.B) {
			c := newClock()
			svc := intent.New(memintent.New(c.now, nil))
			for range stored {
				if _, err := svc.Create(b.Context(), merchant, params()); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if n, err := svc.CancelDue(b.Context(), 100); n != 0 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

func TestStore_Overdue(t *testing.T) {
	t.Parallel()
	c := newClock()
	store := memintent.New(c.now, nil)
	svc := intent.New(store)
	create := func(seconds int64) intent.ID {
		t.Helper()
		p := params()
		p.ExpiresIn = &seconds
		in, err := svc.Create(t.Context(), merchant, p)
		if err != nil {
			t.Fatal(err)
		}
		return in.ID
	}
	want := func(age time.Duration) {
		t.Helper()
		if got := store.Overdue(); got != age {
			t.Errorf("Overdue = %v, want %v", got, age)
		}
	}
	want(0)
	first := create(10)
	create(15)
	want(0)
	if _, err := svc.Move(t.Context(), merchant, first, intent.Step{To: intent.Authorized, Actor: intent.API}); err != nil {
		t.Fatal(err)
	}
	c.advance(12 * time.Second)
	want(0) // the first is past its time, and not due
	c.advance(10 * time.Second)
	want(7 * time.Second)
	if n, err := svc.CancelDue(t.Context(), 10); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	want(0)
}
