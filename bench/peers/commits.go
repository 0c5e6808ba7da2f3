package peers

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/idempotency"
)

const (
	// With "do update" a copy would lock the row that it finds, and write for it.
	claimSQL = `
insert into peer_keys
  (scope, key, fingerprint, claimant, claimed_until, created_at, expires_at)
values
  ($1, $2, $3, $4, transaction_timestamp() + make_interval(secs => $5), transaction_timestamp(),
   transaction_timestamp() + make_interval(secs => $6))
on conflict (scope, key) do nothing
returning created_at`

	foundSQL = `
select fingerprint, coalesce(status, 0), coalesce(header, '{}')::text, body, created_at, expires_at,
       expires_at <= transaction_timestamp() or status is null and claimed_until <= transaction_timestamp()
from peer_keys
where scope = $1
  and key = $2`

	// Of a row that expired, or whose claimant has outlived its lease.
	takeOverSQL = `
update peer_keys
set fingerprint = $3,
    claimant = $4,
    claimed_until = transaction_timestamp() + make_interval(secs => $5),
    status = null,
    header = null,
    body = null,
    created_at = transaction_timestamp(),
    expires_at = transaction_timestamp() + make_interval(secs => $6)
where scope = $1
  and key = $2
  and (expires_at <= transaction_timestamp() or status is null and claimed_until <= transaction_timestamp())
returning created_at`

	completeSQL = `
update peer_keys
set status = $4,
    header = $5,
    body = $6
where scope = $1
  and key = $2
  and claimant = $3
  and status is null`

	abandonSQL = `
delete from peer_keys
where scope = $1
  and key = $2
  and claimant = $3
  and status is null`

	expiredSQL = `
delete from peer_keys
where (scope, key) in (
  select scope, key
  from peer_keys
  where expires_at <= transaction_timestamp()
  order by expires_at
  limit $1
  for update skip locked
)`
)

// commitsStore claims a key, lets the intent be inserted and completes the key in
// three commits.
//
// It is not exactly once: a crash, or a lost lease, between the second commit and
// the third leaves an intent without an answer, and the retry makes a second one
// after the lease.
type commitsStore struct {
	unasked
	pool       *pgxpool.Pool
	ttl, lease time.Duration
}

// Claim implements idempotency.Store.
func (s *commitsStore) Claim(ctx context.Context, id idempotency.ID, fp idempotency.Fingerprint) (idempotency.Claim, error) {
	claimant := uuid.NewString()
	c, now, err := claimRow(ctx, s.pool, id, fp, claimant, s.lease, s.ttl)
	if err == nil && c.Outcome == idempotency.Fresh {
		c.Attempt = &commitsAttempt{store: s, id: id, claimant: claimant, now: now, work: work{db: s.pool, now: now}}
	}
	return c, err
}

// claimRow inserts the row that claims the key, or decides by the one that stands
// there. It returns when a fresh claim was made; its attempt is the caller's to
// make.
func claimRow(ctx context.Context, db querier, id idempotency.ID, fp idempotency.Fingerprint, claimant string, lease, ttl time.Duration) (c idempotency.Claim, now time.Time, err error) {
	args := []any{id.Scope, id.Key, fp[:], claimant, lease.Seconds(), ttl.Seconds()}
	fresh, err := collect(ctx, db, pgx.RowTo[time.Time], claimSQL, args...)
	if err != nil {
		return c, now, err
	}
	if len(fresh) == 0 {
		found, err := collect(ctx, db, scanRow, foundSQL, id.Scope, id.Key)
		switch {
		case err != nil:
			return c, now, err
		case len(found) == 0:
			return c, now, errGone
		case !found[0].stale:
			return rival(found[0].Record, found[0].Response.Status != 0, fp), now, nil
		}
		if fresh, err = collect(ctx, db, pgx.RowTo[time.Time], takeOverSQL, args...); err != nil {
			return c, now, err
		}
		if len(fresh) == 0 { // somebody was faster
			return idempotency.Claim{Outcome: idempotency.InFlight}, now, nil
		}
	}
	return idempotency.Claim{Outcome: idempotency.Fresh}, fresh[0].UTC(), nil
}

// errGone says that a row stood in the way, and was gone when it was looked at.
var errGone = errors.New("peers: the key was given back meanwhile")

// row is a key as it stands in the table.
type row struct {
	idempotency.Record
	stale bool // it may be taken over
}

func scanRow(from pgx.CollectableRow) (r row, err error) {
	var (
		sum    []byte
		header string
	)
	err = from.Scan(&sum, &r.Response.Status, &header, &r.Response.Body, &r.CreatedAt, &r.ExpiresAt, &r.stale)
	if err != nil {
		return r, err
	}
	copy(r.Fingerprint[:], sum)
	return r, json.Unmarshal([]byte(header), &r.Response.Header)
}

func collect[T any](ctx context.Context, db querier, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// Lease implements idempotency.Store.
func (s *commitsStore) Lease() time.Duration { return s.lease }

// TTL implements idempotency.Store.
func (s *commitsStore) TTL() time.Duration { return s.ttl }

// DeleteExpired implements idempotency.Store.
func (s *commitsStore) DeleteExpired(ctx context.Context, limit int) (int, error) {
	tag, err := s.pool.Exec(ctx, expiredSQL, limit)
	return int(tag.RowsAffected()), err
}

type commitsAttempt struct {
	work
	store    *commitsStore
	id       idempotency.ID
	claimant string
	now      time.Time
	ended    bool
}

// Time implements idempotency.Attempt.
func (a *commitsAttempt) Time() time.Time { return a.now }

// Bind implements idempotency.Attempt.
func (a *commitsAttempt) Bind(ctx context.Context) context.Context { return a.bind(ctx) }

// Complete implements idempotency.Attempt. Where the lease was lost the intent
// stays all the same.
func (a *commitsAttempt) Complete(ctx context.Context, resp idempotency.Response) error {
	if a.err != nil {
		return a.err
	}
	header, err := json.Marshal(resp.Header)
	if err != nil {
		return err
	}
	a.ended = true
	tag, err := a.store.pool.Exec(ctx, completeSQL, a.id.Scope, a.id.Key, a.claimant, resp.Status, string(header), resp.Body)
	switch {
	case err != nil:
		return errors.Join(idempotency.ErrInDoubt, err)
	case tag.RowsAffected() == 0:
		return idempotency.ErrSuperseded
	}
	return nil
}

// Abandon implements idempotency.Attempt. An intent that was inserted stays.
func (a *commitsAttempt) Abandon(ctx context.Context) error {
	if a.ended {
		return nil
	}
	a.ended = true
	_, err := a.store.pool.Exec(ctx, abandonSQL, a.id.Scope, a.id.Key, a.claimant)
	return err
}
