package metrics

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// poolFigure is one figure of a pool's. Those that only grow since the pool was
// made are counters.
type poolFigure struct {
	name, help string
	kind       prometheus.ValueType
	of         func(*pgxpool.Stat) float64
}

var poolFigures = []poolFigure{
	{"acquired_connections", "Connections in use.", prometheus.GaugeValue,
		func(s *pgxpool.Stat) float64 { return float64(s.AcquiredConns()) }},
	{"idle_connections", "Connections that nobody uses.", prometheus.GaugeValue,
		func(s *pgxpool.Stat) float64 { return float64(s.IdleConns()) }},
	{"constructing_connections", "Connections that are being made.", prometheus.GaugeValue,
		func(s *pgxpool.Stat) float64 { return float64(s.ConstructingConns()) }},
	{"max_connections", "Most connections there may be: DB_MAX_CONNS.", prometheus.GaugeValue,
		func(s *pgxpool.Stat) float64 { return float64(s.MaxConns()) }},
	{"acquires_total", "Connections taken from the pool.", prometheus.CounterValue,
		func(s *pgxpool.Stat) float64 { return float64(s.AcquireCount()) }},
	{"waited_acquires_total", "Of those, how many had to wait, because none was idle.", prometheus.CounterValue,
		func(s *pgxpool.Stat) float64 { return float64(s.EmptyAcquireCount()) }},
	{"acquire_wait_seconds_total", "For how long they waited, together.", prometheus.CounterValue,
		func(s *pgxpool.Stat) float64 { return s.EmptyAcquireWaitTime().Seconds() }},
	{"canceled_acquires_total", "Who gave up while waiting for a connection.", prometheus.CounterValue,
		func(s *pgxpool.Stat) float64 { return float64(s.CanceledAcquireCount()) }},
	{"new_connections_total", "Connections made.", prometheus.CounterValue,
		func(s *pgxpool.Stat) float64 { return float64(s.NewConnsCount()) }},
}

// poolCollector reads a pool's figures when they are asked for.
type poolCollector struct {
	stat  func() *pgxpool.Stat
	descs []*prometheus.Desc // of poolFigures
}

// Pool adds the figures of a pool of connections, as stat tells them. It panics
// the second time.
func (m *Metrics) Pool(stat func() *pgxpool.Stat) {
	c := poolCollector{stat: stat}
	for _, f := range poolFigures {
		c.descs = append(c.descs, prometheus.NewDesc(prometheus.BuildFQName(namespace, "db_pool", f.name), f.help, nil, nil))
	}
	m.registry.MustRegister(c)
}

// Describe implements prometheus.Collector.
func (c poolCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c poolCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.stat()
	for i, f := range poolFigures {
		ch <- prometheus.MustNewConstMetric(c.descs[i], f.kind, f.of(s))
	}
}
