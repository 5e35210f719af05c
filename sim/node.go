package sim

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/node/host"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/node/transfer"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/storage"
)

// node is one node. Its disk and clocks outlive crashes; the process does not.
type node struct {
	w     *world
	index int
	id    rhumb.NodeID
	at    place
	disk  disk
	clock clock

	// down is set from a crash to the next start, paused while the process is stopped. life numbers
	// the lives of the process: work that an earlier life scheduled is dropped.
	down, paused bool
	// retired is set when the node was removed from the cluster.
	retired bool
	// lost is set when the node was lost for good, with its disk.
	lost bool
	// older is set while the node runs an older build.
	older bool
	life  int
	// working is set while code of the process runs, and stopping once that ends the process (stopByError).
	working, stopping bool
	// inbox holds what arrived during a pause.
	inbox     []func()
	processes []*process

	// The remaining fields belong to the process. host is nil until the node's copy of the metadata
	// shows the present life.
	rt     *runtime
	hlc    *hlc.Clock
	group  *raftmeta.Group
	host   *host.Host
	ctx    context.Context
	cancel context.CancelFunc
	member *member
	// transfers copies ranges; it lives as long as host.
	transfers *transfer.Manager
	// connected marks the peers to which a stream is open, by index.
	connected []bool
	// ends holds the memory of the frames of each stream, by index of the peer.
	ends []ends
	// registered is the nonce of the last life that the metadata has counted (NonceIgnored).
	registered uint64
	// begun is the present life as the engine returned it.
	begun storage.Life
	// late is how far the clock of the node lags during a read (ReadLate).
	late time.Duration
	seen observation
	// wasDamaged is set once the disk has been damaged in this run.
	wasDamaged bool
	// spoiled is until when quarantined replicas keep their data, by range (faultSpoil). discarding
	// are the replicas whose copies are being discarded, and dropped marks those whose drop a crash
	// may have undone.
	spoiled    []time.Duration
	discarding []*replica.Replica
	dropped    []bool
	// oldChunks are the last chunks that the node received of each range (ResumeWrongSet).
	oldChunks map[chunkAt][]byte
}

// identity returns the identity of the present life, as its disk knows it.
func (n *node) identity() rhumb.NodeIdentity {
	id := n.disk.engine.Identity().NodeIdentity()
	return id
}

// run executes do in the process of the node: now, after its pause, or never if that life has
// ended. After each such event processes continue and the judges observe the replicas.
func (n *node) run(life int, do func()) {
	switch {
	case n.down || n.life != life:
	// A paused process handles everything after its pause, as after SIGSTOP and SIGCONT.
	case n.paused:
		n.inbox = append(n.inbox, func() { n.run(life, do) })
	default:
		n.work(func() {
			do()
			// do may have crashed the node or begun another life.
			if !n.down && n.life == life {
				n.resumeAll()
			}
		})
		if !n.down && n.life == life {
			n.observeReplicas()
		}
	}
}

// later schedules do in the present life.
func (n *node) later(wait time.Duration, do func()) {
	life := n.life
	n.w.after(wait, func() { n.run(life, do) })
}

// start begins a life from the content of the disk.
func (n *node) start() {
	w := n.w
	n.down, n.paused, n.inbox = false, false, nil
	n.life++
	// Opening the engine draws from crypto/rand.
	w.withChance(func() {
		w.judge(n.disk.openEngine())
		if w.err == nil {
			w.judge(n.openClock())
		}
	})
	if w.err != nil {
		return
	}
	// The log is emptied before the life begins, so that the life registers as short.
	switch h := w.damage; {
	case w.cfg.Bug == ForgetLog && n.disk.engine.Identity().Boot > 1:
		n.forgetLog()
	case h != nil && h.n == n && h.kind == faultEmpty && h.done && !h.wiped:
		n.emptyDirectory()
	}
	if w.cfg.Bug == SplitLostOnRestart && n.disk.engine.Identity().Boot > 1 {
		n.forgetBirths()
	}
	// Before the host reads the disk.
	if w.cfg.Bug == ForgetQuarantine {
		n.forgetQuarantine()
	}
	n.beginLife(n.disk.engine.BeginLife)
	// A disk without an identity waits for foundCluster.
	if !n.disk.engine.Identity().Cluster.IsZero() {
		n.enterCluster()
	}
}

// beginLife begins a life with BeginLife or RenewLife of the engine.
func (n *node) beginLife(begin func(nonce uint64) (storage.Life, error)) {
	var err error
	// The seed determines the nonce, so that a run repeats.
	n.begun, err = begin(n.w.rnd.Uint64())
	n.w.judge(err)
	// The nonce must be durable before the life is registered (docs/replication.md#durable).
	n.disk.settleAll()
}

// openClock creates the hybrid clock of the node from the ceiling on its disk.
func (n *node) openClock() error {
	ceiling, err := n.disk.engine.HLCCeiling()
	if err != nil {
		return err
	}
	if n.w.cfg.Bug == ForgetCeiling {
		ceiling = 0
	}
	n.hlc, err = hlc.New(hlc.Config{
		// A restarted clock starts above its ceiling, hence above every timestamp that it ever handed
		// out.
		Wall: n.wallNow, Ceiling: ceiling, AheadMax: n.w.p.aheadMax(),
		Persist: func(c rhumb.Timestamp) error {
			if n.w.cfg.Bug == ForgetCeiling {
				return nil
			}
			// The clock waits for this write, so no timestamp above the old ceiling exists yet.
			err := n.disk.engine.SetHLCCeiling(c)
			n.disk.settleAll()
			return err
		},
	})
	return err
}

// wildAheadMax makes nodes accept each other's timestamps in seeds where all wall clocks jump,
// however far the clocks are apart.
const wildAheadMax = 24 * time.Hour

// aheadMax returns how far ahead of its own clock a node accepts timestamps.
func (p *profile) aheadMax() time.Duration {
	if p.strict && !p.trusting {
		return rhumb.ClockAheadMax
	}
	return wildAheadMax
}

// enterCluster opens the node's copy of the metadata and starts the process of the present life.
func (n *node) enterCluster() {
	w := n.w
	n.id = n.disk.engine.Identity().Node
	n.rt = &runtime{n: n, life: n.life}
	n.connected, n.ends = make([]bool, len(w.nodes)), make([]ends, len(w.nodes))
	// The streams of the previous life end with it; the peers notice later.
	for _, b := range w.nodes {
		w.net.streams[w.net.pairIndex(n.at, b.at)] = 0
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.seen = newObservation(n)
	// The defaults of a real node, with disk, network and clock of the world.
	c := raftmeta.DefaultConfig()
	c.Node, c.KV, c.Transport, c.Runtime = n.id, kv{raftmeta.StoreKV(n.disk.engine.Stores()[0], 0), &n.disk}, raft{n}, n.rt
	c.Logger, c.Short, c.Restarted, c.RTT = w.nodeLogger(n), n.disk.engine.Stores()[0].Short(), n.disk.engine.Identity().Boot > 1, n.roundTripTo
	c.Clocks = n.clocks
	if w.p.judgesRegistrations() {
		c.CheckRegistration = n.checkRegistration
	}
	// Hasty exists for this bug only.
	c.Hasty = w.cfg.Bug == VoteAtOnce
	c.WallClock = func() time.Time { return time.Unix(0, int64(w.now)) }
	w.p.hastenFailback(&c.Place)
	var err error
	w.withChance(func() { n.group, err = raftmeta.Open(c) })
	w.judge(err)
	if err != nil {
		return
	}
	w.tracef(n.name(), "start boot %d", n.identity().Boot)
	n.member = &member{n: n, self: n.identity(), group: n.group, ctx: n.ctx}
	// A real node refreshes its ceiling in the background as well.
	n.rt.Every(time.Second, false, func() { w.judge(n.hlc.Refresh()) })
	if w.p.refusesReads() {
		n.rt.Every(time.Second, false, n.watchGroup)
	}
	n.rt.Every(streamRetry, false, func() { w.net.openStreams(n) })
	n.spawn(n.member.joinAndServe)
	// Whether the voter takes part again decides when the next disk may be damaged.
	if h := w.damage; h != nil && h.n == n && h.done && !h.proven {
		n.spawn(n.watchProof)
	}
}

// roundTripTo returns the measured round trip to another node.
func (n *node) roundTripTo(to rhumb.NodeID) (time.Duration, bool) {
	if n.host == nil {
		return 0, false
	}
	return n.host.Leases().RTT(to)
}

// serveRanges starts the host with the ranges of the node.
func (n *node) serveRanges(m *member) error {
	w := n.w
	id := n.disk.engine.Identity()
	h, err := host.New(host.Config{
		// Fresh means that no earlier life of the store can have granted a lease, so the first
		// start need not wait.
		Self: m.self, Engine: n.disk.engine, Clock: n.hlc, Net: transport{n}, Meta: m, Logger: w.nodeLogger(n), Runtime: n.rt,
		SyncOutstanding: n.disk.oldestSyncAge, Fresh: id.Fresh && id.Boot == 1 || w.cfg.Bug == ForgetGrants,
		Known: n.knownRanges(m), Settings: m.rangeSettings, HomeIn: m.homeIn, Spans: m.spans, Fatal: n.stopByError, Suspected: m.setSuspects, FitnessChanged: m.tellLeader, Replica: w.p.replica, Probe: n.hostProbe(),
	})
	if err != nil {
		return err
	}
	// Streams may be open before the host exists.
	n.host = h
	n.transfers = transfer.New(transfer.Config{
		Self: m.self, Engine: n.disk.engine, Host: h, Net: newCopies(n), Runtime: n.rt, Logger: w.nodeLogger(n), Probe: n.transferProbe(),
	})
	for j, b := range w.nodes {
		if n.connected[j] {
			h.Connected(b.id, true)
		}
	}
	return nil
}

// knownRanges returns the ranges that the node knows when its life is registered. A start promises
// their epochs again, because an older disk may have forgotten promises
// (docs/replication.md#rule-relearn).
func (n *node) knownRanges(m *member) []*rhumb.Range {
	if n.w.cfg.Bug == ForgetPromises {
		return nil
	}
	return slices.Collect(m.group.State().Ranges())
}

// stop ends the process as a power loss does.
func (n *node) stop() {
	// Peers notice the end of the connection only by silence.
	n.w.net.breakStreamsOf(n)
	n.down = true
	n.disk.refuse(false)
	// A new number drops the scheduled work of the process.
	n.life++
	// Processes end before the disk changes: their deferred calls still see the old one.
	n.killAll()
	n.disk.losePower()
	n.transfers = nil
	n.inbox, n.host, n.group, n.member, n.cancel = nil, nil, nil, nil, nil
	n.forgetDiscards()
}

// forgetDiscards ends the discards of a life. Whether their drops survived shows at the next start.
func (n *node) forgetDiscards() {
	for i, r := range n.discarding {
		n.dropped[i], n.discarding[i] = n.dropped[i] || r != nil, nil
	}
}

// pause stops the process, like SIGSTOP.
func (n *node) pause() { n.paused = true }

// resume continues a paused process and delivers at once everything that arrived in the meantime.
func (n *node) resume() {
	if n.down || !n.paused {
		return
	}
	// Everything that arrived is handled at one moment, in the order of arrival.
	n.paused = false
	inbox := n.inbox
	n.inbox = nil
	for _, do := range inbox {
		do()
	}
}

// connect records that a stream to b is open; it replaces an earlier one. It reports false if the
// metadata of the node does not show b in the life that opened the stream.
func (n *node) connect(b *node, from rhumb.NodeIdentity, id uint64) bool {
	at := n.w.net.pairIndex(n.at, b.at)
	// A repeated handshake changes nothing.
	if n.w.net.streams[at] == id {
		return true
	}
	if n.member == nil || !n.member.knowsLife(from) {
		return false
	}
	// The host must see the break, because it restarts replication to the peer from there.
	n.disconnect(b, n.w.net.streams[at])
	n.w.net.streams[at] = id
	n.beginTallies(b, from, id)
	n.setConnected(b, true)
	n.w.net.deliverStray(b, n)
	return true
}

// disconnect records that stream id to b broke, unless a newer one has replaced it.
func (n *node) disconnect(b *node, id uint64) {
	at := n.w.net.pairIndex(n.at, b.at)
	// A newer connection must not be closed by the end of an older one.
	if n.w.net.streams[at] != id {
		return
	}
	n.w.net.streams[at] = 0
	n.endTallies(b)
	n.setConnected(b, false)
}

// setConnected records a change of the stream to b and reports it to the host.
func (n *node) setConnected(b *node, connected bool) {
	n.connected[b.index] = connected
	if n.host != nil {
		n.host.Connected(b.id, connected)
	}
}

// nodeLogger returns a logger that writes into the trace.
func (w *world) nodeLogger(n *node) *slog.Logger {
	if !w.tracing() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(traceLines{n}, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			// Lines of a trace carry virtual time; the real time would differ between runs.
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// traceLines writes each line of a log into the trace.
type traceLines struct{ n *node }

// Write writes one line of a log. slog calls it once per record.
func (t traceLines) Write(b []byte) (int, error) {
	t.n.w.tracef(t.n.name(), "log %s", b[:max(len(b)-1, 0)])
	return len(b), nil
}
