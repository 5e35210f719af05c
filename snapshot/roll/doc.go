// Package roll plans and builds the next generation of a shard.
//
// A shard is rolled when its append area is full, or on request. There are two ways. PlanKept keeps
// the layout of the base: every record keeps its place, newer versions replace older ones in place,
// and new keys follow the base, together with versions that do not fit. Index, order and R-tree are
// then copies in which few references change, and the roll costs little more than copying memory.
// PlanAnew collects the visible records and builds a new layout. It always works, but takes several
// times as long.
//
// A plan is a value. It is complete before a byte of the new generation is written: it determines
// the record of each key, the place of that record, the size of the new base, and how much of the
// base is unused. PlanKept returns a Reason if the layout cannot be kept. Only a bad R-tree and a
// lack of overflow buckets are detected while the plan is built; Kept.Build then returns a Reason
// too, and its file is recycled.
//
// # Memory accesses of a plan
//
// The append area is read sequentially, which is fast. The base is read only if necessary: the
// replaced versions are scattered, and each access waits for memory. A segment therefore records,
// while it links records, whether all newer versions have the shape of the older ones
// (Segment.Reshaped). If so, all of them fit and the unused space does not change. Otherwise the
// plan reads the replaced versions, many at a time. An earlier design assumed that all versions
// fit, compared them while writing, and started over in another file when one did not fit. It was
// as fast, but wrote up to a whole base in vain, and its state had to survive from one roll to the
// next.
//
// # Invariants
//
//   - A roll keeps, for every key, the versions that views at the last closed timestamp need.
//   - Records of the open commit move along: they are linked in the new generation but not
//     committed there.
//   - A place in the new base belongs to one key. References into the old append area have no
//     meaning in the new generation, even where the numbers are the same.
//   - The old generation is only read.
//
// # Testing
//
// Tests of this package plan and build generations from seeds and compare them with a map. Package
// snapshot rolls whole images and reads them with its own reader.
package roll
