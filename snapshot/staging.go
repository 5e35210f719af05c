package snapshot

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/segment"
	"github.com/rhumbdb/rhumb/snapshot/shm"
)

// The staged records are encoded as they will be in the heap, so that building a shard copies them
// once and decodes nothing but their boxes and keys.

// staging holds the records of a load, by shard, until all of them are known: the layout of a shard
// depends on how many there are. The memory is not on the Go heap, because append would copy it as
// it grows. It does not count in the budget of the image, and has at most as many bytes: the shards that are built from it need about as many.
// If possible, staging uses recycled files, whose pages are already in memory: faulting in new pages costs more than filling them.
type staging struct {
	budget  int64
	bytes   int64 // of the records
	root    *format.Root
	parts   []part
	records uint64
	newest  rhumb.Timestamp
}

// part is the records of one shard, laid out as in a heap.
type part struct {
	mem  []byte
	file *shm.File // a recycled file that holds mem, or held it before mem outgrew it
	tail uint32    // end of the records in units
	refs []uint32
}

// partMin is the first size of a part in bytes. The size doubles when a part is full; mremap moves
// page tables and copies nothing.
const partMin = 1 << 20

// newStaging borrows recycled files as large as the current shards. One file is left for the first
// shard to be built; each later shard can use the file of the part before it. So a load never needs
// more files than without borrowing.
func (p *Publisher) newStaging(t *Table) *staging {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files.reclaimRetired()
	st := &staging{budget: p.cfg.Budget, root: &p.root.head, parts: make([]part, len(t.shards))}
	for i, s := range t.shards {
		// A table that is loaded again is about as large as before.
		st.parts[i].refs = make([]uint32, 0, s.seg.Live()+s.seg.Live()/64)
		if size := int64(len(s.seg.File.Mem)); size > partMin && len(p.files.recycled) > 1 {
			st.parts[i].borrow(p.files.pickRecycled(size, size))
		}
	}
	return st
}

// borrow uses the memory of a file without its header. The header is not touched: it has no magic,
// so no reader mistakes the file for a segment.
func (p *part) borrow(file *shm.File) {
	if file != nil {
		p.file, p.mem = file, file.Mem[format.SegmentHeader:]
	}
}

// heap returns the records as a heap that a build reads from.
func (p *part) heap(kind format.KeyKind) segment.Heap { return segment.Heap{Mem: p.mem, Kind: kind} }

// add encodes a record into the part of its shard.
func (st *staging) add(t *Table, rec *Record) error {
	const op rhumb.Op = "snapshot.stage"
	e := segment.EncodingOf(st.root, t.KeyKind, rec, 0)
	part := &st.parts[format.ShardOf(e.Hash, uint16(len(st.parts)))]
	if st.bytes += int64(e.Units) * format.RecordAlign; st.bytes > st.budget {
		return rhumb.Ef(op, rhumb.Overloaded, "table %q alone has more bytes than the image may have, %d: raise the budget, or do not publish the table", t.Name, st.budget)
	}
	end := uint64(part.tail) + uint64(e.Units)
	if need := int(end) * format.RecordAlign; need > len(part.mem) {
		if end > segment.UnitsMax {
			return rhumb.Ef(op, rhumb.TooLarge, "a shard of table %q outgrows its heap; give the table more shards", t.Name)
		}
		if err := part.grow(need); err != nil {
			return rhumb.WrapKind(op, rhumb.Overloaded, err)
		}
	}
	part.heap(t.KeyKind).EncodeAt(part.tail, rec, e, 0, t.Summed())
	part.refs = append(part.refs, part.tail)
	part.tail += e.Units
	st.records++
	st.newest = max(st.newest, rec.HLC)
	return nil
}

// grow makes the memory at least need bytes large. A part that outgrows a borrowed file continues
// in anonymous memory.
func (p *part) grow(need int) error {
	size := partMin
	for size < need {
		size *= 2
	}
	if p.ownsMemory() {
		mem, err := unix.Mremap(p.mem, size, unix.MREMAP_MAYMOVE)
		if err == nil {
			p.mem = mem
		}
		return err
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // only faster
	copy(mem, p.mem[:int(p.tail)*format.RecordAlign])
	p.mem = mem
	return nil
}

// ownsMemory reports whether the part has anonymous memory and not that of a borrowed file.
func (p *part) ownsMemory() bool {
	return p.mem != nil && (p.file == nil || unsafe.SliceData(p.mem) != &p.file.Mem[format.SegmentHeader])
}

// release frees the memory. The caller must hold the publisher's lock, because a borrowed file
// returns to files.
func (p *part) release(files *files) {
	if p.ownsMemory() {
		_ = unix.Munmap(p.mem)
	}
	// A part that outgrew its borrowed file still has to return it.
	if p.file != nil {
		files.keepRecycled(p.file)
	}
	*p = part{}
}

// release frees the memory of all parts.
func (st *staging) release(files *files) {
	for i := range st.parts {
		st.parts[i].release(files)
	}
}
