package snapshot

import (
	"fmt"
	"path/filepath"
	"sync/atomic"

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
	retired      []*mapping
	recycled     []*mapping
}

// take gives a file of at least size bytes under a new generation number: a recycled one, if there is one that is not
// more than twice as large, or a new one. Its content is undefined, and no reader can have it.
func (f *files) take(op rhumb.Op, slot int, size int64) (*mapping, error) {
	f.reclaim()
	generation := f.root.nextGeneration()
	path := filepath.Join(f.cfg.Dir, format.SegmentName(slot, generation))
	if m := f.pick(size); m != nil {
		if err := m.rename(path); err != nil {
			f.remove(m)
			return nil, rhumb.Wrap(op, err)
		}
		m.generation = generation
		return m, nil
	}
	for f.used.Load()+size > f.cfg.Budget && len(f.recycled) > 0 {
		f.dropRecycled(0)
	}
	if used := f.used.Load(); used+size > f.cfg.Budget {
		return nil, rhumb.Ef(op, rhumb.Overloaded, "the image has %d bytes, of which readers pin %d; %d more would pass the budget of %d; raise it, or end old readers",
			used, f.pinned.Load(), size, f.cfg.Budget)
	}
	m, err := createMapping(path, size, f.cfg.fileMode(), f.cfg.HugePages == HugeTry)
	if rhumb.KindOf(err) == rhumb.DiskFull && len(f.recycled) > 0 {
		for len(f.recycled) > 0 {
			f.dropRecycled(0)
		}
		m, err = createMapping(path, size, f.cfg.fileMode(), f.cfg.HugePages == HugeTry)
	}
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	m.generation = generation
	m.tryLock()
	f.used.Add(size)
	return m, nil
}

// pick takes the smallest recycled file that fits.
func (f *files) pick(size int64) *mapping {
	best := -1
	for i, m := range f.recycled {
		if n := int64(len(m.mem)); n >= size && n <= 2*size && (best < 0 || n < int64(len(f.recycled[best].mem))) {
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

// retire says that a file is live no more.
func (f *files) retire(m *mapping) {
	m.store64(format.SegmentState, format.SegmentSuperseded)
	f.retired = append(f.retired, m)
	f.pinned.Add(int64(len(m.mem)))
	f.reclaim()
}

// reclaim recycles the superseded files that no reader has any more. A file whose reader came too late, between its look at
// the root and its lock, has lost its magic by the time that the reader gets its lock.
func (f *files) reclaim() {
	kept := f.retired[:0]
	for i, m := range f.retired {
		if !m.tryLock() {
			if len(f.retired)-i > retiredMax && m.path != "" {
				_ = unix.Unlink(m.path)
				m.path = ""
			}
			kept = append(kept, m)
			continue
		}
		f.pinned.Add(-int64(len(m.mem)))
		f.recycle(m)
	}
	clear(f.retired[len(kept):])
	f.retired = kept
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
	if m.path != "" {
		_ = unix.Unlink(m.path)
	}
	m.close()
}

// close unmaps everything and removes what the next publisher could not use.
func (f *files) close() {
	for _, m := range append(f.retired, f.recycled...) {
		f.remove(m)
	}
	f.retired, f.recycled = nil, nil
}
