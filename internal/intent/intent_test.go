package intent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestNewID(t *testing.T) {
	t.Parallel()

	t.Run("Layout", func(t *testing.T) {
		t.Parallel()
		at := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.FixedZone("east", 7200))
		id, err := NewID(at)
		if err != nil {
			t.Fatal(err)
		}
		u := uuid.UUID(id)
		if u.Version() != 7 || u.Variant() != uuid.RFC4122 {
			t.Fatalf("%s is version %d, variant %s", u, u.Version(), u.Variant())
		}
		high := binary.BigEndian.Uint64(id[:8])
		if ms := int64(high >> 16); ms != at.UnixMilli() {
			t.Errorf("%d milliseconds, want %d", ms, at.UnixMilli())
		}
		if a := high & 0xfff; a != 456*4096/1000 {
			t.Errorf("rand_a = %d, want %d", a, 456*4096/1000)
		}
	})

	t.Run("EachMicrosecond", func(t *testing.T) {
		t.Parallel()
		// Two milliseconds, and every microsecond in them, in order.
		var last ID
		for us := range 2000 {
			at := now.Add(time.Duration(us) * time.Microsecond)
			first, before := FirstID(at), last
			for range 3 {
				id, err := NewID(at.Add(999))
				if err != nil {
					t.Fatal(err)
				}
				if bytes.Compare(id[:], first[:]) < 0 || bytes.Compare(before[:], id[:]) >= 0 {
					t.Fatalf("at %s: %s, first %s, before it %s", at, id, first, before)
				}
				last = slices.MaxFunc([]ID{last, id}, func(a, b ID) int { return bytes.Compare(a[:], b[:]) })
			}
		}
	})

	t.Run("Random", func(t *testing.T) {
		t.Parallel()
		// Each of the 62 bits is at some time set, and at some time not.
		set, unset := uint64(0), uint64(0)
		for range 200 {
			id, err := NewID(now)
			if err != nil {
				t.Fatal(err)
			}
			low := binary.BigEndian.Uint64(id[8:])
			set, unset = set|low, unset|^low
		}
		if set != 0xbfff_ffff_ffff_ffff || unset != 0x7fff_ffff_ffff_ffff {
			t.Fatalf("set %x, unset %x", set, unset)
		}
	})

	t.Run("Bounds", func(t *testing.T) {
		t.Parallel()
		first, last := time.UnixMicro(0), time.UnixMicro(maxTime*1000+999)
		for _, at := range []time.Time{first, last} {
			if _, err := NewID(at); err != nil {
				t.Errorf("NewID(%s): %v", at, err)
			}
		}
		for _, at := range []time.Time{first.Add(-1), last.Add(time.Microsecond), {}} {
			if id, err := NewID(at); err == nil {
				t.Errorf("NewID(%s) = %s", at, id)
			}
		}
		for at, want := range map[time.Time]string{
			first:                       "pi_00000000000070008000000000000000",
			{}:                          "pi_00000000000070008000000000000000",
			last:                        "pi_ffffffffffff7ffb8000000000000000",
			last.Add(time.Microsecond):  "pi_ffffffffffff7ffb8000000000000000",
			last.Add(1e6 * time.Second): "pi_ffffffffffff7ffb8000000000000000",
		} {
			if got := FirstID(at).String(); got != want {
				t.Errorf("FirstID(%s) = %s, want %s", at, got, want)
			}
		}
	})
}

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
