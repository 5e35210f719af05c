package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	evidence "github.com/rhumbdb/rhumb/raftmeta/place"
)

// In some seeds a region is removed among all other faults
// (docs/decisions/0046-a-removed-region-keeps-its-keys.md). The nodes are in two regions, each with
// ranges of its own. The planner brings the copies of one region to the other, then the votes, and
// then the metadata forgets the nodes, which stop. Keys keep their homes, so clients and judges
// notice nothing of it.
//
// Of three removals one is cancelled after a while. The others must be done after the last fault,
// and all ranges must be whole then.

const (
	// removeNodes is the number of nodes of such a seed: each region could have all copies.
	removeNodes = 6
	// removeCancelled is how long a removal that is cancelled may take before.
	removeCancelled = 15 * time.Second
	// removeMost is how long a removal may take after the last fault. A member far away needs
	// seconds to copy a range and to join, and so does each change of the metadata group.
	removeMost = time.Minute
	// removeAgain is the longest time until a removal that was cancelled is taken up again.
	removeAgain = 6 * time.Second
)

// drawMembership decides whether a region is removed, or a node dies for so long that another one
// takes its place. Seeds whose table survives the loss of a region have no region to spare. It also
// decides whether the metadata leader of a strict seed gets a wrong clock, and whether a disk
// refuses reads.
func (p *profile) drawMembership(r *rand.Rand, on bool) {
	remove, standIn, misled := r.IntN(8) == 0, r.IntN(8) == 0, r.IntN(4) == 0
	p.misled, p.unread = on && misled && p.strict, on && r.IntN(8) == 0
	switch {
	case !on || p.survive:
	case remove:
		p.faults = append(p.faults, faultRemove)
	case standIn:
		p.standIn = true
	}
}

// removes reports whether a region of this run is removed.
func (p *profile) removes() bool { return slices.Contains(p.faults, faultRemove) }

// settleMembership chooses nodes and regions for a removal, or for the second phase of a failover.
// It runs after everything that chooses faults, because they decide.
func (p *profile) settleMembership() {
	switch {
	case p.many || p.losesForGood():
		p.placeRegions()
	case p.removes():
		p.placed = true
		p.nodes, p.regions, p.witness, p.survive, p.standIn = removeNodes, 2, false, false, false
		p.settings.Survival = rhumb.SurviveZone
		p.settings.Replicas, p.settings.MinInSync = removeNodes/2, min(p.settings.MinInSync, removeNodes/2-1)
		// Each region is home to as many ranges.
		p.ranges = min(p.ranges, 2)
		p.settings.HashSlots = p.ranges
	case p.standIn:
		p.standNear()
	}
}

// drawHomes returns replicas for the ranges of both regions, each in its own.
func (w *world) drawHomes() (placements []catalog.Placement) {
	for home := range w.p.regions {
		p := catalog.Placement{Region: rhumb.RegionID(home + 1)}
		for range w.p.ranges {
			var there []rhumb.NodeID
			for _, i := range w.rnd.Perm(len(w.nodes)) {
				if n := w.nodes[i]; w.net.site[n.at] == home && len(there) < w.p.settings.Replicas {
					there = append(there, n.id)
				}
			}
			p.Replicas = append(p.Replicas, there)
		}
		placements = append(placements, p)
	}
	return placements
}

// regionID returns the number of the region that a node is registered in.
func (m *member) regionID(st *catalog.State) rhumb.RegionID {
	n, ok := st.Node(m.self.Node)
	if !ok {
		return 0
	}
	return n.Region
}

// removeRegion starts the removal of a region, one at a time, and decides whether it is cancelled
// later. It is refused where a server would refuse it.
func (w *world) removeRegion() string {
	region := rhumb.RegionID(1 + w.chance.IntN(w.p.regions))
	// With many regions the next removal may follow the one before.
	if w.healed || w.removing && w.now < w.removeUntil && !(w.p.many && w.removal() == nil) {
		return ""
	}
	return w.startRemoval(region)
}

// startRemoval asks for the removal of a region.
func (w *world) startRemoval(region rhumb.RegionID) string {
	if w.forGood != nil && w.forGood.region == region {
		return "" // a server sees that it is lost, or will see it soon
	}
	into, why := evidence.PlanRegionRemoval(w.state, region, 0)
	if why != "" {
		w.tracef("world", "region %d is not removed: %s", region, why)
		return ""
	}
	cmd := catalog.StartOperation{
		Kind: rhumb.OperationRemoveRegion, Region: region, Into: into, By: "sim", At: time.Unix(0, int64(w.now)),
	}
	if !w.proposeOnce(cmd) {
		return ""
	}
	w.removing, w.removeUntil = true, math.MaxInt64
	what := fmt.Sprintf("region %d into region %d", region, into)
	if w.chance.IntN(3) == 0 {
		length := w.drawDuration(0, removeCancelled)
		w.removeUntil = w.now + length
		what += fmt.Sprintf(", cancelled after %v", length)
		w.after(length, w.endOperations)
		if again := w.p.many && w.chance.IntN(2) == 0; again {
			what += ", and taken up again"
			w.after(length+w.drawDuration(time.Second, removeAgain), func() { w.resumeRemoval(region) })
		}
	}
	return what
}

// resumeRemoval starts the removal of a region again after it was cancelled, when the cancellation
// is done.
func (w *world) resumeRemoval(region rhumb.RegionID) {
	switch r, _ := w.state.Region(region); {
	case w.healed || r.Removed || w.removal() != nil && r.Into == 0:
	case r.Into != 0:
		w.after(time.Second, func() { w.resumeRemoval(region) })
	default:
		w.tracef("world", "the removal of region %d is taken up again: %s", region, w.startRemoval(region))
	}
}

// isRemoving reports whether an operation removes a region, and the operator does not cancel it
// yet.
func (w *world) isRemoving(o *rhumb.Operation) bool {
	return o.Kind == rhumb.OperationRemoveRegion && w.now < w.removeUntil
}

// removal returns the removal that is in progress, or nil.
func (w *world) removal() *rhumb.Operation {
	for o := range w.state.Operations() {
		if o.Kind == rhumb.OperationRemoveRegion && !o.State.IsOver() {
			return o
		}
	}
	return nil
}

// awaitRemoval waits until the removal that is in progress is done, and returns the time from which
// on everything must work: then, or that of the last fault. A range that waits for a person, or
// whose members lack its log, holds up the removal as well; it is cancelled then.
func (w *world) awaitRemoval(faultsEnd time.Duration) time.Duration {
	if !w.removing && w.forGood == nil {
		return faultsEnd
	}
	for end := w.now + removeMost; w.err == nil && w.now < end; w.until(w.now + 250*time.Millisecond) {
		if w.whyNotGivenUp() != "" {
			continue
		}
		if w.removal() == nil {
			return w.now
		}
		if w.lacksRoom() {
			break
		}
	}
	o := w.removal()
	// The looks of whyNotLive count the ranges that nothing is demanded of.
	why := w.whyNotLive()
	if given := w.whyNotGivenUp(); w.err == nil && given != "" && w.stats.Lost+w.stats.Quarantined == 0 {
		w.failf("%s, %v after the last fault; %s", given, removeMost, why)
	}
	if w.err == nil && o != nil && !w.lacksRoom() && w.stats.Lost+w.stats.Quarantined == 0 {
		w.failf("region %s is not removed %v after the last fault: %s; %s", o.Region, removeMost, o.Waits, why)
	}
	w.removeUntil = w.now
	w.endOperations()
	return w.now
}

// judgeForgotten checks that the metadata forgets a node only when no range has a copy there any
// more, and counts the regions that were removed. judgeRemoved sees only ranges whose record
// changes.
func (w *world) judgeForgotten(old *catalog.State) {
	if old == nil {
		return
	}
	for d := range w.state.Nodes() {
		before, ok := old.Node(d.ID)
		if !d.Forgotten || ok && before.Forgotten {
			continue
		}
		for r := range w.state.Ranges() {
			// The copies of a region that was given up are replaced later, where there is room.
			if r.IsReplica(d.ID) && !w.nodes[d.ID-1].lost {
				w.failf("range %s: %s was removed from the cluster and is still a replica", r.ID, d.ID)
			}
		}
	}
	for r := range w.state.Regions() {
		if before, ok := old.Region(r.ID); r.Removed && ok && !before.Removed {
			w.tracef("world", "region %s was removed", r.Name)
			if w.forGood == nil || w.forGood.region != r.ID {
				w.stats.Left++
			}
		}
	}
}
