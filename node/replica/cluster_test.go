package replica

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// A cluster drives the replicas of one range as a host would: with storage that loses unsynced
// writes, a network that holds every message until the test delivers or drops it, and a metadata
// register. The transcripts and the property test share it.
type cluster struct {
	cfg      Config // without Self
	nodes    []*testNode
	net      []Message
	record   *rhumb.Range
	history  []*rhumb.Range // every version of the record
	meta     []MetaProposal // on their way to the register
	clock    rhumb.Timestamp
	now      time.Duration
	token    uint64
	log      strings.Builder // what happened, for transcripts
	quiet    bool
	onAnswer func(n *testNode, a Answer)
	lost     rhumb.NodeID // gone for good; metadata finds no heir while it counts as in sync
}

// testNode is one node: a replica, its storage, and its batches on the way to disk.
type testNode struct {
	c       *cluster
	id      rhumb.NodeID
	r       *Replica // nil while the node is down
	life    rhumb.BootSeq
	disk    testDisk // what survives a crash
	seen    testDisk // what reads see
	pending []testBatch
}

// testDisk is the content of storage. entries holds every entry that was ever kept; trim is the
// position up to which they can no longer be read back.
type testDisk struct {
	quarantine string
	known      rhumb.Seq // a commit position that outlived the end of the log
	promised   rhumb.Epoch
	commit     rhumb.Seq
	trim       rhumb.Seq
	entries    []*entry.Entry
}

// testBatch holds the writes of one Ready, and what happens once they are durable.
type testBatch struct {
	quarantine string
	promised   rhumb.Epoch
	undo       *rhumb.Seq
	add        []*entry.Entry
	commit     rhumb.Seq
	trim       rhumb.Seq
	mustSync   bool
	deferred   bool // reported when the operating system had it
	number     uint64
	afterSync  []Message
}

var testRange = rhumb.RangeID{Region: 1, Slot: 7}

func (d *testDisk) apply(b *testBatch) {
	d.quarantine = cmp.Or(d.quarantine, b.quarantine)
	if b.promised != 0 {
		d.promised = b.promised
	}
	if b.undo != nil {
		if *b.undo < d.commit {
			panic(fmt.Sprintf("storage: undo above %d, commit is %d", *b.undo, d.commit))
		}
		d.entries = slices.Clone(d.entries[:*b.undo])
	}
	for _, e := range b.add {
		if e.Seq != rhumb.Seq(len(d.entries))+1 {
			panic(fmt.Sprintf("storage: entry %s after %d", e.Position(), len(d.entries)))
		}
		d.entries = append(d.entries, e)
	}
	d.commit, d.trim = max(d.commit, b.commit), max(d.trim, b.trim)
	if d.commit > rhumb.Seq(len(d.entries)) || d.trim > 0 && d.trim >= d.commit {
		panic(fmt.Sprintf("storage: commit %d, trim %d, end %d", d.commit, d.trim, len(d.entries)))
	}
}

func (d *testDisk) clone() testDisk {
	c := *d
	c.entries = slices.Clone(d.entries)
	return c
}

func (d *testDisk) durable() Durable {
	out := Durable{Promised: d.promised, Commit: d.commit, Trim: d.trim, Known: d.known, Quarantine: d.quarantine}
	for i, e := range d.entries {
		if n := len(out.Lineage); n == 0 || out.Lineage[n-1].Epoch != e.Epoch {
			out.Lineage = append(out.Lineage, EpochStart{e.Epoch, e.Seq})
		}
		if e.Seq == d.commit {
			out.CommitHLC = e.LastHLC()
		}
		if e.Seq >= max(min(d.commit, rhumb.Seq(len(d.entries))), 1) {
			out.Tail = append(out.Tail, Mark{e.Position(), e.LastHLC(), e.Split(), e.Ends(), e.Take()})
		}
		if rhumb.Seq(i) >= d.trim {
			out.LogBytes += int64(entrySize(e))
		}
		out.Last, out.LastHLC = e.Position(), e.LastHLC()
	}
	return out
}

// base returns the newest value of a key.
func (d *testDisk) base(m *rhumb.Mutation) Base {
	for i := len(d.entries) - 1; i >= 0; i-- {
		e := d.entries[i]
		for j := len(e.Requests) - 1; j >= 0; j-- {
			for _, w := range e.Requests[j].Writes {
				if w.Table != m.Table || string(w.Name) != string(m.Name) {
					continue
				}
				if rhumb.IsTombstone(w.Value) {
					return Base{}
				}
				return Base{e.Version(&e.Requests[j]), w.Value}
			}
		}
	}
	return Base{}
}

func (d *testDisk) dedup(id rhumb.RequestID) *Dedup {
	if id.IsZero() {
		return nil
	}
	for _, e := range d.entries {
		for j := range e.Requests {
			if q := &e.Requests[j]; q.ID == id {
				return &Dedup{Seq: e.Seq, Version: e.Version(q), Applied: !q.Noop, Existed: q.Existed, Names: q.Names}
			}
		}
	}
	return nil
}

func newCluster(cfg Config, ids, inSync []rhumb.NodeID, primary rhumb.NodeID) *cluster {
	cfg.Range = testRange
	c := &cluster{cfg: cfg, clock: 100, now: time.Second}
	c.record = &rhumb.Range{
		ID: testRange, Epoch: 1, Allocated: 1, Version: 1, Primary: primary, Preferred: primary,
		InSync: slices.Clone(inSync), Replicas: slices.Clone(ids),
	}
	c.history = append(c.history, c.record)
	for _, id := range c.record.InSync {
		c.record.Lives = append(c.record.Lives, rhumb.MemberLife{Node: id, Life: 1})
	}
	for _, id := range ids {
		n := &testNode{c: c, id: id}
		c.nodes = append(c.nodes, n)
	}
	for _, n := range c.nodes {
		n.start()
	}
	return c
}

func (c *cluster) node(id rhumb.NodeID) *testNode {
	for _, n := range c.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

func (c *cluster) logf(format string, args ...any) {
	if !c.quiet {
		fmt.Fprintf(&c.log, format+"\n", args...)
	}
}

// start gives the node a replica from the content of its disk, and streams to and from every node
// that is up.
func (n *testNode) start() {
	cfg := n.c.cfg
	n.life++
	cfg.Self, cfg.Life = n.id, n.life
	// The registration of a life cancels a handover to the node.
	if h := n.c.record.Prepared; h != nil && h.Target == n.id {
		n.c.change(func(d *rhumb.Range) { d.Prepared = nil })
	}
	n.seen = n.disk.clone()
	n.r = New(cfg, n.disk.durable())
	for _, m := range n.c.nodes {
		if m != n && m.r != nil {
			n.r.Peer(n.c.now, m.id, true, false)
			m.r.Peer(n.c.now, n.id, false, false)
			m.r.Peer(n.c.now, n.id, true, false)
		}
	}
}

// replace puts a copy in the place of the node's log, durably and within its life. Messages in flight
// stay.
func (n *testNode) replace(d testDisk) {
	cfg := n.c.cfg
	cfg.Self, cfg.Life = n.id, n.life
	desc := n.r.desc
	n.disk, n.pending = d, nil
	n.seen = n.disk.clone()
	links := n.r.links
	n.r = New(cfg, n.disk.durable())
	for m, l := range links {
		n.r.Peer(n.c.now, m, l.connected, l.suspect)
	}
	if desc != nil {
		n.r.Describe(desc)
	}
}

// kill ends the process: it loses all batches but the first keep, and those that the operating system has.
func (n *testNode) kill(keep int) {
	for i := range n.pending {
		if n.pending[i].deferred {
			keep = max(keep, i+1)
		}
	}
	n.crash(keep)
}

// crash is a loss of power. It loses all unsynced batches but the first keep, and all messages from and to the node.
func (n *testNode) crash(keep int) {
	for i := range n.pending[:keep] {
		n.disk.apply(&n.pending[i])
	}
	n.r, n.pending = nil, nil
	for _, m := range n.c.nodes {
		if m.r != nil {
			m.r.Peer(n.c.now, n.id, false, false)
		}
	}
	n.c.net = slices.DeleteFunc(n.c.net, func(m Message) bool { return m.From == n.id || m.To == n.id })
}

// ready carries out one Ready.
func (n *testNode) ready() {
	rd := n.r.Ready()
	b := testBatch{
		quarantine: rd.Quarantine, promised: rd.Promised, undo: rd.UndoAbove, add: rd.Append, commit: rd.Commit, trim: rd.Trim,
		mustSync: rd.MustSync, number: rd.Batch, afterSync: rd.AfterSync,
	}
	if must := b.promised != 0 || b.undo != nil || len(b.add) > 0 || rd.Quarantine != ""; must != rd.MustSync || !must && len(rd.AfterSync) > 0 {
		panic("ready: MustSync is wrong")
	}
	n.c.logf("%s ready", n.id)
	n.c.describeReady(&rd)
	n.seen.apply(&b)
	if b.mustSync || b.commit != 0 || b.trim != 0 {
		n.pending = append(n.pending, b)
	}
	if rd.Deferred {
		// The operating system has it and every batch before; the disk follows with persist.
		b := &n.pending[len(n.pending)-1]
		n.c.net = append(n.c.net, b.afterSync...)
		b.deferred, b.mustSync, b.afterSync = true, false, nil
		n.r.Persisted(b.number)
	}
	n.c.net = append(n.c.net, rd.Messages...)
	n.c.meta = append(n.c.meta, rd.Meta...)
	for _, a := range rd.Answers {
		if n.c.onAnswer != nil {
			n.c.onAnswer(n, a)
		}
	}
	for _, f := range rd.Fetch {
		n.r.Fetched(f, n.seen.read(f))
	}
}

func (d *testDisk) read(f LogRead) []*entry.Entry {
	if f.From <= d.trim {
		return nil
	}
	var out []*entry.Entry
	bytes := 0
	for _, e := range d.entries[f.From-1 : f.Until] {
		bytes += entrySize(e)
		if len(out) > 0 && bytes > f.BytesMax {
			break
		}
		out = append(out, e)
	}
	return out
}

// persist makes the oldest batch durable.
func (n *testNode) persist() {
	b := n.pending[0]
	n.pending = n.pending[1:]
	n.disk.apply(&b)
	n.c.net = append(n.c.net, b.afterSync...)
	if !b.mustSync {
		return
	}
	n.r.Persisted(b.number)
}

// propose passes a batch to the node's replica.
func (n *testNode) propose(b *rhumb.Batch) uint64 { return n.proposeWith(b, false) }

// proposeWith is propose if forgotten is false. Otherwise storage may have forgotten the result of
// the batch's request.
func (n *testNode) proposeWith(b *rhumb.Batch, forgotten bool) uint64 {
	n.c.token++
	n.c.clock++
	p := Proposal{Token: n.c.token, Batch: b, Seen: n.seen.dedup(b.ID)}
	p.Expired = forgotten && p.Seen == nil
	for i := range b.Mutations {
		if p.Seen != nil || p.Expired {
			break // as the host does: nothing else is looked up
		}
		m := &b.Mutations[i]
		var base Base
		if m.NeedsBase() {
			base = n.seen.base(m)
		}
		p.Base = append(p.Base, base)
		if m.Kind == rhumb.Insert {
			p.Names = append(p.Names, rhumb.SequenceName(n.c.token))
		}
	}
	n.r.Propose(n.c.clock, p)
	return p.Token
}

// deliver removes message i from the network and passes it to its receiver if that is up.
func (c *cluster) deliver(i int) {
	m := c.net[i]
	c.net = slices.Delete(c.net, i, i+1)
	n := c.node(m.To)
	if n == nil || n.r == nil {
		return
	}
	if err := n.r.Step(m); err != nil {
		panic(err.Error())
	}
}

// decide lets the register apply proposal i: a compare-and-set on epoch and version.
func (c *cluster) decide(i int) (ok bool) {
	m := c.meta[i]
	c.meta = slices.Delete(c.meta, i, i+1)
	if m.Kind == Adopt {
		return c.adopt(m.Epoch, m.Lives[0])
	}
	switch {
	case m.Version != c.record.Version || m.Epoch != c.record.Epoch:
		return false
	case m.Kind == Yield:
		for i := range c.record.InSync { // the next after the primary
			if c.lost != rhumb.NoNode && slices.Contains(c.record.InSync, c.lost) {
				return false // nobody else can take over
			}
			if n := c.record.InSync[i]; n > c.record.Primary || i == 0 && slices.Max(c.record.InSync) == c.record.Primary {
				c.elect(n, c.record.InSync)
				return true
			}
		}
		return false
	case m.Kind == ElectMe:
		c.elect(c.record.Primary, c.record.InSync)
		return true
	case m.Kind == ElectOther && !c.record.IsInSync(m.Node):
		return false
	case m.Kind == ElectOther:
		c.elect(m.Node, c.record.InSync)
		return true
	case m.Kind == Quarantine:
		c.quarantine(m.Node)
		return true
	case m.Kind == Readmit:
		c.change(func(d *rhumb.Range) {
			d.Quarantined = slices.DeleteFunc(d.Quarantined, func(n rhumb.NodeID) bool { return n == m.Node })
		})
		return true
	case len(m.New) < c.cfg.withDefaults().MinInSync || !slices.Contains(m.New, c.record.Primary):
		return false
	}
	c.change(func(d *rhumb.Range) {
		d.InSync, d.Lives = slices.Clone(m.New), nil
		for i, n := range m.New {
			if m.Vouched[i] && m.Lives[i] > 0 {
				d.Lives = append(d.Lives, rhumb.MemberLife{Node: n, Life: m.Lives[i]})
			}
		}
	})
	return true
}

// prepare reserves an epoch for a handover to n.
func (c *cluster) prepare(n rhumb.NodeID) {
	c.change(func(d *rhumb.Range) {
		d.Allocated++
		d.Prepared = &rhumb.Handover{Epoch: d.Allocated, Target: n}
	})
}

// adopt records that the target of a prepared handover has begun the epoch. Metadata knows every life that has
// started.
func (c *cluster) adopt(e rhumb.Epoch, life rhumb.BootSeq) bool {
	if h := c.record.Prepared; h == nil || h.Epoch != e || c.node(h.Target).life != life {
		return false
	}
	c.change(func(d *rhumb.Range) { d.Epoch, d.Primary, d.Prepared = e, d.Prepared.Target, nil })
	return true
}

// quarantine records that a replica is damaged: it leaves the in-sync set if enough others remain,
// and another one is elected.
func (c *cluster) quarantine(n rhumb.NodeID) {
	c.change(func(d *rhumb.Range) {
		d.Quarantined = append(d.Quarantined, n)
		slices.Sort(d.Quarantined)
		if len(d.InSync) > c.cfg.withDefaults().MinInSync {
			d.InSync = slices.DeleteFunc(d.InSync, func(m rhumb.NodeID) bool { return m == n })
		}
		if heir := slices.IndexFunc(d.InSync, func(m rhumb.NodeID) bool { return !d.IsQuarantined(m) }); d.Primary == n && heir >= 0 {
			d.Allocated++
			d.Epoch, d.Primary, d.Prepared = d.Allocated, d.InSync[heir], nil
		}
	})
}

// elect makes n the primary of a new epoch.
func (c *cluster) elect(n rhumb.NodeID, inSync []rhumb.NodeID) {
	c.change(func(d *rhumb.Range) {
		d.Allocated++
		d.Epoch, d.Primary, d.InSync, d.Prepared = d.Allocated, n, slices.Clone(inSync), nil
	})
}

func (c *cluster) change(f func(*rhumb.Range)) {
	d := c.record.Clone()
	d.Version++
	f(d)
	d.Lives = slices.DeleteFunc(d.Lives, func(m rhumb.MemberLife) bool { return !d.IsInSync(m.Node) || d.IsQuarantined(m.Node) })
	if h := d.Prepared; h != nil && (!d.IsInSync(h.Target) || d.IsQuarantined(h.Target) || d.Primary == h.Target) {
		d.Prepared = nil
	}
	c.record = d
	c.history = append(c.history, d)
}

func (c *cluster) describeReady(rd *Ready) {
	if c.quiet {
		return
	}
	if rd.Promised != 0 {
		c.logf("  promise epoch %d to %s", rd.Promised, rd.PromisedTo)
	}
	if rd.Quarantine != "" {
		c.logf("  quarantine: %s", rd.Quarantine)
	}
	if rd.UndoAbove != nil {
		c.logf("  undo above %d", *rd.UndoAbove)
	}
	for _, e := range rd.Append {
		c.logf("  append %s", describeEntry(e))
	}
	if rd.Commit != 0 {
		c.logf("  commit %d", rd.Commit)
	}
	if rd.Trim != 0 {
		c.logf("  trim %d", rd.Trim)
	}
	for _, m := range rd.Messages {
		c.logf("  send %s", describeMessage(&m))
	}
	for _, m := range rd.AfterSync {
		c.logf("  after sync %s", describeMessage(&m))
	}
	for _, a := range rd.Answers {
		c.logf("  answer %s", describeAnswer(&a))
	}
	for _, m := range rd.Meta {
		switch m.Kind {
		case ElectOther, Quarantine, Readmit:
			c.logf("  meta %s epoch %d version %d %s", m.Kind, m.Epoch, m.Version, m.Node)
		default:
			c.logf("  meta %s epoch %d version %d %v", m.Kind, m.Epoch, m.Version, m.New)
		}
	}
	for _, f := range rd.Fetch {
		c.logf("  fetch %d to %d for %s", f.From, f.Until, f.To)
	}
}

func describeEntry(e *entry.Entry) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d:%d", e.Epoch, e.Seq)
	if len(e.Requests) == 0 {
		b.WriteString(" epoch-start")
	}
	for _, q := range e.Requests {
		b.WriteString(" [")
		if q.Noop {
			b.WriteString("noop")
		}
		for i, w := range q.Writes {
			if i > 0 {
				b.WriteString(" ")
			}
			fmt.Fprintf(&b, "%s=%s", rhumb.NameString(w.Name), describeValue(w.Value))
		}
		b.WriteString("]")
	}
	return b.String()
}

func describeValue(v []byte) string {
	if rhumb.IsTombstone(v) {
		return "deleted"
	}
	if p, ok := rhumb.DecodeOpaque(v); ok {
		return string(p)
	}
	rec, err := rhumb.DecodeRecord(v)
	if err != nil {
		return err.Error()
	}
	var parts []string
	for _, f := range rec {
		parts = append(parts, f.Name+":"+f.Value.String())
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func describeMessage(m *Message) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s->%s %s epoch %d", m.From, m.To, m.Kind, m.Epoch)
	switch m.Kind {
	case Append:
		fmt.Fprintf(&b, " prev %d:%d", m.Prev.Epoch, m.Prev.Seq)
		if n := len(m.Entries); n > 0 {
			fmt.Fprintf(&b, " entries %d-%d", m.Entries[0].Seq, m.Entries[n-1].Seq)
		}
		fmt.Fprintf(&b, " commit %d", m.Commit)
		if m.Trim > 0 {
			fmt.Fprintf(&b, " trim %d", m.Trim)
		}
	case Ack:
		fmt.Fprintf(&b, " match %d commit %d", m.Match, m.Commit)
	case Nack:
		switch {
		case m.Quarantined:
			b.WriteString(" quarantined")
		case m.Contradicts:
			fmt.Fprintf(&b, " contradicts at %d, commit %d", m.Reject, m.Commit)
		case m.Promised > m.Epoch:
			fmt.Fprintf(&b, " promised %d", m.Promised)
		default:
			fmt.Fprintf(&b, " reject %d, has %d:%d", m.Reject, m.HintEpoch, m.HintEnd)
		}
	case LogTrimmed:
		fmt.Fprintf(&b, " up to %d", m.Trim)
	case Copying:
		fmt.Fprintf(&b, " up to %d", m.Match)
	case Promise:
		fmt.Fprintf(&b, " log ends at %d:%d commit %d", m.Prev.Epoch, m.Prev.Seq, m.Commit)
	case Fetch:
		fmt.Fprintf(&b, " after %d:%d", m.Prev.Epoch, m.Prev.Seq)
	case Handover:
		fmt.Fprintf(&b, " after %d in life %d, in sync %v, version %d, prev %d:%d", m.Ends, m.TargetLife, m.InSync, m.Version, m.Prev.Epoch, m.Prev.Seq)
		if n := len(m.Entries); n > 0 {
			fmt.Fprintf(&b, " entries %d-%d", m.Entries[0].Seq, m.Entries[n-1].Seq)
		}
	case Suffix:
		switch n := len(m.Entries); {
		case m.Trimmed:
			b.WriteString(" trimmed")
		case n == 0:
			fmt.Fprintf(&b, " not after %d, has %d:%d", m.Reject, m.HintEpoch, m.HintEnd)
		default:
			fmt.Fprintf(&b, " entries %d-%d", m.Entries[0].Seq, m.Entries[n-1].Seq)
		}
	}
	return b.String()
}

func describeAnswer(a *Answer) string {
	if a.Err != nil {
		return fmt.Sprintf("%d: %v", a.Token, a.Err)
	}
	if !a.Outcome.Applied {
		return fmt.Sprintf("%d: no-op", a.Token)
	}
	s := fmt.Sprintf("%d: applied at %d, version %s", a.Token, a.Outcome.Seq, a.Outcome.Version)
	if slices.Contains(a.Outcome.Existed, true) {
		s += ", existed"
	}
	for _, n := range a.Outcome.Names {
		s += " " + rhumb.NameString(n)
	}
	return s
}
