// Package memidem keeps idempotency records in this process's memory, for demos
// and for tests of clients. Nothing survives the process.
package memidem

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"intentd/internal/idempotency"
)

// Store implements idempotency.Store. The zero Store is not usable; see New.
type Store struct {
	ttl   time.Duration
	lease time.Duration
	now   func() time.Time

	mu      sync.Mutex
	last    uint64 // the number of the last attempt
	entries map[idempotency.ID]*entry
	claimed []claimed // every fresh claim, oldest first, for DeleteExpired
}

// entry is what a key stands for: an attempt, and from its completion a record.
type entry struct {
	attempt uint64
	fp      idempotency.Fingerprint
	since   time.Time
	record  *idempotency.Record // nil while it runs
}

type claimed struct {
	id      idempotency.ID
	attempt uint64
	since   time.Time
}

// New returns an empty store. Records live for ttl from their claim, an attempt
// holds its key for lease. It panics unless 0 < lease <= ttl.
func New(ttl, lease time.Duration, now func() time.Time) *Store {
	if lease <= 0 || ttl < lease {
		panic("memidem: New needs 0 < lease <= ttl")
	}
	return &Store{ttl: ttl, lease: lease, now: now, entries: make(map[idempotency.ID]*entry)}
}

// TTL implements idempotency.Store.
func (s *Store) TTL() time.Duration { return s.ttl }

// Lease implements idempotency.Store.
func (s *Store) Lease() time.Duration { return s.lease }

// Claim implements idempotency.Store. It never fails.
func (s *Store) Claim(_ context.Context, id idempotency.ID, fp idempotency.Fingerprint) (idempotency.Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	if e, rec := s.standing(id, now); e != nil {
		outcome := idempotency.InFlight
		switch {
		case e.fp != fp:
			outcome = idempotency.Mismatch
		case rec != nil:
			outcome = idempotency.Replay
		}
		return idempotency.Claim{Outcome: outcome, Record: rec}, nil
	}
	s.last++
	s.entries[id] = &entry{attempt: s.last, fp: fp, since: now}
	s.claimed = append(s.claimed, claimed{id: id, attempt: s.last, since: now})
	return idempotency.Claim{
		Outcome: idempotency.Fresh,
		Attempt: &Attempt{store: s, id: id, fp: fp, number: s.last, since: now},
	}, nil
}

// Lookup implements idempotency.Store. It never fails.
func (s *Store) Lookup(_ context.Context, id idempotency.ID) (rec *idempotency.Record, running bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, rec := s.standing(id, s.clock())
	return rec, e != nil && rec == nil, nil
}

// Search implements idempotency.Searcher. It looks at everything there is, and
// never fails.
func (s *Store) Search(_ context.Context, q idempotency.Search) (found []idempotency.Found, more bool, err error) {
	s.mu.Lock()
	now := s.clock()
	for id := range s.entries {
		if id.Key != q.Key || !strings.Contains(id.Scope, q.With) || q.Without != "" && strings.Contains(id.Scope, q.Without) {
			continue
		}
		if _, rec := s.standing(id, now); rec != nil {
			found = append(found, idempotency.Found{Scope: id.Scope, Record: *rec})
		}
	}
	s.mu.Unlock()
	slices.SortFunc(found, func(a, b idempotency.Found) int { return strings.Compare(a.Scope, b.Scope) })
	if len(found) > q.Limit {
		return found[:q.Limit], true, nil
	}
	return found, false, nil
}

// standing returns what the key stands for at that time, and a copy of its
// record where it has one: nil where the record has expired, or the attempt's
// lease has passed.
func (s *Store) standing(id idempotency.ID, now time.Time) (*entry, *idempotency.Record) {
	e, ok := s.entries[id]
	switch {
	case !ok:
		return nil, nil
	case e.record != nil && now.Before(e.record.ExpiresAt):
		return e, clone(e.record)
	case e.record == nil && now.Before(e.since.Add(s.lease)):
		return e, nil
	default:
		return nil, nil
	}
}

// DeleteExpired implements idempotency.Store.
func (s *Store) DeleteExpired(_ context.Context, limit int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	deleted, seen := 0, 0
	// A claim's record expires ttl after it, so the oldest claims come first.
	for _, c := range s.claimed {
		if deleted == limit || now.Before(c.since.Add(s.ttl)) {
			break
		}
		seen++
		e, ok := s.entries[c.id]
		if !ok || e.attempt != c.attempt {
			continue // abandoned, or taken over by a later claim
		}
		delete(s.entries, c.id)
		if e.record != nil {
			deleted++
		}
	}
	s.claimed = slices.Delete(s.claimed, 0, seen)
	return deleted, nil
}

// Overdue tells for how long the record that DeleteExpired would delete first has
// been due; 0 if there is none.
func (s *Store) Overdue() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	for _, c := range s.claimed {
		age := now.Sub(c.since.Add(s.ttl))
		if age < 0 {
			break
		}
		if e, ok := s.entries[c.id]; ok && e.attempt == c.attempt && e.record != nil {
			return age
		}
	}
	return 0
}

// clock returns the store's time in the resolution that a database keeps.
func (s *Store) clock() time.Time { return s.now().UTC().Truncate(time.Microsecond) }

// Attempt implements idempotency.Attempt. Stores of work that live in memory
// too take part in it by Queue.
type Attempt struct {
	store  *Store
	id     idempotency.ID
	fp     idempotency.Fingerprint
	number uint64
	since  time.Time
	queue  []func() (func(), error)
	ended  bool
}

type attemptKey struct{}

// FromContext returns the attempt that ctx is bound to.
func FromContext(ctx context.Context) (*Attempt, bool) {
	a, ok := ctx.Value(attemptKey{}).(*Attempt)
	return a, ok
}

// Time implements idempotency.Attempt.
func (a *Attempt) Time() time.Time { return a.since }

// Bind implements idempotency.Attempt: FromContext finds the attempt in what it
// returns.
func (a *Attempt) Bind(ctx context.Context) context.Context {
	return context.WithValue(ctx, attemptKey{}, a)
}

// Queue has apply run when the attempt completes, in the order of the calls.
// Where a later one fails, the undo that apply returned is called, so that all
// of an attempt's work is kept or none. Work queued after the end is dropped.
func (a *Attempt) Queue(apply func() (undo func(), err error)) {
	if !a.ended {
		a.queue = append(a.queue, apply)
	}
}

// Complete implements idempotency.Attempt.
func (a *Attempt) Complete(_ context.Context, resp idempotency.Response) error {
	s := a.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.ended {
		return idempotency.ErrSuperseded
	}
	a.ended = true
	e := a.held()
	if e == nil {
		return idempotency.ErrSuperseded
	}
	if !s.clock().Before(a.since.Add(s.lease)) {
		delete(s.entries, a.id)
		return idempotency.ErrSuperseded
	}
	if err := apply(a.queue); err != nil {
		delete(s.entries, a.id)
		return err
	}
	e.record = clone(&idempotency.Record{
		Fingerprint: a.fp,
		Response:    resp,
		CreatedAt:   a.since,
		ExpiresAt:   a.since.Add(s.ttl),
	})
	return nil
}

// Abandon implements idempotency.Attempt.
func (a *Attempt) Abandon(context.Context) error {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	if !a.ended && a.held() != nil {
		delete(a.store.entries, a.id)
	}
	a.ended = true
	return nil
}

// held returns the entry that the attempt still owns, or nil where a later
// attempt took the key over.
func (a *Attempt) held() *entry {
	if e, ok := a.store.entries[a.id]; ok && e.attempt == a.number {
		return e
	}
	return nil
}

// apply does all of the work or none of it.
func apply(queue []func() (func(), error)) error {
	var undos []func()
	for _, do := range queue {
		undo, err := do()
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

// clone shares nothing with rec that a caller could change.
func clone(rec *idempotency.Record) *idempotency.Record {
	c := *rec
	c.Response.Header = rec.Response.Header.Clone()
	if c.Response.Header == nil {
		c.Response.Header = make(http.Header)
	}
	c.Response.Body = slices.Clone(rec.Response.Body)
	return &c
}
