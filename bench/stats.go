package main

import (
	"math"
	"slices"
	"time"
)

// percentile returns the smallest of the sorted samples that a share p of them
// does not exceed: the nearest rank, which is a latency that somebody had, and no
// mean of two. It is 0 of none.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// median returns the middle of values, the mean of both where two are. It is NaN
// of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// medianRatio returns the median of the ratios that value has to base in each
// round. What disturbs a round disturbs both, so that their ratio is steadier
// than the ratio of their medians. It panics if there are not as many of each.
func medianRatio(value, base []float64) float64 {
	if len(value) != len(base) {
		panic("medianRatio needs as many rounds of each")
	}
	ratios := make([]float64, len(value))
	for i := range value {
		ratios[i] = value[i] / base[i]
	}
	return median(ratios)
}
