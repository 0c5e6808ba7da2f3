package api_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestRoles_Create: only a merchant creates, and the refusal leaves the key as
// it was.
func TestRoles_Create(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		for token, role := range map[string]string{relayer: "relayer", listener: "listener", operator: "operator"} {
			a := s.do(t, call{token: token, header: forAlice})
			a.want(t, http.StatusForbidden, "forbidden_actor")
			a.wantDetail(t, "creating a payment intent is not open to "+role)
			c := call{token: token, header: append([]string{"-Idempotency-Key"}, forAlice...)}
			s.do(t, c).want(t, http.StatusForbidden, "forbidden_actor")
		}
	})
}

// TestRoles_IntentMerchant: who acts for merchants says for which one, and a
// merchant acts for itself.
func TestRoles_IntentMerchant(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		location := s.created(t, call{}).header.Get("Location")
		for _, x := range []struct {
			token  string
			header []string
			status int
			code   string
			detail string
		}{
			{alice, nil, 200, "", ""},
			{alice, []string{"Intent-Merchant: alice"}, 200, "", ""},
			{alice, []string{"Intent-Merchant: bob"}, 400, "intent_merchant_invalid", "Intent-Merchant must be the key's own merchant, or left out"},
			{alice, []string{"Intent-Merchant: test:alice"}, 400, "intent_merchant_invalid", ""},
			{relayer, nil, 400, "intent_merchant_invalid", "a key of role relayer needs one Intent-Merchant header: whose payment intents it is about"},
			{operator, []string{"Intent-Merchant: alice", "Intent-Merchant: alice"}, 400, "intent_merchant_invalid", "Intent-Merchant must be sent once, got more than one header line"},
			{listener, []string{"Intent-Merchant: a/b"}, 400, "intent_merchant_invalid", "Intent-Merchant must be 1 to 64 letters, digits, dots, dashes or underscores"},
			{listener, []string{"Intent-Merchant: " + strings.Repeat("a", 65)}, 400, "intent_merchant_invalid", ""},
			{relayer, []string{"Intent-Merchant: test:alice"}, 400, "intent_merchant_invalid", ""},
			{relayer, []string{"Intent-Merchant: alice"}, 200, "", ""},
			{listener, []string{"Intent-Merchant: alice"}, 200, "", ""},
			{operator, []string{"Intent-Merchant: alice"}, 200, "", ""},
			{operator, []string{"Intent-Merchant: bob"}, 404, "not_found", ""},
			{operatorTest, []string{"Intent-Merchant: alice"}, 404, "not_found", ""},
			{aliceTest, nil, 404, "not_found", ""},
			{aliceToo, nil, 200, "", ""},
			{bob, nil, 404, "not_found", ""},
		} {
			a := s.do(t, call{method: "GET", path: location, token: x.token, header: x.header})
			a.want(t, x.status, x.code)
			if x.detail != "" {
				a.wantDetail(t, x.detail)
			}
		}
	})
}

// TestRoles_Scopes: the keys of a merchant share their scope, whichever of its
// credentials is used; those of test and live do not, nor do those that somebody
// uses for two merchants.
func TestRoles_Scopes(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		key := newKey()
		first := s.created(t, call{key: key})
		s.replayed(t, call{key: key, token: aliceToo}, first)
		inTest := s.created(t, call{key: key, token: aliceTest})
		if inTest.header.Get("Location") == first.header.Get("Location") {
			t.Error("a test key was given a live intent")
		}
		if p := s.list(t, call{token: aliceTest}); len(p.Data) != 1 || p.Data[0].ID != inTest.member(t, "id") {
			t.Errorf("test intents: %+v", p)
		}
		if p := s.list(t, call{}); len(p.Data) != 1 || p.Data[0].ID != first.member(t, "id") {
			t.Errorf("live intents: %+v", p)
		}

		// The same key and body on the same path for another merchant: another
		// request, and so is the same by a listener.
		key = newKey()
		c := call{path: first.header.Get("Location") + "/cancel", body: `{"reason":"r"}`, key: key, token: operator, header: forAlice}
		canceled := s.moved(t, c, "canceled", 2)
		s.replayed(t, c, canceled)
		c.header = []string{"Intent-Merchant: bob"}
		s.do(t, c).want(t, http.StatusNotFound, "not_found")
		c.token, c.header = alice, nil
		a := s.moved(t, c, "canceled", 2)
		a.wantReplayed(t, false)
	})
}
