// Package idempotency lets a request that arrives several times run once.
//
// It wraps any http.Handler. Of the requests that share a scope and a key, a
// Store lets one run; the others are given its recorded answer, byte for byte,
// or refused. The vocabulary is that of the IETF draft "The Idempotency-Key
// HTTP Header Field" (draft-ietf-httpapi-idempotency-key-header-07).
//
// The package knows nothing of what the handler does. What the handler writes
// and the record of its answer become permanent together, because the Attempt
// that a fresh claim yields decides what "together" means: for PostgreSQL it is
// a transaction.
package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"time"
)

// ID names one request: the key that the client chose, within the scope of the
// caller that the key belongs to. Equal keys in two scopes never meet.
type ID struct {
	// Scope is who the key belongs to. It comes from the credential, never
	// from the request's body, and is never the credential itself. Where the
	// route is part of it, RouteScope has joined the two.
	Scope string
	// Key is the Idempotency-Key header's value, unquoted (see ParseKey).
	Key string
}

// Fingerprint tells two requests under one key apart: SHA-256 over method, NUL,
// path with query, NUL, raw body bytes. Reordered JSON is another request:
// refusing too much beats doing the wrong thing twice.
type Fingerprint [sha256.Size]byte

// FingerprintOf returns the fingerprint of a request. The path is as it was
// sent (escaped), with "?" and the query where there is one.
func FingerprintOf(method, path string, body []byte) Fingerprint {
	h := sha256.New()
	h.Write([]byte(method))
	h.Write([]byte{0})
	h.Write([]byte(path))
	h.Write([]byte{0})
	h.Write(body)
	var fp Fingerprint
	h.Sum(fp[:0])
	return fp
}

// String returns the fingerprint as it is shown to people: its first 16 hex
// digits.
func (fp Fingerprint) String() string { return hex.EncodeToString(fp[:8]) }

// Response is an answer as it is recorded and replayed.
type Response struct {
	Status int
	// Header holds only the headers that are recorded: Content-Type, Location,
	// ETag and Link.
	Header http.Header
	Body   []byte
}

// Record is what is kept of a request that has ended.
type Record struct {
	Fingerprint Fingerprint
	Response    Response
	CreatedAt   time.Time // when it was claimed, by the store's clock
	ExpiresAt   time.Time // from then on the key is as good as new
}

// Outcome is what a store decides about a request.
type Outcome uint8

// The four outcomes of a claim. The zero Outcome is none of them, so that a
// forgotten one is not taken for the right to run.
const (
	// Fresh: the request runs, by the Attempt that came with it.
	Fresh Outcome = iota + 1
	// Replay: the same request has ended; its answer is in the Record.
	Replay
	// InFlight: the same request is running now.
	InFlight
	// Mismatch: the key belongs to another request, ended (then the Record
	// tells which) or running.
	Mismatch
)

// String returns the outcome as it stands in logs.
func (o Outcome) String() string {
	switch o {
	case Fresh:
		return "fresh"
	case Replay:
		return "replay"
	case InFlight:
		return "in_flight"
	case Mismatch:
		return "mismatch"
	default:
		return "none"
	}
}

// Claim is a store's decision.
type Claim struct {
	Outcome Outcome
	Record  *Record // Replay; Mismatch where the request has ended
	Attempt Attempt // Fresh only
}

// Store decides which of the requests that share an ID runs. Every
// implementation passes the suite in package idemtest.
type Store interface {
	// Claim decides about one request, at once: it never waits for another
	// holder of the key. A record that has expired counts as none, whether or
	// not it has been deleted. Whoever gets a Fresh claim must end its Attempt.
	//
	// An error means that nothing was decided and nothing is held; the request
	// may be claimed again.
	Claim(ctx context.Context, id ID, fp Fingerprint) (Claim, error)

	// Lookup tells what stands under a key, without claiming it: a record that
	// lives, or that a request runs, or neither. It hinders nobody who claims
	// the key meanwhile. A record that has expired counts as none, and a run that
	// is past its lease as over.
	//
	// What it tells was so at some moment of the call. A request that runs when
	// the call begins, and completes before it ends, shows as running or as its
	// record, never as neither.
	//
	// An error means that nothing is known.
	Lookup(ctx context.Context, id ID) (rec *Record, running bool, err error)

	// TTL is how long a record lives, counted from its claim: an attempt that
	// completes leaves a record that expires at exactly Attempt.Time plus TTL.
	TTL() time.Duration

	// Lease is how long an attempt may run, counted from its claim. Then the
	// key is open to another, and the attempt can no longer complete.
	Lease() time.Duration

	// DeleteExpired deletes up to limit records whose time has passed, and
	// returns how many. Any number of callers may do so at the same time.
	DeleteExpired(ctx context.Context, limit int) (int, error)
}

// Attempt is the right to run one request, once. It is not safe for concurrent
// use. A crash of the process at any point before Complete has returned leaves
// both the work and the record, or neither.
type Attempt interface {
	// Time is when the request was claimed, by the store's clock.
	Time() time.Time

	// Bind returns ctx with what the handler's work must take part in, so that
	// it becomes permanent with the answer.
	Bind(ctx context.Context) context.Context

	// Complete makes the work and the answer permanent, together. It returns
	//   - nil: both are;
	//   - ErrSuperseded: the lease was lost before, nothing was kept;
	//   - ErrTaken: another record stands under the key, nothing was kept;
	//   - ErrInDoubt: the store did not answer whether it kept them;
	//   - any other error: nothing was kept, and the key is free.
	// The attempt has ended in each case.
	Complete(ctx context.Context, resp Response) error

	// Abandon undoes the work and frees the key. It does nothing once the
	// attempt has ended, so that it can be deferred.
	Abandon(ctx context.Context) error
}

// What Complete may say of an attempt that did not become permanent.
var (
	// ErrSuperseded says that the attempt outlived its lease: the key was open
	// to another, and what this one did was undone.
	ErrSuperseded = errors.New("idempotency: attempt superseded")
	// ErrTaken says that a record stands under the key already. The store's
	// unique constraint found it, where the claim did not; the work was undone,
	// and a new claim tells what is on record.
	ErrTaken = errors.New("idempotency: key has a record already")
	// ErrInDoubt says that the connection was lost after the request to make
	// the attempt permanent was sent, and before it was answered. A new claim
	// tells: Replay if it was kept.
	ErrInDoubt = errors.New("idempotency: outcome of the attempt is unknown")
)
