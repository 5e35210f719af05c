package inspect

import (
	"math/bits"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// flagsKnown are the flags that a record may have.
const flagsKnown = format.FlagTombstone | format.FlagBox | format.FlagExpiry | format.FlagMoved | format.FlagHLC

// deep compares the records with everything that refers to them.
func (c *checker) deep() {
	c.starts, c.reached, c.aborted = newBitmap(c.tail), newBitmap(c.tail), newBitmap(c.tail)
	c.followed = newBitmap(c.head.BaseUnits)
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

// walkHeap looks at each record by itself. It gives false when the records cannot be told apart from some place on.
func (c *checker) walkHeap() bool {
	c.settled = c.settledImage()
	version, base := uint32(0), uint64(0)
	for ref := uint32(0); ref < c.tail; {
		r, what := c.record(ref, c.tail)
		inBase := ref < c.head.BaseUnits
		if what == "" && inBase && ref+r.units > c.head.BaseUnits {
			what = "a record stands across the end of the base"
		}
		if what != "" {
			c.inRecord(ref, "%s", what)
			return false
		}
		c.starts.set(ref)
		if r.prev < c.head.BaseUnits {
			c.followed.set(r.prev)
		}
		c.records++
		c.checkRecord(&r)
		switch {
		case inBase:
			if r.ver == format.AbortedVersion { // it was left for another place
				c.aborted.set(ref)
			} else {
				base++
			}
			if r.ver != 0 && r.ver != format.AbortedVersion || r.prev != format.NoPrev || r.flags&format.FlagMoved != 0 {
				c.inRecord(ref, "a record of the base has version %d, predecessor %d and flags %#x", r.ver, r.prev, r.flags)
			}
		case r.ver == format.AbortedVersion:
			c.aborted.set(ref)
			c.settled = false
		case r.ver < version:
			c.inRecord(ref, "version %d stands behind version %d", r.ver, version)
		default:
			version = r.ver
			if r.ver > c.limit {
				c.settled = false
			}
			if c.quiet && ref < c.done && r.ver > c.limit {
				c.inRecord(ref, "version %d is committed, and the newest is %d", c.head.Base+uint64(r.ver), c.image.Version)
			}
		}
		ref += r.units
	}
	if base != c.head.Records {
		c.bad(56, "the header says %d records in the base, there are %d", c.head.Records, base)
	}
	if c.done < c.tail && !c.starts.has(c.done) {
		c.bad(format.SegmentAppendHead, "no record begins at unit %d", c.done)
	}
	return true
}

// checkRecord checks what a record says of itself.
func (c *checker) checkRecord(r *record) {
	hash := c.hash(r)
	switch {
	case r.flags&^flagsKnown != 0:
		c.inRecord(r.ref, "flags %#x are not known", r.flags)
	case c.head.KeyKind == format.KeyName && (len(r.name) == 0 || r.word != hash):
		c.inRecord(r.ref, "the key does not match its hash %#x", r.word)
	case uint32(format.ShardOf(hash, c.table.ShardCount)) != c.index:
		c.inRecord(r.ref, "the key belongs to shard %d and not %d", format.ShardOf(hash, c.table.ShardCount), c.index)
	case r.prev != format.NoPrev && r.prev >= r.ref:
		c.inRecord(r.ref, "a chain of versions leads upwards, to unit %d", r.prev)
	case r.flags&format.FlagBox != 0 && !r.box.Valid():
		c.inRecord(r.ref, "the box %v is none", r.box)
	}
	sum := le.Uint32(r.bytes[format.RecordSum:])
	if c.table.Summed() && r.ver != format.AbortedVersion { // what was aborted has the sum of before
		if counted := format.RecordChecksum(r.bytes); counted != sum {
			c.inRecord(r.ref, "the record's checksum is %#x, counted %#x", sum, counted)
		}
	} else if sum != 0 && !c.table.Summed() {
		c.inRecord(r.ref, "a record without a checksum has %#x", sum)
	}
	whole := c.section(format.SectionHeap)[uint64(r.ref)*format.RecordAlign:][:uint64(r.units)*format.RecordAlign]
	if !empty(whole[len(r.bytes):]) {
		c.inRecord(r.ref, "the filling behind the record is not 0")
	}
}

// checkIndex follows every chain of buckets, and from every slot the chain of versions.
func (c *checker) checkIndex() {
	seen := newBitmap(c.head.BucketsMax)
	live, overflow := uint64(0), uint32(0)
	for n := range c.head.Buckets {
		var keys []record
		for at := n; ; overflow++ {
			b := c.bucket(at)
			keys, live = c.checkBucket(n, at, b, keys, live)
			next := b.next()
			if next == 0 {
				break
			}
			if next < c.head.Buckets || next >= c.head.Buckets+c.overflow || seen.setNew(next) {
				c.in(format.SectionIndex, uint64(at)*format.BucketSize+format.BucketNext, "bucket %d is followed by %d, which does not exist or follows another", at, next)
				break
			}
			at = next
		}
	}
	if c.settled && overflow != c.overflow {
		c.bad(format.SegmentOverflow, "%d overflow buckets are taken, and %d linked", c.overflow, overflow)
	}
	for n := c.head.Buckets + c.overflow; n < c.head.BucketsMax; n++ {
		if (c.settled || c.quiet) && !empty(c.bucket(n)) {
			c.in(format.SectionIndex, uint64(n)*format.BucketSize, "a bucket that is not taken is not empty")
		}
	}
	if counted := le.Uint64(c.header[format.SegmentLive:]); c.settledImage() && counted != live {
		c.bad(format.SegmentLive, "%d keys with a value are counted, there are %d", counted, live)
	}
}

// checkBucket checks the slots of a bucket in the chain of primary bucket n; keys are those that the chain had before.
func (c *checker) checkBucket(n, at uint32, b bucket, keys []record, live uint64) ([]record, uint64) {
	free := false
	for slot := range format.BucketSlots {
		offset := uint64(at)*format.BucketSize + format.BucketRefs + uint64(slot)*4
		f, ref := b.fingerprint(slot), b.ref(slot)
		if f == 0 {
			free = true
			if ref != 0 && c.counts(ref) {
				c.in(format.SectionIndex, offset, "a free slot refers to unit %d", ref)
			}
			continue
		}
		if free {
			c.in(format.SectionIndex, offset, "a slot is taken behind one that is free")
		}
		r, ok := c.at(ref)
		if !ok {
			c.in(format.SectionIndex, offset, "no record begins at unit %d", ref)
			continue
		}
		hash := c.hash(&r)
		if format.Fingerprint(hash) != f || format.BucketOf(hash, c.head.Buckets) != n {
			c.in(format.SectionIndex, offset, "the record at unit %d does not belong here", ref)
			continue
		}
		for i := range keys {
			if sameKey(&keys[i], &r) {
				c.in(format.SectionIndex, offset, "the key of the record at unit %d is in the index twice", ref)
			}
		}
		keys = append(keys, r)
		if c.checkChain(r) {
			live++
		}
	}
	return keys, live
}

// counts reports whether a reference leads to anything but a record that no view of the image shows: an aborted one, or one of a
// commit that is not finished.
func (c *checker) counts(ref uint32) bool {
	r, ok := c.at(ref)
	return !ok || r.ver <= c.limit
}

// at gives the record that begins at a unit.
func (c *checker) at(ref uint32) (record, bool) {
	if ref >= c.tail || !c.starts.has(ref) {
		return record{}, false
	}
	r, _ := c.record(ref, c.tail)
	return r, true
}

// checkChain follows the versions of a key from the newest on, and reports whether the image shows a value.
func (c *checker) checkChain(newest record) (live bool) {
	decided := false
	last := format.AbortedVersion - 1
	for r := newest; ; {
		if c.reached.setNew(r.ref) {
			c.inRecord(r.ref, "two references lead to the record")
			return live
		}
		if r.ver != format.AbortedVersion {
			if r.ver > last {
				c.inRecord(r.ref, "version %d comes before version %d of the same key", r.ver, last)
			}
			last = r.ver
		}
		if !decided && r.ver <= c.limit {
			decided, live = true, r.flags&format.FlagTombstone == 0
		}
		if r.prev == format.NoPrev {
			return live
		}
		prev, ok := c.at(r.prev)
		if !ok || r.prev >= r.ref || !sameKey(&prev, &r) {
			c.inRecord(r.ref, "the version before, at unit %d, is no record of the key", r.prev)
			return live
		}
		if prev.ver == format.AbortedVersion && r.ver <= c.limit {
			c.inRecord(r.ref, "the version before, at unit %d, was aborted", r.prev)
		}
		if prev.ver == format.AbortedVersion && r.prev < c.head.BaseUnits {
			c.inRecord(r.ref, "the version before, at unit %d, has another place", r.prev)
		}
		if r.prev < c.head.BaseUnits && !c.isChanged(r.prev) {
			c.in(format.SectionChanged, uint64(r.prev/64)*8, "the record at unit %d has a newer version and is not marked", r.prev)
		}
		r = prev
	}
}

// checkChanged checks that nothing is marked as changed but what a record follows, be it an aborted one; checkChain looks for
// marks that lack.
func (c *checker) checkChanged() {
	marks := c.section(format.SectionChanged)
	for at := 0; at+8 <= len(marks); at += 8 {
		followed := uint64(0)
		if i := at / 8; i < len(c.followed) {
			followed = c.followed[i]
		}
		if more := le.Uint64(marks[at:]) &^ followed; more != 0 {
			c.in(format.SectionChanged, uint64(at), "unit %d is marked as changed, and no record follows it", at*8+bits.TrailingZeros64(more))
		}
	}
}

func (c *checker) isChanged(ref uint32) bool {
	return le.Uint64(c.section(format.SectionChanged)[ref/64*8:])>>(ref%64)&1 != 0
}

// checkReached checks that each record that counts is found by its key.
func (c *checker) checkReached() {
	for ref := uint32(0); ref < c.tail; ref++ {
		if !c.starts.has(ref) || c.reached.has(ref) || c.aborted.has(ref) {
			continue
		}
		if r, _ := c.at(ref); r.ver <= c.limit {
			c.inRecord(ref, "the key does not lead to the record")
		}
	}
}

// each calls fn with every record that counts, from a unit on.
func (c *checker) each(from, to uint32, fn func(r *record)) {
	for ref := from; ref < to; ref++ {
		if c.starts.has(ref) && !c.aborted.has(ref) {
			if r, _ := c.at(ref); r.ver <= c.limit {
				fn(&r)
			}
		}
	}
}
