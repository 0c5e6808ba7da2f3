// Package pgidem keeps idempotency records in PostgreSQL, in the same
// transaction as the work that they are the answer of.
//
// A key has a row only when its request has ended. While it runs it is a pair of
// advisory transaction locks, which die with their connection, so that a crash
// leaves nothing behind to be cleaned up. The unique constraint on (scope, key)
// is the last word: the locks make duplicates cheap, correctness does not rest
// on them.
//
// # One transaction for one request
//
// Start reading at Store.Claim and attempt: two round trips. The first begins the
// transaction, tries the locks and reads the record; the second carries what the
// handler queued, the record and COMMIT.
//
// # One transaction for many
//
// A commit costs as much for a hundred requests as for one, and so does a round
// trip. A Store WithCommitters gathers the requests that arrive while a committer
// is busy; a free one takes them all. The same two round trips then carry the
// locks and the records of all of them, and what the handlers of all of them
// queued; rows that several insert by the same statement go as one (Tx.QueueRow),
// since PostgreSQL spends more on a statement than on its row. Start reading at
// committers.claim and group.run. For each request it is as if it had been alone:
//   - a statement that fails undoes the transaction. Then each member claims its
//     key again, for a transaction of its own, and only the guilty one fails. In
//     the moment between the two another process may take the key. Then the
//     member is superseded;
//   - a handler that is slow, for which nobody waits more than a few milliseconds,
//     is left behind. The others commit without it, and its locks go over into
//     the session's next transaction, so that there is no moment in which its key
//     is another's to take;
//   - a handler that panics is left out, and nobody else notices.
//
// So what an attempt queued may be written by a later transaction than that of
// its claim, which is why nothing that is answered may come from
// transaction_timestamp(), but from Tx.Time.
//
// Two requests for one key in one process meet in memory before either meets the
// database: within a session an advisory lock is granted as often as it is asked
// for, and would let both run.
//
// The rule of thumb: a handler that writes by Tx.Queue alone shares transactions;
// one that asks (Tx.Query, Tx.Exec) is mounted with
// idempotency.Options.Interactive. Two committers were the fastest where it was
// measured: one commits while the other one's handlers run. More have smaller
// groups, and none leaves each request its own transaction.
package pgidem

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"intentd/internal/idempotency"
)

const (
	// Whatever the database's defaults are: read committed, so that the select
	// after the locks sees what the last holder committed, and read write, so
	// that a standby refuses here and not at the end.
	beginSQL = `begin isolation level read committed read write`

	// One statement sets the attempt's bounds and tries its locks, in this
	// order. client_connection_check_interval lets a backend in the middle of a
	// statement notice that this process died.
	lockSQL = `
select set_config('idle_in_transaction_session_timeout', $1, true),
       set_config('statement_timeout', $1, true),
       set_config('client_connection_check_interval', '500', true),
       transaction_timestamp(),
       current_setting('synchronous_standby_names') <> '',
       case
         when not pg_try_advisory_xact_lock($2) then 0
         when not pg_try_advisory_xact_lock($3) then 1
         else 2
       end`

	// Writes what only a commit can make durable, so that the commit waits for
	// the synchronous standbys as that of the record's did. EXECUTE is PUBLIC's.
	emitSQL = `select pg_logical_emit_message(true, 'intentd', '')`

	timeoutSQL = `select set_config('statement_timeout', $1, true)`

	// A statement of its own, after the locks: fused with them it would read a
	// snapshot older than the locks, and miss what the last holder committed.
	recordSQL = `
select fingerprint,
       status,
       header,
       body,
       created_at,
       expires_at,
       expires_at <= transaction_timestamp()
from idempotency_keys
where scope = $1
  and key = $2`

	// A key's 64-bit lock stands in pg_locks as two halves and objsubid 1. To
	// read it there takes no lock that a claim could meet; to try it would show
	// to a claim of the same moment as a request that runs.
	runningSQL = `
select set_config('idle_in_transaction_session_timeout', $1, true),
       set_config('statement_timeout', $1, true),
       exists (
         select
         from pg_locks
         where locktype = 'advisory'
           and database = (select oid from pg_database where datname = current_database())
           and ((classid::bigint << 32) | objid::bigint) = $2
           and objsubid = 1
           and granted
       )`

	// As emitSQL, where there is a record that a commit waited for.
	emitForRecordSQL = `
select pg_logical_emit_message(true, 'intentd', '')
from idempotency_keys
where scope = $1
  and key = $2
  and expires_at > transaction_timestamp()
  and current_setting('synchronous_standby_names') <> ''`

	deleteStaleSQL = `
delete from idempotency_keys
where scope = $1
  and key = $2
  and expires_at <= transaction_timestamp()`

	// Plain, so that it fails loudly on a live duplicate and stops the pipeline
	// before COMMIT. With "on conflict" it would affect no row, and the COMMIT
	// behind it would keep the work a second time.
	insertSQL = `
insert into idempotency_keys
  (scope, key, fingerprint, status, header, body, created_at, expires_at)
values
  ($1, $2, $3, $4, $5, $6, $7, $8)`

	deleteExpiredSQL = `
with due as (
  select scope, key
  from idempotency_keys
  where expires_at <= transaction_timestamp()
  order by expires_at
  limit $1
  for update skip locked
)
delete from idempotency_keys k
using due
where k.scope = due.scope
  and k.key = due.key
  and k.expires_at <= transaction_timestamp()`
)

// The locks that lockSQL got.
const (
	lockedUnknown = -1
	lockedNone    = 0 // the same request runs
	lockedRequest = 1 // another request runs under the key
	lockedBoth    = 2 // none runs
)

// Store implements idempotency.Store over a pool of PostgreSQL connections. See
// New.
type Store struct {
	pool  *pgxpool.Pool
	ttl   time.Duration
	lease time.Duration
	slots *semaphore.Weighted // the places of running attempts

	committers *committers // nil: no attempt shares a transaction
	observer   Observer
}

// Observer is told how attempts reach the database. It must not block.
type Observer interface {
	// Committed is told of each transaction that several attempts share: how many
	// it has made permanent, and how many go on in a later one, each once.
	Committed(size, leftBehind int)
	// Alone is told of each attempt that has a transaction of its own.
	Alone()
}

type unobserved struct{}

// Committed implements Observer.
func (unobserved) Committed(int, int) {}

// Alone implements Observer.
func (unobserved) Alone() {}

// New returns a store over pool, which Configure should have prepared. Records
// live for ttl from their claim, to the microsecond that PostgreSQL keeps. An attempt that is idle or inside one statement
// for lease is ended by PostgreSQL. New panics unless a millisecond <= lease <=
// ttl.
func New(pool *pgxpool.Pool, ttl, lease time.Duration) *Store {
	if lease < time.Millisecond || ttl < lease {
		panic("pgidem: New needs 1ms <= lease <= ttl")
	}
	conns := int64(pool.Config().MaxConns)
	rest := min(conns-1, max(1, conns/5))
	return &Store{
		pool: pool, ttl: ttl.Truncate(time.Microsecond), lease: lease, slots: semaphore.NewWeighted(conns - rest),
		observer: unobserved{},
	}
}

// Observed has o told of attempts. It must be called before the store is used,
// and returns it.
func (s *Store) Observed(o Observer) *Store {
	s.observer = o
	return s
}

// WithCommitters has attempts that only queue statements share transactions: n
// committers at a time gather the requests that arrive together. 0 is none, so
// that each attempt has a transaction of its own, as New makes it. It must be
// called before the store is used, and returns it. It panics if n is negative.
func (s *Store) WithCommitters(n int) *Store {
	if n < 0 {
		panic("pgidem: WithCommitters needs n >= 0")
	}
	s.committers = nil
	if n > 0 {
		s.committers = newCommitters(s, n)
	}
	return s
}

// TTL implements idempotency.Store.
func (s *Store) TTL() time.Duration { return s.ttl }

// Lease implements idempotency.Store.
func (s *Store) Lease() time.Duration { return s.lease }

// DeleteExpired implements idempotency.Store.
func (s *Store) DeleteExpired(ctx context.Context, limit int) (int, error) {
	var n int64
	// As in beginSQL: skipping locked rows needs read committed, whatever the
	// database's default is.
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, deleteExpiredSQL, limit)
		n = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("delete expired idempotency records: %w", err)
	}
	return int(n), nil
}

// pinging is how a claim wants its connection.
type pinging struct{}

const (
	// pingTimeout is for a connection to show that it lives.
	pingTimeout = time.Second
	// claimTimeout is for a claim on one connection.
	claimTimeout = 2 * time.Second
	// slotPatience is how long a claim waits for a place among the running
	// attempts before it looks whether it needs one.
	slotPatience = 100 * time.Millisecond
)

// Configure prepares a pool for Store: a claim takes a connection without asking
// first whether it still lives, which would be one more round trip. Where it
// does not, the claim is made again on one that has answered. Other uses of the
// pool ping a connection that was idle for over a second, as pgxpool does.
func Configure(c *pgxpool.Config) {
	c.PingTimeout = pingTimeout
	c.ShouldPing = func(ctx context.Context, p pgxpool.ShouldPingParams) bool {
		if ping, ok := ctx.Value(pinging{}).(bool); ok {
			return ping
		}
		return p.IdleDuration > time.Second
	}
}

// Claim implements idempotency.Store. Its attempts only queue statements: Query
// and Exec of their Tx panic. Of a Store with committers they may share a
// transaction; see the package's comment.
func (s *Store) Claim(ctx context.Context, id idempotency.ID, fp idempotency.Fingerprint) (idempotency.Claim, error) {
	if s.committers != nil {
		return s.committers.claim(ctx, request{id: id, fp: fp})
	}
	return s.claimAlone(ctx, request{id: id, fp: fp})
}

// Interactive returns the store for requests whose handlers ask the database
// within their attempts. Each of those has a transaction of its own.
func (s *Store) Interactive() idempotency.Store { return interactive{s} }

type interactive struct{ *Store }

// Claim implements idempotency.Store.
func (s interactive) Claim(ctx context.Context, id idempotency.ID, fp idempotency.Fingerprint) (idempotency.Claim, error) {
	return s.claimAlone(ctx, request{id: id, fp: fp, interactive: true})
}

// request is what is claimed, and how its attempt is to be.
type request struct {
	id          idempotency.ID
	fp          idempotency.Fingerprint
	interactive bool

	// Of an attempt that goes on in a transaction of its own: when it was
	// claimed, by the database's clock and by this process's.
	at, since time.Time
}

// claimAlone claims for an attempt with a transaction of its own, in one round
// trip where the claim is fresh.
//
// A fifth of the pool is kept free of attempts, so that copies of a request, and
// whatever else uses the pool, need not wait where every attempt hangs. A claim
// that finds no place looks through that rest, and waits for a place only if the
// request is to run.
func (s *Store) claimAlone(ctx context.Context, r request) (idempotency.Claim, error) {
	placed := s.place(ctx, slotPatience)
	claim := func(ctx context.Context) (idempotency.Claim, error) { return s.claim(ctx, r) }
	c, err := twice(ctx, s.pool, claim)
	if err == nil && c.Outcome == idempotency.Fresh && !placed {
		_ = c.Attempt.Abandon(ctx) // it is made anew when there is a place
		if err = s.slots.Acquire(ctx, 1); err == nil {
			placed = true
			c, err = twice(ctx, s.pool, claim)
		}
	}
	release := func() { s.slots.Release(1) }
	if err == nil && c.Outcome == idempotency.Fresh {
		c.Attempt.(*attempt).slot = release
		s.observer.Alone()
		return c, nil
	}
	if placed {
		release()
	}
	if err != nil {
		return idempotency.Claim{}, fmt.Errorf("claim idempotency key: %w", err)
	}
	return c, nil
}

// place takes a place among the running attempts, if there is one in time.
func (s *Store) place(ctx context.Context, patience time.Duration) bool {
	if s.slots.TryAcquire(1) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.slots.Acquire(ctx, 1) == nil
}

// twice asks on a connection of the pool, and once more where that failed:
// nothing has run, so nothing can run twice.
func twice[T any](ctx context.Context, pool *pgxpool.Pool, ask func(context.Context) (T, error)) (T, error) {
	answer, err := ask(context.WithValue(ctx, pinging{}, false))
	if err == nil || ctx.Err() != nil || errors.Is(err, errNotReached) {
		return answer, err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		// Silence: the way to the server was lost, and with it every connection
		// that is as old. To find them one by one would take as many timeouts.
		pool.Reset()
	}
	return ask(context.WithValue(ctx, pinging{}, true))
}

// claim claims on one connection.
func (s *Store) claim(ctx context.Context, r request) (idempotency.Claim, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return idempotency.Claim{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	tx := &Tx{conn: conn, interactive: r.interactive, start: time.Now(), lease: s.lease}
	left := s.lease
	if !r.since.IsZero() {
		tx.start, left = r.since, max(s.lease-time.Since(r.since), time.Millisecond)
	}
	found, err := tx.open(ctx, r, left)
	if err != nil {
		// Not for the next one: it may lead to a server that became a standby.
		_ = conn.Conn().Close(ctx)
		_ = tx.rollback(ctx)
		return idempotency.Claim{}, err // which tells more than theirs
	}
	outcome, err := found.outcome(r.fp)
	switch {
	case err != nil:
		_ = tx.rollback(ctx)
		return idempotency.Claim{}, err
	case outcome == idempotency.Fresh:
		if !r.at.IsZero() {
			tx.now = r.at
		}
		return idempotency.Claim{
			Outcome: idempotency.Fresh,
			Attempt: &attempt{Tx: tx, store: s, id: r.id, fp: r.fp, stale: found.stale},
		}, nil
	case outcome == idempotency.Replay && found.replicated:
		// A wait for a standby that was cut short leaves a record that can be
		// read here, and that a failover would lose: nothing is acknowledged
		// before a later commit has reached the standby, and this with it.
		if err := tx.reach(ctx); err != nil {
			return idempotency.Claim{}, fmt.Errorf("%w: %w", errNotReached, err)
		}
	}
	// What was found stands whether or not the locks go in good order: a
	// connection that fails here is destroyed, and its locks with it.
	_ = tx.rollback(ctx)
	return idempotency.Claim{Outcome: outcome, Record: found.record}, nil
}

// errNotReached says that what is on record may not have reached the standbys.
var errNotReached = errors.New("pgidem: the synchronous standbys do not confirm")

// reach ends the transaction when the standbys have what was committed before.
func (tx *Tx) reach(ctx context.Context) error {
	tx.Queue(emitSQL)
	br, err := tx.flush(ctx, statement{sql: "commit"})
	if err == nil {
		_, err = br.Exec()
		err = errors.Join(err, br.Close())
	}
	if err != nil {
		_ = tx.rollback(ctx) // the first error tells more
		return err
	}
	tx.release()
	return nil
}

// found is what the first round trip learned.
type found struct {
	locked     int
	record     *idempotency.Record // nil: none that lives
	replicated bool                // there are synchronous standbys
	stale      bool                // there is one that has expired
}

// outcome decides about the request fp by what was found. The right to run is
// given for both locks and for nothing else.
func (f found) outcome(fp idempotency.Fingerprint) (idempotency.Outcome, error) {
	switch {
	case f.record != nil && f.record.Fingerprint == fp:
		return idempotency.Replay, nil
	case f.record != nil:
		return idempotency.Mismatch, nil
	case f.locked == lockedNone:
		return idempotency.InFlight, nil
	case f.locked == lockedRequest:
		return idempotency.Mismatch, nil
	case f.locked == lockedBoth:
		return idempotency.Fresh, nil
	default:
		return 0, fmt.Errorf("the database got %d locks", f.locked)
	}
}

// open begins the transaction, which may be idle or inside one statement for as
// long as is left, tries the locks and reads the record: one round trip. Results are read by Next, since an error from a row's scan would drop
// the batch's prepared statements.
func (tx *Tx) open(ctx context.Context, r request, left time.Duration) (found, error) {
	batch := new(pgx.Batch)
	batch.Queue(beginSQL)
	batch.Queue(lockSQL, milliseconds(left), requestLock(r.id, r.fp), keyLock(r.id))
	batch.Queue(recordSQL, r.id.Scope, r.id.Key)
	br := tx.conn.SendBatch(ctx, batch)
	f, err := readFound(br, tx)
	return f, errors.Join(err, br.Close())
}

func readFound(br pgx.BatchResults, tx *Tx) (found, error) {
	f := found{locked: lockedUnknown}
	if _, err := br.Exec(); err != nil {
		return f, err
	}
	rows, err := br.Query()
	if err != nil {
		return f, err
	}
	for rows.Next() {
		if err := rows.Scan(nil, nil, nil, &tx.now, &f.replicated, &f.locked); err != nil {
			return f, err
		}
	}
	if err := rows.Err(); err != nil {
		return f, err
	}
	tx.now = tx.now.UTC()
	f.record, f.stale, err = readRecord(br)
	return f, err
}

// readRecord reads recordSQL's answer: the record, or nil where there is none
// that lives; stale says that there is one that has expired.
func readRecord(br pgx.BatchResults) (rec *idempotency.Record, stale bool, err error) {
	rows, err := br.Query()
	if err != nil {
		return nil, false, err
	}
	for rows.Next() {
		if rec, stale, err = scanRecord(rows); err != nil {
			return nil, false, err
		}
	}
	return rec, stale, rows.Err()
}

// scanRecord reads one row of recordSQL's, behind what first is for.
func scanRecord(rows pgx.Rows, first ...any) (rec *idempotency.Record, stale bool, err error) {
	var (
		r      idempotency.Record
		fp     []byte
		header string
	)
	err = rows.Scan(append(first, &fp, &r.Response.Status, &header, &r.Response.Body, &r.CreatedAt, &r.ExpiresAt, &stale)...)
	if err != nil || stale { // one that has expired is as good as none
		return nil, stale, err
	}
	copy(r.Fingerprint[:], fp)
	if err := json.Unmarshal([]byte(header), &r.Response.Header); err != nil {
		return nil, false, err
	}
	r.CreatedAt, r.ExpiresAt = r.CreatedAt.UTC(), r.ExpiresAt.UTC()
	return &r, false, nil
}

// requestLock returns the number of the lock of this very request.
func requestLock(id idempotency.ID, fp idempotency.Fingerprint) int64 {
	return lockNumber("request", id.Scope, id.Key, string(fp[:]))
}

// keyLock returns the number of the lock of the request's key.
func keyLock(id idempotency.ID) int64 { return lockNumber("key", id.Scope, id.Key) }

// lockNumber names a lock. Lengths keep apart what concatenation would not. Two
// names may share a number, one time in 2^64: then a request is told that its
// key is in use, and tries again.
func lockNumber(parts ...string) int64 {
	b := make([]byte, 0, 512) // most names; a longer one grows it
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	sum := sha256.Sum256(b)
	return int64(binary.BigEndian.Uint64(sum[:])) //nolint:gosec // any 64 bits name a lock; the sign means nothing
}

// standing is what stands under a key.
type standing struct {
	running bool                // a request holds the key's lock
	record  *idempotency.Record // nil: none that lives
}

// Lookup implements idempotency.Store, in one round trip and without a place
// among the attempts.
//
// It looks for the key's lock first and for the record in a later statement,
// whose snapshot is its own. A commit shows its record before it lets its lock
// go. So
//   - a record that is found stands, whoever holds the lock: a claim that is
//     about to replay it, say;
//   - a lock and no record: a request ran when the lock was looked for. It may
//     have been undone since, and a claim that is not to run holds the lock for a
//     moment too, where it found no place;
//   - neither: when the lock was looked for, no request ran, and none had left a
//     record that lives. One that ended before would show in the later snapshot.
//
// A request of this process that is between two transactions, and so without its
// lock, is known here. Of another process's that is so for the moment that the
// change takes, it is not.
//
// In the other order a request that completes between the two would show as
// neither. A run ends with its lease, because PostgreSQL ends its session.
//
// The transaction begins as a claim's does, though it writes nothing of its own:
// a standby knows nothing of the primary's locks, and must refuse.
func (s *Store) Lookup(ctx context.Context, id idempotency.ID) (rec *idempotency.Record, running bool, err error) {
	met := s.committers != nil && s.committers.runs(id)
	st, err := twice(ctx, s.pool, func(ctx context.Context) (standing, error) { return s.lookup(ctx, id) })
	if err != nil {
		return nil, false, fmt.Errorf("look up idempotency key: %w", err)
	}
	return st.record, (st.running || met) && st.record == nil, nil
}

// lookup looks on one connection.
func (s *Store) lookup(ctx context.Context, id idempotency.ID) (standing, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return standing{}, err
	}
	defer conn.Release()
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	batch := new(pgx.Batch)
	batch.Queue(beginSQL)
	batch.Queue(runningSQL, milliseconds(claimTimeout), keyLock(id))
	batch.Queue(recordSQL, id.Scope, id.Key)
	// As in a claim that replays: what is told has reached the standbys.
	batch.Queue(emitForRecordSQL, id.Scope, id.Key)
	batch.Queue("commit")
	br := conn.SendBatch(ctx, batch)
	st, err := readStanding(br)
	if err = errors.Join(err, br.Close()); err != nil {
		_ = conn.Conn().Close(ctx) // as in claim
		return standing{}, err
	}
	return st, nil
}

func readStanding(br pgx.BatchResults) (st standing, err error) {
	if _, err := br.Exec(); err != nil {
		return st, err
	}
	rows, err := br.Query()
	if err != nil {
		return st, err
	}
	for rows.Next() {
		if err := rows.Scan(nil, nil, &st.running); err != nil {
			return st, err
		}
	}
	if err := rows.Err(); err != nil {
		return st, err
	}
	if st.record, _, err = readRecord(br); err != nil {
		return st, err
	}
	emitted, err := br.Exec()
	if err != nil {
		return st, err
	}
	tag, err := br.Exec()
	switch {
	case err != nil && emitted.RowsAffected() > 0:
		return st, fmt.Errorf("%w: %w", errNotReached, err)
	case err == nil && tag.String() != "COMMIT":
		return st, fmt.Errorf("commit ended in %s", tag)
	default:
		return st, err
	}
}

// attempt implements idempotency.Attempt: it is a transaction.
type attempt struct {
	*Tx
	store *Store
	id    idempotency.ID
	fp    idempotency.Fingerprint
	stale bool // an expired record stands in the way
}

// Bind implements idempotency.Attempt: FromContext finds the transaction in what
// it returns.
func (a *attempt) Bind(ctx context.Context) context.Context {
	return context.WithValue(ctx, txKey{}, a.Tx)
}

// Abandon implements idempotency.Attempt.
func (a *attempt) Abandon(ctx context.Context) error { return a.rollback(ctx) }

// Complete implements idempotency.Attempt: what is queued, the record and COMMIT
// travel in one round trip.
func (a *attempt) Complete(ctx context.Context, resp idempotency.Response) error {
	if a.ended {
		return errEnded
	}
	err := a.keep(ctx, resp)
	if err != nil {
		// Where COMMIT may have been heard this changes nothing, and ends the
		// session either way.
		_ = a.rollback(ctx)
		return err
	}
	a.release()
	return nil
}

func (a *attempt) keep(ctx context.Context, resp idempotency.Response) error {
	switch {
	case a.late():
		return idempotency.ErrSuperseded
	case a.err != nil:
		return a.verdict(a.err)
	}
	if a.stale {
		a.Queue(deleteStaleSQL, a.id.Scope, a.id.Key)
	}
	a.Queue(insertSQL, a.id.Scope, a.id.Key, a.fp[:], resp.Status, encodeHeader(resp.Header), notNull(resp.Body), a.now, a.now.Add(a.store.ttl))
	return a.commit(ctx)
}

// encodeHeader spells a header as a JSON object, as encoding/json does but for a
// fraction of its allocations. What is no UTF-8 becomes U+FFFD.
func encodeHeader(h http.Header) string {
	b := append(make([]byte, 0, 256), '{')
	quote := func(s string) { b, _ = jsontext.AppendQuote(b, s) } // its error says that something became U+FFFD
	for name, values := range h {
		if len(b) > 1 {
			b = append(b, ',')
		}
		quote(name)
		b = append(b, ":["...)
		for i, v := range values {
			if i > 0 {
				b = append(b, ',')
			}
			quote(v)
		}
		b = append(b, ']')
	}
	return string(append(b, '}'))
}

// notNull spells no bytes as none; nil would be NULL.
func notNull(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
