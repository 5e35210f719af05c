package inspect

import (
	"context"
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// FaultsMax bounds the faults that a report lists of one file.
const FaultsMax = 100

// VerifyOptions say how far Verify goes.
type VerifyOptions struct {
	// Deep follows every chain of versions and every reference too, and compares each index with the records. Otherwise
	// headers, counters and the checksums of the bases are checked.
	Deep bool
	// Progress is told how many bytes of how many are done; nil for nobody.
	Progress func(done, total int64)
}

// Report is what Verify found.
type Report struct {
	Dir     string
	Version uint64
	Tables  int
	Files   int
	Bytes   int64
	// Records counts the record versions that were looked at; 0 unless Deep.
	Records int64
	Faults  []Fault
}

// Verify checks the image in a directory at its newest version, live or not, and lists what is wrong. It fails only when
// there is nothing to check: with kind NotFound, PermissionDenied, Incompatible or Unavailable.
func Verify(ctx context.Context, dir string, opt VerifyOptions) (Report, error) {
	const op rhumb.Op = "inspect.Verify"
	r := Report{Dir: dir, Files: 1, Bytes: format.RootSize}
	im, err := Open(dir)
	if rhumb.KindOf(err) == rhumb.Corrupt {
		r.Faults = []Fault{{format.RootName, 0, rhumb.Message(err)}}
		return r, nil
	}
	if err != nil {
		return r, rhumb.Wrap(op, err)
	}
	defer im.Close()
	r.Version, r.Tables = im.Version, len(im.Tables)
	r.Faults = append(r.Faults, im.Faults...)
	r.Faults = append(r.Faults, im.checkRoot()...)
	total := im.bytes()
	for i := range im.Tables {
		for _, s := range im.Tables[i].Shards {
			if err := canceled(ctx, op); err != nil {
				return r, err
			}
			r.Files++
			if s.m == nil {
				continue // a fault tells of it
			}
			faults, records := im.verifyShard(&im.Tables[i], s, opt.Deep)
			r.Faults, r.Records, r.Bytes = append(r.Faults, faults...), r.Records+records, r.Bytes+int64(len(s.m.bytes))
			if opt.Progress != nil {
				opt.Progress(r.Bytes, total)
			}
		}
	}
	return r, nil
}

// bytes gives the size of all files that are mapped.
func (im *Image) bytes() int64 {
	n := int64(format.RootSize)
	for _, t := range im.Tables {
		for _, s := range t.Shards {
			if s.m != nil {
				n += int64(len(s.m.bytes))
			}
		}
	}
	return n
}

// settled reports whether nobody changes the image and nothing in it was cut off.
func (im *Image) settled() bool { return im.Publisher.State == format.StateStopping }

// rootTries is how often a root that is being changed is read again before what looks wrong in it is a fault.
const rootTries = 20

// checkRoot checks the ring, the counters and what must be empty.
func (im *Image) checkRoot() (out []Fault) {
	root := make([]byte, format.RootSize)
	for range rootTries {
		version := im.file.load64(format.RootCommitted)
		im.file.copyWords(root, 0)
		le.PutUint64(root[format.RootCommitted:], version)
		if out = rootFaults(root, im.settled()); len(out) == 0 {
			break
		}
	}
	var newest uint64
	for _, t := range im.Tables {
		for _, s := range t.Shards {
			newest = max(newest, s.Generation)
			if s.Base > im.Version {
				out = append(out, Fault{format.RootName, int64(format.RootShards + s.Slot*format.ShardEntrySize), fmt.Sprintf("the base %d of shard %d is newer than version %d", s.Base, s.Slot, im.Version)})
			}
		}
	}
	if g := le.Uint64(im.root[format.RootGeneration:]); g < newest || g > newest+1<<32 {
		out = append(out, Fault{format.RootName, format.RootGeneration, fmt.Sprintf("the greatest generation given out is %d, and %d is in use", g, newest)})
	}
	return out
}

// rootFaults checks a copy of the root.
func rootFaults(root []byte, settled bool) (out []Fault) {
	bad := func(at int, what string, args ...any) {
		out = append(out, Fault{format.RootName, int64(at), fmt.Sprintf(what, args...)})
	}
	version := le.Uint64(root[format.RootCommitted:])
	known, newest := false, false // entries of the last commits, and that of the newest
	if s := le.Uint32(root[format.RootState:]); s != format.StateLive && s != format.StateStopping {
		bad(format.RootState, "state %d of a publisher", s)
	}
	for i := range format.RingSize {
		at := format.RootRing + i*format.RingEntrySize
		e := root[at:][:format.RingEntrySize]
		v := le.Uint64(e)
		_, ok := format.DecodeCommit(e, v)
		expected := version >= uint64(i) && version-(version-uint64(i))%format.RingSize == v && v > 0
		next := !settled && (v == 0 || v == version+1)
		switch {
		case empty(e): // not reached yet, or left out of a copy because it was overwritten meanwhile
		case next:
		case ok && expected && empty(e[48:]):
			known, newest = true, newest || v == version
		default:
			bad(at, "the entry of version %d in the ring of the last commits is damaged, or the version %d is", v, version)
		}
	}
	if known && !newest {
		bad(format.RootCommitted, "the version is %d, which the ring of the last commits lacks", version)
	}
	for i := range format.TablesMax {
		at := format.RootTables + i*format.TableEntrySize
		if e := root[at:][:format.TableEntrySize]; le.Uint16(e[4:])&format.TableUsed == 0 && !empty(e) {
			bad(at, "an entry without a table is not empty")
		}
	}
	for i := range format.ShardsMax {
		at := format.RootShards + i*format.ShardEntrySize
		e := root[at:][:format.ShardEntrySize]
		if _, used, err := format.DecodeShard(e); err != nil {
			bad(at, "%s", rhumb.Message(err)) // no table may name it, so that nobody else looks
		} else if !used && !empty(e) || !empty(e[48:]) || le.Uint32(e[40:]) != 0 {
			bad(at, "the unused part of a shard's entry is not empty")
		}
	}
	if le.Uint32(root[12:]) > format.Minor {
		return out // a later version may keep something in between
	}
	for _, gap := range [][2]int{
		{format.RootCommitted + 8, format.RootTableSeq},
		{format.RootTableSeq + 8, format.RootLife},
		{format.RootGeneration + 8, format.RootRing},
		{format.RootRing + format.RingSize*format.RingEntrySize, format.RootTables},
		{format.RootShards + format.ShardsMax*format.ShardEntrySize, format.RootSize},
	} {
		if !empty(root[gap[0]:gap[1]]) {
			bad(gap[0], "bytes that mean nothing are not 0")
		}
	}
	return out
}

func empty(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// checker checks one captured generation.
type checker struct {
	*segment
	image   *Image
	settled bool // nothing in the generation is of a commit that was cut off
	quiet   bool // nothing was committed while it was captured
	out     []Fault

	// What the walk over the heap found, by unit.
	starts, reached, aborted bitmap
	followed                 bitmap // records of the base that some record has as its predecessor
	records                  int64
}

// bad adds a fault.
func (c *checker) bad(offset int64, what string, args ...any) {
	if len(c.out) < FaultsMax {
		c.out = append(c.out, Fault{c.file, offset, fmt.Sprintf(what, args...)})
	}
}

// in adds a fault at a place in a section.
func (c *checker) in(t format.SectionType, at uint64, what string, args ...any) {
	sec, _ := c.head.Find(t)
	c.bad(int64(sec.Offset+at), what, args...)
}

// inRecord adds a fault of a record.
func (c *checker) inRecord(ref uint32, what string, args ...any) {
	c.bad(c.heapOffset(ref), what, args...)
}

// verifyShard checks one generation. A file that is cut short meanwhile is one more fault.
func (im *Image) verifyShard(t *Table, s *Shard, deep bool) (faults []Fault, records int64) {
	c := &checker{image: im}
	err := guard("inspect.verify", s.File, func() {
		c.segment = im.capture(t, s)
		c.quiet = im.file.load64(format.RootCommitted) == im.Version
		c.checkHead()
		if c.checkSections() && c.checkCounters() {
			c.checkSums()
			if deep && len(c.out) == 0 {
				c.deep()
			}
		}
	})
	if err != nil {
		return append(c.out, Fault{s.File, -1, rhumb.Message(err)}), c.records
	}
	return c.out, c.records
}

func (c *checker) checkHead() {
	if s := le.Uint64(c.header[format.SegmentState:]); s != format.SegmentLiveState && (c.settledImage() || s != format.SegmentSuperseded) {
		c.bad(format.SegmentState, "state %d of a live generation", s)
	}
	if c.head.Minor > format.Minor {
		return
	}
	for _, gap := range [][2]int{
		{format.SegmentState + 8, format.SegmentAppendHead},
		{format.SegmentAppendTail + 8, format.SegmentOverflow},
		{format.SegmentLive + 8, format.SegmentDelta},
		{format.SegmentOrder + 8, format.SegmentHeader},
	} {
		if !empty(c.header[gap[0]:gap[1]]) {
			c.bad(int64(gap[0]), "bytes that mean nothing are not 0")
		}
	}
}

func (c *checker) settledImage() bool { return c.image.settled() }

// checkSections checks that the generation has what its table needs, and that nothing is too short for what it holds.
func (c *checker) checkSections() bool {
	need := []format.SectionType{format.SectionChanged}
	if c.table.Spatial() {
		need = append(need, format.SectionTreeNodes, format.SectionTreeRefs, format.SectionDelta, format.SectionDeltaCells)
	}
	if c.table.Ordered() {
		need = append(need, format.SectionOrder, format.SectionOrderDelta)
	}
	for _, t := range need {
		if _, ok := c.head.Find(t); !ok {
			c.bad(0, "table %q needs a section of type %d", c.table.Name, t)
			return false
		}
	}
	return true
}

// checkCounters checks the words that the publisher changes; without good ones nothing else can be checked.
func (c *checker) checkCounters() bool {
	before := len(c.out)
	first := uint64(0)
	if c.table.Ordered() {
		first = orderFirst
	}
	base := uint64(c.head.BaseUnits)
	for _, w := range []struct {
		offset      int
		least, most uint64
	}{
		{format.SegmentAppendTail, base, uint64(c.units)},
		{format.SegmentAppendHead, base, max(base, uint64(c.tail))},
		{format.SegmentOverflow, 0, uint64(c.head.BucketsMax - c.head.Buckets)},
		{format.SegmentDelta, 0, uint64(len(c.section(format.SectionDelta))) / format.DeltaEntrySize},
		{format.SegmentOrder, first, uint64(len(c.section(format.SectionOrderDelta))) / 4},
	} {
		if v := le.Uint64(c.header[w.offset:]); v < w.least || v > w.most {
			c.bad(int64(w.offset), "the counter is %d, and not %d to %d", v, w.least, w.most)
		}
	}
	if c.settledImage() && c.done != c.tail {
		c.bad(format.SegmentAppendHead, "the records end at unit %d, and those that are committed at %d, in an image that nobody changes", c.tail, c.done)
	}
	return len(c.out) == before
}

// checkSums compares the checksums of what never changes.
func (c *checker) checkSums() {
	for _, sec := range c.head.Sections {
		if err := c.head.CheckSum(sec, c.section(sec.Type)); err != nil {
			c.bad(int64(sec.Offset), "%s", rhumb.Message(err))
		}
	}
	if c.table.Spatial() {
		if _, err := rtree.Open(c.section(format.SectionTreeNodes), c.section(format.SectionTreeRefs)); err != nil {
			c.in(format.SectionTreeNodes, 0, "%s", rhumb.Message(err))
		}
	}
}

// bitmap has a bit for each unit of a heap.
type bitmap []uint64

func newBitmap(n uint32) bitmap    { return make(bitmap, n/64+1) }
func (b bitmap) has(i uint32) bool { return b[i/64]>>(i%64)&1 != 0 }
func (b bitmap) set(i uint32)      { b[i/64] |= 1 << (i % 64) }
func (b bitmap) setNew(i uint32) (was bool) {
	was = b.has(i)
	b.set(i)
	return was
}
