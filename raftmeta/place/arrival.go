package place

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// No plan puts a copy on a node whose disk is full, as far as the node has reported that. A node that takes no copies for another reason
// looks like one that is slow. So the planner also watches what arrives on each node: if nothing does for a long time, moves choose other nodes.

const (
	// CopyStalledAfter is how long all copies that arrive on a node may make no progress before moves choose another node. A donor sends
	// few copies at a time, so one that waits for its turn makes none either; but others on the same node do.
	CopyStalledAfter = 10 * time.Minute
	// CopyAvoidFor is how long moves then avoid the node.
	CopyAvoidFor = time.Hour
	// CopyFullAfter is how long the disk of a node must have been full before the copies that have begun there are given up for copies on other
	// nodes. An operator may have been about to make room, and a copy of many gigabytes may have been nearly done.
	CopyFullAfter = time.Minute
)

// arrival is the memory of a planner about the copies that arrive on a node.
type arrival struct {
	// since is when one of them made progress last, or when the first one was seen.
	since time.Duration
	// shares holds how much of each has arrived at most, between 0 and 1. A copy that begins again and again makes no progress.
	shares map[rhumb.RangeID]float64
	// until is until when moves avoid the node.
	until time.Duration
}

// note records that a copy made progress.
func (a *arrival) note(now time.Duration) { a.since, a.until = now, 0 }

// lacks reports whether a live node has a copy of a range that is on its way into the in-sync set.
func lacks(s *catalog.State, r *rhumb.Range, id rhumb.NodeID) bool {
	return !r.IsInSync(id) && r.IsReplica(id) && r.Birth == 0 && !r.IsLeaving(id) && !r.IsQuarantined(id) && s.IsLive(id)
}

// observeArrivals notes which copies arrive, and how far they are. arrived may be nil (Measures.Arrived).
func (p *Planner) observeArrivals(now time.Duration, s *catalog.State, arrived func(rhumb.NodeID, rhumb.RangeID) (float64, bool)) {
	for r := range s.Ranges() {
		// Nearly all ranges have all of their copies in sync.
		if len(r.InSync) == len(r.Replicas) {
			continue
		}
		for _, id := range r.Replicas {
			if lacks(s, r, id) {
				share := 0.0
				if arrived != nil {
					share, _ = arrived(id, r.ID)
				}
				p.observeCopy(now, r.ID, id, share)
			}
		}
	}
	for id, a := range p.arrivals {
		for of := range a.shares {
			r, ok := s.Range(of)
			if ok && lacks(s, r, id) {
				continue
			}
			delete(a.shares, of)
			if ok && r.IsInSync(id) {
				a.note(now)
			}
		}
		switch {
		case len(a.shares) > 0 && now-a.since >= CopyStalledAfter:
			a.until = now + CopyAvoidFor
		// The memory is bounded by the copies that are not in sync, and by the nodes.
		case len(a.shares) == 0 && now >= a.until:
			delete(p.arrivals, id)
		}
	}
}

// observeCopy notes how far one copy is.
func (p *Planner) observeCopy(now time.Duration, of rhumb.RangeID, id rhumb.NodeID, share float64) {
	a, known := p.arrivals[id]
	if !known {
		a = &arrival{shares: make(map[rhumb.RangeID]float64)}
		p.arrivals[id] = a
	}
	// Its time begins with the first copy after a time without any.
	if len(a.shares) == 0 {
		a.since = now
	}
	if before := a.shares[of]; share > before {
		a.note(now)
	}
	a.shares[of] = max(a.shares[of], share)
}

// isStalled reports whether moves avoid a node, because no copy makes progress there.
func (p *Planner) isStalled(now time.Duration, id rhumb.NodeID) bool {
	a, ok := p.arrivals[id]
	return ok && now < a.until
}

// ObserveDisks records the nodes whose disks are full, by their own reports (Evidence.ListFull).
func (p *Planner) ObserveDisks(now time.Duration, full []rhumb.NodeID) {
	maps.DeleteFunc(p.full, func(id rhumb.NodeID, _ time.Duration) bool { return !slices.Contains(full, id) })
	for _, id := range full {
		if _, known := p.full[id]; !known {
			p.full[id] = now
		}
	}
}

// isFull reports whether the disk of a node is full.
func (p *Planner) isFull(id rhumb.NodeID) bool {
	_, full := p.full[id]
	return full
}

// isAvoided reports whether no new copy is to be placed on a node: none would arrive.
func (p *Planner) isAvoided(now time.Duration, id rhumb.NodeID) bool {
	return p.isFull(id) || p.isStalled(now, id)
}

// avoided returns the nodes on which no new copy is to be placed.
func (p *Planner) avoided(now time.Duration) (out []rhumb.NodeID) {
	out = slices.Collect(maps.Keys(p.full))
	for id := range p.arrivals {
		if p.isStalled(now, id) && !p.isFull(id) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// stalls reports whether a copy of a range is one that does not arrive.
func (p *Planner) stalls(now time.Duration, r *rhumb.Range, id rhumb.NodeID) bool {
	since, full := p.full[id]
	return r.IsReplica(id) && !r.IsInSync(id) && (p.isStalled(now, id) || full && now-since >= CopyFullAfter)
}

// awaits reports whether a copy of a range arrives, or is about to.
func (p *Planner) awaits(now time.Duration, s *catalog.State, r *rhumb.Range, id rhumb.NodeID) bool {
	return lacks(s, r, id) && !p.isAvoided(now, id)
}

// whyNotArrive returns why no copy arrives on a node, as far as the planner knows.
func (p *Planner) whyNotArrive(id rhumb.NodeID) string {
	if p.isFull(id) {
		return fmt.Sprintf("the disk of %s is full", id)
	}
	return fmt.Sprintf("no copy that %s receives has made progress for %s", id, strings.TrimSuffix(CopyStalledAfter.String(), "0s"))
}

// noOther says that no other node can take a copy. It names the nodes whose disks are full, because they look as if they could.
func (p *Planner) noOther() string {
	const none = "no other node can take a copy"
	switch full := slices.Sorted(maps.Keys(p.full)); len(full) {
	case 0:
		return none
	case 1:
		return fmt.Sprintf("%s, and the disk of %s is full", none, full[0])
	default:
		return fmt.Sprintf("%s, and the disks of %s are full", none, rhumb.NodeList(full))
	}
}
