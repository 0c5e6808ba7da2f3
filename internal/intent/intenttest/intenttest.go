// Package intenttest is the contract of an intent.Store as a test suite, which
// every store runs.
package intenttest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"intentd/internal/intent"
)

// Harness is one empty store and a hold on its clock, which goes on by itself,
// though not with every reading.
type Harness struct {
	Store intent.Store
	// Advance makes everything in the store older by d: it moves the store's
	// clock, or back-dates what the store holds.
	Advance func(t *testing.T, d time.Duration)
	// Insert puts in a new intent just as it is, ID and times included, which a
	// store gives by itself; in has no metadata. An ID that the merchant already
	// has is an error.
	Insert func(ctx context.Context, in intent.Intent) error
}

// Run checks that the stores which open returns keep the contract. Each call of
// open must return a store of its own, since the cases run in parallel.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	for _, c := range []struct {
		name string
		test func(t *testing.T, h Harness)
	}{
		{"CreateThenGet", createThenGet},
		{"CreateKeepsMetadata", createKeepsMetadata},
		{"CreateKeepsEveryDigit", createKeepsEveryDigit},
		{"CreateRefusesTakenID", createRefusesTakenID},
		{"OtherMerchantSeesNothing", otherMerchantSeesNothing},
		{"SameIDTwoMerchants", sameIDTwoMerchants},
		{"IDsFollowTheClock", idsFollowTheClock},
		{"ListAgreesWithNaive", listAgreesWithNaive},
		{"ListWhileInserting", listWhileInserting},
		{"ListKeepsMerchantsApart", listKeepsMerchantsApart},
		{"ListAtTheEdge", listAtTheEdge},
		{"ListGivesCopies", listGivesCopies},
		{"SearchAgreesWithNaive", searchAgreesWithNaive},
		{"SearchSameID", searchSameID},
		{"SearchTxHash", searchTxHash},
		{"SearchIsBounded", searchIsBounded},
		{"SearchRefuses", searchRefuses},
		{"TransitionsInPages", transitionsInPages},
		{"MoveWholeLife", moveWholeLife},
		{"MoveKeepsTheRest", moveKeepsTheRest},
		{"MoveNowhereChangesNothing", moveNowhereChangesNothing},
		{"MoveRefusedChangesNothing", moveRefusedChangesNothing},
		{"MoveOvertaken", moveOvertaken},
		{"MoveConcurrent", moveConcurrent},
		{"MoveIsDecidedAgain", moveIsDecidedAgain},
		{"MoveAlwaysOvertaken", moveAlwaysOvertaken},
		{"MoveExpired", moveExpired},
		{"CancelTwice", cancelTwice},
		{"CancelConcurrent", cancelConcurrent},
		{"CancelDueOnlyDue", cancelDueOnlyDue},
		{"CancelDueOnlyCreated", cancelDueOnlyCreated},
		{"CancelDueSameIDTwoMerchants", cancelDueSameIDTwoMerchants},
		{"CancelDueInBatches", cancelDueInBatches},
		{"CancelDueConcurrent", cancelDueConcurrent},
		{"CancelDueMeetsMove", cancelDueMeetsMove},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, open(t))
		})
	}
}

const (
	merchant = "m-1"
	stranger = "m-2"
	hash     = "0x00000000000000000000000000000000000000000000000000000000000000aa"
	hash2    = "0x00000000000000000000000000000000000000000000000000000000000000bb"
)

func params() intent.Params {
	return intent.Params{
		Chain:    "evm:31337",
		Token:    "0x5FbDB2315678afecb367f032d93F642f64180aa3",
		Payer:    "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
		Merchant: "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
		Amount:   "1500000",
	}
}

// create stores an intent that lives for d, which is in whole seconds.
func create(t *testing.T, h Harness, d time.Duration) intent.Intent {
	t.Helper()
	p := params()
	seconds := int64(d / time.Second)
	p.ExpiresIn = &seconds
	return createWith(t, h, p)
}

func createWith(t *testing.T, h Harness, p intent.Params) intent.Intent {
	t.Helper()
	in, err := intent.New(h.Store).Create(t.Context(), merchant, p)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func get(t *testing.T, h Harness, id intent.ID) intent.Intent {
	t.Helper()
	in, err := h.Store.Get(t.Context(), merchant, id)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func move(t *testing.T, h Harness, id intent.ID, step intent.Step) intent.Intent {
	t.Helper()
	in, err := intent.New(h.Store).Move(t.Context(), merchant, id, step)
	if err != nil {
		t.Fatalf("Move to %s: %v", step.To, err)
	}
	return in
}

func trail(t *testing.T, h Harness, id intent.ID) []intent.Transition {
	t.Helper()
	ts, more, err := h.Store.Transitions(t.Context(), merchant, id, 0, 100)
	if err != nil || more {
		t.Fatalf("Transitions: more %t, %v", more, err)
	}
	return ts
}

func cancelDue(t *testing.T, h Harness, limit, want int) {
	t.Helper()
	n, err := h.Store.CancelDue(t.Context(), limit)
	if err != nil {
		t.Fatal(err)
	}
	if n != want {
		t.Fatalf("CancelDue(%d) = %d, want %d", limit, n, want)
	}
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

// wantCanceled checks that the sweep canceled the intent, once.
func wantCanceled(t *testing.T, h Harness, id intent.ID) {
	t.Helper()
	in := get(t, h, id)
	if in.State != intent.Canceled || in.Version != 2 {
		t.Fatalf("%s is %s at version %d, want canceled at 2", id, in.State, in.Version)
	}
	equal(t, "trail", trail(t, h, id), []intent.Transition{{
		MerchantID: merchant, IntentID: id, Version: 2, From: intent.Created, To: intent.Canceled,
		Actor: intent.System, Reason: intent.ReasonExpired, At: in.UpdatedAt,
	}})
	if in.UpdatedAt.Before(in.ExpiresAt) {
		t.Fatalf("canceled at %s, before it expired at %s", in.UpdatedAt, in.ExpiresAt)
	}
}

func createThenGet(t *testing.T, h Harness) {
	reference, seconds := "order-1001 ✓", int64(1)
	p := params()
	p.Reference, p.ExpiresIn = &reference, &seconds
	p.Metadata = map[string]string{"b": "", "a": `"quoted" \ <tag> 💶`}

	for range 20 {
		in := createWith(t, h, p)
		want := intent.Intent{
			MerchantID: merchant, ID: in.ID,
			Chain: p.Chain, Token: p.Token, Payer: p.Payer, Merchant: p.Merchant, Amount: p.Amount,
			State: intent.Created, Version: 1, Reference: reference, Metadata: p.Metadata,
			CreatedAt: in.CreatedAt, UpdatedAt: in.CreatedAt, ExpiresAt: in.CreatedAt.Add(time.Second),
		}
		// A member that this test does not set may be one that no store keeps.
		for i, v := range reflect.ValueOf(want).Fields() {
			if v.IsZero() && i.Name != "TxHash" {
				t.Fatalf("the test gives no %s", i.Name)
			}
		}
		equal(t, "Create", in, want)
		equal(t, "Get", get(t, h, in.ID), want)
		for _, at := range []time.Time{in.CreatedAt, in.UpdatedAt, in.ExpiresAt} {
			if at.Location() != time.UTC || !at.Equal(at.Truncate(time.Microsecond)) {
				t.Fatalf("%s is not UTC in whole microseconds", at)
			}
		}
		equal(t, "trail", len(trail(t, h, in.ID)), 0)
	}

	long := create(t, h, 2_592_000*time.Second)
	equal(t, "longest life", long.ExpiresAt.Sub(long.CreatedAt), 2_592_000*time.Second)
	equal(t, "Get", get(t, h, long.ID), long)
}

func createKeepsMetadata(t *testing.T, h Harness) {
	for _, metadata := range []map[string]string{nil, {}, {"": ""}, {"k": "v", "K": "\u2028"}} {
		in, err := h.Store.Create(t.Context(), bare(metadata), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "Create", in.Metadata, metadata)
		equal(t, "Get", get(t, h, in.ID).Metadata, metadata)
	}

	mine := map[string]string{"k": "v"}
	in, err := h.Store.Create(t.Context(), bare(mine), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	mine["k"] = "written to after Create"
	got := get(t, h, in.ID)
	equal(t, "Get", got.Metadata, map[string]string{"k": "v"})
	got.Metadata["k"] = "written to after Get"
	equal(t, "Get", get(t, h, in.ID).Metadata, map[string]string{"k": "v"})
}

// bare returns an intent as the service gives it to a store.
func bare(metadata map[string]string) intent.Intent {
	p := params()
	return intent.Intent{
		MerchantID: merchant,
		Chain:      p.Chain, Token: p.Token, Payer: p.Payer, Merchant: p.Merchant, Amount: p.Amount,
		Metadata: metadata,
	}
}

func createKeepsEveryDigit(t *testing.T, h Harness) {
	for _, amount := range []string{
		"1", "9007199254740993", "18446744073709551617", "1" + strings.Repeat("0", 77),
		"115792089237316195423570985008687907853269984665640564039457584007913129639935",
	} {
		p := params()
		p.Amount = amount
		in := createWith(t, h, p)
		equal(t, "Create", in.Amount, amount)
		equal(t, "Get", get(t, h, in.ID).Amount, amount)
	}
}

func createRefusesTakenID(t *testing.T, h Harness) {
	in := create(t, h, time.Hour)
	again := in
	again.Amount = "2"
	if err := h.Insert(t.Context(), again); err == nil {
		t.Fatal("a taken id was accepted")
	}
	equal(t, "Get", get(t, h, in.ID), in)
}

func otherMerchantSeesNothing(t *testing.T, h Harness) {
	in := create(t, h, time.Hour)
	_, err := h.Store.Get(t.Context(), stranger, in.ID)
	wantErr(t, err, intent.ErrNotFound)
	_, _, err = h.Store.Transitions(t.Context(), stranger, in.ID, 0, 1)
	wantErr(t, err, intent.ErrNotFound)
	_, err = h.Store.Move(t.Context(), stranger, in.ID, func(intent.Intent, time.Time) (*intent.Transition, error) {
		t.Error("a stranger got to decide")
		return nil, nil
	})
	wantErr(t, err, intent.ErrNotFound)

	none, err := intent.NewID(in.CreatedAt)
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Store.Get(t.Context(), merchant, none)
	wantErr(t, err, intent.ErrNotFound)
	_, _, err = h.Store.Transitions(t.Context(), merchant, none, 0, 1)
	wantErr(t, err, intent.ErrNotFound)
}

func sameIDTwoMerchants(t *testing.T, h Harness) {
	mine := create(t, h, time.Hour)
	theirs := mine
	theirs.MerchantID, theirs.Amount = stranger, "7"
	if err := h.Insert(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	move(t, h, mine.ID, intent.Step{To: intent.Authorized, Actor: intent.API})

	got, err := h.Store.Get(t.Context(), stranger, mine.ID)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "their intent", got, theirs)
	ts, _, err := h.Store.Transitions(t.Context(), stranger, mine.ID, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "their trail", len(ts), 0)
}

func moveWholeLife(t *testing.T, h Harness) {
	in := create(t, h, time.Hour)
	want, wantTrail := in, []intent.Transition(nil)
	for i, s := range []struct {
		step intent.Step
		hash string
	}{
		{intent.Step{To: intent.Authorized, Actor: intent.API}, ""},
		{intent.Step{To: intent.Settling, Actor: intent.Relayer, IfVersion: 2}, ""},
		{intent.Step{To: intent.Confirming, Actor: intent.Relayer, TxHash: hash}, hash},
		{intent.Step{To: intent.Settling, Actor: intent.Listener, Reason: "reorg at block 12 ✗"}, ""},
		{intent.Step{To: intent.Confirming, Actor: intent.Listener, TxHash: hash2}, hash2},
		{intent.Step{To: intent.NeedsReview, Actor: intent.Listener, Reason: "paid twice"}, hash2},
		{intent.Step{To: intent.Settled, Actor: intent.Operator, Reason: "seen", TxHash: hash}, hash},
	} {
		got := move(t, h, in.ID, s.step)
		if got.UpdatedAt.Before(want.UpdatedAt) {
			t.Fatalf("updated_at went back from %s to %s", want.UpdatedAt, got.UpdatedAt)
		}
		wantTrail = append(wantTrail, intent.Transition{
			MerchantID: merchant, IntentID: in.ID, Version: int64(i) + 2, From: want.State, To: s.step.To,
			Actor: s.step.Actor, Reason: s.step.Reason, TxHash: s.step.TxHash, At: got.UpdatedAt,
		})
		want.State, want.Version, want.TxHash, want.UpdatedAt = s.step.To, int64(i)+2, s.hash, got.UpdatedAt
		equal(t, "Move", got, want)
		equal(t, "Get", get(t, h, in.ID), want)
		equal(t, "trail", trail(t, h, in.ID), wantTrail)
	}
}

func moveKeepsTheRest(t *testing.T, h Harness) {
	in, err := h.Store.Create(t.Context(), bare(map[string]string{"k": "v"}), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	other := create(t, h, time.Hour)
	h.Advance(t, time.Minute)

	want := get(t, h, in.ID)
	otherWant := get(t, h, other.ID)
	got := move(t, h, in.ID, intent.Step{To: intent.Authorized, Actor: intent.API})
	if !got.UpdatedAt.After(want.CreatedAt) {
		t.Fatalf("updated_at %s stood still at created_at", got.UpdatedAt)
	}
	want.State, want.Version, want.UpdatedAt = intent.Authorized, 2, got.UpdatedAt
	equal(t, "Move", got, want)
	equal(t, "the other intent", get(t, h, other.ID), otherWant)
	equal(t, "the other trail", len(trail(t, h, other.ID)), 0)
}

func moveNowhereChangesNothing(t *testing.T, h Harness) {
	in := create(t, h, time.Hour)
	want := move(t, h, in.ID, intent.Step{To: intent.Authorized, Actor: intent.API})
	equal(t, "Move again", move(t, h, in.ID, intent.Step{To: intent.Authorized, Actor: intent.API}), want)
	equal(t, "Get", get(t, h, in.ID), want)
	equal(t, "trail", len(trail(t, h, in.ID)), 1)
}

func moveRefusedChangesNothing(t *testing.T, h Harness) {
	in := create(t, h, time.Hour)
	refusal := errors.New("no")
	_, err := h.Store.Move(t.Context(), merchant, in.ID, func(seen intent.Intent, _ time.Time) (*intent.Transition, error) {
		equal(t, "what decide sees", seen, in)
		return nil, refusal
	})
	wantErr(t, err, refusal)
	_, err = intent.New(h.Store).Move(t.Context(), merchant, in.ID, intent.Step{To: intent.Settled, Actor: intent.API})
	wantErr(t, err, intent.ErrInvalidTransition)
	equal(t, "Get", get(t, h, in.ID), in)
	equal(t, "trail", len(trail(t, h, in.ID)), 0)
}

func moveOvertaken(t *testing.T, h Harness) {
	in := create(t, h, time.Hour)
	var faster intent.Intent
	_, err := h.Store.Move(t.Context(), merchant, in.ID, func(seen intent.Intent, now time.Time) (*intent.Transition, error) {
		faster = move(t, h, in.ID, intent.Step{To: intent.Canceled, Actor: intent.API, Reason: "changed my mind"})
		return seen.Next(intent.Step{To: intent.Authorized, Actor: intent.API}, now)
	})
	wantErr(t, err, intent.ErrVersionConflict)
	equal(t, "Get", get(t, h, in.ID), faster)
	equal(t, "trail", len(trail(t, h, in.ID)), 1)
}

// moveConcurrent lets every mover decide on the same version before any of them
// writes.
func moveConcurrent(t *testing.T, h Harness) {
	const movers = 20
	in := create(t, h, time.Hour)
	var decided, done sync.WaitGroup
	decided.Add(movers)
	errs := make([]error, movers)
	for i := range movers {
		done.Go(func() {
			_, errs[i] = h.Store.Move(t.Context(), merchant, in.ID, func(seen intent.Intent, now time.Time) (*intent.Transition, error) {
				decided.Done()
				decided.Wait()
				return seen.Next(intent.Step{To: intent.Canceled, Actor: intent.API, Reason: fmt.Sprint(i)}, now)
			})
		})
	}
	done.Wait()

	var winners []string
	for i, err := range errs {
		switch {
		case err == nil:
			winners = append(winners, fmt.Sprint(i))
		case !errors.Is(err, intent.ErrVersionConflict):
			t.Fatal(err)
		}
	}
	ts := trail(t, h, in.ID)
	if len(winners) != 1 || len(ts) != 1 || ts[0].Reason != winners[0] {
		t.Fatalf("winners %v, trail %+v; want one and the same", winners, ts)
	}
	equal(t, "version", get(t, h, in.ID).Version, int64(2))
}

func moveExpired(t *testing.T, h Harness) {
	in := create(t, h, time.Hour)
	h.Advance(t, time.Hour)
	_, err := intent.New(h.Store).Move(t.Context(), merchant, in.ID, intent.Step{To: intent.Authorized, Actor: intent.API})
	wantErr(t, err, intent.ErrExpired)
	equal(t, "state", get(t, h, in.ID).State, intent.Created)
	move(t, h, in.ID, intent.Step{To: intent.Canceled, Actor: intent.Operator, Reason: "late"})
}

func cancelDueOnlyDue(t *testing.T, h Harness) {
	in := create(t, h, time.Hour)
	later := create(t, h, 2*time.Hour)
	cancelDue(t, h, 10, 0)
	h.Advance(t, time.Hour-10*time.Second)
	cancelDue(t, h, 10, 0)
	h.Advance(t, 10*time.Second)
	cancelDue(t, h, 10, 1)
	wantCanceled(t, h, in.ID)
	cancelDue(t, h, 10, 0)
	equal(t, "the later one", get(t, h, later.ID).State, intent.Created)
	h.Advance(t, time.Hour)
	cancelDue(t, h, 10, 1)
	wantCanceled(t, h, later.ID)
	_, err := intent.New(h.Store).Move(t.Context(), merchant, later.ID, intent.Step{To: intent.Authorized, Actor: intent.API})
	wantErr(t, err, intent.ErrInvalidTransition)
}

func cancelDueOnlyCreated(t *testing.T, h Harness) {
	authorized, canceled, due := create(t, h, time.Hour), create(t, h, time.Hour), create(t, h, time.Hour)
	move(t, h, authorized.ID, intent.Step{To: intent.Authorized, Actor: intent.API})
	move(t, h, canceled.ID, intent.Step{To: intent.Canceled, Actor: intent.API, Reason: "r"})
	h.Advance(t, 2*time.Hour)
	authorized, canceled = get(t, h, authorized.ID), get(t, h, canceled.ID)

	cancelDue(t, h, 10, 1)
	wantCanceled(t, h, due.ID)
	equal(t, "the authorized one", get(t, h, authorized.ID), authorized)
	equal(t, "the canceled one", get(t, h, canceled.ID), canceled)
	equal(t, "its trail", trail(t, h, canceled.ID)[0].Reason, "r")
}

func cancelDueSameIDTwoMerchants(t *testing.T, h Harness) {
	mine := create(t, h, time.Minute)
	theirs := mine
	theirs.MerchantID, theirs.ExpiresAt = stranger, mine.CreatedAt.Add(2*time.Hour)
	if err := h.Insert(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	h.Advance(t, time.Hour)
	cancelDue(t, h, 10, 1)
	wantCanceled(t, h, mine.ID)
	got, err := h.Store.Get(t.Context(), stranger, mine.ID)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "their state", got.State, intent.Created)
}

func cancelDueInBatches(t *testing.T, h Harness) {
	var ids []intent.ID
	for i := range 5 {
		ids = append(ids, create(t, h, time.Duration(5-i)*time.Minute).ID)
	}
	h.Advance(t, time.Hour)
	cancelDue(t, h, 0, 0)
	cancelDue(t, h, 2, 2)
	// The last two were the first to expire.
	for i, id := range ids {
		want := intent.Created
		if i >= 3 {
			want = intent.Canceled
		}
		equal(t, fmt.Sprint("intent ", i), get(t, h, id).State, want)
	}
	cancelDue(t, h, 2, 2)
	cancelDue(t, h, 2, 1)
	cancelDue(t, h, 2, 0)
	for _, id := range ids {
		wantCanceled(t, h, id)
	}
}

func cancelDueConcurrent(t *testing.T, h Harness) {
	const dueIntents, sweepers, limit = 500, 4, 7
	ids := make([]intent.ID, dueIntents)
	for i := range ids {
		ids[i] = create(t, h, time.Hour).ID
	}
	h.Advance(t, time.Hour)

	var done sync.WaitGroup
	counts, errs := make([]int, sweepers), make([]error, sweepers)
	for i := range sweepers {
		done.Go(func() {
			// A short batch may only mean that the others hold the rest.
			for n := limit; n > 0 && errs[i] == nil; counts[i] += n {
				n, errs[i] = h.Store.CancelDue(t.Context(), limit)
			}
		})
	}
	done.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, n := range counts {
		sum += n
	}
	equal(t, "canceled by all", sum, dueIntents)
	for _, id := range ids {
		wantCanceled(t, h, id)
	}
}

// cancelDueMeetsMove lets a person and the sweeper go for the same intents.
func cancelDueMeetsMove(t *testing.T, h Harness) {
	const n = 40
	ids := make([]intent.ID, n)
	for i := range ids {
		ids[i] = create(t, h, time.Hour).ID
	}
	h.Advance(t, time.Hour)

	var done sync.WaitGroup
	var moved, swept int
	var moveErr, sweepErr error
	done.Go(func() {
		svc := intent.New(h.Store)
		for _, id := range ids {
			in, err := svc.Move(t.Context(), merchant, id, intent.Step{To: intent.Canceled, Actor: intent.Operator, Reason: "late", IfVersion: 1})
			switch {
			case err == nil && in.Version == 2:
				moved++
			case !errors.Is(err, intent.ErrVersionConflict):
				moveErr = fmt.Errorf("at version %d: %w", in.Version, err)
			}
		}
	})
	done.Go(func() {
		for range n {
			var c int
			if c, sweepErr = h.Store.CancelDue(t.Context(), 1); sweepErr != nil {
				return
			}
			swept += c
		}
	})
	done.Wait()
	if err := errors.Join(moveErr, sweepErr); err != nil {
		t.Fatal(err)
	}
	equal(t, "canceled by both", moved+swept, n)
	for _, id := range ids {
		equal(t, "version", get(t, h, id).Version, int64(2))
		equal(t, "trail", len(trail(t, h, id)), 1)
	}
}
