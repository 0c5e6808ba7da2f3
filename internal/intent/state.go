package intent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"intentd/internal/intent/chain"
)

// State is how far a payment has come.
type State string

// The states of an intent. The last three are final.
const (
	Created     State = "created"
	Authorized  State = "authorized"
	Settling    State = "settling"
	Confirming  State = "confirming"
	NeedsReview State = "needs_review"
	Settled     State = "settled"
	Failed      State = "failed"
	Canceled    State = "canceled"
)

// States returns every state, in the order of a payment's life.
func States() []State {
	return []State{Created, Authorized, Settling, Confirming, NeedsReview, Settled, Failed, Canceled}
}

// stateRule says what a member that names a state may be.
func stateRule() string {
	names := make([]string, 0, len(States()))
	for _, s := range States() {
		names = append(names, string(s))
	}
	return "must be one of " + strings.Join(names, ", ")
}

// Final says that no step leads out of s.
func (s State) Final() bool {
	return s == Settled || s == Failed || s == Canceled
}

// Actor is who takes a step.
type Actor string

// The actors: the merchant through the API, the process that sends
// transactions, the one that watches the chain, a person, and this service
// itself.
const (
	API      Actor = "api"
	Relayer  Actor = "relayer"
	Listener Actor = "listener"
	Operator Actor = "operator"
	System   Actor = "system"
)

// Actors returns every actor.
func Actors() []Actor {
	return []Actor{API, Relayer, Listener, Operator, System}
}

// ReasonExpired is the reason on record when the service itself cancels an
// intent that nobody authorized in time.
const ReasonExpired = "expired"

// maxReason is in code points.
const maxReason = 500

// txRule is what a transition does with the transaction hash. Where it neither
// takes nor needs one, one that is given must still be the one on record: to
// drop another silently would let its sender believe that it was taken.
type txRule string

const (
	txKeep  txRule = "-"                           // needs none
	txClear txRule = "clears tx_hash"              // needs none, takes the one on record away
	txSame  txRule = "tx_hash (the one on record)" // needs the one on record
	txTake  txRule = "tx_hash"                     // needs one, which goes on record
)

type transition struct {
	from, to State
	actors   []Actor
	reason   bool
	tx       txRule
}

// transitions is the one table of what may happen to an intent: what is not in
// it can not. testdata/transitions.golden pins it.
var transitions = []transition{
	{Created, Authorized, []Actor{API}, false, txKeep},
	{Created, Canceled, []Actor{API, Operator, System}, true, txKeep},
	{Authorized, Settling, []Actor{Relayer}, false, txKeep},
	{Authorized, Canceled, []Actor{API, Operator}, true, txKeep},
	{Settling, Confirming, []Actor{Relayer, Listener}, false, txTake},
	{Settling, Failed, []Actor{Relayer}, true, txKeep},
	{Settling, NeedsReview, []Actor{Relayer}, true, txKeep},
	{Confirming, Settled, []Actor{Listener}, false, txSame},
	{Confirming, Settling, []Actor{Listener}, true, txClear},
	{Confirming, NeedsReview, []Actor{Listener}, true, txKeep},
	{NeedsReview, Settled, []Actor{Operator}, true, txTake},
	{NeedsReview, Failed, []Actor{Operator}, true, txKeep},
}

func lookup(from, to State) (transition, bool) {
	i := slices.IndexFunc(transitions, func(t transition) bool { return t.from == from && t.to == to })
	if i < 0 {
		return transition{}, false
	}
	return transitions[i], true
}

// Step is what an actor asks for.
type Step struct {
	To    State
	Actor Actor
	// Reason is 1 to 500 code points without control characters; empty means
	// that none is given. It is welcome on every step.
	Reason string
	// TxHash is a transaction hash of the intent's chain; empty means that none
	// is given.
	TxHash string
	// IfVersion is the version that the actor decided on; 0 means any.
	IfVersion int64
}

// Next decides a step at the time now and changes nothing. It returns the
// transition to make, or nil if the intent is already where the step leads,
// whoever asks and for whatever reason: there is no row then to put one in.
//
// A refusal tells a fault from a race, and the first of these that applies is
// returned: *InvalidError for an unknown state and for a malformed reason or
// tx_hash; *VersionConflictError if the intent is not at the version the actor
// decided on, even when it is already there, since it may have come there
// another way; ErrEvidenceMismatch if it is already there with another tx_hash
// than the one given; ErrInvalidTransition if the table has no such row;
// ErrForbiddenActor if it has, but not for this actor; ErrEvidenceRequired,
// naming what is missing; ErrEvidenceMismatch if a tx_hash is given that is not
// the one on record, to a row that does not take a new one; ErrExpired for
// created to authorized at expires_at or later.
func (in Intent) Next(step Step, now time.Time) (*Transition, error) {
	hash, err := in.evidence(step)
	if err != nil {
		return nil, err
	}
	if step.IfVersion != 0 && step.IfVersion != in.Version {
		return nil, &VersionConflictError{Present: in.Version, Wanted: step.IfVersion}
	}
	differs := hash != "" && hash != in.TxHash
	if step.To == in.State {
		if differs {
			return nil, refuse(ErrEvidenceMismatch, "already %s, but the tx_hash given is not the one on record", in.State)
		}
		return nil, nil
	}

	row, ok := lookup(in.State, step.To)
	switch {
	case !ok:
		return nil, refuse(ErrInvalidTransition, "no such transition: %s to %s", in.State, step.To)
	case !slices.Contains(row.actors, step.Actor):
		return nil, refuse(ErrForbiddenActor, "%s to %s is not open to %.40s", row.from, row.to, step.Actor)
	case row.reason && step.Reason == "":
		return nil, refuse(ErrEvidenceRequired, "%s to %s needs a reason", row.from, row.to)
	case (row.tx == txTake || row.tx == txSame) && hash == "":
		return nil, refuse(ErrEvidenceRequired, "%s to %s needs a tx_hash", row.from, row.to)
	case row.tx != txTake && differs:
		return nil, refuse(ErrEvidenceMismatch, "%s to %s: the tx_hash given is not the one on record", row.from, row.to)
	case row.to == Authorized && !now.Before(in.ExpiresAt):
		return nil, refuse(ErrExpired, "%s to %s is too late: the payment intent expired at %s", row.from, row.to,
			in.ExpiresAt.UTC().Format("2006-01-02T15:04:05.000000Z"))
	}
	// A transaction's time is that of its begin, so one that began earlier may
	// well see the work of one that began later; updated_at still never goes
	// back.
	if now.Before(in.UpdatedAt) {
		now = in.UpdatedAt
	}
	return &Transition{
		MerchantID: in.MerchantID,
		IntentID:   in.ID,
		Version:    in.Version + 1,
		From:       in.State,
		To:         row.to,
		Actor:      step.Actor,
		Reason:     step.Reason,
		TxHash:     hash,
		At:         now,
	}, nil
}

// After returns the intent as it is once t, which Next decided, has been made.
func (in Intent) After(t Transition) Intent {
	row, _ := lookup(t.From, t.To)
	switch row.tx {
	case txTake:
		in.TxHash = t.TxHash
	case txClear:
		in.TxHash = ""
	}
	in.State, in.Version, in.UpdatedAt = t.To, t.Version, t.At
	return in
}

// evidence checks the step's members, whatever it asks for, and returns the
// canonical tx_hash.
func (in Intent) evidence(step Step) (string, error) {
	if !slices.Contains(States(), step.To) {
		return "", &InvalidError{"to", stateRule()}
	}
	if step.Reason != "" && !isText(step.Reason, maxReason) {
		return "", &InvalidError{"reason", fmt.Sprintf("must be 1 to %d characters, none of them a control character", maxReason)}
	}
	if step.TxHash == "" {
		return "", nil
	}
	c, err := chain.Parse(in.Chain)
	if err != nil {
		return "", fmt.Errorf("chain of %s %w", in.ID, err)
	}
	hash, err := c.TxHash(step.TxHash)
	if err != nil {
		return "", &InvalidError{"tx_hash", err.Error()}
	}
	return hash, nil
}
