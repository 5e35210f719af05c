package host

import (
	"maps"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// This file divides copies (docs/replication.md#rule-split). The replica says when: with the commit of an entry of its log.
// Metadata only says that a record is reserved, and later that the new range has its slots. A node that lacks the entry keeps
// its whole copy and creates no replica of the new range.

// Bounds of the messages that are kept for ranges that are not born on this node: those of the first moments of a range. They
// save its primary a retransmission.
const (
	earlyRangesMax   = 64
	earlyMessagesMax = 16
	earlyBytesMax    = 64 << 10
)

// holdsSlot reports whether one of the ranges of a store holds a home and does not begin there.
func holdsSlot(states []storage.RangeState, home rhumb.RangeID) bool {
	return slices.ContainsFunc(states, func(st storage.RangeState) bool {
		return st.Range.Region == home.Region && st.Range.Slot < home.Slot && home.Slot <= st.LastSlot
	})
}

// wasDivided reports, at the start, whether the store has a copy that was divided elsewhere at a reserved range (lacks).
func (h *Host) wasDivided(states []storage.RangeState, reserved *rhumb.Range) bool {
	return slices.ContainsFunc(states, func(st storage.RangeState) bool {
		d := h.known[st.Range]
		return d != nil && dividedBefore(d, max(st.Range.Slot, st.LastSlot), reserved)
	})
}

// holder returns the slot of another range that holds a home: a copy that is not divided yet. It may be on its way out.
func (h *Host) holder(home rhumb.RangeID) *slot {
	for _, s := range h.allSlots {
		if s.id.Region == home.Region && s.id.Slot < home.Slot && home.Slot <= s.last {
			return s
		}
	}
	return nil
}

// isUnborn reports whether a range that is placed on this node has to wait: until it is born anywhere, or until this node has
// divided the copy that holds its slots.
func (h *Host) isUnborn(d *rhumb.Range) bool {
	return h.holder(d.ID) != nil || d.Birth != 0 && !slices.ContainsFunc(h.allSlots, func(s *slot) bool { return s.lacks(d) })
}

// lacks reports whether the copy was divided elsewhere at a reserved range: the record still holds the slots of that range, and the
// copy does not. The disk of this node was emptied or went back, and the copy that it got ends before them.
func (s *slot) lacks(reserved *rhumb.Range) bool {
	d := s.desc.Load()
	return d != nil && s.made && !s.gone && dividedBefore(d, s.last, reserved)
}

// dividedBefore reports whether a copy that ends with slot last was divided already at a range which is reserved in the record of
// the copy.
func dividedBefore(d *rhumb.Range, last rhumb.Slot, reserved *rhumb.Range) bool {
	return d.ID != reserved.ID && d.Holds(reserved.ID) && last < reserved.ID.Slot
}

// noteUnborn keeps the record of such a range.
func (h *Host) noteUnborn(d *rhumb.Range) {
	if old := h.unborn[d.ID]; old == nil || old.Version < d.Version {
		h.unborn[d.ID] = d
		h.reserve(d)
	}
}

// reserve passes the replica of the range that is to be divided of the reserved record, or that there is nothing left to do.
func (h *Host) reserve(d *rhumb.Range) {
	s := h.holder(d.ID)
	if s == nil || s.gone {
		return
	}
	if d.Birth == 0 {
		// Another primary has divided the range. This copy follows with its log.
		d = nil
	}
	s.r.Reserve(d)
	h.markDirty(s)
}

// unbornRecords returns the records of ranges that wait, in a fixed order: replays of a simulation must not differ.
func (h *Host) unbornRecords() []*rhumb.Range {
	return slices.SortedFunc(maps.Values(h.unborn), func(a, b *rhumb.Range) int { return a.ID.Compare(b.ID) })
}

// reserveAll is reserve for all ranges that wait.
func (h *Host) reserveAll() {
	for _, d := range h.unbornRecords() {
		h.reserve(d)
	}
}

// forgetUnborn forgets a range that is not placed here any more.
func (h *Host) forgetUnborn(id rhumb.RangeID) {
	if _, ok := h.unborn[id]; !ok {
		return
	}
	h.endWait(id)
	if s := h.holder(id); s != nil && !s.gone {
		s.r.Reserve(nil)
	}
}

// endWait ends the wait for the birth of a range, and returns the messages that came for it.
func (h *Host) endWait(id rhumb.RangeID) (early []replica.Message) {
	early = h.early[id]
	delete(h.unborn, id)
	delete(h.early, id)
	delete(h.forfeited, id)
	return early
}

// Prune forgets the ranges that wait to be born and that metadata does not know any more: the split was cancelled, or the class
// dropped. It drops the copies of ranges that were merged, if no copy of this node waits to be united with them.
func (h *Host) Prune(exists, merged func(rhumb.RangeID) bool) { h.post(pruneEvent{exists, merged}) }

// pruneEvent is a call of Prune.
type pruneEvent struct{ exists, merged func(rhumb.RangeID) bool }

// applyTo forgets the ranges in a fixed order.
func (ev pruneEvent) applyTo(h *Host) {
	for _, d := range h.unbornRecords() {
		if !ev.exists(d.ID) {
			h.forgetUnborn(d.ID)
		}
	}
	h.pruneMerged(ev.merged)
}

// settleUnborn creates the copies of ranges that can not be born here any more: the copy that held their slots was dropped, or
// was replaced by one that was divided elsewhere.
func (h *Host) settleUnborn() {
	for _, d := range h.unbornRecords() {
		if !h.isUnborn(d) {
			h.setRecord(h.startUnborn(d), d)
		}
	}
}

// startUnborn starts the empty copy of such a range. Its answers count as little as those of any disk that was emptied, so the range
// can begin although the record counts the copy as in sync (docs/replication.md#rule-split).
//
// If the copy that went had the entry of the split, its acknowledgement may have committed the entry, and no disk has lost anything.
// An election must not take the empty copy for that one: it is quarantined.
func (h *Host) startUnborn(d *rhumb.Range) *slot {
	had := h.forfeited[d.ID] || h.unborn[d.ID] != nil && d.LifeOf(h.cfg.Self.Node) == h.cfg.Self.Boot
	h.endWait(d.ID)
	if !had || !d.IsInSync(h.cfg.Self.Node) {
		return h.addCopy(d)
	}
	h.log.Warn("the copy of a range that was split off was not made here before the copy that held its slots was replaced; the replica is quarantined and copies the range", "range", d.ID.String())
	s, _ := h.addSlot(storage.RangeState{Range: d.ID, LastSlot: d.Last, Promised: h.floors[d.ID], Quarantine: "the copy that held its slots was replaced before it was divided"}, false)
	return s
}

// forfeit remembers the ranges that a copy, which goes, was about to be divided for.
func (h *Host) forfeit(s *slot) {
	for id := range h.unborn {
		if id.Region == s.id.Region && s.id.Slot < id.Slot && id.Slot <= s.last && s.r.HasSplit(id.Slot) {
			h.forfeited[id] = true
		}
	}
}

// keepEarly keeps a message for a range that may be born in this pass.
func (h *Host) keepEarly(m *replica.Message) {
	if _, waits := h.unborn[m.Range]; !waits && h.holder(m.Range) == nil {
		return
	}
	kept := h.early[m.Range]
	if len(kept) >= earlyMessagesMax || kept == nil && len(h.early) >= earlyRangesMax || entriesSize(m.Entries) > earlyBytesMax {
		return
	}
	h.early[m.Range] = append(kept, *m)
}

// awaitsBirth reports whether a batch has keys that the range is about to lose.
func (h *Host) awaitsBirth(s *slot, ev *proposeEvent) bool {
	if s.r.State() != replica.Primary {
		return false
	}
	if s.r.HasEnded() {
		return true
	}
	at, splits := s.r.Splitting()
	if !splits {
		return false
	}
	return slices.ContainsFunc(ev.batch.Mutations, func(m rhumb.Mutation) bool { return h.homeOf(s.id, m.Table, m.Name).Slot >= at })
}

// holds reports whether held proposals must wait longer: for the end of an election, or of a split.
func (s *slot) holds() bool {
	if s.r.State() == replica.Activating {
		return true
	}
	_, splits := s.r.Splitting()
	return (splits || s.r.HasEnded()) && s.r.State() == replica.Primary
}

// reshape carries out births and takeovers, in the order of their entries. The order is what makes a crash harmless: everything up to
// an entry is applied before with the old commit position, and the batch that divides or unites copies is the first that carries a
// position up to the entry. Later entries follow in another batch: they are returned, and the last commit takes them. ok is false if
// copies could not be united, which quarantines the replica.
func (h *Host) reshape(s *slot, rd *replica.Ready, c *commit, commits []*commit) (rest []*entry.Entry, _ []*commit, ok bool) {
	born, taken, n := rd.Born, rd.Taken, 0
	ok = true
	for ok && len(born)+len(taken) > 0 {
		isBirth := len(taken) == 0 || len(born) > 0 && born[0].Seq < taken[0].Seq
		end := rhumb.Seq(0)
		if isBirth {
			end = born[0].Seq
		} else {
			end = taken[0].Seq
		}
		for n < len(rd.Append) && rd.Append[n].Seq <= end {
			c.batch.Append(s.id, rd.Append[n], storage.Commit{})
			n++
		}
		if h.applyCommit(c); h.abandoned {
			return nil, commits, false
		}
		if isBirth {
			commits = h.divide(s, born[0], commits)
			born = born[1:]
		} else {
			commits, ok = h.unite(s, taken[0], commits)
			taken = taken[1:]
		}
		if h.abandoned {
			return nil, commits, false
		}
		c = &commit{batch: s.store.NewBatch()}
		commits = append(commits, c)
	}
	return rd.Append[n:], commits, ok
}

// divide divides the copy of a range by an entry that is applied.
func (h *Host) divide(s *slot, b replica.Birth, commits []*commit) []*commit {
	next := &commit{batch: s.store.NewBatch()}
	// The promise of a copy that was here before holds for the new one, as in addCopy.
	id, err := next.batch.Split(s.id, storage.Split{At: b.At, Seq: b.Seq, Promised: h.floors[rhumb.RangeID{Region: s.id.Region, Slot: b.At}]})
	if err != nil {
		// The log here cannot be read up to the entry. A start finds the damage and quarantines the copy.
		h.cfg.Fatal(rhumb.Wrap("host.Host.divide", err))
		return commits
	}
	h.cfg.Engine.Place(id, s.store)
	commits = append(commits, next)
	if h.applyCommit(next); h.abandoned {
		return commits
	}
	h.bear(s, id, b)
	return commits
}

// bear starts the replica of a range that was split off.
func (h *Host) bear(parent *slot, id rhumb.RangeID, b replica.Birth) {
	parent.last = max(parent.id.Slot, b.At-1)
	parent.r.SetLastSlot(parent.last)
	st, _ := parent.store.State(id)
	fresh, err := h.addSlot(st, true)
	if err != nil {
		h.cfg.Fatal(rhumb.Wrap("host.Host.bear", err))
		return
	}
	h.indexSlots()
	h.m.splits.Inc()
	h.log.Info("divided a range", "range", parent.id.String(), "last", parent.last, "new", id.String(), "entry", b.Seq)
	if floor := h.floors[id]; floor > 0 {
		h.leases.excludeRange(id, floor, rhumb.NoNode)
	}
	// Before the old range is reported as committed beyond the entry.
	at, seq, _ := fresh.r.Readable()
	if fresh.committed = seq; h.cfg.Committed != nil {
		h.cfg.Committed(Committed{Range: id, Seq: seq, HLC: at, Parent: parent.id})
	}
	// The record that the node waited with. It says who is primary, and in which epoch.
	if d := h.unborn[id]; d != nil {
		h.setRecord(fresh, d)
	}
	// Members may have been faster: their messages are as good as those that arrive from now on.
	early := h.endWait(id)
	for i := range early {
		if h.admitMessage(fresh, &early[i]) {
			_ = fresh.r.Step(early[i]) // a message that does not fit is sent again
		}
	}
	h.markDirty(fresh)
	// Ranges above the new one may have waited for this copy.
	h.reserveAll()
	h.settleUnborn()
}
