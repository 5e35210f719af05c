package publish

import (
	"iter"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// cut is one version in the making.
type cut struct {
	d       *Driver
	st      *catalog.State
	commit  *snapshot.Commit
	at      map[rhumb.RangeID]format.Position // of the ranges that move
	limit   int                               // of bytes
	bytes   int
	entries int
	effects int   // records written or deleted
	event   int64 // ns since 1970
}

// plan finds the ranges whose log does not reach back to their position in the image. Tables that have to be read whole want
// every range of theirs as new as can be, since storage keeps old versions only for a while.
func (c *cut) plan() error {
	for id, to := range c.d.pending {
		st, ok := c.d.cfg.Engine.Store(id).State(id)
		from := c.d.at[id].Seq + 1
		trimmed := ok && from < uint64(st.Trim) && to.from(rhumb.Seq(from)) == nil
		if trimmed || c.allStale(id) {
			if err := c.jump(id, to.Position); err != nil {
				return err
			}
		}
	}
	if c.d.anyStale() {
		c.limit = staleBytes
	}
	return nil
}

// allStale reports whether every table of a range's class is to be read whole, which makes its log needless.
func (c *cut) allStale(id rhumb.RangeID) bool {
	r, ok := c.st.Range(id)
	for _, t := range c.d.tables {
		if ok && t.Class == r.Class && !t.stale {
			return false
		}
	}
	return ok
}

// gather puts into the commit what is pending, up to about the limit, and the tables that have to be read whole.
func (c *cut) gather() error {
	for id, to := range c.d.pending {
		if c.bytes >= c.limit {
			break
		}
		if _, jumped := c.at[id]; jumped {
			continue
		}
		if err := c.follow(id, to); err != nil {
			return err
		}
	}
	for _, id := range c.d.left {
		if err := c.commit.Delete(c.d.positions(), format.Key{Number: format.PositionKey(id)}, 0); err != nil {
			return err
		}
	}
	for _, t := range c.d.tables {
		if t.stale {
			c.d.cfg.Logger.Info("a table is read into the image", "table", t.Name)
			if err := c.commit.Load(t.image, c.records(t)); err != nil {
				return err
			}
			c.d.m.loads.Inc()
		}
	}
	return nil
}

// follow takes in the entries of a range from its position on: those at hand, and what lies before them as far as storage
// shows it.
func (c *cut) follow(id rhumb.RangeID, to move) error {
	store := c.d.cfg.Engine.Store(id)
	from := c.d.at[id].Seq + 1
	for from <= uint64(to.Seq) && c.bytes < c.limit {
		es := to.from(rhumb.Seq(from))
		if es == nil {
			var err error
			if es, err = store.Entries(id, rhumb.Seq(from), to.Seq, readBytes); err != nil {
				return err
			}
		}
		if len(es) == 0 {
			return nil // the host has not applied it yet, or it was trimmed meanwhile: the next version sees to it
		}
		for _, e := range es {
			if err := c.take(id, e); err != nil {
				return err
			}
		}
		from = uint64(es[len(es)-1].Seq) + 1
	}
	return nil
}

// from gives the entries at hand from a position on, none when they begin later.
func (m move) from(seq rhumb.Seq) []*entry.Entry {
	if len(m.entries) == 0 || m.entries[0].Seq > seq {
		return nil
	}
	return m.entries[min(int(seq-m.entries[0].Seq), len(m.entries)):]
}

// jump moves a range to a position that its log does not lead to, and has the tables of its class read whole.
func (c *cut) jump(id rhumb.RangeID, to Position) error {
	p, ok, err := c.d.cfg.Engine.Store(id).Position(id, to.Seq)
	if err != nil {
		return err
	}
	if !ok {
		return nil // the host has not applied it yet
	}
	c.at[id] = format.Position{Epoch: p.Epoch, Seq: uint64(to.Seq), HLC: to.HLC}
	r, ok := c.st.Range(id)
	for _, t := range c.d.tables {
		if ok && t.Class == r.Class {
			t.stale = true
		}
	}
	return nil
}

// take puts the effects of an entry into the commit.
func (c *cut) take(id rhumb.RangeID, e *entry.Entry) error {
	for i := range e.Requests {
		r := &e.Requests[i]
		for _, w := range r.Writes {
			c.bytes += len(w.Name) + len(w.Value)
			t := c.d.tables[w.Table]
			if t == nil || t.stale {
				continue
			}
			rec, gone, err := c.record(t, id, w.Name, w.Value, r.HLC)
			switch {
			case err != nil:
			case gone:
				err = c.commit.Delete(t.image, rec.Key, rec.HLC)
			default:
				err = c.commit.Put(t.image, rec)
			}
			if err != nil {
				return err
			}
			c.effects++
		}
		c.event = max(c.event, r.HLC.Time().UnixNano())
	}
	c.entries++
	c.at[id] = format.Position{Epoch: e.Epoch, Seq: uint64(e.Seq), HLC: e.LastHLC()}
	return nil
}

// record makes the image's record of a stored one. gone says that the key was deleted.
func (c *cut) record(t *table, home rhumb.RangeID, name, value []byte, at rhumb.Timestamp) (rec snapshot.Record, gone bool, err error) {
	const op rhumb.Op = "publish.Driver"
	rec = snapshot.Record{HLC: at, Value: value}
	block, ok := c.st.BlockOf(home)
	switch {
	case !ok:
		return rec, false, &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: home, Msg: "the catalog does not know the range's block yet"}
	case block.Node == rhumb.NoNode:
		rec.Key = format.Key{Name: name}
	case len(name) == 8:
		rec.Key = format.Key{Name: keys.AppendShardKey(nil, rhumb.ShardKey{Home: home, Sequence: be64(name)}), ShardKey: true}
	default:
		return rec, false, &rhumb.Error{Op: op, Kind: rhumb.Corrupt, Range: home, Msg: "a name given by the server has not 8 bytes"}
	}
	if rhumb.IsTombstone(value) {
		rec.Value = nil
		return rec, true, nil
	}
	if t.Snapshot.Has(rhumb.SnapshotSpatial) && rhumb.IsRecord(value) {
		f, ok, err := rhumb.RecordField(value, t.LocationField)
		if err != nil {
			return rec, false, err
		}
		if ok {
			rec.Box, rec.HasBox = boxOf(f)
		}
	}
	return rec, false, nil
}

// boxOf gives the place that a field tells. What is no place must not keep the image from being published.
func boxOf(f rhumb.FieldValue) (format.Box, bool) {
	var box format.Box
	if p, ok := f.Point(); ok {
		box = format.MakePoint(p)
	} else if b, ok := f.Box(); ok {
		box = format.MakeBox(b)
	} else {
		return box, false
	}
	return box, box.Valid()
}

// records reads a whole table from storage: every range of its class that this node holds, as of the range's position in
// this version. A range without one has nothing committed.
func (c *cut) records(t *table) iter.Seq2[snapshot.Record, error] {
	return func(yield func(snapshot.Record, error) bool) {
		for _, id := range c.d.replicas(c.st, t.Class) {
			p, ok := c.at[id]
			if !ok {
				p, ok = c.d.at[id]
			}
			if !ok {
				continue
			}
			for item, err := range c.d.cfg.Engine.Store(id).Scan(id, t.ID, nil, nil, p.HLC, 0) {
				var rec snapshot.Record
				if err == nil {
					rec, _, err = c.record(t, id, item.Key.Name, item.Value, item.Version.HLC)
				}
				if !yield(rec, err) || err != nil {
					return
				}
			}
		}
	}
}

func be64(b []byte) (v uint64) {
	for _, x := range b {
		v = v<<8 | uint64(x)
	}
	return v
}
