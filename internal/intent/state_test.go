package intent

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/transitions.golden")

var (
	hashA = "0x" + strings.Repeat("aa", 32)
	hashB = "0x" + strings.Repeat("bb", 32)
	now   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

// at returns an intent in a state, with hashA on record where there would be
// one.
func at(s State) Intent {
	in := Intent{
		MerchantID: "m-1", ID: ID{1}, Chain: "evm:1", State: s, Version: 7,
		CreatedAt: now.Add(-time.Hour), UpdatedAt: now.Add(-time.Minute), ExpiresAt: now.Add(time.Microsecond),
	}
	if s == Confirming || s == NeedsReview || s == Settled {
		in.TxHash = hashA
	}
	return in
}

func TestTransitions_Golden(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, row := range transitions {
		actors := make([]string, len(row.actors))
		for i, a := range row.actors {
			actors[i] = string(a)
		}
		reason := "-"
		if row.reason {
			reason = "reason"
		}
		fmt.Fprintf(&b, "%-12s -> %-12s | %-21s | %-6s | %s\n", row.from, row.to, strings.Join(actors, ", "), reason, row.tx)
	}

	golden := filepath.Join("testdata", "transitions.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Fatalf("the table changed; if that is meant, run with -update (-golden +table):\n%s", diff)
	}
}

func TestTransitions_EachRowOnce(t *testing.T) {
	t.Parallel()
	seen := make(map[[2]State]bool)
	leave := make(map[State]bool)
	for _, row := range transitions {
		pair := [2]State{row.from, row.to}
		if seen[pair] || row.from == row.to || len(row.actors) == 0 {
			t.Errorf("bad row %+v", row)
		}
		seen[pair], leave[row.from] = true, true
	}
	for _, s := range States() {
		if s.Final() == leave[s] {
			t.Errorf("%s: final %t, but has a way out %t", s, s.Final(), leave[s])
		}
	}
}

// TestIntent_Next_EveryTriple spells the rules a second time, by actor, and
// asks for every pair of states on behalf of every actor.
func TestIntent_Next_EveryTriple(t *testing.T) {
	t.Parallel()
	may := map[Actor]string{
		API:      "created>authorized created>canceled authorized>canceled",
		Relayer:  "authorized>settling settling>confirming settling>failed settling>needs_review",
		Listener: "settling>confirming confirming>settled confirming>settling confirming>needs_review",
		Operator: "created>canceled authorized>canceled needs_review>settled needs_review>failed",
		System:   "created>canceled",
	}
	anyone := make(map[string]bool)
	allowed := make(map[string]bool)
	for actor, steps := range may {
		for _, step := range strings.Fields(steps) {
			anyone[step] = true
			allowed[string(actor)+" "+step] = true
		}
	}
	takesHash := map[string]bool{"settling>confirming": true, "confirming>settled": true, "needs_review>settled": true}

	asked := 0
	for _, from := range States() {
		for _, to := range States() {
			for _, actor := range Actors() {
				asked++
				pair := string(from) + ">" + string(to)
				step := Step{To: to, Actor: actor, Reason: "because", IfVersion: 7}
				if takesHash[pair] {
					step.TxHash = hashA
				}
				got, err := at(from).Next(step, now)

				var want error
				switch {
				case from == to:
					if got != nil || err != nil {
						t.Errorf("%s by %s: %+v, %v, want nothing", pair, actor, got, err)
					}
					continue
				case !anyone[pair]:
					want = ErrInvalidTransition
				case !allowed[string(actor)+" "+pair]:
					want = ErrForbiddenActor
				default:
					wantT := &Transition{
						MerchantID: "m-1", IntentID: ID{1}, Version: 8, From: from, To: to, Actor: actor,
						Reason: "because", TxHash: step.TxHash, At: now,
					}
					if diff := cmp.Diff(wantT, got); diff != "" || err != nil {
						t.Errorf("%s by %s: %v (-want +got):\n%s", pair, actor, err, diff)
					}
					continue
				}
				if got != nil || !errors.Is(err, want) {
					t.Errorf("%s by %s: %+v, %v, want %v", pair, actor, got, err, want)
				} else if msg := err.Error(); !strings.Contains(msg, string(from)) || !strings.Contains(msg, string(to)) {
					t.Errorf("%s by %s: %q does not name both states", pair, actor, msg)
				}
			}
		}
	}
	if asked != 8*8*5 {
		t.Errorf("asked %d times", asked)
	}
}

func TestIntent_Next(t *testing.T) {
	t.Parallel()
	settled := at(Settled)
	noHash := at(NeedsReview)
	noHash.TxHash = ""
	expired := at(Created)
	expired.ExpiresAt = now

	for _, c := range []struct {
		name string
		in   Intent
		step Step
		want error
		says string
	}{
		{"ReasonMissing", at(Created), Step{To: Canceled, Actor: API}, ErrEvidenceRequired, "reason"},
		{"ReasonMissingFailed", at(Settling), Step{To: Failed, Actor: Relayer}, ErrEvidenceRequired, "reason"},
		{"HashMissing", at(Settling), Step{To: Confirming, Actor: Relayer, Reason: "r"}, ErrEvidenceRequired, "tx_hash"},
		{"HashMissingSettled", at(Confirming), Step{To: Settled, Actor: Listener}, ErrEvidenceRequired, "tx_hash"},
		{"ReviewHashMissing", at(NeedsReview), Step{To: Settled, Actor: Operator, Reason: "r"}, ErrEvidenceRequired, "tx_hash"},
		{"ReviewReasonMissing", at(NeedsReview), Step{To: Settled, Actor: Operator, TxHash: hashA}, ErrEvidenceRequired, "reason"},
		{"ActorBeforeEvidence", at(NeedsReview), Step{To: Settled, Actor: API}, ErrForbiddenActor, "not open to api"},
		{"SettledByRecord", at(Confirming), Step{To: Settled, Actor: Listener, TxHash: hashA}, nil, ""},
		{"SettledByRecordInCapitals", at(Confirming), Step{To: Settled, Actor: Listener, TxHash: "0x" + strings.ToUpper(hashA[2:])}, nil, ""},
		{"SettledByOther", at(Confirming), Step{To: Settled, Actor: Listener, TxHash: hashB}, ErrEvidenceMismatch, "confirming to settled"},
		{"ReviewedByOther", at(NeedsReview), Step{To: Settled, Actor: Operator, TxHash: hashB, Reason: "r"}, nil, ""},
		{"ReviewedByFirst", noHash, Step{To: Settled, Actor: Operator, TxHash: hashB, Reason: "r"}, nil, ""},
		{"HashNobodyAskedFor", at(Created), Step{To: Authorized, Actor: API, TxHash: hashA}, ErrEvidenceMismatch, "created to authorized"},
		{"HashForFailed", at(Settling), Step{To: Failed, Actor: Relayer, Reason: "r", TxHash: hashA}, ErrEvidenceMismatch, "settling to failed"},
		{"ReorgOfRecord", at(Confirming), Step{To: Settling, Actor: Listener, Reason: "r", TxHash: hashA}, nil, ""},
		{"ReorgOfOther", at(Confirming), Step{To: Settling, Actor: Listener, Reason: "r", TxHash: hashB}, ErrEvidenceMismatch, "confirming to settling"},
		{"ReviewOfOther", at(Confirming), Step{To: NeedsReview, Actor: Listener, Reason: "r", TxHash: hashB}, ErrEvidenceMismatch, "confirming to needs_review"},
		{"ThereWithRecord", at(Confirming), Step{To: Confirming, Actor: Relayer, TxHash: hashA}, nil, ""},
		{"ThereWithOther", at(Confirming), Step{To: Confirming, Actor: Relayer, TxHash: hashB}, ErrEvidenceMismatch, "already confirming"},
		{"ThereWithoutRecord", at(Settling), Step{To: Settling, Actor: Relayer, TxHash: hashB}, ErrEvidenceMismatch, "already settling"},
		{"ThereWithoutEvidence", settled, Step{To: Settled, Actor: Listener}, nil, ""},
		{"ThereAndExpired", Intent{State: Authorized, Chain: "evm:1", ExpiresAt: now}, Step{To: Authorized, Actor: API}, nil, ""},
		{"VersionRight", at(Created), Step{To: Authorized, Actor: API, IfVersion: 7}, nil, ""},
		{"VersionOld", at(Created), Step{To: Authorized, Actor: API, IfVersion: 6}, ErrVersionConflict, "has version 7, not 6"},
		{"VersionNew", at(Created), Step{To: Authorized, Actor: API, IfVersion: 8}, ErrVersionConflict, "has version 7, not 8"},
		{"VersionNegative", at(Created), Step{To: Authorized, Actor: API, IfVersion: -1}, ErrVersionConflict, ""},
		{"VersionBeforeTable", at(Settled), Step{To: Created, Actor: API, IfVersion: 6}, ErrVersionConflict, ""},
		{"VersionBeforeThere", at(Settled), Step{To: Settled, Actor: Listener, IfVersion: 6}, ErrVersionConflict, ""},
		{"ExpiredNow", expired, Step{To: Authorized, Actor: API}, ErrExpired, ""},
		{"ExpiredCanceled", expired, Step{To: Canceled, Actor: API, Reason: "r"}, nil, ""},
		{"AMicrosecondLeft", at(Created), Step{To: Authorized, Actor: API}, nil, ""},
		{"UnknownActor", at(Created), Step{To: Authorized, Actor: Actor(strings.Repeat("x", 1e5))}, ErrForbiddenActor, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := c.in.Next(c.step, now)
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if err != nil && (got != nil || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 200) {
				t.Fatalf("%+v, %.300q; want nothing, and an error that says %q", got, err, c.says)
			}
		})
	}

	const badState = "to must be one of created, authorized, settling, confirming, needs_review, settled, failed, canceled"
	const badReason = "reason must be 1 to 500 characters, none of them a control character"
	for _, c := range []struct {
		name string
		step Step
		want string
	}{
		{"NoState", Step{}, badState},
		{"UnknownState", Step{To: State(strings.Repeat("x", 1e5))}, badState},
		{"LongReason", Step{To: Canceled, Reason: strings.Repeat("é", 501)}, badReason},
		{"ControlInReason", Step{To: Canceled, Reason: "a\x00"}, badReason},
		{"BytesInReason", Step{To: Canceled, Reason: "a\xff"}, badReason},
		{"ShortHash", Step{To: Canceled, TxHash: "0xaa"}, "tx_hash must be 0x and 64 hex digits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.step.Actor = API
			var invalid *InvalidError
			if _, err := at(Created).Next(c.step, now); !errors.As(err, &invalid) || err.Error() != c.want {
				t.Fatalf("error %v, want %s", err, c.want)
			}
		})
	}

	t.Run("Sentences", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct {
			in   Intent
			step Step
			want string
		}{
			{at(Settled), Step{To: Canceled, Actor: API}, "no such transition: settled to canceled"},
			{at(Settling), Step{To: Failed, Actor: Listener, Reason: "r"}, "settling to failed is not open to listener"},
			{at(Settling), Step{To: Confirming, Actor: Relayer}, "settling to confirming needs a tx_hash"},
			{at(Created), Step{To: Canceled, Actor: API}, "created to canceled needs a reason"},
			{at(Confirming), Step{To: Settled, Actor: Listener, TxHash: hashB}, "confirming to settled: the tx_hash given is not the one on record"},
			{at(Confirming), Step{To: Confirming, Actor: Listener, TxHash: hashB}, "already confirming, but the tx_hash given is not the one on record"},
			{expired, Step{To: Authorized, Actor: API}, "created to authorized is too late: the payment intent expired at 2026-03-01T12:00:00.000000Z"},
			{at(Created), Step{To: Authorized, Actor: API, IfVersion: 6}, "payment intent has version 7, not 6"},
		} {
			if _, err := c.in.Next(c.step, now); err == nil || err.Error() != c.want {
				t.Errorf("error %q, want %q", err, c.want)
			}
		}
	})

	t.Run("VersionConflict", func(t *testing.T) {
		t.Parallel()
		_, err := at(Created).Next(Step{To: Authorized, Actor: API, IfVersion: 6}, now)
		var conflict *VersionConflictError
		if !errors.As(err, &conflict) || *conflict != (VersionConflictError{Present: 7, Wanted: 6}) || !errors.Is(err, ErrVersionConflict) {
			t.Fatalf("error %#v", err)
		}
	})

	t.Run("LongestReason", func(t *testing.T) {
		t.Parallel()
		reason := strings.Repeat("é", 500)
		got, err := at(Created).Next(Step{To: Canceled, Actor: API, Reason: reason}, now)
		if err != nil || got.Reason != reason {
			t.Fatalf("%+v, %v", got, err)
		}
	})

	t.Run("TimeNeverGoesBack", func(t *testing.T) {
		t.Parallel()
		in := at(Created)
		got, err := in.Next(Step{To: Authorized, Actor: API}, in.UpdatedAt.Add(-time.Second))
		if err != nil || !got.At.Equal(in.UpdatedAt) {
			t.Fatalf("%+v, %v", got, err)
		}
	})

	t.Run("UnknownChain", func(t *testing.T) {
		t.Parallel()
		in := at(Confirming)
		in.Chain = "gone:1"
		var invalid *InvalidError
		if _, err := in.Next(Step{To: Settled, Actor: Listener, TxHash: hashA}, now); err == nil || errors.As(err, &invalid) {
			t.Fatalf("error %v, want one that does not blame the caller", err)
		}
	})
}

func TestIntent_After(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		from State
		step Step
		want string
	}{
		{"Takes", Settling, Step{To: Confirming, Actor: Relayer, TxHash: hashB}, hashB},
		{"Replaces", NeedsReview, Step{To: Settled, Actor: Operator, Reason: "r", TxHash: hashB}, hashB},
		{"Keeps", Confirming, Step{To: NeedsReview, Actor: Listener, Reason: "r"}, hashA},
		{"KeepsSettled", Confirming, Step{To: Settled, Actor: Listener, TxHash: hashA}, hashA},
		{"Clears", Confirming, Step{To: Settling, Actor: Listener, Reason: "r", TxHash: hashA}, ""},
		{"KeepsFailed", NeedsReview, Step{To: Failed, Actor: Operator, Reason: "r"}, hashA},
		{"KeepsNone", Created, Step{To: Authorized, Actor: API}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := at(c.from)
			tr, err := in.Next(c.step, now)
			if err != nil {
				t.Fatal(err)
			}
			want := in
			want.State, want.Version, want.UpdatedAt, want.TxHash = c.step.To, 8, now, c.want
			if diff := cmp.Diff(want, in.After(*tr)); diff != "" {
				t.Fatalf("-want +got:\n%s", diff)
			}
		})
	}
}
