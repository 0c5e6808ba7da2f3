// Package memintent keeps intents in memory, for tests and for trying the
// service without a database. Nothing survives the process.
package memintent

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"intentd/internal/intent"
)

// Joined is the attempt that a request's writes take part in.
type Joined interface {
	// Queue keeps apply until the attempt completes. An error of apply's must
	// keep the attempt from completing; then the undo of whatever was applied
	// before it is called, the latest first.
	Queue(apply func() (undo func(), err error))
	// Time returns when the attempt began, by its store's clock.
	Time() time.Time
}

// Store is an intent.Store in memory.
//
// Inside an attempt writes are queued, and checked again when they are applied:
// a Move that somebody overtook is ErrVersionConflict then. Until that moment
// no read sees them, those of the same attempt included, which is less than the
// store in PostgreSQL offers. Where a later one fails the earlier are undone,
// together with what others may have built on them in that moment.
type Store struct {
	now    func() time.Time
	joined func(ctx context.Context) (Joined, bool)

	mu      sync.Mutex
	intents map[key]intent.Intent
	trail   map[key][]intent.Transition
	due     dueHeap
}

var (
	_ intent.Store    = (*Store)(nil)
	_ intent.Searcher = (*Store)(nil)
)

type key struct {
	merchantID string
	id         intent.ID
}

// New returns an empty Store with now as its clock. joined finds the attempt in
// a request's context; it may be nil, then there is never one.
func New(now func() time.Time, joined func(ctx context.Context) (Joined, bool)) *Store {
	if joined == nil {
		joined = func(context.Context) (Joined, bool) { return nil, false }
	}
	return &Store{
		now:     now,
		joined:  joined,
		intents: make(map[key]intent.Intent),
		trail:   make(map[key][]intent.Transition),
	}
}

// Create implements intent.Store.
func (s *Store) Create(ctx context.Context, in intent.Intent, expiresIn time.Duration) (intent.Intent, error) {
	now, write := s.begin(ctx)
	var err error
	if in.ID, err = intent.NewID(now); err != nil {
		return intent.Intent{}, err
	}
	in.State, in.Version, in.TxHash = intent.Created, 1, ""
	in.CreatedAt, in.UpdatedAt, in.ExpiresAt = now, now, now.Add(expiresIn)
	in.Metadata = maps.Clone(in.Metadata)

	if err := write(func() (func(), error) { return s.insert(in) }); err != nil {
		return intent.Intent{}, err
	}
	return clone(in), nil
}

// insert keeps a new intent; the lock is held.
func (s *Store) insert(in intent.Intent) (undo func(), err error) {
	k := key{in.MerchantID, in.ID}
	if _, taken := s.intents[k]; taken {
		return nil, fmt.Errorf("%s exists", in.ID)
	}
	s.intents[k] = in
	heap.Push(&s.due, due{in.ExpiresAt, k})
	return func() {
		delete(s.intents, k)
		delete(s.trail, k)
	}, nil
}

// Get implements intent.Store.
func (s *Store) Get(_ context.Context, merchantID string, id intent.ID) (intent.Intent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.intents[key{merchantID, id}]
	if !ok {
		return intent.Intent{}, intent.ErrNotFound
	}
	return clone(in), nil
}

// List implements intent.Store. It looks at everything there is, which is what
// a store without an index can do.
func (s *Store) List(_ context.Context, merchantID string, q intent.Query) (page []intent.Intent, more bool, err error) {
	s.mu.Lock()
	for k, in := range s.intents {
		if k.merchantID == merchantID && selects(q, in) {
			page = append(page, in)
		}
	}
	s.mu.Unlock()

	// The nearest to where the page begins come first.
	slices.SortFunc(page, func(a, b intent.Intent) int {
		if q.Before != nil {
			a, b = b, a
		}
		return bytes.Compare(b.ID[:], a.ID[:])
	})
	if more = len(page) > q.Limit; more {
		page = page[:q.Limit]
	}
	if q.Before != nil {
		slices.Reverse(page)
	}
	for i, in := range page {
		page[i] = clone(in)
	}
	return page, more, nil
}

func selects(q intent.Query, in intent.Intent) bool {
	return (q.After == nil || bytes.Compare(in.ID[:], q.After[:]) < 0) &&
		(q.Before == nil || bytes.Compare(in.ID[:], q.Before[:]) > 0) &&
		(q.State == "" || in.State == q.State) &&
		(q.Reference == "" || in.Reference == q.Reference) &&
		(q.CreatedFrom.IsZero() || !in.CreatedAt.Before(q.CreatedFrom)) &&
		(q.CreatedBefore.IsZero() || in.CreatedAt.Before(q.CreatedBefore))
}

// Search implements intent.Searcher. It looks at everything there is, as List does.
func (s *Store) Search(_ context.Context, q intent.Search, limit int) (found []intent.Intent, more bool, err error) {
	s.mu.Lock()
	for k, in := range s.intents {
		var hashes []string
		for _, t := range s.trail[k] {
			hashes = append(hashes, t.TxHash)
		}
		if q.Selects(in, hashes) {
			found = append(found, clone(in))
		}
	}
	s.mu.Unlock()
	intent.SortFound(found)
	if len(found) > limit {
		return found[:limit], true, nil
	}
	return found, false, nil
}

// Move implements intent.Store.
func (s *Store) Move(ctx context.Context, merchantID string, id intent.ID, decide func(intent.Intent, time.Time) (*intent.Transition, error)) (intent.Intent, error) {
	in, err := s.Get(ctx, merchantID, id)
	if err != nil {
		return intent.Intent{}, err
	}
	now, write := s.begin(ctx)
	t, err := decide(clone(in), now)
	if err != nil {
		return intent.Intent{}, err
	}
	if t == nil {
		return in, nil
	}

	after := in.After(*t)
	err = write(func() (func(), error) {
		k := key{merchantID, id}
		before := s.intents[k]
		if before.Version != in.Version {
			return nil, intent.ErrVersionConflict
		}
		s.apply(k, *t)
		return func() {
			s.intents[k] = before
			// A new intent has no trail, and each version one row more.
			s.trail[k] = s.trail[k][:before.Version-1]
			// A sweep may have thrown its place away; a second one does no harm.
			heap.Push(&s.due, due{before.ExpiresAt, k})
		}, nil
	})
	if err != nil {
		return intent.Intent{}, err
	}
	return after, nil
}

// Transitions implements intent.Store.
func (s *Store) Transitions(_ context.Context, merchantID string, id intent.ID, after int64, limit int) (page []intent.Transition, more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{merchantID, id}
	if _, ok := s.intents[k]; !ok {
		return nil, false, intent.ErrNotFound
	}
	trail := s.trail[k]
	// The first row has version 2, and each one more than the one before it.
	begin := min(max(after-1, 0), int64(len(trail)))
	end := min(begin+int64(limit), int64(len(trail)))
	return slices.Clone(trail[begin:end]), end < int64(len(trail)), nil
}

// CancelDue implements intent.Store. It never takes part in an attempt: it is
// not a request's work.
func (s *Store) CancelDue(_ context.Context, limit int) (int, error) {
	now := stamp(s.now())
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for n < limit && len(s.due) > 0 && !s.due[0].at.After(now) {
		k := heap.Pop(&s.due).(due).key
		in := s.intents[k]
		// Left created by another way, or undone: its place in the heap was not
		// worth looking for then.
		if in.State != intent.Created {
			continue
		}
		t, err := in.Next(intent.Step{To: intent.Canceled, Actor: intent.System, Reason: intent.ReasonExpired}, now)
		if err != nil {
			return n, err
		}
		s.apply(k, *t)
		n++
	}
	return n, nil
}

// Overdue tells for how long the intent that CancelDue would cancel first has been
// due; 0 if there is none.
func (s *Store) Overdue() time.Duration {
	now := stamp(s.now())
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.due) > 0 && !s.due[0].at.After(now) {
		if s.intents[s.due[0].key].State == intent.Created {
			return now.Sub(s.due[0].at)
		}
		heap.Pop(&s.due) // as CancelDue does
	}
	return 0
}

// begin returns the time to stamp with, and how to write: now and under the
// lock, or when the attempt completes.
func (s *Store) begin(ctx context.Context) (time.Time, func(apply func() (undo func(), err error)) error) {
	if j, ok := s.joined(ctx); ok {
		return stamp(j.Time()), func(apply func() (func(), error)) error {
			j.Queue(func() (func(), error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				undo, err := apply()
				return func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					undo()
				}, err
			})
			return nil
		}
	}
	return stamp(s.now()), func(apply func() (func(), error)) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, err := apply()
		return err
	}
}

// apply makes a transition; the lock is held.
func (s *Store) apply(k key, t intent.Transition) {
	s.intents[k] = s.intents[k].After(t)
	s.trail[k] = append(s.trail[k], t)
}

// stamp gives a time the precision and zone that every store answers in.
func stamp(t time.Time) time.Time {
	return t.UTC().Truncate(time.Microsecond)
}

func clone(in intent.Intent) intent.Intent {
	in.Metadata = maps.Clone(in.Metadata)
	return in
}

// due is the place of an intent in the order in which intents expire.
type due struct {
	at  time.Time
	key key
}

// dueHeap holds every intent that was created and has not been due yet, the
// next one first.
type dueHeap []due

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) { *h = append(*h, x.(due)) }

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	*h = (*h)[:last]
	return d
}
