package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/apikey"
	"intentd/internal/apikey/pgapikey"
	"intentd/internal/idempotency"
	"intentd/internal/idempotency/memidem"
	"intentd/internal/idempotency/pgidem"
	"intentd/internal/intent"
	"intentd/internal/intent/memintent"
	"intentd/internal/intent/pgintent"
	"intentd/internal/localpg"
	"intentd/internal/metrics"
	"intentd/internal/secret"
	"intentd/internal/tracing"
	"intentd/migrations"
)

// backend is where the state lives. This is the one place that knows both the
// stores of idempotency and those of intents, and tells the second how to take
// part in the attempts of the first.
type backend struct {
	intents interface {
		intent.Store
		intent.Searcher
	}
	keys idempotency.Store
	// apiKeys knows the keys that the commands make; nil in memory, where no
	// command could make any.
	apiKeys apikey.Authenticator
	// lookups has an observer told of how apiKeys finds keys; nil in memory.
	lookups func(observe func(apikey.Lookup))
	// prepare returns when the store can be used, or ctx has ended.
	prepare func(ctx context.Context)
	// ready says why the store can not be used now, or nil.
	ready func(ctx context.Context) error
	// lag tells for how long what has been due for longest has been so, by the
	// sweeper's jobs.
	lag func(ctx context.Context) (map[string]time.Duration, error)
	// groups has an observer told how attempts are committed; nil where none share
	// a transaction.
	groups func(pgidem.Observer)
	// pool tells how the connections to the database stand; nil in memory.
	pool func() *pgxpool.Stat
	// watch returns when ctx has ended, or the store is lost for good.
	watch func(ctx context.Context) error
	close func()
}

func openBackend(ctx context.Context, c config, log *slog.Logger, traces *tracing.Traces) (*backend, error) {
	if !c.RedisURL.Empty() && c.Records != storeRedis {
		log.Warn("REDIS_URL is set and not used")
	}
	if c.Store == storeMemory {
		log.Warn("API_STORE=memory: nothing survives the end of this process")
		if !c.DatabaseURL.Empty() {
			log.Warn("DATABASE_URL is set and not used")
		}
		return memoryBackend(c), nil
	}
	db, err := openDatabase(ctx, c, log, localpg.Start)
	if err != nil {
		return nil, err
	}
	b, err := postgresBackend(ctx, c, log, db, traces)
	if err != nil {
		db.close()
		return nil, err
	}
	if c.Records == storeRedis {
		if err := keepInRedis(b, c, log); err != nil {
			b.close()
			return nil, err
		}
	}
	return b, nil
}

func memoryBackend(c config) *backend {
	intents := memintent.New(time.Now, func(ctx context.Context) (memintent.Joined, bool) {
		return memidem.FromContext(ctx)
	})
	keys := memidem.New(c.TTL, c.Lease, time.Now)
	return &backend{
		intents: intents,
		keys:    keys,
		lag: func(context.Context) (map[string]time.Duration, error) {
			return map[string]time.Duration{cancelIntents: intents.Overdue(), deleteKeys: keys.Overdue()}, nil
		},
		prepare: func(context.Context) {},
		ready:   func(context.Context) error { return nil },
		watch:   func(ctx context.Context) error { <-ctx.Done(); return nil },
		close:   func() {},
	}
}

func postgresBackend(ctx context.Context, c config, log *slog.Logger, db *database, traces *tracing.Traces) (*backend, error) {
	pool, err := openPool(ctx, db.url, c.MaxConns, traces)
	if err != nil {
		return nil, err
	}
	apiKeys := apikey.NewDirectory(pgapikey.New(pool), log)
	keys := pgidem.New(pool, c.TTL, c.Lease).WithCommitters(c.Committers)
	var groups func(pgidem.Observer)
	if c.Committers > 0 {
		groups = func(o pgidem.Observer) { keys.Observed(o) }
	}
	return &backend{
		apiKeys: apiKeys,
		lookups: apiKeys.Observed,
		intents: pgintent.New(pool, func(ctx context.Context) (pgintent.Tx, bool) {
			return pgidem.FromContext(ctx)
		}),
		keys:    keys,
		groups:  groups,
		prepare: func(ctx context.Context) { prepareSchema(ctx, db.url, log) },
		ready:   func(ctx context.Context) error { return schemaReady(ctx, pool) },
		lag: func(ctx context.Context) (map[string]time.Duration, error) {
			intents, keys, err := metrics.Overdue(ctx, pool)
			return map[string]time.Duration{cancelIntents: intents, deleteKeys: keys}, err
		},
		pool:  pool.Stat,
		watch: db.watch,
		close: func() {
			apiKeys.Close()
			closePool(pool, log)
			db.close()
		},
	}, nil
}

// openPool makes a pool of connections to the database at url, which need not be
// there yet. A nil traces is none.
func openPool(ctx context.Context, url secret.Text, maxConns int32, traces *tracing.Traces) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(url.Reveal())
	if err != nil {
		return nil, errors.New("the database's URL can not be read") // the error could hold its password
	}
	pc.MaxConns = maxConns
	if pc.ConnConfig.ConnectTimeout == 0 {
		pc.ConnConfig.ConnectTimeout = connectTimeout
	}
	if pc.ConnConfig.ValidateConnect == nil {
		// Of several hosts the one that can be written to, and after a failover
		// no longer the old one. Not "read-write", which would refuse a primary
		// whose sessions are read only by default.
		pc.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	if pc.ConnConfig.RuntimeParams["application_name"] == "" {
		pc.ConnConfig.RuntimeParams["application_name"] = "intentd"
	}
	// Whatever the database's default is. In query modes that take times as text,
	// as behind PgBouncer, pgx reads no other style.
	pc.ConnConfig.RuntimeParams["datestyle"] = "ISO"
	pgidem.Configure(pc)
	traces.Pool(pc)
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("database pool: %w", err)
	}
	return pool, nil
}

const (
	connectTimeout = 3 * time.Second
	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 2 * time.Second
	poolClose      = 2 * time.Second
)

// closePool waits for connections that are still in use, but not for long: what
// was cut at the end of the drain is undone when the process ends.
func closePool(pool *pgxpool.Pool, log *slog.Logger) {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(poolClose):
		log.Warn("database connections were still in use, and are cut")
	}
}

// prepareSchema migrates until it succeeds or ctx ends. A database that is away,
// or whose schema somebody must mend first, does not end the service.
func prepareSchema(ctx context.Context, url secret.Text, log *slog.Logger) {
	for backoff := firstBackoff; ; backoff = min(2*backoff, longestBackoff) {
		err := migrations.Up(ctx, url.Reveal())
		if err == nil {
			log.Info("schema is current", "version", migrations.Latest())
			return
		}
		if ctx.Err() != nil {
			return
		}
		log.Warn("database is not ready, will be tried again", "in", backoff, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff):
		}
	}
}

const readySQL = `
select pg_is_in_recovery(),
       version,
       dirty,
       current_setting('bytea_output') = 'hex'
from schema_migrations`

// schemaReady says why the database can not be written to as this program needs
// it. A schema newer than this program's is fine: migrations keep the version
// before them working.
func schemaReady(ctx context.Context, pool *pgxpool.Pool) error {
	var (
		standby, dirty, hex bool
		current             int64
	)
	conn, err := acquire(ctx, pool)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err := conn.QueryRow(ctx, readySQL).Scan(&standby, &current, &dirty, &hex); err != nil {
		return inTime("the database", err)
	}
	switch {
	case standby:
		return errors.New("the database is a standby")
	case dirty, current < int64(migrations.Latest()): //nolint:gosec // G115: as many as there are files, far below what an int64 holds
		return fmt.Errorf("schema is at version %d (dirty: %t), want %d", current, dirty, migrations.Latest())
	case !hex && asText(pool.Config().ConnConfig.DefaultQueryExecMode):
		return errors.New("bytea_output is not hex, which the recorded answers can not be read with: alter database ... set bytea_output = hex")
	default:
		return nil
	}
}

// asText says whether values come as text in that mode, spelt as the session's
// settings have it.
func asText(mode pgx.QueryExecMode) bool {
	return mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol
}

// migrate runs one of the migrate commands.
func migrate(ctx context.Context, c config, log *slog.Logger, command string, stdout io.Writer) error {
	do, ok := map[string]func(context.Context, string) error{
		"up":      migrations.Up,
		"down":    migrations.Down,
		"version": func(context.Context, string) error { return nil },
	}[command]
	if !ok {
		return usageError{errors.New("migrate needs one of up, down and version")}
	}
	open := openExisting
	if command == "up" {
		open = openOrMake
	}
	db, err := open(ctx, c, log)
	if err != nil {
		return err
	}
	defer db.close()
	if err := do(ctx, db.url.Reveal()); err != nil {
		return err
	}
	current, dirty, err := migrations.Version(ctx, db.url.Reveal())
	if err != nil {
		return err
	}
	state := "clean"
	if dirty {
		state = "dirty"
	}
	_, err = fmt.Fprintf(stdout, "schema version %d of %d, %s\n", current, migrations.Latest(), state)
	return err
}

// database is where PostgreSQL is, and what ends with it.
type database struct {
	url   secret.Text
	watch func(ctx context.Context) error
	close func()
}

// dataDir is where the private server keeps its data, below the directory that
// the service is started in.
const dataDir = ".data/postgres"

// openDatabase finds a PostgreSQL server: the one that DATABASE_URL names, a
// private one from this machine's programs, or the compose file's in Docker.
// Which of its functions localpg makes the private one by is the caller's choice.
func openDatabase(
	ctx context.Context, c config, log *slog.Logger,
	private func(context.Context, localpg.Options) (*localpg.Server, error),
) (*database, error) {
	if !c.DatabaseURL.Empty() {
		return &database{url: c.DatabaseURL, watch: waitFor, close: func() {}}, nil
	}
	server, err := private(ctx, localpg.Options{DataDir: dataDir, Log: log})
	switch {
	case errors.Is(err, localpg.ErrNoPrograms):
		url, dockerErr := composeDatabase(ctx, log)
		if dockerErr != nil {
			return nil, fmt.Errorf("no database: %w; %w.\nAny of these gives one:\n"+
				"  install PostgreSQL 15 or later (Debian: apt-get install postgresql), or name its programs' directory in PG_BINDIR\n"+
				"  docker compose up\n"+
				"  DATABASE_URL=postgres://user:password@host/database\n"+
				"  API_STORE=memory, where nothing needs to survive", err, dockerErr)
		}
		return &database{url: url, watch: waitFor, close: func() {}}, nil
	case err != nil:
		return nil, err
	}
	return &database{
		url: secret.New(server.URL()),
		watch: func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return nil
			case <-server.Done():
				return errors.New("the private PostgreSQL server has ended")
			}
		},
		close: func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if err := server.Stop(ctx); err != nil {
				log.Warn("private PostgreSQL server", "error", err)
			}
		},
	}, nil
}

// openOrMake is openDatabase for a command: the service on the private server may
// be running.
func openOrMake(ctx context.Context, c config, log *slog.Logger) (*database, error) {
	return openDatabase(ctx, c, log, localpg.Join)
}

// openExisting is openOrMake for what a new database has no answer to: where there
// is no cluster it makes none, and says so. Most likely this is the wrong
// directory, or DATABASE_URL was forgotten, and "no keys" or "version 0" would be
// believed.
func openExisting(ctx context.Context, c config, log *slog.Logger) (*database, error) {
	db, err := openDatabase(ctx, c, log, func(ctx context.Context, o localpg.Options) (*localpg.Server, error) {
		o.Existing = true
		return localpg.Join(ctx, o)
	})
	if errors.Is(err, localpg.ErrNoCluster) {
		return nil, fmt.Errorf("%w: there is no %s in this directory, and DATABASE_URL is not set: set it, or run this where api runs", err, dataDir)
	}
	return db, err
}

func waitFor(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
