package publish

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/storage"
)

// cut is the version under construction: one position for every range that moves, and the effects
// of the log up to there.
//
// Steps: plan decides which ranges skip their log, gather applies the logs of the others and loads
// stale tables, and publish writes the positions and makes the version visible. An error in between
// discards the commit and changes neither the image nor the driver's positions.
type cut struct {
	d       *Driver
	st      *catalog.State
	commit  *snapshot.Commit
	at      map[rhumb.RangeID]format.Position // of the ranges that move
	limit   int                               // of bytes
	bytes   int
	entries int
	effects int // records written or deleted
	// absent holds the positions that leave the image, because storage lacks entries up to there.
	absent  map[rhumb.RangeID]format.Position
	event   int64 // ns since 1970
	readers map[*storage.Store]*storage.Reader
}

// plan finds the ranges whose log does not reach back to their position in the image. If any table
// has to be loaded, plan also raises the limit of the version: a load needs every range of the
// table as new as possible, since storage keeps old versions only for a while.
func (c *cut) plan() error {
	for id := range c.d.pending {
		if _, born := c.d.births[id]; !born {
			if err := c.planRange(id); err != nil {
				return err
			}
		}
	}
	// A range that was split off waits for the one that it came from, unless that one jumps.
	for id := range c.d.births {
		if _, pending := c.d.pending[id]; pending && !c.awaitsParent(id) {
			if err := c.planRange(id); err != nil {
				return err
			}
		}
	}
	if c.d.anyStale() {
		c.limit = staleBytes
	}
	return nil
}

// awaitsParent reports whether a range was split off from one that the image has not followed up to the split. Then the image
// gets all of its records by following that one.
func (c *cut) awaitsParent(id rhumb.RangeID) bool {
	b, born := c.d.births[id]
	_, comes := c.d.pending[b.parent]
	_, moves := c.at[b.parent]
	at := rhumb.Seq(c.d.at[b.parent].Seq)
	return born && c.d.at[id].Seq == 0 && comes && !moves && at > 0 && at < b.Seq
}

// planRange lets a range jump if its log does not reach back to its position in the image.
func (c *cut) planRange(id rhumb.RangeID) error {
	to := c.d.pending[id]
	st, held := c.d.copyOf(id)
	// The range stays pending until the node has a copy that is not quarantined.
	if !held {
		return nil
	}
	from := c.d.at[id].Seq + 1
	// Entries at hand count as well: the log may be trimmed while they wait.
	trimmed := from < uint64(st.Trim) && to.entriesFrom(rhumb.Seq(from)) == nil
	if trimmed || c.allStale(id) {
		if err := c.jumpRange(id, to.Position); err != nil {
			return err
		}
	}
	return nil
}

// allStale reports whether every table of a range's class has to be loaded, so that its log is not
// needed.
func (c *cut) allStale(id rhumb.RangeID) bool {
	r, ok := c.st.Range(id)
	for _, t := range c.d.tables {
		if ok && t.Class == r.Class && !t.stale {
			return false
		}
	}
	return ok
}

// gather applies the pending entries to the commit, up to about the limit, and loads the stale
// tables.
func (c *cut) gather() error {
	for id, to := range c.d.pending {
		// The remaining ranges follow in the next version: each range has its own position, so
		// versions need not hold all of them at the same point.
		if c.bytes >= c.limit {
			break
		}
		// Its tables are loaded below, as of the new position.
		if _, jumped := c.at[id]; jumped || c.awaitsParent(id) {
			continue
		}
		if err := c.followLog(id, to); err != nil {
			return err
		}
	}
	for _, id := range c.d.left {
		// Its records disappear in the same version, since dropRanges marked its tables stale.
		if err := c.commit.Delete(c.d.positionsTable(), format.Key{Number: format.PositionKey(id)}, 0); err != nil {
			return err
		}
	}
	if c.d.anyStale() {
		if err := c.awaitStorage(); err != nil {
			return err
		}
		if err := c.openReaders(); err != nil {
			return err
		}
		defer c.closeReaders()
	}
	for _, t := range c.d.tables {
		// Loads come last, when every position of the version is known: the load reads each range
		// as of its position.
		if t.stale {
			c.d.cfg.Logger.Info("loading a table into the image", "table", t.Name)
			if err := c.commit.Load(t.image, c.scanTable(t)); err != nil {
				return err
			}
			c.d.m.loads.Inc()
		}
	}
	return nil
}

// followLog applies the entries of a range from its position on: those at hand, and those before
// them as far as storage returns them.
func (c *cut) followLog(id rhumb.RangeID, to move) error {
	store := c.d.cfg.Engine.Store(id)
	from := c.d.at[id].Seq + 1
	// A load reads storage up to the position, and entries at hand may not be there yet.
	if c.d.anyStale() {
		st, _ := c.d.copyOf(id)
		to.Seq = min(to.Seq, st.Last.Seq)
	}
	for from <= uint64(to.Seq) && c.bytes < c.limit {
		es := to.entriesFrom(rhumb.Seq(from))
		if es == nil {
			// The log of a quarantined copy is not followed.
			if _, held := c.d.copyOf(id); !held {
				return nil
			}
			var err error
			if es, err = store.Entries(id, rhumb.Seq(from), to.Seq, readBytes); err != nil {
				return err
			}
		}
		if len(es) == 0 {
			// The host has not applied the entries yet, or they were trimmed meanwhile. The next
			// version handles both: plan sees the trim.
			return nil
		}
		for _, e := range es {
			if e.Seq > to.Seq {
				return nil
			}
			if err := c.addEntry(id, e); err != nil {
				return err
			}
		}
		from = uint64(es[len(es)-1].Seq) + 1
	}
	return nil
}

// entriesFrom returns the entries at hand from a sequence number on, or nil if the first of them is
// later.
func (m move) entriesFrom(seq rhumb.Seq) []*entry.Entry {
	if len(m.entries) == 0 || m.entries[0].Seq > seq {
		return nil
	}
	return m.entries[min(int(seq-m.entries[0].Seq), len(m.entries)):]
}

// jumpRange moves a range to a position that its log does not lead to, and marks the tables of its
// class stale.
func (c *cut) jumpRange(id rhumb.RangeID, to Position) error {
	p, ok, err := c.d.cfg.Engine.Store(id).Position(id, to.Seq)
	if err != nil {
		return err
	}
	if !ok {
		// The host has not applied the entry yet. The range stays pending.
		return nil
	}
	// A load reads the ranges that the catalog gives to this node. The range stays pending until it is one of them: a
	// position without its records would be wrong.
	r, ok := c.st.Range(id)
	if !ok || !r.IsReplica(c.d.cfg.Node) {
		return nil
	}
	c.at[id] = format.Position{Epoch: p.Epoch, Seq: uint64(to.Seq), HLC: to.HLC}
	// The jump may have passed an entry that took over another range.
	c.d.CatalogChanged()
	for _, t := range c.d.tables {
		if t.Class == r.Class {
			t.stale = true
		}
	}
	return nil
}

// addEntry puts the effects of an entry into the commit.
func (c *cut) addEntry(id rhumb.RangeID, e *entry.Entry) error {
	if take := e.Take(); !take.IsZero() {
		if err := c.noteTakeover(rhumb.RangeID{Region: id.Region, Slot: take.Slot}, take.Seq); err != nil {
			return err
		}
	}
	for i := range e.Requests {
		r := &e.Requests[i]
		for _, w := range r.Writes {
			// Writes to tables that are not published count too, since they were read as well.
			c.bytes += len(w.Name) + len(w.Value)
			t := c.d.tables[w.Table]
			// The load of a stale table already includes the write.
			if t == nil || t.stale {
				continue
			}
			rec, gone, err := c.makeRecord(t, id, w.Name, w.Value, r.HLC)
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
	// Both parts have the same log up to here, so the image has the records of both. It lacks those of the new part if the table was
	// loaded when storage had divided the range already.
	if at := e.Split(); at != 0 {
		child := rhumb.RangeID{Region: id.Region, Slot: at}
		last, loaded := c.d.loaded[id]
		if _, born := c.d.births[child]; born && c.d.at[child].Seq == 0 && (!loaded || at <= last) {
			c.at[child] = c.at[id]
		}
	}
	return nil
}

// noteTakeover handles the end of a range that another one has taken over. If the image can follow it to its end, it has all of its records;
// otherwise the tables are loaded again (dropRanges).
func (c *cut) noteTakeover(right rhumb.RangeID, end rhumb.Seq) error {
	at := func() rhumb.Seq { return rhumb.Seq(max(c.at[right].Seq, c.d.at[right].Seq)) }
	if to, pending := c.d.pending[right]; pending && at() < end {
		// The log is gone, but its last entries may be at hand.
		if err := c.followLog(right, to); err != nil {
			return err
		}
	}
	// The position of the right range leaves the image with its record (dropRanges). Its records are
	// those of the left range from here on.
	if at() >= end {
		c.d.merged[right] = true
	}
	// The record of the range may be gone already.
	c.d.CatalogChanged()
	return nil
}

// makeRecord returns the image's record of a stored one. gone reports that the key was deleted.
func (c *cut) makeRecord(t *table, home rhumb.RangeID, name, value []byte, at rhumb.Timestamp) (rec snapshot.Record, gone bool, err error) {
	const op rhumb.Op = "publish.Driver"
	rec = snapshot.Record{HLC: at, Value: value}
	block, ok := c.st.BlockOf(home)
	switch {
	// Without the block the kind of the key is unknown. The driver retries when the catalog has
	// caught up.
	case !ok:
		return rec, false, &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: home, Msg: "the range is not in this node's copy of the metadata yet"}
	// A hash slot: clients chose the name.
	case block.Node == rhumb.NoNode:
		rec.Key = format.Key{Name: name}
	// A shard: the server chose the name, an 8-byte sequence that is unique only within its home.
	case len(name) == 8:
		rec.Key = format.Key{Name: keys.AppendShardKey(nil, rhumb.ShardKey{Home: home, Sequence: binary.BigEndian.Uint64(name)}), ShardKey: true}
	default:
		return rec, false, &rhumb.Error{Op: op, Kind: rhumb.Corrupt, Range: home, Msg: fmt.Sprintf("a name assigned by the server has %d bytes, not 8", len(name))}
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

// boxOf returns the location in a field. A field that holds no valid location yields none: a bad
// value of a client must not keep the image from being published.
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

// positionOf returns the position of a range in this version. A range that does not move keeps its earlier one; one without any has
// nothing committed.
func (c *cut) positionOf(id rhumb.RangeID) (p format.Position, ok bool) {
	if _, absent := c.absent[id]; absent {
		return p, false
	}
	if p, ok = c.at[id]; !ok {
		p, ok = c.d.at[id]
	}
	return p, ok
}

// errStorageBehind means that storage does not have all entries that the image follows.
var errStorageBehind = errors.New("storage lacks entries that the image follows")

// awaitStorage lets the version load tables only if storage has every entry up to the positions of the version: the image follows
// entries at hand, which the host may not have applied yet. It returns errStorageBehind if some are missing. If they are missing
// for longer than storageWait, the node has lost its copy of the range, or the copy is quarantined, and the range leaves the image until
// the node has another one.
func (c *cut) awaitStorage() error {
	behind := map[rhumb.RangeID]format.Position{}
	for _, t := range c.d.tables {
		if !t.stale {
			continue
		}
		for _, id := range c.rangesOf(t.Class) {
			st, _ := c.d.copyOf(id)
			if p, ok := c.positionOf(id); ok && p.Seq > uint64(st.Last.Seq) {
				behind[id] = p
			}
		}
	}
	now := hlc.Boottime()
	if len(behind) > 0 && c.d.behind == 0 {
		c.d.behind = now
	}
	if len(behind) > 0 && now-c.d.behind < storageWait {
		return errStorageBehind
	}
	c.d.behind = 0
	for id := range behind {
		if err := c.commit.Delete(c.d.positionsTable(), format.Key{Number: format.PositionKey(id)}, 0); err != nil {
			return err
		}
		delete(c.at, id)
	}
	c.absent = behind
	return nil
}

// openReaders keeps what the loads of this version read, for all ranges at once. A load may take minutes while its ranges are written.
// If each range was opened when its turn came, the versions as of its position would have been collected, and no load would ever end.
func (c *cut) openReaders() error {
	c.readers = map[*storage.Store]*storage.Reader{}
	for _, t := range c.d.tables {
		if !t.stale {
			continue
		}
		for _, id := range c.rangesOf(t.Class) {
			p, ok := c.positionOf(id)
			if !ok {
				continue
			}
			s := c.d.cfg.Engine.Store(id)
			if c.readers[s] == nil {
				r, err := s.NewReader()
				if err != nil {
					c.closeReaders()
					return err
				}
				c.readers[s] = r
			}
			if err := c.readers[s].Covers(id, p.HLC); err != nil {
				c.closeReaders()
				return err
			}
		}
	}
	return nil
}

// closeReaders lets storage remove what the loads have read.
func (c *cut) closeReaders() {
	for _, r := range c.readers {
		// Every error of a read was returned by the scan.
		_ = r.Close()
	}
	c.readers = nil
}

// scanTable reads a whole table from storage: every range of its class that this node holds, as of
// the range's position in this version.
func (c *cut) scanTable(t *table) iter.Seq2[snapshot.Record, error] {
	return func(yield func(snapshot.Record, error) bool) {
		for _, id := range c.rangesOf(t.Class) {
			p, ok := c.positionOf(id)
			if !ok {
				continue
			}
			for item, err := range c.readers[c.d.cfg.Engine.Store(id)].ScanSlots(id, t.ID, p.HLC) {
				var rec snapshot.Record
				if err == nil {
					rec, _, err = c.makeRecord(t, id, item.Key.Name, item.Value, item.Version.HLC)
				}
				if !yield(rec, err) || err != nil {
					return
				}
			}
			// Asked after the scan, so that the slots from there on are those that the scan may lack.
			st, _ := c.d.cfg.Engine.Store(id).State(id)
			c.d.loaded[id] = max(id.Slot, st.LastSlot)
		}
	}
}

// rangesOf returns the ranges that a load of a table of a class reads: those that the catalog gives to this node, and those that were split
// off and are not in the catalog yet.
func (c *cut) rangesOf(class rhumb.ClassID) []rhumb.RangeID {
	ids := c.d.localRanges(c.st, class)
	for id := range c.d.births {
		_, known := c.st.Range(id)
		if b, ok := c.st.BlockOf(id); ok && !known && b.Class == class {
			ids = append(ids, id)
		}
	}
	return ids
}
