package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestPlanCheck guards that values which would prove nothing are refused before a cluster starts.
func TestPlanCheck(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(p *Plan, cfg *Config, trials *int)
		want   string
	}{
		{"the defaults", func(*Plan, *Config, *int) {}, ""},
		{"names", func(p *Plan, _ *Config, _ *int) { p.Faults, p.Workloads = []string{"kill"}, []string{"bank"} }, ""},
		{"faults that are healed at once", func(p *Plan, _ *Config, _ *int) { p.Hold = -5 * time.Second }, "faults of -5s: want more than 0"},
		{"no time", func(p *Plan, _ *Config, _ *int) { p.Duration = 0 }, "a duration of 0s"},
		{"no load", func(p *Plan, _ *Config, _ *int) { p.PerSecond = 0 }, "a rate of 0"},
		{"no nodes", func(_ *Plan, cfg *Config, _ *int) { cfg.Nodes = 0 }, "0 nodes"},
		{"no regions", func(_ *Plan, cfg *Config, _ *int) { cfg.Regions = nil }, "0 regions"},
		{"a region without a name", func(_ *Plan, cfg *Config, _ *int) { cfg.Regions = []string{""} }, `region "" is empty`},
		{"a region twice", func(_ *Plan, cfg *Config, _ *int) { cfg.Regions = []string{"eu", "us", "eu"} }, `region "eu" is empty or named twice`},
		{"less than no trials", func(_ *Plan, _ *Config, trials *int) { *trials = -1 }, "-1 trials"},
		{"an unknown fault", func(p *Plan, _ *Config, _ *int) { p.Faults = []string{"kill", "flood"} }, `unknown fault "flood"`},
		{"an unknown workload", func(p *Plan, _ *Config, _ *int) { p.Workloads = []string{"chess"} }, `unknown workload "chess"`},
	} {
		p, cfg, trials := Plan{Duration: time.Minute, Hold: time.Second, PerSecond: 500}, Config{Regions: []string{"eu", "us"}, Nodes: 3}, 0
		tt.change(&p, &cfg, &trials)
		err := p.Check(&cfg, trials)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestClearReport guards that the report of an earlier run does not stay beside that of a new one, and
// that its trials do.
func TestClearReport(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{reportText, reportImage, filepath.Join(logsFolder, "eu-1.log"), availabilityFile} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := ClearReport(dir); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != availabilityFile {
		t.Errorf("%v is left: %v", left, err)
	}
	if err := ClearReport(filepath.Join(dir, availabilityFile)); err == nil {
		t.Error("a file passes for a folder")
	}
}
