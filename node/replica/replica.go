package replica

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// role is the part that a replica plays, as far as it decides what the replica does. Learner and Follower differ only
// in what metadata says of them.
type role uint8

const (
	following role = iota
	activating
	primary
	quarantined
)

// Replica is the protocol state of one range on one node.
type Replica struct {
	cfg  Config
	role role
	why  string        // of quarantined
	desc *rhumb.Range  // the newest record, nil before the first
	now  time.Duration // the latest time the driver told

	// promised is the greatest epoch known (synced before anything is done in it, promisedDurable), promisedTo its
	// primary if known. No epoch up to restarted is ever acted in: an earlier life may have (rule S).
	promised, promisedDurable rhumb.Epoch
	promisedTo                rhumb.NodeID
	restarted, activated      rhumb.Epoch

	log       logState
	commit    rhumb.Seq
	commitHLC rhumb.Timestamp
	// ticked is the commit position when time last passed: what rests since then is told to the peers by itself.
	ticked rhumb.Seq
	// known is a position that an earlier life knew as committed and that the log no longer reaches.
	known rhumb.Seq
	// handed is the end of the log that the driver was given, durable the end that it reported as durable, and batches the
	// Readys between the two.
	handed, durable rhumb.Seq
	batches         []handedBatch
	batch           uint64

	// The rest of what a follower needs: what it owes its primary an Ack for, and whether it owes a Promise.
	ackDue     bool
	ackUpTo    rhumb.Seq
	ackTo      rhumb.NodeID
	promiseDue bool
	// suffixRead is the epoch whose elected primary waits for a read of this log; 0 when none is under way.
	suffixRead rhumb.Epoch

	// What an elected replica needs.
	prep preparation

	// What a primary needs. start is the position of its epoch-start entry.
	start    rhumb.Seq
	inSync   []rhumb.NodeID
	version  uint64
	change   change
	vouching vouching
	leaseSet []rhumb.NodeID
	closed   rhumb.Timestamp // the greatest that Close gave in this epoch
	peers    []*progress     // sorted by node
	tail     tail
	orders   orders
	waiters  waiters
	overlay  overlay

	links  map[rhumb.NodeID]link
	elect  electRequest
	notice notice
	// Who is fit: looked is the time of the last Tick, unfit the driver's word on this node, slowDisk how long its own disk
	// has held up the log.
	looked      time.Duration
	flaps       map[rhumb.NodeID]flap
	unfit       bool
	yield       yield
	slowDisk    stall
	durableSeen rhumb.Seq
	// clockLimit is the greatest timestamp that the driver's clock lets in, 0 for any.
	clockLimit rhumb.Timestamp
	out        Ready
	undone     bool // out.UndoAbove is set; its value is undoAbove
	undoTo     rhumb.Seq
	dirty      bool
}

// handedBatch is a Ready that the driver has not reported as durable. last is the end of the log up to which it makes the
// log durable; undoing lowers last, so that a late report never speaks of entries that took the place of undone ones.
type handedBatch struct {
	number   uint64
	last     rhumb.Seq
	promised rhumb.Epoch
}

// electRequest is the wish of a restarted primary for a new epoch (rule S).
type electRequest struct {
	wanted bool
	// yielded says that the last request was for another primary.
	yielded bool
	timer   retry
}

// retry spaces out proposals to metadata. It begins with the first tick after it was armed.
type retry struct {
	armed, running bool
	since          time.Duration
}

// arm starts the wait anew.
func (t *retry) arm() { *t = retry{armed: true} }

// due reports, once per period, that it has passed.
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

// New returns the replica that storage holds. Whatever it was before, it is a Learner or Follower now (rule S). It panics
// when the configuration is not valid.
func New(cfg Config, d Durable) *Replica {
	if err := cfg.Validate(); err != nil {
		panic(err.Error())
	}
	cfg = cfg.withDefaults()
	if d.LogBytes == 0 && d.Last.Seq > d.Trim {
		// Of unknown size: a learner counts as near to the end only once it has all of it.
		d.LogBytes = int64(cfg.JoinWithinBytes) + 1
	}
	if d.Commit > d.Last.Seq {
		d.Known, d.Commit, d.CommitHLC = max(d.Known, d.Commit), d.Last.Seq, d.LastHLC
	}
	step := max(1, min(64<<10, int64(cfg.JoinWithinBytes)/4, cfg.LogKeepBytes/16))
	r := &Replica{
		cfg:      cfg,
		promised: d.Promised, promisedDurable: d.Promised, restarted: d.Promised,
		log:    newLog(d, step),
		commit: d.Commit, commitHLC: d.CommitHLC, known: d.Known,
		handed: d.Last.Seq, durable: d.Last.Seq,
		links: make(map[rhumb.NodeID]link),
	}
	if d.Quarantine != "" {
		r.role, r.why = quarantined, d.Quarantine
	}
	return r
}

// Describe brings news of the range's record from metadata. Old news does no harm: a lower version is not looked at.
func (r *Replica) Describe(d *rhumb.Range) {
	if d.ID != r.cfg.Range || r.desc != nil && d.Version <= r.desc.Version {
		return
	}
	r.desc = d.Clone()
	r.dirty = true
	r.reconcileQuarantine()
	switch {
	case r.role == quarantined:
		return
	case d.Epoch > r.promised:
		r.promise(d.Epoch, d.Primary)
	case d.Epoch == r.promised && r.promisedTo == rhumb.NoNode:
		r.promisedTo = d.Primary
	case d.Epoch == r.promised && r.promisedTo != d.Primary:
		r.quarantine(fmt.Sprintf("invariant I1: epoch %d has primaries %s and %s", d.Epoch, r.promisedTo, d.Primary))
		return
	}
	if d.Epoch == r.promised {
		r.adopt(d)
	}
	r.elect.wanted = r.role == following && d.Primary == r.cfg.Self && d.Epoch == r.promised
	if r.elect.wanted {
		r.askForElection()
	}
}

// adopt takes the record of the promised epoch into use.
func (r *Replica) adopt(d *rhumb.Range) {
	if d.Primary == r.cfg.Self && r.role == following && d.Epoch > max(r.restarted, r.activated) {
		r.role = activating
		r.prep = preparation{}
	}
	if r.role == following {
		return
	}
	if !d.IsInSync(r.cfg.Self) {
		r.quarantine(fmt.Sprintf("the record of version %d names %s primary but not in sync", d.Version, r.cfg.Self))
		return
	}
	// A version above the one that a pending change was proposed at decides that change, whichever way (rule R).
	r.noteMembers(r.inSync, d.InSync, d.Replicas)
	r.inSync, r.version = d.InSync, d.Version
	r.change = change{}
	r.configure()
	switch {
	case r.role == primary:
		r.advanceCommit()
	case !r.beginsWithoutAsking():
		r.prep.declined = rhumb.NoNode // the record has changed: look again
		r.ask()
	}
}

// askForElection proposes Elect(R, v, self); Tick repeats it. A node that must not be primary asks first for another, and
// for itself when there is none.
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

// promise enters a higher epoch as a follower; to is its primary, or NoNode.
func (r *Replica) promise(e rhumb.Epoch, to rhumb.NodeID) {
	if e <= r.promised {
		panic(fmt.Sprintf("replica: epoch %d promised after %d", e, r.promised))
	}
	r.stepDown()
	r.promised, r.promisedTo = e, to
	r.out.Promised, r.out.PromisedTo = e, to
	// What was owed to the primary of an earlier epoch says nothing of the log of this one's.
	r.ackDue, r.ackUpTo, r.promiseDue = false, 0, false
	r.elect.wanted = false
	r.dirty = true
}

// stepDown gives up the role of primary, if it is held, and answers everything that waits.
func (r *Replica) stepDown() {
	r.failOrders()
	r.role = following
	r.start, r.closed, r.inSync, r.leaseSet, r.peers = 0, 0, nil, nil, nil
	r.change = change{}
	r.vouching = vouching{}
	r.prep = preparation{}
	r.tail = tail{}
	r.overlay.reset()
}

// quarantine stops the replica for good: its data contradicts an invariant (rule A, section 1.20). The reason is kept on
// disk, so that a restart does not forget it, and metadata is told, so that nobody elects the replica.
func (r *Replica) quarantine(why string) {
	if r.role == quarantined {
		return
	}
	r.stepDown()
	r.role, r.why = quarantined, why
	r.out.Quarantine = why
	r.ackDue, r.promiseDue = false, false
	r.elect.wanted = false
	r.dirty = true
	if r.desc != nil {
		r.reconcileQuarantine()
	}
}

// reconcileQuarantine makes this replica and the record agree on whether it is quarantined. A replica without a log has
// nothing that could be wrong.
func (r *Replica) reconcileQuarantine() {
	recorded := slices.Contains(r.desc.Quarantined, r.cfg.Self)
	switch {
	case recorded && r.role != quarantined && r.log.last().Seq > 0:
		r.quarantine("metadata says that this replica is quarantined, and this disk does not: it is an older copy, or was given up by `rhumb unsafe-recover range`")
	case recorded == (r.role == quarantined):
		r.notice = notice{}
	case recorded:
		r.notice.kind = Readmit
		r.tellMetadata()
	default:
		r.notice.kind = Quarantine
		r.tellMetadata()
	}
}

// notice is what a replica has to tell metadata about itself; kind is 0 when there is nothing.
type notice struct {
	kind  MetaKind
	timer retry
}

// tellMetadata proposes what the replica has to tell; Tick repeats it until the record shows it.
func (r *Replica) tellMetadata() {
	r.out.Meta = append(r.out.Meta, MetaProposal{
		Kind: r.notice.kind, Range: r.cfg.Range, Epoch: r.desc.Epoch, Version: r.desc.Version, Node: r.cfg.Self, Why: r.why,
	})
	r.notice.timer.arm()
	r.dirty = true
}

// AwaitsActivation returns the epoch for which the replica is Activating, once its promise is durable and rule P is done.
func (r *Replica) AwaitsActivation() (epoch rhumb.Epoch, ok bool) {
	if r.role != activating || r.promisedDurable < r.promised || r.handed != r.log.last().Seq || !r.prep.done {
		return 0, false
	}
	return r.promised, true
}

// Activate begins the epoch for which this node was elected (rule E). The driver calls it when AwaitsActivation and
// lease.Pairs.WaitUntil has passed; otherwise it does nothing.
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
	if r.handed != last.Seq {
		panic(fmt.Sprintf("replica: epoch %d is activated before storage has entry %s", epoch, last.Position))
	}
	r.start = last.Seq + 1
	r.orders.clock = max(ts, r.orders.clock)
	r.orders.hlc = max(last.HLC, r.prep.clock) // above every time that a member has acknowledged
	r.prep = preparation{}
	r.tail = tail{first: r.start}
	for _, p := range r.peers {
		*p = progress{node: p.node, link: p.link, inSync: p.inSync, pending: p.pending}
		p.probe(r.start)
	}
	r.appendOwn(&entry.Entry{Start: r.nextHLC(ts)})
	r.dirty = true
}

// Persisted reports that the Ready of this number is durable, and with it every one before.
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
	r.dirty = r.dirty || n > 0 && (r.ackDue || r.promiseDue || r.role == activating)
}

// Peer reports of another node whether a stream to it stands, and whether lease.Pairs suspects it.
func (r *Replica) Peer(now time.Duration, n rhumb.NodeID, connected, suspect bool) {
	r.now = max(r.now, now)
	news := link{connected, suspect}
	if r.links[n] == news {
		return
	}
	r.links[n] = news
	p := r.peer(n)
	if p == nil {
		return
	}
	if connected != p.connected {
		// The stream may have lost what was in flight, and a new life of the peer may have lost its disk: what it
		// acknowledged before is not believed any more.
		p.forget()
		p.probe(p.next)
	}
	p.link = news
	if r.role == activating && connected && !r.beginsWithoutAsking() {
		r.prep.asking = rhumb.NoNode
		r.ask()
	}
	r.dirty = r.dirty || r.role == primary
}

// Tick lets time pass. Only a replica with NeedsTick needs it; the driver's period bounds how late a retransmission comes, 50 ms
// is fine. While Untold, a shorter period lets secondaries know sooner that the last writes are committed.
func (r *Replica) Tick(now time.Duration) {
	r.now = max(r.now, now)
	step := min(r.now-r.looked, patienceStep)
	r.looked = r.now
	if r.elect.wanted && r.elect.timer.due(r.now, r.cfg.ChangeRetry) {
		r.askForElection()
		r.dirty = true
	}
	if r.notice.kind != 0 && r.notice.timer.due(r.now, r.cfg.ChangeRetry) {
		r.tellMetadata()
	}
	if r.role == activating && !r.beginsWithoutAsking() {
		r.tickPreparation()
	}
	if r.role != primary {
		r.tickYield(step)
		return
	}
	r.tickProgress(step)
	r.tickChange()
	r.tickVouching(step)
	r.tickYield(step)
	for _, p := range r.peers {
		r.tickPeer(p)
		held := !p.counts() && r.held(p.node)
		r.dirty = r.dirty || p.heldOff && !held // it may join now
		p.heldOff = held
	}
	r.ticked = r.commit
}

// Untold reports whether a peer has everything and does not know that it is committed, and nothing is under way to it that
// would say so: the second Tick from now tells it, unless another write does before.
func (r *Replica) Untold() bool {
	if r.role != primary {
		return false
	}
	for _, p := range r.peers {
		if p.untold(r.commit) {
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
		return false
	}
	if r.change.active() || r.commit < r.log.last().Seq || r.wantsToVouch() {
		return true
	}
	for _, p := range r.peers {
		if p.heldOff || !p.counts() && r.held(p.node) {
			return true
		}
		if p.sendable() && (p.unacked() || p.next <= r.log.last().Seq || p.commit < r.commit) {
			return true
		}
	}
	return false
}

// HasReady reports whether Ready has something to hand over.
func (r *Replica) HasReady() bool { return r.dirty || r.orders.open > 0 }

// Ready hands over everything gathered since the last call. The driver must carry it out in full.
func (r *Replica) Ready() Ready {
	if r.role == primary {
		r.overlay.turn()
		r.seal()
		r.reconfigure()
		r.sendAll()
		r.trimLog()
		if last := r.log.last().Seq; last > r.handed {
			// What was never handed out is not durable, so not committed, so still in the tail.
			r.out.Append, _ = r.tail.from(r.handed+1, math.MaxInt)
		}
	}
	r.prep.done = r.prepare()
	if r.undone {
		to := r.undoTo
		r.out.UndoAbove, r.undone = &to, false
	}
	r.handed = r.log.last().Seq
	r.out.MustSync = r.out.Promised != 0 || r.out.UndoAbove != nil || len(r.out.Append) > 0 || r.out.Quarantine != ""
	if r.out.MustSync {
		r.batch++
		r.out.Batch = r.batch
		r.batches = append(r.batches, handedBatch{r.batch, r.handed, r.promised})
	}
	r.acknowledge()
	r.answerPrepare()
	rd := r.out
	r.out, r.dirty = Ready{}, false
	return rd
}

// setCommit moves the commit position to seq and releases what waited for it.
func (r *Replica) setCommit(seq rhumb.Seq) {
	m, ok := r.log.at(seq)
	if seq <= r.commit || !ok {
		panic(fmt.Sprintf("replica: invariant I5: commit of range %s goes from %d to %d, the log ends at %s",
			r.cfg.Range, r.commit, seq, r.log.last().Position))
	}
	r.commit, r.commitHLC = seq, m.HLC
	r.out.Commit, r.out.CommitHLC = seq, m.HLC
	r.log.forget(min(r.commit, r.durable))
	r.dirty = true
}

// State gives the role.
func (r *Replica) State() State {
	switch r.role {
	case activating:
		return Activating
	case primary:
		return Primary
	case quarantined:
		return Quarantined
	}
	if r.desc != nil && r.desc.IsInSync(r.cfg.Self) {
		return Follower
	}
	return Learner
}

// Epoch gives the newest promised epoch; for a Primary it is its own. Rule F asks metadata whether it still stands.
func (r *Replica) Epoch() rhumb.Epoch { return r.promised }

// Readable tells up to where a strong read may look: at is the timestamp and commit the position of the last committed
// entry. It is ok only at a primary whose epoch-start entry is committed. The driver must also hold the lease
// (LeaseSet) or confirm the epoch with metadata (rule F) after the read arrived.
func (r *Replica) Readable() (at rhumb.Timestamp, commit rhumb.Seq, ok bool) {
	return r.commitHLC, r.commit, r.role == primary && r.commit >= r.start
}

// LeaseSet gives the nodes whose grants a lease read needs (rule L): everyone in-sync or about to be, without self.
// The slice is shared and must not be changed.
func (r *Replica) LeaseSet() []rhumb.NodeID { return r.leaseSet }

// configure rebuilds the list of peers and the lease set from the record, the in-sync set and the pending change.
func (r *Replica) configure() {
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
			p.probe(r.log.last().Seq + 1)
		}
		p.inSync, p.pending = slices.Contains(r.inSync, n), slices.Contains(r.change.members, n)
		if p.counts() {
			r.leaseSet = append(r.leaseSet, n)
		} else {
			p.refuses = RefusedNot // what it refuses from now on holds it off
		}
		r.peers = append(r.peers, p)
	}
}

// peer gives what is known of a peer, or nil.
func (r *Replica) peer(n rhumb.NodeID) *progress {
	for _, p := range r.peers {
		if p.node == n {
			return p
		}
	}
	return nil
}
