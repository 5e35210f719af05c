package raftmeta

import (
	"bytes"
	"iter"
	"maps"
	"slices"
	"sync"
)

// memKV is a KV in memory that knows which writes would survive a crash.
type memKV struct {
	mu      sync.Mutex
	current map[string][]byte
	durable map[string][]byte
	// unsynced holds the writes committed without sync since the last sync.
	unsynced []func(map[string][]byte)
	// failure, if not nil, is the error of every commit.
	failure error
}

func newMemKV() *memKV {
	return &memKV{current: make(map[string][]byte), durable: make(map[string][]byte)}
}

// crash returns the contents after a loss of power.
func (kv *memKV) crash() *memKV {
	kv.mu.Lock()
	defer kv.mu.Unlock()
	return &memKV{current: maps.Clone(kv.durable), durable: maps.Clone(kv.durable)}
}

func (kv *memKV) Get(key []byte) ([]byte, bool, error) {
	kv.mu.Lock()
	defer kv.mu.Unlock()
	v, ok := kv.current[string(key)]
	return bytes.Clone(v), ok, nil
}

func (kv *memKV) Scan(from, to []byte) iter.Seq2[Pair, error] {
	kv.mu.Lock()
	current := maps.Clone(kv.current)
	kv.mu.Unlock()
	return func(yield func(Pair, error) bool) {
		for _, k := range slices.Sorted(maps.Keys(current)) {
			if k >= string(from) && (to == nil || k < string(to)) && !yield(Pair{[]byte(k), bytes.Clone(current[k])}, nil) {
				return
			}
		}
	}
}

func (kv *memKV) NewBatch() KVBatch { return &memBatch{kv: kv} }

type memBatch struct {
	kv  *memKV
	ops []func(map[string][]byte)
}

func (b *memBatch) Set(key, value []byte) {
	k, v := string(key), bytes.Clone(value)
	b.ops = append(b.ops, func(m map[string][]byte) { m[k] = v })
}

func (b *memBatch) Delete(key []byte) {
	k := string(key)
	b.ops = append(b.ops, func(m map[string][]byte) { delete(m, k) })
}

func (b *memBatch) DeleteRange(from, to []byte) {
	lo, hi := string(from), string(to)
	b.ops = append(b.ops, func(m map[string][]byte) {
		maps.DeleteFunc(m, func(k string, _ []byte) bool { return k >= lo && (to == nil || k < hi) })
	})
}

func (b *memBatch) Commit(sync bool) error {
	b.kv.mu.Lock()
	defer b.kv.mu.Unlock()
	if b.kv.failure != nil {
		return b.kv.failure
	}
	for _, op := range b.ops {
		op(b.kv.current)
	}
	b.kv.unsynced = append(b.kv.unsynced, b.ops...)
	if sync {
		for _, op := range b.kv.unsynced {
			op(b.kv.durable)
		}
		b.kv.unsynced = nil
	}
	return nil
}
