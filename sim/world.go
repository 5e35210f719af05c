package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/sim/check"
)

// world is the state of one run.
type world struct {
	cfg Config
	p   profile
	// rnd determines what happens in the world, chance which faults occur. They are separate so
	// that a change in one area moves as little as possible in the other.
	rnd, chance *rand.Rand
	// wire decides which chunks of copies are damaged on the way.
	wire *rand.Rand

	now    time.Duration
	events schedule
	steps  uint64
	// digest is a fingerprint of the run: a hash over the times of all events. Equal seeds must
	// have equal digests.
	digest uint64

	net   *network
	nodes []*node
	// state is the newest metadata that any node has applied.
	state *catalog.State
	// ranges are all ranges that ever were, roots first. origin and the lists of nodes have the same order.
	ranges  []rhumb.RangeID
	origin  []lineage
	roots   []root
	clients []*client

	// running is the process that runs now. lending is set while crypto/rand draws from rnd.
	running *process
	lending bool

	// traffic counts the messages that nodes send. stepsMost and metaMessagesMost bound the events and the
	// messages of the metadata group.
	traffic          traffic
	stepsMost        uint64
	metaMessagesMost int
	// prints are the fingerprints of the metadata, by revision.
	prints map[uint64]uint64
	// damage is the damage of a disk that is not repaired yet, or nil.
	damage *diskDamage

	monitor check.Monitor
	history []*check.Op
	err     error
	// mending is set while another mendCopies is scheduled.
	mending bool
	// replacing is set once a node was asked to be replaced, which is given up at replaceUntil.
	replacing    bool
	replaceUntil time.Duration
	// removing is set once the removal of a region was asked for, which the operator cancels at removeUntil.
	removing    bool
	removeUntil time.Duration
	// forGood is the loss of a region for good, or nil. breaks are the moments at which logs of ranges continued without acknowledged
	// writes, because an operator accepted that.
	forGood *regionLoss
	breaks  []logBreak
	// misled is the metadata leader whose clock was set wrong after the other faults, or nil.
	misled *node
	// removed is the memory of BelieveRemoved.
	removed map[removedCopy]bool
	// loading is set while clients issue new operations, healed after the last fault.
	loading, healed bool
	stats           Stats
	line            bytes.Buffer
}

// seedSalt separates the generators of a seed.
const seedSalt = 0x9e3779b97f4a7c15

// newWorld draws the profile of the seed and builds the network and the nodes. No node has started
// yet.
func newWorld(cfg Config) *world {
	if cfg.Duration == 0 {
		cfg.Duration = DurationDefault
	}
	// The log of Pebble needs no such order.
	cfg.OwnLog = cfg.OwnLog || max(cfg.Bug, cfg.Mix) == TablesBeforeLog
	return buildWorld(cfg, profileOf(cfg))
}

// profileOf draws the profile of a run.
func profileOf(cfg Config) profile {
	p := drawProfile(rand.New(rand.NewPCG(cfg.Seed, seedSalt+1)))
	p.drawSplits(rand.New(rand.NewPCG(cfg.Seed, seedSalt+2)), !cfg.Whole)
	p.drawMerges(rand.New(rand.NewPCG(cfg.Seed, seedSalt+4)), !cfg.Apart, !cfg.Asked && max(cfg.Bug, cfg.Mix) == NoBug)
	p.drawDeferred(rand.New(rand.NewPCG(cfg.Seed, seedSalt+75)), !cfg.Synced && len(cfg.Faults) == 0 && max(cfg.Bug, cfg.Mix) == NoBug, max(cfg.Bug, cfg.Mix))
	p.drawWitness(rand.New(rand.NewPCG(cfg.Seed, seedSalt+3)))
	p.drawMembership(rand.New(rand.NewPCG(cfg.Seed, seedSalt+64)), !cfg.Settled && len(cfg.Faults) == 0 && max(cfg.Bug, cfg.Mix) == NoBug)
	p.drawRegions(rand.New(rand.NewPCG(cfg.Seed, seedSalt+80)), !cfg.Kept && len(cfg.Faults) == 0 && max(cfg.Bug, cfg.Mix) == NoBug)
	// A planted bug brings its own mix. The other of the two is NoBug, the least value.
	p.applyMix(max(cfg.Bug, cfg.Mix))
	p.applyBug(cfg.Bug)
	if len(cfg.Faults) > 0 {
		p.faults = cfg.Faults
	}
	p.settleMembership()
	return p
}

// buildWorld builds the network and the nodes of a profile.
func buildWorld(cfg Config, p profile) *world {
	w := &world{
		cfg: cfg, p: p, prints: map[uint64]uint64{}, stepsMost: stepsMax, metaMessagesMost: metaMessagesMax,
		rnd: rand.New(rand.NewPCG(cfg.Seed, 1)), chance: rand.New(rand.NewPCG(cfg.Seed, seedSalt)),
		wire: rand.New(rand.NewPCG(cfg.Seed, seedSalt+2)),
	}
	w.monitor.Unregistered = w.awaitsNewLife
	w.monitor.MinInSync = w.p.settings.MinInSync
	w.net = newNetwork(w, w.p.nodes+w.p.clients)
	for i := range w.net.site {
		w.net.site[i] = i % w.p.regions
	}
	for i := range w.p.nodes {
		n := &node{w: w, index: i, id: rhumb.NodeID(i + 1), at: place(i)}
		n.disk.n, n.disk.results = n, map[rhumb.RequestID]replica.Dedup{}
		n.clock = clock{
			rate: (w.rnd.Float64() - 0.5) * w.p.rho / 1000,
			// Monotonic clocks start anywhere, as they do after machines booted at different times.
			offset: time.Duration(w.rnd.Int64N(int64(100 * time.Hour))),
			right:  time.Duration((w.rnd.Float64() - 0.5) * 2 * float64(w.p.skew)),
		}
		n.clock.skew = n.clock.right
		if cfg.Bug == WildClock {
			n.clock.rate = (w.rnd.Float64() - 0.5) * 0.6
		}
		w.nodes = append(w.nodes, n)
	}
	w.tracef("world", "seed %d: %s", cfg.Seed, &w.p)
	return w
}

// drawUUID draws an id from the seed. It is never zero.
func (w *world) drawUUID() (u rhumb.UUID) {
	binary.BigEndian.PutUint64(u[:8], w.rnd.Uint64())
	binary.BigEndian.PutUint64(u[8:], w.rnd.Uint64()|1)
	return u
}

// clusterID is the same in every run.
func (w *world) clusterID() rhumb.ClusterID { return rhumb.ClusterID{0: 1} }

// rangeIndex returns the index of a range in world.ranges, or -1.
func (w *world) rangeIndex(id rhumb.RangeID) int { return slices.Index(w.ranges, id) }

// diskOf returns the access of the judges to the replicas of a range.
func (w *world) diskOf(id rhumb.RangeID) func(rhumb.NodeID) check.Replica {
	i := w.rangeIndex(id)
	return func(n rhumb.NodeID) check.Replica {
		return w.durableOf(w.nodes[n-1], i)
	}
}

// after schedules an event.
func (w *world) after(wait time.Duration, do func()) { w.events.add(w.now+max(wait, 0), do) }

// every repeats do, starting one period from now.
func (w *world) every(period time.Duration, do func()) {
	w.after(period, func() {
		do()
		w.every(period, do)
	})
}

// stepsMax bounds the events of a run. A usual run has less than a twentieth of that; code that
// reschedules itself without end exceeds it.
const stepsMax = 2_000_000

// until runs events up to a time, or to the first failure.
func (w *world) until(end time.Duration) {
	for w.err == nil {
		if at, ok := w.events.peek(); !ok || at > end {
			w.now = end
			return
		}
		ev, _ := w.events.next()
		// Time never advances while code runs: whatever happens in one event happens at one
		// instant.
		w.now = ev.at
		if w.steps++; w.steps > w.stepsMost {
			w.failf("%d events: a task repeats itself forever", w.steps)
		}
		// FNV-1a over the times of the events.
		w.digest = (w.digest ^ uint64(ev.at)) * 1099511628211
		ev.do()
	}
}

// judge records the first failure, which ends the run. Later failures are mostly its consequences.
func (w *world) judge(err error) {
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("at %v: %w", w.now, err)
		w.tracef("judge", "%v", err)
	}
}

// failf records a failure of the run.
func (w *world) failf(format string, args ...any) { w.judge(fmt.Errorf(format, args...)) }

// tracing reports whether the run is traced. Ask before building costly arguments.
func (w *world) tracing() bool { return w.cfg.Trace != nil }

// tracef writes one line of the trace.
func (w *world) tracef(who, format string, args ...any) {
	if w.cfg.Trace == nil {
		return
	}
	fmt.Fprintf(w.cfg.Trace, "%12.6f %-6s ", w.now.Seconds(), who)
	fmt.Fprintf(w.cfg.Trace, format, args...)
	fmt.Fprintln(w.cfg.Trace)
}

// name returns the name of the node in traces.
func (n *node) name() string { return n.id.String() }

// traceReady writes to the trace the work that a replica wants done.
func (w *world) traceReady(n *node, id rhumb.RangeID, rd *replica.Ready) {
	line := &w.line
	line.Reset()
	fmt.Fprintf(line, "ready %s", id)
	if rd.Promised != 0 {
		fmt.Fprintf(line, " promise %d to %s", rd.Promised, rd.PromisedTo)
	}
	if rd.UndoAbove != nil {
		fmt.Fprintf(line, " undo above %d", *rd.UndoAbove)
	}
	for _, e := range rd.Append {
		fmt.Fprintf(line, " append %v (%d requests)", e.Position(), len(e.Requests))
	}
	if rd.Commit != 0 {
		fmt.Fprintf(line, " commit %d@%d", rd.Commit, rd.CommitHLC)
	}
	if rd.Trim != 0 {
		fmt.Fprintf(line, " trim %d", rd.Trim)
	}
	for _, m := range rd.Meta {
		fmt.Fprintf(line, " meta %s epoch %d version %d %v", m.Kind, m.Epoch, m.Version, m.New)
	}
	fmt.Fprintf(line, " answers %d fetch %v", len(rd.Answers), rd.Fetch)
	w.tracef(n.name(), "%s", line.String())
}

// describeMessage describes a message in one line.
func describeMessage(m *replica.Message) string {
	switch m.Kind {
	case replica.Append:
		last := m.Prev
		if n := len(m.Entries); n > 0 {
			last = m.Entries[n-1].Position()
		}
		return fmt.Sprintf("append %s to %s epoch %d prev %v last %v commit %d trim %d", m.Range, m.To, m.Epoch, m.Prev, last, m.Commit, m.Trim)
	case replica.Ack:
		return fmt.Sprintf("ack %s to %s epoch %d match %d commit %d", m.Range, m.To, m.Epoch, m.Match, m.Commit)
	}
	return fmt.Sprintf("%s %s to %s epoch %d reject %d hint %d:%d promised %d", m.Kind, m.Range, m.To, m.Epoch, m.Reject, m.HintEpoch, m.HintEnd, m.Promised)
}
