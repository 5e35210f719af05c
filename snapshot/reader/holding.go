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

// A holding is an immutable set of mapped generations that belong together. When the publisher replaces a generation, or
// adds or drops a table, it makes table_seq odd and even again; the next Lock sees that the word is not the one of its
// holding and maps what is new. Generations that are in both holdings are shared, so that a change of one shard maps one
// file.

// holding is the root and the generations that were live at one value of table_seq. Views share it. It never changes,
// except for waited: when generations change, a new holding takes the place of this one, and this one lives as long as a
// view holds it.
type holding struct {
	root   *root
	seq    uint64      // table_seq, even
	known  uint64      // a version that these generations can show
	waited atomic.Bool // a change of generations took too long: see changeHangs
	base   uint64      // the newest base of all generations: earlier versions cannot be shown
	closed rhumb.Timestamp
	tables map[string]*table
	order  []*table
	shards [format.ShardsMax]*segment
}

// table is a table's entry and the generations of its shards.
type table struct {
	format.Table
	segments        []*segment
	lanes           []lane // the same, as a first look wants them
	least           uint64 // the least base of the generations
	trees           []*rtree.Tree
	root            *format.Root
	summed          bool // check the checksum of each record that is read
	needsSecondLook bool // there is more to a record than a first look sees
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

// The errors for a generation that could not be mapped although nothing needs to be wrong.
var (
	// errMoved: the file is gone, or belongs to another generation now.
	errMoved = errors.New("the file of a live generation is gone or holds another")
	// errBusy: the publisher holds the lock of the file, as it does for an instant after a table appeared.
	errBusy = errors.New("the publisher has the file of a live generation for itself")
)

// wordAt returns the address of a word of the root.
func (h *holding) wordAt(offset uintptr) *uint64 { return (*uint64)(unsafe.Add(h.root.base, offset)) }

// committed returns the newest version.
func (h *holding) committed() uint64 { return atomic.LoadUint64(h.wordAt(format.RootCommitted)) }

// coversCommits reports whether these generations can show every version that was committed before the call. That is so
// while no change of generations has begun.
func (h *holding) coversCommits() bool {
	return atomic.LoadUint64(h.wordAt(format.RootTableSeq)) == h.seq
}

// isChanging reports whether the change of generations that follows this holding is under way.
func (h *holding) isChanging() bool {
	return atomic.LoadUint64(h.wordAt(format.RootTableSeq)) == h.seq+1
}

// changeTime is how long a change of generations may be under way before its publisher is taken for dead. A live publisher
// takes microseconds, and a process that was preempted in the middle some milliseconds.
const changeTime = 50 * time.Millisecond

// changeHangs waits for a change of generations to end and reports whether it does not. It waits once per change: later
// views do not pay for a dead publisher again.
func (h *holding) changeHangs() bool {
	for begin := time.Now(); h.isChanging(); runtime.Gosched() {
		if h.waited.Load() {
			return true
		}
		h.waited.Store(time.Since(begin) > changeTime)
	}
	return false
}

// safeVersion returns the newest version that these generations can surely show while a change is under way that does not
// end. A change commits one version at most, so the version before the newest is from before the change.
func (h *holding) safeVersion() uint64 {
	if v := h.committed(); v > h.known {
		return v - 1
	}
	return h.known
}

// copyEntry copies an entry of tables or shards word by word. Each load acquires: the look at table_seq that follows must
// not be overtaken by any of them, as it could be by plain loads on arm64.
func (h *holding) copyEntry(at uintptr, to []byte) []byte {
	for i := 0; i < len(to); i += 8 {
		binary.LittleEndian.PutUint64(to[i:], atomic.LoadUint64(h.wordAt(at+uintptr(i))))
	}
	return to
}

// copyRing copies the ring entry of a version, which may be torn.
func (h *holding) copyRing(version uint64, to *[format.RingEntrySize / 8]uint64) {
	at := uintptr(format.RootRing + version%format.RingSize*format.RingEntrySize)
	for i := range to {
		to[i] = atomic.LoadUint64(h.wordAt(at + uintptr(i)*8))
	}
}

// decodeRing decodes a ring entry that copyRing copied; ok is false if the entry is torn or of another version.
func decodeRing(from *[format.RingEntrySize / 8]uint64, version uint64) (format.Commit, bool) {
	var p [format.RingEntrySize]byte
	for i, w := range from {
		binary.LittleEndian.PutUint64(p[i*8:], w)
	}
	return format.DecodeCommit(p[:], version)
}

// closedAt returns the closed timestamp of the newest version up to the given one that has one. The ring holds only the
// last few commits.
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

// remapLive puts a holding of what is live now in the place of old.
func (c *Client) remapLive(old *holding) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Looked at again under the mutex: several goroutines may have seen the change, and one of them maps it for all.
	cur := c.current.Load()
	if cur != old { // another goroutine did it, or the client was closed
		return nil
	}
	// Nothing of the old image is shared with the new one, not even generations with equal numbers.
	if c.stale.Load() {
		cur = nil
	}
	h, err := c.loadHolding(cur)
	if err != nil {
		c.unmapUnused()
		return rhumb.Wrap(opLock, err)
	}
	c.stale.Store(false)
	// From here on new views use the new generations. Views of the old ones keep them in their slots.
	c.current.Store(h)
	c.counts.remaps++
	if cur == nil {
		c.counts.reopens++
	}
	c.unmapUnused()
	return nil
}

// loadHolding maps the live generations. It shares with old, if there is one, the root and the generations that are in
// both. The client's mutex must be held. What it mapped and does not return is left to unmapUnused.
//
// A fault while a file is checked means that somebody truncated it. It becomes an error here, since a caller of Lock has no
// Guard around it.
func (c *Client) loadHolding(old *holding) (_ *holding, err error) {
	const op rhumb.Op = "reader.load"
	// Evaluated in this order, the inner call turns faults into panics now and the outer one restores the setting at the
	// end.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = c.truncatedError(fault)
		}
	}()
	// The root stays mapped from holding to holding unless another file has its name.
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
		h.seq = atomic.LoadUint64(h.wordAt(format.RootTableSeq))
		// Odd: the publisher is in the middle of a change, or died there. A change takes microseconds, so one look later is
		// enough as a rule.
		if h.seq&1 != 0 {
			last = rhumb.E(op, rhumb.Unavailable, "the publisher is changing generations, or died while it did")
			continue
		}
		err := c.loadTables(h, old)
		// What was read counts only if nothing changed meanwhile, errors included: an entry that is being changed looks
		// damaged.
		same := atomic.LoadUint64(h.wordAt(format.RootTableSeq)) == h.seq
		if same && err == nil {
			// Read between two looks at table_seq that agree, so that these generations can show this version.
			h.known = max(h.committed(), h.base)
			if h.coversCommits() {
				return h, nil
			}
		}
		if same && err != nil && !errors.Is(err, errBusy) {
			if errors.Is(err, errMoved) {
				err = rhumb.WrapKind(op, rhumb.Corrupt, err)
			}
			return nil, err
		}
		// Either the sequence moved on, or the publisher has a file for itself. Both pass.
		last = cmp.Or(err, errMoved)
	}
	return nil, rhumb.WrapKind(op, rhumb.Unavailable, last)
}

// truncatedError turns the fault of a file that was truncated while it was checked into an error. It passes any other panic
// on.
func (c *Client) truncatedError(fault any) error {
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
		t, used, err := format.DecodeTable(h.copyEntry(uintptr(at), b[:]))
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

// loadTable maps the generations of one table.
func (c *Client) loadTable(h, old *holding, entry format.Table) error {
	t := &table{Table: entry, root: &h.root.head, summed: entry.Summed() && (c.opt.VerifyChecksums || entry.Name == format.PositionsTable)}
	// A first look compares no name and no checksum. A table that needs either never takes one.
	t.needsSecondLook, t.least = t.summed || t.KeyKind != format.KeyUint64, math.MaxUint64
	var b [format.ShardEntrySize]byte
	for i := range int(entry.ShardCount) {
		n := int(entry.ShardFirst) + i
		at := format.RootShards + n*format.ShardEntrySize
		s, used, err := format.DecodeShard(h.copyEntry(uintptr(at), b[:]))
		if err == nil && (!used || s.Table != entry.ID || int(s.Index) != i || h.shards[n] != nil) {
			err = rhumb.Ef("reader.load", rhumb.Corrupt, "the entry of shard %d is not that of shard %d of table %q", n, i, entry.Name)
		}
		if err != nil {
			return c.inFile(format.RootName, at, err)
		}
		g, err := c.mapSegment(h, old, entry, n, s)
		if err != nil {
			return err
		}
		h.shards[n] = g
		// The oldest version that can be shown is that of the newest base, over all tables: a view is of all of them.
		h.base, h.closed = max(h.base, s.Base), max(h.closed, s.Closed)
		t.segments, t.lanes, t.trees = append(t.segments, g), append(t.lanes, g.makeLane()), append(t.trees, &g.tree)
		t.least = min(t.least, s.Base)
	}
	h.tables[t.Name], h.order = t, append(h.order, t)
	return nil
}

// mapSegment returns the generation of a shard, from old if it is there.
func (c *Client) mapSegment(h, old *holding, t format.Table, n int, s format.Shard) (*segment, error) {
	// A generation number is never used twice, so that equal numbers are the same file.
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
	// The name was looked up before the lock was taken, so the publisher may have recycled the file in between.
	if m.wasRecycled(s.Generation) {
		return nil, errMoved
	}
	g, err := newSegment(m, file)
	if err == nil {
		// The name of a file is not trusted: somebody may have copied it from another image.
		err = g.checkIdentity(h.root.head.Image, t, n, s)
	}
	if err == nil && c.opt.VerifyChecksums {
		err = g.verifySums()
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

// wasReplaced reports whether another file has the name of root, as after an image was made anew. A root that is gone was
// not replaced: what is mapped stays readable.
func (r *root) wasReplaced(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, format.RootName))
	return err == nil && !os.SameFile(info, r.info)
}

// inFile adds to an error in which file and where the fault is.
func (c *Client) inFile(file string, offset int, err error) error {
	return rhumb.WrapKind("reader.load", rhumb.KindOf(err), &rhumb.Error{
		Kind: rhumb.KindOf(err), Msg: filepath.Join(c.dir, file) + " at offset " + strconv.Itoa(offset), Err: err,
	})
}

// unmapUnused unmaps what neither the current holding nor a view needs. The client's mutex must be held.
//
// A view publishes its holding before it looks whether the holding is still current. So every holding that a view relies on
// is either in a slot when the slots are read here, or was current when they were.
func (c *Client) unmapUnused() {
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
			if err := m.unmapFile(); err != nil {
				c.opt.Logger.Error("could not unmap a file", "file", file, "err", err)
			}
		}
	}
}
