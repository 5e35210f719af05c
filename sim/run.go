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
	// Simulated is the virtual time of the run, Steps the number of events.
	Simulated time.Duration
	Steps     uint64
	// Results counts operations by check.Result, Refused the writes that were certainly not
	// applied.
	Results [5]int
	Refused int
	// Faults counts the faults that took effect, by kind.
	Faults [faultKinds]int
	// Entries counts committed log entries, Epochs the epochs of all ranges.
	Entries, Epochs int
	// Recovery is how long after the last fault everything worked again.
	Recovery time.Duration
	// Closed counts how often a replica learned of a later closed timestamp.
	Closed int
	// Splits counts the ranges that were born by a split, and Merges those that were merged.
	Splits, Merges int
	// Conformed counts the steps of replicas that were checked against the model.
	Conformed int
	// Copied counts the copies that took the place of a replica whose log was trimmed.
	Copied int
	// Removed counts the nodes that were removed for good, Regions the regions that were lost after the other faults.
	Removed, Regions int
	// Left counts the regions that were removed, and StandIns the deaths whose second phase of failover was judged.
	Left, StandIns int
	// GivenUp counts the regions that were lost for good and given up, Forgone the ranges that were lost with them, Restarted those of them
	// that began again empty, and Accepted the ranges that an operator let continue without acknowledged writes.
	GivenUp, Forgone, Restarted, Accepted int
	// Misled counts the runs in which the clock of the metadata leader was wrong while others restarted.
	Misled int
	// Yielded counts the runs in which the disk of a primary refused reads, and it had to yield.
	Yielded int
	// Unread counts the messages with entries that an older build could not read.
	Unread int
	// Tallied counts the acknowledgements that arrived by tallies, Void the tallies that were dropped.
	Tallied, Void int
	// Spoilt counts the chunks of copies that were damaged on the way.
	Spoilt int
	// Lost counts ranges whose in-sync set lacks trimmed log and that no member could copy at the last
	// look.
	Lost int
	// Quarantined counts the replicas that were still quarantined at the end.
	Quarantined int
}

// Result is the result of a run.
type Result struct {
	Seed  uint64
	Stats Stats
	// Digest is a fingerprint of the run. A seed always produces the same digest.
	Digest uint64
	// Err describes the first violation, or is nil.
	Err error
}

// Run runs one seed.
func Run(cfg Config) Result {
	w := newWorld(cfg)
	w.recoverPanics(w.play)
	// The engines must be closed even after a failure: their goroutines would accumulate over
	// seeds.
	w.recoverPanics(w.shutDown)
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

// recoverPanics turns a panic into a failure of the run. The protocol cores panic on a broken
// invariant.
func (w *world) recoverPanics(do func()) {
	defer func() {
		if p := recover(); p != nil {
			w.failf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	do()
}

// play is the course of a run: faults under load, recovery, more load, silence, final checks.
func (w *world) play() {
	for _, n := range w.nodes {
		n.start()
	}
	w.judge(w.foundCluster())
	if w.err != nil {
		return
	}
	for i := range w.p.clients {
		w.clients = append(w.clients, newClient(w, i))
	}
	switch w.cfg.Bug {
	case ElectAnyone:
		w.every(100*time.Millisecond, w.electAnyone)
	case InstallElectable:
		w.every(5*time.Millisecond, w.electInstalling)
	}
	w.loading = true
	// Operators split ranges in all seeds with splits (divideRange), and size does in some.
	if w.p.splits() && w.p.splitBytes > 0 {
		w.every(splitEvery, w.splitLarge)
	}
	w.mergeSmall()
	w.replaceSoon()
	w.beginOlder()
	end := w.now + w.cfg.Duration
	// The load continues after the last fault, to test that the recovered cluster works.
	faultsEnd := w.now + w.cfg.Duration*faultShare/100
	w.scheduleFaults(faultsEnd)
	w.loseLater(faultsEnd)
	w.until(faultsEnd)
	w.healAll()
	w.awaitLive(w.awaitRemoval(faultsEnd))
	served, acked := w.now, w.ackedPositions()
	// One more broken path, with everything else intact: only now can a standstill be blamed on it.
	w.breakLast()
	w.loseRegion()
	w.failForLong()
	w.misleadLeader()
	w.failReads()
	w.until(max(end, w.now))
	w.judgeWrites(served, acked)
	w.loading = false
	w.quiesce()
	if w.err == nil {
		w.judgeHistory()
	}
}

// shutDown stops the processes and engines of the run.
func (w *world) shutDown() {
	for _, n := range w.nodes {
		n.killAll()
		if n.disk.engine != nil {
			// The run is over, so nothing depends on the outcome.
			_ = n.disk.engine.Close()
		}
	}
}

// awaitLive waits until everything works again, at most LivenessMax after the last fault.
func (w *world) awaitLive(healed time.Duration) {
	why := "nothing was looked at"
	for w.err == nil && w.now < healed+LivenessMax {
		w.until(w.now + 250*time.Millisecond)
		if why = w.whyNotLive(); why == "" {
			w.stats.Recovery = max(w.stats.Recovery, w.now-healed)
			w.tracef("world", "live again after %v", w.stats.Recovery)
			return
		}
	}
	if w.err == nil {
		w.failf("not live %v after the last fault: %s", LivenessMax, why)
	}
}

// writeWithin is the time within which a range that serves acknowledges a write, if a client writes to it.
const writeWithin = 5 * time.Second

// ackedPositions returns the acknowledged positions of the ranges that are served.
func (w *world) ackedPositions() map[rhumb.RangeID]rhumb.Seq {
	out := map[rhumb.RangeID]rhumb.Seq{}
	for _, id := range w.served() {
		out[id], _ = w.monitor.Acknowledged(id)
	}
	return out
}

// judgeWrites is the last check of liveness. awaitLive looks at the states of replicas; a range could look well and still acknowledge nothing,
// because a client is routed wrongly, or because requests wait for something that no state shows. Clients are random, so a range may
// have no write to acknowledge; then nothing may be left uncommitted.
//
// judgeWrites checks at the end of the load that every range has acknowledged writes since it was live again, or has none that wait: replicas
// that are in sync and hold leases are not yet a range that works.
func (w *world) judgeWrites(since time.Duration, before map[rhumb.RangeID]rhumb.Seq) {
	if w.err != nil || w.now-since < writeWithin {
		return
	}
	for _, id := range w.served() {
		// The first write in a long time may be under way at this moment (seed 2033), so it gets the time that a write may take.
		for end := w.now + writeWithin; w.err == nil && w.lacksWrite(id, before); w.until(w.now + 250*time.Millisecond) {
			if w.now >= end {
				w.failf("range %s: no write was acknowledged in the %v since everything works again", id, w.now-since)
			}
		}
	}
}

// lacksWrite reports whether a range that could acknowledge a write has something to commit, and has acknowledged nothing since a position.
func (w *world) lacksWrite(id rhumb.RangeID, before map[rhumb.RangeID]rhumb.Seq) bool {
	// A range that was born since has no position to compare with.
	acked, known := before[id]
	r, ok := w.state.Range(id)
	now, _ := w.monitor.Acknowledged(id)
	return ok && known && now == acked && !w.awaitsPerson(r) && !w.awaitsTransfer(r) && !w.isIdle(id)
}

// Times of the last broken link.
const (
	// brokenBefore is how long writes that were in progress may still be acknowledged.
	brokenBefore = 4 * time.Second
	// brokenMost is how long the range may then take to acknowledge another write.
	brokenMost = 12 * time.Second
)

// breakLast cuts, in seeds with such faults, only the replication traffic between the primary of a
// range and another member of its in-sync set. Heartbeats get through, so no lease fails: a range
// that can spare the member must continue without it (docs/replication.md#rule-progress).
func (w *world) breakLast() {
	if w.err != nil || !slices.ContainsFunc(w.p.faults, func(k FaultKind) bool { return k == faultData || k == faultHalfOpen || k == faultRing }) {
		return
	}
	id := oneOf(w.chance, w.served()...)
	r, _ := w.state.Range(id)
	// A part of a root may have too few keys to be written soon.
	if rt := w.roots[w.rootOf(id)]; rt.id != id || rt.last != r.LastSlot() {
		return
	}
	// At its least size the range may not drop any member. A member too many may be on its way out (seed 3128).
	if min(len(r.InSync), w.p.settings.Replicas) <= w.p.settings.MinInSync || slices.ContainsFunc(r.InSync, r.IsLeaving) || len(r.Quarantined) > 0 {
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
		case acked > before, w.now >= end && w.isIdle(id):
			clear(w.net.vanish)
			return
		case w.now >= end:
			w.failf("range %s: no write was acknowledged within %v although only the data path of %s and %s is broken", id, brokenMost, a.id, b.id)
		}
	}
}

// isIdle reports whether a range serves and has nothing to commit. Clients write at random, and in seed 180 none changed a record of
// the range for long enough.
func (w *world) isIdle(id rhumb.RangeID) bool {
	r, _ := w.state.Range(id)
	p := w.nodes[r.Primary-1]
	if p.host == nil || !p.host.Serves(id) || !p.host.Leased(id) {
		return false
	}
	// An entry that waits for a member without a path would be beyond the commit position. So a range that should have
	// removed this member, and did not, is not idle.
	s, ok := p.host.Replica(id)
	return ok && s.Status().Commit == s.Status().Last.Seq
}

// whyNotLive returns a description of a range that does not serve or of a replica that is not in
// sync, or "". A replica whose part of the log is trimmed must copy the range and be in sync again.
func (w *world) whyNotLive() string {
	// Only the last look counts.
	w.stats.Lost, w.stats.Quarantined = 0, 0
	for _, id := range w.ranges {
		r, ok := w.state.Range(id)
		switch {
		case !ok:
			continue // the split was cancelled, or the range was lost with its region
		case w.awaitsDecider(r):
			w.stats.Lost++
			continue
		case r.IsMerging():
			return fmt.Sprintf("range %s is to be merged, and neither merged nor left apart", id)
		case r.Birth != 0:
			return fmt.Sprintf("range %s is reserved, and neither born nor cancelled", id)
		}
		if w.awaitsPerson(r) {
			w.stats.Quarantined++
			continue
		}
		if w.awaitsTransfer(r) {
			w.stats.Lost++
			continue
		}
		// The record names the primary before that node serves: each step of rule E has its own
		// message, so that a failure shows where an election stopped.
		p := w.nodes[r.Primary-1]
		if p.host == nil {
			return fmt.Sprintf("range %s: %s does not serve yet", id, p.id)
		}
		s, ok := p.host.Replica(id)
		if !ok {
			return fmt.Sprintf("range %s: %s has no copy, and is to be primary of epoch %d", id, p.id, r.Epoch)
		}
		if s.State() != replica.Primary || s.Epoch() != r.Epoch {
			return fmt.Sprintf("range %s: %s is not yet primary of epoch %d: %s", id, p.id, r.Epoch, s.Status().Preparing)
		}
		if !p.host.Serves(id) {
			return fmt.Sprintf("range %s: epoch %d of %s is not committed", id, r.Epoch, p.id)
		}
		if !p.host.Leased(id) {
			return fmt.Sprintf("range %s: %s lacks grants of %v", id, p.id, s.LeaseSet())
		}
		for _, peer := range s.Status().Peers {
			switch {
			// It never returns. Whether another node takes its place is judged elsewhere (whyNotReplaced).
			case w.nodes[peer.Node-1].lost:
			// Such a replica copies the range, and joins then.
			case peer.Flow == "lost":
				return fmt.Sprintf("range %s: %s needs a copy of the range: %+v", id, peer.Node, peer)
			// Until it is discarded.
			case r.IsQuarantined(peer.Node):
				w.stats.Quarantined++
			case !r.IsInSync(peer.Node) && w.closedAhead(p, id):
				// A member that joins must agree to the closed timestamp, which no correct clock
				// does before its time.
			case !r.IsInSync(peer.Node):
				return fmt.Sprintf("range %s: %s is not in sync (%v): %+v", id, peer.Node, r.InSync, peer)
			}
		}
		// A change that never ends would block all later ones.
		if st := s.Status(); st.Pending != nil && !w.closedAhead(p, id) {
			return fmt.Sprintf("range %s: %s still waits for metadata to accept %v", id, p.id, st.Pending)
		}
	}
	return ""
}

// awaitsPerson reports whether a range waits for an operator because too many members of its
// in-sync set are quarantined.
func (w *world) awaitsPerson(r *rhumb.Range) bool {
	intact := len(r.InSync)
	for _, n := range r.InSync {
		if r.IsQuarantined(n) {
			intact--
		}
	}
	return intact < w.p.settings.MinInSync
}

// awaitsDecider reports whether a split or a merge of a range cannot end because the range whose primary ends or cancels it waits for a
// person or a transfer itself (seed 50235).
func (w *world) awaitsDecider(r *rhumb.Range) bool {
	var d *rhumb.Range
	switch {
	case r.Birth != 0:
		d, _ = w.state.RangeOf(r.ID)
	case r.TakesOver != 0:
		d, _ = w.state.RightOf(r)
	case r.Ends != 0:
		d = r
	}
	return d != nil && (w.awaitsPerson(d) || w.awaitsTransfer(d))
}

// awaitsTransfer reports whether a range cannot commit because too few members of its in-sync set
// have the part of the log that was trimmed. The others need a state transfer, which is not built. A
// member whose disk was emptied stays in the set if another one leaves first (seed 2027).
func (w *world) awaitsTransfer(r *rhumb.Range) bool {
	var trim rhumb.Seq
	last := map[rhumb.NodeID]rhumb.Seq{}
	for _, n := range r.InSync {
		host := w.nodes[n-1].host
		if w.nodes[n-1].lost {
			continue
		}
		if host == nil {
			return false // still starting
		}
		s, ok := host.Replica(r.ID)
		if !ok {
			return false
		}
		status := s.Status()
		trim, last[n] = max(trim, status.Trim), status.Last.Seq
	}
	whole := 0
	for _, seq := range last {
		if seq >= trim {
			whole++
		}
	}
	return whole < w.p.settings.MinInSync
}

// quiesce waits until the operations in progress have ended and the last commit positions have
// arrived.
func (w *world) quiesce() {
	for i := 0; i < 40 && w.err == nil && !w.clientsIdle(); i++ {
		w.until(w.now + 250*time.Millisecond)
	}
	if w.err == nil && !w.clientsIdle() {
		w.failf("clients still wait for answers")
	}
	// Secondaries learn the last commit position from later messages.
	for i := 0; i < 40 && w.err == nil && w.whyNotEqual() != ""; i++ {
		w.until(w.now + 250*time.Millisecond)
	}
	if why := w.whyNotEqual(); w.err == nil && why != "" {
		w.failf("replicas differ after the end of the load: %s", why)
	}
	w.awaitClosed()
}

// whyNotEqual returns a description of an in-sync replica that does not hold exactly the state that
// the committed log produces, or "".
func (w *world) whyNotEqual() string {
	for i, id := range w.ranges {
		r, ok := w.state.Range(id)
		if !ok {
			continue
		}
		log := w.monitor.Log(id)
		want := check.Replay(log)
		// The log has everything from before the split, also of the other part.
		maps.DeleteFunc(want, func(k check.StateKey, _ check.Item) bool { return !r.Holds(w.homeOf(w.origin[i].root, []byte(k.Name))) })
		// Engines do not return tombstones.
		maps.DeleteFunc(want, func(_ check.StateKey, it check.Item) bool { return rhumb.IsTombstone(it.Value) })
		if w.awaitsTransfer(r) || r.Birth != 0 && w.awaitsDecider(r) {
			continue
		}
		var first uint64
		for k, n := range r.InSync {
			if r.IsQuarantined(n) || w.nodes[n-1].lost {
				continue
			}
			c := w.nodes[n-1].disk.copies[i]
			// The monitor knows the whole committed log, regardless of the replica that committed
			// it.
			if c == nil || int(c.commit) != len(log.Entries) {
				return fmt.Sprintf("range %s: %s has not committed all of %d entries", id, n, len(log.Entries))
			}
			state, err := w.nodes[n-1].storedState(i)
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

// judgeHistory checks the results that the clients saw.
func (w *world) judgeHistory() {
	logs := make([]check.Log, len(w.ranges))
	for i, id := range w.ranges {
		logs[i] = w.monitor.Log(id)
		// Operations name the root, whatever range answered them.
		logs[i].Root = w.ranges[w.origin[i].root]
	}
	for _, part := range w.divideHistory(logs) {
		// Audit first: Resolve trusts the log for the outcomes that clients do not know.
		w.judge(check.Audit(part.ops, part.logs))
		history, err := check.Resolve(part.ops, part.logs)
		w.judge(err)
		w.judge(check.RealTime(history))
		w.judge(check.Atomic(history))
		w.judge(check.Linearizable(history))
	}
	// Short runs may consist of faults alone.
	if done := w.stats.Results[check.OK]; w.err == nil && done == 0 && w.cfg.Duration >= DurationDefault {
		w.failf("none of %d operations succeeded", len(w.history))
	}
	if i := slices.IndexFunc(w.history, func(o *check.Op) bool { return o.Call > o.Return }); i >= 0 {
		w.failf("an operation ended before it began: %v", w.history[i])
	}
}
