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

// Transport carries messages to other nodes. Send must not block; it may lose messages.
type Transport interface {
	Heartbeats
	// Send hands over messages of replicas to one peer, in order.
	Send(to rhumb.NodeID, msgs []replica.Message)
}

// Metadata is what a host asks of the metadata group.
type Metadata interface {
	// Change proposes what a replica wants changed in its range's record. It does not block, and calls done once, within
	// MetaTimeout or a little more. The effect arrives as news through Host.Update; an error only means that it has to be
	// asked again.
	Change(p replica.MetaProposal, done func(error))
	// ConfirmPrimary reports whether self was primary of the range in that epoch at some moment after the call began
	// (rule F): it costs a round trip to the metadata leader.
	ConfirmPrimary(ctx context.Context, r rhumb.RangeID, e rhumb.Epoch) (bool, error)
}

// Bounds of a host.
const (
	// eventsMax bounds the client batches that wait for a pass; those beyond it are refused with Overloaded.
	eventsMax = 1 << 16
	// waitingBytesMax bounds the client batches that are taken in and not answered, where Budgets.Requests does not; those
	// beyond it are refused with Overloaded.
	waitingBytesMax = 64 << 20
	// passBytesMax bounds the client batches, and apart from them the entries of peers, that one pass takes in; one always
	// fits. A pass that takes longer would hold up acknowledgements, and make the node look dead to its peers.
	passBytesMax = 4 << 20
	// guestBytesMax bounds what a pass takes in that runs on the goroutine of a caller.
	guestBytesMax = 256 << 10
	// queueWaitMax is how long a client batch may wait for a pass: then it is refused, since it would probably be answered too late.
	queueWaitMax = time.Second
	// commitsInFlightMax bounds the commits that are applied and not yet durable. Measured with three nodes on one machine
	// and 64 and 256 callers, 2 wrote 2.6 to 4.2 times as much as 4 (smaller commits, more messages), and with 256 more than 1.
	commitsInFlightMax = 2
	// tickInterval is how often replicas with something outstanding get time.
	tickInterval = 20 * time.Millisecond
	// tellInterval is that while peers are to be told that the last writes are committed: the second such tick does it, or the
	// next entry.
	tellInterval = time.Millisecond
	// closeInterval is how often the ranges that this node is primary of are closed up to what was agreed to.
	closeInterval = 100 * time.Millisecond
	// heldMax bounds the proposals that wait for replicas to become active, holdMax how long one waits: longer than any
	// lease, so only a node that cannot go on reaches it.
	heldMax = 16_384
	holdMax = 2 * time.Second
	// stallMax is how long a pass may take while more waits, before the node stops claiming to be healthy. How much waits does
	// not matter: an overloaded node that makes progress must not be replaced.
	stallMax = 600 * time.Millisecond
	// syncStallMax is how long one sync may be outstanding before the node stops claiming to be healthy.
	syncStallMax = 500 * time.Millisecond
	// metaInFlightMax bounds the proposals under way at once; a replica whose proposal is dropped asks again.
	metaInFlightMax = 64
	// fetchersMax bounds the log reads for lagging peers under way at once.
	fetchersMax = 4
)

// MetaTimeout bounds one proposal to the metadata group.
const MetaTimeout = 5 * time.Second

// Config is what a host needs.
type Config struct {
	Self   rhumb.NodeIdentity
	Engine *storage.Engine
	Clock  *hlc.Clock
	Net    Transport
	Meta   Metadata
	Logger *slog.Logger
	// Runtime runs the host; default sched.System.
	Runtime sched.Runtime
	// SyncOutstanding reports how long the disk has owed an answer; default Engine.SyncOutstanding.
	SyncOutstanding func() time.Duration
	// Fresh is true when the store was made in this boot: it has then never granted a lease, and need not wait for the
	// end of grants that it does not remember (ruling 1).
	Fresh bool
	// Known are the records of all ranges, as the node's copy of the metadata had them when it showed this life.
	Known []*rhumb.Range
	// Settings gives the settings of a range's class, and ok false for a range that metadata does not know.
	Settings func(rhumb.RangeID) (c rhumb.ClassSettings, ok bool)
	// History gives how long a table keeps superseded versions (rhumb.Table), and ok false for a table that metadata does not
	// know, which then keeps all. Nil keeps none of any.
	History func(rhumb.TableID) (keep time.Duration, ok bool)
	// Committed, if set, is told whenever more of a range's log is committed on this node, in any role. It must not block.
	Committed func(Committed)
	// Fatal is called when the node cannot go on: its disk fails. It must not return.
	Fatal func(error)
	// Suspected is called whenever the set of peers that this node suspects changes. It must not block.
	Suspected func(nodes []rhumb.NodeID)
	// Replica bounds every replica; the zero value has package replica's defaults. The host sets Range, Self and MinInSync.
	Replica replica.Config
	// Probe lets a simulator look and interfere; nil in every node that serves.
	Probe *Probe
	// FitnessChanged, if set, is called when Host.Unfit may have changed. It must not block.
	FitnessChanged func()
	// Budgets bound the host's memory.
	Budgets Budgets
	// LogKeepStore bounds, in bytes, the log that each store keeps for replicas that are behind; default rhumb.LogKeepStore.
	LogKeepStore int64
	// RangeSizeMax is the size in bytes of a range's data above which no new key is taken; default rhumb.RangeSizeMax.
	RangeSizeMax int64
}

// Probe is what a simulator sees of the traffic between a host and its replicas. Each function may change what it is
// given, to break a duty of the host on purpose; all of them must be set. The pass calls them.
type Probe struct {
	// Ready sees what a replica wants done, before it is done.
	Ready func(id rhumb.RangeID, rd replica.Ready) replica.Ready
	// Proposal sees what the host has gathered for a client's batch.
	Proposal func(id rhumb.RangeID, p replica.Proposal) replica.Proposal
	// Agreed sees up to where a node has agreed to close a range in an epoch.
	Agreed func(n rhumb.NodeID, id rhumb.RangeID, e rhumb.Epoch, at rhumb.Timestamp) rhumb.Timestamp
	// WaitedOut sees whether the grants are over for which an elected replica waits.
	WaitedOut func(id rhumb.RangeID, over bool) bool
}

// Committed says how far a range's log is committed on this node.
type Committed struct {
	Range rhumb.RangeID
	// Seq is the last committed entry, HLC the greatest timestamp up to there.
	Seq rhumb.Seq
	HLC rhumb.Timestamp
	// Entries are the last of them, without a gap up to Seq, as far as the host still has them at hand; they must not be
	// changed. Storage has all of them, or will at the end of the pass.
	Entries []*entry.Entry
}

// recentMax bounds the entries of a range that are kept at hand until they are committed.
const recentMax = 256

// Host runs the replicas of one node.
type Host struct {
	cfg    Config
	rt     sched.Runtime
	log    *slog.Logger
	leases *Leases
	m      metrics

	admission admission

	mu        sync.Mutex // guards the seven below
	queue     []event
	proposals []*proposeEvent
	waiting   int  // bytes of batches and entries in queue and proposals
	driving   bool // a pass runs, or is about to
	syncing   int  // commits in flight
	closed    bool
	// since is when something began to wait for the next pass: the oldest event was posted, or the last pass began.
	since time.Duration

	driver sched.Worker // takes over driving from callers
	// reads counts the reads of the engine under way; stopped lets no further one of a client begin.
	reads   atomic.Int64
	stopped atomic.Bool

	// owned by the pass
	events  []event
	dirty   []*slot
	elected []*slot // may be activated in the next pass
	tokens  map[uint64]call
	nextTok uint64
	nodes   map[rhumb.NodeID]peerState
	// abandoned is set when the host closes while the disk is full: what the last pass decided is lost, as in a crash.
	abandoned bool

	all    []*slot                    // every slot, in the order in which they were made
	active []*slot                    // replicas that want ticks
	held   struct{ events, size int } // over all slots; size in bytes
	// fetches wait for one of the fetchersMax places, of which fetching are taken.
	fetches  []fetchedEvent
	fetching int

	logsChecked time.Duration           // when boundLogs looked last
	logsShort   map[*storage.Store]bool // the stores whose logs were too long together then

	ticks atomic.Bool // active is not empty: an idle host is left alone
	// tell gives the tick that lets peers know what is committed, telling that it is on its way.
	tell    sched.Timer
	telling bool

	fit       atomic.Pointer[fitness]
	slots     sync.Map // rhumb.RangeID -> *slot; written by the pass only
	collector *collector
	changes   atomic.Int32                   // proposals to the metadata group under way
	known     map[rhumb.RangeID]*rhumb.Range // Config.Known

	stopTick  func()
	lastClose time.Duration // when ranges were closed last; the tick's own

	ctx    context.Context
	cancel context.CancelFunc
}

// call is a proposal that waits for its answer.
type call struct {
	done  func(rhumb.Outcome, error)
	since time.Duration
}

// peerState is what replicas are told of a peer.
type peerState struct{ connected, suspect bool }

// New starts a host and the replicas that its stores hold. They serve once Update has told them who they are.
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
		cfg: cfg, rt: cfg.Runtime, log: cfg.Logger, m: newMetrics(), tokens: map[uint64]call{}, nodes: map[rhumb.NodeID]peerState{}, logsShort: map[*storage.Store]bool{},
		admission: admission{clock: cfg.Runtime.Now, pace: newPace(cfg.Budgets.Requests)},
		ctx:       ctx, cancel: cancel,
	}
	h.known = make(map[rhumb.RangeID]*rhumb.Range, len(cfg.Known))
	for _, d := range cfg.Known {
		h.known[d.ID] = d
	}
	h.fit.Store(&fitness{})
	states, err := cfg.Engine.Ranges()
	if err != nil {
		cancel()
		return nil, rhumb.Wrap(op, err)
	}
	held := make(map[rhumb.RangeID]bool, len(states))
	for _, st := range states {
		held[st.Range] = true
	}
	for _, d := range cfg.Known { // ranges that this node is to hold, and has lost or never had
		if d.IsReplica(cfg.Self.Node) && !held[d.ID] {
			states = append(states, storage.RangeState{Range: d.ID})
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
	h.driving = true // no pass begins before the host is complete
	h.driver = h.rt.Worker(func() { h.drive(false) })
	h.tell = h.rt.Timer(func() { h.post(tickEvent{}) })
	h.collector = newCollector(h.rt, h.collect)
	h.leases = newLeases(&h.cfg, h.healthy, h.suspected)
	for _, s := range promised { // before anything is granted: a promise outlives the process
		h.leases.exclude(s.id, s.r.Epoch(), rhumb.NoNode)
	}
	h.mu.Lock()
	h.driving = false
	h.mu.Unlock()
	h.stopTick = h.rt.Every(tickInterval, false, h.tick)
	return h, nil
}

// Leases gives the node's leases, for the heartbeats that the network receives.
func (h *Host) Leases() *Leases { return h.leases }

// Close ends all work. Proposals that are under way are answered with Unknown, those that no pass has taken in with
// Unavailable. When it returns nothing touches the engine any more. A second Close does nothing.
func (h *Host) Close() {
	h.mu.Lock()
	closed := h.closed
	h.closed = true // from here on events are dropped and no pass begins
	h.mu.Unlock()
	if closed {
		return
	}
	h.stopped.Store(true)
	h.cancel()
	h.leases.close()
	h.stopTick()
	h.tell.Stop()
	h.collector.worker.Stop()
	h.awaitIdle()
	h.driver.Stop()
	for _, ev := range h.queue {
		h.refuse(ev)
	}
	for _, ev := range h.proposals {
		h.refuse(ev)
	}
	h.queue, h.proposals = nil, nil
	h.giveBack()
	for _, s := range h.all {
		for _, ev := range h.unhold(s) {
			h.refuse(ev)
		}
	}
	for _, tok := range slices.Sorted(maps.Keys(h.tokens)) {
		c := h.tokens[tok]
		delete(h.tokens, tok)
		c.done(rhumb.Outcome{}, rhumb.E("host.Host.Close", rhumb.Unknown, "the node stopped before the outcome was known; ask again with the same request id"))
	}
}

// refuse answers an event that no pass will take in.
func (h *Host) refuse(ev event) {
	switch ev := ev.(type) {
	case *proposeEvent:
		ev.answer(rhumb.Outcome{}, errStopping("host.Host.Propose"))
	case messagesEvent:
		h.cfg.Budgets.PeersIn.Release(int64(ev.size))
	case askEvent:
		ev.ask(h)
	case discardEvent:
		ev.answer <- errStopping(opDiscard)
	case discardedEvent:
		ev.answer <- errStopping(opDiscard)
	}
}

func errStopping(op rhumb.Op) error { return rhumb.E(op, rhumb.Unavailable, "the node is stopping") }

// awaitIdle waits until no pass runs, no commit is in flight and no read is under way, so that what the pass owns may be
// touched, and the engine closed.
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

// Receive takes messages of a peer's replicas. It drops them when too much waits: the peer sends them again.
func (h *Host) Receive(from rhumb.NodeID, msgs []replica.Message) {
	size := 0
	for i := range msgs {
		size += entriesSize(msgs[i].Entries)
	}
	if !h.cfg.Budgets.PeersIn.TryAcquire(int64(size)) {
		h.m.droppedMessages.Add(float64(len(msgs)))
		return
	}
	if !h.post(messagesEvent{from, msgs, size}) {
		h.cfg.Budgets.PeersIn.Release(int64(size))
	}
}

// entriesSize is about what entries take in memory.
func entriesSize(entries []*entry.Entry) (size int) {
	for _, e := range entries {
		size += e.Size()
	}
	return size
}

// Connected tells that messages to a peer may get through again, or not any more.
func (h *Host) Connected(n rhumb.NodeID, connected bool) {
	h.post(peersEvent{func(h *Host) { h.setPeer(n, func(p *peerState) { p.connected = connected }) }})
}

// suspected is called by the goroutine that sends heartbeats: it must not wait for a pass, let alone for the disk.
func (h *Host) suspected(nodes []rhumb.NodeID) {
	h.postAway(peersEvent{func(h *Host) {
		suspect := map[rhumb.NodeID]bool{}
		for _, n := range nodes {
			suspect[n] = true
			h.setPeer(n, func(p *peerState) { p.suspect = true })
		}
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

// setPeer changes what is known of a peer and tells every replica that shares a range with it. The pass calls it.
func (h *Host) setPeer(n rhumb.NodeID, change func(*peerState)) {
	p := h.nodes[n]
	change(&p)
	h.nodes[n] = p
	now := h.rt.Now()
	for _, s := range h.all {
		if d := s.desc.Load(); d != nil && d.IsReplica(n) {
			s.r.Peer(now, n, p.connected, p.suspect)
			h.touch(s)
		}
	}
}

// healthy says whether this node keeps up with its own work (section 1.10: liveness follows the data path).
func (h *Host) healthy() (ok bool, why string) {
	now := h.rt.Now()
	h.mu.Lock()
	waits := len(h.queue)+len(h.proposals) > 0
	forDisk := !h.driving && h.syncing >= commitsInFlightMax // which is judged below
	since := h.since
	h.mu.Unlock()
	if waits && !forDisk && now-since > stallMax {
		return false, "a pass takes too long"
	}
	if d := h.cfg.SyncOutstanding(); d > syncStallMax {
		return false, "a sync of the disk has been outstanding too long"
	}
	return true, ""
}

// tick looks at the time.
func (h *Host) tick() {
	if h.ticks.Load() {
		h.post(tickEvent{})
	}
	if now := h.rt.Now(); now-h.lastClose >= closeInterval {
		h.lastClose = now
		if len(h.cfg.Engine.DamagedRanges()) > 0 {
			h.post(damagedEvent{})
		}
		h.lookAtFitness()
		h.post(closeEvent{})
	}
}
