package snapshot

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/segment"
	"github.com/rhumbdb/rhumb/snapshot/shm"
)

// Recovery trusts nothing in the directory. It checks the root first, then each table with its
// shards. A fault costs the smallest unit that can be loaded again: a table, or the whole image if
// the root or the positions are damaged. Files that the root does not name are removed last,
// because the repair of an unfinished change may still need them.

// openRoot maps the root; found is false if there is none.
func (o *opening) openRoot() (found bool, err error) {
	path := filepath.Join(o.cfg.Dir, format.RootName)
	file, err := shm.Open(path, format.RootSize, false)
	if rhumb.KindOf(err) == rhumb.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	head, err := format.DecodeRoot(file.Mem)
	if err != nil {
		file.Close()
		return false, fmt.Errorf("%s: %w", path, err)
	}
	// The newest version is read before any table, because every check of a segment compares its
	// base with it.
	o.root = root{file: file, head: head}
	o.committed, o.closed = o.root.lastCommit()
	return true, nil
}

// recoverTables opens the tables of the root and drops those that cannot be used.
func (o *opening) recoverTables() error {
	for i := range format.TablesMax {
		// Tables are independent: a damaged table does not prevent publishing the others.
		entry, used, err := format.DecodeTable(o.root.tableEntry(i))
		if err == nil && !used {
			continue
		}
		t := &Table{Table: entry, p: o.Publisher, entry: i, listed: true}
		if err == nil {
			err = o.recoverTable(t)
		} else {
			err = rhumb.Ef("snapshot.recover", rhumb.Corrupt, "%s, offset %d: %v", o.root.file.Path, format.RootTables+i*format.TableEntrySize, err)
		}
		switch k := rhumb.KindOf(err); {
		case err == nil:
			o.tables.add(t)
		case k != rhumb.Corrupt && k != rhumb.Incompatible && k != rhumb.NotFound:
			return err // for example a lack of memory, which must not drop data
		default:
			o.dropDamaged(t, err)
		}
	}
	o.tables.positions = o.tables.byName[format.PositionsTable]
	if o.tables.positions == nil {
		return rhumb.Ef("snapshot.recover", rhumb.Corrupt, "%s: the table %s is missing or damaged", o.root.file.Path, format.PositionsTable)
	}
	// This follows the tables, because only now is it known which shard entries belong to one.
	o.clearUnowned()
	return nil
}

// recoverTable opens the shards of a table.
func (o *opening) recoverTable(t *Table) error {
	// Two tables that share a shard would write into each other's records. The second one is
	// dropped, since nothing shows which is right.
	for other := range o.tables.all() {
		if other.Name == t.Name || other.ShardFirst < t.ShardFirst+t.ShardCount && t.ShardFirst < other.ShardFirst+other.ShardCount {
			return rhumb.Ef("snapshot.recover", rhumb.Corrupt, "%s: tables %q and %q have a name or shards in common", o.root.file.Path, other.Name, t.Name)
		}
	}
	for i := range int(t.ShardCount) {
		s := t.newShard(i)
		if err := o.recoverShard(s); err != nil {
			return err
		}
		t.shards = append(t.shards, s)
	}
	return nil
}

// recoverShard opens the generation that the root names.
//
// If the publisher died while it changed the root, the entry may be torn, or may name a generation
// whose version was never committed. Then the newest earlier generation is used. It is still live,
// because a generation is superseded only after the change.
func (o *opening) recoverShard(s *shard) error {
	entry, used, err := format.DecodeShard(o.root.shardEntry(s.Slot))
	// An interrupted load leaves entries whose base is above the newest version.
	if err == nil && used && entry.Base <= o.committed {
		return o.openSegment(s, entry)
	}
	// Nobody was changing the entry, so a bad one means damage, and there is no other generation to
	// fall back to.
	if !o.root.isChanging() {
		return rhumb.Ef("snapshot.recover", rhumb.Corrupt, "%s, offset %d: the entry of shard %d of table %q is damaged: %v",
			o.root.file.Path, format.RootShards+s.Slot*format.ShardEntrySize, s.Slot, s.table.Name, err)
	}
	for _, g := range o.listGenerations(s.Slot) {
		e, ok := o.peekSegment(s, g)
		if !ok {
			continue
		}
		if err := o.openSegment(s, e); err != nil {
			return err
		}
		// Repair the entry, so that readers and the next recovery find the generation directly.
		o.root.putShard(s) // the sequence word is odd until goLive
		return nil
	}
	return rhumb.Ef("snapshot.recover", rhumb.Corrupt, "%s: shard %d of table %q has no live generation", o.root.file.Path, s.Slot, s.table.Name)
}

// listGenerations returns the generations of a shard that are in the directory, newest first.
func (o *opening) listGenerations(slot int) (out []uint64) {
	names, _ := os.ReadDir(o.cfg.Dir)
	for _, n := range names {
		// The entry in the root may be torn, so the directory is the only list of candidates.
		if rest, ok := strings.CutPrefix(n.Name(), fmt.Sprintf("seg.%d.", slot)); ok {
			if g, err := strconv.ParseUint(rest, 10, 64); err == nil {
				out = append(out, g)
			}
		}
	}
	// Newest first: the first generation that is live and not too new is the one that readers used.
	slices.Sort(out)
	slices.Reverse(out)
	return out
}

// peekSegment returns the root's entry for a file that can be the live generation of a shard; ok is
// false for any other file.
func (o *opening) peekSegment(s *shard, generation uint64) (e format.Shard, ok bool) {
	path := filepath.Join(o.cfg.Dir, format.SegmentName(s.Slot, generation))
	var head [format.SegmentHeader]byte
	f, err := os.Open(path)
	if err != nil {
		return e, false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return e, false
	}
	// The header is read instead of mapped: most candidates are rejected, and a short file must be
	// an error and not SIGBUS.
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return e, false
	}
	// A superseded file is rejected even if it is intact: it lacks the commits that went to its
	// successor.
	h, err := format.DecodeSegment(head[:], uint64(info.Size()))
	if err != nil || h.Base > o.committed || h.Image != o.root.head.Image || h.Table != s.table.ID ||
		binary.LittleEndian.Uint64(head[format.SegmentState:]) != format.SegmentLiveState {
		return e, false
	}
	return format.Shard{
		Generation: h.Generation, Base: h.Base, FileSize: h.FileSize, Closed: h.Closed, Table: h.Table,
		Index: uint32(s.Slot) - uint32(s.table.ShardFirst),
	}, true
}

// openSegment maps and checks the live generation of a shard, and aborts its unfinished records.
func (o *opening) openSegment(s *shard, e format.Shard) error {
	path := filepath.Join(o.cfg.Dir, format.SegmentName(s.Slot, e.Generation))
	file, err := shm.Open(path, int64(e.FileSize), o.cfg.HugePages == HugeTry)
	if err != nil {
		o.quarantineFile(path, err)
		return err
	}
	file.Generation = e.Generation
	seg, err := segment.Open(file, s.Shard, e)
	if err != nil {
		file.Close()
		err = rhumb.Ef("snapshot.recover", rhumb.KindOf(err), "%s: %v", path, err)
		o.quarantineFile(path, err)
		return err
	}
	// Unfinished records are aborted before anything else is written, because the next commit
	// reuses their version number.
	aborted := seg.AbortUnfinished(o.committed)
	o.recovery.Aborted += aborted
	o.stats.aborted.Add(aborted)
	s.seg, s.base, s.closed = seg, e.Base, e.Closed
	o.files.used.Add(int64(len(file.Mem)))
	return nil
}

// dropDamaged removes a table from the root whose shards cannot all be used.
func (o *opening) dropDamaged(t *Table, cause error) {
	o.cfg.Logger.Error("snapshot table is damaged and was dropped; load it again", "table", t.Name, "error", cause)
	// An entry that is damaged as a whole has no name.
	if t.Name != "" {
		o.recovery.Dropped = append(o.recovery.Dropped, t.Name)
	}
	for _, s := range t.shards {
		o.files.Remove(s.seg.File)
	}
	t.shards = nil
	if o.root.isChanging() {
		// The word must stay odd until goLive: entries not checked yet may be torn too, and readers
		// must not trust them.
		o.root.clearTable(t)
	} else {
		o.root.changeTables(func() { o.root.clearTable(t) })
	}
}

// clearUnowned clears the entries of shards that belong to no table. They remain if a publisher
// died while it created or dropped a table, or if the entry of their table was damaged.
func (o *opening) clearUnowned() {
	var owned [format.ShardsMax]bool
	for t := range o.tables.all() {
		for _, s := range t.shards {
			owned[s.Slot] = true
		}
	}
	for i := range owned {
		if !owned[i] && !bytes.Equal(o.root.shardEntry(i), make([]byte, format.ShardEntrySize)) {
			o.root.changeTables(func() { o.root.clearShard(i) })
		}
	}
}

// quarantineFile moves a file that failed a check to the quarantine, where it is kept for
// inspection. The move also frees the name: recovery never opens the file again.
func (o *opening) quarantineFile(path string, cause error) {
	dir := filepath.Join(o.cfg.Dir, quarantineName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		o.cfg.Logger.Error("no quarantine", "dir", dir, "error", err)
		return
	}
	for n := 1; ; n++ {
		to := filepath.Join(dir, fmt.Sprintf("%s.%d", filepath.Base(path), n))
		if _, err := os.Lstat(to); err == nil {
			continue // from earlier damage
		}
		if err := unix.Rename(path, to); err != nil {
			to = ""
		}
		o.recovery.Quarantined = append(o.recovery.Quarantined, Quarantined{File: to, Err: cause})
		o.stats.quarantined.Add(1)
		o.cfg.Logger.Error("a file of the snapshot failed a check and is in quarantine", "file", path, "now", to, "error", cause)
		break
	}
	pruneQuarantine(dir)
}

// pruneQuarantine removes the oldest files beyond QuarantineMax, because files on tmpfs take
// memory.
func pruneQuarantine(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	age := func(e os.DirEntry) int64 {
		info, err := e.Info()
		if err != nil {
			return 0
		}
		return info.ModTime().UnixNano()
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return int(min(max(age(a)-age(b), -1), 1)) })
	for len(entries) > QuarantineMax {
		_ = os.Remove(filepath.Join(dir, entries[0].Name()))
		entries = entries[1:]
	}
}

// quarantineImage abandons an image whose root cannot be used.
func (o *opening) quarantineImage(cause error) error {
	for t := range o.tables.all() {
		for _, s := range t.shards {
			o.files.Remove(s.seg.File)
		}
	}
	// Everything recovered so far belongs to the abandoned image.
	o.tables = tableSet{byName: map[string]*Table{}}
	if o.root.file != nil {
		o.root.file.Store32(format.RootState, format.StateStopping) // for readers that have the root mapped
		o.root.file.Close()
		o.root = root{}
	}
	path := filepath.Join(o.cfg.Dir, format.RootName)
	o.quarantineFile(path, cause)
	if _, err := os.Lstat(path); err == nil {
		return rhumb.Ef("snapshot.recover", rhumb.Corrupt, "%s cannot be used, nor moved to %s; remove it: %v", path, quarantineName, cause)
	}
	return nil
}

// removeOrphans removes the files that a dead publisher left: generations that were being built or
// were superseded, and recycled files. Readers that have them mapped keep them.
func (o *opening) removeOrphans() {
	live := map[string]bool{}
	for t := range o.tables.all() {
		for _, s := range t.shards {
			live[filepath.Base(s.seg.File.Path)] = true
		}
	}
	entries, _ := os.ReadDir(o.cfg.Dir)
	for _, e := range entries {
		name := e.Name()
		// Everything else in the directory belongs to somebody else: the lock, the quarantine, the
		// names of regions.
		ours := strings.HasPrefix(name, "seg.") || strings.HasPrefix(name, "recycled.") || name == rootNew
		if ours && !live[name] {
			_ = os.Remove(filepath.Join(o.cfg.Dir, name))
		}
	}
}
