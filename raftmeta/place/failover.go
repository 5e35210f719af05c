package place

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// A failover can be predicted, because metadata alone decides it: fencing elects catalog.HeirWithout, and a range is
// served if catalog.CanShrink says so. The plan below asks the same two functions about nodes that have not failed yet.

// PairTimings is how two nodes watch each other (package lease).
type PairTimings struct {
	// Heartbeat is the interval of heartbeats, Suspect the silence after which a node is suspected, and Lease how long an
	// elected node waits for a lease of its predecessor.
	Heartbeat, Suspect, Lease time.Duration
}

// FailoverTimings are the parts of the pause of a failover. The configuration of the nodes determines them.
type FailoverTimings struct {
	// Near is for nodes of one region, and Far for nodes of two.
	Near, Far PairTimings
	// Report is how often a suspicion is repeated to the metadata leader, and Evaluate how often that one judges.
	Report, Evaluate time.Duration
	// Contact is the silence after which the metadata leader has lost contact itself.
	Contact time.Duration
	// ElectNear and ElectFar bound the election of a metadata leader, among voters of one region and of several.
	ElectNear, ElectFar time.Duration
	// Prepare is how long an elected replica waits for answers of members that are late (rule P).
	Prepare time.Duration
	// Machine is the allowance for disks, processors and the reconnection of clients, which no protocol bounds.
	Machine time.Duration
}

// FailureDomain returns the nodes that fail together with a name: a node (n3, or the name in its certificate), a region, or a
// zone, written ZONE if only one region has a zone of that name, and REGION/ZONE. Fenced and removed nodes have failed already.
func FailureDomain(s *catalog.State, name string) (kind string, nodes []rhumb.NodeID, err error) {
	const op rhumb.Op = "place.FailureDomain"
	regions := make(map[rhumb.RegionID]string)
	for r := range s.Regions() {
		regions[r.ID] = r.Name
	}
	// found has the nodes by what the name would be: a node, a zone or a region. zones are the zones of that name, with their regions.
	found := make(map[string][]rhumb.NodeID)
	zones := make(map[string]bool)
	known := false
	for n := range s.Nodes() {
		if n.Forgotten {
			continue
		}
		region := regions[n.Region]
		kinds := map[string]bool{
			"node": name == n.ID.String() || n.Name != "" && name == n.Name, "region": name == region,
			"zone": name == n.Zone || name == region+"/"+n.Zone,
		}
		if kinds["zone"] {
			zones[region+"/"+n.Zone] = true
		}
		for k, is := range kinds {
			known = known || is
			if is && n.State != rhumb.NodeFenced {
				found[k] = append(found[k], n.ID)
			}
		}
	}
	// A region and one of its zones may have one name. The larger one is meant then: it contains the other one or is apart,
	// and REGION/ZONE names the zone.
	for _, k := range []string{"node", "region", "zone"} {
		if len(found[k]) == 0 {
			continue
		}
		if k == "zone" && len(zones) > 1 {
			list := make([]string, 0, len(zones))
			for z := range zones {
				list = append(list, z)
			}
			slices.Sort(list)
			return "", nil, rhumb.Ef(op, rhumb.InvalidArgument, "several regions have a zone %q; name one of %s", name, strings.Join(list, ", "))
		}
		return k, found[k], nil
	}
	if known {
		return "", nil, rhumb.Ef(op, rhumb.Conflict, "%q has failed already: all its nodes are fenced", name)
	}
	// A region has no nodes before its first one joins, and after they were removed.
	for _, r := range regions {
		if r == name {
			return "", nil, rhumb.Ef(op, rhumb.Conflict, "region %q has no nodes, so nothing can fail", name)
		}
	}
	return "", nil, rhumb.Ef(op, rhumb.NotFound, "there is no node, zone or region %q; `rhumb node ls` lists all three", name)
}

// PlanFailover returns what happens when the nodes fail together. leader is the metadata leader, or NoNode.
//
// Who takes over and what is served follow from the state alone. If the state changes before the nodes fail, so does the plan.
func PlanFailover(s *catalog.State, nodes []rhumb.NodeID, leader rhumb.NodeID, t FailoverTimings) rhumb.FailoverPlan {
	fails := func(id rhumb.NodeID) bool { return slices.Contains(nodes, id) }
	plan := rhumb.FailoverPlan{Nodes: slices.Sorted(slices.Values(nodes)), LeaderFails: fails(leader), Ranges: []rhumb.RangeFailover{}}
	for n := range s.Nodes() {
		if !n.Voter {
			continue
		}
		plan.Voters++
		if n.State != rhumb.NodeFenced && !fails(n.ID) {
			plan.VotersLeft++
		}
	}
	pauses := newPauses(s, &plan, fails, t)
	for r := range s.Ranges() {
		// A range that is reserved for a split follows the one that is split.
		if r.Birth != 0 || !slices.ContainsFunc(r.InSync, fails) {
			plan.Untouched++
			continue
		}
		plan.Ranges = append(plan.Ranges, rangeFate(s, r, fails, &plan, pauses))
	}
	return plan
}

// rangeFate returns what the failure means for one range, and notes the longest pauses in the plan.
func rangeFate(s *catalog.State, r *rhumb.Range, fails func(rhumb.NodeID) bool, plan *rhumb.FailoverPlan, p *pauses) rhumb.RangeFailover {
	left, served := s.CanShrink(r, fails)
	f := rhumb.RangeFailover{Range: r.ID, Fate: rhumb.FailoverStays, From: r.Primary, To: r.Primary, Left: left}
	// Metadata that cannot decide changes no record: nobody is elected, and no set shrinks.
	if !plan.HasMajority() {
		f.Fate = rhumb.FailoverUnserved
		if fails(r.Primary) {
			f.To = rhumb.NoNode
		}
		f.Reason = fmt.Sprintf("the metadata loses its majority: %d of %d voters are left", plan.VotersLeft, plan.Voters)
		return f
	}
	moves := fails(r.Primary)
	if moves {
		// Without an heir the record names one of the failed nodes, and nobody is primary.
		f.Fate, f.To = rhumb.FailoverTakesOver, s.HeirWithout(r, fails)
	}
	if !served || f.To == rhumb.NoNode {
		f.Fate, f.Reason = rhumb.FailoverUnserved, whyUnserved(s, r, left)
		return f
	}
	pause, longest := p.of(r, left, moves), &plan.Stall
	if moves {
		longest = &plan.TakeOver
	}
	if f.Pause = pause.Most; pause.Most > longest.Most {
		*longest = pause
	}
	return f
}

// whyUnserved says why the copies that are left do not suffice.
func whyUnserved(s *catalog.State, r *rhumb.Range, left []rhumb.NodeID) string {
	class, _ := s.Class(r.Class)
	need := class.Settings.MinInSync
	switch {
	case len(left) == 0:
		return "no in-sync copy is left"
	// Acknowledged writes are safe on those that are left, and new ones would not be.
	case len(left) < need:
		return fmt.Sprintf("%d of the %d in-sync copies that a write needs is left (%s)", len(left), need, rhumb.NodeList(left))
	case !s.Spans(r.Class, left):
		return fmt.Sprintf("the in-sync copies that are left (%s) are in one region, and the table survives the loss of a region", rhumb.NodeList(left))
	}
	return fmt.Sprintf("none of the in-sync copies that are left (%s) can be elected", rhumb.NodeList(left))
}

// pauses composes the bounds of one failure.
type pauses struct {
	s *catalog.State
	t FailoverTimings
	// decided are the steps from the failure until metadata has fenced the nodes, for pairs within a region and between two.
	near, far []rhumb.PauseStep
}

// newPauses computes the part of the pauses that all ranges share: until metadata has decided.
func newPauses(s *catalog.State, plan *rhumb.FailoverPlan, fails func(rhumb.NodeID) bool, t FailoverTimings) *pauses {
	p := &pauses{s: s, t: t}
	// Metadata commits when a majority of the voters that are left answers the leader. Which of them leads then is not known, so
	// the longest round trip among them counts: it bounds every commit, whoever leads.
	voters, trip := make(map[rhumb.RegionID]bool), time.Duration(0)
	for n := range s.Nodes() {
		if n.Voter && n.State != rhumb.NodeFenced && !fails(n.ID) {
			voters[n.Region] = true
		}
	}
	for a := range voters {
		for b := range voters {
			trip = max(trip, time.Duration(s.RegionMicros(a, b))*time.Microsecond)
		}
	}
	// Two witnesses that share ranges with a node suffice (Evidence.Judge). With fewer the leader must have lost contact as well.
	alone := false
	shared := sharedRanges(s)
	for _, id := range plan.Nodes {
		count := 0
		for other := range shared[id] {
			if !fails(other) {
				count++
			}
		}
		alone = alone || count < 2
	}
	// Voters in one region use the short tick of Raft (raftmeta.Config.NearTick).
	elect := t.ElectNear
	if trip > 0 {
		elect = t.ElectFar
	}
	p.near = decisionSteps(plan, t, t.Near, trip, elect, alone)
	p.far = decisionSteps(plan, t, t.Far, trip, elect, alone)
	return p
}

// decisionSteps returns the steps from the failure until metadata has decided.
func decisionSteps(plan *rhumb.FailoverPlan, t FailoverTimings, pair PairTimings, trip, elect time.Duration, alone bool) []rhumb.PauseStep {
	silence := pair.Suspect + 2*pair.Heartbeat
	steps := []rhumb.PauseStep{{Name: "detection", Most: silence, Why: fmt.Sprintf(
		"nodes suspect each other after %v without a heartbeat; a heartbeat is sent every %v, and nodes that fall silent together are suspected together", pair.Suspect, pair.Heartbeat)}}
	waited := silence
	// The voters notice the silence of their leader while the nodes notice that of their peers. Only what is longer counts.
	if plan.LeaderFails && elect > waited {
		steps = append(steps, rhumb.PauseStep{Name: "metadata election", Most: elect - waited, Why: fmt.Sprintf("the metadata leader fails too; the voters elect another one within %v of its last message", elect)})
		waited = elect
	}
	if alone {
		contact := t.Contact
		// A leader counts the silence of a node from the start of its leadership.
		if plan.LeaderFails {
			contact += waited
		}
		if contact > waited {
			steps = append(steps, rhumb.PauseStep{Name: "contact", Most: contact - waited, Why: fmt.Sprintf("fewer than two nodes that share ranges with a failed one are left, so the metadata leader must have lost contact too, for %v", t.Contact)})
		}
	}
	// One command fences one node.
	return append(steps, rhumb.PauseStep{
		Name: "decision", Most: t.Report + t.Evaluate + time.Duration(len(plan.Nodes)+1)*trip,
		Why: fmt.Sprintf("suspicions are reported within %v and judged every %v; the metadata commits one command for each node, at a round trip of %v", t.Report, t.Evaluate, trip.Round(time.Millisecond)),
	})
}

// of returns the bound for a range.
func (p *pauses) of(r *rhumb.Range, left []rhumb.NodeID, moves bool) (out rhumb.PausePlan) {
	trip := time.Duration(0)
	regions := make(map[rhumb.RegionID]bool)
	for _, a := range r.InSync {
		x, _ := p.s.Node(a)
		regions[x.Region] = true
		for _, b := range left {
			y, _ := p.s.Node(b)
			trip = max(trip, time.Duration(p.s.RegionMicros(x.Region, y.Region))*time.Microsecond)
		}
	}
	// One pair of members in two regions suffices for the longer times: the slowest member decides when all have answered.
	pair, decided := p.t.Near, p.near
	if len(regions) > 1 {
		pair, decided = p.t.Far, p.far
	}
	// The shared steps are cloned, because the next range appends its own.
	out.Steps = slices.Clone(decided)
	for _, s := range decided {
		out.Most += s.Most
	}
	add := func(name string, most time.Duration, why string) {
		if most > 0 {
			out.Steps, out.Most = append(out.Steps, rhumb.PauseStep{Name: name, Most: most, Why: why}), out.Most+most
		}
	}
	if moves {
		// A lease runs from the last heartbeat, so most of it has passed when metadata decides.
		add("lease", pair.Lease-out.Most, fmt.Sprintf("the new primary waits until leases of the old one have expired, %v after its last heartbeat", pair.Lease))
		add("election", pair.Heartbeat+p.t.Prepare+3*trip, fmt.Sprintf(
			"a heartbeat (%v) tells the others which leases have ended; the new primary waits up to %v for answers about the best log, and commits its first entry, at a round trip of %v", pair.Heartbeat, p.t.Prepare, trip.Round(time.Millisecond)))
	} else {
		add("news", trip, "the primary learns of the smaller in-sync set")
	}
	add("machine", p.t.Machine, "an allowance for disks, processors and clients that connect again; a machine that is busier may take longer")
	return out
}
