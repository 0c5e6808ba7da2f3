// Package pgapikey keeps API keys in PostgreSQL, in the table api_keys.
package pgapikey

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/apikey"
)

// Values, and lists of them, travel as text with a cast, since then they mean the
// same in every query mode of pgx, those for a PgBouncer included. A day is
// UTC's, whatever the session's zone.
const (
	columns = `
id::text, merchant, role, mode, name, created_at, last_used_on, revoked_at`

	insertKey = `
insert into api_keys (id, digest, merchant, role, mode, name, created_at)
values ($1::text::uuid, decode($2::text, 'hex'), $3, $4, $5, $6, transaction_timestamp())
returning` + columns

	selectKeys = `
select` + columns + `
from api_keys
where $1::text = ''
   or merchant = $1::text
order by created_at desc, id desc`

	selectKey = `
select` + columns + `
from api_keys
where id = $1::text::uuid`

	revokeKey = `
update api_keys
set revoked_at = transaction_timestamp()
where id = $1::text::uuid
  and revoked_at is null
returning` + columns

	findKeys = `
with asked as (
    select decode(d, 'hex') as digest
    from unnest(string_to_array($1::text, ',')) as d
)
select` + columns + `,
       encode(digest, 'hex'),
       last_used_on is not distinct from (transaction_timestamp() at time zone 'UTC')::date
from asked
join api_keys using (digest)`

	// Locked in one order and by nobody twice, so that replicas that all see a
	// new day begin neither wait for each other nor deadlock.
	touchKeys = `
with used as materialized (
    select id
    from api_keys
    where id = any (string_to_array($1::text, ',')::uuid[])
      and last_used_on is distinct from (transaction_timestamp() at time zone 'UTC')::date
    order by id
    for no key update skip locked
)
update api_keys as k
set last_used_on = (transaction_timestamp() at time zone 'UTC')::date
from used
where k.id = used.id`
)

// Store is an apikey.Store in PostgreSQL. Its clock is the database's, so that
// replicas whose clocks differ agree.
type Store struct {
	pool *pgxpool.Pool
}

var _ apikey.Store = (*Store)(nil)

// New returns a Store on a migrated database.
func New(pool *pgxpool.Pool) *Store {
	return &Store{pool: pool}
}

// Create implements apikey.Store.
func (s *Store) Create(ctx context.Context, id apikey.ID, digest apikey.Digest, h apikey.Holder, name string) (key apikey.Key, err error) {
	err = s.write(ctx, func(tx pgx.Tx) error {
		created, err := collect(ctx, tx, scanKey, insertKey,
			dashed(id), hex.EncodeToString(digest[:]), h.Merchant, string(h.Role), string(h.Mode), name)
		if err == nil {
			key = created[0]
		}
		return err
	})
	if err != nil {
		return apikey.Key{}, fmt.Errorf("create API key: %w", err)
	}
	return key, nil
}

// List implements apikey.Store.
func (s *Store) List(ctx context.Context, merchant string) ([]apikey.Key, error) {
	keys, err := collect(ctx, s.pool, scanKey, selectKeys, merchant)
	if err != nil {
		return nil, fmt.Errorf("list API keys: %w", err)
	}
	return keys, nil
}

// Revoke implements apikey.Store.
func (s *Store) Revoke(ctx context.Context, id apikey.ID) (key apikey.Key, again bool, err error) {
	err = s.write(ctx, func(tx pgx.Tx) error {
		keys, err := collect(ctx, tx, scanKey, revokeKey, dashed(id))
		if err == nil && len(keys) == 0 {
			again = true
			keys, err = collect(ctx, tx, scanKey, selectKey, dashed(id))
		}
		switch {
		case err != nil:
			return err
		case len(keys) == 0:
			return apikey.ErrNotFound
		}
		key = keys[0]
		return nil
	})
	switch {
	case errors.Is(err, apikey.ErrNotFound):
		return apikey.Key{}, false, err
	case err != nil:
		return apikey.Key{}, false, fmt.Errorf("revoke API key: %w", err)
	}
	return key, again, nil
}

// Find implements apikey.Store. It is one statement and one snapshot.
func (s *Store) Find(ctx context.Context, digests []apikey.Digest) ([]apikey.Found, error) {
	asked := make([]string, len(digests))
	for i := range digests {
		asked[i] = hex.EncodeToString(digests[i][:])
	}
	scan := func(row pgx.CollectableRow) (f apikey.Found, err error) {
		var digest string
		if f.Key, err = scanWith(row, &digest, &f.UsedToday); err != nil {
			return f, err
		}
		_, err = hex.Decode(f.Digest[:], []byte(digest))
		return f, err
	}
	found, err := collect(ctx, s.pool, scan, findKeys, strings.Join(asked, ","))
	if err != nil {
		return nil, fmt.Errorf("find API keys: %w", err)
	}
	return found, nil
}

// Touch implements apikey.Store. It waits for nobody.
func (s *Store) Touch(ctx context.Context, ids []apikey.ID) error {
	used := make([]string, len(ids))
	for i, id := range ids {
		used[i] = dashed(id)
	}
	err := s.write(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, touchKeys, strings.Join(used, ","))
		return err
	})
	if err != nil {
		return fmt.Errorf("touch API keys: %w", err)
	}
	return nil
}

// write runs do in a transaction of its own, so that neither writing nor skipping
// locked rows hangs on what the database's default transaction is.
func (s *Store) write(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, do)
}

// querier is what a transaction and the pool have in common.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func collect[T any](ctx context.Context, q querier, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	// Query's error comes with the rows.
	rows, _ := q.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, scan)
}

func scanKey(row pgx.CollectableRow) (apikey.Key, error) {
	return scanWith(row)
}

// scanWith reads columns, and what the statement selects after them.
func scanWith(row pgx.CollectableRow, more ...any) (apikey.Key, error) {
	var (
		k                 apikey.Key
		id                string
		lastUsed, revoked *time.Time
	)
	err := row.Scan(append([]any{&id, &k.Merchant, &k.Role, &k.Mode, &k.Name, &k.CreatedAt, &lastUsed, &revoked}, more...)...)
	if err != nil {
		return apikey.Key{}, err
	}
	u, err := uuid.Parse(id)
	if err != nil {
		return apikey.Key{}, err
	}
	k.ID, k.CreatedAt = apikey.ID(u), k.CreatedAt.UTC()
	if lastUsed != nil {
		k.LastUsed = lastUsed.UTC()
	}
	if revoked != nil {
		k.RevokedAt = revoked.UTC()
	}
	return k, nil
}

// dashed is an ID as PostgreSQL reads a uuid. As it stands pgx would take it
// for a Stringer in some query modes, and send key_.
func dashed(id apikey.ID) string {
	return uuid.UUID(id).String()
}
