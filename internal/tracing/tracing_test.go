package tracing

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"intentd/internal/idempotency"
	"intentd/internal/idempotency/memidem"
	"intentd/internal/sweeper"
)

const (
	patience = 20 * time.Second // for what should come at once

	parentID    = "00f067aa0ba902b7"
	parentTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceparent = "00-" + parentTrace + "-" + parentID + "-01"
)

// recorded returns traces that a test can look at, by these variables.
func recorded(t *testing.T, lines ...string) (*Traces, *tracetest.SpanRecorder) {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	return newTraces(parse(t, append(lines, endpoint)...), "v1", slog.New(slog.DiscardHandler), spans), spans
}

// told is one span, its parent by name.
type told struct {
	Name, Parent, Outcome string
	Failed                bool
}

// tell returns the spans that have ended, in the order of their ends.
func tell(spans *tracetest.SpanRecorder) (all []told) {
	names := make(map[trace.SpanID]string)
	for _, s := range spans.Started() {
		names[s.SpanContext().SpanID()] = s.Name()
	}
	for _, s := range spans.Ended() {
		one := told{Name: s.Name(), Parent: names[s.Parent().SpanID()], Failed: s.Status().Code.String() == "Error"}
		for _, kv := range s.Attributes() {
			if kv.Key == "idempotency.outcome" {
				one.Outcome = kv.Value.AsString()
			}
		}
		all = append(all, one)
	}
	return all
}

// The log is told once where the traces go, with no credential in it.
func TestNew_Log(t *testing.T) {
	t.Parallel()
	const header = "OTEL_EXPORTER_OTLP_HEADERS=x-key=s3cr3t"
	for lines, want := range map[string]string{
		endpoint: "endpoint=http://collector:4318/v1/traces sampler=parentbased_always_on",
		"OTEL_TRACES_EXPORTER=otlp OTEL_TRACES_SAMPLER=Always_Off":                                                  "endpoint=http://localhost:4318/v1/traces sampler=always_off",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://collector/there OTEL_TRACES_SAMPLER=traceidratio":               "endpoint=https://collector/there sampler=traceidratio(1)",
		endpoint + " OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=0.25":                     "endpoint=http://collector:4318/v1/traces sampler=parentbased_traceidratio(0.25)",
		endpoint + " OTEL_TRACES_SAMPLER=parentbased_always_off OTEL_TRACES_SAMPLER_ARG=0.25":                       "endpoint=http://collector:4318/v1/traces sampler=parentbased_always_off",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://collector/v1/traces OTEL_TRACES_EXPORTER=otlp " + endpoint + "0": "endpoint=http://collector/v1/traces sampler=parentbased_always_on",
	} {
		var log strings.Builder
		text := slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})
		New(parse(t, append(strings.Fields(lines), header)...), "v1", slog.New(text)).Close(time.Now())
		if got, _, _ := strings.Cut(log.String(), "\n"); got != `level=INFO msg="traces are exported" `+want || strings.Contains(log.String(), "s3cr3t") {
			t.Errorf("%s: the log begins %s, want %s", lines, log.String(), want)
		}
	}
}

// Nothing stands in a request's way where there are no traces.
func TestTraces_None(t *testing.T) {
	t.Parallel()
	none := New(nil, "v1", slog.New(slog.DiscardHandler))
	if none != nil {
		t.Fatal("traces without a configuration")
	}
	mux := http.NewServeMux()
	if got := none.Handler(mux); got != http.Handler(mux) {
		t.Errorf("Handler = %T, want what it was given", got)
	}
	store := memidem.New(time.Hour, time.Minute, time.Now)
	if got := none.Store(store); got != idempotency.Store(store) {
		t.Errorf("Store = %T, want what it was given", got)
	}
	pool, err := pgxpool.ParseConfig("")
	if err != nil {
		t.Fatal(err)
	}
	if none.Pool(pool); pool.ConnConfig.Tracer != nil {
		t.Errorf("the pool has a tracer %T", pool.ConnConfig.Tracer)
	}
	if none.Rounds() != nil {
		t.Error("the sweeper has somebody to tell")
	}
	none.Close(time.Now())
}

func TestTraces_Handler(t *testing.T) {
	t.Parallel()

	t.Run("Parent", func(t *testing.T) {
		t.Parallel()
		traces, spans := recorded(t)
		h := traces.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if got := trace.SpanContextFromContext(r.Context()).TraceID().String(); got != parentTrace {
				t.Errorf("the handler is in trace %s, want %s", got, parentTrace)
			}
		}))
		r := httptest.NewRequest(http.MethodGet, "/v1/x", nil)
		r.Header.Set("Traceparent", traceparent)
		h.ServeHTTP(httptest.NewRecorder(), r)
		if len(spans.Ended()) != 1 || spans.Ended()[0].Parent().SpanID().String() != parentID || spans.Ended()[0].SpanKind() != trace.SpanKindServer {
			t.Errorf("spans %v, want one of a server beneath %s", spans.Ended(), parentID)
		}
	})

	t.Run("HealthChecksHaveNone", func(t *testing.T) {
		t.Parallel()
		traces, spans := recorded(t)
		served := 0
		h := traces.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
		for _, path := range []string{"/healthz", "/readyz", "/v1/healthz"} {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
		}
		if served != 3 || len(spans.Ended()) != 1 {
			t.Errorf("%d served, %d spans; want 3 and 1", served, len(spans.Ended()))
		}
	})

	// The bound on slow bodies is set on the connection, through every wrapper.
	t.Run("ReadDeadline", func(t *testing.T) {
		t.Parallel()
		traces, _ := recorded(t)
		server := httptest.NewServer(traces.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Errorf("SetReadDeadline: %v", err)
			}
		})))
		defer server.Close()
		resp, err := http.Post(server.URL, "text/plain", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	})
}

func TestStore_Spans(t *testing.T) {
	t.Parallel()
	id := idempotency.ID{Scope: "merchant-a", Key: "order-1001"}
	fp, other := idempotency.Fingerprint{1}, idempotency.Fingerprint{2}
	broken := errors.New("a text that is nobody's business")

	// within calls do as a request does, with a store that makes spans.
	within := func(t *testing.T, do func(ctx context.Context, s idempotency.Store)) []told {
		t.Helper()
		traces, spans := recorded(t)
		ctx, span := traces.tracer.Start(t.Context(), "request")
		do(ctx, traces.Store(memidem.New(time.Hour, time.Minute, time.Now)))
		span.End()
		for _, s := range spans.Ended() {
			if s.Status().Description != "" || len(s.Events()) > 0 {
				t.Errorf("span %s tells of an error: %q %v", s.Name(), s.Status().Description, s.Events())
			}
		}
		return tell(spans)
	}
	claim := func(t *testing.T, ctx context.Context, s idempotency.Store, fp idempotency.Fingerprint) idempotency.Claim {
		t.Helper()
		c, err := s.Claim(ctx, id, fp)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	request := told{Name: "request"}
	child := func(name, outcome string) told { return told{Name: name, Parent: "request", Outcome: outcome} }

	t.Run("Complete", func(t *testing.T) {
		t.Parallel()
		got := within(t, func(ctx context.Context, s idempotency.Store) {
			a := claim(t, ctx, s, fp).Attempt
			bound := a.Bind(ctx)
			if _, ok := memidem.FromContext(bound); !ok {
				t.Error("the handler's context is bound to no attempt")
			}
			claim(t, ctx, s, fp)
			claim(t, ctx, s, other)
			_, work := trace.SpanFromContext(bound).TracerProvider().Tracer("test").Start(bound, "work")
			work.End()
			if err := a.Complete(ctx, idempotency.Response{Status: 201}); err != nil {
				t.Error(err)
			}
			if err := a.Abandon(ctx); err != nil { // as the layer does, whatever came before
				t.Error(err)
			}
			claim(t, ctx, s, fp)
		})
		want := []told{
			child("claim", "fresh"), child("claim", "in_flight"), child("claim", "mismatch"),
			{Name: "work", Parent: "handler"}, child("handler", ""), child("commit", ""), child("claim", "replay"), request,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})

	t.Run("Abandon", func(t *testing.T) {
		t.Parallel()
		got := within(t, func(ctx context.Context, s idempotency.Store) {
			a := claim(t, ctx, s, fp).Attempt
			a.Bind(ctx)
			for range 2 {
				if err := a.Abandon(ctx); err != nil {
					t.Error(err)
				}
			}
			if claim(t, ctx, s, fp).Outcome != idempotency.Fresh {
				t.Error("the key is not free")
			}
		})
		want := []told{child("claim", "fresh"), child("handler", ""), child("abandon", ""), child("claim", "fresh"), request}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})

	t.Run("Failures", func(t *testing.T) {
		t.Parallel()
		got := within(t, func(ctx context.Context, s idempotency.Store) {
			a := claim(t, ctx, s, fp).Attempt
			m, _ := memidem.FromContext(a.Bind(ctx))
			m.Queue(func() (func(), error) { return nil, broken })
			if err := a.Complete(ctx, idempotency.Response{Status: 201}); !errors.Is(err, broken) {
				t.Errorf("Complete = %v", err)
			}
			down := s.(store)
			down.Store = away{down.Store, broken}
			if _, err := down.Claim(ctx, id, fp); !errors.Is(err, broken) {
				t.Errorf("Claim = %v", err)
			}
		})
		want := []told{
			child("claim", "fresh"), child("handler", ""), {Name: "commit", Parent: "request", Failed: true},
			{Name: "claim", Parent: "request", Failed: true}, request,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})

	// What is not recorded costs nothing: the attempt is the store's own.
	t.Run("NotRecorded", func(t *testing.T) {
		t.Parallel()
		traces, spans := recorded(t, "OTEL_TRACES_SAMPLER=always_off")
		ctx, _ := traces.tracer.Start(t.Context(), "request")
		c := claim(t, ctx, traces.Store(memidem.New(time.Hour, time.Minute, time.Now)), fp)
		if _, ok := c.Attempt.(*attempt); ok || c.Outcome != idempotency.Fresh || len(spans.Started()) > 0 {
			t.Errorf("%v %T, and %d spans", c.Outcome, c.Attempt, len(spans.Started()))
		}
	})

	t.Run("Interactive", func(t *testing.T) {
		t.Parallel()
		traces, _ := recorded(t)
		plain := memidem.New(time.Hour, time.Minute, time.Now)
		interactive := memidem.New(time.Hour, time.Minute, time.Now)
		if got := traces.Store(plain).(store).Interactive().(store).Store; got != idempotency.Store(plain) {
			t.Errorf("of a store that has none: %T", got)
		}
		if got := traces.Store(both{plain, interactive}).(store).Interactive().(store).Store; got != idempotency.Store(interactive) {
			t.Errorf("of a store that has one: %T", got)
		}
	})
}

// away is a store that can not be reached.
type away struct {
	idempotency.Store
	err error
}

func (a away) Claim(context.Context, idempotency.ID, idempotency.Fingerprint) (idempotency.Claim, error) {
	return idempotency.Claim{}, a.err
}

// both is a store that tells interactive attempts from others.
type both struct {
	idempotency.Store
	interactive idempotency.Store
}

func (b both) Interactive() idempotency.Store { return b.interactive }

func TestTraces_Rounds(t *testing.T) {
	t.Parallel()
	traces, spans := recorded(t)
	outer, span := traces.tracer.Start(t.Context(), "outer")
	defer span.End()
	for _, r := range []sweeper.Round{{Job: "tidy up", Done: 3}, {Job: "tidy up", Err: errors.New("broken")}} {
		ctx, ended := traces.Rounds()(outer, r.Job)
		_, work := traces.tracer.Start(ctx, "work")
		work.End()
		ended(r)
	}
	want := []told{{Name: "work", Parent: "sweep"}, {Name: "sweep"}, {Name: "work", Parent: "sweep"}, {Name: "sweep", Failed: true}}
	if diff := cmp.Diff(want, tell(spans)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got := map[string]any{}
	for _, kv := range spans.Ended()[1].Attributes() {
		got[string(kv.Key)] = kv.Value.AsInterface()
	}
	if diff := cmp.Diff(map[string]any{"sweeper.job": "tidy up", "sweeper.done": int64(3)}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A collector that takes nothing and says nothing holds up nobody for longer
// than it is given.
func TestTraces_Close(t *testing.T) {
	t.Parallel()
	silent := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-silent }))
	defer server.Close()
	defer close(silent)
	var log strings.Builder
	traces := New(parse(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+server.URL), "v1", slog.New(slog.NewTextHandler(&log, nil)))
	_, span := traces.tracer.Start(t.Context(), "request")
	span.End()
	traces.Close(time.Now().Add(50 * time.Millisecond))
	if !strings.Contains(log.String(), "the last traces may be lost") {
		t.Errorf("the log has %q", log.String())
	}

	synctest.Test(t, func(t *testing.T) {
		for deadline, want := range map[time.Duration]time.Duration{-time.Second: 0, 2 * time.Second: 2 * time.Second, time.Hour: 5 * time.Second} {
			traces := newTraces(parse(t, endpoint), "v1", slog.New(slog.DiscardHandler), endless{})
			began := time.Now()
			traces.Close(began.Add(deadline))
			if took := time.Since(began); took != want {
				t.Errorf("with %v left it took %v, want %v", deadline, took, want)
			}
		}
	})
}

// endless has spans left until it is given up.
type endless struct{ sdk.SpanProcessor }

func (endless) Shutdown(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
