package pgidem

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/idempotency"
)

// Tx is a transaction that saves round trips: what nobody waits for is queued,
// and travels with the next question or with COMMIT. It belongs to one attempt
// and is not safe for concurrent use.
//
// A statement that fails dooms the transaction, as in PostgreSQL: nothing of it
// can be kept.
//
// What is queued may be written by a later transaction than the one that the
// claim was made in: where the attempt shares a transaction, and another's
// statement fails, or its handler is slow (see the package's comment). So no
// statement may take what is answered from transaction_timestamp() or anything
// else that is the transaction's; it is given Time.
type Tx struct {
	conn        *pgxpool.Conn // nil once the transaction has ended, and where it is shared
	interactive bool          // may ask
	ended       bool
	queue       []statement
	now         time.Time     // when it was claimed, by the database's clock
	start       time.Time     // not after now, on this process's monotonic clock
	lease       time.Duration // how long the attempt may live, from start
	err         error         // the first failure
	slot        func()        // gives the attempt's place back; nil while it has none
}

type statement struct {
	sql  string
	args []any
	many string // sql for arrays of args; see QueueRow
}

// step is a statement that must affect so many rows.
type step struct {
	statement
	rows int64
}

type txKey struct{}

// FromContext returns the transaction of the attempt that ctx is bound to.
func FromContext(ctx context.Context) (*Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(*Tx)
	return tx, ok
}

var errEnded = errors.New("pgidem: transaction has ended")

// Time is when the attempt was claimed: transaction_timestamp() of the claim. It
// is the time for all that the attempt writes and answers.
func (tx *Tx) Time() time.Time { return tx.now }

// Queue adds a statement that nobody waits for. Its error is that of the next
// Query or Exec, or of the attempt's Complete. A statement queued after the
// attempt's end is dropped: its fate has been decided.
func (tx *Tx) Queue(sql string, args ...any) {
	if !tx.ended {
		tx.queue = append(tx.queue, statement{sql: sql, args: args})
	}
}

// QueueRow is Queue for a statement that attempts of one transaction may send as
// one: an INSERT of a row, say, which costs PostgreSQL more to begin than to carry
// out. many must do for each row of its parameters what sql does for its own: each
// is an array of what the parameter of that number is in sql, one element for
// each attempt. That is so where every argument of a place has the same type,
// which is not nil's. An attempt that is alone, or queues something before, sends
// sql.
func (tx *Tx) QueueRow(sql, many string, args ...any) {
	if !tx.ended {
		tx.queue = append(tx.queue, statement{sql: sql, args: args, many: many})
	}
}

// gather makes one queue of several, whose order among each other is of no
// meaning. The rows that they begin with become one statement.
func gather(queues [][]statement) (all []statement) {
	rows := make(map[string][]statement)
	for _, q := range queues {
		if len(q) > 0 && q[0].many != "" {
			rows[q[0].many] = append(rows[q[0].many], q[0])
		}
	}
	for _, q := range queues {
		if len(q) > 0 && q[0].many != "" {
			all = append(all, merge(rows[q[0].many])...)
			delete(rows, q[0].many)
			q = q[1:]
		}
		all = append(all, q...)
	}
	return all
}

// merge makes one statement of rows, if their arguments are alike.
func merge(rows []statement) []statement {
	if len(rows) < 2 {
		return rows
	}
	columns := make([]any, len(rows[0].args))
	for n, first := range rows[0].args {
		kind := reflect.TypeOf(first)
		if kind == nil {
			return rows
		}
		column := reflect.MakeSlice(reflect.SliceOf(kind), len(rows), len(rows))
		for i, row := range rows {
			if len(row.args) != len(columns) || reflect.TypeOf(row.args[n]) != kind {
				return rows
			}
			column.Index(i).Set(reflect.ValueOf(row.args[n]))
		}
		columns[n] = column.Interface()
	}
	return []statement{{sql: rows[0].many, args: columns}}
}

// Query sends what is queued and sql in one round trip, and returns sql's rows,
// which must be closed before the transaction is used again. Read them with
// Next and the pgx collectors. It panics unless the route is mounted with
// idempotency.Options.Interactive.
func (tx *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	tx.mustBeInteractive()
	br, err := tx.flush(ctx, statement{sql: sql, args: args})
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
// of rows that sql affected. It panics as Query does.
func (tx *Tx) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	tx.mustBeInteractive()
	br, err := tx.flush(ctx, statement{sql: sql, args: args})
	if err != nil {
		return 0, err
	}
	tag, err := br.Exec()
	if err = errors.Join(err, br.Close()); err != nil {
		return 0, tx.fail(err)
	}
	return tag.RowsAffected(), nil
}

// mustBeInteractive panics in an attempt that may share its transaction, whether
// or not it happens to: a mistake in mounting must not show only under load.
func (tx *Tx) mustBeInteractive() {
	if !tx.interactive {
		panic("pgidem: a question inside an attempt that may share its transaction: its route must be mounted with idempotency.Options.Interactive")
	}
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
	case tx.ended:
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

// commit sends what is queued, COMMIT, and what the session is to do next. Its
// error is
//   - ErrSuperseded, ErrTaken or another plain one: nothing was kept;
//   - ErrInDoubt: it is not known whether all of it was.
//
// A session that did not do what was next, each on so many rows, is closed.
func (tx *Tx) commit(ctx context.Context, next ...step) error {
	statements := []statement{{sql: "commit"}}
	for _, s := range next {
		statements = append(statements, s.statement)
	}
	br, err := tx.flush(ctx, statements...)
	if err == nil {
		var tag pgconn.CommandTag
		tag, err = br.Exec()
		committed := err == nil && tag.String() == "COMMIT"
		failed := false
		for _, s := range next {
			if committed && !failed {
				tag, err := br.Exec()
				failed = err != nil || tag.RowsAffected() != s.rows
			}
		}
		closed := br.Close()
		if failed {
			_ = tx.conn.Conn().Close(ctx)
		} else {
			err = errors.Join(err, closed)
		}
		// PostgreSQL answers COMMIT of a failed transaction with success.
		if err == nil && !committed {
			return fmt.Errorf("commit ended in %s", tag)
		}
	}
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pgErr) && (br == nil || pgErr.SeverityUnlocalized == "ERROR"), pgconn.SafeToRetry(err):
		// The server refused a statement before COMMIT, or COMMIT itself, or
		// was never asked.
		return tx.verdict(err)
	default:
		// The session was lost with COMMIT on its way; or ended by an
		// administrator just as it was done, or while it waited for a standby.
		return fmt.Errorf("%w: %w", idempotency.ErrInDoubt, err)
	}
}

// verdict tells what an error means for an attempt of which nothing was kept.
func (tx *Tx) verdict(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch {
	case pgErr.Code == uniqueViolation && pgErr.ConstraintName == "idempotency_keys_pkey":
		return fmt.Errorf("%w: %w", idempotency.ErrTaken, err)
	case pgErr.Code == idleInTransactionTimeout,
		pgErr.Code == queryCanceled && tx.late():
		return fmt.Errorf("%w: %w", idempotency.ErrSuperseded, err)
	default:
		return err
	}
}

// SQLSTATEs that mean something here:
// https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	uniqueViolation          = "23505"
	queryCanceled            = "57014"
	idleInTransactionTimeout = "25P03"
)

// late says whether the attempt is past its lease.
func (tx *Tx) late() bool { return time.Since(tx.start) >= tx.lease }

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
	if tx.ended {
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
	tx.conn, tx.queue, tx.ended = nil, nil, true
	if tx.slot != nil {
		tx.slot()
	}
}

// milliseconds spells d as PostgreSQL's timeouts are set, rounded up, so that a
// timeout never comes before its time.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt((d + time.Millisecond - 1).Milliseconds(), 10)
}
