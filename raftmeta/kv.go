package raftmeta

import (
	"iter"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// KV is the ordered map in which a group keeps its log, hard state and state transfer. It belongs to the group alone.
type KV interface {
	// Get reads a value; ok is false when there is none.
	Get(key []byte) (value []byte, ok bool, err error)
	// Scan gives the keys from..to, to excluded, in order; a nil to is the end. The bytes are the caller's.
	Scan(from, to []byte) iter.Seq2[Pair, error]
	// NewBatch makes an empty batch.
	NewBatch() KVBatch
}

// Pair is a key with its value.
type Pair struct{ Key, Value []byte }

// KVBatch gathers writes that are applied together. Later writes win over earlier ones.
type KVBatch interface {
	Set(key, value []byte)
	Delete(key []byte)
	// DeleteRange removes the keys from..to, to excluded; a nil to is the end.
	DeleteRange(from, to []byte)
	// Commit applies the batch and, with sync, waits until it and all batches before it are durable. The batch must not
	// be used afterwards.
	Commit(sync bool) error
}

// StoreKV gives the KV of a group in a node's store.
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
