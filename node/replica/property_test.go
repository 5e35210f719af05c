package replica

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "play only this seed and print what happens")
	seedsFlag = flag.Int("seeds", 3000, "number of seeds to play")
)

// TestProperties runs seeded schedules of three replicas, and one schedule in ten with a fourth
// that begins as a learner. Messages are lost, repeated and overtaken; nodes crash and lose
// unsynced writes; metadata elects and fences at random, and its records arrive late and out of
// order. Every step is followed by checks of I1 to I5, I7 and I8, and of I6: a read that was
// confirmed with metadata returns everything acknowledged before. Grants (I9) are tested in package
// lease.
//
// In half of the schedules the disk of one node forgets synced data: the end of the log, promises,
// or everything since an older image (rule P). In a third of all schedules the table defers syncs: then the other nodes lose no more than
// their processes, so that nothing that was acknowledged may be lost. At the end the network heals, and the range must
// serve again, with equal logs everywhere. Then all in-sync members but one are lost for good, and
// the range must serve once another node is back.
func TestProperties(t *testing.T) {
	first, n := uint64(1), uint64(*seedsFlag)
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	var sum stats
	for seed := first; seed < first+n; seed++ {
		if !playSeed(t, seed, *seedFlag != 0, &sum) {
			return
		}
	}
	t.Logf("%d seeds from %d: %+v", n, first, sum)
	if n > 100 && (sum.Undone == 0 || sum.Applied == 0 || sum.Unknown == 0 || sum.Joined == 0 || sum.Shrunk == 0 || sum.Activated == 0 ||
		sum.Damaged == 0 || sum.Adopted == 0 || sum.Alone == 0 || sum.Vouched == 0 || sum.Copied == 0 ||
		sum.Prepared == 0 || sum.HandedOver == 0 || sum.TakenOver == 0) {
		t.Errorf("the schedules do not reach everything: %+v", sum)
	}
}

// stats counts the situations that the schedules reached.
type stats struct{ Steps, Applied, Unknown, Refused, Failed, Undone, Activated, Joined, Shrunk, Crashes, Damaged, Adopted, Alone, Vouched, Copied, Prepared, HandedOver, TakenOver int }

func playSeed(t *testing.T, seed uint64, verbose bool, sum *stats) (ok bool) {
	w := newWorld(seed, sum)
	w.c.quiet = !verbose
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("seed %d, step %d (replay: go test -run TestProperties ./node/replica -args -seed=%d): %v", seed, w.step, seed, p)
			if verbose {
				t.Log(w.c.log.String())
				panic(p)
			}
			ok = false
		}
	}()
	for w.step = range 400 {
		w.move()
		w.check()
	}
	w.heal()
	w.loseAllButOne()
	if verbose {
		t.Log(w.c.log.String())
	}
	return true
}

// world is a cluster under a random schedule, with the knowledge of an observer of everything.
type world struct {
	c    *cluster
	rnd  *rand.Rand
	step int
	sum  *stats
	// rates of faults and elections, in thousandths of the steps
	rates struct{ fault, elect, handover int }

	requests map[uint64]*request // by token
	names    int
	acked    rhumb.Seq                    // the greatest position that a client was told of
	ackedAt  map[rhumb.Seq]entry.Position // what was committed where
	contents map[entryID]entry.Hash       // I2
	primary  map[rhumb.Epoch]rhumb.NodeID // I1
	commits  map[rhumb.NodeID]rhumb.Seq   // I5, per life
	gone     map[rhumb.RequestID]bool     // requests that certainly were not applied
	begun    map[rhumb.Epoch]bool         // epochs that a node has begun

	// damaged is the node whose disk forgets synced data, NoNode if all disks are honest; image is an
	// older state of that disk.
	damaged rhumb.NodeID
	image   testDisk
}

type entryID struct {
	epoch rhumb.Epoch
	seq   rhumb.Seq
}

type request struct {
	id             rhumb.RequestID
	at             rhumb.NodeID
	answered, lost bool
}

func newWorld(seed uint64, sum *stats) *world {
	rnd := rand.New(rand.NewPCG(seed, 7))
	ids, inSync := []rhumb.NodeID{1, 2, 3}, []rhumb.NodeID{1, 2, 3}
	if rnd.IntN(10) == 0 {
		ids = append(ids, 4)
	}
	cfg := Config{
		AppendBytesMax: 200 + rnd.IntN(400), EntryBytesMax: 200 + rnd.IntN(200), InflightBytesMax: 700 + rnd.IntN(1000),
		TailBytesMax: 1 + rnd.IntN(1000), JoinWithinBytes: 400 + rnd.IntN(1000), LogKeepBytes: int64(1200 + rnd.IntN(2)*(16<<10)), // sometimes so little that learners need a copy
		PrepareWait:     time.Duration(1 + 300_000_000*rnd.IntN(2)),
		VouchAfter:      time.Duration(1 + rnd.IntN(200_000_000)),
		ProgressTimeout: time.Duration(200+rnd.IntN(1500)) * time.Millisecond, HoldOffMin: 100 * time.Millisecond, HoldOffMax: time.Second,
	}
	if seed%3 == 0 {
		cfg.Deferred = 50 * time.Millisecond
	}
	w := &world{
		c: newCluster(cfg, ids, inSync, 1), rnd: rnd, sum: sum,
		requests: map[uint64]*request{}, ackedAt: map[rhumb.Seq]entry.Position{}, contents: map[entryID]entry.Hash{},
		primary: map[rhumb.Epoch]rhumb.NodeID{}, commits: map[rhumb.NodeID]rhumb.Seq{},
		gone: map[rhumb.RequestID]bool{}, begun: map[rhumb.Epoch]bool{},
	}
	w.c.onAnswer = w.answered
	w.rates.fault, w.rates.elect, w.rates.handover = rnd.IntN(12), rnd.IntN(12), 10*rnd.IntN(2)
	if rnd.IntN(2) == 0 {
		w.damaged = ids[rnd.IntN(len(ids))]
	}
	return w
}

// move makes one random step.
func (w *world) move() {
	w.sum.Steps++
	n := w.c.nodes[w.rnd.IntN(len(w.c.nodes))]
	if n.r == nil {
		if w.rnd.IntN(4) == 0 {
			w.c.logf("%d: start %s", w.step, n.id)
			n.start()
			w.commits[n.id] = 0
		}
		return
	}
	if n.id == w.damaged && w.rnd.IntN(25) == 0 {
		w.damage(n)
		return
	}
	switch x := w.rnd.IntN(1000); {
	case x < 120:
		w.propose()
	case x < 450:
		w.network()
	case x < 650:
		w.ready(n)
	case x < 800:
		if len(n.pending) > 0 {
			n.persist()
		}
	case x < 850:
		w.describe(n)
	case x < 910:
		w.activate(n)
	case x < 940:
		w.c.now += time.Duration(w.rnd.IntN(400)) * time.Millisecond
		n.r.Tick(w.c.now)
	case x < 960:
		w.decide()
	case x < 960+w.rates.fault:
		w.fault(n)
	case x < 965+w.rates.fault:
		w.suspect(n)
	case x < 965+w.rates.fault+w.rates.elect:
		w.elect()
	case x < 965+w.rates.fault+w.rates.elect+w.rates.handover:
		w.prepare()
	case x < 975+w.rates.fault+w.rates.elect+w.rates.handover:
		w.transfer(n, w.c.nodes[w.rnd.IntN(len(w.c.nodes))])
	default:
		w.network()
	}
}

func (w *world) ready(n *testNode) {
	if !n.r.HasReady() {
		return
	}
	end := len(n.seen.entries)
	if n.r.State() == Activating && len(n.r.out.Append) > 0 {
		w.sum.Adopted++
	}
	w.c.logf("%d:", w.step)
	was := n.r.handed.epoch
	n.ready()
	if n.r.handed.epoch > was {
		w.sum.HandedOver++
	}
	if len(n.seen.entries) < end {
		w.sum.Undone++
	}
}

// propose sends a proposal to a node that considers itself primary, if there is one.
func (w *world) propose() {
	var at *testNode
	for _, i := range w.rnd.Perm(len(w.c.nodes)) {
		if n := w.c.nodes[i]; n.r != nil && (at == nil || n.r.State() == Primary) {
			at = n
		}
	}
	if at == nil {
		return
	}
	w.names++
	b := &rhumb.Batch{Range: testRange, ID: rhumb.RequestID{Client: rhumb.UUID{9}, Seq: uint64(w.names)}}
	m := rhumb.Mutation{Kind: rhumb.Put, Table: 1, Name: []byte{'a' + byte(w.rnd.IntN(4))}, Value: rhumb.EncodeOpaque(nil, make([]byte, w.rnd.IntN(60)))}
	switch w.rnd.IntN(6) {
	case 0:
		m.Cond.Kind = rhumb.IfAbsent
	case 1:
		m.Cond.Kind = rhumb.IfPresent
	case 2:
		m.Kind, m.Name = rhumb.Patch, []byte{'p' + byte(w.rnd.IntN(2))}
		m.Value = rhumb.EncodeRecord(nil, rhumb.Record{{Name: "c", Value: rhumb.Int64Field(w.rnd.Int64N(100))}})
		m.Cond = rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{"c"}}
	case 3:
		m.Kind, m.Value = rhumb.Delete, nil
	}
	b.Mutations = []rhumb.Mutation{m}
	for tries := 1 + w.rnd.IntN(5)/4; tries > 0; tries-- { // sometimes the same request comes twice
		token := at.propose(b)
		w.requests[token] = &request{id: b.ID, at: at.id}
		w.c.logf("%d: propose %d at %s: %s %s", w.step, token, at.id, m.Kind, m.Name)
	}
}

func (w *world) answered(n *testNode, a Answer) {
	q := w.requests[a.Token]
	if q == nil || q.answered {
		panic(fmt.Sprintf("answer to %d comes twice or from nowhere", a.Token))
	}
	q.answered = true
	switch kind := rhumb.KindOf(a.Err); {
	case a.Err == nil:
		w.sum.Applied++
		if a.Outcome.Seq > 0 {
			w.tell(n, a.Outcome.Seq)
		}
	case kind == rhumb.Unknown:
		w.sum.Unknown++
	case kind == rhumb.ConditionFailed:
		w.sum.Failed++
		w.gone[q.id] = true
	case kind.NotApplied():
		w.sum.Refused++
		w.gone[q.id] = true
	default:
		panic(fmt.Sprintf("answer of kind %s: %v", kind, a.Err))
	}
}

// tell records that a client knows of everything up to seq in n's log.
func (w *world) tell(n *testNode, seq rhumb.Seq) {
	_, commit, _ := n.r.Readable()
	if seq > commit {
		panic(fmt.Sprintf("W(6): %s answers for %d, its commit is %d", n.id, seq, commit))
	}
	w.acked = max(w.acked, seq)
}

// network delivers, loses or repeats a message: mostly the oldest, sometimes any.
func (w *world) network() {
	if len(w.c.net) == 0 {
		return
	}
	i := 0
	if w.rnd.IntN(4) == 0 {
		i = w.rnd.IntN(len(w.c.net))
	}
	switch w.rnd.IntN(20) {
	case 0:
		w.c.net = slices.Delete(w.c.net, i, i+1)
	case 1:
		w.c.net = append(w.c.net, w.c.net[i])
	default:
		w.c.logf("%d: deliver %s", w.step, describeMessage(&w.c.net[i]))
		w.c.deliver(i)
	}
}

// describe passes a record to a node, sometimes an old one.
func (w *world) describe(n *testNode) {
	d := w.c.record
	if w.rnd.IntN(3) == 0 {
		d = w.c.history[w.rnd.IntN(len(w.c.history))]
	}
	w.c.logf("%d: describe %s version %d epoch %d primary %s in-sync %v", w.step, n.id, d.Version, d.Epoch, d.Primary, d.InSync)
	n.r.Describe(d)
}

func (w *world) activate(n *testNode) {
	if _, ok := n.r.AwaitsActivation(); !ok {
		return
	}
	w.c.clock++
	if n.r.prep.handed {
		w.sum.TakenOver++
	}
	if w.begun[n.r.Epoch()] {
		panic(fmt.Sprintf("epoch %d is begun twice, now by %s in life %d", n.r.Epoch(), n.id, n.life))
	}
	w.begun[n.r.Epoch()] = true
	n.r.Activate(w.c.clock)
	w.sum.Activated++
	w.c.logf("%d: %s activates epoch %d", w.step, n.id, n.r.Epoch())
}

func (w *world) decide() {
	if len(w.c.meta) == 0 {
		return
	}
	i, before := w.rnd.IntN(len(w.c.meta)), len(w.c.record.InSync)
	if w.rnd.IntN(5) == 0 {
		w.c.meta = slices.Delete(w.c.meta, i, i+1)
		return
	}
	m := w.c.meta[i]
	if w.c.decide(i) {
		w.c.logf("%d: metadata takes %s %v, vouched %v", w.step, m.Kind, m.New, m.Vouched)
		if m.Unhurried {
			w.sum.Vouched++
		}
		switch after := len(w.c.record.InSync); {
		case after > before:
			w.sum.Joined++
		case after < before:
			w.sum.Shrunk++
		}
	}
}

// elect lets the controller elect an in-sync node or remove a secondary from the set, with or
// without reason.
func (w *world) elect() {
	in := w.c.record.InSync
	n := in[w.rnd.IntN(len(in))]
	if w.rnd.IntN(3) == 0 {
		if n != w.c.record.Primary && len(in) > 2 {
			w.c.change(func(d *rhumb.Range) {
				d.InSync = slices.DeleteFunc(slices.Clone(in), func(m rhumb.NodeID) bool { return m == n })
			})
		}
		return
	}
	rest := slices.DeleteFunc(slices.Clone(in), func(m rhumb.NodeID) bool { return m != n && len(in) > 2 && w.rnd.IntN(4) == 0 })
	if len(rest) < 2 {
		rest = in
	}
	w.c.elect(n, rest)
	w.c.logf("%d: metadata elects %s epoch %d in-sync %v", w.step, n, w.c.record.Epoch, rest)
}

// prepare lets the controller prepare a handover to an in-sync node, or cancel one.
func (w *world) prepare() {
	if w.c.record.Prepared != nil {
		w.c.change(func(d *rhumb.Range) { d.Prepared = nil })
		w.c.logf("%d: metadata cancels the handover", w.step)
		return
	}
	if n := w.c.record.InSync[w.rnd.IntN(len(w.c.record.InSync))]; n != w.c.record.Primary {
		w.sum.Prepared++
		w.c.prepare(n)
		w.c.logf("%d: metadata prepares a handover to %s in epoch %d", w.step, n, w.c.record.Allocated)
		if w.rnd.IntN(2) == 0 {
			w.c.node(w.c.record.Primary).learn(w.c.record)
		}
	}
}

// learn passes a record to the node if it is up.
func (n *testNode) learn(d *rhumb.Range) {
	if n.r != nil {
		n.r.Describe(d)
	}
}

// damage crashes the node and makes its disk forget everything since the image, or the end of the
// log, with or without promises and commit position.
func (w *world) damage(n *testNode) {
	if len(w.image.entries) == 0 || w.rnd.IntN(4) == 0 {
		w.image = n.disk.clone()
		return
	}
	w.sum.Damaged++
	n.crash(0)
	d := &n.disk
	if w.rnd.IntN(3) == 0 {
		*d = w.image.clone()
	} else {
		d.cut(rhumb.Seq(w.rnd.IntN(len(d.entries) + 1)))
		if w.rnd.IntN(2) == 0 {
			d.known, d.promised, d.quarantine = 0, 1, ""
			for _, e := range d.entries {
				// A node learns the epochs of metadata before it promises anything (rule S).
				d.promised = max(d.promised, e.Epoch)
			}
		}
	}
	// A node learns the epochs of metadata before it promises anything (docs/replication.md#rule-relearn).
	d.promised = max(d.promised, w.c.record.Epoch)
	w.c.logf("%d: the disk of %s is cut to %d entries, promised %d, known %d", w.step, n.id, len(d.entries), d.promised, d.known)
	for _, q := range w.requests {
		q.lost = q.lost || q.at == n.id && !q.answered
	}
}

// cut forgets the entries above seq. It keeps the commit position as the known one.
func (d *testDisk) cut(seq rhumb.Seq) {
	d.entries = slices.Clone(d.entries[:seq])
	if d.commit > seq {
		d.known, d.commit = max(d.known, d.commit), seq
	}
	d.trim = min(d.trim, max(d.commit, 1)-1)
}

// fault crashes a node, or breaks the streams between it and another.
func (w *world) fault(n *testNode) {
	if w.rnd.IntN(2) == 0 {
		w.sum.Crashes++
		keep := w.rnd.IntN(len(n.pending) + 1)
		w.c.logf("%d: crash %s keeping %d of %d", w.step, n.id, keep, len(n.pending))
		if n.id == w.damaged {
			n.crash(keep)
		} else {
			n.kill(keep)
		}
		for _, q := range w.requests {
			q.lost = q.lost || q.at == n.id && !q.answered // the client saw its connection break
		}
		return
	}
	m := w.c.nodes[w.rnd.IntN(len(w.c.nodes))]
	if m.r == nil || m == n {
		return
	}
	w.c.net = slices.DeleteFunc(w.c.net, func(x Message) bool { return x.From == n.id && x.To == m.id || x.From == m.id && x.To == n.id })
	n.r.Peer(w.c.now, m.id, false, false)
	m.r.Peer(w.c.now, n.id, false, false)
	if w.rnd.IntN(3) > 0 {
		n.r.Peer(w.c.now, m.id, true, false)
		m.r.Peer(w.c.now, n.id, true, false)
	}
}

func (w *world) suspect(n *testNode) {
	m := w.c.nodes[w.rnd.IntN(len(w.c.nodes))]
	if m != n {
		n.r.Peer(w.c.now, m.id, n.r.links[m.id].connected, w.rnd.IntN(3) > 0)
	}
}

// check asserts the invariants.
func (w *world) check() {
	if len(w.c.record.InSync) < 2 {
		panic("I8: the in-sync set is below min_insync")
	}
	for _, n := range w.c.nodes {
		if n.r != nil {
			w.checkNode(n)
		}
	}
	for _, id := range w.c.record.InSync {
		if id != w.damaged {
			w.holdsAcked(w.c.node(id))
		}
	}
}

func (w *world) checkNode(n *testNode) {
	s := n.r.Status()
	if s.Quarantine != "" && n.id == w.damaged {
		return
	}
	if s.Quarantine != "" {
		panic(fmt.Sprintf("%s is quarantined: %s", n.id, s.Quarantine))
	}
	if s.Commit < w.commits[n.id] {
		panic(fmt.Sprintf("I5: commit of %s goes from %d to %d", n.id, w.commits[n.id], s.Commit))
	}
	w.commits[n.id] = s.Commit
	for _, e := range n.seen.entries[max(0, len(n.seen.entries)-6):] {
		w.checkEntry(e)
	}
	for k := max(1, int(n.seen.commit)-6); k <= int(n.seen.commit); k++ {
		pos := n.seen.entries[k-1].Position()
		if was, ok := w.ackedAt[pos.Seq]; ok && was != pos {
			panic(fmt.Sprintf("I5: %s has %s committed, elsewhere it was %s", n.id, pos, was))
		}
		w.ackedAt[pos.Seq] = pos
	}
	if s.State != Primary {
		return
	}
	if p, ok := w.primary[s.Epoch]; ok && p != n.id {
		panic(fmt.Sprintf("I1: epoch %d has primaries %s and %s", s.Epoch, p, n.id))
	}
	w.primary[s.Epoch] = n.id
	if _, commit, ok := n.r.Readable(); ok && s.Epoch == w.c.record.Epoch && commit < w.acked {
		panic(fmt.Sprintf("I6: a confirmed read at %s sees up to %d, acknowledged is %d", n.id, commit, w.acked))
	}
	if s.Epoch == w.c.record.Epoch {
		w.holdsAcked(n)
	}
}

func (w *world) checkEntry(e *entry.Entry) {
	id := entryID{e.Epoch, e.Seq}
	if h, ok := w.contents[id]; ok && h != e.Hash {
		panic(fmt.Sprintf("I2: two contents of %s", e.Position()))
	}
	w.contents[id] = e.Hash
}

// holdsAcked asserts I3 and I4: the node holds everything that a client was told.
func (w *world) holdsAcked(n *testNode) {
	d := &n.disk
	// Until the power fails, what the operating system has is as good as what is synced.
	if n.r != nil && (n.r.State() == Primary || w.c.cfg.Deferred != 0) {
		d = &n.seen
	}
	for k := w.acked; k > 0 && k+6 > w.acked; k-- {
		pos, ok := w.ackedAt[k]
		if ok && (len(d.entries) < int(k) || d.entries[k-1].Position() != pos) {
			panic(fmt.Sprintf("I3, I4: %s lacks acknowledged entry %s", n.id, pos))
		}
	}
}

// heal ends all faults, and asserts that the range serves again and that all logs become equal.
func (w *world) heal() {
	w.c.logf("heal")
	for _, n := range w.c.nodes {
		if n.r == nil {
			n.start()
			w.commits[n.id] = 0
		}
	}
	for _, n := range w.c.nodes {
		for _, m := range w.c.nodes {
			if m != n {
				n.r.Peer(w.c.now, m.id, true, false)
			}
		}
	}
	for range 60 {
		w.repair()
		for _, n := range w.c.nodes {
			n.r.Describe(w.c.record)
			if _, ok := n.r.AwaitsActivation(); ok {
				w.activate(n)
			}
			if n.r.NeedsTick() {
				n.r.Tick(w.c.now)
			}
		}
		w.c.now += 300 * time.Millisecond
		w.c.stabilize(w.c.nodes)
		for _, n := range w.c.nodes {
			if _, ok := n.r.NeedsCopy(); ok {
				w.transfer(n, w.c.node(w.c.record.Primary))
			}
		}
		for len(w.c.meta) > 0 {
			w.decide()
		}
		w.check()
	}
	p := w.c.node(w.c.record.Primary)
	whole := w.c.nodes
	if p.r.State() != Primary || len(w.c.record.InSync) != len(whole) {
		panic(fmt.Sprintf("after healing %s is %s and in sync are %v: %+v", p.id, p.r.State(), w.c.record.InSync, p.r.Status()))
	}
	last := p.r.Status().Last
	for _, n := range whole {
		if s := n.r.Status(); s.Last != last || s.Commit != last.Seq || n.r.NeedsTick() {
			panic(fmt.Sprintf("after healing %s ends at %s, commit %d; the primary at %s", n.id, s.Last, s.Commit, last))
		}
	}
	w.finish(p)
}

// transfer replaces the log of n by a copy of donor's, whether or not n asked for one: the conditions
// of a transfer must suffice at any time. The copy has entries that donor has not synced yet.
func (w *world) transfer(n, donor *testNode) {
	if n == donor || n.r == nil || donor.r == nil || donor.r.State() == Quarantined || !n.r.MayReplace() || w.c.record.IsQuarantined(n.id) {
		return
	}
	// As the host does: what was decided before is carried out.
	for n.r.HasReady() {
		n.ready()
	}
	set := donor.seen.clone()
	_, commit, _ := donor.r.Readable()
	set.commit = max(set.commit, min(commit, rhumb.Seq(len(set.entries))))
	if set.commit < n.r.Least() {
		return
	}
	w.c.logf("%d: %s takes a copy of %s, which ends at %d, committed %d, promise %d, and promised %d itself", w.step, n.id, donor.id, len(set.entries), set.commit, set.promised, n.r.Epoch())
	w.sum.Copied++
	set.promised, set.quarantine, set.known = max(set.promised, n.r.Epoch()), "", 0
	n.replace(set)
}

// repair does what an operator does for a replica that is quarantined and out of the in-sync set:
// it makes the replica start again without data.
func (w *world) repair() {
	for _, n := range w.c.nodes {
		if n.r.State() == Quarantined && w.c.record.IsQuarantined(n.id) && !w.c.record.IsInSync(n.id) {
			n.crash(0)
			n.disk = testDisk{promised: w.c.record.Epoch}
			n.start()
			w.commits[n.id] = 0
		}
	}
}

// loseAllButOne leaves only one in-sync member. Its recorded life suffices to elect it, and the
// range commits again as soon as a node that is not in sync joins.
func (w *world) loseAllButOne() {
	record := w.c.record
	s := w.c.node(record.InSync[w.rnd.IntN(len(record.InSync))])
	if record.LifeOf(s.id) != s.life {
		panic(fmt.Sprintf("after healing the record has life %d of %s, which is in life %d", record.LifeOf(s.id), s.id, s.life))
	}
	if len(record.InSync) < len(w.c.nodes) {
		return // a disk lost more than logs reach: nobody is left to join
	}
	w.sum.Alone++
	lost := w.c.nodes[int(s.id)%len(w.c.nodes)]
	for _, n := range w.c.nodes {
		if n != s {
			n.kill(0)
		}
	}
	inSync := []rhumb.NodeID{s.id, lost.id}
	slices.Sort(inSync)
	w.c.lost = lost.id
	w.c.elect(s.id, inSync)
	w.serve(s, lost, func() bool { return s.r.State() == Primary })
	w.holdsAcked(s)
	for _, n := range w.c.nodes {
		if n != s && n != lost {
			n.start()
			w.commits[n.id] = 0
		}
	}
	w.serve(s, lost, func() bool { return s.r.Status().Commit == s.r.Status().Last.Seq && !w.c.record.IsInSync(lost.id) })
	w.holdsAcked(s)
}

// serve lets time pass among all nodes but the lost one until done returns true.
func (w *world) serve(s, lost *testNode, done func() bool) {
	for range 200 {
		if done() {
			return
		}
		for _, n := range w.c.nodes {
			if n.r == nil {
				continue
			}
			n.r.Describe(w.c.record)
			if n != s {
				s.r.Peer(w.c.now, n.id, true, false)
			}
			n.r.Peer(w.c.now, lost.id, false, true)
			w.activate(n)
			n.r.Tick(w.c.now)
		}
		w.c.now += 300 * time.Millisecond
		w.c.stabilize(slices.DeleteFunc(slices.Clone(w.c.nodes), func(n *testNode) bool { return n.r == nil }))
		for len(w.c.meta) > 0 {
			w.decide()
		}
		w.check()
	}
	panic(fmt.Sprintf("with %s gone for good, in sync are %v: %+v", lost.id, w.c.record.InSync, s.r.Status()))
}

// finish asserts that every request was answered if its node kept its life, and applied at most
// once.
func (w *world) finish(p *testNode) {
	count := map[rhumb.RequestID]int{}
	for _, e := range p.seen.entries {
		for i := range e.Requests {
			if id := e.Requests[i].ID; !id.IsZero() {
				count[id]++
			}
		}
	}
	var twice []string
	for id, n := range count {
		if n > 1 {
			twice = append(twice, id.String())
		}
		if w.gone[id] {
			panic(fmt.Sprintf("request %s was refused for certain, and stands in the log", id))
		}
	}
	if len(twice) > 0 {
		panic("applied twice: " + strings.Join(twice, " "))
	}
	for token, q := range w.requests {
		if !q.answered && !q.lost {
			panic(fmt.Sprintf("proposal %d at %s was never answered", token, q.at))
		}
	}
}
