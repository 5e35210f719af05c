package storage

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// Batch gathers the writes of one commit: those of all ranges that are ready. It is made by one goroutine, applied
// once, and then synced, by another goroutine if that is convenient. Methods that take a range panic when the store does
// not hold it and when the write breaks an invariant of the log: such a caller is broken, and going on would spread it.
type Batch struct{}

// NewBatch makes an empty batch.
func (s *Store) NewBatch() *Batch { panic("not written yet") }

// Store gives the store that the batch writes to.
func (b *Batch) Store() *Store { panic("not written yet") }

// Empty reports whether the batch holds no write.
func (b *Batch) Empty() bool { panic("not written yet") }

// CreateRange makes room for a range that the store does not hold. A replica that begins in the middle of a log gives
// the position from which it goes on in st.Last; a new one gives only st.Range.
func (b *Batch) CreateRange(st RangeState) { panic("not written yet") }

// Append writes an entry: its values, its log record, the results of its requests. The commit position rides along.
func (b *Batch) Append(id rhumb.RangeID, e *entry.Entry, commit Commit) { panic("not written yet") }

// Undo removes all entries above a position with everything that they wrote. It reads the log records of these entries,
// and fails when one of them cannot be read; the batch is then unchanged.
func (b *Batch) Undo(id rhumb.RangeID, above rhumb.Seq) error { panic("not written yet") }

// SetPromised records a promise. A promise below the recorded one is ignored.
func (b *Batch) SetPromised(id rhumb.RangeID, e rhumb.Epoch) { panic("not written yet") }

// SetCommit records a commit position without an append. A position below the recorded one is ignored.
func (b *Batch) SetCommit(id rhumb.RangeID, c Commit) { panic("not written yet") }

// SetClosed records a closed timestamp. One below the recorded is ignored.
func (b *Batch) SetClosed(id rhumb.RangeID, closed rhumb.Timestamp) { panic("not written yet") }

// Trim allows entries up to a position to go; Collect removes them. A position above the recorded commit position or
// below the recorded trim position is cut to it.
func (b *Batch) Trim(id rhumb.RangeID, to rhumb.Seq) { panic("not written yet") }

// DropRange removes a range with all its data.
func (b *Batch) DropRange(id rhumb.RangeID) { panic("not written yet") }

// Apply makes the batch visible to reads, not yet durable. DiskFull means that nothing was applied and that the same
// batch may be applied again later; after any other error the batch must be dropped.
func (b *Batch) Apply() error { panic("not written yet") }

// Sync waits until the applied batch is durable, and with it every batch applied before. The batch must not be used
// afterwards.
func (b *Batch) Sync() error { panic("not written yet") }

// Drop gives up a batch that was not applied.
func (b *Batch) Drop() { panic("not written yet") }
