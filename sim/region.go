package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// In some seeds the table survives the loss of a region: the nodes are in three regions of the metadata, and each range has one
// replica in each. After the other faults, one region goes down as a whole. Every range must keep serving, and be whole
// again when the region returns.

// Times of the loss of a region.
const (
	// regionLostBefore is how long writes that were in progress may still be acknowledged.
	regionLostBefore = 2 * time.Second
	// regionLostMost is how long a range may then take to acknowledge another write. The members and the metadata leader of the
	// region have to be missed first, over links between regions.
	regionLostMost = 15 * time.Second
)

// survivors is the number of regions of seeds with survival goal region.
const survivors = 3

// surviveRegion lets the table of a profile survive the loss of a region.
func (p *profile) surviveRegion() {
	p.survive, p.regions = true, survivors
	p.settings.Survival, p.settings.Replicas, p.settings.MinInSync = rhumb.SurviveRegion, 3, 2
	// Each region is home to as many ranges.
	p.ranges = min(p.ranges, 2)
	p.settings.HashSlots = p.ranges
}

// regionOf returns the region that a node registers in.
func (n *node) regionOf() string {
	site := n.w.net.site[n.at]
	switch {
	case !n.w.p.survive && !n.w.p.placed:
		site = 0
	case n.liesAboutRegion():
		// Its site is the second region, where another replica of the ranges is too.
		site = 2
	}
	return fmt.Sprintf("r%d", site+1)
}

// liesAboutRegion reports whether a node claims to be in another region (SecondariesTogether).
func (n *node) liesAboutRegion() bool { return n.w.cfg.Bug == SecondariesTogether && n.index == 4 }

// drawSpread returns replicas for a range, one in each region, the first of them in its home.
func (w *world) drawSpread(home int) (replicas []rhumb.NodeID) {
	for k := range survivors {
		site := (home + k) % survivors
		var there []rhumb.NodeID
		for _, n := range w.nodes {
			if n.regionOf() == fmt.Sprintf("r%d", site+1) && (w.cfg.Bug != SecondariesTogether || site < 2 || n.liesAboutRegion()) {
				there = append(there, n.id)
			}
		}
		replicas = append(replicas, there[w.rnd.IntN(len(there))])
	}
	return replicas
}

// sharesRegion reports whether another replica of a range is in the region of a node.
func (w *world) sharesRegion(r *rhumb.Range, id rhumb.NodeID) bool {
	n, _ := w.state.Node(id)
	return slices.ContainsFunc(r.Replicas, func(other rhumb.NodeID) bool {
		o, _ := w.state.Node(other)
		return other != id && o.Region == n.Region
	})
}

// spans reports whether the metadata of a member accepts an in-sync set, as far as regions count.
func (m *member) spans(id rhumb.RangeID, members []rhumb.NodeID) bool {
	st := m.group.State()
	r, ok := st.Range(id)
	return !ok || st.MayStand(r, members)
}

// servesWithout reports whether a range can commit without the lost nodes, although no client may have asked it to: its primary
// serves, and its in-sync set has none of them. Few clients may happen to write nothing to a range for a while (seed 1070).
func (w *world) servesWithout(id rhumb.RangeID, lost func(n *node) bool) bool {
	r, _ := w.state.Range(id)
	p := w.nodes[r.Primary-1]
	return p.host != nil && p.host.Serves(id) && p.host.Leased(id) && !slices.ContainsFunc(r.InSync, func(n rhumb.NodeID) bool {
		return lost(w.nodes[n-1])
	})
}

// survivesRegion reports whether the table of a range survives the loss of a region.
func (w *world) survivesRegion(st *catalog.State, r *rhumb.Range) bool {
	c, _ := st.Class(r.Class)
	return c.Settings.Survival == rhumb.SurviveRegion
}

// loseRegion takes a region down, in seeds whose table survives that, and checks that every range keeps serving without it.
func (w *world) loseRegion() {
	if w.err != nil || !w.p.survive || w.damage != nil && !w.damage.isRepaired() {
		return
	}
	// The link that was cut last may have cost a range a member, and a range that has lost one already may not lose another.
	w.awaitLive(w.now)
	lost := w.chance.IntN(survivors)
	voters, left := 0, 0
	for d := range w.state.Nodes() {
		if d.Voter {
			voters++
			if w.net.site[w.nodes[d.ID-1].at] != lost {
				left++
			}
		}
	}
	// The metadata group survives when its votes are spread, which takes a while after other faults.
	if left <= voters/2 {
		return
	}
	there := func(n *node) bool { return w.net.site[n.at] == lost }
	// Splits are over by now: every range that is not served was cancelled.
	ranges := w.served()
	whole := make([]bool, len(ranges))
	for i, id := range ranges {
		r, _ := w.state.Range(id)
		whole[i] = len(r.InSync) >= w.p.settings.Replicas && len(r.Quarantined) == 0
	}
	w.tracef("fault", "region %d is down", lost+1)
	w.stats.Regions++
	for _, n := range w.nodes {
		if w.net.site[n.at] == lost && !n.down {
			n.stop()
		}
	}
	w.until(w.now + regionLostBefore)
	before := make([]rhumb.Seq, len(ranges))
	for i, id := range ranges {
		before[i], _ = w.monitor.Acknowledged(id)
	}
	for end := w.now + regionLostMost; w.err == nil; w.until(w.now + 250*time.Millisecond) {
		waiting := ""
		for i, id := range ranges {
			if acked, _ := w.monitor.Acknowledged(id); acked == before[i] && whole[i] && !w.servesWithout(id, there) {
				waiting = id.String()
			}
		}
		if waiting == "" {
			break
		}
		if w.now >= end {
			w.failf("range %s: it commits nothing within %v without region %d, although its table survives the loss of a region", waiting, regionLostMost, lost+1)
		}
	}
	w.tracef("fault", "region %d returns", lost+1)
	returned := w.now
	for _, n := range w.nodes {
		if n.down && !n.retired && w.err == nil {
			n.start()
		}
	}
	w.awaitLive(returned)
}
