package idempotency_test

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"intentd/internal/idempotency"
)

// TestRecorder holds what a handler may expect of the ResponseWriter it is
// given to what net/http does, and the replay to the first answer.
func TestRecorder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		status  int
		header  http.Header
		body    string
	}{
		{"Nothing", func(http.ResponseWriter, *http.Request) {}, 200, http.Header{}, ""},
		{"ImplicitStatusAndType", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<html>")
			w.WriteHeader(500)
		}, 200, http.Header{"Content-Type": {"text/html; charset=utf-8"}}, "<html>"},
		// net/http is told by nil not to guess, and so must the replay be.
		{"TypeThatIsNone", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "<html>")
		}, 200, http.Header{"Content-Type": nil}, "<html>"},
		{"FirstStatusCounts", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(202)
			w.WriteHeader(500)
		}, 202, http.Header{}, ""},
		{"InformationalIsNone", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(103)
			w.Header().Set("Location", "/a")
			w.WriteHeader(201)
		}, 201, http.Header{"Location": {"/a"}}, ""},
		{"HeadersAfterTheStatusDoNotCount", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Location"] = []string{"/a"}
			w.WriteHeader(201)
			w.Header().Set("ETag", `"late"`)
			w.Header()["Location"][0] = "/late"
		}, 201, http.Header{"Location": {"/a"}}, ""},
		{"TwoValues", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("Location", "/a")
			w.Header().Add("Location", "/b")
		}, 200, http.Header{"Location": {"/a", "/b"}}, ""},
		{"Link", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", `<https://x/errors#code>; rel="describedby"`)
			w.WriteHeader(400)
		}, 400, http.Header{"Link": {`<https://x/errors#code>; rel="describedby"`}}, ""},
		// It is the layer's to say.
		{"ExpiresOfTheHandlersOwn", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Idempotency-Key-Expires", "never")
			w.WriteHeader(201)
		}, 201, http.Header{}, ""},
		{"NoBodyAllowed", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			if n, err := io.WriteString(w, "body"); n != 0 || !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("Write = %d, %v", n, err)
			}
		}, 204, http.Header{}, ""},
		{"WrongLengthIsMended", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, "four")
		}, 200, http.Header{"Content-Type": {"text/plain"}}, "four"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLayer(memory(), idempotency.Options{}, tt.handler)
			for _, replayed := range []bool{false, true} {
				resp := l.do(request("k", ""))
				wantStatus(t, resp, tt.status, replayed)
				resp.Header.Del("Idempotent-Replayed")
				if _, err := http.ParseTime(resp.Header.Get("Idempotency-Key-Expires")); err != nil {
					t.Errorf("replayed %t: Idempotency-Key-Expires: %v", replayed, err)
				}
				resp.Header.Del("Idempotency-Key-Expires")
				if diff := cmp.Diff(tt.header, resp.Header); diff != "" {
					t.Errorf("replayed %t: headers (-want +got):\n%s", replayed, diff)
				}
				if got := read(t, resp); got != tt.body {
					t.Errorf("replayed %t: body = %q, want %q", replayed, got, tt.body)
				}
			}
		})
	}
}
