package place

import (
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
}

// Evidence gathers the reports at the metadata leader and decides who is dead. The zero value is ready.
type Evidence struct {
	reports map[rhumb.NodeID]received

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
	if len(r.Suspects) == 0 {
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
// The evidence suffices when either
//   - a majority of the live nodes that share ranges with it accuse it, and they are at least two or the leader too has
//     lost contact (of two nodes that accuse each other, the one that metadata hears wins); or
//   - the leader has lost contact, and so says one more live node that shares ranges with it; where no such node exists,
//     one more live node of any kind; where no other live node exists at all, the leader alone.
func (e *Evidence) Judge(now time.Duration, s *catalog.State, leader rhumb.NodeID, lost func(rhumb.NodeID) bool) (catalog.FenceNode, bool) {
	accusers := e.accusers(now, s)
	var suspects []rhumb.NodeID
	for id := range accusers {
		suspects = append(suspects, id)
	}
	slices.Sort(suspects)
	best, bestCount := rhumb.NoNode, 0
	for _, id := range suspects {
		if id == leader || !e.suffices(s, id, accusers[id], leader, lost(id)) {
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

// suffices applies the rule that Judge states.
func (e *Evidence) suffices(s *catalog.State, x rhumb.NodeID, accusers []rhumb.NodeID, leader rhumb.NodeID, lost bool) bool {
	sharing := e.sharing(s, x)
	count := 0
	for _, a := range accusers {
		if sharing[a] {
			count++
		}
	}
	if 2*count > len(sharing) && (count >= 2 || lost) {
		return true
	}
	if !lost {
		return false
	}
	others := 0 // live nodes beside the leader and x that could bear witness
	for n := range s.Nodes() {
		if n.State == rhumb.NodeLive && n.ID != leader && n.ID != x {
			others++
		}
	}
	notLeader := func(id rhumb.NodeID) bool { return id != leader }
	switch {
	case others == 0:
		return true
	case len(sharing) == 0 || len(sharing) == 1 && sharing[leader]:
		return slices.ContainsFunc(accusers, notLeader)
	}
	return slices.ContainsFunc(accusers, func(id rhumb.NodeID) bool { return sharing[id] && id != leader })
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
