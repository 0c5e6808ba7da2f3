// Package pgintent keeps intents in PostgreSQL, in the tables payment_intents
// and intent_transitions.
package pgintent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/intent"
)

// Every statement carries the merchant, so that no fault in the code above can
// reach another's intents; all but the sweep, which is nobody's request. Values
// travel as text with a cast, since then they mean the same in every query mode
// of pgx, those for a PgBouncer included.
const (
	selectNow = "select transaction_timestamp()"

	insertIntent = `
insert into payment_intents (
    merchant_id, id, chain, token, payer, merchant, amount, state, version, reference, metadata,
    created_at, updated_at, expires_at)
values (
    $1, $2::uuid, $3, $4, $5, $6, $7::numeric, 'created', 1, nullif($8::text, ''), $9::text::jsonb,
    $10::timestamptz, $10::timestamptz, $11::timestamptz)`

	// As insertIntent, for arrays of its parameters.
	insertIntents = `
insert into payment_intents (
    merchant_id, id, chain, token, payer, merchant, amount, state, version, reference, metadata,
    created_at, updated_at, expires_at)
select merchant_id, id::uuid, chain, token, payer, merchant, amount::numeric, 'created', 1, nullif(reference, ''), metadata::jsonb,
       created_at, created_at, expires_at
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::timestamptz[])
  as i (merchant_id, id, chain, token, payer, merchant, amount, reference, metadata, created_at, expires_at)`

	selectColumns = `
select id::text, chain, token, payer, merchant, amount::text, state, version, coalesce(reference, ''), metadata::text,
       coalesce(tx_hash, ''), created_at, updated_at, expires_at, transaction_timestamp()
from payment_intents`

	selectIntent = selectColumns + `
where merchant_id = $1`

	// Many at once, each with its place among what was asked for. Lateral, with a
	// limit that keeps it so: for each one look into the primary key, whatever the
	// planner believes of the table.
	selectIntents = `
select k.n, i.*
from unnest($1::text[], $2::text[]) with ordinality as k (merchant_id, id, n)
cross join lateral (` + selectColumns + `
where merchant_id = k.merchant_id
  and payment_intents.id = k.id::uuid
limit 1) as i`

	withID = `
  and id = $2::uuid`

	// The rest of a list's statement, as far as the query asks for it; see
	// listSQL. The order names the table, since id alone would be the text that
	// is selected, which no index has.
	withState      = "\n  and state = $%d"
	withReference  = "\n  and reference = $%d"
	withIDFrom     = "\n  and id >= $%d::uuid"
	withIDAbove    = "\n  and id > $%d::uuid"
	withIDBelow    = "\n  and id < $%d::uuid"
	dropEarlier    = "\n  and case when created_at < $%d::timestamptz then 1 else 0 end <> 1"
	dropLater      = "\n  and case when created_at >= $%d::timestamptz then 1 else 0 end <> 1"
	newestFirst    = "\norder by payment_intents.id desc\nlimit $%d::bigint"
	nearestToNewer = "\norder by payment_intents.id\nlimit $%d::bigint"

	// The trail's row is made from what the update returns, so there is one
	// exactly where the intent was still at the version that was decided on.
	moveIntent = `
with moved as (
    update payment_intents
    set state = $4,
        version = version + 1,
        tx_hash = nullif($5::text, ''),
        updated_at = $6::timestamptz
    where merchant_id = $1
      and id = $2::uuid
      and version = $3::bigint
    returning merchant_id, id, version, state, updated_at
)
insert into intent_transitions (merchant_id, intent_id, version, from_state, to_state, actor, reason, tx_hash, at)
select merchant_id, id, version, $7, state, $8, nullif($9::text, ''), nullif($10::text, ''), updated_at
from moved
returning version`

	selectTransitions = `
select version, from_state, to_state, actor, coalesce(reason, ''), coalesce(tx_hash, ''), at
from intent_transitions
where merchant_id = $1
  and intent_id = $2::uuid
  and version > $3::bigint
order by version
limit $4::bigint`

	// The locks are there so that sweepers share the work and wait for nobody.
	// The update asks for the state again, so that canceling once does not hang
	// on them.
	cancelDue = `
with due as materialized (
    select merchant_id, id
    from payment_intents
    where state = 'created'
      and expires_at <= transaction_timestamp()
    order by expires_at
    limit $1::bigint
    for update skip locked
), canceled as (
    update payment_intents as i
    set state = 'canceled',
        version = i.version + 1,
        updated_at = transaction_timestamp()
    from due
    where i.merchant_id = due.merchant_id
      and i.id = due.id
      and i.state = 'created'
    returning i.merchant_id, i.id, i.version, i.updated_at
), trail as (
    insert into intent_transitions (merchant_id, intent_id, version, from_state, to_state, actor, reason, at)
    select merchant_id, id, version, 'created', 'canceled', 'system', 'expired', updated_at
    from canceled
    returning version
)
select count(*)
from trail`
)

// Tx is the transaction that a request's work takes part in. What is queued may
// be written by another transaction than the one whose time Time tells, so that
// what is answered must not come from transaction_timestamp() in its statement.
type Tx interface {
	// Queue keeps a statement until the next question or the commit takes it
	// along. If it fails, what it travels with fails.
	Queue(sql string, args ...any)
	// QueueRow is Queue for a statement that requests of one transaction may send
	// as one: many is sql for arrays of its parameters.
	QueueRow(sql, many string, args ...any)
	// Query sends what is queued and a statement whose answer is needed.
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	// Time returns when the request began, by the database's clock. It stands
	// still.
	Time() time.Time
}

// Store is an intent.Store in PostgreSQL. Its clock is the database's, so that
// replicas whose clocks differ agree.
//
// Inside a transaction that joined finds, it uses that and never the pool: a
// second connection for one request would be a deadlock in a pool at its limit.
// Create then waits for nothing, and fails with the commit.
type Store struct {
	pool   *pgxpool.Pool
	joined func(ctx context.Context) (Tx, bool)
	reader reader
}

var _ intent.Store = (*Store)(nil)

// New returns a Store on a migrated database. joined finds the transaction in a
// request's context; it may be nil, then there is never one.
func New(pool *pgxpool.Pool, joined func(ctx context.Context) (Tx, bool)) *Store {
	if joined == nil {
		joined = func(context.Context) (Tx, bool) { return nil, false }
	}
	return &Store{pool: pool, joined: joined, reader: reader{pool: pool, patience: gatherPatience}}
}

// Create implements intent.Store.
func (s *Store) Create(ctx context.Context, in intent.Intent, expiresIn time.Duration) (intent.Intent, error) {
	var metadata *string
	if in.Metadata != nil {
		// Text and not bytes: where pgx does not ask the server for the types it
		// would send bytea.
		b, err := json.Marshal(in.Metadata)
		if err != nil {
			return intent.Intent{}, err
		}
		text := string(b)
		metadata = &text
	}
	// One time makes the ID, the row and the answer. It is given to the row as it
	// was told here, since the row may be written by a later transaction.
	insert := func(now time.Time, send func(args ...any) error) (err error) {
		if in.ID, err = intent.NewID(now); err != nil {
			return err
		}
		in.State, in.Version, in.TxHash = intent.Created, 1, ""
		in.CreatedAt = now.UTC()
		in.UpdatedAt = in.CreatedAt
		in.ExpiresAt = in.CreatedAt.Add(expiresIn.Truncate(time.Microsecond))
		return send(
			in.MerchantID, dashed(in.ID), in.Chain, in.Token, in.Payer, in.Merchant, in.Amount, in.Reference, metadata,
			in.CreatedAt, in.ExpiresAt)
	}

	var err error
	if tx, ok := s.joined(ctx); ok {
		err = insert(tx.Time(), func(args ...any) error {
			tx.QueueRow(insertIntent, insertIntents, args...)
			return nil
		})
	} else {
		err = s.own(ctx, func(tx pgx.Tx) error {
			now, err := collect(ctx, tx, pgx.RowTo[time.Time], selectNow)
			if err != nil {
				return err
			}
			return insert(now[0], func(args ...any) error {
				_, err := tx.Exec(ctx, insertIntent, args...)
				return err
			})
		})
	}
	if err != nil {
		return intent.Intent{}, err
	}
	return in, nil
}

// Get implements intent.Store.
func (s *Store) Get(ctx context.Context, merchantID string, id intent.ID) (intent.Intent, error) {
	if tx, ok := s.joined(ctx); ok {
		in, _, err := one(ctx, tx, merchantID, id)
		return in, err
	}
	return s.reader.get(ctx, merchantID, id)
}

// List implements intent.Store.
func (s *Store) List(ctx context.Context, merchantID string, q intent.Query) (page []intent.Intent, more bool, err error) {
	sql, args := listSQL(merchantID, q)
	db := s.querier(ctx)
	if db == querier(s.pool) {
		// Not as a named statement, for which a plan would be kept that knows no
		// values: of two filters only the values tell which one selects less.
		args = append([]any{pgx.QueryExecModeExec}, args...)
	}
	page, err = collect(ctx, db, func(row pgx.CollectableRow) (intent.Intent, error) {
		in, _, err := scanIntent(row, merchantID)
		return in, err
	}, sql, args...)
	if err != nil {
		return nil, false, err
	}
	page, more = cut(page, q.Limit)
	if q.Before != nil {
		slices.Reverse(page)
	}
	return page, more, nil
}

// listSQL puts a list's statement together from what q asks for and nothing
// else: a condition that a parameter switches off would keep a generic plan, made
// for any value, from its index.
//
// An ID begins with its intent's created_at, so that a range of times is one of
// ids. The exact condition stands beside it for the rows of earlier builds, whose
// ids were made by another clock: none is listed outside of the range, and one
// within those clocks' difference of its ends may be missing. It is spelt so that
// the planner, which takes conditions for independent, expects it to keep nearly
// every row: it would else expect the square of what a range really selects, and
// rather sort a day of a large merchant's than walk the index for one page.
func listSQL(merchantID string, q intent.Query) (sql string, args []any) {
	sql, args = selectIntent, []any{merchantID}
	with := func(clause string, value any) {
		args = append(args, value)
		sql += fmt.Sprintf(clause, len(args))
	}
	if q.State != "" {
		with(withState, string(q.State))
	}
	if q.Reference != "" {
		with(withReference, q.Reference)
	}
	if !q.CreatedFrom.IsZero() {
		with(withIDFrom, dashed(intent.FirstID(q.CreatedFrom)))
		with(dropEarlier, q.CreatedFrom)
	}
	if !q.CreatedBefore.IsZero() {
		with(withIDBelow, dashed(intent.FirstID(q.CreatedBefore)))
		with(dropLater, q.CreatedBefore)
	}
	if q.After != nil {
		with(withIDBelow, dashed(*q.After))
	}
	order := newestFirst
	if q.Before != nil {
		with(withIDAbove, dashed(*q.Before))
		order = nearestToNewer
	}
	// One more than the page says whether there is one.
	with(order, int64(q.Limit)+1)
	return sql, args
}

// cut returns what was asked for of rows that were read up to one more, and
// whether that one is there.
func cut[T any](rows []T, limit int) (page []T, more bool) {
	if len(rows) > limit {
		return rows[:limit], true
	}
	return rows, false
}

// Move implements intent.Store.
func (s *Store) Move(ctx context.Context, merchantID string, id intent.ID, decide func(intent.Intent, time.Time) (*intent.Transition, error)) (intent.Intent, error) {
	in, now, err := one(ctx, s.querier(ctx), merchantID, id)
	if err != nil {
		return intent.Intent{}, err
	}
	t, err := decide(in, now)
	if err != nil {
		return intent.Intent{}, err
	}
	if t == nil {
		return in, nil
	}

	after := in.After(*t)
	moved, err := write(ctx, s, pgx.RowTo[int64], moveIntent,
		merchantID, dashed(id), in.Version, string(t.To), after.TxHash, t.At,
		string(t.From), string(t.Actor), t.Reason, t.TxHash)
	if err != nil {
		return intent.Intent{}, err
	}
	if len(moved) == 0 {
		return intent.Intent{}, intent.ErrVersionConflict
	}
	return after, nil
}

// Transitions implements intent.Store.
func (s *Store) Transitions(ctx context.Context, merchantID string, id intent.ID, after int64, limit int) (page []intent.Transition, more bool, err error) {
	scan := func(row pgx.CollectableRow) (intent.Transition, error) {
		t := intent.Transition{MerchantID: merchantID, IntentID: id}
		err := row.Scan(&t.Version, &t.From, &t.To, &t.Actor, &t.Reason, &t.TxHash, &t.At)
		t.At = t.At.UTC()
		return t, err
	}
	page, err = collect(ctx, s.querier(ctx), scan, selectTransitions, merchantID, dashed(id), after, int64(limit)+1)
	if err != nil {
		return nil, false, err
	}
	if len(page) == 0 {
		// One that has not moved, or none at all.
		if _, err := s.Get(ctx, merchantID, id); err != nil {
			return nil, false, err
		}
	}
	page, more = cut(page, limit)
	return page, more, nil
}

// CancelDue implements intent.Store. It is one statement, so after a crash each
// intent of the batch is canceled and has its row, or is still due.
func (s *Store) CancelDue(ctx context.Context, limit int) (int, error) {
	n, err := write(ctx, s, pgx.RowTo[int], cancelDue, int64(limit))
	if err != nil {
		return 0, err
	}
	return n[0], nil
}

// one returns the intent and the database's time, in a statement of its own.
func one(ctx context.Context, db querier, merchantID string, id intent.ID) (intent.Intent, time.Time, error) {
	var now time.Time
	scan := func(row pgx.CollectableRow) (in intent.Intent, err error) {
		in, now, err = scanIntent(row, merchantID)
		return in, err
	}
	found, err := collect(ctx, db, scan, selectIntent+withID, merchantID, dashed(id))
	if err != nil {
		return intent.Intent{}, time.Time{}, err
	}
	if len(found) == 0 {
		return intent.Intent{}, time.Time{}, intent.ErrNotFound
	}
	return found[0], now, nil
}

// scanIntent reads a row of selectIntent, which is the merchant's, and what stands
// before it.
func scanIntent(row pgx.CollectableRow, merchantID string, first ...any) (in intent.Intent, now time.Time, err error) {
	in.MerchantID = merchantID
	var id string
	var metadata *string
	err = row.Scan(append(first, &id, &in.Chain, &in.Token, &in.Payer, &in.Merchant, &in.Amount, &in.State, &in.Version, &in.Reference,
		&metadata, &in.TxHash, &in.CreatedAt, &in.UpdatedAt, &in.ExpiresAt, &now)...)
	if err != nil {
		return intent.Intent{}, time.Time{}, err
	}
	if metadata != nil {
		if err := json.Unmarshal([]byte(*metadata), &in.Metadata); err != nil {
			return intent.Intent{}, time.Time{}, err
		}
	}
	parsed, err := uuid.Parse(id)
	in.ID = intent.ID(parsed)
	in.CreatedAt, in.UpdatedAt, in.ExpiresAt = in.CreatedAt.UTC(), in.UpdatedAt.UTC(), in.ExpiresAt.UTC()
	return in, now.UTC(), err
}

// querier is what Tx and the pool have in common.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// querier returns the transaction to take part in, or the pool.
func (s *Store) querier(ctx context.Context) querier {
	if tx, ok := s.joined(ctx); ok {
		return tx
	}
	return s.pool
}

// collect reads every row of a query's answer; none is no error, since an error
// inside a transaction's pipeline costs the connection its prepared statements.
func collect[T any](ctx context.Context, q querier, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, interpret(err)
	}
	all, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, interpret(err)
	}
	return all, nil
}

// write is collect for a statement that changes something. Outside an attempt
// it has a transaction of its own, so that neither a compare-and-swap nor
// skipping locked rows hangs on what the database's default transaction is.
func write[T any](ctx context.Context, s *Store, scan pgx.RowToFunc[T], sql string, args ...any) (all []T, err error) {
	if tx, ok := s.joined(ctx); ok {
		return collect(ctx, tx, scan, sql, args...)
	}
	err = s.own(ctx, func(tx pgx.Tx) error {
		all, err = collect(ctx, tx, scan, sql, args...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// own calls do with a transaction of the store's own.
func (s *Store) own(ctx context.Context, do func(tx pgx.Tx) error) error {
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	if err := pgx.BeginTxFunc(ctx, s.pool, opts, do); err != nil {
		return interpret(err)
	}
	return nil
}

// interpret is the one place where errors of the driver become the domain's.
// Each is a failure of the store's: what a client may send is judged before.
func interpret(err error) error {
	var pgErr *pgconn.PgError
	switch {
	case errors.Is(err, intent.ErrVersionConflict), errors.Is(err, intent.ErrUnavailable):
		return err // interpreted before
	case errors.As(err, &pgErr) && pgErr.Code == serializationFailure:
		return fmt.Errorf("%w: %w", intent.ErrVersionConflict, err)
	default:
		return fmt.Errorf("%w: %w", intent.ErrUnavailable, err)
	}
}

// serializationFailure is the SQLSTATE of a transaction that another one
// overtook: that of an attempt, where its snapshot is the transaction's.
const serializationFailure = "40001"

// dashed is an ID as PostgreSQL reads a uuid. As it stands pgx would take it
// for a Stringer in some query modes, and send pi_.
func dashed(id intent.ID) string {
	return uuid.UUID(id).String()
}
