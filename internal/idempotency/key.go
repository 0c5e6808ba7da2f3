package idempotency

import (
	"errors"
	"fmt"
	"strings"
)

// MaxKeyBytes is the length of the longest key, after unquoting.
const MaxKeyBytes = 255

// ParseKey returns the key that an Idempotency-Key header's value names.
//
// A value that begins with a double quote is the draft's structured-field
// string (RFC 9651, section 3.3.3): it must end with one, and \" and \\ are its
// only escapes. It names the same key as its content sent bare. Any other value
// is the key itself. Length (1 to MaxKeyBytes) and bytes (0x21 to 0x7E) are
// judged after unquoting. The error is a sentence for the client; it does not
// hold the value.
func ParseKey(value string) (string, error) {
	key := value
	if strings.HasPrefix(value, `"`) {
		var err error
		if key, err = unquote(value); err != nil {
			return "", err
		}
	}
	switch {
	case key == "":
		return "", errors.New("Idempotency-Key must not be empty")
	case len(key) > MaxKeyBytes:
		return "", fmt.Errorf("Idempotency-Key must be at most %d bytes long, got %d", MaxKeyBytes, len(key))
	}
	for i := range len(key) {
		if c := key[i]; c < 0x21 || c > 0x7E {
			return "", fmt.Errorf("Idempotency-Key must be printable ASCII without blanks, got byte 0x%02x at position %d", c, i+1)
		}
	}
	return key, nil
}

// unquote returns the content of a structured-field string.
func unquote(value string) (string, error) {
	var b strings.Builder
	for i := 1; i < len(value); i++ {
		switch c := value[i]; c {
		case '\\':
			i++
			if i == len(value) || (value[i] != '"' && value[i] != '\\') {
				return "", errors.New(`Idempotency-Key is a quoted string with an escape other than \" and \\`)
			}
			b.WriteByte(value[i])
		case '"':
			if i != len(value)-1 {
				return "", errors.New("Idempotency-Key is a quoted string with something after its closing quote")
			}
			return b.String(), nil
		default:
			b.WriteByte(c)
		}
	}
	return "", errors.New("Idempotency-Key is a quoted string without its closing quote")
}
