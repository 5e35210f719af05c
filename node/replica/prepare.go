package replica

import (
	"cmp"
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// preparation is the state of rule P: before an elected replica begins its epoch it asks the other members of its in-sync
// set for the ends of their logs, and adopts the longest one.
//
// Every in-sync log holds every acknowledged entry, as long as no disk forgets what it synced. Rule P is for the disk that
// does: with answers of MinInSync members, fewer damaged disks than that cannot hide an acknowledged entry.
type preparation struct {
	answers []answer
	// clock is the greatest time in any answer, and reported the greatest commit position. Both stay when answers are dropped.
	clock    rhumb.Timestamp
	reported report
	// began is the time of the first tick since the election, zero before it.
	began time.Duration
	timer retry
	// asking is the member that was asked for entries and has not answered, asked the position after which they are wanted.
	asking rhumb.NodeID
	asked  entry.Position
	// adopted is the size of the entries that were taken over.
	adopted int
	// declined names the member with a log so much longer that it should be primary.
	declined rhumb.NodeID
	// done is true when the epoch may begin; otherwise why says for people what is missing.
	done bool
	why  string
	// stuck says why the best log cannot be adopted, for people.
	stuck string
}

// answer is the end of a member's log. Within its life the member's log stays so: it has promised the epoch.
type answer struct {
	node rhumb.NodeID
	life rhumb.BootSeq
	last entry.Position
}

// report is a position that a member knows as committed; hash is zero when the member does not have the entry.
type report struct {
	node rhumb.NodeID
	seq  rhumb.Seq
	hash entry.Hash
}

// beginsWithoutAsking reports whether nobody can hold an entry of the range yet: its first epoch needs no rule P.
func (r *Replica) beginsWithoutAsking() bool { return r.promised <= firstEpoch }

// firstEpoch is the epoch in which a range is made.
const firstEpoch rhumb.Epoch = 1

// ask sends Prepare to the members that have not answered.
func (r *Replica) ask() {
	for _, p := range r.peers {
		if p.inSync && r.answerOf(p.node) == nil {
			r.send(Message{Kind: Prepare, To: p.node, Epoch: r.promised})
		}
	}
	r.prep.timer.arm()
}

func (r *Replica) answerOf(n rhumb.NodeID) *answer {
	for i := range r.prep.answers {
		if r.prep.answers[i].node == n {
			return &r.prep.answers[i]
		}
	}
	return nil
}

// stepPrepare is the member's side of rule P: the member promises the epoch, and answers once the promise is durable.
func (r *Replica) stepPrepare(m *Message) {
	if !r.follow(m) || r.role != following {
		return
	}
	r.promiseDue = true
	r.dirty = true
}

// follow promises the epoch of a message from a primary when it is a later one. It reports false when the message is not
// from the primary of the promised epoch; the sender of an earlier epoch gets a Nack.
func (r *Replica) follow(m *Message) bool {
	switch {
	case r.role == quarantined:
		return false
	case m.Epoch < r.promised:
		r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: m.Prev.Seq})
		return false
	case m.Epoch > r.promised:
		r.promise(m.Epoch, m.From)
	case r.promisedTo == rhumb.NoNode:
		r.promisedTo = m.From
	}
	if m.From != r.promisedTo {
		r.quarantine(fmt.Sprintf("invariant I1: epoch %d has primaries %s and %s", m.Epoch, r.promisedTo, m.From))
		return false
	}
	return true
}

// answerPrepare hands out the Promise that is due: after the sync of this Ready, or at once when everything is durable.
// When only an earlier Ready's sync is awaited, Persisted brings the answer.
func (r *Replica) answerPrepare() {
	if !r.promiseDue {
		return
	}
	commit := max(r.commit, r.known)
	m := r.stamp(Message{Kind: Promise, To: r.promisedTo, Epoch: r.promised, Prev: r.log.last().Position})
	m.Commit = commit
	if mark, ok := r.log.at(commit); ok {
		m.CommitHash = mark.Hash
	}
	switch {
	case r.out.MustSync:
		r.out.AfterSync = append(r.out.AfterSync, m)
	case r.promisedDurable == r.promised && r.durable == r.handed:
		r.out.Messages = append(r.out.Messages, m)
	default:
		return
	}
	r.promiseDue = false
}

// stepPromise takes a member's answer. A later life of the member replaces what an earlier one said.
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

// prepare advances rule P: it asks for what is missing, and reports whether the epoch may begin. Every Ready calls it.
func (r *Replica) prepare() (done bool) {
	if r.role != activating || r.beginsWithoutAsking() {
		return r.role == activating
	}
	r.prep.why = ""
	if missing := r.answersMissing(); missing != "" {
		r.prep.why = missing
		return false
	}
	best := r.log.last().Position
	holder := r.bestAnswer()
	if holder != nil && longer(holder.last, best) {
		best = holder.last
	}
	if why := r.reportedBeyond(best.Seq); why != "" {
		// The logs that reach that far are with members that have not answered. Beginning now would lose acknowledged
		// entries.
		r.prep.why = why
		return false
	}
	if best != r.log.last().Position {
		if r.prep.stuck == "" {
			r.adoptFrom(holder)
		}
		r.prep.why = cmp.Or(r.prep.stuck, fmt.Sprintf("%s has a longer log, up to %s", holder.node, best))
		return false
	}
	if here, ok := r.log.at(r.prep.reported.seq); ok && r.prep.reported.contradicts(here.Position) {
		r.prep.why = fmt.Sprintf("%s has another entry committed at %d than this log holds", r.prep.reported.node, here.Seq)
		return false
	}
	return true
}

// contradicts reports whether an entry is another one than the member has committed at its place.
func (c *report) contradicts(pos entry.Position) bool {
	return pos.Seq == c.seq && c.hash != (entry.Hash{}) && c.hash != pos.Hash
}

// answersMissing says what is missing for a decision: MinInSync answers, this replica's own included, or one of a recorded
// life; and until PrepareWait has passed those of all members, since the longest log need not be among the first.
func (r *Replica) answersMissing() string {
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
	waited := r.prep.began > 0 && r.now-r.prep.began >= r.cfg.PrepareWait
	switch {
	case have < r.cfg.MinInSync && !r.oneAnswerSuffices():
		return fmt.Sprintf("%d of the in-sync members %v have told the ends of their logs, %d must", have, r.inSync, r.cfg.MinInSync)
	case !all && !waited:
		return "some in-sync members have not told the ends of their logs yet"
	}
	return ""
}

// bestAnswer returns the member's answer with the longest log, or nil.
func (r *Replica) bestAnswer() *answer {
	var best *answer
	for i := range r.prep.answers {
		a := &r.prep.answers[i]
		if p := r.peer(a.node); p == nil || !p.inSync {
			continue // it left the in-sync set since
		}
		if best == nil || longer(a.last, best.last) {
			best = a
		}
	}
	return best
}

// longer reports whether a log that ends at a is longer than one that ends at b: by the epoch of the last entry first,
// because a later primary had everything that was acknowledged before.
func longer(a, b entry.Position) bool {
	return a.Epoch > b.Epoch || a.Epoch == b.Epoch && a.Seq > b.Seq
}

// reportedBeyond says that a position above last was reported as committed, or "".
func (r *Replica) reportedBeyond(last rhumb.Seq) string {
	switch c := &r.prep.reported; {
	case c.seq > last:
		return fmt.Sprintf("%s knows position %d as committed, and the longest log at hand ends at %d", c.node, c.seq, last)
	case r.known > last:
		return fmt.Sprintf("this node has known position %d as committed, and the longest log at hand ends at %d", r.known, last)
	}
	return ""
}

// adoptFrom asks the holder of the best log for what this log lacks. After AdoptBytesMax it asks metadata to make the
// holder primary instead.
func (r *Replica) adoptFrom(best *answer) {
	if r.prep.declined != rhumb.NoNode || r.prep.asking != rhumb.NoNode {
		return // Tick repeats what has no answer
	}
	if r.prep.adopted > r.cfg.AdoptBytesMax {
		r.decline(best.node)
		return
	}
	r.askEntries(best.node, r.log.last().Position)
}

// askEntries asks a member for its entries after a position of this log.
func (r *Replica) askEntries(from rhumb.NodeID, after entry.Position) {
	r.prep.asking, r.prep.asked = from, after
	r.send(Message{Kind: Fetch, To: from, Epoch: r.promised, Prev: after})
	r.prep.timer.arm()
}

// decline asks metadata to elect the member with the longer log.
func (r *Replica) decline(to rhumb.NodeID) {
	r.prep.declined = to
	r.out.Meta = append(r.out.Meta, MetaProposal{Kind: ElectOther, Range: r.cfg.Range, Epoch: r.promised, Version: r.version, Node: to})
	r.prep.timer.arm()
	r.dirty = true
}

// stepFetch answers an elected replica that asks for the end of this log.
func (r *Replica) stepFetch(m *Message) {
	if !r.follow(m) || r.role != following {
		return
	}
	reply := Message{Kind: Suffix, To: m.From, Epoch: m.Epoch, Reject: m.Prev.Seq, Trim: r.log.trim}
	if hint, apart := r.parting(m.Prev); apart {
		reply.HintEpoch, reply.HintEnd = hint.Epoch, hint.Seq
		r.send(reply)
		return
	}
	last := r.log.last().Position
	switch {
	case m.Prev.Seq < r.log.trim:
		reply.Trimmed = true
		r.send(reply)
	case m.Prev.Seq >= last.Seq: // a later life than the one that answered Prepare: its disk has lost the end
		reply.HintEpoch, reply.HintEnd = last.Epoch, last.Seq
		r.send(reply)
	case r.suffixRead == m.Epoch:
		// One read at a time: a question that is repeated because the disk is slow must not make it slower.
	default:
		r.suffixRead = m.Epoch
		r.out.Fetch = append(r.out.Fetch, LogRead{
			To: m.From, Epoch: m.Epoch, From: m.Prev.Seq + 1, Until: last.Seq, BytesMax: r.cfg.AppendBytesMax,
		})
		r.dirty = true
	}
}

// sendSuffix sends what storage read for an elected replica. When nothing could be read the elected replica asks again.
func (r *Replica) sendSuffix(f LogRead, entries []*entry.Entry) {
	if r.role != following || f.Epoch != r.promised || f.To != r.promisedTo || len(entries) == 0 {
		return
	}
	prev := entry.Position{Epoch: r.log.epochAt(f.From - 1), Seq: f.From - 1, Hash: entries[0].Prev}
	r.send(Message{Kind: Suffix, To: f.To, Epoch: f.Epoch, Prev: prev, Entries: entries})
}

// stepSuffix takes entries of the best log, and undoes what stands in their place.
func (r *Replica) stepSuffix(m *Message) {
	if r.role != activating || m.Epoch != r.promised || m.From != r.prep.asking {
		return
	}
	r.dirty = true
	if a := r.answerOf(m.From); a != nil && a.life < m.Life {
		// The log that the member told of was that of an earlier life: its disk may have lost the end since. To fall back
		// to the next best answer would count a copy that is not there: all members are asked again.
		r.prep.answers, r.prep.asking = nil, rhumb.NoNode
		r.ask()
		return
	}
	if a := r.answerOf(m.From); a != nil && r.reportedBeyond(a.last.Seq) != "" {
		r.prep.asking = rhumb.NoNode // a report that came meanwhile: nothing is undone for this log
		return
	}
	switch {
	case m.Trimmed:
		r.decline(m.From)
	case len(m.Entries) == 0:
		r.backUp(m)
	default:
		if here, ok := r.log.at(m.Prev.Seq); !ok || here.Hash != m.Prev.Hash {
			return // an answer to an earlier question
		}
		for _, e := range m.Entries {
			if r.prep.reported.contradicts(e.Position()) || r.contradicts(e.Position()) {
				r.stick(m.From, e.Seq)
				return
			}
			r.prep.adopted += entrySize(e)
		}
		r.take(m)
		r.prep.asking = rhumb.NoNode
	}
}

// backUp asks again from further back: the logs part before the position that was asked for.
func (r *Replica) backUp(m *Message) {
	if m.Reject != r.prep.asked.Seq || m.Reject == 0 {
		return
	}
	_, end := r.log.endOf(m.HintEpoch)
	to := min(m.HintEnd, end, m.Reject-1)
	here, ok := r.log.at(to)
	if !ok || to < r.commit {
		r.stick(m.From, r.commit)
		return
	}
	r.askEntries(m.From, here.Position)
}

// stick notes that the best log and this one, or what a member knows, differ in a committed entry: no choice between them
// is right, and the range waits for a person.
func (r *Replica) stick(holder rhumb.NodeID, seq rhumb.Seq) {
	r.prep.stuck = fmt.Sprintf("the log of %s holds another entry at %d than is committed", holder, seq)
}

// tickPreparation repeats what was asked.
func (r *Replica) tickPreparation() {
	if r.prep.began == 0 {
		r.prep.began = r.now
	}
	every := r.cfg.Retransmit
	if r.prep.declined != rhumb.NoNode {
		every = r.cfg.ChangeRetry
	}
	if r.prep.timer.due(r.now, every) {
		if to := r.prep.declined; to != rhumb.NoNode {
			r.decline(to)
		}
		r.prep.asking = rhumb.NoNode
		r.ask()
	}
	r.dirty = true
}
