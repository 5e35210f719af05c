// Package ingest reads live feeds and files and writes them to Rhumb: controlstream and
// surfacestream (Popeye and Roadrunner, "Overview"), NDJSON, CSV and TSV, plain or compressed with
// gzip.
//
// Data passes these stages: lineReader splits the input into lines; a decoder splits a line into
// pairs of key and value; a Mapping defines which pairs form names, locations and times, and
// produces an Event with one or more rows; the dispatcher passes events to workers, which write
// them through a Writer.
//
// # Invariants
//
//   - One event is one atomic batch: all its rows are in one range and are applied together or not at all.
//   - Events of one record are written in input order, one batch at a time. An event whose order fields
//     are not newer than those of its record changes nothing, so replaying a feed is exact.
//   - If an event cannot be written, no later event of its record is written either, and the run ends.
//     Otherwise a restart would conclude from the later event that the earlier one had been applied.
//   - A plan, by which lines with known keys are mapped, produces the same event as looking up every key,
//     or none at all.
//   - The counts add up: lines = applied + already there + rejected + failed.
//
// # Concurrency
//
// One goroutine reads, decodes and maps. Workers write. The mutex of the dispatcher guards the
// queues of records; counts are atomic. The window bounds the events and bytes that have been read
// and not yet answered.
//
// # Testing
//
// Formats are tested with transcripts in testdata and by fuzzing, the dispatcher with a Writer in
// memory that fails on demand, and the whole with real processes in cmd/rhumb. An allocation budget
// guards the decode path: copying text, not the disks, was the first bottleneck of Popeye.
package ingest
