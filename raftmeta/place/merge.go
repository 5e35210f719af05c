package place

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// This file merges small ranges on its own
// (docs/decisions/0063-small-ranges-are-merged.md). Planner.Merges starts an operation
// for two neighbours that have been small for a while, and mover.advanceMerge carries it
// out: it brings the copies and the primary of the right range to the nodes of the left
// one, and then asks for the merge (docs/replication.md#rule-merge).

const (
	// MergeShare is the part of the split size below which two ranges together are small:
	// a fifth. A merged range is then far from the next split. The writes of ten minutes
	// at the present speed count too, so that a table that is being filled is left alone.
	MergeShare = 5
	// MergesMax bounds the merges in progress in the whole cluster. Each makes the
	// requests for one range wait for two commits.
	MergesMax = 1
	// MergeEvery is the interval at which the planner looks for small ranges. Sizes are
	// reported as often, and no more than one merge begins in it.
	MergeEvery = SurveyEvery
	// MergeWithin is how long an operation may take before it is given up.
	MergeWithin = 10 * time.Minute
	// MergeRest is how long a range is left alone after its operation was given up or cancelled.
	MergeRest = 10 * time.Minute
)

// MergeAfter returns how long two ranges must be small before they are merged; on is
// false if none are.
func MergeAfter(s *catalog.State) (after time.Duration, on bool) {
	value := s.Setting(rhumb.SettingRangeMergeAfter)
	if value == rhumb.RangeMergeNever {
		return 0, false
	}
	if d, err := time.ParseDuration(value); err == nil {
		return d, true
	}
	return rhumb.RangeMergeAfterDefault, true
}

// MergeBytes returns the size below which two ranges together are small.
func MergeBytes(s *catalog.State) int64 { return SplitBytes(s) / MergeShare }

// Merges starts the merge of the two neighbours that have the least data, as an operation
// that an operator can see, pause and cancel. They must have been small for as long as
// the setting says, as this leader has seen. Nothing begins while another merge is not
// over, and while balance would wait: a node is down, or sizes are missing.
//
// Copies in two stores of a node cannot be united, and such a member would hold the merge up. The operation moves
// such a copy away and back, so another node must have room for it.
//
// A class keeps as many ranges in a region as it was created with, and a range that an
// operator split off is kept.
func (p *Planner) Merges(now time.Duration, wall time.Time, s *catalog.State, v *Surveys) []catalog.Command {
	after, on := MergeAfter(s)
	if !s.Has(rhumb.FeatureMerge) || !on {
		p.small = nil
		return nil
	}
	if p.looked > 0 && now-p.looked < MergeEvery {
		return nil
	}
	p.looked = max(now, 1)
	var best *rhumb.Range
	var least int64
	small := make(map[rhumb.RangeID]time.Duration)
	eachSmall(now, s, v, func(right *rhumb.Range, bytes int64) {
		since, known := p.small[right.ID]
		if !known {
			since = now
		}
		small[right.ID] = since
		if now-since >= after && (best == nil || bytes < least) && !restsFromMerge(s, right.ID, wall) {
			best, least = right, bytes
		}
	})
	p.small = small
	// The cheap reasons first. The spells continue while another merge is in progress.
	if best == nil || countMerges(s) >= MergesMax {
		return nil
	}
	if waits, _ := balanceWaits(now, s, v); waits != "" {
		return nil
	}
	return []catalog.Command{catalog.StartOperation{Kind: rhumb.OperationMerge, Range: best.ID, By: "cluster", At: wall}}
}

// eachSmall calls found with each range that is small together with the one before it and
// could be one range with that, and with the size of both.
func eachSmall(now time.Duration, s *catalog.State, v *Surveys, found func(right *rhumb.Range, bytes int64)) {
	type part struct {
		region rhumb.RegionID
		class  rhumb.ClassID
	}
	spare := make(map[part]int)
	for r := range s.Ranges() {
		at := part{r.ID.Region, r.Class}
		if _, known := spare[at]; !known {
			class, _ := s.Class(r.Class)
			spare[at] = -class.Settings.HashSlots
		}
		// Ranges of inserts do not count: they are in blocks of nodes.
		if b, ok := s.BlockOf(r.ID); ok && b.Node == rhumb.NoNode && r.Birth == 0 {
			spare[at]++
		}
	}
	// Ranges come in the order of their slots, so the one before each is its neighbour,
	// unless a range is reserved in between; WhyNotJoin below finds that out.
	limit, busy := MergeBytes(s), busyRanges(s)
	var left *rhumb.Range
	for right := range s.Ranges() {
		before := left
		left = right
		// The cheap questions first: most ranges are large, or as many as they were.
		if before == nil || right.Kept || spare[part{right.ID.Region, right.Class}] <= 0 || busy[before.ID] || busy[right.ID] {
			continue
		}
		a, known := v.Size(now, before)
		b, both := v.Size(now, right)
		bytes := weighTogether(a, b)
		if !known || !both || bytes >= limit {
			continue
		}
		if to, why := s.WhyNotJoin(right); why == "" && to.ID == before.ID && mayMove(s, before) && mayMove(s, right) && fitTogether(before, right) &&
			canBeTogether(s, v, before, right) {
			found(right, bytes)
		}
	}
}

// weighTogether returns the size of two ranges, with the writes that are expected soon.
func weighTogether(a, b RangeSize) int64 {
	bytesA, loadA := a.heft()
	bytesB, loadB := b.heft()
	return bytesA + loadA + bytesB + loadB
}

// fitTogether reports whether the right range may have its own copies and those on the
// nodes of the left one at the same time.
func fitTogether(left, right *rhumb.Range) bool {
	return len(right.Replicas)+len(without(left.Replicas, right.Replicas)) <= rhumb.ReplicasMax
}

// canBeTogether reports whether each node of two ranges has their copies in one store, or can get them there: its copy of the right range moves
// to a node that has none, and back. A node that does not report its stores holds the merge up.
func canBeTogether(s *catalog.State, v *Surveys, left, right *rhumb.Range) bool {
	if slices.ContainsFunc(slices.Concat(left.Replicas, right.Replicas), v.hidesStores) {
		return false
	}
	for _, id := range right.Replicas {
		if apart, _ := v.Apart(id, right); apart && left.IsReplica(id) && !hasSpare(s, v, right, id) {
			return false
		}
	}
	return true
}

// hasSpare reports whether a node of the region of another one, whose disk is not full, could hold a copy of a range for it.
func hasSpare(s *catalog.State, v *Surveys, r *rhumb.Range, of rhumb.NodeID) bool {
	at, ok := s.Node(of)
	for n := range s.Nodes() {
		if ok && n.Region == at.Region && !r.IsReplica(n.ID) && s.TakesCopies(n.ID) && !slices.Contains(v.Unfit, n.ID) {
			return true
		}
	}
	return false
}

// without returns the nodes that are not among others.
func without(nodes, others []rhumb.NodeID) []rhumb.NodeID {
	return slices.DeleteFunc(slices.Clone(nodes), func(id rhumb.NodeID) bool { return slices.Contains(others, id) })
}

// mergingRanges returns the ranges that operations are about to merge.
func mergingRanges(s *catalog.State) map[rhumb.RangeID]bool {
	out := make(map[rhumb.RangeID]bool)
	for o := range s.Operations() {
		if o.Kind != rhumb.OperationMerge || o.State.IsOver() {
			continue
		}
		out[o.Range] = true
		if right, ok := s.Range(o.Range); ok {
			if left, ok := s.LeftOf(right); ok {
				out[left.ID] = true
			}
		}
	}
	return out
}

// busyRanges returns the ranges that operations are about to merge or move.
func busyRanges(s *catalog.State) map[rhumb.RangeID]bool {
	out := mergingRanges(s)
	for o := range s.Operations() {
		if o.Kind == rhumb.OperationMove && !o.State.IsOver() {
			out[o.Range] = true
		}
	}
	return out
}

// countMerges counts the operations that merge ranges. One that is paused counts, so an
// operator can hold all merges.
func countMerges(s *catalog.State) (n int) {
	for o := range s.Operations() {
		if o.Kind == rhumb.OperationMerge && !o.State.IsOver() {
			n++
		}
	}
	return n
}

// restsFromMerge reports whether the merge of a range was given up or cancelled lately,
// by the wall clock of the leader.
func restsFromMerge(s *catalog.State, right rhumb.RangeID, wall time.Time) bool {
	for o := range s.Operations() {
		if o.Kind == rhumb.OperationMerge && o.Range == right && o.State.IsOver() && o.State != rhumb.OperationDone && wall.Sub(o.Ended) < MergeRest {
			return true
		}
	}
	return false
}

// advanceMerge brings a small range to the nodes of the range before it, and asks for the
// merge of both.
func (m *mover) advanceMerge(o *rhumb.Operation) {
	right, ok := m.s.Range(o.Range)
	switch {
	case !ok && m.s.IsMerged(o.Range):
		m.record(o, rhumb.OperationDone, workLeft{}, 3)
		return
	case !ok:
		m.fail(o, "the range does not exist any more")
		return
	// The primary decides from here on: it completes the merge, or cancels it within seconds.
	case right.Ends != 0:
		m.record(o, rhumb.OperationRunning, workLeft{left: 1, waits: fmt.Sprintf("%s makes one range of both", right.Primary)}, 2)
		return
	}
	left, why := m.s.WhyNotJoin(right)
	if why == "" {
		why = m.whyGiveUp(o, left, right)
	}
	if why != "" {
		m.fail(o, why)
		return
	}
	// Bytes count only while copies move: the other steps move none.
	step, waits := m.stepMerge(left, right)
	// The steps of both ranges count: the marks are set by a command about the left one.
	t := workLeft{left: 1, waits: cmp.Or(m.p.whyRefused(subject{Range: left.ID}), waits)}
	if step == 0 {
		t.left = 0
		m.weigh(&t, right.ID)
	}
	m.record(o, rhumb.OperationRunning, t, step)
}

// whyGiveUp returns why the merge of two ranges is not worth going on, or "".
func (m *mover) whyGiveUp(o *rhumb.Operation, left, right *rhumb.Range) string {
	a, known := m.size(left.ID)
	b, both := m.size(right.ID)
	switch limit := MergeBytes(m.s); {
	case o.Running(m.wall) > MergeWithin:
		return fmt.Sprintf("not done within %v: %s", MergeWithin, o.Waits)
	case known && both && a+b >= limit:
		return fmt.Sprintf("ranges %s and %s have grown to %s, and less than %s are merged", left.ID, right.ID, mebibytes(a+b), mebibytes(limit))
	case !fitTogether(left, right):
		return fmt.Sprintf("range %s cannot have a copy on each of %s besides its own", right.ID, rhumb.NodeList(left.Replicas))
	}
	return ""
}

// apart returns a node that has the copies of two ranges in different stores, or NoNode. sure is false if the node may have them in
// one by now.
func (m *mover) apart(left, right *rhumb.Range) (id rhumb.NodeID, sure bool) {
	if m.measures.Apart == nil {
		return rhumb.NoNode, false
	}
	for _, id := range right.Replicas {
		if apart, sure := m.measures.Apart(id, right); apart && left.IsReplica(id) {
			return id, sure
		}
	}
	return rhumb.NoNode, false
}

// bringTogether moves the copy of a range away from a node that has it in another store than the range before it, and returns the obstacle. The
// steps after that bring it back, as to any node of the left range that has no copy, and the node makes it in the right store.
func (m *mover) bringTogether(right *rhumb.Range, id rhumb.NodeID, sure bool) string {
	why := fmt.Sprintf("%s has the copies in two of its stores, and its copy of range %s is to move away and back", id, right.ID)
	if !sure {
		return why + "; its next report is awaited"
	}
	if waits := m.move(right, rhumb.NoNode, id).waits; waits != "" {
		why += ": " + waits
	}
	return why
}

// stepMerge plans the next step of a merge. It returns the number of steps that are done,
// and the obstacle.
func (m *mover) stepMerge(left, right *rhumb.Range) (done int, waits string) {
	leave, lack := without(right.Replicas, left.Replicas), without(left.Replicas, right.Replicas)
	if id, sure := m.apart(left, right); id != rhumb.NoNode {
		return 0, m.bringTogether(right, id, sure)
	}
	switch {
	// The copies of the left range are where those of the right one go.
	case len(leave)+len(lack) > 0 && (!mayMove(m.s, left) || len(leave) == 0):
		return 0, fmt.Sprintf("the copies of range %s are on %s, and those of range %s on %s", left.ID, rhumb.NodeList(left.Replicas), right.ID, rhumb.NodeList(right.Replicas))
	case len(leave) > 0:
		// New copies come first, one after the other; then the primary moves to that of
		// the left range, and the old copies go.
		to := left.Primary
		if len(lack) > 0 {
			to = lack[0]
		}
		return 0, m.move(right, to, leave...).waits
	case right.Primary != left.Primary && !right.IsInSync(left.Primary):
		return 1, fmt.Sprintf("%s is not in sync in range %s", left.Primary, right.ID)
	case right.Primary != left.Primary:
		version := right.Version
		if right.Preferred != left.Primary {
			m.out = append(m.out, catalog.SetReplicas{Range: right.ID, Version: version, Replicas: right.Replicas, Preferred: left.Primary})
			version++
		}
		m.out = append(m.out, m.p.takeOver(m.now, m.s, right, version, left.Primary, false)...)
		return 1, fmt.Sprintf("%s takes over from %s", left.Primary, right.Primary)
	}
	// The replicas settle the rest: a member that lags, or a copy that is damaged.
	if why := m.s.WhyNotMerge(left); why != "" {
		return 2, why
	}
	m.out = append(m.out, catalog.PrepareMerge{Range: left.ID, Version: left.Version, RightVersion: right.Version})
	return 2, fmt.Sprintf("%s makes one range of both", right.Primary)
}
