// Package idemtest is the contract of an idempotency.Store as a test suite, alone
// and under the middleware. Every implementation runs it.
package idemtest

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"intentd/internal/idempotency"
)

// TTL is how long the records of the stores under test live.
const TTL = 24 * time.Hour

// Harness is a store under test and what the suite needs around it.
type Harness struct {
	Store idempotency.Store // empty, records live for TTL

	// Age lets d pass for all records.
	Age func(t *testing.T, d time.Duration)
	// Expire returns once the lease of every running attempt has passed.
	Expire func(t *testing.T)
	// SelfExpiring says that the store's records are deleted by themselves once
	// their time has passed, so that DeleteExpired finds none.
	SelfExpiring bool

	// Work does something that belongs to the attempt that ctx is bound to.
	Work func(t *testing.T, ctx context.Context, name string)
	// Kept returns how often work of that name has become permanent.
	Kept func(t *testing.T, name string) int
}

// left is what DeleteExpired has left to delete of due records.
func (h Harness) left(due int) int {
	if h.SelfExpiring {
		return 0
	}
	return due
}

// Open returns a fresh harness whose store has the lease given.
type Open func(t *testing.T, lease time.Duration) Harness

// Leases for tests in which nothing hangs, and for those in which something
// does.
const (
	longLease  = time.Minute
	shortLease = time.Second
)

var (
	id    = idempotency.ID{Scope: "merchant-a", Key: "order-1001"}
	fp    = idempotency.FingerprintOf("POST", "/things", []byte("one"))
	other = idempotency.FingerprintOf("POST", "/things", []byte("two"))
	resp  = idempotency.Response{
		Status: http.StatusCreated,
		Header: http.Header{
			"Content-Type": {"application/json"},
			"Location":     {"/things/1"},
			"Etag":         {`"1"`},
		},
		Body: []byte(`{"id":1}` + "\n"),
	}
)

// Run tests the store that open makes.
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name  string
		lease time.Duration
		test  func(*testing.T, Harness)
	}{
		{"Fresh", longLease, testFresh},
		{"Replay", longLease, testReplay},
		{"ReplayIsNotShared", longLease, testReplayIsNotShared},
		{"InFlight", longLease, testInFlight},
		{"MismatchWhileRunning", longLease, testMismatchWhileRunning},
		{"MismatchAfter", longLease, testMismatchAfter},
		{"Abandon", longLease, testAbandon},
		{"AbandonAfterComplete", longLease, testAbandonAfterComplete},
		{"WorkAfterTheEnd", longLease, testWorkAfterTheEnd},
		{"Expiry", longLease, testExpiry},
		{"ExpiredAndAbandoned", longLease, testExpiredAndAbandoned},
		{"LeaseLost", shortLease, testLeaseLost},
		{"TakeOver", shortLease, testTakeOver},
		{"Concurrent", longLease, testConcurrent},
		{"Scopes", longLease, testScopes},
		{"LookupNothing", longLease, testLookupNothing},
		{"LookupRunning", longLease, testLookupRunning},
		{"LookupRecord", longLease, testLookupRecord},
		{"LookupExpired", longLease, testLookupExpired},
		{"LookupPastTheLease", shortLease, testLookupPastTheLease},
		{"LookupHindersNobody", longLease, testLookupHindersNobody},
		{"LookupMissesNothing", longLease, testLookupMissesNothing},
		{"KeyNamesOneRequest", longLease, testKeyNamesOneRequest},
		{"KeyNamesOneRequestOfARoute", longLease, testKeyNamesOneRequestOfARoute},
		{"DeleteExpired", longLease, testDeleteExpired},
		{"DeleteExpiredSparesTheRunning", longLease, testDeleteExpiredSparesTheRunning},
		{"DeleteExpiredConcurrently", longLease, testDeleteExpiredConcurrently},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := open(t, c.lease)
			if got := h.Store.Lease(); got != c.lease {
				t.Errorf("Lease() = %v, want %v", got, c.lease)
			}
			if got := h.Store.TTL(); got != TTL {
				t.Errorf("TTL() = %v, want %v", got, TTL)
			}
			c.test(t, h)
		})
	}
}

func testFresh(t *testing.T, h Harness) {
	a := fresh(t, h, id, fp)
	h.Work(t, a.Bind(t.Context()), "w")
	if got := h.Kept(t, "w"); got != 0 {
		t.Errorf("work kept before Complete: %d times", got)
	}
	complete(t, a, resp)
	if got := h.Kept(t, "w"); got != 1 {
		t.Errorf("work kept after Complete: %d times, want 1", got)
	}
}

func testReplay(t *testing.T, h Harness) {
	for name, want := range map[string]idempotency.Response{
		"typical": resp,
		"no body": {Status: http.StatusNoContent, Header: http.Header{}},
		"bytes that are no text": {
			Status: http.StatusInternalServerError,
			Header: http.Header{"Content-Type": {"application/octet-stream"}},
			Body:   []byte("\x00\xff\xfe{\"a\":1, \"a\":2}\r\n\x00"),
		},
		"header values": {
			Status: 999,
			Header: http.Header{"Location": {"/a?b=\"c\"&d=ü", "/second"}, "Etag": {""}},
			Body:   make([]byte, 300_000),
		},
	} {
		id := idempotency.ID{Scope: id.Scope, Key: name}
		a := fresh(t, h, id, fp)
		complete(t, a, want)
		for range 2 {
			c := claim(t, h, id, fp)
			if c.Outcome != idempotency.Replay || c.Record == nil || c.Attempt != nil {
				t.Fatalf("%s: claim = %+v, want a replay with its record", name, c)
			}
			if diff := cmp.Diff(want, normal(c.Record.Response)); diff != "" {
				t.Errorf("%s: replayed answer (-want +got):\n%s", name, diff)
			}
			if c.Record.Fingerprint != fp {
				t.Errorf("%s: fingerprint = %v, want %v", name, c.Record.Fingerprint, fp)
			}
			if !c.Record.CreatedAt.Equal(a.Time()) {
				t.Errorf("%s: created at %v, but claimed at %v", name, c.Record.CreatedAt, a.Time())
			}
			if want := a.Time().Add(h.Store.TTL()); !c.Record.ExpiresAt.Equal(want) {
				t.Errorf("%s: expires at %v, want %v", name, c.Record.ExpiresAt, want)
			}
		}
	}
}

// normal spells emptiness in one way.
func normal(r idempotency.Response) idempotency.Response {
	if len(r.Body) == 0 {
		r.Body = nil
	}
	return r
}

func testReplayIsNotShared(t *testing.T, h Harness) {
	mine := idempotency.Response{Status: resp.Status, Header: resp.Header.Clone(), Body: []byte("body")}
	complete(t, fresh(t, h, id, fp), mine)
	mine.Header["Location"][0] = "changed"
	mine.Body[0] = 'X'
	first := claim(t, h, id, fp).Record.Response
	first.Header["Location"][0] = "changed too"
	first.Header.Set("Set-Cookie", "a=b")
	first.Body[0] = 'Y'
	second := claim(t, h, id, fp).Record.Response
	if diff := cmp.Diff(resp.Header, second.Header); diff != "" {
		t.Errorf("header (-want +got):\n%s", diff)
	}
	if got := string(second.Body); got != "body" {
		t.Errorf("body = %q, want %q", got, "body")
	}
}

func testInFlight(t *testing.T, h Harness) {
	a := fresh(t, h, id, fp)
	for range 3 {
		if c := claim(t, h, id, fp); c.Outcome != idempotency.InFlight || c.Record != nil || c.Attempt != nil {
			t.Errorf("claim while running = %+v, want in_flight alone", c)
		}
	}
	complete(t, a, resp)
	wantOutcome(t, h, id, fp, idempotency.Replay)
}

func testMismatchWhileRunning(t *testing.T, h Harness) {
	a := fresh(t, h, id, fp)
	if c := claim(t, h, id, other); c.Outcome != idempotency.Mismatch || c.Record != nil || c.Attempt != nil {
		t.Errorf("claim of another request while running = %+v, want mismatch alone", c)
	}
	wantOutcome(t, h, id, fp, idempotency.InFlight)
	complete(t, a, resp)
	wantOutcome(t, h, id, fp, idempotency.Replay)
}

func testMismatchAfter(t *testing.T, h Harness) {
	complete(t, fresh(t, h, id, fp), resp)
	c := claim(t, h, id, other)
	if c.Outcome != idempotency.Mismatch || c.Record == nil || c.Record.Fingerprint != fp {
		t.Errorf("claim of another request = %+v, want mismatch with the record", c)
	}
	wantOutcome(t, h, id, fp, idempotency.Replay)
}

func testAbandon(t *testing.T, h Harness) {
	a := fresh(t, h, id, fp)
	h.Work(t, a.Bind(t.Context()), "w")
	for range 2 {
		if err := a.Abandon(t.Context()); err != nil {
			t.Errorf("Abandon: %v", err)
		}
	}
	if got := h.Kept(t, "w"); got != 0 {
		t.Errorf("abandoned work kept %d times", got)
	}
	// Another request may have the key now, at once.
	complete(t, fresh(t, h, id, other), resp)
	wantOutcome(t, h, id, other, idempotency.Replay)
	if err := a.Complete(t.Context(), resp); err == nil {
		t.Error("Complete after Abandon succeeded")
	}
}

func testAbandonAfterComplete(t *testing.T, h Harness) {
	a := fresh(t, h, id, fp)
	h.Work(t, a.Bind(t.Context()), "w")
	complete(t, a, resp)
	if err := a.Abandon(t.Context()); err != nil {
		t.Errorf("Abandon after Complete: %v", err)
	}
	if err := a.Complete(t.Context(), resp); err == nil {
		t.Error("a second Complete succeeded")
	}
	wantOutcome(t, h, id, fp, idempotency.Replay)
	if got := h.Kept(t, "w"); got != 1 {
		t.Errorf("work kept %d times, want 1", got)
	}
}

func testWorkAfterTheEnd(t *testing.T, h Harness) {
	a := fresh(t, h, id, fp)
	ctx := a.Bind(t.Context())
	complete(t, a, resp)
	h.Work(t, ctx, "late")
	b := fresh(t, h, idempotency.ID{Scope: id.Scope, Key: "next"}, fp)
	h.Work(t, b.Bind(t.Context()), "next")
	complete(t, b, resp)
	if got := h.Kept(t, "late"); got != 0 {
		t.Errorf("work after the end kept %d times", got)
	}
	if got := h.Kept(t, "next"); got != 1 {
		t.Errorf("the next attempt's work kept %d times, want 1", got)
	}
}

func testExpiry(t *testing.T, h Harness) {
	complete(t, fresh(t, h, id, fp), resp)
	h.Age(t, TTL-time.Minute)
	wantOutcome(t, h, id, fp, idempotency.Replay)
	wantOutcome(t, h, id, other, idempotency.Mismatch)
	h.Age(t, time.Minute)

	// As good as new, for any request, though nobody has deleted the record.
	a := fresh(t, h, id, other)
	h.Work(t, a.Bind(t.Context()), "w")
	wantOutcome(t, h, id, other, idempotency.InFlight)
	wantOutcome(t, h, id, fp, idempotency.Mismatch)
	second := idempotency.Response{Status: http.StatusAccepted, Header: http.Header{}, Body: []byte("second")}
	complete(t, a, second)
	c := claim(t, h, id, other)
	if c.Outcome != idempotency.Replay {
		t.Fatalf("claim = %v, want replay", c.Outcome)
	}
	if diff := cmp.Diff(second, c.Record.Response); diff != "" {
		t.Errorf("answer on record (-want +got):\n%s", diff)
	}
	if got := h.Kept(t, "w"); got != 1 {
		t.Errorf("work kept %d times, want 1", got)
	}
}

func testExpiredAndAbandoned(t *testing.T, h Harness) {
	complete(t, fresh(t, h, id, fp), resp)
	h.Age(t, TTL)
	for range 2 {
		if err := fresh(t, h, id, fp).Abandon(t.Context()); err != nil {
			t.Errorf("Abandon: %v", err)
		}
	}
	complete(t, fresh(t, h, id, fp), resp)
	wantOutcome(t, h, id, fp, idempotency.Replay)
}

func testLeaseLost(t *testing.T, h Harness) {
	a := fresh(t, h, id, fp)
	h.Work(t, a.Bind(t.Context()), "w")
	h.Expire(t)
	if err := a.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrSuperseded) {
		t.Errorf("Complete after the lease = %v, want ErrSuperseded", err)
	}
	if got := h.Kept(t, "w"); got != 0 {
		t.Errorf("work kept %d times though the lease was lost", got)
	}
	complete(t, fresh(t, h, id, fp), resp)
}

func testTakeOver(t *testing.T, h Harness) {
	late := fresh(t, h, id, fp)
	h.Work(t, late.Bind(t.Context()), "late")
	h.Expire(t)

	// Another request takes the key over, and the late one comes back while it
	// runs: with Complete, then with Abandon.
	next := fresh(t, h, id, other)
	h.Work(t, next.Bind(t.Context()), "next")
	if err := late.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrSuperseded) {
		t.Errorf("late Complete = %v, want ErrSuperseded", err)
	}
	if err := late.Abandon(t.Context()); err != nil {
		t.Errorf("late Abandon: %v", err)
	}
	wantOutcome(t, h, id, other, idempotency.InFlight)
	complete(t, next, resp)

	wantOutcome(t, h, id, other, idempotency.Replay)
	if got := h.Kept(t, "late"); got != 0 {
		t.Errorf("the late attempt's work kept %d times", got)
	}
	if got := h.Kept(t, "next"); got != 1 {
		t.Errorf("the next attempt's work kept %d times, want 1", got)
	}
}

func testConcurrent(t *testing.T, h Harness) {
	const claims = 50
	for round := range 5 {
		id := idempotency.ID{Scope: id.Scope, Key: string(rune('a' + round))}
		var (
			start sync.WaitGroup
			done  sync.WaitGroup
			mu    sync.Mutex
			count = map[idempotency.Outcome]int{}
		)
		start.Add(1)
		for range claims {
			done.Go(func() {
				start.Wait()
				c, err := h.Store.Claim(t.Context(), id, fp)
				if err != nil {
					t.Errorf("Claim: %v", err)
					return
				}
				if c.Outcome == idempotency.Fresh {
					h.Work(t, c.Attempt.Bind(t.Context()), id.Key)
					if err := c.Attempt.Complete(t.Context(), resp); err != nil {
						t.Errorf("Complete: %v", err)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				count[c.Outcome]++
			})
		}
		start.Done()
		done.Wait()
		if count[idempotency.Fresh] != 1 || count[idempotency.Mismatch] != 0 {
			t.Errorf("round %d: outcomes %v, want one fresh, the rest replay or in_flight", round, count)
		}
		if got := h.Kept(t, id.Key); got != 1 {
			t.Errorf("round %d: work kept %d times, want 1", round, got)
		}
		wantOutcome(t, h, id, fp, idempotency.Replay)
	}
}

func testScopes(t *testing.T, h Harness) {
	// All of these are different, whatever joins scope and key.
	ids := []idempotency.ID{
		{Scope: "ab", Key: "c"}, {Scope: "a", Key: "bc"}, {Scope: "a", Key: "bC"},
		{Scope: "a/b", Key: "c"}, {Scope: "a", Key: "b/c"}, {Scope: "a", Key: "b"}, {Scope: "b", Key: "b"},
	}
	var attempts []idempotency.Attempt
	for _, id := range ids {
		attempts = append(attempts, fresh(t, h, id, fp))
	}
	for i, a := range attempts {
		complete(t, a, idempotency.Response{Status: 200 + i, Header: http.Header{}})
	}
	for i, id := range ids {
		c := claim(t, h, id, fp)
		if c.Outcome != idempotency.Replay || c.Record.Response.Status != 200+i {
			t.Errorf("%v: claim = %v %+v, want its own answer", id, c.Outcome, c.Record)
		}
	}
}

func testLookupNothing(t *testing.T, h Harness) {
	wantNothing(t, h, id)
	// To ask is no claim, and an attempt that was abandoned left nothing.
	if err := fresh(t, h, id, fp).Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantNothing(t, h, id)
	wantOutcome(t, h, id, fp, idempotency.Fresh)
}

func testLookupRunning(t *testing.T, h Harness) {
	a := fresh(t, h, id, fp)
	for range 2 {
		wantRunning(t, h, id)
	}
	for _, other := range neighbours {
		wantNothing(t, h, other)
	}
	wantOutcome(t, h, id, fp, idempotency.InFlight)
	wantOutcome(t, h, id, other, idempotency.Mismatch)
	complete(t, a, resp)
	wantRecord(t, h, id)
}

// neighbours are keys that are not id's, whatever joins scope and key.
var neighbours = []idempotency.ID{
	{Scope: "merchant-b", Key: id.Key},
	{Scope: id.Scope, Key: "ORDER-1001"},
	{Scope: "merchant-", Key: "aorder-1001"},
	{Scope: "merchant-ao", Key: "rder-1001"},
}

func testLookupRecord(t *testing.T, h Harness) {
	a := fresh(t, h, id, fp)
	complete(t, a, resp)
	want := &idempotency.Record{Fingerprint: fp, Response: resp, CreatedAt: a.Time(), ExpiresAt: a.Time().Add(TTL)}
	for range 2 {
		got := wantRecord(t, h, id)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
		// It is the caller's own.
		got.Response.Header.Set("Location", "/changed")
		got.Response.Body[0] = 'X'
	}
	for _, other := range neighbours {
		wantNothing(t, h, other)
	}
}

func testLookupExpired(t *testing.T, h Harness) {
	complete(t, fresh(t, h, id, fp), resp)
	h.Age(t, TTL-time.Minute)
	wantRecord(t, h, id)
	h.Age(t, time.Minute)
	wantNothing(t, h, id) // though nobody has deleted it
	a := fresh(t, h, id, other)
	wantRunning(t, h, id)
	complete(t, a, resp)
	if got := wantRecord(t, h, id); got.Fingerprint != other {
		t.Errorf("fingerprint = %v, want that of the second request, %v", got.Fingerprint, other)
	}
}

func testLookupPastTheLease(t *testing.T, h Harness) {
	a := fresh(t, h, id, fp)
	h.Expire(t)
	wantNothing(t, h, id)
	next := fresh(t, h, id, other)
	wantRunning(t, h, id)
	_ = a.Abandon(t.Context()) // may find that its session is gone
	wantRunning(t, h, id)
	complete(t, next, resp)
	wantRecord(t, h, id)
}

// testLookupHindersNobody: while a key is looked up without pause, a claim of it
// finds it as it is.
func testLookupHindersNobody(t *testing.T, h Harness) {
	stop := make(chan struct{})
	var lookers sync.WaitGroup
	defer lookers.Wait()
	defer close(stop)
	for range 4 {
		lookers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if rec, _, err := h.Store.Lookup(t.Context(), id); rec != nil || err != nil {
					t.Errorf("Lookup = %+v, %v; want no record", rec, err)
					return
				}
			}
		})
	}
	for range 200 {
		a := fresh(t, h, id, fp)
		wantRunning(t, h, id)
		wantOutcome(t, h, id, fp, idempotency.InFlight)
		wantOutcome(t, h, id, other, idempotency.Mismatch)
		if err := a.Abandon(t.Context()); err != nil {
			t.Fatalf("Abandon: %v", err)
		}
	}
}

// testLookupMissesNothing: a request that completes while it is looked up is at
// each moment running or on record.
func testLookupMissesNothing(t *testing.T, h Harness) {
	for round := range 100 {
		id := idempotency.ID{Scope: id.Scope, Key: strconv.Itoa(round)}
		a := fresh(t, h, id, fp)
		var lookers sync.WaitGroup
		for range 3 {
			lookers.Go(func() {
				for {
					rec, running, err := h.Store.Lookup(t.Context(), id)
					switch {
					case err != nil:
						t.Errorf("Lookup: %v", err)
						return
					case rec != nil:
						return
					case !running:
						t.Error("a request that had begun was told to be neither running nor on record")
						return
					}
				}
			})
		}
		complete(t, a, resp)
		lookers.Wait()
	}
}

// mount puts the layer around a handler that works once for the route that is
// asked for, and answers with its path.
func mount(t *testing.T, h Harness, route func(*http.Request) string) http.Handler {
	return idempotency.Middleware(h.Store, idempotency.Options{
		Scope: func(*http.Request) string { return id.Scope },
		Route: route,
	})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.Work(t, r.Context(), r.URL.Path)
		w.Header().Set("Location", r.URL.Path)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("made at " + r.URL.Path))
	}))
}

// post sends a request with id's key, and checks what came of it: the answer of
// its own route, for the first time or again, or a refusal.
func post(t *testing.T, handler http.Handler, path string, status int, replayed bool) {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, path, nil)
	r.Header.Set("Idempotency-Key", id.Key)
	handler.ServeHTTP(w, r)
	if got := w.Header().Get("Idempotent-Replayed") == "true"; w.Code != status || got != replayed {
		t.Fatalf("POST %s = %d, replayed %t; want %d, %t: %s", path, w.Code, got, status, replayed, w.Body)
	}
	if w.Code == http.StatusCreated && (w.Header().Get("Location") != path || w.Body.String() != "made at "+path) {
		t.Errorf("POST %s is answered for %s: %s", path, w.Header().Get("Location"), w.Body)
	}
}

func testKeyNamesOneRequest(t *testing.T, h Harness) {
	handler := mount(t, h, nil)
	post(t, handler, "/things", http.StatusCreated, false)
	post(t, handler, "/things/1/cancel", http.StatusUnprocessableEntity, false)
	post(t, handler, "/things", http.StatusCreated, true)
	wantRecord(t, h, id)
	if first, second := h.Kept(t, "/things"), h.Kept(t, "/things/1/cancel"); first != 1 || second != 0 {
		t.Errorf("the routes' work was kept %d and %d times, want 1 and 0", first, second)
	}
}

func testKeyNamesOneRequestOfARoute(t *testing.T, h Harness) {
	handler := mount(t, h, func(r *http.Request) string {
		if strings.HasSuffix(r.URL.Path, "/cancel") {
			return "POST /things/{id}/cancel"
		}
		return "POST /things"
	})
	post(t, handler, "/things", http.StatusCreated, false)
	post(t, handler, "/things/1/cancel", http.StatusCreated, false)
	post(t, handler, "/things", http.StatusCreated, true)
	post(t, handler, "/things/1/cancel", http.StatusCreated, true)
	post(t, handler, "/things/2/cancel", http.StatusUnprocessableEntity, false)
	for path, want := range map[string]int{"/things": 1, "/things/1/cancel": 1, "/things/2/cancel": 0} {
		if got := h.Kept(t, path); got != want {
			t.Errorf("the work of %s was kept %d times, want %d", path, got, want)
		}
	}
	wantNothing(t, h, id)
	find := func(route string) *idempotency.Record {
		t.Helper()
		return wantRecord(t, h, idempotency.ID{Scope: idempotency.RouteScope(id.Scope, route), Key: id.Key})
	}
	if got := find("POST /things/{id}/cancel").Response.Header.Get("Location"); got != "/things/1/cancel" {
		t.Errorf("the record of the second route is that of %s", got)
	}
	if got := find("POST /things").Response.Header.Get("Location"); got != "/things" {
		t.Errorf("the record of the first route is that of %s", got)
	}
}

func testDeleteExpired(t *testing.T, h Harness) {
	keys := func(from, to rune) (ids []idempotency.ID) {
		for k := from; k <= to; k++ {
			ids = append(ids, idempotency.ID{Scope: id.Scope, Key: string(k)})
		}
		return ids
	}
	old, live := keys('a', 'g'), keys('t', 'v')
	for _, id := range old {
		complete(t, fresh(t, h, id, fp), resp)
	}
	if err := fresh(t, h, idempotency.ID{Scope: id.Scope, Key: "abandoned"}, fp).Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.Age(t, TTL/2)
	for _, id := range live {
		complete(t, fresh(t, h, id, fp), resp)
	}
	wantDeleted(t, h, 3, 0) // nothing is due
	h.Age(t, TTL/2)
	for _, due := range []int{3, 3, 1, 0} {
		wantDeleted(t, h, 3, h.left(due))
	}
	for _, id := range live {
		wantOutcome(t, h, id, fp, idempotency.Replay)
	}
	for _, id := range old {
		complete(t, fresh(t, h, id, other), resp)
	}
}

func testDeleteExpiredSparesTheRunning(t *testing.T, h Harness) {
	complete(t, fresh(t, h, id, fp), resp)
	h.Age(t, TTL)
	a := fresh(t, h, id, other)
	h.Work(t, a.Bind(t.Context()), "w")
	if _, err := h.Store.DeleteExpired(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	complete(t, a, resp)
	wantDeleted(t, h, 10, 0)
	wantOutcome(t, h, id, other, idempotency.Replay)
	if got := h.Kept(t, "w"); got != 1 {
		t.Errorf("work kept %d times, want 1", got)
	}
}

func testDeleteExpiredConcurrently(t *testing.T, h Harness) {
	const records, callers = 40, 4
	for i := range records {
		complete(t, fresh(t, h, idempotency.ID{Scope: id.Scope, Key: string(rune('0' + i))}, fp), resp)
	}
	h.Age(t, TTL)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		total int
	)
	for range callers {
		wg.Go(func() {
			for {
				n, err := h.Store.DeleteExpired(t.Context(), 3)
				if err != nil {
					t.Errorf("DeleteExpired: %v", err)
				}
				mu.Lock()
				total += n
				mu.Unlock()
				if n == 0 || err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if want := h.left(records); total != want {
		t.Errorf("deleted %d records in all, want %d, each once", total, want)
	}
}

// claim claims. Where that yields an attempt, it ends with the test at the
// latest, wanted or not.
func claim(t *testing.T, h Harness, id idempotency.ID, fp idempotency.Fingerprint) idempotency.Claim {
	t.Helper()
	c, err := h.Store.Claim(t.Context(), id, fp)
	if err != nil {
		t.Fatalf("Claim(%v): %v", id, err)
	}
	if c.Attempt != nil {
		t.Cleanup(func() { _ = c.Attempt.Abandon(context.Background()) })
	}
	return c
}

// fresh claims, and fails the test unless the claim may run.
func fresh(t *testing.T, h Harness, id idempotency.ID, fp idempotency.Fingerprint) idempotency.Attempt {
	t.Helper()
	c := claim(t, h, id, fp)
	if c.Outcome != idempotency.Fresh || c.Attempt == nil || c.Record != nil {
		t.Fatalf("Claim(%v) = %+v, want fresh with an attempt", id, c)
	}
	return c.Attempt
}

func complete(t *testing.T, a idempotency.Attempt, resp idempotency.Response) {
	t.Helper()
	if err := a.Complete(t.Context(), resp); err != nil {
		t.Fatalf("Complete: %v", err)
	}
}

func wantOutcome(t *testing.T, h Harness, id idempotency.ID, fp idempotency.Fingerprint, want idempotency.Outcome) {
	t.Helper()
	if got := claim(t, h, id, fp).Outcome; got != want {
		t.Errorf("Claim(%v) = %v, want %v", id, got, want)
	}
}

func lookup(t *testing.T, h Harness, id idempotency.ID) (*idempotency.Record, bool) {
	t.Helper()
	rec, running, err := h.Store.Lookup(t.Context(), id)
	if err != nil {
		t.Fatalf("Lookup(%v): %v", id, err)
	}
	return rec, running
}

func wantNothing(t *testing.T, h Harness, id idempotency.ID) {
	t.Helper()
	if rec, running := lookup(t, h, id); rec != nil || running {
		t.Errorf("Lookup(%v) = %+v, running %t; want neither", id, rec, running)
	}
}

func wantRunning(t *testing.T, h Harness, id idempotency.ID) {
	t.Helper()
	if rec, running := lookup(t, h, id); rec != nil || !running {
		t.Errorf("Lookup(%v) = %+v, running %t; want running alone", id, rec, running)
	}
}

// wantRecord returns the record that stands under the key.
func wantRecord(t *testing.T, h Harness, id idempotency.ID) *idempotency.Record {
	t.Helper()
	rec, running := lookup(t, h, id)
	if rec == nil || running {
		t.Fatalf("Lookup(%v) = %+v, running %t; want a record alone", id, rec, running)
	}
	return rec
}

func wantDeleted(t *testing.T, h Harness, limit, want int) {
	t.Helper()
	got, err := h.Store.DeleteExpired(t.Context(), limit)
	if err != nil {
		t.Fatalf("DeleteExpired: %v", err)
	}
	if got != want {
		t.Errorf("DeleteExpired(%d) = %d, want %d", limit, got, want)
	}
}
