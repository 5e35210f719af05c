package place

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// advanceRegion moves everything away from a region: first all copies, then the votes. Then its nodes are removed, and at last the
// region. The nodes are removed together and not one by one, because a node that is removed stops at once, and clients
// still find their way through the others.
//
// The last command ends the operation. Other operations are recorded as done in the round after their last command was applied, as the
// state then shows it. A command that is refused leaves the operation where it is, and the next round plans it again.
func (m *mover) advanceRegion(o *rhumb.Operation) {
	r, ok := m.s.Region(o.Region)
	if !ok || r.Removed {
		m.record(o, rhumb.OperationDone, workLeft{}, len(o.Steps))
		return
	}
	nodes := regionNodes(m.s, o.Region)
	t := m.moveOut(nodes)
	step, state := 0, rhumb.OperationRunning
	voter := slices.IndexFunc(nodes, func(n *rhumb.Node) bool { return n.Voter })
	// Each step begins only when nothing of the one before is left. All of it follows from the state, so a step that a dead
	// leader has begun is continued, and none is done twice.
	switch {
	case t.left > 0:
	// Planner.Voters moves the vote to another node, because the node is leaving.
	case voter >= 0:
		step, t.waits = 1, fmt.Sprintf("another node is to get the vote of %s in the metadata group", nodes[voter].ID)
	case len(nodes) > 0:
		step = 2
		// Refused while a copy came back in between: then the first step is open again.
		for _, n := range nodes {
			m.out = append(m.out, catalog.ForgetNode{Node: n.ID, Boot: n.Boot, Empty: true})
			t.waits = cmp.Or(t.waits, m.p.whyRefused(subject{Node: n.ID}))
		}
	default:
		step, t.waits = 3, m.p.whyRefused(subject{Region: o.Region})
	}
	m.record(o, state, t, step)
	// The command ends the operation too, so the record of this step comes before it.
	if step == 3 {
		m.out = append(m.out, catalog.RemoveRegion{Region: o.Region, At: m.wall})
	}
}

// regionNodes returns the nodes of a region that were not removed.
func regionNodes(s *catalog.State, region rhumb.RegionID) (out []*rhumb.Node) {
	for n := range s.Nodes() {
		if n.Region == region && !n.Forgotten {
			out = append(out, n)
		}
	}
	return out
}

// moveOut advances the moves of all copies on the nodes, movesMax ranges at a time.
func (m *mover) moveOut(nodes []*rhumb.Node) workLeft {
	var t workLeft
	for r := range m.s.Ranges() {
		var from []rhumb.NodeID
		for _, n := range nodes {
			if r.IsReplica(n.ID) {
				from = append(from, n.ID)
			}
		}
		if len(from) == 0 {
			continue
		}
		m.weigh(&t, r.ID)
		if t.moving < movesMax && len(m.out) < PlanMax {
			t.note(m.move(r, rhumb.NoNode, from...), r)
		}
	}
	return t
}

// PlanRegionRemoval returns the region that takes the ranges of a region which is to be removed: the given one, or the nearest
// one that can, if into is 0. why says why none can, with what would fit, or is empty.
func PlanRegionRemoval(s *catalog.State, id, into rhumb.RegionID) (host rhumb.RegionID, why string) {
	r, ok := s.Region(id)
	switch {
	case !ok:
		return 0, fmt.Sprintf("region %s does not exist", id)
	case r.Into != 0:
		return 0, fmt.Sprintf("region %s is being removed already, or was", r.Name)
	case into == id:
		return 0, fmt.Sprintf("region %s cannot take its own ranges; name another region", r.Name)
	}
	var leaving []string
	for c := range s.Regions() {
		if c.Into == 0 || c.Removed {
			continue
		}
		// Each of the two removals would wait for copies that the other one moves.
		if c.Into == id {
			return 0, fmt.Sprintf("it takes the ranges of region %s, which is being removed; wait for that, or cancel it (`rhumb operation ls`)", c.Name)
		}
		leaving = append(leaving, c.Name)
	}
	// Judged in the order of distance: writes of programs near the old region should not travel farther than they must.
	var candidates []rhumb.Region
	for c := range s.Regions() {
		if c.ID != id && c.Into == 0 && (into == 0 || c.ID == into) {
			candidates = append(candidates, c)
		}
	}
	switch {
	case len(candidates) > 0:
	case len(leaving) > 0:
		return 0, fmt.Sprintf("the regions that could take its ranges are being removed themselves (%s); wait for that, or add a region first", strings.Join(leaving, ", "))
	default:
		return 0, fmt.Sprintf("no other region can take the ranges of %s; add a region first", r.Name)
	}
	slices.SortFunc(candidates, func(a, b rhumb.Region) int {
		return cmp.Or(cmp.Compare(s.RegionMicros(id, a.ID), s.RegionMicros(id, b.ID)), cmp.Compare(a.ID, b.ID))
	})
	var reasons []string
	for _, c := range candidates {
		reason := whyNotInto(s, r, c)
		if reason == "" {
			return c.ID, ""
		}
		reasons = append(reasons, reason)
	}
	return 0, strings.Join(reasons, "; ")
}

// NearestHost returns the region that takes the remaining ranges of a region that is dropped: the nearest one with a live node, or else the
// nearest one. It is 0 if there is no other region.
func NearestHost(s *catalog.State, id rhumb.RegionID) rhumb.RegionID {
	var best rhumb.RegionID
	var bestLost bool
	for c := range s.Regions() {
		if c.ID == id || c.Into != 0 {
			continue
		}
		lost := len(regionNodes(s, c.ID)) == 0 || IsRegionLost(s, c.ID)
		if best == 0 || bestLost && !lost || bestLost == lost && s.RegionMicros(id, c.ID) < s.RegionMicros(id, best) {
			best, bestLost = c.ID, lost
		}
	}
	return best
}

// IsRegionLost reports whether no node of a region serves, although the region has nodes, or ranges whose only copies were on nodes of it
// that were removed for good.
func IsRegionLost(s *catalog.State, id rhumb.RegionID) bool {
	nodes := regionNodes(s, id)
	if slices.ContainsFunc(nodes, func(n *rhumb.Node) bool { return n.State != rhumb.NodeFenced }) {
		return false
	}
	if len(nodes) > 0 {
		return true
	}
	lost, _ := s.LostRanges(id)
	return len(lost) > 0
}

// whyNotInto returns why a region cannot take the ranges of another one, or "". It also judges the ranges of other regions
// that have copies in the region which goes (survival goal region).
func whyNotInto(s *catalog.State, gone, into rhumb.Region) string {
	type home struct {
		class rhumb.ClassID
		at    rhumb.RegionID
	}
	// One range of each class and home speaks for all: they have the same settings.
	judged := make(map[home]bool)
	for r := range s.Ranges() {
		class, _ := s.Class(r.Class)
		at := home{r.Class, s.HostRegion(r.ID.Region)}
		hasCopy := slices.ContainsFunc(r.Replicas, func(id rhumb.NodeID) bool {
			n, ok := s.Node(id)
			return ok && n.Region == gone.ID
		})
		// The ranges of a dropped class disappear soon.
		if judged[at] || class.Dropping || at.at != gone.ID && !hasCopy {
			continue
		}
		judged[at] = true
		if at.at == gone.ID {
			at.at = into.ID
		}
		// The planner will find the nodes that newPool counts, so a plan that is accepted here does not get stuck for want of
		// nodes, unless some die meanwhile.
		host, _ := s.Region(at.at)
		p := newPool(s, at.at, class.Settings)
		p.nodes = slices.DeleteFunc(p.nodes, func(n *rhumb.Node) bool { return n.Region == gone.ID })
		tables := strings.Join(classTables(s, r.Class), ", ")
		switch {
		case !class.Settings.Regions.Has(host.Name):
			return fmt.Sprintf("%s cannot take the records of %s that have their home in %s: these tables are confined to %s; drop them, or choose another region with --into",
				into.Name, tables, gone.Name, strings.Join(class.Settings.Regions.Names(), " and "))
		// The number of nodes in the region that takes the ranges is not the reason: these copies are in several regions.
		case !p.suffices() && class.Settings.Survival == rhumb.SurviveRegion:
			return fmt.Sprintf("without %s, the copies of %s would not survive the loss of a region: they need live nodes in %d regions, at most %d copies in each, and %s; add nodes in another region first",
				gone.Name, tables, class.Settings.RegionsMin(), class.Settings.RegionReplicasMax(), strings.Join(p.counts(s), ", "))
		case !p.suffices():
			return fmt.Sprintf("without %s, region %s has %d live nodes for the copies of %s, which keep %d; add nodes there first, or choose another region with --into",
				gone.Name, host.Name, len(p.home()), tables, class.Settings.Replicas)
		}
	}
	return ""
}

// counts returns how many nodes of the pool each region has, for people.
func (p *pool) counts(s *catalog.State) (out []string) {
	count := make(map[rhumb.RegionID]int)
	for _, n := range p.nodes {
		count[n.Region]++
	}
	for r := range s.Regions() {
		if count[r.ID] > 0 {
			out = append(out, fmt.Sprintf("%s has %d", r.Name, count[r.ID]))
		}
	}
	if len(out) == 0 {
		return []string{"no region has any"}
	}
	return out
}

// classTables returns the names of the tables of a class.
func classTables(s *catalog.State, class rhumb.ClassID) (out []string) {
	for t := range s.Tables() {
		if t.Class == class {
			out = append(out, t.Name)
		}
	}
	return out
}
