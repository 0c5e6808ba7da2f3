package metrics_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"intentd/internal/metrics/dashboard"
)

var update = flag.Bool("update", false, "write deploy/grafana/dashboards/intentd.json")

const dashboardFile = "../../deploy/grafana/dashboards/intentd.json"

// board is what the tests read of the dashboard's file.
type board struct {
	UID, Title string
	Panels     []struct {
		ID                       int
		Type, Title, Description string
		Datasource               struct{ Type, UID string }
		GridPos                  struct{ X, Y, W, H int }
		FieldConfig              struct{ Defaults struct{ Unit string } }
		Targets                  []struct {
			RefID, Expr string
			Datasource  struct{ Type, UID string }
		}
	}
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

func readBoard(t *testing.T) (b board) {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDashboard_File(t *testing.T) {
	t.Parallel()
	want := dashboard.JSON()
	if *update {
		if err := os.WriteFile(dashboardFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what internal/metrics/dashboard makes (-want +got); -update writes it:\n%s", dashboardFile, cmp.Diff(string(want), string(got)))
	}
}

// TestDashboard_Layout reads the file as Grafana does.
func TestDashboard_Layout(t *testing.T) {
	t.Parallel()
	units := []string{"none", "short", "s", "bytes", "percentunit", "reqps", "cps", "ops"}
	b := readBoard(t)
	if b.UID == "" || b.Title == "" || len(b.Panels) < 30 {
		t.Fatalf("dashboard %q, %q with %d panels", b.UID, b.Title, len(b.Panels))
	}
	ids := make(map[int]string)
	taken := make(map[[2]int]string)
	for _, p := range b.Panels {
		if other, ok := ids[p.ID]; ok || p.ID < 1 {
			t.Errorf("%q has the id %d, as %q", p.Title, p.ID, other)
		}
		ids[p.ID] = p.Title
		if p.Title == "" || p.GridPos.W < 1 || p.GridPos.H < 1 || p.GridPos.X < 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%q is at %+v; the grid has 24 columns", p.Title, p.GridPos)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, ok := taken[at]; ok {
					t.Fatalf("%q lies on %q at %v", p.Title, other, at)
				}
				taken[at] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || !slices.Contains(units, p.FieldConfig.Defaults.Unit) || len(p.Targets) == 0 {
			t.Errorf("%q has the description %q, the unit %q and %d queries", p.Title, p.Description, p.FieldConfig.Defaults.Unit, len(p.Targets))
		}
		refs := make(map[string]bool)
		for _, q := range p.Targets {
			for _, source := range []struct{ Type, UID string }{p.Datasource, q.Datasource} {
				if source.Type != "prometheus" || source.UID != "${datasource}" {
					t.Errorf("%q asks %+v, not the variable's data source", p.Title, source)
				}
			}
			if refs[q.RefID] || q.RefID == "" || q.Expr == "" {
				t.Errorf("%q, query %q: %q", p.Title, q.RefID, q.Expr)
			}
			refs[q.RefID] = true
		}
	}
	variables := make(map[string]string)
	for _, v := range b.Templating.List {
		variables[v.Name] = v.Type
	}
	if diff := cmp.Diff(map[string]string{"datasource": "datasource", "instance": "query"}, variables); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
}

// series is a name that can be asked for, and what can be asked of it.
type series struct {
	counter bool
	labels  []string // without those that Prometheus adds
}

// askable are the names that the service shows, and those that Prometheus adds.
func askable(t *testing.T) map[string]series {
	t.Helper()
	families, err := all(t, lazyPool(t)).figures.Gather()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]series{
		"up":     {},
		"ALERTS": {labels: []string{"alertname", "alertstate", "severity", "task"}},
	}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		if f.GetType() == dto.MetricType_HISTOGRAM {
			known[f.GetName()+"_sum"], known[f.GetName()+"_count"] = series{true, labels}, series{true, labels}
			known[f.GetName()+"_bucket"] = series{true, append(slices.Clone(labels), "le")}
			continue
		}
		known[f.GetName()] = series{f.GetType() == dto.MetricType_COUNTER, labels}
	}
	return known
}

// The parts of a query; whether it is one, Prometheus says (make alerts-test).
var (
	selectorPattern = regexp.MustCompile(`(?:(\w+)\()?\b([a-zA-Z_:]+)\{([^}]*)\}`)
	matcherPattern  = regexp.MustCompile(`^(\w+)(?:=|!=|=~|!~)"[^"]*"$`)
	byPattern       = regexp.MustCompile(`\b(?:by|without|on|ignoring) \(([^)]*)\)`)
	legendPattern   = regexp.MustCompile(`\{\{(\w+)\}\}`)
	stringPattern   = regexp.MustCompile(`"[^"]*"`)
	rangePattern    = regexp.MustCompile(`\[[^]]*\]`)
	wordPattern     = regexp.MustCompile(`[a-zA-Z_]\w*`)
)

// strangersIn returns what in a query nobody knows, "" if nothing is.
func strangersIn(known map[string]series, q dashboard.Query) (strangers []string) {
	labels := []string{"job", "instance"}
	found := selectorPattern.FindAllStringSubmatch(q.PromQL, -1)
	if len(found) == 0 {
		return []string{"no selector"}
	}
	for _, m := range found {
		function, name, matchers := m[1], m[2], m[3]
		s, ok := known[name]
		if !ok {
			strangers = append(strangers, name)
			continue
		}
		if rated := function == "rate" || function == "increase"; rated != s.counter {
			strangers = append(strangers, function+" of "+name)
		}
		mine := append([]string{"job", "instance"}, s.labels...)
		labels = append(labels, s.labels...)
		for one := range strings.SplitSeq(matchers, ", ") {
			if m := matcherPattern.FindStringSubmatch(one); m == nil || !slices.Contains(mine, m[1]) {
				strangers = append(strangers, name+"{"+one+"}")
			}
		}
		if name != "ALERTS" && !strings.Contains(matchers, dashboard.Selector) {
			strangers = append(strangers, name+" of every replica")
		}
	}
	for _, m := range byPattern.FindAllStringSubmatch(q.PromQL, -1) {
		for label := range strings.SplitSeq(m[1], ", ") {
			if !slices.Contains(labels, label) {
				strangers = append(strangers, m[0])
			}
		}
	}
	for _, m := range legendPattern.FindAllStringSubmatch(q.Legend, -1) {
		if !slices.Contains(labels, m[1]) {
			strangers = append(strangers, m[0])
		}
	}
	// Nothing that the patterns above do not see.
	rest := q.PromQL
	rest = stringPattern.ReplaceAllString(rest, "")
	rest = selectorPattern.ReplaceAllString(rest, "")
	rest = rangePattern.ReplaceAllString(byPattern.ReplaceAllString(rest, ""), "")
	for _, word := range wordPattern.FindAllString(rest, -1) {
		if !slices.Contains([]string{"sum", "max", "count", "histogram_quantile", "time", "vector", "or"}, word) {
			strangers = append(strangers, word)
		}
	}
	return strangers
}

func TestDashboard_Names(t *testing.T) {
	t.Parallel()
	known := askable(t)
	shown := make(map[string]bool)
	for _, p := range dashboard.Panels() {
		for _, q := range p.Queries {
			for _, stranger := range strangersIn(known, q) {
				t.Errorf("%s: nobody knows %s in %s", p.Title, stranger, q.PromQL)
			}
			for _, m := range selectorPattern.FindAllStringSubmatch(q.PromQL, -1) {
				shown[m[2]] = true
			}
		}
	}
	// What is counted and never looked at need not be counted.
	for name := range known {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"), "_sum")
		if strings.HasPrefix(name, "intentd_") && !shown[name] && !shown[base+"_bucket"] {
			t.Errorf("no panel shows %s", name)
		}
	}

	// The test sees what it is for.
	for promQL, stranger := range map[string]string{
		`sum(intentd_reddy{@})`:                                                              "intentd_reddy",
		`sum(intentd_ready)`:                                                                 "no selector",
		`intentd_ready{@} + intentd_build_info`:                                              "intentd_build_info",
		`sum(rate(intentd_ready{@}[5m]))`:                                                    "rate of intentd_ready",
		`intentd_rate_limited_requests_total{@}`:                                             " of intentd_rate_limited_requests_total",
		`rate(intentd_idempotency_claims_total{@, reason="panic"}[5m])`:                      `intentd_idempotency_claims_total{reason="panic"}`,
		`sum by (reason) (rate(intentd_idempotency_claims_total{@}[5m]))`:                    "by (reason)",
		`intentd_ready`:                                                                      "no selector",
		`intentd_ready{job="intentd"}`:                                                       "intentd_ready of every replica",
		`sum by (le) (rate(intentd_http_request_duration_seconds_count{@}[5m]))`:             "by (le)",
		`histogram_quartile(0.5, rate(intentd_http_request_duration_seconds_bucket{@}[5m]))`: "histogram_quartile",
	} {
		q := dashboard.Query{PromQL: strings.ReplaceAll(promQL, "{@", "{"+dashboard.Selector)}
		if got := strangersIn(known, q); !slices.Contains(got, stranger) {
			t.Errorf("of %s nobody knows %q, want %q among it", promQL, got, stranger)
		}
	}
	if got := strangersIn(known, dashboard.Query{PromQL: "intentd_ready{" + dashboard.Selector + "}", Legend: "{{route}}"}); !slices.Contains(got, "{{route}}") {
		t.Errorf("a legend by a label that is not there: %q", got)
	}
}
