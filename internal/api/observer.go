package api

import (
	"context"
	"net/http"
	"time"

	"intentd/internal/idempotency"
	"intentd/internal/intent"
)

// Observer is told what becomes of requests, for figures. Any of its functions
// may be nil. They are called on the requests' own goroutines, so they must be
// quick, and safe for concurrent use. None is given whose a request is.
type Observer struct {
	// Request is told of each request once its answer is written. route is the
	// pattern in routes.go that the path matched, "" for none and for a method
	// that the path does not have; method is as it was sent, and status as it
	// was answered, or 499 where the client had gone before there was an answer.
	Request func(route, method string, status int, took time.Duration)
	// Claim is told what idempotency.Options.Observe is.
	Claim func(idempotency.Event)
	// Moved is told of each intent that a request has created, as moved to
	// created, or moved, once that is permanent. A replay moves none. A request
	// whose attempt was in doubt is not told of, whatever the record says.
	Moved func(to intent.State, by intent.Actor)
	// Limited is told of each request that RateLimit has refused.
	Limited func()
}

// complete makes every function callable.
func (o *Observer) complete() {
	if o.Request == nil {
		o.Request = func(string, string, int, time.Duration) {}
	}
	if o.Claim == nil {
		o.Claim = func(idempotency.Event) {}
	}
	if o.Moved == nil {
		o.Moved = func(intent.State, intent.Actor) {}
	}
	if o.Limited == nil {
		o.Limited = func() {}
	}
}

// move is a step that a request's handler has taken. It is permanent when the
// request's attempt is.
type move struct {
	to intent.State
	by intent.Actor
}

// noteMoved keeps the step with the request of ctx, which takes one at most.
func noteMoved(ctx context.Context, to intent.State, by intent.Actor, _ int) {
	if e, ok := ctx.Value(entryKey{}).(*entry); ok {
		e.move = move{to, by}
	}
}

// observe notes what the idempotency layer decided.
func (s *server) observe(r *http.Request, ev idempotency.Event) {
	e := entryOf(r)
	e.outcome, e.undone, e.fingerprint = ev.Outcome, ev.Undone, ev.Fingerprint.String()
	if ev.Err != nil {
		e.fail(ev.Err)
	}
	s.Observer.Claim(ev)
	if ev.Outcome == idempotency.Fresh && ev.Undone == 0 && e.move != (move{}) {
		s.Observer.Moved(e.move.to, e.move.by)
	}
}
