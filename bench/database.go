package main

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/bench/peers"
	"intentd/internal/localpg"
	"intentd/migrations"
)

// settings are PostgreSQL's that differ from its defaults, for all contestants
// alike. Nothing in them trades durability. A checkpoint comes when the bench
// asks, before each point, and not in the middle of somebody's window.
func settings(memory int64) map[string]string {
	const gib = 1 << 30
	buffers := min(memory/4, 4*gib)
	return map[string]string{
		"fsync":              "on",
		"synchronous_commit": "on",
		"full_page_writes":   "on",
		"max_connections":    "600",
		"shared_buffers":     strconv.FormatInt(buffers>>20, 10) + "MB",
		"max_wal_size":       "16GB",
		"checkpoint_timeout": "1h",
	}
}

// asked are the settings that the server itself is asked for, for the report.
var asked = []string{
	"fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers", "max_wal_size",
	"checkpoint_timeout", "autovacuum", "max_connections", "data_directory",
}

const (
	walSQL        = `select pg_current_wal_lsn() - '0/0'::pg_lsn`
	checkpointSQL = `checkpoint`
	emptySQL      = `truncate payment_intents, intent_transitions, idempotency_keys, peer_keys`

	// Records of so long ago, under keys that recordedKey makes too.
	fillRecordsSQL = `
insert into idempotency_keys
  (scope, key, fingerprint, status, header, body, created_at, expires_at)
select $1, md5(n::text)::uuid::text, $2, 201, $3::text::jsonb, $4, now() - $7::interval, now() - $7::interval + interval '1 day'
from generate_series($5::bigint, $6::bigint) n`

	fillPeerRecordsSQL = `
insert into peer_keys
  (scope, key, fingerprint, claimant, claimed_until, status, header, body, created_at, expires_at)
select $1, md5(n::text)::uuid::text, $2, gen_random_uuid(), now() - interval '59 minutes', 201, $3::text::jsonb, $4,
       now() - $7::interval, now() - $7::interval + interval '1 day'
from generate_series($5::bigint, $6::bigint) n`

	// Intents whose time is over, with identifiers as a UUIDv7 has them, in the
	// order of their time.
	fillIntentsSQL = `
insert into payment_intents
  (merchant_id, id, chain, token, payer, merchant, amount, state, version, created_at, updated_at, expires_at)
select $1, ('0190' || lpad(to_hex(n), 8, '0') || '70008' || left(md5(n::text), 15))::uuid, 'evm:31337',
       '0x5FbDB2315678afecb367f032d93F642f64180aa3', '0x70997970C51812dc3A010C7d01b50e0d17dc79C8',
       '0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC', 100000000, $4, 1,
       now() - interval '1 hour', now() - interval '1 hour', now() - interval '45 minutes'
from generate_series($2::bigint, $3::bigint) n`

	// What the sweeper looks for.
	dueRecordsSQL = `select exists (select from idempotency_keys where expires_at <= now())`
	dueIntentsSQL = `select exists (select from payment_intents where state = 'created' and expires_at <= now())`

	auditSQL = `
select (select count(*) from payment_intents),
       (select count(*) from idempotency_keys) + (select count(*) from peer_keys where status is not null)`
)

// fillStep is how many rows one statement of a fill makes.
const fillStep = 250_000

// recordedKey is the key of the nth record that a fill makes.
func recordedKey(n int) string {
	return uuid.UUID(md5.Sum(strconv.AppendInt(nil, int64(n), 10))).String()
}

// postgres is the one server that every contestant uses, each with a database of
// its own.
type postgres struct {
	server *localpg.Server
	admin  *pgxpool.Pool
	pid    int
	shown  map[string]string
}

// startPostgres starts the server.
func startPostgres(ctx context.Context, set map[string]string) (*postgres, error) {
	server, err := localpg.Start(ctx, localpg.Options{Settings: set})
	if err != nil {
		return nil, err
	}
	p := &postgres{server: server, shown: make(map[string]string)}
	if err := p.learn(ctx); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

func (p *postgres) learn(ctx context.Context) (err error) {
	if p.admin, err = pgxpool.New(ctx, p.server.URL()); err != nil {
		return err
	}
	for _, name := range append(asked, "server_version") {
		var v string
		if err := p.admin.QueryRow(ctx, "select current_setting($1)", name).Scan(&v); err != nil {
			return err
		}
		p.shown[name] = v
	}
	raw, err := os.ReadFile(filepath.Join(p.shown["data_directory"], "postmaster.pid"))
	if err != nil {
		return err
	}
	first, _, _ := bytes.Cut(raw, []byte("\n"))
	p.pid, err = strconv.Atoi(string(bytes.TrimSpace(first)))
	return err
}

// durable refuses a server that does not make commits durable, by what it says of
// itself.
func (p *postgres) durable() error {
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if p.shown[name] != "on" {
			return fmt.Errorf("PostgreSQL says that %s is %s: its commits are not durable", name, p.shown[name])
		}
	}
	dir := p.shown["data_directory"]
	memory, err := inMemory(dir)
	if err == nil && memory {
		err = fmt.Errorf("%s is in memory, where no commit is durable: set TMPDIR to a directory on a disk", dir)
	}
	return err
}

func (p *postgres) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if p.admin != nil {
		p.admin.Close()
	}
	return p.server.Stop(ctx)
}

// wal returns how many bytes of log have been written since the cluster was made.
func (p *postgres) wal(ctx context.Context) (n int64, err error) {
	err = p.admin.QueryRow(ctx, walSQL).Scan(&n)
	return n, err
}

func (p *postgres) checkpoint(ctx context.Context) error {
	_, err := p.admin.Exec(ctx, checkpointSQL)
	return err
}

// database makes a database with the service's schema and the peers' table, and
// returns its URL.
func (p *postgres) database(ctx context.Context, name string) (string, error) {
	if _, err := p.admin.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()); err != nil {
		return "", err
	}
	url := p.urlOf(name)
	if err := migrations.Up(ctx, url); err != nil {
		return "", err
	}
	return url, with(ctx, url, func(conn *pgx.Conn) error { return peers.Migrate(ctx, conn) })
}

func (p *postgres) urlOf(name string) string {
	return strings.Replace(p.server.URL(), "/"+localpg.Name+"?", "/"+name+"?", 1)
}

// copy makes a database that is like another one, which nobody may be using, and
// returns its URL. It copies files, since a table's rows need not go through the
// log one by one.
func (p *postgres) copy(ctx context.Context, name, from string) (string, error) {
	_, err := p.admin.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()+" template "+pgx.Identifier{from}.Sanitize()+" strategy file_copy")
	return p.urlOf(name), err
}

// drop forgets a database that nobody uses any more.
func (p *postgres) drop(ctx context.Context, name string) error {
	_, err := p.admin.Exec(ctx, "drop database if exists "+pgx.Identifier{name}.Sanitize()+" with (force)")
	return err
}

// with calls do with a connection made for it.
func with(ctx context.Context, url string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return do(conn)
}

func execSQL(ctx context.Context, url, sql string, args ...any) error {
	return with(ctx, url, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	})
}

// audit fails if there are not as many intents as answers on record: then what
// was measured was not what it should have been.
func audit(ctx context.Context, url string) error {
	return with(ctx, url, func(conn *pgx.Conn) error {
		var intents, records int
		if err := conn.QueryRow(ctx, auditSQL).Scan(&intents, &records); err != nil {
			return err
		}
		if intents != records {
			return fmt.Errorf("%d intents, and %d answers on record", intents, records)
		}
		return nil
	})
}

// fillRecords makes n records with sql that are so old: the answers that a
// client's replays get. It leaves the table as vacuum does.
func fillRecords(ctx context.Context, url, sql string, n int, age time.Duration) error {
	return fill(ctx, url, n, func(conn *pgx.Conn, from, to int) error {
		_, err := conn.Exec(ctx, sql, merchant, fingerprint[:], answerHeader, []byte(answerBody), from, to, age)
		return err
	})
}

// fillIntents makes n intents in a state, whose expires_at has passed.
func fillIntents(ctx context.Context, url string, n int, state string) error {
	return fill(ctx, url, n, func(conn *pgx.Conn, from, to int) error {
		_, err := conn.Exec(ctx, fillIntentsSQL, merchant, from, to, state)
		return err
	})
}

// fill fills in steps, whose commits nobody waits for: the checkpoint that
// follows makes them durable.
func fill(ctx context.Context, url string, n int, step func(conn *pgx.Conn, from, to int) error) error {
	return with(ctx, url, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "set synchronous_commit = off"); err != nil {
			return err
		}
		for from := 1; from <= n; from += fillStep {
			if err := step(conn, from, min(n, from+fillStep-1)); err != nil {
				return err
			}
		}
		_, err := conn.Exec(ctx, "vacuum analyze")
		return err
	})
}
