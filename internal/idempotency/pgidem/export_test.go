package pgidem

import (
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
