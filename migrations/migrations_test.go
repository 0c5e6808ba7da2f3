package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"intentd/internal/pgtest"
	"intentd/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestUp(t *testing.T) {
	t.Parallel()

	t.Run("ReplicasAtOnce", func(t *testing.T) {
		t.Parallel()
		for range 10 {
			db := pgtest.Empty(t)
			const replicas = 5
			errs := make(chan error, replicas)
			for range replicas {
				go func() { errs <- migrations.Up(t.Context(), db.URL) }()
			}
			for range replicas {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			requireVersion(t, db, migrations.Latest(), false)
		}
	})

	// Each table is made by another migration: the first of all, and one that
	// finds its predecessor done.
	for table, done := range map[string]uint{"payment_intents": 0, "idempotency_keys": 1, "api_keys": 2} {
		t.Run("KilledWhileMaking_"+table, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Empty(t)
			migrating, release := blockedUp(t, t.Context(), db, table)
			db.Exec(t, "select pg_terminate_backend($1)", migrating.backend)
			if err := <-migrating.result; err == nil {
				t.Error("Up succeeded though its connection was killed")
			}
			release()
			requireVersion(t, db, done, false)

			if err := migrations.Up(t.Context(), db.URL); err != nil {
				t.Error(err)
			}
			requireVersion(t, db, migrations.Latest(), false)
		})
	}

	t.Run("ContextEnds", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		// The server is not to notice by itself that its client has gone.
		name := pgtest.QueryVal[string](t, db, "select current_database()")
		db.Exec(t, "alter database "+name+" set client_connection_check_interval = 0")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		migrating, release := blockedUp(t, ctx, db, "payment_intents")
		cancel()
		if err := <-migrating.result; !errors.Is(err, context.Canceled) {
			t.Errorf("Up = %v, want context.Canceled", err)
		}
		// The table's lock is still held, so that only the cancellation can
		// have ended the backend.
		poll(t, "the end of the backend", func() bool {
			return pgtest.QueryVal[int](t, db, "select count(*) from pg_stat_activity where pid = $1", migrating.backend) == 0
		})
		release()
		requireVersion(t, db, 0, false)
	})

	t.Run("ContextEndsWhileOthersMigrate", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		migrating, release := blockedUp(t, t.Context(), db, "payment_intents")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		second := make(chan error, 1)
		go func() { second <- migrations.Up(ctx, db.URL) }()
		poll(t, "the second to wait for its turn", func() bool {
			return pgtest.QueryVal[int](t, db, `
				select count(*) from pg_locks
				 where locktype = 'advisory' and not granted
				   and database = (select oid from pg_database where datname = current_database())`) == 1
		})
		cancel()
		if err := <-second; !errors.Is(err, context.Canceled) {
			t.Errorf("the second Up = %v, want context.Canceled", err)
		}
		release()
		if err := <-migrating.result; err != nil {
			t.Errorf("the first Up = %v", err)
		}
		requireVersion(t, db, migrations.Latest(), false)
	})

	t.Run("FailingStatementUndoesItsFile", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		files := fstest.MapFS{
			"000001_good.up.sql": {Data: []byte("create table good (n int) -- no semicolon")},
			"000002_bad.up.sql":  {Data: []byte("create table bad (n int);\nselect 1 / 0;\n")},
		}
		err := migrations.UpFiles(t.Context(), db.URL, files)
		if err == nil || !strings.Contains(err.Error(), "division by zero") {
			t.Errorf("UpFiles = %v, want the server's error", err)
		}
		requireVersion(t, db, 1, false)
		const exists = "select to_regclass($1) is not null"
		if !pgtest.QueryVal[bool](t, db, exists, "good") {
			t.Error("the migration before the failing one is undone")
		}
		if pgtest.QueryVal[bool](t, db, exists, "bad") {
			t.Error("the failing migration's first statement stays")
		}
	})

	// Who has large tables makes the indexes before, without holding up anybody.
	t.Run("IndexesMadeByHand", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		const indexes = "select string_agg(indexname || indexdef, ',' order by indexname) from pg_indexes where schemaname = 'public'"
		want := pgtest.QueryVal[string](t, db, indexes)
		db.Exec(t, "create index payment_intents_reference_idx on payment_intents (merchant_id, reference, id) where reference is not null")
		db.Exec(t, "update schema_migrations set version = 4") // with what 5 and 6 make there already
		if err := migrations.Up(t.Context(), db.URL); err != nil {
			t.Error(err)
		}
		requireVersion(t, db, migrations.Latest(), false)
		if diff := cmp.Diff(want, pgtest.QueryVal[string](t, db, indexes)); diff != "" {
			t.Errorf("indexes (-want +got):\n%s", diff)
		}
	})

	// One that was cut short while it was made by hand serves nobody, and is no
	// reason to drop the one that does.
	t.Run("IndexesLeftInvalid", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		db.Exec(t, "create index payment_intents_reference_idx on payment_intents (merchant_id, reference, id) where reference is not null")
		db.Exec(t, "update schema_migrations set version = 4")
		db.Exec(t, `
update pg_index
set indisvalid = false
where indexrelid in ('intent_transitions_tx_hash_idx'::regclass, 'payment_intents_reference_merchant_idx'::regclass)`)
		if err := migrations.Up(t.Context(), db.URL); err != nil {
			t.Error(err)
		}
		requireVersion(t, db, migrations.Latest(), false)
		valid := pgtest.QueryVal[int](t, db, `
select count(*)
from pg_index
where indexrelid in (to_regclass('intent_transitions_tx_hash_idx'), to_regclass('payment_intents_reference_merchant_idx'))
  and indisvalid`)
		if valid != 2 {
			t.Errorf("%d of the two indexes serve", valid)
		}
	})

	t.Run("CurrentNeedsNoTurn", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		name := pgtest.QueryVal[string](t, db, "select current_database()")
		id, err := database.GenerateAdvisoryLockId(name, "public", "schema_migrations")
		if err != nil {
			t.Fatal(err)
		}
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), "select pg_advisory_xact_lock("+id+")"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := migrations.Up(ctx, db.URL); err != nil {
			t.Error(err)
		}
	})

	t.Run("NewerSchemaIsLeftAlone", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		newer := migrations.Latest() + 1
		db.Exec(t, "update schema_migrations set version = $1", newer)
		if err := migrations.Up(t.Context(), db.URL); err != nil {
			t.Error(err)
		}
		requireVersion(t, db, newer, false)
	})

	t.Run("DirtyIsRefused", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		db.Exec(t, "update schema_migrations set version = 1, dirty = true")
		err := migrations.Up(t.Context(), db.URL)
		if !errors.Is(err, migrations.ErrDirty) {
			t.Fatalf("Up = %v, want ErrDirty", err)
		}
		for _, want := range []string{"version 1", "update schema_migrations set version", "delete from schema_migrations"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not say %q", err, want)
			}
		}
		requireVersion(t, db, 1, true)
	})

	t.Run("AnyConnectionString", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		c := db.Pool.Config().ConnConfig
		user := url.UserPassword(c.User, c.Password)
		for _, s := range []string{
			fmt.Sprintf("postgres://%s@/%s?host=%s&port=%d&pool_max_conns=3&default_query_exec_mode=exec",
				user, c.Database, c.Host, c.Port),
			fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s", c.Host, c.Port, c.User, c.Password, c.Database),
			fmt.Sprintf("postgres://%s@/%s?host=/nonexistent,%s&port=1,%d", user, c.Database, c.Host, c.Port),
		} {
			if err := migrations.Up(t.Context(), s); err != nil {
				t.Error(err)
			}
			if err := migrations.Down(t.Context(), s); err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("OldServer", func(t *testing.T) {
		t.Parallel()
		if err := migrations.CheckServer(140022); !errors.Is(err, migrations.ErrServerVersion) {
			t.Errorf("version 14: %v, want ErrServerVersion", err)
		}
		if err := migrations.CheckServer(150000); err != nil {
			t.Errorf("version 15: %v", err)
		}
	})
}

func TestDown(t *testing.T) {
	t.Parallel()

	t.Run("RoundTrip", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		before := schema(t, db)
		for range 2 {
			if err := migrations.Down(t.Context(), db.URL); err != nil {
				t.Fatal(err)
			}
			requireVersion(t, db, 0, false)
			if diff := cmp.Diff([]string{"schema_migrations.dirty boolean", "schema_migrations.version bigint"}, schema(t, db)); diff != "" {
				t.Errorf("after Down (-want +got):\n%s", diff)
			}
		}
		if err := migrations.Up(t.Context(), db.URL); err != nil {
			t.Fatal(err)
		}
		requireVersion(t, db, migrations.Latest(), false)
		if diff := cmp.Diff(before, schema(t, db)); diff != "" {
			t.Errorf("after Down and Up (-before +after):\n%s", diff)
		}
	})

	t.Run("NewerSchemaIsRefused", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		newer := migrations.Latest() + 1
		db.Exec(t, "update schema_migrations set version = $1", newer)
		if err := migrations.Down(t.Context(), db.URL); !errors.Is(err, migrations.ErrUnknownVersion) {
			t.Errorf("Down = %v, want ErrUnknownVersion", err)
		}
		requireVersion(t, db, newer, false)
	})
}

func TestVersion(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	requireVersion(t, db, 0, false)
	if got := schema(t, db); len(got) != 0 {
		t.Errorf("asking for the version has made %q", got)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	ups, err := filepath.Glob("*.up.sql")
	if err != nil || len(ups) == 0 {
		t.Fatalf("Glob = %q, %v", ups, err)
	}
	downs, err := filepath.Glob("*.down.sql")
	if err != nil {
		t.Fatal(err)
	}
	var wantDowns []string
	for _, up := range ups {
		wantDowns = append(wantDowns, strings.TrimSuffix(up, ".up.sql")+".down.sql")
	}
	if diff := cmp.Diff(wantDowns, downs); diff != "" {
		t.Errorf("each .up.sql needs its .down.sql (-want +got):\n%s", diff)
	}
	if want := uint(len(ups)); migrations.Latest() != want {
		t.Errorf("Latest = %d with %d files: the numbers have gaps", migrations.Latest(), want)
	}
}

// blocked is an Up that waits for a lock inside a migration.
type blocked struct {
	backend int
	result  <-chan error
}

// blockedUp starts an Up that has to wait in the migration that makes table,
// until release is called.
func blockedUp(t *testing.T, ctx context.Context, db *pgtest.DB, table string) (_ blocked, release func()) {
	t.Helper()
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(t.Context(), "create table "+pgx.Identifier{table}.Sanitize()+" ()"); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- migrations.Up(ctx, db.URL) }()
	var backend int
	poll(t, "Up to wait for a lock", func() bool {
		backend = pgtest.QueryVal[int](t, db, `
			select coalesce(max(pid), 0) from pg_stat_activity
			 where datname = current_database() and wait_event_type = 'Lock' and query like $1`,
			"%create table "+table+"%")
		return backend != 0
	})
	return blocked{backend, result}, func() {
		t.Helper()
		if err := tx.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// poll waits for what only the server can tell.
func poll(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func requireVersion(t *testing.T, db *pgtest.DB, want uint, wantDirty bool) {
	t.Helper()
	got, dirty, err := migrations.Version(context.Background(), db.URL)
	if err != nil || got != want || dirty != wantDirty {
		t.Fatalf("Version = %d, %t, %v; want %d, %t", got, dirty, err, want, wantDirty)
	}
}

// schema lists the columns of the database's tables.
func schema(t *testing.T, db *pgtest.DB) []string {
	t.Helper()
	// Query's error comes with the rows.
	rows, _ := db.Pool.Query(t.Context(), `
		select format('%s.%s %s', table_name, column_name, data_type)
		  from information_schema.columns
		 where table_schema = 'public'
		 order by 1`)
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return columns
}
