package metrics_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"intentd/internal/idempotency"
	"intentd/internal/intent"
	"intentd/internal/metrics"
)

func snapshot(t *testing.T, m *metrics.Metrics) metrics.Snapshot {
	t.Helper()
	s, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMetrics_Snapshot(t *testing.T) {
	t.Parallel()

	t.Run("Counted", func(t *testing.T) {
		t.Parallel()
		m := metrics.New("v1")
		m.Request(intents, "POST", 201, 20*time.Millisecond)
		m.Request(intents, "POST", 200, 40*time.Millisecond)
		m.Request(intents, "GET", 404, time.Hour)
		m.Request(intents+"/{id}/cancel", "POST", 409, time.Hour)
		m.Request("", "GET", 404, time.Hour)
		m.Request("/x", "GET", 999, 0)
		m.Request("/healthz", "GET", 200, 0)
		m.Request("/readyz", "GET", 503, 0)
		m.Claim(idempotency.Event{Outcome: idempotency.Fresh})
		m.Claim(idempotency.Event{Outcome: idempotency.Fresh, Undone: idempotency.UndoneSuperseded})
		m.Moved(intent.Canceled, intent.System, 3)
		m.Moved(intent.Canceled, intent.API, 1)
		m.Limited()
		groups := m.CommitGroups()
		groups.Committed(3, 0)
		groups.Committed(5, 1)

		before := time.Now()
		got := snapshot(t, m)
		if got.At.Before(before) || got.At.After(time.Now()) {
			t.Errorf("at %v", got.At)
		}
		buckets := got.Creates.Buckets
		if got.Creates.Count != 2 || math.Abs(got.Creates.Sum-0.06) > 1e-9 || len(buckets) != 15 ||
			buckets[4] != (metrics.Bucket{Bound: .025, Count: 1}) || buckets[14] != (metrics.Bucket{Bound: math.Inf(1), Count: 2}) {
			t.Errorf("creates: %+v", got.Creates)
		}
		if got.Groups.Count != 2 || got.Groups.Sum != 8 {
			t.Errorf("groups: %+v", got.Groups)
		}
		got.At, got.Creates, got.Groups = time.Time{}, metrics.Histogram{}, metrics.Histogram{}
		want := metrics.Snapshot{
			Requests: map[string]float64{"2xx": 2, "4xx": 3, "other": 1},
			Limited:  1,
			Claims:   map[string]float64{"error": 0, "fresh": 2, "replay": 0, "in_flight": 0, "mismatch": 0},
			Undone:   map[string]float64{"panic": 0, "withheld": 0, "superseded": 1, "taken": 0, "in_doubt": 0, "store": 0},
			Moved:    map[string]float64{"created": 0, "canceled": 4},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})

	t.Run("Asked", func(t *testing.T) {
		t.Parallel()
		m := metrics.New("v1")
		m.Probe(metrics.Probe{
			Ready: func(context.Context) error { return nil },
			Lag: func(context.Context) (map[string]time.Duration, error) {
				return map[string]time.Duration{"cancel expired intents": 1500 * time.Millisecond}, nil
			},
		})
		pool := lazyPool(t)
		m.Pool(pool.Stat)
		got := snapshot(t, m)
		if diff := cmp.Diff(map[string]time.Duration{"cancel_expired_intents": 1500 * time.Millisecond}, got.Lag); diff != "" || !got.Ready || got.Why != nil {
			t.Errorf("ready %t since %v, lag (-want +got):\n%s", got.Ready, got.Why, diff)
		}
		if diff := cmp.Diff(&metrics.Pool{Max: float64(pool.Config().MaxConns)}, got.Pool); diff != "" {
			t.Errorf("pool (-want +got):\n%s", diff)
		}
	})

	t.Run("CanNotTell", func(t *testing.T) {
		t.Parallel()
		m := metrics.New("v1")
		away := errors.New("the database is away")
		m.Probe(metrics.Probe{
			Ready: func(context.Context) error { return away },
			Lag:   func(context.Context) (map[string]time.Duration, error) { return nil, errors.New("away") },
		})
		if got := snapshot(t, m); got.Ready || !errors.Is(got.Why, away) || got.Lag != nil || got.Pool != nil {
			t.Errorf("ready %t since %v, lag %v, pool %v", got.Ready, got.Why, got.Lag, got.Pool)
		}
	})
}

func TestHistogram(t *testing.T) {
	t.Parallel()
	m := metrics.New("v1")
	count := func(took ...time.Duration) {
		for _, d := range took {
			m.Request(intents, "POST", 201, d)
		}
	}
	quantile := func(h metrics.Histogram, q, want float64) {
		t.Helper()
		if got, ok := h.Quantile(q); !ok || math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %v of %+v = %v, %t; want %v", q, h, got, ok, want)
		}
	}
	if _, ok := snapshot(t, m).Creates.Quantile(.5); ok {
		t.Error("a quantile of nothing")
	}
	count(time.Millisecond, 6*time.Millisecond, 6*time.Millisecond, 6*time.Millisecond)
	first := snapshot(t, m).Creates
	quantile(first, .25, .001)
	quantile(first, .5, .005+.005/3)
	quantile(first, 1, .01)
	count(time.Minute)
	second := snapshot(t, m).Creates
	quantile(second, .5, .0075) // the second and a half of five: (2.5-1)/3 of the way
	since := second.Since(first)
	if since.Count != 1 || since.Sum != 60 {
		t.Errorf("since: %+v", since)
	}
	quantile(since, .5, 30) // beyond the last bound
	if _, ok := second.Since(second).Quantile(.5); ok {
		t.Error("a quantile of nothing since")
	}
	if got := first.Since(metrics.Histogram{}); !cmp.Equal(got, first) {
		t.Errorf("since nothing: %+v", got)
	}
}
