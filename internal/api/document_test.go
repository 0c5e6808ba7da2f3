package api

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"intentd"
	"intentd/internal/intent"
)

// TestDocument_Members holds the document, what is decoded and what is answered
// to the same members, so that none is added in one place alone.
func TestDocument_Members(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(intentd.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	post := doc.Paths.Find("/v1/payment_intents").Post
	request := post.RequestBody.Value.Content.Get("application/json").Schema.Value
	if got, want := properties(request), slices.Sorted(slices.Values(paramNames)); !slices.Equal(got, want) {
		t.Errorf("the document's request has %q, the decoder takes %q", got, want)
	}
	if got, want := len(paramNames), reflect.TypeFor[intent.Params]().NumField(); got != want {
		t.Errorf("the decoder takes %d members, the domain %d", got, want)
	}
	var answered []string
	for f := range reflect.TypeFor[intentBody]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		answered = append(answered, name)
	}
	slices.Sort(answered)
	response := post.Responses.Value("201").Value.Content.Get("application/json").Schema.Value
	if got := properties(response); !slices.Equal(got, answered) {
		t.Errorf("the document's answer has %q, the API's %q", got, answered)
	}
}

func properties(s *openapi3.Schema) (names []string) {
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
