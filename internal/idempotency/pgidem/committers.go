package pgidem

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"intentd/internal/idempotency"
)

const (
	// mostAlone is the crowd up to which each request has a transaction of its
	// own: so few commit together anyhow, since PostgreSQL writes its log once for
	// all commits that wait for it, and nobody has to wait for anybody.
	mostAlone = 8

	// mostMembers is how many keys one transaction takes: enough for all that
	// arrive while a commit is on its way, and few enough that one failing
	// statement does not send a great many requests off alone.
	mostMembers = 128

	// gatherPatience is how long a free committer waits for its share of the
	// crowd, whose last answers have just gone out: those who come back first
	// would else have a commit of their own, and the rest would wait for it.
	gatherPatience = 200 * time.Microsecond

	// turnPatience is how long a committer may take before another one is let
	// in beside it. It is many times what a group takes; what takes longer waits
	// for something: a locked table, a standby, a network that is gone.
	turnPatience = 100 * time.Millisecond

	// forgetting is what is left of the crowd's size with each request that finds
	// a smaller one: after a hundred it is an eighth.
	forgetting = 0.98
)

// committers decides which requests share a transaction. Start reading at claim.
//
// A committer is not a thread of its own but a turn: so many of them may be under
// way at once, and whoever is done hands its turn to those that wait. So there
// are goroutines only while there is work.
type committers struct {
	store *Store
	most  int
	// Tests change these: whether a request shares a transaction even where it is
	// alone, handlerPatience, and whether a group commits without those who are
	// late even where nobody else has ended.
	gather   bool
	patience time.Duration
	handOver bool

	mu        sync.Mutex
	inside    int                        // requests that have not come to their ends
	crowd     float64                    // the most that there were lately
	busy      int                        // committers
	gathering bool                       // one waits for its share
	queue     []*entry                   // what waits for a committer, in the order of arrival
	waiting   map[idempotency.ID]*entry  // the same
	claiming  map[idempotency.ID]bool    // what a group is about to claim
	running   map[idempotency.ID]*member // what shares a transaction, or shared one
}

func newCommitters(s *Store, most int) *committers {
	return &committers{
		store: s, most: most, patience: handlerPatience,
		waiting: make(map[idempotency.ID]*entry), claiming: make(map[idempotency.ID]bool), running: make(map[idempotency.ID]*member),
	}
}

// entry is a key in the queue, and all who ask for it: within one session the
// locks would be granted to each of them.
type entry struct {
	id      idempotency.ID
	fp      idempotency.Fingerprint // the first's, for whom the key is claimed
	waiters []*waiter
	stale   bool // an expired record stands in the way
}

// waiter is one claim that waits.
type waiter struct {
	entry  *entry
	fp     idempotency.Fingerprint
	group  *group      // that took the entry; nil before
	span   trace.Span  // nil: not recorded
	told   bool        // or gone
	answer chan answer // of one
}

// answer is what a waiter is told: its claim, or to claim alone.
type answer struct {
	claim idempotency.Claim
	err   error
	alone bool
}

// claim claims in the transaction of a group, or alone where there is no crowd.
func (c *committers) claim(ctx context.Context, r request) (idempotency.Claim, error) {
	c.mu.Lock()
	if m := c.met(r.id); m != nil {
		c.mu.Unlock()
		return m.met(r.fp), nil
	}
	c.inside++
	c.crowd = max(float64(c.inside), forgetting*c.crowd)
	if c.crowd <= mostAlone && !c.gather {
		c.mu.Unlock()
		return c.alone(ctx, r)
	}
	w := c.enqueue(r)
	w.span = recorded(ctx)
	c.start()
	c.mu.Unlock()

	var a answer
	select {
	case a = <-w.answer:
	case <-ctx.Done():
		if c.withdraw(w) {
			c.done()
			return idempotency.Claim{}, fmt.Errorf("claim idempotency key: %w", ctx.Err())
		}
		a = <-w.answer
	}
	if a.alone {
		return c.alone(ctx, r)
	}
	if a.claim.Outcome != idempotency.Fresh {
		c.done()
	}
	return a.claim, a.err
}

// done says that a request has come to its end.
func (c *committers) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inside--
}

// alone claims for a transaction of its own.
func (c *committers) alone(ctx context.Context, r request) (idempotency.Claim, error) {
	claim, err := c.store.claimAlone(ctx, r)
	if err != nil || claim.Outcome != idempotency.Fresh {
		c.done()
		return claim, err
	}
	a := claim.Attempt.(*attempt)
	slot := a.slot
	a.slot = func() {
		slot()
		c.done()
	}
	return claim, nil
}

// met returns the request that runs under the key in this process, if it is for
// memory to tell: not one whose COMMIT is under way, say, since only the database
// knows whether that is done; nor one past its lease. c.mu is held.
func (c *committers) met(id idempotency.ID) *member {
	m := c.running[id]
	if m == nil || m.dbTells || m.late() {
		return nil
	}
	return m
}

// runs says whether the request that runs under the key shares a transaction of
// this process.
func (c *committers) runs(id idempotency.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.running[id]
	return m != nil && !m.late()
}

// forget lets go of the key in memory. c.mu is held.
func (c *committers) forget(m *member) {
	if c.running[m.id] == m { // a later request may have it
		delete(c.running, m.id)
	}
}

// enqueue has a request wait for a committer. c.mu is held.
func (c *committers) enqueue(r request) *waiter {
	e := c.waiting[r.id] // copies wait together
	if e == nil {
		e = &entry{id: r.id, fp: r.fp}
		c.waiting[r.id] = e
		c.queue = append(c.queue, e)
	}
	w := &waiter{entry: e, fp: r.fp, answer: make(chan answer, 1)}
	e.waiters = append(e.waiters, w)
	return w
}

// withdraw takes a waiter out of the queue or its group, unless it has been told
// already.
func (c *committers) withdraw(w *waiter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.told {
		return false
	}
	w.told = true
	e := w.entry
	e.waiters = slices.DeleteFunc(e.waiters, func(other *waiter) bool { return other == w })
	switch {
	case w.group != nil:
		w.group.unheard()
	case len(e.waiters) > 0:
		e.fp = e.waiters[0].fp
	default:
		delete(c.waiting, e.id)
		c.queue = slices.DeleteFunc(c.queue, func(other *entry) bool { return other == e })
	}
	return true
}

// tell answers a waiter. c.mu is held.
func (w *waiter) tell(a answer) {
	w.told = true
	w.answer <- a
	if w.group != nil {
		w.group.listeners--
	}
}

// start gives the turns that are free to those that wait, when they are a
// committer's even share of the crowd, or all of it that is not under way, or
// have waited for the others long enough. c.mu is held.
func (c *committers) start() {
	for c.busy < c.most && len(c.queue) > 0 {
		if float64(len(c.queue)*c.most) < c.crowd && float64(c.inside) < c.crowd {
			if !c.gathering {
				c.gathering = true
				time.AfterFunc(gatherPatience, c.gathered)
			}
			return
		}
		if !c.begin() {
			return
		}
	}
}

// gathered ends the wait for others.
func (c *committers) gathered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gathering = false
	if c.busy < c.most {
		c.begin()
	}
}

// begin takes a turn for those that can go in one, if there are any. c.mu is
// held.
func (c *committers) begin() bool {
	g := c.take()
	if len(g.entries) == 0 {
		return false
	}
	go g.run(c.turn())
	return true
}

// take makes a group of those that have waited longest, up to the bound. A key
// that another group is about to claim waits for what comes of it. c.mu is held.
func (c *committers) take() *group {
	g := newGroup(c)
	c.queue = slices.DeleteFunc(c.queue, func(e *entry) bool {
		if m := c.met(e.id); m != nil { // it has begun to run since
			for _, w := range e.waiters {
				w.tell(answer{claim: m.met(w.fp)})
			}
		} else {
			if c.claiming[e.id] || len(g.entries) == mostMembers {
				return false
			}
			for _, w := range e.waiters {
				w.group = g
				g.claims = traced(g.claims, w.span)
			}
			g.listeners += len(e.waiters)
			g.entries = append(g.entries, e)
			c.claiming[e.id] = true
		}
		delete(c.waiting, e.id)
		return true
	})
	return g
}

// turn is a committer at work.
type turn struct {
	c     *committers
	timer *time.Timer
	left  bool
}

// turn begins one. c.mu is held.
func (c *committers) turn() *turn {
	c.busy++
	t := &turn{c: c}
	t.timer = time.AfterFunc(turnPatience, t.leave)
	return t
}

// leave ends the turn, once, and hands it on.
func (t *turn) leave() {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.timer.Stop()
	if !t.left {
		t.left = true
		t.c.busy--
		t.c.start()
	}
}
