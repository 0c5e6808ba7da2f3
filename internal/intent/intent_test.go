package intent

import (
	"errors"
	"strings"
	"testing"
)

func TestID_String(t *testing.T) {
	t.Parallel()
	seen := make(map[ID]bool)
	for range 1000 {
		id, err := NewID(now)
		if err != nil {
			t.Fatal(err)
		}
		if seen[id] {
			t.Fatalf("%s came twice", id)
		}
		seen[id] = true
		s := id.String()
		if len(s) != 35 || !strings.HasPrefix(s, "pi_") || s != strings.ToLower(s) {
			t.Fatalf("String() = %q", s)
		}
		if got, err := ParseID(s); err != nil || got != id {
			t.Fatalf("ParseID(%q) = %v, %v", s, got, err)
		}
	}
}

func TestParseID(t *testing.T) {
	t.Parallel()
	const good = "pi_0190a6d1c0de7abc8def0123456789ab"
	if id, err := ParseID(good); err != nil || id.String() != good {
		t.Fatalf("ParseID(%q) = %v, %v", good, id, err)
	}
	for name, s := range map[string]string{
		"Empty":         "",
		"PrefixOnly":    "pi_",
		"NoPrefix":      good[3:],
		"OtherPrefix":   "PI_" + good[3:],
		"Twice":         "pi_" + good,
		"Capitals":      "pi_" + strings.ToUpper(good[3:]),
		"OneCapital":    strings.Replace(good, "a6", "A6", 1),
		"Dashed":        "pi_0190a6d1-c0de-7abc-8def-0123456789ab",
		"Braces":        "pi_{190a6d1c0de7abc8def0123456789a}",
		"Short":         good[:34],
		"Long":          good + "0",
		"Space":         good[:34] + " ",
		"NUL":           good[:34] + "\x00",
		"NotHex":        good[:34] + "g",
		"Version4":      "pi_0190a6d1c0de4abc8def0123456789ab",
		"Version6":      "pi_0190a6d1c0de6abc8def0123456789ab",
		"NCSVariant":    "pi_0190a6d1c0de7abc0def0123456789ab",
		"FutureVariant": "pi_0190a6d1c0de7abcfdef0123456789ab",
		"COMVariant":    "pi_0190a6d1c0de7abccdef0123456789ab",
		"Nil":           "pi_" + strings.Repeat("0", 32),
		"Huge":          "pi_" + strings.Repeat("0", 1e6),
	} {
		if id, err := ParseID(s); !errors.Is(err, ErrNotFound) || id != (ID{}) {
			t.Errorf("%s: ParseID(%.50q) = %v, %v, want ErrNotFound", name, s, id, err)
		} else if len(err.Error()) > 100 {
			t.Errorf("%s: the error repeats what was given", name)
		}
	}
}
