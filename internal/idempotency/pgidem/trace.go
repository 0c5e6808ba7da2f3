package pgidem

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// recorded returns the span of ctx, or nil where none is recorded.
func recorded(ctx context.Context) trace.Span {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		return span
	}
	return nil
}

// traced adds a span to those of a group, if it is recorded.
func traced(spans []trace.Span, span trace.Span) []trace.Span {
	if span == nil {
		return spans
	}
	return append(spans, span)
}

// together begins the span of one pipeline of a group. It is no member's child,
// since it is the work of all: it has a trace of its own, links to the members'
// spans, and they to it. There is none where no member's is recorded. ctx is the
// group's.
func together(ctx context.Context, name string, size int, members []trace.Span) (context.Context, trace.Span) {
	if len(members) == 0 {
		return ctx, noop.Span{}
	}
	links := make([]trace.Link, len(members))
	for i, m := range members {
		links[i] = trace.Link{SpanContext: m.SpanContext()}
	}
	sizeOf := attribute.Int("idempotency.group.size", size)
	ctx, span := members[0].TracerProvider().Tracer("intentd/internal/idempotency/pgidem").Start(ctx, name,
		trace.WithLinks(links...), trace.WithAttributes(sizeOf))
	for _, m := range members {
		m.SetAttributes(sizeOf)
		m.AddLink(trace.Link{SpanContext: span.SpanContext()})
	}
	return ctx, span
}
