package snapshot

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/shm"
)

// A file goes through these states:
//
//	Take ──► live ──► retire ──► superseded ──► Recycle ──► recycled ──► Take
//	                                │ readers have it            │ too many, or no budget
//	                                └── waits for them           └──► removed
//
// Only the publisher moves a file from one state to the next. Readers take part only through the
// lock on byte 0. If a reader dies or is killed, the kernel releases its lock, so a dead reader
// never holds a file.

// retiredMax bounds the superseded files that keep their names while readers have them mapped. A
// name is needed only to recycle the file. Older files are unlinked at once, and their memory is
// freed with the last reader.
const retiredMax = 64

// files keeps the segment files of an image within its budget. A file is in one of three states:
// live, superseded while readers may still have it mapped, or recycled, ready for the next
// generation. Recycled files are kept because their pages are in memory already: faulting in fresh
// pages costs more than filling them.
//
// A file is reused only under the write lock on its byte 0, which any reader of the file blocks.
type files struct {
	cfg  *Config
	root *root
	// used is the size of all files, pinned that of the superseded ones that readers have mapped.
	// Stats reads both from any goroutine.
	used, pinned atomic.Int64
	// overdue is the size of the pinned files that were superseded longer ago than Config.Leash, so
	// that every view that holds one is past its leash. It counts in Config.OverdueMax and not in
	// the budget: a reader that never unlocks must not keep the others from getting new versions.
	overdue  atomic.Int64
	retired  []*shm.File // oldest first
	recycled []*shm.File
}

// Take returns a file of at least size bytes under a new generation number: a recycled one of a
// fitting size, or a new one. Its content is undefined, it is locked, and no reader has it mapped.
// Take skips recycled files that are more than twice as large, which suit other shards, and files
// less than half as large, which would have to grow by more than they save.
func (f *files) Take(op rhumb.Op, slot int, size int64) (*shm.File, error) {
	f.reclaimRetired()
	// A file that is too small is extended and keeps its pages.
	m := f.pickRecycled(size/2, size)
	// The budget is checked before the file is touched, so that a failed roll leaves everything as
	// it was.
	err := f.makeRoom(op, m, size)
	if err != nil {
		return nil, err
	}
	// A number that a failing call below wastes does no harm; a number used twice would.
	generation := f.root.nextGeneration()
	path := filepath.Join(f.cfg.Dir, format.SegmentName(slot, generation))
	if m != nil {
		err = m.Rename(path)
	} else if m, err = shm.CreateEmpty(path, f.cfg.fileMode()); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	if err == nil {
		err = f.extendFile(m, size)
	}
	if err != nil {
		// A file that could not be extended is of no use: the file system is full.
		f.Remove(m)
		return nil, rhumb.Wrap(op, err)
	}
	m.Generation = generation
	// No other process has the file open, so the lock is always granted. It keeps readers out until
	// the root names the file: a reader that guessed the name would see half a segment.
	m.TryLock()
	return m, nil
}

// pickRecycled removes and returns the smallest recycled file that has between size and 2*size
// bytes, or else the largest that has at least least bytes. It returns nil if there is none.
func (f *files) pickRecycled(least, size int64) *shm.File {
	best := -1
	for i, m := range f.recycled {
		n := int64(len(m.Mem))
		if n < least || n > 2*size {
			continue
		}
		if best < 0 || servesBetter(n, int64(len(f.recycled[best].Mem)), size) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	m := f.recycled[best]
	f.recycled = append(f.recycled[:best], f.recycled[best+1:]...)
	return m
}

// servesBetter reports whether a file of n bytes fits a request for size bytes better than a file
// of m bytes: it wastes less, or lacks less.
func servesBetter(n, m, size int64) bool {
	if n >= size {
		return m < size || n < m
	}
	return m < size && n > m
}

// makeRoom removes recycled files until a file of size bytes, or m extended to that size, is within
// the budget. If that is not enough, makeRoom returns m to the recycled files and returns an error.
func (f *files) makeRoom(op rhumb.Op, m *shm.File, size int64) error {
	more := size
	if m != nil {
		more = max(size-int64(len(m.Mem)), 0)
	}
	// Recycled files only save time, so they are removed first.
	for f.countedBytes()+more > f.cfg.Budget && len(f.recycled) > 0 {
		f.removeRecycled(0)
	}
	used := f.countedBytes()
	// A recycled file that is large enough adds nothing: it counts already.
	if more == 0 || used+more <= f.cfg.Budget {
		return nil
	}
	if m != nil {
		f.keepRecycled(m)
	}
	// The message names only pinned bytes that count in the budget: overdue files within OverdueMax
	// would mislead the operator.
	pinned, advice := used-(f.used.Load()-f.pinned.Load()), "raise the budget, or publish fewer tables"
	if pinned > 0 {
		advice = "end the readers that `rhumb snapshot pins` names, or raise the budget"
	}
	return rhumb.Ef(op, rhumb.Overloaded, "the image has %d bytes, of which readers pin %d; %d more would pass the budget of %d: %s",
		used, pinned, more, f.cfg.Budget, advice)
}

// countedBytes returns the bytes that count in the budget.
func (f *files) countedBytes() int64 {
	return f.used.Load() - min(f.overdue.Load(), f.cfg.OverdueMax)
}

// extendFile makes a file at least size bytes large. If the file system is full it removes the
// recycled files and tries once more.
func (f *files) extendFile(m *shm.File, size int64) error {
	was := int64(len(m.Mem))
	if was >= size {
		return nil
	}
	huge := f.cfg.HugePages == HugeTry
	err := m.Extend(size, huge)
	if rhumb.KindOf(err) == rhumb.DiskFull && len(f.recycled) > 0 {
		for len(f.recycled) > 0 {
			f.removeRecycled(0)
		}
		err = m.Extend(size, huge)
	}
	// A failed Extend leaves Mem unchanged, so the difference is 0 then.
	f.used.Add(int64(len(m.Mem)) - was)
	return err
}

// retire marks a live file as superseded. The root must not name it any more.
func (f *files) retire(m *shm.File) {
	// Readers do not need the state. Recovery and tools read it to see that the file is not live.
	m.Store64(format.SegmentState, format.SegmentSuperseded)
	m.Retired = time.Now()
	f.retired = append(f.retired, m)
	f.pinned.Add(int64(len(m.Mem)))
	f.reclaimRetired()
}

// doomAll makes all files that are not live go with their last reader. After a table was dropped, its records must not stay in a
// file that whoever may read the folder can read, nor in the unused rest of one that another table takes. Which of the files had
// its records is not known, and tables are dropped rarely: the next generations fault in fresh pages once.
func (f *files) doomAll() {
	for _, m := range f.retired {
		m.Doomed = true
	}
	for len(f.recycled) > 0 {
		f.removeRecycled(0)
	}
}

// reclaimRetired recycles the superseded files that no reader has mapped any more, and counts those
// that readers have had for longer than the leash.
//
// A reader may read the root before the file is superseded and lock the file only after this.
// Recycle has cleared the magic by then, so the reader notices and reads the root again.
func (f *files) reclaimRetired() {
	kept, overdue := f.retired[:0], int64(0)
	for i, m := range f.retired {
		if !m.TryLock() {
			// The oldest files are first in the list.
			if len(f.retired)-i > retiredMax && m.Path != "" {
				m.RemoveName()
			}
			if time.Since(m.Retired) > f.cfg.Leash {
				overdue += int64(len(m.Mem))
			}
			kept = append(kept, m)
			continue
		}
		f.pinned.Add(-int64(len(m.Mem)))
		// The write lock stays held through Recycle and the next Take, until just before the root
		// names the file again.
		f.Recycle(m)
	}
	clear(f.retired[len(kept):])
	f.retired = kept
	// Warn once when the first file becomes overdue, not on every call.
	if f.overdue.Swap(overdue) == 0 && overdue > 0 {
		f.cfg.Logger.Warn("readers keep superseded generations for longer than the leash; `rhumb snapshot pins` names them",
			"bytes", overdue, "leash", f.cfg.Leash)
	}
}

// Recycle keeps a file that is write-locked for the next generation, or removes it. The magic is
// cleared before anything else: from here on the file is not a segment, even for a process that has
// it open.
func (f *files) Recycle(m *shm.File) {
	m.Store64(0, 0) // the magic
	m.Store64(format.SegmentState, format.SegmentRecycled)
	if m.Doomed || m.Path == "" || m.Rename(filepath.Join(f.cfg.Dir, fmt.Sprintf("recycled.%d", m.Generation))) != nil {
		f.Remove(m)
		return
	}
	f.keepRecycled(m)
}

// keepRecycled adds a file to the recycled ones and removes the oldest that are too many.
func (f *files) keepRecycled(m *shm.File) {
	f.recycled = append(f.recycled, m)
	for len(f.recycled) > max(f.cfg.Recycle, 0) {
		f.removeRecycled(0)
	}
}

// removeRecycled removes a recycled file for good.
func (f *files) removeRecycled(i int) {
	m := f.recycled[i]
	f.recycled = append(f.recycled[:i], f.recycled[i+1:]...)
	f.Remove(m)
}

// Remove deletes a file. Readers that have it mapped keep it.
func (f *files) Remove(m *shm.File) {
	f.used.Add(-int64(len(m.Mem)))
	m.Remove()
}

// closeAll unmaps all files and removes those that the next publisher could not use.
func (f *files) closeAll() {
	for _, m := range append(f.retired, f.recycled...) {
		f.Remove(m)
	}
	f.retired, f.recycled = nil, nil
}
