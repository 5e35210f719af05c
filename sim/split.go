package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	evidence "github.com/rhumbdb/rhumb/raftmeta/place"
	"github.com/rhumbdb/rhumb/sim/check"
)

// This file splits ranges (docs/replication.md#rule-split). Clients and checkers know roots, the ranges that the table was created
// with: a key always belongs to its root, and a range has its slot for a while. Each root has a few points, drawn from the seed, at
// which it may be divided. They divide its keys into cells, and all keys of a request are of one cell: a batch is of one range,
// before and after every split.
//
// The judges follow a split like this:
//
//   - The metadata shows a reserved range: the lists of the judges get a place for it (learnSplits).
//   - The first replica divides its copy: the committed log of the new range begins with everything up to the entry, and what was
//     acknowledged and closed up to there counts for it (check.Monitor.Split).
//   - Every replica that divides its copy gets a log of the new range, as durable as that of the old one (noteBorn). All must
//     divide by the same entry, and each once.
//   - A member that has not divided its copy holds the new range by the log of the old one, if its disk still has the whole
//     copy (durableOf).
//   - At the end the records on disk are compared for each range with those of its log, within the slots of the range; the
//     logs of a root must hold each request once; and the answers are checked for each root.
//
// A reserved range must be born or cancelled after the last fault, like all that whyNotLive awaits. A range that was cancelled keeps its
// place in the lists: its slots may be reserved again.
//
// Two simplifications: clients know the cells, so no batch must be divided by a client, as package client does; and a client has
// one identity for all ranges, which works because it has one request under way, and numbers all of them in one sequence.

// root is a range that the table was created with.
type root struct {
	id   rhumb.RangeID
	last rhumb.Slot
	// points are the slots at which the root, or a part of it, may be divided, ascending.
	points []rhumb.Slot
	// table holds the records of the root, and survives is set if it survives the loss of a region.
	table    rhumb.TableID
	survives bool
	// gone is set when the range was given up with its region.
	gone bool
}

// lineage holds the knowledge of the judges about the origin of a range.
type lineage struct {
	// root is the index of the range's root, parent that of the range that it was split off from, -1 for a root.
	root, parent int
	// born is the position of the entry that divided the parent, 0 until a replica has carried it out.
	born rhumb.Seq
	// quarantined lists the nodes whose copies were quarantined while the range was reserved.
	quarantined []rhumb.NodeID
	// takes are the ranges that this one took over.
	takes []taken
}

// pointsMax bounds the points of a root, so that most cells have several keys.
const pointsMax = 2

// splitEvery is how often nodes look for ranges that are too large.
const splitEvery = 2 * time.Second

// drawSplits decides whether and how the ranges of a seed are split. It has a generator of its own: seeds without splits stay
// what they were.
func (p *profile) drawSplits(r *rand.Rand, on bool) {
	if r.IntN(3) == 0 && on {
		p.faults = append(p.faults, faultDivide)
	}
	p.splitBytes = oneOf[int64](r, 0, 0, 3000, 10_000)
}

// splits reports whether ranges of this run are split.
func (p *profile) splits() bool { return slices.Contains(p.faults, faultDivide) }

// drawPoints draws the points of a root, at homes of keys: each part has at least one key.
func (w *world) drawPoints(rt int) {
	if !w.p.splits() {
		return
	}
	var homes []rhumb.Slot
	for i := range w.p.keys {
		homes = append(homes, w.homeOf(rt, recordName(i)).Slot)
	}
	slices.Sort(homes)
	// No point before the first key: the left part would be empty. Keys may share a slot, so a root may have no point at all.
	homes = slices.Compact(homes)[1:]
	// A generator of its own for each root: the points must not depend on the events of the run.
	r := rand.New(rand.NewPCG(w.cfg.Seed, seedSalt+3+uint64(rt)))
	r.Shuffle(len(homes), func(i, j int) { homes[i], homes[j] = homes[j], homes[i] })
	most := pointsMax
	// No range begins again where a merged one did, so merges use points up.
	if w.p.merges() {
		most *= 2
	}
	homes = homes[:min(len(homes), most)]
	slices.Sort(homes)
	w.roots[rt].points = homes
}

// homeOf returns the home of a name in a root. Names that the server chose are in its first slot.
func (w *world) homeOf(rt int, name []byte) rhumb.RangeID {
	id := w.roots[rt].id
	if len(name) != rhumb.SequenceNameSize {
		id.Slot += keys.HashSlot(name, 0, int(w.roots[rt].last-id.Slot)+1)
	}
	return id
}

// cellOf returns the cell of a name in a root.
func (w *world) cellOf(rt int, name []byte) int {
	// An insert has no name yet. Its home is the first slot of the root, which no split takes away.
	if len(name) == 0 {
		return 0
	}
	// A point is the first slot of its cell.
	at, found := slices.BinarySearch(w.roots[rt].points, w.homeOf(rt, name).Slot)
	if found {
		at++
	}
	return at
}

// rootOf returns the index of the root that holds a home, or -1.
func (w *world) rootOf(id rhumb.RangeID) int {
	return slices.IndexFunc(w.roots, func(r root) bool {
		return r.id.Region == id.Region && r.id.Slot <= id.Slot && id.Slot <= r.last
	})
}

// learnSplits starts observing ranges that were reserved for a split.
func (w *world) learnSplits(st *catalog.State) {
	if !w.p.splits() {
		return
	}
	// In the order of slots, so that the parent of a range is known before the range.
	for r := range st.Ranges() {
		i := w.rangeIndex(r.ID)
		w.noteQuarantined(i, r)
		// Roots have no parent, and the parent of a range that is born does not change any more.
		if i >= 0 && (w.origin[i].born > 0 || w.origin[i].parent < 0 || r.Birth == 0) {
			continue
		}
		// The range that holds the slots now. After a cancelled split another range may be the parent of the next one.
		parent := -1
		for j, id := range w.ranges {
			if _, there := st.Range(id); there && id.Slot < r.ID.Slot && w.origin[j].root == w.rootOf(r.ID) && (parent < 0 || id.Slot > w.ranges[parent].Slot) {
				parent = j
			}
		}
		if i >= 0 {
			w.origin[i].parent = parent
			continue
		}
		w.ranges = append(w.ranges, r.ID)
		w.origin = append(w.origin, lineage{root: w.rootOf(r.ID), parent: parent})
		for _, n := range w.nodes {
			n.disk.quarantined, n.disk.copies = append(n.disk.quarantined, false), append(n.disk.copies, nil)
			n.dropped, n.spoiled, n.discarding = append(n.dropped, false), append(n.spoiled, 0), append(n.discarding, nil)
			n.seen.extend()
		}
	}
}

// noteQuarantined remembers the copies of a reserved range that are quarantined with those of the range that is to be divided: the
// metadata does not know which nodes have divided their copies. Such a copy may be intact.
func (w *world) noteQuarantined(i int, r *rhumb.Range) {
	if i < 0 || r.Birth == 0 {
		return
	}
	for _, id := range r.Quarantined {
		if o := &w.origin[i]; !slices.Contains(o.quarantined, id) {
			o.quarantined = append(o.quarantined, id)
		}
		if n := w.nodes[id-1]; n.disk.copies[i] != nil && n.spoiled[i] == 0 {
			n.spoiled[i] = w.now
		}
	}
}

// extend makes room for one more range.
func (o *observation) extend() {
	o.primary, o.closed = append(o.primary, 0), append(o.closed, 0)
	o.names, o.namesEpoch, o.handed = append(o.names, 0), append(o.namesEpoch, 0), append(o.handed, 0)
}

// isServed reports whether a range has slots of its own: it is neither reserved nor cancelled.
func (w *world) isServed(id rhumb.RangeID) bool {
	r, ok := w.state.Range(id)
	return ok && r.Birth == 0
}

// served returns the ranges that have slots of their own.
func (w *world) served() []rhumb.RangeID {
	if !w.p.splits() && !w.p.losesForGood() {
		return w.ranges
	}
	return slices.DeleteFunc(slices.Clone(w.ranges), func(id rhumb.RangeID) bool { return !w.isServed(id) })
}

// pickRange draws the victim of a fault.
func (w *world) pickRange() *rhumb.Range {
	r, _ := w.state.Range(oneOf(w.chance, w.served()...))
	return r
}

// pointsIn returns the points at which a range can be divided.
func (w *world) pointsIn(r *rhumb.Range) []rhumb.Slot {
	points := w.roots[w.rootOf(r.ID)].points
	return slices.DeleteFunc(slices.Clone(points), func(s rhumb.Slot) bool { return s <= r.ID.Slot || s > r.LastSlot() })
}

// divideRange reserves a range for a split, as an operator does, and lets something happen to it at about the time of the split.
func (w *world) divideRange() string {
	r := w.pickRange()
	points := w.pointsIn(r)
	// The catalog would refuse these. An attempt that is refused tests nothing, and the next fault comes later.
	if len(points) == 0 || r.Prepared != nil || len(r.Leaving) > 0 {
		return ""
	}
	at := oneOf(w.chance, points...)
	if !w.proposeOnce(catalog.PrepareSplit{Range: r.ID, Version: r.Version, At: at}) {
		return ""
	}
	if w.cfg.Bug == BirthBeforeCommit {
		w.after(w.p.metaDelay, func() { w.completeEarly(rhumb.RangeID{Region: r.ID.Region, Slot: at}) })
	}
	what := w.disturbRange(r)
	return "range " + r.ID.String() + " at " + at.String() + ", " + what
}

// disturbRange lets something happen to a range at about the time at which it is divided or merged.
func (w *world) disturbRange(r *rhumb.Range) string {
	primary, member := w.nodes[r.Primary-1], w.nodes[oneOf(w.chance, r.InSync...)-1]
	// The primary divides its range as soon as it has the record and all earlier proposals are sealed, so the interesting times are within
	// a few delays of metadata, disk and network.
	soon := w.drawDuration(0, 4*(w.p.metaDelay+w.p.syncDelay+w.p.regionDelay))
	what := "alone"
	switch w.chance.IntN(8) {
	case 0:
		what = "primary restarts"
		w.after(soon, func() { w.crashNode(primary, w.drawDuration(time.Millisecond, 200*time.Millisecond)) })
	case 1:
		what = "member restarts"
		w.after(soon, func() { w.crashNode(member, w.drawDuration(time.Millisecond, 3*time.Second)) })
	case 2:
		what = "replication of one is cut"
		w.after(soon, func() {
			w.cutReplication(w.drawDuration(100*time.Millisecond, 2*time.Second), oneOf(w.chance, primary, member))
		})
	case 3:
		what = "primary is cut off"
		w.after(soon, func() {
			w.cutPairs(func(a, b int) bool {
				return (a == primary.index) != (b == primary.index) && a < len(w.nodes) && b < len(w.nodes)
			}, w.drawDuration(time.Second, 6*time.Second))
		})
	case 4:
		what = "another is elected"
		w.after(soon, func() {
			if now, ok := w.state.Range(r.ID); ok && now.IsInSync(member.id) {
				w.proposeOnce(catalog.Elect{Range: r.ID, Version: now.Version, Node: member.id})
			}
		})
	case 5:
		what = "slow member"
		member.disk.stallUntil = w.now + soon + w.drawDuration(time.Millisecond, time.Second)
	}
	return what
}

// completeEarly has metadata record a split as complete that nobody may have carried out (BirthBeforeCommit).
func (w *world) completeEarly(id rhumb.RangeID) {
	if r, ok := w.state.Range(id); ok {
		w.proposeOnce(catalog.CompleteSplit{Range: id, Epoch: r.Epoch})
	}
}

// splitLarge lets every node reserve splits of its primaries that are too large, as package node does.
func (w *world) splitLarge() {
	for _, n := range w.nodes {
		// After the last fault no new split may begin: its end would not be awaited.
		if n.down || n.paused || n.host == nil || w.healed {
			continue
		}
		st := n.group.State()
		for _, r := range evidence.Splits(st, n.id, w.p.splitBytes, n.host.DataBytes) {
			points := w.pointsIn(r)
			if len(points) == 0 {
				continue
			}
			// A real node divides at the middle of the data. Here the cells of the clients decide.
			cmd := catalog.PrepareSplit{Range: r.ID, Version: r.Version, At: points[len(points)/2]}
			n.run(n.life, func() {
				n.spawn(func() {
					ctx, cancel := n.rt.WithTimeout(n.ctx, changeTimeout)
					defer cancel()
					_, err := n.group.Propose(ctx, cmd)
					w.tracef(n.name(), "splits the large range %s at %s: %v", cmd.Range, cmd.At, err)
				})
			})
		}
	}
}

// noteBorn records that a replica divides its copy. Its log of the new range begins with everything up to the entry.
func (n *node) noteBorn(parent rhumb.RangeID, births []replica.Birth) {
	w := n.w
	for _, b := range births {
		id := rhumb.RangeID{Region: parent.Region, Slot: b.At}
		i, j := w.rangeIndex(parent), w.rangeIndex(id)
		if j < 0 {
			w.failf("%s divides range %s at %s, where nothing was ever reserved", n.id, parent, b.At)
			return
		}
		switch o := &w.origin[j]; {
		// The first replica that learns of the commit. All others must divide their copies by the same entry.
		case o.born == 0:
			o.born, o.parent = b.Seq, i
			w.stats.Splits++
			w.judge(w.monitor.Split(parent, id, b.Seq))
		case o.born != b.Seq || o.parent != i:
			w.failf("%s divides range %s at %s by entry %d, another replica divided %s by entry %d", n.id, parent, b.At, b.Seq, w.ranges[o.parent], o.born)
		}
		old := n.disk.copies[i]
		// A copy that was divided is on disk with the commit position, in one batch, so no restart divides it again.
		if n.disk.copies[j] != nil || int(b.Seq) > len(old.entries) {
			w.failf("%s divides range %s at %s twice, or without the entry %d", n.id, parent, b.At, b.Seq)
			return
		}
		c := &rangeCopy{entries: slices.Clone(old.entries[:b.Seq]), commit: b.Seq, durable: min(old.durable, b.Seq)}
		n.disk.copies[j] = c
		// The batch that divides the copy is not synced yet.
		n.disk.noteChange(c, c.durable)
		w.tracef(n.name(), "divides %s at %s by entry %d", parent, b.At, b.Seq)
	}
}

// undivided is the view of the judges on a copy of a range that is still a part of the copy of another: it has everything up to the
// entry of the split, if that copy has.
type undivided struct {
	check.Replica
	born rhumb.Seq
}

// Durable implements check.Replica.
func (u undivided) Durable(seq rhumb.Seq) (entry.Position, bool) {
	if seq > u.born {
		return entry.Position{}, false
	}
	return u.Replica.Durable(seq)
}

// durableOf returns the view of the judges on the copy of a range at a node.
func (w *world) durableOf(n *node, i int) check.Replica {
	whole := w.dividedOf(n, i)
	if len(w.origin[i].takes) == 0 {
		return whole
	}
	return united{whole, n, i}
}

// dividedOf is durableOf without regard to merges.
func (w *world) dividedOf(n *node, i int) check.Replica {
	c, o := n.disk.copies[i], w.origin[i]
	// A node that is down has no engine to ask. Its next start divides the copy, or learns again that the entry is committed.
	if c != nil || o.parent < 0 || n.disk.engine != nil && !n.holdsWhole(o.parent, w.ranges[i].Slot) {
		return c
	}
	return undivided{w.durableOf(n, o.parent), o.born}
}

// holdsWhole reports whether the copy of a range on disk reaches to a slot.
func (n *node) holdsWhole(i int, slot rhumb.Slot) bool {
	id := n.w.ranges[i]
	st, ok := n.disk.engine.Store(id).State(id)
	return ok && st.LastSlot >= slot
}

// acknowledged returns the timestamp of the last acknowledged write of each range of a root.
func (w *world) acknowledged(rt int) map[rhumb.RangeID]rhumb.Timestamp {
	out := make(map[rhumb.RangeID]rhumb.Timestamp)
	for i, id := range w.ranges {
		if w.origin[i].root == rt {
			_, out[id] = w.monitor.Acknowledged(id)
		}
	}
	return out
}

// answeredBy returns the range that answered a write: the youngest one of the root whose committed log has the request there.
func (w *world) answeredBy(rt int, id rhumb.RequestID, seq rhumb.Seq) rhumb.RangeID {
	// The position alone names no range: the logs of a root share their beginning and number their entries alike.
	for i := len(w.ranges) - 1; i > rt; i-- {
		if w.origin[i].root != rt {
			continue
		}
		// The results of a range that was merged have the position of the entry that took over.
		if log := w.monitor.Log(w.ranges[i]).Entries; seq > 0 && int(seq) <= len(log) && (holdsRequest(log[seq-1], id) || w.tookOver(i, seq, id)) {
			return w.ranges[i]
		}
	}
	return w.ranges[rt]
}

// forgetBirths drops the copies of ranges that were split off (SplitLostOnRestart).
func (n *node) forgetBirths() {
	states, err := n.disk.engine.Ranges()
	n.w.judge(err)
	// The parents stay divided, so nothing makes the copies again.
	for _, st := range states {
		if i := n.w.rangeIndex(st.Range); i < 0 || n.w.origin[i].parent < 0 {
			continue
		}
		b := n.disk.engine.Store(st.Range).NewBatch()
		b.DropRange(st.Range)
		n.w.judge(b.Apply())
		n.w.judge(b.Sync())
		n.disk.copies[n.w.rangeIndex(st.Range)] = nil
	}
	n.disk.settleAll()
}
