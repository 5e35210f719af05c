package local

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
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
	// Process is the number of the process: a restarted process begins with none of the resources of the old one.
	Process int
	// Memory is the resident memory of the process and Disk its data, in MiB. Files, Threads
	// and Goroutines are counts.
	Memory, Disk, Files, Threads, Goroutines float64
}

// resource is a figure of a sample that must not grow without end.
type resource struct {
	name string
	of   func(Sample) float64
	// A resource may grow by flatShare of its median, or by slack and perCall for each call of
	// the callers, whichever is more.
	slack, perCall float64
}

// resources returns the figures that are recorded and judged. The callers add records all the
// time, so data may grow with the calls: the copy of a record that each node has, its log, and
// tables that are not compacted yet.
func resources() []resource {
	return []resource{
		{"memory in MiB", func(s Sample) float64 { return s.Memory }, 64, 0},
		{"goroutines", func(s Sample) float64 { return s.Goroutines }, 200, 0},
		{"open files", func(s Sample) float64 { return s.Files }, 64, 0},
		{"threads", func(s Sample) float64 { return s.Threads }, 16, 0},
		{"data in MiB", func(s Sample) float64 { return s.Disk }, 256, 1. / 1024},
	}
}

// The rule of a flat resource: over the second half of the samples of a process, the line
// through them rises by no more than a quarter of their median, or the slack of the resource.
// The first half is the start, when caches fill. Processes with fewer samples are not judged: memory goes up and down by
// 80 MiB within a minute or two, and a half that is not much longer says nothing.
const (
	flatShare   = 0.25
	flatSamples = 90
)

// growth is how a resource of a process grew over the second half of its samples.
type growth struct {
	node     string
	resource resource
	// median, grown and most are in the unit of the resource; over is the time.
	median, grown, most float64
	over                time.Duration
}

// sampler records the resources of all nodes until its context ends.
type sampler struct {
	mu      sync.Mutex // guards the fields below
	samples []Sample
	err     error // of the last sample that failed
}

// follow takes samples until ctx ends, and profiles if there is a folder for them.
func (s *sampler) follow(ctx context.Context, c *Cluster, profiles string, now func() time.Duration) {
	var profiled time.Duration
	// The first sample is late by one interval: the start of a node is not of interest.
	for wait(ctx, sampleEvery) == nil {
		for _, n := range c.Nodes() {
			// A node that is down or does not answer has no figures.
			one, err := c.sample(ctx, n)
			one.At = now()
			s.mu.Lock()
			if err != nil {
				s.err = err
			} else {
				s.samples = append(s.samples, one)
			}
			s.mu.Unlock()
		}
		if at := now(); profiles != "" && at-profiled >= profileEvery {
			profiled = at
			if err := c.keepProfiles(ctx, profiles, at); err != nil {
				c.Logf("no profiles: %v", err)
			}
		}
	}
}

// process returns the folder in /proc of the node's process.
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
func (c *Cluster) sample(ctx context.Context, n *Node) (s Sample, err error) {
	dir, err := n.process()
	if err != nil {
		return s, err
	}
	// The resident memory includes the pages of files that the process has mapped.
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return s, err
	}
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return s, err
	}
	s = Sample{Node: n.Name, Files: float64(len(files))}
	if s.Memory, err = statusField(string(status), "VmRSS"); err != nil {
		return s, err
	}
	s.Memory /= 1024 // the kernel counts in KiB
	if s.Threads, err = statusField(string(status), "Threads"); err != nil {
		return s, err
	}
	if s.Process, err = strconv.Atoi(filepath.Base(dir)); err != nil {
		return s, err
	}
	if s.Disk, err = treeSize(n.disk()); err != nil {
		return s, err
	}
	s.Goroutines, err = c.metric(ctx, n, "go_goroutines")
	return s, err
}

// adminWait bounds the wait for an answer of a node's admin port. The node may be stopped.
const adminWait = 2 * time.Second

// admin reads a page of the admin port of a node, as the operator.
func (c *Cluster) admin(ctx context.Context, n *Node, page string) ([]byte, error) {
	dir := filepath.Join(c.cfg.Dir, "operator")
	// Loaded each time, because a fault replaces the certificates.
	own, err := tls.LoadX509KeyPair(filepath.Join(dir, "operator.crt"), filepath.Join(dir, "operator.key"))
	if err != nil {
		return nil, err
	}
	authorities, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authorities)
	// The certificate of a node has its name and not its address.
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{own}, RootCAs: trusted, ServerName: n.Name, MinVersion: tls.VersionTLS13,
	}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, adminWait)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://%s:%d%s", n.Addr, portAdmin, page), nil)
	if err != nil {
		return nil, err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s to %s", n.Name, answer.Status, page)
	}
	return io.ReadAll(io.LimitReader(answer.Body, adminMost))
}

// metric reads one figure of the metrics of a node.
func (c *Cluster) metric(ctx context.Context, n *Node, name string) (float64, error) {
	text, err := c.admin(ctx, n, "/metrics")
	if err != nil {
		return 0, err
	}
	// The format is that of Prometheus: lines with a name, labels and a value. The
	// metric has no labels.
	_, rest, ok := strings.Cut(string(text), "\n"+name+" ")
	if !ok {
		return 0, fmt.Errorf("the metrics of %s have no %s", n.Name, name)
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseFloat(line, 64)
}

// profileEvery is the time between two profiles of the memory of each node. A run of two hours has
// 13 of each node.
const profileEvery = 10 * time.Minute

// keepProfiles writes a heap profile and the metrics of each node into a folder. They show what
// grew if the memory of a process did. A node that does not answer has none.
func (c *Cluster) keepProfiles(ctx context.Context, dir string, at time.Duration) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, n := range c.Nodes() {
		for page, end := range map[string]string{"/debug/pprof/heap": "heap.pb.gz", "/metrics": "metrics.txt"} {
			b, err := c.admin(ctx, n, page)
			if err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%05.0fs-%s", n.Name, at.Seconds(), end)), b, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// adminMost bounds a page of the admin port, in bytes.
const adminMost = 16 << 20

// statusField returns a number in /proc/PID/status. A field that is missing is an error: a figure
// that is always zero never grows.
func statusField(text, name string) (float64, error) {
	_, rest, _ := strings.Cut(text, "\n"+name+":")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, fmt.Errorf("the status of the process has no %s", name)
	}
	return strconv.ParseFloat(fields[0], 64)
}

// treeSize returns the size of the files in a folder, in MiB.
func treeSize(dir string) (mib float64, err error) {
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		// A folder that cannot be read is not one whose data does not grow.
		if err != nil && path == dir {
			return err
		}
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

// growths returns how the resources of each process grew, in the order of the nodes. callsPerSecond
// are those of all callers.
func growths(samples []Sample, callsPerSecond float64) (out []growth) {
	type process struct {
		node   string
		number int
	}
	byProcess := map[process][]Sample{}
	var order []process
	for _, s := range samples {
		p := process{s.Node, s.Process}
		if byProcess[p] == nil {
			order = append(order, p)
		}
		byProcess[p] = append(byProcess[p], s)
	}
	slices.SortStableFunc(order, func(a, b process) int { return strings.Compare(a.node, b.node) })
	for _, p := range order {
		all := byProcess[p]
		if len(all) < flatSamples {
			continue
		}
		// The samples of a process are in the order of time.
		second := all[len(all)/2:]
		over := second[len(second)-1].At - second[0].At
		for _, r := range resources() {
			g := growth{node: p.node, resource: r, median: median(second, r.of), grown: slope(second, r.of) * over.Seconds(), over: over}
			g.most = max(flatShare*g.median, r.slack+r.perCall*callsPerSecond*over.Seconds())
			out = append(out, g)
		}
	}
	return out
}

// judgedNodes counts the nodes whose last process was there at the end of a run, which is its last
// quarter, and lived long enough to be judged.
func judgedNodes(samples []Sample, length time.Duration) (count int) {
	last, lived := map[string]Sample{}, map[string]int{}
	for _, s := range samples {
		if last[s.Node].Process != s.Process {
			lived[s.Node] = 0
		}
		lived[s.Node]++
		last[s.Node] = s
	}
	for node, s := range last {
		if s.At >= length-length/4 && lived[node] >= flatSamples {
			count++
		}
	}
	return count
}

// flat returns a line for each resource of a process that grows against the rule.
func flat(all []growth) (broken []string) {
	// The order is that of the nodes and of the resources.
	for _, g := range all {
		if g.grown > g.most {
			broken = append(broken, fmt.Sprintf("%s grows: %s has %.0f, and %.0f more within the last %v of its process, the bound is %.0f",
				g.resource.name, g.node, g.median, g.grown, g.over.Round(time.Second), g.most))
		}
	}
	return broken
}

// slope returns by how much a figure grows in a second: the median of the slopes between all
// pairs of samples (Theil and Sen), because a fault makes peaks that are no leak.
func slope(samples []Sample, of func(Sample) float64) float64 {
	var slopes []float64
	// A sample in the first half has a partner in the second, so that the pairs are far apart.
	half := len(samples) / 2
	for _, a := range samples[:half] {
		for _, b := range samples[half:] {
			if d := (b.At - a.At).Seconds(); d > 0 {
				slopes = append(slopes, (of(b)-of(a))/d)
			}
		}
	}
	if len(slopes) == 0 {
		return 0
	}
	slices.Sort(slopes)
	return slopes[len(slopes)/2]
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

// drawResources draws memory, goroutines, files, threads and data of each node over time into
// one PNG file.
func drawResources(path string, samples []Sample, length time.Duration) error {
	var charts []*plot.Plot
	for _, r := range resources() {
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
