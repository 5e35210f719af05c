// Package ingest reads live feeds and files and writes them into Rhumb: controlstream and surfacestream (Popeye and
// Roadrunner, "Overview"), NDJSON, CSV and TSV, plain or gzip.
//
// Data passes these stages: lineReader cuts the input into lines; a decoder cuts a line into pairs of key and value; a
// Mapping says which pairs make names, locations and times, and builds one Event of one or more rows; the dispatcher
// hands events to workers, which write them through a Writer.
//
// # Invariants
//
//   - One event is one atomic batch: all its rows lie in one range and appear together or not at all.
//   - Events of one record are written in the order of the input, one batch of them in flight at a time. An event whose
//     order fields are not newer than those of its record changes nothing, so a feed that is played again is exact.
//   - When an event cannot be written, no later event of its record is written either, and the run ends: otherwise a
//     restart would take the later one for proof that the earlier one was there.
//   - A plan, by which lines with known keys are mapped, gives the same event as looking up every key, or none at all.
//   - The counts add up: lines = applied + already there + rejected + failed.
//
// # Concurrency
//
// One goroutine reads, decodes and maps. Workers write. The dispatcher's mutex guards the queues of records; counts are
// atomic. The window bounds the events, and the bytes, that have been read and not yet answered.
//
// # Testing
//
// Formats are tested by transcripts in testdata and fuzzed; the dispatcher against a Writer in memory that fails as
// told; the whole against real processes in cmd/rhumb. An allocation budget guards the decode path (row P5: copying of
// text, not disks, was Popeye's first bottleneck).
package ingest
