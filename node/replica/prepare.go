package replica

import (
	"cmp"
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// preparation is the state of rule P: before an elected replica begins its epoch, it asks the other
// members of its in-sync set for the ends of their logs and adopts the best log.
//
// Every in-sync log holds every acknowledged entry as long as no disk loses synced data. Rule P
// covers the disk that does forget: with answers of MinInSync members, fewer damaged disks than
// that cannot hide an acknowledged entry. The steps, which Ready repeats until all succeed, are
// those of advancePreparation.
type preparation struct {
	answers []answer
	// clock is the greatest time in any answer, reported the greatest commit position. Both stay when
	// answers are dropped: they are facts about acknowledged data, not about a copy.
	clock    rhumb.Timestamp
	reported report
	// began is the time of the first tick after the election, 0 before it.
	began time.Duration
	timer retry
	// fetchingFrom is the member that was asked for entries and has not answered, NoNode if none;
	// fetchAfter is the position after which the entries are wanted.
	fetchingFrom rhumb.NodeID
	fetchAfter   entry.Position
	// adoptedBytes is the size of the entries that were fetched.
	adoptedBytes int
	// deferredTo is the member that should be primary instead, because its log is much longer.
	deferredTo rhumb.NodeID
	// done reports that the epoch may begin; if it may not, waitingFor explains why to operators.
	done       bool
	waitingFor string
	// handed reports that the epoch was handed over. Then clock is that of the primary before, and
	// nobody is asked.
	handed bool
	// stuck explains to operators why the best log cannot be adopted.
	stuck string
}

// answer is the end of a member's log. It stays valid for the life of the member: the member has
// promised the epoch and accepts no entries of an earlier one.
type answer struct {
	node rhumb.NodeID
	life rhumb.BootSeq
	last entry.Position
}

// report is a position that a member knows as committed. hash is zero if the member does not have
// the entry.
type report struct {
	node rhumb.NodeID
	seq  rhumb.Seq
	hash entry.Hash
}

// beginsWithoutAsking reports whether the epoch is the range's first. Nothing was written before
// it, so rule P has nothing to find. A range that was split off begins in the epoch of its reservation: a
// copy of it exists only where everything up to the split is committed. An empty copy was not divided from
// anything: its node copied the old range after the split, or lost its disk, and its record may be old.
func (r *Replica) beginsWithoutAsking() bool {
	return r.promised <= firstEpoch || r.desc != nil && BeginsWithoutAsking(r.desc, r.promised) && r.log.last().Seq > 0
}

// BeginsWithoutAsking reports whether the epoch is the first of the range with this record. No lease of an earlier one
// exists either.
func BeginsWithoutAsking(d *rhumb.Range, e rhumb.Epoch) bool {
	return e <= firstEpoch || d.Birth != 0 && d.Birth == e
}

// asksMembers reports whether this elected replica has to ask the members of its in-sync set.
func (r *Replica) asksMembers() bool { return !r.beginsWithoutAsking() && !r.prep.handed }

// firstEpoch is the epoch in which a range is created.
const firstEpoch rhumb.Epoch = 1

// sendPrepares sends Prepare to the in-sync members that have not answered. Learners are not asked:
// only logs of in-sync members hold every acknowledged entry.
func (r *Replica) sendPrepares() {
	for _, p := range r.peers {
		if p.inSync && r.answerOf(p.node) == nil {
			r.send(Message{Kind: Prepare, To: p.node, Epoch: r.promised})
		}
	}
	r.prep.timer.arm()
}

// answerOf returns the answer of a node, or nil.
func (r *Replica) answerOf(n rhumb.NodeID) *answer {
	for i := range r.prep.answers {
		if r.prep.answers[i].node == n {
			return &r.prep.answers[i]
		}
	}
	return nil
}

// stepPrepare is the member's side of rule P. The member promises the epoch, and answers once the
// promise is durable (answerPrepare). A repeated Prepare is answered again.
func (r *Replica) stepPrepare(m *Message) {
	if !r.followEpoch(m) || r.role != following {
		return
	}
	r.noteTaker(m)
	r.promiseDue = true
	r.dirty = true
}

// followEpoch reports whether the sender of a message is the primary of the promised epoch. It
// promises the epoch if that is later, and answers the sender of an earlier one with a Nack, so
// that the sender steps down.
func (r *Replica) followEpoch(m *Message) bool {
	switch {
	case r.role == quarantined:
		return false
	case m.Epoch < r.promised:
		r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: m.Prev.Seq})
		return false
	case m.Epoch > r.promised:
		r.enterEpoch(m.Epoch, m.From)
	case r.promisedTo == rhumb.NoNode:
		// The promise came from disk or from a Nack, which carry the epoch but not its primary.
		r.promisedTo = m.From
	}
	if m.From != r.promisedTo {
		r.quarantine(fmt.Sprintf("invariant I1: epoch %d has primaries %s and %s", m.Epoch, r.promisedTo, m.From))
		return false
	}
	return true
}

// answerPrepare hands out the Promise that is due: after the sync of this Ready, or now if
// everything is durable. If only the sync of an earlier Ready is missing, the Promise stays due
// until Persisted makes the replica dirty again.
func (r *Replica) answerPrepare() {
	if !r.promiseDue {
		return
	}
	// The greatest commit position ever stored, even if the log ends below it: that is how the elected
	// replica learns that a disk lost committed entries (docs/replication.md#rule-prepare-answer).
	commit := max(r.commit, r.knownCommit)
	m := r.stampMessage(Message{Kind: Promise, To: r.promisedTo, Epoch: r.promised, Prev: r.log.last().Position})
	m.Commit = commit
	if mark, ok := r.log.at(commit); ok {
		m.CommitHash = mark.Hash
	}
	switch {
	case r.out.MustSync:
		r.out.AfterSync = append(r.out.AfterSync, m)
	// The end of the log must be durable as well: the elected replica counts on the whole log that the
	// Promise describes.
	case r.promisedDurable == r.promised && r.durable == r.handedOut:
		r.out.Messages = append(r.out.Messages, m)
	default:
		return
	}
	r.promiseDue = false
}

// stepPromise records a member's answer. A later life of the member replaces the answer of an
// earlier one, even if the new log is shorter.
func (r *Replica) stepPromise(m *Message) {
	p := r.peer(m.From)
	if r.role != activating || m.Epoch != r.promised || p == nil || !p.inSync {
		return
	}
	a := r.answerOf(m.From)
	if a == nil {
		r.prep.answers = append(r.prep.answers, answer{node: m.From})
		a = &r.prep.answers[len(r.prep.answers)-1]
	}
	// A delayed message: the disk that it describes is gone.
	if m.Life < a.life {
		return
	}
	*a = answer{m.From, m.Life, m.Prev}
	r.prep.clock = max(r.prep.clock, m.Clock)
	if m.Commit > r.prep.reported.seq {
		r.prep.reported = report{m.From, m.Commit, m.CommitHash}
	}
	r.dirty = true
}

// advancePreparation advances rule P and reports whether the epoch may begin. Every Ready calls it.
// The steps are repeated until all of them succeed:
//
//  1. Enough answers are in (missingAnswers).
//  2. No reported commit lies beyond the best log at hand.
//  3. This log is the best log; otherwise the difference is fetched.
//  4. The reported commit has the same entry in this log.
func (r *Replica) advancePreparation() (done bool) {
	if r.role != activating || !r.asksMembers() {
		return r.role == activating
	}
	r.prep.waitingFor = ""
	if missing := r.missingAnswers(); missing != "" {
		r.prep.waitingFor = missing
		return false
	}
	best := r.log.last().Position
	holder := r.bestAnswer()
	if holder != nil && isLonger(holder.last, best) {
		best = holder.last
	}
	// The log that reaches that far is on a member that has not answered. Beginning now would lose
	// acknowledged entries, and undoing anything for a shorter log might discard their last copy.
	if why := r.reportedBeyond(best.Seq); why != "" {
		r.prep.waitingFor = why
		return false
	}
	if best != r.log.last().Position {
		if r.prep.stuck == "" {
			// Entries arrive by stepSuffix, which makes the replica dirty, so the next Ready continues.
			r.adoptFrom(holder)
		}
		r.prep.waitingFor = cmp.Or(r.prep.stuck, fmt.Sprintf("fetching the log of %s, which is longer and ends at %s", holder.node, best))
		return false
	}
	// The reporting member need not be the holder of the best log, so it is compared separately.
	if here, ok := r.log.at(r.prep.reported.seq); ok && r.prep.reported.contradictsEntry(here.Position) {
		r.prep.waitingFor = fmt.Sprintf("%s has committed another entry at position %d than this log holds", r.prep.reported.node, here.Seq)
		return false
	}
	return true
}

// contradictsEntry reports whether the member has committed another entry at the place of pos.
func (c *report) contradictsEntry(pos entry.Position) bool {
	return pos.Seq == c.seq && c.hash != (entry.Hash{}) && c.hash != pos.Hash
}

// missingAnswers explains which answers a decision still needs, or returns "". Needed are MinInSync answers,
// this replica's own included, or one of a recorded life (docs/replication.md#rule-one-answer).
// Until PrepareWait has passed, the answers of all members are awaited, since the longest log need
// not be among the first.
func (r *Replica) missingAnswers() string {
	have, all := 1, true
	for _, p := range r.peers {
		if !p.inSync {
			continue
		}
		if r.answerOf(p.node) != nil {
			have++
		} else {
			all = false
		}
	}
	// began is set by the first tick, so an election without ticks waits for all answers.
	waited := r.prep.began > 0 && r.now-r.prep.began >= r.cfg.PrepareWait
	switch {
	case have < r.cfg.MinInSync && !r.oneAnswerSuffices():
		return fmt.Sprintf("%d of the in-sync members (%s) have reported the ends of their logs, and %d are needed; start the others, or wait", have, rhumb.NodeList(r.inSync), r.cfg.MinInSync)
	case !all && r.awaitsAll():
		return fmt.Sprintf("the members that have answered may have lost writes that were not synced, and the others of %s may have them; waiting for those for at most %s", rhumb.NodeList(r.inSync), r.cfg.DeferredWait)
	case !all && !waited:
		return "waiting briefly for the remaining in-sync members to report the ends of their logs"
	}
	return ""
}

// bestAnswer returns the answer with the best log, or nil.
func (r *Replica) bestAnswer() *answer {
	var best *answer
	for i := range r.prep.answers {
		a := &r.prep.answers[i]
		if p := r.peer(a.node); p == nil || !p.inSync {
			continue // it has left the in-sync set since
		}
		if best == nil || isLonger(a.last, best.last) {
			best = a
		}
	}
	return best
}

// isLonger reports whether a log that ends at a is better than one that ends at b. The epoch of the
// last entry decides first: a later primary had every entry that was acknowledged before its epoch,
// so the additional entries of a longer log of an earlier epoch were never acknowledged.
func isLonger(a, b entry.Position) bool {
	return a.Epoch > b.Epoch || a.Epoch == b.Epoch && a.Seq > b.Seq
}

// reportedBeyond explains that a position above last was reported as committed, or returns "". It
// includes the position that this node itself knew before it restarted.
func (r *Replica) reportedBeyond(last rhumb.Seq) string {
	switch c := &r.prep.reported; {
	case c.seq > last:
		return fmt.Sprintf("%s knows that position %d is committed, but the longest log that was reported ends at %d; start the other in-sync nodes", c.node, c.seq, last)
	case r.knownCommit > last:
		return fmt.Sprintf("this node knew that position %d is committed, but the longest log that was reported ends at %d; start the other in-sync nodes", r.knownCommit, last)
	}
	return ""
}

// adoptFrom asks the holder of the best log for the entries that this log lacks. After
// AdoptBytesMax it asks metadata to make the holder primary instead: copying more would take longer
// than another election.
func (r *Replica) adoptFrom(best *answer) {
	// One question at a time; Tick repeats a question without an answer.
	if r.prep.deferredTo != rhumb.NoNode || r.prep.fetchingFrom != rhumb.NoNode {
		return
	}
	if r.prep.adoptedBytes > r.cfg.AdoptBytesMax {
		r.proposeHolder(best.node)
		return
	}
	r.askEntries(best.node, r.log.last().Position)
}

// askEntries asks a member for its entries after a position of this log.
func (r *Replica) askEntries(from rhumb.NodeID, after entry.Position) {
	r.prep.fetchingFrom, r.prep.fetchAfter = from, after
	r.send(Message{Kind: Fetch, To: from, Epoch: r.promised, Prev: after})
	r.prep.timer.arm()
}

// proposeHolder asks metadata to elect the member with the longer log.
func (r *Replica) proposeHolder(to rhumb.NodeID) {
	r.prep.deferredTo = to
	r.out.Meta = append(r.out.Meta, MetaProposal{Kind: ElectOther, Range: r.cfg.Range, Epoch: r.promised, Version: r.version, Node: to})
	r.prep.timer.arm()
	r.dirty = true
}

// stepFetch answers an elected replica that asks for the end of this log.
func (r *Replica) stepFetch(m *Message) {
	if !r.followEpoch(m) || r.role != following {
		return
	}
	reply := Message{Kind: Suffix, To: m.From, Epoch: m.Epoch, Reject: m.Prev.Seq, Trim: r.log.trim}
	// The same search as for an Append: the elected replica backs up to the hint and asks again.
	if hint, apart := r.findDivergence(m.Prev); apart {
		reply.HintEpoch, reply.HintEnd = hint.Epoch, hint.Seq
		// If the logs part below the trim position, the next entries are not here any more, and the lineage may lack their epoch. The
		// elected replica must not take that for a contradiction of its committed entries.
		reply.Trimmed = hint.Seq < r.log.trim
		r.send(reply)
		return
	}
	last := r.log.last().Position
	switch {
	case m.Prev.Seq < r.log.trim:
		reply.Trimmed = true
		r.send(reply)
	case m.Prev.Seq >= last.Seq:
		// There is nothing to send. This is a later life than the one that answered Prepare, and its disk
		// has lost the end. The message names this life, so the elected replica asks everybody again.
		reply.HintEpoch, reply.HintEnd = last.Epoch, last.Seq
		r.send(reply)
	case r.suffixRead == m.Epoch:
		// One read at a time. The question is repeated every Retransmit; when each repetition queued
		// another read of up to 1 MiB, a slow disk became slower.
	default:
		r.suffixRead = m.Epoch
		r.out.Fetch = append(r.out.Fetch, LogRead{
			To: m.From, Epoch: m.Epoch, From: m.Prev.Seq + 1, Until: last.Seq, BytesMax: r.cfg.AppendBytesMax,
		})
		r.dirty = true
	}
}

// sendSuffix sends the entries that storage read for an elected replica. If nothing could be read,
// it sends nothing, and the elected replica asks again.
func (r *Replica) sendSuffix(f LogRead, entries []*entry.Entry) {
	if r.role != following || f.Epoch != r.promised || f.To != r.promisedTo || len(entries) == 0 {
		return
	}
	// The first entry has the hash; the marks are not used, which may not reach back that far.
	prev := entry.Position{Epoch: r.log.epochAt(f.From - 1), Seq: f.From - 1, Hash: entries[0].Prev}
	r.send(Message{Kind: Suffix, To: f.To, Epoch: f.Epoch, Prev: prev, Entries: entries})
}

// stepSuffix takes entries of the best log and undoes the entries in their place.
func (r *Replica) stepSuffix(m *Message) {
	if r.role != activating || m.Epoch != r.promised || m.From != r.prep.fetchingFrom {
		return
	}
	r.dirty = true
	if a := r.answerOf(m.From); a != nil && a.life < m.Life {
		// The answer described the log of an earlier life, whose disk may have lost the end since.
		// Falling back to the second-best answer would count a copy that is not there, and lose an
		// acknowledged write in seven steps of the model. All members are asked again.
		r.prep.answers, r.prep.fetchingFrom = nil, rhumb.NoNode
		r.sendPrepares()
		return
	}
	if a := r.answerOf(m.From); a != nil && r.reportedBeyond(a.last.Seq) != "" {
		r.prep.fetchingFrom = rhumb.NoNode // a report that arrived meanwhile proves a longer log: undo nothing for this one
		return
	}
	switch {
	case m.Trimmed:
		r.behindTrim = max(r.behindTrim, m.Trim)
		r.proposeHolder(m.From)
	case len(m.Entries) == 0:
		r.backUp(m)
	default:
		// An answer to an earlier question does not continue this log.
		if here, ok := r.log.at(m.Prev.Seq); !ok || here.Hash != m.Prev.Hash {
			return
		}
		for _, e := range m.Entries {
			// Neither a committed entry here nor one that a member reported may be replaced.
			if r.prep.reported.contradictsEntry(e.Position()) || r.contradictsLog(e.Position()) {
				r.markStuck(m.From, e.Seq)
				return
			}
			r.prep.adoptedBytes += entrySize(e)
		}
		r.mergeEntries(m)
		// The next Ready compares again, and asks for more if this was not all.
		r.prep.fetchingFrom = rhumb.NoNode
	}
}

// backUp asks again from further back: the logs part before the position that was asked for.
func (r *Replica) backUp(m *Message) {
	// An answer to an earlier question, or one that cannot go back any further.
	if m.Reject != r.prep.fetchAfter.Seq || m.Reject == 0 {
		return
	}
	_, end := r.log.endOf(m.HintEpoch)
	// Strictly below the last question, so that the search ends.
	to := min(m.HintEnd, end, m.Reject-1)
	here, ok := r.log.at(to)
	// The logs part below this replica's commit position, which must not be undone (rule T).
	if !ok || to < r.commit {
		r.markStuck(m.From, r.commit)
		return
	}
	r.askEntries(m.From, here.Position)
}

// markStuck records that the best log differs from this one, or from the report of a member, in a
// committed entry. No choice between them is right, so the range waits for an operator.
func (r *Replica) markStuck(holder rhumb.NodeID, seq rhumb.Seq) {
	r.prep.stuck = fmt.Sprintf("the log of %s holds another entry at position %d than is committed; see docs/runbooks/corrupt-store.md", holder, seq)
}

// tickPreparation repeats unanswered questions.
func (r *Replica) tickPreparation() {
	if r.prep.began == 0 {
		r.prep.began = r.now
	}
	// A proposal to metadata takes longer than a question to a member.
	every := r.cfg.Retransmit
	if r.prep.deferredTo != rhumb.NoNode {
		every = r.cfg.ChangeRetry
	}
	if r.prep.timer.due(r.now, every) {
		if to := r.prep.deferredTo; to != rhumb.NoNode {
			r.proposeHolder(to)
		}
		// Forget whom the entries were asked from: if that member died, the next Ready may find another
		// holder.
		r.prep.fetchingFrom = rhumb.NoNode
		r.sendPrepares()
	}
	r.dirty = true
}
