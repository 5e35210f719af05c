// Package roll decides how the next generation of a shard is made, and makes it.
//
// A shard is rolled when its append area is full, or when somebody asks for it. There are two ways. PlanKept keeps the layout
// of the base: every record stays where it is, newer versions take the places of older ones, and new keys come after the
// base, together with versions that do not fit. Index, order and R-tree are then copies in which few references change, and
// the roll costs little more than copying memory. PlanAnew lists what is visible and builds a new layout. It always works,
// and takes several times as long.
//
// A plan is a value. It is complete before a byte of the new generation is written: it knows what becomes of each key, where
// it goes, how large the new base is, and how much of it lies idle. PlanKept returns a Reason if the layout cannot be kept.
// Only the quality of a changed R-tree and a lack of overflow buckets show while the plan is built; Kept.Build then returns a
// Reason too, and its file is recycled.
//
// # What a plan reads
//
// The append area is read in order, which memory is good at. The base is not read unless it must be: the versions that are
// replaced lie anywhere, and each costs a wait for memory. A segment therefore notes while it links records whether all newer
// versions have the shape of the older ones (Segment.Reshaped). If they have, all of them fit and nothing else changes in
// what lies idle. If they have not, the plan reads the replaced versions, many at a time. It was tried to assume that all
// versions fit, to compare while they are written, and to begin again in another file when one did not: that was as fast,
// wrote up to a whole base for nothing, and its state had to survive from one roll to the next.
//
// # Invariants
//
//   - A roll keeps, for every key, what views at the last closed timestamp need.
//   - Records of the open commit go along: they are linked in the new generation and are not committed there.
//   - A place in the new base belongs to one key. Places of the append area of before mean nothing in the new generation, even
//     where the numbers are the same.
//   - The old generation is only read.
//
// # Testing
//
// Tests of this package plan and build generations from seeds and compare them with a map. Package snapshot rolls whole images
// and reads them with its own reader.
package roll
