package api_test

import (
	"net/http"
	"testing"
)

// TestLog_TraceID has no traces of the service's own: the caller's is told.
func TestLog_TraceID(t *testing.T) {
	t.Parallel()
	s := stores["Memory"](t, setup{})
	want := make(map[string]string)
	for parent, id := range map[string]string{
		"": "",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01":       "4bf92f3577b34da6a3ce929d0e0e4736",
		"00-5bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00":       "5bf92f3577b34da6a3ce929d0e0e4736",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01":       "",
		"00-6BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01":       "",
		"00-7bf92f3577b34da6a3ce929d0e0e4736":                           "",
		"00-" + alice + "-00f067aa0ba902b7-01":                          "",
		"ff-8bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01":       "",
		"00-9bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-extra": "",
	} {
		c := call{method: http.MethodGet}
		if parent != "" {
			c.header = []string{"Traceparent: " + parent}
		}
		want[s.do(t, c).header.Get("X-Request-Id")] = id
	}
	s.server.Close() // the line comes after the answer
	for request, line := range s.log.lines(t) {
		if line.TraceID != want[request] {
			t.Errorf("trace id %q, want %q", line.TraceID, want[request])
		}
	}
}
