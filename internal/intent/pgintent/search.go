package pgintent

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"intentd/internal/intent"
)

// searchTimeout bounds a search on the server, so that it holds a connection, and
// keeps vacuum from its work, no longer than that.
const searchTimeout = 2 * time.Second

// Every index leads to an intent by way of its merchant. So a search goes from
// one merchant to the next, which is one descent of an index for each, and looks
// for its intents there: the rows that it passes over cost it nothing. offset 0
// keeps the planner from turning that into a join of whatever there is.
const (
	setTimeout = `select set_config('statement_timeout', $1, true)`

	// Whose intents there are.
	allMerchants = `
with recursive merchants as (
    (select merchant_id
     from payment_intents
     order by merchant_id
     limit 1)
    union all
    select (select i.merchant_id
            from payment_intents as i
            where i.merchant_id > m.merchant_id
            order by i.merchant_id
            limit 1)
    from merchants as m
    where m.merchant_id is not null
)`

	// Who has the reference.
	merchantsOfReference = `
with recursive merchants as (
    (select merchant_id
     from payment_intents
     where reference = $1
     order by merchant_id
     limit 1)
    union all
    select (select i.merchant_id
            from payment_intents as i
            where i.reference = $1
              and i.merchant_id > m.merchant_id
            order by i.merchant_id
            limit 1)
    from merchants as m
    where m.merchant_id is not null
)`

	// Whose trails have the hash.
	merchantsOfTxHash = `
with recursive merchants as (
    (select merchant_id
     from intent_transitions
     where tx_hash = $1
     order by merchant_id
     limit 1)
    union all
    select (select t.merchant_id
            from intent_transitions as t
            where t.tx_hash = $1
              and t.merchant_id > m.merchant_id
            order by t.merchant_id
            limit 1)
    from merchants as m
    where m.merchant_id is not null
)`

	oneMerchant = `
with merchants as (
    select $5::text as merchant_id
)`

	searchIntents = `
select m.merchant_id, i.id::text, chain, token, payer, merchant, amount::text, state, version, coalesce(reference, ''), metadata::text,
       coalesce(tx_hash, ''), created_at, updated_at, expires_at, transaction_timestamp()
from merchants as m
cross join lateral (%s
) as found
cross join lateral (
    select *
    from payment_intents
    where merchant_id = m.merchant_id
      and id = found.id
    offset 0
) as i
where m.merchant_id is not null
  and ($2 = '' or strpos(m.merchant_id, $2) > 0)
  and ($3 = '' or strpos(m.merchant_id, $3) = 0)
limit $4::bigint`

	ofID = `
    select $1::uuid as id`

	ofReference = `
    select id
    from payment_intents
    where merchant_id = m.merchant_id
      and reference = $1
    order by payment_intents.id desc
    limit $4::bigint`

	// A trail has a hash several times, in adjacent entries of the index.
	ofTxHash = `
    select distinct intent_id as id
    from intent_transitions
    where merchant_id = m.merchant_id
      and tx_hash = $1
    order by intent_id desc
    limit $4::bigint`
)

var _ intent.Searcher = (*Store)(nil)

// Search implements intent.Searcher. It uses the pool, and of it one connection.
func (s *Store) Search(ctx context.Context, q intent.Search, limit int) (found []intent.Intent, more bool, err error) {
	sql, args := searchSQL(q, limit)
	// A question that operators seldom ask is to take no place among the
	// statements that the service's connections keep.
	args = append([]any{pgx.QueryExecModeExec}, args...)
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, s.pool, opts, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, setTimeout, pgx.QueryExecModeExec, fmt.Sprint(searchTimeout.Milliseconds())); err != nil {
			return err
		}
		found, err = collect(ctx, tx, scanFound, sql, args...)
		return err
	})
	if err != nil {
		return nil, false, interpret(err)
	}
	found, more = cut(found, limit)
	intent.SortFound(found)
	return found, more, nil
}

// scanFound reads a row of searchIntents: that of an intent, and before it the
// merchant.
func scanFound(row pgx.CollectableRow) (intent.Intent, error) {
	var merchantID string
	in, _, err := scanIntent(behind{row, &merchantID}, "")
	in.MerchantID = merchantID
	return in, err
}

// behind is a row that has one column more, in front.
type behind struct {
	pgx.CollectableRow
	first any
}

// Scan implements pgx.CollectableRow.
func (b behind) Scan(dest ...any) error {
	return b.CollectableRow.Scan(append([]any{b.first}, dest...)...)
}

// searchSQL puts a search's statement together.
func searchSQL(q intent.Search, limit int) (sql string, args []any) {
	var merchants, found, wanted string
	switch {
	case q.ID != nil:
		merchants, found, wanted = allMerchants, ofID, dashed(*q.ID)
	case q.TxHash != "":
		merchants, found, wanted = merchantsOfTxHash, ofTxHash, q.TxHash
	default:
		merchants, found, wanted = merchantsOfReference, ofReference, q.Reference
	}
	// One more than is asked for says whether there is one.
	args = []any{wanted, q.With, q.Without, int64(limit) + 1}
	if q.Merchant != "" {
		merchants = oneMerchant
		args = append(args, q.Merchant)
	}
	return merchants + fmt.Sprintf(searchIntents, found), args
}
