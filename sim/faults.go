package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// scheduleFaults injects faults of the kinds of the seed until end. healAll repairs everything
// afterwards.
func (w *world) scheduleFaults(end time.Duration) {
	// A quiet seed tests the protocol without faults.
	if len(w.p.faults) == 0 {
		return
	}
	var next func()
	next = func() {
		if w.now >= end {
			return
		}
		// Undetectable damage forbids other faults for now: look again soon.
		if w.mustHoldFaults() {
			w.after(damageProbeEvery, next)
			return
		}
		kind := oneOf(w.chance, w.p.faults...)
		length := w.drawDuration(200*time.Millisecond, 6*time.Second)
		// A fault that does not apply is skipped: drawing again would favour the kinds that always
		// apply.
		what := w.injectFault(kind, length)
		if what != "" {
			w.stats.Faults[kind]++
			w.tracef("fault", "%s for %v: %s", kind, length, what)
		}
		w.after(time.Duration(float64(w.p.faultEvery)*w.chance.ExpFloat64()), next)
	}
	w.after(w.drawDuration(0, 2*time.Second), next)
}

// drawDuration draws a duration between two bounds. Short ones are more likely.
func (w *world) drawDuration(least, most time.Duration) time.Duration {
	f := w.chance.Float64()
	return least + time.Duration(f*f*float64(most-least))
}

// healAll ends every fault. Everything must work again within LivenessMax.
func (w *world) healAll() {
	w.tracef("fault", "all faults end")
	w.healed = true
	w.net.heal()
	for _, n := range w.nodes {
		// Stalls end now, but answers that are already scheduled keep their time.
		n.disk.slowBy, n.disk.stallUntil = 0, w.now
		n.disk.full.Store(false)
		n.disk.refuse(false)
		if w.p.strict {
			n.clock.skew = n.clock.right
		}
		// Resumed nodes first handle what arrived during their pause, as a process does after
		// SIGCONT.
		n.resume()
		w.upgrade(n)
		// A crashed node restarts at once, whatever its planned downtime.
		if n.down && !n.retired {
			n.start()
		}
	}
	w.liftDrains()
	w.setMergeAfter(rhumb.RangeMergeNever)
	w.mendCopies()
}

// liftDrains makes drained nodes live again. It repeats until the load ends, since a drain that was
// proposed earlier may be applied later.
func (w *world) liftDrains() {
	for _, n := range w.nodes {
		if rec, ok := w.state.Node(n.id); ok && rec.State == rhumb.NodeDraining {
			w.proposeOnce(catalog.SetNodeState{Node: n.id, Boot: rec.Boot, State: rhumb.NodeLive})
			break
		}
	}
	if w.loading {
		w.after(time.Second, w.liftDrains)
	}
}

// injectFault injects one fault that ends after its length. It returns a description for the trace,
// or "" if the fault does not apply.
func (w *world) injectFault(kind FaultKind, length time.Duration) string {
	n := oneOf(w.chance, w.nodes...)
	// Primaries are the more interesting victims.
	if w.chance.IntN(3) == 0 {
		r := w.pickRange()
		n = w.nodes[r.Primary-1]
	}
	switch kind {
	case faultCrash:
		return w.crashNode(n, length)
	case faultCrashAll:
		for _, n := range w.nodes {
			// Different downtimes, so that the nodes return in any order.
			w.crashNode(n, length+w.drawDuration(0, time.Second))
		}
		return "every node"
	case faultCrashLoop:
		return w.crashLoop(n, 3+w.chance.IntN(3))
	case faultPause:
		return w.pauseNode(n, length)
	case faultStall:
		// A stall delays every answer at least to its end.
		n.disk.stallUntil = w.now + length
		return n.name()
	case faultSlowDisk:
		n.disk.slowBy = w.drawDuration(5*time.Millisecond, 100*time.Millisecond)
		w.after(length, func() { n.disk.slowBy = 0 })
		return fmt.Sprintf("%s by %v", n.name(), n.disk.slowBy)
	case faultJump:
		return w.jumpClock(n)
	case faultMeta:
		if w.chance.IntN(2) == 0 {
			w.cutMetadata(length, n)
			return n.name() + " hears nothing of the metadata"
		}
		w.cutMetadata(length, w.nodes...)
		return "the metadata group does not meet"
	case faultHandover:
		return w.prepareHandover()
	case faultDivide:
		return w.divideRange()
	case faultMerge:
		return w.mergeRanges()
	case faultRemove:
		return w.removeRegion()
	case faultForGood:
		return w.loseForGood()
	case faultDrain:
		return w.drainNode(n, length)
	case faultMove:
		switch w.chance.IntN(4) {
		case 0:
			return w.startOperation(n, length)
		case 1:
			if what := w.replaceNode(n); what != "" {
				return what
			}
			return w.startOperation(n, length)
		}
		return w.moveReplicas()
	case faultData:
		return w.cutReplication(length, n)
	case faultUsurp:
		return w.electRival(length)
	case faultRollBack, faultFlip, faultTorn, faultEmpty, faultPower:
		return w.damageDisk(kind, n, length)
	case faultSpoil:
		return w.damageReplica(n, length)
	case faultFull:
		return n.fillDisk(length)
	case faultUnreadable:
		return n.refuseReads(length)
	case faultRegion:
		return w.crashRegion(n, length)
	case faultClock:
		return w.missetClock(length)
	}
	return w.networkFault(kind, n, length)
}

// crashNode takes a node down for a while, unless faults must wait.
func (w *world) crashNode(n *node, length time.Duration) string {
	if n.down || w.mustHoldFaults() {
		return ""
	}
	return w.takeDown(n, length)
}

// takeDown crashes a node and restarts it after the given time.
func (w *world) takeDown(n *node, length time.Duration) string {
	n.stop()
	if slices.Contains(w.p.faults, faultJump) && w.chance.IntN(2) == 0 {
		// A machine without power may lose its wall clock.
		w.jumpClock(n)
	}
	// healAll may have restarted the node already, and the node may have crashed again.
	life := n.life
	w.after(length, func() {
		if n.down && n.life == life && !n.retired {
			n.start()
		}
	})
	return n.name()
}

// crashLoop crashes a node again and again shortly after each start.
func (w *world) crashLoop(n *node, times int) string {
	if n.down || times == 0 || w.healed {
		return ""
	}
	gap := w.drawDuration(time.Millisecond, 400*time.Millisecond)
	// mustHoldFaults may refuse one crash, and the loop continues.
	w.crashNode(n, gap)
	// Twice the downtime, so the node has run for as long as it was down.
	w.after(2*gap, func() { w.crashLoop(n, times-1) })
	return fmt.Sprintf("%s %d times", n.name(), times)
}

// pauseNode stops the process of a node for a while, like SIGSTOP.
func (w *world) pauseNode(n *node, length time.Duration) string {
	if n.down || n.paused {
		return ""
	}
	n.pause()
	life := n.life
	w.after(length, func() {
		if n.life == life {
			n.resume()
		}
	})
	return n.name()
}

// crashRegion crashes all nodes of a region.
func (w *world) crashRegion(n *node, length time.Duration) string {
	what := ""
	for _, m := range w.nodes {
		if w.net.site[m.at] == w.net.site[n.at] {
			what += w.crashNode(m, length+w.drawDuration(0, 500*time.Millisecond)) + " "
		}
	}
	return strings.TrimSpace(what)
}

// fillDisk makes the disk reject new work for a while.
func (n *node) fillDisk(length time.Duration) string {
	n.disk.full.Store(true)
	n.w.after(length, func() { n.disk.full.Store(false) })
	return n.name()
}

// missetClock sets the one clock that may be wrong, and lets it step a few times until it is
// correct again.
func (w *world) missetClock(length time.Duration) string {
	if !w.p.strict {
		return ""
	}
	n := w.nodes[w.p.wrong]
	// Both sides of the bound on accepted timestamps (rhumb.ClockAheadMax) occur.
	by := w.drawDuration(5*time.Second, time.Hour)
	if w.chance.IntN(2) == 0 {
		by = -by
	}
	n.clock.skew = n.clock.right + by
	// Steps spread over the fault, like those of a clock that is being adjusted.
	if steps := w.chance.IntN(5); steps > 2 {
		for i := range steps {
			w.after(length*time.Duration(i+1)/time.Duration(steps+1), func() { n.clock.skew += by / time.Duration(steps) })
		}
	}
	w.after(length, func() { n.clock.skew = n.clock.right })
	return fmt.Sprintf("%s by %v", n.name(), by)
}

// jumpClock sets a wall clock forward or back.
func (w *world) jumpClock(n *node) string {
	// Strict seeds have one wrong clock, so that its effects on the correct ones can be judged.
	if w.p.strict {
		n = w.nodes[w.p.wrong]
	}
	by := w.drawDuration(10*time.Millisecond, time.Hour)
	if w.chance.IntN(2) == 0 {
		by = -by
	}
	n.clock.skew += by
	return fmt.Sprintf("%s by %v", n.name(), by)
}

// drainNode takes the roles of a node and restores them later.
func (w *world) drainNode(n *node, length time.Duration) string {
	set := func(state rhumb.NodeState) bool {
		// The node may have begun another life, and a command for an earlier one is refused.
		rec, _ := w.state.Node(n.id)
		return w.proposeOnce(catalog.SetNodeState{Node: n.id, Boot: rec.Boot, State: state})
	}
	if !set(rhumb.NodeDraining) {
		return ""
	}
	w.after(length, func() { set(rhumb.NodeLive) })
	return n.name()
}

// prepareHandover makes a primary hand over its range. At about the time of the handover, the handover may be cancelled,
// one of both nodes may restart or lose its replication messages, or the target may be slow.
func (w *world) prepareHandover() string {
	r := w.pickRange()
	target, old := w.nodes[oneOf(w.chance, r.InSync...)-1], w.nodes[r.Primary-1]
	if target == old || !w.proposeOnce(catalog.PrepareHandover{Range: r.ID, Version: r.Version, Target: target.id}) {
		return ""
	}
	// The primary acts on the record as soon as it has it, so the interesting time is the delay of metadata.
	soon := w.drawDuration(0, 4*(w.p.metaDelay+w.p.syncDelay+w.p.regionDelay))
	what := "alone"
	switch w.chance.IntN(7) {
	case 0:
		what = "cancelled"
		w.after(soon, func() { w.cancelHandover(r.ID) })
	case 1:
		what = "target restarts"
		w.after(soon, func() { w.crashNode(target, w.drawDuration(time.Millisecond, 200*time.Millisecond)) })
	case 2:
		what = "primary restarts"
		w.after(soon, func() { w.crashNode(old, w.drawDuration(time.Millisecond, 200*time.Millisecond)) })
	case 3:
		what = "replication of one is cut"
		w.after(soon, func() {
			w.cutReplication(w.drawDuration(100*time.Millisecond, 2*time.Second), oneOf(w.chance, target, old))
		})
	case 4:
		what = "slow target"
		target.disk.stallUntil = w.now + soon + w.drawDuration(time.Millisecond, time.Second)
	}
	// The controller cancels a handover that takes too long.
	w.after(handoverGivenUp, func() { w.cancelHandover(r.ID) })
	return fmt.Sprintf("range %s from %s to %s, %s", r.ID, old.id, target.id, what)
}

// handoverGivenUp is the time after which a prepared handover is cancelled.
const handoverGivenUp = 3 * time.Second

// cancelHandover cancels the handover of a range, if one is prepared.
func (w *world) cancelHandover(id rhumb.RangeID) {
	if r, ok := w.state.Range(id); ok && r.Prepared != nil {
		w.proposeOnce(catalog.CancelHandover{Range: id, Version: r.Version})
	}
}

// electRival elects an in-sync member, which may be restarting, while the primary is cut off and
// may still rely on grants of the earlier life of that member (docs/replication.md#rule-s).
func (w *world) electRival(length time.Duration) string {
	r := w.pickRange()
	heir, old := w.nodes[oneOf(w.chance, r.InSync...)-1], w.nodes[r.Primary-1]
	if heir == old || heir.down || old.down || w.metadataLeader() == nil {
		return ""
	}
	// Either the old primary keeps its heartbeats, and with them its leases, or it loses all
	// contact.
	if w.chance.IntN(2) == 0 {
		w.cutMetadata(length, old)
		w.cutReplication(length, old)
	} else {
		w.cutPairs(func(a, b int) bool {
			return (a == old.index) != (b == old.index) && a < len(w.nodes) && b < len(w.nodes)
		}, length)
	}
	restarts := w.chance.IntN(2) == 0
	down := w.drawDuration(time.Millisecond, 100*time.Millisecond)
	if restarts {
		w.crashNode(heir, down)
	}
	// Slow disks delay acknowledgements of the old epoch.
	for _, n := range r.InSync {
		if w.chance.IntN(2) == 0 {
			w.nodes[n-1].disk.stallUntil = w.now + w.drawDuration(time.Millisecond, 2*time.Second)
		}
	}
	// In its new life, while grants of the old one may still count.
	if restarts && w.chance.IntN(2) == 0 {
		w.after(down, func() { w.electOnce(heir, r, enthroneTries) })
		return fmt.Sprintf("range %s from %s to %s as it starts", r.ID, old.id, heir.id)
	}
	w.after(w.drawDuration(0, 300*time.Millisecond), func() {
		// Another election in between would make this one meaningless.
		now, ok := w.state.Range(r.ID)
		if ok && now.Epoch == r.Epoch && now.IsInSync(heir.id) {
			inSync := slices.DeleteFunc(slices.Clone(now.InSync), func(n rhumb.NodeID) bool { return n == old.id })
			w.proposeOnce(catalog.Elect{Range: r.ID, Version: now.Version, Node: heir.id, InSync: inSync})
		}
	})
	return fmt.Sprintf("range %s from %s to %s", r.ID, old.id, heir.id)
}

// cutMetadata loses messages of the metadata group to and from nodes for a while.
func (w *world) cutMetadata(length time.Duration, nodes ...*node) {
	for _, n := range nodes {
		w.net.deaf[n.index] = true
		w.after(length, func() { w.net.deaf[n.index] = false })
	}
}

// cutReplication loses replication messages to and from a node for a while. Heartbeats get through,
// so the leases stay intact.
func (w *world) cutReplication(length time.Duration, n *node) string {
	w.net.mute[n.index] = true
	w.after(length, func() { w.net.mute[n.index] = false })
	return n.name()
}

// networkFault cuts or slows links. Cuts may overlap; a pair is restored by the fault that cut it.
func (w *world) networkFault(kind FaultKind, n *node, length time.Duration) string {
	length += w.drawDuration(0, 4*time.Second)
	// Group 0 is the clients, which reach every node.
	group := make([]int, w.net.places)
	for i := range w.nodes {
		group[i] = 1 + w.chance.IntN(2)
	}
	// Any node other than n.
	other := w.nodes[(n.index+1+w.chance.IntN(len(w.nodes)-1))%len(w.nodes)]
	what := n.name()
	var cut func(a, b int) bool
	switch kind {
	case faultIsolate:
		cut = func(a, b int) bool { return (a == n.index) != (b == n.index) && group[a] > 0 && group[b] > 0 }
	case faultSplit:
		cut = func(a, b int) bool { return group[a] > 0 && group[b] > 0 && group[a] != group[b] }
		what = fmt.Sprint(group[:len(w.nodes)])
	case faultBridge:
		cut = func(a, b int) bool {
			return group[a] > 0 && group[b] > 0 && group[a] != group[b] && a != n.index && b != n.index
		}
		what += fmt.Sprint(" between ", group[:len(w.nodes)])
	case faultOneWay:
		if w.chance.IntN(3) == 0 {
			cut = func(a, b int) bool { return a == n.index && group[b] > 0 }
		} else {
			cut = func(a, b int) bool { return a == n.index && b == other.index }
			what += " to " + other.name()
		}
	case faultHalfOpen:
		if w.chance.IntN(2) == 0 {
			w.halfOpen(n, other, length)
			return what + " to " + other.name() + ", data"
		}
		w.cutSilently(func(a, b int) bool { return a == n.index && b == other.index }, length)
		return what + " to " + other.name()
	case faultRing:
		// Every node loses one direction to its neighbour, so no node is isolated.
		for i, a := range w.nodes {
			w.halfOpen(a, w.nodes[(i+1)%len(w.nodes)], length)
		}
		return "all"
	case faultLink:
		cut = func(a, b int) bool { return a == n.index && b == other.index || b == n.index && a == other.index }
		what += " and " + other.name()
	case faultSlowLink:
		w.net.slow[n.at] = w.drawDuration(10*time.Millisecond, 300*time.Millisecond)
		w.after(length, func() { w.net.slow[n.at] = 0 })
		return fmt.Sprintf("%s by %v", what, w.net.slow[n.at])
	case faultLoss:
		w.net.loss, w.net.repeat, w.net.jitter = w.chance.Float64()*0.2, w.chance.Float64()*0.2, w.chance.Float64()*10
		// The profile may have loss of its own, which must survive the fault.
		w.after(length, func() { w.net.loss, w.net.repeat, w.net.jitter = w.p.loss, w.p.repeat, w.p.jitter })
		return fmt.Sprintf("loss %.2f repeat %.2f jitter %.1f", w.net.loss, w.net.repeat, w.net.jitter)
	}
	w.cutPairs(cut, length)
	return what
}

// halfOpen loses replication messages from a to b for a while. The stream stays open and heartbeats
// get through.
func (w *world) halfOpen(a, b *node, length time.Duration) {
	at := w.net.pairIndex(a.at, b.at)
	w.net.vanish[at] = true
	w.after(length, func() { w.net.vanish[at] = false })
}

// cutPairs cuts all matching directed pairs for a while. The streams over them break.
func (w *world) cutPairs(match func(a, b int) bool, length time.Duration) {
	w.cutSilently(match, length)
	w.net.breakStreams()
}

// cutSilently is like cutPairs, but no stream breaks.
func (w *world) cutSilently(match func(a, b int) bool, length time.Duration) {
	// Only pairs that this fault cuts are restored by it: an overlapping cut ends separately.
	var pairs []int
	for a := range w.net.places {
		for b := range w.net.places {
			if at := w.net.pairIndex(place(a), place(b)); a != b && match(a, b) && !w.net.cut[at] {
				w.net.cut[at] = true
				pairs = append(pairs, at)
			}
		}
	}
	w.after(length, func() {
		for _, at := range pairs {
			w.net.cut[at] = false
		}
	})
}
