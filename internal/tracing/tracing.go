// Package tracing makes OpenTelemetry traces of what the service does, and sends
// them to a collector. It is the only room that knows the SDK: the others know
// the API's spans, or nothing at all.
//
// No span holds a credential, an idempotency key, a merchant or what a merchant
// sent; of a statement it has the SQL without its parameters, and of an error no
// text.
package tracing

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"intentd/internal/idempotency"
	"intentd/internal/sweeper"
)

// scope is the name that the spans' tracer has.
const scope = "intentd"

// Traces makes them. A nil one makes none: each method returns what it was given,
// so that nothing stands in a request's way. It is safe for concurrent use.
type Traces struct {
	provider   *sdk.TracerProvider
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	log        *slog.Logger
}

// New returns the traces that c wants, or nil where c is. Nothing is asked of
// the collector yet, and nothing waits for it later: spans leave in the
// background, in batches, and are dropped where too many wait. log is told where
// they go and which are sampled, and that spans are lost, once a minute at most.
// version is the program's.
func New(c *Config, version string, log *slog.Logger) *Traces {
	if c == nil {
		return nil
	}
	// There is no credential in it: Parse takes no URL with a user or a query.
	log.Info("traces are exported", "endpoint", c.endpoint, "sampler", c.sampling)
	return newTraces(c, version, log, sdk.NewBatchSpanProcessor(newExporter(c, log)))
}

func newTraces(c *Config, version string, log *slog.Logger, p sdk.SpanProcessor) *Traces {
	provider := sdk.NewTracerProvider(sdk.WithSampler(c.sampler), sdk.WithResource(resourceOf(c, version)), sdk.WithSpanProcessor(p))
	return &Traces{provider: provider, tracer: provider.Tracer(scope), propagator: c.propagator, log: log}
}

// resourceOf is who the traces are of. What the variables say wins.
func resourceOf(c *Config, version string) *resource.Resource {
	// What can not be found out is left out.
	r, _ := resource.New(context.Background(),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(),
		resource.WithAttributes(attribute.String("service.version", version)), resource.WithAttributes(c.attributes...))
	return r
}

// Handler returns h with a span for each request but the health checks. Its
// parent is the one of the request's traceparent. The handler has the span as
// trace.SpanFromContext of the request's context, and gives it the name of its
// route.
func (t *Traces) Handler(h http.Handler) http.Handler {
	if t == nil {
		return h
	}
	return otelhttp.NewHandler(h, "",
		otelhttp.WithTracerProvider(t.provider),
		otelhttp.WithMeterProvider(metricnoop.NewMeterProvider()),
		otelhttp.WithPropagators(t.propagator),
		otelhttp.WithFilter(func(r *http.Request) bool {
			return r.URL.Path != "/healthz" && r.URL.Path != "/readyz"
		}),
	)
}

// Store returns s with spans for claim, handler, and commit or abandon, beneath
// the span of the request that they are for.
func (t *Traces) Store(s idempotency.Store) idempotency.Store {
	if t == nil {
		return s
	}
	return store{s, t.tracer}
}

// Pool has the pool that c is for trace its statements, beneath what is
// recorded; what is nobody's has no span.
func (t *Traces) Pool(c *pgxpool.Config) {
	if t == nil {
		return
	}
	c.ConnConfig.Tracer = otelpgx.NewTracer(
		otelpgx.WithTracerProvider(t.provider),
		otelpgx.WithMeterProvider(metricnoop.NewMeterProvider()),
		// They would be the same everywhere, at the price of a copy of the
		// configuration for each statement.
		otelpgx.WithDisableConnectionDetailsInAttributes(),
	)
}

// Rounds returns what sweeper.Sweeper.Trace is for: each round is a trace of its
// own.
func (t *Traces) Rounds() func(ctx context.Context, job string) (context.Context, func(sweeper.Round)) {
	if t == nil {
		return nil
	}
	return func(ctx context.Context, job string) (context.Context, func(sweeper.Round)) {
		ctx, span := t.tracer.Start(ctx, "sweep", trace.WithNewRoot(), trace.WithAttributes(attribute.String("sweeper.job", job)))
		return ctx, func(r sweeper.Round) {
			span.SetAttributes(attribute.Int("sweeper.done", r.Done))
			if r.Err != nil {
				span.SetStatus(codes.Error, "")
			}
			span.End()
		}
	}
}

// closeTimeout is for the last spans to be sent. A collector that is there takes
// a fraction of it.
const closeTimeout = 5 * time.Second

// Close sends what has not been sent, until the deadline, and for no more than
// 5 s. Nothing is traced afterwards.
func (t *Traces) Close(deadline time.Time) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(closeTimeout, time.Until(deadline)))
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn("the last traces may be lost", "error", err)
	}
}
