// Package audit is the record of who administered a node and who logged in. A Log appends entries to segment files in one
// directory. Each entry carries the SHA-256 of its content and of the entry before it, so that a changed, removed or
// inserted entry breaks the chain at a known file and offset. Verify finds the first break.
//
// Append returns once the entry is on disk. Entries of concurrent callers share one fsync. Segments are bounded in size
// and in number. Before the oldest segment is removed, an entry records its name and the hash of its last entry, so the
// remaining chain still shows that nothing else is missing.
//
// The chain cannot show that entries were cut off its end. Keep the head, which Verify and the log of the node print,
// on another machine and pass it to Verify.
//
// Entries hold names of users, tables and commands. They never hold values of records, passwords or verifiers.
//
// docs/formats/audit.md describes the bytes.
package audit
