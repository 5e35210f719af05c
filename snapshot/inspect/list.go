package inspect

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Listed is one image of a machine, as `rhumb snapshot ls` shows it. The fields are read from a
// live image without a lock, so they may be from slightly different moments.
type Listed struct {
	Dir           string
	Cluster, Node string // the names of the directories
	Version       uint64
	// Age is how long ago the version was committed; negative if unknown.
	Age       time.Duration
	Publisher Publisher
	Tables    int // without the positions
	// Records is the number of keys with a value without the positions, and Bytes the size of all
	// files in the directory.
	Records, Bytes int64
	// Quarantined is the number of files that failed a check and were moved away.
	Quarantined int
	// Err is the reason why an image could not be read; the fields that need the root are then
	// zero.
	Err error
}

// List returns the images under a folder, <root>/<cluster>/<node>, including those that this
// process may not read. A folder that does not exist has none.
func List(root string) ([]Listed, error) {
	dirs, err := filepath.Glob(filepath.Join(root, "*", "*"))
	if err != nil {
		return nil, rhumb.WrapKind("inspect.List", rhumb.InvalidArgument, err)
	}
	var out []Listed
	for _, dir := range dirs {
		// An image that this process may not read is listed with its error: hiding it would leave
		// the memory that it takes unexplained.
		if _, err := os.Stat(filepath.Join(dir, format.RootName)); err == nil || errors.Is(err, fs.ErrPermission) {
			out = append(out, listImage(dir))
		}
	}
	return out, nil
}

// listImage returns the list entry of one image. It maps no generation, so listing is cheap and
// pins nothing.
func listImage(dir string) Listed {
	l := Listed{Dir: dir, Cluster: filepath.Base(filepath.Dir(dir)), Node: filepath.Base(dir), Age: -1}
	l.countFiles()
	m, err := mapFile(filepath.Join(dir, format.RootName), format.RootSize, false)
	if err != nil {
		l.Err = err
		return l
	}
	defer m.unmapFile()
	if _, l.Err = format.DecodeRoot(m.bytes); l.Err != nil {
		return l
	}
	l.Version = m.load64(format.RootCommitted)
	root := make([]byte, format.RootSize)
	m.copyWords(root, 0)
	// The copy of the root may be a commit or two newer than the version, which is good enough for
	// a list.
	l.Publisher, l.Age = publisherOf(root), commitAge(commitsOf(root, l.Version), l.Version, time.Now())
	for i := range format.TablesMax {
		t, used, err := format.DecodeTable(root[format.RootTables+i*format.TableEntrySize:])
		// The positions are not a table of the user. Damaged entries are for Verify to report.
		if err != nil || !used || t.Name == format.PositionsTable {
			continue
		}
		l.Tables++
		for n := range int(t.ShardCount) {
			slot := int(t.ShardFirst) + n
			s, used, err := format.DecodeShard(root[format.RootShards+slot*format.ShardEntrySize:])
			// A table that is loaded or rolled meanwhile may already have another generation. Then
			// liveOf finds no file and counts 0.
			if err == nil && used {
				l.Records += liveOf(filepath.Join(dir, format.SegmentName(slot, s.Generation)))
			}
		}
	}
	return l
}

// liveOf returns the number of keys of a generation that have a value; 0 if the file has gone
// meanwhile. It reads the counter of the header instead of mapping the file.
func liveOf(path string) int64 {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	var word [8]byte
	if _, err := f.ReadAt(word[:], format.SegmentLive); err != nil {
		return 0
	}
	return int64(le.Uint64(word[:]))
}

// countFiles adds up the files of the directory. A directory that cannot be read is reported by Err
// later.
func (l *Listed) countFiles() {
	entries, _ := os.ReadDir(l.Dir) // reading the root reports a directory that cannot be read
	for _, e := range entries {
		// The only directory in an image is the quarantine.
		if e.IsDir() {
			files, _ := os.ReadDir(filepath.Join(l.Dir, e.Name()))
			l.Quarantined += len(files)
			continue
		}
		// The file may have been removed since the directory was read.
		if info, err := e.Info(); err == nil {
			l.Bytes += info.Size()
		}
	}
}

// Usage describes how full one shard is. The limits of the build decide when the shard is rolled:
// whichever of append area, overflow buckets or deltas is full first.
type Usage struct {
	Table      string
	Slot       int
	Generation uint64
	Base       uint64
	File       string
	Bytes      int64
	// Keys is the number of keys with a value, and Records the number of records in the base when
	// the generation was built.
	Keys, Records int64
	// Load is the part of the primary buckets' slots that keys take. Overflow of OverflowMax
	// overflow buckets are taken.
	Load                  float64
	Overflow, OverflowMax int64
	// AppendUsed of AppendMax bytes hold versions that were written since the build. When they are
	// full the shard is rolled.
	AppendUsed, AppendMax int64
	// TreeLevels and TreeItems describe the R-tree. Delta of DeltaMax entries of the spatial delta
	// are taken.
	TreeLevels, TreeItems, Delta, DeltaMax int64
	// OrderUsed of OrderMax words of the ordered delta are taken.
	OrderUsed, OrderMax int64
	Closed              rhumb.Timestamp
}

// Usages returns how full the shards of an image are, or those of one table if its name is given.
func (im *Image) Usages(table string) (out []Usage) {
	for i := range im.Tables {
		t := &im.Tables[i]
		for _, s := range t.Shards {
			if s.m != nil && (table == "" || table == t.Name) {
				out = append(out, s.usageOf(t.Name))
			}
		}
	}
	return out
}

// usageOf returns how full the shard is. The counters are read one by one from a live file, so they
// may come from different moments.
func (s *Shard) usageOf(table string) Usage {
	size := func(t format.SectionType) int64 {
		sec, _ := s.Head.Find(t)
		return int64(sec.Size)
	}
	word := func(offset int) int64 { return int64(s.m.load64(offset)) }
	base := int64(s.Head.BaseUnits) * format.RecordAlign
	u := Usage{
		Table: table, Slot: s.Slot, Generation: s.Generation, Base: s.Base, File: s.File, Bytes: int64(len(s.m.bytes)), Closed: s.Closed,
		Keys: word(format.SegmentLive), Records: int64(s.Head.Records),
		Overflow: word(format.SegmentOverflow), OverflowMax: int64(s.Head.BucketsMax - s.Head.Buckets),
		AppendUsed: word(format.SegmentAppendTail)*format.RecordAlign - base, AppendMax: size(format.SectionHeap)/format.RecordAlign*format.RecordAlign - base,
		Delta: word(format.SegmentDelta), DeltaMax: size(format.SectionDelta) / format.DeltaEntrySize,
		OrderUsed: word(format.SegmentOrder), OrderMax: size(format.SectionOrderDelta) / 4,
	}
	u.Load = float64(u.Keys) / float64(s.Head.Buckets) / format.BucketSlots
	// The header of the tree holds both numbers.
	if sec, ok := s.Head.Find(format.SectionTreeNodes); ok {
		u.TreeLevels = int64(le.Uint32(s.m.bytes[sec.Offset:]))
		u.TreeItems = int64(le.Uint32(s.m.bytes[sec.Offset+4:]))
	}
	return u
}
