package pgidem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/trace"

	"intentd/internal/idempotency"
)

const (
	groupBoundsSQL = `
select set_config('idle_in_transaction_session_timeout', $1, true),
       set_config('statement_timeout', $2, true),
       set_config('client_connection_check_interval', '500', true),
       transaction_timestamp(),
       current_setting('synchronous_standby_names') <> ''`

	// As in lockSQL, for each key. No key is there twice: within a session a lock
	// is granted as often as it is asked for.
	groupLockSQL = `
select case
         when not pg_try_advisory_xact_lock(k.request) then 0
         when not pg_try_advisory_xact_lock(k.key) then 1
         else 2
       end
from unnest($1::bigint[], $2::bigint[]) with ordinality as k (request, key, n)
order by k.n`

	// Lateral, with a limit that keeps it so: for each key one look into the
	// index, whatever the planner believes of the table.
	groupRecordSQL = `
select k.n,
       r.fingerprint,
       r.status,
       r.header,
       r.body,
       r.created_at,
       r.expires_at,
       r.expires_at <= transaction_timestamp()
from unnest($1::text[], $2::text[]) with ordinality as k (scope, key, n)
cross join lateral (
  select fingerprint, status, header, body, created_at, expires_at
  from idempotency_keys
  where scope = k.scope
    and key = k.key
  limit 1
) r`

	// The locks of those who go on hold across COMMIT: the session has them too,
	// until its next transaction has taken them over. All of that is one pipeline,
	// so that no pooler gives the session to somebody else meanwhile.
	holdSQL = `
select pg_advisory_lock(k)
from unnest($1::bigint[]) as k`
	takeOverSQL = `
select
from unnest($1::bigint[]) as k
where case when pg_try_advisory_xact_lock(k) then pg_advisory_unlock(k) end`

	rollbackSQL = `rollback; select pg_advisory_unlock_all()`

	// Plain, as insertSQL.
	groupInsertSQL = `
insert into idempotency_keys
  (scope, key, fingerprint, status, header, body, created_at, expires_at)
select scope, key, fingerprint, status, header::jsonb, body, $7, $8
from unnest($1::text[], $2::text[], $3::bytea[], $4::smallint[], $5::text[], $6::bytea[])
  as r (scope, key, fingerprint, status, header, body)`
)

const (
	// handlerPatience is how long a group waits while none of its handlers comes
	// to its end. A handler that only queues statements takes a fraction of a
	// millisecond; it is progress that counts, so that a processor short of time
	// does not look like a slow handler.
	handlerPatience = 5 * time.Millisecond

	// statementPatience is for one statement of a group. One that waits longer, for
	// a row that somebody holds, say, is to wait alone.
	statementPatience = time.Second
)

// group is the requests that share a transaction, and the session that they share
// it in. It goes through run, once.
type group struct {
	c       *committers
	ctx     context.Context // ends when nobody waits for the group any more
	cancel  context.CancelFunc
	tx      *Tx
	entries []*entry     // whose keys are claimed
	members []*member    // who runs
	holds   bool         // the session may have locks beside its transaction's
	claims  []trace.Span // the recorded ones of those who claim

	// Guarded by committers.mu.
	listeners int           // claims, then completions, that wait to be told
	pending   int           // handlers that run
	stir      chan struct{} // of one: a handler has come to its end
	ending    bool          // what has been completed is being committed
	ended     chan struct{} // closed when that is done, and the locks are gone
}

func newGroup(c *committers) *group {
	g := &group{c: c, stir: make(chan struct{}, 1), ended: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// run is a committer's turn: the claims of all in one pipeline, their handlers,
// and what they queued in a second one. Slow ones are left behind: their locks go
// over into the session's next transaction, which is nobody's turn.
func (g *group) run(t *turn) {
	defer t.leave()
	defer g.cancel()
	if !g.claim() {
		return
	}
	g.admit()
	g.await()
	for !g.end() {
		t.leave()
		g.awaitLate()
	}
}

// claim claims the keys of all. Who is not to run is told so; it returns whether
// anybody is left. As an attempt that runs alone the group needs a place for
// that, and looks without one through the rest of the pool.
func (g *group) claim() bool {
	s := g.c.store
	placed := s.place(g.ctx, slotPatience)
	var err error
	for {
		var founds []found
		if founds, err = twice(g.ctx, s.pool, g.open); err != nil {
			break
		}
		runs := slices.ContainsFunc(founds, found.fresh)
		if !runs || !placed {
			g.rollback() // before anybody is told, so that the locks are gone
		}
		g.decide(founds)
		if !runs {
			break
		}
		if placed {
			g.tx.slot = func() { s.slots.Release(1) }
			return true
		}
		if err = s.slots.Acquire(g.ctx, 1); err != nil {
			break
		}
		placed = true
	}
	if placed {
		s.slots.Release(1)
	}
	if err != nil {
		g.fail(fmt.Errorf("claim idempotency key: %w", err))
	}
	return false
}

// open begins the transaction, tries the locks and reads the records of all: one
// round trip.
func (g *group) open(ctx context.Context) ([]found, error) {
	s := g.c.store
	ctx, span := together(ctx, "claim group", len(g.entries), g.claims)
	defer span.End()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	n := len(g.entries)
	requests, keyLocks := make([]int64, n), make([]int64, n)
	scopes, keys := make([]string, n), make([]string, n)
	for i, e := range g.entries {
		requests[i], keyLocks[i] = requestLock(e.id, e.fp), keyLock(e.id)
		scopes[i], keys[i] = e.id.Scope, e.id.Key
	}
	batch := new(pgx.Batch)
	batch.Queue(beginSQL)
	batch.Queue(groupBoundsSQL, milliseconds(s.lease), milliseconds(min(s.lease, statementPatience)))
	batch.Queue(groupLockSQL, requests, keyLocks)
	batch.Queue(groupRecordSQL, scopes, keys)
	g.tx = &Tx{conn: conn, start: time.Now(), lease: s.lease}
	br := conn.SendBatch(ctx, batch)
	founds, err := readGroup(br, g.tx, n)
	if err = errors.Join(err, br.Close()); err != nil {
		_ = conn.Conn().Close(ctx) // as in Store.claim
		_ = g.tx.rollback(ctx)
		return nil, err
	}
	return founds, nil
}

// readGroup reads the answers of open's batch, for n keys.
func readGroup(br pgx.BatchResults, tx *Tx, n int) ([]found, error) {
	if _, err := br.Exec(); err != nil {
		return nil, err
	}
	var replicated bool
	err := eachRow(br, func(rows pgx.Rows) error { return rows.Scan(nil, nil, nil, &tx.now, &replicated) })
	if err != nil {
		return nil, err
	}
	tx.now = tx.now.UTC()
	founds := make([]found, 0, n)
	err = eachRow(br, func(rows pgx.Rows) error {
		f := found{replicated: replicated}
		err := rows.Scan(&f.locked)
		founds = append(founds, f)
		return err
	})
	if err == nil && len(founds) != n {
		err = fmt.Errorf("the database tried the locks of %d keys of %d", len(founds), n)
	}
	if err != nil {
		return nil, err
	}
	err = eachRow(br, func(rows pgx.Rows) error {
		var at int
		rec, stale, err := scanRecord(rows, &at)
		if err == nil {
			founds[at-1].record, founds[at-1].stale = rec, stale
		}
		return err
	})
	return founds, err
}

// eachRow calls scan for each row of the next answer.
func eachRow(br pgx.BatchResults, scan func(pgx.Rows) error) error {
	rows, err := br.Query()
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// decide tells those who are not to run, and keeps the entries of those who are.
func (g *group) decide(founds []found) {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	fresh := g.entries[:0]
	for i, e := range g.entries {
		f := founds[i]
		if f.fresh() {
			e.stale = f.stale
			fresh = append(fresh, e)
			continue
		}
		for _, w := range e.waiters {
			w.tell(f.answer(e.fp, w.fp))
		}
		delete(g.c.claiming, e.id)
	}
	g.entries = fresh
	g.c.start()
}

// fresh says whether the request that the key was claimed for is to run.
func (f found) fresh() bool { return f.record == nil && f.locked == lockedBoth }

// answer is for the request fp under a key that was claimed for the request
// first, and that first is not to run under.
func (f found) answer(first, fp idempotency.Fingerprint) answer {
	switch {
	case f.record == nil && fp != first && f.locked == lockedRequest:
		// A third request runs, or this one: only its own lock could tell.
		return answer{claim: idempotency.Claim{Outcome: idempotency.InFlight}}
	case f.record == nil && fp != first:
		return answer{claim: idempotency.Claim{Outcome: idempotency.Mismatch}}
	}
	outcome, err := f.outcome(fp)
	if outcome == idempotency.Replay && f.replicated {
		return answer{alone: true} // which sees to it that the standbys have it
	}
	a := answer{claim: idempotency.Claim{Outcome: outcome}, err: err}
	if f.record != nil {
		rec := *f.record
		rec.Response.Header = rec.Response.Header.Clone()
		rec.Response.Body = slices.Clone(rec.Response.Body)
		a.claim.Record = &rec
	}
	return a
}

// fail tells all who still wait.
func (g *group) fail(err error) {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	for _, e := range g.entries {
		for _, w := range e.waiters {
			w.tell(answer{err: err})
		}
		delete(g.c.claiming, e.id)
	}
	g.c.start()
}

// admit lets the handlers run. Of those who ask for one key it is the first who
// gets to run. If that has gone meanwhile, a copy of it does; if there is none,
// nobody, and others may try again: their key is in use by no other request.
func (g *group) admit() {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	for _, e := range g.entries {
		m := newMember(g, e)
		runs := slices.ContainsFunc(e.waiters, func(w *waiter) bool { return w.fp == m.fp })
		for _, w := range e.waiters {
			if !runs {
				w.tell(answer{claim: idempotency.Claim{Outcome: idempotency.InFlight}})
				continue
			}
			if w.fp != m.fp || g.c.running[m.id] == m {
				w.tell(answer{claim: m.met(w.fp)})
				continue
			}
			g.c.running[m.id] = m
			g.members = append(g.members, m)
			w.tell(answer{claim: idempotency.Claim{Outcome: idempotency.Fresh, Attempt: m}})
		}
		delete(g.c.claiming, e.id)
	}
	g.c.start()
	g.pending = len(g.members)
}

// await returns when all handlers have come to their ends, or for a while none
// has.
func (g *group) await() {
	timer := time.NewTimer(g.c.patience)
	defer timer.Stop()
	for g.running() > 0 {
		select {
		case <-g.stir:
			timer.Reset(g.c.patience)
		case <-timer.C:
			return
		}
	}
}

// awaitLate returns when one of those left behind has come to its end, or their
// lease has.
func (g *group) awaitLate() {
	timer := time.NewTimer(time.Until(g.tx.start.Add(g.tx.lease)))
	defer timer.Stop()
	select {
	case <-g.stir:
	case <-timer.C:
	}
}

// running returns how many handlers run.
func (g *group) running() int {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	return g.pending
}

// over says that one more handler has come to its end. c.mu is held.
func (g *group) over() {
	g.pending--
	select {
	case g.stir <- struct{}{}:
	default: // it is known that there is something to see
	}
}

// unheard says that one has stopped waiting for the group. What nobody waits for
// is not worth going on with. c.mu is held.
func (g *group) unheard() {
	if g.listeners--; g.listeners == 0 && (g.ending || len(g.members) == 0) {
		g.cancel()
	}
}

// end makes permanent what the members have completed, and lets go of who has
// come to an end. It returns whether nobody goes on.
func (g *group) end() bool {
	e, ok := g.close()
	if !ok {
		return false
	}
	var err error
	if len(e.completed)+len(e.late) > 0 {
		err = g.keep(e.completed, e.late)
	}
	again := err != nil && g.undone(err)
	if err == nil && len(e.completed) > 0 {
		g.c.store.observer.Committed(len(e.completed), leave(e.late))
	}
	goOn := err == nil && len(e.late) > 0 && !g.tx.conn.Conn().IsClosed()
	switch {
	case goOn:
	case err == nil && len(e.completed) > 0 && len(e.late) == 0:
		g.tx.release()
	default:
		g.rollback() // as in attempt.Complete
	}

	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	close(e.ended)
	for _, m := range e.abandoned {
		g.let(m, nil)
	}
	for _, m := range e.completed {
		if again {
			g.let(m, errRunAlone)
			continue
		}
		g.let(m, err)
	}
	g.members, g.ending = e.late, false
	if goOn {
		for _, m := range e.late {
			m.dbTells = true // whether the session lives, say
		}
		return false
	}
	close(g.ended)
	for _, m := range e.late {
		// Without its locks it has to claim again, when its handler has ended.
		g.let(m, errRunAlone)
	}
	return true
}

// leave marks those that are left behind, and returns how many were not before.
func leave(late []*member) (n int) {
	for _, m := range late {
		if !m.left {
			m.left = true
			n++
		}
	}
	return n
}

// let lets a member go, with that result. c.mu is held.
func (g *group) let(m *member, err error) {
	g.c.inside--
	switch {
	case m.state == stateRunning:
		m.state, m.dbTells = stateAdrift, false
	case m.state == stateCompleted && !m.gone && errors.Is(err, errRunAlone):
		m.dbTells = false
	default:
		g.c.forget(m)
	}
	m.result <- err
}

// ending is what one transaction of a group ends with.
type ending struct {
	completed, abandoned, late []*member
	ended                      chan struct{}
}

// close parts the members whose handlers have come to an end from those that are
// late. ok says that there are any of the first, or that the lease is over.
func (g *group) close() (e ending, ok bool) {
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	for _, m := range g.members {
		switch m.state {
		case stateCompleted:
			e.completed = append(e.completed, m)
		case stateAbandoned:
			e.abandoned = append(e.abandoned, m)
		default:
			e.late = append(e.late, m)
		}
	}
	if len(e.late) > 0 && len(e.late) == len(g.members) && !g.tx.late() && !g.c.handOver {
		return e, false
	}
	for _, m := range e.completed {
		m.dbTells = true
	}
	// Who comes to an end from now on waits for the next one.
	e.ended, g.ended = g.ended, make(chan struct{})
	if g.ending = len(e.completed) > 0; g.ending && g.listeners == 0 {
		g.cancel()
	}
	return e, true
}

// rollback ends the transaction, for whose end nobody may be waiting, and lets go
// of what the session itself has locked.
func (g *group) rollback() {
	ctx, cancel := context.WithTimeout(g.ctx, claimTimeout)
	defer cancel()
	if g.holds {
		if _, err := g.tx.conn.Conn().PgConn().Exec(ctx, rollbackSQL).ReadAll(); err != nil {
			_ = g.tx.conn.Conn().Close(ctx)
		}
		g.tx.release()
		return
	}
	_ = g.tx.rollback(ctx)
}

// undone says whether the members have to run alone, since a statement of one of
// them, or of several, was refused. Memory keeps their keys for them until then.
func (g *group) undone(err error) bool {
	if errors.Is(err, idempotency.ErrInDoubt) || errors.Is(err, idempotency.ErrSuperseded) || g.tx.conn.Conn().IsClosed() {
		return false
	}
	g.c.mu.Lock()
	defer g.c.mu.Unlock()
	for _, m := range g.members {
		m.dbTells = false
	}
	return true
}

// keep sends what the members queued, their records and COMMIT: one round trip.
// The locks of those that are late go over into the session's next transaction.
func (g *group) keep(members, late []*member) error {
	if g.tx.late() {
		return idempotency.ErrSuperseded
	}
	n := len(members)
	queues := make([][]statement, n)
	for i, m := range members {
		queues[i] = m.queue
	}
	g.tx.queue = gather(queues)
	scopes, keys, headers := make([]string, n), make([]string, n), make([]string, n)
	fingerprints, bodies, statuses := make([][]byte, n), make([][]byte, n), make([]int, n)
	var commits []trace.Span
	for i, m := range members {
		commits = traced(commits, m.span)
		if m.stale {
			g.tx.Queue(deleteStaleSQL, m.id.Scope, m.id.Key)
		}
		scopes[i], keys[i], headers[i] = m.id.Scope, m.id.Key, encodeHeader(m.resp.Header)
		fingerprints[i], bodies[i], statuses[i] = m.fp[:], notNull(m.resp.Body), m.resp.Status
	}
	if n > 0 {
		g.tx.Queue(groupInsertSQL, scopes, keys, fingerprints, statuses, headers, bodies, g.tx.now, g.tx.now.Add(g.c.store.ttl))
	}
	ctx, span := together(g.ctx, "commit group", n, commits)
	defer span.End()
	if len(late) == 0 {
		return g.tx.commit(ctx)
	}
	var locks []int64
	for _, m := range late {
		locks = append(locks, requestLock(m.id, m.fp), keyLock(m.id))
	}
	left := g.tx.lease - time.Since(g.tx.start)
	g.tx.Queue(holdSQL, locks)
	g.holds = true
	return g.tx.commit(ctx,
		step{statement{sql: beginSQL}, 0},
		step{statement{sql: groupBoundsSQL, args: []any{milliseconds(left), milliseconds(min(left, statementPatience))}}, 1},
		step{statement{sql: takeOverSQL, args: []any{locks}}, int64(len(locks))})
}
