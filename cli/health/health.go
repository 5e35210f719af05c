// Package health judges a cluster: it turns what metadata and the nodes report into problems that an operator can act on.
package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// View is what a verdict is made of: a catalog, and what each of its nodes says.
type View struct {
	Regions []rhumb.Region
	Nodes   []client.NodeStatus
	Ranges  []*rhumb.Range
	// MinInSync is the least in-sync set of each class.
	MinInSync map[rhumb.ClassID]int
	Revision  uint64
}

// RangeCounts sort the ranges by how they stand.
type RangeCounts struct {
	Total int `json:"total"`
	// NoPrimary have no live primary. UnderReplicated miss in-sync replicas. Displaced are served by another node than
	// the preferred one. Refusing have fewer live in-sync copies than their minimum, and Lost no intact one: they are not
	// served until a loss is accepted. Quarantined counts damaged copies, not ranges.
	NoPrimary       int `json:"no_primary"`
	UnderReplicated int `json:"under_replicated"`
	Displaced       int `json:"displaced"`
	Refusing        int `json:"refusing"`
	Lost            int `json:"lost"`
	Quarantined     int `json:"quarantined_copies"`
}

// Verdict is how a cluster stands.
type Verdict struct {
	// Problems say what is not as it should be, Notes what is worth knowing although nothing depends on it.
	Problems, Notes []string
	Counts          RangeCounts
	// CanLose is how many more nodes may fail, whichever they are, before a range refuses writes or the metadata group has
	// no majority.
	CanLose int
}

const (
	// loopLives is how many lives of one node within a minute are a loop.
	loopLives = 4
	// namedMax bounds the ranges that one problem names.
	namedMax = 3
)

// Judge says how a cluster stands.
func Judge(v View) Verdict {
	j := newJudgement(v)
	j.metadata()
	j.regions()
	for i := range v.Nodes {
		j.node(&v.Nodes[i])
	}
	j.ranges()
	j.troubles()
	return j.Verdict
}

// judgement is a verdict while it is made.
type judgement struct {
	View
	Verdict
	nodeOf   map[rhumb.NodeID]*client.NodeStatus
	regionOf map[rhumb.RegionID]string
	// fenced is the greatest that any node has seen. lives are those that a node has seen of itself: each followed a fencing of
	// the live process, while others also count starts of the process.
	fenced    map[rhumb.NodeID]time.Duration
	lives     map[rhumb.NodeID]int
	suspected map[rhumb.NodeID][]rhumb.NodeID // by whom
	lacking   map[rhumb.NodeID]int            // replicas of a node that are not in sync
	logLost   map[rhumb.NodeID]bool
	// quarantined counts the copies of a node that metadata has as quarantined.
	quarantined map[rhumb.NodeID]int
}

func newJudgement(v View) *judgement {
	j := &judgement{
		View: v, Verdict: Verdict{Problems: []string{}}, nodeOf: map[rhumb.NodeID]*client.NodeStatus{}, regionOf: map[rhumb.RegionID]string{},
		fenced: map[rhumb.NodeID]time.Duration{}, lives: map[rhumb.NodeID]int{}, suspected: map[rhumb.NodeID][]rhumb.NodeID{},
		lacking: map[rhumb.NodeID]int{}, logLost: map[rhumb.NodeID]bool{}, quarantined: map[rhumb.NodeID]int{},
	}
	for _, r := range v.Regions {
		j.regionOf[r.ID] = r.Name
	}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		j.nodeOf[n.Node.ID] = n
		for _, s := range n.Sights {
			j.fenced[s.Node] = max(j.fenced[s.Node], s.Fenced)
			if s.Node == n.Node.ID {
				j.lives[s.Node] = s.Lives
			}
		}
		for _, id := range n.Suspected {
			j.suspected[id] = append(j.suspected[id], n.Node.ID)
		}
		for _, t := range n.Troubles {
			if t.Kind == client.TroubleLogLost {
				j.logLost[t.Node] = true
			}
		}
	}
	for _, r := range v.Ranges {
		for _, n := range r.Quarantined {
			j.quarantined[n]++
		}
		for _, n := range r.Replicas {
			if !r.IsInSync(n) || r.IsQuarantined(n) {
				j.lacking[n]++
			}
		}
	}
	return j
}

func (j *judgement) problem(format string, args ...any) {
	j.Problems = append(j.Problems, fmt.Sprintf(format, args...))
}

// alive reports whether a node answers and may hold a role. What metadata says of it may be old.
func (j *judgement) alive(id rhumb.NodeID) bool {
	n := j.nodeOf[id]
	return n != nil && n.Err == "" && n.Node.State != rhumb.NodeFenced && (n.Ready || n.Node.State == rhumb.NodeDraining)
}

// metadata judges the metadata group: without a majority of its voters nothing is decided.
func (j *judgement) metadata() {
	var leader rhumb.NodeID
	var dead []rhumb.NodeID
	voters, mute := 0, 0
	for _, n := range j.Nodes {
		leader = cmp.Or(leader, n.MetadataLeader)
		if n.Node.Voter {
			voters++
			switch {
			case !j.alive(n.Node.ID):
				dead = append(dead, n.Node.ID)
			case n.Metadata != nil && (n.Metadata.Silent || n.Metadata.Short):
				mute++
			}
		}
		j.metadataReplica(&n)
	}
	least := voters/2 + 1
	j.CanLose = max(voters-len(dead)-mute-least, 0)
	switch {
	case voters > 0 && voters-len(dead) < least:
		j.problem("the metadata group has no majority: %d of its %d voters live (%s do not): no range fails over, and no node or table can be added", voters-len(dead), voters, listNodes(dead))
	case leader == rhumb.NoNode:
		j.problem("no node knows a leader of the metadata group: what is shown of nodes and ranges is one node's copy, revision %d, and may be old", j.Revision)
	}
}

// metadataReplica tells what keeps a node's replica of the metadata from voting, and what recoveries took place.
func (j *judgement) metadataReplica(n *client.NodeStatus) {
	m := n.Metadata
	if m == nil {
		return
	}
	switch {
	case m.Short:
		j.problem("the metadata replica of node %s lost entries that it had stored: it is filled again and votes after that; until then no other voter should stop", n.Node.ID)
	case m.Silent && n.Node.Voter && len(m.WaitsFor) > 0:
		j.problem("the metadata voter of node %s has started and does not vote yet: it waits for answers of %s", n.Node.ID, listNodes(m.WaitsFor))
	case m.Silent && n.Node.Voter:
		j.problem("the metadata voter of node %s has started and does not vote yet: a leader has to take it in anew", n.Node.ID)
	}
	if len(m.Readmits) > 0 {
		j.problem("metadata replicas of %s lost entries: the leader removes them and takes them in anew", listNodes(m.Readmits))
	}
	if r := m.Recovered; r != nil {
		j.Notes = append(j.Notes, fmt.Sprintf("the metadata was recovered by force from node %s at %s: changes that only %s had are lost", n.Node.ID, r.At.Format(time.RFC3339), listNodes(r.Lost)))
	}
}

// regions names regions of which no node lives.
func (j *judgement) regions() {
	for _, r := range j.Regions {
		var nodes []rhumb.NodeID
		fenced := time.Duration(0)
		for _, n := range j.Nodes {
			if n.Node.Region == r.ID {
				nodes = append(nodes, n.Node.ID)
				fenced = max(fenced, j.fenced[n.Node.ID])
			}
		}
		if len(nodes) == 0 || slices.ContainsFunc(nodes, j.alive) {
			continue
		}
		since := ""
		if fenced > 0 {
			since = " since " + roundAge(fenced) + " ago or longer"
		}
		homes, served := 0, 0
		for _, rg := range j.Ranges {
			if rg.ID.Region == r.ID {
				homes++
				if j.serves(rg) {
					served++
				}
			}
		}
		j.problem("region %s is dead%s: none of its nodes (%s) lives; %d of its %d ranges are served from other regions, and new names are created without asking it", r.Name, since, listNodes(nodes), served, homes)
	}
}

func (j *judgement) node(n *client.NodeStatus) {
	id, region := n.Node.ID, cmp.Or(j.regionOf[n.Node.Region], n.Node.Region.String())
	switch age := j.fenced[id]; {
	case n.Node.State == rhumb.NodeFenced && age > 0:
		j.problem("node %s in %s is not ready: fenced %s ago; %s", id, region, roundAge(age), cmp.Or(n.Err, n.Reason))
	case n.Node.State == rhumb.NodeFenced, !n.Ready:
		j.problem("node %s in %s is not ready: %s", id, region, cmp.Or(cmp.Or(n.Err, n.Reason), n.Node.State.String()))
	case n.Reason != "": // as when its clock is wrong, or its disk full
		j.problem("node %s in %s gives up its primaries: %s", id, region, n.Reason)
	}
	if by := j.suspected[id]; len(by) > 0 && n.Node.State != rhumb.NodeFenced {
		j.problem("node %s in %s is not heard by %s", id, region, listNodes(by))
	}
	if lives := j.lives[id]; lives >= loopLives {
		j.problem("node %s in %s began %d lives within a minute: it is fenced and comes back again and again; its log says why", id, region, lives)
	}
	if n.Node.Short && j.lacking[id] > 0 {
		j.problem("node %s in %s lost data that it had acknowledged (an older copy of its disk, or a damaged one): %d of its copies are not in sync yet", id, region, j.lacking[id])
	}
	for _, s := range n.Stores {
		if s.Refuses != "" {
			j.problem("store %s of node %s refuses writes: %s", s.Dir, id, s.Refuses)
		}
		j.damage(id, &s)
	}
}

// damage tells of the damaged files of a store. Where no range is touched any more they are only noted.
func (j *judgement) damage(id rhumb.NodeID, s *client.StoreStatus) {
	if len(s.Damages) == 0 {
		return
	}
	last := s.Damages[len(s.Damages)-1]
	place := last.File
	if last.Offset >= 0 {
		place = fmt.Sprintf("%s at offset %d", last.File, last.Offset)
	}
	more := ""
	if n := len(s.Damages) - 1; n > 0 {
		more = fmt.Sprintf(", and %d more damages", n)
	}
	if n := max(s.DamagedRanges, j.quarantined[id]); n > 0 {
		j.problem("store %s of node %s is damaged: %s: %s%s; %d of its copies may be", s.Dir, id, place, last.What, more, n)
		return
	}
	j.Notes = append(j.Notes, fmt.Sprintf("store %s of node %s was damaged: %s: %s%s; no range depends on it any more, but one bad file is seldom alone: check the disk", s.Dir, id, place, last.What, more))
}

// intact counts the members of the in-sync set that live and are not quarantined.
func (j *judgement) intact(r *rhumb.Range) (n int) {
	for _, id := range r.InSync {
		if j.alive(id) && !r.IsQuarantined(id) {
			n++
		}
	}
	return n
}

// serves reports whether a range has a live primary.
func (j *judgement) serves(r *rhumb.Range) bool {
	return j.alive(r.Primary) && !r.IsQuarantined(r.Primary)
}

// ranges counts the ranges by how they stand, and says why.
func (j *judgement) ranges() {
	c := &j.Counts
	var noIntact, stopped, recovered []rhumb.RangeID
	displaced := map[string]int{}
	for _, r := range j.Ranges {
		c.Total++
		c.Quarantined += len(r.Quarantined)
		spare := j.intact(r) - max(j.MinInSync[r.Class], 1)
		j.CanLose = min(j.CanLose, max(spare, 0))
		if !j.serves(r) {
			c.NoPrimary++
		}
		if len(r.InSync) < len(r.Replicas) {
			c.UnderReplicated++
		}
		switch {
		case !slices.ContainsFunc(r.InSync, func(n rhumb.NodeID) bool { return !r.IsQuarantined(n) }):
			noIntact = append(noIntact, r.ID)
		case spare < 0:
			stopped = append(stopped, r.ID)
		}
		if r.Recovery != nil {
			recovered = append(recovered, r.ID)
		}
		if r.Primary != r.Preferred {
			c.Displaced++
			displaced[j.whyDisplaced(r)]++
		}
	}
	c.Lost, c.Refusing = len(noIntact), len(stopped)
	if c.Lost > 0 {
		j.problem("%d ranges have no intact copy in sync and are not served (%s): `rhumb unsafe-recover range` shows what is left, and accepts the loss", c.Lost, listRanges(noIntact))
	}
	if c.NoPrimary > 0 {
		j.problem("%d ranges have no live primary", c.NoPrimary)
	}
	if c.Refusing > 0 {
		j.problem("%d ranges have fewer live in-sync copies than their minimum and refuse writes (%s); if the nodes of the others are gone for good, `rhumb unsafe-recover range` shows what is left of a range, and lets it go on", c.Refusing, listRanges(stopped))
	}
	if c.UnderReplicated > 0 {
		j.problem("%d ranges miss an in-sync replica", c.UnderReplicated)
	}
	if len(recovered) > 0 {
		j.Notes = append(j.Notes, fmt.Sprintf("for %d ranges an operator has accepted a loss (%s): `rhumb range describe` tells which", len(recovered), listRanges(recovered)))
	}
	for _, why := range slices.Sorted(maps.Keys(displaced)) {
		j.problem("%d ranges are displaced: %s", displaced[why], why)
	}
}

// whyDisplaced says why a range is served by another node than the preferred one.
func (j *judgement) whyDisplaced(r *rhumb.Range) string {
	id := r.Preferred
	n := j.nodeOf[id]
	switch {
	case n == nil:
		return fmt.Sprintf("their preferred node %s is unknown", id)
	case n.Node.State == rhumb.NodeFenced:
		return fmt.Sprintf("their preferred node %s is fenced", id)
	case n.Node.State == rhumb.NodeDraining:
		return fmt.Sprintf("their preferred node %s drains", id)
	case !j.alive(id):
		return fmt.Sprintf("their preferred node %s does not answer", id)
	case r.IsQuarantined(id):
		return fmt.Sprintf("the copy of their preferred node %s is quarantined", id)
	case !r.IsInSync(id) && j.logLost[id]:
		return fmt.Sprintf("their preferred node %s needs log that is trimmed away", id)
	case !r.IsInSync(id):
		return fmt.Sprintf("their preferred node %s is not in sync yet", id)
	}
	return fmt.Sprintf("their preferred node %s is in sync again and takes them back", id)
}

// troubleWords say what is wrong with ranges of a node.
var troubleWords = map[client.TroubleKind]string{
	client.TroubleQuarantined: "node %s has quarantined its copy of %d ranges (%s): %s; once others are in sync, `rhumb range discard RANGE --node %[1]s` gives a copy up",
	client.TroubleWaiting:     "node %s was elected primary of %d ranges (%s) and does not serve them yet: %s",
	client.TroubleLogLost:     "node %s cannot catch up with %d ranges (%s) by log: %s",
}

// troubles tells what nodes say of replicas, one line for each node, kind and reason.
func (j *judgement) troubles() {
	type group struct {
		kind   client.TroubleKind
		node   rhumb.NodeID
		reason string
	}
	ranges := map[group][]rhumb.RangeID{}
	told := map[rhumb.NodeID]map[rhumb.RangeID]bool{}
	var order []group
	add := func(g group, id rhumb.RangeID) {
		if ranges[g] == nil {
			order = append(order, g)
		}
		ranges[g] = append(ranges[g], id)
	}
	for _, n := range j.Nodes {
		for _, t := range n.Troubles {
			if t.Kind == client.TroubleQuarantined {
				if told[t.Node] == nil {
					told[t.Node] = map[rhumb.RangeID]bool{}
				}
				told[t.Node][t.Range] = true
			}
			add(group{t.Kind, t.Node, withoutNumbers(t)}, t.Range)
		}
	}
	for _, r := range j.Ranges { // what the list of a node has no room for, or a node that does not answer
		for _, n := range r.Quarantined {
			if !told[n][r.ID] {
				add(group{client.TroubleQuarantined, n, "by metadata's record"}, r.ID)
			}
		}
	}
	for _, g := range order {
		j.problem(troubleWords[g.kind], g.node, len(ranges[g]), listRanges(ranges[g]), g.reason)
	}
}

// withoutNumbers gives the reason of a trouble. That of a lost log names a position, which differs between ranges.
func withoutNumbers(t client.ReplicaTrouble) string {
	if t.Kind == client.TroubleLogLost {
		return "the log that they need is trimmed away; they need a state transfer"
	}
	return t.Reason
}

func listNodes(ids []rhumb.NodeID) string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = id.String()
	}
	return strings.Join(names, ", ")
}

// listRanges names the first ranges, and says when there are more.
func listRanges(ids []rhumb.RangeID) string {
	var names []string
	for _, id := range ids[:min(len(ids), namedMax)] {
		names = append(names, id.String())
	}
	if len(ids) > namedMax {
		names = append(names, "...")
	}
	return strings.Join(names, ", ")
}

func roundAge(d time.Duration) string { return max(d.Round(time.Second), time.Second).String() }
