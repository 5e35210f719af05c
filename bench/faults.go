package bench

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/wan"
)

// FaultKind is a kind of fault in a cluster.
type FaultKind string

// The kinds of faults. Links are cut between nodes only; callers reach every node.
const (
	// FaultKill is kill -9. The demo restarts the node after three seconds.
	FaultKill FaultKind = "kill"
	// FaultPause is SIGSTOP, with SIGCONT at the end.
	FaultPause FaultKind = "pause"
	// FaultOneWay loses everything from one node to another. The other direction works.
	FaultOneWay FaultKind = "oneway"
	// FaultRing leaves each node the links to its two neighbours. Of three nodes it cuts one link.
	FaultRing FaultKind = "ring"
	// FaultBridge splits the nodes into two halves with one node between them that reaches both. Of
	// three nodes it cuts one link.
	FaultBridge FaultKind = "bridge"
	// FaultHalfOpen makes the connections between two nodes lose everything that one of them sends,
	// while they stay open. New connections work.
	FaultHalfOpen FaultKind = "halfopen"
)

// FaultKinds returns all kinds of faults.
func FaultKinds() []FaultKind {
	return []FaultKind{FaultKill, FaultPause, FaultOneWay, FaultRing, FaultBridge, FaultHalfOpen}
}

// applyCuts adds the cuts of a fault to a latency file. names are the nodes, in the order of the
// ring or line.
func applyCuts(kind FaultKind, f *wan.File, names []string) {
	n := len(names)
	cut := func(apart func(i, j int) bool) {
		for i := range names {
			for j := i + 1; j < n; j++ {
				if apart(i, j) {
					f.Cut = append(f.Cut, []string{names[i], names[j]})
				}
			}
		}
	}
	switch {
	case kind == FaultOneWay:
		f.CutOneWay = append(f.CutOneWay, []string{names[0], names[1]})
	case kind == FaultHalfOpen:
		f.HalfOpen = append(f.HalfOpen, []string{names[0], names[1]})
	// Of three nodes, a ring without one link is a line, and so is a bridge.
	case n <= 3:
		cut(func(i, j int) bool { return i == 0 && j == 1 })
	case kind == FaultRing:
		cut(func(i, j int) bool { return j != i+1 && (i != 0 || j != n-1) })
	case kind == FaultBridge:
		cut(func(i, j int) bool { return i < n/2 && j > n/2 })
	}
}

// Fault is one fault, which lasts until Heal.
type Fault struct {
	Kind FaultKind
	// Victim is the node that the others may consider dead, or NoNode if all nodes stay alive.
	Victim rhumb.NodeID
	// What describes the fault.
	What string
	// heal ends the fault, or is nil for a fault that ends without it.
	heal func() error
}

// Strike injects a fault and draws the affected nodes from the random source. Only clusters that
// were started with --cuts can lose links.
func (c *Cluster) Strike(kind FaultKind, random *rand.Rand) (*Fault, error) {
	nodes := slices.Clone(c.Nodes)
	// The order decides the victim, the ends of a cut link and the neighbours in a ring.
	random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	if kind != FaultKill && kind != FaultPause {
		return c.strikeLinks(kind, nodes)
	}
	// The nodes are shuffled, so the first one is a random victim.
	victim := nodes[0]
	pid, err := pidOf(victim.Addr)
	if err != nil {
		return nil, err
	}
	f := &Fault{Kind: kind, Victim: victim.ID, What: fmt.Sprintf("%s %s", kind, victim.ID)}
	signal := syscall.SIGKILL
	if kind == FaultPause {
		// A stopped process keeps its connections open: its peers hear only silence.
		signal = syscall.SIGSTOP
		f.heal = func() error { return syscall.Kill(pid, syscall.SIGCONT) }
	}
	if err := syscall.Kill(pid, signal); err != nil {
		return nil, fmt.Errorf("%s %d: %w", signal, pid, err)
	}
	return f, nil
}

// strikeLinks cuts links between the nodes, in the order of nodes.
func (c *Cluster) strikeLinks(kind FaultKind, nodes []ClusterNode) (*Fault, error) {
	whole, err := wan.ReadFile(c.LatencyFile)
	if err != nil {
		return nil, err
	}
	// A second copy, because the cuts change the file in place.
	hurt, err := wan.ReadFile(c.LatencyFile)
	if err != nil {
		return nil, err
	}
	f := &Fault{Kind: kind, What: string(kind)}
	var names []string
	for _, n := range nodes {
		name, ok := nameOf(whole, n.Addr)
		if !ok {
			return nil, fmt.Errorf("latency file %s does not name node %s; start the cluster with --cuts", c.LatencyFile, n.ID)
		}
		names = append(names, name)
		f.What += " " + n.ID.String()
	}
	applyCuts(kind, hurt, names)
	// Healing restores the file as it was before the fault.
	f.heal = func() error { return whole.Save(c.LatencyFile) }
	return f, hurt.Save(c.LatencyFile)
}

// nameOf returns the name of the node at an address in a latency file.
func nameOf(f *wan.File, addr string) (string, bool) {
	for name, addrs := range f.Nodes {
		if slices.Contains(addrs, addr) {
			return name, true
		}
	}
	return "", false
}

// Heal ends the fault.
func (f *Fault) Heal() error {
	if f.heal == nil {
		return nil
	}
	return f.heal()
}

// metricTimeout bounds the request for the metrics of a node.
const metricTimeout = 2 * time.Second

// Withheld returns how many bytes cut links and half-open connections have withheld since the nodes
// started. It proves that links are cut. Nodes that do not answer are left out.
func (c *Cluster) Withheld(ctx context.Context) (sum float64) {
	for _, n := range c.Nodes {
		v, err := readMetric(ctx, n.AdminAddr, "rhumb_wan_withheld_bytes_total")
		if err == nil {
			sum += v
		}
	}
	return sum
}

// Sum returns the sum of a metric over all nodes. Nodes that do not answer are left out.
func (c *Cluster) Sum(ctx context.Context, name string) (sum float64) {
	return sumMetric(ctx, c.Admins(), name)
}

// Admins returns the admin addresses of all nodes.
func (c *Cluster) Admins() (addrs []string) {
	for _, n := range c.Nodes {
		addrs = append(addrs, n.AdminAddr)
	}
	return addrs
}

// sumMetric returns the sum of a metric over nodes. Nodes that do not answer are left out.
func sumMetric(ctx context.Context, admins []string, name string) (sum float64) {
	for _, admin := range admins {
		if v, err := readMetric(ctx, admin, name); err == nil {
			sum += v
		}
	}
	return sum
}

// readMetric reads a metric of a node, or the sum of its values if it has labels.
func readMetric(ctx context.Context, admin, name string) (v float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, metricTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	found := false
	for line := range strings.Lines(string(text)) {
		// The space or the brace excludes metrics whose names contain this one.
		rest, ok := strings.CutPrefix(line, name)
		if !ok || !strings.HasPrefix(rest, " ") && !strings.HasPrefix(rest, "{") {
			continue
		}
		var one float64
		if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &one); err != nil {
			return 0, fmt.Errorf("%s: metric %s: %w", admin, name, err)
		}
		v, found = v+one, true
	}
	if !found {
		return 0, fmt.Errorf("%s has no metric %s", admin, name)
	}
	return v, nil
}

// isStopped reports whether the process that listens on an address is stopped.
func isStopped(addr string) bool {
	pid, err := pidOf(addr)
	if err != nil {
		return false
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The state follows the name of the command in parentheses.
	_, after, ok := strings.Cut(string(text), ") ")
	return err == nil && ok && strings.HasPrefix(after, "T")
}
