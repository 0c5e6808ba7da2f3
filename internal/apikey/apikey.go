// Package apikey knows whose a bearer token is: which merchant, firm or process
// holds it, in which role, and whether it moves real money. It knows nothing of
// HTTP, of SQL or of payments.
package apikey

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"intentd/internal/secret"
)

// Role is what the holder of a key does to payments. The names are those of the
// actors in intent, which this package does not know.
type Role string

// The roles.
const (
	API      Role = "api"      // the merchant's back end
	Relayer  Role = "relayer"  // brings authorized payments to the chain
	Listener Role = "listener" // watches the chain
	Operator Role = "operator" // a person of the service's, for what needs one
)

// Roles returns every role, the merchant's first.
func Roles() []Role {
	return []Role{API, Relayer, Listener, Operator}
}

// Mode says whether a key is for real payments or for trying things out. Live
// and test keys never see each other's data, whoever holds them.
type Mode string

// The modes.
const (
	Live Mode = "live"
	Test Mode = "test"
)

// Holder is who holds a key. Two keys with equal Holders may do the same to the
// same payments, and share everything else that belongs to their holder: this is
// how a key is replaced by another without a gap.
type Holder struct {
	// Merchant is the merchant where Role is API, and otherwise the name of the
	// firm or process, for the trail of what it did.
	Merchant string
	Role     Role
	Mode     Mode
}

// Key is a token as it is kept: everything but the token.
type Key struct {
	ID ID
	Holder
	Name      string    // for people, to tell one key of a merchant from another; may be empty
	CreatedAt time.Time // UTC, by the store's clock
	// LastUsed is midnight UTC of the last day on which the key was used, by the
	// store's clock; zero if it never was. A use is on record some seconds later,
	// and not at all where the process dies before.
	LastUsed  time.Time
	RevokedAt time.Time // UTC, by the store's clock; zero while the key is in force
}

// Revoked tells whether the key is no longer in force.
func (k Key) Revoked() bool {
	return !k.RevokedAt.IsZero()
}

// InvalidError says what about a new key broke which rule, in words for who asked
// for it. It never carries the value.
type InvalidError struct {
	Member, Rule string
}

// Error returns one sentence, such as "role must be api, relayer, listener or
// operator".
func (e *InvalidError) Error() string {
	return e.Member + " " + e.Rule
}

// The rules of a key's members, as they follow the member's name in a sentence.
// A merchant's name has no colon, so that what is kept for test keys can be told
// from it by one.
const (
	MerchantRule = "must be 1 to 64 letters, digits, dots, dashes or underscores"
	RoleRule     = "must be api, relayer, listener or operator"
	ModeRule     = "must be live or test"
	NameRule     = "must be at most 100 characters, none of them a control character"
)

var merchantPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// Check returns every rule that a key with this holder and name would break.
func Check(h Holder, name string) []*InvalidError {
	var broken []*InvalidError
	rule := func(kept bool, member, rule string) {
		if !kept {
			broken = append(broken, &InvalidError{Member: member, Rule: rule})
		}
	}
	rule(merchantPattern.MatchString(h.Merchant), "merchant", MerchantRule)
	rule(slices.Contains(Roles(), h.Role), "role", RoleRule)
	rule(h.Mode == Live || h.Mode == Test, "mode", ModeRule)
	rule(utf8.ValidString(name) && utf8.RuneCountInString(name) <= 100 && !strings.ContainsFunc(name, unicode.IsControl), "name", NameRule)
	return broken
}

// ID names a key: a UUID of version 7 (RFC 9562, section 5.7). It is no secret.
type ID uuid.UUID

const idPrefix = "key_"

// ParseID reads the one spelling that String writes, and refuses every other.
func ParseID(s string) (ID, bool) {
	var id ID
	digits, ok := strings.CutPrefix(s, idPrefix)
	if !ok || len(digits) != hex.EncodedLen(len(id)) {
		return ID{}, false
	}
	if _, err := hex.Decode(id[:], []byte(digits)); err != nil || id.String() != s {
		return ID{}, false
	}
	u := uuid.UUID(id)
	if u.Version() != 7 || u.Variant() != uuid.RFC4122 {
		return ID{}, false
	}
	return id, true
}

// String returns key_ and 32 lower-case hex digits.
func (id ID) String() string {
	return idPrefix + hex.EncodeToString(id[:])
}

// ErrNotFound says that there is no key of that id.
var ErrNotFound = errors.New("no such API key")

// Store keeps keys. Its clock decides every time in them. Every method is one
// atomic step: after a crash it has happened or it has not. An error other than
// those named here means that the store could not be reached or failed, and is
// for the log only; where the store's answer was what got lost, the step may
// have happened all the same. Any number of processes may use one store.
type Store interface {
	// Create keeps a key in force, whose token has that digest, and returns it
	// with the time it got. The caller has checked holder and name.
	Create(ctx context.Context, id ID, digest Digest, holder Holder, name string) (Key, error)
	// List returns the keys of merchant in every role and mode, revoked ones
	// included, or everybody's where merchant is empty; newest first.
	List(ctx context.Context, merchant string) ([]Key, error)
	// Revoke puts the key out of force for good, and returns it as it is then.
	// Of one that was revoked before it changes nothing, and returns again. It
	// returns ErrNotFound if there is none.
	Revoke(ctx context.Context, id ID) (key Key, again bool, err error)
	// Find returns those of the keys that exist, revoked ones included, as they
	// were at some moment during the call; in any order.
	Find(ctx context.Context, digests []Digest) ([]Found, error)
	// Touch keeps on record that the keys were used today. Ids that nobody has
	// are passed over, and so may be a key that somebody else is changing.
	Touch(ctx context.Context, ids []ID) error
}

// Found is one key of a Store's that was asked for by its digest.
type Found struct {
	Key
	Digest    Digest
	UsedToday bool // LastUsed is today, by the store's clock
}

// Issue makes a new key and its token, which is to be had here and never again.
// It returns the *InvalidErrors of Check, joined, and the store's errors; the
// store may then hold a key that nobody has a token of, which harms nobody.
func Issue(ctx context.Context, s Store, h Holder, name string) (token secret.Text, key Key, err error) {
	if broken := Check(h, name); len(broken) > 0 {
		var errs []error
		for _, e := range broken {
			errs = append(errs, e)
		}
		return secret.Text{}, Key{}, errors.Join(errs...)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return secret.Text{}, Key{}, fmt.Errorf("API key id: %w", err)
	}
	token = NewToken(h.Mode)
	key, err = s.Create(ctx, ID(id), DigestOf(token), h, name)
	if err != nil {
		return secret.Text{}, Key{}, err
	}
	return token, key, nil
}

// Authenticator tells who holds a token.
type Authenticator interface {
	// Authenticate returns false for a token that nobody has, or that is no
	// longer in force. An error means that it could not be told.
	Authenticate(ctx context.Context, token secret.Text) (Holder, bool, error)
}

// Static is an Authenticator over a fixed set of tokens, of which it keeps only
// digests. A token is compared with all of them, in a time that tells nothing of
// how near it was to any.
type Static struct {
	keys []staticKey
}

type staticKey struct {
	digest Digest
	holder Holder
}

// NewStatic returns an Authenticator for the holders by their tokens' digests.
func NewStatic(holders map[Digest]Holder) *Static {
	s := new(Static)
	for digest, holder := range holders {
		s.keys = append(s.keys, staticKey{digest, holder})
	}
	return s
}

// Authenticate implements Authenticator. It never fails.
func (s *Static) Authenticate(_ context.Context, token secret.Text) (Holder, bool, error) {
	digest := DigestOf(token)
	found := -1
	for i := range s.keys {
		equal := subtle.ConstantTimeCompare(digest[:], s.keys[i].digest[:])
		found = subtle.ConstantTimeSelect(equal, i, found)
	}
	if found < 0 {
		return Holder{}, false, nil
	}
	return s.keys[found].holder, true, nil
}

// First asks one Authenticator after the other until one has the token. If none
// has it and one could not tell, neither can First.
func First(of ...Authenticator) Authenticator {
	return first(of)
}

type first []Authenticator

// Authenticate implements Authenticator.
func (f first) Authenticate(ctx context.Context, token secret.Text) (Holder, bool, error) {
	var errs []error
	for _, a := range f {
		holder, ok, err := a.Authenticate(ctx, token)
		switch {
		case err != nil:
			errs = append(errs, err)
		case ok:
			return holder, true, nil
		}
	}
	return Holder{}, false, errors.Join(errs...)
}

// Digest is the SHA-256 of a whole token. A token has 256 random bits, so that no
// slower hash and no salt is needed to keep its digest from telling it.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a token.
func DigestOf(token secret.Text) Digest {
	return sha256.Sum256([]byte(token.Reveal()))
}
