// Package pgtest gives each test a PostgreSQL database of its own.
//
// The server behind them is the one that TEST_DATABASE_URL names, else a
// container where Docker answers, else a private server from the programs on
// the machine; TEST_DATABASE=container or =private insists on one of the latter
// two. It is started once for each test process, when the first test asks, and
// ends with the process. Where none can be had, the test fails.
//
// Databases are clones of a migrated template, so that parallel tests share
// neither rows nor advisory locks, which PostgreSQL keeps for each database.
package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/migrations"
)

const (
	// adminTimeout bounds each thing done to the server.
	adminTimeout = 30 * time.Second

	// quietTimeout is how long what a test has ended may take to be over.
	quietTimeout = 5 * time.Second

	poolSize = 4
)

// DB is a database that belongs to one test.
type DB struct {
	// URL is a connection string of the database, for a superuser.
	URL string

	// Pool has up to four connections. It is closed when the test ends.
	Pool *pgxpool.Pool

	name   string
	server *server
}

// Main runs the tests of a package and exits, as TestMain; before that it ends
// the server if one was started. A process that does not get there (a panic, a
// timeout) leaves nothing either, except a template database on the server of
// TEST_DATABASE_URL.
func Main(m *testing.M) {
	code := m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// New returns a fresh database at the newest version of the schema. When the
// test ends it must be quiet, as AssertQuiet has it, and is dropped.
func New(t testing.TB) *DB {
	t.Helper()
	return create(t, func(s *server) (string, error) { return s.migrated() })
}

// Empty returns a fresh database without a schema, and is like New otherwise.
func Empty(t testing.TB) *DB {
	t.Helper()
	return create(t, func(*server) (string, error) { return "template0", nil })
}

func create(t testing.TB, template func(*server) (string, error)) *DB {
	t.Helper()
	s, err := shared.get()
	if err != nil {
		t.Fatal("pgtest:", err)
	}
	from, err := template(s)
	if err != nil {
		t.Fatal("pgtest:", err)
	}
	db := &DB{name: uniqueName("test"), server: s}
	if err := s.createDatabase(db.name, from); err != nil {
		t.Fatal("pgtest:", err)
	}
	t.Cleanup(func() {
		if err := s.dropDatabase(db.name); err != nil {
			t.Error("pgtest:", err)
		}
	})
	if db.URL, err = withDatabase(s.url, db.name); err != nil {
		t.Fatal("pgtest:", err)
	}
	config, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal("pgtest:", err)
	}
	config.MaxConns = poolSize
	if db.Pool, err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
		t.Fatal("pgtest:", err)
	}
	t.Cleanup(func() {
		t.Helper()
		db.AssertQuiet(t)
		closed := make(chan struct{})
		go func() {
			db.Pool.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(quietTimeout):
			t.Error("pgtest: a connection of DB.Pool was acquired and not released")
		}
	})
	return db
}

// Exec runs a statement and fails the test if it fails.
func (db *DB) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// QueryVal returns the one value of the one row that the query gives, and fails
// the test if it gives anything else.
func QueryVal[T any](t testing.TB, db *DB, sql string, args ...any) T {
	t.Helper()
	// Query's error comes with the rows.
	rows, _ := db.Pool.Query(context.Background(), sql, args...)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// AssertQuiet fails the test if, for five seconds, some session of the database
// is idle in a transaction or holds an advisory lock, and says which.
func (db *DB) AssertQuiet(t testing.TB) {
	t.Helper()
	const tick = 20 * time.Millisecond
	deadline := time.Now().Add(quietTimeout)
	for {
		left, err := db.leftovers()
		if err != nil {
			t.Error("pgtest:", err)
			return
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("pgtest: left over in the database:\n%s", strings.Join(left, "\n"))
			return
		}
		time.Sleep(tick)
	}
}

const leftoversQuery = `
select format('session %s is %s; its last statement: %s', pid, state, query)
  from pg_stat_activity
 where datname = $1
   and state like 'idle in transaction%'
union all
select format('session %s %s the advisory lock (%s, %s); its last statement: %s', l.pid,
              case when l.granted then 'holds' else 'waits for' end, l.classid, l.objid, a.query)
  from pg_locks l
  left join pg_stat_activity a using (pid)
 where l.locktype = 'advisory'
   and l.database = (select oid from pg_database where datname = $1)`

// leftovers describes what is not quiet at the moment.
func (db *DB) leftovers() (left []string, err error) {
	err = db.server.admin(func(ctx context.Context, conn *pgx.Conn) error {
		// Query's error comes with the rows.
		rows, _ := conn.Query(ctx, leftoversQuery, db.name)
		left, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return left, err
}

// shared is the server of this process.
var shared lazyServer

type lazyServer struct {
	mu     sync.Mutex
	server *server
	err    error
}

func (l *lazyServer) get() (*server, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A failure is kept: what took minutes to fail once is not tried by every
	// test again.
	if l.server == nil && l.err == nil {
		l.server, l.err = start(os.Getenv)
	}
	return l.server, l.err
}

func (l *lazyServer) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.server == nil {
		return nil
	}
	return l.server.close()
}

// server is where databases are made.
type server struct {
	url  string // of a database that is there already
	stop func(context.Context) error

	template     sync.Once
	templateName string
	templateErr  error
}

// migrated returns the name of the template, which it makes the first time.
func (s *server) migrated() (string, error) {
	s.template.Do(func() {
		name := uniqueName("template")
		s.templateErr = s.createDatabase(name, "template0")
		if s.templateErr != nil {
			return
		}
		s.templateName = name
		url, err := withDatabase(s.url, name)
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
			defer cancel()
			err = migrations.Up(ctx, url)
		}
		s.templateErr = err
	})
	return s.templateName, s.templateErr
}

// close drops the template and ends the server, unless it is someone else's.
func (s *server) close() error {
	var err error
	if s.templateName != "" {
		err = s.dropDatabase(s.templateName)
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	return errors.Join(err, s.stop(ctx))
}

func (s *server) createDatabase(name, template string) error {
	return s.admin(func(ctx context.Context, conn *pgx.Conn) error {
		const tick = 50 * time.Millisecond
		for {
			_, err := conn.Exec(ctx, fmt.Sprintf("create database %s template %s", name, template))
			// The session that made the template takes a moment to go.
			var pgErr *pgconn.PgError
			const objectInUse = "55006"
			if !errors.As(err, &pgErr) || pgErr.Code != objectInUse {
				return err
			}
			select {
			case <-ctx.Done():
				return err
			case <-time.After(tick):
			}
		}
	})
}

func (s *server) dropDatabase(name string) error {
	return s.admin(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, fmt.Sprintf("drop database if exists %s with (force)", name))
		return err
	})
}

// admin calls do with a connection of its own: a pool would leave goroutines
// behind that a test's check for leaks would find.
func (s *server) admin(do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return do(ctx, conn)
}

// uniqueName returns a name that needs no quoting, and that no other process
// uses, on any machine.
func uniqueName(kind string) string {
	return fmt.Sprintf("intentd_%s_%d_%s", kind, os.Getpid(), strings.ToLower(rand.Text()[:10]))
}

// withDatabase returns url with another database in it. Several hosts with
// ports are no URL to net/url, so that the path is found by hand.
func withDatabase(url, name string) (string, error) {
	changed := url + " dbname=" + name
	if scheme, rest, ok := strings.Cut(url, "://"); ok && (scheme == "postgres" || scheme == "postgresql") {
		rest, query, hasQuery := strings.Cut(rest, "?")
		authority, _, _ := strings.Cut(rest, "/")
		changed = scheme + "://" + authority + "/" + name
		if hasQuery {
			changed += "?" + query
		}
	}
	config, err := pgxpool.ParseConfig(changed)
	if err != nil {
		return "", err
	}
	if got := config.ConnConfig.Database; got != name {
		return "", fmt.Errorf("the server's connection string insists on the database %q", got)
	}
	return changed, nil
}
