package metrics

import "github.com/prometheus/client_golang/prometheus"

// CommitGroups counts the groups in which a store commits attempts together.
type CommitGroups struct {
	size       prometheus.Observer
	leftBehind prometheus.Counter
	alone      prometheus.Counter
}

// CommitGroups returns the figures of a store that commits in groups. Where there
// is none it is not called, and the figures are not there. It panics the second
// time.
func (m *Metrics) CommitGroups() *CommitGroups {
	return &CommitGroups{
		size: m.histogram("idempotency", "commit_group_attempts",
			"Attempts that were committed together, for each group.", []float64{1, 2, 4, 8, 16, 32, 64, 128}).WithLabelValues(),
		leftBehind: m.counter("idempotency", "left_behind_attempts_total",
			"Attempts that their group was committed without.").WithLabelValues(),
		alone: m.counter("idempotency", "lone_attempts_total",
			"Attempts that were run in a transaction of their own, beside the groups.").WithLabelValues(),
	}
}

// Committed counts a group of size attempts, and those that it left behind.
func (g *CommitGroups) Committed(size, leftBehind int) {
	g.size.Observe(float64(size))
	g.leftBehind.Add(float64(leftBehind))
}

// Alone counts an attempt that ran in a transaction of its own.
func (g *CommitGroups) Alone() { g.alone.Inc() }
