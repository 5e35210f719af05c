package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/rhumbdb/rhumb/bench/chart"
)

// sampleEvery is the time between two looks at the resources of the nodes.
const sampleEvery = 5 * time.Second

// Sample holds the resources that the process of a node used at a moment.
type Sample struct {
	At   time.Duration
	Node string
	// Memory is the resident memory of the process and Disk its data, in MiB. Files and
	// Threads are counts.
	Memory, Disk, Files, Threads float64
}

// resource is a figure of a sample that must not grow without end.
type resource struct {
	name string
	of   func(Sample) float64
	// slack is how much the second half of a run may exceed the first, in addition to
	// flatFactor.
	slack float64
}

// resources returns the figures that are recorded. Only data is expected to grow with
// writes, so it is drawn and not judged.
func resources() []resource {
	return []resource{
		{"memory in MiB", func(s Sample) float64 { return s.Memory }, 64},
		{"open files", func(s Sample) float64 { return s.Files }, 64},
		{"threads", func(s Sample) float64 { return s.Threads }, 16},
	}
}

// The rule of a flat resource: the median of the last third of a run exceeds that of
// its middle third by no more than a quarter, and the slack of the resource. The first
// third is the start, when caches fill. Runs with fewer samples of a node are not
// judged.
const (
	flatFactor  = 1.25
	flatSamples = 60
)

// sampler records the resources of all nodes until its context ends.
type sampler struct {
	mu      sync.Mutex // guards samples
	samples []Sample
}

// follow takes samples until ctx ends.
func (s *sampler) follow(ctx context.Context, nodes func() []*Node, now func() time.Duration) {
	// The first sample is late by one interval: the start of a node is not of interest.
	for wait(ctx, sampleEvery) == nil {
		for _, n := range nodes() {
			// A node that is down has no figures.
			if one, err := n.sample(); err == nil {
				one.At = now()
				s.mu.Lock()
				s.samples = append(s.samples, one)
				s.mu.Unlock()
			}
		}
	}
}

// process returns the folder in /proc of the node's process, as the first host
// process's child that runs the program.
func (n *Node) process() (string, error) {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return "", err
	}
	// Every process of the machine is looked at: the processes of a host have other
	// numbers inside of it.
	for _, name := range all {
		text, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(text), "/usr/bin/rhumb\x00start") {
			continue
		}
		dir := filepath.Dir(name)
		// Hosts have UTS namespaces and network namespaces of their own; the latter has
		// a name.
		if sameFile(filepath.Join(dir, "ns", "net"), n.host.Namespace()) {
			return dir, nil
		}
	}
	return "", errors.New("the node is down")
}

// sameFile reports whether two paths lead to the same file.
func sameFile(a, b string) bool {
	// Device and inode are compared: a namespace has no other name.
	left, err := os.Stat(a)
	if err != nil {
		return false
	}
	right, err := os.Stat(b)
	return err == nil && os.SameFile(left, right)
}

// sample looks at the process of a node and its disk.
func (n *Node) sample() (s Sample, err error) {
	dir, err := n.process()
	if err != nil {
		return s, err
	}
	// The kernel counts pages that the process shares with nobody and those that it
	// maps.
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return s, err
	}
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return s, err
	}
	s = Sample{Node: n.Name, Files: float64(len(files)), Memory: statusField(string(status), "VmRSS") / 1024, Threads: statusField(string(status), "Threads")}
	s.Disk, err = treeSize(n.disk())
	return s, err
}

// statusField returns a number in /proc/PID/status.
func statusField(text, name string) float64 {
	// A field that a kernel lacks counts as zero, which cannot grow.
	_, rest, _ := strings.Cut(text, "\n"+name+":")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	v, _ := strconv.ParseFloat(fields[0], 64)
	return v
}

// treeSize returns the size of the files in a folder, in MiB.
func treeSize(dir string) (mib float64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		// Files come and go while the node runs.
		if err != nil || d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			mib += float64(info.Size()) / (1 << 20)
		}
		return nil
	})
	return mib, err
}

// flat returns a line for each resource of a node that grows against the rule.
func flat(samples []Sample) (broken []string) {
	// Nodes that were replaced have fewer samples, and a start of their own.
	byNode := map[string][]Sample{}
	for _, s := range samples {
		byNode[s.Node] = append(byNode[s.Node], s)
	}
	for node, all := range byNode {
		if len(all) < flatSamples {
			continue
		}
		// Medians, because a fault makes peaks that are no leak.
		third := len(all) / 3
		for _, r := range resources() {
			middle, last := median(all[third:2*third], r.of), median(all[2*third:], r.of)
			if last > middle*flatFactor && last > middle+r.slack {
				broken = append(broken, fmt.Sprintf("%s grows: %s has %.0f in the last third of the run and %.0f in the middle one", r.name, node, last, middle))
			}
		}
	}
	// The nodes are in a map, and the report must not differ from run to run.
	slices.Sort(broken)
	return broken
}

// median returns the median of a figure.
func median(samples []Sample, of func(Sample) float64) float64 {
	var values []float64
	for _, s := range samples {
		values = append(values, of(s))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// drawResources draws memory, files, threads and data of each node over time into one
// PNG file.
func drawResources(path string, samples []Sample, length time.Duration) error {
	var charts []*plot.Plot
	for _, r := range append(resources(), resource{"data in MiB", func(s Sample) float64 { return s.Disk }, 0}) {
		p := plot.New()
		p.Y.Label.Text, p.X.Min, p.X.Max, p.Y.Min = r.name, 0, length.Seconds(), 0
		// Each node is a line of its own in every chart, in the same color.
		lines := map[string]plotter.XYs{}
		var names []string
		for _, s := range samples {
			if lines[s.Node] == nil {
				names = append(names, s.Node)
			}
			lines[s.Node] = append(lines[s.Node], plotter.XY{X: s.At.Seconds(), Y: r.of(s)})
		}
		slices.Sort(names)
		for i, name := range names {
			line, err := plotter.NewLine(lines[name])
			if err != nil {
				return err
			}
			line.Color = nodeColors[i%len(nodeColors)]
			p.Add(line)
			if len(charts) == 0 && i < len(nodeColors) {
				p.Legend.Add(name, line)
			}
		}
		charts = append(charts, p)
	}
	charts[len(charts)-1].X.Label.Text = "seconds"
	return chart.Save(path, charts...)
}
