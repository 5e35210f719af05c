package replica

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// A prepared handover moves a range to another in-sync member without an election
// (docs/replication.md#handover). Metadata reserves an epoch for the target while the primary serves on. Then the
// primary stops, promises the reserved epoch, and sends the target what its log lacks. The target begins the epoch at
// once: it needs no answers of rule P, because the log that it was handed is whole and its primary has stopped, and it
// waits for no lease of that primary. So writes pause for one round trip and the syncs of two promises.
//
// If the target does not answer, the old primary asks for an election, which takes a later epoch. Nothing undoes a
// promise: once it is made, this replica never serves in its old epoch again.

// handed is the memory of a replica after it handed over its range; the zero value if it did not, or if metadata
// has recorded it.
type handed struct {
	epoch  rhumb.Epoch
	target rhumb.NodeID
	// message is repeated until the target speaks in the epoch, which begun reports.
	message Message
	begun   bool
	resend  retry
	// lost is how long there has been no sign that the target takes over, or that metadata will record it.
	lost stall
	// asks counts the requests for an election, and asked spaces them out.
	asks  int
	asked retry
}

// handoverResend is how long HANDOVER waits for a message of the target before it is sent again.
const handoverResend = 50 * time.Millisecond

// mayHandOver returns the member that is to take over now, or nil. Metadata must have prepared the handover in this
// epoch, and everything must be settled except for the content of one message to the target.
func (r *Replica) mayHandOver() *progress {
	if r.role != primary || r.desc.Prepared == nil || r.desc.Epoch != r.promised || r.commit < r.start {
		return nil
	}
	// During a change of the in-sync set the target would know only one of the two sets.
	if r.change.isActive() {
		return nil
	}
	p := r.peer(r.desc.Prepared.Target)
	// The target has acknowledged entries of this epoch in the life that the message names.
	if p == nil || !p.inSync || !p.connected || !p.isFit() || p.flow != flowReplicate || p.life == 0 || p.match < r.start {
		return nil
	}
	// The rest of the log must be in memory and short: writes pause while it is under way.
	last := r.log.last().Seq
	if p.match < last {
		if p.match+1 < r.tail.first {
			return nil
		}
		if _, bytes := r.tail.entriesFrom(p.match+1, r.cfg.JoinWithinBytes); bytes > r.cfg.JoinWithinBytes || r.tail.sizeFrom(p.match+1) > r.cfg.JoinWithinBytes {
			return nil
		}
	}
	return p
}

// sizeFrom returns the size of the entries from seq on.
func (t *tail) sizeFrom(seq rhumb.Seq) (bytes int) {
	for _, size := range t.sizes[seq-t.first:] {
		bytes += size
	}
	return bytes
}

// handOver ends the role of primary in favour of p. Ready calls it when every entry is in its output, so the message
// leaves after the promise and the entries are durable. The answers that wait are kept: the target has the entries,
// and this replica learns from it when they are committed (keepWaiting).
func (r *Replica) handOver(p *progress) {
	m := Message{
		Kind: Handover, To: p.node, Epoch: r.desc.Prepared.Epoch, Ends: r.promised, TargetLife: p.life,
		InSync: r.inSync, Version: r.version,
		// The target writes above everything that this primary wrote or closed.
		Clock: max(r.orders.hlc, r.closed, r.log.last().HLC),
	}
	m.Prev = r.log.last().Position
	if p.match < m.Prev.Seq {
		m.Entries, _ = r.tail.entriesFrom(p.match+1, 2*r.cfg.JoinWithinBytes)
		m.Prev = r.positionBefore(m.Entries[0])
	}
	r.handedOut = r.log.last().Seq // stepDown would otherwise drop the entries of this Ready
	waiting := r.waiters
	r.waiters = waiters{}
	r.enterEpoch(m.Epoch, p.node)
	r.waiters = waiting
	r.handed = handed{epoch: m.Epoch, target: p.node, message: m}
	r.handed.resend.arm()
	r.out.AfterSync = append(r.out.AfterSync, r.stampMessage(m))
}

// positionBefore returns the position of the entry before e.
func (r *Replica) positionBefore(e *entry.Entry) entry.Position {
	return entry.Position{Epoch: r.log.epochAt(e.Seq - 1), Seq: e.Seq - 1, Hash: e.Prev}
}

// checkHandover rejects a message that no primary sends.
func (r *Replica) checkHandover(m *Message) error {
	const op rhumb.Op = "replica.Step"
	if m.Ends >= m.Epoch || len(m.InSync) < r.cfg.MinInSync || !slices.Contains(m.InSync, r.cfg.Self) || !slices.Contains(m.InSync, m.From) {
		return rhumb.Ef(op, rhumb.Corrupt, "handover of epoch %d after %d from %s to %s with the in-sync set %s: the bytes are damaged", m.Epoch, m.Ends, m.From, m.To, rhumb.NodeList(m.InSync))
	}
	return checkChain(m)
}

// stepHandover makes this replica the primary of the reserved epoch. It is followed by Activate, as after an election,
// but without the questions of rule P.
func (r *Replica) stepHandover(m *Message) {
	switch {
	case r.role != following || r.notice.kind != 0 || r.desc == nil:
		return
	// A repetition, or an election was faster. The sender learns of it from the new primary.
	case r.promised != m.Ends || r.promisedTo != m.From && r.promisedTo != rhumb.NoNode:
		return
	// Another life of this node may have begun the epoch already; two lives would put two contents at one position.
	case m.TargetLife != r.cfg.Life:
		return
	}
	// The sender has the acknowledgement of this life for everything before the entries. If the logs differ all the
	// same, an election sorts it out.
	if _, apart := r.findDivergence(m.Prev); apart || r.refusesHandover(m) {
		return
	}
	end := m.Prev
	if n := len(m.Entries); n > 0 {
		end = m.Entries[n-1].Position()
	}
	r.enterEpoch(m.Epoch, r.cfg.Self)
	if !r.mergeEntries(m) {
		return
	}
	if r.log.last().Position != end {
		// More entries than the primary had: they are not of its epoch. It asks for an election.
		return
	}
	if c := min(m.Commit, end.Seq); c > r.commit {
		r.setCommit(c)
	}
	r.role = activating
	r.prep = preparation{handed: true, clock: m.Clock}
	// A sign of life, once the promise is durable, in case the first entry of the epoch takes longer than the old
	// primary waits for a target that says nothing. The answer to it does not matter, since nobody is asked.
	r.out.AfterSync = append(r.out.AfterSync, r.stampMessage(Message{Kind: Prepare, To: m.From, Epoch: m.Epoch}))
	r.inSync, r.version = slices.Clone(m.InSync), m.Version
	r.rebuildPeers()
	r.out.Handed = true
	r.dirty = true
}

// refusesHandover reports whether the entries of a handover contradict this log.
func (r *Replica) refusesHandover(m *Message) bool {
	if r.contradictsLog(m.Prev) {
		return true
	}
	return slices.ContainsFunc(m.Entries, func(e *entry.Entry) bool { return r.contradictsLog(e.Position()) })
}

// isAdopted reports whether the record names the epoch of this primary. After a handover it does not until metadata
// has applied the proposal to adopt it.
func (r *Replica) isAdopted() bool { return r.desc.Epoch >= r.promised }

// proposeAdoption asks metadata to record the handover to this replica. If the handover was cancelled meanwhile, it
// asks to be elected instead: the old primary has stopped, so an election is needed anyway. Tick repeats it.
func (r *Replica) proposeAdoption() {
	m := MetaProposal{Kind: Adopt, Range: r.cfg.Range, Epoch: r.promised, Version: r.desc.Version, Lives: []rhumb.BootSeq{r.cfg.Life}}
	if h := r.desc.Prepared; r.desc.Version >= r.version && (h == nil || h.Epoch != r.promised) {
		m.Kind, m.Epoch, m.Node = ElectOther, r.desc.Epoch, r.cfg.Self
	}
	r.out.Meta = append(r.out.Meta, m)
	r.adopt.arm()
	r.dirty = true
}

// noteTaker records that the target of a handover speaks in its epoch: it has promised the epoch, and begins it unless it
// fails.
func (r *Replica) noteTaker(m *Message) {
	if r.handed.epoch == m.Epoch && r.handed.target == m.From {
		r.handed.begun = true
	}
}

// tickHanded repeats HANDOVER until the target speaks, and asks for an election if the handover does not reach its
// end: if the target is silent, or if metadata will not record it any more (docs/replication.md#handover).
func (r *Replica) tickHanded(step time.Duration) {
	h := &r.handed
	if h.epoch == 0 || r.desc == nil {
		return
	}
	if !h.begun && r.promisedDurable >= h.epoch && h.resend.due(r.now, handoverResend) {
		r.send(h.message)
	}
	// The handover is no longer in the record: cancelled, or the target must not take over any more.
	void := r.desc.Prepared == nil || r.desc.Prepared.Epoch != h.epoch
	link := r.links[h.target]
	h.lost.add(step, h.begun && !void && link.connected && !link.suspect)
	if h.lost.lasted < r.cfg.HandoverWait || h.asks > 0 && !h.asked.due(r.now, r.cfg.ChangeRetry) {
		return
	}
	// A node that drains cannot be elected, so every other request leaves the choice to metadata. An unfit node begins
	// with that. But it has stopped serving, so if nobody fit can be elected, an unfit primary is better than none.
	kind := ElectMe
	if r.leavesChoice() {
		kind = Yield
	}
	h.asks++
	h.asked.arm()
	r.out.Meta = append(r.out.Meta, MetaProposal{Kind: kind, Range: r.cfg.Range, Epoch: r.desc.Epoch, Version: r.desc.Version})
	r.dirty = true
}

// leavesChoice reports whether the next request for an election after a handover leaves the choice to metadata.
func (r *Replica) leavesChoice() bool { return r.unfit == (r.handed.asks%2 == 0) }

// ElectionRefused reports that metadata has refused to elect this replica in place of an epoch. If it handed over in vain, the next request
// follows at once, provided that it leaves the choice to metadata: most of these nodes drain, and their ranges have no service meanwhile.
func (r *Replica) ElectionRefused(e rhumb.Epoch) {
	if h := &r.handed; h.epoch != 0 && h.asks > 0 && r.desc != nil && r.desc.Epoch == e && r.leavesChoice() {
		h.asked = retry{armed: true, running: true, since: r.now - r.cfg.ChangeRetry}
	}
}

// isOrphaned reports whether the record names this replica primary of an epoch that it has left, although it did not
// hand over in this life. Mostly a newer record is on its way. But if an earlier life handed over, and the target is
// gone before metadata recorded it, nobody else asks for an election.
func (r *Replica) isOrphaned() bool {
	return r.role == following && r.handed.epoch == 0 && r.desc != nil && r.desc.Primary == r.cfg.Self && r.desc.Epoch < r.promised
}

// tickOrphaned asks for an election if the record stays old for ChangeRetry.
func (r *Replica) tickOrphaned(step time.Duration) {
	r.orphaned.add(step, !r.isOrphaned())
	if r.orphaned.lasted >= r.cfg.ChangeRetry {
		r.orphaned = stall{}
		r.askForElection()
		r.dirty = true
	}
}

// tickWaiting drops the answers that a replica kept when it handed over, if it learns of no commit for as long as
// a primary would wait for one.
func (r *Replica) tickWaiting(step time.Duration) {
	r.kept.add(step, r.waiters.len() == 0)
	if r.kept.lasted >= r.cfg.ProgressTimeout {
		r.failOrders()
	}
}

// HandingOver returns the epoch that this replica handed over and the node that takes over, as long as metadata names
// this replica. Requests belong to that node.
func (r *Replica) HandingOver() (epoch rhumb.Epoch, to rhumb.NodeID, ok bool) {
	return r.handed.epoch, r.handed.target, r.handed.epoch != 0
}
