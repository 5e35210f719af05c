package storage

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
)

// A log record is the value of an 'l' key: positions and totals as of the entry, then the entry in
// index form. The values that the entry wrote are only under their versioned keys, so a value is
// written to the log and to the tables once and not twice.
//
//	version(1) = 1
//	commit seq    uvarint   commit position when the entry was appended: a lower bound
//	commit hlc    8 bytes, big endian
//	data bytes    uvarint   keys and values of all versions written up to this entry
//	log bytes     uvarint   approximate size of all entries up to this one, with their values
//	entry         index form (package entry), to the end
const recordVersion = 1

// record is a decoded log record. Its entry has no values yet.
type record struct {
	commit Commit
	total  weights
	entry  *entry.Entry
}

// appendRecord appends the log record of an entry.
func appendRecord(dst []byte, e *entry.Entry, commit Commit, total weights) []byte {
	dst = append(dst, recordVersion)
	dst = binary.AppendUvarint(dst, uint64(commit.Seq))
	dst = binary.BigEndian.AppendUint64(dst, uint64(commit.HLC))
	dst = binary.AppendUvarint(dst, total.data)
	dst = binary.AppendUvarint(dst, total.log)
	return e.AppendIndex(dst)
}

// decodeRecord decodes a log record. The entry shares memory with b.
func decodeRecord(b []byte) (r record, err error) {
	const op rhumb.Op = "storage.decodeRecord"
	if len(b) == 0 {
		return r, rhumb.E(op, rhumb.Corrupt, "the log record is empty")
	}
	if b[0] != recordVersion {
		return r, rhumb.Ef(op, rhumb.Incompatible, "the log record has version %d, and this binary reads version %d; use the binary that wrote it, or a newer one", b[0], recordVersion)
	}
	in := reader{b: b, at: 1}
	r.commit.Seq = rhumb.Seq(in.uvarint())
	r.commit.HLC = rhumb.Timestamp(in.uint64())
	r.total.data = in.uvarint()
	r.total.log = in.uvarint()
	if in.bad {
		return r, rhumb.Ef(op, rhumb.Corrupt, "the log record is too short at offset %d of %d", in.at, len(b))
	}
	r.entry, err = entry.DecodeIndex(b[in.at:])
	return r, err
}

// reader takes fields off the front of b. After the first field that is missing, bad is set and
// stays set, so a decoder checks it once at the end.
type reader struct {
	b   []byte
	at  int
	bad bool
}

// uvarint returns the next uvarint, or 0 if there is none.
func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b[r.at:])
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.at += n
	return v
}

// uint64 returns the next eight bytes as an integer, or 0 if there are fewer.
func (r *reader) uint64() uint64 {
	b := r.take(8)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// take returns the next n bytes, or nil if there are fewer. The slice has no spare capacity, so
// that an append to it cannot overwrite the following field.
func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b)-r.at {
		r.bad = true
		return nil
	}
	r.at += n
	return r.b[r.at-n : r.at : r.at]
}

// entryWeights returns the amounts that an entry adds to the running totals of its log.
func entryWeights(e *entry.Entry) (w weights) {
	const header, perRequest, perWrite = 64, 48, 8 // approximate bytes in a log record apart from names
	w.log = header + perRequest*uint64(len(e.Requests))
	for i := range e.Requests {
		for j := range e.Requests[i].Writes {
			wr := &e.Requests[i].Writes[j]
			w.data += uint64(versionWeight(len(wr.Name), len(wr.Value)))
			w.log += uint64(len(wr.Name) + len(wr.Value) + perWrite)
		}
	}
	return w
}

// versionWeight returns the size that a version counts for: its key, without the escapes in its
// name, and its value. Append, Collect and Verify must agree on it, or sizes would drift apart.
func versionWeight(name, value int) int {
	const fixed = 8 + 1 + 4 + 2 + keys.VersionSuffixSize
	return fixed + name + value
}

// readRecord reads one log record; ok is false if there is none.
func (s *Store) readRecord(op rhumb.Op, id rhumb.RangeID, seq rhumb.Seq) (r record, ok bool, err error) {
	v, ok := s.kept.get(keys.Decoded{Kind: keys.KindLog, Home: id, Seq: seq})
	if !ok {
		// A record that was copied since is in the database before it leaves the table.
		stored, closer, err := s.db.Get(keys.AppendLog(nil, id, seq))
		if err == pebble.ErrNotFound {
			return r, false, nil
		}
		if err != nil {
			return r, false, s.dbError(op, err)
		}
		defer func() { _ = closer.Close() }()
		v = stored
	}
	if r, err = decodeRecord(append([]byte(nil), v...)); err != nil {
		return r, false, s.badRecord(op, id, seq, err)
	}
	return r, true, nil
}

// badRecord returns an error that names the store and the record.
func (s *Store) badRecord(op rhumb.Op, id rhumb.RangeID, seq rhumb.Seq, err error) error {
	return &rhumb.Error{Op: op, Kind: rhumb.KindOf(err), Range: id, Msg: fmt.Sprintf("store %s, log record %d", s.cfg.Dir, uint64(seq)), Err: err}
}

// Position returns the position of an entry that is still in the log; ok is false if it is not.
func (s *Store) Position(id rhumb.RangeID, seq rhumb.Seq) (p entry.Position, ok bool, err error) {
	rs := s.rangeOf(id)
	if rs == nil {
		return p, false, nil
	}
	rs.mu.Lock()
	last, base := rs.log.Last, rs.log.base.pos
	rs.mu.Unlock()
	switch seq {
	case 0:
		return entry.Position{}, true, nil
	case last.Seq:
		// The last position is in memory. So is the base, which has no record.
		return last, true, nil
	case base.Seq:
		return base, true, nil
	}
	r, ok, err := s.readRecord("storage.Store.Position", id, seq)
	if !ok || err != nil {
		return p, false, err
	}
	return r.entry.Position(), true, nil
}

// Mark is the position of an entry with its greatest timestamp.
type Mark struct {
	entry.Position
	HLC rhumb.Timestamp
	// Split is the first slot of the range that the entry splits off, 0 for other entries.
	Split rhumb.Slot
	// End reports that the entry ends the range, and Take is the range that it takes over.
	End  bool
	Take entry.Take
}

// Marks returns the positions of the entries from..to, both included, that are still in the log. It
// reads no values.
func (s *Store) Marks(id rhumb.RangeID, from, to rhumb.Seq) ([]Mark, error) {
	const op rhumb.Op = "storage.Store.Marks"
	if to < from {
		return nil, nil
	}
	w, err := s.walkLog(id, from, to, math.MaxInt)
	if err != nil {
		return nil, s.dbError(op, err)
	}
	defer func() { _ = w.close() }()
	var out []Mark
	for {
		stored, ok, err := w.next()
		if err != nil || !ok {
			return out, s.dbError(op, err)
		}
		r, err := decodeRecord(stored.value)
		if err != nil {
			return nil, s.badRecord(op, id, from+rhumb.Seq(len(out)), err)
		}
		out = append(out, Mark{r.entry.Position(), r.entry.LastHLC(), r.entry.Split(), r.entry.Ends(), r.entry.Take()})
	}
}

// Entries reads the entries from..to of a log, both included, with their values, and checks their
// hashes. It stops before the result exceeds maxBytes but returns at least one entry; maxBytes 0
// means EntriesBytesDefault. The result is empty if entry from was trimmed or is beyond the last
// entry. The entry at the trim position is still available.
func (s *Store) Entries(id rhumb.RangeID, from, to rhumb.Seq, maxBytes int) ([]*entry.Entry, error) {
	const op rhumb.Op = "storage.Store.Entries"
	if maxBytes <= 0 {
		maxBytes = EntriesBytesDefault
	}
	st, ok := s.State(id)
	if !ok || from < st.Trim || from > to {
		return nil, nil
	}
	// The data iterator is a clone of the log iterator, so both see the database at the same
	// moment. If they did not, collection could remove the versions of an entry between the two
	// reads, and a healthy log would look damaged.
	log, err := s.walkLog(id, from, to, keptViewMax)
	if err != nil {
		return nil, s.dbError(op, err)
	}
	defer func() { _ = log.close() }()
	span := st.span()
	data, err := log.it.Clone(pebble.CloneOptions{IterOptions: &pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper}})
	if err != nil {
		return nil, s.dbError(op, err)
	}
	defer func() { _ = data.Close() }()
	var out []*entry.Entry
	size, want := 0, from
	for want <= to {
		stored, ok, err := log.next()
		if err != nil {
			return nil, s.dbError(op, err)
		}
		if !ok {
			break
		}
		e, n, err := s.entryAt(op, id, want, stored, data)
		if err != nil {
			return nil, err
		}
		// A gap means that the entry was collected since the state was read.
		if e == nil || len(out) > 0 && size+n > maxBytes {
			break
		}
		out = append(out, e)
		size += n
		want++
	}
	return out, nil
}

// entryUnder is entryAt for the record under an iterator over the log of a range.
func (s *Store) entryUnder(op rhumb.Op, id rhumb.RangeID, want rhumb.Seq, log, data *pebble.Iterator) (*entry.Entry, int, error) {
	d, err := keys.Decode(log.Key())
	if err != nil {
		return nil, 0, rhumb.Wrap(op, err)
	}
	v, err := log.ValueAndErr()
	if err != nil {
		return nil, 0, s.dbError(op, err)
	}
	return s.entryAt(op, id, want, keptRecord{d.Seq, v}, data)
}

// entryAt reads the entry of a stored record and returns it with its size. The entry is nil if
// it is not the wanted one.
func (s *Store) entryAt(op rhumb.Op, id rhumb.RangeID, want rhumb.Seq, stored keptRecord, data *pebble.Iterator) (*entry.Entry, int, error) {
	if stored.seq != want {
		return nil, 0, nil
	}
	v := stored.value
	r, err := decodeRecord(append([]byte(nil), v...))
	if err != nil {
		return nil, 0, s.badRecord(op, id, want, err)
	}
	size, err := s.fillValues(op, id, r.entry, data)
	if err != nil {
		return nil, 0, err
	}
	// The hash covers names, timestamps and values. Block checksums cannot notice a version that
	// was written under a wrong key or is missing.
	if r.entry.Seq != want || !r.entry.Verify() {
		return nil, 0, s.badRecord(op, id, want, rhumb.E(op, rhumb.Corrupt, "the content of the entry does not match its hash"))
	}
	return r.entry, size + len(v), nil
}

// fillValues reads the values of an entry that was read in index form, and returns their size.
func (s *Store) fillValues(op rhumb.Op, id rhumb.RangeID, e *entry.Entry, data *pebble.Iterator) (int, error) {
	size := 0
	var key []byte
	for i := range e.Requests {
		r := &e.Requests[i]
		for j := range r.Writes {
			w := &r.Writes[j]
			key = keys.AppendData(key[:0], rhumb.Key{Table: w.Table, Home: w.Home(id), Name: w.Name}, e.Version(r))
			if !data.SeekPrefixGE(key) || !keys.Equal(data.Key(), key) {
				if err := data.Error(); err != nil {
					return 0, s.dbError(op, err)
				}
				return 0, s.badRecord(op, id, e.Seq, rhumb.Ef(op, rhumb.Corrupt, "version %s of %s is missing", e.Version(r), rhumb.NameString(w.Name)))
			}
			v, err := data.ValueAndErr()
			if err != nil {
				return 0, s.dbError(op, err)
			}
			// The index form has the lengths of the values, and DecodeIndex has allocated them.
			if len(v) != len(w.Value) {
				return 0, s.badRecord(op, id, e.Seq, rhumb.Ef(op, rhumb.Corrupt, "version %s of %s has %d bytes, but %d according to the log", e.Version(r), rhumb.NameString(w.Name), len(v), len(w.Value)))
			}
			copy(w.Value, v)
			size += len(v)
		}
	}
	return size, nil
}
