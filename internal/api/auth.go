package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// Authenticator turns a bearer token into the merchant that it belongs to.
type Authenticator interface {
	// Authenticate returns false for a token that nobody has. An error means
	// that it could not be told, and is answered 503.
	Authenticate(ctx context.Context, token string) (merchantID string, ok bool, err error)
}

// StaticKeys is an Authenticator over a fixed set of tokens, of which it keeps
// only SHA-256 digests. A token is compared with all of them, in a time that
// tells nothing of how near it was to any.
type StaticKeys struct {
	keys []staticKey
}

type staticKey struct {
	digest     [sha256.Size]byte
	merchantID string
}

// NewStaticKeys returns an Authenticator for the merchants by token.
func NewStaticKeys(merchantByToken map[string]string) *StaticKeys {
	k := new(StaticKeys)
	for token, merchantID := range merchantByToken {
		k.keys = append(k.keys, staticKey{sha256.Sum256([]byte(token)), merchantID})
	}
	return k
}

// Authenticate implements Authenticator. It never fails.
func (k *StaticKeys) Authenticate(_ context.Context, token string) (string, bool, error) {
	digest := sha256.Sum256([]byte(token))
	found := -1
	for i := range k.keys {
		equal := subtle.ConstantTimeCompare(digest[:], k.keys[i].digest[:])
		found = subtle.ConstantTimeSelect(equal, i, found)
	}
	if found < 0 {
		return "", false, nil
	}
	return k.keys[found].merchantID, true, nil
}

type merchantKey struct{}

// merchantOf returns whose credential the request carries. It panics on a route
// that was mounted without authentication.
func merchantOf(r *http.Request) string {
	return r.Context().Value(merchantKey{}).(string)
}

// authenticate lets a request pass that carries one good credential.
func (s *server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := bearerToken(r.Header.Values("Authorization"))
		if !ok {
			fail(w, r, errUnauthorized)
			return
		}
		merchantID, ok, err := s.Authenticator.Authenticate(r.Context(), token)
		switch {
		case err != nil:
			entryOf(r).fail(err)
			fail(w, r, notReady("the credential can not be checked now; try again"))
		case !ok:
			fail(w, r, errUnauthorized)
		default:
			entryOf(r).merchant = merchantID
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), merchantKey{}, merchantID)))
		}
	})
}

// bearerToken returns the token of the one Authorization line that there must
// be: RFC 6750, section 2.1; the scheme's case does not matter (RFC 9110,
// section 11.1).
func bearerToken(lines []string) (string, bool) {
	if len(lines) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(lines[0], " ")
	token = strings.TrimLeft(token, " ")
	return token, ok && token != "" && strings.EqualFold(scheme, "Bearer")
}
