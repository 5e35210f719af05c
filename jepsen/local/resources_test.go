package local

import (
	"os"
	"path/filepath"
	"strings"
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
		{"a leak with a fault in between", func(i int) float64 { return 100 + 10*float64(i)*map[bool]float64{true: 0.1, false: 1}[i == 80] }, 1},
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

// TestFlatBounds guards how much each resource may grow: just below its bound is valid, and just
// above it is not.
func TestFlatBounds(t *testing.T) {
	for _, tc := range []struct {
		name             string
		set              func(*Sample, float64)
		begin            float64
		allowed, refused float64 // the growth with each sample
	}{
		// The last 45 of 90 samples count, between which 44 intervals are.
		{"memory in MiB", func(s *Sample, v float64) { s.Memory = v }, 50, 64 / 45., 64 / 43.},
		{"goroutines", func(s *Sample, v float64) { s.Goroutines = v }, 50, 200 / 45., 200 / 43.},
		{"open files", func(s *Sample, v float64) { s.Files = v }, 50, 64 / 45., 64 / 43.},
		{"threads", func(s *Sample, v float64) { s.Threads = v }, 10, 16 / 45., 16 / 43.},
		// 500 calls a second for 220 s, of 1 KiB each.
		{"data in MiB", func(s *Sample, v float64) { s.Disk = v }, 50, (256 + 107) / 45., (256 + 108) / 43.},
		// Large figures may grow by a quarter of their median, which is here at the 67th sample.
		{"memory in MiB", func(s *Sample, v float64) { s.Memory = v }, 4000, 1000 / 27.5, 1000 / 27.},
	} {
		for growth, want := range map[float64]int{tc.allowed: 0, tc.refused: 1} {
			var samples []Sample
			for i := range 90 {
				s := Sample{At: time.Duration(i) * sampleEvery, Node: "eu-1", Memory: 100, Goroutines: 100, Files: 50, Threads: 12, Disk: 100}
				tc.set(&s, tc.begin+growth*float64(i))
				samples = append(samples, s)
			}
			if got := flat(growths(samples, 500)); len(got) != want || want == 1 && !strings.HasPrefix(got[0], tc.name) {
				t.Errorf("%s, %.2f with each sample: %v, want %d lines", tc.name, growth, got, want)
			}
		}
	}
}

// TestJudgedNodes guards that a node whose process ends again and again does not count as judged.
func TestJudgedNodes(t *testing.T) {
	for _, tc := range []struct {
		name    string
		process func(i int) int // of 200 samples; 0 is none
		want    int
	}{
		{"one process", func(int) int { return 1 }, 1},
		{"a process that began again in the middle", func(i int) int { return 1 + i/100 }, 1},
		{"a process that began again at the end", func(i int) int { return 1 + i/150 }, 0},
		{"a process that begins again and again", func(i int) int { return 1 + i/50 }, 0},
		{"a node that left", func(i int) int { return max(0, 1-i/140) }, 0},
	} {
		// The node beside it is well, and its samples come in between.
		var samples []Sample
		for i := range 200 {
			at := time.Duration(i) * sampleEvery
			samples = append(samples, Sample{At: at, Node: "eu-1", Process: 7})
			if p := tc.process(i); p > 0 {
				samples = append(samples, Sample{At: at, Node: "eu-2", Process: p})
			}
		}
		if got := judgedNodes(samples, 200*sampleEvery); got != 1+tc.want {
			t.Errorf("%s: %d nodes, want %d", tc.name, got, 1+tc.want)
		}
	}
}

// TestFigures guards that a figure which cannot be read is an error, and not one that never grows.
func TestFigures(t *testing.T) {
	const status = "Name:\trhumb\nVmRSS:\t   2048 kB\nThreads:\t12\n"
	if got, err := statusField(status, "VmRSS"); got != 2048 || err != nil {
		t.Error(got, err)
	}
	for text, name := range map[string]string{status: "VmHWM", "Name:\trhumb\nThreads:\n": "Threads", "Name:\trhumb\nThreads:\tmany\n": "Threads"} {
		if got, err := statusField(text, name); err == nil {
			t.Errorf("%s in %q is %v", name, text, got)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "log"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := treeSize(dir); got != 1 || err != nil {
		t.Error(got, err)
	}
	if got, err := treeSize(filepath.Join(dir, "missing")); err == nil {
		t.Errorf("a folder that is missing has %v MiB", got)
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
