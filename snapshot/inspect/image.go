package inspect

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// An image is opened for inspection much as a reader attaches to it, with two differences: damage
// is recorded as a fault instead of an error, so that other parts can still be examined, and the
// generations stay locked until Close, so that tools may take their time.

// AliveMax is how old the heartbeat of a live publisher may be. Publishers beat four times a
// second.
const AliveMax = 5 * time.Second

// Fault is one kind of damage at one place of an image.
type Fault struct {
	File   string // its name in the directory
	Offset int64  // in bytes; -1 when it is about the whole file
	What   string
}

// String returns the file, the offset and the fault.
func (f Fault) String() string {
	if f.Offset < 0 {
		return fmt.Sprintf("%s: %s", f.File, f.What)
	}
	return fmt.Sprintf("%s at offset %d: %s", f.File, f.Offset, f.What)
}

// Publisher is the state of an image's publisher as the root records it.
type Publisher struct {
	// Life is the number of starts, and PID the process of the last one.
	Life uint64
	PID  int
	// State is one of format's states; a saved image is stopped.
	State uint32
	// Heartbeat is how long ago the publisher was alive; negative if that is unknown, as for a
	// saved image.
	Heartbeat time.Duration
	// Alive reports whether the publisher still publishes: its state is live and its heartbeat is
	// recent.
	Alive bool
}

// Image is an image at one version, with its generations mapped and locked. Close it soon, because
// it pins them.
//
// The root is a copy and does not change. The mapped generations may: the publisher keeps appending
// to those that are live. Captures take care of that; see capture.go.
type Image struct {
	Dir       string
	Head      format.Root
	Version   uint64
	Publisher Publisher
	Tables    []Table
	// Commits are the last commits that the ring has, newest first.
	Commits []format.Commit
	// Faults lists damage in the root and in the headers of the files that the root names.
	Faults []Fault

	root []byte // a copy, with the commit word of Version
	file *mapping
}

// Table is a table of an image.
type Table struct {
	format.Table
	Shards []*Shard
}

// Shard is a shard with its live generation. The entry in the root and the header of the file must
// agree; checkIdentity compares them.
type Shard struct {
	format.Shard
	Slot int // its entry in the root
	File string
	Head format.Segment
	m    *mapping // nil when the file is damaged
}

// Bounds of waiting for a publisher that changes generations.
const (
	openTries = 200
	openPause = 5 * time.Millisecond
)

// Open opens the image in a directory. Faults lists damage of single tables and shards. Open fails
// with kind Corrupt if the root cannot be used, with NotFound if there is no image, and with kinds
// Incompatible, PermissionDenied and Unavailable like reader.Attach.
func Open(dir string) (*Image, error) {
	const op rhumb.Op = "inspect.Open"
	m, err := mapFile(filepath.Join(dir, format.RootName), format.RootSize, false)
	if rhumb.KindOf(err) == rhumb.NotFound {
		return nil, rhumb.Ef(op, rhumb.NotFound, "%s is not an image: it has no file %s; `rhumb snapshot ls` lists images", dir, format.RootName)
	}
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	head, err := format.DecodeRoot(m.bytes)
	if err != nil {
		m.unmapFile()
		return nil, rhumb.WrapKind(op, rhumb.KindOf(err), fmt.Errorf("%s: %w", filepath.Join(dir, format.RootName), err))
	}
	im := &Image{Dir: dir, Head: head, file: m}
	for range openTries {
		if im.loadRoot() {
			im.readPublisher()
			return im, nil
		}
		// A change takes microseconds. The pause is for a publisher that was preempted in the
		// middle.
		time.Sleep(openPause)
	}
	im.Close()
	return nil, rhumb.Ef(op, rhumb.Unavailable, "%s: the publisher is changing generations, or died while it did; start the node again", dir)
}

// Close unmaps the image.
func (im *Image) Close() {
	im.releaseTables()
	if im.file != nil {
		im.file.unmapFile()
		im.file = nil
	}
}

// releaseTables unmaps the generations, before the root is read once more.
func (im *Image) releaseTables() {
	for _, t := range im.Tables {
		for _, s := range t.Shards {
			if s.m != nil {
				s.m.unmapFile()
			}
		}
	}
	im.Tables, im.Faults = nil, nil
}

// loadRoot copies the root and maps the generations that the root names. It reports false if the
// root changed meanwhile.
func (im *Image) loadRoot() bool {
	im.releaseTables()
	seq := im.file.load64(format.RootTableSeq)
	if seq&1 != 0 {
		return false
	}
	// The version comes first: everything read after this contains at least the commits up to it.
	version := im.file.load64(format.RootCommitted)
	im.root = make([]byte, format.RootSize)
	im.file.copyWords(im.root, 0)
	// The copy carries the version that was read first: the word may have moved during the copy.
	le.PutUint64(im.root[format.RootCommitted:], version)
	im.Version = version
	busy := im.loadTables()
	// An unchanged sequence word means that the copy holds no entry that was being written.
	return !busy && im.file.load64(format.RootTableSeq) == seq
}

// loadTables maps the generations that the copied root names. busy reports that the publisher has
// locked or recycled a file: then the root has changed since it was copied.
func (im *Image) loadTables() (busy bool) {
	names, slots := map[string]bool{}, map[int]bool{}
	for i := range format.TablesMax {
		at := format.RootTables + i*format.TableEntrySize
		entry, used, err := format.DecodeTable(im.root[at:])
		if err != nil {
			im.addFault(format.RootName, at, rhumb.Message(err))
			continue
		}
		// An unused entry must be all zero; rootFaults checks that.
		if !used {
			continue
		}
		// Readers find tables by name, so they would never see the second one.
		if names[entry.Name] {
			im.addFault(format.RootName, at, fmt.Sprintf("a second table is named %q", entry.Name))
		}
		names[entry.Name] = true
		t := Table{Table: entry}
		for n := range int(entry.ShardCount) {
			slot := int(entry.ShardFirst) + n
			if slots[slot] {
				im.addFault(format.RootName, at, fmt.Sprintf("shard %d belongs to two tables", slot))
				continue
			}
			// A second owner is only reported. Mapping the generation twice would report each of
			// its faults twice.
			slots[slot] = true
			s, again := im.loadShard(&entry, slot, n)
			if s != nil {
				t.Shards = append(t.Shards, s)
			}
			busy = busy || again
		}
		im.Tables = append(im.Tables, t)
	}
	return busy
}

// loadShard maps the generation of a shard. It returns nil if the root has no valid entry for it,
// and a shard without a mapping if the file cannot be used. busy asks the caller to read the root
// again.
func (im *Image) loadShard(t *format.Table, slot, index int) (s *Shard, busy bool) {
	at := format.RootShards + slot*format.ShardEntrySize
	entry, used, err := format.DecodeShard(im.root[at:])
	switch {
	case err != nil:
		im.addFault(format.RootName, at, rhumb.Message(err))
		return nil, false
	// The shard entry must name the table, so that an entry of another table cannot pass for one of
	// this table.
	case !used || entry.Table != t.ID || int(entry.Index) != index:
		im.addFault(format.RootName, at, fmt.Sprintf("the entry of shard %d is not that of shard %d of table %q", slot, index, t.Name))
		return nil, false
	}
	s = &Shard{Shard: entry, Slot: slot, File: format.SegmentName(slot, entry.Generation)}
	m, err := mapFile(filepath.Join(im.Dir, s.File), format.SegmentHeader, true)
	// The publisher is recycling the file right now, so the root must have changed.
	if errors.Is(err, errBusy) {
		return s, true
	}
	if err != nil {
		im.addFault(s.File, -1, rhumb.Message(err))
		return s, false
	}
	if m.load64(0) == 0 || m.load64(format.SegmentState) == format.SegmentRecycled {
		// The root has moved on: the file was recycled because it is not live any more. Otherwise a
		// live file without a magic is damage.
		if im.file.load64(format.RootTableSeq) != le.Uint64(im.root[format.RootTableSeq:]) {
			m.unmapFile()
			return s, true
		}
	}
	if s.Head, err = format.DecodeSegment(m.bytes, uint64(len(m.bytes))); err == nil {
		err = s.checkIdentity(im.Head.Image, t)
	}
	if err != nil {
		im.addFault(s.File, 0, rhumb.Message(err))
		m.unmapFile()
		return s, false
	}
	s.m = m
	return s, false
}

// checkIdentity checks that the file is the one that the root names.
func (s *Shard) checkIdentity(image rhumb.UUID, t *format.Table) error {
	const op rhumb.Op = "inspect.shard"
	h := &s.Head
	switch {
	case h.Image != image:
		return rhumb.Ef(op, rhumb.Corrupt, "it belongs to image %v, not %v", h.Image, image)
	case h.Generation != s.Generation || int(h.Shard) != s.Slot || h.Table != t.ID || h.KeyKind != t.KeyKind:
		return rhumb.Ef(op, rhumb.Corrupt, "it is generation %d of shard %d of table %v, the root names generation %d of shard %d of table %v",
			h.Generation, h.Shard, h.Table, s.Generation, s.Slot, t.ID)
	case h.Base != s.Base || h.Closed != s.Closed || h.FileSize != s.FileSize:
		return rhumb.Ef(op, rhumb.Corrupt, "base %d closed at %v with %d bytes, the root has %d at %v with %d",
			h.Base, h.Closed, h.FileSize, s.Base, s.Closed, s.FileSize)
	}
	return nil
}

// readPublisher decodes the state of the publisher and the ring of commits from the copied root.
func (im *Image) readPublisher() {
	im.Publisher, im.Commits = publisherOf(im.root), commitsOf(im.root, im.Version)
}

// publisherOf decodes the state of the publisher from a copied root.
func publisherOf(root []byte) Publisher {
	p := Publisher{
		Life: le.Uint64(root[format.RootLife:]), PID: int(le.Uint32(root[format.RootPID:])), State: le.Uint32(root[format.RootState:]),
		Heartbeat: sinceMonotonic(le.Uint64(root[format.RootHeartbeat:])),
	}
	p.Alive = p.State == format.StateLive && p.Heartbeat >= 0 && p.Heartbeat <= AliveMax
	return p
}

// commitsOf returns the commits of the ring, newest first. It omits an entry that was overwritten
// while the root was copied.
func commitsOf(root []byte, version uint64) (out []format.Commit) {
	// The ring has the last RingSize versions at most, each at its number modulo the size.
	for v := version; v > 0 && version-v < format.RingSize; v-- {
		at := format.RootRing + int(v%format.RingSize)*format.RingEntrySize
		if c, ok := format.DecodeCommit(root[at:], v); ok {
			out = append(out, c)
		}
	}
	return out
}

// sinceMonotonic returns how long ago a reading of CLOCK_MONOTONIC was; negative if the reading
// cannot be from the current boot.
func sinceMonotonic(ns uint64) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil || ns == 0 || int64(ns) < 0 || int64(ns) > now.Nano() {
		return -1
	}
	return time.Duration(now.Nano() - int64(ns))
}

// Age returns how long ago the newest version was committed, by the wall clock; negative if the
// ring does not contain the commit.
func (im *Image) Age(now time.Time) time.Duration { return commitAge(im.Commits, im.Version, now) }

// commitAge returns how long ago a version was committed; negative if the newest commit of the ring
// is a different one.
func commitAge(commits []format.Commit, version uint64, now time.Time) time.Duration {
	if len(commits) == 0 || commits[0].Version != version {
		return -1
	}
	return now.Sub(time.Unix(0, commits[0].Wall))
}

// addFault notes a fault.
func (im *Image) addFault(file string, offset int, what string) {
	im.Faults = append(im.Faults, Fault{file, int64(offset), what})
}
