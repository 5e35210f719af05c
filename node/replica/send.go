package replica

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// tail holds the newest entries of a primary's log in memory, to be sent. Slices of it are handed out, so its elements
// are never overwritten: it grows at the end and is cut at the front.
type tail struct {
	first   rhumb.Seq
	entries []*entry.Entry
	sizes   []int
	bytes   int // of entries
	dropped int // bytes cut since the arrays were made; they keep what was cut alive
}

// droppedMax bounds the bytes of entries that were cut and are still kept alive by the arrays of an idle tail.
const droppedMax = 256 << 10

func (t *tail) append(e *entry.Entry, size int) {
	if len(t.entries) == cap(t.entries) {
		grown := make([]*entry.Entry, len(t.entries), max(16, 2*len(t.entries)))
		copy(grown, t.entries)
		t.entries, t.dropped = grown, 0
	}
	t.entries = append(t.entries, e)
	t.sizes = append(t.sizes, size)
	t.bytes += size
}

// cut drops n entries at the front.
func (t *tail) cut(n int) {
	for _, size := range t.sizes[:n] {
		t.bytes -= size
		t.dropped += size
	}
	t.first += rhumb.Seq(n)
	t.entries = t.entries[n:]
	t.sizes = t.sizes[:copy(t.sizes, t.sizes[n:])]
	if len(t.entries) == 0 && t.dropped > droppedMax {
		t.entries, t.dropped = nil, 0
	}
}

// from gives entries that begin at seq, as many as fit in bytesMax, at least one.
func (t *tail) from(seq rhumb.Seq, bytesMax int) (entries []*entry.Entry, bytes int) {
	i := int(seq - t.first)
	j := i
	for j < len(t.entries) && (j == i || bytes+t.sizes[j] <= bytesMax) {
		bytes += t.sizes[j]
		j++
	}
	return t.entries[i:j:j], bytes
}

// cutTail drops entries that every peer has, and committed ones beyond TailBytesMax.
func (r *Replica) cutTail() {
	needed := r.commit
	for _, p := range r.peers {
		if p.sendable() {
			needed = min(needed, p.match)
		}
	}
	n, bytes := 0, r.tail.bytes
	for n < len(r.tail.entries) {
		seq := r.tail.first + rhumb.Seq(n)
		if seq > r.commit || seq > needed && bytes <= r.cfg.TailBytesMax {
			break
		}
		bytes -= r.tail.sizes[n]
		n++
	}
	if n > 0 {
		r.tail.cut(n)
	}
}

// Held returns the bytes of entries that a primary keeps in memory: uncommitted ones, and committed ones for peers that
// lag.
func (r *Replica) Held() (uncommitted, tail int) {
	uncommitted = r.orders.uncommitted
	return uncommitted, max(r.tail.bytes-uncommitted, 0)
}

// ShrinkTail drops committed entries that are kept in memory for peers that lag, down to bytesMax. They are read back from
// storage by Ready.Fetch.
func (r *Replica) ShrinkTail(bytesMax int) {
	kept := r.cfg.TailBytesMax
	r.cfg.TailBytesMax = bytesMax + r.orders.uncommitted // cutTail counts what is not committed, too
	r.cutTail()
	r.cfg.TailBytesMax = kept
}

// KeepLog bounds the log kept for replicas that are behind, in place of Config.LogKeepBytes.
func (r *Replica) KeepLog(bytes int64) {
	r.cfg.LogKeepBytes = bytes
	r.dirty = true
}

// sendAll sends to every peer what may be sent.
func (r *Replica) sendAll() {
	for _, p := range r.peers {
		if p.sendable() && !p.fetching && !p.probing {
			r.sendTo(p)
		}
	}
}

// sendTo sends to one peer until its window is full or it has been sent everything.
func (r *Replica) sendTo(p *progress) {
	last := r.log.last().Seq
	for p.next <= last {
		if p.inflight.bytes >= r.cfg.InflightBytesMax {
			return
		}
		if p.next < r.tail.first {
			r.fetch(p)
			return
		}
		entries, bytes := r.tail.from(p.next, r.cfg.AppendBytesMax)
		r.sendAppend(p, entries, bytes)
		if p.probing {
			return
		}
	}
	if p.flow == flowProbe || p.tell {
		r.sendAppend(p, nil, 0)
	}
}

// fetch asks storage for what is not in memory. When the log is trimmed away there, the peer is lost.
func (r *Replica) fetch(p *progress) {
	if p.next <= r.log.trim {
		p.flow = flowLost
		return
	}
	p.fetching = true
	r.out.Fetch = append(r.out.Fetch, LogRead{
		To: p.node, Epoch: r.promised, From: p.next, Until: r.tail.first - 1, BytesMax: r.cfg.AppendBytesMax,
	})
}

// Fetched answers Ready.Fetch. No entries say that the log was trimmed away there.
func (r *Replica) Fetched(f LogRead, entries []*entry.Entry) {
	if r.suffixRead == f.Epoch {
		r.suffixRead = 0
	}
	if r.role == following {
		r.sendSuffix(f, entries)
		return
	}
	p := r.peer(f.To)
	if r.role != primary || f.Epoch != r.promised || p == nil || !p.fetching {
		return
	}
	p.fetching = false
	r.dirty = true
	if !p.sendable() || p.next != f.From {
		return
	}
	if len(entries) == 0 {
		p.flow = flowLost
		return
	}
	bytes := 0
	for _, e := range entries {
		bytes += entrySize(e)
	}
	r.sendAppend(p, entries, bytes)
}

// sendAppend sends entries that begin at p.next, or none.
func (r *Replica) sendAppend(p *progress, entries []*entry.Entry, bytes int) {
	m := Message{Kind: Append, To: p.node, Epoch: r.promised, Entries: entries, Trim: r.log.trim}
	if mark, ok := r.log.at(p.next - 1); ok {
		m.Prev = mark.Position
	} else if len(entries) > 0 {
		m.Prev = entry.Position{Epoch: r.log.epochAt(p.next - 1), Seq: p.next - 1, Hash: entries[0].Prev}
	} else {
		return
	}
	if r.out.Messages == nil {
		r.out.Messages = make([]Message, 0, len(r.peers))
	}
	r.send(m)
	p.tell, p.toldCommit = false, r.commit
	if p.flow == flowProbe {
		p.probing = true
		return
	}
	if len(entries) > 0 {
		p.next = entries[len(entries)-1].Seq + 1
		p.inflight.add(p.next-1, bytes)
	}
}

// tickPeer repeats what a peer has not answered for Retransmit, and tells it the commit position when that has rested for a
// tick: under load the next entry says it.
func (r *Replica) tickPeer(p *progress) {
	if !p.sendable() || p.fetching {
		return
	}
	switch {
	case p.unacked():
		if p.due(r.now, r.retransmit(p)) {
			// A probe is repeated where it was: before the first answer match says nothing of where the logs part.
			if p.flow == flowReplicate {
				p.next = p.match + 1
			}
			p.probe(p.next)
			r.dirty = true
		}
	case p.untold(r.commit):
		p.tell = r.ticked == r.commit
		r.dirty = r.dirty || p.tell
	case p.commit < r.commit:
		if p.due(r.now, r.cfg.Retransmit) {
			p.tell = true
			r.dirty = true
		}
	default:
		p.waiting = false
	}
}

// stepAck takes an acknowledgement (rule C).
func (r *Replica) stepAck(m *Message) error {
	const op rhumb.Op = "replica.Step"
	p := r.peer(m.From)
	if r.role != primary || m.Epoch != r.promised || p == nil || !r.meet(p, m.Life) {
		return nil
	}
	if m.Match > r.log.last().Seq {
		return rhumb.Ef(op, rhumb.Corrupt, "%s acknowledges %d of epoch %d, the log ends at %s", m.From, m.Match, m.Epoch, r.log.last().Position)
	}
	p.commit = max(p.commit, min(m.Commit, m.Match))
	if m.Match > r.commit {
		p.refuses = RefusedNot // it takes entries again that nobody has had to take
	}
	p.acked(m.Match)
	r.advanceCommit()
	// There is room to send, or a learner may be near enough to join.
	r.dirty = r.dirty || p.next <= r.log.last().Seq || !p.counts() || r.change.unsent
	return nil
}

// stepNack takes a refusal: a later epoch, a missing place, or quarantine.
func (r *Replica) stepNack(m *Message) {
	if r.role == quarantined {
		return
	}
	if m.Promised > r.promised {
		r.promise(m.Promised, rhumb.NoNode)
		return
	}
	p := r.peer(m.From)
	if r.role != primary || m.Epoch != r.promised || p == nil || !r.meet(p, m.Life) {
		return
	}
	if m.Refused != RefusedNot {
		r.refused(p, m.Refused)
		return
	}
	r.dirty = true
	if m.Quarantined {
		p.flow = flowQuarantined
		return
	}
	if m.Contradicts {
		r.quarantine(fmt.Sprintf("%s has other entries committed up to %d than this log, which lost them (%s was refused at %d)",
			m.From, m.Commit, r.log.last().Position, m.Reject))
		return
	}
	if m.HintEnd < p.acknowledged && m.Reject > m.HintEnd {
		p.lost = p.acknowledged
	}
	if p.flow == flowProbe && (!p.probing || m.Reject != p.next-1) || m.Reject < p.match || m.Reject == 0 {
		return // about an earlier Append
	}
	next := min(r.agreeUpTo(m), m.Reject-1) + 1
	if p.counts() {
		next = max(next, p.match+1)
	} else {
		p.match = min(p.match, next-1)
	}
	if p.flow == flowProbe && next == p.next {
		return // it refuses what it acknowledged; Tick will ask again, not this loop
	}
	p.probe(next)
	if next <= r.log.trim {
		p.flow = flowLost
	}
}

// meet takes note of the life in which a peer speaks, and reports false for a message of an earlier one. What the peer
// acknowledged before, its disk may have lost: a new life holds only what it acknowledges itself (ruling 17).
func (r *Replica) meet(p *progress, life rhumb.BootSeq) bool {
	switch {
	case life < p.life:
		return false
	case p.life == 0:
		p.life = life
	case life > p.life:
		p.forget()
		p.life = life
		p.probe(p.next)
	}
	r.cameBack(p.node, life)
	return true
}

// agreeUpTo gives how far this log and that of the sender of a Nack may agree.
func (r *Replica) agreeUpTo(m *Message) rhumb.Seq {
	_, end := r.log.endOf(m.HintEpoch)
	return max(min(m.HintEnd, end), m.Commit)
}

// advanceCommit is rule C with slack = 0: a position is committed when every member of the in-sync set and of the
// pending one has it durably, and when it is not below the epoch-start entry.
func (r *Replica) advanceCommit() {
	if r.role != primary || len(r.inSync) < r.cfg.MinInSync {
		return
	}
	k := r.durable
	for _, p := range r.peers {
		if p.counts() {
			k = min(k, p.match)
		}
	}
	if k < r.start || k <= r.commit {
		return
	}
	for seq := max(r.commit+1, r.tail.first); seq <= k; seq++ {
		r.orders.uncommitted -= r.tail.sizes[seq-r.tail.first]
	}
	r.setCommit(k)
	r.release()
	r.cutTail()
}

// trimLog moves the trim position: everyone who holds a copy has what goes, or LogKeepBytes is passed. It moves in
// steps, so that storage has few deletions to remember.
func (r *Replica) trimLog() {
	if r.commit < r.start {
		return
	}
	have := r.commit - 1
	for _, p := range r.peers {
		have = min(have, p.match)
	}
	bytes := &r.log.bytes
	to := bytes.point(have)
	if keep := bytes.after(r.cfg.LogKeepBytes); keep.seq > to.seq {
		to = bytes.point(min(keep.seq, r.commit-1))
	}
	r.trimTo(to, r.cfg.LogKeepBytes)
}

// trimTo moves the trim position to a point at or below the commit position, if that is a step of some size beside what is kept.
func (r *Replica) trimTo(to bytePoint, keep int64) bool {
	if to.seq <= r.log.trim || to.seq >= r.commit || to.bytes-r.log.bytes.point(r.log.trim).bytes < min(1<<20, keep/16) {
		return false
	}
	r.setTrim(to.seq)
	return true
}

// TrimOwn lets a replica that is not primary drop committed log beyond so many bytes, whatever its primary keeps, and reports
// whether it did. Nothing that is committed is lost by it: should this replica become primary, peers that need what is gone learn
// that their log is trimmed, as from a primary that kept no more.
func (r *Replica) TrimOwn(keep int64) bool {
	if r.role != following || r.commit == 0 {
		return false
	}
	bytes := &r.log.bytes
	return r.trimTo(bytes.point(min(bytes.after(keep).seq, r.commit-1)), keep)
}
