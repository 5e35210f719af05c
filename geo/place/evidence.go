package place

import (
	"maps"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// ReportKeep is how long a report counts. A node that still suspects another repeats its report well within it.
const ReportKeep = time.Second

// Suspect is a node from which no proof of life (a heartbeat that echoes one of the reporter's own) has come for longer
// than the suspect interval.
type Suspect struct {
	Node rhumb.NodeID
	Boot rhumb.BootSeq
}

// Report says whom a node suspects now. It replaces the node's earlier report; an empty one takes it back.
type Report struct {
	From     rhumb.NodeID
	Boot     rhumb.BootSeq
	Suspects []Suspect
	// Unfit says that the node must not be primary: its clock is wrong, or its disk is full.
	Unfit bool
}

// Evidence gathers the reports at the metadata leader and decides who is dead. The zero value is ready.
type Evidence struct {
	reports map[rhumb.NodeID]received

	// relieved are the primaries that asked for another of late, for Relieved.
	relieved map[rhumb.NodeID]bool

	// shared caches who shares ranges with whom, at one revision.
	shared   map[rhumb.NodeID]map[rhumb.NodeID]bool
	revision uint64
}

type received struct {
	Report
	at time.Duration
}

// Add takes a report at a time. There is at most one per node, and reports of unknown nodes are dropped by Judge.
func (e *Evidence) Add(now time.Duration, r Report) {
	if e.reports == nil {
		e.reports = make(map[rhumb.NodeID]received)
	}
	if len(r.Suspects) == 0 && !r.Unfit {
		delete(e.reports, r.From)
		return
	}
	if _, known := e.reports[r.From]; known || len(e.reports) < rhumb.NodesMax {
		e.reports[r.From] = received{r, now}
	}
}

// IsEmpty reports whether nobody suspects anybody.
func (e *Evidence) IsEmpty() bool { return len(e.reports) == 0 }

// Reset forgets all reports, as a new leader does.
func (e *Evidence) Reset() { *e = Evidence{} }

// Judge gives the node to fence, if there is one: the one with the most accusers among those against whom the evidence
// suffices, then the lowest id. One at a time, since each fencing changes who may accuse. lost says with whom the leader
// itself has lost contact.
//
// A witness is a live node that the leader hears, or the leader itself: the silence of the dead proves nothing about the
// others. The evidence suffices when either
//   - a majority of the witnesses that share ranges with the node accuse it, and they are at least two; or
//   - the leader has lost contact, and so says a witness other than the leader that shares ranges with it; where there is no
//     such witness, any other witness; where there is no other witness at all, the leader alone. (Of two nodes that accuse
//     each other, the one that metadata hears wins.)
//
// So one liar, or one node that lost its own links, gets nobody fenced: it takes two, one of them the leader unless those
// who share ranges with the node agree. A region that is cut off as a whole cannot be told from a dead one. It is fenced,
// too; until it is connected again it goes on serving what it has all in-sync members of.
func (e *Evidence) Judge(now time.Duration, s *catalog.State, leader rhumb.NodeID, lost func(rhumb.NodeID) bool) (catalog.FenceNode, bool) {
	accusers := e.accusers(now, s)
	heard := func(id rhumb.NodeID) bool { return s.IsLive(id) && (id == leader || !lost(id)) }
	var suspects []rhumb.NodeID
	for id := range accusers {
		suspects = append(suspects, id)
	}
	slices.Sort(suspects)
	best, bestCount := rhumb.NoNode, 0
	for _, id := range suspects {
		if id == leader || !e.suffices(s, id, accusers[id], leader, lost(id), heard) {
			continue
		}
		if len(accusers[id]) > bestCount {
			best, bestCount = id, len(accusers[id])
		}
	}
	if best == rhumb.NoNode {
		return catalog.FenceNode{}, false
	}
	n, _ := s.Node(best)
	return catalog.FenceNode{Node: best, Boot: n.Boot}, true
}

// accusers gives, for each suspect in its present life, the live nodes in their present life that accuse it now. It
// forgets reports that are too old.
func (e *Evidence) accusers(now time.Duration, s *catalog.State) map[rhumb.NodeID][]rhumb.NodeID {
	out := make(map[rhumb.NodeID][]rhumb.NodeID)
	for from, r := range e.reports {
		n, ok := s.Node(from)
		if now-r.at > ReportKeep || !ok || n.Boot > r.Boot {
			delete(e.reports, from)
			continue
		}
		if n.State != rhumb.NodeLive || n.Boot != r.Boot {
			continue
		}
		for _, x := range r.Suspects {
			if sn, ok := s.Node(x.Node); ok && sn.Boot == x.Boot && sn.State != rhumb.NodeFenced && x.Node != from {
				out[x.Node] = append(out[x.Node], from)
			}
		}
	}
	return out
}

// suffices applies the rule that Judge states. lost says that the leader does not hear x, heard who is a witness.
func (e *Evidence) suffices(s *catalog.State, x rhumb.NodeID, accusers []rhumb.NodeID, leader rhumb.NodeID, lost bool, heard func(rhumb.NodeID) bool) bool {
	sharing, sharingAccuse := 0, 0
	beside, besideAccuse := 0, 0 // those that share ranges, without the leader
	others, othersAccuse := 0, 0 // all, without the leader
	shares := e.sharing(s, x)
	for n := range s.Nodes() {
		if n.ID == x || !heard(n.ID) {
			continue
		}
		says := 0
		if slices.Contains(accusers, n.ID) {
			says = 1
		}
		if shares[n.ID] {
			sharing++
			sharingAccuse += says
		}
		if n.ID == leader {
			continue
		}
		others++
		othersAccuse += says
		if shares[n.ID] {
			beside++
			besideAccuse += says
		}
	}
	switch {
	case sharingAccuse >= 2 && 2*sharingAccuse > sharing:
		return true
	case !lost:
		return false
	case others == 0:
		return true
	case beside == 0:
		return othersAccuse > 0
	}
	return besideAccuse > 0
}

// sharing gives the live nodes that share ranges with x.
func (e *Evidence) sharing(s *catalog.State, x rhumb.NodeID) map[rhumb.NodeID]bool {
	if e.shared == nil || e.revision != s.Revision() {
		e.shared, e.revision = sharedRanges(s), s.Revision()
	}
	return e.shared[x]
}

// sharedRanges gives, for each node, the live nodes that hold replicas of the same ranges.
func sharedRanges(s *catalog.State) map[rhumb.NodeID]map[rhumb.NodeID]bool {
	out := make(map[rhumb.NodeID]map[rhumb.NodeID]bool)
	for r := range s.Ranges() {
		for _, a := range r.Replicas {
			if out[a] == nil {
				out[a] = make(map[rhumb.NodeID]bool)
			}
			for _, b := range r.Replicas {
				if a != b && !out[a][b] && s.IsLive(b) {
					out[a][b] = true
				}
			}
		}
	}
	return out
}

// Heir chooses who takes over a range whose primary asks to be relieved: an in-sync member that is live, fit and, as far as
// reports go, in contact with enough replicas to commit (a learner can join its set); among those the one in contact with the most, then the
// next by number after the primary, so that members take turns when nothing is known. ok is false when there is none.
func (e *Evidence) Heir(now time.Duration, s *catalog.State, r *rhumb.Range) (heir rhumb.NodeID, ok bool) {
	class, known := s.Class(r.Class)
	if !known {
		return rhumb.NoNode, false
	}
	cut := e.cut(now, s)
	turn := slices.Index(r.InSync, r.Primary) + 1
	best := 0
	for i := range r.InSync {
		id := r.InSync[(turn+i)%len(r.InSync)]
		if id == r.Primary || !s.IsLive(id) || e.IsUnfit(now, id) {
			continue
		}
		if n := cut.reach(id, r.InSync); cut.reach(id, r.Replicas) >= class.Settings.MinInSync && n > best {
			heir, best = id, n
		}
	}
	if best > 0 {
		if e.relieved == nil {
			e.relieved = make(map[rhumb.NodeID]bool)
		}
		e.relieved[r.Primary] = true
	}
	return heir, best > 0
}

// Relieved returns the primaries for which Heir found others since the last call.
func (e *Evidence) Relieved() []rhumb.NodeID {
	out := slices.Sorted(maps.Keys(e.relieved))
	clear(e.relieved)
	return out
}

// CanServe reports whether a node is fit to be primary of a range, as far as reports go.
func (e *Evidence) CanServe(now time.Duration, s *catalog.State, r *rhumb.Range, id rhumb.NodeID) bool {
	class, known := s.Class(r.Class)
	return known && !e.IsUnfit(now, id) && e.cut(now, s).reach(id, r.InSync) >= class.Settings.MinInSync
}

// IsUnfit reports whether a node says that it must not be primary.
func (e *Evidence) IsUnfit(now time.Duration, id rhumb.NodeID) bool {
	r, ok := e.reports[id]
	return ok && r.Unfit && now-r.at <= ReportKeep
}

// cuts are the pairs of nodes in which one suspects the other.
type cuts map[[2]rhumb.NodeID]bool

// cut returns the pairs that are out of contact, as far as reports go.
func (e *Evidence) cut(now time.Duration, s *catalog.State) cuts {
	out := make(cuts)
	for suspect, accusers := range e.accusers(now, s) {
		for _, a := range accusers {
			out[[2]rhumb.NodeID{min(a, suspect), max(a, suspect)}] = true
		}
	}
	return out
}

// reach counts the members of a set that a node is in contact with, itself included.
func (c cuts) reach(id rhumb.NodeID, set []rhumb.NodeID) int {
	n := 0
	for _, m := range set {
		if m == id || !c[[2]rhumb.NodeID{min(m, id), max(m, id)}] {
			n++
		}
	}
	return n
}
