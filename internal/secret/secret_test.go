package secret_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"intentd/internal/secret"
	"intentd/internal/secret/secrettest"
)

// The text, and what it is in hexadecimal: the forms that a verb could give it.
const text = "swordfish-" + secrettest.Word

var forms = []string{text, "swordfish", fmt.Sprintf("%x", text), fmt.Sprintf("%X", text), fmt.Sprintf("% x", text), fmt.Sprintf("%d", []byte(text))[1:20]}

// wantHidden checks that shown holds no form of the secret, and the mark where
// one is due.
func wantHidden(t *testing.T, how, shown string, marks int) {
	t.Helper()
	for _, form := range forms {
		if strings.Contains(shown, form) {
			t.Errorf("%s shows the secret: %s", how, shown)
		}
	}
	if n := strings.Count(shown, secret.Mark); n != marks {
		t.Errorf("%s has %d marks, want %d: %s", how, n, marks, shown)
	}
}

type exported struct {
	Name string
	URL  secret.Text
}

type unexported struct {
	name string
	url  secret.Text
}

func TestText_Format(t *testing.T) {
	t.Parallel()
	s := secret.New(text)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%t", "%c", "%U", "%e", "%10s", "%-5.2v"} {
		wantHidden(t, verb, fmt.Sprintf(verb, s), 1)
		wantHidden(t, verb+" of a pointer", fmt.Sprintf(verb, &s), 1)
		wantHidden(t, verb+" of a member", fmt.Sprintf(verb, exported{"db", s}), 1)
		wantHidden(t, verb+" of a list", fmt.Sprintf(verb, []secret.Text{s, s}), 2)
		wantHidden(t, verb+" of a map", fmt.Sprintf(verb, map[string]any{"a": s}), 1)
		// Package fmt asks no method there. What it makes of the mark is the verb's.
		hidden := fmt.Sprintf(verb+" "+verb, unexported{"db", s}, &unexported{"db", s})
		wantHidden(t, verb+" of unexported members", hidden, strings.Count(hidden, secret.Mark))
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		wantHidden(t, verb+" of an unexported member", fmt.Sprintf(verb, unexported{"db", s}), 1)
	}
	wantHidden(t, "Sprint", fmt.Sprint(s, s), 2)
	wantHidden(t, "Sprintln", fmt.Sprintln(s), 1)
	wantHidden(t, "String", s.String(), 1)
	wantHidden(t, "GoString", s.GoString(), 1)
	wantHidden(t, "the zero Text", fmt.Sprintf("%v", secret.Text{}), 1)
}

func TestText_InErrors(t *testing.T) {
	t.Parallel()
	s := secret.New(text)
	err := fmt.Errorf("connect to %s: %w", s, errors.New("refused"))
	wantHidden(t, "an error", err.Error(), 1)
	wantHidden(t, "joined errors", fmt.Sprintf("%+v", errors.Join(err, fmt.Errorf("%v", s))), 2)
}

func TestText_Marshal(t *testing.T) {
	t.Parallel()
	s := secret.New(text)
	for name, v := range map[string]any{"Alone": s, "Pointer": &s, "Member": exported{"db", s}, "MapKey": map[string]secret.Text{"a": s}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			wantHidden(t, "json", string(b), 1)
		})
	}
	b, err := xml.Marshal(exported{"db", s})
	if err != nil {
		t.Fatal(err)
	}
	wantHidden(t, "xml", string(b), 1)
}

func TestText_Log(t *testing.T) {
	t.Parallel()
	s := secret.New(text)
	for name, tt := range map[string]struct {
		open   func(*strings.Builder) slog.Handler
		inside int // marks where a member is unexported: JSON has none of those
	}{
		"Text": {func(b *strings.Builder) slog.Handler { return slog.NewTextHandler(b, nil) }, 1},
		"JSON": {func(b *strings.Builder) slog.Handler { return slog.NewJSONHandler(b, nil) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b strings.Builder
			slog.New(tt.open(&b)).Info("told", "alone", s, "pointer", &s, "member", exported{"db", s},
				"list", []secret.Text{s}, slog.Group("group", "inner", s))
			wantHidden(t, name, b.String(), 5)
			b.Reset()
			slog.New(tt.open(&b)).Info("told", "member", unexported{"db", s}, "error", fmt.Errorf("at %q", s))
			wantHidden(t, name, b.String(), 1+tt.inside)
		})
	}
}

func TestText_Diff(t *testing.T) {
	t.Parallel()
	a, b := exported{"db", secret.New(text)}, exported{"db", secret.New(text + "2")}
	diff := cmp.Diff(a, b)
	if diff == "" {
		t.Error("no difference between two secrets")
	}
	wantHidden(t, "cmp.Diff", diff, 2)
	if diff := cmp.Diff(a, exported{"db", secret.New(text)}); diff != "" {
		t.Errorf("a difference between equals:\n%s", diff)
	}
	inside := cmp.Diff(unexported{"db", a.URL}, unexported{"db", b.URL}, cmp.AllowUnexported(unexported{}, secret.Text{}))
	wantHidden(t, "cmp.Diff of unexported members", inside, 2)
}

func TestText_Equal(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b secret.Text
		want bool
	}{
		{secret.New("a"), secret.New("a"), true},
		{secret.New("a"), secret.New("b"), false},
		{secret.New("a"), secret.New("aa"), false},
		{secret.New(""), secret.Text{}, true},
		{secret.New("a"), secret.Text{}, false},
	} {
		if got := tt.a.Equal(tt.b); got != tt.want {
			t.Errorf("%q and %q: %t", tt.a.Reveal(), tt.b.Reveal(), got)
		}
	}
}

func TestText_Reveal(t *testing.T) {
	t.Parallel()
	var read secret.Text
	if !read.Empty() || read.Reveal() != "" {
		t.Errorf("the zero Text: %q", read.Reveal())
	}
	if err := json.Unmarshal([]byte(`"`+text+`"`), &read); err != nil {
		t.Fatal(err)
	}
	for _, s := range []secret.Text{secret.New(text), read} {
		if s.Reveal() != text || s.Empty() {
			t.Error("Reveal does not return the text")
		}
	}
}
