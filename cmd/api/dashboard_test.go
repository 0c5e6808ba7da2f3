//go:build prometheus

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"intentd/internal/metrics/dashboard"
	"intentd/internal/pgtest"
)

// scraper is a Prometheus that runs on deploy/prometheus, but more often.
type scraper struct{ url string }

// startPrometheus has a Prometheus scrape the admin listeners at targets. It ends
// with the test.
func startPrometheus(t *testing.T, targets ...string) scraper {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatalf("%v: apt-get install prometheus", err)
	}
	dir := t.TempDir()
	files, err := filepath.Abs("../../deploy/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(files, "prometheus.yml"))
	if err != nil {
		t.Fatal(err)
	}
	config := string(text)
	for old, mine := range map[string]string{
		`["127.0.0.1:9090"]`:       `["` + strings.Join(targets, `", "`) + `"]`,
		"scrape_interval: 15s":     "scrape_interval: 1s",
		"scrape_timeout: 10s":      "scrape_timeout: 1s",
		"evaluation_interval: 15s": "evaluation_interval: 1s",
		"- alerts.yml":             "- " + filepath.Join(files, "alerts.yml"),
	} {
		if strings.Count(config, old) != 1 {
			t.Fatalf("prometheus.yml has not one %q", old)
		}
		config = strings.Replace(config, old, mine, 1)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	// It does not say which port it was given: the port has to be known before.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	log := newLogBuffer()
	cmd := exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	cmd.Stderr, cmd.SysProcAttr = log, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("log of Prometheus:\n%s", log)
		}
	})
	p := scraper{"http://" + addr}
	eventually(t, "Prometheus is not ready", func() bool {
		resp, err := client.Get(p.url + "/-/ready")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return p
}

// ask puts the data of an answer of Prometheus's API into data.
func (p scraper) ask(t *testing.T, path string, query url.Values, data any) {
	t.Helper()
	resp, err := client.Get(p.url + path + "?" + query.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s %v: %v, %s", path, query, err, raw)
	}
}

// sample is what a query tells of one series, now.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

// value is NaN where there is none.
func (s sample) value() float64 {
	text, _ := s.Value[1].(string)
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

// query asks what a panel asks, with Grafana's variables in their places.
func (p scraper) query(t *testing.T, promQL string) (samples []sample) {
	t.Helper()
	promQL = strings.NewReplacer("$instance", ".*", "$__rate_interval", "10s").Replace(promQL)
	if strings.Contains(promQL, "$") {
		t.Fatalf("a variable that nobody sets: %s", promQL)
	}
	p.ask(t, "/api/v1/query", url.Values{"query": {promQL}}, &struct{ Result *[]sample }{&samples})
	// A quantile of nothing is no figure.
	return slices.DeleteFunc(samples, func(s sample) bool { return math.IsNaN(s.value()) })
}

// sum is the sum of what a panel's query tells.
func (p scraper) sum(t *testing.T, panel string, query int) (sum float64) {
	t.Helper()
	for _, one := range dashboard.Panels() {
		if one.Title == panel {
			for _, s := range p.query(t, one.Queries[query].PromQL) {
				sum += s.value()
			}
			return sum
		}
	}
	t.Fatalf("no panel %q", panel)
	return 0
}

// work keeps replicas busy with all that a panel shows, until the returned
// function is called: creates in a crowd, replays, mismatches, reads and steps.
func work(t *testing.T, replicas ...*replica) (stop func()) {
	t.Helper()
	var (
		wg   sync.WaitGroup
		done = make(chan struct{})
	)
	for n := range 24 {
		wg.Go(func() {
			r := replicas[n%len(replicas)]
			auth := func(key string) []string {
				return []string{"Authorization", "Bearer " + token, "Idempotency-Key", key}
			}
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				key := fmt.Sprintf("%d-%d", n, i)
				made := r.post(key, with("expires_in_seconds", "1"))
				r.post(key, with("expires_in_seconds", "1"))
				r.post(key, example)
				path := made.header.Get("Location")
				if path == "" {
					continue // 503, which is tried as well
				}
				r.get(path)
				r.do(http.MethodPost, path+"/transitions", `{"to":"authorized"}`, auth(key+"-a")...)
				if i%2 == 0 {
					r.do(http.MethodPost, path+"/cancel", `{"reason":"why not"}`, auth(key+"-c")...)
				}
				r.post(key+"-swept", with("expires_in_seconds", "1"))
			}
		})
	}
	return sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
}

// TestDashboard asks a Prometheus that scrapes two replicas what each panel asks.
func TestDashboard(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	environ := []string{"SWEEP_INTERVAL=100ms", "IDEMPOTENCY_LEASE=2s", "IDEMPOTENCY_TTL=3s"}
	a, b := startOn(t, db, environ...), startOn(t, db, environ...)
	targets := []string{
		strings.TrimPrefix(a.admin(t).url, "http://"),
		strings.TrimPrefix(b.admin(t).url, "http://"),
	}
	p := startPrometheus(t, targets...)
	stop := work(t, a, b)
	t.Cleanup(stop) // of a test that has failed
	healthy := func() bool {
		return p.sum(t, "Replicas", 0) == 2 && p.sum(t, "Not ready", 0)+p.sum(t, "Not ready", 1) == 0
	}
	eventually(t, "the two replicas are not up", healthy)

	t.Run("Variable", func(t *testing.T) { //nolint:paralleltest // one after the other: Trouble changes what all of them ask for
		var instances []string
		p.ask(t, "/api/v1/label/instance/values", url.Values{"match[]": {dashboard.Instances}}, &instances)
		if slices.Sort(targets); !slices.Equal(instances, targets) {
			t.Errorf("$instance is one of %q, want %q", instances, targets)
		}
	})

	t.Run("Annotations", func(t *testing.T) { //nolint:paralleltest // one after the other: Trouble changes what all of them ask for
		p.query(t, dashboard.Starts) // it is a query, and there need be none
		if got := p.query(t, dashboard.Firing); len(got) != 0 {
			t.Errorf("alerts fire: %v", got)
		}
	})

	t.Run("Rules", func(t *testing.T) { //nolint:paralleltest // one after the other: Trouble changes what all of them ask for
		type rule struct{ Name, Health, LastError string }
		var rules []rule
		eventually(t, "not every alert was evaluated", func() bool {
			var data struct{ Groups []struct{ Rules []rule } }
			p.ask(t, "/api/v1/rules", nil, &data)
			rules = nil
			for _, g := range data.Groups {
				rules = append(rules, g.Rules...)
			}
			return len(rules) > 0 && !slices.ContainsFunc(rules, func(r rule) bool { return r.Health == "unknown" })
		})
		for _, r := range rules {
			if r.Health != "ok" {
				t.Errorf("%s: %s, %s", r.Name, r.Health, r.LastError)
			}
		}
	})

	// What has to be wrong for some panels to show more than zeros.
	t.Run("Trouble", func(t *testing.T) { //nolint:paralleltest // one after the other: Trouble changes what all of them ask for
		if got := p.sum(t, "Answered 5xx", 0); got != 0 {
			t.Errorf("%v of the requests are answered 5xx before any was", got)
		}
		for panel, statement := range map[string]string{
			"Takeovers in 15 minutes": "lock table payment_intents in share mode",             // beyond the lease
			"Answered 5xx":            "lock table idempotency_keys in access exclusive mode", // the claim waits for it
		} {
			lock := hold(t, db, statement)
			eventually(t, panel+" shows nothing", func() bool { return p.sum(t, panel, 0) > 0 })
			lock.release()
		}
	})

	t.Run("Panels", func(t *testing.T) { //nolint:paralleltest // one after the other: Trouble changes what all of them ask for
		label := regexp.MustCompile(`\{\{(\w+)\}\}`)
		operations, err := os.ReadFile("../../docs/operations.md")
		if err != nil {
			t.Fatal(err)
		}
		runbook := regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(string(operations), -1)
		for _, panel := range dashboard.Panels() {
			if panel.Title == "Alerts over time" {
				continue // of which there are none as long as all is well: see below
			}
			for _, q := range panel.Queries {
				var got []sample
				eventually(t, panel.Title+": nothing for "+q.PromQL, func() bool {
					got = p.query(t, q.PromQL)
					return len(got) > 0
				})
				for _, s := range got {
					for _, m := range label.FindAllStringSubmatch(q.Legend, -1) {
						if s.Metric[m[1]] == "" {
							t.Errorf("%s: the legend %s of a series without that: %v", panel.Title, q.Legend, s.Metric)
						}
					}
				}
				t.Logf("%-32s %-14s %3d series, the first %v %v", panel.Title, q.Legend, len(got), got[0].Metric, got[0].Value[1])
			}
		}
		for _, q := range runbook {
			eventually(t, "the runbook: nothing for "+q[1], func() bool { return len(p.query(t, q[1])) > 0 })
		}
		// What has to be seen among it, and not as zero.
		for panel, labels := range map[string][]string{
			"Claims by outcome":     {"fresh", "replay", "mismatch"},
			"Requests by status":    {"201", "422", "200"},
			"Intents moved":         {"created api", "authorized api", "canceled api", "canceled system"},
			"Rows swept":            {"cancel_expired_intents", "delete_expired_idempotency_keys"},
			"Commit groups by size": {"+Inf"},
			"Requests by route":     {"POST /v1/payment_intents", "GET /v1/payment_intents/{id}", "POST /v1/payment_intents/{id}/cancel"},
		} {
			eventually(t, fmt.Sprintf("%s does not show %q", panel, labels), func() bool {
				shown := p.labels(t, panel)
				return !slices.ContainsFunc(labels, func(l string) bool { return !shown[l] })
			})
		}
	})

	stop()
	b.kill(t)
	eventually(t, "a replica that was killed is not shown", func() bool { return p.sum(t, "Not ready", 0) == 1 })
	t.Run("Alerts", func(t *testing.T) { //nolint:paralleltest // one after the other: Trouble changes what all of them ask for
		eventually(t, "no alert is pending for it", func() bool { return p.labels(t, "Alerts over time")["IntentdDown "+b.admin(t).url[len("http://"):]] })
	})
}

// labels are those values of the labels in a panel's first legend, with spaces
// between, whose series is not zero.
func (p scraper) labels(t *testing.T, panel string) map[string]bool {
	t.Helper()
	shown := make(map[string]bool)
	for _, one := range dashboard.Panels() {
		if one.Title != panel {
			continue
		}
		names := regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(one.Queries[0].Legend, -1)
		for _, s := range p.query(t, one.Queries[0].PromQL) {
			var values []string
			for _, name := range names {
				if v := s.Metric[name[1]]; v != "" {
					values = append(values, v)
				}
			}
			if s.value() != 0 {
				shown[strings.Join(values, " ")] = true
			}
		}
	}
	return shown
}
