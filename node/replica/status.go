package replica

import (
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// State is the role of a replica (docs/replication.md#roles).
type State uint8

// The states.
const (
	// Learner copies the log and does not count for commits.
	Learner State = 1
	// Follower is a member of the in-sync set according to the newest record.
	Follower State = 2
	// Activating was elected and waits until its promise is durable and its grants to others have
	// ended. It rejects proposals as Unavailable.
	Activating State = 3
	// Primary orders writes.
	Primary State = 4
	// Quarantined found a contradiction in its data. It keeps the data, acknowledges nothing, and
	// waits for repair.
	Quarantined State = 5
)

// String returns the stable name of the state.
func (s State) String() string {
	switch s {
	case Learner:
		return "learner"
	case Follower:
		return "follower"
	case Activating:
		return "activating"
	case Primary:
		return "primary"
	case Quarantined:
		return "quarantined"
	}
	return fmt.Sprintf("state_%d", uint8(s))
}

// State returns the role as seen by other packages.
func (r *Replica) State() State {
	switch r.role {
	case activating:
		return Activating
	case primary:
		return Primary
	case quarantined:
		return Quarantined
	}
	if r.desc != nil && r.desc.IsInSync(r.cfg.Self) {
		return Follower
	}
	return Learner
}

// Status describes a replica for operators. It is a copy.
type Status struct {
	Range rhumb.RangeID
	Self  rhumb.NodeID
	State State
	// Epoch is the newest promised epoch and Primary its primary, if known.
	Epoch   rhumb.Epoch
	Primary rhumb.NodeID
	// Version is the version of the newest record of the range.
	Version uint64
	// Last, Durable, Commit and Trim are positions of this replica's log. Start is the position of the
	// epoch-start entry (primary only).
	Last      entry.Position
	LastHLC   rhumb.Timestamp
	Durable   rhumb.Seq
	Commit    rhumb.Seq
	CommitHLC rhumb.Timestamp
	Trim      rhumb.Seq
	Start     rhumb.Seq
	// InSync is the in-sync set, Pending the wanted set while a change is undecided, or nil (primary
	// only).
	InSync  []rhumb.NodeID
	Pending []rhumb.NodeID
	// Peers lists the other replicas by node ID (primary only).
	Peers []PeerStatus
	// Proposals and UncommittedBytes measure what waits for its commit.
	Proposals        int
	UncommittedBytes int
	// Quarantine is the reason of the quarantine, or "".
	Quarantine string
	// Preparing explains what keeps an elected replica from beginning its epoch, other than the leases
	// that it granted, or "".
	Preparing string
}

// PeerStatus is a primary's view of another replica.
type PeerStatus struct {
	Node   rhumb.NodeID
	InSync bool
	// Match is the last acknowledged position, Next the next to send, Commit the commit position that
	// the peer reported.
	Match, Next, Commit rhumb.Seq
	InflightBytes       int
	// LagBytes is the approximate number of bytes that the peer lacks.
	LagBytes           int64
	Connected, Suspect bool
	// Flow is "probe", "replicate", "lost" (the log that the peer needs is trimmed) or "quarantined".
	Flow string
	// Lost is a position that the peer acknowledged before its disk lost the entry; 0 if none was
	// lost.
	Lost rhumb.Seq
	// Why is the reason why a learner does not join the in-sync set; "" for members.
	Why string
}

// Status returns a copy of the state for operators.
func (r *Replica) Status() Status {
	last := r.log.last()
	s := Status{
		Range: r.cfg.Range, Self: r.cfg.Self, State: r.State(), Epoch: r.promised, Primary: r.promisedTo,
		Last: last.Position, LastHLC: last.HLC, Durable: r.durable, Commit: r.commit, CommitHLC: r.commitHLC,
		Trim: r.log.trim, Start: r.start, InSync: slices.Clone(r.inSync), Pending: slices.Clone(r.change.members),
		Proposals: r.waiters.len(), UncommittedBytes: r.orders.uncommitted + r.orders.bytes, Quarantine: r.quarantineReason, Preparing: r.prep.waitingFor,
	}
	if r.desc != nil {
		s.Version = r.desc.Version
	}
	for _, p := range r.peers {
		ps := PeerStatus{
			Node: p.node, InSync: p.inSync, Match: p.match, Next: p.next, Commit: p.commit, InflightBytes: p.inflight.bytes,
			LagBytes: r.lagBytes(p), Connected: p.connected, Suspect: p.suspect, Flow: p.flow.String(), Lost: p.lost,
		}
		switch {
		case p.inSync:
		case p.pending && r.change.unsent:
			ps.Why = fmt.Sprintf("it has acknowledged the log up to %d and needs %d", p.match, max(r.commit, r.start))
		case p.pending:
			ps.Why = "it joins as soon as metadata has decided"
		default:
			ps.Why = r.whyNotJoin(p)
		}
		s.Peers = append(s.Peers, ps)
	}
	return s
}
