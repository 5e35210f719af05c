// Package upgrade says how far the upgrade of a cluster is: which cluster version is active, which one the
// programs of the nodes support, what keeps the next one from being finalized, and what to do next
// (docs/operations/upgrade.md).
//
// It is pure: it judges the descriptors of the nodes, which are those of the metadata and name each program, and
// what each node reports of itself. The metadata decides again when a version is finalized.
package upgrade

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// Node is the part of one node in an upgrade.
type Node struct {
	ID    string `json:"id"`
	Name  string `json:"name,omitempty"`
	State string `json:"state"`
	// Program is the version of the node's program, and Supports the cluster versions that it supports.
	Program  string                 `json:"program"`
	Supports []rhumb.ClusterVersion `json:"supports"`
	// Applied is the cluster version that the node has applied, 0 if it does not answer.
	Applied rhumb.ClusterVersion `json:"applied,omitempty"`
	// DatabaseFormat is the lowest format of its databases, 0 if it does not report one.
	DatabaseFormat uint32 `json:"database_format,omitempty"`
	// Holds is why the next version cannot be finalized because of this node, "" if it can.
	Holds string `json:"holds,omitempty"`

	id rhumb.NodeID
}

// Report is the result of Judge.
type Report struct {
	// Version is the active cluster version, and Next the one that can follow, 0 if no node supports one.
	Version rhumb.ClusterVersion `json:"version"`
	Next    rhumb.ClusterVersion `json:"next,omitempty"`
	// Adds lists the features that Next switches on, as far as this program knows them.
	Adds []string `json:"adds,omitempty"`
	// Ready reports that Next can be finalized.
	Ready bool   `json:"ready"`
	Nodes []Node `json:"nodes"`
	// Step says what to do next, "" if there is nothing to do.
	Step string `json:"step,omitempty"`
}

// Judge judges the nodes of a cluster. Forgotten nodes never return, so they are left out.
func Judge(nodes []client.NodeStatus) Report {
	r := Report{Version: rhumb.VersionBase, Nodes: []Node{}}
	for _, n := range nodes {
		// A node may have older metadata, but no node is ahead of it.
		r.Version = max(r.Version, n.ClusterVersion)
	}
	newest := rhumb.ClusterVersion(0)
	for _, n := range nodes {
		if !n.Node.Forgotten {
			newest = max(newest, n.Node.Build().Max)
		}
	}
	if newest > r.Version {
		r.Next = r.Version + 1
		for _, f := range r.Next.Features() {
			r.Adds = append(r.Adds, f.String())
		}
	}
	for _, n := range nodes {
		if !n.Node.Forgotten {
			r.Nodes = append(r.Nodes, r.judgeNode(&n))
		}
	}
	r.Ready = r.Next != 0 && len(r.Held(nil)) == 0
	r.Step = r.nextStep()
	return r
}

// judgeNode judges one node.
func (r *Report) judgeNode(n *client.NodeStatus) Node {
	b := n.Node.Build()
	out := Node{
		ID: n.Node.ID.String(), Name: n.Node.Name, State: n.Node.State.String(), Program: b.Program,
		Applied: n.ClusterVersion, DatabaseFormat: n.DatabaseFormat, id: n.Node.ID,
	}
	for v := b.Min; v <= b.Max; v++ {
		out.Supports = append(out.Supports, v)
	}
	// The active version comes first: such a node is refused when it starts again, whatever comes next.
	need := r.Version
	if b.Supports(need) && r.Next != 0 {
		need = r.Next
	}
	if !b.Supports(need) {
		out.Holds = fmt.Sprintf("runs %s, which does not support version %d", programName(b.Program), need)
		if n.Node.State == rhumb.NodeFenced {
			out.Holds = fmt.Sprintf("is fenced and last ran %s, which does not support version %d", programName(b.Program), need)
		}
	}
	return out
}

// programName returns the version of a program, or a word for a program that reports none.
func programName(program string) string {
	if program == "" {
		return "a program without a version"
	}
	return program
}

// Held returns the nodes that keep Next from being finalized, other than those in without.
func (r *Report) Held(without []rhumb.NodeID) (held []Node) {
	for _, n := range r.Nodes {
		if n.Holds != "" && !slices.Contains(without, n.id) {
			held = append(held, n)
		}
	}
	return held
}

// Waiting returns the nodes that answer, or should, and have not applied a version yet. A fenced node
// applies it when it returns.
func (r *Report) Waiting(v rhumb.ClusterVersion) (ids []string) {
	for _, n := range r.Nodes {
		if n.State != rhumb.NodeFenced.String() && n.Applied < v {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// nextStep returns the next step of an operator.
func (r *Report) nextStep() string {
	var running, fenced []string
	for _, n := range r.Held(nil) {
		if n.State == rhumb.NodeFenced.String() {
			fenced = append(fenced, n.ID)
		} else {
			running = append(running, n.ID)
		}
	}
	switch {
	case r.Ready:
		return fmt.Sprintf("run `rhumb upgrade finalize` when the nodes have proved themselves; until then every node can go back to the release before %s", r.Next.Release())
	case r.Next == 0 && len(running)+len(fenced) > 0:
		return fmt.Sprintf("install release %s on %s before it starts again, or run `rhumb node forget` if its disk is lost", r.Version.Release(), strings.Join(append(running, fenced...), " "))
	case len(running) > 0:
		return fmt.Sprintf("install release %s on %s, one node after the other, and restart it", r.Next.Release(), strings.Join(running, " "))
	case len(fenced) > 0:
		return fmt.Sprintf("start %s with release %s; if it is lost, run `rhumb node forget`, or finalize with --without", strings.Join(fenced, " "), r.Next.Release())
	}
	return ""
}

// Note returns one sentence about an upgrade that is under way, or "".
func (r *Report) Note() string {
	held := r.Held(nil)
	switch {
	case r.Ready:
		return fmt.Sprintf("all nodes support cluster version %d, and version %d is active: run `rhumb upgrade finalize` to finish the upgrade", r.Next, r.Version)
	case r.Next == 0:
		return ""
	}
	return fmt.Sprintf("an upgrade to cluster version %d is under way: %d of %d nodes run a program that supports it; see `rhumb upgrade status`", r.Next, len(r.Nodes)-len(held), len(r.Nodes))
}
