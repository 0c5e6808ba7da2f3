package idempotency

import "context"

// Searcher is a Store that can tell whose records stand under a key. It is for the
// operators of the service, and no part of Store: nothing that serves a request
// looks into another's scope, and not every store could.
type Searcher interface {
	// Search returns up to q.Limit records that live, each of another scope, by
	// scope; and whether there are more. Requests that still run have none.
	//
	// What it costs grows with the number of scopes, not with that of the records.
	// A store that has others to serve gives up after two seconds. An error means
	// that nothing is known.
	Search(ctx context.Context, q Search) (found []Found, more bool, err error)
}

// Search is a question for a Searcher.
type Search struct {
	Key string
	// What the scope must contain, or must not; "": anything goes.
	With, Without string
	Limit         int // at least 1
}

// Found is what stands under a key in one scope.
type Found struct {
	Scope  string
	Record Record
}
