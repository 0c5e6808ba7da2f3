package pgintent

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"intentd/internal/intent"
	"intentd/internal/pgtest"
)

// The table of the test below: half of the rows are one merchant's, the others
// of 500; they come in turn, at an even pace through 100 days. One row in 1000
// needs review, and reference is one's own but for 20 rows that share it.
const (
	rows  = 1_000_000
	whale = "m-0"
	small = "m-7"

	insertMany = `
insert into payment_intents (
    merchant_id, id, chain, token, payer, merchant, amount, state, version, reference, created_at, updated_at, expires_at)
select case when i % 2 = 0 then 'm-0' else 'm-' || 1 + i / 2 % 500 end,
       (lpad(to_hex(us / 1000), 12, '0') || '7' || lpad(to_hex(us % 1000 * 4096 / 1000), 3, '0')
        || '8' || substr(md5(i::text), 1, 15))::uuid,
       'evm:1', '0x5FbDB2315678afecb367f032d93F642f64180aa3', '0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266',
       '0x70997970C51812dc3A010C7d01b50e0d17dc79C8', 1500000,
       case when i / 1000 % 1000 = i % 1000 then 'needs_review'
            when i / 1000 % 10 = 0 then 'canceled'
            when i > 990000 then 'created'
            else 'settled'
       end,
       1,
       case when i % 3 > 0 then 'order-' || i / 40 end,
       at, at, at + interval '15 minutes'
from (
    select i, $1::bigint + i * 8640000 as us, 'epoch'::timestamptz + ($1::bigint + i * 8640000) * interval '1 microsecond' as at
    from generate_series(1::bigint, $2::bigint) as i
) as made`
)

// node is a part of a plan, as explain tells it.
type node struct {
	Type      string  `json:"Node Type"`
	Index     string  `json:"Index Name"`
	Rows      float64 `json:"Actual Rows"`
	Loops     float64 `json:"Actual Loops"`
	Filtered  float64 `json:"Rows Removed by Filter"`
	Rechecked float64 `json:"Rows Removed by Index Recheck"`
	Hit       int     `json:"Shared Hit Blocks"`
	Read      int     `json:"Shared Read Blocks"`
	Plans     []node
}

// all returns the node and those below it.
func (n node) all() []node {
	nodes := []node{n}
	for _, below := range n.Plans {
		nodes = append(nodes, below.all()...)
	}
	return nodes
}

// TestStore_Million says what every shape of a list and of a search costs on a
// large table: in rows and pages, which are the same on every machine.
func TestStore_Million(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	fill(t, db, begin)
	fillForSearch(t, db, begin)

	day := func(n float64) time.Time { return begin.Add(time.Duration(n * 24 * float64(time.Hour))) }
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		t.Run("Search_"+mode, func(t *testing.T) {
			t.Parallel()
			searchMillion(t, connect(t, db.URL, "plan_cache_mode", mode))
		})
		t.Run("List_"+mode, func(t *testing.T) {
			t.Parallel()
			conn, err := connect(t, db.URL, "plan_cache_mode", mode).Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			prepared := make(map[string]string)
			shapes := 0
			for _, merchantID := range []string{whale, small, "nobody"} {
				for _, q := range queries(t, db, merchantID, day) {
					shapes++
					sql, args := listSQL(merchantID, q)
					if prepared[sql] == "" {
						prepared[sql] = fmt.Sprint("list_", len(prepared))
						if _, err := conn.Exec(t.Context(), "prepare "+prepared[sql]+" as "+sql); err != nil {
							t.Fatal(err)
						}
					}
					plan := explain(t, conn.Conn(), prepared[sql], args)
					judge(t, plan, merchantID, q)
				}
			}
			if len(prepared) != 48 || shapes != 3*8*48 {
				t.Errorf("%d statements for %d queries", len(prepared), shapes)
			}
			judgeGathered(t, conn.Conn())
		})
	}
}

// judgeGathered holds the statement that serves many reads to one way down the
// primary key for each.
func judgeGathered(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	const many = 100
	found, _ := conn.Query(t.Context(), "select id::text from payment_intents where merchant_id = $1 limit $2", whale, many)
	ids, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "prepare gathered as "+selectIntents); err != nil {
		t.Fatal(err)
	}
	merchants := strings.Repeat(whale+",", many)
	plan := explain(t, conn, "gathered", []any{"{" + merchants[:len(merchants)-1] + "}", "{" + strings.Join(ids, ",") + "}"})
	scans := 0
	for _, n := range plan.all() {
		switch n.Type {
		case "Nested Loop", "Function Scan", "Limit", "Subquery Scan":
		case "Index Scan":
			scans++
			if n.Loops != many || n.Rows != 1 || n.Filtered > 0 || n.Rechecked > 0 {
				t.Errorf("the scan is not one row for each read: %+v", n)
			}
		default:
			t.Errorf("not a way down an index: %+v", n)
		}
	}
	if scans != 1 || plan.Rows != many || plan.Hit+plan.Read > 8*many {
		t.Errorf("%d scans, %v rows, %d pages for %d reads: %+v", scans, plan.Rows, plan.Hit+plan.Read, many, plan)
	}
}

// fill makes the table, with indexes as the migrations make them, which is
// quicker when the rows are there.
func fill(t *testing.T, db *pgtest.DB, begin time.Time) {
	t.Helper()
	found, _ := db.Pool.Query(t.Context(), `
select indexname || ';' || indexdef
from pg_indexes
where tablename = 'payment_intents'
  and indexname <> 'payment_intents_pkey'`)
	indexes, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, index := range indexes {
		name, _, _ := strings.Cut(index, ";")
		exec(t, db.Pool, "drop index "+name)
	}
	exec(t, db.Pool, insertMany, begin.UnixMicro(), rows)
	for _, index := range indexes {
		_, definition, _ := strings.Cut(index, ";")
		exec(t, db.Pool, definition)
	}
}

// queries returns each shape of a query: every filter, or not, with either
// cursor, or none; a common state and a rare one; a wide range of time, a narrow
// one, and the last day; a short page and the longest.
func queries(t *testing.T, db *pgtest.DB, merchantID string, day func(float64) time.Time) (all []intent.Query) {
	t.Helper()
	for _, variant := range []struct {
		limit       int
		state       intent.State
		from, until float64
	}{
		{10, intent.Settled, 3, 30},
		{100, intent.Settled, 3, 30},
		{10, intent.Settled, 14.5, 15.5},
		{100, intent.Settled, 14.5, 15.5},
		{100, intent.Settled, 98, 99},
		{100, intent.Created, 99.5, 100},
		{10, intent.NeedsReview, 3, 30},
		{100, intent.NeedsReview, 14.5, 15.5},
	} {
		// One that is there, at the time that the others ask for.
		found, _ := db.Pool.Query(t.Context(), `
select reference
from payment_intents
where merchant_id = $1
  and state = $2
  and reference is not null
  and created_at >= $3
order by id
limit 1`, merchantID, variant.state, day((variant.from+variant.until)/2))
		references, err := pgx.CollectRows(found, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		reference := append(references, "order-0")[0]
		for shape := range 48 {
			q := intent.Query{Limit: variant.limit}
			if shape&1 != 0 {
				q.State = variant.state
			}
			if shape&2 != 0 {
				q.Reference = reference
			}
			if shape&4 != 0 {
				q.CreatedFrom = day(variant.from)
			}
			if shape&8 != 0 {
				q.CreatedBefore = day(variant.until)
			}
			cursor := intent.FirstID(day((variant.from + variant.until) / 2))
			switch shape / 16 {
			case 1:
				q.After = &cursor
			case 2:
				q.Before = &cursor
			}
			all = append(all, q)
		}
	}
	return all
}

// explain runs a prepared statement. It can be given no parameters, so that they
// are written out.
func explain(t *testing.T, conn *pgx.Conn, name string, args []any) node {
	t.Helper()
	literals := make([]string, len(args))
	for i, arg := range args {
		switch v := arg.(type) {
		case string:
			literals[i] = "'" + v + "'"
		case time.Time:
			literals[i] = "'" + v.Format(time.RFC3339Nano) + "'"
		default:
			literals[i] = fmt.Sprint(v)
		}
	}
	var text string
	err := conn.QueryRow(t.Context(),
		fmt.Sprintf("explain (analyze, buffers, timing off, format json) execute %s(%s)", name, strings.Join(literals, ", ")),
		pgx.QueryExecModeSimpleProtocol).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan
}

// judge holds a plan to what a page may cost: the rows of the page and one more,
// each a page of the table's, and the way down one index.
func judge(t *testing.T, plan node, merchantID string, q intent.Query) {
	t.Helper()
	wanted := float64(q.Limit + 1)
	// A reference is shared by few, whose states are looked at.
	filtered, pages := 0.0, wanted+15
	switch {
	case q.Reference != "" && q.State != "":
		// There are two indexes to choose from. Within a short time either may look
		// better, by statistics that are a sample: neither is to read more than a
		// hundredth of the table.
		filtered, pages = rows/100, rows/1000
	case q.Reference != "":
		filtered = 20
	}
	fail := func(what string, n node) {
		t.Helper()
		t.Errorf("list of %s, %+v: %s: %+v", merchantID, q, what, n)
	}
	scans := 0
	for _, n := range plan.all() {
		switch n.Type {
		case "Limit":
		case "Index Scan", "Index Scan Backward", "Index Only Scan":
			scans++
			if n.Rows*n.Loops > wanted || n.Filtered > filtered || n.Rechecked > 0 {
				fail("too many rows", n)
			}
		default:
			fail("not a scan of an index in its order", n)
		}
	}
	if scans != 1 {
		fail("not one scan", plan)
	}
	if float64(plan.Hit+plan.Read) > pages {
		fail("too many pages", plan)
	}
	// Full, or the counts would say nothing.
	if merchantID == whale && q.Reference == "" && q.Limit == 10 && plan.Rows != wanted {
		fail("the page is not full", plan)
	}
	if merchantID == whale && plan.Rows == 0 && q.Before == nil && q.After == nil {
		fail("the page is empty", plan)
	}
}

// TestStore_List_PlansEachTime: a list is never a named statement, since the plan
// that is kept for one knows no values.
func TestStore_List_PlansEachTime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := connect(t, db.URL, "application_name", "lists")
	s := New(pool, nil)
	for range 10 {
		if _, _, err := s.List(t.Context(), "m", intent.Query{Limit: 5, State: intent.Created, Reference: "r", CreatedFrom: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range pool.AcquireAllIdle(t.Context()) {
		var named int
		err := conn.QueryRow(t.Context(), `select count(*) from pg_prepared_statements where statement like '%limit%'`, pgx.QueryExecModeExec).Scan(&named)
		if named != 0 || err != nil {
			t.Errorf("%d lists are named statements, %v", named, err)
		}
		conn.Release()
	}
}
