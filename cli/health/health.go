// Package health judges a cluster: it turns the catalog and the reports of the nodes into problems
// on which an operator can act.
//
// The catalog alone is not enough, because it may be old and lists no damaged files. The reports of
// the nodes are not enough either, because a dead node reports nothing. So the verdict combines the
// catalog with one status per node.
package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/upgrade"
	"github.com/rhumbdb/rhumb/client"
)

// View is the input of a verdict: a catalog, and the status of each of its nodes.
type View struct {
	Regions  []rhumb.Region
	Nodes    []client.NodeStatus
	Ranges   []*rhumb.Range
	Tables   []client.TableStatus
	Revision uint64
}

// RangeCounts counts the ranges by their state.
type RangeCounts struct {
	Total int `json:"total"`
	// NoPrimary counts ranges without a live primary.
	NoPrimary int `json:"no_primary"`
	// UnderReplicated counts ranges with fewer copies in sync than their tables ask for. Copies beyond that, which arrive or leave while
	// a range moves, do not count.
	UnderReplicated int `json:"under_replicated"`
	// Displaced counts ranges whose primary is not the preferred node.
	Displaced int `json:"displaced"`
	// Refusing counts ranges with fewer live in-sync copies than their minimum: they refuse writes.
	Refusing int `json:"refusing"`
	// Lost counts ranges whose in-sync copies are all damaged: they are not served until an
	// operator accepts the loss.
	Lost int `json:"lost"`
	// Differing counts ranges whose copies differ and that nobody has mended.
	Differing int `json:"differing"`
	// Quarantined counts damaged copies, not ranges.
	Quarantined int `json:"quarantined_copies"`
}

// Verdict is the result of Judge.
type Verdict struct {
	// Problems lists faults that need attention. Notes lists facts that are worth knowing
	// although no action is needed.
	Problems, Notes []string
	Counts          RangeCounts
	// Differences are the ranges whose replicas differ, as far as the nodes list them.
	Differences []client.RangeDifference
	// CanLose is how many more nodes may fail, whichever they are, before a range refuses writes or
	// the metadata group has no majority.
	CanLose int
}

const (
	// loopLives is how many lives of one node within a minute are a loop.
	loopLives = 4
	// namedMax bounds the ranges that one problem names. A dead node can affect hundreds; `rhumb
	// range ls` lists them all.
	namedMax = 3
)

// Judge judges a cluster.
func Judge(v View) Verdict {
	j := newJudgement(v)
	j.judgeMetadata()
	j.judgeRegions()
	for i := range j.Nodes {
		j.judgeNode(&j.Nodes[i])
	}
	j.judgeRanges()
	j.judgeTroubles()
	j.judgeDifferences()
	j.noteDeferred()
	if r := upgrade.Judge(v.Nodes); r.Note() != "" {
		j.addNote("%s", r.Note())
	}
	return j.Verdict
}

// judgement is a verdict while it is being made, with indexes of the view.
type judgement struct {
	View
	Verdict
	nodeOf map[rhumb.NodeID]*client.NodeStatus
	// classes has the settings of the classes that have tables. How many copies a range should have, and needs to accept writes,
	// differs from class to class.
	classes  map[rhumb.ClassID]rhumb.ClassSettings
	regionOf map[rhumb.RegionID]string
	// fenced is how long ago each node was fenced: the maximum over the nodes that noticed, because
	// one that started later noticed later.
	fenced map[rhumb.NodeID]time.Duration
	// lives counts the recent lives that a node reports of itself. Each of them followed a fencing
	// of the live process, while the counts of its peers also include restarts of the process,
	// which an operator may have wanted.
	lives       map[rhumb.NodeID]int
	suspectedBy map[rhumb.NodeID][]rhumb.NodeID
	lacking     map[rhumb.NodeID]int  // replicas of a node that are not in sync
	logLost     map[rhumb.NodeID]bool // nodes with a replica that needs log which is trimmed away
	quarantined map[rhumb.NodeID]int  // copies of a node that the catalog lists as quarantined
}

// newJudgement returns a judgement without findings.
func newJudgement(v View) *judgement {
	// A node that was removed for good is nobody's problem.
	v.Nodes = slices.DeleteFunc(slices.Clone(v.Nodes), func(n client.NodeStatus) bool { return n.Node.Forgotten })
	j := &judgement{
		View: v, Verdict: Verdict{Problems: []string{}}, nodeOf: map[rhumb.NodeID]*client.NodeStatus{}, regionOf: map[rhumb.RegionID]string{},
		fenced: map[rhumb.NodeID]time.Duration{}, lives: map[rhumb.NodeID]int{}, suspectedBy: map[rhumb.NodeID][]rhumb.NodeID{},
		classes: map[rhumb.ClassID]rhumb.ClassSettings{}, lacking: map[rhumb.NodeID]int{}, logLost: map[rhumb.NodeID]bool{}, quarantined: map[rhumb.NodeID]int{},
	}
	for _, t := range v.Tables {
		j.classes[t.Class] = t.Settings
	}
	for _, r := range v.Regions {
		j.regionOf[r.ID] = r.Name
	}
	for i := range v.Nodes {
		j.indexNode(&v.Nodes[i])
	}
	for _, r := range v.Ranges {
		for _, n := range r.Quarantined {
			j.quarantined[n]++
		}
		for _, n := range r.Replicas {
			// A quarantined copy may still be listed as in sync.
			if !r.IsInSync(n) || r.IsQuarantined(n) {
				j.lacking[n]++
			}
		}
	}
	return j
}

// indexNode adds the report of one node about itself and its peers.
func (j *judgement) indexNode(n *client.NodeStatus) {
	j.nodeOf[n.Node.ID] = n
	for _, s := range n.Sights {
		j.fenced[s.Node] = max(j.fenced[s.Node], s.Fenced)
		if s.Node == n.Node.ID {
			j.lives[s.Node] = s.Lives
		}
	}
	for _, id := range n.Suspected {
		j.suspectedBy[id] = append(j.suspectedBy[id], n.Node.ID)
	}
	for _, t := range n.Troubles {
		if t.Kind == client.TroubleLogLost {
			j.logLost[t.Node] = true
		}
	}
}

// addProblem adds a finding that makes the cluster unhealthy.
func (j *judgement) addProblem(format string, args ...any) {
	j.Problems = append(j.Problems, fmt.Sprintf(format, args...))
}

// addNote adds a finding that an operator should know and that makes nothing unhealthy.
func (j *judgement) addNote(format string, args ...any) {
	j.Notes = append(j.Notes, fmt.Sprintf(format, args...))
}

// isAlive reports whether a node answers and may hold a role. A node that the catalog calls live
// but that does not answer is not alive: the catalog may be old, or nobody may be able to change
// it.
func (j *judgement) isAlive(id rhumb.NodeID) bool {
	// A draining node is not ready for clients, but it serves until its primaries have moved.
	n := j.nodeOf[id]
	return n != nil && n.Err == "" && n.Node.State != rhumb.NodeFenced && (n.Ready || n.Node.State == rhumb.NodeDraining)
}

// judgeMetadata judges the metadata group: without a majority of its voters nothing can be decided.
func (j *judgement) judgeMetadata() {
	var dead []rhumb.NodeID
	voters, silent, alive := 0, 0, 0
	regions := make(map[rhumb.RegionID]bool)
	for i := range j.Nodes {
		n := &j.Nodes[i]
		if j.isAlive(n.Node.ID) {
			alive++
			regions[n.Node.Region] = true
		}
		if n.Node.Voter {
			voters++
			switch {
			case !j.isAlive(n.Node.ID):
				dead = append(dead, n.Node.ID)
			// Rule-voter: a voter that has not proved its log is up but does not count toward a
			// majority.
			case n.Metadata != nil && (n.Metadata.Silent || n.Metadata.Short):
				silent++
			}
		}
		j.judgeMetadataReplica(n)
	}
	// A silent voter may prove its log at any moment, so it counts as up below. But it cannot
	// replace a voter that fails now, so it does not count as spare.
	majority := voters/2 + 1
	// The group of a cluster that has just been formed, or has grown, takes its voters one at a time, once they have its log.
	if want := rhumb.VoterCount(alive, len(regions)); voters > 0 && voters < want {
		j.addNote("the metadata group has %s and will have %d: until then it survives fewer failures", counted(voters, "voter", "voters"), want)
	}
	j.CanLose = max(voters-len(dead)-silent-majority, 0)
	switch {
	case voters > 0 && voters-len(dead) < majority:
		j.addProblem("the metadata group has no majority: %d of its %d voters are up, %s down; no range fails over, and no node or table can be added",
			voters-len(dead), voters, areDown(dead))
	case Leader(j.Nodes) == rhumb.NoNode:
		j.addProblem("no voter knows a leader of the metadata group: nodes and ranges are shown from one node's copy, revision %d, which may be old", j.Revision)
	}
}

// Leader returns the leader of the metadata group, or NoNode. Only voters are asked: a voter forgets a leader that it does not hear from, and
// a node without a vote names one that died until it hears from the next one. Voters may disagree for a moment after an election; any
// answer will do for people.
func Leader(nodes []client.NodeStatus) (leader rhumb.NodeID) {
	for _, n := range nodes {
		if n.Node.Voter {
			leader = cmp.Or(leader, n.MetadataLeader)
		}
	}
	return leader
}

// areDown names nodes as the subject of "down".
func areDown(ids []rhumb.NodeID) string {
	if len(ids) == 1 {
		return listNodes(ids) + " is"
	}
	return listNodes(ids) + " are"
}

// judgeMetadataReplica reports what keeps a node's replica of the metadata from voting, and past
// recoveries by force.
func (j *judgement) judgeMetadataReplica(n *client.NodeStatus) {
	m := n.Metadata
	if m == nil {
		return
	}
	switch {
	case m.Short:
		// The mark is the same for a replica that lost its end and an intact one that lagged when it started: both wait for their floor.
		j.addProblem("the metadata replica of node %s lacks entries that it may have stored before it started: it is being filled and votes after that; "+
			"do not stop another voter until then", n.Node.ID)
	// A silent learner costs nothing, so only voters are a problem.
	case m.Silent && n.Node.Voter && len(m.WaitsFor) > 0:
		j.addProblem("the metadata voter of node %s has started and does not vote yet: it waits for answers of %s", n.Node.ID, listNodes(m.WaitsFor))
	case m.Silent && n.Node.Voter:
		j.addProblem("the metadata voter of node %s has started and does not vote yet: it waits for a leader to admit it again", n.Node.ID)
	}
	if len(m.Readmits) > 0 {
		j.addProblem("metadata replicas of %s lost entries: the leader removes them and admits them again", listNodes(m.Readmits))
	}
	if r := m.Recovered; r != nil {
		// The only voter of a group may have been recovered because its own log was damaged.
		lost := "entries that it had lost are missing"
		if len(r.Lost) > 0 {
			lost = fmt.Sprintf("changes that only %s had are lost", listNodes(r.Lost))
		}
		j.addNote("the metadata was recovered by force from node %s at %s: %s", n.Node.ID, r.At.Format(time.RFC3339), lost)
	}
}

// judgeRegions reports regions without a live node.
func (j *judgement) judgeRegions() {
	for _, r := range j.Regions {
		var nodes []rhumb.NodeID
		fenced := time.Duration(0)
		for _, n := range j.Nodes {
			if n.Node.Region == r.ID {
				nodes = append(nodes, n.Node.ID)
				fenced = max(fenced, j.fenced[n.Node.ID])
			}
		}
		// A region without nodes has nothing that could be down.
		if len(nodes) == 0 || slices.ContainsFunc(nodes, j.isAlive) {
			continue
		}
		since := ""
		if fenced > 0 {
			// The nodes that noticed may have started after the region died.
			since = ", for at least " + roundAge(fenced)
		}
		homes, served := 0, 0
		for _, rg := range j.Ranges {
			if rg.ID.Region == r.ID {
				homes++
				if j.isServed(rg) {
					served++
				}
			}
		}
		j.addProblem("region %s is dead%s: none of its nodes (%s) is up; %d of its %d ranges are served from other regions, and new names are created without asking it",
			r.Name, since, listNodes(nodes), served, homes)
	}
}

// noteDeferred reports which writes a power loss may take from tables that defer syncs, and which it took or may have taken.
func (j *judgement) noteDeferred() {
	tables := map[rhumb.Durability][]string{}
	for _, t := range j.Tables {
		if t.Settings.Durability.Deferred() {
			tables[t.Settings.Durability] = append(tables[t.Settings.Durability], t.Name)
		}
	}
	for _, d := range slices.Sorted(maps.Keys(tables)) {
		j.addNote("%s syncs by up to %v: if all copies of a range lose power together, acknowledged writes of the last %[2]v are lost",
			nameTables(tables[d]), d.Window())
	}
	for i := range j.Nodes {
		n := &j.Nodes[i]
		l := n.DeferredLosses
		if l == nil {
			continue
		}
		if l.UnsureEpochs > 0 {
			j.addNote("on node %s, %s of tables that defer syncs went on after all copies that answered had started again, at %s last: if these lost power together, writes of the last window before that are lost",
				n.Node.ID, counted(l.UnsureEpochs, "range", "ranges"), l.Last.Format(time.RFC3339))
		}
		if l.Entries > 0 {
			j.addNote("ranges of tables that defer syncs went on without %s of node %s, at %s last: the other copies had lost them in a power loss",
				counted(int(l.Entries), "entry", "entries"), n.Node.ID, l.Last.Format(time.RFC3339))
		}
	}
}

// nameTables returns the first few tables as the subject of "defer".
func nameTables(names []string) string {
	switch more := len(names) - namedMax; {
	case len(names) == 1:
		return "table " + names[0] + " defers"
	case more > 0:
		return fmt.Sprintf("tables %s and %d more defer", strings.Join(names[:namedMax], ", "), more)
	}
	return "tables " + strings.Join(names, ", ") + " defer"
}

// judgeNode reports what keeps one node from serving, and what its peers and its stores complain
// about.
func (j *judgement) judgeNode(n *client.NodeStatus) {
	id, region := n.Node.ID, cmp.Or(j.regionOf[n.Node.Region], n.Node.Region.String())
	switch age := j.fenced[id]; {
	case n.Node.State == rhumb.NodeFenced && age > 0:
		// A node that was cut off from the others may answer without a complaint about itself.
		j.addProblem("node %s in %s is not ready: fenced %s ago; %s", id, region, roundAge(age), cmp.Or(n.Err, n.Reason, "it answers here"))
	case n.Node.State == rhumb.NodeFenced, !n.Ready:
		j.addProblem("node %s in %s is not ready: %s", id, region, cmp.Or(n.Err, n.Reason, n.Node.State.String()))
	case n.Reason != "": // for example a wrong clock or a full disk
		j.addProblem("node %s in %s gives up its primaries: %s", id, region, n.Reason)
	}
	// Peers of a fenced node do not hear it either; the line above already says so. Neither counts the words of a node that is fenced
	// or starts: it hears nobody.
	by := slices.DeleteFunc(slices.Clone(j.suspectedBy[id]), func(by rhumb.NodeID) bool { return !j.isAlive(by) })
	if len(by) > 0 && n.Node.State != rhumb.NodeFenced {
		j.addProblem("node %s in %s is suspected by %s: its heartbeats do not arrive there", id, region, listNodes(by))
	}
	if lives := j.lives[id]; lives >= loopLives {
		j.addProblem("node %s in %s began %d lives within a minute: it is fenced again and again; its log says why", id, region, lives)
	}
	// The mark stays until the node's next life, but once all its copies are in sync nothing is
	// missing.
	if n.Node.Short && j.lacking[id] > 0 {
		j.addProblem("node %s in %s lost data that it had acknowledged (an older copy of its disk, or a damaged one): %s not in sync yet",
			id, region, counted(j.lacking[id], "copy is", "copies are"))
	}
	for i := range n.Stores {
		s := &n.Stores[i]
		if s.Refuses != "" {
			j.addProblem("store %s of node %s refuses writes: %s", s.Dir, id, s.Refuses)
		}
		j.judgeStore(id, s)
	}
}

// judgeStore reports damaged files of a store. Old damage is a note: judgeRanges reports what it
// cost, the files are gone, but the disk that damaged them is still in use.
func (j *judgement) judgeStore(id rhumb.NodeID, s *client.StoreStatus) {
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
		more = fmt.Sprintf(" (and %d more)", n)
	}
	if n := max(s.DamagedRanges, j.quarantined[id]); n > 0 {
		j.addProblem("store %s of node %s is damaged: %s: %s%s; up to %s affected", s.Dir, id, place, last.What, more, counted(n, "copy is", "copies are"))
		return
	}
	j.addNote("store %s of node %s was damaged: %s: %s%s; the file is no longer used, but one bad file is seldom alone: check the disk",
		s.Dir, id, place, last.What, more)
}
