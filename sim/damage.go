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

// diskDamage is the damage of one disk, from the decision to make it until the disk is repaired.
// Replication guarantees that nothing is lost while fewer than min_in_sync disks of an in-sync set
// lack acknowledged entries (docs/replication.md#rule-prepare-guarantee). So at most one disk of
// the cluster is damaged at a time, and the next one only once this one again holds everything that
// it counts for.
type diskDamage struct {
	n    *node
	kind FaultKind
	// hidden marks damage that the node cannot detect: the log ends as if a power loss had cut it.
	hidden bool
	// done is set when the disk has been damaged, judged when a start has been checked for it, and
	// proven when the metadata replica of the node takes part again.
	done, judged, proven bool
	// wiped is set when the directory of the ranges has been emptied (faultEmpty).
	wiped bool
	// boot is the life that the metadata knew before the damage. shortDue means that the metadata
	// must mark the next life as short.
	boot     rhumb.BootSeq
	shortDue bool
}

// damageProbeEvery is how often a damaged node checks whether its metadata replica takes part
// again.
const damageProbeEvery = 200 * time.Millisecond

// hiddenDown is the longest downtime of a node with undetectable damage. No other fault may start
// until the node takes part again, so a long downtime would waste the run.
const hiddenDown = time.Second

// damageDisk crashes a node and damages its disk before the next start. It returns a description
// for the trace, or "" if the bounds of the faults forbid the damage now.
func (w *world) damageDisk(kind FaultKind, n *node, length time.Duration) string {
	h := &diskDamage{n: n, kind: kind, hidden: kind == faultTorn && w.chance.IntN(2) == 0}
	// The log of the founder begins with the founder as the only voter. If hidden damage cuts it back
	// to there, the founder leads alone, which is a limit of the protocol (seed 2226;
	// docs/replication.md#rule-voter-alone).
	if n == w.nodes[0] {
		h.hidden = false
	}
	// The previous damage stays on record until the disk counts again for everything (isRepaired).
	if w.damage != nil && w.damage.isRepaired() {
		w.damage = nil
	}
	if w.damage != nil || w.mustHoldFaults() || !w.mayDamage(h) {
		return ""
	}
	// Other faults must wait meanwhile (mustHoldFaults).
	if h.hidden || kind == faultRollBack {
		length = min(length, hiddenDown)
	}
	// Half of the damaged nodes are elected before their logs are refilled: that is the case for
	// which rule P exists.
	enthrone := w.chance.IntN(2) == 0
	if enthrone {
		length = min(length, briefDown)
	}
	// The life before the damage: the metadata must mark the next one as short.
	rec, _ := w.state.Node(n.id)
	h.boot = rec.Boot
	w.damage = h
	// losePower applies w.damage while the node crashes.
	what := w.crashNode(n, length)
	// There was nothing to damage, for example no synced byte.
	if !h.done {
		w.damage = nil
	}
	if h.hidden {
		what += ", unnoticed"
	}
	if enthrone && h.done {
		w.electDamaged(n, length)
		what += ", to be elected"
	}
	return what
}

// Times of electing a node before its damaged log is repaired. The node is down so briefly that it
// stays in sync.
const (
	briefDown     = 300 * time.Millisecond
	enthroneTries = 100
	enthroneEvery = 25 * time.Millisecond
)

// electDamaged cuts the replication traffic of the primaries that would refill the log of a damaged
// node, and elects the node as soon as it serves again.
func (w *world) electDamaged(n *node, down time.Duration) {
	for _, id := range w.served() {
		r, _ := w.state.Range(id)
		if !r.IsInSync(n.id) || r.Primary == n.id {
			continue
		}
		// Heartbeats continue, so the node stays in sync although nothing refills its log.
		w.cutReplication(down+enthroneTries*enthroneEvery, w.nodes[r.Primary-1])
		w.after(down, func() { w.electOnce(n, r, enthroneTries) })
	}
}

// electOnce elects a node for a range as soon as the node serves, unless the range has had another
// election since. It retries every enthroneEvery, at most tries times.
func (w *world) electOnce(n *node, before *rhumb.Range, tries int) {
	r, ok := w.state.Range(before.ID)
	// Another election, or a smaller set, has made this one pointless.
	if !ok || tries == 0 || w.healed || r.Epoch != before.Epoch || !r.IsInSync(n.id) {
		return
	}
	if n.host == nil || n.down {
		w.after(enthroneEvery, func() { w.electOnce(n, before, tries-1) })
		return
	}
	inSync := r.InSync
	// An election waits for every member of the set, and the primary is cut off.
	if len(inSync) > w.p.settings.MinInSync {
		inSync = slices.DeleteFunc(slices.Clone(inSync), func(m rhumb.NodeID) bool { return m == r.Primary })
	}
	w.proposeOnce(catalog.Elect{Range: r.ID, Version: r.Version, Node: n.id, InSync: inSync})
}

// mayDamage reports whether the guarantees of replication cover the damage: every range of the node
// has intact copies on other members of its in-sync set, and the metadata group is complete.
func (w *world) mayDamage(h *diskDamage) bool {
	n := h.n
	// With min_in_sync 1 a single damaged disk may lose everything, and nothing could be judged.
	if n.down || n.paused || n.host == nil || w.healed || w.p.settings.MinInSync < 2 {
		return false
	}
	// Rolling back to the image of the present life would lose nothing.
	if h.kind == faultRollBack && (n.disk.older == nil || n.disk.olderNonce == n.begun.Nonce) {
		return false
	}
	for _, id := range w.served() {
		r, _ := w.state.Range(id)
		intact := 0
		for _, m := range r.InSync {
			if m == n.id {
				continue
			}
			// A second damaged copy in one in-sync set exceeds the guarantee even if this node is
			// not in it: the node may be about to join.
			if !w.monitor.Whole(id, m, w.diskOf(id)) {
				return false
			}
			intact++
		}
		// A replica whose missing entries are trimmed elsewhere cannot copy them again. Then the
		// intact members must suffice without this node.
		if least := w.p.settings.MinInSync; r.IsInSync(n.id) && (intact == 0 || w.p.replica.LogKeepBytes > 0 && intact < least) {
			return false
		}
	}
	return w.groupIsWhole()
}

// votersLeast is the least number of voters with which one may lose its data. A single voter has no
// peer that knows its promises (seed 230).
const votersLeast = 3

// groupIsWhole reports whether the metadata group has enough voters, a leader, and all nodes
// running and connected.
func (w *world) groupIsWhole() bool {
	voters := 0
	for d := range w.state.Nodes() {
		if d.Voter && !w.nodes[d.ID-1].lost {
			voters++
		}
	}
	if voters < votersLeast || w.countsOnLost() {
		return false
	}
	// The voter must be able to ask all the others before anything else fails.
	if w.metadataLeader() == nil || slices.Contains(w.net.cut, true) || slices.Contains(w.net.deaf, true) {
		return false
	}
	return !slices.ContainsFunc(w.nodes, func(n *node) bool { return !n.retired && (n.down || n.paused || n.host == nil) })
}

// isRepaired reports whether a damaged disk again holds everything that its node is counted for.
func (h *diskDamage) isRepaired() bool {
	w := h.n.w
	// Until the voter takes part, an election of the metadata group may still meet the damage.
	if !h.done || !h.proven || h.n.down || h.n.host == nil {
		return false
	}
	for _, id := range w.served() {
		r, _ := w.state.Range(id)
		// A copy outside of the in-sync set counts for nothing, so it need not be intact.
		if r.IsInSync(h.n.id) && !w.monitor.Whole(id, h.n.id, w.diskOf(id)) {
			return false
		}
	}
	return true
}

// mustHoldFaults reports whether other faults must wait. A voter whose disk was rolled back
// undetectably may take part after the answers of a majority, which is safe only while all voters
// answer (docs/replication.md#rule-voter-few). So nothing else may fail until the voter takes part.
func (w *world) mustHoldFaults() bool {
	for i, id := range w.ranges {
		// A quarantined member must leave the in-sync set first: an election among fewer than
		// min_in_sync intact members waits for an operator.
		r, ok := w.state.Range(id)
		if ok && slices.ContainsFunc(r.InSync, func(m rhumb.NodeID) bool { return w.nodes[m-1].spoiled[i] > 0 }) {
			return true
		}
	}
	if w.awaitsVoters() {
		return true
	}
	h := w.damage
	return h != nil && (h.hidden || h.kind == faultRollBack) && h.done && !h.proven
}

// watchProof records when the metadata replica of a damaged node takes part again. It runs as a
// process of the node.
func (n *node) watchProof() {
	h := n.w.damage
	for n.ctx.Err() == nil && !h.proven {
		sched.Sleep(n.rt, n.ctx, damageProbeEvery)
		// A silent or short replica does not vote yet, so the damage could still show in an
		// election.
		if st, err := n.group.Status(n.ctx); err == nil && !st.Silent && !st.Short && n.host != nil {
			h.proven = true
			n.w.tracef(n.name(), "takes part again after its disk was damaged")
		}
	}
}

// damageRemains applies the damage to the remains of the disk after a crash. durable is the synced
// length of the log. damageRemains reports false if there is nothing to damage.
func (h *diskDamage) damageRemains(r *storagetest.Remains, durable int64) bool {
	rnd := h.n.w.rnd
	// Only what is synced is damaged. The store takes damage above that for the end of an interrupted write, as after a power loss.
	if h.n.w.p.settings.Durability != 0 {
		durable = min(durable, h.n.disk.synced)
	}
	switch h.kind {
	case faultFlip:
		// Nothing is synced yet, so nothing durable could be damaged.
		if durable == 0 {
			return false
		}
		// Known equals the synced length, so the store can distinguish the flipped bit from a torn
		// end.
		r.Known, r.Flipped, r.Flip = durable, true, 8*h.offsetNearEnd(durable)+rnd.Int64N(8)
	case faultTorn:
		if durable == 0 {
			return false
		}
		r.Keep, r.Known = h.offsetNearEnd(durable), durable
		// Known 0 removes the record of the synced length: the cut then looks like a power loss.
		if h.hidden {
			r.Known = 0
		}
	}
	if h.kind == faultPower && !h.losePowerOf(r) {
		return false
	}
	h.done = true
	return true
}

// offsetNearEnd draws an offset below length. The cube favours the newest entries, which are the
// ones that not every member has yet.
func (h *diskDamage) offsetNearEnd(length int64) int64 {
	f := h.n.w.rnd.Float64()
	return length - 1 - int64(f*f*f*float64(length-1))
}

// checkLosses compares the logs found by a start with the logs that were durable before. Only a
// damaged disk may lack anything durable, and unless the damage is hidden the store must report it.
func (d *disk) checkLosses(before []*rangeCopy) {
	w := d.n.w
	lost := ""
	for i, id := range w.ranges {
		old := before[i]
		if old == nil || old.durable == 0 {
			continue
		}
		was, _ := old.Durable(old.durable)
		// Nobody counts on the copy of a merged range, once it is united or replaced. Until then the copy of the other range does
		// (united).
		if w.isMerged(i) && d.copies[i] == nil {
			continue
		}
		// The drop of a discarded copy may or may not have survived the crash; both are correct.
		if d.n.dropped[i] {
			d.n.dropped[i] = false
			// The drop survived, so no quarantined copy is left.
			if !d.quarantined[i] {
				d.n.spoiled[i] = 0
			}
			continue
		}
		// Equal hashes mean equal logs up to there, because the hash covers all earlier entries.
		if is, ok := w.durableOf(d.n, i).Durable(old.durable); ok && is.Hash == was.Hash {
			continue
		}
		lost = fmt.Sprintf("range %s has lost %v", id, was)
		// From now on the monitor does not expect these entries of the node.
		w.monitor.Lost(id, d.n.id, old.durable)
		// Nor of a range that was split off elsewhere, whose entries this copy held before it was divided.
		for child, o := range w.origin {
			if o.parent == i && o.born > 0 && (before[child] == nil || before[child].durable == 0) {
				w.monitor.Lost(w.ranges[child], d.n.id, min(old.durable, o.born))
			}
		}
	}
	h := w.damage
	// No unchecked damage explains a loss here.
	if h == nil || h.n != d.n || !h.done || h.judged {
		if lost != "" {
			w.failf("%s: %s, but its disk was not damaged", d.n.id, lost)
		}
		// A store that mistakes its own writes for damage loses more than it has to, and its node joins again.
		if found := d.engine.Damage(); !d.n.wasDamaged && len(found) > 0 {
			w.failf("%s: its store found %v, but its disk was not damaged", d.n.id, found)
		}
		return
	}
	// One start is judged per damage: later starts must lack nothing that was durable then.
	d.n.wasDamaged, h.judged = true, true
	w.tracef(d.n.name(), "%s: %s; short %v, %v", h.kind, lost, d.engine.Short(), d.engine.Damage())
	switch h.kind {
	case faultFlip, faultTorn:
		// The flipped bit may affect data of the metadata group, or unused data, so only the store
		// knows whether something is missing.
		h.shortDue = d.engine.Short()
		// The operator needs the file and the offset, so short alone is not enough.
		if lost != "" && !h.hidden && (!d.engine.Short() || len(d.engine.Damage()) == 0) {
			w.failf("%s: %s, but the damage is not on record", d.n.id, lost)
		}
	case faultPower:
		// Unsynced writes may be lost, and the node does not notice.
	default:
		// Roll-backs and emptied directories always lose data.
		h.shortDue = true
	}
}

// awaitsNewLife reports whether the record of a range may have admitted the life in which the disk of
// the node was damaged: a change that was decided before the damage may be applied until the metadata
// shows the next life (seed 177). A node may apply both in one step; then only the recorded life shows
// which one joined.
func (w *world) awaitsNewLife(r *rhumb.Range, id rhumb.NodeID) bool {
	h := w.damage
	if h == nil || h.n.id != id {
		return false
	}
	rec, _ := w.state.Node(id)
	return rec.Boot <= h.boot || slices.ContainsFunc(r.Lives, func(l rhumb.MemberLife) bool { return l.Node == id && l.Life <= h.boot })
}

// noteShort checks that the metadata marks the life of a node as short if its disk has lost
// something.
func (w *world) noteShort() {
	h := w.damage
	if h == nil || !h.shortDue {
		return
	}
	if rec, _ := w.state.Node(h.n.id); rec.Boot > h.boot {
		h.shortDue = false
		// A whole life would let the node answer rule P alone
		// (docs/replication.md#rule-one-answer).
		if !rec.Short {
			w.failf("%s lost durable data (%s), but the metadata counts its life %d as whole", h.n.id, h.kind, rec.Boot)
		}
	}
}

// mustReportEmpty reports whether the node must declare itself short because one of its directories
// came back empty. A real engine with several directories detects that; the simulated node has only
// one.
func (n *node) mustReportEmpty() bool {
	h := n.w.damage
	return h != nil && h.n == n && h.wiped && h.shortDue
}

// emptyDirectory empties the directory of the ranges, as if the operator had accepted the loss.
func (n *node) emptyDirectory() {
	n.w.damage.wiped = true
	before := slices.Clone(n.disk.copies)
	n.forgetLog()
	// The damaged blocks and the marks of quarantines are gone too (seed 1086).
	clear(n.disk.quarantined)
	clear(n.spoiled)
	n.disk.checkLosses(before)
}
