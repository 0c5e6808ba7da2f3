package pgidem

import "time"

// DeleteExpiredSQL is for the test that looks at its plan.
const DeleteExpiredSQL = deleteExpiredSQL

// Age makes tx older by d, as if its handler had taken that long.
func Age(tx *Tx, d time.Duration) { tx.start = tx.start.Add(-d) }
