package intent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"intentd/internal/intent/chain"
)

// The limits of a request; lengths are in code points, lifetimes in seconds.
const (
	defaultExpiresIn = 900
	maxExpiresIn     = 30 * 24 * 60 * 60
	maxReference     = 255
	maxMembers       = 50
	maxName          = 40
	maxValue         = 500
	maxPage          = 100
)

// moveTries is how often a step that somebody overtook is decided. Each time
// another has moved the same intent, so that a few are many.
const moveTries = 5

// maxAmount is 2^256-1, the largest value of an EVM token's uint256.
const maxAmount = "115792089237316195423570985008687907853269984665640564039457584007913129639935"

var amountPattern = regexp.MustCompile(`^[1-9][0-9]{0,77}$`)

// Params is a request for a new intent, as it came in.
type Params struct {
	Chain, Token, Payer, Merchant string
	// Amount is a decimal integer in the token's smallest unit.
	Amount string
	// ExpiresIn is in seconds; nil means 900.
	ExpiresIn *int64
	// Reference is nil if it is not given.
	Reference *string
	// Metadata is nil if it is not given.
	Metadata map[string]string
}

// Service holds the rules for intents, over any Store. It is safe for
// concurrent use.
type Service struct {
	store Store
	moved func(ctx context.Context, to State, by Actor, n int)
}

// New returns a Service over store.
func New(store Store) *Service {
	return &Service{store: store, moved: func(context.Context, State, Actor, int) {}}
}

// Observed returns a Service over the same store that tells moved, and nobody
// else, of n intents that by has moved to a state; a new one is moved to created
// by the merchant. A step that finds its intent already there moves none. ctx is
// the caller's. Inside an attempt nothing is permanent yet when moved is told: it
// is for the caller to count what the attempt has kept.
func (s *Service) Observed(moved func(ctx context.Context, to State, by Actor, n int)) *Service {
	return &Service{store: s.store, moved: moved}
}

// Create checks p and stores a new intent of the merchant's. The first member
// that breaks its rule, in the documented order, is an *InvalidError; then
// nothing is stored. Any other error is the store's.
func (s *Service) Create(ctx context.Context, merchantID string, p Params) (Intent, error) {
	in, expiresIn, err := p.intent()
	if err != nil {
		return Intent{}, err
	}
	in.MerchantID = merchantID
	in, err = s.store.Create(ctx, in, expiresIn)
	if err == nil {
		s.moved(ctx, Created, API, 1)
	}
	return in, err
}

// Get returns the merchant's own intent. Another merchant's, or none, is
// ErrNotFound.
func (s *Service) Get(ctx context.Context, merchantID string, id ID) (Intent, error) {
	return s.store.Get(ctx, merchantID, id)
}

// List returns the page of the merchant's intents that q selects, newest first,
// and whether there are more behind it in the direction of paging. A member of q
// that breaks its rule is an *InvalidError, under the name that it has in the
// API's query.
func (s *Service) List(ctx context.Context, merchantID string, q Query) (page []Intent, more bool, err error) {
	if err := q.check(); err != nil {
		return nil, false, err
	}
	// What is created is in whole microseconds, so that rounding up selects the
	// same; a store may keep no more.
	q.CreatedFrom, q.CreatedBefore = roundUp(q.CreatedFrom), roundUp(q.CreatedBefore)
	return s.store.List(ctx, merchantID, q)
}

// Move takes one step with the merchant's own intent and returns how it stands
// then. An intent that is already there is returned as it is, without a row in
// its trail, so a step may be sent again when its answer was lost. Refusals are
// those of Intent.Next, and ErrNotFound; then nothing was changed.
//
// Where somebody moves the intent between reading and writing, the step is
// decided again on what stands then; a step that named a version gets its
// *VersionConflictError so. Where that happens several times in a row the error
// is ErrUnavailable, and nothing was changed. In an attempt of a store in memory
// it shows only when the attempt completes, as ErrVersionConflict.
func (s *Service) Move(ctx context.Context, merchantID string, id ID, step Step) (Intent, error) {
	var lost error
	for range moveTries {
		var taken *Transition
		in, err := s.store.Move(ctx, merchantID, id, func(in Intent, now time.Time) (t *Transition, err error) {
			taken, err = in.Next(step, now)
			return taken, err
		})
		if err == nil && taken != nil {
			s.moved(ctx, taken.To, taken.Actor, 1)
		}
		var decided *VersionConflictError
		if !errors.Is(err, ErrVersionConflict) || errors.As(err, &decided) {
			return in, err
		}
		lost = err
	}
	// Not wrapped: it is no conflict that the caller could do anything about.
	return Intent{}, fmt.Errorf("%w: overtaken %d times in a row: %s", ErrUnavailable, moveTries, lost.Error())
}

// Transitions returns up to limit rows, 1 to 100, of the trail of the merchant's
// own intent, oldest first, those with a version above after; and whether there
// are more. It is empty for an intent that has not moved since, ErrNotFound for
// none. A bad after is an *InvalidError under the name that it has in the API's
// query, starting_after; so is a bad limit.
func (s *Service) Transitions(ctx context.Context, merchantID string, id ID, after int64, limit int) (page []Transition, more bool, err error) {
	if err := checkLimit(limit); err != nil {
		return nil, false, err
	}
	if after < 0 {
		return nil, false, &InvalidError{"starting_after", "must be a version, an integer from 0"}
	}
	return s.store.Transitions(ctx, merchantID, id, after, limit)
}

// CancelDue cancels up to limit intents that nobody authorized in time and says
// how many. Fewer than limit means that none was left, or that others are at
// work on the rest.
func (s *Service) CancelDue(ctx context.Context, limit int) (int, error) {
	n, err := s.store.CancelDue(ctx, limit)
	if n > 0 {
		s.moved(ctx, Canceled, System, n)
	}
	return n, err
}

// intent checks p, member by member in the documented order.
func (p Params) intent() (Intent, time.Duration, error) {
	fail := func(member, rule string) (Intent, time.Duration, error) {
		return Intent{}, 0, &InvalidError{member, rule}
	}

	c, err := chain.Parse(p.Chain)
	if err != nil {
		return fail("chain", err.Error())
	}
	in := Intent{Chain: c.String(), Amount: p.Amount, Metadata: p.Metadata}
	for _, a := range []struct {
		member, given string
		address       *string
	}{
		{"token", p.Token, &in.Token},
		{"payer", p.Payer, &in.Payer},
		{"merchant", p.Merchant, &in.Merchant},
	} {
		if *a.address, err = c.Address(a.given); err != nil {
			return fail(a.member, err.Error())
		}
	}
	if in.Payer == in.Merchant {
		return fail("payer", "must differ from merchant")
	}

	// Both have 78 digits where the text is compared, so its order is the
	// number's.
	if !amountPattern.MatchString(p.Amount) || len(p.Amount) == len(maxAmount) && p.Amount > maxAmount {
		return fail("amount", "must be a decimal integer string from 1 to 2^256-1")
	}

	seconds := int64(defaultExpiresIn)
	if p.ExpiresIn != nil {
		seconds = *p.ExpiresIn
	}
	// Before it becomes a Duration, which a large number would wrap round.
	if seconds < 1 || seconds > maxExpiresIn {
		return fail("expires_in_seconds", fmt.Sprintf("must be an integer from 1 to %d", maxExpiresIn))
	}

	if p.Reference != nil {
		if rule := referenceRule(*p.Reference); rule != "" {
			return fail("reference", rule)
		}
		in.Reference = *p.Reference
	}

	if rule := metadataRule(p.Metadata); rule != "" {
		return fail("metadata", rule)
	}
	return in, time.Duration(seconds) * time.Second, nil
}

// check returns the first rule that q breaks, as an *InvalidError, or nil.
func (q Query) check() error {
	if err := checkLimit(q.Limit); err != nil {
		return err
	}
	if q.After != nil && q.Before != nil {
		return &InvalidError{"ending_before", "must not be given together with starting_after"}
	}
	if q.State != "" && !slices.Contains(States(), q.State) {
		return &InvalidError{"state", stateRule()}
	}
	if q.Reference != "" {
		if rule := referenceRule(q.Reference); rule != "" {
			return &InvalidError{"reference", rule}
		}
	}
	for _, bound := range []struct {
		member string
		at     time.Time
	}{
		{"created_gte", q.CreatedFrom},
		{"created_lt", q.CreatedBefore},
	} {
		// What no intent can have been created at, and some stores can not keep.
		if y := bound.at.UTC().Year(); !bound.at.IsZero() && (y < 1970 || y > 9999) {
			return &InvalidError{bound.member, "must be in the years 1970 to 9999"}
		}
	}
	if !q.CreatedFrom.IsZero() && !q.CreatedBefore.IsZero() && !q.CreatedFrom.Before(q.CreatedBefore) {
		return &InvalidError{"created_lt", "must be later than created_gte"}
	}
	return nil
}

func checkLimit(limit int) error {
	if limit < 1 || limit > maxPage {
		return &InvalidError{"limit", fmt.Sprintf("must be an integer from 1 to %d", maxPage)}
	}
	return nil
}

// roundUp returns the first whole microsecond that is not before t.
func roundUp(t time.Time) time.Time {
	down := t.Truncate(time.Microsecond)
	if down.Before(t) {
		return down.Add(time.Microsecond)
	}
	return down
}

// referenceRule returns the rule that a reference breaks, or nothing.
func referenceRule(s string) string {
	if s == "" || !isText(s, maxReference) {
		return fmt.Sprintf("must be 1 to %d characters, none of them a control character", maxReference)
	}
	return ""
}

// metadataRule returns the rule that m breaks, or nothing. Names are looked at
// in order, so that the same request always gets the same answer.
func metadataRule(m map[string]string) string {
	if len(m) > maxMembers {
		return fmt.Sprintf("must have at most %d members", maxMembers)
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if name == "" || !isText(name, maxName) {
			return fmt.Sprintf("name %.40q must be 1 to %d characters, none of them a control character", name, maxName)
		}
		if !isText(m[name], maxValue) {
			return fmt.Sprintf("value of %q must be at most %d characters, none of them a control character", name, maxValue)
		}
	}
	return ""
}

// isText says that s is valid UTF-8 of at most limit code points without a
// control character, U+0000-U+001F and U+007F-U+009F: Unicode's category Cc.
func isText(s string, limit int) bool {
	if !utf8.ValidString(s) || utf8.RuneCountInString(s) > limit {
		return false
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return false
		}
	}
	return true
}
