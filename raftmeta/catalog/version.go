package catalog

import (
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
)

// While nodes of two builds are in a cluster, both apply the same log and must reach the same state. Until
// the cluster version is raised, therefore,
//
//   - no command, field or value enters the log that the older build cannot decode: it would stop there.
//     A command says by needs which feature it belongs to, and is refused without it.
//   - the commands that both builds know do exactly the same. A command whose effect changes
//     asks t.Version().Has. TestBaseReplay compares with the results of the earlier build.
//   - a state has no field that the older build does not know, because a leader of the newer build may send
//     the state to it. A field that only admitted commands set is missing until then.

// needing is a command that earlier builds cannot decode, or that has a field which they cannot decode. needs
// returns the feature that it belongs to, or rhumb.NoFeature if no such field is set.
type needing interface{ needs() rhumb.Feature }

// Version returns the active cluster version.
func (s *State) Version() rhumb.ClusterVersion { return max(s.version, rhumb.VersionBase) }

// Has reports whether every node can read what belongs to the feature.
func (s *State) Has(f rhumb.Feature) bool { return s.Version().Has(f) }

// Admits returns an error if a command belongs to a feature that the active cluster version does not have.
// Whoever proposes asks first: an older build stops at such a command in the log. Versions only grow, so what
// an old state admits, every newer one does.
func (s *State) Admits(cmd Command) error {
	const op rhumb.Op = "catalog.Admits"
	if b, ok := cmd.(Batch); ok {
		for _, item := range b.Commands {
			if err := s.Admits(item); err != nil {
				return err
			}
		}
		return nil
	}
	n, ok := cmd.(needing)
	if !ok {
		return nil
	}
	if f := n.needs(); !s.Has(f) {
		return rhumb.Ef(op, rhumb.Incompatible, "%s needs cluster version %d, and the cluster runs at version %d; upgrade every node, then run `rhumb upgrade finalize`",
			f, f.Since(), s.Version())
	}
	return nil
}

// applyAdmitted applies a command, or refuses it if it needs a feature that is not active. A batch is
// judged item by item: one refused command does not stop the others.
func (t *tx) applyAdmitted(cmd Command) Result {
	if _, batch := cmd.(Batch); !batch {
		if err := t.Admits(cmd); err != nil {
			return refuseErr("catalog.Apply", err)
		}
	}
	return cmd.applyTo(t)
}

// raiseVersion sets the active version. VersionBase is stored as nothing, as the builds of that version did.
func (t *tx) raiseVersion(v rhumb.ClusterVersion) {
	if v <= t.Version() {
		return
	}
	t.version = v
	t.changes.Version = true
}

// checkBuild returns an error if a node cannot be a member at the active version. At VersionBase every node
// is accepted, because the builds of that version check nothing and all replicas must decide alike; the
// metadata leader refuses what only a later version allows (CheckBuild).
func (t *tx) checkBuild(c RegisterNode) error {
	if t.Version() == rhumb.VersionBase {
		return nil
	}
	return t.CheckBuild(c)
}

// CheckBuild returns an error if a node that registers cannot be a member at the active version.
func (s *State) CheckBuild(c RegisterNode) error {
	return rhumb.ParseBuild(c.Binary).CheckActive(s.Version())
}

// Laggards returns the nodes that keep a version from being finalized: those that are not forgotten and
// whose program does not support the version.
func (s *State) Laggards(v rhumb.ClusterVersion) (out []*rhumb.Node) {
	for n := range s.Nodes() {
		if !n.Forgotten && !n.Build().Supports(v) {
			out = append(out, n)
		}
	}
	return out
}

// applyTo raises the version by one.
func (c SetClusterVersion) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetClusterVersion"
	switch {
	case t.cluster.IsZero():
		return refuse(op, rhumb.Unavailable, "the cluster does not exist yet; create it with rhumb init")
	// A repetition, or a second operator.
	case c.Version == t.Version():
		return Result{}
	case c.Previous != t.Version():
		return refuse(op, rhumb.Conflict, "the cluster runs at version %d and not at %d any more; look at `rhumb upgrade status`", t.Version(), c.Previous)
	// Each build supports two versions, so a step of two would leave no build that can be on both sides.
	case c.Version != t.Version()+1:
		return refuse(op, rhumb.InvalidArgument, "the cluster runs at version %d, so the next is %d and not %d", t.Version(), t.Version()+1, c.Version)
	}
	var old []string
	for _, n := range t.Laggards(c.Version) {
		if slices.Contains(c.Without, n.ID) {
			// A node that serves would stop at the next command.
			if n.State == rhumb.NodeFenced {
				continue
			}
			return refuse(op, rhumb.Conflict, "%s is %s and runs %s, which does not support version %d; only a fenced node can be left out", n.ID, n.State, n.Build().Program, c.Version)
		}
		old = append(old, n.ID.String()+" ("+n.State.String()+", "+n.Build().Program+")")
	}
	if len(old) > 0 {
		return refuse(op, rhumb.Conflict, "version %d needs release %s or newer on every node; still older: %s", c.Version, c.Version.Release(), strings.Join(old, ", "))
	}
	t.raiseVersion(c.Version)
	return Result{}
}

// checkKnown returns an error for a cluster version that this binary does not know.
func checkKnown(op rhumb.Op, v rhumb.ClusterVersion) error {
	if v <= rhumb.VersionNewest {
		return nil
	}
	return rhumb.Ef(op, rhumb.Incompatible, "the cluster runs at cluster version %d, and this binary knows versions up to %d; use a newer binary", v, rhumb.VersionNewest)
}

// checkRaise returns an error for a command that raises the version above those that this binary knows.
// Applying it would let later commands through that the binary misreads.
func checkRaise(cmd Command) error {
	const op rhumb.Op = "catalog.DecodeCommand"
	switch c := cmd.(type) {
	case SetClusterVersion:
		return checkKnown(op, c.Version)
	case Init:
		return checkKnown(op, rhumb.ParseBuild(c.First.Binary).Max)
	}
	return nil
}
