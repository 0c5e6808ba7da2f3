package pgintent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/intent"
	"intentd/internal/pgtest"
)

// What the table has for searches, beside what lists are tried on: a reference
// and a hash that one merchant has 20,000 times and 100 others once each, and two
// rows in the trail of each of 20,000 more intents, whose hashes are their own.
const (
	popular     = "popular"
	popularHash = "0x00000000000000000000000000000000000000000000000000000000000000aa"
	merchants   = 501

	insertPopular = `
insert into payment_intents (
    merchant_id, id, chain, token, payer, merchant, amount, state, version, reference, created_at, updated_at, expires_at)
select case when i > 20000 then 'm-' || i % 100 + 1 else 'm-0' end,
       (lpad(to_hex($1::bigint / 1000 - i), 12, '0') || '7000' || '8' || substr(md5(i::text), 1, 15))::uuid,
       'evm:1', '0x5FbDB2315678afecb367f032d93F642f64180aa3', '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266',
       '0x70997970C51812dc3A010C7d01b50e0d17dc79C8', 1500000, 'settled', 1, 'popular', at, at, at + interval '15 minutes'
from (
    select i, 'epoch'::timestamptz + ($1::bigint - i * 1000) * interval '1 microsecond' as at
    from generate_series(1::bigint, 20100::bigint) as i
) as made`

	insertTrails = `
insert into intent_transitions (merchant_id, intent_id, version, from_state, to_state, actor, tx_hash, at)
select merchant_id, id, version, case version when 2 then 'settling' else 'confirming' end,
       case version when 2 then 'confirming' else 'settled' end, 'listener',
       case when reference = 'popular' then '` + popularHash + `' else '0x' || md5(id::text) || md5(id::text) end, created_at
from (
    (select merchant_id, id, reference, created_at from payment_intents where reference = 'popular')
    union all
    (select merchant_id, id, '', created_at from payment_intents where state = 'settled' order by id desc limit 20000)
) as i
cross join generate_series(2, 3) as version`
)

func fillForSearch(t *testing.T, db *pgtest.DB, begin time.Time) {
	t.Helper()
	exec(t, db.Pool, insertPopular, begin.Add(-24*time.Hour).UnixMicro())
	exec(t, db.Pool, insertTrails)
	// Hint bits and the visibility map too, so that no query pays for them.
	exec(t, db.Pool, "vacuum analyze payment_intents")
	exec(t, db.Pool, "vacuum analyze intent_transitions")
}

// searchMillion holds each search to what it may cost: the way down an index for
// each merchant that it has to ask, and two or three pages for each intent.
func searchMillion(t *testing.T, pool *pgxpool.Pool) {
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	rareHash := pgtestVal[string](t, conn, "select tx_hash from intent_transitions where tx_hash <> '"+popularHash+"' order by intent_id desc limit 1")
	one := intent.ID(uuid.MustParse(pgtestVal[string](t, conn, "select max(id::text) from payment_intents where merchant_id = 'm-7'")))
	nobodys := intent.FirstID(time.Now())
	for i, c := range []struct {
		q     intent.Search
		limit int
		ask   int // how many merchants
		rows  float64
	}{
		{intent.Search{ID: &one}, 100, merchants, 1},
		{intent.Search{ID: &one, Merchant: small}, 100, 1, 1},
		{intent.Search{ID: &nobodys, Without: ":"}, 100, merchants, 0},
		{intent.Search{ID: &one, With: ":"}, 100, merchants, 0},
		{intent.Search{Reference: "order-12500"}, 100, 21, 26},
		{intent.Search{Reference: "nobody"}, 100, 1, 0},
		{intent.Search{Reference: popular}, 100, 101, 101},
		{intent.Search{Reference: popular, Without: "-0"}, 100, 101, 100},
		{intent.Search{Reference: popular, Merchant: whale}, 100, 1, 101},
		{intent.Search{Reference: popular, Merchant: small}, 10, 1, 1},
		{intent.Search{TxHash: rareHash}, 100, 1, 1},
		{intent.Search{TxHash: strings.Replace(popularHash, "aa", "bb", 1)}, 100, 1, 0},
		{intent.Search{TxHash: popularHash}, 100, 101, 101},
		{intent.Search{TxHash: popularHash, Merchant: whale}, 10, 1, 11},
	} {
		sql, args := searchSQL(c.q, c.limit)
		name := "search_" + string(rune('a'+i))
		if _, err := conn.Exec(t.Context(), "prepare "+name+" as "+sql); err != nil {
			t.Fatal(err)
		}
		plan := explain(t, conn.Conn(), name, args)
		if plan.Rows < c.rows || plan.Rows > c.rows+1 {
			t.Errorf("%+v: %v rows, want about %v", c.q, plan.Rows, c.rows)
		}
		if pages := 8*c.ask + 10*(c.limit+1); plan.Hit+plan.Read > pages {
			t.Errorf("%+v: %d pages, want %d at most", c.q, plan.Hit+plan.Read, pages)
		}
		for _, n := range plan.all() {
			if n.Type == "Seq Scan" || n.Type == "Bitmap Heap Scan" || n.Rows*n.Loops > float64(4*(c.ask+c.limit+2)) || n.Filtered > merchants+1 || n.Rechecked > 0 {
				t.Errorf("%+v: too much is read: %+v", c.q, n)
			}
		}
	}
}

func pgtestVal[T any](t *testing.T, conn *pgxpool.Conn, sql string) T {
	t.Helper()
	rows, _ := conn.Query(t.Context(), sql)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestStore_Search_TimesOut: the server ends a search that takes too long, so that
// the connection is in the pool again and its session as it was.
func TestStore_Search_TimesOut(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := connect(t, db.URL, "application_name", "searches")
	s := New(pool, nil)
	if _, _, err := s.Search(t.Context(), intent.Search{Reference: "r"}, 1); err != nil {
		t.Fatal(err)
	}
	lock, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(context.Background())
	if _, err := lock.Exec(t.Context(), "lock table payment_intents in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	made := pool.Stat().NewConnsCount()
	// Of the two that could end it, it is the server.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, _, err := s.Search(ctx, intent.Search{Reference: "r"}, 1); !errors.Is(err, intent.ErrUnavailable) || ctx.Err() != nil {
		t.Errorf("Search = %v, want ErrUnavailable by the server", err)
	}
	stat := pool.Stat()
	if stat.AcquiredConns() != 0 || stat.NewConnsCount() != made || stat.TotalConns() == 0 {
		t.Errorf("the connection is lost: %d in use, %d of %d made since", stat.AcquiredConns(), stat.NewConnsCount()-made, stat.TotalConns())
	}
	for _, conn := range pool.AcquireAllIdle(t.Context()) {
		if got := pgtestVal[string](t, conn, "show statement_timeout"); got != "0" {
			t.Errorf("statement_timeout is left at %s", got)
		}
		conn.Release()
	}
}

// TestStore_Search_KeepsNoStatement: a search takes no place among the statements
// that a connection keeps, and writes nothing.
func TestStore_Search_KeepsNoStatement(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := connect(t, db.URL, "application_name", "searches")
	s := New(pool, nil)
	id := intent.FirstID(time.Now())
	for _, q := range []intent.Search{{ID: &id}, {Reference: "r"}, {TxHash: popularHash}} {
		if _, _, err := s.Search(t.Context(), q, 10); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range pool.AcquireAllIdle(t.Context()) {
		rows, _ := conn.Query(t.Context(), "select count(*) from pg_prepared_statements where statement like '%merchants%'", pgx.QueryExecModeExec)
		if named, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int]); named != 0 || err != nil {
			t.Errorf("%d searches are named statements, %v", named, err)
		}
		conn.Release()
	}
}
