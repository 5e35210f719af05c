package replica

import (
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// State is the role of a replica (section 1.4 of the replication design).
type State uint8

// The states.
const (
	// Learner copies the log and does not count for commit.
	Learner State = 1
	// Follower is a member of the in-sync set as last heard.
	Follower State = 2
	// Activating was elected and waits for its promise to be durable and for the grants it gave to end. It refuses
	// proposals as Unavailable.
	Activating State = 3
	// Primary orders writes.
	Primary State = 4
	// Quarantined found a contradiction in its data. It keeps the data, acknowledges nothing, and waits for repair.
	Quarantined State = 5
)

// String gives the stable name of the state.
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

// Status is what a replica tells a person. It is a copy.
type Status struct {
	Range rhumb.RangeID
	Self  rhumb.NodeID
	State State
	// Epoch is the newest promised epoch and Primary its primary, as far as known.
	Epoch   rhumb.Epoch
	Primary rhumb.NodeID
	// Version is that of the newest record of the range.
	Version uint64
	// Last, Durable, Commit and Trim are positions of this replica's log; Start is the epoch-start entry (primary only).
	Last      entry.Position
	LastHLC   rhumb.Timestamp
	Durable   rhumb.Seq
	Commit    rhumb.Seq
	CommitHLC rhumb.Timestamp
	Trim      rhumb.Seq
	Start     rhumb.Seq
	// InSync is the in-sync set, Pending the one asked for and not yet decided, or nil (primary only).
	InSync  []rhumb.NodeID
	Pending []rhumb.NodeID
	// Peers are the other replicas (primary only), sorted.
	Peers []PeerStatus
	// Proposals and UncommittedBytes are what waits for its commit.
	Proposals        int
	UncommittedBytes int
	// Quarantine is the reason, or "".
	Quarantine string
	// Preparing says what keeps an elected replica from its epoch besides the leases that it granted, or "".
	Preparing string
}

// PeerStatus is what a primary knows of another replica.
type PeerStatus struct {
	Node   rhumb.NodeID
	InSync bool
	// Match is the last position acknowledged, Next the next to send, Commit the commit position it told.
	Match, Next, Commit rhumb.Seq
	InflightBytes       int
	// LagBytes is about how much it misses.
	LagBytes           int64
	Connected, Suspect bool
	// Flow is "probe", "replicate", "lost" (the log it needs is trimmed away) or "quarantined".
	Flow string
	// Lost is a position that the peer acknowledged before its disk lost the entry; 0 when none was lost.
	Lost rhumb.Seq
	// Why says why a learner does not join the in-sync set; "" for members.
	Why string
}

// Status gives a copy of the state for people.
func (r *Replica) Status() Status {
	last := r.log.last()
	s := Status{
		Range: r.cfg.Range, Self: r.cfg.Self, State: r.State(), Epoch: r.promised, Primary: r.promisedTo,
		Last: last.Position, LastHLC: last.HLC, Durable: r.durable, Commit: r.commit, CommitHLC: r.commitHLC,
		Trim: r.log.trim, Start: r.start, InSync: slices.Clone(r.inSync), Pending: slices.Clone(r.change.members),
		Proposals: r.waiters.len(), UncommittedBytes: r.orders.uncommitted + r.orders.bytes, Quarantine: r.why, Preparing: r.prep.why,
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
			ps.Why = fmt.Sprintf("it has the log up to %d and needs %d", p.match, max(r.commit, r.start))
		case p.pending:
			ps.Why = "metadata has not answered yet"
		default:
			ps.Why = r.whyNot(p)
		}
		s.Peers = append(s.Peers, ps)
	}
	return s
}
