package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// plague makes faults of the seed's kinds until end, and heals everything then.
func (w *world) plague(end time.Duration) {
	if len(w.p.faults) == 0 {
		return
	}
	var next func()
	next = func() {
		if w.now >= end {
			return
		}
		if w.holds() {
			w.after(probeHarm, next)
			return
		}
		kind := one(w.chance, w.p.faults...)
		last := w.draw(200*time.Millisecond, 6*time.Second)
		what := w.fault(kind, last)
		if what != "" {
			w.stats.Faults[kind]++
			w.tracef("fault", "%s for %v: %s", kind, last, what)
		}
		w.after(time.Duration(float64(w.p.faultEvery)*w.chance.ExpFloat64()), next)
	}
	w.after(w.draw(0, 2*time.Second), next)
}

// draw gives a duration between two bounds, short ones more often.
func (w *world) draw(least, most time.Duration) time.Duration {
	f := w.chance.Float64()
	return least + time.Duration(f*f*float64(most-least))
}

// healAll ends every fault.
func (w *world) healAll() {
	w.tracef("fault", "all faults end")
	w.healed = true
	w.net.heal()
	for _, n := range w.nodes {
		n.disk.slowBy, n.disk.stallUntil = 0, w.now
		n.disk.full.Store(false)
		if w.p.strict {
			n.clock.skew = n.clock.right
		}
		n.resume()
		if n.down {
			n.start()
		}
	}
	w.undrain()
	w.mend()
}

// undrain gives the nodes their roles back that are drained. It looks again, since a command may be applied late.
func (w *world) undrain() {
	for _, n := range w.nodes {
		if rec, ok := w.state.Node(n.id); ok && rec.State == rhumb.NodeDraining {
			w.operate(catalog.SetNodeState{Node: n.id, Boot: rec.Boot, State: rhumb.NodeLive})
			break
		}
	}
	if w.loading {
		w.after(time.Second, w.undrain)
	}
}

// fault makes one fault that ends by itself. It says what it did; "" when nothing.
func (w *world) fault(kind FaultKind, last time.Duration) string {
	n := one(w.chance, w.nodes...)
	if w.chance.IntN(3) == 0 { // primaries are the more interesting victims
		r, _ := w.state.Range(one(w.chance, w.ranges...))
		n = w.nodes[r.Primary-1]
	}
	switch kind {
	case faultCrash:
		return w.crash(n, last)
	case faultCrashAll:
		for _, n := range w.nodes {
			w.crash(n, last+w.draw(0, time.Second))
		}
		return "every node"
	case faultCrashLoop:
		return w.crashLoop(n, 3+w.chance.IntN(3))
	case faultPause:
		return w.pauseNode(n, last)
	case faultStall:
		n.disk.stallUntil = w.now + last
		return n.name()
	case faultSlowDisk:
		n.disk.slowBy = w.draw(5*time.Millisecond, 100*time.Millisecond)
		w.after(last, func() { n.disk.slowBy = 0 })
		return fmt.Sprintf("%s by %v", n.name(), n.disk.slowBy)
	case faultJump:
		return w.jump(n)
	case faultMeta:
		if w.chance.IntN(2) == 0 {
			w.deafen(last, n)
			return n.name() + " hears nothing of the metadata"
		}
		w.deafen(last, w.nodes...)
		return "the metadata group does not meet"
	case faultDrain:
		return w.drain(n, last)
	case faultMove:
		return w.move()
	case faultData:
		return w.silence(last, n)
	case faultUsurp:
		return w.usurp(last)
	case faultRollBack, faultFlip, faultTorn, faultEmpty:
		return w.damage(kind, n, last)
	case faultSpoil:
		return w.spoil(n, last)
	case faultFull:
		return n.fill(last)
	case faultRegion:
		return w.crashRegion(n, last)
	case faultClock:
		return w.misset(last)
	}
	return w.networkFault(kind, n, last)
}

// crash takes a node down for a while, unless faults have to wait.
func (w *world) crash(n *node, last time.Duration) string {
	if n.down || w.holds() {
		return ""
	}
	return w.takeDown(n, last)
}

func (w *world) takeDown(n *node, last time.Duration) string {
	n.stop()
	if slices.Contains(w.p.faults, faultJump) && w.chance.IntN(2) == 0 {
		w.jump(n) // a clock that was without power
	}
	life := n.life
	w.after(last, func() {
		if n.down && n.life == life {
			n.start()
		}
	})
	return n.name()
}

// crashLoop crashes a node again and again shortly after it has started.
func (w *world) crashLoop(n *node, times int) string {
	if n.down || times == 0 || w.healed {
		return ""
	}
	gap := w.draw(time.Millisecond, 400*time.Millisecond)
	w.crash(n, gap)
	w.after(2*gap, func() { w.crashLoop(n, times-1) })
	return fmt.Sprintf("%s %d times", n.name(), times)
}

func (w *world) pauseNode(n *node, last time.Duration) string {
	if n.down || n.paused {
		return ""
	}
	n.pause()
	life := n.life
	w.after(last, func() {
		if n.life == life {
			n.resume()
		}
	})
	return n.name()
}

// crashRegion crashes all nodes of a region.
func (w *world) crashRegion(n *node, last time.Duration) string {
	what := ""
	for _, m := range w.nodes {
		if w.net.site[m.at] == w.net.site[n.at] {
			what += w.crash(m, last+w.draw(0, 500*time.Millisecond)) + " "
		}
	}
	return strings.TrimSpace(what)
}

// fill takes the room of a disk for a while.
func (n *node) fill(last time.Duration) string {
	n.disk.full.Store(true)
	n.w.after(last, func() { n.disk.full.Store(false) })
	return n.name()
}

// misset sets the clock that may be wrong, and lets it step a few times, until it is right again.
func (w *world) misset(last time.Duration) string {
	if !w.p.strict {
		return ""
	}
	n := w.nodes[w.p.wrong]
	by := w.draw(5*time.Second, time.Hour)
	if w.chance.IntN(2) == 0 {
		by = -by
	}
	n.clock.skew = n.clock.right + by
	if steps := w.chance.IntN(5); steps > 2 {
		for i := range steps {
			w.after(last*time.Duration(i+1)/time.Duration(steps+1), func() { n.clock.skew += by / time.Duration(steps) })
		}
	}
	w.after(last, func() { n.clock.skew = n.clock.right })
	return fmt.Sprintf("%s by %v", n.name(), by)
}

// jump sets a wall clock, forward or back.
func (w *world) jump(n *node) string {
	if w.p.strict {
		n = w.nodes[w.p.wrong]
	}
	by := w.draw(10*time.Millisecond, time.Hour)
	if w.chance.IntN(2) == 0 {
		by = -by
	}
	n.clock.skew += by
	return fmt.Sprintf("%s by %v", n.name(), by)
}

// drain takes a node's roles and gives them back later.
func (w *world) drain(n *node, last time.Duration) string {
	set := func(state rhumb.NodeState) bool {
		rec, _ := w.state.Node(n.id)
		return w.operate(catalog.SetNodeState{Node: n.id, Boot: rec.Boot, State: state})
	}
	if !set(rhumb.NodeDraining) {
		return ""
	}
	w.after(last, func() { set(rhumb.NodeLive) })
	return n.name()
}

// usurp elects an in-sync member, which may restart just now, while the primary is cut off and may believe in the grants
// that the member gave in its earlier life.
func (w *world) usurp(last time.Duration) string {
	r, _ := w.state.Range(one(w.chance, w.ranges...))
	heir, old := w.nodes[one(w.chance, r.InSync...)-1], w.nodes[r.Primary-1]
	if heir == old || heir.down || old.down || w.leader() == nil {
		return ""
	}
	if w.chance.IntN(2) == 0 {
		w.deafen(last, old)
		w.silence(last, old)
	} else {
		w.cut(func(a, b int) bool {
			return (a == old.index) != (b == old.index) && a < len(w.nodes) && b < len(w.nodes)
		}, last)
	}
	restarts := w.chance.IntN(2) == 0
	down := w.draw(time.Millisecond, 100*time.Millisecond)
	if restarts {
		w.crash(heir, down)
	}
	for _, n := range r.InSync { // slow disks keep acknowledgements of the old epoch waiting
		if w.chance.IntN(2) == 0 {
			w.nodes[n-1].disk.stallUntil = w.now + w.draw(time.Millisecond, 2*time.Second)
		}
	}
	if restarts && w.chance.IntN(2) == 0 { // in its new life, while grants of the old one may last
		w.after(down, func() { w.electOnce(heir, r, enthroneTries) })
		return fmt.Sprintf("range %s from %s to %s as it starts", r.ID, old.id, heir.id)
	}
	w.after(w.draw(0, 300*time.Millisecond), func() {
		now, _ := w.state.Range(r.ID)
		if now.Epoch == r.Epoch && now.IsInSync(heir.id) {
			inSync := slices.DeleteFunc(slices.Clone(now.InSync), func(n rhumb.NodeID) bool { return n == old.id })
			w.operate(catalog.Elect{Range: r.ID, Version: now.Version, Node: heir.id, InSync: inSync})
		}
	})
	return fmt.Sprintf("range %s from %s to %s", r.ID, old.id, heir.id)
}

// deafen keeps the metadata from nodes for a while.
func (w *world) deafen(last time.Duration, nodes ...*node) {
	for _, n := range nodes {
		w.net.deaf[n.index] = true
		w.after(last, func() { w.net.deaf[n.index] = false })
	}
}

// silence breaks the data path of a node for a while; its heartbeats get through.
func (w *world) silence(last time.Duration, n *node) string {
	w.net.mute[n.index] = true
	w.after(last, func() { w.net.mute[n.index] = false })
	return n.name()
}

// networkFault cuts or slows something; cuts lie on top of each other, and each ends by itself.
func (w *world) networkFault(kind FaultKind, n *node, last time.Duration) string {
	last += w.draw(0, 4*time.Second)
	group := make([]int, w.net.places) // clients reach everybody
	for i := range w.nodes {
		group[i] = 1 + w.chance.IntN(2)
	}
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
			w.halfOpen(n, other, last)
			return what + " to " + other.name() + ", data"
		}
		w.cutSilently(func(a, b int) bool { return a == n.index && b == other.index }, last)
		return what + " to " + other.name()
	case faultRing:
		for i, a := range w.nodes {
			w.halfOpen(a, w.nodes[(i+1)%len(w.nodes)], last)
		}
		return "all"
	case faultLink:
		cut = func(a, b int) bool { return a == n.index && b == other.index || b == n.index && a == other.index }
		what += " and " + other.name()
	case faultSlowLink:
		w.net.slow[n.at] = w.draw(10*time.Millisecond, 300*time.Millisecond)
		w.after(last, func() { w.net.slow[n.at] = 0 })
		return fmt.Sprintf("%s by %v", what, w.net.slow[n.at])
	case faultLoss:
		w.net.loss, w.net.repeat, w.net.jitter = w.chance.Float64()*0.2, w.chance.Float64()*0.2, w.chance.Float64()*10
		w.after(last, func() { w.net.loss, w.net.repeat, w.net.jitter = w.p.loss, w.p.repeat, w.p.jitter })
		return fmt.Sprintf("loss %.2f repeat %.2f jitter %.1f", w.net.loss, w.net.repeat, w.net.jitter)
	}
	w.cut(cut, last)
	return what
}

// halfOpen loses what replicas send from a to b for a while; the stream stands, and heartbeats get through.
func (w *world) halfOpen(a, b *node, last time.Duration) {
	at := w.net.pair(a.at, b.at)
	w.net.vanish[at] = true
	w.after(last, func() { w.net.vanish[at] = false })
}

// cut cuts all directed pairs that match, for a while.
func (w *world) cut(match func(a, b int) bool, last time.Duration) {
	w.cutSilently(match, last)
	w.net.breakStreams()
}

// cutSilently is cut, and no stream breaks.
func (w *world) cutSilently(match func(a, b int) bool, last time.Duration) {
	var pairs []int
	for a := range w.net.places {
		for b := range w.net.places {
			if at := w.net.pair(place(a), place(b)); a != b && match(a, b) && !w.net.cut[at] {
				w.net.cut[at] = true
				pairs = append(pairs, at)
			}
		}
	}
	w.after(last, func() {
		for _, at := range pairs {
			w.net.cut[at] = false
		}
	})
}
