package reader

import (
	"unsafe"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// shown gives what View.visible gives. In a table whose checksums are checked it checks every record that it went past, and
// the one that it ends at unless fill is going to: a damaged version number, link or tombstone would lead to another
// version, or to none.
func (t *Table) shown(g *segment, newest uint32) (r record, at uint32, ok bool, err error) {
	r, at, ok, err = t.view.visible(g, newest)
	if err != nil || !t.t.summed {
		return r, at, ok, err
	}
	for ref := newest; ref != at; {
		passed, _ := g.record(ref)
		if err := g.checkRecord(passed, ref); err != nil {
			return r, at, false, err
		}
		ref = passed.prev()
	}
	if !ok || t.view.gone(r) {
		err = g.checkRecord(r, at)
	}
	return r, at, ok, err
}

// absent gives ErrNotFound for a key that the index does not have. In a table whose checksums are checked it first checks
// the records that have the fingerprint of the key: one of them may be the key's, with a damaged key.
func (t *Table) absent(g *segment, hash uint64) error {
	if !t.t.summed {
		return ErrNotFound
	}
	n := format.BucketOf(hash, g.buckets)
	for range g.head.BucketsMax {
		b := g.bucket(n)
		for slot := range format.BucketSlots {
			if uint16(b.fingerprints(uintptr(slot/4))>>(slot%4*16)) != format.Fingerprint(hash) {
				continue
			}
			if r, ok := g.record(b.ref(slot)); ok {
				if err := g.checkRecord(r, b.ref(slot)); err != nil {
					return err
				}
			}
		}
		next, err := g.follow(b, n)
		if err != nil {
			return err
		}
		if next == 0 {
			return ErrNotFound
		}
		n = next
	}
	return g.circle(n)
}

// checkRecord checks that a record ends in the heap and matches its checksum.
func (g *segment) checkRecord(r record, ref uint32) error {
	at := nameAt(r.flags())
	if g.head.KeyKind == format.KeyName {
		name, _, ok := g.name(r, ref)
		if !ok {
			return g.corrupt("a key runs past the heap", g.refOffset(ref))
		}
		at += 1 + uintptr(len(name))
	}
	at, n, ok := g.value(r, ref, at)
	if !ok {
		return g.corrupt("a value runs past the heap", g.refOffset(ref))
	}
	return g.checkSum(r, ref, at+n)
}

// checkSum compares the checksum of a record of size bytes. What was aborted has that of before.
func (g *segment) checkSum(r record, ref uint32, size uintptr) error {
	if format.RecordChecksum(unsafe.Slice((*byte)(r.p), size)) == r.sum() || r.version() == format.AbortedVersion {
		return nil // matches, or became aborted in this moment
	}
	return g.corrupt("a record does not match its checksum", g.refOffset(ref))
}
