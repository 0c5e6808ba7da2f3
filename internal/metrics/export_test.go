package metrics

import dto "github.com/prometheus/client_model/go"

// OverdueSQL is for the test that looks at its plan.
const OverdueSQL = overdueSQL

// Gather makes Metrics a prometheus.Gatherer.
func (m *Metrics) Gather() ([]*dto.MetricFamily, error) { return m.registry.Gather() }
