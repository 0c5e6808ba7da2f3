package metrics_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"intentd/internal/api"
	"intentd/internal/apikey"
	"intentd/internal/idempotency"
	"intentd/internal/idempotency/memidem"
	"intentd/internal/idempotency/pgidem"
	"intentd/internal/intent"
	"intentd/internal/intent/memintent"
	"intentd/internal/intent/pgintent"
	"intentd/internal/metrics"
	"intentd/internal/pgtest"
	"intentd/internal/secret"
	"intentd/internal/sweeper"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	intents = "/v1/payment_intents"
	example = `{"chain":"evm:31337","token":"0x5FbDB2315678afecb367f032d93F642f64180aa3",` +
		`"payer":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8","merchant":"0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",` +
		`"amount":"100000000","expires_in_seconds":900}`
)

// service is the whole API over stores in memory, with its figures.
type service struct {
	figures *metrics.Metrics
	handler http.Handler
	intents *memintent.Store
	keys    *memidem.Store
	before  map[string]float64
}

// setup is how a service differs from the usual one.
type setup struct {
	limit api.RateLimit
	keys  func(idempotency.Store) idempotency.Store
	store func(intent.Store) intent.Store
}

func newService(o setup) *service {
	s := &service{figures: metrics.New("v1"), keys: memidem.New(time.Hour, time.Minute, time.Now)}
	s.intents = memintent.New(time.Now, func(ctx context.Context) (memintent.Joined, bool) {
		return memidem.FromContext(ctx)
	})
	var keys idempotency.Store = s.keys
	if o.keys != nil {
		keys = o.keys(keys)
	}
	var store intent.Store = s.intents
	if o.store != nil {
		store = o.store(store)
	}
	holders := map[apikey.Digest]apikey.Holder{
		digestOf("relayer"): {Merchant: "chain-1", Role: apikey.Relayer, Mode: apikey.Live},
	}
	for i := range 100 {
		name := fmt.Sprint("shop-", i)
		holders[digestOf(name)] = apikey.Holder{Merchant: name, Role: apikey.API, Mode: apikey.Live}
	}
	s.handler = api.New(api.Config{
		Intents:       intent.New(store),
		Idempotency:   keys,
		Authenticator: apikey.NewStatic(holders),
		Ready:         func(context.Context) error { return nil },
		Log:           slog.New(slog.DiscardHandler),
		RateLimit:     o.limit,
		Observer:      observer(s.figures),
	})
	return s
}

// observer is wired as the command wires it.
func observer(m *metrics.Metrics) api.Observer {
	return api.Observer{
		Request: m.Request,
		Claim:   m.Claim,
		Moved:   func(to intent.State, by intent.Actor) { m.Moved(to, by, 1) },
		Limited: m.Limited,
	}
}

func digestOf(token string) apikey.Digest { return apikey.DigestOf(secret.New(token)) }

// call is a request; the zero one is a create by shop-1.
type call struct{ method, path, key, token, body string }

func (s *service) do(c call) *httptest.ResponseRecorder {
	c.method, c.path = cmp.Or(c.method, http.MethodPost), cmp.Or(c.path, intents)
	if c.method == http.MethodPost {
		c.body = cmp.Or(c.body, example)
	}
	r := httptest.NewRequest(c.method, "/", strings.NewReader(c.body))
	r.URL.Path = c.path // whatever is in it
	r.Header.Set("Authorization", "Bearer "+cmp.Or(c.token, "shop-1"))
	if c.token == "relayer" {
		r.Header.Set("Intent-Merchant", "shop-1")
	}
	if c.key != "" {
		r.Header.Set("Idempotency-Key", c.key)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

// samples are the figures of ours, each as `name{label="value",...}`; of a
// histogram, the number of its observations.
func samples(t testing.TB, m *metrics.Metrics) map[string]float64 {
	t.Helper()
	families, err := m.Gather()
	if err != nil {
		t.Error(err)
	}
	all := make(map[string]float64)
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "intentd_") {
			continue
		}
		for _, one := range f.GetMetric() {
			var labels []string
			for _, l := range one.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := f.GetName()
			if labels != nil {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			all[name] = value(one)
		}
	}
	return all
}

func value(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetHistogram() != nil:
		return float64(m.GetHistogram().GetSampleCount())
	default:
		return m.GetGauge().GetValue()
	}
}

// wantMoved checks what has changed since the last call, or the beginning, and
// that nothing else has.
func (s *service) wantMoved(t *testing.T, want map[string]float64) {
	t.Helper()
	now := samples(t, s.figures)
	moved := make(map[string]float64)
	for name, v := range now {
		if by := v - s.before[name]; by != 0 && name != `intentd_build_info{goversion="`+runtime.Version()+`",version="v1"}` {
			moved[name] = by
		}
	}
	s.before = now
	if !maps.Equal(moved, want) {
		for _, name := range slices.Sorted(maps.Keys(moved)) {
			if moved[name] != want[name] {
				t.Errorf("%s moved by %v, want %v", name, moved[name], want[name])
			}
		}
		for name, by := range want {
			if _, ok := moved[name]; !ok {
				t.Errorf("%s did not move, want by %v", name, by)
			}
		}
	}
}

// request are the two figures that a request moves.
func request(route, method string, code int) map[string]float64 {
	return map[string]float64{
		fmt.Sprintf("intentd_http_requests_total{code=%q,method=%q,route=%q}", fmt.Sprint(code), method, route): 1,
		fmt.Sprintf("intentd_http_request_duration_seconds{method=%q,route=%q}", method, route):                 1,
	}
}

func and(all ...map[string]float64) map[string]float64 {
	sum := make(map[string]float64)
	for _, one := range all {
		for name, n := range one {
			sum[name] += n
		}
	}
	return sum
}

func claim(outcome string) map[string]float64 {
	return map[string]float64{fmt.Sprintf("intentd_idempotency_claims_total{outcome=%q}", outcome): 1}
}

func undone(reason string) map[string]float64 {
	return map[string]float64{fmt.Sprintf("intentd_idempotency_undone_attempts_total{reason=%q}", reason): 1}
}

func moved(state, actor string, n float64) map[string]float64 {
	return map[string]float64{fmt.Sprintf("intentd_intents_moved_total{actor=%q,state=%q}", actor, state): n}
}

func TestMetrics_Request(t *testing.T) {
	t.Parallel()
	s := newService(setup{})
	for _, tt := range []struct {
		call
		route, method string
		code          int
	}{
		{call{method: "GET", path: "/healthz"}, "/healthz", "GET", 200},
		{call{method: "HEAD", path: "/healthz"}, "/healthz", "HEAD", 200},
		{call{method: "GET", path: intents}, intents, "GET", 200},
		{call{method: "GET", path: intents, token: "nobody"}, intents, "GET", 401},
		{call{method: "GET", path: intents + "/pi_nothing"}, intents + "/{id}", "GET", 404},
		{call{method: "POST", path: intents}, intents, "POST", 400},
		{call{method: "POST", path: intents + "/pi_x/cancel", key: "k", body: `{"reason":"r"}`}, intents + "/{id}/cancel", "POST", 404},
		{call{method: "DELETE", path: intents}, "unmatched", "DELETE", 405},
		{call{method: "BREW", path: intents}, "unmatched", "other", 405},
		{call{method: "BREW", path: "/nowhere"}, "unmatched", "other", 404},
		{call{method: "GET", path: "/metrics"}, "unmatched", "GET", 404},
		{call{method: "GET", path: "/nowhere"}, "unmatched", "GET", 404},
	} {
		s.before = samples(t, s.figures)
		if w := s.do(tt.call); w.Code != tt.code {
			t.Errorf("%+v: status %d, want %d", tt.call, w.Code, tt.code)
		}
		want := request(tt.route, tt.method, tt.code)
		if tt.key != "" {
			want = and(want, claim("fresh"))
		}
		s.wantMoved(t, want)
	}

	t.Run("ShortRoute", func(t *testing.T) {
		t.Parallel()
		m := metrics.New("")
		m.Request(`/docs/{asset:(?:a\.css|{b}.js)}`, "GET", 200, 0)
		m.Request("/x", "GET", 999, 0)
		got := samples(t, m)
		for _, name := range []string{
			`intentd_http_requests_total{code="200",method="GET",route="/docs/{asset}"}`,
			`intentd_http_requests_total{code="other",method="GET",route="/x"}`,
		} {
			if got[name] != 1 {
				t.Errorf("%s = %v, want 1, of %v", name, got[name], got)
			}
		}
	})

	t.Run("Duration", func(t *testing.T) {
		t.Parallel()
		m := metrics.New("")
		m.Request("/x", "GET", 200, 1500*time.Millisecond)
		text := scrape(t, m)
		for _, line := range []string{
			`intentd_http_request_duration_seconds_bucket{method="GET",route="/x",le="1"} 0`,
			`intentd_http_request_duration_seconds_bucket{method="GET",route="/x",le="2.5"} 1`,
			`intentd_http_request_duration_seconds_sum{method="GET",route="/x"} 1.5`,
		} {
			if !strings.Contains(text, line+"\n") {
				t.Errorf("no line %s in:\n%s", line, text)
			}
		}
	})
}

func scrape(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler(slog.New(slog.NewTextHandler(t.Output(), nil))).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("scrape: %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// faulty is a store of keys whose claims or completions fail as the test says.
type faulty struct {
	idempotency.Store
	claim    error
	complete func() error // nil: as the store does
	keep     bool         // but complete first
}

func (f *faulty) Claim(ctx context.Context, id idempotency.ID, fp idempotency.Fingerprint) (idempotency.Claim, error) {
	if f.claim != nil {
		return idempotency.Claim{}, f.claim
	}
	c, err := f.Store.Claim(ctx, id, fp)
	if c.Attempt != nil && f.complete != nil {
		c.Attempt = &faultyAttempt{c.Attempt, f}
	}
	return c, err
}

type faultyAttempt struct {
	idempotency.Attempt
	f *faulty
}

func (a *faultyAttempt) Complete(ctx context.Context, resp idempotency.Response) error {
	if a.f.keep {
		if err := a.Attempt.Complete(ctx, resp); err != nil {
			return err
		}
	}
	return a.f.complete()
}

// panicking is a store of intents whose Create does what the test says.
type panicking struct {
	intent.Store
	create func() error
}

func (p *panicking) Create(ctx context.Context, in intent.Intent, d time.Duration) (intent.Intent, error) {
	if p.create != nil {
		if err := p.create(); err != nil {
			return intent.Intent{}, err
		}
	}
	return p.Store.Create(ctx, in, d)
}

func TestMetrics_Claim(t *testing.T) {
	t.Parallel()
	keys, store := new(faulty), new(panicking)
	s := newService(setup{
		keys:  func(s idempotency.Store) idempotency.Store { keys.Store = s; return keys },
		store: func(s intent.Store) intent.Store { store.Store = s; return store },
	})
	s.before = samples(t, s.figures)
	create := func(code int, key, body string, want ...map[string]float64) {
		t.Helper()
		if w := s.do(call{key: key, body: body}); w.Code != code {
			t.Errorf("%s: status %d, want %d: %s", key, w.Code, code, w.Body)
		}
		s.wantMoved(t, and(append(want, request(intents, "POST", code))...))
	}

	create(400, "", "")
	create(400, "bad", `{}`, claim("fresh")) // an answer as any other
	create(201, "a", "", claim("fresh"), moved("created", "api", 1))
	create(201, "a", "", claim("replay")) // moves nothing again
	create(422, "a", `{}`, claim("mismatch"))

	fp := idempotency.FingerprintOf("POST", intents, []byte(example))
	running, err := s.keys.Claim(t.Context(), idempotency.ID{Scope: "shop-1", Key: "b"}, fp)
	if err != nil {
		t.Fatal(err)
	}
	create(409, "b", "", claim("in_flight"))
	if err := running.Attempt.Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}

	keys.claim = errors.New("away")
	create(503, "c", "", claim("error"))
	keys.claim = nil

	store.create = func() error { panic("oh") }
	create(500, "d", "", claim("fresh"), undone("panic"))
	store.create = func() error { return intent.ErrUnavailable }
	create(503, "d", "", claim("fresh"), undone("withheld"))
	store.create = nil

	fail := func(err error, keep bool) { keys.complete, keys.keep = func() error { return err }, keep }
	fail(idempotency.ErrSuperseded, false)
	create(409, "d", "", claim("fresh"), undone("superseded"))
	fail(errors.New("disk full"), false)
	create(503, "d", "", claim("fresh"), undone("store"))
	fail(idempotency.ErrTaken, false)
	create(503, "d", "", claim("fresh"), undone("taken"))
	fail(idempotency.ErrInDoubt, false)
	create(503, "d", "", claim("fresh"), undone("in_doubt"))
	fail(idempotency.ErrInDoubt, true)
	create(201, "d", "", claim("replay"), undone("in_doubt"))
}

func TestMetrics_Moved(t *testing.T) {
	t.Parallel()
	s := newService(setup{})
	location := s.do(call{key: "create"}).Header().Get("Location")
	s.before = samples(t, s.figures)
	step := func(code int, token, key, body string, want ...map[string]float64) {
		t.Helper()
		w := s.do(call{path: location + "/transitions", token: token, key: key, body: body})
		if w.Code != code {
			t.Errorf("%s: status %d, want %d: %s", body, w.Code, code, w.Body)
		}
		s.wantMoved(t, and(append(want, request(intents+"/{id}/transitions", "POST", code))...))
	}
	fresh := claim("fresh")
	step(200, "shop-1", "k1", `{"to":"authorized"}`, fresh, moved("authorized", "api", 1))
	step(200, "shop-1", "k1", `{"to":"authorized"}`, claim("replay"))
	step(200, "shop-1", "k2", `{"to":"authorized"}`, fresh) // it is there already
	step(409, "shop-1", "k3", `{"to":"settled"}`, fresh)
	step(200, "relayer", "k4", `{"to":"settling"}`, fresh, moved("settling", "relayer", 1))

	t.Run("ByTheSweeper", func(t *testing.T) {
		t.Parallel()
		m := metrics.New("")
		m.Moved(intent.Canceled, intent.System, 7)
		m.Moved("a-state-of-no-table", "nobody", 1)
		got := samples(t, m)
		for name, want := range and(moved("canceled", "system", 7), moved("other", "other", 1)) {
			if got[name] != want {
				t.Errorf("%s = %v, want %v", name, got[name], want)
			}
		}
	})
}

func TestMetrics_Limited(t *testing.T) {
	t.Parallel()
	s := newService(setup{limit: api.RateLimit{PerSecond: 0.001, Burst: 1}})
	get := call{method: "GET"}
	s.do(get)
	s.before = samples(t, s.figures)
	if w := s.do(get); w.Code != http.StatusTooManyRequests {
		t.Fatalf("status %d, want 429", w.Code)
	}
	s.wantMoved(t, and(request(intents, "GET", 429), map[string]float64{"intentd_rate_limited_requests_total": 1}))
}

func TestMetrics_Swept(t *testing.T) {
	t.Parallel()
	m := metrics.New("")
	m.Swept(sweeper.Round{Job: "delete what is old", Done: 7, Took: 3 * time.Second})
	m.Swept(sweeper.Round{Job: "delete what is old", Done: 2, Err: errors.New("away")})
	want := map[string]float64{
		`intentd_sweeper_rows_total{task="delete_what_is_old"}`:                   9,
		`intentd_sweeper_rounds_total{result="done",task="delete_what_is_old"}`:   1,
		`intentd_sweeper_rounds_total{result="failed",task="delete_what_is_old"}`: 1,
		`intentd_sweeper_round_duration_seconds{task="delete_what_is_old"}`:       2,
	}
	got := samples(t, m)
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s = %v, want %v", name, got[name], n)
		}
	}
	if text := scrape(t, m); !strings.Contains(text, `intentd_sweeper_round_duration_seconds_sum{task="delete_what_is_old"} 3`+"\n") {
		t.Errorf("the rounds did not take 3 s:\n%s", text)
	}
}

func TestMetrics_CommitGroups(t *testing.T) {
	t.Parallel()
	m := metrics.New("")
	g := m.CommitGroups()
	g.Committed(3, 0)
	g.Committed(20, 2)
	g.Alone()
	got := samples(t, m)
	for name, want := range map[string]float64{
		"intentd_idempotency_commit_group_attempts":      2,
		"intentd_idempotency_left_behind_attempts_total": 2,
		"intentd_idempotency_lone_attempts_total":        1,
	} {
		if got[name] != want {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
	if text := scrape(t, m); !strings.Contains(text, "intentd_idempotency_commit_group_attempts_sum 23\n") {
		t.Errorf("the groups are not of 23 together:\n%s", text)
	}
}

// all has every figure there can be.
func all(t *testing.T, pool *pgxpool.Pool) *service {
	t.Helper()
	s := newService(setup{})
	s.figures.Pool(pool.Stat)
	s.figures.CommitGroups().Committed(1, 0)
	s.figures.Probe(metrics.Probe{
		Ready: func(context.Context) error { return nil },
		Lag: func(context.Context) (map[string]time.Duration, error) {
			return map[string]time.Duration{"a job": 0}, nil
		},
	})
	s.figures.Swept(sweeper.Round{Job: "a job"})
	s.do(call{key: "k"})
	return s
}

// lazyPool makes no connection.
func lazyPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func TestMetrics_Conventions(t *testing.T) {
	t.Parallel()
	problems, err := testutil.GatherAndLint(all(t, lazyPool(t)).figures)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestMetrics_Bounded sends all that a client can choose, and looks for it.
func TestMetrics_Bounded(t *testing.T) {
	t.Parallel()
	s := all(t, lazyPool(t))
	send := func(round int) {
		for i := range 100 {
			odd := fmt.Sprintf("odd-%d-%d", round, i)
			s.do(call{key: odd, token: fmt.Sprint("shop-", i)})
			s.do(call{token: odd, key: odd})
			s.do(call{method: "GET", path: "/" + odd})
			s.do(call{method: "GET", path: "/v1/" + odd + "/*/{id}"})
			s.do(call{method: "GET", path: "/docs/" + odd})
			s.do(call{method: "GET", path: intents + "/" + odd})
			s.do(call{method: "GET", path: intents + "/" + odd + "/transitions"})
			s.do(call{path: intents + "/" + odd + "/cancel", key: odd, body: `{"reason":"` + odd + `"}`})
			s.do(call{path: intents + "/" + odd + "/transitions", key: odd, body: `{"to":"` + odd + `"}`})
			s.do(call{method: strings.ToUpper(odd), path: intents})
			s.do(call{method: "PUT", path: intents + "/" + odd})
			s.do(call{method: "GET", path: "/\xff" + odd + "\n"})
		}
	}
	send(1)
	first := samples(t, s.figures)
	send(2)
	second := samples(t, s.figures)
	if len(second) != len(first) || len(second) > 100 {
		t.Errorf("%d series, and then %d; want no more than before, and under 100", len(first), len(second))
	}
	for name := range second {
		if strings.Contains(strings.ToLower(name), "odd-") || strings.Contains(name, "shop-") {
			t.Errorf("a client's word in %s", name)
		}
	}
}

func TestMetrics_Probe(t *testing.T) {
	t.Parallel()
	const lag, failures = `intentd_sweeper_lag_seconds{task="cancel_what_is_due"}`, "intentd_sweeper_lag_failures_total"

	t.Run("AskedWithinBoundsAndNotTooOften", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			m := metrics.New("")
			asked, away := 0, false
			m.Probe(metrics.Probe{
				Ready: func(ctx context.Context) error {
					if away {
						<-ctx.Done()
					}
					return ctx.Err()
				},
				Lag: func(ctx context.Context) (map[string]time.Duration, error) {
					asked++
					if away {
						<-ctx.Done()
						return map[string]time.Duration{"cancel what is due": 0}, ctx.Err()
					}
					return map[string]time.Duration{"cancel what is due": 90 * time.Second}, nil
				},
			})
			want := func(ready, age, failed float64, questions int) {
				t.Helper()
				got := samples(t, m)
				if got["intentd_ready"] != ready || got[lag] != age || got[failures] != failed || asked != questions {
					t.Errorf("ready %v, lag %v, failures %v after %d questions; want %v, %v, %v after %d",
						got["intentd_ready"], got[lag], got[failures], asked, ready, age, failed, questions)
				}
			}
			want(1, 90, 0, 1)
			away = true
			time.Sleep(4 * time.Second)
			want(1, 90, 0, 1)
			time.Sleep(time.Second)
			before := time.Now()
			want(0, 0, 1, 2)
			if took := time.Since(before); took != 2*time.Second {
				t.Errorf("a store that is silent was waited for %v, want 2 s", took)
			}
			if _, ok := samples(t, m)[lag]; ok {
				t.Error("a lag is told that nobody knows")
			}
			time.Sleep(4 * time.Second)
			want(0, 0, 1, 2) // five seconds from the answer, not from the question
			away = false
			time.Sleep(time.Second)
			want(1, 90, 1, 3)
		})
	})
}

func TestOverdue(t *testing.T) {
	t.Parallel()
	const (
		insertIntent = `
insert into payment_intents (merchant_id, id, chain, token, payer, merchant, amount, state, version, created_at, updated_at, expires_at)
select 'm', gen_random_uuid(), 'c', 't', 'p', 'm', 1, $1, 1, now() - interval '1 day', now(), now() - make_interval(secs => $2)
from generate_series(1, $3)`
		insertKey = `
insert into idempotency_keys (scope, key, fingerprint, status, header, body, created_at, expires_at)
select 's', gen_random_uuid()::text, sha256(''), 201, '{}', '', now() - interval '1 day', now() - make_interval(secs => $1)
from generate_series(1, $2)`
	)
	db := pgtest.New(t)
	want := func(intents, keys time.Duration) {
		t.Helper()
		i, k, err := metrics.Overdue(t.Context(), db.Pool)
		if err != nil {
			t.Fatal(err)
		}
		// What passes until it is asked comes on top.
		if i < intents || i > intents+time.Minute || k < keys || k > keys+time.Minute || intents == 0 && i != 0 || keys == 0 && k != 0 {
			t.Errorf("Overdue = %v, %v; want %v, %v", i, k, intents, keys)
		}
	}
	want(0, 0)
	db.Exec(t, insertIntent, "created", -3600, 1)    // has time
	db.Exec(t, insertIntent, "authorized", 36000, 1) // has been taken on
	db.Exec(t, insertKey, -3600, 1)
	want(0, 0)
	db.Exec(t, insertIntent, "created", 7200, 20_000)
	db.Exec(t, insertIntent, "created", 3600, 1)
	want(2*time.Hour, 0)
	db.Exec(t, insertKey, 600, 20_000)
	db.Exec(t, insertKey, 18000, 1)
	want(2*time.Hour, 5*time.Hour)

	t.Run("GoesByTheIndexes", func(t *testing.T) { //nolint:paralleltest // the database is the test's above
		db.Exec(t, "analyze payment_intents, idempotency_keys")
		rows, err := db.Pool.Query(t.Context(), "explain "+metrics.OverdueSQL)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var plan strings.Builder
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			plan.WriteString(line + "\n")
		}
		for _, index := range []string{"payment_intents_due_idx", "idempotency_keys_expires_at_idx"} {
			if !strings.Contains(plan.String(), index) || strings.Contains(plan.String(), "Seq Scan") {
				t.Errorf("does not go by %s:\n%s", index, &plan)
			}
		}
	})

	t.Run("Away", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := metrics.Overdue(ctx, db.Pool); err == nil {
			t.Error("no error where nobody was asked")
		}
	})
}

// TestMetrics_Postgres takes and waits for real connections.
func TestMetrics_Postgres(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	c, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = 2
	pgidem.Configure(c)
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	m := metrics.New("")
	m.Pool(pool.Stat)
	want := func(want map[string]float64) {
		t.Helper()
		got := samples(t, m)
		for name, n := range want {
			if got["intentd_db_pool_"+name] != n {
				t.Errorf("%s = %v, want %v", name, got["intentd_db_pool_"+name], n)
			}
		}
	}
	acquire := func() *pgxpool.Conn {
		t.Helper()
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	first, second := acquire(), acquire()
	// Both had to wait, until theirs was made.
	want(map[string]float64{
		"max_connections": 2, "acquired_connections": 2, "idle_connections": 0, "constructing_connections": 0,
		"new_connections_total": 2, "acquires_total": 2, "waited_acquires_total": 2, "canceled_acquires_total": 0,
	})
	if waited := samples(t, m)["intentd_db_pool_acquire_wait_seconds_total"]; waited <= 0 || waited > 3600 {
		t.Errorf("waited for %v s", waited)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := pool.Acquire(ctx); err == nil {
		t.Fatal("a third connection of two")
	}
	first.Release()
	third := acquire()
	want(map[string]float64{"acquired_connections": 2, "acquires_total": 3, "waited_acquires_total": 2, "canceled_acquires_total": 1})
	second.Release()
	third.Release()
}

func TestMetrics_Process(t *testing.T) {
	t.Parallel()
	text := scrape(t, metrics.New("v1.2.3"))
	for _, want := range []string{
		fmt.Sprintf("intentd_build_info{goversion=%q,version=\"v1.2.3\"} 1\n", runtime.Version()),
		"\ngo_goroutines ", "\nprocess_start_time_seconds ", "\nprocess_open_fds ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

func TestMetrics_KeyLookup(t *testing.T) {
	t.Parallel()
	m := metrics.New("")
	for n, l := range []apikey.Lookup{apikey.Cached, apikey.Asked, apikey.Refused, apikey.Failed} {
		for range n + 1 {
			m.KeyLookup(l)
		}
	}
	m.KeyLookup(0)
	m.KeyLookup(apikey.Failed + 1)
	got := samples(t, m)
	for n, result := range []string{"cached", "asked", "refused", "failed"} {
		if name := fmt.Sprintf("intentd_api_key_lookups_total{result=%q}", result); got[name] != float64(n+1) {
			t.Errorf("%s = %v, want %d", name, got[name], n+1)
		}
	}
}

// BenchmarkObservers is what a create costs with figures and without, side by
// side: each way makes a round of creates, and the next round is the other's, in
// an order that is turned round each time. It reports the median round of each,
// for one create, and by how much the one is dearer.
func BenchmarkObservers(b *testing.B) {
	for _, bb := range []struct {
		name     string
		parallel int // of a round, all at once
		open     func(*testing.B) (intent.Store, idempotency.Store)
	}{
		{"Postgres/alone", 1, onPostgres},
		{"Postgres/parallel=64", 64, onPostgres},
		{"Memory/alone", 1, func(*testing.B) (intent.Store, idempotency.Store) {
			return memintent.New(time.Now, func(ctx context.Context) (memintent.Joined, bool) { return memidem.FromContext(ctx) }),
				memidem.New(time.Hour, time.Minute, time.Now)
		}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			intents, keys := bb.open(b)
			var ways [2]*side // without, with
			for i, o := range []api.Observer{{}, observer(metrics.New(""))} {
				ways[i] = &side{handler: api.New(api.Config{
					Intents: intent.New(intents), Idempotency: keys, Observer: o,
					Authenticator: apikey.NewStatic(map[apikey.Digest]apikey.Holder{digestOf("shop-1"): {Merchant: "shop-1", Role: apikey.API, Mode: apikey.Live}}),
					Ready:         func(context.Context) error { return nil }, Log: slog.New(slog.DiscardHandler),
				})}
			}
			for n := 0; b.Loop(); n++ {
				ways[n%2].round(b, bb.parallel, 2*n)
				ways[1-n%2].round(b, bb.parallel, 2*n+1)
			}
			without, with := ways[0].median()/float64(bb.parallel), ways[1].median()/float64(bb.parallel)
			b.ReportMetric(without, "ns-without/op")
			b.ReportMetric(with, "ns-with/op")
			b.ReportMetric((with/without-1)*100, "%-dearer")
		})
	}
}

// side is one way of the two, and how long its rounds took.
type side struct {
	handler http.Handler
	took    []time.Duration
}

func (s *side) round(b *testing.B, parallel, n int) {
	requests := make([]*http.Request, parallel)
	for i := range requests {
		requests[i] = httptest.NewRequest(http.MethodPost, "/v1/payment_intents", strings.NewReader(example))
		requests[i].Header.Set("Authorization", "Bearer shop-1")
		requests[i].Header.Set("Idempotency-Key", fmt.Sprintf("%d-%d", n, i))
	}
	var all sync.WaitGroup
	begin := time.Now()
	for _, r := range requests {
		all.Go(func() {
			w := httptest.NewRecorder()
			if s.handler.ServeHTTP(w, r); w.Code != http.StatusCreated {
				b.Errorf("answered %d: %s", w.Code, w.Body)
			}
		})
	}
	all.Wait()
	s.took = append(s.took, time.Since(begin))
}

func (s *side) median() float64 {
	slices.Sort(s.took)
	return float64(s.took[len(s.took)/2])
}

func onPostgres(b *testing.B) (intent.Store, idempotency.Store) {
	db := pgtest.New(b)
	c, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		b.Fatal(err)
	}
	pgidem.Configure(c)
	pool, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pgintent.New(pool, func(ctx context.Context) (pgintent.Tx, bool) { return pgidem.FromContext(ctx) }),
		pgidem.New(pool, time.Hour, time.Minute).WithCommitters(2)
}

// BenchmarkRequest is what a create costs more than without figures.
func BenchmarkRequest(b *testing.B) {
	m := metrics.New("")
	b.ReportAllocs()
	for b.Loop() {
		m.Claim(idempotency.Event{Outcome: idempotency.Fresh})
		m.Moved(intent.Created, intent.API, 1)
		m.Request(intents, http.MethodPost, http.StatusCreated, 3*time.Millisecond)
	}
}

func TestMetrics_AllocatesNothing(t *testing.T) { //nolint:paralleltest // it counts what the whole process allocates
	m := metrics.New("")
	n := testing.AllocsPerRun(1000, func() {
		m.Claim(idempotency.Event{Outcome: idempotency.Fresh, Undone: idempotency.UndonePanic})
		m.Moved(intent.Created, intent.API, 1)
		m.Limited()
		m.Request(intents, http.MethodPost, http.StatusCreated, 3*time.Millisecond)
		m.Request("", "BREW", http.StatusNotFound, 3*time.Millisecond)
	})
	if n != 0 {
		t.Errorf("%v allocations for a request", n)
	}
}
