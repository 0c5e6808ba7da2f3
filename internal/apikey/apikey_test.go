package apikey

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"intentd/internal/secret"
)

func TestNewToken(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^sk_(live|test)_[a-z2-7]{64}$`)
	seen := map[string]bool{}
	for _, mode := range []Mode{Live, Test} {
		for range 1000 {
			token := NewToken(mode).Reveal()
			if got, ok := ParseToken(secret.New(token)); !ok || got != mode || !form.MatchString(token) || !strings.HasPrefix(token, "sk_"+string(mode)) {
				t.Fatalf("%s: ParseToken = %q, %t", token, got, ok)
			}
			// The middle is as random as the beginning.
			seen[token[8:24]], seen[token[30:46]] = true, true
		}
	}
	if len(seen) != 4000 {
		t.Errorf("%d different parts of tokens, want 4000", len(seen))
	}
}

func TestParseToken(t *testing.T) {
	t.Parallel()
	token := NewToken(Live).Reveal()

	t.Run("EveryMistypedCharacter", func(t *testing.T) {
		t.Parallel()
		for i := range token {
			for _, c := range []byte("abcdefghijklmnopqrstuvwxyz0123456789ABCXYZ_-=+/ \n\r\x00\xff") {
				s := token[:i] + string([]byte{c}) + token[i+1:]
				if _, ok := ParseToken(secret.New(s)); ok != (s == token) {
					t.Errorf("%q: %t", s, ok)
				}
			}
			if _, ok := ParseToken(secret.New(token[:i] + token[i+1:])); ok {
				t.Errorf("without character %d", i)
			}
			if i > 0 && token[i] != token[i-1] {
				if _, ok := ParseToken(secret.New(token[:i-1] + token[i:i+1] + token[i-1:i] + token[i+1:])); ok {
					t.Errorf("with characters %d and %d swapped", i-1, i)
				}
			}
		}
	})

	t.Run("Refused", func(t *testing.T) {
		t.Parallel()
		for name, s := range map[string]string{
			"empty": "", "a word": "merchant-demo", "the other mode": "sk_test_" + token[8:], "no such mode": "sk_prod_" + token[8:],
			"capitals": strings.ToUpper(token), "a space": token + " ", "padding": token + "=", "a line break": token + "\n",
			"line breaks in place of the end": token[:70] + "\r\n", "only line breaks": token[:8] + strings.Repeat("\n", 64), "long": strings.Repeat(token, 1000),
		} {
			if mode, ok := ParseToken(secret.New(s)); ok || mode != "" {
				t.Errorf("%s: ParseToken = %q, %t", name, mode, ok)
			}
		}
	})

	// What is on paper must stay a token: these are fixed.
	t.Run("Fixed", func(t *testing.T) {
		t.Parallel()
		zeros := strings.Repeat("a", 51) // the random bits, and one of the checksum
		for s, want := range map[string]Mode{"sk_live_" + zeros + "cg4prffv4gx4y": Live, "sk_test_" + zeros + "cvmwv4gig3ouq": Test} {
			if got, ok := ParseToken(secret.New(s)); !ok || got != want {
				t.Errorf("%s: ParseToken = %q, %t", s, got, ok)
			}
		}
	})
}

func FuzzParseToken(f *testing.F) {
	f.Add(NewToken(Live).Reveal(), 10, byte('a'))
	f.Add(NewToken(Test).Reveal(), 70, byte('\n'))
	f.Add("sk_live_", 0, byte(0))
	f.Fuzz(func(t *testing.T, s string, at int, c byte) {
		mode, ok := ParseToken(secret.New(s))
		if !ok {
			return
		}
		// What is a token can be read back into the bits it is made of, and is
		// the one spelling of them.
		raw, err := encoding.DecodeString(s[8:])
		if err != nil || prefix(mode)+encoding.EncodeToString(raw) != s {
			t.Fatalf("%q is a token with another spelling (%v)", s, err)
		}
		if at < 0 || at >= len(s) || s[at] == c {
			return
		}
		if other := s[:at] + string([]byte{c}) + s[at+1:]; other != s {
			if _, ok := ParseToken(secret.New(other)); ok {
				t.Fatalf("%q and %q are both tokens", s, other)
			}
		}
	})
}

func TestParseID(t *testing.T) {
	t.Parallel()
	id := ID(uuid.Must(uuid.NewV7()))
	s := id.String()
	if got, ok := ParseID(s); !ok || got != id || len(s) != 36 || !strings.HasPrefix(s, "key_") {
		t.Errorf("ParseID(%q) = %v, %t", s, got, ok)
	}
	for _, bad := range []string{
		"", "key_", s[4:], s[:35], s + "0", strings.ToUpper(s), "key_" + strings.ToUpper(s[4:]), "pi_" + s[4:], uuid.UUID(id).String(),
		ID(uuid.New()).String(), "key_" + strings.Repeat("0", 32), "key_" + strings.Repeat("g", 32),
	} {
		if got, ok := ParseID(bad); bad != s && (ok || got != ID{}) {
			t.Errorf("ParseID(%q) = %v, %t", bad, got, ok)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		holder Holder
		name   string
		want   []string // the members that break a rule
	}{
		{Holder{"shop", API, Live}, "", nil},
		{Holder{"A-z.0_9", Operator, Test}, strings.Repeat("ü", 100), nil},
		{Holder{strings.Repeat("m", 64), Relayer, Live}, "a b", nil},
		{Holder{}, "", []string{"merchant", "role", "mode"}},
		{Holder{"test:shop", Listener, Live}, strings.Repeat("ü", 101), []string{"merchant", "name"}},
		{Holder{strings.Repeat("m", 65), "system", "demo"}, "a\nb", []string{"merchant", "role", "mode", "name"}},
		{Holder{"shop\n", API, Live}, "\u0085", []string{"merchant", "name"}},
		{Holder{"shöp", API, Live}, "\xff", []string{"merchant", "name"}},
	} {
		var got []string
		for _, e := range Check(tt.holder, tt.name) {
			got = append(got, e.Member)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%v %q (-want +got):\n%s", tt.holder, tt.name, diff)
		}
	}

	t.Run("Issue", func(t *testing.T) {
		t.Parallel()
		token, _, err := Issue(t.Context(), nil, Holder{Merchant: "a b", Role: API, Mode: Live}, "\x00")
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !token.Empty() || err.Error() != "merchant "+MerchantRule+"\nname "+NameRule {
			t.Errorf("Issue = %q, %v", token, err)
		}
	})
}

func TestRoles(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff([]Role{"api", "relayer", "listener", "operator"}, Roles()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// static is NewStatic by the tokens themselves.
func static(holders map[string]Holder) *Static {
	byDigest := make(map[Digest]Holder)
	for token, holder := range holders {
		byDigest[DigestOf(secret.New(token))] = holder
	}
	return NewStatic(byDigest)
}

func TestStatic_Authenticate(t *testing.T) {
	t.Parallel()
	holders := map[string]Holder{
		"merchant-demo": {"merchant-demo", API, Live},
		"a":             {"shop", API, Live},
		"b":             {"shop", API, Test},
		"c":             {"chainwatch", Listener, Live},
	}
	s := static(holders)
	for _, token := range slices.Sorted(maps.Keys(holders)) {
		if got, ok, err := s.Authenticate(t.Context(), secret.New(token)); got != holders[token] || !ok || err != nil {
			t.Errorf("%q: %v, %t, %v; want %v", token, got, ok, err, holders[token])
		}
	}
	for _, token := range []string{"", "A", "a ", "shop", "merchant-dem", NewToken(Live).Reveal()} {
		if got, ok, err := s.Authenticate(t.Context(), secret.New(token)); got != (Holder{}) || ok || err != nil {
			t.Errorf("%q: %v, %t, %v; want nobody", token, got, ok, err)
		}
	}
	if _, ok, _ := NewStatic(nil).Authenticate(t.Context(), secret.Text{}); ok {
		t.Error("an empty set lets somebody in")
	}
}

type cannotTell struct{}

func (cannotTell) Authenticate(context.Context, secret.Text) (Holder, bool, error) {
	return Holder{}, false, errAway
}

func TestFirst(t *testing.T) {
	t.Parallel()
	a := static(map[string]Holder{"t": {"a", API, Live}, "only-a": {"a", API, Live}})
	b := static(map[string]Holder{"t": {"b", API, Live}, "only-b": {"b", API, Live}})
	for _, tt := range []struct {
		name, token, merchant string
		of                    []Authenticator
		err                   error
	}{
		{"TheFirstThatHasIt", "t", "a", []Authenticator{a, b}, nil},
		{"ALaterOne", "only-b", "b", []Authenticator{a, b}, nil},
		{"Nobody", "none", "", []Authenticator{a, b}, nil},
		{"NoneAtAll", "t", "", nil, nil},
		{"OneCanNotTellAndAnotherHasIt", "t", "b", []Authenticator{cannotTell{}, b}, nil},
		{"OneCanNotTellAndNoneHasIt", "none", "", []Authenticator{cannotTell{}, b}, errAway},
		{"TheRestIsNotAsked", "t", "a", []Authenticator{a, cannotTell{}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, ok, err := First(tt.of...).Authenticate(t.Context(), secret.New(tt.token))
			if got.Merchant != tt.merchant || ok != (tt.merchant != "") || !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
				t.Errorf("%v, %t, %v", got, ok, err)
			}
		})
	}
}
