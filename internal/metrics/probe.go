package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// probeTimeout is for both questions, which are asked at the same time: that
	// of /readyz, so that the two agree.
	probeTimeout = 2 * time.Second
	// probeAge is for how long an answer is told again, so that who scrapes often,
	// or several who do, cost the database no more.
	probeAge = 5 * time.Second
)

// overdueSQL finds what has been due for longest, by the indexes that the sweeper
// goes by: it reads one row of each, however many there are.
const overdueSQL = `
select (select extract(epoch from transaction_timestamp() - expires_at)::float8
        from payment_intents
        where state = 'created'
          and expires_at <= transaction_timestamp()
        order by expires_at
        limit 1),
       (select extract(epoch from transaction_timestamp() - expires_at)::float8
        from idempotency_keys
        where expires_at <= transaction_timestamp()
        order by expires_at
        limit 1)`

// Overdue tells for how long the intent and the idempotency key in PostgreSQL that
// have been due for longest have been so, by the database's clock; 0 for none.
func Overdue(ctx context.Context, pool *pgxpool.Pool) (intents, keys time.Duration, err error) {
	var i, k *float64 // null: none is due
	if err := pool.QueryRow(ctx, overdueSQL).Scan(&i, &k); err != nil {
		return 0, 0, err
	}
	age := func(seconds *float64) time.Duration {
		if seconds == nil {
			return 0
		}
		return time.Duration(*seconds * float64(time.Second))
	}
	return age(i), age(k), nil
}

// Probe is what the service is asked when its figures are.
type Probe struct {
	// Ready says why the service can not serve now, or nil.
	Ready func(ctx context.Context) error
	// Lag tells for how long the piece of each job's work that has been due for
	// longest has been so, by the job's name; 0 where none is due.
	Lag func(ctx context.Context) (map[string]time.Duration, error)
}

// probeCollector asks when it is asked. The sweeper's own word would be no lag: a
// job that hangs, or a replica whose sweeper is gone, says nothing any more, and
// that is when the lag grows.
type probeCollector struct {
	Probe
	ready, lag, failures *prometheus.Desc

	mu     sync.Mutex // held while it asks: one question at a time
	asked  time.Time
	down   error                    // why it is not ready
	lags   map[string]time.Duration // nil: it could not tell
	failed float64
}

// Probe adds readiness and the sweeper's lag, both asked for when the figures are
// collected, within two seconds, and not again for five. Where the lag can not be
// told its figures are left out, and a failure is counted. It panics the second
// time.
func (m *Metrics) Probe(p Probe) {
	c := &probeCollector{
		Probe: p,
		ready: prometheus.NewDesc(namespace+"_ready", "1 if the service can serve, as /readyz says, else 0.", nil, nil),
		lag: prometheus.NewDesc(namespace+"_sweeper_lag_seconds",
			"For how long the piece of work that has been due for longest has been so; 0 if none is due.", []string{"task"}, nil),
		failures: prometheus.NewDesc(namespace+"_sweeper_lag_failures_total", "How often the lag could not be told.", nil, nil),
	}
	m.registry.MustRegister(c)
	m.probe = c
}

// Describe implements prometheus.Collector.
func (c *probeCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.ready
	ch <- c.lag
	ch <- c.failures
}

// Collect implements prometheus.Collector.
func (c *probeCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked.IsZero() || time.Since(c.asked) >= probeAge {
		c.ask()
		c.asked = time.Now() // since it was answered, or a slow one would be asked at once again
	}
	up := 0.0
	if c.down == nil {
		up = 1
	}
	ch <- prometheus.MustNewConstMetric(c.ready, prometheus.GaugeValue, up)
	for job, age := range c.lags {
		ch <- prometheus.MustNewConstMetric(c.lag, prometheus.GaugeValue, age.Seconds(), taskOf(job))
	}
	ch <- prometheus.MustNewConstMetric(c.failures, prometheus.CounterValue, c.failed)
}

// why returns what the service could not serve for when it was last asked; nil
// where it could, and where there is no probe.
func (c *probeCollector) why() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down
}

func (c *probeCollector) ask() {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	var ready sync.WaitGroup
	ready.Go(func() { c.down = c.Ready(ctx) })
	var err error
	if c.lags, err = c.Lag(ctx); err != nil {
		c.lags = nil
		c.failed++
	}
	ready.Wait()
}
