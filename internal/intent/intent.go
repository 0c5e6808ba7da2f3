// Package intent is the domain: what a payment intent is, which values it may
// hold, how its state may change, and who may change it. It knows nothing of
// HTTP, of SQL or of idempotency.
package intent

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Every error of this package and of a Store, beside those of the store's own
// driver, is or wraps one of these or is an *InvalidError.
var (
	// ErrNotFound says that the merchant has no such intent. Another merchant's
	// intent is no different from none.
	ErrNotFound = errors.New("payment intent not found")
	// ErrVersionConflict says that the intent is not, or no longer, at the
	// version the caller decided on: somebody was faster. Read again, decide
	// again.
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

// ID names an intent: a UUID of version 7 (RFC 9562, section 5.7), which sorts
// by time of creation. The time inside it is the clock of the process that made
// it and is not data: what counts is CreatedAt.
type ID uuid.UUID

const idPrefix = "pi_"

// NewID makes a new ID. It fails only if the system has no randomness to give.
func NewID() (ID, error) {
	id, err := uuid.NewV7()
	return ID(id), err
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
