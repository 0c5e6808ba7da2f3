package metrics

import (
	"fmt"
	"math"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// Snapshot is what the figures were at one moment, as far as people are shown them
// in the service itself. What counts has counted since the process began; what is
// told apart by a label is in a map by its values, without those that have not
// been counted yet.
type Snapshot struct {
	At time.Time

	// Requests is how many were answered, by class of status, as in 2xx; without
	// the health checks, which come whether or not anybody is served.
	Requests map[string]float64
	// Creates is how long POST /v1/payment_intents took, in seconds.
	Creates Histogram
	Limited float64            // refused because their holder sent too many
	Claims  map[string]float64 // by outcome
	Undone  map[string]float64 // attempts, by reason
	Moved   map[string]float64 // intents, by the state that they came to
	// Groups is the attempts that were committed together, by group; without
	// buckets where the store commits none so.
	Groups Histogram

	Ready bool
	// Why is what the service can not serve for, as the probe was last told, for
	// people; nil where it is ready. It may hold the names of hosts.
	Why error
	// Lag is for how long the work that has been due for longest has been so, by
	// task; nil where it could not be told.
	Lag  map[string]time.Duration
	Pool *Pool // nil where there is none
}

// Pool is how a pool of connections stands.
type Pool struct {
	Acquired, Idle, Max float64
	// Since the process began: connections taken, how often that had to wait, and
	// for how long all together.
	Acquires, Waits float64
	Wait            time.Duration
}

// Histogram counts observations by size.
type Histogram struct {
	Count, Sum float64
	Buckets    []Bucket // by rising bound; the last is without one
}

// Bucket is how many observations were at most Bound.
type Bucket struct{ Bound, Count float64 }

// Since returns what h has counted and before had not.
func (h Histogram) Since(before Histogram) Histogram {
	h.Count -= before.Count
	h.Sum -= before.Sum
	buckets := make([]Bucket, len(h.Buckets))
	for i, b := range h.Buckets {
		if i < len(before.Buckets) {
			b.Count -= before.Buckets[i].Count
		}
		buckets[i] = b
	}
	h.Buckets = buckets
	return h
}

// Quantile returns what a share q of the observations was at most, or false where
// there are none. Within its bucket it is taken to lie in proportion, as
// Prometheus's histogram_quantile does; beyond the last bound it is that bound.
func (h Histogram) Quantile(q float64) (float64, bool) {
	if h.Count <= 0 || len(h.Buckets) == 0 {
		return 0, false
	}
	rank := q * h.Count
	var below Bucket
	for _, b := range h.Buckets {
		switch {
		case b.Count < rank || b.Count == below.Count:
			below.Count = b.Count
			if !math.IsInf(b.Bound, 1) {
				below.Bound = b.Bound
			}
		case math.IsInf(b.Bound, 1):
			return below.Bound, true
		default:
			return below.Bound + (b.Bound-below.Bound)*(rank-below.Count)/(b.Count-below.Count), true
		}
	}
	return below.Bound, true
}

// Snapshot collects the figures, and so asks whether the service is ready, as
// whoever scrapes them does.
func (m *Metrics) Snapshot() (Snapshot, error) {
	s := Snapshot{At: time.Now()}
	families, err := m.registry.Gather()
	if err != nil {
		return Snapshot{}, fmt.Errorf("collect figures: %w", err)
	}
	for _, f := range families {
		name, ok := strings.CutPrefix(f.GetName(), namespace+"_")
		if !ok {
			continue
		}
		switch name {
		case "http_requests_total":
			s.Requests = make(map[string]float64)
			for _, m := range f.GetMetric() {
				if route := label(m, "route"); route != "/healthz" && route != "/readyz" {
					s.Requests[classOf(label(m, "code"))] += m.GetCounter().GetValue()
				}
			}
		case "http_request_duration_seconds":
			for _, m := range f.GetMetric() {
				if label(m, "route") == "/v1/payment_intents" && label(m, "method") == "POST" {
					s.Creates = histogramOf(m)
				}
			}
		case "rate_limited_requests_total":
			s.Limited = f.GetMetric()[0].GetCounter().GetValue()
		case "idempotency_claims_total":
			s.Claims = sums(f, "outcome")
		case "idempotency_undone_attempts_total":
			s.Undone = sums(f, "reason")
		case "idempotency_commit_group_attempts":
			s.Groups = histogramOf(f.GetMetric()[0])
		case "intents_moved_total":
			s.Moved = sums(f, "state")
		case "ready":
			s.Ready = f.GetMetric()[0].GetGauge().GetValue() == 1
		case "sweeper_lag_seconds":
			s.Lag = make(map[string]time.Duration)
			for _, m := range f.GetMetric() {
				s.Lag[label(m, "task")] = durationOf(m.GetGauge().GetValue())
			}
		default:
			if figure, ok := strings.CutPrefix(name, "db_pool_"); ok {
				s.pool(figure, f.GetMetric()[0])
			}
		}
	}
	if !s.Ready { // since it may have been asked again meanwhile
		s.Why = m.probe.why()
	}
	return s, nil
}

func (s *Snapshot) pool(figure string, m *dto.Metric) {
	if s.Pool == nil {
		s.Pool = new(Pool)
	}
	value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
	switch figure {
	case "acquired_connections":
		s.Pool.Acquired = value
	case "idle_connections":
		s.Pool.Idle = value
	case "max_connections":
		s.Pool.Max = value
	case "acquires_total":
		s.Pool.Acquires = value
	case "waited_acquires_total":
		s.Pool.Waits = value
	case "acquire_wait_seconds_total":
		s.Pool.Wait = durationOf(value)
	}
}

// classOf is the class of a status, as a label has it.
func classOf(code string) string {
	if code == other {
		return other
	}
	return code[:1] + "xx"
}

// sums adds up a family's counters by the values of one label.
func sums(f *dto.MetricFamily, name string) map[string]float64 {
	all := make(map[string]float64)
	for _, m := range f.GetMetric() {
		all[label(m, name)] += m.GetCounter().GetValue()
	}
	return all
}

func histogramOf(m *dto.Metric) Histogram {
	h := m.GetHistogram()
	out := Histogram{Count: float64(h.GetSampleCount()), Sum: h.GetSampleSum()}
	for _, b := range h.GetBucket() {
		out.Buckets = append(out.Buckets, Bucket{b.GetUpperBound(), float64(b.GetCumulativeCount())})
	}
	out.Buckets = append(out.Buckets, Bucket{math.Inf(1), out.Count})
	return out
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func durationOf(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
