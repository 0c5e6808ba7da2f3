package pgidem

import (
	"net/http"
	"time"

	"intentd/internal/idempotency"
)

// DeleteExpiredSQL is for the test that looks at its plan.
const DeleteExpiredSQL = deleteExpiredSQL

// Decide tells what a claim decides where there is no record, and the database
// says to have got that many locks.
func Decide(locked int) (idempotency.Outcome, error) {
	return found{locked: locked}.outcome(idempotency.Fingerprint{})
}

// KeyLock is the number of the lock that a running request holds.
func KeyLock(id idempotency.ID) int64 { return keyLock(id) }

// Age makes tx older by d, as if its handler had taken that long.
func Age(tx *Tx, d time.Duration) { tx.start = tx.start.Add(-d) }

// For tests that look at plans, or at the bound.
const (
	GroupRecordSQL = groupRecordSQL
	MostMembers    = mostMembers
)

// Gather has every request of s share a transaction, be it the only one, and a
// group wait so long for a handler that comes to no end.
func Gather(s *Store, patience time.Duration) {
	s.committers.gather = true
	s.committers.patience = patience
}

// Hold has all who come wait, until release.
func Hold(s *Store) (release func()) {
	c := s.committers
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy += c.most
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.busy -= c.most
		c.start()
	}
}

// Waiting returns how many claims wait for a committer.
func Waiting(s *Store) (n int) {
	s.committers.mu.Lock()
	defer s.committers.mu.Unlock()
	for _, e := range s.committers.queue {
		n += len(e.waiters)
	}
	return n
}

// Running returns how many attempts s knows of that share a transaction, or did,
// and are within their lease.
func Running(s *Store) (n int) {
	if s.committers == nil {
		return 0
	}
	s.committers.mu.Lock()
	defer s.committers.mu.Unlock()
	for _, m := range s.committers.running {
		if !m.late() {
			n++
		}
	}
	return n
}

// Idle says whether nothing is left of any request.
func Idle(s *Store) bool {
	c := s.committers
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inside == 0 && c.busy == 0 && len(c.queue) == 0 && len(c.waiting) == 0 && len(c.claiming) == 0 && len(c.running) == 0
}

// HandOver has each group commit without those who are late, even where nobody
// else has come to an end.
func HandOver(s *Store) { s.committers.handOver = true }

// LeftBehind says whether the group of an attempt has committed without it, and
// its locks have gone over into the next transaction.
func LeftBehind(a idempotency.Attempt) bool {
	m := a.(*member)
	m.group.c.mu.Lock()
	defer m.group.c.mu.Unlock()
	return m.state == stateRunning && m.dbTells
}

// LeaveBehind has the group of an attempt go on without it, once the others have
// come to their ends.
func LeaveBehind(a idempotency.Attempt) {
	m := a.(*member)
	m.group.c.mu.Lock()
	defer m.group.c.mu.Unlock()
	m.group.over()
}

// Adrift says whether the group of an attempt has ended without it, and with it
// its locks.
func Adrift(a idempotency.Attempt) bool {
	m := a.(*member)
	m.group.c.mu.Lock()
	defer m.group.c.mu.Unlock()
	return m.state == stateAdrift
}

// EncodeHeader spells a header as it stands in a record.
func EncodeHeader(h http.Header) string { return encodeHeader(h) }

// SearchSQL is for the test that looks at its plan.
const SearchSQL = searchSQL
