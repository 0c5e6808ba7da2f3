package pgidem_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"intentd/internal/idempotency"
	"intentd/internal/idempotency/pgidem"
)

// named returns the spans of that name that have ended.
func named(spans *tracetest.SpanRecorder, name string) []sdk.ReadOnlySpan {
	return slices.DeleteFunc(spans.Ended(), func(s sdk.ReadOnlySpan) bool { return s.Name() != name })
}

// linksOf returns the spans that s links to.
func linksOf(s sdk.ReadOnlySpan) (ids []trace.SpanID) {
	for _, l := range s.Links() {
		ids = append(ids, l.SpanContext.SpanID())
	}
	return ids
}

// groupsAlone samples whatever is no request's.
type groupsAlone struct{ sdk.Sampler }

func (g groupsAlone) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	if p.Name == "claim" || p.Name == "commit" {
		return sdk.SamplingResult{Decision: sdk.Drop}
	}
	return g.Sampler.ShouldSample(p)
}

// sizeOf returns how large a span says that its group is, 0 where it does not.
func sizeOf(s sdk.ReadOnlySpan) int64 {
	for _, kv := range s.Attributes() {
		if kv.Key == "idempotency.group.size" {
			return kv.Value.AsInt64()
		}
	}
	return 0
}

// TestGroup_Spans has three that run and another request under the first one's
// key, of which one has no span when it claims.
func TestGroup_Spans(t *testing.T) {
	t.Parallel()
	for _, recorded := range []bool{true, false} {
		f := newFixture(t, longLease, func(c *pgxpool.Config) { c.MaxConns = 2 }).grouped()
		spans := tracetest.NewSpanRecorder()
		sampler := sdk.AlwaysSample()
		if !recorded {
			sampler = groupsAlone{sampler}
		}
		tracer := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans), sdk.WithSampler(sampler)).Tracer("test")

		asks := append(keys(3), ask{key(0), other})
		release := pgidem.Hold(f.made)
		answers := make([]told, len(asks))
		var wg sync.WaitGroup
		for i, a := range asks {
			wg.Go(func() {
				ctx := t.Context()
				if i != 2 {
					var span trace.Span
					ctx, span = tracer.Start(ctx, "claim")
					defer span.End()
				}
				answers[i].Claim, answers[i].err = f.made.Claim(ctx, a.id, a.fp)
			})
			eventually(t, "a claim does not wait", func() bool { return pgidem.Waiting(f.made) == i+1 })
		}
		release()
		wg.Wait()
		var attempts []idempotency.Attempt
		for i, a := range answers[:3] {
			if a.err != nil || a.Outcome != idempotency.Fresh {
				t.Fatalf("claim %d = %v, %v; want fresh", i, a.Outcome, a.err)
			}
			attempts = append(attempts, a.Attempt)
		}
		if answers[3].Outcome != idempotency.Mismatch {
			t.Fatalf("the copy = %v, want mismatch", answers[3].Outcome)
		}
		for i, a := range attempts {
			wg.Go(func() {
				ctx, span := tracer.Start(t.Context(), "commit")
				defer span.End()
				tx, _ := pgidem.FromContext(a.Bind(context.WithoutCancel(ctx)))
				tx.Queue("insert into work values ($1)", string(rune('a'+i)))
				if err := a.Complete(ctx, resp); err != nil {
					t.Errorf("Complete: %v", err)
				}
			})
		}
		wg.Wait()
		f.wantStored(t, 3)

		if !recorded {
			if n := len(spans.Ended()); n > 0 {
				t.Errorf("%d spans, want none", n)
			}
			continue
		}
		const size = 3 // keys, and then requests
		for _, pair := range []struct{ group, member string }{{"claim group", "claim"}, {"commit group", "commit"}} {
			groups, members := named(spans, pair.group), named(spans, pair.member)
			if len(groups) != 1 || len(members) != 3 {
				t.Fatalf("%d spans %s and %d %s, want 1 and 3", len(groups), pair.group, len(members), pair.member)
			}
			g := groups[0]
			if g.Parent().IsValid() || sizeOf(g) != size {
				t.Errorf("%s has the parent %v and the size %d, want none and %d", pair.group, g.Parent(), sizeOf(g), size)
			}
			var ids []trace.SpanID
			for _, m := range members {
				ids = append(ids, m.SpanContext().SpanID())
				if back := linksOf(m); len(back) != 1 || back[0] != g.SpanContext().SpanID() || sizeOf(m) != size {
					t.Errorf("%s links to %v, want the group; its size is %d", pair.member, back, sizeOf(m))
				}
			}
			links := linksOf(g)
			byText := func(a, b trace.SpanID) int { return slices.Compare(a[:], b[:]) }
			slices.SortFunc(ids, byText)
			slices.SortFunc(links, byText)
			if !slices.Equal(ids, links) {
				t.Errorf("%s links to %v, want its members %v", pair.group, links, ids)
			}
		}
	}
}
