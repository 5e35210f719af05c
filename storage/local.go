package storage

import (
	"bytes"
	"iter"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// The spaces of store-local keys, in the reserved region. They are part of stored keys: append
// only.
const (
	// SpaceStore belongs to the store itself.
	SpaceStore rhumb.Slot = 0
	// SpaceRaft holds the log, the hard state and the snapshots of the metadata group's replica.
	// Group n has SpaceRaft+n.
	SpaceRaft rhumb.Slot = 1 << 8
)

// Local is a small ordered map of keys to values that belongs to the node and is never replicated.
type Local struct {
	s     *Store
	space rhumb.Slot
}

// Local returns the map of one space.
func (s *Store) Local(space rhumb.Slot) *Local { return &Local{s, space} }

// Get returns a value; ok is false if there is none.
func (l *Local) Get(key []byte) (value []byte, ok bool, err error) {
	v, closer, err := l.s.db.Get(keys.AppendLocal(nil, l.space, key))
	if err == pebble.ErrNotFound {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, l.s.dbError("storage.Local.Get", err)
	}
	// The copy is never nil, so that a caller can distinguish an empty value from none.
	value = append([]byte{}, v...)
	return value, true, l.s.dbError("storage.Local.Get", closer.Close())
}

// LocalPair is a key with its value.
type LocalPair struct{ Key, Value []byte }

// Scan returns the keys from..to in ascending order, to excluded; a nil to means the end of the
// space. The memory of keys and values is the caller's. The sequence ends with the first error.
func (l *Local) Scan(from, to []byte) iter.Seq2[LocalPair, error] {
	const op rhumb.Op = "storage.Local.Scan"
	return func(yield func(LocalPair, error) bool) {
		span := keys.LocalSpan(l.space, from, to)
		if keys.Compare(span.Lower, span.Upper) >= 0 {
			return
		}
		it, err := l.s.db.NewIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
		if err != nil {
			yield(LocalPair{}, l.s.dbError(op, err))
			return
		}
		defer func() { _ = it.Close() }()
		for ok := it.First(); ok; ok = it.Next() {
			p, err := localPair(it)
			if err != nil {
				yield(LocalPair{}, l.s.dbError(op, err))
				return
			}
			if !yield(p, nil) {
				return
			}
		}
		if err := it.Error(); err != nil {
			yield(LocalPair{}, l.s.dbError(op, err))
		}
	}
}

// localPair returns the pair under an iterator.
func localPair(it *pebble.Iterator) (p LocalPair, err error) {
	d, err := keys.Decode(it.Key())
	if err != nil {
		return p, err
	}
	v, err := it.ValueAndErr()
	if err != nil {
		return p, err
	}
	return LocalPair{bytes.Clone(d.Local), append([]byte{}, v...)}, nil
}

// Set writes one value and returns once it is durable.
func (l *Local) Set(key, value []byte) error {
	b := l.NewBatch()
	b.Set(key, value)
	return b.Commit(true)
}

// LocalBatch collects writes that are applied together.
type LocalBatch struct {
	l *Local
	b *pebble.Batch
}

// NewBatch returns an empty batch.
func (l *Local) NewBatch() *LocalBatch { return &LocalBatch{l, l.s.db.NewBatch()} }

// Set adds a write of a value.
func (b *LocalBatch) Set(key, value []byte) {
	b.must(b.b.Set(keys.AppendLocal(nil, b.l.space, key), value, nil))
}

// Delete adds the removal of a key.
func (b *LocalBatch) Delete(key []byte) {
	b.must(b.b.Delete(keys.AppendLocal(nil, b.l.space, key), nil))
}

// DeleteRange adds the removal of the keys from..to, to excluded; a nil to means the end of the
// space.
func (b *LocalBatch) DeleteRange(from, to []byte) {
	span := keys.LocalSpan(b.l.space, from, to)
	// An empty range needs no range tombstone.
	if keys.Compare(span.Lower, span.Upper) < 0 {
		b.must(b.b.DeleteRange(span.Lower, span.Upper, nil))
	}
}

// must panics on an error, because a batch without an index never rejects a write.
func (b *LocalBatch) must(err error) {
	if err != nil {
		panic("storage: an unindexed batch rejected a write: " + err.Error())
	}
}

// Commit applies the batch and, if sync is set, returns once it is durable. The batch must not be
// used afterwards. Writes without sync become durable with the next synced write of the store.
func (b *LocalBatch) Commit(sync bool) error {
	const op rhumb.Op = "storage.LocalBatch.Commit"
	if err := b.l.s.commit(op, b.b, sync); err != nil {
		return err
	}
	return b.l.s.dbError(op, b.b.Close())
}
