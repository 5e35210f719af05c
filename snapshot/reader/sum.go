package reader

import (
	"unsafe"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// shownVersion returns what View.visibleVersion returns. In a table with verified checksums it also
// checks every record that it passed, and the final record unless fillItem will check it: a damaged
// version, link or tombstone would lead to another version or to none.
func (t *Table) shownVersion(g *segment, newest uint32) (r record, at uint32, ok bool, err error) {
	r, at, ok, err = t.view.visibleVersion(g, newest)
	if err != nil || !t.t.summed {
		return r, at, ok, err
	}
	// visibleVersion has checked that references fall along the chain, so this walk ends.
	for ref := newest; ref != at; {
		passed, _ := g.recordAt(ref)
		if err := g.checkRecord(passed, ref); err != nil {
			return r, at, false, err
		}
		ref = passed.prev()
	}
	if !ok || t.view.hasNoValue(r) {
		err = g.checkRecord(r, at)
	}
	return r, at, ok, err
}

// absentError returns ErrNotFound for a key that the index does not have. In a table whose
// checksums are checked it first checks the records that have the fingerprint of the key: one of
// them may be the key's record, with a damaged key.
func (t *Table) absentError(g *segment, hash uint64) error {
	if !t.t.summed {
		return ErrNotFound
	}
	n := format.BucketOf(hash, g.buckets)
	for range g.head.BucketsMax {
		b := g.bucketAt(n)
		for slot := range format.BucketSlots {
			// Damage of the key leaves the fingerprint in the bucket intact, so it leads to the
			// damaged record.
			if uint16(b.fingerprints(uintptr(slot/4))>>(slot%4*16)) != format.Fingerprint(hash) {
				continue
			}
			if r, ok := g.recordAt(b.ref(slot)); ok {
				if err := g.checkRecord(r, b.ref(slot)); err != nil {
					return err
				}
			}
		}
		next, err := g.nextBucket(b, n)
		if err != nil {
			return err
		}
		if next == 0 {
			return ErrNotFound
		}
		n = next
	}
	return g.circleError(n)
}

// checkRecord checks that a record ends in the heap and matches its checksum.
func (g *segment) checkRecord(r record, ref uint32) error {
	at := nameAt(r.flags())
	if g.head.KeyKind == format.KeyName {
		name, _, ok := g.name(r, ref)
		if !ok {
			return g.corruptAt("a key runs past the heap", g.refOffset(ref))
		}
		at += 1 + uintptr(len(name))
	}
	at, n, ok := g.value(r, ref, at)
	if !ok {
		return g.corruptAt("a value runs past the heap", g.refOffset(ref))
	}
	return g.checkSum(r, ref, at+n)
}

// checkSum compares the checksum of a record of size bytes. An aborted record keeps the checksum
// from before the abort. The version is read after the checksum, because recovery may mark the
// record in between.
func (g *segment) checkSum(r record, ref uint32, size uintptr) error {
	if format.RecordChecksum(unsafe.Slice((*byte)(r.p), size)) == r.sum() || r.version() == format.AbortedVersion {
		return nil // it matches, or the record was just aborted
	}
	return g.corruptAt("a record does not match its checksum", g.refOffset(ref))
}
