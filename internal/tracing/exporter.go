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
	"strconv"
	"strings"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// client implements otlptrace.Client: OTLP over HTTP, in protobuf. OpenTelemetry's
// own (otlptracehttp) brings all of gRPC with it, which it does not use, and
// would make the program larger by two thirds.
type client struct {
	endpoint string
	headers  http.Header
	timeout  time.Duration
	gzip     bool
	http     *http.Client
}

func newClient(c *Config) *client {
	return &client{
		endpoint: c.endpoint, headers: c.headers, timeout: c.timeout, gzip: c.gzip,
		http: &http.Client{
			// Of its own, so that nothing else's connections are closed with it.
			Transport: http.DefaultTransport.(*http.Transport).Clone(),
			// The headers may hold a credential, and are for this endpoint.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Start implements otlptrace.Client. The collector need not be there.
func (c *client) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *client) Stop(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

// The pause before a batch is sent again, if the collector does not name one.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = 5 * time.Second
)

// UploadTraces implements otlptrace.Client. What may pass is tried again, as
// OTLP wants it, until the timeout, or ctx, ends.
func (c *client) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	clean(spans)
	// On the wire it is an ExportTraceServiceRequest, whose own package is the one
	// that needs gRPC.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	if c.gzip {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := w.Write(body)
		if err = errors.Join(err, w.Close()); err != nil {
			return err
		}
		body = b.Bytes()
	}
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		wanted, again, err := c.send(ctx, body)
		if err == nil || !again {
			return err
		}
		select {
		case <-time.After(max(pause, wanted)):
		case <-ctx.Done():
			return err // which tells more than ctx's
		}
	}
}

// send sends a batch once. again says that to send it again may help, no sooner
// than after the pause that the collector wanted.
func (c *client) send(ctx context.Context, body []byte) (wanted time.Duration, again bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint, bytes.NewReader(body))
	if err != nil {
		return 0, false, err
	}
	for name, values := range c.headers {
		r.Header[name] = values
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	if c.gzip {
		r.Header.Set("Content-Encoding", "gzip")
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return 0, true, err
	}
	defer resp.Body.Close()
	// To its end, so that the connection can be used again. It may tell of spans
	// that were refused one by one, for reasons of the collector's.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	switch resp.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return 0, false, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	if seconds, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16); err == nil {
		wanted = time.Duration(seconds) * time.Second
	}
	return wanted, again, fmt.Errorf("the collector answered %d", resp.StatusCode) // its words could be anything
}

// clean takes the texts of errors out of the spans, in their status and as events:
// PostgreSQL's and the driver's may hold values. The SQLSTATE stays, and the
// request's line in the log has the text. What a client has sent and is no UTF-8 gets
// U+FFFD in its place, or protobuf would refuse the batch, and everybody's spans with
// it.
func clean(resources []*tracepb.ResourceSpans) {
	for _, r := range resources {
		for _, scope := range r.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				span.Events = nil
				if span.GetStatus() != nil {
					span.Status.Message = ""
				}
				span.Name, span.TraceState = utf8Of(span.GetName()), utf8Of(span.GetTraceState())
				cleanAttributes(span.GetAttributes())
			}
		}
	}
}

func cleanAttributes(attributes []*commonpb.KeyValue) {
	for _, a := range attributes {
		a.Key = utf8Of(a.GetKey())
		cleanValue(a.GetValue())
	}
}

func cleanValue(value *commonpb.AnyValue) {
	switch v := value.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		v.StringValue = utf8Of(v.StringValue)
	case *commonpb.AnyValue_ArrayValue:
		for _, element := range v.ArrayValue.GetValues() {
			cleanValue(element)
		}
	}
}

func utf8Of(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// warnEvery is how often the log is told that spans are lost.
const warnEvery = time.Minute

// exporter keeps failures from OpenTelemetry's handler of errors, which is the
// whole process's and writes each of them to standard error. The SDK calls it for
// one batch at a time.
type exporter struct {
	sdk.SpanExporter
	log *slog.Logger

	warned time.Time // when the log was told last
	lost   int       // spans since
	away   bool      // the log's last word is that spans are lost
}

func newExporter(c *Config, log *slog.Logger) *exporter {
	inner, _ := otlptrace.New(context.Background(), newClient(c)) // fails only where the client's Start does
	return &exporter{SpanExporter: inner, log: log}
}

// ExportSpans implements sdk.SpanExporter. It never fails: what can not be
// exported is lost, and is no reason to do anything else.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		if e.away {
			e.away = false
			e.log.InfoContext(ctx, "traces are exported again")
		}
		return nil
	}
	e.lost += len(spans)
	if time.Since(e.warned) >= warnEvery {
		e.log.WarnContext(ctx, "traces are lost", "spans", e.lost, "error", err)
		e.warned, e.lost, e.away = time.Now(), 0, true
	}
	return nil
}
