package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"intentd/internal/intent"
)

const (
	hashA = "0x88df016429689c079f3b2f6ad39fa052532c56795b733da78a91ebe6a713944b"
	hashB = "0x00000000000000000000000000000000000000000000000000000000000000bb"
)

// forAlice is what a key that is not alice's sends to act for her.
var forAlice = []string{"Intent-Merchant: alice"}

// step asks for a transition of alice's intent, as whoever has the token.
func step(location, token, body string, header ...string) call {
	c := call{path: location + "/transitions", token: token, body: body, header: header}
	if token != alice {
		c.header = append(c.header, forAlice...)
	}
	return c
}

// moved makes a step that must be answered 200.
func (s *service) moved(t testing.TB, c call, state string, version float64) *answer {
	t.Helper()
	a := s.do(t, c)
	a.want(t, http.StatusOK, "")
	if a.member(t, "state") != state || a.member(t, "version") != version {
		t.Errorf("moved to %s, want %s at version %v", a.body, state, version)
	}
	if got, want := a.header.Get("ETag"), fmt.Sprintf(`"%v"`, version); got != want {
		t.Errorf("ETag = %q, want %q", got, want)
	}
	return a
}

// TestTransitions_Life is a payment from its creation to its end, with a reorg
// on the way, and its trail.
func TestTransitions_Life(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		location := s.created(t, call{}).header.Get("Location")
		upper := "0x" + strings.ToUpper(hashA[2:])
		for i, x := range []struct {
			token, body, state string
			hash               any
		}{
			{alice, `{"to":"authorized"}`, "authorized", nil},
			{relayer, `{"to":"settling"}`, "settling", nil},
			{relayer, `{"to":"confirming","tx_hash":"` + upper + `","reason":"sent"}`, "confirming", hashA},
			{listener, `{"to":"settling","reason":"reorg"}`, "settling", nil},
			{listener, `{"to":"confirming","tx_hash":"` + hashB + `"}`, "confirming", hashB},
			{listener, `{"to":"settled","tx_hash":"` + hashB + `"}`, "settled", hashB},
		} {
			c := step(location, x.token, x.body)
			c.key = newKey()
			a := s.moved(t, c, x.state, float64(i+2))
			if got := a.member(t, "tx_hash"); got != x.hash {
				t.Errorf("%s: tx_hash = %v, want %v", x.body, got, x.hash)
			}
			s.replayed(t, c, a)
			// Whoever does not know the key finds it done, and changes nothing.
			again := s.moved(t, step(location, x.token, x.body), x.state, float64(i+2))
			if again.body != a.body {
				t.Errorf("the same step again = %s,\nwant %s", again.body, a.body)
			}
		}

		trail := s.do(t, call{method: "GET", path: location + "/transitions"})
		trail.want(t, http.StatusOK, "")
		type row struct {
			Version       int
			From, To      string
			Actor, Reason string
			TxHash        string `json:"tx_hash"`
		}
		var got struct {
			Data    []row
			HasMore bool `json:"has_more"`
		}
		if err := json.Unmarshal([]byte(trail.body), &got); err != nil {
			t.Fatal(err)
		}
		want := []row{
			{2, "created", "authorized", "api", "", ""},
			{3, "authorized", "settling", "relayer", "", ""},
			{4, "settling", "confirming", "relayer", "sent", hashA},
			{5, "confirming", "settling", "listener", "reorg", ""},
			{6, "settling", "confirming", "listener", "", hashB},
			{7, "confirming", "settled", "listener", "", hashB},
		}
		if diff := cmp.Diff(want, got.Data); diff != "" || got.HasMore {
			t.Errorf("trail, more: %t (-want +got):\n%s", got.HasMore, diff)
		}

		// In pages, and by the relayer.
		page := s.do(t, call{method: "GET", path: location + "/transitions?limit=2&starting_after=3", token: relayer, header: forAlice})
		got.Data = nil
		if err := json.Unmarshal([]byte(page.body), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want[2:4], got.Data); diff != "" || !got.HasMore {
			t.Errorf("page, more: %t (-want +got):\n%s", got.HasMore, diff)
		}

		// Expanded, the intent says what both say alone.
		plain := s.do(t, call{method: "GET", path: location})
		expanded := s.do(t, call{method: "GET", path: location + "?expand=transitions"})
		if got, want := expanded.body, strings.TrimSuffix(plain.body, "}\n")+`,"transitions":`+strings.TrimSuffix(trail.body, "\n")+"}\n"; got != want {
			t.Errorf("expanded = %s,\nwant %s", got, want)
		}
	})
}

// TestTransitions_Refusals: each tells its kind of mistake, names what it is
// about, changes nothing and is on record.
func TestTransitions_Refusals(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		created := s.created(t, call{}).header.Get("Location")
		confirming := s.created(t, call{}).header.Get("Location")
		s.moved(t, step(confirming, alice, `{"to":"authorized"}`), "authorized", 2)
		s.moved(t, step(confirming, relayer, `{"to":"settling"}`), "settling", 3)
		s.moved(t, step(confirming, relayer, `{"to":"confirming","tx_hash":"`+hashA+`"}`), "confirming", 4)
		settled := s.created(t, call{}).header.Get("Location")
		s.moved(t, step(settled, alice, `{"to":"authorized"}`), "authorized", 2)
		s.moved(t, step(settled, relayer, `{"to":"settling"}`), "settling", 3)
		s.moved(t, step(settled, relayer, `{"to":"failed","reason":"no funds"}`), "failed", 4)

		for name, x := range map[string]struct {
			c      call
			status int
			code   string
			words  []string // that the detail must hold
		}{
			"NoSuchTransition":  {step(created, alice, `{"to":"settled"}`), 409, "invalid_transition", []string{"created", "settled"}},
			"OutOfAFinalState":  {step(settled, operator, `{"to":"settled","reason":"r","tx_hash":"`+hashA+`"}`), 409, "invalid_transition", []string{"failed", "settled"}},
			"NotTheRole":        {step(created, relayer, `{"to":"authorized"}`), 403, "forbidden_actor", []string{"created", "authorized", "relayer"}},
			"NotTheMerchant":    {step(confirming, alice, `{"to":"settled","tx_hash":"`+hashA+`"}`), 403, "forbidden_actor", []string{"confirming", "settled", "api"}},
			"NoReason":          {step(created, alice, `{"to":"canceled"}`), 400, "evidence_required", []string{"created", "canceled", "reason"}},
			"NoHash":            {step(confirming, listener, `{"to":"settled"}`), 400, "evidence_required", []string{"confirming", "settled", "tx_hash"}},
			"OtherHash":         {step(confirming, listener, `{"to":"settled","tx_hash":"`+hashB+`"}`), 409, "evidence_mismatch", []string{"tx_hash", "on record"}},
			"ThereByOtherHash":  {step(confirming, relayer, `{"to":"confirming","tx_hash":"`+hashB+`"}`), 409, "evidence_mismatch", []string{"tx_hash", "confirming"}},
			"OldVersion":        {step(confirming, listener, `{"to":"settled","tx_hash":"`+hashA+`"}`, `If-Match: "3"`), 412, "version_conflict", []string{"4", "3"}},
			"FutureVersion":     {step(created, alice, `{"to":"authorized"}`, `If-Match: "9"`), 412, "version_conflict", []string{"1", "9"}},
			"NoIntent":          {step(intentsPath+"/pi_019ca9450a7b7c3d8e4f5a6b7c8d9e0f", alice, `{"to":"authorized"}`), 404, "not_found", nil},
			"NoID":              {step(intentsPath+"/x", alice, `{"to":"authorized"}`), 404, "not_found", nil},
			"AnotherMerchants":  {call{path: created + "/transitions", token: bob, body: `{"to":"authorized"}`}, 404, "not_found", nil},
			"UnknownState":      {step(created, alice, `{"to":"paid"}`), 400, "invalid_request", []string{"to must be one of", "authorized", "needs_review"}},
			"NoState":           {step(created, alice, `{}`), 400, "invalid_request", []string{"to is required"}},
			"NullState":         {step(created, alice, `{"to":null}`), 400, "invalid_request", []string{"to must be a JSON string, not null"}},
			"UnknownMember":     {step(created, alice, `{"to":"authorized","hash":"x"}`), 400, "invalid_request", []string{`"hash"`, "transition request"}},
			"EmptyReason":       {step(created, alice, `{"to":"authorized","reason":""}`), 400, "invalid_request", []string{"reason must not be empty"}},
			"LongReason":        {step(created, alice, `{"to":"authorized","reason":"`+strings.Repeat("x", 501)+`"}`), 400, "invalid_request", []string{"reason must be 1 to 500"}},
			"EmptyHash":         {step(confirming, listener, `{"to":"settled","tx_hash":""}`), 400, "invalid_request", []string{"tx_hash must not be empty"}},
			"BadHash":           {step(confirming, listener, `{"to":"settled","tx_hash":"0x12"}`), 400, "invalid_request", []string{"tx_hash must be 0x and 64"}},
			"NotJSON":           {step(created, alice, `to=authorized`), 400, "invalid_json", nil},
			"WeakIfMatch":       {step(created, alice, `{"to":"authorized"}`, `If-Match: W/"1"`), 400, "invalid_request", []string{"If-Match"}},
			"ListInIfMatch":     {step(created, alice, `{"to":"authorized"}`, `If-Match: "1", "2"`), 400, "invalid_request", []string{"If-Match"}},
			"TwoIfMatch":        {step(created, alice, `{"to":"authorized"}`, `If-Match: "1"`, `If-Match: "1"`), 400, "invalid_request", []string{"If-Match"}},
			"CancelTooLate":     {call{path: confirming + "/cancel", body: `{"reason":"r"}`}, 409, "invalid_transition", []string{"confirming", "canceled"}},
			"CancelByRelayer":   {call{path: created + "/cancel", body: `{"reason":"r"}`, token: relayer, header: forAlice}, 403, "forbidden_actor", []string{"created", "canceled", "relayer"}},
			"CancelNoReason":    {call{path: created + "/cancel", body: `{}`}, 400, "invalid_request", []string{"reason is required"}},
			"CancelEmptyReason": {call{path: created + "/cancel", body: `{"reason":""}`}, 400, "invalid_request", []string{"reason must not be empty"}},
			"CancelTo":          {call{path: created + "/cancel", body: `{"reason":"r","to":"canceled"}`}, 400, "invalid_request", []string{`"to"`, "cancel request"}},
		} {
			t.Run(name, func(t *testing.T) {
				x.c.key = newKey()
				before := s.trailOf(t, x.c.path)
				a := s.do(t, x.c)
				a.want(t, x.status, x.code)
				for _, word := range x.words {
					if !strings.Contains(a.problem().Detail, word) {
						t.Errorf("detail = %q, want %q in it", a.problem().Detail, word)
					}
				}
				if got := a.header.Get("Retry-After"); got != "" {
					t.Errorf("Retry-After = %q on a final answer", got)
				}
				if x.code == "version_conflict" {
					if got, want := a.header.Get("ETag"), map[string]string{"OldVersion": `"4"`, "FutureVersion": `"1"`}[name]; got != want {
						t.Errorf("ETag = %q, want the present version %q", got, want)
					}
				}
				s.replayed(t, x.c, a)
				if got := s.trailOf(t, x.c.path); got != before {
					t.Errorf("the trail was %s, is %s", before, got)
				}
			})
		}
	})
}

// trailOf returns the trail of the intent that a step's path is about, by alice.
func (s *service) trailOf(t testing.TB, path string) string {
	t.Helper()
	location := path[:strings.LastIndex(path, "/")]
	return s.do(t, call{method: "GET", path: location + "/transitions"}).body
}

// TestTransitions_IfMatch: the step is made on the version that it names, and on
// any by an asterisk.
func TestTransitions_IfMatch(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		first := s.created(t, call{})
		location := first.header.Get("Location")
		s.moved(t, step(location, alice, `{"to":"authorized"}`, "If-Match: "+first.header.Get("ETag")), "authorized", 2)
		s.moved(t, step(location, relayer, `{"to":"settling"}`, "If-Match: *"), "settling", 3)
		// Already there, by somebody else: not what this one decided on.
		s.do(t, step(location, relayer, `{"to":"settling"}`, `If-Match: "2"`)).want(t, http.StatusPreconditionFailed, "version_conflict")
		c := call{path: location + "/cancel", body: `{"reason":"r"}`, header: []string{`If-Match: "1"`}}
		s.do(t, c).want(t, http.StatusPreconditionFailed, "version_conflict")
	})
}

// TestTransitions_Race: of many that take the same step at once with different
// keys, each is told that the intent is there, and it went there once. Of many
// that name the version, one wins.
func TestTransitions_Race(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		location := s.created(t, call{}).header.Get("Location")
		race := func(c call) map[int]int {
			var (
				wg     sync.WaitGroup
				mu     sync.Mutex
				counts = make(map[int]int)
			)
			for range 8 {
				wg.Go(func() {
					mine := c
					mine.key = newKey()
					a := s.do(t, mine)
					for a.status == http.StatusServiceUnavailable { // the memory store finds the race at the end
						a = s.do(t, mine)
					}
					mu.Lock()
					defer mu.Unlock()
					counts[a.status]++
				})
			}
			wg.Wait()
			return counts
		}
		if diff := cmp.Diff(map[int]int{200: 8}, race(step(location, alice, `{"to":"authorized"}`))); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[int]int{200: 1, 412: 7}, race(step(location, relayer, `{"to":"settling"}`, `If-Match: "2"`))); diff != "" {
			t.Errorf("answers with If-Match (-want +got):\n%s", diff)
		}
		if got := s.do(t, call{method: "GET", path: location}).member(t, "version"); got != float64(3) {
			t.Errorf("version = %v, want 3", got)
		}
	})
}

// TestCancel closes an intent from both states that it may be closed from, and
// finds one that is closed already as it is.
func TestCancel(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		created := s.created(t, call{}).header.Get("Location")
		c := call{path: created + "/cancel", body: `{"reason":"the customer changed her mind"}`, key: newKey()}
		first := s.moved(t, c, "canceled", 2)
		s.replayed(t, c, first)
		again := s.moved(t, call{path: created + "/cancel", body: `{"reason":"another one"}`}, "canceled", 2)
		if again.body != first.body {
			t.Errorf("canceled again = %s,\nwant %s", again.body, first.body)
		}
		trail := s.trailOf(t, c.path)
		if strings.Count(trail, `"version"`) != 1 || !strings.Contains(trail, `"reason":"the customer changed her mind"`) {
			t.Errorf("trail = %s, want the first cancellation alone", trail)
		}

		authorized := s.created(t, call{}).header.Get("Location")
		s.moved(t, step(authorized, alice, `{"to":"authorized"}`), "authorized", 2)
		s.moved(t, call{path: authorized + "/cancel", body: `{"reason":"fraud"}`, token: operator, header: forAlice}, "canceled", 3)

		// The key belongs to one request, the path included.
		c.path = authorized + "/cancel"
		s.do(t, c).want(t, http.StatusUnprocessableEntity, "idempotency_key_reused")
	})
}

// TestTransitions_Expired: what nobody authorized in time can not be authorized.
func TestTransitions_Expired(t *testing.T) {
	t.Parallel()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := new(hasty)
			s := open(t, setup{change: func(p *parts) { g.Store, p.intents = p.intents, g }})
			location := s.created(t, call{}).header.Get("Location")
			c := step(location, alice, `{"to":"authorized"}`)
			c.key = newKey()
			a := s.do(t, c)
			a.want(t, http.StatusConflict, "intent_expired")
			expires := s.do(t, call{method: "GET", path: location}).member(t, "expires_at")
			a.wantDetail(t, fmt.Sprintf("created to authorized is too late: the payment intent expired at %s", expires))
			s.replayed(t, c, a)
		})
	}
}

// TestTransitions_Swept: the service's own step is in the trail as any
// other.
func TestTransitions_Swept(t *testing.T) {
	t.Parallel()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := new(hasty)
			s := open(t, setup{change: func(p *parts) { g.Store, p.intents = p.intents, g }})
			location := s.created(t, call{}).header.Get("Location")
			if n, err := g.CancelDue(t.Context(), 10); n != 1 || err != nil {
				t.Fatalf("CancelDue = %d, %v", n, err)
			}
			a := s.do(t, call{method: "GET", path: location + "?expand=transitions"})
			if !strings.Contains(a.body, `"from":"created","to":"canceled","actor":"system","reason":"expired"`) {
				t.Errorf("expanded = %s", a.body)
			}
			// Canceled already, whoever did it.
			s.moved(t, call{path: location + "/cancel", body: `{"reason":"r"}`}, "canceled", 2)
		})
	}
}

// hasty is a store whose intents have expired when the next transaction begins:
// they live for a microsecond.
type hasty struct{ intent.Store }

func (h hasty) Create(ctx context.Context, in intent.Intent, _ time.Duration) (intent.Intent, error) {
	return h.Store.Create(ctx, in, time.Microsecond)
}

// overtaken is a store in which every intent is canceled just after it was read.
type overtaken struct{ intent.Store }

func (o overtaken) Get(ctx context.Context, merchantID string, id intent.ID) (intent.Intent, error) {
	in, err := o.Store.Get(ctx, merchantID, id)
	if err == nil && in.State == intent.Created {
		_, err = intent.New(o.Store).Move(ctx, merchantID, id, intent.Step{To: intent.Canceled, Actor: intent.API, Reason: "r"})
	}
	return in, err
}

// TestGet_ExpandedIsOne: an expanded answer is of one version, also where the
// intent moves between the reading of its two parts.
func TestGet_ExpandedIsOne(t *testing.T) {
	t.Parallel()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, setup{change: func(p *parts) { p.intents = overtaken{p.intents} }})
			location := s.created(t, call{}).header.Get("Location")
			a := s.do(t, call{method: "GET", path: location + "?expand=transitions"})
			if a.member(t, "version") != 1.0 || !strings.Contains(a.body, `"transitions":{"data":[],"has_more":false}}`) {
				t.Errorf("expanded = %s", a.body)
			}
			a = s.do(t, call{method: "GET", path: location + "?expand=transitions"})
			if a.member(t, "version") != 2.0 || !strings.Contains(a.body, `"transitions":{"data":[{"version":2,`) {
				t.Errorf("expanded = %s", a.body)
			}
		})
	}
}
