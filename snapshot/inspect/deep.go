package inspect

import (
	"math/bits"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// The deep check accepts exactly the states in which a publisher may stop or die. It goes from the
// records to the references and back:
//
//   - walkHeap takes the heap apart and notes where records begin. A reference to any other unit is
//     a fault.
//   - checkIndex follows every reference of the index and every chain of versions, and notes which
//     records were reached.
//   - checkReached requires that every record that counts was reached.
//   - checkMoved decides for each record whether the tree or the delta must lead to it; checkTree
//     and checkDelta require exactly these references.
//   - checkOrder and checkSkip require every key exactly once, in order.
//
// A record counts if a view of the image can show it. A record of an unfinished commit may be
// linked anywhere up to the point at which its publisher died. Faults are reported only where such
// a record cannot explain them.

// flagsKnown are the flags that a record may have.
const flagsKnown = format.FlagTombstone | format.FlagBox | format.FlagExpiry | format.FlagMoved | format.FlagHLC

// checkDeep compares the records with everything that refers to them. The heap comes first:
// walkHeap finds the units at which records begin, and every other check compares references with
// them first.
func (c *checker) checkDeep() {
	c.starts, c.reached, c.aborted = newBitmap(c.tail), newBitmap(c.tail), newBitmap(c.tail)
	c.followed = newBitmap(c.head.BaseUnits)
	// Without the starts of the records no reference can be judged.
	if !c.walkHeap() {
		return
	}
	c.checkChanged()
	c.checkIndex()
	c.checkReached()
	if c.table.Spatial() {
		c.checkMoved()
		c.checkTree()
		c.checkDelta()
	}
	if c.table.Ordered() {
		c.checkOrder()
		c.checkSkip()
	}
}

// walkHeap checks each record on its own, in order. It reports false if it cannot determine where
// the next record begins; then nothing else can be checked.
func (c *checker) walkHeap() bool {
	c.noneAborted = c.imageStopped()
	// Commits append in order, so versions rise through the append area, except those of aborted
	// records.
	version, base := uint32(0), uint64(0)
	for ref := uint32(0); ref < c.tail; {
		r, what := c.recordAt(ref, c.tail)
		inBase := ref < c.head.BaseUnits
		if what == "" && inBase && ref+r.units > c.head.BaseUnits {
			what = "a record lies across the end of the base"
		}
		if what != "" {
			c.addRecordFault(ref, "%s", what)
			return false
		}
		c.starts.set(ref)
		// The predecessor has a newer version, so its changed bit may be set. checkChanged compares
		// the bits with this set.
		if r.prev < c.head.BaseUnits {
			c.followed.set(r.prev)
		}
		c.records++
		c.checkRecord(&r)
		switch {
		case inBase:
			if r.ver == format.AbortedVersion { // a roll moved its key
				c.aborted.set(ref)
			} else {
				base++
			}
			if r.ver != 0 && r.ver != format.AbortedVersion || r.prev != format.NoPrev || r.flags&format.FlagMoved != 0 {
				c.addRecordFault(ref, "a record of the base has version %d, predecessor %d and flags %#x", r.ver, r.prev, r.flags)
			}
		case r.ver == format.AbortedVersion:
			c.aborted.set(ref)
			c.noneAborted = false
		case r.ver < version:
			c.addRecordFault(ref, "version %d follows version %d", r.ver, version)
		default:
			version = r.ver
			if r.ver > c.limit {
				c.noneAborted = false
			}
			// This holds only if nothing was committed during the capture: otherwise append_head
			// may be newer than the version.
			if c.quiet && ref < c.done && r.ver > c.limit {
				c.addRecordFault(ref, "version %d is committed, and the newest is %d", c.head.Base+uint64(r.ver), c.image.Version)
			}
		}
		ref += r.units
	}
	// The header counts only records that a view can show, not those that a roll aborted.
	if base != c.head.Records {
		c.addFault(56, "the header says %d records in the base, there are %d", c.head.Records, base)
	}
	if c.done < c.tail && !c.starts.has(c.done) {
		c.addFault(format.SegmentAppendHead, "no record begins at unit %d", c.done)
	}
	return true
}

// checkRecord checks the fields of one record: flags, key and hash, shard, box, and checksum.
// Versions and references are checked where the record is reached: see checkChain.
func (c *checker) checkRecord(r *record) {
	// The hash is computed from the key, so a changed bit in a key shows up as a wrong hash or a
	// wrong shard.
	hash := c.hashOf(r)
	switch {
	case r.flags&^flagsKnown != 0:
		c.addRecordFault(r.ref, "flags %#x are not known", r.flags)
	case c.head.KeyKind == format.KeyName && (len(r.name) == 0 || r.word != hash):
		c.addRecordFault(r.ref, "the key does not match its hash %#x", r.word)
	case uint32(format.ShardOf(hash, c.table.ShardCount)) != c.index:
		c.addRecordFault(r.ref, "the key belongs to shard %d and not %d", format.ShardOf(hash, c.table.ShardCount), c.index)
	case r.prev != format.NoPrev && r.prev >= r.ref:
		c.addRecordFault(r.ref, "a chain of versions leads upwards, to unit %d", r.prev)
	case r.flags&format.FlagBox != 0 && !r.box.Valid():
		c.addRecordFault(r.ref, "the box %v is invalid", r.box)
	}
	sum := le.Uint32(r.bytes[format.RecordSum:])
	if c.table.Summed() && r.ver != format.AbortedVersion { // an aborted record keeps its old checksum
		if counted := format.RecordChecksum(r.bytes); counted != sum {
			c.addRecordFault(r.ref, "the record's checksum is %#x, counted %#x", sum, counted)
		}
	} else if sum != 0 && !c.table.Summed() {
		c.addRecordFault(r.ref, "a record without a checksum has %#x", sum)
	}
	// The padding is written as zeros, also into recycled files: anything else is damage, or bytes
	// of an older record.
	whole := c.sectionBytes(format.SectionHeap)[uint64(r.ref)*format.RecordAlign:][:uint64(r.units)*format.RecordAlign]
	if !allZero(whole[len(r.bytes):]) {
		c.addRecordFault(r.ref, "the filling after the record is not 0")
	}
}

// checkIndex follows every chain of buckets, and from every slot the chain of versions. It also
// compares the counters of overflow buckets and of keys with the buckets and the keys that it
// finds.
func (c *checker) checkIndex() {
	// An overflow bucket belongs to one chain. If two chains led to it, one would contain keys of
	// the other.
	seen := newBitmap(c.head.BucketsMax)
	live, overflow := uint64(0), uint32(0)
	for n := range c.head.Buckets {
		var keys []record
		for at := n; ; overflow++ {
			b := c.bucketAt(at)
			keys, live = c.checkBucket(n, at, b, keys, live)
			next := b.next()
			if next == 0 {
				break
			}
			if next < c.head.Buckets || next >= c.head.Buckets+c.overflow || seen.setNew(next) {
				c.addSectionFault(format.SectionIndex, uint64(at)*format.BucketSize+format.BucketNext, "bucket %d is followed by %d, which does not exist or follows another", at, next)
				break
			}
			at = next
		}
	}
	if c.noneAborted && overflow != c.overflow {
		c.addFault(format.SegmentOverflow, "%d overflow buckets are taken, and %d linked", c.overflow, overflow)
	}
	for n := c.head.Buckets + c.overflow; n < c.head.BucketsMax; n++ {
		if (c.noneAborted || c.quiet) && !allZero(c.bucketAt(n)) {
			c.addSectionFault(format.SectionIndex, uint64(n)*format.BucketSize, "a bucket that is not taken is not empty")
		}
	}
	// The counter is stored after the commit word, so it lags while commits continue.
	if counted := le.Uint64(c.header[format.SegmentLive:]); c.imageStopped() && counted != live {
		c.addFault(format.SegmentLive, "%d keys with a value are counted, there are %d", counted, live)
	}
}

// checkBucket checks the slots of a bucket in the chain of primary bucket n. keys are the records
// that earlier slots of the chain lead to, and live is the number of those with a value.
// checkBucket returns both updated with this bucket. A damaged slot is reported and skipped, so
// that the others are still checked.
func (c *checker) checkBucket(n, at uint32, b bucket, keys []record, live uint64) ([]record, uint64) {
	free := false
	for slot := range format.BucketSlots {
		offset := uint64(at)*format.BucketSize + format.BucketRefs + uint64(slot)*4
		f, ref := b.fingerprint(slot), b.ref(slot)
		if f == 0 {
			free = true
			// The publisher stores the reference before the fingerprint, so a commit that was cut
			// off leaves such a slot.
			if ref != 0 && c.isVisible(ref) {
				c.addSectionFault(format.SectionIndex, offset, "a free slot refers to unit %d", ref)
			}
			continue
		}
		// Slots are filled from the first on, and nothing ever frees one.
		if free {
			c.addSectionFault(format.SectionIndex, offset, "a slot after a free one is taken")
		}
		r, ok := c.startingAt(ref)
		if !ok {
			c.addSectionFault(format.SectionIndex, offset, "no record begins at unit %d", ref)
			continue
		}
		hash := c.hashOf(&r)
		// A record in the wrong bucket exists but cannot be found by its key.
		if format.Fingerprint(hash) != f || format.BucketOf(hash, c.head.Buckets) != n {
			c.addSectionFault(format.SectionIndex, offset, "the record at unit %d does not belong here", ref)
			continue
		}
		// A chain of buckets has few keys, so comparing all pairs costs little.
		for i := range keys {
			if sameKey(&keys[i], &r) {
				c.addSectionFault(format.SectionIndex, offset, "the key of the record at unit %d is in the index twice", ref)
			}
		}
		keys = append(keys, r)
		if c.checkChain(r) {
			live++
		}
	}
	return keys, live
}

// isVisible reports whether a reference leads to anything other than a record that no view of the
// image shows: an aborted one, or one of a commit that is not finished. Traces of such records are
// harmless.
func (c *checker) isVisible(ref uint32) bool {
	r, ok := c.startingAt(ref)
	return !ok || r.ver <= c.limit
}

// startingAt returns the record that begins at a unit; ok is false if none does.
func (c *checker) startingAt(ref uint32) (record, bool) {
	if ref >= c.tail || !c.starts.has(ref) {
		return record{}, false
	}
	r, _ := c.recordAt(ref, c.tail)
	return r, true
}

// checkChain follows the versions of a key from the newest on, and reports whether the image shows
// a value. It requires what a reader relies on: versions and references that fall, and the same key
// throughout.
func (c *checker) checkChain(newest record) (live bool) {
	// Versions fall along a chain. Aborted records are skipped, because their version is a marker
	// and not a number.
	decided := false
	last := format.AbortedVersion - 1
	for r := newest; ; {
		// A record is in exactly one chain, once. This check also ends a walk in a circle.
		if c.reached.setNew(r.ref) {
			c.addRecordFault(r.ref, "two references lead to the record")
			return live
		}
		if r.ver != format.AbortedVersion {
			if r.ver > last {
				c.addRecordFault(r.ref, "version %d comes before version %d of the same key", r.ver, last)
			}
			last = r.ver
		}
		// The first version that is not above the limit is the one that the image shows.
		if !decided && r.ver <= c.limit {
			decided, live = true, r.flags&format.FlagTombstone == 0
		}
		if r.prev == format.NoPrev {
			return live
		}
		// References fall along a chain, so a reader that follows one always ends.
		prev, ok := c.startingAt(r.prev)
		if !ok || r.prev >= r.ref || !sameKey(&prev, &r) {
			c.addRecordFault(r.ref, "the version before, at unit %d, is no record of the key", r.prev)
			return live
		}
		// The publisher links a visible record past aborted ones, so its predecessor is never
		// aborted.
		if prev.ver == format.AbortedVersion && r.ver <= c.limit {
			c.addRecordFault(r.ref, "the version before, at unit %d, was aborted", r.prev)
		}
		if prev.ver == format.AbortedVersion && r.prev < c.head.BaseUnits {
			c.addRecordFault(r.ref, "the version before, at unit %d, has another place", r.prev)
		}
		if r.prev < c.head.BaseUnits && !c.isChanged(r.prev) {
			c.addSectionFault(format.SectionChanged, uint64(r.prev/64)*8, "the record at unit %d has a newer version and is not marked", r.prev)
		}
		r = prev
	}
}

// checkChanged checks that every mark of a changed record is justified: some record names it as
// predecessor, even if only an aborted one. checkChain finds missing marks.
func (c *checker) checkChanged() {
	marks := c.sectionBytes(format.SectionChanged)
	for at := 0; at+8 <= len(marks); at += 8 {
		followed := uint64(0)
		if i := at / 8; i < len(c.followed) {
			followed = c.followed[i]
		}
		if more := le.Uint64(marks[at:]) &^ followed; more != 0 {
			c.addSectionFault(format.SectionChanged, uint64(at), "unit %d is marked as changed, and no record follows it", at*8+bits.TrailingZeros64(more))
		}
	}
}

// isChanged reports whether a record of the base is marked as changed.
func (c *checker) isChanged(ref uint32) bool {
	return le.Uint64(c.sectionBytes(format.SectionChanged)[ref/64*8:])>>(ref%64)&1 != 0
}

// checkReached checks that each record that counts can be found by its key.
func (c *checker) checkReached() {
	for ref := uint32(0); ref < c.tail; ref++ {
		// Aborted records need not be reached: their links may never have been written.
		if !c.starts.has(ref) || c.reached.has(ref) || c.aborted.has(ref) {
			continue
		}
		if r, _ := c.startingAt(ref); r.ver <= c.limit {
			c.addRecordFault(ref, "the key does not lead to the record")
		}
	}
}

// eachVisible calls fn with every record that counts in a range of units.
func (c *checker) eachVisible(from, to uint32, fn func(r *record)) {
	for ref := from; ref < to; ref++ {
		if c.starts.has(ref) && !c.aborted.has(ref) {
			if r, _ := c.startingAt(ref); r.ver <= c.limit {
				fn(&r)
			}
		}
	}
}
