package local

import (
	"testing"
	"time"
)

// TestFlat guards that a resource which grows all the time is found, and that one which grew while caches filled is not.
func TestFlat(t *testing.T) {
	const calls = 500
	for _, tc := range []struct {
		name   string
		memory func(i int) float64
		want   int
	}{
		{"constant", func(int) float64 { return 200 }, 0},
		{"caches fill", func(i int) float64 { return 100 + 10*float64(min(i, 40)) }, 0},
		{"a leak", func(i int) float64 { return 100 + 10*float64(i) }, 1},
		{"a slow leak, within the slack", func(i int) float64 { return 100 + float64(i) }, 0},
		{"a peak", func(i int) float64 { return map[bool]float64{true: 2000, false: 200}[i == 80] }, 0},
	} {
		var samples []Sample
		for i := range 90 {
			samples = append(samples, Sample{At: time.Duration(i) * sampleEvery, Node: "eu-1", Memory: tc.memory(i), Files: 50, Threads: 12})
		}
		if got := flat(growths(samples, calls)); len(got) != tc.want {
			t.Errorf("%s: %v, want %d lines", tc.name, got, tc.want)
		}
	}
}

// TestFlatData guards that data may grow with the calls, and not faster.
func TestFlatData(t *testing.T) {
	for _, tc := range []struct {
		name string
		disk float64 // MiB for each sample
		want int
	}{{"with the calls", 4, 0}, {"faster", 30, 1}} {
		var samples []Sample
		for i := range 90 {
			samples = append(samples, Sample{At: time.Duration(i) * sampleEvery, Node: "eu-1", Disk: tc.disk * float64(i)})
		}
		if got := flat(growths(samples, 500)); len(got) != tc.want {
			t.Errorf("%s: %v, want %d lines", tc.name, got, tc.want)
		}
	}
}

// TestFlatProcesses guards that the processes of a node are judged apart: a process that started again begins small.
func TestFlatProcesses(t *testing.T) {
	var samples []Sample
	for i := range 200 {
		samples = append(samples, Sample{At: time.Duration(i) * sampleEvery, Node: "eu-1", Process: 1 + i/100, Goroutines: float64(100 + 900*(i/100))})
	}
	if got := flat(growths(samples, 0)); len(got) != 0 {
		t.Error(got)
	}
	for i := range samples {
		samples[i].Process = 1
		samples[i].Goroutines = float64(100 + 20*i)
	}
	if got := flat(growths(samples, 0)); len(got) != 1 {
		t.Errorf("%v, want one line about goroutines", got)
	}
}
