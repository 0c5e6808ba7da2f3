package intent

import (
	"context"
	"time"
)

// Store keeps intents and the trail of their changes. It has one clock, its
// own, and stamps every time with it, in UTC and whole microseconds.
//
// What a method has returned without an error survives a crash of the process,
// as far as the store survives; what it was doing when the process died
// happened whole or not at all. A store that is told how to find an attempt in
// the context takes part in it instead: its writes become permanent together
// with the attempt or not at all, and its clock stands still at the attempt's
// time. Every intent belongs to a merchant, and no method tells one merchant of
// another's.
//
// Errors that are not named here are ErrUnavailable, or of an attempt that has
// ended. A Store is safe for concurrent use.
type Store interface {
	// Create stores in as a new intent: state created, version 1, no tx_hash,
	// created_at and updated_at by the store's clock, expires_at exactly
	// expiresIn later, which is at least a microsecond. It returns the intent
	// as it will be read. An ID that the merchant already has is an error.
	Create(ctx context.Context, in Intent, expiresIn time.Duration) (Intent, error)

	// Get returns the merchant's intent, or ErrNotFound.
	Get(ctx context.Context, merchantID string, id ID) (Intent, error)

	// Move reads the intent, lets decide say what is next, with now by the
	// store's clock, and makes that transition: state, version, updated_at,
	// tx_hash and the row in the trail, all or nothing, only if the version is
	// still the one that decide saw. It returns the intent as it stands then.
	// ErrNotFound if there is none, ErrVersionConflict if somebody was faster;
	// an error of decide's is returned as it is. If decide returns neither
	// transition nor error nothing happens. The store holds no lock while
	// decide runs, and calls it once.
	Move(ctx context.Context, merchantID string, id ID, decide func(in Intent, now time.Time) (*Transition, error)) (Intent, error)

	// Transitions returns the intent's trail, oldest first; empty if it never
	// moved, ErrNotFound if there is no such intent.
	Transitions(ctx context.Context, merchantID string, id ID) ([]Transition, error)

	// CancelDue cancels up to limit intents in state created whose expires_at
	// has come by the store's clock, the longest due first: one version more
	// and a row in the trail, actor system, reason expired. It returns how
	// many. It waits for nobody: intents that another transaction holds are
	// skipped, so any number of callers share the work and each intent is
	// canceled once.
	CancelDue(ctx context.Context, limit int) (int, error)
}
