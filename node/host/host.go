package host

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/sched"
	"github.com/rhumbdb/rhumb/storage"
)

// Transport sends messages to other nodes. Send must not block; it may lose messages.
type Transport interface {
	Heartbeats
	// Send sends messages of replicas to one peer, in order. It does not keep msgs.
	Send(to rhumb.NodeID, msgs []replica.Message)
}

// Metadata is the host's access to the metadata group.
type Metadata interface {
	// Change proposes a change of a range's record on behalf of a replica. It does not block, and
	// it calls done once, within MetaTimeout or a little later. The effect arrives through
	// Host.Update; after an error the replica proposes again.
	Change(p replica.MetaProposal, done func(error))
	// ConfirmPrimary reports whether this node was primary of the range in that epoch at some
	// moment after the call began (rule F). It costs a round trip to the metadata leader.
	ConfirmPrimary(ctx context.Context, r rhumb.RangeID, e rhumb.Epoch) (bool, error)
}

// Bounds of a host.
const (
	// eventsMax bounds the client batches that wait for a pass. Further ones are rejected with
	// Overloaded.
	eventsMax = 1 << 16
	// waitingBytesMax is the default of Budgets.Requests: the bytes of client batches that are
	// admitted and not answered. Further ones are rejected with Overloaded.
	waitingBytesMax = 64 << 20
	// passBytesMax bounds the client batches and, separately, the entries of peers that one pass
	// takes; at least one is always taken. A longer pass would delay acknowledgements and make the
	// node look dead to its peers.
	passBytesMax = 4 << 20
	// callerBytesMax bounds the bytes that may wait if a pass is to run on the goroutine of a
	// caller.
	callerBytesMax = 256 << 10
	// queueWaitMax is how long a client batch may wait for a pass. An older batch is rejected,
	// since its answer would probably be too late.
	queueWaitMax = time.Second
	// commitsInFlightMax bounds the commits that are applied and not yet durable, apart from those of passes that took
	// acknowledgements only. More commits in flight are smaller ones, and send more messages: with three nodes on one
	// machine and 64 callers, a bound of 2 cost 1.2 to 1.4 times the processor time for no more writes.
	commitsInFlightMax = 1
	// tickInterval is the interval of ticks for replicas with outstanding work.
	tickInterval = 20 * time.Millisecond
	// commitNoticeDelay replaces tickInterval while peers must still learn that the last writes are
	// committed. The second such tick sends the notice, unless an entry carries it earlier.
	commitNoticeDelay = time.Millisecond
	// closeInterval is the interval at which the ranges with their primary on this node are closed
	// up to the agreed timestamp.
	closeInterval = 100 * time.Millisecond
	// heldMax bounds the proposals that wait for replicas to become active, and holdMax how long a
	// proposal waits. holdMax is longer than any lease, so only a node that cannot activate reaches
	// it.
	heldMax = 16_384
	holdMax = 2 * time.Second
	// stallMax is how long a pass may take while more events wait before the node reports itself
	// unhealthy. The amount of waiting work does not matter: an overloaded node that makes progress
	// must not be replaced.
	stallMax = 600 * time.Millisecond
	// syncStallMax is how long one sync may be outstanding before the node reports itself
	// unhealthy.
	syncStallMax = 500 * time.Millisecond
	// metaInFlightMax bounds the metadata proposals in flight. A replica whose proposal is dropped
	// proposes again.
	metaInFlightMax = 64
	// fetchersMax bounds the log reads in flight for lagging peers.
	fetchersMax = 4
)

// MetaTimeout bounds one proposal to the metadata group.
const MetaTimeout = 5 * time.Second

// Config configures a host.
type Config struct {
	Self   rhumb.NodeIdentity
	Engine *storage.Engine
	Clock  *hlc.Clock
	Net    Transport
	Meta   Metadata
	Logger *slog.Logger
	// Runtime runs the host; default sched.System.
	Runtime sched.Runtime
	// SyncOutstanding returns how long the oldest unfinished sync has been running; default
	// Engine.SyncOutstanding.
	SyncOutstanding func() time.Duration
	// Fresh is true if the store was created in this boot. Such a store never granted a lease, so
	// its node does not wait for the end of forgotten grants (docs/replication.md#exclusions).
	Fresh bool
	// Known holds the records of all ranges, from the node's copy of the metadata at the time when
	// it showed this life.
	Known []*rhumb.Range
	// Settings returns the settings of a range's class, and false if metadata does not know the
	// range.
	Settings func(rhumb.RangeID) (c rhumb.ClassSettings, ok bool)
	// Spans reports whether metadata accepts an in-sync set of a range, as the survival goal of its class asks for; nil
	// accepts every set.
	Spans func(id rhumb.RangeID, members []rhumb.NodeID) bool
	// History returns how long a table keeps superseded versions (rhumb.Table), and false if
	// metadata does not know the table; such a table keeps all versions. If History is nil, no
	// table keeps any.
	History func(rhumb.TableID) (keep time.Duration, ok bool)
	// HomeIn returns the home of a key that belongs, or belonged before a split, to a range. If HomeIn is
	// nil, the range is the home of all its keys.
	HomeIn func(id rhumb.RangeID, table rhumb.TableID, name []byte) rhumb.RangeID
	// MergesInto returns the range in whose store a new copy of a range is to be made, because both
	// are to be merged, and false if any store will do. If it is nil, any store will do.
	MergesInto func(rhumb.RangeID) (left rhumb.RangeID, ok bool)
	// Dropped reports whether a table existed once and was dropped, so that its records can go. If it is
	// nil, no table is ever dropped.
	Dropped func(rhumb.TableID) bool
	// Committed, if set, is called whenever more of a range's log is committed on this node, in any
	// role. It must not block.
	Committed func(Committed)
	// Fatal is called if the node cannot continue because its disk fails. It must not return.
	Fatal func(error)
	// Suspected is called whenever the set of suspected peers changes. It must not block.
	Suspected func(nodes []rhumb.NodeID)
	// Replica bounds every replica; the zero value selects the defaults of package replica. The
	// host sets Range, Self and MinInSync.
	Replica replica.Config
	// Probe lets a simulator observe and interfere; it is nil in every serving node.
	Probe *Probe
	// FitnessChanged, if set, is called when the result of Host.Unfit may have changed. It must not
	// block.
	FitnessChanged func()
	// Budgets bound the host's memory.
	Budgets Budgets
	// LogKeepStore bounds, in bytes, the log that each store keeps for lagging replicas; default
	// rhumb.LogKeepStore.
	LogKeepStore int64
	// HealAfter is how long a quarantined copy is kept before it is replaced by one from another node,
	// if enough other copies are intact; 0 means that a person decides.
	HealAfter time.Duration
	// Transfers reports whether every node of the cluster can copy ranges whole (rhumb.FeatureTransfer); nil means
	// that all can. Before that a replica that needs a trimmed part of the log stays a learner, as it did in
	// earlier releases.
	Transfers func() bool
	// RangeSizeMax is the size in bytes of a range's data above which the range accepts no new key;
	// default rhumb.RangeSizeMax.
	RangeSizeMax int64
}

// Probe shows a simulator the traffic between a host and its replicas. Each function may change its
// argument, in order to break a duty of the host on purpose. All but Install, Installed and Merge must
// be set. The pass calls them.
type Probe struct {
	// Ready receives the work of a replica before it is carried out.
	Ready func(id rhumb.RangeID, rd replica.Ready) replica.Ready
	// Proposal receives the proposal that the host built for a client's batch.
	Proposal func(id rhumb.RangeID, p replica.Proposal) replica.Proposal
	// Agreed receives the timestamp up to which a node has agreed to close a range in an epoch.
	Agreed func(n rhumb.NodeID, id rhumb.RangeID, e rhumb.Epoch, at rhumb.Timestamp) rhumb.Timestamp
	// Install, if set, receives the promise that a copy is installed with, and the position that the
	// copy must be committed up to.
	Install func(id rhumb.RangeID, promised rhumb.Epoch, least rhumb.Seq) (rhumb.Epoch, rhumb.Seq)
	// Installed, if set, is called when the store has the new copy.
	Installed func(id rhumb.RangeID)
	// Merge, if set, receives whether a rule of merges lets the host continue.
	Merge func(rule MergeRule, ok bool) bool
	// Refused, if set, receives whether the disk of a store refused reads.
	Refused func(refused bool) bool
	// Deferred, if set, is called before the operating system is asked for a commit that is
	// acknowledged before it is synced.
	Deferred func()
	// WaitedOut receives whether the grants that an elected replica must wait for are over.
	WaitedOut func(id rhumb.RangeID, over bool) bool
}

// Committed states how far a range's log is committed on this node.
type Committed struct {
	Range rhumb.RangeID
	// Seq is the last committed entry, and HLC the greatest timestamp up to there.
	Seq rhumb.Seq
	HLC rhumb.Timestamp
	// Parent, if not zero, says that the range was split off from another one by entry Seq. Whoever
	// follows the log of Parent up to Seq has everything of this range up to there.
	Parent rhumb.RangeID
	// Entries are the last of the committed entries, without a gap up to Seq, as far as the host
	// still holds them. They must not be changed. Storage has all of them, or will at the end of
	// the pass.
	Entries []*entry.Entry
}

// recentMax bounds the entries of a range that the host holds until they are committed.
const recentMax = 256

// Host runs the replicas of one node.
//
// Three kinds of state:
//   - mu guards the queue of events and the fields that decide whether a pass may run. driving is
//     true from the decision to run a pass until the last pass ends, so at most one goroutine runs
//     passes.
//   - The pass owns the replicas, the slots and the pending calls. Only the goroutine that set
//     driving touches them. awaitIdle makes them available to Close.
//   - Atomics and slots are readable from any goroutine.
type Host struct {
	cfg    Config
	rt     sched.Runtime
	log    *slog.Logger
	leases *Leases
	m      metrics

	admission admission

	// mu guards the nine fields below.
	mu sync.Mutex
	// prompt holds the events that a pass takes even while no further commit may begin: acknowledgements of peers, and
	// commits that are durable. Their callers have waited for the disks already.
	prompt    []event
	queue     []event
	proposals []*proposeEvent
	// answersQueued counts the events in queue that acknowledgements must not overtake.
	answersQueued int
	// waiting is the size in bytes of the batches and entries in queue and proposals.
	waiting int
	// driving is true while a pass runs or is about to.
	driving bool
	// syncing counts the commits in flight.
	syncing int
	closed  bool
	// since is when something began to wait for the next pass: when the oldest event was posted or
	// the last pass began.
	since time.Duration

	// driver takes over the passes from callers.
	driver sched.Worker
	// reads counts the reads of the engine in progress. stopped prevents clients from starting
	// another.
	reads   atomic.Int64
	stopped atomic.Bool

	// The pass owns the fields below, unless their comment says otherwise.
	events []event
	// passAt is when the pass took its events: its time in all that is measured in milliseconds. Leases, which must
	// not outlive a pause in the middle of a pass, read the clock themselves.
	passAt     time.Duration
	dirtySlots []*slot
	// electedSlots are replicas that the next pass may activate.
	electedSlots []*slot
	// awaitingSlots are elected replicas whose grants to others were not over when they were last tried, and excluded
	// reports that this pass has excluded a range from grants.
	awaitingSlots []*slot
	excluded      bool
	// outbox holds the messages that this pass sends. It has an element for each node that was ever sent one.
	outbox []outgoing
	// installs are the copies to install at the end of the pass.
	installs []installEvent
	tokens   map[uint64]call
	nextTok  uint64
	nodes    map[rhumb.NodeID]peerState
	// abandoned is set if the host closes while the disk is full. The decisions of the last pass
	// are lost, as in a crash.
	abandoned bool

	// hasDrops is true once a table is known to have been dropped, which then is looked for.
	hasDrops bool

	// allSlots holds every slot in the order of creation, so that passes over it are deterministic.
	allSlots []*slot
	// activeSlots are the replicas that want ticks.
	activeSlots []*slot
	// heldTotal counts the held proposals of all slots, with their size in bytes.
	heldTotal struct{ events, size int }
	// fetches wait for one of the fetchersMax places, and fetching counts the places taken.
	fetches  []fetchedEvent
	fetching int

	// logsChecked is when boundLogs last ran.
	logsChecked time.Duration
	// logsShort holds the stores whose logs were too long in total then.
	logsShort map[*storage.Store]bool

	// unsynced are the stores with writes that are acknowledged and not synced, and unsyncedTimer
	// posts the next sync of one. unsyncedSince is when the oldest of these writes was made, in
	// nanoseconds, 0 if there is none; any goroutine may read it.
	unsynced      []*unsyncedLog
	unsyncedTimer sched.Timer
	unsyncedSince atomic.Int64

	// ticks is true if activeSlots is not empty. Otherwise the ticker posts no ticks.
	ticks atomic.Bool
	// noticeTimer ticks for the notice of commitNoticeDelay; noticePending is true while the tick
	// is on its way.
	noticeTimer   sched.Timer
	noticePending bool

	fit atomic.Pointer[fitness]
	// slow judges delays; the pass owns it. ownSpeed is its judgement of this node.
	slow     slowness
	ownSpeed atomic.Pointer[string]
	// deferredLosses is written by the pass; nil before the first loss.
	deferredLosses atomic.Pointer[replica.DeferredLosses]
	// disks judges the reads of each store; prober owns it. unreadable are the stores whose reads
	// fail, and probed is when prober was woken last.
	disks      map[*storage.Store]*readHealth
	unreadable atomic.Pointer[map[*storage.Store]bool]
	prober     sched.Worker
	probed     time.Duration
	// slots maps rhumb.RangeID to *slot. Only the pass writes it.
	slots sync.Map
	// wide lists the slots of ranges of several slots of the keyspace, sorted.
	wide atomic.Pointer[[]wideSlot]
	// floors holds, for ranges whose copy was removed in this life, the greatest epoch that the copy
	// had promised. The pass owns it. It grows with the ranges that this node has held.
	floors map[rhumb.RangeID]rhumb.Epoch
	// unborn holds the records of ranges that the metadata places here and that this node has no copy
	// of, because it has not divided the copy that holds their slots. early holds messages for them.
	// The pass owns both.
	unborn map[rhumb.RangeID]*rhumb.Range
	early  map[rhumb.RangeID][]replica.Message
	// forfeited holds those ranges of unborn whose slots were in a copy with the entry of the split that is gone.
	forfeited map[rhumb.RangeID]bool
	collector *collector
	// heals counts the replacements of damaged copies, and healed is when the last look was. Only the
	// pass uses the former, and only the ticker the latter.
	heals  map[rhumb.RangeID]int
	healed time.Duration
	// lagsMu guards lags, the replicas that need a copy of their range.
	lagsMu sync.Mutex
	lags   map[rhumb.RangeID]replica.Lag
	// changes counts the proposals to the metadata group in flight.
	changes atomic.Int32
	// known is Config.Known by range, during New only.
	known map[rhumb.RangeID]*rhumb.Range

	stopTick func()
	// lastClose is when ranges were last closed. Only the ticker uses it.
	lastClose time.Duration

	ctx    context.Context
	cancel context.CancelFunc
}

// call is a proposal that waits for its answer.
type call struct {
	ev *proposeEvent
	// since is the time of the pass that took it.
	since time.Duration
}

// peerState is the state of a peer that replicas are informed of.
type peerState struct{ connected, suspect, drains bool }

// New starts a host and the replicas that its stores hold. They serve once Update has delivered
// their records.
func New(cfg Config) (*Host, error) {
	const op rhumb.Op = "host.New"
	ctx, cancel := context.WithCancel(context.Background())
	cfg.RangeSizeMax = cmp.Or(cfg.RangeSizeMax, rhumb.RangeSizeMax)
	if cfg.Runtime == nil {
		cfg.Runtime = sched.System
	}
	if cfg.SyncOutstanding == nil {
		cfg.SyncOutstanding = cfg.Engine.SyncOutstanding
	}
	cfg.LogKeepStore = cmp.Or(cfg.LogKeepStore, rhumb.LogKeepStore)
	cfg.Budgets.Requests = cmp.Or(cfg.Budgets.Requests, waitingBytesMax)
	h := &Host{
		cfg: cfg, rt: cfg.Runtime, log: cfg.Logger, m: newMetrics(), tokens: map[uint64]call{}, nodes: map[rhumb.NodeID]peerState{}, logsShort: map[*storage.Store]bool{}, lags: map[rhumb.RangeID]replica.Lag{}, heals: map[rhumb.RangeID]int{},
		admission: admission{clock: cfg.Runtime.Now, pace: newPace(cfg.Budgets.Requests)},
		ctx:       ctx, cancel: cancel,
	}
	h.floors = make(map[rhumb.RangeID]rhumb.Epoch)
	h.unborn, h.early = make(map[rhumb.RangeID]*rhumb.Range), make(map[rhumb.RangeID][]replica.Message)
	h.forfeited = make(map[rhumb.RangeID]bool)
	h.known = make(map[rhumb.RangeID]*rhumb.Range, len(cfg.Known))
	for _, d := range cfg.Known {
		h.known[d.ID] = d
	}
	h.fit.Store(&fitness{})
	// Every range in the stores gets a replica, even if metadata has moved it away: its promises
	// still count, and its data is needed until metadata says otherwise.
	states, err := cfg.Engine.Ranges()
	if err != nil {
		cancel()
		return nil, rhumb.Wrap(op, err)
	}
	held := make(map[rhumb.RangeID]bool, len(states))
	for _, st := range states {
		held[st.Range] = true
	}
	stored := len(states)
	// Metadata may place a range here that the store does not hold: the store is new, or it lost
	// the range. The range starts empty, and its promise is relearned from the record (docs/replication.md#rule-relearn).
	for _, d := range cfg.Known {
		if !d.IsReplica(cfg.Self.Node) || held[d.ID] {
			continue
		}
		if holdsSlot(states, d.ID) || d.Birth != 0 && !h.wasDivided(states[:stored], d) {
			// The range is born when the copy that holds its slots is divided. An earlier life may have promised something for
			// it, on a disk that is an older copy by now.
			h.unborn[d.ID] = d
			h.floors[d.ID] = h.relearnedEpoch(d.ID)
		} else {
			states = append(states, storage.RangeState{Range: d.ID, LastSlot: d.Last})
		}
	}
	var promised []*slot
	for _, st := range states {
		s, err := h.addSlot(st, held[st.Range])
		if err != nil {
			cancel()
			return nil, rhumb.Wrap(op, err)
		}
		promised = append(promised, s)
	}
	h.known = nil
	h.indexSlots()
	h.reserveAll()
	// No pass may begin before the host is complete.
	h.driving = true
	h.driver = h.rt.Worker(func() { h.runPasses(false) })
	h.noticeTimer = h.rt.Timer(func() { h.post(tickEvent{}) })
	h.disks = make(map[*storage.Store]*readHealth)
	h.unreadable.Store(new(map[*storage.Store]bool))
	h.prober = h.rt.Worker(h.probeReads)
	h.unsyncedTimer = h.rt.Timer(func() { h.post(syncDueEvent{}) })
	h.collector = newCollector(h.rt, h.runCollector)
	h.leases = newLeases(&h.cfg, h.checkHealth, h.updateSuspects, func() { h.postAsync(confirmedEvent{}) })
	// Promises are excluded before the first grant leaves: a promise outlives the process that made
	// it.
	for _, s := range promised {
		h.leases.excludeRange(s.id, s.r.Epoch(), rhumb.NoNode)
	}
	h.mu.Lock()
	h.driving = false
	h.mu.Unlock()
	// The ticker comes last, since its first tick may run a pass.
	h.stopTick = h.rt.Every(tickInterval, false, h.tick)
	return h, nil
}

// Leases returns the node's leases, for the heartbeats that the network receives.
func (h *Host) Leases() *Leases { return h.leases }

// Close ends all work. Proposals in progress are answered with Unknown, and those that no pass has
// taken with Unavailable. After Close returns, nothing touches the engine. A second Close does
// nothing.
func (h *Host) Close() {
	h.mu.Lock()
	closed := h.closed
	// From here on events are dropped and no pass begins.
	h.closed = true
	h.mu.Unlock()
	if closed {
		return
	}
	// Everything that posts events stops first. awaitIdle then waits for the work in progress,
	// after which this goroutine owns the state of the pass.
	h.stopped.Store(true)
	h.cancel()
	h.leases.close()
	h.stopTick()
	h.noticeTimer.Stop()
	h.unsyncedTimer.Stop()
	h.collector.worker.Stop()
	h.prober.Stop()
	h.awaitIdle()
	h.driver.Stop()
	// No pass has taken these events, so it is certain that nothing of them was applied.
	for _, ev := range slices.Concat(h.prompt, h.queue) {
		h.refuseEvent(ev)
	}
	for _, ev := range h.proposals {
		h.refuseEvent(ev)
	}
	h.prompt, h.queue, h.proposals = nil, nil, nil
	// The budgets belong to the node and outlive the host.
	h.releaseBudgets()
	for _, s := range h.allSlots {
		for _, ev := range h.takeHeld(s) {
			h.refuseEvent(ev)
		}
	}
	// Proposals that a pass has taken may be in the log, and another node may commit them later.
	for _, tok := range slices.Sorted(maps.Keys(h.tokens)) {
		c := h.tokens[tok]
		delete(h.tokens, tok)
		c.ev.answer(rhumb.Outcome{}, rhumb.E("host.Host.Close", rhumb.Unknown, "the node stopped before the outcome was known; retry with the same request id"))
	}
}

// refuseEvent answers an event that no pass will take.
func (h *Host) refuseEvent(ev event) {
	switch ev := ev.(type) {
	case *proposeEvent:
		ev.answer(rhumb.Outcome{}, errStopping("host.Host.Propose"))
	case messagesEvent:
		h.cfg.Budgets.PeersIn.Release(int64(ev.size))
	case askEvent:
		ev.ask(h)
	case discardEvent:
		ev.answer <- errStopping(opDiscard)
	case dropEvent:
		ev.answer <- errStopping(opDiscard)
	case discardedEvent:
		ev.answer <- errStopping(opDiscard)
	case installEvent:
		ev.answer(errStopping(opInstall))
	case installedEvent:
		ev.answer(errStopping(opInstall))
	}
}

// errStopping returns the error of calls to a host that is closing.
func errStopping(op rhumb.Op) error { return rhumb.E(op, rhumb.Unavailable, "the node is stopping") }

// awaitIdle waits until no pass runs, no commit is in flight and no read is in progress, so that
// the caller may touch the state of the pass and close the engine.
func (h *Host) awaitIdle() {
	for {
		h.mu.Lock()
		idle := !h.driving && h.syncing == 0 && h.reads.Load() == 0
		h.mu.Unlock()
		if idle {
			return
		}
		sched.Sleep(h.rt, context.Background(), time.Millisecond)
	}
}

// Receive takes messages from a peer's replicas. It drops them if too much is waiting; the peer
// sends them again.
func (h *Host) Receive(from rhumb.NodeID, msgs []replica.Message) {
	now := h.rt.Now()
	// One frame of a busy peer usually has both: each node is primary of some ranges. Acknowledgements use no budget,
	// since they have no entries.
	acks, rest := splitAcks(msgs)
	if len(acks) > 0 {
		h.enqueue(messagesEvent{from: from, msgs: acks, at: now, acks: true})
	}
	if len(rest) > 0 {
		h.receiveEntries(messagesEvent{from: from, msgs: rest, at: now})
	}
	h.Drive()
}

// receiveEntries queues the messages of a peer that are not acknowledgements.
func (h *Host) receiveEntries(ev messagesEvent) {
	for i := range ev.msgs {
		ev.size += entriesSize(ev.msgs[i].Entries)
		ev.answers = ev.answers || ev.msgs[i].Kind != replica.Append
	}
	// Entries of peers have a budget apart from client batches: clients must not be able to stop
	// replication.
	if !h.cfg.Budgets.PeersIn.TryAcquire(int64(ev.size)) {
		h.m.droppedMessages.Add(float64(len(ev.msgs)))
		return
	}
	if !h.enqueue(ev) {
		h.cfg.Budgets.PeersIn.Release(int64(ev.size))
	}
}

// splitAcks returns the acknowledgements among messages and the others, each in their order. It copies only lists that are
// mixed.
func splitAcks(msgs []replica.Message) (acks, rest []replica.Message) {
	n := 0
	for i := range msgs {
		if msgs[i].Kind == replica.Ack {
			n++
		}
	}
	switch n {
	case 0:
		return nil, msgs
	case len(msgs):
		return msgs, nil
	}
	acks, rest = make([]replica.Message, 0, n), make([]replica.Message, 0, len(msgs)-n)
	for i := range msgs {
		if msgs[i].Kind == replica.Ack {
			acks = append(acks, msgs[i])
		} else {
			rest = append(rest, msgs[i])
		}
	}
	return acks, rest
}

// entriesSize returns the approximate memory of entries, in bytes.
func entriesSize(entries []*entry.Entry) (size int) {
	for _, e := range entries {
		size += e.Size()
	}
	return size
}

// Connected reports whether messages may now reach a peer.
func (h *Host) Connected(n rhumb.NodeID, connected bool) {
	h.post(peersEvent{func(h *Host) { h.setPeer(n, func(p *peerState) { p.connected = connected }) }})
}

// Refused reports that the host of a peer in a life refuses connections, because no process listens there. It waits for nothing.
func (h *Host) Refused(n rhumb.NodeID, boot rhumb.BootSeq) { h.leases.noteRefused(n, boot) }

// updateSuspects passes the set of suspected peers to the replicas. The goroutine that sends
// heartbeats calls it, so it must not wait for a pass or for the disk.
func (h *Host) updateSuspects(nodes []rhumb.NodeID) {
	h.postAsync(peersEvent{func(h *Host) {
		suspect := map[rhumb.NodeID]bool{}
		for _, n := range nodes {
			suspect[n] = true
			h.setPeer(n, func(p *peerState) { p.suspect = true })
		}
		// Sorted, since the order of a map would differ between replays of a simulation.
		for _, n := range slices.Sorted(maps.Keys(h.nodes)) {
			if h.nodes[n].suspect && !suspect[n] {
				h.setPeer(n, func(p *peerState) { p.suspect = false })
			}
		}
	}})
	if h.cfg.Suspected != nil {
		h.cfg.Suspected(nodes)
	}
}

// SetDraining sets the nodes that drain (docs/replication.md#rule-drain). Call it before Update passes
// the records that the drain has changed.
func (h *Host) SetDraining(nodes []rhumb.NodeID) {
	h.post(peersEvent{func(h *Host) {
		for _, n := range nodes {
			if !h.nodes[n].drains {
				h.setPeer(n, func(p *peerState) { p.drains = true })
			}
		}
		// Sorted, as in updateSuspects.
		for _, n := range slices.Sorted(maps.Keys(h.nodes)) {
			if h.nodes[n].drains && !slices.Contains(nodes, n) {
				h.setPeer(n, func(p *peerState) { p.drains = false })
			}
		}
	}})
}

// setPeer changes the state of a peer and informs every replica that shares a range with it. The
// pass calls it.
func (h *Host) setPeer(n rhumb.NodeID, change func(*peerState)) {
	p := h.nodes[n]
	change(&p)
	h.nodes[n] = p
	if !p.connected || p.suspect {
		h.forgetDelays(n)
	}
	now := h.rt.Now()
	for _, s := range h.allSlots {
		if d := s.desc.Load(); d != nil && d.IsReplica(n) {
			s.r.Peer(now, n, p.connected, p.suspect)
			s.r.SetDraining(n, p.drains)
			h.markDirty(s)
		}
	}
}

// checkHealth reports whether this node keeps up with its own work
// (docs/replication.md#failure-detection: liveness follows the data path).
func (h *Host) checkHealth() (ok bool, why string) {
	now := h.rt.Now()
	h.mu.Lock()
	waits := len(h.prompt)+len(h.queue)+len(h.proposals) > 0
	// With all commits in flight no pass may take writes. The check of the sync below covers that case.
	forDisk := !h.driving && h.syncing >= commitsInFlightMax && len(h.prompt) == 0
	since := h.since
	h.mu.Unlock()
	if waits && !forDisk && now-since > stallMax {
		return false, "a pass has been running too long"
	}
	if d := h.cfg.SyncOutstanding(); d > syncStallMax {
		return false, "a sync of the disk has been running too long"
	}
	return true, ""
}

// tick runs the periodic work: ticks of replicas, closing, damage and fitness.
func (h *Host) tick() {
	// Without active replicas a tick would only cost an empty pass.
	if h.ticks.Load() {
		h.post(tickEvent{})
	}
	if now := h.rt.Now(); now-h.lastClose >= closeInterval {
		h.lastClose = now
		if len(h.cfg.Engine.DamagedRanges()) > 0 {
			h.post(damagedEvent{})
		}
		if h.cfg.HealAfter > 0 && now-h.healed >= healEvery {
			h.healed = now
			h.post(healEvent{})
		}
		if now-h.probed >= readStep {
			h.probed = now
			h.prober.Wake()
		}
		h.updateFitness()
		h.post(closeEvent{})
	}
}
