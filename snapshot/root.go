package snapshot

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// root is the file root of an image, mapped for writing.
type root struct {
	file *mapping
	head format.Root
}

// change runs fn while readers see that tables and shards change. It is idempotent against a crash in its middle: what is
// odd when an image is opened is made even.
func (r *root) change(fn func()) {
	seq := r.file.load64(format.RootTableSeq) | 1
	r.file.store64(format.RootTableSeq, seq)
	fn()
	r.file.store64(format.RootTableSeq, seq+1)
}

// changing reports whether a publisher died while it changed the root.
func (r *root) changing() bool { return r.file.load64(format.RootTableSeq)&1 != 0 }

// nextGeneration takes a generation number that no file of the image ever had.
func (r *root) nextGeneration() uint64 {
	g := r.file.load64(format.RootGeneration) + 1
	r.file.store64(format.RootGeneration, g)
	return g
}

func (r *root) tableEntry(i int) []byte {
	return r.file.mem[format.RootTables+i*format.TableEntrySize:][:format.TableEntrySize]
}

func (r *root) shardEntry(i int) []byte {
	return r.file.mem[format.RootShards+i*format.ShardEntrySize:][:format.ShardEntrySize]
}

func (r *root) ringEntry(version uint64) []byte {
	return r.file.mem[format.RootRing+int(version%format.RingSize)*format.RingEntrySize:][:format.RingEntrySize]
}

// putTable writes the entries of a table and of its shards; only within change.
func (r *root) putTable(t *Table) {
	for _, s := range t.shards {
		r.putShard(s)
	}
	putWords(r.tableEntry(t.entry), func(p []byte) { format.EncodeTable(p, t.Table) })
}

// putShard writes the entry of a shard; only within change.
func (r *root) putShard(s *shard) {
	e := format.Shard{
		Generation: s.seg.head.Generation, Base: s.base, FileSize: s.seg.head.FileSize, Closed: s.closed,
		Table: s.table.ID, Index: uint32(s.slot) - uint32(s.table.ShardFirst),
	}
	putWords(r.shardEntry(s.slot), func(p []byte) { format.EncodeShard(p, e) })
}

// clearTable takes a table and its shards out; only within change.
func (r *root) clearTable(t *Table) {
	putWords(r.tableEntry(t.entry), func(p []byte) { clear(p) })
	for _, s := range t.shards {
		r.clearShard(s.slot)
	}
}

// clearShard takes the entry of a shard out; only within change.
func (r *root) clearShard(slot int) { putWords(r.shardEntry(slot), func(p []byte) { clear(p) }) }

// putCommit writes the ring entry of a version. The version goes last and is 0 meanwhile, so that a reader of the version
// that the place held before sees that it has gone.
func (r *root) putCommit(c format.Commit) {
	dst := r.ringEntry(c.Version)
	var b [format.RingEntrySize]byte
	format.EncodeCommit(b[:], c)
	storeWord(dst, 0, 0)
	for i := 8; i < len(b); i += 8 {
		storeWord(dst, i, le.Uint64(b[i:]))
	}
	storeWord(dst, 0, c.Version)
}

// commit makes a version visible.
func (r *root) commit(version uint64) { r.file.store64(format.RootCommitted, version) }

// lastCommit reads the newest commit of an image that is opened again.
func (r *root) lastCommit() (version uint64, closed rhumb.Timestamp) {
	version = r.file.load64(format.RootCommitted)
	if c, ok := format.DecodeCommit(r.ringEntry(version), version); ok {
		closed = c.Closed
	}
	return version, closed
}
