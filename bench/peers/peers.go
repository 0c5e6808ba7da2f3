// Package peers holds what a competent user would write instead of the service's
// own idempotency layer: Redis beside the database, a claim and its completion
// as commits of their own, and both as rows in one transaction without a
// pipeline.
//
// Only the store of keys differs. HTTP server, middleware, JSON, validation,
// table and INSERT of the intents are the service's own, so that a comparison
// compares the layers and nothing else. Each peer tells a fresh request from a
// replay, a copy in flight and another request under the same key. What each
// can not promise is said where it is made; none of it is exercised by a
// measurement.
package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"intentd/internal/api"
	"intentd/internal/apikey"
	"intentd/internal/idempotency"
	"intentd/internal/intent"
	"intentd/internal/intent/pgintent"
	"intentd/internal/secret"
)

// The kinds of peers.
const (
	// Redis claims a key by SET NX EX, inserts the intent in a commit of its own,
	// and puts the answer into Redis.
	Redis = "redis"
	// ThreeCommits inserts a row that claims the key, inserts the intent and
	// completes the row, each in a commit of its own.
	ThreeCommits = "three-commits"
	// OneTransaction does the same three statements in one transaction, and
	// waits for the answer of each.
	OneTransaction = "one-transaction"
)

// Options say which peer to make. All but Redis are required.
type Options struct {
	Kind        string
	DatabaseURL string
	// Redis is the path of the Redis server's socket; only for Kind Redis.
	Redis string
	// Conns is the size of the pool of connections to the database, and of that
	// to Redis.
	Conns      int
	TTL, Lease time.Duration
	// Merchants are the merchants by token.
	Merchants map[string]string
	Log       *slog.Logger
}

const schemaSQL = `
create table if not exists peer_keys (
    scope         text        not null,
    key           text        not null,
    fingerprint   bytea       not null,
    claimant      uuid        not null,
    claimed_until timestamptz not null,
    status        smallint,
    header        jsonb,
    body          bytea,
    created_at    timestamptz not null,
    expires_at    timestamptz not null,
    constraint peer_keys_pkey primary key (scope, key)
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);
create index if not exists peer_keys_expires_at_idx on peer_keys (expires_at)`

// Migrate makes the table of the peers that keep their keys in PostgreSQL: the
// service's own idempotency_keys, with room for a claim that has no answer yet.
// The database has the service's schema already.
func Migrate(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, schemaSQL); err != nil {
		return fmt.Errorf("make the table of the peers: %w", err)
	}
	return nil
}

// New returns the whole API over a peer, and what gives its connections back.
func New(ctx context.Context, o Options) (http.Handler, func(), error) {
	store, pool, end, err := open(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	holders := make(map[apikey.Digest]apikey.Holder)
	for token, merchant := range o.Merchants {
		holders[apikey.DigestOf(secret.New(token))] = apikey.Holder{Merchant: merchant, Role: apikey.API, Mode: apikey.Live}
	}
	return api.New(api.Config{
		Intents:       intent.New(pgintent.New(pool, joined)),
		Idempotency:   store,
		Authenticator: apikey.NewStatic(holders),
		Ready:         pool.Ping,
		Log:           o.Log,
	}), end, nil
}

// unasked is the part of idempotency.Store that no load asks for.
type unasked struct{}

// Lookup implements idempotency.Store. It can not tell.
func (unasked) Lookup(context.Context, idempotency.ID) (*idempotency.Record, bool, error) {
	return nil, false, errors.New("a peer is not asked what became of a key")
}

// open returns a peer's store of keys, the pool that its intents use too, and what
// ends both.
func open(ctx context.Context, o Options) (idempotency.Store, *pgxpool.Pool, func(), error) {
	config, err := pgxpool.ParseConfig(o.DatabaseURL)
	if err != nil {
		return nil, nil, nil, err
	}
	config.MaxConns = int32(o.Conns) // a handful
	if o.Kind == OneTransaction {
		// Set once for each session, so that they cost no statement. A copy waits
		// for the first inside its INSERT; this is how long.
		config.ConnConfig.RuntimeParams["lock_timeout"] = milliseconds(copyPatience)
		config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = milliseconds(o.Lease)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, nil, err
	}
	switch o.Kind {
	case Redis:
		client := redis.NewClient(&redis.Options{Network: "unix", Addr: o.Redis, PoolSize: o.Conns})
		end := func() {
			_ = client.Close() // nothing is lost with it
			pool.Close()
		}
		return &redisStore{client: client, pool: pool, ttl: o.TTL, lease: o.Lease}, pool, end, nil
	case ThreeCommits:
		return &commitsStore{pool: pool, ttl: o.TTL, lease: o.Lease}, pool, pool.Close, nil
	case OneTransaction:
		return &transactionStore{pool: pool, ttl: o.TTL, lease: o.Lease}, pool, pool.Close, nil
	default:
		pool.Close()
		return nil, nil, nil, fmt.Errorf("no such peer: %q", o.Kind)
	}
}

func milliseconds(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }

// querier is what a pool and a transaction have in common.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// work is what the intents' store finds in the context: it sends each statement
// at once and waits for it, in the peer's transaction, or on the pool as a
// commit of its own. So the service's own INSERT is what every peer runs.
type work struct {
	ctx context.Context
	db  querier
	now time.Time // when the request was claimed
	err error     // the first failure
}

type workKey struct{}

func (w *work) bind(ctx context.Context) context.Context {
	w.ctx = ctx
	return context.WithValue(ctx, workKey{}, w)
}

func joined(ctx context.Context) (pgintent.Tx, bool) {
	w, ok := ctx.Value(workKey{}).(*work)
	return w, ok
}

// Queue implements pgintent.Tx.
func (w *work) Queue(sql string, args ...any) {
	if w.err != nil {
		return
	}
	rows, err := w.db.Query(w.ctx, sql, args...)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	w.err = err
}

// QueueRow implements pgintent.Tx. Nobody shares a transaction.
func (w *work) QueueRow(sql, _ string, args ...any) { w.Queue(sql, args...) }

// Query implements pgintent.Tx.
func (w *work) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if w.err != nil {
		return nil, w.err
	}
	return w.db.Query(ctx, sql, args...)
}

// Time implements pgintent.Tx.
func (w *work) Time() time.Time { return w.now }

// rival decides about a request under whose key something else stands.
func rival(found idempotency.Record, ended bool, fp idempotency.Fingerprint) idempotency.Claim {
	switch {
	case found.Fingerprint != fp && ended:
		return idempotency.Claim{Outcome: idempotency.Mismatch, Record: &found}
	case found.Fingerprint != fp:
		return idempotency.Claim{Outcome: idempotency.Mismatch}
	case !ended:
		return idempotency.Claim{Outcome: idempotency.InFlight}
	default:
		return idempotency.Claim{Outcome: idempotency.Replay, Record: &found}
	}
}

// isCode says whether err is PostgreSQL's with this SQLSTATE.
func isCode(err error, code string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == code
}
