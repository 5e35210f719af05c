package replica

import (
	"bytes"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// overlay holds the writes that storage may not have yet, so that conditions and patches see every
// earlier proposal. It has two generations: cur since the last call of Ready, old those that this
// call handed out. Two are needed because the driver may have read a Base before it applied the
// last Ready. Writes are indexed at the first lookup only: plain puts look nothing up, and pay for
// an append to a slice.
type overlay struct {
	cur, old generation
}

// generation is the list of writes between two calls of Ready. Writes with the same hash are
// linked, newest first.
type generation struct {
	writes  []overlayWrite
	indexed int              // number of writes that are in heads
	heads   map[uint64]int32 // hash -> 1 + index of the newest write with that hash
}

// overlayWrite is one write. name and value belong to the entry.
type overlayWrite struct {
	table   rhumb.TableID
	next    int32 // 1 + index of the next older write with the same hash, 0 for none
	name    []byte
	value   []byte
	version rhumb.Version
}

// add records a write.
func (o *overlay) add(w *entry.Write, v rhumb.Version) {
	o.cur.writes = append(o.cur.writes, overlayWrite{table: w.Table, name: w.Name, value: w.Value, version: v})
}

// nextGeneration starts a new generation and drops the older one. The slices swap, so that their
// memory is reused.
func (o *overlay) nextGeneration() {
	o.cur, o.old = o.old, o.cur
	o.cur.reset()
}

// reset drops all writes, because the replica is not primary any more.
func (o *overlay) reset() {
	o.cur.reset()
	o.old.reset()
}

// newestBase returns the newest value of a key, given the value that storage has.
func (o *overlay) newestBase(table rhumb.TableID, name []byte, base Base) Base {
	w := o.cur.findWrite(table, name)
	if w == nil {
		w = o.old.findWrite(table, name)
	}
	// By version, not by place: base may have been read after the write was applied, and may be newer
	// than it.
	if w == nil || w.version.Compare(base.Version) <= 0 {
		return base
	}
	if rhumb.IsTombstone(w.value) {
		// A deleted key counts as absent, like a tombstone in storage.
		return Base{}
	}
	return Base{w.version, w.value}
}

// reset drops the writes and keeps the memory.
func (g *generation) reset() {
	// Cleared, so that the slice does not keep names and values of entries alive.
	clear(g.writes)
	g.writes = g.writes[:0]
	if g.indexed > 0 {
		clear(g.heads)
		g.indexed = 0
	}
}

// findWrite returns the newest write of a key, or nil.
func (g *generation) findWrite(table rhumb.TableID, name []byte) *overlayWrite {
	if len(g.writes) == 0 {
		return nil
	}
	if g.heads == nil {
		g.heads = make(map[uint64]int32)
	}
	// Catch up with the writes since the last lookup. Newer writes come first in their chain.
	for ; g.indexed < len(g.writes); g.indexed++ {
		w := &g.writes[g.indexed]
		h := hashName(w.table, w.name)
		w.next = g.heads[h]
		g.heads[h] = int32(g.indexed + 1)
	}
	for i := g.heads[hashName(table, name)]; i != 0; i = g.writes[i-1].next {
		if w := &g.writes[i-1]; w.table == table && bytes.Equal(w.name, name) {
			return w
		}
	}
	return nil
}

// hashName is FNV-1a 64 over the table and the name. Collisions only cost a comparison.
func hashName(table rhumb.TableID, name []byte) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := (uint64(offset) ^ uint64(table)) * prime
	for _, c := range name {
		h = (h ^ uint64(c)) * prime
	}
	return h
}
