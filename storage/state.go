package storage

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
)

// EpochStart is one step of a range's lineage: the position at which an epoch began.
type EpochStart struct {
	Epoch rhumb.Epoch
	First rhumb.Seq
}

// RangeState is what a store holds of one replica besides its data and its log.
type RangeState struct {
	Range rhumb.RangeID
	// Promised is the greatest epoch that the replica promised; it is durable when the batch that set it is.
	Promised rhumb.Epoch
	// Last is the position of the last entry, and LastHLC its greatest timestamp; both are zero for an empty log.
	Last    entry.Position
	LastHLC rhumb.Timestamp
	// Commit is a lower bound of the commit position, and CommitHLC the greatest timestamp up to there.
	Commit    rhumb.Seq
	CommitHLC rhumb.Timestamp
	// Trim is the position up to which entries may be gone from the log. Trim <= Commit.
	Trim rhumb.Seq
	// Quarantine is the reason why the replica serves nothing, or "".
	Quarantine string
	// Lineage says at which position each epoch of the log began, oldest first.
	Lineage []EpochStart
}

// Commit is a commit position with the greatest timestamp up to there.
type Commit struct {
	Seq rhumb.Seq
	HLC rhumb.Timestamp
}

// RangeSize is what a range weighs, in bytes before compression.
type RangeSize struct {
	// Data counts keys and values of all versions that are kept.
	Data int64
	// Log counts the entries after the trim position, values included: what a lagging peer could still be sent.
	Log int64
}

// weights are running totals over a log; those of its last entry stand for the whole log.
type weights struct {
	data uint64 // keys and values of all versions written
	log  uint64 // entries with their values
}

// logState is all that changes with a range's log: the durable state and what sizes are computed from.
type logState struct {
	RangeState
	total   weights // at Last
	trimmed uint64  // weights.log at Trim
	trimHLC rhumb.Timestamp
	base    base
}

// base is the position before the first entry of a log that did not begin here; zero when it did.
type base struct {
	pos   entry.Position
	hlc   rhumb.Timestamp
	total weights
}

// rangeState is the in-memory side of a range that a store holds.
type rangeState struct {
	// collecting is held by a collection of the range, and by the batch that drops it.
	collecting sync.Mutex
	expiry     expiry // guarded by collecting

	mu        sync.Mutex // guards the three below
	log       logState
	collected uint64 // bytes of versions that collection removed
	dropped   bool

	// floor is the greatest timestamp below which collection may have removed what a read would have seen.
	floor atomic.Uint64
}

// The values of the state keys, integers big endian:
//
//	range      version(1) = 1
//	promised   epoch(8)
//	commit     seq(8) hlc(8)
//	trim       seq(8) hlc(8) log bytes(8)
//	collected  bytes(8)
//	base       epoch(8) seq(8) hash(16) hlc(8) data bytes(8) log bytes(8)
//	lineage    (epoch(8) first(8))*
//	quarantine text
const stateVersion = 1

func encodeWords(words ...uint64) []byte {
	b := make([]byte, 0, 8*len(words))
	for _, w := range words {
		b = binary.BigEndian.AppendUint64(b, w)
	}
	return b
}

func encodeBase(b base) []byte {
	v := encodeWords(uint64(b.pos.Epoch), uint64(b.pos.Seq))
	v = append(v, b.pos.Hash[:]...)
	return append(v, encodeWords(uint64(b.hlc), b.total.data, b.total.log)...)
}

func encodeLineage(l []EpochStart) []byte {
	var v []byte
	for _, s := range l {
		v = append(v, encodeWords(uint64(s.Epoch), uint64(s.First))...)
	}
	return v
}

// wordAt gives the i-th eight bytes of a state value.
func wordAt(v []byte, i int) uint64 { return binary.BigEndian.Uint64(v[8*i:]) }

// setField takes in one state key. It reports false when the value has not the field's form.
func (rs *rangeState) setField(f keys.StateField, v []byte) bool {
	st := &rs.log
	size := map[keys.StateField]int{
		keys.StateRange: 1, keys.StatePromised: 8, keys.StateCommit: 16, keys.StateTrim: 24,
		keys.StateCollected: 8, keys.StateBase: 56, keys.StateLineage: len(v) &^ 15,
		keys.StateQuarantine: len(v),
	}
	if n, known := size[f]; !known || n != len(v) {
		return false
	}
	switch f {
	case keys.StateRange:
		return v[0] == stateVersion
	case keys.StatePromised:
		st.Promised = rhumb.Epoch(wordAt(v, 0))
	case keys.StateCommit:
		st.Commit, st.CommitHLC = rhumb.Seq(wordAt(v, 0)), rhumb.Timestamp(wordAt(v, 1))
	case keys.StateTrim:
		st.Trim, st.trimHLC, st.trimmed = rhumb.Seq(wordAt(v, 0)), rhumb.Timestamp(wordAt(v, 1)), wordAt(v, 2)
	case keys.StateCollected:
		rs.collected = wordAt(v, 0)
	case keys.StateBase:
		st.base = base{
			pos:   entry.Position{Epoch: rhumb.Epoch(wordAt(v, 0)), Seq: rhumb.Seq(wordAt(v, 1)), Hash: entry.Hash(v[16:32])},
			hlc:   rhumb.Timestamp(wordAt(v, 4)),
			total: weights{wordAt(v, 5), wordAt(v, 6)},
		}
	case keys.StateQuarantine:
		st.Quarantine = string(v)
	case keys.StateLineage:
		for i := 0; i < len(v)/8; i += 2 {
			st.Lineage = append(st.Lineage, EpochStart{rhumb.Epoch(wordAt(v, i)), rhumb.Seq(wordAt(v, i+1))})
		}
	}
	return true
}

// loadRanges reads the state of every range in the store whose keys come at or after from. A range whose state contradicts
// itself is not loaded; lose is told.
func (s *Store) loadRanges(op rhumb.Op, from []byte, lose func(rhumb.RangeID, error)) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: from})
	if err != nil {
		return s.dbError(op, err)
	}
	defer func() { _ = it.Close() }()
	for ok := it.First(); ok; {
		id, found := keys.Home(it.Key())
		if !found {
			return rhumb.Ef(op, rhumb.Corrupt, "store %s: key %x has no home", s.cfg.Dir, it.Key())
		}
		rs, err := s.loadRange(op, it, id)
		switch f := (*faultError)(nil); {
		case err == nil:
			s.ranges[id] = rs
		case rhumb.KindOf(err) != rhumb.Corrupt || errors.As(err, &f):
			return err // a block that cannot be read
		default:
			lose(id, err)
		}
		next := keys.RangeSpan(id).Upper
		if next == nil {
			break
		}
		ok = it.SeekGE(next)
	}
	return s.dbError(op, it.Error())
}

func (s *Store) loadRange(op rhumb.Op, it *pebble.Iterator, id rhumb.RangeID) (*rangeState, error) {
	rs := &rangeState{log: logState{RangeState: RangeState{Range: id}}}
	span := keys.KindSpan(id, keys.KindState)
	present := false
	for ok := it.SeekGE(span.Lower); ok && keys.Compare(it.Key(), span.Upper) < 0; ok = it.Next() {
		d, err := keys.Decode(it.Key())
		if err != nil {
			return nil, rhumb.Wrap(op, err)
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, s.dbError(op, err)
		}
		if !rs.setField(d.Field, v) {
			return nil, rhumb.Ef(op, rhumb.Corrupt, "store %s, range %s: state %s has a bad value %x", s.cfg.Dir, id, d.Field, v)
		}
		present = present || d.Field == keys.StateRange
	}
	if err := it.Error(); err != nil {
		return nil, s.dbError(op, err)
	}
	if !present {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "store %s: range %s has keys but no state", s.cfg.Dir, id)
	}
	if err := s.loadLast(op, it, rs); err != nil {
		return nil, err
	}
	st := &rs.log
	if st.Last.Seq < st.Commit || st.Commit < st.Trim {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "store %s, range %s: the log ends at %d, is committed to %d and trimmed to %d: entries are missing",
			s.cfg.Dir, id, st.Last.Seq, st.Commit, st.Trim)
	}
	rs.floor.Store(uint64(st.trimHLC))
	return rs, it.Error()
}

// loadLast finds the last entry of the log.
func (s *Store) loadLast(op rhumb.Op, it *pebble.Iterator, rs *rangeState) error {
	st := &rs.log
	st.setLast(st.base.pos, st.base.hlc, st.base.total)
	span := keys.KindSpan(st.Range, keys.KindLog)
	if !it.SeekLT(span.Upper) || keys.Compare(it.Key(), span.Lower) < 0 {
		return s.dbError(op, it.Error())
	}
	v, err := it.ValueAndErr()
	if err != nil {
		return s.dbError(op, err)
	}
	rec, err := decodeRecord(v)
	if err != nil {
		return rhumb.Ef(op, rhumb.KindOf(err), "store %s, range %s: last log record: %v", s.cfg.Dir, st.Range, err)
	}
	st.setLast(rec.entry.Position(), rec.entry.LastHLC(), rec.total)
	if rec.commit.Seq > st.Commit {
		st.Commit, st.CommitHLC = rec.commit.Seq, rec.commit.HLC
	}
	return nil
}

func (st *logState) setLast(pos entry.Position, hlc rhumb.Timestamp, total weights) {
	st.Last, st.LastHLC, st.total = pos, hlc, total
}

// rangeOf gives the in-memory side of a range; nil when the store does not hold it.
func (s *Store) rangeOf(id rhumb.RangeID) *rangeState {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.ranges[id]
}

// State gives the state of a range as the last applied batch left it.
func (s *Store) State(id rhumb.RangeID) (RangeState, bool) {
	rs := s.rangeOf(id)
	if rs == nil {
		return RangeState{}, false
	}
	return rs.snapshot(), true
}

func (rs *rangeState) snapshot() RangeState {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.log.RangeState // Lineage is replaced, never changed in place
}

// Size gives the size of a range, and ok false when the store does not hold it.
func (s *Store) Size(id rhumb.RangeID) (size RangeSize, ok bool) {
	rs := s.rangeOf(id)
	if rs == nil {
		return RangeSize{}, false
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return RangeSize{Data: int64(rs.log.total.data - rs.collected), Log: int64(rs.log.total.log - rs.log.trimmed)}, true
}
