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

// copyPatience is how long a copy waits for the first of its kind.
const copyPatience = time.Second

// transactionStore claims a key, inserts the intent and completes the key in one
// transaction, of five round trips.
//
// It is exactly once. A copy of a running request waits inside its INSERT, with a
// connection of the pool, and then replays; it is told that the first still runs
// where that takes longer than copyPatience.
type transactionStore struct {
	unasked
	pool       *pgxpool.Pool
	ttl, lease time.Duration
}

// Claim implements idempotency.Store.
func (s *transactionStore) Claim(ctx context.Context, id idempotency.ID, fp idempotency.Fingerprint) (idempotency.Claim, error) {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return idempotency.Claim{}, err
	}
	claimant := uuid.NewString()
	c, now, err := claimRow(ctx, tx, id, fp, claimant, s.lease, s.ttl)
	if err == nil && c.Outcome == idempotency.Fresh {
		c.Attempt = &transactionAttempt{tx: tx, id: id, claimant: claimant, now: now, work: work{db: tx, now: now}}
		return c, nil
	}
	_ = tx.Rollback(ctx) // what was found stands all the same
	const lockNotAvailable = "55P03"
	if isCode(err, lockNotAvailable) {
		return idempotency.Claim{Outcome: idempotency.InFlight}, nil
	}
	return c, err
}

// Lease implements idempotency.Store.
func (s *transactionStore) Lease() time.Duration { return s.lease }

// TTL implements idempotency.Store.
func (s *transactionStore) TTL() time.Duration { return s.ttl }

// DeleteExpired implements idempotency.Store.
func (s *transactionStore) DeleteExpired(ctx context.Context, limit int) (int, error) {
	tag, err := s.pool.Exec(ctx, expiredSQL, limit)
	return int(tag.RowsAffected()), err
}

type transactionAttempt struct {
	work
	tx       pgx.Tx
	id       idempotency.ID
	claimant string
	now      time.Time
}

// Time implements idempotency.Attempt.
func (a *transactionAttempt) Time() time.Time { return a.now }

// Bind implements idempotency.Attempt.
func (a *transactionAttempt) Bind(ctx context.Context) context.Context { return a.bind(ctx) }

// Complete implements idempotency.Attempt.
func (a *transactionAttempt) Complete(ctx context.Context, resp idempotency.Response) error {
	if a.err != nil {
		return a.err
	}
	header, err := json.Marshal(resp.Header)
	if err != nil {
		return err
	}
	if _, err := a.tx.Exec(ctx, completeSQL, a.id.Scope, a.id.Key, a.claimant, resp.Status, string(header), resp.Body); err != nil {
		return err
	}
	err = a.tx.Commit(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return err
	default:
		return errors.Join(idempotency.ErrInDoubt, err)
	}
}

// Abandon implements idempotency.Attempt.
func (a *transactionAttempt) Abandon(ctx context.Context) error {
	if err := a.tx.Rollback(ctx); !errors.Is(err, pgx.ErrTxClosed) {
		return err
	}
	return nil
}
