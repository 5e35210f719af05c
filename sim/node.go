package sim

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/sim/check"
)

// Times of a node.
const (
	// tickEvery is how often a node looks at its leases, replicas and disk.
	tickEvery = 25 * time.Millisecond
	// syncStallMax is how long a sync may be outstanding before the node withholds its heartbeats.
	syncStallMax = 500 * time.Millisecond
	// registerRetry is how often a node repeats its registration until it sees the effect.
	registerRetry = 400 * time.Millisecond
)

// node is one node: its disk and clocks, which outlive crashes, and the process, which does not.
type node struct {
	w     *world
	index int
	id    rhumb.NodeID
	at    place
	disk  disk
	clock clock

	// down is true from a crash to the next start, paused while the process is stopped. life counts starts: what an
	// earlier life had under way is dropped.
	down, paused bool
	life         int
	inbox        []func() // what came while paused

	// The rest is the process.
	hlc      *hlc.Clock
	pairs    *lease.Pairs
	view     *catalog.State
	slots    []*slot // by the world's number of the range
	dirty    []*slot
	passing  bool
	names    uint64
	nonce    uint64
	syncing  bool
	syncFrom time.Duration
	// suspected is whom pairs suspects, connected to whom a stream stands; both by index.
	suspected, connected []bool
	registered           time.Duration
	reported             time.Duration
	streamed             time.Duration
	ceiled               time.Duration
	// slowBy and stallUntil make the disk slow; they outlive crashes.
	slowBy     time.Duration
	stallUntil time.Duration
}

// slot is one replica of a node.
type slot struct {
	n       *node
	rng     int
	id      rhumb.RangeID
	r       *replica.Replica
	disk    *rangeDisk
	dirty   bool
	calls   map[uint64]func(replica.Answer)
	token   uint64
	commit  rhumb.Seq // as told to the judges in this life
	primary rhumb.Epoch
	closed  rhumb.Timestamp // as told to the judges in this life
}

func (n *node) identity() rhumb.NodeIdentity {
	return rhumb.NodeIdentity{Node: n.id, Store: n.disk.store, Boot: n.disk.boot}
}

// run does something in the node's process now, or when its pause is over, or never if that life has ended.
func (n *node) run(life int, do func()) {
	switch {
	case n.down || n.life != life:
	case n.paused:
		n.inbox = append(n.inbox, func() { n.run(life, do) })
	default:
		do()
	}
}

// later does something in the present life after a while.
func (n *node) later(wait time.Duration, do func()) {
	life := n.life
	n.w.after(wait, func() { n.run(life, do) })
}

// start begins a life from what the disk holds.
func (n *node) start(fresh bool) {
	w := n.w
	n.down, n.paused, n.inbox = false, false, nil
	n.life++
	n.disk.boot++
	n.nonce = w.rnd.Uint64()
	n.passing, n.syncing, n.dirty, n.names = false, false, nil, 0
	n.registered, n.reported, n.streamed, n.ceiled = 0, 0, 0, 0
	n.suspected, n.connected = make([]bool, len(w.nodes)), make([]bool, len(w.nodes))
	for _, b := range w.nodes {
		w.net.streams[w.net.pair(n.at, b.at)] = 0
	}
	var err error
	n.hlc, err = hlc.New(hlc.Config{
		Wall: n.wall, Ceiling: n.ceiling(),
		Persist: func(c rhumb.Timestamp) error { n.disk.ceiling = c; return nil },
	})
	w.judge(err)
	n.pairs = lease.New(n.identity(), n.mono(), fresh || w.cfg.Bug == ForgetGrants)
	n.slots = make([]*slot, len(w.ranges))
	for i, d := range n.disk.ranges {
		if d != nil {
			n.addSlot(i)
		}
	}
	if n.view != nil {
		view := n.view
		n.view = nil
		n.learn(view) // every node keeps a copy of the metadata, as old as it may be
	}
	w.tracef(n.name(), "start boot %d", n.disk.boot)
	n.later(time.Duration(w.rnd.Int64N(int64(tickEvery))), n.tick)
}

// addSlot starts the replica of a range from what the disk holds.
func (n *node) addSlot(i int) *slot {
	w := n.w
	if n.disk.ranges[i] == nil {
		n.disk.ranges[i] = newRangeDisk(n.w.cfg.Bug)
	}
	cfg := w.p.replica
	cfg.Range, cfg.Self, cfg.MinInSync = w.ranges[i], n.id, w.p.settings.MinInSync
	d := n.disk.ranges[i]
	s := &slot{n: n, rng: i, id: w.ranges[i], disk: d, calls: map[uint64]func(replica.Answer){}}
	s.r = replica.New(cfg, d.durable())
	s.commit = d.commit
	n.slots[i] = s
	if d.promised > 0 && w.cfg.Bug != IgnoreExclusions {
		n.pairs.Exclude(s.id, d.promised, rhumb.NoNode)
	}
	for j, b := range w.nodes {
		if b != n && (n.connected[j] || n.suspected[j]) {
			s.r.Peer(n.mono(), b.id, n.connected[j], n.suspected[j])
		}
	}
	return s
}

// stop ends the process as a loss of power does: of what is not synced the disk keeps any number of the oldest writes.
func (n *node) stop() {
	keep := 0
	if len(n.disk.journal) > 0 {
		keep = n.w.rnd.IntN(len(n.disk.journal) + 1)
	}
	n.w.tracef(n.name(), "crash, keeps %d of %d unsynced writes", keep, len(n.disk.journal))
	n.disk.crash(keep)
	if n.w.cfg.Bug == ForgetLog {
		for i, d := range n.disk.ranges {
			if d != nil {
				n.disk.ranges[i] = newRangeDisk(n.w.cfg.Bug)
			}
		}
	}
	n.w.net.lose(n)
	n.down = true
	n.life++
	n.inbox, n.slots, n.dirty, n.pairs = nil, nil, nil, nil
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

func (n *node) registration() catalog.RegisterNode {
	return catalog.RegisterNode{
		Cluster: n.w.clusterID(), Node: n.id, Store: n.disk.store, Boot: n.disk.boot, Nonce: n.nonce,
		Region: "r1", Zone: "z", HasLocation: true, Location: rhumb.Point{Lat: float64(n.w.net.site[n.at]), Lon: float64(n.index)},
	}
}

// learn takes news from the metadata group, old or new.
func (n *node) learn(state *catalog.State) {
	if n.view != nil && state.Revision() <= n.view.Revision() {
		return
	}
	n.view = state
	n.setPeers()
	for i, id := range n.w.ranges {
		d, ok := state.Range(id)
		if !ok || n.slots[i] == nil && !d.IsReplica(n.id) {
			continue
		}
		s := n.slots[i]
		if s == nil {
			s = n.addSlot(i)
		}
		s.r.Describe(d)
		n.touch(s)
	}
	if self, ok := state.Node(n.id); ok && self.State == rhumb.NodeFenced && self.Boot == n.disk.boot {
		n.rebirth()
	}
}

func (n *node) setPeers() {
	peers := make([]lease.PeerInfo, 0, len(n.w.nodes))
	for p := range n.view.Nodes() {
		if p.ID != n.id {
			at := n.w.nodes[p.ID-1].at
			peers = append(peers, lease.PeerInfo{ID: p.ID, Boot: p.Boot, Timing: timing(2 * n.w.net.base(n.at, at))})
		}
	}
	n.pairs.SetPeers(n.mono(), peers)
}

// rebirth begins a new life in place: the node was fenced and is alive (ruling 11). Its replicas start again from the
// disk, whose writes it waits for, so that every primary role is given up before the new life speaks.
func (n *node) rebirth() {
	if len(n.disk.journal) > 0 {
		n.sync()
		n.later(tickEvery, func() {
			if self, ok := n.view.Node(n.id); ok && self.State == rhumb.NodeFenced && self.Boot == n.disk.boot {
				n.rebirth()
			}
		})
		return
	}
	n.w.tracef(n.name(), "fenced and alive: a new life in place")
	n.disk.boot++
	n.nonce = n.w.rnd.Uint64()
	n.life++
	n.pairs.Rebirth(n.identity())
	for _, b := range n.w.nodes {
		n.w.net.streams[n.w.net.pair(n.at, b.at)] = 0
	}
	clear(n.connected)
	n.dirty, n.passing, n.syncing = nil, false, false
	n.registered, n.streamed = 0, 0
	for i, s := range n.slots {
		if s != nil {
			d, _ := n.view.Range(s.id)
			n.addSlot(i).r.Describe(d)
			n.touch(n.slots[i])
		}
	}
	n.tick()
}

// tick is the node's regular turn.
func (n *node) tick() {
	w, now := n.w, n.mono()
	n.later(tickEvery, n.tick)
	if w.now-n.ceiled >= time.Second {
		n.ceiled = w.now
		w.judge(n.hlc.Refresh())
	}
	n.close()
	stalled := n.syncing && w.now-n.syncFrom > syncStallMax
	n.pairs.SetHealthy(now, !stalled, "the disk is stalled")
	for _, out := range n.pairs.Tick(now) {
		n.sendFrame(out)
	}
	n.suspect(now)
	n.register()
	if w.now-n.streamed >= streamRetry {
		n.streamed = w.now
		w.net.openStreams(n)
	}
	for _, s := range n.slots {
		if s == nil {
			continue
		}
		if s.r.NeedsTick() {
			s.r.Tick(now)
			n.touch(s)
		}
		n.activate(s)
		n.probe(s)
	}
}

// activate lets an elected replica serve once every grant that this node gave to others is over (rule E).
func (n *node) activate(s *slot) {
	e, ok := s.r.AwaitsActivation()
	if !ok || n.w.cfg.Bug != ActivateAtOnce && n.mono() < n.pairs.WaitUntil(s.id, e) {
		return
	}
	n.w.tracef(n.name(), "activate %s epoch %d", s.id, e)
	s.r.Activate(n.now())
	n.touch(s)
}

// suspect tells the replicas and the controller whom this node suspects.
func (n *node) suspect(now time.Duration) {
	suspects := n.pairs.Suspects(now)
	changed := false
	for j, b := range n.w.nodes {
		if is := slices.Contains(suspects, b.id); is != n.suspected[j] {
			n.suspected[j], changed = is, true
			n.w.tracef(n.name(), "suspects %s: %v", b.id, is)
			n.tellPeer(j)
		}
	}
	if changed || n.w.now-n.reported >= reportEvery {
		n.reported = n.w.now
		r := report{lives: make([]rhumb.BootSeq, len(n.w.nodes))}
		for _, id := range suspects {
			if rec, ok := n.view.Node(id); ok {
				r.lives[id-1] = rec.Boot
			}
		}
		n.w.net.send(n.at, n.w.meta.at, func() { n.w.meta.tell(n, r) })
	}
}

// tellPeer brings the replicas news of another node.
func (n *node) tellPeer(j int) {
	for _, s := range n.slots {
		if s != nil {
			s.r.Peer(n.mono(), n.w.nodes[j].id, n.connected[j], n.suspected[j])
			n.touch(s)
		}
	}
}

// register makes the node's life known, and repeats that until it sees the effect.
func (n *node) register() {
	if n.view != nil {
		if self, ok := n.view.Node(n.id); ok && self.Boot == n.disk.boot {
			return
		}
	}
	if n.registered != 0 && n.w.now-n.registered < registerRetry {
		return
	}
	n.registered = n.w.now
	n.w.meta.propose(n, n.registration())
}

// connect says that a stream to b stands from now on; an earlier one broke before.
func (n *node) connect(b *node, id uint64) {
	at := n.w.net.pair(n.at, b.at)
	if n.w.net.streams[at] == id {
		return
	}
	n.disconnect(b, n.w.net.streams[at])
	n.w.net.streams[at] = id
	n.connected[b.index] = true
	n.tellPeer(b.index)
}

// disconnect says that a stream to b broke.
func (n *node) disconnect(b *node, id uint64) {
	at := n.w.net.pair(n.at, b.at)
	if n.w.net.streams[at] != id {
		return
	}
	n.w.net.streams[at] = 0
	n.connected[b.index] = false
	n.tellPeer(b.index)
}

func (n *node) sendFrame(out lease.Outgoing) {
	to := n.w.nodes[out.To-1]
	from, frame := n.identity(), out.Frame
	if n.w.tracing() {
		n.w.tracef(n.name(), "frame to %s boot %d: %+v", out.To, from.Boot, frame)
	}
	n.w.net.send(n.at, to.at, func() {
		to.run(to.life, func() {
			to.passed(frame.Close)
			if w := to.w; w.cfg.Bug == TakeAnyFrame {
				frame.Closed.Base = 0
			}
			for _, reply := range to.pairs.Receive(to.mono(), from, &frame) {
				to.sendFrame(reply)
			}
		})
	})
}

// sendMessage sends over the stream to the peer; without one the message is lost.
func (n *node) sendMessage(m replica.Message) {
	w := n.w
	to := w.nodes[m.To-1]
	stream := w.net.streams[w.net.pair(n.at, to.at)]
	if stream == 0 {
		return
	}
	rng := w.number(m.Range)
	if w.p.vague && m.Kind == replica.Nack {
		w.blur(&m, rng)
	}
	if w.tracing() {
		w.tracef(n.name(), "send %s", describe(&m))
	}
	w.net.sendStream(n.at, to.at, func() {
		to.run(to.life, func() {
			if w.net.streams[w.net.pair(to.at, n.at)] != stream {
				return
			}
			s := to.slots[rng]
			if s == nil {
				return // the news of this replica is under way
			}
			w.judge(s.r.Step(m))
			to.touch(s)
		})
	})
}

// blur lowers the hint of a refusal: a hint may be lower than it need be, but not below what is settled.
func (w *world) blur(m *replica.Message, rng int) {
	settled := m.Commit
	if d := w.nodes[m.To-1].disk.ranges[rng]; d != nil {
		settled = max(settled, d.trim)
	}
	if m.HintEnd > settled {
		m.HintEnd -= rhumb.Seq(w.rnd.Int64N(int64(m.HintEnd-settled) + 1))
	}
}

// touch notes that a replica may have something ready; the pass comes a little later, so that events gather.
func (n *node) touch(s *slot) {
	if !s.dirty && s.r.HasReady() {
		s.dirty = true
		n.dirty = append(n.dirty, s)
	}
	if len(n.dirty) > 0 && !n.passing {
		n.passing = true
		n.later(time.Duration(n.w.rnd.Int64N(int64(n.w.p.pass))), n.pass)
	}
	n.observe(s)
}

// pass carries out what is ready.
func (n *node) pass() {
	n.passing = false
	life := n.life
	dirty := n.dirty
	n.dirty = nil
	for _, s := range dirty {
		s.dirty = false
		for s.r.HasReady() && n.life == life {
			rd := s.r.Ready()
			n.carryOut(s, &rd)
		}
		n.activate(s)
	}
}

// carryOut does what a replica wants done, in the order that package replica asks for.
func (n *node) carryOut(s *slot, rd *replica.Ready) {
	w := n.w
	if rd.Promised != 0 && w.cfg.Bug != IgnoreExclusions {
		n.pairs.Exclude(s.id, rd.Promised, rd.PromisedTo)
	}
	n.write(s, rd)
	n.observe(s)
	for _, m := range rd.Messages {
		n.sendMessage(m)
	}
	for _, a := range rd.Answers {
		if call := s.calls[a.Token]; call != nil {
			delete(s.calls, a.Token)
			call(a)
		}
	}
	for _, p := range rd.Meta {
		n.change(p)
	}
	for _, f := range rd.Fetch {
		n.fetch(s, f)
	}
}

// write applies the writes of a Ready and plans what follows when they are durable.
func (n *node) write(s *slot, rd *replica.Ready) {
	w := n.w
	if w.tracing() {
		w.traceReady(s, rd)
	}
	if rd.UndoAbove != nil {
		for i := int(*rd.UndoAbove); i < len(s.disk.log); i++ {
			w.judge(w.monitor.Undone(s.id, n.id, s.disk.log[i], s.disk.commit))
		}
		if w.cfg.Bug == KeepConflicts {
			rd.UndoAbove = nil
		}
	}
	for _, e := range rd.Append {
		w.judge(w.monitor.Appended(s.id, n.id, e))
		if w.follows() {
			w.judge(n.hlc.Forward(e.LastHLC()))
		}
	}
	wr, err := n.disk.apply(s.rng, rd)
	w.judge(err)
	pos, _ := rd.Last()
	promised, after, must := rd.Promised, rd.AfterSync, rd.MustSync
	wr.done = func() {
		if must {
			s.r.Persisted(pos, promised)
			n.touch(s)
		}
		for _, m := range after {
			n.sendMessage(m)
		}
	}
	switch {
	case w.cfg.Bug == AckBeforeSync && len(after) > 0:
		for _, m := range after {
			n.sendMessage(m)
		}
		after = nil
	case w.cfg.Bug == CountBeforeSync && must:
		s.r.Persisted(pos, promised)
		n.touch(s)
		must = false
	}
	n.disk.journal = append(n.disk.journal, wr)
	if must || len(after) > 0 {
		n.sync() // a commit or trim position alone rides along with the next
	}
}

// sync makes durable what the journal holds, unless a sync is under way.
func (n *node) sync() {
	if n.syncing || len(n.disk.journal) == 0 {
		return
	}
	w := n.w
	count := len(n.disk.journal)
	n.syncing, n.syncFrom = true, w.now
	wait := time.Duration(float64(w.p.syncDelay)*(0.5+0.5*w.rnd.ExpFloat64())) + n.slowBy
	wait += max(0, n.stallUntil-w.now)
	life := n.life
	w.after(wait, func() {
		if n.life != life {
			return
		}
		var done []write
		if w.cfg.Bug == LyingDisk {
			for _, wr := range n.disk.journal[:count] {
				done = append(done, write{done: wr.done})
			}
			for i := range n.disk.journal[:count] {
				n.disk.journal[i].done = func() {}
			}
			if len(n.disk.journal) > 40 {
				n.disk.settle(len(n.disk.journal) - 40)
			}
		} else {
			done = n.disk.settle(count)
		}
		n.run(life, func() {
			n.syncing = false
			for _, wr := range done {
				wr.done()
			}
			n.sync()
		})
	})
}

// change proposes to metadata what a replica wants, with the boot sequences as this node knows them.
func (n *node) change(p replica.MetaProposal) {
	var cmd catalog.Command
	switch p.Kind {
	case replica.AlterISR:
		alter := catalog.AlterISR{Range: p.Range, Epoch: p.Epoch, Version: p.Version}
		for _, m := range p.New {
			if rec, ok := n.view.Node(m); ok {
				alter.Members = append(alter.Members, catalog.Member{Node: m, Boot: rec.Boot})
			}
		}
		cmd = alter
	case replica.ElectMe:
		cmd = catalog.Elect{Range: p.Range, Version: p.Version, Node: n.id}
	case replica.Yield:
		cmd = catalog.Elect{Range: p.Range, Version: p.Version}
	}
	n.w.meta.propose(n, cmd)
}

// fetch reads older log entries for a replica; a disk takes its time.
func (n *node) fetch(s *slot, f replica.Fetch) {
	n.later(n.w.p.syncDelay/2+n.slowBy, func() {
		if n.slots[s.rng] == s {
			s.r.Fetched(f, s.disk.entries(f.From, f.Until, f.BytesMax))
			n.touch(s)
		}
	})
}

// observe tells the judges what became of a replica.
func (n *node) observe(s *slot) {
	w := n.w
	if s.r.State() == replica.Primary && s.primary != s.r.Epoch() {
		s.primary = s.r.Epoch()
		w.judge(w.monitor.Primary(s.id, s.primary, n.id))
	}
	for s.commit < s.disk.commit {
		s.commit++
		w.judge(w.monitor.Committed(s.id, n.id, s.disk.log[s.commit-1]))
	}
	n.observeClosed(s)
	if s.r.State() == replica.Quarantined && !w.quarantined[s] {
		w.quarantined[s] = true
		w.failf("%s quarantined %s: %s", n.id, s.id, s.r.Status().Quarantine)
	}
}

// now gives a timestamp of the node's hybrid clock.
func (n *node) now() rhumb.Timestamp {
	ts, err := n.hlc.Now()
	n.w.judge(err)
	return ts
}

// propose takes a batch from a client. answer is called once, unless the life ends before.
func (n *node) propose(rng int, b *rhumb.Batch, answer func(replica.Answer)) {
	s := n.slots[rng]
	if s == nil {
		answer(replica.Answer{Err: rhumb.E("sim.propose", rhumb.NotPrimary, "no replica here")})
		return
	}
	p := replica.Proposal{Token: s.token, Batch: b}
	s.token++
	s.calls[p.Token] = answer
	if seen, ok := s.disk.dedup[b.ID]; ok && n.w.cfg.Bug != NoDedup {
		p.Seen = &seen
	}
	p.Base = make([]replica.Base, len(b.Mutations))
	at := rhumb.Timestamp(1<<64 - 1)
	if n.w.cfg.Bug == StaleBase {
		at = s.disk.commitHLC
	}
	for i := range b.Mutations {
		m := &b.Mutations[i]
		if m.NeedsBase() {
			it := s.disk.get(check.StateKey{Table: m.Table, Name: string(m.Name)}, at)
			p.Base[i] = replica.Base{Version: it.Version, Value: it.Value}
		}
		if m.Kind == rhumb.Insert {
			n.names++
			p.Names = append(p.Names, rhumb.SequenceName(rhumb.MakeSequence(n.disk.boot, n.names)|uint64(n.id)<<56))
		}
	}
	s.r.Propose(n.now(), p)
	n.touch(s)
}

// leased reports whether the node may answer reads of the range by itself (rule L).
func (n *node) leased(s *slot) bool {
	now := n.mono()
	switch n.w.cfg.Bug {
	case ReadWithoutLease:
		return true
	case ReadLate:
		now -= 400 * time.Millisecond
	}
	return n.pairs.Holds(now, s.id, s.r.Epoch(), s.r.LeaseSet())
}

// probe lets the judges look at what a read would find now, whether or not a client asks.
func (n *node) probe(s *slot) {
	if _, commit, ok := s.r.Readable(); ok && n.leased(s) {
		n.w.judge(n.w.monitor.Serving(s.id, s.r.Epoch(), n.id, commit))
	}
}

// read answers a strong read of several keys, under the lease (rule L).
func (n *node) read(rng int, keys []check.StateKey) (items []check.Item, at rhumb.Timestamp, err error) {
	const op rhumb.Op = "sim.read"
	s := n.slots[rng]
	if s == nil || s.r.State() != replica.Primary {
		return nil, 0, rhumb.E(op, rhumb.NotPrimary, "not primary")
	}
	at, commit, ok := s.r.Readable()
	if !ok && n.w.cfg.Bug != ReadTooSoon {
		return nil, 0, rhumb.E(op, rhumb.Unavailable, "the epoch is not committed yet")
	}
	if !n.leased(s) {
		return nil, 0, rhumb.E(op, rhumb.Unavailable, "the lease has lapsed")
	}
	n.w.judge(n.w.monitor.Serving(s.id, s.r.Epoch(), n.id, commit))
	look := at
	if n.w.cfg.Bug == ReadUncommitted {
		look = 1<<64 - 1
	}
	for _, k := range keys {
		items = append(items, s.disk.get(k, look))
	}
	return items, at, nil
}
