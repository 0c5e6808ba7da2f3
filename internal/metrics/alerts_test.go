package metrics_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestAlerts holds deploy/prometheus to the figures that there are: an alert on a
// name that nobody counts would never fire.
func TestAlerts(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	known := make(map[string]bool)
	for name := range samples(t, all(t, lazyPool(t)).figures) {
		name, _, _ = strings.Cut(name, "{")
		known[name] = true
	}
	rules, tests := read("deploy/prometheus/alerts.yml"), read("deploy/prometheus/alerts_test.yml")
	runbook := read("docs/operations.md")
	asked := regexp.MustCompile("(?s)```promql\n.*?```").FindAllString(runbook, -1)
	if len(asked) < 2 {
		t.Fatalf("the runbook asks %q only", asked)
	}
	names := regexp.MustCompile(`intentd_[a-z_]+`).FindAllString(rules+tests+strings.Join(asked, ""), -1)
	if len(names) < 10 {
		t.Fatalf("found %q only", names)
	}
	for _, name := range names {
		if !known[name] {
			t.Errorf("nobody counts %s", name)
		}
	}

	alerts := strings.Split(rules, "- alert: ")[1:]
	if len(alerts) < 8 {
		t.Fatalf("%d alerts", len(alerts))
	}
	for _, alert := range alerts {
		name, _, _ := strings.Cut(alert, "\n")
		if want := "runbook_url: docs/operations.md#" + strings.ToLower(name) + "\n"; !strings.Contains(alert, want) {
			t.Errorf("%s has no %s", name, want)
		}
		if !strings.Contains(runbook, "\n### "+name+"\n") {
			t.Errorf("the runbook has no section %s", name)
		}
		for _, kind := range []string{" fires", " does not fire"} {
			if !strings.Contains(tests, "- name: "+name+kind) {
				t.Errorf("no case in which %s%s", name, kind)
			}
		}
	}
}
