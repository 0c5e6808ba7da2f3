package pgidem

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"intentd/internal/idempotency"
)

// searchTimeout bounds a search on the server.
const searchTimeout = 2 * time.Second

// searchSQL goes from one scope to the next, each a descent of the primary key,
// which leads with the scope, and looks for the key there. offset 0 keeps the
// planner from turning that into a join of whatever there is. No record is stale
// that it finds.
const searchSQL = `
with recursive scopes as (
  (select scope
   from idempotency_keys
   order by scope
   limit 1)
  union all
  select (select k.scope
          from idempotency_keys as k
          where k.scope > s.scope
          order by k.scope
          limit 1)
  from scopes as s
  where s.scope is not null
)
select s.scope,
       k.fingerprint,
       k.status,
       k.header,
       k.body,
       k.created_at,
       k.expires_at,
       false
from scopes as s
cross join lateral (
  select *
  from idempotency_keys
  where scope = s.scope
    and key = $1
    and expires_at > transaction_timestamp()
  offset 0
) as k
where s.scope is not null
  and ($2 = '' or strpos(s.scope, $2) > 0)
  and ($3 = '' or strpos(s.scope, $3) = 0)
limit $4::bigint`

var _ idempotency.Searcher = (*Store)(nil)

// Search implements idempotency.Searcher. It holds one connection, and has no
// place among the attempts.
func (s *Store) Search(ctx context.Context, q idempotency.Search) (found []idempotency.Found, more bool, err error) {
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, s.pool, opts, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, timeoutSQL, pgx.QueryExecModeExec, milliseconds(searchTimeout)); err != nil {
			return err
		}
		// Not as a named statement, as pgintent's; one more than is asked for says
		// whether there is one.
		rows, err := tx.Query(ctx, searchSQL, pgx.QueryExecModeExec, q.Key, q.With, q.Without, int64(q.Limit)+1)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var scope string
			rec, _, err := scanRecord(rows, &scope)
			if err != nil {
				return err
			}
			found = append(found, idempotency.Found{Scope: scope, Record: *rec})
		}
		return rows.Err()
	})
	if err != nil {
		return nil, false, fmt.Errorf("search for an idempotency key: %w", err)
	}
	if more = len(found) > q.Limit; more {
		found = found[:q.Limit]
	}
	slices.SortFunc(found, func(a, b idempotency.Found) int { return strings.Compare(a.Scope, b.Scope) })
	return found, more, nil
}
