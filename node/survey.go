package node

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// surveyLoop sends the measurements of this node to the metadata leader at intervals.
func (m *member) surveyLoop() {
	t := time.NewTicker(place.SurveyEvery)
	defer t.Stop()
	// Kept by this loop, because it alone takes surveys.
	speeds := make(rates)
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-t.C:
		}
		// An earlier build refuses the request, so it is sent only once the cluster version has it.
		if !m.group.State().Has(rhumb.FeatureSurviveRegion) {
			continue
		}
		// A survey that takes longer than the interval is superseded by the next.
		ctx, cancel := context.WithTimeout(m.ctx, place.SurveyEvery)
		if err := m.group.Survey(ctx, m.takeSurvey(speeds)); err != nil {
			m.n.cfg.Logger.Debug("cannot deliver the survey", "err", err)
		}
		cancel()
	}
}

// takeSurvey measures the round trips to other regions, and the sizes and the writes of the ranges of this node's primaries.
func (m *member) takeSurvey(speeds rates) place.Survey {
	st := m.group.State()
	s := place.Survey{From: m.self.Node}
	// The nearest node of a region counts as its distance: a slow node says nothing about the way.
	least := make(map[rhumb.RegionID]time.Duration)
	for n := range st.Nodes() {
		if n.Region == m.region || n.State != rhumb.NodeLive {
			continue
		}
		if d, ok := m.host.Leases().RTT(n.ID); ok && (least[n.Region] == 0 || d < least[n.Region]) {
			least[n.Region] = d
		}
	}
	for region, d := range least {
		s.Regions = append(s.Regions, place.RegionRTT{Region: region, Micros: uint32(max(d.Microseconds(), 1))})
	}
	now := time.Since(m.born)
	// Only the primary reports a range, so that each range has one size at the leader.
	for r := range st.Ranges() {
		if r.Primary == m.self.Node {
			// The counters of the log are kept for each range anyway; speeds cost two subtractions.
			size := m.host.RangeSize(r.ID)
			speed := speeds.observe(now, r.ID, size.Written, size.Entries)
			s.Ranges = append(s.Ranges, place.RangeSize{
				Range: r.ID, Bytes: size.Data, Writes: uint32(min(speed.entriesPer, math.MaxUint32)), WrittenRate: uint64(speed.bytesPer),
			})
		}
	}
	speeds.forget(now)
	s.Copies = m.takeCopies()
	if n := len(m.n.engine.Stores()); n > 1 {
		s.Stores = uint32(n)
		s.Apart = m.listApart(st)
		// The planner must not take a copy that was left out for one that is where it should be.
		if s.KnowsApart = len(s.Apart) <= place.SurveyApartMax; !s.KnowsApart {
			s.Apart = nil
		}
	}
	if len(s.Ranges) > place.SurveyRangesMax {
		slices.SortFunc(s.Ranges, func(a, b place.RangeSize) int { return cmp.Compare(b.Bytes, a.Bytes) })
		s.Ranges = s.Ranges[:place.SurveyRangesMax]
	}
	return s
}

// listApart returns the ranges whose copy on this node is in another store than that of the range before them: both could be merged otherwise.
func (m *member) listApart(st *catalog.State) (out []place.ApartCopy) {
	var left *rhumb.Range
	for r := range st.Ranges() {
		before := left
		left = r
		// Ranges come in the order of their slots. A copy that is not made yet has no store.
		if before == nil || before.Class != r.Class || before.ID.Region != r.ID.Region || !before.IsReplica(m.self.Node) || !r.IsReplica(m.self.Node) {
			continue
		}
		a, b := m.n.engine.Placed(before.ID), m.n.engine.Placed(r.ID)
		if a != nil && b != nil && a != b {
			out = append(out, place.ApartCopy{Range: r.ID, Version: r.Version})
		}
	}
	return out
}

// mergesInto returns the range before a range, if an operation is about to merge both. Each node knows the operations from its copy of the
// metadata, so no message says where to make a copy.
func (m *member) mergesInto(id rhumb.RangeID) (rhumb.RangeID, bool) {
	st := m.group.State()
	for o := range st.Operations() {
		if o.Kind != rhumb.OperationMerge || o.State.IsOver() || o.Range != id {
			continue
		}
		if r, ok := st.Range(id); ok {
			if left, ok := st.LeftOf(r); ok {
				return left.ID, true
			}
		}
	}
	return rhumb.RangeID{}, false
}

// takeCopies returns the copies that this node is receiving, for the progress of operations.
func (m *member) takeCopies() (out []place.CopyShare) {
	transfers := m.Transfers()
	if transfers == nil {
		return nil
	}
	for _, p := range transfers.Progress() {
		// A copy that failed and waits for its next attempt has no sender.
		if p.From != rhumb.NoNode && len(out) < place.SurveyCopiesMax {
			out = append(out, place.CopyShare{Range: p.Range, Done: p.Done, Of: p.Of})
		}
	}
	return out
}
