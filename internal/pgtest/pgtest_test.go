package pgtest

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"intentd/migrations"
)

func TestMain(m *testing.M) { Main(m) }

func TestNew(t *testing.T) {
	t.Parallel()

	t.Run("IsMigrated", func(t *testing.T) {
		t.Parallel()
		db := New(t)
		version, dirty, err := migrations.Version(t.Context(), db.URL)
		if err != nil || dirty || version != migrations.Latest() {
			t.Errorf("Version = %d, %t, %v; want %d, clean", version, dirty, err, migrations.Latest())
		}
	})

	t.Run("TwoDoNotSeeEachOther", func(t *testing.T) {
		t.Parallel()
		a, b := New(t), New(t)
		a.Exec(t, "create table only_here (n int)")
		a.Exec(t, "select pg_advisory_lock(1)")
		defer a.Pool.Reset()
		const exists = "select to_regclass('only_here') is not null"
		if !QueryVal[bool](t, a, exists) {
			t.Error("the table is not in the database it was made in")
		}
		if QueryVal[bool](t, b, exists) {
			t.Error("a table made in one database is in the other")
		}
		if !QueryVal[bool](t, b, "select pg_try_advisory_xact_lock(1)") {
			t.Error("an advisory lock held in one database is held in the other")
		}
	})

	t.Run("IsDroppedAfterTheTest", func(t *testing.T) {
		t.Parallel()
		watcher := New(t)
		var name string
		t.Run("Inner", func(t *testing.T) { name = New(t).name }) //nolint:paralleltest // it has to be over where it is looked for
		if n := QueryVal[int](t, watcher, "select count(*) from pg_database where datname = $1", name); n != 0 {
			t.Errorf("database %s is still there", name)
		}
	})
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	db := Empty(t)
	const tables = "select count(*) from pg_class where relnamespace = 'public'::regnamespace"
	if n := QueryVal[int](t, db, tables); n != 0 {
		t.Errorf("%d relations in an empty database", n)
	}
}

func TestDB_leftovers(t *testing.T) {
	t.Parallel()

	t.Run("Nothing", func(t *testing.T) {
		t.Parallel()
		db := New(t)
		db.Exec(t, "select 1")
		if left, err := db.leftovers(); err != nil || len(left) != 0 {
			t.Errorf("leftovers = %q, %v; want none", left, err)
		}
	})

	for name, tt := range map[string]struct{ statement, want string }{
		"Transaction":  {"begin", "idle in transaction"},
		"AdvisoryLock": {"select pg_advisory_lock(7)", "holds the advisory lock (0, 7)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, other := New(t), New(t)
			conn, err := db.Pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = conn.Conn().Close(context.Background())
				conn.Release()
			}()
			if _, err := conn.Exec(t.Context(), tt.statement); err != nil {
				t.Fatal(err)
			}
			left, err := db.leftovers()
			if err != nil || len(left) != 1 || !strings.Contains(left[0], tt.want) {
				t.Errorf("leftovers = %q, %v; want one with %q", left, err, tt.want)
			}
			if left, err := other.leftovers(); err != nil || len(left) != 0 {
				t.Errorf("leftovers of another database = %q, %v; want none", left, err)
			}
		})
	}
}

func TestStart(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		env  map[string]string
		want []string
	}{
		"NothingToBeHad": {
			map[string]string{"PG_BINDIR": "/nonexistent", "POSTGRES_IMAGE": "localhost:1/no/such:image"},
			[]string{"TEST_DATABASE_URL", "container", "no usable PostgreSQL server programs"},
		},
		"NoPrograms": {
			map[string]string{"TEST_DATABASE": "private", "PG_BINDIR": "/nonexistent"},
			[]string{"no usable PostgreSQL server programs"},
		},
		"UnknownWay": {
			map[string]string{"TEST_DATABASE": "magic"},
			[]string{`"magic"`, "container or private"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := start(func(name string) string { return tt.env[name] })
			if err == nil {
				t.Fatalf("start = %s, want an error", s.url)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func TestWithDatabase(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, url, want string }{
		{"URL", "postgres://u:p@h:1/old?sslmode=disable", "postgres://u:p@h:1/new?sslmode=disable"},
		{"NoPath", "postgresql://u@h", "postgresql://u@h/new"},
		{"Socket", "postgres://u@/old?host=%2Ftmp%2Fx", "postgres://u@/new?host=%2Ftmp%2Fx"},
		{"SeveralHosts", "postgres://u@a:1,b:2/old", "postgres://u@a:1,b:2/new"},
		{"Keywords", "host=h dbname=old pool_max_conns=3", "host=h dbname=old pool_max_conns=3 dbname=new"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := withDatabase(tt.url, "new")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("withDatabase (-want +got):\n%s", diff)
			}
		})
	}

	t.Run("RefusesAQueryThatOverrides", func(t *testing.T) {
		t.Parallel()
		if got, err := withDatabase("postgres://h/x?dbname=old", "new"); err == nil {
			t.Errorf("withDatabase = %s, want an error", got)
		}
	})
}

func TestImage(t *testing.T) {
	t.Parallel()
	none := func(string) string { return "" }
	if got := Image(none); !strings.HasPrefix(got, "postgres:") {
		t.Errorf("Image = %q, want the one of docker-compose.yml", got)
	}
	if got := Image(func(name string) string { return "of-" + name }); got != "of-POSTGRES_IMAGE" {
		t.Errorf("Image = %q, want the value of POSTGRES_IMAGE", got)
	}
}
