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
//
// # Failures
//
// An event that must be recorded before something happens is passed to Append, whose error forbids what was about to
// happen. An event that anybody can cause, such as a failed login, is passed to Note, which never waits: a stranger must
// not slow the node down through its log. Notes that find no room are counted, and an entry has the count.
//
// A write that fails leaves the end of the file in doubt. The next write reads the file again from the disk, cuts it after
// the last valid entry and continues there. So a disk that was full needs no restart of the node.
//
// # Testing
//
// Each byte of a log is flipped, each line removed and doubled, and each file cut and removed; Verify must find every
// such change. A fuzz target reads any content.
package audit
