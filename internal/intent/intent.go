// Package intent is the domain: what a payment intent is, which values it may
// hold, how its state may change, and who may change it. It knows nothing of
// HTTP, of SQL or of idempotency.
package intent

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Every error of this package and of a Store, beside those of the store's own
// driver, is or wraps one of these or is an *InvalidError. The text of a refused
// step is one sentence for the one who asked for it.
var (
	// ErrNotFound says that the merchant has no such intent. Another merchant's
	// intent is no different from none.
	ErrNotFound = errors.New("payment intent not found")
	// ErrVersionConflict says that the intent is not, or no longer, at the
	// version the caller decided on: somebody was faster. Read again, decide
	// again. Where the caller named the version it is a *VersionConflictError.
	ErrVersionConflict = errors.New("payment intent has another version")
	// ErrInvalidTransition says that no one may ever take this step. It is a
	// fault of the caller, or its view of the intent is old.
	ErrInvalidTransition = errors.New("no such transition")
	// ErrForbiddenActor says that the step exists, but not for this actor.
	ErrForbiddenActor = errors.New("transition is not open to this actor")
	// ErrEvidenceRequired says that the step needs a reason or a transaction
	// hash, and names which.
	ErrEvidenceRequired = errors.New("transition needs evidence")
	// ErrEvidenceMismatch says that the transaction hash given is not the one
	// on record, where the step can not change it.
	ErrEvidenceMismatch = errors.New("tx_hash is not the one on record")
	// ErrExpired says that the intent can not be authorized any more.
	ErrExpired = errors.New("payment intent has expired")
	// ErrUnavailable says that the store could not be reached or failed. It
	// wraps the driver's error, which is for the log only.
	ErrUnavailable = errors.New("payment intents are unavailable")
)

// InvalidError says which member of a request broke which rule, in words for
// the caller. It never carries the value, which may be of any size; of metadata
// it carries the beginning of a name.
type InvalidError struct {
	Member, Rule string
}

// Error returns one sentence, such as "amount must be a decimal integer string
// from 1 to 2^256-1".
func (e *InvalidError) Error() string {
	return e.Member + " " + e.Rule
}

// VersionConflictError says that the intent is at another version than the one
// that the caller named. It unwraps to ErrVersionConflict.
type VersionConflictError struct {
	Present, Wanted int64
}

// Error returns one sentence with both versions.
func (e *VersionConflictError) Error() string {
	return fmt.Sprintf("payment intent has version %d, not %d", e.Present, e.Wanted)
}

// Unwrap returns ErrVersionConflict.
func (e *VersionConflictError) Unwrap() error {
	return ErrVersionConflict
}

// refusal is one of the errors above with the sentence that its client reads,
// where the error's own words can not be a part of it.
type refusal struct {
	kind error
	says string
}

func refuse(kind error, format string, args ...any) error {
	return &refusal{kind, fmt.Sprintf(format, args...)}
}

func (r *refusal) Error() string { return r.says }
func (r *refusal) Unwrap() error { return r.kind }

// ID names an intent: a UUID of version 7 (RFC 9562, section 5.7). A merchant's
// ids sort as their intents' CreatedAt do, to the microsecond, since the store
// makes both from one reading of its clock. What counts as data is CreatedAt:
// the ids of earlier builds hold the clock of the process that made them.
type ID uuid.UUID

const idPrefix = "pi_"

// maxTime is the last moment that an ID can hold, in milliseconds since 1970.
const maxTime = 1<<48 - 1

// NewID makes a new ID for the time at, which is an intent's CreatedAt. The 48
// bits of the UUID are at's milliseconds, the 12 bits behind its version hold
// the microseconds below them (RFC 9562, section 6.2, method 3), the other 62
// are random. So the primary key alone serves lists by time, and replicas whose
// clocks differ agree on the order, as they ask the store for the time. It fails
// if the system has no randomness to give, or if at is before 1970 or after the
// year 10889.
func NewID(at time.Time) (ID, error) {
	if ms := at.UnixMilli(); ms < 0 || ms > maxTime {
		return ID{}, fmt.Errorf("no id can hold the time %s", at)
	}
	// It has the bits of the variant where a version 7 has them too.
	random, err := uuid.NewRandom()
	if err != nil {
		return ID{}, err
	}
	id := FirstID(at)
	copy(id[8:], random[8:])
	return id, nil
}

// FirstID returns the lowest ID of the microsecond that at is in: every ID of
// that time or a later one is not below it, every ID of an earlier one is. A
// time that no ID can hold counts as the nearest that one can.
func FirstID(at time.Time) ID {
	us := uint64(min(max(at.UnixMicro(), 0), maxTime*1000+999))
	var id ID
	binary.BigEndian.PutUint64(id[:], us/1000<<16|7<<12|us%1000*4096/1000)
	id[8] = 0x80 // RFC 9562, section 4.1: the variant
	return id
}

// ParseID reads the one spelling that String writes. Every other one, capital
// digits included, is ErrNotFound, since it names no intent; so is a UUID of
// another version or variant than NewID makes.
func ParseID(s string) (ID, error) {
	var id ID
	digits, ok := strings.CutPrefix(s, idPrefix)
	if !ok || len(digits) != hex.EncodedLen(len(id)) {
		return ID{}, fmt.Errorf("%w: malformed id", ErrNotFound)
	}
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil || id.String() != s {
		return ID{}, fmt.Errorf("%w: malformed id", ErrNotFound)
	}
	if u := uuid.UUID(id); u.Version() != 7 || u.Variant() != uuid.RFC4122 {
		return ID{}, fmt.Errorf("%w: id is not a UUIDv7", ErrNotFound)
	}
	return id, nil
}

// String returns pi_ and 32 lower-case hex digits.
func (id ID) String() string {
	return idPrefix + hex.EncodeToString(id[:])
}

// Intent is a merchant's wish to be paid, and how far that has come. Addresses
// and hashes are in their chain's canonical spelling, times are UTC with
// microseconds.
type Intent struct {
	MerchantID string
	ID         ID

	Chain, Token, Payer, Merchant string
	// Amount is a decimal integer in the token's smallest unit. It is text,
	// since no integer type holds 2^256-1.
	Amount string

	State State
	// Version is 1 on creation and one more with every change of state.
	Version int64
	// Reference is empty if it was not given.
	Reference string
	// Metadata is nil if it was not given, which differs from given and empty.
	Metadata map[string]string
	// TxHash is the transaction that is believed to pay, empty if there is none.
	TxHash string

	CreatedAt, UpdatedAt, ExpiresAt time.Time
}

// Transition is one change of an intent's state: a row of its trail, which
// begins with the first change, not with the creation.
type Transition struct {
	MerchantID string
	IntentID   ID
	// Version is the one that the intent has after the change: 2 or more.
	Version  int64
	From, To State
	Actor    Actor
	// Reason and TxHash are what the actor brought, empty if nothing.
	Reason, TxHash string
	At             time.Time
}
