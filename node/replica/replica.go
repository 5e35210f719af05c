package replica

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// role is the part that a replica plays as far as it determines its behaviour. Learner and Follower
// share one role, because they differ only by the record.
type role uint8

const (
	following role = iota
	activating
	primary
	quarantined
)

// Replica is the protocol state of one range on one node.
//
// At a primary, commit <= durable <= handedOut <= end of the log. A follower learns commits from
// Appends, possibly before its own sync, so its commit may be ahead of durable. Code that needs
// entries that are settled in both respects takes the minimum.
type Replica struct {
	cfg              Config
	role             role
	quarantineReason string        // set if role is quarantined
	desc             *rhumb.Range  // newest record of the range, nil before the first
	now              time.Duration // latest time that the driver passed

	// promised is the greatest epoch that this replica has entered, promisedTo its primary if known.
	// Nothing is done or answered in the epoch before promisedDurable reaches it. The replica never
	// acts as primary in an epoch up to restarted, the promise found at startup, because an earlier
	// life may have done so (rule S); activated is the last epoch that this life has begun.
	promised, promisedDurable rhumb.Epoch
	promisedTo                rhumb.NodeID
	restarted, activated      rhumb.Epoch

	log       logState
	commit    rhumb.Seq
	commitHLC rhumb.Timestamp
	// commitAtTick is the commit position at the last tick. If it has not moved since, no further
	// entry carries it, so the peers need an explicit message.
	commitAtTick rhumb.Seq
	// tidy is set by Tidy. It outlives epochs, as the reason for it does.
	tidy bool
	// knownCommit is a position that an earlier life knew as committed and that the log no longer
	// reaches, because the disk lost the end of the log; otherwise 0.
	knownCommit rhumb.Seq
	// handedOut is the end of the log that Ready has passed to the driver, durable the end that the
	// driver has reported as durable. batches lists the Readys in between, oldest first.
	handedOut, durable rhumb.Seq
	batches            []handedBatch
	batch              uint64

	// Follower state. ackDue and promiseDue mark an Ack or a Promise that waits for a sync; they are
	// merged, so that a slow disk causes one message and not a queue of them.
	ackDue     bool
	ackUpTo    rhumb.Seq
	ackTo      rhumb.NodeID
	promiseDue bool
	// behindTrim is the position up to which the log of a primary was trimmed when this replica needed
	// earlier entries, 0 if none was. copying is the commit position of the copy that is received.
	behindTrim, copying rhumb.Seq
	// suffixRead is the epoch whose elected replica waits for a read of this log; 0 if no read is
	// under way.
	suffixRead rhumb.Epoch

	// State of an elected replica.
	prep preparation

	// Primary state. start is the position of the epoch-start entry. inSync and version are those of
	// the record; change is a pending change of the in-sync set.
	start    rhumb.Seq
	inSync   []rhumb.NodeID
	version  uint64
	change   change
	vouching vouching
	leaseSet []rhumb.NodeID
	closed   rhumb.Timestamp // greatest timestamp that Close returned in this epoch
	peers    []*progress     // sorted by node ID
	tail     tail
	orders   orders
	waiters  waiters
	overlay  overlay

	// splits are the entries above the commit position that divide the range, in their order. reserved
	// is the record of the range that this one is to be divided for, nil if there is none.
	splits   []Birth
	reserved *rhumb.Range
	// divided is set once an entry has divided the range in this life of the replica.
	divided bool
	// complete times the proposals to record that this range, which was split off, is born.
	complete retry
	// unsplit is for how long this primary has been unable to divide its range. givenUp is the version
	// of the record for which it has given up, 0 for none, and cancel times the proposals to remove
	// the record.
	unsplit stall
	givenUp uint64
	cancel  retry
	merge   merge

	deferral deferral

	// State that outlives epochs. links is kept for all nodes, since a node may become a replica
	// later.
	links map[rhumb.NodeID]link
	elect electRequest
	// handed is set after a handover by this replica, and kept measures how long the answers have
	// waited that it kept. adopt times the proposals to record a handover to this replica.
	handed handed
	kept   stall
	adopt  retry
	// orphaned is how long the record has named this replica primary of an epoch that it has left.
	orphaned stall
	notice   notice
	// Health. lastTick is the time of the last Tick, unfit the driver's verdict on this node, and
	// slowDisk measures how long the node's own disk has held up the log.
	lastTick    time.Duration
	flaps       map[rhumb.NodeID]flap
	unfit       bool
	yield       yield
	slowDisk    stall
	durableSeen rhumb.Seq
	// clockLimit is the greatest timestamp that the driver's clock accepts; 0 means no limit.
	clockLimit rhumb.Timestamp
	out        Ready
	undone     bool // out.UndoAbove is to point to undoTo
	undoTo     rhumb.Seq
	dirty      bool
}

// handedBatch is a Ready that the driver has not reported as durable. last is the end of the log
// that becomes durable with it. Undoing entries lowers last, so that a late report never counts for
// the entries that replaced the undone ones.
type handedBatch struct {
	number   uint64
	last     rhumb.Seq
	promised rhumb.Epoch
	// deferred is that of the Ready.
	deferred bool
}

// electRequest is the request of a restarted primary for a new epoch (rule S).
type electRequest struct {
	wanted bool
	// yielded reports that the last request asked for another primary.
	yielded bool
	timer   retry
}

// retry spaces out proposals to metadata. The period starts with the first tick after arm: a
// replica that got no ticks while it was idle does not know the present time when arm is called.
type retry struct {
	armed, running bool
	since          time.Duration
}

// arm restarts the period.
func (t *retry) arm() { *t = retry{armed: true} }

// due reports whether the period has passed, once per period.
func (t *retry) due(now, period time.Duration) bool {
	if !t.armed {
		return false
	}
	if !t.running {
		t.running, t.since = true, now
		return false
	}
	if now-t.since < period {
		return false
	}
	t.since = now
	return true
}

// New returns the replica that storage holds, always as a learner or follower, whatever it was
// before (rule S). It panics if the configuration is not valid.
func New(cfg Config, d Durable) *Replica {
	if err := cfg.Validate(); err != nil {
		panic(err.Error())
	}
	cfg = cfg.withDefaults()
	if d.LogBytes == 0 && d.Last.Seq > d.Trim {
		// The size of the log is unknown. Assume that it is too large to join within, so that a learner
		// counts as near the end only once it has acknowledged everything.
		d.LogBytes = int64(cfg.JoinWithinBytes) + 1
	}
	if d.Commit > d.Last.Seq {
		// The disk lost the end of its log but kept the commit position. The lost entries cannot be
		// treated as committed here; knownCommit makes rule P report them, so that no election proceeds
		// without a log that reaches that far (docs/replication.md#rule-prepare-commit).
		d.Known, d.Commit, d.CommitHLC = max(d.Known, d.Commit), d.Last.Seq, d.LastHLC
	}
	// One index point per step bytes: coarse enough that the index stays small, fine enough that
	// rounding affects neither the join distance nor the trim position much.
	step := max(1, min(64<<10, int64(cfg.JoinWithinBytes)/4, cfg.LogKeepBytes/16))
	r := &Replica{
		cfg:      cfg,
		promised: d.Promised, promisedDurable: d.Promised, restarted: d.Promised,
		log:    newLog(d, step),
		commit: d.Commit, commitHLC: d.CommitHLC, knownCommit: d.Known,
		handedOut: d.Last.Seq, durable: d.Last.Seq,
		links: make(map[rhumb.NodeID]link),
	}
	// A copy that is committed up to a split is divided already.
	for _, m := range d.Tail {
		if m.Split != 0 && m.Seq > d.Commit {
			r.splits = append(r.splits, Birth{At: m.Split, Seq: m.Seq})
		}
	}
	r.merge.ended, r.merge.last = d.End, max(cfg.Range.Slot, d.LastSlot)
	for _, m := range d.Tail {
		if !m.Take.IsZero() && m.Seq > d.Commit {
			r.merge.takes = append(r.merge.takes, Taken{Seq: m.Seq, Take: m.Take})
		}
	}
	if d.Quarantine != "" {
		// A quarantine survives restarts: restarting a process does not repair its data.
		r.role, r.quarantineReason = quarantined, d.Quarantine
	}
	return r
}

// Describe supplies the range's record from metadata. Records may arrive late or out of order: one
// with a version that is not higher than the last is ignored.
func (r *Replica) Describe(d *rhumb.Range) {
	if d.ID != r.cfg.Range || r.desc != nil && d.Version <= r.desc.Version {
		return
	}
	r.desc = d.Clone()
	r.dirty = true
	// Before the early return: a quarantined replica must report itself until the record shows it.
	r.reconcileQuarantine()
	switch {
	case r.role == quarantined:
		return
	case d.Epoch > r.promised:
		r.enterEpoch(d.Epoch, d.Primary)
	case d.Epoch == r.promised && r.promisedTo == rhumb.NoNode:
		// The promise came from disk or from a Nack, which carry the epoch but not its primary.
		r.promisedTo = d.Primary
	case d.Epoch == r.promised && r.promisedTo != d.Primary:
		r.quarantine(fmt.Sprintf("invariant I1: epoch %d has primaries %s and %s", d.Epoch, r.promisedTo, d.Primary))
		return
	}
	if d.Epoch >= r.handed.epoch {
		r.handed = handed{} // recorded
	}
	if d.Epoch == r.promised {
		// A record of an earlier epoch describes sets that this replica no longer follows.
		r.adoptRecord(d)
	}
	// A follower that is named primary of its promised epoch was primary of it in an earlier life, or
	// was promised it there. It must not continue in that epoch (rule S), so it asks for a new one.
	r.elect.wanted = r.role == following && d.Primary == r.cfg.Self && d.Epoch == r.promised
	if r.elect.wanted {
		r.askForElection()
	}
}

// adoptRecord makes the replica act on a record of its promised epoch: an elected follower starts
// rule P, and a primary takes over the sets of the record.
func (r *Replica) adoptRecord(d *rhumb.Range) {
	if d.Primary == r.cfg.Self && r.role == following && d.Epoch > max(r.restarted, r.activated) {
		// An epoch is begun at most once, and never if an earlier life may have begun it (rules E and S).
		// Two starts of one epoch would put two contents at one position (I2).
		r.role = activating
		r.prep = preparation{}
	}
	if r.role == following {
		return
	}
	if !d.IsInSync(r.cfg.Self) {
		// Every in-sync set contains the primary (I8), so a record without it contradicts the protocol.
		r.quarantine(fmt.Sprintf("the record of version %d names %s primary but not in sync", d.Version, r.cfg.Self))
		return
	}
	// A version above the one at which a pending change was proposed decides that change, whether
	// metadata applied it or applied something else instead (rule R). Whoever made the set smaller, it
	// counts from now on (docs/replication.md#rule-progress-adopt).
	r.noteMembers(r.inSync, d.InSync, d.Replicas)
	r.inSync, r.version = d.InSync, d.Version
	r.change = change{}
	r.rebuildPeers()
	switch {
	case r.role == primary:
		// A member that left may have been the only one that entries in flight waited for.
		r.advanceCommit()
	case r.asksMembers():
		r.prep.deferredTo = rhumb.NoNode // the record has changed: decide again
		r.sendPrepares()
	}
}

// askForElection proposes Elect(R, v, self); Tick repeats the proposal. A node that is unfit to be
// primary first asks for another one, and alternates between both requests: if no other member can
// be elected, an unfit primary is better than none.
func (r *Replica) askForElection() {
	kind := ElectMe
	if r.unfit && !r.elect.yielded && len(r.desc.InSync) > 1 {
		kind = Yield
	}
	r.elect.yielded = kind == Yield
	r.out.Meta = append(r.out.Meta, MetaProposal{
		Kind: kind, Range: r.cfg.Range, Epoch: r.desc.Epoch, Version: r.desc.Version,
	})
	r.elect.timer.arm()
}

// enterEpoch promises a higher epoch and makes the replica a follower in it. to is the primary of
// the epoch, or NoNode if unknown.
func (r *Replica) enterEpoch(e rhumb.Epoch, to rhumb.NodeID) {
	if e <= r.promised {
		panic(fmt.Sprintf("replica: epoch %d promised after %d", e, r.promised))
	}
	r.stepDown()
	r.promised, r.promisedTo = e, to
	r.out.Promised, r.out.PromisedTo, r.out.Handed = e, to, false
	// An Ack owed to the primary of an earlier epoch says nothing about the log of this one. Keeping
	// ackUpTo here once made a new primary count entries that this replica held only of the old epoch,
	// and an in-sync replica lacked an acknowledged write (I3).
	r.ackDue, r.ackUpTo, r.promiseDue = false, 0, false
	r.elect.wanted = false
	r.dirty = true
}

// stepDown ends the role of primary, if held, and answers everything that waits.
func (r *Replica) stepDown() {
	// Needs the old role and log, so it precedes the resets.
	r.failOrders()
	r.role = following
	r.start, r.closed, r.inSync, r.leaseSet, r.peers = 0, 0, nil, nil, nil
	r.change = change{}
	r.vouching = vouching{}
	r.prep = preparation{}
	r.handed, r.kept, r.adopt, r.complete = handed{}, stall{}, retry{}, retry{}
	r.unsplit, r.givenUp, r.cancel = stall{}, 0, retry{}
	r.merge.stepDown()
	r.tail = tail{}
	r.overlay.reset()
}

// AwaitsActivation returns the epoch for which the replica is Activating. ok is true once the
// promise is durable and rule P is complete.
func (r *Replica) AwaitsActivation() (epoch rhumb.Epoch, ok bool) {
	// All four are needed: storage must show every entry that was taken over before the first proposal
	// is evaluated, so handedOut must have reached the end of the log.
	if r.role != activating || r.promisedDurable < r.promised || r.handedOut != r.log.last().Seq || !r.prep.done {
		return 0, false
	}
	return r.promised, true
}

// Activate begins the epoch for which this node was elected (rule E). The driver calls it when
// AwaitsActivation returns true and lease.Pairs.WaitUntil has passed. If AwaitsActivation returns
// false, Activate does nothing.
func (r *Replica) Activate(ts rhumb.Timestamp) {
	epoch, ok := r.AwaitsActivation()
	if !ok {
		return
	}
	if epoch <= r.activated {
		panic(fmt.Sprintf("replica: invariant I1: epoch %d of range %s is activated twice", epoch, r.cfg.Range))
	}
	r.activated, r.role = epoch, primary
	last := r.log.last()
	if r.handedOut != last.Seq {
		panic(fmt.Sprintf("replica: epoch %d is activated before storage has entry %s", epoch, last.Position))
	}
	r.start = last.Seq + 1
	r.orders.clock = max(ts, r.orders.clock)
	// The first timestamp lies above everything in the log and above every time in an answer
	// (docs/replication.md#rule-prepare-clock): a lower one could fall below a closed timestamp that a
	// member has agreed to.
	r.orders.hlc = max(last.HLC, r.prep.clock)
	if r.prep.handed {
		r.proposeAdoption()
	}
	r.out.Unsure = r.defers() && r.asksMembers() && !r.oneAnswerSuffices()
	r.prep = preparation{}
	r.tail = tail{first: r.start}
	for _, p := range r.peers {
		// What peers acknowledged in an earlier epoch does not count in this one: their logs may differ
		// above the place where this epoch begins.
		*p = progress{node: p.node, link: p.link, inSync: p.inSync, pending: p.pending}
		p.startProbe(r.start)
	}
	// The epoch-start entry. Earlier entries are committed only together with it (rule C).
	r.appendOwn(&entry.Entry{Start: r.nextHLC(ts)})
	r.dirty = true
}

// Persisted reports that the Ready with this batch number is durable, and with it every earlier
// one.
func (r *Replica) Persisted(batch uint64) {
	n := 0
	for n < len(r.batches) && r.batches[n].number <= batch {
		b := &r.batches[n]
		r.durable = max(r.durable, b.last)
		r.promisedDurable = max(r.promisedDurable, b.promised)
		n++
	}
	r.batches = slices.Delete(r.batches, 0, n)
	if r.role == primary {
		r.advanceCommit()
	}
	// An Ack, a Promise or an activation may have waited for this sync.
	r.dirty = r.dirty || n > 0 && (r.ackDue || r.promiseDue || r.role == activating)
}

// Peer reports whether a stream to another node exists, and whether lease.Pairs suspects the node.
func (r *Replica) Peer(now time.Duration, n rhumb.NodeID, connected, suspect bool) {
	r.now = max(r.now, now)
	news := r.links[n]
	news.connected, news.suspect = connected, suspect
	if r.links[n] == news {
		return
	}
	// Remembered even for nodes that hold no replica, so that rebuildPeers knows them later.
	r.links[n] = news
	p := r.peer(n)
	if p == nil {
		return
	}
	if connected != p.connected {
		// The stream may have lost messages in flight, and a new life of the peer may have lost its disk.
		// Earlier acknowledgements of the peer do not count any more (docs/replication.md#rule-life-ack).
		p.forgetAcks()
		p.startProbe(p.next)
	}
	p.link = news
	if r.role == activating && connected && r.asksMembers() {
		// The question was lost with the stream. Ask at once rather than at the next retransmission: the
		// range is not available meanwhile.
		r.prep.fetchingFrom = rhumb.NoNode
		r.sendPrepares()
	}
	r.dirty = r.dirty || r.role == primary
}

// SetSlow sets whether a node acknowledges much later than others. While it does, it leaves the
// in-sync sets that can do without it, and does not join (docs/replication.md#rule-slow).
func (r *Replica) SetSlow(n rhumb.NodeID, slow bool) {
	r.changeLink(n, func(l *link) { l.slow = slow })
}

// SetDraining sets whether a node drains. While it does, it does not join an in-sync set that can do
// without it: metadata has just taken it out, and a member that stops holds up every write until
// metadata has removed it again.
func (r *Replica) SetDraining(n rhumb.NodeID, drains bool) {
	r.changeLink(n, func(l *link) { l.drains = drains })
}

// changeLink changes what is known of a node, also if it holds no replica yet.
func (r *Replica) changeLink(n rhumb.NodeID, change func(*link)) {
	l := r.links[n]
	before := l
	change(&l)
	if l == before {
		return
	}
	r.links[n] = l
	if p := r.peer(n); p != nil {
		p.link = l
		r.dirty = r.dirty || r.role == primary
	}
}

// Tick lets time pass. Only a replica with NeedsTick needs it. The driver's period bounds how late
// a retransmission is; 50 ms suffices. While Untold returns true, a shorter period lets secondaries
// learn sooner that the last writes are committed.
func (r *Replica) Tick(now time.Duration) {
	r.now = max(r.now, now)
	// A pause of this process must not count as time in which its peers made no progress.
	step := min(r.now-r.lastTick, patienceStep)
	r.lastTick = r.now
	if r.elect.wanted && r.elect.timer.due(r.now, r.cfg.ChangeRetry) {
		r.askForElection()
		r.dirty = true
	}
	if r.notice.kind != 0 && r.notice.timer.due(r.now, r.cfg.ChangeRetry) {
		r.tellMetadata()
	}
	if r.role == activating && r.asksMembers() {
		r.tickPreparation()
	}
	if r.role != primary {
		r.tickHanded(step)
		r.tickOrphaned(step)
		r.tickWaiting(step)
		r.tickYield(step)
		return
	}
	if !r.isAdopted() && r.adopt.due(r.now, r.cfg.ChangeRetry) {
		r.proposeAdoption()
	}
	r.completeSplit()
	// Whatever kept the range from being divided may be over.
	r.dirty = r.dirty || r.maySplit()
	r.tickSplit(step)
	r.tickMerge(step)
	r.tickProgress(step)
	r.tickChange()
	r.tickVouching(step)
	r.tickYield(step)
	for _, p := range r.peers {
		r.tickPeer(p)
		// The end of a hold-off is an event of its own: nothing else would make reconfigure look at the
		// learner again.
		held := !p.isRequired() && r.isHeldOff(p.node)
		r.dirty = r.dirty || p.heldOff && !held
		p.heldOff = held
	}
	// Last, so that tickPeer above compares with the commit position of the previous tick.
	r.commitAtTick = r.commit
}

// Untold reports whether a peer has every entry but does not know that the last ones are committed,
// and no message to it is under way that says so. The second Tick from now sends one, unless
// another write does so earlier.
func (r *Replica) Untold() bool {
	if r.role != primary {
		return false
	}
	for _, p := range r.peers {
		if p.lacksCommit(r.commit) {
			return true
		}
	}
	return false
}

// NeedsTick reports whether the replica waits for something that only time brings.
func (r *Replica) NeedsTick() bool {
	if r.elect.wanted || r.notice.kind != 0 || r.role == activating || r.unfit && r.wantsRelief() {
		return true
	}
	if r.role != primary {
		return r.handed.epoch != 0 || r.isOrphaned() || r.waiters.len() > 0
	}
	if !r.isAdopted() || r.wantsSplit() || r.wantsCompletion() || r.isMerging() || r.change.isActive() || r.commit < r.log.last().Seq || r.wantsToVouch() {
		return true
	}
	for _, p := range r.peers {
		if p.heldOff || !p.isRequired() && r.isHeldOff(p.node) || p.flow == flowLost && p.connected {
			return true
		}
		// Retransmission, and news of the commit position. A peer to which nothing can be sent needs no
		// ticks: only Peer or Describe changes that.
		if p.canSend() && (p.hasUnacked() || p.next <= r.log.last().Seq || p.commit < r.commit) || r.lacksAgreement(p) {
			return true
		}
	}
	return false
}

// HasReady reports whether Ready has something to hand over.
func (r *Replica) HasReady() bool { return r.dirty || r.orders.open > 0 }

// Ready returns everything that has gathered since the last call. The driver must carry it out in
// full. The order of the steps matters:
//
// 1. Entries are sealed before messages are built, so that one Ready writes and sends them.
// 2. The in-sync set changes before sending, since dropping a change may move the commit position,
// which messages carry.
// 3. Rule P runs before the output is taken, because it adds messages and proposals.
// 4. Acks and Promises come last: whether they wait for a sync depends on MustSync.
func (r *Replica) Ready() Ready {
	if r.role == primary {
		// The driver has applied the previous Ready by now (see the package comment), so its writes need
		// no overlay.
		r.overlay.nextGeneration()
		r.sealGroups()
		if r.maySplit() {
			r.appendSplit()
		}
		r.appendMerge()
		if !r.complete.armed {
			r.completeSplit()
		}
		r.reconfigure()
		if r.tidy {
			r.tidyLog()
		}
		r.sendAll()
		r.trimLog()
		if last := r.log.last().Seq; last > r.handedOut {
			// Entries that were never handed out are not durable, so not committed, so still in the tail.
			r.out.Append, _ = r.tail.entriesFrom(r.handedOut+1, math.MaxInt)
		}
		// Last: the message carries every entry up to here, and nothing may be added.
		if p := r.mayHandOver(); p != nil {
			r.handOver(p)
		}
	}
	r.prep.done = r.advancePreparation()
	if r.undone {
		to := r.undoTo
		r.out.UndoAbove, r.undone = &to, false
	}
	r.handedOut = r.log.last().Seq
	// Commit and Trim are lower bounds and need no sync (docs/replication.md#durable).
	r.out.MustSync = r.out.Promised != 0 || r.out.UndoAbove != nil || len(r.out.Append) > 0 || r.out.Quarantine != ""
	if r.out.MustSync {
		r.batch++
		r.out.Batch, r.out.Deferred = r.batch, r.mayDefer()
		r.batches = append(r.batches, handedBatch{r.batch, r.handedOut, r.promised, r.out.Deferred})
	}
	// After the batch is recorded: an Ack or Promise that depends on it joins AfterSync.
	r.emitAck()
	r.answerPrepare()
	rd := r.out
	r.out, r.dirty = Ready{}, false
	return rd
}

// setCommit moves the commit position to seq.
func (r *Replica) setCommit(seq rhumb.Seq) {
	m, ok := r.log.at(seq)
	if seq <= r.commit || !ok {
		panic(fmt.Sprintf("replica: invariant I5: commit of range %s goes from %d to %d, the log ends at %s",
			r.cfg.Range, r.commit, seq, r.log.last().Position))
	}
	r.commit, r.commitHLC = seq, m.HLC
	r.out.Commit, r.out.CommitHLC = seq, m.HLC
	r.commitSplits()
	r.commitTakes()
	// A mark is needed while its entry can be undone or acknowledged, so until the entry is both
	// committed and durable here.
	r.log.forgetSettled(min(r.commit, r.durable))
	if r.role == following {
		r.release() // answers that were kept in a handover
	}
	r.dirty = true
}

// Epoch returns the newest promised epoch; for a Primary it is the epoch of the primary. Rule F
// asks metadata whether it is still current.
func (r *Replica) Epoch() rhumb.Epoch { return r.promised }

// Readable returns the timestamp and the position of the last committed entry, up to which a strong
// read may look. ok is true only at a primary whose epoch-start entry is committed: before, entries
// that an earlier primary acknowledged may lie above this commit position (I4). The driver must
// also hold the lease (LeaseSet), or confirm the epoch with metadata after the read arrived (rule
// F).
func (r *Replica) Readable() (at rhumb.Timestamp, commit rhumb.Seq, ok bool) {
	// The node that takes over the slots of a range that has ended answers for them, perhaps already.
	return r.commitHLC, r.commit, r.role == primary && r.commit >= r.start && !r.HasEnded()
}

// LeaseSet returns the nodes whose grants a lease read needs (rule L): all members of the in-sync
// set and of the pending set except this node, since any of them could be elected. The slice is
// shared and must not be changed.
func (r *Replica) LeaseSet() []rhumb.NodeID { return r.leaseSet }

// rebuildPeers derives the list of peers and the lease set from the record, the in-sync set and the
// pending change. It keeps the progress of peers that stay.
func (r *Replica) rebuildPeers() {
	// A member of the in-sync set may have left the replicas of the record already; commits still need
	// it until the set changes.
	nodes := slices.Concat(r.desc.Replicas, r.inSync, r.change.members)
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	old := r.peers
	r.peers, r.leaseSet = make([]*progress, 0, len(nodes)), nil
	for _, n := range nodes {
		if n == r.cfg.Self {
			continue
		}
		i := slices.IndexFunc(old, func(p *progress) bool { return p.node == n })
		var p *progress
		if i >= 0 {
			p = old[i]
		} else {
			p = &progress{node: n, link: r.links[n]}
			// Begin at the end of the log: most new peers are members that agree with nearly all of it. The
			// answer of one that does not names an earlier position.
			p.startProbe(r.log.last().Seq + 1)
		}
		p.inSync, p.pending = slices.Contains(r.inSync, n), slices.Contains(r.change.members, n)
		if p.isRequired() {
			r.leaseSet = append(r.leaseSet, n)
		} else {
			p.refuses = RefusedNot // a learner's refusals extend its hold-off instead
		}
		r.peers = append(r.peers, p)
	}
}

// peer returns the progress of a peer, or nil if the node holds no copy. A linear search suffices:
// ranges have few replicas.
func (r *Replica) peer(n rhumb.NodeID) *progress {
	for _, p := range r.peers {
		if p.node == n {
			return p
		}
	}
	return nil
}
