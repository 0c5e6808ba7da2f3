package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	intentsSQL = `
select merchant_id,
       'pi_' || replace(id::text, '-', ''),
       coalesce(reference, ''),
       state,
       version,
       (extract(epoch from created_at) * 1000000)::bigint,
       (extract(epoch from expires_at) * 1000000)::bigint
from payment_intents`

	recordsSQL = `
select scope,
       key,
       status,
       coalesce(convert_from(body, 'UTF8')::jsonb ->> 'id', ''),
       left(encode(sha256(body), 'hex'), 16),
       (extract(epoch from created_at) * 1000000)::bigint,
       (extract(epoch from expires_at) * 1000000)::bigint
from idempotency_keys`

	movesSQL = `
select 'pi_' || replace(intent_id::text, '-', ''),
       version,
       from_state,
       to_state,
       actor,
       coalesce(reason, ''),
       (extract(epoch from at) * 1000000)::bigint
from intent_transitions`

	// Of the database, so that what other work of the trial's holds is seen too.
	heldSQL = `
select (select count(*) from pg_locks where locktype = 'advisory'),
       (select count(*)
        from pg_stat_activity
        where datname = current_database()
          and state like 'idle in transaction%')`

	connectionsSQL = `
select count(*)
from pg_stat_activity
where datname = current_database()
  and pid <> pg_backend_pid()`
)

// query asks for one row.
func (t *trial) query(ctx context.Context, sql string, to ...any) error {
	conn, err := pgx.Connect(ctx, t.direct())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.QueryRow(ctx, sql).Scan(to...)
}

// eventually asks for one row until ok, for a short time: the sweeper's
// transactions come and go.
func (t *trial) eventually(ctx context.Context, sql string, ok func() bool, to ...any) error {
	for deadline := time.Now().Add(3 * time.Second); ; {
		if err := t.query(ctx, sql, to...); err != nil {
			return err
		}
		if ok() || time.Now().After(deadline) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// inspect reads how things stand once nothing is asked any more, and ends the
// replicas: the first with a look at its goroutines, the others in good order.
func (t *trial) inspect(ctx context.Context) error {
	h := &t.rec.h
	e := &h.End
	idle := func() bool { return e.Locks == 0 && e.Idle == 0 }
	if err := t.eventually(ctx, heldSQL, idle, &e.Locks, &e.Idle); err != nil {
		return err
	}
	if err := t.rows(ctx); err != nil {
		return err
	}
	for i, r := range t.replicas {
		e.Findings = append(e.Findings, r.findings()...)
		if i == 0 {
			e.Goroutines = r.goroutines()
		} else {
			r.term()
		}
		e.Exits = append(e.Exits, r.exits...)
	}
	if t.beforeLeft != nil {
		t.beforeLeft()
	}
	return t.eventually(ctx, connectionsSQL, func() bool { return e.Connections == 0 }, &e.Connections)
}

// rows reads the tables, as they are at one instant.
func (t *trial) rows(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, t.direct())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	h := &t.rec.h
	if t.redis != nil {
		if h.Records, err = t.redisRecords(ctx); err != nil {
			return err
		}
	}
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, "select (extract(epoch from now()) * 1000000)::bigint").Scan(&h.End.Now); err != nil {
			return err
		}
		if h.Intents, err = collect[Intent](ctx, tx, intentsSQL); err != nil {
			return err
		}
		if t.redis == nil {
			if h.Records, err = collect[Record](ctx, tx, recordsSQL); err != nil {
				return err
			}
		}
		h.Moves, err = collect[Move](ctx, tx, movesSQL)
		return err
	})
}

func collect[T any](ctx context.Context, tx pgx.Tx, sql string) ([]T, error) {
	rows, err := tx.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}
