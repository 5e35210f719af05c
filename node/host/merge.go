package host

import (
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// This file unites copies (docs/replication.md#rule-merge). The replicas of two
// ranges know nothing of each other; the host, which has both, lets the right one
// end, lets the left one take over, and unites the copies when the takeover is
// committed.

// MergeRule is a rule of merges that the host keeps.
type MergeRule uint8

// The rules.
const (
	// EndIsCommitted: a range takes over another one only after the end of that one
	// is committed.
	EndIsCommitted MergeRule = 1
	// MemberHasEnd: a member acknowledges a takeover only if it has the end that it
	// names.
	MemberHasEnd MergeRule = 2
)

// mayGoOn lets a simulator break a rule on purpose.
func (h *Host) mayGoOn(rule MergeRule, ok bool) bool {
	if h.cfg.Probe != nil && h.cfg.Probe.Merge != nil {
		return h.cfg.Probe.Merge(rule, ok)
	}
	return ok
}

// mergePair returns the two slots of a merge that this node has both of, given one
// of them.
func (h *Host) mergePair(s *slot) (left, right *slot, ok bool) {
	d := s.desc.Load()
	if d == nil || !d.IsMerging() {
		return nil, nil, false
	}
	if left = s; d.Ends != 0 {
		left, ok = h.homeSlot(rhumb.RangeID{Region: s.id.Region, Slot: s.id.Slot - 1})
		if !ok {
			return nil, nil, false
		}
	}
	// The records of both ranges may arrive apart, so that one of them still shows the time before
	// the merge.
	l := left.desc.Load()
	if l == nil || l.TakesOver == 0 {
		return nil, nil, false
	}
	right, ok = h.findSlot(rhumb.RangeID{Region: s.id.Region, Slot: l.LastSlot() + 1})
	if !ok || left.gone || right.gone || !left.made || !right.made || left.last != l.LastSlot() {
		return nil, nil, false
	}
	r := right.desc.Load()
	return left, right, r != nil && r.Ends == l.TakesOver
}

// advanceMerge lets the primaries of two ranges that are to be merged take the next
// step, if both are on this node. Each step is decided again in every pass, so
// nothing is remembered.
func (h *Host) advanceMerge(s *slot) {
	left, right, ok := h.mergePair(s)
	// Copies in different stores cannot be united without moving data.
	if !ok || left.store != right.store || !left.r.MayTake() {
		return
	}
	if right.r.MayEnd() {
		// The right range ends only when the left one could take over at once: its
		// slots have no service in between.
		if left.r.MembersReady() {
			right.r.EndRange()
			h.markDirty(right)
		}
		return
	}
	if take, above, ok := right.r.Ended(); !take.IsZero() && h.mayGoOn(EndIsCommitted, ok) {
		left.r.TakeOver(take, above)
		h.markDirty(left)
	}
}

// admitTakes cuts off a message before an entry that takes over a range whose end
// this node does not have on disk. So whoever acknowledges the entry can unite its
// copies, and a committed one proves that every member of the in-sync set can
// (docs/replication.md#rule-merge). It returns false if nothing of the message is
// left, or something else was done with it.
func (h *Host) admitTakes(s *slot, m *replica.Message) bool {
	for i, e := range m.Entries {
		take := e.Take()
		if take.IsZero() || h.mayGoOn(MemberHasEnd, h.hasEnd(s, take)) {
			continue
		}
		if i > 0 {
			m.Entries = m.Entries[:i:i]
			return true
		}
		// Before the entry is committed, the end arrives with the log of its range,
		// and the message is repeated. The sender of a committed one has united its
		// copies, and that log is gone: the united range has to be copied, as if
		// the log were trimmed.
		if m.Commit < e.Seq {
			return false
		}
		h.log.Debug("a copy cannot be united, because the end of the other range is missing; it is to be replaced", "range", s.id.String(), "entry", e.Seq)
		if m.Kind == replica.Suffix {
			m.Entries, m.Trimmed, m.Trim = nil, true, e.Seq
		} else {
			*m = replica.Message{Kind: replica.LogTrimmed, Range: m.Range, From: m.From, To: m.To, Life: m.Life, Epoch: m.Epoch, Commit: m.Commit, Trim: e.Seq}
		}
		return true
	}
	return true
}

// placeBeside assigns a range that this node is about to get a copy of to the store of the range that it is to be merged with. Copies in two
// stores cannot be united. A store that still holds something of the range keeps it: a range in two stores would have two logs.
func (h *Host) placeBeside(id rhumb.RangeID) {
	if h.cfg.MergesInto == nil {
		return
	}
	left, ok := h.cfg.MergesInto(id)
	if !ok {
		return
	}
	s, found := h.findSlot(left)
	if !found || s.gone {
		return
	}
	if old := h.cfg.Engine.Placed(id); old != nil {
		if _, holds := old.State(id); holds {
			return
		}
	}
	h.cfg.Engine.Place(id, s.store)
}

// hasEnd reports whether this node has the end that an entry of a range names, or
// has united its copies by it.
func (h *Host) hasEnd(s *slot, take entry.Take) bool {
	if s.last >= take.Last {
		return true
	}
	right, ok := h.findSlot(rhumb.RangeID{Region: s.id.Region, Slot: take.Slot})
	if !ok || right.gone || !right.made || right.store != s.store || right.r.State() == replica.Quarantined {
		return false
	}
	st, ok := s.store.State(right.id)
	return ok && st.End == storage.End{Epoch: take.Epoch, Seq: take.Seq} && max(st.Range.Slot, st.LastSlot) == take.Last
}

// unite unites the copy of a range with that of the range whose slots it takes
// over, by an entry that is applied. If this node lacks the other copy, it cannot,
// and the replica is quarantined: another node has to send a whole copy.
func (h *Host) unite(s *slot, t replica.Taken, commits []*commit) (_ []*commit, ok bool) {
	right, found := h.findSlot(rhumb.RangeID{Region: s.id.Region, Slot: t.Take.Slot})
	if !found || !h.hasEnd(s, t.Take) {
		why := fmt.Sprintf("entry %d takes over range %s, and this node does not have the end of its log at %d:%d", t.Seq, rhumb.RangeID{Region: s.id.Region, Slot: t.Take.Slot}, t.Take.Epoch, t.Take.Seq)
		s.r.Damaged(why)
		return commits, false
	}
	// What the right replica still has to say to callers, and what this pass has
	// staged for it, comes first.
	for right.r.HasReady() && !h.abandoned {
		commits = h.carryOut(right, right.r.Ready(), commits)
	}
	for _, c := range commits {
		if h.applyCommit(c); h.abandoned {
			return commits, false
		}
	}
	// The batch is of its own: it is the first that carries a commit position up to the entry, so
	// that a crash leaves either both copies and an older position, or the united copy.
	next := &commit{batch: s.store.NewBatch()}
	if err := next.batch.Unite(s.id, t.Seq, t.Take); err != nil {
		h.cfg.Fatal(rhumb.Wrap("host.Host.unite", err))
		return commits, false
	}
	commits = append(commits, next)
	if h.applyCommit(next); h.abandoned {
		return commits, false
	}
	h.m.merges.Inc()
	h.log.Info("united two ranges", "range", s.id.String(), "right", right.id.String(), "last", t.Take.Last, "entry", t.Seq)
	s.last = t.Take.Last
	s.r.SetLastSlot(s.last)
	// Requests of clients of the right range are in the store now.
	s.requests = requests{}
	h.retireSlot(right)
	return commits, true
}

// retireSlot ends the replica of a range whose slots another copy of this node has.
func (h *Host) retireSlot(right *slot) {
	right.gone = true
	right.read.Store(nil)
	// A copy that comes here later, whatever the metadata says by then, keeps the promise.
	h.floors[right.id] = max(h.floors[right.id], right.r.Epoch())
	for _, a := range right.r.Retire() {
		h.answerProposal(a)
	}
	held := h.takeHeld(right)
	h.forgetSlot(right)
	// They are for the other range now, which this pass may still be working on.
	for _, ev := range held {
		ev.since = h.rt.Now()
		if !h.enqueue(ev) {
			h.refuseEvent(ev)
		}
	}
}

// mergedIn returns the slots of this node, apart from one, that begin within the
// slots of a range and were merged into it elsewhere: they have ended, or were
// about to.
func (h *Host) mergedIn(s *slot, last rhumb.Slot) (out []*slot) {
	return slices.DeleteFunc(h.slotsIn(s, last), func(o *slot) bool {
		d, into := o.desc.Load(), s.desc.Load()
		ended := o.r.HasEnded() || d != nil && d.Ends != 0 || into != nil && slices.Contains(into.Merged, o.id.Slot)
		return o.gone || !ended
	})
}

// slotsIn returns the slots of this node, apart from one, that begin within the
// slots of a range.
func (h *Host) slotsIn(s *slot, last rhumb.Slot) (out []*slot) {
	for _, o := range h.allSlots {
		if o != s && o.id.Region == s.id.Region && s.id.Slot < o.id.Slot && o.id.Slot <= last {
			out = append(out, o)
		}
	}
	return out
}

// freeLast returns the last slot that an empty copy of a range may have here. A
// copy of a range that it took over elsewhere may be left, until the copy of the
// united range comes.
func (h *Host) freeLast(s *slot, d *rhumb.Range) rhumb.Slot {
	last := d.LastSlot()
	for _, o := range h.allSlots {
		if o != s && o.id.Region == d.ID.Region && d.ID.Slot < o.id.Slot && o.id.Slot <= last {
			last = o.id.Slot - 1
		}
	}
	return last
}

// pruneMerged drops the copies of ranges that were merged, if this node has no copy
// of the range that took over, and does not get one.
func (h *Host) pruneMerged(merged func(rhumb.RangeID) bool) {
	for _, s := range slices.Clone(h.allSlots) {
		if s.gone || !merged(s.id) || h.isAwaited(s) {
			continue
		}
		dropRangesEvent{[]rhumb.RangeID{s.id}}.applyTo(h)
	}
}

// isAwaited reports whether a copy of this node waits to be united with that of a
// range that has ended, or to replace it.
func (h *Host) isAwaited(right *slot) bool {
	return slices.ContainsFunc(h.allSlots, func(o *slot) bool {
		d := o.desc.Load()
		if o == right || d == nil || d.ID.Region != right.id.Region || !d.IsReplica(h.cfg.Self.Node) {
			return false
		}
		return d.Holds(right.id) || d.LastSlot()+1 == right.id.Slot
	})
}
