package intenttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"intentd/internal/intent"
)

// overtaken is a store in which somebody else moves the intent each time that
// it has been read and not yet written.
type overtaken struct {
	intent.Store
	overtake func()
}

// Move implements intent.Store.
func (o overtaken) Move(ctx context.Context, merchantID string, id intent.ID, decide func(intent.Intent, time.Time) (*intent.Transition, error)) (intent.Intent, error) {
	return o.Store.Move(ctx, merchantID, id, func(in intent.Intent, now time.Time) (*intent.Transition, error) {
		o.overtake()
		return decide(in, now)
	})
}

// once returns an overtake that takes one step, the first time.
func once(t *testing.T, h Harness, id intent.ID, step intent.Step) func() {
	var first sync.Once
	return func() {
		first.Do(func() { move(t, h, id, step) })
	}
}

// moveIsDecidedAgain is about steps that somebody overtook once.
func moveIsDecidedAgain(t *testing.T, h Harness) {
	cancel := intent.Step{To: intent.Canceled, Actor: intent.API, Reason: "changed my mind"}
	authorize := intent.Step{To: intent.Authorized, Actor: intent.API}
	conditional := authorize
	conditional.IfVersion = 1
	for _, c := range []struct {
		name         string
		faster, step intent.Step
		version      int64 // of the intent, at the end
		want         error
		says         string
	}{
		{"StillPossible", authorize, cancel, 3, nil, ""},
		{"ThereAlready", intent.Step{To: intent.Canceled, Actor: intent.Operator, Reason: "faster"}, cancel, 2, nil, ""},
		{"NoLongerPossible", cancel, authorize, 2, intent.ErrInvalidTransition, "no such transition: canceled to authorized"},
		{"Conditional", cancel, conditional, 2, intent.ErrVersionConflict, "payment intent has version 2, not 1"},
		{"ConditionalAndThere", authorize, conditional, 2, intent.ErrVersionConflict, "payment intent has version 2, not 1"},
	} {
		in := create(t, h, time.Hour)
		svc := intent.New(overtaken{h.Store, once(t, h, in.ID, c.faster)})
		got, err := svc.Move(t.Context(), merchant, in.ID, c.step)
		stands := get(t, h, in.ID)
		if c.want == nil {
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			equal(t, c.name, got, stands)
			equal(t, c.name, stands.State, c.step.To)
		} else {
			wantErr(t, err, c.want)
			equal(t, c.name, err.Error(), c.says)
			equal(t, c.name, stands.State, c.faster.To)
		}
		if errors.Is(c.want, intent.ErrVersionConflict) {
			var conflict *intent.VersionConflictError
			if !errors.As(err, &conflict) || *conflict != (intent.VersionConflictError{Present: 2, Wanted: 1}) {
				t.Fatalf("%s: error %#v", c.name, err)
			}
		}
		equal(t, c.name+" version", stands.Version, c.version)
		equal(t, c.name+" trail", int64(len(trail(t, h, in.ID))), c.version-1)
	}
}

// moveAlwaysOvertaken is a step that is possible each time it is decided.
func moveAlwaysOvertaken(t *testing.T, h Harness) {
	in := create(t, h, time.Hour)
	move(t, h, in.ID, intent.Step{To: intent.Authorized, Actor: intent.API})
	move(t, h, in.ID, intent.Step{To: intent.Settling, Actor: intent.Relayer})
	times := 0
	svc := intent.New(overtaken{h.Store, func() {
		times++
		move(t, h, in.ID, intent.Step{To: intent.Confirming, Actor: intent.Relayer, TxHash: hash})
		move(t, h, in.ID, intent.Step{To: intent.Settling, Actor: intent.Listener, Reason: "reorg"})
	}})
	_, err := svc.Move(t.Context(), merchant, in.ID, intent.Step{To: intent.Failed, Actor: intent.Relayer, Reason: "r"})
	wantErr(t, err, intent.ErrUnavailable)
	if errors.Is(err, intent.ErrVersionConflict) {
		t.Fatalf("%v is a conflict, of which the caller has named no version", err)
	}
	if times < 2 || times > 10 {
		t.Fatalf("tried %d times, want a few", times)
	}
	stands := get(t, h, in.ID)
	equal(t, "state", stands.State, intent.Settling)
	equal(t, "version", stands.Version, int64(3+2*times))
	equal(t, "trail", len(trail(t, h, in.ID)), 2+2*times)
}

// cancelTwice sends a cancellation again, in other words.
func cancelTwice(t *testing.T, h Harness) {
	in := create(t, h, time.Hour)
	canceled := move(t, h, in.ID, intent.Step{To: intent.Canceled, Actor: intent.API, Reason: "changed my mind"})
	want := trail(t, h, in.ID)
	h.Advance(t, time.Minute)
	stands, wantTrail := get(t, h, in.ID), trail(t, h, in.ID)
	equal(t, "trail", len(want), len(wantTrail))
	for _, step := range []intent.Step{
		{To: intent.Canceled, Actor: intent.API, Reason: "changed my mind"},
		{To: intent.Canceled, Actor: intent.API, Reason: "another reason"},
		{To: intent.Canceled, Actor: intent.API},
		{To: intent.Canceled, Actor: intent.Operator, Reason: "r", IfVersion: canceled.Version},
	} {
		equal(t, "Move again", move(t, h, in.ID, step), stands)
		equal(t, "Get", get(t, h, in.ID), stands)
		equal(t, "trail", trail(t, h, in.ID), wantTrail)
	}
}

// cancelConcurrent lets many cancel the same intent, who all may believe that
// they did.
func cancelConcurrent(t *testing.T, h Harness) {
	const cancelers = 20
	in := create(t, h, time.Hour)
	svc := intent.New(h.Store)
	var done sync.WaitGroup
	answers, errs := make([]intent.Intent, cancelers), make([]error, cancelers)
	for i := range cancelers {
		done.Go(func() {
			answers[i], errs[i] = svc.Move(t.Context(), merchant, in.ID, intent.Step{To: intent.Canceled, Actor: intent.API, Reason: fmt.Sprint(i)})
		})
	}
	done.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	stands := get(t, h, in.ID)
	for _, got := range answers {
		equal(t, "Move", got, stands)
	}
	equal(t, "version", stands.Version, int64(2))
	equal(t, "trail", len(trail(t, h, in.ID)), 1)
}
