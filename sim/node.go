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
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/storage"
)

// node is one node: its disk and clocks, which outlive crashes, and the process, which does not.
type node struct {
	w     *world
	index int
	id    rhumb.NodeID
	at    place
	disk  disk
	clock clock

	// down is true from a crash to the next start, paused while the process is stopped. life counts lives: what an earlier
	// one had under way is dropped.
	down, paused bool
	life         int
	inbox        []func() // what came while paused
	processes    []*process

	// The rest is the process of the node. host is nil until the node's own copy of the metadata shows its present life.
	rt     *runtime
	hlc    *hlc.Clock
	group  *raftmeta.Group
	host   *host.Host
	ctx    context.Context
	cancel context.CancelFunc
	member *member
	// connected is to whom a stream stands, by index.
	connected []bool
	// registered is the nonce of the last life that metadata has counted (NonceIgnored).
	registered uint64
	// begun is the present life, as package node has it.
	begun storage.Life
	// late is how far the node's clock lags while it reads (ReadLate).
	late time.Duration
	seen judged
	// harmed says that the disk was damaged in this run.
	harmed bool
	// spoiled is until when the replicas that are quarantined keep their data, by range (faultSpoil). discarding are the
	// replicas whose copies are being discarded, dropped those whose drop a crash may have made undone.
	spoiled    []time.Duration
	discarding []*replica.Replica
	dropped    []bool
}

func (n *node) identity() rhumb.NodeIdentity {
	id := n.disk.engine.Identity().NodeIdentity()
	return id
}

// run does something in the node's process now, or when its pause is over, or never if that life has ended.
func (n *node) run(life int, do func()) {
	switch {
	case n.down || n.life != life:
	case n.paused:
		n.inbox = append(n.inbox, func() { n.run(life, do) })
	default:
		do()
		if !n.down && n.life == life {
			n.resumeAll()
			n.observe()
		}
	}
}

// later does something in the present life after a while.
func (n *node) later(wait time.Duration, do func()) {
	life := n.life
	n.w.after(wait, func() { n.run(life, do) })
}

// start begins a life from what the disk holds.
func (n *node) start() {
	w := n.w
	n.down, n.paused, n.inbox = false, false, nil
	n.life++
	w.withChance(func() {
		w.judge(n.disk.open())
		if w.err == nil {
			w.judge(n.openClock())
		}
	})
	if w.err != nil {
		return
	}
	switch h := w.harm; {
	case w.cfg.Bug == ForgetLog && n.disk.engine.Identity().Boot > 1:
		n.forgetLog()
	case h != nil && h.n == n && h.kind == faultEmpty && h.done && !h.wiped:
		n.empty()
	}
	if w.cfg.Bug == ForgetQuarantine {
		n.forgetQuarantine()
	}
	n.beginLife(n.disk.engine.BeginLife)
	if !n.disk.engine.Identity().Cluster.IsZero() {
		n.enter()
	}
}

// beginLife begins a life with BeginLife or RenewLife of the engine.
func (n *node) beginLife(begin func(nonce uint64) (storage.Life, error)) {
	var err error
	n.begun, err = begin(n.w.rnd.Uint64())
	n.w.judge(err)
	n.disk.settle()
}

// openClock makes the node's hybrid clock from the ceiling that its disk holds.
func (n *node) openClock() error {
	ceiling, err := n.disk.engine.HLCCeiling()
	if err != nil {
		return err
	}
	if n.w.cfg.Bug == ForgetCeiling {
		ceiling = 0
	}
	n.hlc, err = hlc.New(hlc.Config{
		Wall: n.wall, Ceiling: ceiling, AheadMax: n.w.p.aheadMax(),
		Persist: func(c rhumb.Timestamp) error {
			if n.w.cfg.Bug == ForgetCeiling {
				return nil
			}
			err := n.disk.engine.SetHLCCeiling(c)
			n.disk.settle()
			return err
		},
	})
	return err
}

// wildAheadMax lets nodes take each other's timestamps however far their wall clocks are apart, in seeds in which all of them
// jump.
const wildAheadMax = 24 * time.Hour

// aheadMax is how far ahead of its clock a node takes timestamps.
func (p *profile) aheadMax() time.Duration {
	if p.strict && !p.trusting {
		return rhumb.ClockAheadMax
	}
	return wildAheadMax
}

// enter opens the node's copy of the metadata and begins to take part in the cluster.
func (n *node) enter() {
	w := n.w
	n.id = n.disk.engine.Identity().Node
	n.rt = &runtime{n: n, life: n.life}
	n.connected = make([]bool, len(w.nodes))
	for _, b := range w.nodes {
		w.net.streams[w.net.pair(n.at, b.at)] = 0
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.seen = newJudged(n)
	c := raftmeta.DefaultConfig()
	c.Node, c.KV, c.Transport, c.Runtime = n.id, kv{raftmeta.StoreKV(n.disk.engine.Stores()[0], 0), &n.disk}, raft{n}, n.rt
	c.Logger, c.Short, c.Restarted, c.RTT = w.logger(n), n.disk.engine.Stores()[0].Short(), n.disk.engine.Identity().Boot > 1, n.rtt
	c.Hasty = w.cfg.Bug == VoteAtOnce
	var err error
	w.withChance(func() { n.group, err = raftmeta.Open(c) })
	w.judge(err)
	if err != nil {
		return
	}
	w.tracef(n.name(), "start boot %d", n.identity().Boot)
	n.member = &member{n: n, self: n.identity(), group: n.group, ctx: n.ctx}
	n.rt.Every(time.Second, false, func() { w.judge(n.hlc.Refresh()) })
	n.rt.Every(streamRetry, false, func() { w.net.openStreams(n) })
	n.spawn(n.member.live)
	if h := w.harm; h != nil && h.n == n && h.done && !h.proven {
		n.spawn(n.watchProof)
	}
}

// rtt returns the measured round trip to another node.
func (n *node) rtt(to rhumb.NodeID) (time.Duration, bool) {
	if n.host == nil {
		return 0, false
	}
	return n.host.Leases().RTT(to)
}

// serve starts the ranges.
func (n *node) serve(m *member) error {
	w := n.w
	id := n.disk.engine.Identity()
	h, err := host.New(host.Config{
		Self: m.self, Engine: n.disk.engine, Clock: n.hlc, Net: transport{n}, Meta: m, Logger: w.logger(n), Runtime: n.rt,
		SyncOutstanding: n.disk.outstanding, Fresh: id.Fresh && id.Boot == 1 || w.cfg.Bug == ForgetGrants,
		Known: n.known(m), Settings: m.settings, Fatal: func(err error) { panic(err) }, Suspected: m.suspect, FitnessChanged: m.tellLeader, Replica: w.p.replica, Probe: n.probe(),
	})
	if err != nil {
		return err
	}
	n.host = h
	for j, b := range w.nodes {
		if n.connected[j] {
			h.Connected(b.id, true)
		}
	}
	return nil
}

// known is what the node knows of the ranges when its life is registered.
func (n *node) known(m *member) []*rhumb.Range {
	if n.w.cfg.Bug == ForgetPromises {
		return nil
	}
	return slices.Collect(m.group.State().Ranges())
}

// stop ends the process as a loss of power does.
func (n *node) stop() {
	n.w.net.lose(n)
	n.down = true
	n.life++
	n.killAll()
	n.disk.crash()
	n.inbox, n.host, n.group, n.member, n.cancel = nil, nil, nil, nil, nil
	n.forgetDiscards()
}

// forgetDiscards ends, with a life, what was being discarded.
func (n *node) forgetDiscards() {
	for i, r := range n.discarding {
		n.dropped[i], n.discarding[i] = n.dropped[i] || r != nil, nil
	}
}

// pause stops the process; resume lets it go on, with all that came meanwhile at once.
func (n *node) pause() { n.paused = true }

func (n *node) resume() {
	if n.down || !n.paused {
		return
	}
	n.paused = false
	inbox := n.inbox
	n.inbox = nil
	for _, do := range inbox {
		do()
	}
}

// connect says that a stream to b stands from now on; an earlier one broke before. b must be known in the life that opened
// the stream.
func (n *node) connect(b *node, from rhumb.NodeIdentity, id uint64) bool {
	at := n.w.net.pair(n.at, b.at)
	if n.w.net.streams[at] == id {
		return true
	}
	if n.member == nil || !n.member.knows(from) {
		return false
	}
	n.disconnect(b, n.w.net.streams[at])
	n.w.net.streams[at] = id
	n.setConnected(b, true)
	n.w.net.deliverStray(b, n)
	return true
}

// disconnect says that a stream to b broke.
func (n *node) disconnect(b *node, id uint64) {
	at := n.w.net.pair(n.at, b.at)
	if n.w.net.streams[at] != id {
		return
	}
	n.w.net.streams[at] = 0
	n.setConnected(b, false)
}

func (n *node) setConnected(b *node, connected bool) {
	n.connected[b.index] = connected
	if n.host != nil {
		n.host.Connected(b.id, connected)
	}
}

// logger writes what a node logs into the trace.
func (w *world) logger(n *node) *slog.Logger {
	if !w.tracing() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(traceLines{n}, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// traceLines takes lines of a log into the trace.
type traceLines struct{ n *node }

func (t traceLines) Write(b []byte) (int, error) {
	t.n.w.tracef(t.n.name(), "log %s", b[:max(len(b)-1, 0)])
	return len(b), nil
}
