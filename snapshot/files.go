package snapshot

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// retiredMax bounds the superseded files that keep their name because readers have them; beyond it, and for pinned files
// that nobody can recycle, the name goes at once and the memory with the last reader.
const retiredMax = 64

// files keeps the segment files of an image within its budget: live ones, superseded ones that readers still have, and
// recycled ones, whose pages are in memory already. Faulting in fresh pages costs more than filling them.
type files struct {
	cfg  *Config
	root *root
	// used is the size of all files, pinned that of the superseded ones that readers have mapped.
	used, pinned atomic.Int64
	// overdue is the part of pinned that was superseded longer than Config.Leash ago, so that every view that holds it is past
	// its leash. It counts in Config.OverdueMax and not in the budget: a reader that never lets go must not keep others from new versions.
	overdue  atomic.Int64
	retired  []*mapping
	recycled []*mapping
}

// take gives a file of at least size bytes under a new generation number: a recycled one that is not more than twice as large
// nor less than half as large, or a new one. Its content is undefined, and no reader can have it.
func (f *files) take(op rhumb.Op, slot int, size int64) (*mapping, error) {
	f.reclaim()
	m := f.pick(size/2, size)
	err := f.makeRoom(op, m, size)
	if err != nil {
		return nil, err
	}
	generation := f.root.nextGeneration()
	path := filepath.Join(f.cfg.Dir, format.SegmentName(slot, generation))
	if m != nil {
		err = m.rename(path)
	} else if m, err = createFile(path, f.cfg.fileMode()); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	if err == nil {
		err = f.extend(m, size)
	}
	if err != nil {
		f.remove(m)
		return nil, rhumb.Wrap(op, err)
	}
	m.generation = generation
	m.tryLock()
	return m, nil
}

// pick takes the smallest recycled file that has size bytes and not twice as many, or else the largest that has least; nil when
// there is none.
func (f *files) pick(least, size int64) *mapping {
	best := -1
	for i, m := range f.recycled {
		n := int64(len(m.mem))
		if n < least || n > 2*size {
			continue
		}
		if best < 0 || better(n, int64(len(f.recycled[best].mem)), size) {
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

// better reports whether a file of n bytes serves better than one of m bytes where size are wanted: it wastes less, or lacks
// less.
func better(n, m, size int64) bool {
	if n >= size {
		return m < size || n < m
	}
	return m < size && n > m
}

// makeRoom removes recycled files until a file of size bytes, or m made that long, is within the budget. When it cannot be, m
// is given back.
func (f *files) makeRoom(op rhumb.Op, m *mapping, size int64) error {
	more := size
	if m != nil {
		more = max(size-int64(len(m.mem)), 0)
	}
	for f.counted()+more > f.cfg.Budget && len(f.recycled) > 0 {
		f.dropRecycled(0)
	}
	used := f.counted()
	if more == 0 || used+more <= f.cfg.Budget {
		return nil
	}
	if m != nil {
		f.giveBack(m)
	}
	pinned, advice := used-(f.used.Load()-f.pinned.Load()), "raise the budget, or publish fewer tables"
	if pinned > 0 {
		advice = "end the readers that `rhumb snapshot pins` names, or raise the budget"
	}
	return rhumb.Ef(op, rhumb.Overloaded, "the image has %d bytes, of which readers pin %d; %d more would pass the budget of %d: %s",
		used, pinned, more, f.cfg.Budget, advice)
}

// counted gives the bytes that count in the budget.
func (f *files) counted() int64 {
	return f.used.Load() - min(f.overdue.Load(), f.cfg.OverdueMax)
}

// extend makes a file as large as size, if it is smaller. When there is no memory for that it takes what recycled files have.
func (f *files) extend(m *mapping, size int64) error {
	was := int64(len(m.mem))
	if was >= size {
		return nil
	}
	huge := f.cfg.HugePages == HugeTry
	err := m.extend(size, huge)
	if rhumb.KindOf(err) == rhumb.DiskFull && len(f.recycled) > 0 {
		for len(f.recycled) > 0 {
			f.dropRecycled(0)
		}
		err = m.extend(size, huge)
	}
	f.used.Add(int64(len(m.mem)) - was)
	return err
}

// retire says that a file is live no more.
func (f *files) retire(m *mapping) {
	m.store64(format.SegmentState, format.SegmentSuperseded)
	m.retired = time.Now()
	f.retired = append(f.retired, m)
	f.pinned.Add(int64(len(m.mem)))
	f.reclaim()
}

// reclaim recycles the superseded files that no reader has any more. A file whose reader came too late, between its look at
// the root and its lock, has lost its magic by the time that the reader gets its lock.
func (f *files) reclaim() {
	kept, overdue := f.retired[:0], int64(0)
	for i, m := range f.retired {
		if !m.tryLock() {
			if len(f.retired)-i > retiredMax && m.path != "" {
				_ = unix.Unlink(m.path)
				m.path = ""
			}
			if time.Since(m.retired) > f.cfg.Leash {
				overdue += int64(len(m.mem))
			}
			kept = append(kept, m)
			continue
		}
		f.pinned.Add(-int64(len(m.mem)))
		f.recycle(m)
	}
	clear(f.retired[len(kept):])
	f.retired = kept
	if f.overdue.Swap(overdue) == 0 && overdue > 0 {
		f.cfg.Logger.Warn("readers keep superseded generations for longer than the leash; `rhumb snapshot pins` names them",
			"bytes", overdue, "leash", f.cfg.Leash)
	}
}

// recycle keeps a file that is write-locked for the next roll, or removes it.
func (f *files) recycle(m *mapping) {
	m.store64(0, 0) // the magic
	m.store64(format.SegmentState, format.SegmentRecycled)
	if m.path == "" || m.rename(filepath.Join(f.cfg.Dir, fmt.Sprintf("recycled.%d", m.generation))) != nil {
		f.remove(m)
		return
	}
	f.giveBack(m)
}

// giveBack takes a recycled file that is in nobody's use.
func (f *files) giveBack(m *mapping) {
	f.recycled = append(f.recycled, m)
	for len(f.recycled) > max(f.cfg.Recycle, 0) {
		f.dropRecycled(0)
	}
}

func (f *files) dropRecycled(i int) {
	m := f.recycled[i]
	f.recycled = append(f.recycled[:i], f.recycled[i+1:]...)
	f.remove(m)
}

// remove deletes a file for good. Readers that have it keep it.
func (f *files) remove(m *mapping) {
	f.used.Add(-int64(len(m.mem)))
	m.remove()
}

// close unmaps everything and removes what the next publisher could not use.
func (f *files) close() {
	for _, m := range append(f.retired, f.recycled...) {
		f.remove(m)
	}
	f.retired, f.recycled = nil, nil
}
