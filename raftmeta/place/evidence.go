package place

import (
	"maps"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// ReportKeep is the lifetime of a report. A node that still suspects another repeats its report
// well before it expires.
const ReportKeep = time.Second

// vouchWait is how long Judge spares a node that the leader lost contact with while a witness that shares ranges with the
// node still hears it. Two nodes that lose their link find a detour for the messages of the metadata group only once both
// miss each other, about when the leader counts the contact as lost. Without the wait, cut links would fence nodes that
// the leader hears a moment later.
const vouchWait = time.Second

// Suspect is a node that has sent no proof of life, which is a heartbeat that echoes one of the
// reporter's own, for longer than the suspect interval.
type Suspect struct {
	Node rhumb.NodeID
	Boot rhumb.BootSeq
}

// Report lists the nodes that a node suspects at the moment. It replaces the node's earlier report;
// an empty one withdraws it.
type Report struct {
	From     rhumb.NodeID
	Boot     rhumb.BootSeq
	Suspects []Suspect
	// Unfit reports that the sender must not be primary: its clock is wrong, or its disk is full.
	Unfit bool
	// Full reports that a disk of the sender has no room for writes, so no copy can arrive there. The sender then sets Unfit as well. Earlier
	// builds leave it out.
	Full bool `cbor:",omitempty"`
}

// Evidence collects the reports at the metadata leader and decides which node is dead. The zero
// value is ready for use.
type Evidence struct {
	reports map[rhumb.NodeID]received

	// spared holds the nodes against which the evidence suffices although a witness still hears them.
	spared map[rhumb.NodeID]sparing

	// relieved holds the primaries for which Heir found a successor since the last call of
	// Relieved.
	relieved map[rhumb.NodeID]bool

	// shared caches the nodes that share ranges with each node, at one revision of the catalog.
	shared   map[rhumb.NodeID]map[rhumb.NodeID]bool
	revision uint64
}

// sparing is the time during which the evidence against a node has sufficed.
type sparing struct{ since, last time.Duration }

// received is a report with the time of its arrival.
type received struct {
	Report
	at time.Duration
}

// Add records a report that arrived at time now. There is at most one per node. Judge drops reports
// of unknown nodes.
func (e *Evidence) Add(now time.Duration, r Report) {
	if e.reports == nil {
		e.reports = make(map[rhumb.NodeID]received)
	}
	if len(r.Suspects) == 0 && !r.Unfit {
		delete(e.reports, r.From)
		return
	}
	// Reports are not authenticated against the catalog here, so their number is bounded.
	if _, known := e.reports[r.From]; known || len(e.reports) < rhumb.NodesMax {
		e.reports[r.From] = received{r, now}
	}
}

// IsEmpty reports whether all reports have been dropped or withdrawn.
func (e *Evidence) IsEmpty() bool { return len(e.reports) == 0 }

// Reset drops all reports. A new leader starts without them, because it did not observe their age.
func (e *Evidence) Reset() { *e = Evidence{} }

// Judge returns the node to fence, if there is one. Among the nodes with sufficient evidence it
// chooses the one with the most accusers, then the lowest id. It returns one node at a time because
// each fencing changes the set of nodes that may accuse. lost reports whether the leader itself has
// lost contact with a node.
//
// A witness is a live node that the leader hears, or the leader itself: silence of the dead proves
// nothing about others. The evidence suffices in two cases:
//   - A majority of the witnesses that share ranges with the node accuse it, and at least two do.
//   - The leader has lost contact, and a witness other than the leader that shares ranges with
//     the node accuses it. Without such a witness any other witness suffices; without any other
//     witness the leader alone suffices. (If two nodes accuse each other, the one that metadata
//     hears wins.)
//
// A node that the leader has lost contact with is spared for vouchWait while another witness that shares ranges with it
// does not accuse it.
//
// The leader fences its own node too, by the first case only. Its group may make progress while the
// node's ranges do not, as when a pass waits for room on a full disk. No other node leads then, so
// nobody else could fence it.
//
// One faulty node, or one that lost its own links, therefore fences nobody: two must agree, and one
// of them is the leader unless the nodes that share ranges agree. A region that is cut off as a
// whole looks like a dead one and is fenced too. Until it is connected again, it continues to serve
// the ranges whose in-sync members are all inside it.
func (e *Evidence) Judge(now time.Duration, s *catalog.State, leader rhumb.NodeID, lost func(rhumb.NodeID) bool) (catalog.FenceNode, bool) {
	accusers := e.collectAccusers(now, s)
	heard := func(id rhumb.NodeID) bool { return s.IsLive(id) && (id == leader || !lost(id)) }
	var suspects []rhumb.NodeID
	for id := range accusers {
		suspects = append(suspects, id)
	}
	// Map order is random; the order of ids makes the choice among equals deterministic.
	slices.Sort(suspects)
	best, bestCount := rhumb.NoNode, 0
	for _, id := range suspects {
		gone := id != leader && lost(id) // the leader has contact with itself
		enough, vouched := e.weighProof(s, id, accusers[id], leader, gone, heard)
		if !enough || e.spares(now, id, vouched && gone) {
			continue
		}
		if len(accusers[id]) > bestCount {
			best, bestCount = id, len(accusers[id])
		}
	}
	if best == rhumb.NoNode {
		return catalog.FenceNode{}, false
	}
	// The command names the life that was accused, so it fails if the node has restarted meanwhile.
	n, _ := s.Node(best)
	return catalog.FenceNode{Node: best, Boot: n.Boot}, true
}

// spares reports whether a node against which the evidence suffices is spared for now, because a witness vouches for it.
func (e *Evidence) spares(now time.Duration, id rhumb.NodeID, vouched bool) bool {
	if !vouched {
		delete(e.spared, id)
		return false
	}
	if e.spared == nil {
		e.spared = make(map[rhumb.NodeID]sparing)
	}
	s, begun := e.spared[id]
	// Evidence that lapsed in between was about an earlier loss of contact.
	if !begun || now-s.last > ReportKeep {
		s.since = now
	}
	s.last = now
	e.spared[id] = s
	return now-s.since < vouchWait
}

// collectAccusers returns, for each suspect in its current life, the live nodes in their current life that
// accuse it. It drops expired reports.
func (e *Evidence) collectAccusers(now time.Duration, s *catalog.State) map[rhumb.NodeID][]rhumb.NodeID {
	out := make(map[rhumb.NodeID][]rhumb.NodeID)
	for from, r := range e.reports {
		n, ok := s.Node(from)
		if now-r.at > ReportKeep || !ok || n.Boot > r.Boot {
			delete(e.reports, from)
			continue
		}
		// A fenced node may be cut off itself, so its accusations do not count. Its report stays until it
		// expires because the catalog of this node may not know yet of the restart of the reporter.
		if !n.State.Serves() || n.Boot != r.Boot {
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

// weighProof applies the rule in the comment of Judge. lost reports whether the leader has lost contact with x; heard
// reports whether a node is a witness. enough reports whether the evidence suffices, vouched whether a witness other than
// the leader shares ranges with x and does not accuse it.
func (e *Evidence) weighProof(s *catalog.State, x rhumb.NodeID, accusers []rhumb.NodeID, leader rhumb.NodeID, lost bool, heard func(rhumb.NodeID) bool) (enough, vouched bool) {
	sharing, sharingAccuse := 0, 0
	beside, besideAccuse := 0, 0 // nodes that share ranges, without the leader
	others, othersAccuse := 0, 0 // all nodes, without the leader
	shares := e.sharingNodes(s, x)
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
	vouched = beside > besideAccuse
	// The order matters: agreement of the nodes that share ranges is enough even while the leader still
	// hears x, since a node may reach metadata and not its peers.
	switch {
	case sharingAccuse >= 2 && 2*sharingAccuse > sharing:
		return true, vouched
	case !lost:
		return false, vouched
	case others == 0:
		return true, vouched
	case beside == 0:
		return othersAccuse > 0, vouched
	}
	return besideAccuse > 0, vouched
}

// sharingNodes returns the live nodes that share ranges with x.
func (e *Evidence) sharingNodes(s *catalog.State, x rhumb.NodeID) map[rhumb.NodeID]bool {
	if e.shared == nil || e.revision != s.Revision() {
		e.shared, e.revision = sharedRanges(s), s.Revision()
	}
	return e.shared[x]
}

// sharedRanges returns, for each node, the live nodes that hold replicas of the same ranges.
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

// Heir returns the successor for a range whose primary asks to be relieved. It must be an in-sync
// member that is live, fit and, according to the reports, in contact with enough replicas to
// commit; a learner counts, because it can join the in-sync set. Heir prefers the member in contact
// with the most members, then the next one after the primary, so that members take turns if nothing
// is known. It returns false if no member qualifies.
func (e *Evidence) Heir(now time.Duration, s *catalog.State, r *rhumb.Range) (heir rhumb.NodeID, ok bool) {
	class, known := s.Class(r.Class)
	if !known {
		return rhumb.NoNode, false
	}
	cut := e.brokenPairs(now, s)
	turn := slices.Index(r.InSync, r.Primary) + 1
	best, divides := 0, false
	for i := range r.InSync {
		id := r.InSync[(turn+i)%len(r.InSync)]
		if id == r.Primary || !s.IsLive(id) || e.IsUnfit(now, id) {
			continue
		}
		// The in-sync set ranks candidates, but the replicas bound them: a set that shrank can grow again.
		n := cut.countReachable(id, r.InSync)
		if cut.countReachable(id, r.Replicas) < class.Settings.MinInSync {
			continue
		}
		// Of equal ones, one that can complete a split: another one would hold it up.
		if can := s.CanDivide(r, id); n > best || n == best && can && !divides {
			heir, best, divides = id, n, can
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

// Relieved returns the primaries for which Heir found a successor since the last call.
func (e *Evidence) Relieved() []rhumb.NodeID {
	out := slices.Sorted(maps.Keys(e.relieved))
	clear(e.relieved)
	return out
}

// CanServe reports whether a node is fit to be primary of a range, according to the reports.
func (e *Evidence) CanServe(now time.Duration, s *catalog.State, r *rhumb.Range, id rhumb.NodeID) bool {
	class, known := s.Class(r.Class)
	return known && !e.IsUnfit(now, id) && e.brokenPairs(now, s).countReachable(id, r.InSync) >= class.Settings.MinInSync
}

// ListUnfit returns the nodes whose own reports say that they must not be primary, in ascending order.
func (e *Evidence) ListUnfit(now time.Duration) (out []rhumb.NodeID) {
	for id := range e.reports {
		if e.IsUnfit(now, id) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// ListFull returns the nodes whose own reports say that a disk is full, in ascending order.
func (e *Evidence) ListFull(now time.Duration) (out []rhumb.NodeID) {
	for id, r := range e.reports {
		if r.Full && now-r.at <= ReportKeep {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// IsUnfit reports whether the node's own report says that it must not be primary.
func (e *Evidence) IsUnfit(now time.Duration, id rhumb.NodeID) bool {
	r, ok := e.reports[id]
	return ok && r.Unfit && now-r.at <= ReportKeep
}

// nodePairs is a set of pairs of nodes, lower id first, where one node suspects the other.
type nodePairs map[[2]rhumb.NodeID]bool

// brokenPairs returns the pairs of nodes that are out of contact according to the reports.
func (e *Evidence) brokenPairs(now time.Duration, s *catalog.State) nodePairs {
	out := make(nodePairs)
	for suspect, accusers := range e.collectAccusers(now, s) {
		for _, a := range accusers {
			out[[2]rhumb.NodeID{min(a, suspect), max(a, suspect)}] = true
		}
	}
	return out
}

// countReachable returns the number of members of set that are in contact with the node, including the node
// itself.
func (c nodePairs) countReachable(id rhumb.NodeID, set []rhumb.NodeID) int {
	n := 0
	for _, m := range set {
		if m == id || !c[[2]rhumb.NodeID{min(m, id), max(m, id)}] {
			n++
		}
	}
	return n
}
