// Package redisidem keeps idempotency records in Redis, for services whose records
// need not be in one transaction with the work, and for endpoints whose work is in
// Redis too.
//
// A key is one hash: of its attempt while that runs, of its record once it has
// ended. Claim, Complete and Abandon are one Lua script each, which Redis runs as
// one step, by its own clock. Redis forgets what has expired by itself.
//
// What differs from pgidem:
//   - Work is part of an attempt only where it was given to Attempt.Queue. What a
//     handler wrote anywhere else stays, though the attempt was abandoned, was
//     superseded, or died with its process before Complete.
//   - The holder of a key that dies does not let go of it: the key is open again
//     when the lease has passed.
//   - A record is as durable as Redis is told to be: with "appendfsync everysec" one
//     that is killed, or whose machine fails, loses a second or two of records
//     that were acknowledged, without an append-only file all since the last
//     snapshot; only with "appendfsync always" it loses none. A replica that is
//     promoted lacks what had not reached it. The key of a lost record is as good as new. So is one
//     that was evicted: maxmemory-policy has to be noeviction.
//   - A clock that is set forward, or that of a promoted replica if it is ahead,
//     ends leases and records early by as much.
//
// Redis 7.0 or later.
package redisidem

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed" // the scripts
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"intentd/internal/idempotency"
)

var (
	//go:embed prologue.lua
	prologue string
	//go:embed claim.lua
	claimLua string
	//go:embed complete.lua
	completeLua string
	//go:embed abandon.lua
	abandonLua string
	//go:embed lookup.lua
	lookupLua string

	claimScript    = redis.NewScript(writes + prologue + claimLua)
	completeScript = redis.NewScript(writes + prologue + completeLua)
	abandonScript  = redis.NewScript(writesWhenFull + prologue + abandonLua)
	lookupScript   = redis.NewScript(writesWhenFull + prologue + lookupLua)
	readyScript    = redis.NewScript(writes + "return {'ready'}")
)

// The first line of a script says what it may do, so that a server refuses it
// before it begins: one that is or became a replica, and so knows less than it
// seems to, refuses all of ours, and one whose memory is full all but those that
// do not need any. https://redis.io/docs/latest/develop/programmability/eval-intro/#eval-flags
const (
	writes         = "#!lua\n"
	writesWhenFull = "#!lua flags=allow-oom\n"
)

// What a script answers, before the rest of its answer.
const (
	isRecord     = "record"
	isRunning    = "running"
	isNothing    = "nothing"
	isFresh      = "fresh"
	isKept       = "kept"
	isSuperseded = "superseded"
	isFailed     = "failed"
)

// Store implements idempotency.Store over Redis. See New.
type Store struct {
	client redis.Scripter
	prefix string
	ttl    time.Duration
	lease  time.Duration
}

// New returns a store over client, whose options Configure should have prepared:
// that of a single server or of a cluster. The names of its keys begin with
// prefix, which keeps them apart from other uses of the server; whoever shares
// keys shares the prefix. Records live for ttl from their claim, an attempt holds
// its key for lease; both count to the microsecond. New panics unless a
// millisecond <= lease <= ttl, and if prefix has a brace, which a cluster would
// take for the part of the name that chooses the slot.
func New(client redis.Scripter, prefix string, ttl, lease time.Duration) *Store {
	if lease < time.Millisecond || ttl < lease {
		panic("redisidem: New needs 1ms <= lease <= ttl")
	}
	if strings.ContainsAny(prefix, "{}") {
		panic("redisidem: New needs a prefix without braces")
	}
	return &Store{client: client, prefix: prefix, ttl: ttl.Truncate(time.Microsecond), lease: lease.Truncate(time.Microsecond)}
}

const (
	// tryTimeout is for a connection to be made, and for one answer.
	tryTimeout = 1200 * time.Millisecond
	// retries come after the first try. All of them together have to end within
	// the 5 s that a claim may take.
	retries = 2
)

// Configure prepares a client's options for Store. Waits end with their context.
// What got no answer is sent again: each script recognises its own repetition, a
// claim by its id and what ends an attempt by its number, so that none is carried
// out twice.
func Configure(o *redis.Options) {
	o.ContextTimeoutEnabled = true
	o.MaxRetries = retries
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = tryTimeout, tryTimeout, tryTimeout
	o.DialerRetries = 1 // a retry dials again
	// A question of its own on each new connection, for a hosted Redis.
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// TTL implements idempotency.Store.
func (s *Store) TTL() time.Duration { return s.ttl }

// Lease implements idempotency.Store.
func (s *Store) Lease() time.Duration { return s.lease }

// DeleteExpired implements idempotency.Store. It returns 0: Redis deletes what has
// expired by itself.
func (s *Store) DeleteExpired(context.Context, int) (int, error) { return 0, nil }

// Ready says why the server can not decide about a request now, or nil: it has to
// be reachable, to run scripts, to take writes, and to have memory for them.
func (s *Store) Ready(ctx context.Context) error {
	_, err := s.run(ctx, readyScript, []string{s.name(idempotency.ID{})})
	return err
}

// name is that of the key's hash. Redis sees neither scope nor key: its log of
// slow commands would show them, and either may hold any byte. Two ids share a
// name as often as SHA-256 gives two texts one digest. The braces are a cluster's
// hash tag: what stands between them chooses the slot, and nothing else.
func (s *Store) name(id idempotency.ID) string {
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(id.Scope))))
	h.Write([]byte(id.Scope))
	h.Write([]byte(id.Key))
	return s.prefix + "{" + base64.RawURLEncoding.EncodeToString(h.Sum(nil)) + "}"
}

// Claim implements idempotency.Store, in one round trip.
//
// Where it fails although Redis carried it out, because no answer came to any of
// its tries, the key stays taken for the lease: nobody is left who could free it.
func (s *Store) Claim(ctx context.Context, id idempotency.ID, fp idempotency.Fingerprint) (idempotency.Claim, error) {
	name := s.name(id)
	answer, err := s.run(ctx, claimScript, []string{name}, rand.Text(), fp[:], s.lease.Microseconds())
	if err != nil {
		return idempotency.Claim{}, fmt.Errorf("claim idempotency key: %w", err)
	}
	c, err := s.decide(name, fp, answer)
	if err != nil {
		return idempotency.Claim{}, fmt.Errorf("claim idempotency key: %w", err)
	}
	return c, nil
}

// decide reads claim.lua's answer to the request fp.
func (s *Store) decide(name string, fp idempotency.Fingerprint, answer []string) (idempotency.Claim, error) {
	switch {
	case answer[0] == isFresh && len(answer) == 3:
		since, err := parseTime(answer[2])
		if err != nil {
			return idempotency.Claim{}, err
		}
		return idempotency.Claim{
			Outcome: idempotency.Fresh,
			Attempt: &Attempt{store: s, name: name, number: answer[1], since: since},
		}, nil
	case answer[0] == isRunning && len(answer) == 2:
		if answer[1] == string(fp[:]) {
			return idempotency.Claim{Outcome: idempotency.InFlight}, nil
		}
		return idempotency.Claim{Outcome: idempotency.Mismatch}, nil
	case answer[0] == isRecord:
		rec, err := parseRecord(answer)
		switch {
		case err != nil:
			return idempotency.Claim{}, err
		case rec.Fingerprint == fp:
			return idempotency.Claim{Outcome: idempotency.Replay, Record: rec}, nil
		default:
			return idempotency.Claim{Outcome: idempotency.Mismatch, Record: rec}, nil
		}
	default:
		return idempotency.Claim{}, errUnexpected
	}
}

// Lookup implements idempotency.Store, in one round trip.
func (s *Store) Lookup(ctx context.Context, id idempotency.ID) (rec *idempotency.Record, running bool, err error) {
	answer, err := s.run(ctx, lookupScript, []string{s.name(id)})
	if err == nil && answer[0] == isRecord {
		rec, err = parseRecord(answer)
	}
	if err != nil {
		return nil, false, fmt.Errorf("look up idempotency key: %w", err)
	}
	return rec, answer[0] == isRunning, nil
}

// errUnexpected says that a script's answer is none that it gives, so that some
// other program writes to our keys.
var errUnexpected = errors.New("redisidem: what stands under the key is not ours")

// run runs a script, which Redis keeps from its first run on, and returns its
// answer, of one word at least.
func (s *Store) run(ctx context.Context, script *redis.Script, keys []string, args ...any) ([]string, error) {
	answer, err := script.Run(ctx, s.client, keys, args...).StringSlice()
	if err == nil && len(answer) == 0 {
		err = errUnexpected
	}
	return answer, err
}

// parseRecord reads a record as the scripts answer with it.
func parseRecord(answer []string) (*idempotency.Record, error) {
	var rec idempotency.Record
	if len(answer) != 7 || len(answer[1]) != len(rec.Fingerprint) {
		return nil, errUnexpected
	}
	copy(rec.Fingerprint[:], answer[1])
	var errs [4]error
	rec.CreatedAt, errs[0] = parseTime(answer[2])
	rec.ExpiresAt, errs[1] = parseTime(answer[3])
	rec.Response.Status, errs[2] = strconv.Atoi(answer[4])
	errs[3] = json.Unmarshal([]byte(answer[5]), &rec.Response.Header)
	rec.Response.Body = []byte(answer[6])
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	if rec.Response.Header == nil {
		rec.Response.Header = make(http.Header)
	}
	return &rec, nil
}

// parseTime reads microseconds since 1970.
func parseTime(text string) (time.Time, error) {
	us, err := strconv.ParseInt(text, 10, 64)
	return time.UnixMicro(us).UTC(), err
}
