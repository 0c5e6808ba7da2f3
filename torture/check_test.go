package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func load(t *testing.T, name string) *History {
	t.Helper()
	h, err := readHistory(filepath.Join("testdata", name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// found are the checks that a history does not pass.
func found(h *History) (names []string) {
	for _, v := range judge(h) {
		if !slices.Contains(names, v.Check) {
			names = append(names, v.Check)
		}
	}
	return names
}

// TestJudge_Good are histories of the service as it is. The last three are of
// builds with one of its two mechanisms taken away: the other one holds.
func TestJudge_Good(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"good-crash", "good-network", "good-sweeper", "good-redis", "unlocked-alone", "unconstrained-alone", "fused-alone",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := load(t, name)
			if len(h.Requests) < 100 || len(h.Intents) < 50 {
				t.Fatalf("%d requests and %d intents judge nothing", len(h.Requests), len(h.Intents))
			}
			for _, v := range judge(h) {
				t.Errorf("[%s] %s", v.Check, v.Text)
			}
		})
	}
}

// broken says which checks must find the fault that a recorded history's build
// had. Their names are those of breakages.
var broken = map[string][]string{
	"outside":  {"1 one intent", "2 in pairs"},
	"unlocked": {"1 one intent", "1 same bytes", "6 linearizable"},
	"fused":    {"1 one intent", "1 same bytes", "6 linearizable"},
	"early":    {"1 same bytes", "2 nothing lost", "6 linearizable"},
	"session":  {"3 not stuck", "4 nothing left"},
	"bare":     {"4 good answers"},
	"hasty":    {"5 canceled once"},
	"ajar":     {"1 one intent"},
	"unfenced": {"1 one intent", "1 same bytes", "6 linearizable"},
}

func TestJudge_Broken(t *testing.T) {
	t.Parallel()
	for name, want := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, ok := breakages[name]; !ok {
				t.Fatal("there is no such breakage")
			}
			got := found(load(t, name))
			for _, check := range want {
				if !slices.Contains(got, check) {
					t.Errorf("%q found nothing; found: %q", check, got)
				}
			}
		})
	}
}

// TestJudge_EachFails: a check that has not failed on a recorded history could be
// one that can not fail.
func TestJudge_EachFails(t *testing.T) {
	t.Parallel()
	for _, c := range checks {
		fails := false
		for _, names := range broken {
			fails = fails || slices.Contains(names, c.name)
		}
		if !fails {
			t.Errorf("no broken build shows that %q can fail", c.name)
		}
	}
}

// TestBreakages_Apply: a breakage whose text the service no longer has would
// break nothing.
func TestBreakages_Apply(t *testing.T) {
	t.Parallel()
	for name, b := range breakages {
		if _, err := b.overlay("..", t.TempDir()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestJudge_Mutations falsifies a good history in one place, in each way that a
// check has to find.
func TestJudge_Mutations(t *testing.T) {
	t.Parallel()
	// acknowledged is an answer of which the history has another.
	acknowledged := func(t *testing.T, h *History, replayed bool) *Request {
		t.Helper()
		for i := range h.Requests {
			if r := &h.Requests[i]; r.OK() && r.Replayed == replayed && r.Variant == 0 {
				return r
			}
		}
		t.Fatal("no such request")
		return nil
	}
	last := func(t *testing.T, h *History, op string) *Request {
		t.Helper()
		for i := len(h.Requests) - 1; i >= 0; i-- {
			if h.Requests[i].Op == op {
				return &h.Requests[i]
			}
		}
		t.Fatal("no such request")
		return nil
	}
	for _, m := range []struct {
		name, history, want string
		change              func(t *testing.T, h *History)
	}{
		{"AnotherIntent", "good-crash", "1 one intent", func(_ *testing.T, h *History) {
			twin := h.Intents[0]
			twin.ID, twin.Created = "pi_twin", twin.Created+1
			h.Intents = append(h.Intents, twin)
		}},
		{"AnotherByte", "good-crash", "1 same bytes", func(t *testing.T, h *History) {
			acknowledged(t, h, true).Digest = "another"
		}},
		{"NewTwice", "good-crash", "1 same bytes", func(t *testing.T, h *History) {
			fresh := *acknowledged(t, h, false)
			h.Requests = append(h.Requests, fresh)
		}},
		{"NewTwiceInOrder", "good-crash", "6 linearizable", func(t *testing.T, h *History) {
			fresh := *acknowledged(t, h, false)
			h.Requests = append(h.Requests, fresh)
		}},
		{"IntentMissing", "good-crash", "2 nothing lost", func(t *testing.T, h *History) {
			id := acknowledged(t, h, false).ID
			h.Intents = slices.DeleteFunc(h.Intents, func(i Intent) bool { return i.ID == id })
		}},
		{"ReadAsMissing", "good-crash", "2 nothing lost", func(t *testing.T, h *History) {
			last(t, h, opRead).Status = 404
		}},
		{"OtherBodyOnRecord", "good-crash", "2 nothing lost", func(t *testing.T, h *History) {
			acknowledged(t, h, false).Body = "another"
		}},
		{"RecordMissing", "good-crash", "2 in pairs", func(_ *testing.T, h *History) { h.Records = h.Records[1:] }},
		{"RecordAlone", "good-crash", "2 in pairs", func(_ *testing.T, h *History) { h.Intents = h.Intents[1:] }},
		{"LateInTheEnd", "good-crash", "3 not stuck", func(t *testing.T, h *History) {
			last(t, h, opFinal).Return += int64(2 * h.Setup.Lease)
		}},
		{"LateAfterKill", "good-crash", "3 not stuck", func(t *testing.T, h *History) {
			last(t, h, opProbe).Return += int64(killPatience)
		}},
		{"StillRunning", "good-crash", "3 not stuck", func(t *testing.T, h *History) {
			r := last(t, h, opFinal)
			r.Status, r.Retry = 409, "1"
		}},
		{"Panicked", "good-crash", "4 good answers", func(t *testing.T, h *History) { last(t, h, opFinal).Status = 500 }},
		{"ReadRefused", "good-crash", "4 good answers", func(t *testing.T, h *History) { last(t, h, opRead).Status = 422 }},
		{"NoRetryAfter", "good-crash", "4 good answers", func(t *testing.T, h *History) {
			r := last(t, h, opFinal)
			r.Status, r.Retry = 503, ""
		}},
		{"Lock", "good-crash", "4 nothing left", func(_ *testing.T, h *History) { h.End.Locks = 1 }},
		{"Transaction", "good-crash", "4 nothing left", func(_ *testing.T, h *History) { h.End.Idle = 1 }},
		{"Connection", "good-crash", "4 nothing left", func(_ *testing.T, h *History) { h.End.Connections = 1 }},
		{"Goroutine", "good-crash", "4 nothing left", func(_ *testing.T, h *History) { h.End.Goroutines = []string{"one"} }},
		{"Exit", "good-crash", "4 nothing left", func(_ *testing.T, h *History) { h.End.Exits = []string{"one"} }},
		{"Race", "good-crash", "4 nothing left", func(_ *testing.T, h *History) { h.End.Findings = []string{"one"} }},
		{"TooEarly", "good-sweeper", "5 canceled once", func(_ *testing.T, h *History) {
			for i := range h.Intents {
				h.Intents[i].Expires += time.Second.Microseconds()
			}
		}},
		{"TooLate", "good-sweeper", "5 canceled once", func(_ *testing.T, h *History) { h.Moves[0].At += time.Second.Microseconds() }},
		{"Never", "good-sweeper", "5 canceled once", func(_ *testing.T, h *History) {
			id := h.Moves[0].ID
			h.Moves = h.Moves[1:]
			for i := range h.Intents {
				if h.Intents[i].ID == id {
					h.Intents[i].State, h.Intents[i].Version = "created", 1
				}
			}
		}},
		{"Twice", "good-sweeper", "5 canceled once", func(_ *testing.T, h *History) { h.Moves = append(h.Moves, h.Moves[0]) }},
		{"ByAnother", "good-sweeper", "5 canceled once", func(_ *testing.T, h *History) { h.Moves[0].Actor = "api" }},
		{"ReusedKeyTooEarly", "good-sweeper", "1 one intent", func(_ *testing.T, h *History) {
			h.Setup.TTL = time.Hour
		}},
		{"UnexplainedIntent", "good-redis", "1 one intent", func(_ *testing.T, h *History) {
			untold, _ := left(h)
			for i := range 20 {
				twin := untold[0]
				twin.ID = fmt.Sprint("pi_twin", i)
				h.Intents = append(h.Intents, twin)
			}
		}},
		{"SupersededTooEarly", "good-redis", "1 one intent", func(t *testing.T, h *History) {
			r := last(t, h, opCreate)
			r.Status, r.Code, r.Retry, r.Return = 409, "idempotency_attempt_superseded", "1", r.Call+int64(h.Setup.Lease)-1
		}},
		{"AcknowledgedWithoutRecord", "good-redis", "1 one intent", func(_ *testing.T, h *History) { h.Records = h.Records[1:] }},
		{"RecordOfNothing", "good-redis", "2 in pairs", func(_ *testing.T, h *History) {
			id := h.Records[0].ID
			h.Intents = slices.DeleteFunc(h.Intents, func(i Intent) bool { return i.ID == id })
		}},
		{"WhileItRan", "good-crash", "while it ran", func(_ *testing.T, h *History) { h.End.Seen = []string{"one"} }},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			h := load(t, m.history)
			m.change(t, h)
			if got := found(h); !slices.Contains(got, m.want) {
				t.Errorf("%q found nothing; found: %q", m.want, got)
			}
		})
	}
}

// TestApart: what may be left where records and intents are not one transaction
// is counted.
func TestApart(t *testing.T) {
	t.Parallel()
	h := load(t, "good-redis")
	untold, again := left(h)
	if len(untold) != 8 || again != 8 {
		t.Errorf("%d intents that nobody was told of, %d under a key that made another; want 8 and 8", len(untold), again)
	}
	id := h.Records[0].ID
	for i := range h.Requests {
		if r := &h.Requests[i]; r.ID == id {
			r.Status, r.ID = 0, ""
		}
	}
	if untold, _ := left(h); len(untold) != 8 {
		t.Errorf("%d left, but a retry would be told of the one on record", len(untold))
	}
	h.Records = h.Records[1:]
	if untold, again := left(h); len(untold) != 9 || again != 8 {
		t.Errorf("%d left, %d under a key that made another; want 9 and 8", len(untold), again)
	}
	if want := "nobody was told of: 9 of "; !strings.Contains(strings.Join(observations(h), "\n"), want) {
		t.Errorf("the observations do not say %q", want)
	}
}

// TestHistory_Roundtrip: what is judged later is what was recorded.
func TestHistory_Roundtrip(t *testing.T) {
	t.Parallel()
	h := load(t, "good-crash")
	var text strings.Builder
	if err := h.Write(&text); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "h.jsonl")
	if err := save(h, path); err != nil {
		t.Fatal(err)
	}
	again, err := readHistory(path)
	if err != nil {
		t.Fatal(err)
	}
	var same strings.Builder
	if err := again.Write(&same); err != nil {
		t.Fatal(err)
	}
	if text.String() != same.String() {
		t.Error("a history changes as it is written and read")
	}
}

// TestHistory_CutShort: a history without its end proves nothing.
func TestHistory_CutShort(t *testing.T) {
	t.Parallel()
	h := load(t, "good-crash")
	path := filepath.Join(t.TempDir(), "h.jsonl")
	if err := save(h, path); err != nil {
		t.Fatal(err)
	}
	truncateLastLine(t, path)
	if _, err := readHistory(path); err == nil {
		t.Error("it is read without an error")
	}
}

// truncateLastLine takes the last line of a file away.
func truncateLastLine(t *testing.T, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cut := bytes.LastIndexByte(bytes.TrimSuffix(raw, []byte("\n")), '\n') + 1
	if err := os.WriteFile(path, raw[:cut], 0o600); err != nil {
		t.Fatal(err)
	}
}
