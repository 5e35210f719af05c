package storage

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// CollectLimits bound one call of Collect.
type CollectLimits struct {
	// Before is the timestamp below which no read is under way: only entries up to it are collected.
	Before rhumb.Timestamp
	// WritesMax bounds the keys deleted; default and maximum CollectWritesMax. One entry is always done whole.
	WritesMax int
	// History says how long a table keeps superseded versions; nil keeps none. Versions of a table with history are
	// left to CollectHistory.
	History func(rhumb.TableID) time.Duration
}

// Collected is what one collection did.
type Collected struct {
	// Entries, Versions and Results count the deleted log records, versions and request results.
	Entries, Versions, Results int
	// Bytes is what the deleted versions weighed, before compression.
	Bytes int64
	// More is true when there is more to do at once.
	More bool
}

// Collect removes what a range no longer needs: the log records before its trim position, the versions that these
// collectEntries superseded, and request results that are older than rhumb.DedupKeep by log time and whose entries are trimmed; the
// floors of their clients (RequestFloor) take their place.
// The record at the trim position stays: the entry after it is matched against it. Collect does a bounded piece of work;
// call it again while More. It may run beside the range's writer. A range that the store does not hold is no error.
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
	if err := c.collectEntries(); err != nil {
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

// CollectHistory removes the versions of one table of a range that were superseded at or before a timestamp and whose
// collectEntries are trimmed. It goes through the names after the given one and returns the last name it looked at, nil at the
// end.
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

// collection is one call of Collect on one range.
type collection struct {
	s   *Store
	rs  *rangeState
	id  rhumb.RangeID
	log logState
	lim CollectLimits
	b   *pebble.Batch
	key []byte
	// newest is the newest version that the collected entries wrote of each key (its prefix): all older ones go.
	newest map[string]rhumb.Version
	floor  rhumb.Timestamp
	// client is the one whose results are being collected, and raised what its floor becomes.
	client rhumb.UUID
	raised floor
	done   Collected
}

// beginCollection keeps the range from being dropped or collected by another until end.
func (s *Store) beginCollection(id rhumb.RangeID) (*collection, bool) {
	rs := s.rangeOf(id)
	if rs == nil {
		return nil, false
	}
	rs.collecting.Lock()
	rs.mu.Lock()
	c := &collection{s: s, rs: rs, id: id, log: rs.log}
	dropped := rs.dropped
	rs.mu.Unlock()
	if dropped {
		rs.collecting.Unlock()
		return nil, false
	}
	c.b = s.db.NewBatch()
	return c, true
}

func (c *collection) end() {
	_ = c.b.Close()
	c.rs.collecting.Unlock()
}

// collectEntries deletes the log records before the trim position, oldest first, and notes what they wrote.
func (c *collection) collectEntries() error {
	it, err := c.s.db.NewIter(&pebble.IterOptions{
		LowerBound: keys.KindSpan(c.id, keys.KindLog).Lower, UpperBound: keys.AppendLog(nil, c.id, c.log.Trim),
	})
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }()
	c.newest = map[string]rhumb.Version{}
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		r, err := decodeRecord(v)
		if err != nil {
			return c.s.badRecord("storage.Store.Collect", c.id, 0, err)
		}
		if r.entry.LastHLC() > c.lim.Before {
			return nil
		}
		if c.done.Entries+len(c.newest) >= c.lim.WritesMax {
			c.done.More = true
			return nil
		}
		for i := range r.entry.Requests {
			req := &r.entry.Requests[i]
			for _, w := range req.Writes {
				if c.lim.History != nil && c.lim.History(w.Table) > 0 {
					continue
				}
				c.key = keys.AppendDataPrefix(c.key[:0], rhumb.Key{Table: w.Table, Home: c.id, Name: w.Name})
				c.newest[string(c.key)] = r.entry.Version(req)
			}
		}
		if err := c.b.Delete(it.Key(), nil); err != nil {
			return err
		}
		c.done.Entries++
		c.floor = r.entry.LastHLC()
	}
	return it.Error()
}

// collectVersions deletes what is older than the noted versions, and these, too, when they are tombstones. Older versions and
// their tombstone go in one batch, so nothing deleted comes back.
func (c *collection) collectVersions() error {
	if len(c.newest) == 0 {
		return nil
	}
	span := keys.KindSpan(c.id, keys.KindData)
	it, err := c.s.db.NewIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }()
	prefixes := make([]string, 0, len(c.newest))
	for p := range c.newest {
		prefixes = append(prefixes, p)
	}
	slices.SortFunc(prefixes, strings.Compare)
	for _, p := range prefixes {
		c.key = keys.AppendVersion(append(c.key[:0], p...), c.newest[p])
		if err := c.collectSuperseded(it, c.key); err != nil {
			return err
		}
	}
	return nil
}

// collectSuperseded deletes the versions of a record that are older than the one at key, and that one, too, when it is a
// tombstone.
func (c *collection) collectSuperseded(it *pebble.Iterator, key []byte) error {
	for ok := it.SeekPrefixGE(key); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if keys.Equal(it.Key(), key) && !rhumb.IsTombstone(v) {
			continue
		}
		if err := c.b.SingleDelete(it.Key(), nil); err != nil {
			return err
		}
		c.countVersion(it.Key(), v)
	}
	return it.Error()
}

func (c *collection) countVersion(key, value []byte) {
	c.done.Versions++
	if _, name, _, err := keys.DecodeData(key); err == nil {
		c.done.Bytes += int64(versionWeight(len(name), len(value)))
	}
}

// beforeTrim gives a timestamp below which no version belongs to the entry at the trim position, which is still in the
// log, nor to a later one; 0 when it cannot be told.
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

// collectTable deletes, name by name, what the newest version at or below a timestamp supersedes.
func (c *collection) collectTable(table rhumb.TableID, at rhumb.Timestamp, after []byte) (next []byte, err error) {
	span := scanSpan(c.id, table, nil, after)
	it, err := c.s.db.NewIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
	if err != nil {
		return nil, err
	}
	defer func() { _ = it.Close() }()
	c.floor = at
	var prefix []byte
	newest := true // the next version at or below at is the newest of its name
	for ok := it.First(); ok; ok = it.Next() {
		key := it.Key()
		if p := key[:keys.Split(key)]; !bytes.Equal(p, prefix) {
			if c.done.Versions >= c.lim.WritesMax {
				_, next, _, err = keys.DecodeData(prefix)
				return next, err
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

// expiry is where a range's walk over its request results stands. A walk begins when log time has moved on by a
// quarter of rhumb.DedupKeep, so each result is looked at about five times in its life.
type expiry struct {
	begun rhumb.Timestamp // log time at the begin of the last walk
	after []byte          // the last key looked at; nil between walks
}

const expiryEvery = rhumb.DedupKeep / 4

// collectResults deletes request results that are too old to be asked for, one by one, and raises the floors of their clients.
func (c *collection) collectResults() error {
	x := &c.rs.expiry
	now := c.log.CommitHLC
	if x.after == nil {
		if now.Sub(x.begun) < expiryEvery {
			return nil
		}
		x.begun = now
		x.after = keys.KindSpan(c.id, keys.KindDedup).Lower
	}
	it, err := c.s.db.NewIter(&pebble.IterOptions{LowerBound: keys.ImmediateSuccessor(nil, x.after), UpperBound: keys.KindSpan(c.id, keys.KindDedup).Upper})
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }()
	looked := 0
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := c.collectResult(it.Key(), v, now); err != nil {
			return err
		}
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

// collectResult looks at one 'q' key: the result of a request, or before the results of its client their floor.
func (c *collection) collectResult(key, value []byte, now rhumb.Timestamp) error {
	d, err := keys.Decode(key)
	if err != nil {
		return err
	}
	if d.Request.Seq == 0 {
		f, err := decodeFloor(value)
		if err == nil && now.Sub(f.hlc) > rhumb.DedupFloorKeep {
			err = c.b.Delete(key, nil) // a result that this collection deletes writes it anew
		}
		return err
	}
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
	return c.b.Delete(key, nil)
}

// raiseFloor writes the floor of the client whose results were just collected.
func (c *collection) raiseFloor() error {
	if c.raised.seq == 0 {
		return nil
	}
	old, err := c.s.floorOf(c.id, c.client)
	if err != nil {
		return err
	}
	c.key = keys.AppendDedup(c.key[:0], c.id, rhumb.RequestID{Client: c.client})
	err = c.b.Set(c.key, appendFloor(nil, c.raised.max(old)), nil)
	c.raised = floor{}
	return err
}

// apply commits the collection. It is not synced: what a crash brings back is collected again.
func (c *collection) apply() error {
	if c.b.Empty() {
		return nil
	}
	c.rs.mu.Lock()
	collected := c.rs.collected + uint64(c.done.Bytes)
	c.rs.mu.Unlock()
	c.key = keys.AppendState(c.key[:0], c.id, keys.StateCollected)
	if err := c.b.Set(c.key, encodeWords(collected), nil); err != nil {
		return err
	}
	if uint64(c.floor) > c.rs.floor.Load() {
		c.rs.floor.Store(uint64(c.floor)) // before anything goes: see checkFloor
	}
	if err := c.s.db.Apply(c.b, pebble.NoSync); err != nil {
		return err
	}
	c.rs.mu.Lock()
	c.rs.collected = collected
	c.rs.mu.Unlock()
	return nil
}
