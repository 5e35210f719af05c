package storage

import (
	"iter"

	"github.com/rhumbdb/rhumb"
)

// The spaces of store-local keys, under the reserved region. They stand in stored keys: append only.
const (
	// SpaceStore is the store's own.
	SpaceStore rhumb.Slot = 0
	// SpaceRaft holds the log, the hard state and the snapshots of the metadata group's replica. Group n has
	// SpaceRaft+n.
	SpaceRaft rhumb.Slot = 1 << 8
)

// Local is a small ordered map of keys to values that belongs to the node and is never replicated.
type Local struct{}

// Local gives the map of one space.
func (s *Store) Local(space rhumb.Slot) *Local { panic("not written yet") }

// Get reads a value; ok is false when there is none.
func (l *Local) Get(key []byte) (value []byte, ok bool, err error) { panic("not written yet") }

// Scan gives the keys from..to, to excluded, in order; a nil to is the end. Key and value are the caller's.
func (l *Local) Scan(from, to []byte) iter.Seq2[LocalPair, error] { panic("not written yet") }

// LocalPair is a key with its value.
type LocalPair struct{ Key, Value []byte }

// NewBatch makes an empty batch.
func (l *Local) NewBatch() *LocalBatch { panic("not written yet") }

// Set writes one value and waits until it is durable.
func (l *Local) Set(key, value []byte) error { panic("not written yet") }

// LocalBatch gathers writes that are applied together.
type LocalBatch struct{}

// Set writes a value.
func (b *LocalBatch) Set(key, value []byte) { panic("not written yet") }

// Delete removes a key.
func (b *LocalBatch) Delete(key []byte) { panic("not written yet") }

// DeleteRange removes the keys from..to, to excluded; a nil to is the end.
func (b *LocalBatch) DeleteRange(from, to []byte) { panic("not written yet") }

// Commit applies the batch and, with sync, waits until it is durable. The batch must not be used afterwards.
func (b *LocalBatch) Commit(sync bool) error { panic("not written yet") }
