package reader

import (
	"cmp"
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// holding is the root and the generations that were live at one value of table_seq. It does not change, but for waited,
// which says that the next change takes too long; views share it.
type holding struct {
	root   *root
	seq    uint64 // table_seq, even
	known  uint64 // a version that is covered
	waited atomic.Bool
	base   uint64 // the newest base of all generations: earlier versions are not covered
	closed rhumb.Timestamp
	tables map[string]*table
	order  []*table
	shards [format.ShardsMax]*segment
}

// table is a table's entry and the generations of its shards.
type table struct {
	format.Table
	segments []*segment
	lanes    []lane // the same for a first look
	least    uint64 // base of the generations
	trees    []*rtree.Tree
	root     *format.Root
	summed   bool // check the checksum of each record that is read
	careful  bool // there is more to a record than a first look sees
}

// root is the mapped root file.
type root struct {
	*mapping
	head format.Root
	info os.FileInfo
}

// Bounds of waiting for a publisher that changes the generations: a change takes microseconds once the new ones are built.
const (
	loadTries = 200
	loadPause = 5 * time.Millisecond
)

// Why a generation could not be mapped although nothing need be wrong.
var (
	// errMoved: the file is gone, or is that of another generation by now.
	errMoved = errors.New("the file of a live generation is gone or holds another")
	// errBusy: the publisher has the file for itself, as it has for an instant after a table appeared.
	errBusy = errors.New("the publisher has the file of a live generation for itself")
)

func (h *holding) word(offset uintptr) *uint64 { return (*uint64)(unsafe.Add(h.root.base, offset)) }

// committed gives the newest version.
func (h *holding) committed() uint64 { return atomic.LoadUint64(h.word(format.RootCommitted)) }

// covers reports whether every version that was committed before the call can be read from h: that is so as long as no
// change of generations has begun since.
func (h *holding) covers() bool { return atomic.LoadUint64(h.word(format.RootTableSeq)) == h.seq }

// changing reports whether the one change of generations that h does not know of is under way.
func (h *holding) changing() bool { return atomic.LoadUint64(h.word(format.RootTableSeq)) == h.seq+1 }

// changeTime is how long a change of generations may be under way before its publisher is taken for dead.
const changeTime = 50 * time.Millisecond

// stuck waits for a change of generations to end, which is a matter of microseconds, and reports whether it does not. It
// waits once for each change.
func (h *holding) stuck() bool {
	for begin := time.Now(); h.changing(); runtime.Gosched() {
		if h.waited.Load() {
			return true
		}
		h.waited.Store(time.Since(begin) > changeTime)
	}
	return false
}

// safe gives the newest version that h surely covers when a change is under way that does not end, since the publisher died
// in it. A change commits one version at most, so the one before the newest is from before the change.
func (h *holding) safe() uint64 {
	if v := h.committed(); v > h.known {
		return v - 1
	}
	return h.known
}

// entry copies an entry of tables or shards word by word. Each load acquires, so that the look at table_seq that comes after
// them is not overtaken by any, as plain loads would be on arm64.
func (h *holding) entry(at uintptr, to []byte) []byte {
	for i := 0; i < len(to); i += 8 {
		binary.LittleEndian.PutUint64(to[i:], atomic.LoadUint64(h.word(at+uintptr(i))))
	}
	return to
}

// copyRing takes the ring entry of a version as it is.
func (h *holding) copyRing(version uint64, to *[format.RingEntrySize / 8]uint64) {
	at := uintptr(format.RootRing + version%format.RingSize*format.RingEntrySize)
	for i := range to {
		to[i] = atomic.LoadUint64(h.word(at + uintptr(i)*8))
	}
}

// decodeRing reads a ring entry that copyRing took; ok is false when it is torn or of another version.
func decodeRing(from *[format.RingEntrySize / 8]uint64, version uint64) (format.Commit, bool) {
	var p [format.RingEntrySize]byte
	for i, w := range from {
		binary.LittleEndian.PutUint64(p[i*8:], w)
	}
	return format.DecodeCommit(p[:], version)
}

// closedAt gives the closed timestamp of the newest version up to the given one that knows one.
func (h *holding) closedAt(version uint64) (rhumb.Timestamp, bool) {
	var entry [format.RingEntrySize / 8]uint64
	for range format.RingSize {
		h.copyRing(version, &entry)
		if c, ok := decodeRing(&entry, version); ok && c.Closed != 0 {
			return c.Closed, true
		}
		if version == 0 {
			break
		}
		version--
	}
	return 0, false
}

// refresh maps what is live now in place of old.
func (c *Client) refresh(old *holding) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	cur := c.current.Load()
	if cur != old { // another view did it, or the client was closed
		return nil
	}
	if c.stale.Load() {
		cur = nil
	}
	h, err := c.load(cur)
	if err != nil {
		c.sweep()
		return rhumb.Wrap(opLock, err)
	}
	c.stale.Store(false)
	c.current.Store(h)
	c.counts.remaps++
	if cur == nil {
		c.counts.reopens++
	}
	c.sweep()
	return nil
}

// load maps the live generations, sharing with old, if any, its root and those that are in both. It is called under the
// client's mutex; what it mapped and does not return is left to sweep.
func (c *Client) load(old *holding) (_ *holding, err error) {
	const op rhumb.Op = "reader.load"
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = c.cut(fault)
		}
	}()
	var r *root
	if old != nil {
		r = old.root
	} else {
		var err error
		if r, err = c.openRoot(); err != nil {
			return nil, err
		}
	}
	var last error
	for try := range loadTries {
		if try > 0 {
			time.Sleep(loadPause)
		}
		h := &holding{root: r}
		h.seq = atomic.LoadUint64(h.word(format.RootTableSeq))
		if h.seq&1 != 0 {
			last = rhumb.E(op, rhumb.Unavailable, "the publisher is changing generations, or died while it did")
			continue
		}
		err := c.loadTables(h, old)
		same := atomic.LoadUint64(h.word(format.RootTableSeq)) == h.seq
		if same && err == nil {
			h.known = max(h.committed(), h.base)
			if h.covers() {
				return h, nil
			}
		}
		if same && err != nil && !errors.Is(err, errBusy) {
			if errors.Is(err, errMoved) {
				err = rhumb.WrapKind(op, rhumb.Corrupt, err)
			}
			return nil, err
		}
		last = cmp.Or(err, errMoved)
	}
	return nil, rhumb.WrapKind(op, rhumb.Unavailable, last)
}

// cut turns the fault that a file gives which was truncated while it was checked into an error. Any other panic goes on.
func (c *Client) cut(fault any) error {
	at, ok := fault.(interface{ Addr() uintptr })
	if !ok {
		panic(fault)
	}
	for m, file := range c.mapped {
		if offset := at.Addr() - uintptr(m.base); offset < uintptr(len(m.bytes)) {
			return c.inFile(file, int(offset), rhumb.E("reader.load", rhumb.Corrupt, "the file was cut while it was read"))
		}
	}
	panic(fault)
}

// loadTables decodes the entries of tables and shards and maps the generations.
func (c *Client) loadTables(h, old *holding) error {
	var b [format.TableEntrySize]byte
	h.tables = map[string]*table{}
	for i := range format.TablesMax {
		at := format.RootTables + i*format.TableEntrySize
		t, used, err := format.DecodeTable(h.entry(uintptr(at), b[:]))
		if err != nil {
			return c.inFile(format.RootName, at, err)
		}
		if !used {
			continue
		}
		if _, twice := h.tables[t.Name]; twice {
			return c.inFile(format.RootName, at, rhumb.Ef("reader.load", rhumb.Corrupt, "two tables are named %q", t.Name))
		}
		if err := c.loadTable(h, old, t); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) loadTable(h, old *holding, entry format.Table) error {
	t := &table{Table: entry, root: &h.root.head, summed: entry.Summed() && (c.opt.VerifyChecksums || entry.Name == format.PositionsTable)}
	t.careful, t.least = t.summed || t.KeyKind != format.KeyUint64, math.MaxUint64
	var b [format.ShardEntrySize]byte
	for i := range int(entry.ShardCount) {
		n := int(entry.ShardFirst) + i
		at := format.RootShards + n*format.ShardEntrySize
		s, used, err := format.DecodeShard(h.entry(uintptr(at), b[:]))
		if err == nil && (!used || s.Table != entry.ID || int(s.Index) != i || h.shards[n] != nil) {
			err = rhumb.Ef("reader.load", rhumb.Corrupt, "the entry of shard %d is not that of shard %d of table %q", n, i, entry.Name)
		}
		if err != nil {
			return c.inFile(format.RootName, at, err)
		}
		g, err := c.segment(h, old, entry, n, s)
		if err != nil {
			return err
		}
		h.shards[n] = g
		h.base, h.closed = max(h.base, s.Base), max(h.closed, s.Closed)
		t.segments, t.lanes, t.trees = append(t.segments, g), append(t.lanes, g.lane()), append(t.trees, &g.tree)
		t.least = min(t.least, s.Base)
	}
	h.tables[t.Name], h.order = t, append(h.order, t)
	return nil
}

// segment gives the generation of a shard, from old if that has it.
func (c *Client) segment(h, old *holding, t format.Table, n int, s format.Shard) (*segment, error) {
	if old != nil && old.shards[n] != nil && old.shards[n].head.Generation == s.Generation && old.shards[n].head.Table == t.ID {
		return old.shards[n], nil
	}
	file := format.SegmentName(n, s.Generation)
	m, err := c.mapFile(file, format.SegmentHeader, s.FileSize, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errMoved
	}
	if err != nil {
		return nil, err
	}
	if m.recycled(s.Generation) {
		return nil, errMoved
	}
	g, err := newSegment(m, file)
	if err == nil {
		err = g.agrees(h.root.head.Image, t, n, s)
	}
	if err == nil && c.opt.VerifyChecksums {
		err = g.verify()
	}
	if err != nil {
		return nil, c.inFile(file, 0, err)
	}
	c.opt.Logger.Info("mapped a generation", "file", file, "table", t.Name, "bytes", s.FileSize, "base", s.Base)
	return g, nil
}

// openRoot maps the root file.
func (c *Client) openRoot() (*root, error) {
	m, err := c.mapFile(format.RootName, format.RootSize, 0, false)
	if err != nil {
		return nil, err
	}
	r := &root{mapping: m, info: m.info}
	if r.head, err = format.DecodeRoot(m.bytes); err != nil {
		return nil, c.inFile(format.RootName, 0, err)
	}
	return r, nil
}

// replaced reports whether another file stands where root was mapped from, as after an image was made anew. One that is
// gone is not replaced: what is mapped stays readable.
func (r *root) replaced(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, format.RootName))
	return err == nil && !os.SameFile(info, r.info)
}

// inFile says in which file and where a fault was found.
func (c *Client) inFile(file string, offset int, err error) error {
	return rhumb.WrapKind("reader.load", rhumb.KindOf(err), &rhumb.Error{
		Kind: rhumb.KindOf(err), Msg: filepath.Join(c.dir, file) + " at offset " + strconv.Itoa(offset), Err: err,
	})
}

// sweep unmaps what neither the current holding nor a view needs. It is called under the client's mutex.
func (c *Client) sweep() {
	live := map[*mapping]bool{}
	seen := map[*holding]bool{}
	mark := func(h *holding) {
		if h == nil || seen[h] {
			return
		}
		seen[h] = true
		live[h.root.mapping] = true
		for _, g := range h.shards {
			if g != nil {
				live[g.mapping] = true
			}
		}
	}
	mark(c.current.Load())
	for i := range c.slots {
		mark(c.slots[i].held.Load())
	}
	for m, file := range c.mapped {
		if !live[m] {
			delete(c.mapped, m)
			c.counts.unmaps++
			c.opt.Logger.Info("unmapped a file", "file", file, "bytes", len(m.bytes))
			if err := m.unmap(); err != nil {
				c.opt.Logger.Error("could not unmap a file", "file", file, "err", err)
			}
		}
	}
}
