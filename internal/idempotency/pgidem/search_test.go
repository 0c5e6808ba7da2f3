package pgidem_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"intentd/internal/idempotency"
	"intentd/internal/idempotency/pgidem"
)

// What a search is tried on: each key of each scope is there once, but for one
// key that every scope has.
const (
	searchScopes  = 500
	searchRecords = 200_000

	insertRecords = `
insert into idempotency_keys (scope, key, fingerprint, status, header, body, created_at, expires_at)
select 'merchant-' || i % $1::bigint,
       case when i <= $1::bigint then 'shared' else 'key-' || i end,
       sha256(i::text::bytea), 201, '{}', '{}', now(), now() + interval '1 day'
from generate_series(1::bigint, $2::bigint) as i`
)

// TestStore_Search_LargeTable says what a search costs in rows and pages, which
// are the same on every machine.
func TestStore_Search_LargeTable(t *testing.T) {
	t.Parallel()
	f := newFixture(t, time.Minute)
	f.db.Exec(t, insertRecords, int64(searchScopes), int64(searchRecords))
	f.db.Exec(t, "vacuum analyze idempotency_keys")
	for _, c := range []struct {
		key, with, without string
		rows               float64
	}{
		{"shared", "", "", 101},
		{"shared", "merchant-42", "", 11},
		{"key-100000", "", "", 1},
		{"key-100000", "", ":", 1},
		{"key-1", "", "", 0},
	} {
		type node struct {
			Type  string  `json:"Node Type"`
			Rows  float64 `json:"Actual Rows"`
			Loops float64 `json:"Actual Loops"`
			Hit   int     `json:"Shared Hit Blocks"`
			Read  int     `json:"Shared Read Blocks"`
			Plans []node
		}
		var text string
		err := f.pool.QueryRow(t.Context(), "explain (analyze, buffers, timing off, format json) "+pgidem.SearchSQL,
			pgx.QueryExecModeExec, c.key, c.with, c.without, int64(101)).Scan(&text)
		if err != nil {
			t.Fatal(err)
		}
		var plans []struct{ Plan node }
		if err := json.Unmarshal([]byte(text), &plans); err != nil {
			t.Fatal(err)
		}
		plan := plans[0].Plan
		if plan.Rows != c.rows {
			t.Errorf("%+v: %v rows", c, plan.Rows)
		}
		if pages := 8 * searchScopes; plan.Hit+plan.Read > pages {
			t.Errorf("%+v: %d pages, want %d at most", c, plan.Hit+plan.Read, pages)
		}
		var judge func(node)
		judge = func(n node) {
			if n.Type == "Seq Scan" || n.Rows*n.Loops > 2*searchScopes {
				t.Errorf("%+v: too much is read: %+v", c, n)
			}
			for _, below := range n.Plans {
				judge(below)
			}
		}
		judge(plan)
	}
}

// TestStore_Search_TimesOut: the server ends a search that takes too long, so that
// the connection is in the pool again and its session as it was.
func TestStore_Search_TimesOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t, time.Minute)
	q := idempotency.Search{Key: "k", Limit: 1}
	if _, _, err := f.made.Search(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	lock, err := f.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(context.Background())
	if _, err := lock.Exec(t.Context(), "lock table idempotency_keys in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	made := f.pool.Stat().NewConnsCount()
	// Of the two that could end it, it is the server.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if found, _, err := f.made.Search(ctx, q); err == nil || ctx.Err() != nil {
		t.Errorf("Search = %v, %v, want the server's error", found, err)
	}
	if stat := f.pool.Stat(); stat.AcquiredConns() != 0 || stat.NewConnsCount() != made || stat.TotalConns() == 0 {
		t.Errorf("the connection is lost: %d in use, %d of %d made since", stat.AcquiredConns(), stat.NewConnsCount()-made, stat.TotalConns())
	}
	for _, conn := range f.pool.AcquireAllIdle(t.Context()) {
		var timeout string
		if err := conn.QueryRow(t.Context(), "show statement_timeout").Scan(&timeout); err != nil || timeout != "0" {
			t.Errorf("statement_timeout is left at %s, %v", timeout, err)
		}
		conn.Release()
	}
}
