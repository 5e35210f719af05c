package reader

import (
	"errors"
	"iter"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// A visitor is called with each item of a query, and returns false to end it. The item is valid
// until the visitor returns; the memory that it points to is valid until the view is unlocked.

// sequenceOf returns a query as an iterator. An error is always the last element.
func sequenceOf(visit func(fn func(*Item) bool) error) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		if err := visit(func(it *Item) bool { return yield(*it, nil) }); err != nil {
			yield(Item{}, err)
		}
	}
}

// errStop ends a query whose visitor has seen enough.
var errStop = errors.New("the visitor has seen enough")

// ignoreStop turns the error that a visitor used to stop into success.
func ignoreStop(err error) error {
	if err == errStop { //nolint:errorlint // errStop is never wrapped
		return nil
	}
	return err
}

// All returns every record of the table once, in no order.
func (t *Table) All() iter.Seq2[Item, error] { return sequenceOf(t.VisitAll) }

// VisitAll is All with a visitor, which returns false to end the walk. The item is valid until the
// visitor returns; the memory that it points to is valid until the view is unlocked.
func (t *Table) VisitAll(fn func(*Item) bool) error {
	if err := t.view.check(); err != nil {
		return err
	}
	for _, g := range t.t.segments {
		for n := range g.head.Buckets {
			if err := t.visitChain(g, n, fn); err != nil {
				return ignoreStop(err)
			}
		}
	}
	return nil
}

// visitChain visits the records of a primary bucket and of its overflow buckets.
func (t *Table) visitChain(g *segment, n uint32, fn func(*Item) bool) error {
	for range g.head.BucketsMax {
		b := g.bucketAt(n)
		for slot := range format.BucketSlots {
			// A free slot. All later slots are free too, but checking them costs less than leaving
			// the loop early.
			if b.fingerprints(uintptr(slot/4))>>(slot%4*16)&0xffff == 0 {
				continue
			}
			if err := t.showNewest(g, b.ref(slot), fn); err != nil {
				return err
			}
		}
		next, err := g.nextBucket(b, n)
		if err != nil || next == 0 {
			return err
		}
		// nextBucket has checked that the bucket exists.
		n = next
	}
	return g.circleError(n)
}

// showNewest calls the visitor with the version that the view shows, if any, given the newest
// record of the key. It returns errStop if the visitor has seen enough.
func (t *Table) showNewest(g *segment, newest uint32, fn func(*Item) bool) error {
	r, ref, ok, err := t.shownVersion(g, newest)
	if err != nil || !ok || t.view.hasNoValue(r) {
		return err
	}
	var it Item
	if err := t.fillItem(&it, g, r, ref); err != nil {
		return err
	}
	return t.handItem(&it, fn)
}

// handItem calls the visitor with an item and then checks that the view may still be read: a
// visitor may take long, or unlock the view.
func (t *Table) handItem(it *Item, fn func(*Item) bool) error {
	if !fn(it) {
		return errStop
	}
	return t.view.check()
}

// newestOf returns the newest record of the key of a record. ok is false if the key is not in the
// index: its commit was not finished, or is still in progress.
func (t *Table) newestOf(g *segment, r record, ref uint32) (newest uint32, ok bool, err error) {
	if t.t.summed { // a damaged key would lead to the records of another key
		if err := g.checkRecord(r, ref); err != nil {
			return 0, false, err
		}
	}
	// A named record stores its hash in the head; the hash of a number is computed.
	key, hash := lookupKey{word: r.word()}, r.word()
	if t.t.KeyKind == format.KeyUint64 {
		hash = t.t.root.HashNumber(r.word())
	} else {
		name, shardKey, ok := g.name(r, ref)
		if !ok {
			return 0, false, g.corruptAt("a key runs past the heap", g.refOffset(ref))
		}
		key.name, key.shardKey, key.named = name, shardKey, true
	}
	newest, ok, err = g.findNewest(hash, &key)
	if err == nil && !ok {
		if ref < g.head.BaseUnits {
			err = g.corruptAt("the key of a base record is not in the index", g.refOffset(ref))
		} else if absent := t.absentError(g, hash); absent != ErrNotFound {
			err = absent
		}
	}
	return newest, ok, err
}

// shownOf returns the version that the view shows of the key of a record; ok is false if there is
// none.
func (t *Table) shownOf(g *segment, r record, ref uint32) (shown record, at uint32, ok bool, err error) {
	newest, ok, err := t.newestOf(g, r, ref)
	if err != nil || !ok {
		return shown, 0, false, err
	}
	return t.shownVersion(g, newest)
}
