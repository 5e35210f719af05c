package raftmeta

import (
	"iter"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// KV is the ordered map in which a group stores its log, hard state and state transfer. The group
// is its only user.
type KV interface {
	// Get returns the value of key; ok is false if there is none.
	Get(key []byte) (value []byte, ok bool, err error)
	// Scan yields the keys in [from, to) in order; a nil to means the end. The caller may keep the
	// bytes.
	Scan(from, to []byte) iter.Seq2[Pair, error]
	// NewBatch returns an empty batch.
	NewBatch() KVBatch
}

// Pair is a key with its value.
type Pair struct{ Key, Value []byte }

// KVBatch collects writes that are applied together. Of two writes to one key, the later one wins.
type KVBatch interface {
	Set(key, value []byte)
	Delete(key []byte)
	// DeleteRange removes the keys in [from, to); a nil to means the end.
	DeleteRange(from, to []byte)
	// Commit applies the batch. With sync it also waits until this batch and all earlier ones are
	// durable. The batch must not be used afterwards.
	Commit(sync bool) error
}

// StoreKV returns the KV of a group in a node's store.
func StoreKV(store *storage.Store, group GroupID) KV {
	return storeKV{store.Local(storage.SpaceRaft + rhumb.Slot(group))}
}

type storeKV struct{ local *storage.Local }

func (s storeKV) Get(key []byte) ([]byte, bool, error) { return s.local.Get(key) }

func (s storeKV) NewBatch() KVBatch { return s.local.NewBatch() }

func (s storeKV) Scan(from, to []byte) iter.Seq2[Pair, error] {
	return func(yield func(Pair, error) bool) {
		for p, err := range s.local.Scan(from, to) {
			if !yield(Pair(p), err) {
				return
			}
		}
	}
}
