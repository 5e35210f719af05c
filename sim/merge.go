package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/host"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	evidence "github.com/rhumbdb/rhumb/raftmeta/place"
	"github.com/rhumbdb/rhumb/sim/check"
)

// This file merges ranges (docs/replication.md#rule-merge): those that came from
// splits of one root. The judges follow a merge like this:
//
//   - The first replica unites its copies: the end that its entry names must be committed, nothing may be ordered or served by the right range
//     from then on, and the log of the left range stands for both (check.Monitor.Merge).
//   - Every replica that unites its copies must have the end, and all must unite by the same entry.
//   - A member of the in-sync set that has the entry must have united its copies, or have the end on disk (united).
//   - At the end the records on disk are compared with those of both logs (check.Replay).

// taken is a range that another one took over.
type taken struct {
	// at is the position of the entry, right the index of the range that ended, and
	// end the entry that ended it.
	at    rhumb.Seq
	right int
	end   entry.Position
}

// drawMerges decides whether ranges of a seed are merged. Only ranges of one root
// are, so some must be split. The planner knows no roots: where it merges ranges,
// there is one.
func (p *profile) drawMerges(r *rand.Rand, on, small bool) {
	if r.IntN(4) == 0 || !on || !p.splits() {
		return
	}
	p.faults = append(p.faults, faultMerge)
	// A third of them, so that most runs still have several roots.
	if r.IntN(3) == 0 && small {
		p.small, p.ranges, p.settings.HashSlots = true, 1, 1
	}
}

// Times of merges that the planner starts. In the simulator all ranges are small
// all the time, and splits make new ones.
const (
	mergeAfter  = "5s"
	surveyEvery = 2 * time.Second
)

// mergeSmall lets the planner merge small ranges until the last fault: nodes send
// surveys, and the setting is short.
func (w *world) mergeSmall() {
	if !w.p.small {
		return
	}
	w.setMergeAfter(mergeAfter)
	w.every(surveyEvery, func() {
		for _, n := range w.nodes {
			if !n.down && !n.paused && n.host != nil && !w.healed {
				n.run(n.life, func() { n.spawn(n.survey) })
			}
		}
	})
}

// setMergeAfter sets the setting, and tries again until it is set: metadata may be
// cut off. After the last fault no merge begins, and operations in progress are
// cancelled: their copies would move while the judges expect them to be in sync.
func (w *world) setMergeAfter(value string) {
	if !w.p.small || w.healed && value != rhumb.RangeMergeNever {
		return
	}
	if w.state.Setting(rhumb.SettingRangeMergeAfter) != value {
		w.proposeOnce(catalog.SetSetting{Name: rhumb.SettingRangeMergeAfter, Value: value})
		w.after(surveyEvery, func() { w.setMergeAfter(value) })
		return
	}
	if w.healed {
		w.holdBalance()
	}
}

// holdBalance stops balance, which the surveys have set going, and then cancels all
// other operations. Balance would start new ones for those that are cancelled.
func (w *world) holdBalance() {
	at := time.Unix(0, int64(w.now))
	var cmd catalog.Command = catalog.StartOperation{Kind: rhumb.OperationRebalance, By: "sim", At: at}
	for o := range w.state.Operations() {
		switch {
		case o.Kind != rhumb.OperationRebalance || o.State.IsOver():
		case o.State == rhumb.OperationPaused:
			w.endOperations()
			return
		default:
			cmd = catalog.ControlOperation{ID: o.ID, Action: catalog.PauseOperation, At: at}
		}
	}
	w.proposeOnce(cmd)
	w.after(time.Second, w.holdBalance)
}

// survey reports the sizes of the ranges of this node's primaries, as package node
// does.
func (n *node) survey() {
	s := evidence.Survey{From: n.id}
	for r := range n.group.State().Ranges() {
		if r.Primary == n.id {
			s.Ranges = append(s.Ranges, evidence.RangeSize{Range: r.ID, Bytes: n.host.DataBytes(r.ID)})
		}
	}
	ctx, cancel := n.rt.WithTimeout(n.ctx, surveyEvery)
	defer cancel()
	// A survey that is lost is followed by the next.
	_ = n.group.Survey(ctx, s)
}

// merges reports whether ranges of this run are merged.
func (p *profile) merges() bool { return slices.Contains(p.faults, faultMerge) }

// mergeRanges asks for a merge of two ranges, as an operator does, and lets
// something happen to them at about that time.
func (w *world) mergeRanges() string {
	var able []*rhumb.Range
	for _, id := range w.served() {
		left, _ := w.state.Range(id)
		if right, ok := w.state.RightOf(left); ok && w.rootOf(right.ID) == w.rootOf(id) && w.state.WhyNotMerge(left) == "" {
			able = append(able, left)
		}
	}
	if len(able) == 0 {
		return ""
	}
	// The versions are those of the newest state, so a change in between makes the catalog refuse
	// the command, as it would refuse that of an operator.
	left := oneOf(w.chance, able...)
	right, _ := w.state.RightOf(left)
	if !w.proposeOnce(catalog.PrepareMerge{Range: left.ID, Version: left.Version, RightVersion: right.Version}) {
		return ""
	}
	if w.cfg.Bug == MergeBeforeUnion {
		w.after(w.p.metaDelay, func() {
			if l, ok := w.state.Range(left.ID); ok {
				w.proposeOnce(catalog.CompleteMerge{Range: l.ID, Epoch: l.Epoch, Merge: l.TakesOver})
			}
		})
	}
	return "ranges " + left.ID.String() + " and " + right.ID.String() + ", " + w.disturbRange(oneOf(w.chance, left, right))
}

// noteReshaped records that a replica divides or unites its copies, in the order of
// the entries.
func (n *node) noteReshaped(id rhumb.RangeID, births []replica.Birth, takes []replica.Taken) {
	for len(births)+len(takes) > 0 && n.w.err == nil {
		if len(takes) == 0 || len(births) > 0 && births[0].Seq < takes[0].Seq {
			n.noteBorn(id, births[:1])
			births = births[1:]
			continue
		}
		n.noteTaken(id, takes[0])
		takes = takes[1:]
	}
}

// noteTaken records that a replica unites its copies.
func (n *node) noteTaken(left rhumb.RangeID, t replica.Taken) {
	w := n.w
	right := rhumb.RangeID{Region: left.Region, Slot: t.Take.Slot}
	i, j := w.rangeIndex(left), w.rangeIndex(right)
	if j < 0 {
		w.failf("%s takes over range %s, which never existed", n.id, right)
		return
	}
	o := &w.origin[i]
	k := slices.IndexFunc(o.takes, func(x taken) bool { return x.right == j })
	// The first replica that learns of the commit. All others must unite their
	// copies by the same entry.
	if k < 0 {
		if w.judge(w.monitor.Merge(left, right, t.Seq)); w.err != nil {
			return
		}
		k = len(o.takes)
		o.takes = append(o.takes, taken{at: t.Seq, right: j, end: w.monitor.Log(right).Entries[t.Take.Seq-1].Position()})
		w.stats.Merges++
	}
	if x := o.takes[k]; x.at != t.Seq {
		w.failf("%s takes over range %s by entry %d, another replica by entry %d", n.id, right, t.Seq, x.at)
		return
	}
	c := n.disk.copies[j]
	if c == nil || int(t.Take.Seq) > len(c.entries) || c.entries[t.Take.Seq-1].Position() != o.takes[k].end {
		// The host quarantines such a copy. Only a disk that lost something is an
		// excuse.
		if n.wasDamaged || n.spoiled[i] > 0 || n.spoiled[j] > 0 {
			n.spoiled[i] = w.now
			w.monitor.Lost(left, n.id, t.Seq)
			return
		}
		w.failf("%s unites range %s with %s, and lacks the end of the latter", n.id, left, right)
		return
	}
	delete(n.disk.unmarked, c)
	n.disk.copies[j], n.disk.quarantined[j] = nil, false
	n.disk.merged[j] = true
	w.tracef(n.name(), "unites %s with %s by entry %d", left, right, t.Seq)
}

// united is the view of the judges on a copy of a range that took over others. It
// holds the entry that took over, and what follows, if it was united with the other
// copy, or can be.
type united struct {
	check.Replica
	n *node
	i int
}

// Durable implements check.Replica.
func (u united) Durable(seq rhumb.Seq) (entry.Position, bool) {
	w := u.n.w
	for _, t := range w.origin[u.i].takes {
		// Before a restart an entry of an earlier epoch may be in the place of the one
		// that took over. It is as durable as any other.
		at, ok := u.Replica.Durable(t.at)
		if ok && at != w.monitor.Log(w.ranges[u.i]).Entries[t.at-1].Position() {
			continue
		}
		if seq >= t.at && !u.n.canUnite(u.i, &t) {
			return entry.Position{}, false
		}
	}
	return u.Replica.Durable(seq)
}

// canUnite reports whether the copy of a range was united with that of the range
// that it took over, or has what it needs for that.
func (n *node) canUnite(i int, t *taken) bool {
	if c := n.disk.copies[i]; c == nil || c.commit >= t.at {
		return true
	}
	c := n.disk.copies[t.right]
	if c == nil {
		return false
	}
	is, ok := c.Durable(t.end.Seq)
	return ok && is == t.end
}

// noteAbsorbed records that a copy which was installed has the slots of ranges that
// were merged: their copies are gone.
func (n *node) noteAbsorbed(id rhumb.RangeID) {
	st, _ := n.disk.engine.Store(id).State(id)
	for j, other := range n.w.ranges {
		if other.Region == id.Region && id.Slot < other.Slot && other.Slot <= st.LastSlot && n.disk.copies[j] != nil {
			delete(n.disk.unmarked, n.disk.copies[j])
			n.disk.copies[j], n.disk.quarantined[j], n.disk.merged[j] = nil, false, true
		}
	}
}

// isMerged reports whether another range has taken over a range.
func (w *world) isMerged(j int) bool {
	return slices.ContainsFunc(w.origin, func(o lineage) bool {
		return slices.ContainsFunc(o.takes, func(t taken) bool { return t.right == j })
	})
}

// seeMerge plants the bugs of merges in the host.
func (n *node) seeMerge(rule host.MergeRule, ok bool) bool {
	switch {
	case n.w.cfg.Bug == TakeBeforeCommit && rule == host.EndIsCommitted, n.w.cfg.Bug == TakeWithoutEnd && rule == host.MemberHasEnd:
		return true
	}
	return ok
}

// tookOver reports whether a position of a range is that of an entry which took
// over the range that ordered a request.
func (w *world) tookOver(i int, seq rhumb.Seq, id rhumb.RequestID) bool {
	return slices.ContainsFunc(w.origin[i].takes, func(t taken) bool {
		return t.at == seq && slices.ContainsFunc(w.monitor.Log(w.ranges[t.right]).Entries, func(e *entry.Entry) bool { return holdsRequest(e, id) })
	})
}
