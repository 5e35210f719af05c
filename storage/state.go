package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// RangeState is the state of one replica, apart from its data and its log.
type RangeState struct {
	Range rhumb.RangeID
	// LastSlot is the last slot of the range. A value below the first slot, such as 0, means the first.
	LastSlot rhumb.Slot
	// Promised is the greatest epoch that the replica promised. It is durable once the batch that
	// set it is synced.
	Promised rhumb.Epoch
	// Last is the position of the last entry, and LastHLC its greatest timestamp. Both are zero for
	// an empty log.
	Last    entry.Position
	LastHLC rhumb.Timestamp
	// Commit is a lower bound of the commit position, and CommitHLC the greatest timestamp up to
	// Commit.
	Commit    rhumb.Seq
	CommitHLC rhumb.Timestamp
	// Trim is the position up to which entries may have been removed from the log. Trim <= Commit.
	Trim rhumb.Seq
	// Quarantine is the reason why the replica serves nothing, or "".
	Quarantine string
	// End is the epoch and the position of the entry that ended the range, zero for most ranges.
	End End
	// Lineage lists the position at which each epoch of the log began, oldest first.
	Lineage []EpochStart
}

// End is the place in a log of the entry that ended its range.
type End struct {
	Epoch rhumb.Epoch
	Seq   rhumb.Seq
}

// span returns the span of all keys of the range.
func (st *RangeState) span() keys.Span { return keys.RangeSpan(st.Range, st.LastSlot) }

// Commit is a commit position with the greatest timestamp up to that position.
type Commit struct {
	Seq rhumb.Seq
	HLC rhumb.Timestamp
}

// RangeSize is the size of a range in bytes before compression.
type RangeSize struct {
	// Data counts the keys and values of all versions that are kept.
	Data int64
	// Log counts the entries after the trim position with their values: the part of the log that
	// can still be sent to a lagging peer.
	Log int64
	// Written counts what Log counts since the range began, also what was trimmed since. An undo takes back
	// what it removes. Entries is the sequence number of the last entry. Both are for rates of writes.
	Written, Entries uint64
}

// weights are running totals over a log. The totals at the last entry describe the whole log, so
// the size of a range is known without a scan, and an undo restores it by reading one record.
type weights struct {
	data uint64 // keys and values of all versions written
	log  uint64 // entries with their values
}

// logState is everything that changes with a range's log: the durable state, and the totals from
// which sizes are computed. A batch copies it, changes the copy, and publishes the copy once the
// batch is applied. Lineage is therefore never changed in place.
//
// Invariant: base.pos.Seq <= Trim <= Commit <= Last.Seq.
type logState struct {
	RangeState
	total   weights // at Last
	trimmed uint64  // total.log at Trim
	trimHLC rhumb.Timestamp
	base    base
	// given is what splits took away from the data, and estimated reports that the size has been estimated since one.
	given     uint64
	estimated bool
	// merged lists the first slots of ranges that were united with this one, ascending: entries of their logs name versions to
	// collect. It is never changed in place.
	merged []rhumb.Slot
}

// base is the position before the first entry of a log that did not begin in this store; zero if it
// did. No record exists at that position, so its hash, timestamp and totals are stored here.
type base struct {
	pos   entry.Position
	hlc   rhumb.Timestamp
	total weights
}

// rangeState is the in-memory state of a range that the store holds. Only the range's writer
// changes log, so a batch may compute the next state without holding mu.
type rangeState struct {
	// collecting is held by a collection of the range, and by a batch that drops the range: a
	// collection that wrote after the drop would leave keys of a range that does not exist.
	collecting sync.Mutex
	expiry     expiry // guarded by collecting

	mu        sync.Mutex // guards log, collected and dropped
	log       logState
	collected uint64 // bytes of versions that collection removed
	dropped   bool

	// floor is the collection floor: below this timestamp collection may have removed versions that
	// a read would have seen. It is not durable. After a restart it is the timestamp of the trim
	// position, which is at least as high as any floor that Collect set.
	floor atomic.Uint64
	// forgotten counts the collections that deleted results or floors of clients.
	forgotten atomic.Uint64

	// names holds the names that the store keeps in memory, by table, guarded by nameCache.mu. indexes is their number, so that
	// writers of ranges without names need no lock.
	names   map[rhumb.TableID]*nameIndex
	indexes atomic.Int32
}

// The values of the state keys (docs/formats/log.md). Each is a key of its own, so a change of one
// writes a few bytes. Integers are big endian:
//
//	range      version(1) = 1, or version(1) = 2 and the last slot(4) of a range of several slots
//	promised   epoch(8)
//	commit     seq(8) hlc(8)
//	trim       seq(8) hlc(8) log bytes(8)
//	collected  bytes(8)
//	base       epoch(8) seq(8) hash(16) hlc(8) data bytes(8) log bytes(8)
//	lineage    (epoch(8) first(8))*
//	quarantine text
//	split      bytes(8)
//	end        epoch(8) seq(8), or nothing if the entry was undone
//	merged     slot(4)*
const (
	stateVersion     = 1
	stateVersionWide = 2
)

// encodeRange returns the value of StateRange.
func encodeRange(id rhumb.RangeID, last rhumb.Slot) []byte {
	// Earlier builds read only the first form, and must not take a wide range for one of one slot.
	if last <= id.Slot {
		return []byte{stateVersion}
	}
	return binary.BigEndian.AppendUint32([]byte{stateVersionWide}, uint32(last))
}

// encodeWords returns the words as eight bytes each.
func encodeWords(words ...uint64) []byte {
	b := make([]byte, 0, 8*len(words))
	for _, w := range words {
		b = binary.BigEndian.AppendUint64(b, w)
	}
	return b
}

// encodeBase returns the value of StateBase.
func encodeBase(b base) []byte {
	v := encodeWords(uint64(b.pos.Epoch), uint64(b.pos.Seq))
	v = append(v, b.pos.Hash[:]...)
	return append(v, encodeWords(uint64(b.hlc), b.total.data, b.total.log)...)
}

// encodeLineage returns the value of StateLineage.
func encodeLineage(l []EpochStart) []byte {
	var v []byte
	for _, s := range l {
		v = append(v, encodeWords(uint64(s.Epoch), uint64(s.First))...)
	}
	return v
}

// encodeEnd returns the value of StateEnd.
func encodeEnd(e End) []byte {
	if e.Seq == 0 {
		return []byte{}
	}
	return encodeWords(uint64(e.Epoch), uint64(e.Seq))
}

// encodeSlots returns the value of StateMerged.
func encodeSlots(slots []rhumb.Slot) []byte {
	v := make([]byte, 0, 4*len(slots))
	for _, s := range slots {
		v = binary.BigEndian.AppendUint32(v, uint32(s))
	}
	return v
}

// wordAt returns the i-th word of a state value.
func wordAt(v []byte, i int) uint64 { return binary.BigEndian.Uint64(v[8*i:]) }

// setField decodes one state key. It reports false if the value does not have the form of the
// field.
func (rs *rangeState) setField(f keys.StateField, v []byte) bool {
	st := &rs.log
	size := map[keys.StateField]int{
		keys.StateRange: 1 + len(v)&4, keys.StatePromised: 8, keys.StateCommit: 16, keys.StateTrim: 24,
		keys.StateCollected: 8, keys.StateBase: 56, keys.StateLineage: len(v) &^ 15,
		keys.StateQuarantine: len(v), keys.StateSplit: 8, keys.StateEnd: len(v) & 16, keys.StateMerged: len(v) &^ 3,
	}
	// A field that this binary does not know may forbid something, as a quarantine does. So it is
	// not skipped.
	if n, known := size[f]; !known || n != len(v) {
		return false
	}
	switch f {
	case keys.StateRange:
		if len(v) == 1 {
			return v[0] == stateVersion
		}
		st.LastSlot = rhumb.Slot(binary.BigEndian.Uint32(v[1:]))
		return v[0] == stateVersionWide && st.LastSlot > st.Range.Slot
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
	case keys.StateSplit:
		st.given, st.estimated = wordAt(v, 0), true
	case keys.StateEnd:
		if len(v) > 0 {
			st.End = End{rhumb.Epoch(wordAt(v, 0)), rhumb.Seq(wordAt(v, 1))}
		}
	case keys.StateMerged:
		for i := 0; i < len(v); i += 4 {
			st.merged = append(st.merged, rhumb.Slot(binary.BigEndian.Uint32(v[i:])))
		}
	case keys.StateLineage:
		for i := 0; i < len(v)/8; i += 2 {
			st.Lineage = append(st.Lineage, EpochStart{rhumb.Epoch(wordAt(v, i)), rhumb.Seq(wordAt(v, i+1))})
		}
	}
	return true
}

// loadRanges reads the state of every range whose keys are at or after from. If the state of a
// range contradicts itself, loadRanges calls lose and skips the range. An error means that a block
// could not be read, so that the ranges in it are unknown.
//
// It seeks from range to range and reads the state keys and the last log record of each, so the
// time does not depend on the size of the ranges.
func (s *Store) loadRanges(op rhumb.Op, from []byte, lose func(rhumb.RangeID, error)) error {
	it, err := s.view().NewIter(&pebble.IterOptions{LowerBound: from})
	if err != nil {
		return s.dbError(op, err)
	}
	defer func() { _ = it.Close() }()
	lost := false // the range before was lost, so slots without a state may be its other slots
	for ok := it.First(); ok; {
		id, found := keys.Home(it.Key())
		if !found {
			return rhumb.Ef(op, rhumb.Corrupt, "%s: the key %x belongs to no range", s.cfg.Dir, it.Key())
		}
		rs, err := s.loadRange(op, it, s.kept, id)
		switch f := (*faultError)(nil); {
		case err == nil:
			s.ranges[id] = rs
			s.wide.add(id, rs.log.LastSlot)
		case rhumb.KindOf(err) != rhumb.Corrupt || errors.As(err, &f):
			// A block that cannot be read may hold the state of further ranges. loadAll decides.
			return err
		case lost && errors.Is(err, errNoState):
			// Probably another slot of the range that was lost with its last slot.
		default:
			lose(id, err)
		}
		lost = err != nil
		// RangeSpan has no upper end for the last possible range.
		last := id.Slot
		if err == nil {
			last = rs.log.LastSlot
		}
		next := keys.RangeSpan(id, last).Upper
		if next == nil {
			break
		}
		ok = it.SeekGE(next)
	}
	return s.dbError(op, it.Error())
}

// errNoState is the reason why a home with keys is no range.
var errNoState = errors.New("there are keys but no state")

// loadRange reads the state of one range and checks that it is consistent. kept is nil if the iterator sees all keys.
func (s *Store) loadRange(op rhumb.Op, it *pebble.Iterator, kept *keptTable, id rhumb.RangeID) (*rangeState, error) {
	rs := &rangeState{log: logState{RangeState: RangeState{Range: id}}}
	span := keys.KindSpan(id, keys.KindState)
	present := false
	// The iterator is shared by all ranges and has no upper bound, so the loop checks the end.
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
			return nil, rhumb.Ef(op, rhumb.Corrupt, "%s: range %s: the stored state %q has the invalid value %x", s.cfg.Dir, id, d.Field.String(), v)
		}
		present = present || d.Field == keys.StateRange
	}
	if err := it.Error(); err != nil {
		return nil, s.dbError(op, err)
	}
	// StateRange is written by the batch that creates a range, before any other key of it.
	if !present {
		return nil, &rhumb.Error{Op: op, Kind: rhumb.Corrupt, Msg: fmt.Sprintf("%s: range %s", s.cfg.Dir, id), Err: errNoState}
	}
	if err := s.loadLast(op, it, kept, rs); err != nil {
		return nil, err
	}
	// Every position was written with or after the entries that it covers, and the log of the
	// database loses only its end. So a position beyond the last entry means that entries were
	// lost.
	st := &rs.log
	if st.Last.Seq < st.Commit || st.Commit < st.Trim {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "%s: range %s: the log ends at %d, but is committed up to %d and trimmed up to %d: entries are missing",
			s.cfg.Dir, id, st.Last.Seq, st.Commit, st.Trim)
	}
	// Collection may have removed anything that an entry up to the trim position superseded.
	rs.floor.Store(uint64(st.trimHLC))
	return rs, it.Error()
}

// loadLast finds the last entry of the log. The last record also has the totals and a commit
// position, which is usually newer than StateCommit: appends carry the commit position and do not
// write the key.
func (s *Store) loadLast(op rhumb.Op, it *pebble.Iterator, kept *keptTable, rs *rangeState) error {
	st := &rs.log
	// A log without records ends at its base.
	st.setLast(st.base.pos, st.base.hlc, st.base.total)
	v, ok := kept.lastLog(st.Range)
	if !ok {
		span := keys.KindSpan(st.Range, keys.KindLog)
		if !it.SeekLT(span.Upper) || keys.Compare(it.Key(), span.Lower) < 0 {
			return s.dbError(op, it.Error())
		}
		var err error
		if v, err = it.ValueAndErr(); err != nil {
			return s.dbError(op, err)
		}
	}
	rec, err := decodeRecord(v)
	if err != nil {
		return rhumb.Ef(op, rhumb.KindOf(err), "%s: range %s: the last log record cannot be read: %v", s.cfg.Dir, st.Range, err)
	}
	st.setLast(rec.entry.Position(), rec.entry.LastHLC(), rec.total)
	// Both are lower bounds, so the greater one counts.
	if rec.commit.Seq > st.Commit {
		st.Commit, st.CommitHLC = rec.commit.Seq, rec.commit.HLC
	}
	return nil
}

// setLast sets the end of the log.
func (st *logState) setLast(pos entry.Position, hlc rhumb.Timestamp, total weights) {
	st.Last, st.LastHLC, st.total = pos, hlc, total
}

// rangeOf returns the in-memory state of a range, or nil if the store does not hold the range.
func (s *Store) rangeOf(id rhumb.RangeID) *rangeState {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.ranges[id]
}

// rangeHolding returns the in-memory state of the range of a home, or nil if the store does not hold it.
func (s *Store) rangeHolding(home rhumb.RangeID) *rangeState {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if rs := s.ranges[home]; rs != nil {
		return rs
	}
	if id, ok := s.wide.find(home); ok {
		return s.ranges[id]
	}
	return nil
}

// State returns the state of a range as of the last applied batch; ok is false if the store does
// not hold the range.
func (s *Store) State(id rhumb.RangeID) (RangeState, bool) {
	rs := s.rangeOf(id)
	if rs == nil {
		return RangeState{}, false
	}
	return rs.copyState(), true
}

// copyState returns a copy of the state.
func (rs *rangeState) copyState() RangeState {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.log.RangeState // Lineage is replaced and never changed in place, so it may be shared
}

// Size returns the size of a range; ok is false if the store does not hold the range.
func (s *Store) Size(id rhumb.RangeID) (size RangeSize, ok bool) {
	rs := s.rangeOf(id)
	if rs == nil {
		return RangeSize{}, false
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return RangeSize{
		// An estimate may have taken away more than was there.
		Data: max(0, int64(rs.log.total.data-rs.collected-rs.log.given)), Log: int64(rs.log.total.log - rs.log.trimmed),
		Written: rs.log.total.log, Entries: uint64(rs.log.Last.Seq),
	}, true
}
