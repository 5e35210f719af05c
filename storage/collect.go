package storage

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// CollectLimits bounds one call of Collect.
type CollectLimits struct {
	// Before is a timestamp below which no read is in progress. Only entries up to Before are
	// collected.
	Before rhumb.Timestamp
	// WritesMax bounds the keys that are deleted; default and maximum CollectWritesMax. An entry is
	// always collected whole.
	WritesMax int
	// History returns how long a table keeps superseded versions; nil means that no table keeps
	// any. The versions of a table with history are left to CollectHistory.
	History func(rhumb.TableID) time.Duration
}

// Collected is the result of one collection.
type Collected struct {
	// Entries, Versions and Results count the deleted log records, versions and request results.
	Entries, Versions, Results int
	// Bytes is the size of the deleted versions before compression.
	Bytes int64
	// More is set if the call reached its bound and there is more to collect.
	More bool
}

// Collect removes data that a range no longer needs:
//
//   - log records before the trim position
//   - the versions that these entries superseded
//   - request results older than rhumb.DedupKeep by log time whose entries are trimmed; the floors
//     of their clients take their place (RequestFloor)
//
// The record at the trim position stays, because the entry after it is matched against it. Collect
// does a bounded amount of work: the caller repeats it while More is set. Collect may run
// concurrently with the range's writer. If the store does not hold the range, Collect does nothing.
//
// Only the log says which versions are superseded, so a version is collected when the entry that
// superseded it is: nothing has to search the keys of the range.
func (s *Store) Collect(id rhumb.RangeID, lim CollectLimits) (Collected, error) {
	const op rhumb.Op = "storage.Store.Collect"
	if lim.WritesMax <= 0 || lim.WritesMax > CollectWritesMax {
		lim.WritesMax = CollectWritesMax
	}
	c, ok := s.beginCollection(id)
	if !ok {
		return Collected{}, nil
	}
	defer c.end()
	c.lim = lim
	// The order matters: entries name the versions to delete, and all three steps fill one batch,
	// so a record is never gone while its superseded versions stay.
	c.newest = map[string]rhumb.Version{}
	for _, slot := range c.log.merged {
		old := rhumb.RangeID{Region: id.Region, Slot: slot}
		if err := c.collectEntries(old, math.MaxUint64); err != nil {
			return Collected{}, s.dbError(op, err)
		}
	}
	if err := c.collectEntries(id, c.log.Trim); err != nil {
		return Collected{}, s.dbError(op, err)
	}
	if err := c.collectVersions(); err != nil {
		return Collected{}, s.dbError(op, err)
	}
	if err := c.collectResults(); err != nil {
		return Collected{}, s.dbError(op, err)
	}
	return c.done, s.dbError(op, c.apply())
}

// CollectHistory removes the versions of one table of a range that were superseded at or before a
// timestamp and whose entries are trimmed. It examines the names after a position that an earlier call
// returned, and returns the position that it has reached, or nil at the end of the table. The log records
// of these versions are gone by then, so CollectHistory has to read the table.
func (s *Store) CollectHistory(id rhumb.RangeID, table rhumb.TableID, before rhumb.Timestamp, after []byte) (next []byte, done Collected, err error) {
	const op rhumb.Op = "storage.Store.CollectHistory"
	c, ok := s.beginCollection(id)
	if !ok {
		return nil, Collected{}, nil
	}
	defer c.end()
	c.lim.WritesMax = CollectWritesMax
	if next, err = c.collectTable(table, min(before, c.beforeTrim()), after); err != nil {
		return nil, Collected{}, s.dbError(op, err)
	}
	c.done.More = next != nil
	return next, c.done, s.dbError(op, c.apply())
}

// collection is one call of Collect or CollectHistory on one range. log is the state of the range
// when the call began. Positions only grow, so a deletion that the copy allows stays allowed.
type collection struct {
	s   *Store
	rs  *rangeState
	id  rhumb.RangeID
	log logState
	lim CollectLimits
	b   *pebble.Batch
	key []byte
	// newest maps each key that the collected entries wrote, as a prefix, to the newest version
	// that they wrote. All older versions of the key are removed.
	newest map[string]rhumb.Version
	// floor becomes the range's collection floor when the collection is applied.
	floor rhumb.Timestamp
	// client is the client whose results are being collected, and raised what its floor becomes.
	client rhumb.UUID
	raised floor
	// forgets is set if the collection deletes a result or a floor.
	forgets bool
	done    Collected
}

// beginCollection returns a collection of a range. Until end is called, the range is not dropped
// and no other collection of it runs. ok is false if the store does not hold the range.
func (s *Store) beginCollection(id rhumb.RangeID) (*collection, bool) {
	rs := s.rangeOf(id)
	if rs == nil {
		return nil, false
	}
	rs.collecting.Lock()
	rs.mu.Lock()
	c := &collection{s: s, rs: rs, id: id, log: rs.log}
	// The range may have been dropped, and even created again with another rangeState, while this
	// call waited for the lock.
	dropped := rs.dropped
	rs.mu.Unlock()
	if dropped {
		rs.collecting.Unlock()
		return nil, false
	}
	c.b = s.db.NewBatch()
	return c, true
}

// end releases the range.
func (c *collection) end() {
	// The batch is empty, applied or abandoned. Closing it returns its memory in all cases.
	_ = c.b.Close()
	c.rs.collecting.Unlock()
}

// collectEntries deletes the log records of a range below a number, oldest first, and notes which keys they wrote. The range is that of
// the collection, below its trim position, or one that was united with it.
func (c *collection) collectEntries(id rhumb.RangeID, below rhumb.Seq) error {
	if below == 0 {
		return nil
	}
	// More than that are never taken: see below.
	w, err := c.s.walkLog(id, 0, below-1, c.lim.WritesMax+1)
	if err != nil {
		return err
	}
	defer func() { _ = w.close() }()
	for {
		stored, ok, err := w.next()
		if err != nil || !ok {
			return err
		}
		r, err := decodeRecord(stored.value)
		if err != nil {
			return c.s.badRecord("storage.Store.Collect", id, 0, err)
		}
		// Timestamps grow along the log, so no later entry is old enough either.
		if r.entry.LastHLC() > c.lim.Before {
			return nil
		}
		// Checked before an entry is taken, so that an entry is never collected in part: its record
		// is the only list of its versions.
		if c.done.Entries+len(c.newest) >= c.lim.WritesMax {
			c.done.More = true
			return nil
		}
		// Later requests and entries overwrite the map, so that it ends with the newest version.
		for i := range r.entry.Requests {
			req := &r.entry.Requests[i]
			for _, w := range req.Writes {
				if c.lim.History != nil && c.lim.History(w.Table) > 0 {
					continue
				}
				c.key = keys.AppendDataPrefix(c.key[:0], rhumb.Key{Table: w.Table, Home: w.Home(id), Name: w.Name})
				// Two logs may name one key: that of a range, and that of a range which was united with it.
				if v := r.entry.Version(req); c.newest[string(c.key)].Compare(v) < 0 {
					c.newest[string(c.key)] = v
				}
			}
		}
		// Only versions are removed by SINGLEDEL (docs/replication.md#entries).
		c.key = keys.AppendLog(c.key[:0], id, stored.seq)
		if err := c.b.Delete(c.key, nil); err != nil {
			return err
		}
		c.done.Entries++
		// A read at or above the last collected timestamp sees the newest collected version.
		c.floor = max(c.floor, r.entry.LastHLC())
	}
}

// collectVersions deletes the versions that are older than the noted ones, and a noted version
// itself if it is a tombstone. Older versions and their tombstone are deleted in one batch, so a
// crash cannot leave the old ones without it.
func (c *collection) collectVersions() error {
	if len(c.newest) == 0 {
		return nil
	}
	// One iterator serves all keys. Sorted prefixes make it move forward only, which reuses the
	// blocks that it has loaded.
	prefixes := make([]string, 0, len(c.newest))
	for p := range c.newest {
		prefixes = append(prefixes, p)
	}
	slices.SortFunc(prefixes, strings.Compare)
	// Entries from before a split also wrote keys that are in another range now. All versions that they superseded are below
	// the split, where that range neither reads nor undoes anything, and it has no list of them.
	span := c.log.span()
	if last := []byte(prefixes[len(prefixes)-1]); span.Upper != nil && keys.Compare(last, span.Upper) >= 0 {
		span.Upper = nil
	}
	options := absentOptions // most names have no older version in most levels
	options.LowerBound, options.UpperBound = span.Lower, span.Upper
	it, err := c.s.db.NewIter(&options)
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }()
	for _, p := range prefixes {
		c.key = keys.AppendVersion(append(c.key[:0], p...), c.newest[p])
		if err := c.collectSuperseded(it, c.key); err != nil {
			return err
		}
	}
	return nil
}

// collectSuperseded deletes the versions of a record that are older than the one at key, and that
// one too if it is a tombstone.
func (c *collection) collectSuperseded(it *pebble.Iterator, key []byte) error {
	for ok := it.SeekPrefixGE(key); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		// The newest collected version is what reads at the floor see.
		if keys.Equal(it.Key(), key) && !rhumb.IsTombstone(v) {
			continue
		}
		// SINGLEDEL disappears together with the SET that it deletes, while a DELETE stays until it
		// reaches the last level. It is correct only because a version is written once and an undo
		// of it uses DELETE (docs/replication.md#entries); Pebble reports a violation as misuse.
		if err := c.b.SingleDelete(it.Key(), nil); err != nil {
			return err
		}
		c.countVersion(it.Key(), v)
	}
	return it.Error()
}

// countVersion adds a deleted version to the result.
func (c *collection) countVersion(key, value []byte) {
	c.done.Versions++
	// The size of a range that was split off does not count here.
	if home, ok := keys.Home(key); !ok || home.Slot > max(c.id.Slot, c.log.LastSlot) {
		return
	}
	if _, name, _, err := keys.DecodeData(key); err == nil {
		c.done.Bytes += int64(versionWeight(len(name), len(value)))
	}
}

// beforeTrim returns a timestamp that is below every version of the entry at the trim position,
// which is still in the log, and of later entries; 0 if it is unknown. Such versions must stay,
// because sending an entry reads its versions.
func (c *collection) beforeTrim() rhumb.Timestamp {
	r, ok, err := c.s.readRecord("storage.Store.CollectHistory", c.id, c.log.Trim)
	if !ok || err != nil {
		return 0
	}
	if len(r.entry.Requests) > 0 {
		return r.entry.Requests[0].HLC - 1
	}
	return r.entry.LastHLC() - 1
}

// collectTable deletes, name by name, the versions that the newest version at or before a timestamp
// supersedes. A position is the slot and the name that were examined last.
func (c *collection) collectTable(table rhumb.TableID, at rhumb.Timestamp, after []byte) (next []byte, err error) {
	home := c.id
	if len(after) >= slotSize {
		home.Slot, after = rhumb.Slot(binary.BigEndian.Uint32(after)), after[slotSize:]
	}
	span := c.log.span()
	it, err := c.s.db.NewIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
	if err != nil {
		return nil, err
	}
	defer func() { _ = it.Close() }()
	c.floor = at
	w := slotWalk{it: it, at: home, last: c.log.LastSlot, span: func(home rhumb.RangeID) keys.Span { return scanSpan(home, table, nil, after) }}
	for w.next() {
		name, err := c.collectSlot(&w, at)
		if err != nil {
			return nil, err
		}
		if name != nil {
			return append(binary.BigEndian.AppendUint32(nil, uint32(w.at.Slot)), name...), nil
		}
		after = nil
	}
	return nil, it.Error()
}

// slotSize is the size of the slot in a position of collectTable.
const slotSize = 4

// collectSlot is collectTable for the keys of one slot. If it reaches its bound, it returns the last name.
func (c *collection) collectSlot(w *slotWalk, at rhumb.Timestamp) (last []byte, err error) {
	it := w.it
	var prefix []byte
	newest := true // the next version at or before at is the newest of its name
	for ok := true; ok && keys.Compare(it.Key(), w.upper) < 0; ok = it.Next() {
		key := it.Key()
		if p := key[:keys.Split(key)]; !bytes.Equal(p, prefix) {
			// The bound is checked between names, so that a tombstone goes together with all that
			// it hides.
			if c.done.Versions >= c.lim.WritesMax && prefix != nil {
				_, last, _, err = keys.DecodeData(prefix)
				return last, err
			}
			prefix, newest = append(prefix[:0], p...), true
		}
		if v, ok := keys.VersionOf(key); !ok || v.HLC > at {
			continue
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		// The newest version stays unless it is a tombstone, which hides nothing once the older
		// versions are gone.
		if newest && !rhumb.IsTombstone(value) {
			newest = false
			continue
		}
		newest = false
		if err := c.b.SingleDelete(key, nil); err != nil {
			return nil, err
		}
		c.countVersion(key, value)
	}
	return nil, it.Error()
}

// expiry is the progress of a walk over the request results of a range. A walk begins when log time
// has advanced by a quarter of rhumb.DedupKeep, so each result is read about five times before it
// expires. It is not durable: after a restart a walk begins from the start.
type expiry struct {
	begun rhumb.Timestamp // log time when the last walk began
	after []byte          // the last key that was read; nil between walks
}

// expiryEvery is the log time between two walks.
const expiryEvery = rhumb.DedupKeep / 4

// collectResults deletes request results that are older than rhumb.DedupKeep, and raises the floors
// of their clients. It continues the walk of earlier calls.
//
// Time is log time, the timestamp at the commit position, and not the clock. Replicas whose clocks
// differ then expire the same results, and a range without writes forgets nothing.
func (c *collection) collectResults() error {
	x := &c.rs.expiry
	now := c.log.CommitHLC
	if x.after == nil {
		if now.Sub(x.begun) < expiryEvery {
			return nil
		}
		x.begun = now
		x.after = keys.KindSpan(c.id, keys.KindDedup).Lower
		// The walk reads the database. Only a store with few writes keeps a result in its log until it expires.
		if c.s.own != nil {
			if err := c.s.own.copyResults(now, rhumb.DedupKeep); err != nil {
				return err
			}
		}
	}
	it, err := c.s.db.NewIter(&pebble.IterOptions{LowerBound: keys.ImmediateSuccessor(nil, x.after), UpperBound: keys.KindSpan(c.id, keys.KindDedup).Upper})
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }()
	looked := 0 // reads are bounded too, because most results that a walk reads do not expire
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := c.collectResult(it.Key(), v, now); err != nil {
			return err
		}
		// The floor is written with the results that it replaces, even if the walk ends in the
		// middle of a client.
		if looked++; looked >= c.lim.WritesMax {
			x.after = append([]byte(nil), it.Key()...)
			c.done.More = true
			return c.raiseFloor()
		}
	}
	if err := it.Error(); err != nil {
		return err
	}
	x.after = nil
	return c.raiseFloor()
}

// collectResult handles one 'q' key: the floor of a client, or a result of the client, which sorts
// after the floor.
func (c *collection) collectResult(key, value []byte, now rhumb.Timestamp) error {
	d, err := keys.Decode(key)
	if err != nil {
		return err
	}
	if d.Request.Seq == 0 {
		f, err := decodeFloor(value)
		if err == nil && now.Sub(f.hlc) > rhumb.DedupFloorKeep {
			// If this walk also deletes a result of the client, raiseFloor writes the floor again,
			// later in the same batch.
			c.forgets = true
			err = c.b.Delete(key, nil)
		}
		return err
	}
	// A result stays while its entry is not trimmed, however old it is: the entry may be undone,
	// and undo deletes the result.
	seen, hlc, err := decodeSeen(value)
	if err != nil || seen.Seq > c.log.Trim || now.Sub(hlc) <= rhumb.DedupKeep {
		return err
	}
	if c.client != d.Request.Client {
		if err := c.raiseFloor(); err != nil {
			return err
		}
		c.client = d.Request.Client
	}
	c.raised = c.raised.max(floor{d.Request.Seq, hlc})
	c.done.Results++
	c.forgets = true
	return c.b.Delete(key, nil)
}

// raiseFloor adds a write of the floor of the client whose results were just collected.
func (c *collection) raiseFloor() error {
	if c.raised.seq == 0 {
		return nil
	}
	// Results are walked in the order of numbers within a client, but walks differ: a later walk
	// may collect a smaller number that was not trimmed earlier. So the floor must not fall.
	old, err := c.s.floorOf(c.id, c.client)
	if err != nil {
		return err
	}
	c.key = keys.AppendDedup(c.key[:0], c.id, rhumb.RequestID{Client: c.client})
	err = c.b.Set(c.key, appendFloor(nil, c.raised.max(old)), nil)
	c.raised = floor{}
	return err
}

// apply commits the collection. It is not synced: after a crash, the deletions that were lost are
// collected again.
func (c *collection) apply() error {
	// A walk that found nothing to delete writes nothing.
	if c.b.Empty() {
		return nil
	}
	c.rs.mu.Lock()
	// No other goroutine writes collected: the caller holds collecting.
	collected := c.rs.collected + uint64(c.done.Bytes)
	c.rs.mu.Unlock()
	c.key = keys.AppendState(c.key[:0], c.id, keys.StateCollected)
	if err := c.b.Set(c.key, encodeWords(collected), nil); err != nil {
		return err
	}
	if uint64(c.floor) > c.rs.floor.Load() {
		// The floor rises before anything is deleted. A read that misses a deleted version then
		// sees the higher floor (see checkFloor).
		c.rs.floor.Store(uint64(c.floor))
	}
	if err := c.s.commit("storage.Store.Collect", c.b, false); err != nil {
		return err
	}
	// After Apply: whoever sees the new count sees the deletions.
	if c.forgets {
		c.rs.forgotten.Add(1)
	}
	c.rs.mu.Lock()
	// The size changes only once the deletions are visible. If Apply failed, nothing was collected.
	c.rs.collected = collected
	c.rs.mu.Unlock()
	return nil
}
