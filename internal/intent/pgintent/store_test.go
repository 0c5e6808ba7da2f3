package pgintent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/intent"
	"intentd/internal/intent/intenttest"
	"intentd/internal/pgtest"
)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}

const merchant = "m-1"

func params() intent.Params {
	return intent.Params{
		Chain:    "evm:1",
		Token:    "0x5FbDB2315678afecb367f032d93F642f64180aa3",
		Payer:    "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
		Merchant: "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
		Amount:   "115792089237316195423570985008687907853269984665640564039457584007913129639935",
		Metadata: map[string]string{"k": "v"},
	}
}

// connect returns a pool whose connections have a setting of their own.
func connect(t *testing.T, db, name, value string) *pgxpool.Pool {
	t.Helper()
	u, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	pool, err := pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// backdate makes everything in the database older.
func backdate(pool *pgxpool.Pool) func(t *testing.T, d time.Duration) {
	return func(t *testing.T, d time.Duration) {
		t.Helper()
		exec(t, pool, `
with older as (
    update intent_transitions
    set at = at - $1::bigint * interval '1 microsecond'
)
update payment_intents
set created_at = created_at - $1::bigint * interval '1 microsecond',
    updated_at = updated_at - $1::bigint * interval '1 microsecond',
    expires_at = expires_at - $1::bigint * interval '1 microsecond'`, d.Microseconds())
	}
}

// insert puts an intent in just as it is.
func insert(pool *pgxpool.Pool) func(ctx context.Context, in intent.Intent) error {
	return func(ctx context.Context, in intent.Intent) error {
		_, err := pool.Exec(ctx, `
insert into payment_intents (
    merchant_id, id, chain, token, payer, merchant, amount, state, version, created_at, updated_at, expires_at)
values ($1, $2::uuid, $3, $4, $5, $6, $7::text::numeric, $8, $9::bigint, $10::timestamptz, $11::timestamptz, $12::timestamptz)`,
			in.MerchantID, dashed(in.ID), in.Chain, in.Token, in.Payer, in.Merchant, in.Amount, string(in.State), in.Version,
			in.CreatedAt, in.UpdatedAt, in.ExpiresAt)
		return err
	}
}

func harness(pool *pgxpool.Pool) intenttest.Harness {
	return intenttest.Harness{Store: New(pool, nil), Advance: backdate(pool), Insert: insert(pool)}
}

func create(t *testing.T, s *Store) intent.Intent {
	t.Helper()
	in, err := intent.New(s).Create(t.Context(), merchant, params())
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestStore(t *testing.T) {
	t.Parallel()
	intenttest.Run(t, func(t *testing.T) intenttest.Harness {
		return harness(pgtest.New(t).Pool)
	})
}

// TestStore_QueryModes is for poolers that share connections between clients:
// nothing may depend on a named statement, or on types that the server told.
func TestStore_QueryModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			intenttest.Run(t, func(t *testing.T) intenttest.Harness {
				return harness(connect(t, pgtest.New(t).URL, "default_query_exec_mode", mode))
			})
		})
	}
}

// TestStore_HostileDefaults is for databases whose default transaction is not
// the one that the statements are made for.
func TestStore_HostileDefaults(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"default_transaction_isolation": "serializable",
		"default_transaction_read_only": "on",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			intenttest.Run(t, func(t *testing.T) intenttest.Harness {
				db := pgtest.New(t)
				h := harness(connect(t, db.URL, name, value))
				h.Advance, h.Insert = backdate(db.Pool), insert(db.Pool)
				return h
			})
		})
	}
}

func TestStore_Create(t *testing.T) {
	t.Parallel()

	t.Run("DatabaseTime", func(t *testing.T) {
		t.Parallel()
		// The connections' zone must not show in what is answered.
		db := pgtest.New(t)
		pool := connect(t, db.URL, "timezone", "Asia/Kolkata")
		now := func() (at time.Time) {
			if err := pool.QueryRow(t.Context(), "select clock_timestamp()").Scan(&at); err != nil {
				t.Fatal(err)
			}
			return at
		}
		before := now()
		in := create(t, New(pool, nil))
		if in.CreatedAt.Before(before) || in.CreatedAt.After(now()) {
			t.Fatalf("created at %s, which is not the database's time", in.CreatedAt)
		}
		got, err := New(pool, nil).Get(t.Context(), merchant, in.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(in, got); diff != "" {
			t.Fatalf("Get (-created +got):\n%s", diff)
		}
	})

	t.Run("Failed", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		exec(t, db.Pool, "alter table payment_intents rename to elsewhere")
		_, err := intent.New(New(db.Pool, nil)).Create(t.Context(), merchant, params())
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "42P01" {
			t.Fatalf("error %v, want the driver's", err)
		}
	})
}

// tx is a transaction as the idempotency store gives one: what is queued waits.
type tx struct {
	pgx.Tx
	t      *testing.T
	at     time.Time
	queued []func(ctx context.Context) error
	rows   [][]any // if not nil, it shares its rows with others
}

type txKey struct{}

func joinedTx(ctx context.Context) (Tx, bool) {
	x, ok := ctx.Value(txKey{}).(*tx)
	return x, ok
}

// begin returns a store without a pool, so that a statement which does not take
// part in the transaction fails, and the context that carries it.
func begin(t *testing.T, pool *pgxpool.Pool, opts pgx.TxOptions) (*tx, context.Context, *Store) {
	t.Helper()
	inner, err := pool.BeginTx(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inner.Rollback(context.WithoutCancel(t.Context())) })
	x := &tx{Tx: inner, t: t}
	if err := inner.QueryRow(t.Context(), "select transaction_timestamp()").Scan(&x.at); err != nil {
		t.Fatal(err)
	}
	return x, context.WithValue(t.Context(), txKey{}, x), New(nil, joinedTx)
}

func (x *tx) Time() time.Time { return x.at }

func (x *tx) Queue(sql string, args ...any) {
	x.queued = append(x.queued, func(ctx context.Context) error {
		_, err := x.Exec(ctx, sql, args...)
		return err
	})
}

func (x *tx) QueueRow(sql, _ string, args ...any) {
	if x.rows != nil {
		x.rows = append(x.rows, args)
		return
	}
	x.Queue(sql, args...)
}

func (x *tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := x.flush(ctx); err != nil {
		return nil, err
	}
	return x.Tx.Query(ctx, sql, args...)
}

func (x *tx) flush(ctx context.Context) error {
	for _, send := range x.queued {
		if err := send(ctx); err != nil {
			return err
		}
	}
	x.queued = nil
	return nil
}

func (x *tx) commit() {
	x.t.Helper()
	if err := x.flush(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
	if err := x.Commit(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
}

// TestStore_Create_Many creates as requests do that share a transaction.
func TestStore_Create_Many(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	reference := "order-1"
	plain := params()
	plain.Metadata = nil
	full := params()
	full.Reference = &reference
	full.Metadata = map[string]string{"k": `"ü`, "l": ""}
	least := params()
	least.Amount = "1"

	x, ctx, s := begin(t, db.Pool, pgx.TxOptions{})
	x.rows = [][]any{}
	var made []intent.Intent
	for i, p := range []intent.Params{plain, full, least} {
		in, err := intent.New(s).Create(ctx, fmt.Sprint("m-", i), p)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, in)
	}
	columns := make([]any, len(x.rows[0]))
	for n := range columns {
		column := reflect.MakeSlice(reflect.SliceOf(reflect.TypeOf(x.rows[0][n])), 0, len(x.rows))
		for _, row := range x.rows {
			column = reflect.Append(column, reflect.ValueOf(row[n]))
		}
		columns[n] = column.Interface()
	}
	if tag, err := x.Exec(ctx, insertIntents, columns...); err != nil || tag.RowsAffected() != 3 {
		t.Fatalf("%v, %v", tag, err)
	}
	x.commit()

	for i, want := range made {
		got, err := New(db.Pool, nil).Get(t.Context(), want.MerchantID, want.ID)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("intent %d: %v (-answered +kept):\n%s", i, err, diff)
		}
	}
	// What is not given is null, as in the statement for one.
	if n := pgtest.QueryVal[int](t, db, "select count(*) from payment_intents where reference is null and (metadata is null) = (merchant_id = 'm-0')"); n != 2 {
		t.Errorf("%d rows with null for what was not given, want 2", n)
	}
}

// TestStore_Joined is about what takes part in a request's transaction.
func TestStore_Joined(t *testing.T) {
	t.Parallel()

	t.Run("CreateIsQueued", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		x, ctx, s := begin(t, db.Pool, pgx.TxOptions{})
		p := params()
		p.Metadata, p.Reference = nil, new("order-1001")
		in, err := intent.New(s).Create(ctx, merchant, p)
		if err != nil {
			t.Fatal(err)
		}
		if len(x.queued) != 1 {
			t.Fatalf("%d statements queued, want 1", len(x.queued))
		}
		if first := intent.FirstID(x.at); !in.CreatedAt.Equal(x.at) || !bytes.Equal(in.ID[:8], first[:8]) {
			t.Fatalf("%s, created at %s, is not of the transaction's time %s", in.ID, in.CreatedAt, x.at)
		}
		outside := New(db.Pool, nil)
		if _, err := outside.Get(t.Context(), merchant, in.ID); !errors.Is(err, intent.ErrNotFound) {
			t.Fatalf("seen before the commit: %v", err)
		}
		x.commit()
		got, err := outside.Get(t.Context(), merchant, in.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(in, got); diff != "" {
			t.Fatalf("stored is not what was answered (-answered +stored):\n%s", diff)
		}
	})

	// The statement may travel in a later transaction than the one whose time the
	// answer holds.
	t.Run("TimeIsTheAttempts", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		x, ctx, s := begin(t, db.Pool, pgx.TxOptions{})
		x.at = x.at.Add(-time.Hour)
		in, err := intent.New(s).Create(ctx, merchant, params())
		if err != nil {
			t.Fatal(err)
		}
		x.commit()
		got, err := New(db.Pool, nil).Get(t.Context(), merchant, in.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(in, got); diff != "" || !got.CreatedAt.Equal(x.at) {
			t.Fatalf("created at %s, stored is not what was answered (-answered +stored):\n%s", got.CreatedAt, diff)
		}
	})

	t.Run("SeesItsOwnWork", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		x, ctx, s := begin(t, db.Pool, pgx.TxOptions{})
		svc := intent.New(s)
		in, err := svc.Create(ctx, merchant, params())
		if err != nil {
			t.Fatal(err)
		}
		moved, err := svc.Move(ctx, merchant, in.ID, intent.Step{To: intent.Authorized, Actor: intent.API, IfVersion: 1})
		if err != nil {
			t.Fatal(err)
		}
		if !moved.UpdatedAt.Equal(x.at) {
			t.Fatalf("updated at %s, want the transaction's %s", moved.UpdatedAt, x.at)
		}
		got, err := svc.Get(ctx, merchant, in.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(moved, got); diff != "" {
			t.Fatalf("Get (-moved +got):\n%s", diff)
		}
		if ts, _, err := svc.Transitions(ctx, merchant, in.ID, 0, 100); err != nil || len(ts) != 1 {
			t.Fatalf("trail %+v, %v", ts, err)
		}
		x.commit()
		if got, err := New(db.Pool, nil).Get(t.Context(), merchant, in.ID); err != nil || got.Version != 2 {
			t.Fatalf("%+v, %v", got, err)
		}
	})

	t.Run("RolledBack", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		outside := New(db.Pool, nil)
		in := create(t, outside)
		x, ctx, s := begin(t, db.Pool, pgx.TxOptions{})
		if _, err := intent.New(s).Move(ctx, merchant, in.ID, intent.Step{To: intent.Authorized, Actor: intent.API}); err != nil {
			t.Fatal(err)
		}
		if err := x.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := outside.Get(t.Context(), merchant, in.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(in, got); diff != "" {
			t.Fatalf("-created +got:\n%s", diff)
		}
		if ts, _, err := outside.Transitions(t.Context(), merchant, in.ID, 0, 100); err != nil || len(ts) != 0 {
			t.Fatalf("trail %+v, %v", ts, err)
		}
	})

	t.Run("DueToTheMicrosecond", func(t *testing.T) {
		t.Parallel()
		// Only inside a transaction does the database's clock stand still.
		db := pgtest.New(t)
		outside := New(db.Pool, nil)
		due, left := create(t, outside), create(t, outside)
		x, ctx, s := begin(t, db.Pool, pgx.TxOptions{})
		for id, late := range map[intent.ID]int{due.ID: 0, left.ID: 1} {
			x.Queue(`
update payment_intents
set created_at = transaction_timestamp() - interval '1 hour',
    updated_at = transaction_timestamp() - interval '1 hour',
    expires_at = transaction_timestamp() + $2::bigint * interval '1 microsecond'
where id = $1::uuid`, dashed(id), late)
		}
		svc := intent.New(s)
		if _, err := svc.Move(ctx, merchant, due.ID, intent.Step{To: intent.Authorized, Actor: intent.API}); !errors.Is(err, intent.ErrExpired) {
			t.Fatalf("Move at expires_at: %v, want ErrExpired", err)
		}
		if n, err := s.CancelDue(ctx, 10); n != 1 || err != nil {
			t.Fatalf("CancelDue = %d, %v, want 1", n, err)
		}
		if got, err := s.Get(ctx, merchant, due.ID); err != nil || got.State != intent.Canceled {
			t.Fatalf("%+v, %v", got, err)
		}
		if _, err := svc.Move(ctx, merchant, left.ID, intent.Step{To: intent.Authorized, Actor: intent.API}); err != nil {
			t.Fatalf("Move a microsecond before expires_at: %v", err)
		}
		x.commit()
	})

	t.Run("DecidedAgain", func(t *testing.T) {
		t.Parallel()
		// Under read committed, which is an attempt's level, the second look sees
		// what was committed since the first.
		db := pgtest.New(t)
		outside := intent.New(New(db.Pool, nil))
		in := create(t, New(db.Pool, nil))
		x, ctx, s := begin(t, db.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		looks := 0
		moved, err := intent.New(watched{s, func() {
			if looks++; looks > 1 {
				return
			}
			if _, err := outside.Move(t.Context(), merchant, in.ID, intent.Step{To: intent.Authorized, Actor: intent.API}); err != nil {
				t.Error(err)
			}
		}}).Move(ctx, merchant, in.ID, intent.Step{To: intent.Canceled, Actor: intent.API, Reason: "r"})
		if err != nil || moved.Version != 3 || looks != 2 {
			t.Fatalf("%+v, %v, decided %d times; want version 3 after 2", moved, err, looks)
		}
		x.commit()
		got, err := outside.Get(t.Context(), merchant, in.ID)
		if diff := cmp.Diff(moved, got); diff != "" || err != nil {
			t.Fatalf("Get: %v (-moved +got):\n%s", err, diff)
		}
	})

	t.Run("OvertakenInASnapshot", func(t *testing.T) {
		t.Parallel()
		// Where the snapshot is the transaction's, being overtaken is an error of
		// the server's and not an update of no row.
		db := pgtest.New(t)
		outside := intent.New(New(db.Pool, nil))
		in := create(t, New(db.Pool, nil))
		_, ctx, s := begin(t, db.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		_, err := s.Move(ctx, merchant, in.ID, func(seen intent.Intent, now time.Time) (*intent.Transition, error) {
			if _, err := outside.Move(t.Context(), merchant, in.ID, intent.Step{To: intent.Authorized, Actor: intent.API}); err != nil {
				t.Fatal(err)
			}
			return seen.Next(intent.Step{To: intent.Canceled, Actor: intent.API, Reason: "r"}, now)
		})
		if !errors.Is(err, intent.ErrVersionConflict) {
			t.Fatalf("error %v, want ErrVersionConflict", err)
		}
		// The transaction is lost, so that looking again is of no use.
		_, err = intent.New(s).Move(ctx, merchant, in.ID, intent.Step{To: intent.Authorized, Actor: intent.API})
		if !errors.Is(err, intent.ErrUnavailable) {
			t.Fatalf("error %v, want ErrUnavailable", err)
		}
	})
}

// watched calls look each time that an intent to move has been read.
type watched struct {
	intent.Store
	look func()
}

func (w watched) Move(ctx context.Context, merchantID string, id intent.ID, decide func(intent.Intent, time.Time) (*intent.Transition, error)) (intent.Intent, error) {
	return w.Store.Move(ctx, merchantID, id, func(in intent.Intent, now time.Time) (*intent.Transition, error) {
		w.look()
		return decide(in, now)
	})
}

// TestStore_Move_ThereAlready looks for a write that leaves all as it was.
func TestStore_Move_ThereAlready(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := New(db.Pool, nil)
	in := create(t, s)
	svc := intent.New(s)
	cancel := intent.Step{To: intent.Canceled, Actor: intent.API, Reason: "r"}
	if _, err := svc.Move(t.Context(), merchant, in.ID, cancel); err != nil {
		t.Fatal(err)
	}
	const row = "select (ctid, xmin, xmax)::text from payment_intents"
	before := pgtest.QueryVal[string](t, db, row)
	cancel.Reason = "another"
	if _, err := svc.Move(t.Context(), merchant, in.ID, cancel); err != nil {
		t.Fatal(err)
	}
	if after := pgtest.QueryVal[string](t, db, row); after != before {
		t.Fatalf("the row was written: %s, before %s", after, before)
	}
}

func TestStore_CancelDue(t *testing.T) {
	t.Parallel()

	t.Run("WaitsForNobody", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		outside := New(db.Pool, nil)
		held, free := create(t, outside), create(t, outside)
		backdate(db.Pool)(t, time.Hour)
		x, ctx, s := begin(t, db.Pool, pgx.TxOptions{})
		if _, err := intent.New(s).Move(ctx, merchant, held.ID, intent.Step{To: intent.Canceled, Actor: intent.API, Reason: "mine"}); err != nil {
			t.Fatal(err)
		}

		// A sweep that waits for the holder would wait for this test: the
		// server ends it.
		sweeper := New(connect(t, db.URL, "lock_timeout", "2s"), nil)
		if n, err := sweeper.CancelDue(t.Context(), 10); n != 1 || err != nil {
			t.Fatalf("CancelDue = %d, %v, want 1", n, err)
		}
		if got, err := outside.Get(t.Context(), merchant, free.ID); err != nil || got.State != intent.Canceled {
			t.Fatalf("the free one: %+v, %v", got, err)
		}
		x.commit()
		if n, err := sweeper.CancelDue(t.Context(), 10); n != 0 || err != nil {
			t.Fatalf("CancelDue = %d, %v, want 0", n, err)
		}
		ts, _, err := outside.Transitions(t.Context(), merchant, held.ID, 0, 100)
		if err != nil || len(ts) != 1 || ts[0].Reason != "mine" {
			t.Fatalf("the held one's trail: %+v, %v", ts, err)
		}
	})

	t.Run("AllOrNothing", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		outside := New(db.Pool, nil)
		in := create(t, outside)
		backdate(db.Pool)(t, time.Hour)
		exec(t, db.Pool, "alter table intent_transitions add constraint none check (version < 2)")
		if n, err := outside.CancelDue(t.Context(), 10); n != 0 || err == nil {
			t.Fatalf("CancelDue = %d, %v, want an error", n, err)
		}
		if _, err := intent.New(outside).Move(t.Context(), merchant, in.ID, intent.Step{To: intent.Canceled, Actor: intent.API, Reason: "r"}); err == nil {
			t.Fatal("Move without a trail")
		}
		if got, err := outside.Get(t.Context(), merchant, in.ID); err != nil || got.State != intent.Created || got.Version != 1 {
			t.Fatalf("%+v, %v", got, err)
		}
	})

	t.Run("UsesTheDueIndex", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		// A table like the service's after a while: most are settled, the rest
		// is not due.
		exec(t, db.Pool, `
insert into payment_intents (
    merchant_id, id, chain, token, payer, merchant, amount, state, version, created_at, updated_at, expires_at)
select 'm-' || i % 100, gen_random_uuid(), 'evm:1', 't', 'p', 'm', 1,
       case when i % 20 = 0 then 'created' else 'settled' end, 1,
       now() - interval '1 day', now(), now() + (i % 1000 - 5) * interval '1 minute'
from generate_series(1, 20000) as i`)
		exec(t, db.Pool, "analyze payment_intents")

		for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
			pool := connect(t, db.URL, "plan_cache_mode", plan)
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			// Prepared by hand: explain takes no parameters of its own.
			if _, err := conn.Exec(t.Context(), "prepare sweep as "+cancelDue); err != nil {
				t.Fatal(err)
			}
			rows, err := conn.Query(t.Context(), "explain execute sweep(100)", pgx.QueryExecModeSimpleProtocol)
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(lines, "\n")
			// The condition must be the index's too: walking it in order would read
			// every open intent where fewer than the limit are due.
			if !strings.Contains(text, "payment_intents_due_idx") || !strings.Contains(text, "Index Cond: (expires_at <=") || strings.Contains(text, "Seq Scan") {
				t.Errorf("%s:\n%s", plan, text)
			}
		}
	})
}

func TestInterpret(t *testing.T) {
	t.Parallel()
	overtaken := fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: "40001"})
	if err := interpret(overtaken); !errors.Is(err, intent.ErrVersionConflict) || !errors.Is(err, overtaken) {
		t.Errorf("interpret(%v) = %v", overtaken, err)
	}
	for _, err := range []error{&pgconn.PgError{Code: "23505"}, context.DeadlineExceeded, errors.New("other")} {
		got := interpret(err)
		if !errors.Is(got, intent.ErrUnavailable) || !errors.Is(got, err) {
			t.Errorf("interpret(%v) = %v, want ErrUnavailable and the cause", err, got)
		}
		if again := interpret(got); again.Error() != got.Error() {
			t.Errorf("interpret(%v) = %v, want it as it is", got, again)
		}
	}
}
