package pgidem

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tx is a transaction that saves round trips: what nobody waits for is queued,
// and travels with the next question or with COMMIT. It belongs to one attempt
// and is not safe for concurrent use.
//
// A statement that fails dooms the transaction, as in PostgreSQL: nothing of it
// can be kept.
type Tx struct {
	conn  *pgxpool.Conn // nil once the transaction has ended
	queue []statement
	now   time.Time     // transaction_timestamp()
	start time.Time     // not after now, on this process's monotonic clock
	lease time.Duration // how long the transaction may live, from start
	err   error         // the first failure
	slot  func()        // gives the attempt's place back; nil while it has none
}

type statement struct {
	sql  string
	args []any
}

type txKey struct{}

// FromContext returns the transaction of the attempt that ctx is bound to.
func FromContext(ctx context.Context) (*Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(*Tx)
	return tx, ok
}

var errEnded = errors.New("pgidem: transaction has ended")

// Time is PostgreSQL's transaction_timestamp().
func (tx *Tx) Time() time.Time { return tx.now }

// Queue adds a statement that nobody waits for. Its error is that of the next
// Query or Exec, or of the attempt's Complete. A statement queued after the
// attempt's end is dropped: its fate has been decided.
func (tx *Tx) Queue(sql string, args ...any) {
	if tx.conn != nil {
		tx.queue = append(tx.queue, statement{sql, args})
	}
}

// Query sends what is queued and sql in one round trip, and returns sql's rows,
// which must be closed before the transaction is used again. Read them with
// Next and the pgx collectors.
func (tx *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	br, err := tx.flush(ctx, statement{sql, args})
	if err != nil {
		return nil, err
	}
	rows, err := br.Query()
	if err != nil {
		_ = br.Close() // says the same again
		return nil, tx.fail(err)
	}
	return &batchRows{Rows: rows, br: br, tx: tx}, nil
}

// Exec sends what is queued and sql in one round trip, and returns the number
// of rows that sql affected.
func (tx *Tx) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	br, err := tx.flush(ctx, statement{sql, args})
	if err != nil {
		return 0, err
	}
	tag, err := br.Exec()
	if err = errors.Join(err, br.Close()); err != nil {
		return 0, tx.fail(err)
	}
	return tag.RowsAffected(), nil
}

// batchRows ends the batch with its last rows.
type batchRows struct {
	pgx.Rows
	br pgx.BatchResults
	tx *Tx
}

// Close implements pgx.Rows.
func (r *batchRows) Close() {
	r.Rows.Close()
	if err := errors.Join(r.Err(), r.br.Close()); err != nil {
		_ = r.tx.fail(err)
	}
}

// flush sends the queue and last as one pipeline, reads the queue's results,
// and leaves last's to be read.
func (tx *Tx) flush(ctx context.Context, last ...statement) (pgx.BatchResults, error) {
	switch {
	case tx.conn == nil:
		return nil, errEnded
	case tx.err != nil:
		return nil, tx.err
	}
	batch := new(pgx.Batch)
	skip := 0
	// statement_timeout counts from each statement's own start. So that a late
	// one can not hold the key for a second lease, it gets what is left; an
	// early one is not worth another statement.
	if used := time.Since(tx.start); used > tx.lease/10 {
		left := max(tx.lease-used, time.Millisecond)
		batch.Queue(timeoutSQL, milliseconds(left))
		skip++
	}
	for _, s := range append(tx.queue, last...) {
		batch.Queue(s.sql, s.args...)
	}
	skip += len(tx.queue)
	tx.queue = nil
	br := tx.conn.SendBatch(ctx, batch)
	for range skip {
		if _, err := br.Exec(); err != nil {
			_ = br.Close() // says the same again
			return nil, tx.fail(err)
		}
	}
	return br, nil
}

// fail remembers the first failure, and returns err.
func (tx *Tx) fail(err error) error {
	if tx.err == nil {
		tx.err = err
	}
	return err
}

// rollback ends the transaction, and gives its connection back: at once, or to
// be destroyed where it can not be told to be idle.
func (tx *Tx) rollback(ctx context.Context) error {
	if tx.conn == nil {
		return nil
	}
	defer tx.release()
	if tx.conn.Conn().IsClosed() {
		return nil // with the session, all of it has ended
	}
	_, err := tx.conn.Exec(ctx, "rollback")
	return err
}

// release is the one place where the connection goes back. The pool destroys a
// connection that is not idle outside a transaction.
func (tx *Tx) release() {
	tx.conn.Release()
	tx.conn = nil
	tx.queue = nil
	if tx.slot != nil {
		tx.slot()
	}
}

// milliseconds spells d as PostgreSQL's timeouts are set, rounded up, so that a
// timeout never comes before its time.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt((d + time.Millisecond - 1).Milliseconds(), 10)
}
