package snapshot

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// openRoot maps the root, if there is one.
func (p *Publisher) openRoot() (found bool, err error) {
	path := filepath.Join(p.cfg.Dir, format.RootName)
	file, err := openMapping(path, format.RootSize, false)
	if rhumb.KindOf(err) == rhumb.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	head, err := format.DecodeRoot(file.mem)
	if err != nil {
		file.close()
		return false, fmt.Errorf("%s: %w", path, err)
	}
	p.root = root{file: file, head: head}
	p.committed, p.closed = p.root.lastCommit()
	return true, nil
}

// recoverTables takes the tables of the root, and takes out those that cannot be used.
func (p *Publisher) recoverTables() error {
	for i := range format.TablesMax {
		entry, used, err := format.DecodeTable(p.root.tableEntry(i))
		if err == nil && !used {
			continue
		}
		t := &Table{Table: entry, p: p, entry: i, listed: true}
		if err == nil {
			err = p.recoverTable(t)
		} else {
			err = rhumb.Ef("snapshot.recover", rhumb.Corrupt, "%s, offset %d: %v", p.root.file.path, format.RootTables+i*format.TableEntrySize, err)
		}
		switch k := rhumb.KindOf(err); {
		case err == nil:
			p.tables[t.Name], p.entries[i] = t, t
		case k != rhumb.Corrupt && k != rhumb.Incompatible && k != rhumb.NotFound:
			return err
		default:
			p.dropDamaged(t, err)
		}
	}
	p.positions = p.tables[format.PositionsTable]
	if p.positions == nil {
		return rhumb.Ef("snapshot.recover", rhumb.Corrupt, "%s: the table %s is missing or damaged", p.root.file.path, format.PositionsTable)
	}
	p.clearUnowned()
	return nil
}

// recoverTable opens the shards of a table.
func (p *Publisher) recoverTable(t *Table) error {
	for _, other := range p.tables {
		if other.Name == t.Name || other.ShardFirst < t.ShardFirst+t.ShardCount && t.ShardFirst < other.ShardFirst+other.ShardCount {
			return rhumb.Ef("snapshot.recover", rhumb.Corrupt, "%s: tables %q and %q have a name or shards in common", p.root.file.path, other.Name, t.Name)
		}
	}
	for i := range int(t.ShardCount) {
		s := &shard{table: t, slot: int(t.ShardFirst) + i}
		if err := p.recoverShard(s); err != nil {
			return err
		}
		t.shards = append(t.shards, s)
	}
	return nil
}

// recoverShard opens the generation that the root names. When the publisher died while it changed the root, the entry may be
// torn, or name a generation of a version that never was committed: then the one before, which is still live, is taken.
func (p *Publisher) recoverShard(s *shard) error {
	entry, used, err := format.DecodeShard(p.root.shardEntry(s.slot))
	if err == nil && used && entry.Base <= p.committed {
		return p.openSegment(s, entry)
	}
	if !p.root.changing() {
		return rhumb.Ef("snapshot.recover", rhumb.Corrupt, "%s, offset %d: the entry of shard %d of table %q is damaged: %v",
			p.root.file.path, format.RootShards+s.slot*format.ShardEntrySize, s.slot, s.table.Name, err)
	}
	for _, g := range p.generations(s.slot) {
		e, ok := p.peekSegment(s, g)
		if !ok {
			continue
		}
		if err := p.openSegment(s, e); err != nil {
			return err
		}
		p.root.putShard(s)
		return nil
	}
	return rhumb.Ef("snapshot.recover", rhumb.Corrupt, "%s: shard %d of table %q has no live generation", p.root.file.path, s.slot, s.table.Name)
}

// generations lists the generations of a shard in the directory, newest first.
func (p *Publisher) generations(slot int) (out []uint64) {
	names, _ := os.ReadDir(p.cfg.Dir)
	for _, n := range names {
		if rest, ok := strings.CutPrefix(n.Name(), fmt.Sprintf("seg.%d.", slot)); ok {
			if g, err := strconv.ParseUint(rest, 10, 64); err == nil {
				out = append(out, g)
			}
		}
	}
	slices.Sort(out)
	slices.Reverse(out)
	return out
}

// peekSegment gives the root's entry for a file that could be the live generation of a shard.
func (p *Publisher) peekSegment(s *shard, generation uint64) (e format.Shard, ok bool) {
	path := filepath.Join(p.cfg.Dir, format.SegmentName(s.slot, generation))
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
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return e, false
	}
	h, err := format.DecodeSegment(head[:], uint64(info.Size()))
	if err != nil || h.Base > p.committed || h.Image != p.root.head.Image || h.Table != s.table.ID ||
		le.Uint64(head[format.SegmentState:]) != format.SegmentLiveState {
		return e, false
	}
	return format.Shard{
		Generation: h.Generation, Base: h.Base, FileSize: h.FileSize, Closed: h.Closed, Table: h.Table,
		Index: uint32(s.slot) - uint32(s.table.ShardFirst),
	}, true
}

// openSegment maps and checks the live generation of a shard and ends what was unfinished in it.
func (p *Publisher) openSegment(s *shard, e format.Shard) error {
	path := filepath.Join(p.cfg.Dir, format.SegmentName(s.slot, e.Generation))
	file, err := openMapping(path, int64(e.FileSize), p.cfg.HugePages == HugeTry)
	if err != nil {
		p.quarantine(path, err)
		return err
	}
	file.generation = e.Generation
	seg := &segment{file: file, kind: s.table.KeyKind, summed: s.table.Summed(), keys: &p.root.head, expires: math.MaxInt64}
	err = p.checkSegment(s, seg, e)
	if err != nil {
		file.close()
		err = rhumb.Ef("snapshot.recover", rhumb.KindOf(err), "%s: %v", path, err)
		p.quarantine(path, err)
		return err
	}
	if seg.raised > seg.done {
		aborted := seg.abortTorn(p.committed)
		p.recovery.Aborted += aborted
		p.stats.aborted.Add(aborted)
	}
	s.seg, s.base, s.closed = seg, e.Base, e.Closed
	p.files.used.Add(int64(len(file.mem)))
	return nil
}

// abortTorn marks the complete records of a version beyond the newest, which was never committed, and goes on behind them.
func (s *segment) abortTorn(committed uint64) (aborted uint64) {
	v := s.relative(committed)
	for ref := s.done; ref < s.raised; ref += format.Units(recordSize(s.kind, s.heap, ref)) {
		if h := s.record(ref); h.ver > v && h.ver != format.AbortedVersion {
			s.file.store32(int(s.section(format.SectionHeap).Offset)+int(ref)*format.RecordAlign+format.RecordVersion, format.AbortedVersion)
			aborted++
		}
	}
	s.done, s.tail = s.raised, s.raised
	s.live = 0
	for range s.newest(committed) {
		s.live++
	}
	s.file.store64(format.SegmentLive, uint64(s.live))
	s.file.store64(format.SegmentAppendHead, uint64(s.done))
	return aborted
}

// dropDamaged takes a table out of the root whose shards cannot all be used.
func (p *Publisher) dropDamaged(t *Table, cause error) {
	p.cfg.Logger.Error("snapshot table is damaged and is taken out; it must be loaded again", "table", t.Name, "error", cause)
	if t.Name != "" {
		p.recovery.Dropped = append(p.recovery.Dropped, t.Name)
	}
	for _, s := range t.shards {
		p.files.remove(s.seg.file)
	}
	t.shards = nil
	for i := range int(t.ShardCount) {
		t.shards = append(t.shards, &shard{table: t, slot: int(t.ShardFirst) + i})
	}
	if p.root.changing() { // and stays so until goLive: entries that were not looked at yet may be torn too
		p.root.clearTable(t)
	} else {
		p.root.change(func() { p.root.clearTable(t) })
	}
	t.shards = nil
}

// clearUnowned takes out the entries of shards that belong to no table: a publisher that died while it made or dropped a table
// left them, or the entry of their table was damaged.
func (p *Publisher) clearUnowned() {
	var owned [format.ShardsMax]bool
	for _, t := range p.tables {
		for _, s := range t.shards {
			owned[s.slot] = true
		}
	}
	for i := range owned {
		if !owned[i] && !bytes.Equal(p.root.shardEntry(i), make([]byte, format.ShardEntrySize)) {
			p.root.change(func() { p.root.clearShard(i) })
		}
	}
}

// quarantine moves a file that failed a check out of the way and keeps it for whoever wants to know why.
func (p *Publisher) quarantine(path string, cause error) {
	dir := filepath.Join(p.cfg.Dir, quarantineName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		p.cfg.Logger.Error("no quarantine", "dir", dir, "error", err)
		return
	}
	for n := 1; ; n++ {
		to := filepath.Join(dir, fmt.Sprintf("%s.%d", filepath.Base(path), n))
		if _, err := os.Lstat(to); err == nil {
			continue
		}
		if err := unix.Rename(path, to); err != nil {
			to = ""
		}
		p.recovery.Quarantined = append(p.recovery.Quarantined, Quarantined{File: to, Err: cause})
		p.stats.quarantined.Add(1)
		p.cfg.Logger.Error("a file of the snapshot failed a check and is in quarantine", "file", path, "now", to, "error", cause)
		break
	}
	pruneQuarantine(dir)
}

// pruneQuarantine removes the oldest files beyond QuarantineMax: they take memory.
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

// quarantineImage gives up an image whose root cannot be used; its segments mean nothing without the seeds in it.
func (p *Publisher) quarantineImage(cause error) error {
	for _, t := range p.tables {
		for _, s := range t.shards {
			p.files.remove(s.seg.file)
		}
	}
	p.tables, p.entries, p.positions = map[string]*Table{}, [format.TablesMax]*Table{}, nil
	if p.root.file != nil {
		p.root.file.store32(format.RootState, format.StateStopping) // for readers that have it mapped
		p.root.file.close()
		p.root = root{}
	}
	path := filepath.Join(p.cfg.Dir, format.RootName)
	p.quarantine(path, cause)
	if _, err := os.Lstat(path); err == nil {
		return rhumb.Ef("snapshot.recover", rhumb.Corrupt, "%s cannot be used, nor moved to %s; remove it: %v", path, quarantineName, cause)
	}
	return nil
}

// removeOrphans removes the files that a dead publisher left: generations that were being built or were superseded, and
// recycled files. Readers that have them mapped keep them.
func (p *Publisher) removeOrphans() {
	live := map[string]bool{}
	for _, t := range p.tables {
		for _, s := range t.shards {
			live[filepath.Base(s.seg.file.path)] = true
		}
	}
	entries, _ := os.ReadDir(p.cfg.Dir)
	for _, e := range entries {
		name := e.Name()
		ours := strings.HasPrefix(name, "seg.") || strings.HasPrefix(name, "recycled.") || name == rootNew
		if ours && !live[name] {
			_ = os.Remove(filepath.Join(p.cfg.Dir, name))
		}
	}
}
