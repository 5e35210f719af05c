package sim

import (
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/sim/check"
)

// Stats counts what happened in a run.
type Stats struct {
	// Simulated is the virtual time that passed, Steps the events.
	Simulated time.Duration
	Steps     uint64
	// Results counts operations by their check.Result, Refused writes that no state could take.
	Results [5]int
	Refused int
	// Faults counts faults that took effect, by kind.
	Faults [faultKinds]int
	// Entries counts committed log entries, Epochs the epochs of all ranges.
	Entries, Epochs int
	// Recovery is how long after the last fault everything worked again.
	Recovery time.Duration
	// Closed counts how often a replica learned of a greater closed timestamp.
	Closed int
	// Lost counts replicas that cannot rejoin because the log they need is trimmed away.
	Lost int
	// Quarantined counts replicas that were quarantined in the end.
	Quarantined int
}

// Result is what a run showed.
type Result struct {
	Seed  uint64
	Stats Stats
	// Digest fingerprints the run; one seed always gives the same.
	Digest uint64
	// Err says what was violated; nil when nothing was.
	Err error
}

// Run plays one seed.
func Run(cfg Config) Result {
	w := newWorld(cfg)
	w.guarded(w.play)
	w.guarded(w.end)
	w.stats.Simulated, w.stats.Steps = w.now, w.steps
	for _, id := range w.ranges {
		w.stats.Entries += len(w.monitor.Log(id).Entries)
		if r, ok := w.state.Range(id); ok {
			w.stats.Epochs += int(r.Allocated)
		}
	}
	err := w.err
	if err != nil {
		err = fmt.Errorf("seed %d: %w", cfg.Seed, err)
	}
	return Result{Seed: cfg.Seed, Stats: w.stats, Digest: w.digest, Err: err}
}

// guarded turns a panic of a core, a broken invariant, into a failure of the run.
func (w *world) guarded(do func()) {
	defer func() {
		if p := recover(); p != nil {
			w.failf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	do()
}

// play is the course of a run: faults under load, healing, load again, silence, judgement.
func (w *world) play() {
	for _, n := range w.nodes {
		n.start()
	}
	w.judge(w.found())
	if w.err != nil {
		return
	}
	for i := range w.p.clients {
		w.clients = append(w.clients, newClient(w, i))
	}
	if w.cfg.Bug == ElectAnyone {
		w.every(100*time.Millisecond, w.electAnyone)
	}
	w.loading = true
	end := w.now + w.cfg.Duration
	faultsEnd := w.now + w.cfg.Duration*faultShare/100
	w.plague(faultsEnd)
	w.until(faultsEnd)
	w.healAll()
	w.awaitLive(faultsEnd)
	w.breakLast()
	w.until(max(end, w.now))
	w.loading = false
	w.quiesce()
	if w.err == nil {
		w.judgeHistory()
	}
}

// end stops what runs, so that nothing is left of the world.
func (w *world) end() {
	for _, n := range w.nodes {
		n.killAll()
		if n.disk.engine != nil {
			_ = n.disk.engine.Close() // the run is over
		}
	}
}

// awaitLive waits until everything works again, at most LivenessMax.
func (w *world) awaitLive(healed time.Duration) {
	why := "nothing was looked at"
	for w.err == nil && w.now < healed+LivenessMax {
		w.until(w.now + 250*time.Millisecond)
		if why = w.whyNotLive(); why == "" {
			w.stats.Recovery = w.now - healed
			w.tracef("world", "live again after %v", w.stats.Recovery)
			return
		}
	}
	if w.err == nil {
		w.failf("not live %v after the last fault: %s", LivenessMax, why)
	}
}

// How long the last broken link may hold up a range.
const (
	brokenBefore = 4 * time.Second  // what is acknowledged meanwhile may have been under way
	brokenMost   = 12 * time.Second // until more is acknowledged
)

// breakLast breaks, in seeds with such faults, the data path between the primary of a range and another member of its in-sync
// set, and nothing else: a range that can spare the member must go on without it (rule-progress).
func (w *world) breakLast() {
	if w.err != nil || !slices.ContainsFunc(w.p.faults, func(k FaultKind) bool { return k == faultData || k == faultHalfOpen || k == faultRing }) {
		return
	}
	id := one(w.chance, w.ranges...)
	r, _ := w.state.Range(id)
	if len(r.InSync) <= w.p.settings.MinInSync || len(r.Quarantined) > 0 {
		return
	}
	i := (slices.Index(r.InSync, r.Primary) + 1) % len(r.InSync)
	a, b := w.nodes[r.Primary-1], w.nodes[r.InSync[i]-1]
	w.tracef("fault", "the data path of %s and %s is broken", a.id, b.id)
	w.halfOpen(a, b, brokenBefore+brokenMost)
	w.halfOpen(b, a, brokenBefore+brokenMost)
	w.until(w.now + brokenBefore)
	before, _ := w.monitor.Acknowledged(id)
	for end := w.now + brokenMost; w.err == nil; w.until(w.now + 250*time.Millisecond) {
		switch acked, _ := w.monitor.Acknowledged(id); {
		case acked > before:
			clear(w.net.vanish)
			return
		case w.now >= end:
			w.failf("range %s: no write is acknowledged for %v while only the data path of %s and %s is broken", id, brokenMost, a.id, b.id)
		}
	}
}

// whyNotLive names a range that does not serve or a replica that is not in sync; "" when there is none. Replicas whose
// part of the log is trimmed away are counted in Stats.Lost instead.
func (w *world) whyNotLive() string {
	w.stats.Lost, w.stats.Quarantined = 0, 0
	for _, id := range w.ranges {
		r, _ := w.state.Range(id)
		if w.awaitsPerson(r) {
			w.stats.Quarantined++
			continue
		}
		p := w.nodes[r.Primary-1]
		if p.host == nil {
			return fmt.Sprintf("range %s: %s does not serve yet", id, p.id)
		}
		s, ok := p.host.Replica(id)
		if !ok || s.State() != replica.Primary || s.Epoch() != r.Epoch {
			return fmt.Sprintf("range %s: %s is not yet primary of epoch %d", id, p.id, r.Epoch)
		}
		if !p.host.Serves(id) {
			return fmt.Sprintf("range %s: epoch %d of %s is not committed", id, r.Epoch, p.id)
		}
		if !p.host.Leased(id) {
			return fmt.Sprintf("range %s: %s has not all grants of %v", id, p.id, s.LeaseSet())
		}
		for _, peer := range s.Status().Peers {
			switch {
			case peer.Flow == "lost":
				w.stats.Lost++
			case r.IsQuarantined(peer.Node): // until it is discarded
				w.stats.Quarantined++
			case !r.IsInSync(peer.Node) && w.closedAhead(p, id):
				// Who joins agrees to what is closed, which no right clock does before its time.
			case !r.IsInSync(peer.Node):
				return fmt.Sprintf("range %s: %s is not in sync (%v): %+v", id, peer.Node, r.InSync, peer)
			}
		}
		if st := s.Status(); st.Pending != nil && !w.closedAhead(p, id) {
			return fmt.Sprintf("range %s: %s still waits for metadata to accept %v", id, p.id, st.Pending)
		}
	}
	return ""
}

// awaitsPerson reports whether so many members of an in-sync set are quarantined that the range waits for a person.
func (w *world) awaitsPerson(r *rhumb.Range) bool {
	intact := len(r.InSync)
	for _, n := range r.InSync {
		if r.IsQuarantined(n) {
			intact--
		}
	}
	return intact < w.p.settings.MinInSync
}

// quiesce lets the operations under way end and the last commit positions arrive.
func (w *world) quiesce() {
	for i := 0; i < 40 && w.err == nil && !w.idle(); i++ {
		w.until(w.now + 250*time.Millisecond)
	}
	if w.err == nil && !w.idle() {
		w.failf("clients still wait for answers")
	}
	for i := 0; i < 40 && w.err == nil && w.whyNotEqual() != ""; i++ {
		w.until(w.now + 250*time.Millisecond)
	}
	if why := w.whyNotEqual(); w.err == nil && why != "" {
		w.failf("replicas differ after the load has ended: %s", why)
	}
	w.awaitClosed()
}

// whyNotEqual names an in-sync replica that does not hold exactly what the committed log makes; "" when there is none.
func (w *world) whyNotEqual() string {
	for i, id := range w.ranges {
		log := w.monitor.Log(id)
		want := check.Replay(log)
		maps.DeleteFunc(want, func(_ check.StateKey, it check.Item) bool { return rhumb.IsTombstone(it.Value) })
		r, _ := w.state.Range(id)
		var first uint64
		for k, n := range r.InSync {
			if r.IsQuarantined(n) {
				continue
			}
			c := w.nodes[n-1].disk.copies[i]
			if c == nil || int(c.commit) != len(log.Entries) {
				return fmt.Sprintf("range %s: %s has not committed all of %d entries", id, n, len(log.Entries))
			}
			state, err := w.nodes[n-1].state(i)
			if err != nil {
				return err.Error()
			}
			if err := state.Equal(want); err != nil {
				return fmt.Sprintf("range %s: %s: %v", id, n, err)
			}
			if k == 0 {
				first = state.Digest()
			} else if state.Digest() != first {
				return fmt.Sprintf("range %s: the digests of %s and %s differ", id, r.InSync[0], n)
			}
		}
	}
	return ""
}

// judgeHistory judges what the clients saw.
func (w *world) judgeHistory() {
	logs := make([]check.Log, len(w.ranges))
	for i, id := range w.ranges {
		logs[i] = w.monitor.Log(id)
	}
	w.judge(check.Audit(w.history, logs))
	history, err := check.Resolve(w.history, logs)
	w.judge(err)
	w.judge(check.RealTime(history))
	w.judge(check.Atomic(history))
	w.judge(check.Linearizable(history))
	if done := w.stats.Results[check.OK]; w.err == nil && done == 0 && w.cfg.Duration >= DurationDefault {
		w.failf("no operation of %d succeeded", len(w.history))
	}
	if i := slices.IndexFunc(w.history, func(o *check.Op) bool { return o.Call > o.Return }); i >= 0 {
		w.failf("an operation ended before it began: %v", w.history[i])
	}
}
