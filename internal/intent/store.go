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
	// expiresIn later, which is at least a microsecond. The ID is the store's to
	// give, by NewID from created_at, so that the order of ids is that of
	// created_at whatever the clocks of the processes say; what in has there is
	// not looked at. It returns the intent as it will be read.
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

	// List returns the page of the merchant's intents that q, which Service.List
	// has checked, selects, by falling ID; and whether there are more behind it
	// in the direction of paging. Intents that come meanwhile change no page
	// behind After, save those of an attempt that began earlier and completes
	// later: an intent is listed when it is permanent, at the place of its
	// created_at.
	List(ctx context.Context, merchantID string, q Query) (page []Intent, more bool, err error)

	// Transitions returns up to limit rows of the intent's trail, which is at
	// least one, oldest first, those with a version above after; and whether
	// there are more. It is empty if the intent has not moved since,
	// ErrNotFound if there is no such intent.
	Transitions(ctx context.Context, merchantID string, id ID, after int64, limit int) (page []Transition, more bool, err error)

	// CancelDue cancels up to limit intents in state created whose expires_at
	// has come by the store's clock, the longest due first: one version more
	// and a row in the trail, actor system, reason expired. It returns how
	// many. It waits for nobody: intents that another transaction holds are
	// skipped, so any number of callers share the work and each intent is
	// canceled once.
	CancelDue(ctx context.Context, limit int) (int, error)
}

// Query selects a page of a merchant's intents, newest first.
type Query struct {
	Limit int // 1 to 100
	// At most one: the page behind it, of older ones, or the page just before
	// it, of newer ones, which are listed newest first too. Each is a position
	// only: it need not be an intent's, and another merchant's tells nothing.
	After, Before *ID
	State         State  // "": any
	Reference     string // "": any
	// The first is inclusive, the second is not; zero: open. For a Store they
	// are in whole microseconds.
	CreatedFrom, CreatedBefore time.Time
}
