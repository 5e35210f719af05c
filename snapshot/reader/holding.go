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

// A holding is an immutable set of mapped generations that belong together. When the publisher
// replaces a generation, or adds or drops a table, it makes table_seq odd and even again; the next
// Lock sees that the word differs from the one in its holding and maps the new generations.
// Generations in both holdings are shared, so a change of one shard maps only one file.

// holding is the root and the generations that were live at one value of table_seq. Views share it.
// It is immutable except for waited. When generations change, a new holding replaces it, and the
// old one lives as long as a view holds it.
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
	lanes           []lane // the same, in the form that a first look uses
	least           uint64 // the least base of the generations
	trees           []*rtree.Tree
	root            *format.Root
	summed          bool // check the checksum of each record that is read
	needsSecondLook bool // a first look cannot decide on a record
}

// root is the mapped root file.
type root struct {
	*mapping
	head format.Root
	info os.FileInfo
}

// Bounds of waiting for a publisher that changes the generations: a change takes microseconds once
// the new ones are built.
const (
	loadTries = 200
	loadPause = 5 * time.Millisecond
)

// Errors for a generation that could not be mapped although the image may be fine.
var (
	// errMoved reports that the file is gone, or belongs to another generation now.
	errMoved = errors.New("the file of a live generation is gone or holds another")
	// errBusy reports that the publisher holds the lock of the file, as it does for an instant
	// after a table appeared.
	errBusy = errors.New("the publisher has the file of a live generation for itself")
)

// wordAt returns the address of a word of the root.
func (h *holding) wordAt(offset uintptr) *uint64 { return (*uint64)(unsafe.Add(h.root.base, offset)) }

// committed returns the newest version.
func (h *holding) committed() uint64 { return atomic.LoadUint64(h.wordAt(format.RootCommitted)) }

// coversCommits reports whether these generations can show every version that was committed before
// the call. This holds while no change of generations has begun.
func (h *holding) coversCommits() bool {
	return atomic.LoadUint64(h.wordAt(format.RootTableSeq)) == h.seq
}

// isChanging reports whether the change of generations that follows this holding is under way.
func (h *holding) isChanging() bool {
	return atomic.LoadUint64(h.wordAt(format.RootTableSeq)) == h.seq+1
}

// changeTime is how long a change of generations may be under way before its publisher is taken for
// dead. A live publisher takes microseconds, and a process that was preempted in the middle some
// milliseconds.
const changeTime = 50 * time.Millisecond

// changeHangs waits for a change of generations and reports whether it did not end in time. It
// waits once per change, so later views do not pay for a dead publisher again.
func (h *holding) changeHangs() bool {
	for begin := time.Now(); h.isChanging(); runtime.Gosched() {
		// An earlier view has already waited for the same change in vain.
		if h.waited.Load() {
			return true
		}
		h.waited.Store(time.Since(begin) > changeTime)
	}
	return false
}

// safeVersion returns the newest version that these generations are guaranteed to show while a
// change hangs. A change commits at most one version, so the version before the newest precedes the
// change.
func (h *holding) safeVersion() uint64 {
	if v := h.committed(); v > h.known {
		// The change may have committed the newest version, which these generations then lack.
		return v - 1
	}
	return h.known
}

// copyEntry copies an entry of tables or shards word by word. Each load has acquire order: the
// following load of table_seq must not be reordered before any of them, as could happen with plain
// loads on arm64.
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

// decodeRing decodes a ring entry that copyRing copied; ok is false if the entry is torn or of
// another version.
func decodeRing(from *[format.RingEntrySize / 8]uint64, version uint64) (format.Commit, bool) {
	var p [format.RingEntrySize]byte
	for i, w := range from {
		binary.LittleEndian.PutUint64(p[i*8:], w)
	}
	return format.DecodeCommit(p[:], version)
}

// closedAt returns the closed timestamp of the newest version up to the given one that has one. The
// ring holds only the last few commits.
func (h *holding) closedAt(version uint64) (rhumb.Timestamp, bool) {
	var entry [format.RingEntrySize / 8]uint64
	for range format.RingSize {
		h.copyRing(version, &entry)
		// An entry without a closed timestamp, or one that was overwritten, is skipped: an earlier
		// timestamp is a valid cut too.
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

// remapLive replaces old by a holding of the generations that are live now.
func (c *Client) remapLive(old *holding) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Checked again under the mutex: several goroutines may have seen the change, and one of them
	// maps the generations for all.
	cur := c.current.Load()
	if cur != old { // another goroutine did it, or the client was closed
		return nil
	}
	// Nothing of the old image is shared with the new one, not even generations with equal numbers.
	if c.stale.Load() {
		// loadHolding then opens root again instead of reusing the mapped one.
		cur = nil
	}
	h, err := c.loadHolding(cur)
	if err != nil {
		c.unmapUnused()
		return rhumb.Wrap(opLock, err)
	}
	c.stale.Store(false)
	// From here on new views use the new generations. Views of the old ones keep them in their
	// slots.
	c.current.Store(h)
	c.counts.remaps++
	// root was replaced, so the whole image was mapped again.
	if cur == nil {
		c.counts.reopens++
	}
	c.unmapUnused()
	return nil
}

// loadHolding maps the live generations. It shares with old, if set, the root and the generations
// in both. The client's mutex must be held. Files that it mapped but does not return are left to
// unmapUnused.
//
// A fault while a file is checked means that somebody truncated it. It becomes an error here, since
// callers of Lock are not inside Guard.
func (c *Client) loadHolding(old *holding) (_ *holding, err error) {
	const op rhumb.Op = "reader.load"
	// Evaluated in this order, the inner call turns faults into panics now and the outer one
	// restores the setting at the end.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = c.truncatedError(fault)
		}
	}()
	// All holdings share the mapped root unless another file has replaced it.
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
		// Odd: the publisher is in the middle of a change, or died there. A change takes
		// microseconds, so one retry is usually enough.
		if h.seq&1 != 0 {
			last = rhumb.E(op, rhumb.Unavailable, "the publisher is changing generations, or died while it did")
			continue
		}
		err := c.loadTables(h, old)
		// The result counts only if nothing changed meanwhile. This includes errors: an entry that
		// is being changed looks damaged.
		same := atomic.LoadUint64(h.wordAt(format.RootTableSeq)) == h.seq
		if same && err == nil {
			// The version is read between two equal readings of table_seq, so these generations can
			// show it.
			h.known = max(h.committed(), h.base)
			if h.coversCommits() {
				return h, nil
			}
		}
		if same && err != nil && !errors.Is(err, errBusy) {
			// The root did not change, so a file that is missing now is damage and not a change in
			// progress.
			if errors.Is(err, errMoved) {
				err = rhumb.WrapKind(op, rhumb.Corrupt, err)
			}
			return nil, err
		}
		// Either the sequence moved on, or the publisher holds the lock of a file. Both are
		// temporary.
		last = cmp.Or(err, errMoved)
	}
	return nil, rhumb.WrapKind(op, rhumb.Unavailable, last)
}

// truncatedError turns the fault of a file that was truncated while it was checked into an error.
// It passes any other panic on.
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
	// A first look compares neither names nor checksums, so tables that need either skip it.
	t.needsSecondLook, t.least = t.summed || t.KeyKind != format.KeyUint64, math.MaxUint64
	var b [format.ShardEntrySize]byte
	for i := range int(entry.ShardCount) {
		n := int(entry.ShardFirst) + i
		at := format.RootShards + n*format.ShardEntrySize
		s, used, err := format.DecodeShard(h.copyEntry(uintptr(at), b[:]))
		// The shard entry must name the table, so that an entry of another table cannot pass for
		// one of this table.
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
		// Filled at once, so that a second table that claims the shard is found above.
		h.shards[n] = g
		// A view covers all tables, so the oldest version that it can show is the newest base of
		// all tables.
		h.base, h.closed = max(h.base, s.Base), max(h.closed, s.Closed)
		t.segments, t.lanes, t.trees = append(t.segments, g), append(t.lanes, g.makeLane()), append(t.trees, &g.tree)
		t.least = min(t.least, s.Base)
	}
	h.tables[t.Name], h.order = t, append(h.order, t)
	return nil
}

// mapSegment returns the generation of a shard, shared with old if old has it.
func (c *Client) mapSegment(h, old *holding, t format.Table, n int, s format.Shard) (*segment, error) {
	// A generation number is never used twice, so equal numbers mean the same file.
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
	// The name was looked up before the lock was taken, so the publisher may have recycled the file
	// in between.
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

// wasReplaced reports whether the name root refers to another file, as after an image was rebuilt.
// A missing root does not count as replaced: the mapped image stays readable.
func (r *root) wasReplaced(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, format.RootName))
	return err == nil && !os.SameFile(info, r.info)
}

// inFile adds the file and the offset to an error.
func (c *Client) inFile(file string, offset int, err error) error {
	return rhumb.WrapKind("reader.load", rhumb.KindOf(err), &rhumb.Error{
		Kind: rhumb.KindOf(err), Msg: filepath.Join(c.dir, file) + " at offset " + strconv.Itoa(offset), Err: err,
	})
}

// unmapUnused unmaps files that neither the current holding nor a view needs. The client's mutex
// must be held.
//
// A view publishes its holding before it checks that the holding is still current. So every holding
// that a view relies on is either in a slot when the slots are read here, or is still current.
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
	// current is read before the slots. Whoever replaces it holds the mutex, so it cannot change in
	// between.
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
