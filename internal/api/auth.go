package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"intentd/internal/apikey"
	"intentd/internal/intent"
	"intentd/internal/secret"
)

// caller is who sent a request, and on whose payment intents it acts.
type caller struct {
	apikey.Holder
	// account is what the payment intents are kept under: the merchant, or what
	// stands for it among those of test keys.
	account string
}

// accountOf keeps a merchant's test intents apart from its live ones. No
// merchant's name has a colon.
func accountOf(mode apikey.Mode, merchant string) string {
	if mode == apikey.Test {
		return "test:" + merchant
	}
	return merchant
}

// scope is whose idempotency keys the caller's are: those of its merchant,
// whichever of the merchant's keys it uses. One that acts for other merchants
// has a scope for each of them, since the request's fingerprint does not hold
// the header that names them. No merchant's name has a slash.
func (c caller) scope() string {
	if c.Role == apikey.API {
		return c.account
	}
	return string(c.Role) + "/" + c.Merchant + "/" + c.account
}

// actor is the caller as the state machine knows it.
func (c caller) actor() intent.Actor { return intent.Actor(c.Role) }

type callerKey struct{}

// callerOf returns who sent the request. It panics on a route that was mounted
// without authentication.
func callerOf(r *http.Request) caller {
	return r.Context().Value(callerKey{}).(caller)
}

func withCaller(r *http.Request, c caller) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
}

// authenticate lets a request pass that carries one good credential.
func (s *server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := bearerToken(r.Header.Values("Authorization"))
		if !ok {
			s.fail(w, r, errUnauthorized)
			return
		}
		holder, ok, err := s.Authenticator.Authenticate(r.Context(), token)
		switch {
		case err != nil:
			entryOf(r).fail(err)
			s.fail(w, r, notReady("the credential can not be checked now; try again"))
		case !ok:
			s.fail(w, r, errUnauthorized)
		default:
			e := entryOf(r)
			e.role, e.merchant = holder.Role, accountOf(holder.Mode, holder.Merchant)
			next.ServeHTTP(w, withCaller(r, caller{holder, e.merchant}))
		}
	})
}

// bearerToken returns the token of the one Authorization line that there must
// be: RFC 6750, section 2.1; the scheme's case does not matter (RFC 9110,
// section 11.1).
func bearerToken(lines []string) (secret.Text, bool) {
	if len(lines) != 1 {
		return secret.Text{}, false
	}
	scheme, token, ok := strings.Cut(lines[0], " ")
	token = strings.TrimLeft(token, " ")
	return secret.New(token), ok && token != "" && strings.EqualFold(scheme, "Bearer")
}

// forMerchant finds out whose payment intents the request is about. A merchant's
// key needs not say it. The keys of relayers, listeners and operators must, each
// time and by a header: in the path it would give one intent two names.
func (s *server) forMerchant(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, named := callerOf(r), r.Header.Values("Intent-Merchant")
		var wrong string
		switch {
		case len(named) == 0 && c.Role == apikey.API:
			next.ServeHTTP(w, r)
			return
		case len(named) == 0:
			wrong = fmt.Sprintf("a key of role %s needs one Intent-Merchant header: whose payment intents it is about", c.Role)
		case len(named) > 1:
			wrong = "Intent-Merchant must be sent once, got more than one header line"
		// A key with the caller's own role and mode breaks no rule but this.
		case len(apikey.Check(apikey.Holder{Merchant: named[0], Role: c.Role, Mode: c.Mode}, "")) > 0:
			wrong = "Intent-Merchant " + apikey.MerchantRule
		case c.Role == apikey.API && named[0] != c.Merchant:
			wrong = "Intent-Merchant must be the key's own merchant, or left out"
		}
		if wrong != "" {
			s.fail(w, r, &problem{status: http.StatusBadRequest, code: "intent_merchant_invalid", detail: wrong})
			return
		}
		c.account = accountOf(c.Mode, named[0])
		entryOf(r).merchant = c.account
		next.ServeHTTP(w, withCaller(r, c))
	})
}

// only lets those pass whose role is one of roles. What they would do completes
// the sentence that the others get.
func (s *server) only(what string, roles ...apikey.Role) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if role := callerOf(r).Role; !slices.Contains(roles, role) {
				s.fail(w, r, &problem{
					status: http.StatusForbidden, code: "forbidden_actor",
					detail: fmt.Sprintf("%s is not open to %s", what, role),
				})
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}
