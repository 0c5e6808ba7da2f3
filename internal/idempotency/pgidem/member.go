package pgidem

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/trace"

	"intentd/internal/idempotency"
)

// What a member's handler has come to.
type memberState uint8

const (
	stateRunning memberState = iota
	stateCompleted
	stateAbandoned
	stateAdrift // it still runs, and its group has come to an end
)

// errRunAlone is the result of members that another's refused statement has
// undone.
var errRunAlone = errors.New("pgidem: the group failed")

// member implements idempotency.Attempt: it has a part in a transaction. Its Tx
// only queues.
type member struct {
	*Tx
	id    idempotency.ID
	fp    idempotency.Fingerprint
	stale bool
	group *group
	left  bool // others of the group have been committed without it

	// Guarded by committers.mu.
	state   memberState
	dbTells bool       // what became of it the database knows better than memory
	gone    bool       // nobody waits for the result
	span    trace.Span // its Complete's; nil: not recorded
	resp    idempotency.Response
	result  chan error // of one
}

func newMember(g *group, e *entry) *member {
	return &member{
		Tx: &Tx{now: g.tx.now, start: g.tx.start, lease: g.tx.lease},
		id: e.id, fp: e.fp, stale: e.stale, group: g, result: make(chan error, 1),
	}
}

// met is what another request under the key is told while this one runs.
func (m *member) met(fp idempotency.Fingerprint) idempotency.Claim {
	if fp == m.fp {
		return idempotency.Claim{Outcome: idempotency.InFlight}
	}
	return idempotency.Claim{Outcome: idempotency.Mismatch}
}

// Bind implements idempotency.Attempt: FromContext finds what queues for the
// transaction in what it returns.
func (m *member) Bind(ctx context.Context) context.Context {
	return context.WithValue(ctx, txKey{}, m.Tx)
}

// Complete implements idempotency.Attempt. It waits for the others of the group,
// though for no slow one. If the group has failed it runs alone.
func (m *member) Complete(ctx context.Context, resp idempotency.Response) error {
	if m.ended {
		return errEnded
	}
	m.ended = true
	if err := m.completeWithGroup(ctx, resp); !errors.Is(err, errRunAlone) {
		return err
	}
	defer m.forget()
	a, err := m.claimAgain(ctx)
	if err != nil {
		return err
	}
	m.leaveToDatabase()
	a.queue = m.queue
	return a.Complete(ctx, resp)
}

// completeWithGroup has the group commit the member. The error is that of
// Complete, or errRunAlone.
func (m *member) completeWithGroup(ctx context.Context, resp idempotency.Response) error {
	c := m.group.c
	c.mu.Lock()
	if m.state == stateAdrift {
		c.mu.Unlock()
		return errRunAlone
	}
	m.state, m.resp, m.span = stateCompleted, resp, recorded(ctx)
	m.group.listeners++
	m.group.over()
	c.mu.Unlock()
	select {
	case err := <-m.result:
		return err
	case <-ctx.Done():
		if m.leaveUnheard() {
			return fmt.Errorf("%w: %w", idempotency.ErrInDoubt, ctx.Err())
		}
		return <-m.result
	}
}

// leaveUnheard gives up waiting for the result, unless it is there.
func (m *member) leaveUnheard() bool {
	m.group.c.mu.Lock()
	defer m.group.c.mu.Unlock()
	if len(m.result) > 0 {
		return false
	}
	m.gone = true
	m.group.unheard()
	return true
}

// Abandon implements idempotency.Attempt. A lock can not be given back before
// its transaction ends, so it waits for that.
func (m *member) Abandon(ctx context.Context) error {
	if m.ended {
		return nil
	}
	m.ended = true
	c := m.group.c
	c.mu.Lock()
	if m.state == stateAdrift {
		c.forget(m)
		c.mu.Unlock()
		return nil
	}
	m.state = stateAbandoned
	m.group.over()
	ended := m.group.ended
	c.mu.Unlock()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *member) forget() {
	m.group.c.mu.Lock()
	defer m.group.c.mu.Unlock()
	m.group.c.forget(m)
}

// leaveToDatabase has others ask the database for what became of the member: it
// is committing.
func (m *member) leaveToDatabase() {
	m.group.c.mu.Lock()
	defer m.group.c.mu.Unlock()
	m.dbTells = true
}

// claimAgain claims the key for a transaction of the member's own. Somebody else
// may have it meanwhile.
func (m *member) claimAgain(ctx context.Context) (*attempt, error) {
	if m.late() {
		return nil, idempotency.ErrSuperseded
	}
	claim, err := m.group.c.store.claimAlone(ctx, request{id: m.id, fp: m.fp, at: m.now, since: m.start})
	switch {
	case err != nil:
		return nil, err
	case claim.Outcome == idempotency.Fresh:
		return claim.Attempt.(*attempt), nil
	case claim.Record != nil:
		return nil, idempotency.ErrTaken
	default:
		return nil, idempotency.ErrSuperseded
	}
}
