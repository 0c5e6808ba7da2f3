package apikey

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"intentd/internal/secret"
)

const (
	randomBytes = 32
	// checkBytes makes the whole 40 bytes, which base32 writes without padding
	// and without spare bits: there is one spelling only.
	checkBytes = 8
)

// encoding is RFC 4648's base32 in lower case. Its text is one word to whoever
// selects it with a double click, and has no digits 0 and 1 to be taken for
// letters.
var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// tokenLength is that of every token: the prefix of either mode, and the rest.
var tokenLength = len(prefix(Live)) + encoding.EncodedLen(randomBytes+checkBytes)

// prefix begins the tokens of a mode: people, logs and scanners for lost secrets
// know by it what they see.
func prefix(m Mode) string {
	return "sk_" + string(m) + "_"
}

// NewToken returns a new token of that mode: its prefix, sk_live_ or sk_test_,
// and 64 characters of a to z and 2 to 7, which are 256 random bits and a
// checksum of prefix and bits. It panics on a mode that there is not.
func NewToken(m Mode) secret.Text {
	if m != Live && m != Test {
		panic("apikey: NewToken needs a mode, not " + string(m))
	}
	raw := make([]byte, randomBytes, randomBytes+checkBytes)
	_, _ = rand.Read(raw) // never fails: it ends the process instead
	return secret.New(prefix(m) + encoding.EncodeToString(append(raw, checksum(m, raw)...)))
}

// ParseToken tells whether NewToken could have made token, and in which mode. It is
// false for any text in which a character was mistyped, lost or left over,
// without anybody having to be asked; but for one in 2^64 of those made up.
func ParseToken(token secret.Text) (Mode, bool) {
	s := token.Reveal()
	if len(s) != tokenLength {
		return "", false
	}
	for _, m := range []Mode{Live, Test} {
		text, ok := strings.CutPrefix(s, prefix(m))
		if !ok {
			continue
		}
		raw, err := encoding.DecodeString(text)
		// The decoder skips line breaks, which would be another spelling.
		if err != nil || len(raw) != randomBytes+checkBytes {
			return "", false
		}
		if string(raw[randomBytes:]) != string(checksum(m, raw[:randomBytes])) {
			return "", false
		}
		return m, true
	}
	return "", false
}

// checksum covers the prefix too, so that a live token made a test token by hand
// is no token. It is no secret and proves nothing.
func checksum(m Mode, random []byte) []byte {
	sum := sha256.Sum256(append([]byte(prefix(m)), random...))
	return sum[:checkBytes]
}
