package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const keysPath = "/v1/idempotency_keys"

// TestFindKey tells what became of a key, to whom it belongs and to nobody else.
func TestFindKey(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		find := func(key, token string, header ...string) *answer {
			return s.do(t, call{method: "GET", path: keysPath, key: key, token: token, header: header})
		}
		key := newKey() + "/with/slashes?and=more"
		find(key, alice).want(t, http.StatusNotFound, "not_found")
		created := s.created(t, call{key: key})

		a := find(key, alice)
		a.want(t, http.StatusOK, "")
		if diff := cmp.Diff([]any{201.0, created.header.Get("Location"), created.member(t, "created_at")},
			[]any{a.member(t, "status"), a.member(t, "resource"), a.member(t, "created_at")}); diff != "" {
			t.Errorf("found (-want +got):\n%s", diff)
		}
		if got := a.header.Get("Idempotent-Replayed") + a.header.Get("ETag"); got != "" {
			t.Errorf("the lookup has headers of the answer that it is about: %q", got)
		}
		from, err := time.Parse(time.RFC3339, a.member(t, "created_at").(string))
		if err != nil {
			t.Fatal(err)
		}
		until, err := time.Parse(time.RFC3339, a.member(t, "expires_at").(string))
		if err != nil {
			t.Fatal(err)
		}
		if until.Sub(from) != ttl {
			t.Errorf("lives for %v, want %v", until.Sub(from), ttl)
		}
		// What the layer says of it is the same, in whole seconds.
		want := until.Truncate(time.Second).Format(http.TimeFormat)
		for name, a := range map[string]*answer{
			"fresh":    created,
			"replay":   s.do(t, call{key: key}),
			"mismatch": s.do(t, call{key: key, body: edit(t, "amount", `"7"`)}),
		} {
			if got := a.header.Get("Idempotency-Key-Expires"); got != want {
				t.Errorf("Idempotency-Key-Expires of the %s = %q, want %q", name, got, want)
			}
		}
		mismatch := s.do(t, call{key: key, body: edit(t, "amount", `"7"`)})
		if fp := a.member(t, "fingerprint").(string); !strings.Contains(mismatch.problem().Detail, "fingerprint "+fp+",") {
			t.Errorf("fingerprint %s, but the mismatch says %q", fp, mismatch.problem().Detail)
		}

		// It is the same key spelled as a structured field, and for all keys of
		// the merchant, but for no one else: not for another merchant, not for
		// test keys, not for a relayer's own requests for the merchant.
		find(`"`+key+`"`, alice).want(t, http.StatusOK, "")
		find(key, aliceToo).want(t, http.StatusOK, "")
		find(key, bob).want(t, http.StatusNotFound, "not_found")
		find(key, aliceTest).want(t, http.StatusNotFound, "not_found")
		find(key, relayer, forAlice...).want(t, http.StatusNotFound, "not_found")

		// A refusal that is on record is told as well; it made no resource.
		refused := newKey()
		s.do(t, call{key: refused, body: "{}"}).want(t, http.StatusBadRequest, "invalid_request")
		a = find(refused, alice)
		if a.member(t, "status") != 400.0 || a.member(t, "resource") != nil {
			t.Errorf("found %s, want a 400 without a resource", a.body)
		}

		// Keys are read as everywhere.
		s.do(t, call{method: "GET", path: keysPath}).want(t, http.StatusBadRequest, "idempotency_key_required")
		find(strings.Repeat("k", 256), alice).want(t, http.StatusBadRequest, "idempotency_key_invalid")
		find("k", alice, "Idempotency-Key: k").want(t, http.StatusBadRequest, "idempotency_key_invalid")
	})
}

// TestFindKey_Running: while a request runs, its key is in flight to a lookup as
// it is to a copy, and the lookup hinders neither.
func TestFindKey_Running(t *testing.T) {
	t.Parallel()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := new(gate)
			s := open(t, setup{change: func(p *parts) { g.Store, p.intents = p.intents, g }})
			running, release := make(chan struct{}), make(chan struct{})
			g.set(func(context.Context) error {
				close(running)
				<-release
				return nil
			})
			key := newKey()
			done := make(chan *answer, 1)
			go func() { done <- s.do(t, call{key: key}) }()
			<-running
			for range 3 {
				a := s.do(t, call{method: "GET", path: keysPath, key: key})
				a.want(t, http.StatusConflict, "idempotency_key_in_flight")
				if got := a.header.Get("Retry-After"); got != "1" {
					t.Errorf("Retry-After = %q", got)
				}
				s.do(t, call{key: key}).want(t, http.StatusConflict, "idempotency_key_in_flight")
				s.do(t, call{method: "GET", path: keysPath, key: key, token: bob}).want(t, http.StatusNotFound, "not_found")
			}
			close(release)
			(<-done).want(t, http.StatusCreated, "")
			s.do(t, call{method: "GET", path: keysPath, key: key}).want(t, http.StatusOK, "")
		})
	}
}
