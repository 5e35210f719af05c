package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/sched"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// harm is the damage of one disk. Replication promises to lose nothing while fewer disks of a range's in-sync set than
// min_in_sync lack what was acknowledged, so at most one disk of the cluster is damaged at a time: the next is damaged only
// once this one holds again what it counts for.
type harm struct {
	n    *node
	kind FaultKind
	// hidden says that the node cannot notice: its log ends like one that a loss of power interrupted.
	hidden bool
	// done says that the disk was damaged, judged that a start has found it so, proven that the node's replica of the metadata
	// takes part again.
	done, judged, proven bool
	// wiped says that the ranges' directory was emptied (faultEmpty).
	wiped bool
	// boot is the life that metadata knew before. shortDue says that metadata must call the next life short.
	boot     rhumb.BootSeq
	shortDue bool
}

// probeHarm is how often a damaged node looks whether its replica of the metadata takes part again.
const probeHarm = 200 * time.Millisecond

// hiddenDown is how long a node at most is down whose damage nobody can notice.
const hiddenDown = time.Second

// damage kills a node, and damages its disk before it starts again.
func (w *world) damage(kind FaultKind, n *node, last time.Duration) string {
	h := &harm{n: n, kind: kind, hidden: kind == faultTorn && w.chance.IntN(2) == 0}
	if w.harm != nil && w.harm.over() {
		w.harm = nil
	}
	if w.harm != nil || w.holds() || !w.mayHarm(h) {
		return ""
	}
	if h.hidden || kind == faultRollBack {
		last = min(last, hiddenDown)
	}
	enthrone := w.chance.IntN(2) == 0
	if enthrone {
		last = min(last, briefDown)
	}
	rec, _ := w.state.Node(n.id)
	h.boot = rec.Boot
	w.harm = h
	what := w.crash(n, last)
	if !h.done {
		w.harm = nil
	}
	if h.hidden {
		what += ", unnoticed"
	}
	if enthrone && h.done {
		w.enthrone(n, last)
		what += ", to be elected"
	}
	return what
}

// How a node is elected before its damaged log is made good: it is down so briefly that it stays in sync.
const (
	briefDown     = 300 * time.Millisecond
	enthroneTries = 100
	enthroneEvery = 25 * time.Millisecond
)

// enthrone breaks the data path of the primaries that would refill the log of a damaged node, and elects the node as soon as
// it serves again.
func (w *world) enthrone(n *node, down time.Duration) {
	for _, id := range w.ranges {
		r, _ := w.state.Range(id)
		if !r.IsInSync(n.id) || r.Primary == n.id {
			continue
		}
		w.silence(down+enthroneTries*enthroneEvery, w.nodes[r.Primary-1])
		w.after(down, func() { w.electOnce(n, r, enthroneTries) })
	}
}

// electOnce elects a node for a range as soon as the node serves, unless the range has had another election since.
func (w *world) electOnce(n *node, before *rhumb.Range, tries int) {
	r, _ := w.state.Range(before.ID)
	if tries == 0 || w.healed || r.Epoch != before.Epoch || !r.IsInSync(n.id) {
		return
	}
	if n.host == nil || n.down {
		w.after(enthroneEvery, func() { w.electOnce(n, before, tries-1) })
		return
	}
	inSync := r.InSync
	if len(inSync) > w.p.settings.MinInSync { // whoever is cut off need not be waited for
		inSync = slices.DeleteFunc(slices.Clone(inSync), func(m rhumb.NodeID) bool { return m == r.Primary })
	}
	w.operate(catalog.Elect{Range: r.ID, Version: r.Version, Node: n.id, InSync: inSync})
}

// mayHarm reports whether the promises of replication cover the damage: each range of the node has intact copies on other
// members of its in-sync set, and the metadata group is whole.
func (w *world) mayHarm(h *harm) bool {
	n := h.n
	if n.down || n.paused || n.host == nil || w.healed || w.p.settings.MinInSync < 2 {
		return false
	}
	if h.kind == faultRollBack && (n.disk.older == nil || n.disk.olderNonce == n.begun.Nonce) {
		return false
	}
	for _, id := range w.ranges {
		r, _ := w.state.Range(id)
		intact := 0
		for _, m := range r.InSync {
			if m == n.id {
				continue
			}
			if !w.monitor.Whole(id, m, w.diskOf(id)) {
				return false
			}
			intact++
		}
		// A log that is trimmed cannot be copied again: the range must do without this node.
		if least := w.p.settings.MinInSync; r.IsInSync(n.id) && (intact == 0 || w.p.replica.LogKeepBytes > 0 && intact < least) {
			return false
		}
	}
	return w.groupIsWhole()
}

// votersLeast is the least number of voters of which one may lose what it had: the only voter has nobody to tell it.
const votersLeast = 3

// groupIsWhole reports whether the metadata group has several voters, and all nodes run and hear each other.
func (w *world) groupIsWhole() bool {
	voters := 0
	for d := range w.state.Nodes() {
		if d.Voter {
			voters++
		}
	}
	if voters < votersLeast {
		return false
	}
	if w.leader() == nil || slices.Contains(w.net.cut, true) || slices.Contains(w.net.deaf, true) {
		return false
	}
	return !slices.ContainsFunc(w.nodes, func(n *node) bool { return n.down || n.paused || n.host == nil })
}

// over reports whether a damaged disk counts again for all that its node is counted for.
func (h *harm) over() bool {
	w := h.n.w
	if !h.done || !h.proven || h.n.down || h.n.host == nil {
		return false
	}
	for _, id := range w.ranges {
		r, _ := w.state.Range(id)
		if r.IsInSync(h.n.id) && !w.monitor.Whole(id, h.n.id, w.diskOf(id)) {
			return false
		}
	}
	return true
}

// holds reports whether other faults have to wait. A voter whose disk went back unnoticed may take part after the answers of a
// majority, which is safe only while all voters answer (rule-voter-few): nothing else fails until it has.
func (w *world) holds() bool {
	for i, id := range w.ranges {
		// Who is quarantined leaves the in-sync set first: an election waits for a set in which too few can answer.
		r, _ := w.state.Range(id)
		if slices.ContainsFunc(r.InSync, func(m rhumb.NodeID) bool { return w.nodes[m-1].spoiled[i] > 0 }) {
			return true
		}
	}
	h := w.harm
	return h != nil && (h.hidden || h.kind == faultRollBack) && h.done && !h.proven
}

// watchProof notes when a damaged node's replica of the metadata takes part again. It runs as a process of the node.
func (n *node) watchProof() {
	h := n.w.harm
	for n.ctx.Err() == nil && !h.proven {
		sched.Sleep(n.rt, n.ctx, probeHarm)
		if st, err := n.group.Status(n.ctx); err == nil && !st.Silent && !st.Short && n.host != nil {
			h.proven = true
			n.w.tracef(n.name(), "takes part again after its disk was damaged")
		}
	}
}

// spoil changes what a crash leaves of the disk as the harm says. It reports false when there is nothing to damage.
func (h *harm) spoil(r *storagetest.Remains, durable int64) bool {
	rnd := h.n.w.rnd
	switch h.kind {
	case faultFlip:
		if durable == 0 {
			return false
		}
		r.Known, r.Flipped, r.Flip = durable, true, 8*h.within(durable)+rnd.Int64N(8)
	case faultTorn:
		if durable == 0 {
			return false
		}
		r.Keep, r.Known = h.within(durable), durable
		if h.hidden {
			r.Known = 0
		}
	}
	h.done = true
	return true
}

// within draws an offset below length, mostly near its end.
func (h *harm) within(length int64) int64 {
	f := h.n.w.rnd.Float64()
	return length - 1 - int64(f*f*f*float64(length-1))
}

// lose compares what a start found with what was durable before. Only a damaged disk may lack anything of that, and unless
// nobody can notice it the node knows.
func (d *disk) lose(before []*rangeCopy) {
	w := d.n.w
	lost := ""
	for i, id := range w.ranges {
		old := before[i]
		if old == nil || old.durable == 0 {
			continue
		}
		was, _ := old.Durable(old.durable)
		if d.n.dropped[i] { // the drop may or may not be durable
			d.n.dropped[i] = false
			if !d.quarantined[i] {
				d.n.spoiled[i] = 0
			}
			continue
		}
		if is, ok := d.copies[i].Durable(old.durable); ok && is.Hash == was.Hash {
			continue
		}
		lost = fmt.Sprintf("range %s has lost %v", id, was)
		w.monitor.Lost(id, d.n.id, old.durable)
	}
	h := w.harm
	if h == nil || h.n != d.n || !h.done || h.judged {
		if lost != "" {
			w.failf("%s: %s, and its disk was not damaged", d.n.id, lost)
		}
		return
	}
	d.n.harmed, h.judged = true, true
	w.tracef(d.n.name(), "%s: %s; short %v, %v", h.kind, lost, d.engine.Short(), d.engine.Damage())
	switch h.kind {
	case faultFlip, faultTorn:
		h.shortDue = d.engine.Short()
		if lost != "" && !h.hidden && (!d.engine.Short() || len(d.engine.Damage()) == 0) {
			w.failf("%s: %s, and the disk's damage is not on record", d.n.id, lost)
		}
	default:
		h.shortDue = true
	}
}

// unregistered reports whether metadata still knows only the life in which the disk of a node was damaged.
func (w *world) unregistered(id rhumb.NodeID) bool {
	h := w.harm
	if h == nil || h.n.id != id {
		return false
	}
	rec, _ := w.state.Node(id)
	return rec.Boot <= h.boot
}

// noteShort checks that metadata calls the life of a node short whose disk has lost something.
func (w *world) noteShort() {
	h := w.harm
	if h == nil || !h.shortDue {
		return
	}
	if rec, _ := w.state.Node(h.n.id); rec.Boot > h.boot {
		h.shortDue = false
		if !rec.Short {
			w.failf("%s has lost what it had made durable (%s), and metadata counts its life %d as whole", h.n.id, h.kind, rec.Boot)
		}
	}
}

// emptied reports whether the node has to say that it is short because a directory of it came back empty: its engine would
// know, and the simulated node has only one directory.
func (n *node) emptied() bool {
	h := n.w.harm
	return h != nil && h.n == n && h.wiped && h.shortDue
}

// empty makes the directory that holds the ranges an empty one, as the operator accepted.
func (n *node) empty() {
	n.w.harm.wiped = true
	before := slices.Clone(n.disk.copies)
	n.forgetLog()
	n.disk.lose(before)
}
