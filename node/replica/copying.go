package replica

import (
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb"
)

// A replica whose log cannot be continued, because its primary has trimmed the part that follows,
// copies the range as a whole from another member (docs/replication.md#rule-transfer). The messages:
//
//   - LogTrimmed, from the primary, every behindEvery: the log is trimmed up to Trim.
//   - Copying, the answer: the replica copies a set that is committed up to Match. The primary keeps
//     the log from there on, within Config.CopyKeepBytes, for keepFor.
//   - Nack, the answer when the replica has got the entries: the primary compares the logs again.
//
// The copy itself is made by package transfer. It replaces the whole log, by one that is committed at
// least up to the end of the old log. So its effect is that of Appends which undo
// uncommitted entries and append committed ones.
const (
	behindEvery = time.Second
	keepFor     = 5 * behindEvery
)

// Lag describes a replica that needs a copy of the range.
type Lag struct {
	// Trim is the position up to which the primary has trimmed its log.
	Trim rhumb.Seq
	// Least is the position that a copy must be committed up to, so that nothing is lost that this
	// replica holds: its acknowledgements count while it is in the in-sync set.
	Least rhumb.Seq
}

// NeedsCopy reports whether the replica needs a copy of the range, according to the last message of
// its primary or of the holder of the best log.
func (r *Replica) NeedsCopy() (b Lag, ok bool) {
	if r.behindTrim == 0 || r.commit >= r.behindTrim || r.role == primary || r.role == quarantined || r.notice.kind == Readmit {
		return Lag{}, false
	}
	return Lag{r.behindTrim, max(r.Least(), r.behindTrim)}, true
}

// Least returns the position that a copy must be committed up to if it is to replace this log.
func (r *Replica) Least() rhumb.Seq { return max(r.log.last().Seq, r.commit, r.knownCommit) }

// MayReplace reports whether the driver may replace the log by a copy. A primary never may, and a
// replica that metadata lists as quarantined takes nothing before it is readmitted. A replica that handed over
// its range first answers the writes that it kept.
func (r *Replica) MayReplace() bool {
	return (r.role == following || r.role == activating) && r.notice.kind != Readmit && r.waiters.len() == 0
}

// SetCopying records the commit position of the set that is being copied, 0 for none, so that the
// primary keeps the log from there on.
func (r *Replica) SetCopying(at rhumb.Seq) {
	r.copying = at
	if r.role == following && r.promisedTo != rhumb.NoNode && at > 0 {
		r.send(Message{Kind: Copying, To: r.promisedTo, Epoch: r.promised, Match: at})
	}
}

// stepBehind handles the message that the log of the primary does not reach back far enough.
func (r *Replica) stepBehind(m *Message) {
	if !r.followEpoch(m) || r.role != following || r.notice.kind == Readmit {
		return
	}
	// By the commit position: above it this log may differ from the primary's, and then its end says
	// nothing.
	if r.commit >= m.Trim {
		last := r.log.last().Position
		r.behindTrim = 0
		r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: last.Seq + 1, HintEpoch: last.Epoch, HintEnd: last.Seq})
		return
	}
	r.behindTrim = m.Trim
	r.send(Message{Kind: Copying, To: m.From, Epoch: m.Epoch, Match: r.copying})
}

// stepCopying notes from which position on a peer will need the log.
func (r *Replica) stepCopying(m *Message) {
	p := r.peer(m.From)
	if r.role != primary || m.Epoch != r.promised || p == nil || !r.noteLife(p, m.Life) {
		return
	}
	p.copying, p.copyingUntil = m.Match, r.now+keepFor
	// The copy may reach up to a place that is trimmed meanwhile; then the peer begins another.
	r.dirty = true
}

// markLost records that a peer needs log that is trimmed.
func (r *Replica) markLost(p *progress) {
	p.flow, p.waiting = flowLost, false
	r.tellBehind(p)
}

// tellBehind sends LogTrimmed.
func (r *Replica) tellBehind(p *progress) {
	if p.connected {
		r.send(Message{Kind: LogTrimmed, To: p.node, Epoch: r.promised, Trim: r.log.trim})
	}
}

// tickLost repeats LogTrimmed.
func (r *Replica) tickLost(p *progress) {
	if p.flow == flowLost && p.connected && p.retransmitDue(r.now, behindEvery) {
		r.tellBehind(p)
	}
}

// keptForCopies returns the least position that a copy in progress will continue from.
func (r *Replica) keptForCopies() (at rhumb.Seq, ok bool) {
	for _, p := range r.peers {
		if p.copying > 0 && p.copyingUntil > r.now && (!ok || p.copying < at) {
			at, ok = p.copying, true
		}
	}
	return at, ok
}

// trimLimit returns how far the log may be trimmed although peers need more of it: up to the bound
// of the log, but not beyond the position at which a copy will continue, within a larger bound.
func (r *Replica) trimLimit() rhumb.Seq {
	to := r.log.bytes.pointAfter(r.cfg.LogKeepBytes).seq
	if at, ok := r.keptForCopies(); ok {
		to = min(to, max(at, r.log.bytes.pointAfter(max(r.cfg.LogKeepBytes, r.cfg.CopyKeepBytes)).seq))
	}
	return to
}

// whyLost is the reason for which a peer with trimmed log does not join.
func (r *Replica) whyLost(p *progress) string {
	why := fmt.Sprintf("log trimmed: it needs entries up to %d, which its primary has dropped", r.log.trim)
	if p.copying > 0 && p.copyingUntil > r.now {
		why += fmt.Sprintf("; it copies the range up to %d from another replica", p.copying)
	}
	return why
}
