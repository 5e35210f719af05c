package roll

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/segment"
)

// Input describes a shard at the moment of the roll.
type Input struct {
	Old   *segment.Segment
	Shard segment.Shard
	// Version is the newest committed version. The new base shows it.
	Version uint64
	// Closed is the newest closed timestamp of the image, 0 if there is none.
	Closed rhumb.Timestamp
	// ShardClosed is the closed timestamp of the old generation. Versions that only earlier views
	// need are already gone.
	ShardClosed rhumb.Timestamp
	// Wall is the time in ns since 1970. Records that expire at or before it are dropped.
	Wall int64
	// Room is the space that must be free in the new generation.
	Room segment.Room
}

// goal returns the goal of the new generation. newest is the greatest timestamp of a record after
// the base: without a closed timestamp only views at later timestamps are complete, because the
// roll drops earlier versions.
func (in *Input) goal(newest rhumb.Timestamp, room segment.Room) segment.Goal {
	if in.Closed != 0 {
		newest = in.Closed
	}
	return segment.Goal{Shard: in.Shard, Version: in.Version, Closed: max(newest, in.ShardClosed), Room: room}
}

// Reason is the reason why the layout of a base is not kept. It is empty if the layout is kept.
type Reason string

// The reasons not to keep a layout.
const (
	EmptyBase      Reason = "the base is empty"
	TimestampsFall Reason = "the timestamps of a key fall, so that closed views need more than its last version"
	TooMuchWaste   Reason = "too much of the base would lie idle"
	HeapFull       Reason = "the heap would outgrow its references"
	TreeDamaged    Reason = "the R-tree was damaged since the file was opened"
	OrderDamaged   Reason = "the order was damaged since the file was opened"
	BoxCrosses     Reason = "a box crosses the antimeridian and takes two leaves"
	TreeFull       Reason = "the R-tree would have too many leaves"
	TreeGrewWorse  Reason = "boxes moved so far that queries would read too much"
	BucketsRanOut  Reason = "the index ran out of overflow buckets"
	AppendAreaFull Reason = "the records after the base ran out of room in the index or in a delta"
)

// Result is the outcome of a roll.
type Result struct {
	Segment *segment.Segment
	// NotKept says why the layout was not kept; empty if it was.
	NotKept Reason
	// CopiedIndex reports whether the index was copied instead of built, as it nearly always is in
	// a kept layout.
	CopiedIndex bool
}

// Roller plans and builds generations. Its plans share memory: a plan is good until the next one is
// made.
type Roller struct {
	Builder *segment.Builder

	kept    Kept
	refs    []uint32 // of a survey
	chain   []uint32 // versions of one key
	fetches segment.Fetches
}

// Roll makes the next generation: with the layout of the base if it can be kept, and else with a
// new one. The file stays locked against readers.
func (r *Roller) Roll(in Input) (Result, error) {
	// Planning costs little compared with building: it reads the append area once.
	plan, reason := r.PlanKept(in)
	if reason == "" {
		seg, why, err := plan.Build()
		if err != nil {
			return Result{}, err
		}
		if why == "" {
			return Result{Segment: seg, CopiedIndex: plan.copiedIndex}, nil
		}
		// The plan looked good but its result was not. Build has recycled the file, so the new
		// layout can use it.
		reason = why
	}
	seg, err := r.PlanAnew(in).Build()
	return Result{Segment: seg, NotKept: reason}, err
}
