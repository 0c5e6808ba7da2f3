package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

func TestInline(t *testing.T) {
	t.Parallel()
	args := make([]string, 10)
	for i := range args {
		args[i] = fmt.Sprint("v", i+1)
	}
	got, err := inline("f($1, $10)", args)
	if want := "f((v1), (v10))"; err != nil || got != want {
		t.Errorf("inline = %q, %v, want %q", got, err, want)
	}
	if _, err := inline("f($1, $2)", args[:1]); err == nil {
		t.Error("a parameter without a value was let through")
	}
	if _, err := inline("f($1)", args[:2]); err == nil {
		t.Error("a value without a parameter was let through")
	}
}

func TestReadLog(t *testing.T) {
	t.Parallel()
	const log = "0 1 900 0 100 0\n" + // before the window
		"1 1 1500 0 100 500000\n" +
		"0 2 2500 0 101 499999\n" +
		"0 3 3500 0 101 500000\n" // after it
	var got []time.Duration
	latest, err := readLog(strings.NewReader(log), time.Unix(100, 500_000_000), time.Unix(101, 500_000_000), &got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]time.Duration{1500 * time.Microsecond, 2500 * time.Microsecond}, got); diff != "" {
		t.Errorf("latencies (-want +got):\n%s", diff)
	}
	if !latest.Equal(time.Unix(101, 500_000_000)) {
		t.Errorf("latest = %v", latest)
	}
	for _, bad := range []string{"0 1 failed 0 100 0", "0 1 1"} {
		if _, err := readLog(strings.NewReader(bad), time.Time{}, time.Time{}, &got); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// shared is the server of all tests, which trades durability for speed.
var shared *postgres

func TestMain(m *testing.M) {
	code, err := withPostgres(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withPostgres(m *testing.M) (code int, err error) {
	shared, err = startPostgres(context.Background(), map[string]string{"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, shared.stop()) }()
	return m.Run(), nil
}

// newDatabase makes a database for one test.
func newDatabase(t *testing.T, name string) string {
	t.Helper()
	url, err := shared.database(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return url
}

func TestPgbench_Run(t *testing.T) {
	t.Parallel()
	url := newDatabase(t, "limit")
	text, err := script("..")
	if err != nil {
		t.Fatal(err)
	}
	program, err := programOf("pgbench")
	if err != nil {
		t.Fatal(err)
	}
	marks := 0
	got, err := pgbench{program: program, url: url, script: text, dir: t.TempDir()}.run(t.Context(), 2, 0, 200*time.Millisecond,
		func() error { marks++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if got.Requests == 0 || got.P99 < got.P50 || marks != 2 {
		t.Errorf("run = %+v, %d marks", got, marks)
	}
	if err := audit(t.Context(), url); err != nil {
		t.Error(err)
	}
	// What it writes must be as large as what the service writes.
	err = with(t.Context(), url, func(conn *pgx.Conn) error {
		var key, body, distinct, all int
		err := conn.QueryRow(t.Context(), "select max(length(key)), max(length(body)), count(distinct key), count(*) from idempotency_keys").
			Scan(&key, &body, &distinct, &all)
		if key != 36 || body != len(answerBody) || distinct != all || all < got.Requests {
			t.Errorf("keys of %d bytes, answers of %d, %d keys in %d records for %d transactions", key, body, distinct, all, got.Requests)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestPostgres_Durable(t *testing.T) {
	t.Parallel()
	if err := shared.durable(); err == nil || !strings.Contains(err.Error(), "fsync is off") {
		t.Errorf("durable = %v, want that fsync is off", err)
	}
}

func TestFill(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := newDatabase(t, "filled")
	const n = 100
	if err := fillRecords(ctx, url, fillRecordsSQL, n, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := audit(ctx, url); err == nil {
		t.Error("records without intents pass the audit")
	}
	if err := fillIntents(ctx, url, n, "created"); err != nil {
		t.Fatal(err)
	}
	if err := audit(ctx, url); err != nil {
		t.Error(err)
	}
	count := func(sql string, args ...any) (got int) {
		t.Helper()
		err := with(ctx, url, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, sql, args...).Scan(&got) })
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := count("select count(*) from idempotency_keys where key = any($1) and expires_at > now()", []string{recordedKey(1), recordedKey(n)}); got != 2 {
		t.Errorf("%d of the first and the last recorded key are there, want 2", got)
	}
	if got := count("select count(*) from payment_intents where state = 'created' and expires_at <= now()"); got != n {
		t.Errorf("%d intents are due, want %d", got, n)
	}
	// The peers' table takes the same records.
	if err := fillRecords(ctx, url, fillPeerRecordsSQL, n, 48*time.Hour); err != nil {
		t.Fatal(err)
	}
	if got := count("select count(*) from peer_keys where expires_at <= now()"); got != n {
		t.Errorf("%d of the peers' records have expired, want %d", got, n)
	}
	if err := execSQL(ctx, url, emptySQL); err != nil {
		t.Fatal(err)
	}
	if got := count("select (select count(*) from payment_intents) + (select count(*) from idempotency_keys) + (select count(*) from peer_keys)"); got != 0 {
		t.Errorf("%d rows are left, want 0", got)
	}
	if wal, err := shared.wal(ctx); err != nil || wal == 0 {
		t.Errorf("wal = %d, %v", wal, err)
	}
	if cpu, err := cpuSeconds(shared.pid); err != nil || cpu < 0 || shared.pid == os.Getpid() {
		t.Errorf("cpuSeconds(%d) = %v, %v", shared.pid, cpu, err)
	}
}
