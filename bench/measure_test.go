package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// scripted is a contestant whose rates are given, window by window.
func scripted(name string, order *[]string, rates ...float64) contestant {
	n := 0
	return contestant{name: name, run: func(context.Context, int) (sample, error) {
		*order = append(*order, name)
		n++
		return sample{Rate: rates[n-1], P99: 1000 / rates[n-1]}, nil
	}}
}

func quiet(context.Context) error { return nil }

func TestContest(t *testing.T) {
	t.Parallel()
	t.Run("RatiosWithinRounds", func(t *testing.T) {
		t.Parallel()
		var order []string
		points, err := contest(t.Context(), io.Discard, []int{8}, 3,
			[]contestant{scripted("a", &order, 100, 10, 300), scripted("b", &order, 200, 20, 210)}, []string{"a", "not there"}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"a", "b", "b", "a", "a", "b"}, order); diff != "" {
			t.Errorf("the rounds are not interleaved, each with another beginning (-want +got):\n%s", diff)
		}
		rows := points[0].Rows
		if got := rows[1].Ratios; len(got) != 1 || got["a"] != 2 {
			t.Errorf("b to a is %v, want 2", got)
		}
		if got := rows[1].P99Ratios["a"]; math.Abs(got-0.5) > 1e-9 {
			t.Errorf("b's p99 to a's is %v, want 0.5", got)
		}
		if rows[0].Median.Rate != 100 || rows[1].Median.Rate != 200 || len(rows[1].Rounds) != 3 {
			t.Errorf("rows %+v", rows)
		}
	})
	t.Run("Void", func(t *testing.T) {
		t.Parallel()
		var order []string
		broken := contestant{name: "broken", run: func(context.Context, int) (sample, error) { return sample{}, errors.New("answered 503") }}
		_, err := contest(t.Context(), io.Discard, []int{8}, 3, []contestant{scripted("a", &order, 1, 1, 1), broken}, nil, quiet)
		if err == nil || err.Error() != "void: broken at 8 connections, round 1 of 3: answered 503" {
			t.Errorf("contest = %v", err)
		}
	})
	t.Run("VoidByCheck", func(t *testing.T) {
		t.Parallel()
		var order []string
		c := scripted("a", &order, 1)
		c.check = func(context.Context) error { return errors.New("2 intents, and 1 answers on record") }
		if _, err := contest(t.Context(), io.Discard, []int{8}, 1, []contestant{c}, nil, quiet); err == nil || !strings.Contains(err.Error(), "2 intents") {
			t.Errorf("contest = %v", err)
		}
	})
}

func TestReport_Print(t *testing.T) {
	t.Parallel()
	var order []string
	points, err := contest(t.Context(), io.Discard, []int{1, 8}, 1, []contestant{scripted("a", &order, 1, 2), scripted("b", &order, 3, 4)}, []string{"a"}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	rep := report{
		Settings: map[string]string{"fsync": "on"},
		Results:  []result{{Name: "x", Title: "X", Baselines: []string{"a"}, Points: points, Figures: []figure{{"speed", 1.25, "rows/s"}}}},
	}
	var md bytes.Buffer
	rep.print(&md)
	columns := 0
	for line := range strings.Lines(md.String()) {
		switch n := strings.Count(line, "|"); {
		case !strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "|---"):
		case n == 4: // the figures'
		case columns == 0:
			columns = n
		case n != columns:
			t.Errorf("this row has not as many columns as the first:\n%s", line)
		}
	}
	for _, want := range []string{"`fsync = on`", "| 8 | b | 4 | 0.00 | 250.00 |", " 2.00 |\n", "| speed | 1.2 | rows/s |"} {
		if !strings.Contains(md.String(), want) {
			t.Errorf("there is no %q in\n%s", want, md.String())
		}
	}
	dir := t.TempDir()
	if err := rep.write(dir); err != nil {
		t.Fatal(err)
	}
	var js bytes.Buffer
	if err := encode(&js, rep); err != nil || !json.Valid(js.Bytes()) {
		t.Errorf("encode: %v: %s", err, js.Bytes())
	}
}
