package replica

import (
	"bytes"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// overlay holds the writes that storage may not have yet, in two generations: those since the last call of Ready, and
// those that this call handed out. The next call drops the older one. Writes are indexed only when something looks, so
// that plain puts cost no more than an append.
type overlay struct {
	cur, old generation
}

type generation struct {
	writes  []overlayWrite
	indexed int              // how many writes are in heads
	heads   map[uint64]int32 // hash -> 1 + index of the newest write with it
}

type overlayWrite struct {
	table   rhumb.TableID
	next    int32 // 1 + index of the next older write with the same hash, 0 for none
	name    []byte
	value   []byte
	version rhumb.Version
}

func (o *overlay) add(w *entry.Write, v rhumb.Version) {
	o.cur.writes = append(o.cur.writes, overlayWrite{table: w.Table, name: w.Name, value: w.Value, version: v})
}

// turn begins a new generation and drops the older one.
func (o *overlay) turn() {
	o.cur, o.old = o.old, o.cur
	o.cur.reset()
}

func (o *overlay) reset() {
	o.cur.reset()
	o.old.reset()
}

// newest gives what the key holds, base being what storage says.
func (o *overlay) newest(table rhumb.TableID, name []byte, base Base) Base {
	w := o.cur.lookup(table, name)
	if w == nil {
		w = o.old.lookup(table, name)
	}
	if w == nil || w.version.Compare(base.Version) <= 0 {
		return base
	}
	if rhumb.IsTombstone(w.value) {
		return Base{}
	}
	return Base{w.version, w.value}
}

func (g *generation) reset() {
	clear(g.writes)
	g.writes = g.writes[:0]
	if g.indexed > 0 {
		clear(g.heads)
		g.indexed = 0
	}
}

func (g *generation) lookup(table rhumb.TableID, name []byte) *overlayWrite {
	if len(g.writes) == 0 {
		return nil
	}
	if g.heads == nil {
		g.heads = make(map[uint64]int32)
	}
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

// hashName is FNV-1a 64 over the table and the name.
func hashName(table rhumb.TableID, name []byte) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := (uint64(offset) ^ uint64(table)) * prime
	for _, c := range name {
		h = (h ^ uint64(c)) * prime
	}
	return h
}
