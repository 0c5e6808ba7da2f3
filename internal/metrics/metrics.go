// Package metrics counts what the service does, for Prometheus. It is the only
// room that knows Prometheus: the others call the functions that they are given.
//
// No label holds anything that a client chooses: no path, no merchant, key, token
// or id. So the number of series has a bound, whatever is sent.
package metrics

import (
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"intentd/internal/apikey"
	"intentd/internal/idempotency"
	"intentd/internal/intent"
	"intentd/internal/sweeper"
)

const (
	namespace = "intentd"
	// other stands for what is none of the values that a label may have.
	other = "other"
	// unmatched is the route of a request for which there is none.
	unmatched = "unmatched"
)

// seconds are the bounds of the histograms of durations: from a replay out of
// memory to the lease.
var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// Metrics are the service's figures. All that is called for each request takes
// no lock that another request could hold for long, and allocates nothing once a
// series is there. It is safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	probe    *probeCollector // nil: nothing is asked

	requests children[requestKey, requestSeries]
	claims   []prometheus.Counter // by idempotency.Outcome; 0: the store could not decide
	undone   []prometheus.Counter // by idempotency.Undone, of which 0 is none
	moved    children[moveKey, prometheus.Counter]
	limited  prometheus.Counter
	sweeps   children[string, sweepSeries]
	lookups  []prometheus.Counter // by apikey.Lookup, of which 0 is none
}

// requestKey is what the requests are told apart by. Every member has few values.
type requestKey struct {
	route, method string
	status        int // 0: none that HTTP knows
}

type requestSeries struct {
	total   prometheus.Counter
	seconds prometheus.Observer
}

type moveKey struct {
	to intent.State
	by intent.Actor
}

type sweepSeries struct {
	rows         prometheus.Counter
	done, failed prometheus.Counter
	seconds      prometheus.Observer
}

// New returns figures of a program of this version, with those of the process and
// of Go's runtime beside them.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "1, labelled with the versions of this program and of Go.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build,
	)
	m.ofRequests()
	m.ofIdempotency()
	m.ofIntents()
	m.ofSweeper()
	m.ofKeys()
	return m
}

func (m *Metrics) counter(subsystem, name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) histogram(subsystem, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets,
	}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) ofRequests() {
	total := m.counter("http", "requests_total",
		"Requests answered, by the route that the path matched, method and status.", "route", "method", "code")
	// Not by status: the buckets of each would be too many, and too thin to read.
	took := m.histogram("http", "request_duration_seconds",
		"From the request's header to the answer's end.", seconds, "route", "method")
	m.requests.make = func(k requestKey) requestSeries {
		route, code := shortRoute(k.route), other
		if k.status != 0 {
			code = strconv.Itoa(k.status)
		}
		return requestSeries{total.WithLabelValues(route, k.method, code), took.WithLabelValues(route, k.method)}
	}
	m.limited = m.counter("", "rate_limited_requests_total", "Requests refused because their holder sent too many.").WithLabelValues()
}

func (m *Metrics) ofIdempotency() {
	claims := m.counter("idempotency", "claims_total",
		"Requests with a good key and body, by what became of them; error: the store could not decide.", "outcome")
	m.claims = []prometheus.Counter{claims.WithLabelValues("error")}
	for o := idempotency.Fresh; o <= idempotency.Mismatch; o++ {
		m.claims = append(m.claims, claims.WithLabelValues(o.String()))
	}
	undone := m.counter("idempotency", "undone_attempts_total",
		"Attempts that came to nothing, by reason; one in_doubt may have been kept.", "reason")
	m.undone = []prometheus.Counter{nil}
	for u := idempotency.UndonePanic; u <= idempotency.UndoneStore; u++ {
		m.undone = append(m.undone, undone.WithLabelValues(u.String()))
	}
}

func (m *Metrics) ofIntents() {
	moved := m.counter("intents", "moved_total",
		"Intents moved, by the state that they came to and who moved them; a new one comes to created.", "state", "actor")
	m.moved.make = func(k moveKey) prometheus.Counter {
		state, actor := other, other
		if slices.Contains(intent.States(), k.to) {
			state = string(k.to)
		}
		if slices.Contains(intent.Actors(), k.by) {
			actor = string(k.by)
		}
		return moved.WithLabelValues(state, actor)
	}
	m.moved.get(moveKey{intent.Created, intent.API}) // so that it is there, and 0, before the first
}

func (m *Metrics) ofSweeper() {
	rows := m.counter("sweeper", "rows_total", "Rows that the sweeper has done with.", "task")
	rounds := m.counter("sweeper", "rounds_total", "Rounds of the sweeper, by how they ended: done or failed.", "task", "result")
	took := m.histogram("sweeper", "round_duration_seconds", "How long a round took, all its batches together.", seconds, "task")
	m.sweeps.make = func(job string) sweepSeries {
		task := taskOf(job)
		return sweepSeries{
			rows: rows.WithLabelValues(task), seconds: took.WithLabelValues(task),
			done: rounds.WithLabelValues(task, "done"), failed: rounds.WithLabelValues(task, "failed"),
		}
	}
}

func (m *Metrics) ofKeys() {
	lookups := m.counter("api_key", "lookups_total",
		"API keys looked up, by how: cached, asked (a request waited for the database), refused or failed.", "result")
	m.lookups = []prometheus.Counter{nil}
	for l := apikey.Cached; l <= apikey.Failed; l++ {
		m.lookups = append(m.lookups, lookups.WithLabelValues(l.String()))
	}
}

// taskOf is a job of the sweeper's as a label has it. The label is not called
// job, which is Prometheus's own name for what it scrapes.
func taskOf(job string) string { return strings.ReplaceAll(job, " ", "_") }

// patternOfParam is a route's parameter that only takes what an expression says.
var patternOfParam = regexp.MustCompile(`\{(\w+):.*\}`)

// shortRoute is a route as a label has it: without the expressions, of which the
// last may be long.
func shortRoute(pattern string) string {
	if pattern == "" {
		return unmatched
	}
	return patternOfParam.ReplaceAllString(pattern, "{$1}")
}

// Request counts a request that was answered. route is the pattern that its path
// matched, never the path, and "" for none. A method that no route could have
// counts as other.
func (m *Metrics) Request(route, method string, status int, took time.Duration) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
	default:
		method = other
	}
	if status < 100 || status > 599 {
		status = 0
	}
	s := m.requests.get(requestKey{route, method, status})
	s.total.Inc()
	s.seconds.Observe(took.Seconds())
}

// Claim counts what the idempotency layer decided about a request, and the
// attempt that was undone, if one was.
func (m *Metrics) Claim(ev idempotency.Event) {
	if int(ev.Outcome) < len(m.claims) {
		m.claims[ev.Outcome].Inc()
	}
	if ev.Undone != 0 && int(ev.Undone) < len(m.undone) {
		m.undone[ev.Undone].Inc()
	}
}

// Moved counts n intents that by has moved to a state, created included.
func (m *Metrics) Moved(to intent.State, by intent.Actor, n int) {
	m.moved.get(moveKey{to, by}).Add(float64(n))
}

// Limited counts a request that was refused because its holder sent too many.
func (m *Metrics) Limited() { m.limited.Inc() }

// KeyLookup counts an API key that was looked up. Demo keys, which are not, do
// not count.
func (m *Metrics) KeyLookup(l apikey.Lookup) {
	if l != 0 && int(l) < len(m.lookups) {
		m.lookups[l].Inc()
	}
}

// Swept counts a round of the sweeper's.
func (m *Metrics) Swept(r sweeper.Round) {
	s := m.sweeps.get(r.Job)
	s.rows.Add(float64(r.Done))
	s.seconds.Observe(r.Took.Seconds())
	if r.Err != nil {
		s.failed.Inc()
		return
	}
	s.done.Inc()
}

// Handler serves the figures in the formats that Prometheus asks for. What can
// not be collected is left out and told to log; the rest is served.
func (m *Metrics) Handler(log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ErrorHandling: promhttp.ContinueOnError,
	})
}

// children keeps what make has made for each key. Who finds a child takes no
// lock. The keys must be few, and none of a client's choosing: none is ever
// thrown away.
type children[K comparable, V any] struct {
	make func(K) V
	all  atomic.Pointer[map[K]V]
	mu   sync.Mutex // of who adds one
}

func (c *children[K, V]) get(k K) V {
	if all := c.all.Load(); all != nil {
		if v, ok := (*all)[k]; ok {
			return v
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[K]V)
	if old := c.all.Load(); old != nil {
		if v, ok := (*old)[k]; ok {
			return v
		}
		maps.Copy(all, *old)
	}
	all[k] = c.make(k)
	c.all.Store(&all)
	return all[k]
}
