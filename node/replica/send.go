package replica

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// tail holds the newest entries of a primary's log in memory, to be sent. Slices of it are handed
// out to messages, so its elements are never overwritten: it grows at the end and is cut at the
// front.
type tail struct {
	first   rhumb.Seq
	entries []*entry.Entry
	sizes   []int
	bytes   int // total size of entries
	dropped int // bytes cut since entries was allocated, which its array keeps alive
}

// droppedMax bounds the bytes of cut entries that the array of an idle tail keeps alive.
const droppedMax = 256 << 10

// append adds an entry.
func (t *tail) append(e *entry.Entry, size int) {
	// Grown by hand, to know when a new array replaces the old one and frees the entries that were
	// cut.
	if len(t.entries) == cap(t.entries) {
		grown := make([]*entry.Entry, len(t.entries), max(16, 2*len(t.entries)))
		copy(grown, t.entries)
		t.entries, t.dropped = grown, 0
	}
	t.entries = append(t.entries, e)
	t.sizes = append(t.sizes, size)
	t.bytes += size
}

// cutFront drops the first n entries. It only moves the start of the slice, since the elements may
// have been handed out.
func (t *tail) cutFront(n int) {
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

// entriesFrom returns entries that begin at seq, as many as fit in bytesMax but at least one. The
// capped capacity keeps a caller's append from writing into the tail.
func (t *tail) entriesFrom(seq rhumb.Seq, bytesMax int) (entries []*entry.Entry, bytes int) {
	i := int(seq - t.first)
	j := i
	for j < len(t.entries) && (j == i || bytes+t.sizes[j] <= bytesMax) {
		bytes += t.sizes[j]
		j++
	}
	return t.entries[i:j:j], bytes
}

// cutTail drops entries that every peer has, and committed ones beyond TailBytesMax. Uncommitted
// entries stay whatever their size: UncommittedBytesMax bounds them.
func (r *Replica) cutTail() {
	needed := r.commit
	for _, p := range r.peers {
		// A peer that cannot be reached reads from storage when it returns.
		if p.canSend() {
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
		r.tail.cutFront(n)
	}
}

// Held returns the bytes of entries that a primary keeps in memory: uncommitted ones, and committed
// ones for peers that lag.
func (r *Replica) Held() (uncommitted, tail int) {
	uncommitted = r.orders.uncommitted
	return uncommitted, max(r.tail.bytes-uncommitted, 0)
}

// ShrinkTail drops committed entries that are kept in memory for peers that lag, down to bytesMax.
// They are read back from storage by Ready.Fetch if a peer needs them.
func (r *Replica) ShrinkTail(bytesMax int) {
	// cutTail compares with all bytes of the tail, uncommitted ones included.
	kept := r.cfg.TailBytesMax
	r.cfg.TailBytesMax = bytesMax + r.orders.uncommitted
	r.cutTail()
	r.cfg.TailBytesMax = kept
}

// KeepLog bounds the log kept for replicas that lag; it overrides Config.LogKeepBytes.
func (r *Replica) KeepLog(bytes int64) {
	r.cfg.LogKeepBytes = bytes
	r.dirty = true
}

// sendAll sends each peer what may be sent to it.
func (r *Replica) sendAll() {
	for _, p := range r.peers {
		// A peer with a probe or a read in flight gets nothing else until that is answered.
		if p.canSend() && !p.fetching && !p.probing {
			r.sendTo(p)
		}
	}
}

// sendTo sends to one peer until its window is full or everything was sent.
func (r *Replica) sendTo(p *progress) {
	// Entries from before a split may still be in memory. A peer whose copy is empty may have begun it with the bounds after the split: it
	// could neither hold those entries nor be divided. It copies the range. A copy with a log keeps its bounds until it is divided.
	if p.next == 1 && r.isDivided() {
		r.markLost(p)
		return
	}
	last := r.log.last().Seq
	for p.next <= last {
		// The window bounds the entries that a slow peer keeps in memory, here and on its own node.
		if p.inflight.bytes >= r.cfg.InflightBytesMax {
			return
		}
		// No longer in memory. The read is asynchronous; Fetched continues.
		if p.next < r.tail.first {
			r.requestRead(p)
			return
		}
		entries, bytes := r.tail.entriesFrom(p.next, r.cfg.AppendBytesMax)
		r.sendAppend(p, entries, bytes)
		// sendAppend was a probe: one Append at a time until the logs are known to agree.
		if p.probing {
			return
		}
	}
	// Nothing to send, but a probe or news of the commit position is due: an empty Append.
	if p.flow == flowProbe || p.commitDue {
		r.sendAppend(p, nil, 0)
	}
}

// requestRead asks storage for the entries that are not in memory. If the log is trimmed there, the
// peer cannot catch up by log.
func (r *Replica) requestRead(p *progress) {
	if p.next <= r.log.trim {
		r.markLost(p)
		return
	}
	p.fetching = true
	r.out.Fetch = append(r.out.Fetch, LogRead{
		To: p.node, Epoch: r.promised, From: p.next, Until: r.tail.first - 1, BytesMax: r.cfg.AppendBytesMax,
	})
}

// Fetched answers Ready.Fetch. No entries mean that the log was trimmed at that place.
func (r *Replica) Fetched(f LogRead, entries []*entry.Entry) {
	if r.suffixRead == f.Epoch {
		r.suffixRead = 0
	}
	// The read was for an elected replica (stepFetch), not for a peer of this primary.
	if r.role == following {
		r.sendSuffix(f, entries)
		return
	}
	p := r.peer(f.To)
	// The epoch, the peer or the stream may have changed while storage read.
	if r.role != primary || f.Epoch != r.promised || p == nil || !p.fetching {
		return
	}
	p.fetching = false
	r.dirty = true
	if !p.canSend() || p.next != f.From {
		return
	}
	// The range may have been split while storage read, as in sendTo.
	if len(entries) == 0 || f.From == 1 && r.isDivided() {
		r.markLost(p)
		return
	}
	// The wire size was not kept, so the window counts the upper bound.
	bytes := 0
	for _, e := range entries {
		bytes += entrySize(e)
	}
	r.sendAppend(p, entries, bytes)
}

// sendAppend sends entries that begin at p.next, or an empty Append if there are none.
func (r *Replica) sendAppend(p *progress, entries []*entry.Entry, bytes int) {
	m := Message{Kind: Append, To: p.node, Epoch: r.promised, Entries: entries, Trim: r.log.trim}
	// Marks are kept for recent entries only. For an older one, the lineage has the epoch and the next
	// entry has the hash.
	if mark, ok := r.log.at(p.next - 1); ok {
		m.Prev = mark.Position
	} else if len(entries) > 0 {
		m.Prev = entry.Position{Epoch: r.log.epochAt(p.next - 1), Seq: p.next - 1, Hash: entries[0].Prev}
	} else {
		// Without entries and without a mark there is nothing to compare.
		return
	}
	// One message for each peer is the usual number.
	if r.out.Messages == nil {
		r.out.Messages = make([]Message, 0, len(r.peers))
	}
	r.send(m)
	p.commitDue, p.sentCommit = false, r.commit
	if p.flow == flowProbe {
		// next stays where it is: the answer decides from where to stream.
		p.probing = true
		return
	}
	if len(entries) > 0 {
		p.next = entries[len(entries)-1].Seq + 1
		p.inflight.add(p.next-1, bytes)
	}
}

// tickPeer repeats a message that a peer has not answered for the retransmission delay. It sends
// the peer the commit position once that has not moved for a tick: under load, the next entry
// carries it for free.
func (r *Replica) tickPeer(p *progress) {
	r.tickLost(p)
	if !p.canSend() || p.fetching {
		return
	}
	switch {
	case p.hasUnacked():
		if p.retransmitDue(r.now, r.retransmitDelay(p)) {
			// Resend from the last acknowledgement. A probe is repeated where it was: before the first
			// answer match is 0 and says nothing about where the logs part. Going back to the beginning once
			// made a primary with a trimmed log take an in-sync peer for lost.
			if p.flow == flowReplicate {
				p.next = p.match + 1
			}
			p.startProbe(p.next)
			r.dirty = true
		}
	case p.lacksCommit(r.commit):
		p.commitDue = r.commitAtTick == r.commit
		r.dirty = r.dirty || p.commitDue
	// The peer was sent the position and has not confirmed it, so the message may be lost.
	case p.commit < r.commit:
		if p.retransmitDue(r.now, r.cfg.Retransmit) {
			p.commitDue = true
			r.dirty = true
		}
	// An empty Append makes the peer say in which life it speaks.
	case r.lacksAgreement(p):
		if p.retransmitDue(r.now, r.cfg.Retransmit) {
			p.commitDue = true
			r.dirty = true
		}
	default:
		p.waiting = false
	}
}

// lacksAgreement reports whether a peer that has everything has agreed to no closed timestamp. The peer may be in a later life than
// the one that acknowledged: a late copy of an acknowledgement can end the probe that would have found out. Without another entry
// nothing is sent to it, and it cannot join (seed 1147).
func (r *Replica) lacksAgreement(p *progress) bool {
	return p.agreed == 0 && r.closed > 0 && p.canSend() && !p.fetching && !p.hasUnacked()
}

// stepAck processes an acknowledgement (rule C).
func (r *Replica) stepAck(m *Message) error {
	const op rhumb.Op = "replica.Step"
	p := r.peer(m.From)
	if r.role != primary || m.Epoch != r.promised || p == nil || !r.noteLife(p, m.Life) {
		return nil
	}
	if m.Match > r.log.last().Seq {
		return rhumb.Ef(op, rhumb.Corrupt, "ack of epoch %d from %s: position %d is beyond the end of the log, %s", m.From, m.Match, m.Epoch, r.log.last().Position)
	}
	// Bounded by Match: the peer's log may differ above.
	p.commit = max(p.commit, min(m.Commit, m.Match))
	// The peer accepts entries again. An acknowledgement up to commit would prove nothing: committed
	// entries are never refused.
	if m.Match > r.commit {
		p.refuses = RefusedNot
	}
	p.recordAck(m.Match)
	r.advanceCommit()
	// There may be room to send, or a learner may be near enough to join.
	r.dirty = r.dirty || p.next <= r.log.last().Seq || !p.isRequired() || r.change.unsent
	return nil
}

// stepNack processes a refusal. A Nack reports one of: a later epoch, refused entries, a
// quarantine, a contradiction in committed entries, or a place where the logs do not agree. The
// last one moves the probe.
func (r *Replica) stepNack(m *Message) {
	if r.role == quarantined {
		return
	}
	if m.Promised > r.promised {
		// The Nack does not name the primary of the later epoch.
		r.enterEpoch(m.Promised, rhumb.NoNode)
		return
	}
	p := r.peer(m.From)
	if r.role != primary || m.Epoch != r.promised || p == nil || !r.noteLife(p, m.Life) {
		return
	}
	if m.Refused != RefusedNot {
		r.noteRefusal(p, m.Refused)
		return
	}
	r.dirty = true
	if m.Quarantined {
		p.flow = flowQuarantined
		return
	}
	// Committed entries are the same everywhere, so this log lost them
	// (docs/replication.md#rule-refuse).
	if m.Contradicts && r.defers() {
		return // the member does not know the class of the range yet; once it does, it quarantines itself
	}
	if m.Contradicts {
		r.quarantine(fmt.Sprintf("this log, which ends at %[3]s, has lost entries that %[1]s holds as committed up to %[2]d; %[1]s refused position %[4]d",
			m.From, m.Commit, r.log.last().Position, m.Reject))
		return
	}
	// The peer acknowledged more, on an earlier stream or in an earlier life: its disk lost data.
	// Operators see it as Lost.
	if m.HintEnd < p.acknowledged && m.Reject > m.HintEnd {
		p.lost = p.acknowledged
	}
	// Late messages. Acting on one would move the probe to a place that was compared already.
	if p.flow == flowProbe && (!p.probing || m.Reject != p.next-1) || m.Reject < p.match || m.Reject == 0 {
		return
	}
	next := min(r.agreeUpTo(m), m.Reject-1) + 1
	// An acknowledgement of a member counts for commits, so it is not taken back in this epoch. A
	// learner's may be.
	if p.isRequired() {
		next = max(next, p.match+1)
	} else {
		p.match = min(p.match, next-1)
	}
	// The peer refuses a position that it acknowledged. Tick asks again; asking here would loop as
	// fast as the network allows.
	if p.flow == flowProbe && next == p.next {
		return
	}
	p.startProbe(next)
	if next <= r.log.trim {
		r.markLost(p)
	}
}

// noteLife records the life in which a peer speaks. It returns false for a message of an earlier
// life. Whatever the peer acknowledged in an earlier life, its disk may have lost since, so only
// acknowledgements of the new life count (docs/replication.md#rule-life-ack).
func (r *Replica) noteLife(p *progress, life rhumb.BootSeq) bool {
	switch {
	case life < p.life:
		return false
	case p.life == 0:
		p.life = life
	case life > p.life:
		p.forgetAcks()
		p.life = life
		p.startProbe(p.next)
	}
	r.noteReturn(p.node, life)
	return true
}

// agreeUpTo returns the position up to which this log and that of the sender of a Nack may agree.
func (r *Replica) agreeUpTo(m *Message) rhumb.Seq {
	_, end := r.log.endOf(m.HintEpoch)
	// Never below the sender's commit position: committed entries are the same in both logs.
	return max(min(m.HintEnd, end), m.Commit)
}

// advanceCommit is rule C with slack = 0: a position is committed once every member of the in-sync
// set and of the pending set has it durably, unless it is below the epoch-start entry.
func (r *Replica) advanceCommit() {
	if r.role != primary || len(r.inSync) < r.cfg.MinInSync {
		return
	}
	// This node's own sync counts like an acknowledgement. It is not waited for before sending, so the
	// sync and the round trip overlap.
	k := r.durable
	for _, p := range r.peers {
		if p.isRequired() {
			k = min(k, p.match)
		}
	}
	// An entry of an earlier epoch may be on every member and still be replaced by a log with a
	// greater last epoch, until an entry of this epoch covers it.
	if k < r.start || k <= r.commit {
		return
	}
	for seq := max(r.commit+1, r.tail.first); seq <= k; seq++ {
		r.orders.uncommitted -= r.tail.sizes[seq-r.tail.first]
	}
	// Before release: answers are emitted by the commit position.
	r.setCommit(k)
	r.release()
	r.cutTail()
}

// trimLog moves the trim position up to what every copy has, or beyond that to keep at most
// LogKeepBytes (docs/replication.md#trim).
func (r *Replica) trimLog() {
	if r.commit < r.start {
		return
	}
	// Always below commit: the last committed entry anchors log matching after a restart.
	have := r.commit - 1
	for _, p := range r.peers {
		have = min(have, p.match)
	}
	have = r.settledBy(have)
	bytes := &r.log.bytes
	to := bytes.pointAt(have)
	// Over the bound: peers that lag further will need a copy of the whole range.
	if keep := r.trimLimit(); keep > to.seq {
		to = bytes.pointAt(min(keep, r.commit-1))
	}
	r.trimTo(to, r.cfg.LogKeepBytes)
}

// Tidy makes a primary trim its log as far as every copy has it, however little that is, and inform
// the other replicas at once, until it is switched off. Dropped tables free their space only where the
// log is trimmed.
func (r *Replica) Tidy(on bool) { r.tidy, r.dirty = on, r.dirty || on }

// tidyLog carries out Tidy. A peer that lags holds it up.
func (r *Replica) tidyLog() {
	if r.commit < r.start {
		return
	}
	have := r.commit - 1
	for _, p := range r.peers {
		have = min(have, p.match)
	}
	if have <= r.log.trim {
		return
	}
	r.setTrim(have)
	for _, p := range r.peers {
		// An empty message carries the position.
		p.commitDue = p.commitDue || !p.hasUnacked()
	}
}

// trimTo moves the trim position to a point below the commit position if at least 1 MiB, or a
// sixteenth of the kept log, can go. Small steps would leave storage many deletions to remember.
func (r *Replica) trimTo(to bytePoint, keep int64) bool {
	if to.seq <= r.log.trim || to.seq >= r.commit || to.bytes-r.log.bytes.pointAt(r.log.trim).bytes < min(1<<20, keep/16) {
		return false
	}
	r.setTrim(to.seq)
	return true
}

// TrimOwn lets a replica that is not primary drop committed log beyond keep bytes, whatever its
// primary keeps, and reports whether it did. No committed data is lost: the log only serves peers
// that lag. If this replica becomes primary, they learn that their log is trimmed, as from any
// primary that kept no more.
func (r *Replica) TrimOwn(keep int64) bool {
	if r.role != following || r.commit == 0 {
		return false
	}
	bytes := &r.log.bytes
	return r.trimTo(bytes.pointAt(min(bytes.pointAfter(keep).seq, r.commit-1)), keep)
}
