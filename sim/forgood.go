package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	evidence "github.com/rhumbdb/rhumb/raftmeta/place"
)

// In some seeds a region is lost for good among the other faults: its nodes
// stop and never return. The operator follows docs/runbooks/region-lost.md.
// Most of these seeds have two tables, one that survives the loss of a region
// and one that does not. The judges follow the loss like this:
//
//   - The region must be removed a minute after the last fault (removeMost), and by nobody but the operator.
//   - Only a range whose every copy was in the region may be gone, or begin again empty, and no other. The record of the region, and the
//     operation that records the loss, must report exactly these ranges and their tables (judgeGivenUp). The judge asks where the nodes are, and
//     not the catalog.
//   - A range whose copies elsewhere are all out of sync waits for the operator, who accepts the loss of the entries that
//     the best copy lacks (operate). Acknowledged writes may be among them only if no copy in sync was left
//     (judgeRecovery).
//   - Every other acknowledged write must be in the log at the end, as in all seeds. The log of a range that begins again is judged in two
//     parts (divideHistory).
//   - No range may count on a lost node for long if another node can take its place (whyNotReplaced).
//
// In other seeds one of more than two regions is removed with its nodes alive
// (leaving.go). Both may meet: the region that is being removed may die, or the
// one that takes its ranges. Ranges of seeds with a loss are not split: a part
// of a root could be lost alone.

const (
	// loseRetry is how often a loss is tried that the bounds of the faults
	// forbid at the moment.
	loseRetry = 500 * time.Millisecond
	// loseShare is the share of the faults, in percent, after which the region
	// is lost if it was not before.
	loseShare = 60
	// decideMost is the longest time that the operator takes to decide that a
	// region is lost.
	decideMost = 10 * time.Second
	// operateEvery is how often the operator looks.
	operateEvery = time.Second
)

// regionShape is how many regions there are, how many nodes each has, and how
// the tables are replicated.
type regionShape struct {
	regions, each int
	// spread is the number of copies in the table that survives a region, or 0
	// if there is none. alone is that of the other table.
	spread, alone int
}

// regionShapes are small, because each node costs a metadata group. In the
// first, the other region is alone after the loss: in-sync sets are then in one
// region (isAlone in the catalog). In the third, a lost copy has a place
// elsewhere. In the last, regions are removed one after another.
var regionShapes = []regionShape{{2, 3, 4, 3}, {3, 2, 4, 2}, {4, 2, 3, 2}, {3, 2, 0, 2}}

// drawRegions decides whether a region is lost for good, or one of many is
// removed. It has a generator of its own, so that all other seeds keep their
// meaning. Seeds that need their nodes elsewhere draw neither.
func (p *profile) drawRegions(r *rand.Rand, on bool) {
	kind := r.IntN(20)
	p.shape = r.IntN(len(regionShapes))
	if !on || p.survive || p.standIn || p.removes() || kind > 2 {
		return
	}
	p.faults = slices.Clone(p.faults)
	if kind != 1 {
		p.faults = append(p.faults, faultForGood)
	}
	if kind != 0 {
		p.faults, p.many = append(p.faults, faultRemove), true
	}
}

// losesForGood reports whether a region of this run is lost for good.
func (p *profile) losesForGood() bool { return slices.Contains(p.faults, faultForGood) }

// placeRegions puts the nodes into the regions of the shape.
func (p *profile) placeRegions() {
	// The table that survives a region needs more than one region after a
	// removal.
	if p.many && p.shape == 0 {
		p.shape = len(regionShapes) - 1
	}
	s := regionShapes[p.shape]
	p.placed, p.regions, p.nodes = true, s.regions, s.regions*s.each
	p.witness, p.survive, p.standIn, p.mixed, p.alone = false, false, false, s.spread > 0, s.alone
	p.settings.Survival, p.settings.Replicas, p.settings.MinInSync = rhumb.SurviveZone, s.alone, min(p.settings.MinInSync, s.alone)
	if p.mixed {
		p.settings.Survival, p.settings.Replicas, p.settings.MinInSync = rhumb.SurviveRegion, s.spread, 2
	}
	p.ranges = min(p.ranges, 2)
	p.settings.HashSlots = p.ranges
	p.wrong %= p.nodes
	if p.losesForGood() {
		p.small = false
		p.faults = slices.DeleteFunc(slices.Clone(p.faults), func(k FaultKind) bool { return k == faultDivide || k == faultMerge })
	}
}

// createTables returns the command that creates the tables of a shape, with
// ranges in each region.
func (w *world) createTables() catalog.Command {
	spread := w.p.settings
	var batch catalog.Batch
	for i, name := range []string{"t", "u"} {
		settings := spread
		if i == 1 {
			settings.Survival, settings.Replicas = rhumb.SurviveZone, w.p.alone
		}
		if i == 1 && !w.p.mixed {
			break
		}
		table := catalog.CreateTable{Name: name, Settings: settings}
		for home := range w.p.regions {
			p := catalog.Placement{Region: rhumb.RegionID(home + 1)}
			for range w.p.ranges {
				p.Replicas = append(p.Replicas, w.drawCopies(home, settings))
			}
			table.Placements = append(table.Placements, p)
		}
		batch.Commands = append(batch.Commands, table)
	}
	return batch
}

// drawCopies returns nodes for the copies of a range: as many as a region may
// hold in its home, and more in the regions after it.
func (w *world) drawCopies(home int, settings rhumb.ClassSettings) (out []rhumb.NodeID) {
	for k := range w.p.regions {
		there := 0
		for _, i := range w.rnd.Perm(len(w.nodes)) {
			n := w.nodes[i]
			if w.net.site[n.at] == (home+k)%w.p.regions && there < settings.RegionReplicasMax() && len(out) < settings.Replicas {
				out = append(out, n.id)
				there++
			}
		}
	}
	return out
}

// tableOfClass returns the table of a class.
func tableOfClass(st *catalog.State, class rhumb.ClassID) rhumb.TableID {
	for t := range st.Tables() {
		if t.Class == class {
			return t.ID
		}
	}
	return theTable
}

// tableOf returns the table of a range.
func (w *world) tableOf(id rhumb.RangeID) rhumb.TableID { return w.roots[w.rootOf(id)].table }

// regionLoss is the loss of a region for good.
type regionLoss struct {
	// site is the region in the network, region the one in the metadata.
	site   int
	region rhumb.RegionID
	// decided is when the operator begins to act. over is set when the region
	// was given up, replaced when the metadata group needs no lost voter any more.
	decided  time.Duration
	over     bool
	replaced bool
}

// loseLater makes sure that a region is lost in seeds that draw it, late among
// the faults if no draw did it before.
func (w *world) loseLater(end time.Duration) {
	if !w.p.losesForGood() {
		return
	}
	var try func()
	try = func() {
		if what := w.loseForGood(); what != "" {
			w.tracef("fault", "%s", what)
			w.stats.Faults[faultForGood]++
			return
		}
		if w.forGood == nil && !w.healed {
			w.after(loseRetry, try)
		}
	}
	w.after((end-w.now)*loseShare/100, try)
}

// loseForGood stops all nodes of a region for good, if the bounds of the faults
// permit it.
func (w *world) loseForGood() string {
	site := w.chance.IntN(w.p.regions)
	if w.healed || w.forGood != nil || !w.mayLose(site) {
		return ""
	}
	// mayLose has found the damage repaired, or there was none.
	w.damage = nil
	l := &regionLoss{site: site, region: rhumb.RegionID(site + 1), decided: w.now + w.drawDuration(0, decideMost)}
	w.forGood = l
	for _, n := range w.nodes {
		if w.net.site[n.at] != site || n.retired {
			continue
		}
		// The judges keep the content of the disk: what it held when the region
		// was lost is what an in-sync set may still name. Nothing reads it
		// again.
		n.lost, n.retired = true, true
		if !n.down {
			n.stop()
		}
	}
	w.after(0, w.operate)
	w.after(0, w.watchVoters)
	return fmt.Sprintf("region %s is lost for good", l.region)
}

// mayLose reports whether the guarantees of replication cover the loss of a
// region: the metadata group keeps a majority of voters, no disk is damaged,
// and the ranges that survive a region have enough intact copies in sync
// elsewhere.
func (w *world) mayLose(site int) bool {
	voters, left, here, there := 0, 0, 0, 0
	for _, n := range w.nodes {
		rec, ok := w.state.Node(n.id)
		isThere := w.net.site[n.at] == site
		switch {
		case !ok || n.retired:
		case isThere:
			there++
		default:
			here++
		}
		if !ok || !rec.Voter {
			continue
		}
		voters++
		if isThere || n.retired {
			continue
		}
		left++
		// A voter that has just started, or lags, may not vote until it has the
		// entries that the lost one knew (docs/roadmap.md, seed 1347).
		if n.down || n.paused || n.host == nil || n.group.State().Revision() < w.state.Revision() || w.net.deaf[n.index] {
			return false
		}
	}
	if there == 0 || here == 0 || left <= voters/2 || w.mustHoldFaults() || w.damage != nil && !w.damage.isRepaired() {
		return false
	}
	for _, id := range w.served() {
		r, _ := w.state.Range(id)
		intact := 0
		for _, m := range r.InSync {
			if w.net.site[w.nodes[m-1].at] != site && w.monitor.Whole(id, m, w.diskOf(id)) {
				intact++
			}
		}
		// A quarantined copy may be one of too many that a range lacks.
		if len(r.Quarantined) > 0 || w.survivesRegion(w.state, r) && intact < w.p.settings.MinInSync {
			return false
		}
	}
	return true
}

// awaitsVoters reports whether a lost node still counts as a voter. Until the metadata
// group has replaced it no other fault may begin: a group of three with one
// voter lost and one damaged or down has no majority.
func (w *world) awaitsVoters() bool { return w.forGood != nil && !w.forGood.replaced }

// watchVoters asks the metadata leader until its voters are without lost nodes.
// The catalog names the new voters while the majority of the
// old ones is still needed (seed 5196).
func (w *world) watchVoters() {
	l := w.forGood
	if l.replaced {
		return
	}
	w.after(damageProbeEvery, w.watchVoters)
	n := w.metadataLeader()
	if n == nil {
		return
	}
	n.spawn(func() {
		st, err := n.group.Status(n.ctx)
		lost := func(id rhumb.NodeID) bool { return w.nodes[id-1].lost }
		// Another node may lead by now.
		if err != nil || st.Leader != n.id || slices.ContainsFunc(st.Voters, lost) || slices.ContainsFunc(st.Outgoing, lost) {
			return
		}
		l.replaced = true
	})
}

// countsOnLost reports whether an in-sync set still names a lost node. No disk
// may be damaged then: the set is smaller than it looks.
func (w *world) countsOnLost() bool {
	if w.forGood == nil {
		return false
	}
	for r := range w.state.Ranges() {
		if slices.ContainsFunc(r.InSync, func(n rhumb.NodeID) bool { return w.nodes[n-1].lost }) {
			return true
		}
	}
	return false
}

// operate is the operator after the loss of a region. First the ranges are
// decided about that nobody can decide about but a person, then the region is
// given up, and ranges whose lost members leave too few for an election
// continue from their best copy. It repeats to the end of the run.
func (w *world) operate() {
	l := w.forGood
	w.after(operateEvery, w.operate)
	region, _ := w.state.Region(l.region)
	if w.now < l.decided || !region.Removed && !evidence.IsRegionLost(w.state, l.region) {
		return
	}
	if region.Removed {
		for _, id := range w.served() {
			if r, ok := w.state.Range(id); ok {
				w.recoverRange(r)
			}
		}
		return
	}
	// As the command does, the operator looks at the losses before the region
	// is given up. The number goes into the command, which is refused if it has
	// changed.
	lost, stuck := w.state.LostRanges(l.region)
	for _, r := range stuck {
		w.recoverRange(r)
	}
	if len(stuck) > 0 {
		return
	}
	// If a removal had begun, the ranges that have moved are in the region that
	// it chose.
	into := w.state.HostRegion(l.region)
	if region.Into == 0 {
		into = evidence.NearestHost(w.state, l.region)
	}
	w.proposeOnce(catalog.RemoveRegion{
		Region: l.region, Into: into, Force: true, Lost: uint32(len(lost)), By: "sim", At: time.Unix(0, int64(w.now)),
	})
}

// recoverRange lets a range continue from its best copy if it cannot elect a
// primary any more. The operator waits until all nodes with copies run that can
// return: one that is down may have entries that the others lack.
func (w *world) recoverRange(r *rhumb.Range) {
	if p := w.nodes[r.Primary-1]; p.host != nil && p.host.Serves(r.ID) {
		return
	}
	i := w.rangeIndex(r.ID)
	best, most, synced := rhumb.NoNode, -1, false
	for _, id := range r.Replicas {
		n := w.nodes[id-1]
		if n.lost {
			continue
		}
		if n.down || n.paused || n.host == nil || !w.state.IsLive(id) {
			return
		}
		// A member of the in-sync set has every acknowledged entry, whatever
		// the lengths are. Among others the longest log lacks the least.
		length, member := 0, r.IsInSync(id) && !r.IsQuarantined(id)
		if c := n.disk.copies[i]; c != nil {
			length = len(c.entries)
		}
		if r.IsQuarantined(id) || best != rhumb.NoNode && (synced && !member || synced == member && length <= most) {
			continue
		}
		best, most, synced = id, length, member
	}
	if best == rhumb.NoNode || w.state.WhyNotRecover(r, best) != "" {
		return
	}
	w.tracef("world", "range %s continues from %s, which has %d entries", r.ID, best, most)
	w.proposeOnce(catalog.RecoverRange{Range: r.ID, Version: r.Version, Node: best})
}

// whyNotGivenUp returns why the loss of a region is not over, or "".
func (w *world) whyNotGivenUp() string {
	if w.forGood == nil {
		return ""
	}
	if region, _ := w.state.Region(w.forGood.region); !region.Removed {
		return fmt.Sprintf("region %s was lost for good and is not removed", region.Name)
	}
	return w.whyNotReplaced()
}

// whyNotReplaced returns a range that counts on a lost node although another
// node could take its place, or "".
func (w *world) whyNotReplaced() string {
	for _, id := range w.served() {
		r, ok := w.state.Range(id)
		if !ok || !slices.ContainsFunc(r.Replicas, func(n rhumb.NodeID) bool { return w.nodes[n-1].lost }) {
			continue
		}
		if room, wants := w.roomFor(r); room >= wants {
			return fmt.Sprintf("range %s has copies on %v, of which some are lost, and %d other nodes have room", id, r.Replicas, room)
		}
	}
	return ""
}

// roomFor returns how many nodes that run could have a copy of a range, and how
// many copies it is to have.
func (w *world) roomFor(r *rhumb.Range) (room, wants int) {
	class, _ := w.state.Class(r.Class)
	// A node of another region is no place for a copy of a table that does not
	// survive the loss of a region, and no region may have more copies than the
	// table allows.
	perSite := map[int]int{}
	for _, n := range w.nodes {
		site := w.net.site[n.at]
		home := class.Settings.Survival == rhumb.SurviveRegion || rhumb.RegionID(site+1) == w.state.HostRegion(r.ID.Region)
		if home && w.state.TakesCopies(n.id) && perSite[site] < class.Settings.RegionReplicasMax() {
			perSite[site]++
			room++
		}
	}
	return room, class.Settings.Replicas
}

// lacksRoom reports whether a removal cannot end since another region was lost
// for good. An operator cancels it then.
func (w *world) lacksRoom() bool {
	for _, id := range w.served() {
		r, ok := w.state.Range(id)
		if !ok || w.forGood == nil {
			continue
		}
		if room, wants := w.roomFor(r); room < wants {
			return true
		}
	}
	return false
}

// judgeGivenUp checks the ranges that the metadata has given up with a region,
// in the step in which it has done so.
func (w *world) judgeGivenUp(old *catalog.State) {
	l := w.forGood
	if l == nil || l.over || old == nil {
		return
	}
	region, _ := w.state.Region(l.region)
	if !region.Removed {
		return
	}
	l.over = true
	w.stats.GivenUp++
	w.tracef("world", "region %s was given up with %d ranges", region.Name, region.Lost)
	// The places in the network are true, whatever the catalog says about its
	// regions.
	isThere := func(n rhumb.NodeID) bool { return w.net.site[w.nodes[n-1].at] == l.site }
	type block struct {
		class rhumb.ClassID
		home  rhumb.RegionID
	}
	// A table keeps all ranges of a home or none: a name is hashed to any of
	// them. So a lost range begins again if another one of its block stays.
	stays := map[block]bool{}
	var lost []*rhumb.Range
	for r := range old.Ranges() {
		if slices.ContainsFunc(r.Replicas, func(n rhumb.NodeID) bool { return !isThere(n) }) {
			stays[block{r.Class, r.ID.Region}] = true
		} else {
			lost = append(lost, r)
		}
	}
	// Several commands may have been applied in one step. Copies may have moved
	// in another one of them.
	if w.state.Revision() == old.Revision()+1 && len(lost) != int(region.Lost) {
		w.failf("region %s was given up with %d ranges, but %d had all copies there: %v", region.Name, region.Lost, len(lost), lost)
	}
	tables := map[rhumb.TableID]bool{}
	for i, id := range w.ranges {
		before, had := old.Range(id)
		now, has := w.state.Range(id)
		switch {
		case !had:
		case !has && slices.Contains(lost, before) && !stays[block{before.Class, id.Region}]:
			w.roots[i].gone = true
		case !has:
			w.failf("range %s is gone with region %s, although it had copies on %v", id, region.Name, before.Replicas)
		case slices.Contains(lost, before) && !slices.ContainsFunc(now.Replicas, before.IsReplica):
			w.stats.Restarted++
		case slices.Contains(lost, before):
			w.failf("range %s had all copies in region %s, and is neither gone nor begins again: %v", id, region.Name, now.Replicas)
			continue
		default:
			continue
		}
		if had && w.survivesRegion(old, before) {
			w.failf("range %s is lost with region %s, although its table survives the loss of a region", id, region.Name)
		}
		if had {
			w.stats.Forgone++
			tables[w.roots[i].table] = true
		}
	}
	w.judgeReport(len(lost), tables)
}

// judgeReport checks the operation that records a loss: the number of ranges,
// and the tables.
func (w *world) judgeReport(ranges int, tables map[rhumb.TableID]bool) {
	var names []string
	for t := range w.state.Tables() {
		if tables[t.ID] {
			names = append(names, t.Name)
		}
	}
	want := fmt.Sprintf("by force: %d ranges were given up", ranges)
	text := ""
	for o := range w.state.Operations() {
		if o.Kind == rhumb.OperationRemoveRegion && o.Region == w.forGood.region {
			text = o.Error // the last one records the loss
		}
	}
	_, reported, _ := strings.Cut(text, "tables: ")
	// A planned removal may have ended on its own, if nothing was left in the
	// region. Then nothing is reported.
	if ranges > 0 && (!strings.HasPrefix(text, want) || reported != strings.Join(names, ", ")) {
		w.failf("the loss of region %s is recorded as %q, want %q of tables %v", w.forGood.region, text, want, names)
	}
}
