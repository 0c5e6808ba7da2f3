// Package migrations holds the database's schema as numbered SQL files and
// brings a database to it.
//
// Each file is one transaction together with the version number it leads to:
// a process killed at any moment leaves the schema at the version before or at
// the version after, never between them and never "dirty". Therefore a file
// must not control transactions itself, nor use what PostgreSQL refuses inside
// one (create index concurrently, which moreover deadlocks with the replicas
// that wait for their turn).
//
// The table (schema_migrations) and the advisory lock are golang-migrate's, so
// that its command line tool works on the same database.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

//go:embed *.sql
var files embed.FS

const (
	// MinServer is the oldest major version of PostgreSQL that Up accepts.
	MinServer = 15

	table = "schema_migrations"

	// connectTimeout holds for each address that url names, where url itself
	// says nothing.
	connectTimeout = 10 * time.Second

	// turnTimeout is how long one replica waits for the others to migrate.
	turnTimeout = time.Minute

	// ddlLockTimeout is how long a migration waits for a table. While it
	// waits, every later query on that table waits behind it.
	ddlLockTimeout = 10 * time.Second
)

var (
	// ErrDirty says that schema_migrations calls the schema half migrated.
	// Nothing here can cause that; a person has to look. It is not temporary.
	ErrDirty = errors.New("the database schema is marked dirty")

	// ErrEncoding says that the database does not keep text as UTF-8. It must be
	// made anew: create database ... encoding 'UTF8' template template0.
	ErrEncoding = errors.New("the database's encoding is not UTF8")
	// ErrServerVersion says that the server is older than MinServer.
	// It is not temporary.
	ErrServerVersion = errors.New("the PostgreSQL server is too old")

	// ErrUnknownVersion says that the schema is at a version that this program
	// has no file for, so that it can not be reverted from there.
	ErrUnknownVersion = errors.New("the database schema is at a version unknown to this program")
)

// Up brings the schema of the database at url to Latest. The url is any
// connection string that pgx takes, pool_* parameters included; it must lead to
// the server or to a pooler in session mode, since the lock between replicas
// belongs to a session. If the url names several servers, the one that accepts
// writes is used.
//
// Any number of processes may call it at once: one migrates, the others wait
// for up to a minute. A schema that is at Latest, or newer because a newer
// program was here, is left alone without a lock or a write. Up ends when ctx
// does, and the migration then running is undone.
//
// It returns ErrDirty, ErrEncoding or ErrServerVersion where a person has to act; any other
// error may be temporary, and calling Up again is always safe.
func Up(ctx context.Context, url string) error {
	return up(ctx, url, files)
}

// Down reverts every migration of the database at url, and all data with them.
// Its url, its lock and its ctx are as in Up; each step is a transaction of its
// own, so that an interrupted Down leaves a version from which Down and Up both
// go on. It returns ErrUnknownVersion if the schema is newer than Latest.
func Down(ctx context.Context, url string) error {
	return migrateWith(ctx, url, files, func(_ context.Context, _ *sql.DB, run runner) error {
		return run((*migrate.Migrate).Down)
	})
}

// Version returns the version of the schema of the database at url, 0 if it has
// none, and whether it is marked dirty. It takes no lock and writes nothing.
func Version(ctx context.Context, url string) (current uint, dirty bool, err error) {
	err = migrateWith(ctx, url, files, func(ctx context.Context, db *sql.DB, _ runner) error {
		version, d, err := read(ctx, db)
		if version != database.NilVersion {
			current = uint(version)
		}
		dirty = d
		return err
	})
	return current, dirty, err
}

// Latest returns the newest version that is embedded in the program.
func Latest() uint {
	return latest(files)
}

func latest(files fs.FS) (newest uint) {
	names, err := fs.Glob(files, "*.up.sql")
	if err != nil {
		panic(err)
	}
	for _, name := range names {
		m, err := source.Parse(name)
		if err != nil {
			panic(fmt.Errorf("migrations: %s: %w", name, err))
		}
		newest = max(newest, m.Version)
	}
	return newest
}

func up(ctx context.Context, url string, files fs.FS) error {
	return migrateWith(ctx, url, files, func(ctx context.Context, db *sql.DB, run runner) error {
		if err := requireServer(ctx, db); err != nil {
			return err
		}
		version, dirty, err := read(ctx, db)
		if err != nil {
			return err
		}
		// Only under the lock is it certain that dirty does not mean that
		// golang-migrate's tool is at work.
		if !dirty && version != database.NilVersion && uint(version) >= latest(files) {
			return nil
		}
		return run(func(m *migrate.Migrate) error {
			err := m.Up()
			if errors.Is(err, fs.ErrNotExist) {
				// A newer program has had its turn since read.
				if version, _, err := m.Version(); err == nil && version > latest(files) {
					return nil
				}
			}
			return err
		})
	})
}

// runner makes golang-migrate take one of its actions.
type runner func(action func(*migrate.Migrate) error) error

// migrateWith calls do with the database at url, every connection of which ends
// with ctx and with the call.
func migrateWith(ctx context.Context, url string, files fs.FS,
	do func(context.Context, *sql.DB, runner) error,
) (err error) {
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			err = fmt.Errorf("migrations: %w", err)
		}
	}()

	// The pool's parser knows the pool_* parameters, which the connection's
	// would send to the server.
	pool, err := pgxpool.ParseConfig(url)
	if err != nil {
		return errors.New("the database's URL can not be read") // the error could hold its password
	}
	config := pool.ConnConfig
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	if config.ValidateConnect == nil {
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	// golang-migrate passes a bigint as text, which exec mode takes for a text.
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol

	// golang-migrate knows no context, and forgets its connection when it can
	// not use it: the connections are ended from here.
	alive, end := context.WithCancel(ctx)
	defer end()
	db := stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(_ context.Context, conn *pgx.Conn) error {
		// pgx then asks the server to cancel what the connection was waiting for.
		context.AfterFunc(alive, func() { _ = conn.PgConn().Conn().Close() })
		// A primary whose sessions are read only by default is one all the same.
		_, err := conn.Exec(alive, fmt.Sprintf("set default_transaction_read_only = off; set lock_timeout = %d", turnTimeout.Milliseconds()))
		return err
	}))
	defer db.Close()
	db.SetMaxOpenConns(1)

	return do(ctx, db, func(action func(*migrate.Migrate) error) error {
		return run(db, files, action)
	})
}

func run(db *sql.DB, files fs.FS, action func(*migrate.Migrate) error) error {
	src, err := iofs.New(files, ".")
	if err != nil {
		return err
	}
	defer src.Close()
	config := &migratepgx.Config{MigrationsTable: table}
	inner, err := migratepgx.WithInstance(db, config)
	if err != nil {
		return err
	}
	defer inner.Close()
	drv := &driver{Driver: inner, table: pgx.Identifier{config.SchemaName, table}.Sanitize()}
	m, err := migrate.NewWithInstance("embedded", src, "pgx5", drv)
	if err != nil {
		return err
	}
	// The server's lock_timeout has to come first: it ends the waiting on the
	// server, this one only our interest in it.
	m.LockTimeout = 2 * turnTimeout

	err = action(m)
	var dirty migrate.ErrDirty
	switch {
	case err == nil, errors.Is(err, migrate.ErrNoChange):
		return nil
	case errors.As(err, &dirty):
		return dirtyError(dirty.Version)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	// There is no file for the schema's version: a newer program's.
	version, _, readErr := m.Version()
	if readErr != nil {
		return readErr
	}
	return fmt.Errorf("%w: %d; the newest known is %d", ErrUnknownVersion, version, latest(files))
}

func requireServer(ctx context.Context, db *sql.DB) error {
	var (
		number   int
		encoding string
	)
	const query = "select current_setting('server_version_num')::int, current_setting('server_encoding')"
	if err := db.QueryRowContext(ctx, query).Scan(&number, &encoding); err != nil {
		return err
	}
	if encoding != "UTF8" {
		return fmt.Errorf("%w: it is %s", ErrEncoding, encoding)
	}
	return checkServer(number)
}

// checkServer takes server_version_num, which is the major version times 10000
// plus the minor one since PostgreSQL 10.
func checkServer(number int) error {
	if major := number / 10000; major < MinServer {
		return fmt.Errorf("%w: it is version %d, version %d or newer is required", ErrServerVersion, major, MinServer)
	}
	return nil
}

// read returns what schema_migrations says, NilVersion if it says nothing or
// does not exist, where golang-migrate would create it.
func read(ctx context.Context, db *sql.DB) (version int, dirty bool, err error) {
	var schema sql.NullString
	if err := db.QueryRowContext(ctx, "select current_schema()").Scan(&schema); err != nil {
		return database.NilVersion, false, err
	}
	if !schema.Valid {
		return database.NilVersion, false, errors.New("search_path names no schema that exists")
	}
	query := "select version, dirty from " + pgx.Identifier{schema.String, table}.Sanitize() + " limit 1"
	err = db.QueryRowContext(ctx, query).Scan(&version, &dirty)
	var pgErr *pgconn.PgError
	const undefinedTable = "42P01"
	if errors.Is(err, sql.ErrNoRows) || errors.As(err, &pgErr) && pgErr.Code == undefinedTable {
		return database.NilVersion, false, nil
	}
	return version, dirty, err
}

func dirtyError(version int) error {
	return fmt.Errorf("%w at version %d, so a migration to it or from it was begun by other means and did not end: "+
		"compare the schema with the files in migrations/, then record the version N that it really has with "+
		"\"update %s set version = N, dirty = false\", or \"delete from %s\" if it has none",
		ErrDirty, version, table, table)
}
