package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestProblem_Form: an error comes as RFC 9457 has it where the client asks for
// that by name and for nothing rather.
func TestProblem_Form(t *testing.T) {
	t.Parallel()
	s := stores["Memory"](t, setup{})
	for accept, want := range map[string]bool{
		"application/problem+json":                               true,
		"Application/Problem+JSON":                               true,
		"text/html, application/problem+json":                    true,
		"application/json, application/problem+json":             true,
		"application/problem+json;q=0.5":                         true,
		"application/problem+json;q=0.5, application/json;q=0.4": true,
		"application/problem+json;q=0.5, application/json":       false,
		"application/problem+json;q=0":                           false,
		"application/json":                                       false,
		"*/*":                                                    false,
		"application/*":                                          false,
		"application/problem+xml":                                false,
		"":                                                       false,
		"\"":                                                     false,
	} {
		a := s.do(t, call{method: "GET", path: intentsPath + "/x", header: []string{"Accept: " + accept}})
		if got := a.header.Get("Content-Type") == "application/problem+json"; got != want || a.status != http.StatusNotFound {
			t.Errorf("Accept: %s -> %d %s", accept, a.status, a.header.Get("Content-Type"))
		}
		if got := a.header.Get("Link"); got != `</docs/errors#not_found>; rel="describedby"` {
			t.Errorf("Link = %q", got)
		}
	}

	a := s.do(t, call{body: edit(t, "amount", `"0"`), header: []string{"Accept: application/problem+json"}})
	var got map[string]any
	if err := json.Unmarshal([]byte(a.body), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{
		"type": "/docs/errors#invalid_request", "title": "invalid request", "status": 400.0,
		"detail": amountRule, "error": "invalid_request",
	}, got); diff != "" {
		t.Errorf("problem (-want +got):\n%s", diff)
	}
}

// TestProblem_Recorded: what was answered in one form is replayed in it, its link
// included, whatever the retry asks for.
func TestProblem_Recorded(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		for _, accept := range []string{"application/problem+json", "application/json"} {
			c := call{key: newKey(), body: "{}", header: []string{"Accept: " + accept}}
			first := s.do(t, c)
			if got := first.header.Get("Content-Type"); got != accept {
				t.Errorf("Content-Type = %q, want %q", got, accept)
			}
			c.header = []string{"Accept: application/json, application/problem+json"}
			s.replayed(t, c, first)
			if got, want := s.do(t, c).header.Get("Link"), first.header.Get("Link"); got != want || want == "" {
				t.Errorf("replayed Link = %q, first %q", got, want)
			}
		}
	})
}

// TestProblem_DocsURL: where the documentation stands is the operator's to say.
func TestProblem_DocsURL(t *testing.T) {
	t.Parallel()
	s := stores["Memory"](t, setup{docsURL: "https://example.com/payments"})
	a := s.do(t, call{method: "GET", path: "/nothing", header: []string{"Accept: application/problem+json"}})
	if got, want := a.header.Get("Link"), `<https://example.com/payments/errors#not_found>; rel="describedby"`; got != want {
		t.Errorf("Link = %q, want %q", got, want)
	}
	if !strings.Contains(a.body, `"type":"https://example.com/payments/errors#not_found"`) {
		t.Errorf("body = %s", a.body)
	}
}
