package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"intentd/internal/idempotency"
)

// store has a span for each step of a request that is recorded: claim, handler,
// and commit or abandon, side by side beneath the request's own.
type store struct {
	idempotency.Store
	tracer trace.Tracer
}

// Interactive is what idempotency.Options.Interactive asks for.
func (s store) Interactive() idempotency.Store {
	if inner, ok := s.Store.(interface{ Interactive() idempotency.Store }); ok {
		return store{inner.Interactive(), s.tracer}
	}
	return s
}

// Claim implements idempotency.Store.
func (s store) Claim(ctx context.Context, id idempotency.ID, fp idempotency.Fingerprint) (idempotency.Claim, error) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return s.Store.Claim(ctx, id, fp)
	}
	ctx, span := s.tracer.Start(ctx, "claim")
	defer span.End()
	claim, err := s.Store.Claim(ctx, id, fp)
	if err != nil {
		span.SetStatus(codes.Error, "")
		return claim, err
	}
	span.SetAttributes(attribute.String("idempotency.outcome", claim.Outcome.String()))
	if claim.Attempt != nil {
		claim.Attempt = &attempt{Attempt: claim.Attempt, tracer: s.tracer}
	}
	return claim, nil
}

// attempt implements idempotency.Attempt. As every attempt it is one goroutine's.
type attempt struct {
	idempotency.Attempt
	tracer  trace.Tracer
	handler trace.Span // nil: it has not begun
	ended   bool
}

// Bind implements idempotency.Attempt. From here to the attempt's end it is the
// handler's time.
func (a *attempt) Bind(ctx context.Context) context.Context {
	ctx, a.handler = a.tracer.Start(ctx, "handler")
	return a.Attempt.Bind(ctx)
}

// Complete implements idempotency.Attempt.
func (a *attempt) Complete(ctx context.Context, resp idempotency.Response) error {
	return a.end(ctx, "commit", func(ctx context.Context) error { return a.Attempt.Complete(ctx, resp) })
}

// Abandon implements idempotency.Attempt. It has a span only where there is
// something to undo.
func (a *attempt) Abandon(ctx context.Context) error {
	if a.ended {
		return a.Attempt.Abandon(ctx)
	}
	return a.end(ctx, "abandon", a.Attempt.Abandon)
}

// end ends the handler's span, and has one for what ends the attempt.
func (a *attempt) end(ctx context.Context, name string, do func(context.Context) error) error {
	a.ended = true
	if a.handler != nil {
		a.handler.End()
	}
	ctx, span := a.tracer.Start(ctx, name)
	defer span.End()
	err := do(ctx)
	if err != nil {
		span.SetStatus(codes.Error, "")
	}
	return err
}
