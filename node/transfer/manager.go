package transfer

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/sched"
	"github.com/rhumbdb/rhumb/storage"
)

// RateDefault is the default rate in each direction, in bytes per second.
const RateDefault = 64 << 20

const (
	// lookEvery is how often the manager looks for replicas that need a copy.
	lookEvery = 500 * time.Millisecond
	// sweepEvery is how often it looks for parts of sets that nobody needs any more.
	sweepEvery = 10 * time.Second
	// idleMost is how long the donor keeps a set that nobody reads, and idleLeast how long it keeps
	// one if another node waits for its place.
	idleMost  = 10 * time.Minute
	idleLeast = 30 * time.Second
	// idleKept is idleLeast for a set of an earlier start that nobody has asked for in this one. A receiver that continues asks within seconds
	// (resumesMost); most sets were left by receivers that are done, and whose Release was lost with the start.
	idleKept = 10 * time.Second
	// readsMost bounds the attempts to read on without a new chunk, and readPause is between them.
	readsMost = 4
	readPause = 250 * time.Millisecond
	// keptMost is how long the primary keeps its log for a set that is here in part, after an attempt broke. The next attempt begins within
	// pauseMost, and a place among inMost may be free as much later.
	keptMost = 2 * pauseMost
	// openPatience is how long a donor lets a receiver that asks again wait for a set. Small sets are made by then.
	openPatience = time.Second
	// unmadeMost bounds the time in which a donor makes a set and reads nothing more of the range. The receiver then begins elsewhere.
	unmadeMost = 2 * time.Minute
)

// Question asks a donor for a set of a range.
type Question struct {
	Range rhumb.RangeID
	// Least is the position that the set must be committed up to.
	Least rhumb.Seq
	// AsksAgain is set by a receiver that repeats the question while the set is being made. An older receiver waits for the set instead, for at
	// most ten minutes, which do not suffice for a large range at a low rate.
	AsksAgain bool
}

// Offer is the answer to a question.
type Offer struct {
	// Set is nil while the donor makes it.
	Set *storage.Set
	// Made counts the bytes that the donor has read for the set by now. It grows while the donor makes progress.
	Made int64
}

// Host is the access to the replicas of this node.
type Host interface {
	// CopiesWanted returns the replicas that need a copy.
	CopiesWanted() []Want
	// SetCopying makes the primary keep the log of a range from a position on; 0 ends that.
	SetCopying(id rhumb.RangeID, at rhumb.Seq)
	// Install puts a complete set in the place of a replica.
	Install(ctx context.Context, in *storage.Install) error
	// MayDonate returns the commit position of a replica that may be copied: it is in sync and not
	// quarantined.
	MayDonate(id rhumb.RangeID) (storage.Commit, error)
	// Holds reports whether the node has a replica of a range. A range that was dropped, or moved away, has none.
	Holds(id rhumb.RangeID) bool
	// ReportDamage reports that a copy could not be read.
	ReportDamage(id rhumb.RangeID)
}

// Network reaches the managers of other nodes.
type Network interface {
	// Open asks for a set. An offer without one means that the donor makes it; the question is then to be repeated.
	Open(ctx context.Context, to rhumb.NodeID, q Question) (Offer, error)
	// Read calls take with the chunks of a set in order, from a chunk on, until the last, or until
	// take fails. NotFound means that the donor does not have the set any more.
	Read(ctx context.Context, to rhumb.NodeID, id storage.SetID, from int, take func(chunk int, b []byte) error) error
	// Release says that a set is not needed any more. It may be lost.
	Release(ctx context.Context, to rhumb.NodeID, id storage.SetID)
}

// Config configures a Manager.
type Config struct {
	Self    rhumb.NodeIdentity
	Engine  *storage.Engine
	Host    Host
	Net     Network
	Runtime sched.Runtime
	Logger  *slog.Logger
	// Rate bounds the bytes per second in each direction; 0 means no limit.
	Rate int64
	// Probe lets a simulator break a duty on purpose; nil in every serving node.
	Probe *Probe
}

// Probe changes results in order to plant bugs.
type Probe struct {
	// Chunk receives each chunk before it is stored.
	Chunk func(chunk int, b []byte) []byte
	// SkipVerify leaves out the check of the complete set.
	SkipVerify bool
}

// Progress is the state of a transfer to this node.
type Progress struct {
	// Range is copied from the node From.
	Range rhumb.RangeID
	From  rhumb.NodeID
	// Done and Of are bytes. Of is 0 until the donor has made the set.
	Done, Of int64
	// Rate is in bytes per second, since the transfer began or continued.
	Rate float64
	// Since is how long ago that was.
	Since time.Duration
	// Installing is set while the complete set takes the place of the copy.
	Installing bool
	// Failures counts the attempts before, and LastError is why the last one ended.
	Failures  int
	LastError string
}

// Manager runs the transfers of one life of a node.
type Manager struct {
	cfg Config
	// rt is the clock and the scheduler, which a simulator replaces.
	rt  sched.Runtime
	log *slog.Logger
	m   metrics

	mu   sync.Mutex // guards all below
	plan plan
	// in are the transfers to this node, out the sets for others.
	in  map[rhumb.RangeID]*incoming
	out map[storage.SetID]*outgoing
	// errors holds why the last attempt of a range failed.
	errors map[rhumb.RangeID]string
	// kept has the time until which the primary of a range keeps its log for a part of a set that is here, while no attempt is in progress.
	kept map[rhumb.RangeID]time.Duration
	// making are the sets that this node makes for others, and number is that of the last one that was begun.
	making map[order]*making
	number uint64
	// dropped are the sets that nobody needs, and whose files the caller removes when it has released mu.
	dropped []*storage.Export
	// inRate and outRate limit received and sent chunks, makeRate the reading for new sets.
	inRate, outRate, makeRate bucket
	closed                    bool
	// swept is the time of the last sweep.
	swept time.Duration
	// busy counts the calls that use the engine.
	busy int

	// ctx ends with the manager, and stop ends the look at regular times.
	ctx    context.Context
	cancel context.CancelFunc
	stop   func()
}

// incoming is a transfer to this node. Manager.mu guards it.
type incoming struct {
	start
	// set is nil until the donor has made it. done counts the bytes of it that are here.
	set     *storage.Set
	done    int64
	resumed int64 // of done, received by an earlier attempt
	// began is when this attempt started, by the clock of the manager.
	began      time.Duration
	installing bool
}

// outgoing is a set for another node. Manager.mu guards it; the export itself is immutable.
type outgoing struct {
	export *storage.Export
	// to is the node that asked for the set, or rhumb.NoNode if an earlier start made it.
	to rhumb.NodeID
	// used is when the set was last read or asked for.
	used time.Duration
	// readers counts the reads in progress. A set that is dropped is closed by the last of them.
	readers int
	dropped bool
}

// New starts a manager.
func New(cfg Config) *Manager {
	ctx, cancel := context.WithCancel(context.Background())
	if cfg.Runtime == nil {
		cfg.Runtime = sched.System
	}
	m := &Manager{
		cfg: cfg, rt: cfg.Runtime, log: cfg.Logger, m: newMetrics(), plan: newPlan(),
		in: map[rhumb.RangeID]*incoming{}, out: map[storage.SetID]*outgoing{}, errors: map[rhumb.RangeID]string{},
		kept: map[rhumb.RangeID]time.Duration{}, making: map[order]*making{},
		inRate: bucket{rate: float64(cfg.Rate)}, outRate: bucket{rate: float64(cfg.Rate)}, makeRate: bucket{rate: float64(cfg.Rate)}, ctx: ctx, cancel: cancel,
	}
	m.keepExports()
	m.stop = m.rt.Every(lookEvery, false, m.look)
	return m
}

// keepExports offers the sets that an earlier start of this node made. Their receivers ask for the next chunk, and
// those that do not ask within idleMost need them no more.
func (m *Manager) keepExports() {
	for _, s := range m.cfg.Engine.Stores() {
		for _, e := range s.Exports() {
			// Another node had this directory, or this one had another number: nobody asks for the set.
			if e.ID.Donor != m.cfg.Self.Node {
				if err := e.Close(); err != nil {
					m.log.Warn("the files of an old transfer were not removed", "set", e.ID.String(), "err", err)
				}
				continue
			}
			m.out[e.ID] = &outgoing{export: e, to: rhumb.NoNode, used: m.rt.Now()}
		}
	}
}

// Close ends all transfers and waits until none uses the engine. Received chunks, and complete sets for others, are
// kept for the next start.
func (m *Manager) Close() {
	m.mu.Lock()
	closed := m.closed
	m.closed = true
	m.mu.Unlock()
	if closed {
		return
	}
	m.cancel()
	m.stop()
	for {
		m.mu.Lock()
		busy := m.busy
		m.mu.Unlock()
		if busy == 0 {
			return
		}
		sched.Sleep(m.rt, context.Background(), time.Millisecond)
	}
}

// enter counts a call that uses the engine; ok is false after Close.
func (m *Manager) enter() (ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.busy++
	return true
}

// leave ends a call.
func (m *Manager) leave() {
	m.mu.Lock()
	m.busy--
	m.mu.Unlock()
}

// look begins the transfers that are due, and drops sets that nobody reads.
func (m *Manager) look() {
	wants := m.cfg.Host.CopiesWanted()
	m.mu.Lock()
	var starts []start
	if !m.closed {
		// The plan is consulted under the lock, and the transfers begin outside of it.
		starts = m.plan.next(m.rt.Now(), wants)
	}
	for _, s := range starts {
		m.in[s.want.Range] = &incoming{start: s, began: m.rt.Now()}
		m.busy++
	}
	ended := m.endKeptLocked()
	m.dropIdleLocked(idleMost)
	m.cancelIdleLocked()
	m.mu.Unlock()
	m.closeDropped()
	for _, id := range ended {
		m.cfg.Host.SetCopying(id, 0)
	}
	for _, s := range starts {
		m.rt.Go(func() {
			defer m.leave()
			m.copyRange(s)
		})
	}
	m.sweep()
}

// sweep removes the parts of sets for ranges that this node does not hold any more: their transfers were interrupted,
// and nobody continues them.
func (m *Manager) sweep() {
	m.mu.Lock()
	now := m.rt.Now()
	due := !m.closed && now-m.swept >= sweepEvery
	if due {
		m.swept = now
		m.busy++
	}
	m.mu.Unlock()
	if !due {
		return
	}
	m.rt.Go(func() {
		defer m.leave()
		for _, s := range m.cfg.Engine.Stores() {
			var ids []rhumb.RangeID
			sched.Block(m.rt, func() { ids = s.Installs() })
			for _, id := range ids {
				m.dropPart(s, id)
			}
		}
	})
}

// dropPart removes the received part of a range that this node does not hold.
func (m *Manager) dropPart(s *storage.Store, id rhumb.RangeID) {
	m.mu.Lock()
	// A transfer that is in progress finds out with its next chunk.
	running := m.in[id] != nil
	m.mu.Unlock()
	if running || m.cfg.Host.Holds(id) {
		return
	}
	var err error
	var set *storage.Set
	sched.Block(m.rt, func() { set, err = s.Installing(id), s.DropInstall(id) })
	if err != nil {
		m.log.Warn("the received part of a removed range was not removed; it is tried again", "range", id.String(), "err", err)
		return
	}
	m.m.abandoned.Inc()
	if set != nil {
		m.cfg.Net.Release(m.ctx, set.ID.Donor, set.ID)
	}
}

// pace waits until bytes may pass.
func (m *Manager) pace(ctx context.Context, b *bucket, bytes int) error {
	m.mu.Lock()
	wait := b.take(m.rt.Now(), bytes)
	m.mu.Unlock()
	if wait > 0 {
		sched.Sleep(m.rt, ctx, wait)
	}
	for _, c := range []context.Context{ctx, m.ctx} {
		if err := c.Err(); err != nil {
			return rhumb.WrapKind("transfer.pace", rhumb.Unavailable, err)
		}
	}
	return nil
}

// Progress returns the transfers to this node, and the failures of those that wait.
func (m *Manager) Progress() (out []Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.rt.Now()
	for id, c := range m.in {
		p := Progress{Range: id, From: c.donor, Done: c.done, Since: now - c.began, Installing: c.installing, Failures: c.failed, LastError: m.errors[id]}
		if c.set != nil {
			p.From, p.Of = c.set.ID.Donor, c.set.Bytes()
		}
		if p.Since > 0 {
			p.Rate = float64(c.done-c.resumed) / p.Since.Seconds()
		}
		out = append(out, p)
	}
	for id, why := range m.errors {
		if m.in[id] == nil && m.plan.tries[id] != nil {
			out = append(out, Progress{Range: id, Failures: m.plan.failures(id), LastError: why})
		}
	}
	slices.SortFunc(out, func(a, b Progress) int { return a.Range.Compare(b.Range) })
	return out
}
