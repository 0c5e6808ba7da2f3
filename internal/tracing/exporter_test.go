package tracing

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// resourceSpans has two spans, one of which tells of an error.
func resourceSpans() []*tracepb.ResourceSpans {
	return []*tracepb.ResourceSpans{{ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{
		{Name: "claim"},
		{
			Name:   "INSERT",
			Status: &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: "a secret"},
			Events: []*tracepb.Span_Event{{Name: "a secret"}},
		},
	}}}}}
}

// One request with bytes that are no UTF-8 does not lose everybody's spans.
func TestClient_UploadTraces_NoUTF8(t *testing.T) {
	t.Parallel()
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { body, _ = io.ReadAll(r.Body) }))
	defer server.Close()
	c := newClient(&Config{endpoint: server.URL, timeout: patience})
	text := func(s string) *commonpb.AnyValue {
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
	}
	list := func(s ...*commonpb.AnyValue) *commonpb.AnyValue {
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{Values: s}}}
	}
	spans := func(bad string) []*tracepb.ResourceSpans {
		return []*tracepb.ResourceSpans{{ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{{
			Name: "GET " + bad, TraceState: bad,
			Attributes: []*commonpb.KeyValue{{Key: "path" + bad, Value: text("/" + bad)}, {Key: "all", Value: list(text("ü"), text(bad))}},
		}}}}}}
	}
	if err := c.UploadTraces(t.Context(), spans("\xff")); err != nil {
		t.Fatal(err)
	}
	var got tracepb.TracesData
	if err := proto.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(spans("\uFFFD"), got.ResourceSpans, protocmp.Transform()); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
}

func TestClient_UploadTraces(t *testing.T) {
	t.Parallel()
	for _, zipped := range []bool{false, true} {
		var (
			header http.Header
			body   []byte
			path   string
		)
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			header, path = r.Header, r.URL.Path
			body, _ = io.ReadAll(r.Body)
		}))
		defer server.Close()
		c := newClient(&Config{endpoint: server.URL + "/v1/traces", headers: http.Header{"X-Key": {"k"}}, timeout: patience, gzip: zipped})
		if err := c.UploadTraces(t.Context(), resourceSpans()); err != nil {
			t.Fatal(err)
		}
		if path != "/v1/traces" || header.Get("Content-Type") != "application/x-protobuf" || header.Get("X-Key") != "k" || (header.Get("Content-Encoding") == "gzip") != zipped {
			t.Errorf("%s %v", path, header)
		}
		if zipped {
			z, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if body, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
		}
		// opentelemetry-proto, ExportTraceServiceRequest: repeated ResourceSpans
		// resource_spans = 1.
		number, kind, n := protowire.ConsumeTag(body)
		message, m := protowire.ConsumeBytes(body[n:])
		if number != 1 || kind != protowire.BytesType || n+m != len(body) {
			t.Fatalf("field %d of type %d, and %d bytes behind it", number, kind, len(body)-n-m)
		}
		var got tracepb.ResourceSpans
		if err := proto.Unmarshal(message, &got); err != nil {
			t.Fatal(err)
		}
		// No text of an error leaves the process.
		want := resourceSpans()[0]
		want.ScopeSpans[0].Spans[1].Status.Message, want.ScopeSpans[0].Spans[1].Events = "", nil
		if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// transport answers without a network, so that time is the test's own.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestClient_Again(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	for name, c := range map[string]struct {
		answers []int // one for each try; 0: no connection; the last one for all that follow
		after   string
		tries   int
		took    time.Duration
		err     string
	}{
		"Taken":            {answers: []int{200}, tries: 1},
		"Partly":           {answers: []int{202}, tries: 1},
		"NotNow":           {answers: []int{503, 429, 502, 504, 200}, tries: 5, took: 500*time.Millisecond + 1*time.Second + 2*time.Second + 4*time.Second},
		"NoConnection":     {answers: []int{0, 200}, tries: 2, took: 500 * time.Millisecond},
		"AsLongAsItSays":   {answers: []int{503, 200}, after: "3", tries: 2, took: 3 * time.Second},
		"ItSaysNothing":    {answers: []int{503, 200}, after: "soon", tries: 2, took: 500 * time.Millisecond},
		"Refused":          {answers: []int{400}, tries: 1, err: "the collector answered 400"},
		"NotIts":           {answers: []int{401}, tries: 1, err: "the collector answered 401"},
		"Elsewhere":        {answers: []int{307}, tries: 1, err: "the collector answered 307"},
		"NeverAgain":       {answers: []int{503}, tries: 5, took: 10 * time.Second, err: "the collector answered 503"},
		"LaterThanTheTime": {answers: []int{503}, after: "3600", tries: 1, took: 10 * time.Second, err: "the collector answered 503"},
		"Away":             {answers: []int{0}, tries: 5, took: 10 * time.Second, err: "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := newClient(&Config{endpoint: "http://collector/v1/traces", timeout: defaultTimeout})
				tries := 0
				client.http.Transport = transport(func(r *http.Request) (*http.Response, error) {
					body, err := io.ReadAll(r.Body)
					if err != nil || len(body) == 0 {
						t.Errorf("try %d has the body %q, %v", tries, body, err)
					}
					status := c.answers[min(tries, len(c.answers)-1)]
					tries++
					if status == 0 {
						return nil, refused
					}
					h := http.Header{"Location": {"http://elsewhere/"}}
					if c.after != "" {
						h.Set("Retry-After", c.after)
					}
					return &http.Response{StatusCode: status, Status: fmt.Sprint(status), Header: h, Body: http.NoBody, Request: r}, nil
				})
				began := time.Now()
				err := client.UploadTraces(t.Context(), resourceSpans())
				if took := time.Since(began); tries != c.tries || took != c.took {
					t.Errorf("%d tries in %v, want %d in %v", tries, took, c.tries, c.took)
				}
				if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
					t.Errorf("UploadTraces = %v, want %q", err, c.err)
				}
			})
		})
	}
}

// stub is an exporter that fails with err.
type stub struct {
	sdk.SpanExporter
	err error
}

func (s *stub) ExportSpans(context.Context, []sdk.ReadOnlySpan) error { return s.err }

func TestExporter_Log(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		inner := &stub{}
		e := &exporter{SpanExporter: inner, log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		}))}
		two := tracetest.SpanStubs{{Name: "a"}, {Name: "b"}}.Snapshots()
		export := func(err error) {
			inner.err = err
			if got := e.ExportSpans(t.Context(), two); got != nil {
				t.Errorf("the SDK is told %v, and would tell all the world", got)
			}
		}
		gone := errors.New("gone")
		export(nil)
		export(gone)
		for range 10 {
			time.Sleep(5 * time.Second) // the bubble's
			export(gone)
		}
		time.Sleep(10 * time.Second)
		export(gone)
		export(nil)
		export(nil)
		export(gone) // not a minute later
		export(nil)
		want := []string{
			`level=WARN msg="traces are lost" spans=2 error=gone`,
			`level=WARN msg="traces are lost" spans=22 error=gone`,
			`level=INFO msg="traces are exported again"`,
		}
		if got := strings.Split(strings.TrimSpace(log.String()), "\n"); !slices.Equal(got, want) {
			t.Errorf("the log has\n%s\nwant\n%s", log.String(), strings.Join(want, "\n"))
		}
	})
}
