package idempotency_test

import (
	"strings"
	"testing"

	"intentd/internal/idempotency"
)

func TestParseKey(t *testing.T) {
	t.Parallel()
	every := func() string {
		var b strings.Builder
		for c := byte(0x21); c <= 0x7E; c++ {
			if c != '"' {
				b.WriteByte(c)
			}
		}
		return b.String()
	}()
	for _, tt := range []struct{ name, value, want string }{
		{"Bare", "order-1001", "order-1001"},
		{"OneByte", "k", "k"},
		{"EveryByte", every, every},
		{"QuoteInside", `a"b`, `a"b`},
		{"QuoteAtTheEnd", `a"`, `a"`},
		{"BackslashesAreBytesInABareKey", `a\"\b`, `a\"\b`},
		{"Longest", strings.Repeat("k", 255), strings.Repeat("k", 255)},
		{"Quoted", `"order-1001"`, "order-1001"},
		{"QuotedEscapes", `"a\"b\\c"`, `a"b\c`},
		{"QuotedOnlyEscapes", `"\\\""`, `\"`},
		{"QuotedLongest", `"` + strings.Repeat("k", 255) + `"`, strings.Repeat("k", 255)},
		{"QuotedLongestOfEscapes", `"` + strings.Repeat(`\"`, 255) + `"`, strings.Repeat(`"`, 255)},
		{"SingleQuotesAreBytes", `'k'`, `'k'`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := idempotency.ParseKey(tt.value)
			if err != nil || got != tt.want {
				t.Errorf("ParseKey(%q) = %q, %v; want %q", tt.value, got, err, tt.want)
			}
		})
	}
}

func TestParseKey_Refuses(t *testing.T) {
	t.Parallel()
	const (
		empty     = "Idempotency-Key must not be empty"
		unclosed  = "Idempotency-Key is a quoted string without its closing quote"
		after     = "Idempotency-Key is a quoted string with something after its closing quote"
		badEscape = `Idempotency-Key is a quoted string with an escape other than \" and \\`
	)
	for _, tt := range []struct{ name, value, want string }{
		{"Empty", "", empty},
		{"EmptyQuoted", `""`, empty},
		{"TooLong", strings.Repeat("k", 256), "Idempotency-Key must be at most 255 bytes long, got 256"},
		{"MuchTooLong", strings.Repeat("k", 3000), "Idempotency-Key must be at most 255 bytes long, got 3000"},
		{"TooLongQuoted", `"` + strings.Repeat("k", 256) + `"`, "Idempotency-Key must be at most 255 bytes long, got 256"},
		{"TooLongInBytes", strings.Repeat("é", 128), "Idempotency-Key must be at most 255 bytes long, got 256"},
		{"Blank", " ", "Idempotency-Key must be printable ASCII without blanks, got byte 0x20 at position 1"},
		{"BlankInside", "secret key", "Idempotency-Key must be printable ASCII without blanks, got byte 0x20 at position 7"},
		{"BlankInsideQuotes", `"secret key"`, "Idempotency-Key must be printable ASCII without blanks, got byte 0x20 at position 7"},
		{"Tab", "a\tb", "Idempotency-Key must be printable ASCII without blanks, got byte 0x09 at position 2"},
		{"NUL", "a\x00b", "Idempotency-Key must be printable ASCII without blanks, got byte 0x00 at position 2"},
		{"DEL", "a\x7f", "Idempotency-Key must be printable ASCII without blanks, got byte 0x7f at position 2"},
		{"HighByte", "a\xff", "Idempotency-Key must be printable ASCII without blanks, got byte 0xff at position 2"},
		{"HighByteInQuotes", "\"a\xff\"", "Idempotency-Key must be printable ASCII without blanks, got byte 0xff at position 2"},
		{"NotASCII", "é", "Idempotency-Key must be printable ASCII without blanks, got byte 0xc3 at position 1"},
		{"LoneQuote", `"`, unclosed},
		{"NoClosingQuote", `"secret`, unclosed},
		{"ClosingQuoteEscaped", `"secret\"`, unclosed},
		{"AfterTheClosingQuote", `"secret"x`, after},
		{"TwoStrings", `"secret", "secret"`, after},
		{"Parameters", `"secret";a=1`, after},
		{"OtherEscape", `"secret\n"`, badEscape},
		{"EscapeAtTheEnd", `"secret\`, badEscape},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := idempotency.ParseKey(tt.value)
			if err == nil || got != "" {
				t.Fatalf("ParseKey = %q, %v; want an error and no key", got, err)
			}
			if err.Error() != tt.want {
				t.Errorf("error = %q, want %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("error %q holds the value", err)
			}
		})
	}
}

// FuzzParseKey: whatever comes in, a key that goes out is one that the contract
// allows, and the structured-field spelling of it names the same key.
func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{
		"", " ", "k", "order-1001", `"k"`, `""`, `"`, `"\`, `"\"`, `"\""`, `"a\\b"`, `"a"b`, `"\x"`, `a"b`, "a\tb", "\xff", "\x00",
		strings.Repeat("k", 255), strings.Repeat("k", 256), `"` + strings.Repeat(`\\`, 255) + `"`, `"` + strings.Repeat("k", 3000) + `"`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := idempotency.ParseKey(value)
		if err != nil {
			if key != "" {
				t.Errorf("ParseKey(%q) = %q with error %v", value, key, err)
			}
			return
		}
		if len(key) < 1 || len(key) > 255 {
			t.Errorf("ParseKey(%q) has %d bytes", value, len(key))
		}
		for _, c := range []byte(key) {
			if c < 0x21 || c > 0x7E {
				t.Errorf("ParseKey(%q) = %q, with byte 0x%02x", value, key, c)
			}
		}
		if !strings.HasPrefix(value, `"`) && key != value {
			t.Errorf("ParseKey(%q) = %q: a bare key is itself", value, key)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err := idempotency.ParseKey(quoted); err != nil || again != key {
			t.Errorf("ParseKey(%q) = %q, %v; want %q", quoted, again, err, key)
		}
	})
}
