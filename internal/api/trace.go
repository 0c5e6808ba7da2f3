package api

import (
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// traceID returns the id of the trace that the request is part of: the one that
// is recorded, or where the service records none that of the caller's
// traceparent, by which the others who had a part in it can still be asked. The
// zero id is none.
func traceID(r *http.Request) trace.TraceID {
	ctx := r.Context()
	sc := trace.SpanContextFromContext(ctx)
	// The map is read directly, since most requests have no such header, and the
	// propagator would spell its name anew for each of them.
	if !sc.IsValid() && len(r.Header["Traceparent"]) > 0 {
		sc = trace.SpanContextFromContext(propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header)))
	}
	return sc.TraceID()
}

// describe says in the request's span, if it is recorded, what the request was
// and what became of it, by values of which there are few. route is the pattern
// that it matched, "" for none.
func describe(r *http.Request, route string, e *entry) {
	span := trace.SpanFromContext(r.Context())
	if !span.IsRecording() {
		return
	}
	if route != "" {
		// https://opentelemetry.io/docs/specs/semconv/http/http-spans/#name
		span.SetName(r.Method + " " + route)
		span.SetAttributes(attribute.String("http.route", route))
	}
	if e.outcome != 0 {
		span.SetAttributes(attribute.String("idempotency.outcome", e.outcome.String()))
	}
	if e.undone != 0 {
		span.SetAttributes(attribute.String("idempotency.undone", e.undone.String()))
	}
}
