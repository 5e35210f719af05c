package roll

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/segment"
)

// Anew is the plan of a roll with a new layout: the list of records that the new generation keeps.
type Anew struct {
	builder *segment.Builder
	goal    segment.Goal
	source  segment.Source
}

// Build writes the new generation.
func (a *Anew) Build() (*segment.Segment, error) { return a.builder.Build(a.goal, &a.source) }

// PlanAnew lists the records that a new generation keeps: for each key the newest version and, if a
// closed timestamp is known, all versions down to the newest one that is not later than it. The
// oldest version that is kept goes into the base; the others are appended again.
func (r *Roller) PlanAnew(in Input) *Anew {
	old := in.Old
	src := segment.Source{Heap: old.Heap, Refs: r.refs[:0], PendingFrom: old.Done(), PendingTo: old.Tail()}
	newest := rhumb.Timestamp(0)
	v := old.RelativeVersion(in.Version)
	for head := range old.Heads() {
		// Newest first. A chain is short: the versions since the last roll.
		versions := r.chain[:0]
		for ref := head; ref != segment.NoRef; ref = old.Heap.At(ref).Prev {
			if old.Heap.At(ref).Ver > v {
				continue // the record belongs to the open commit, or was aborted
			}
			at := old.Heap.HLC(ref)
			newest = max(newest, at)
			versions = append(versions, ref)
			if at <= in.Closed || in.Closed == 0 {
				break // no remaining view needs an earlier version
			}
		}
		r.chain = versions
		keepVersions(&src, versions, in.Wall)
	}
	r.refs = src.Refs
	return &Anew{builder: r.Builder, goal: in.goal(newest, in.Room), source: src}
}

// keepVersions adds the versions of a key, newest first. A tombstone or an expired record without a
// predecessor carries no information and is dropped.
func keepVersions(src *segment.Source, versions []uint32, wall int64) {
	n := len(versions)
	for n > 0 && src.Heap.HasNoValue(versions[n-1], wall) {
		n--
	}
	if n == 0 {
		return
	}
	src.Refs = append(src.Refs, versions[n-1])
	src.Units += uint64(src.Heap.Units(versions[n-1]))
	for i := n - 2; i >= 0; i-- {
		src.Replay = append(src.Replay, versions[i])
		src.ReplayUnits += uint64(src.Heap.Units(versions[i]))
	}
}
