package main

import (
	"math"
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, c := range []struct {
		name   string
		sorted []time.Duration
		p      float64
		want   time.Duration
	}{
		{"None", nil, 0.5, 0},
		{"One", []time.Duration{7}, 0.99, 7},
		{"MedianOfTwoIsTheLower", []time.Duration{1, 2}, 0.5, 1},
		{"MedianOfThree", []time.Duration{1, 2, 3}, 0.5, 2},
		{"P50", hundred, 0.50, 50},
		{"P99", hundred, 0.99, 99},
		{"Longest", hundred, 1, 100},
		{"Shortest", hundred, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := percentile(c.sorted, c.p); got != c.want {
				t.Errorf("percentile(%v) = %v, want %v", c.p, got, c.want)
			}
		})
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	values := []float64{9, 1, 5}
	if got := median(values); got != 5 {
		t.Errorf("median of three = %v, want 5", got)
	}
	if values[0] != 9 {
		t.Error("median sorted its caller's values")
	}
	if got := median([]float64{4, 1, 2, 100}); got != 3 {
		t.Errorf("median of four = %v, want 3", got)
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of none = %v, want NaN", got)
	}
}

func TestMedianRatio(t *testing.T) {
	t.Parallel()
	value, base := []float64{200, 30, 50}, []float64{100, 10, 50}
	if got := medianRatio(value, base); got != 2 {
		t.Errorf("medianRatio = %v, want 2, which the ratio of the medians (%v) is not", got, median(value)/median(base))
	}
}
