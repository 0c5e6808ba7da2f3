package api_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"regexp"
	"sort"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"

	"intentd"
	"intentd/internal/api"
	"intentd/internal/intent"
)

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	doc, err := document() // which validates its examples too
	if err != nil {
		t.Fatal(err)
	}

	t.Run("HasEveryRouteAndNoOther", func(t *testing.T) {
		t.Parallel()
		routes, ok := api.New(api.Config{
			Intents: intent.New(nil), Idempotency: memoryParts(lease).keys, Log: slog.New(slog.DiscardHandler),
		}).(chi.Routes)
		if !ok {
			t.Fatal("the handler does not tell its routes")
		}
		var served, documented []string
		// The router's pattern of a parameter is its enum in the document.
		pattern := regexp.MustCompile(`\{(\w+):[^{}]*\}`)
		err := chi.Walk(routes, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
			served = append(served, method+" "+pattern.ReplaceAllString(route, "{$1}"))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for path, item := range doc.Paths.Map() {
			for method := range item.Operations() {
				documented = append(documented, method+" "+path)
			}
		}
		sort.Strings(served)
		sort.Strings(documented)
		if diff := cmp.Diff(served, documented); diff != "" {
			t.Errorf("routes (-served +documented):\n%s", diff)
		}
	})

	t.Run("IsServed", func(t *testing.T) {
		t.Parallel()
		s := stores["Memory"](t, setup{})
		for name, c := range map[string]call{
			"Plain":       {},
			"Range":       {header: []string{"Range: bytes=5-6"}},
			"BadRange":    {header: []string{"Range: bytes=999999999-"}},
			"Conditional": {header: []string{"If-None-Match: *"}},
		} {
			c.method, c.path = http.MethodGet, "/openapi.yaml"
			a := s.do(t, c)
			a.want(t, http.StatusOK, "")
			if a.body != string(intentd.OpenAPI) || a.header.Get("Content-Type") != "application/yaml" {
				t.Errorf("%s: %d bytes of %s, want the document's %d", name, len(a.body), a.header.Get("Content-Type"), len(intentd.OpenAPI))
			}
		}
	})

	t.Run("MembersStandInTheirOrder", func(t *testing.T) {
		t.Parallel()
		want := allMembers
		_, text, ok := strings.Cut(string(intentd.OpenAPI), "\n    PaymentIntent:\n")
		if !ok {
			t.Fatal("no schema PaymentIntent")
		}
		_, text, _ = strings.Cut(text, "\n      properties:\n")
		var got []string
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "        ") {
				break
			}
			if name, ok := strings.CutSuffix(strings.TrimSpace(line), ":"); ok && strings.HasPrefix(line, "        "+name) && name != "" {
				got = append(got, name)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("members (-contract +document):\n%s", diff)
		}
	})
}

// TestOpenAPI_Examples: what the document shows as an answer is one.
func TestOpenAPI_Examples(t *testing.T) {
	t.Parallel()
	doc, err := document()
	if err != nil {
		t.Fatal(err)
	}
	post := doc.Paths.Value(intentsPath).Post
	answers := post.Responses.Status(http.StatusCreated).Value.Content["application/json"].Examples
	s := stores["Memory"](t, setup{})
	for name, example := range post.RequestBody.Value.Content["application/json"].Examples {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body, err := json.Marshal(example.Value.Value)
			if err != nil {
				t.Fatal(err)
			}
			a := s.created(t, call{body: string(body)})
			var got map[string]any
			if err := json.Unmarshal([]byte(a.body), &got); err != nil {
				t.Fatal(err)
			}
			want, err := json.Marshal(answers[name].Value.Value)
			if err != nil {
				t.Fatal(err)
			}
			var wanted map[string]any
			if err := json.Unmarshal(want, &wanted); err != nil {
				t.Fatal(err)
			}
			for _, passing := range []string{"id", "created_at", "updated_at", "expires_at"} {
				got[passing] = wanted[passing]
			}
			if diff := cmp.Diff(wanted, got); diff != "" {
				t.Errorf("answer (-example +got):\n%s", diff)
			}
		})
	}
}

// exampleOf returns the document's example of an error.
func exampleOf(t testing.TB, op *openapi3.Operation, status int, name string) problem {
	t.Helper()
	example, ok := op.Responses.Status(status).Value.Content["application/json"].Examples[name]
	if !ok {
		t.Fatalf("no example %s for %d", name, status)
	}
	m := example.Value.Value.(map[string]any)
	return problem{m["error"].(string), m["detail"].(string)}
}

// TestOpenAPI_OptionalParameters: one that may be left out has no example, since
// the page at /docs would send it: a list with two cursors, or another merchant.
func TestOpenAPI_OptionalParameters(t *testing.T) {
	t.Parallel()
	doc, err := document()
	if err != nil {
		t.Fatal(err)
	}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			for _, ref := range op.Parameters {
				p := ref.Value
				if !p.Required && (p.Example != nil || len(p.Examples) > 0 || p.Schema.Value.Example != nil) {
					t.Errorf("%s %s: %s has an example", method, path, p.Name)
				}
			}
		}
	}
}
