package snapshot

import (
	"encoding/binary"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/shm"
)

// Three kinds of words in the root change while readers look, and each has a way of its own to be
// read whole:
//
//   - The commit word is one word. It holds the visible version, and is stored after everything
//     that the version shows.
//   - A ring entry has its version first and a checksum. A reader that finds another version, or a
//     checksum that does not match, continues without the metadata of the commit.
//   - Table and shard entries are enclosed by the sequence word: a reader that sees it odd, or
//     changed, reads again.

// root is the file root of an image, mapped for writing. Readers start from it: the commit word
// holds the visible version, and the tables and shards name the files.
type root struct {
	file *shm.File
	head format.Root
}

// changeTables runs fn, which changes tables and shards, while the sequence word is odd. Readers
// that see an odd word, or a different word after reading than before, read again. A publisher that
// dies in the middle leaves the word odd; then Open checks every entry and makes the word even, so
// that running changeTables again is safe.
func (r *root) changeTables(fn func()) {
	// The word is already odd if a publisher died here, so it is set and not incremented.
	seq := r.file.Load64(format.RootTableSeq) | 1
	r.file.Store64(format.RootTableSeq, seq)
	fn()
	r.file.Store64(format.RootTableSeq, seq+1)
}

// isChanging reports whether a publisher died while it changed tables or shards.
func (r *root) isChanging() bool { return r.file.Load64(format.RootTableSeq)&1 != 0 }

// nextGeneration returns a generation number that no file of the image ever had. The number is
// stored before it is used, so that a crash skips numbers and never repeats one: a reader may still
// hold the file of the number before.
func (r *root) nextGeneration() uint64 {
	g := r.file.Load64(format.RootGeneration) + 1
	r.file.Store64(format.RootGeneration, g)
	return g
}

// tableEntry returns the bytes of a table's entry.
func (r *root) tableEntry(i int) []byte {
	return r.file.Mem[format.RootTables+i*format.TableEntrySize:][:format.TableEntrySize]
}

// shardEntry returns the bytes of a shard's entry.
func (r *root) shardEntry(i int) []byte {
	return r.file.Mem[format.RootShards+i*format.ShardEntrySize:][:format.ShardEntrySize]
}

// ringEntry returns the bytes of the ring entry of a version.
func (r *root) ringEntry(version uint64) []byte {
	return r.file.Mem[format.RootRing+int(version%format.RingSize)*format.RingEntrySize:][:format.RingEntrySize]
}

// putTable writes the entries of a table and of its shards. It must run within changeTables.
func (r *root) putTable(t *Table) {
	for _, s := range t.shards {
		r.putShard(s)
	}
	shm.StoreWords(r.tableEntry(t.entry), func(p []byte) { format.EncodeTable(p, t.Table) })
}

// putShard writes the entry of a shard. It must run within changeTables.
func (r *root) putShard(s *shard) {
	e := format.Shard{
		Generation: s.seg.Head.Generation, Base: s.base, FileSize: s.seg.Head.FileSize, Closed: s.closed,
		Table: s.table.ID, Index: uint32(s.Slot) - uint32(s.table.ShardFirst),
	}
	shm.StoreWords(r.shardEntry(s.Slot), func(p []byte) { format.EncodeShard(p, e) })
}

// clearTable clears the entries of a table and of its shards. It must run within changeTables.
func (r *root) clearTable(t *Table) {
	shm.StoreWords(r.tableEntry(t.entry), func(p []byte) { clear(p) })
	for i := range int(t.ShardCount) {
		r.clearShard(int(t.ShardFirst) + i)
	}
}

// clearShard clears the entry of a shard. It must run within changeTables.
func (r *root) clearShard(slot int) { shm.StoreWords(r.shardEntry(slot), func(p []byte) { clear(p) }) }

// putCommit writes the ring entry of a version. The version number is 0 while the rest is written,
// and is stored last: a reader of the version that used the entry before finds its entry gone,
// never a mixture of two.
func (r *root) putCommit(c format.Commit) {
	dst := r.ringEntry(c.Version)
	var b [format.RingEntrySize]byte
	format.EncodeCommit(b[:], c)
	// Version 0 belongs to no commit, so no reader accepts the entry from here on.
	shm.StoreWord(dst, 0, 0)
	for i := 8; i < len(b); i += 8 {
		shm.StoreWord(dst, i, binary.LittleEndian.Uint64(b[i:]))
	}
	shm.StoreWord(dst, 0, c.Version)
}

// storeCommitted makes a version visible.
func (r *root) storeCommitted(version uint64) { r.file.Store64(format.RootCommitted, version) }

// lastCommit returns the newest commit of an image that is opened again. closed is 0 if the ring
// entry is damaged.
func (r *root) lastCommit() (version uint64, closed rhumb.Timestamp) {
	version = r.file.Load64(format.RootCommitted)
	if c, ok := format.DecodeCommit(r.ringEntry(version), version); ok {
		closed = c.Closed
	}
	return version, closed
}
