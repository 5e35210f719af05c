package local

import (
	"testing"
	"time"
)

// TestFlat guards that a resource which grows all the time is found, and that one which grew while caches filled is not.
func TestFlat(t *testing.T) {
	for _, tc := range []struct {
		name   string
		memory func(i int) float64
		want   int
	}{
		{"constant", func(int) float64 { return 200 }, 0},
		{"caches fill", func(i int) float64 { return 100 + 10*float64(min(i, 25)) }, 0},
		{"a leak", func(i int) float64 { return 100 + 10*float64(i) }, 1},
		{"a peak", func(i int) float64 { return map[bool]float64{true: 2000, false: 200}[i == 80] }, 0},
	} {
		var samples []Sample
		for i := range 90 {
			samples = append(samples, Sample{At: time.Duration(i) * sampleEvery, Node: "eu-1", Memory: tc.memory(i), Files: 50, Threads: 12})
		}
		if got := flat(samples); len(got) != tc.want {
			t.Errorf("%s: %v, want %d lines", tc.name, got, tc.want)
		}
	}
}
