package inspect

import (
	"context"
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// Without Deep the check is one pass over the bases, which compares checksums. With Deep every
// record and every reference is decoded; see deep.go.

// FaultsMax bounds the faults that a report lists of one file.
const FaultsMax = 100

// VerifyOptions selects how thorough Verify is.
type VerifyOptions struct {
	// Deep also follows every chain of versions and every reference, and compares each index with
	// the records. Without Deep only headers, counters and the checksums of the bases are checked.
	Deep bool
	// Progress, if set, is called with the number of bytes checked so far and in total.
	Progress func(done, total int64)
}

// Report is what Verify found.
type Report struct {
	Dir     string
	Version uint64
	Tables  int
	Files   int
	Bytes   int64
	// Records is the number of record versions that were checked; 0 unless Deep.
	Records int64
	Faults  []Fault
}

// Verify checks the newest version of the image in a directory, live or not, and lists the faults.
// It fails only if there is nothing to check: with kind NotFound, PermissionDenied, Incompatible or
// Unavailable.
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
	// Open has found the faults that make a table unusable. The remaining parts of the root are
	// checked here.
	r.Faults = append(r.Faults, im.checkRoot()...)
	total := im.totalBytes()
	for i := range im.Tables {
		for _, s := range im.Tables[i].Shards {
			if err := checkCanceled(ctx, op); err != nil {
				return r, err
			}
			r.Files++
			if s.m == nil {
				// There are no bytes to check.
				continue // Open has noted a fault
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

// totalBytes returns the size of all files that are mapped.
func (im *Image) totalBytes() int64 {
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

// isStopped reports whether the publisher stopped cleanly, so that nothing changes and no commit is
// unfinished.
func (im *Image) isStopped() bool { return im.Publisher.State == format.StateStopping }

// rootTries is how often a root that is being changed is read again before something that looks
// wrong in it counts as a fault.
const rootTries = 20

// checkRoot checks the ring and the counters, and that unused parts are zero. Faults in tables and
// shards were recorded by Open, which decodes them.
func (im *Image) checkRoot() (out []Fault) {
	root := make([]byte, format.RootSize)
	for range rootTries {
		version := im.file.load64(format.RootCommitted)
		im.file.copyWords(root, 0)
		le.PutUint64(root[format.RootCommitted:], version)
		// A live publisher may change the root during the copy. Damage is still there on the next
		// try, a torn copy is not.
		if out = rootFaults(root, im.isStopped()); len(out) == 0 {
			break
		}
	}
	var newest uint64
	for _, t := range im.Tables {
		for _, s := range t.Shards {
			// A crash may skip numbers, but never by 2^32: that bounds which flips of the counter
			// can be found.
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

// rootFaults checks a copy of the root. settled reports whether the publisher has stopped, so that
// no entry can be in the middle of a change.
func rootFaults(root []byte, settled bool) (out []Fault) {
	bad := func(at int, what string, args ...any) {
		out = append(out, Fault{format.RootName, int64(at), fmt.Sprintf(what, args...)})
	}
	version := le.Uint64(root[format.RootCommitted:])
	known, newest := false, false // entries of the last commits, and that of the newest
	// Readers act on the state, so any other value is a fault.
	if s := le.Uint32(root[format.RootState:]); s != format.StateLive && s != format.StateStopping {
		bad(format.RootState, "state %d of a publisher", s)
	}
	for i := range format.RingSize {
		at := format.RootRing + i*format.RingEntrySize
		// An entry is identified by its version: an entry that is not the newest of its position is
		// damaged or stale.
		e := root[at:][:format.RingEntrySize]
		v := le.Uint64(e)
		_, ok := format.DecodeCommit(e, v)
		// Entry i belongs to the newest version that is i modulo the size of the ring.
		expected := version >= uint64(i) && version-(version-uint64(i))%format.RingSize == v && v > 0
		// The entry of the next version may be under way, with version 0 while it is written.
		next := !settled && (v == 0 || v == version+1)
		switch {
		case allZero(e): // not reached yet, or omitted from a saved image because it was being overwritten
		case next:
		case ok && expected && allZero(e[48:]):
			known, newest = true, newest || v == version
		default:
			bad(at, "the entry of version %d in the ring of the last commits is damaged, or the version %d is", v, version)
		}
	}
	// A flipped bit in the commit word names a version that has no entry. If the ring has no entry
	// at all, the word cannot be judged.
	if known && !newest {
		bad(format.RootCommitted, "the version is %d, which the ring of the last commits lacks", version)
	}
	// Unused entries must be empty: a flipped bit in one could otherwise create a table.
	for i := range format.TablesMax {
		at := format.RootTables + i*format.TableEntrySize
		if e := root[at:][:format.TableEntrySize]; le.Uint16(e[4:])&format.TableUsed == 0 && !allZero(e) {
			bad(at, "an entry without a table is not empty")
		}
	}
	for i := range format.ShardsMax {
		at := format.RootShards + i*format.ShardEntrySize
		e := root[at:][:format.ShardEntrySize]
		if _, used, err := format.DecodeShard(e); err != nil {
			bad(at, "%s", rhumb.Message(err)) // no table may name the entry, so no other check covers it
		} else if !used && !allZero(e) || !allZero(e[48:]) || le.Uint32(e[40:]) != 0 {
			bad(at, "the unused part of a shard's entry is not empty")
		}
	}
	if le.Uint32(root[12:]) > format.Minor {
		return out // a later minor version may use these bytes
	}
	for _, gap := range [][2]int{
		{format.RootCommitted + 8, format.RootTableSeq},
		{format.RootTableSeq + 8, format.RootLife},
		{format.RootGeneration + 8, format.RootRing},
		{format.RootRing + format.RingSize*format.RingEntrySize, format.RootTables},
		{format.RootShards + format.ShardsMax*format.ShardEntrySize, format.RootSize},
	} {
		if !allZero(root[gap[0]:gap[1]]) {
			bad(gap[0], "bytes that mean nothing are not 0")
		}
	}
	return out
}

// allZero reports whether all bytes are 0.
func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// checker checks one captured generation.
//
// The fields that follow the options are filled in by walkHeap and its successors, in that order:
// starts first, because every other check asks it whether a reference leads to a record. All
// bitmaps have one bit for each unit of the heap, so that a check of a reference costs one access
// and no search.
type checker struct {
	*segment
	image       *Image
	noneAborted bool // the generation has no record of an unfinished commit
	quiet       bool // nothing was committed while it was captured
	out         []Fault

	// Results of the walk over the heap, by unit.
	starts, reached, aborted bitmap
	followed                 bitmap // records of the base that some record has as its predecessor
	records                  int64
}

// addFault adds a fault at an offset of the file. One damaged byte can cause a fault in every
// record after it, so the number of faults is bounded.
func (c *checker) addFault(offset int64, what string, args ...any) {
	if len(c.out) < FaultsMax {
		c.out = append(c.out, Fault{c.file, offset, fmt.Sprintf(what, args...)})
	}
}

// addSectionFault adds a fault at a place in a section.
func (c *checker) addSectionFault(t format.SectionType, at uint64, what string, args ...any) {
	sec, _ := c.head.Find(t)
	c.addFault(int64(sec.Offset+at), what, args...)
}

// addRecordFault adds a fault of a record.
func (c *checker) addRecordFault(ref uint32, what string, args ...any) {
	c.addFault(c.heapOffset(ref), what, args...)
}

// verifyShard checks one generation and returns its faults and the number of checked record
// versions. A file that is truncated meanwhile is one more fault.
func (im *Image) verifyShard(t *Table, s *Shard, deep bool) (faults []Fault, records int64) {
	c := &checker{image: im}
	err := guardFaults("inspect.verify", s.File, func() {
		c.segment = im.captureSegment(t, s)
		// Read after the capture: an unchanged version proves that nothing was committed meanwhile.
		c.quiet = im.file.load64(format.RootCommitted) == im.Version
		c.checkHead()
		// Each check relies on the previous ones: counters are bounded by sections, and references
		// by counters.
		if c.checkSections() && c.checkCounters() {
			c.checkSums()
			// References into a damaged section would only repeat the same fault a hundred times.
			if deep && len(c.out) == 0 {
				c.checkDeep()
			}
		}
	})
	if err != nil {
		// The faults found before the truncation are kept.
		return append(c.out, Fault{s.File, -1, rhumb.Message(err)}), c.records
	}
	return c.out, c.records
}

// checkHead checks the state, and that the bytes between the words of the header are 0.
func (c *checker) checkHead() {
	// While a publisher runs, a generation may be superseded after the root was copied.
	if s := le.Uint64(c.header[format.SegmentState:]); s != format.SegmentLiveState && (c.imageStopped() || s != format.SegmentSuperseded) {
		c.addFault(format.SegmentState, "state %d of a live generation", s)
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
		if !allZero(c.header[gap[0]:gap[1]]) {
			c.addFault(int64(gap[0]), "bytes that mean nothing are not 0")
		}
	}
}

// imageStopped reports whether the publisher stopped cleanly. Then nothing may be half done.
func (c *checker) imageStopped() bool { return c.image.isStopped() }

// checkSections checks that the generation has the sections that its table needs.
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
			c.addFault(0, "table %q needs a section of type %d", c.table.Name, t)
			return false
		}
	}
	return true
}

// checkCounters checks the words that the publisher changes. Without valid counters nothing else
// can be checked.
func (c *checker) checkCounters() bool {
	before := len(c.out)
	// The words of the head always count as taken.
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
		{format.SegmentDelta, 0, uint64(len(c.sectionBytes(format.SectionDelta))) / format.DeltaEntrySize},
		{format.SegmentOrder, first, uint64(len(c.sectionBytes(format.SectionOrderDelta))) / 4},
	} {
		if v := le.Uint64(c.header[w.offset:]); v < w.least || v > w.most {
			c.addFault(int64(w.offset), "the counter is %d, and not %d to %d", v, w.least, w.most)
		}
	}
	// A publisher that stops cleanly discards an open commit, so no record follows append_head.
	// In a live image, records after append_head belong to a commit in progress.
	if c.imageStopped() && c.done != c.tail {
		c.addFault(format.SegmentAppendHead, "the records end at unit %d, and those that are committed at %d, in an image that nobody changes", c.tail, c.done)
	}
	return len(c.out) == before
}

// checkSums compares the checksums of the sections that never change.
func (c *checker) checkSums() {
	for _, sec := range c.head.Sections {
		if err := c.head.CheckSum(sec, c.sectionBytes(sec.Type)); err != nil {
			c.addFault(int64(sec.Offset), "%s", rhumb.Message(err))
		}
	}
	if c.table.Spatial() {
		// A matching checksum does not prove that the tree has a shape that Build produces.
		if _, err := rtree.Open(c.sectionBytes(format.SectionTreeNodes), c.sectionBytes(format.SectionTreeRefs)); err != nil {
			c.addSectionFault(format.SectionTreeNodes, 0, "%s", rhumb.Message(err))
		}
	}
}

// bitmap is a set of units of a heap, or of other numbered things, with one bit for each.
type bitmap []uint64

func newBitmap(n uint32) bitmap { return make(bitmap, n/64+1) }

// has reports whether a bit is set.
func (b bitmap) has(i uint32) bool { return b[i/64]>>(i%64)&1 != 0 }
func (b bitmap) set(i uint32)      { b[i/64] |= 1 << (i % 64) }

// setNew sets a bit and reports whether it was set before.
func (b bitmap) setNew(i uint32) (was bool) {
	was = b.has(i)
	b.set(i)
	return was
}
