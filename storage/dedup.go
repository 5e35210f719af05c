package storage

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
)

// The result of a request is the value of a 'q' key. It holds the answer to a repetition of the
// request, without values:
//
//	version(1) = 1
//	flags(1)          1: the request changed nothing
//	hlc      8 bytes, big endian
//	seq      uvarint  position of the entry that holds the request
//	node     uvarint  node of the versions it wrote
//	existed  uvarint count, then one bit each, lowest first
//	names    uvarint count, then length and bytes each
const (
	seenVersion  = 1
	seenFlagNoop = 1
	seenHLCAt    = 2
)

// Seen is the stored result of a request.
type Seen struct {
	// Seq is the position of the entry that holds the request, applied or not. The result may be
	// sent to the client once that entry is committed.
	Seq     rhumb.Seq
	Outcome rhumb.Outcome
}

// appendSeen appends the stored result of a request of an entry.
func appendSeen(dst []byte, e *entry.Entry, r *entry.Request) []byte {
	var flags byte
	if r.Noop {
		flags = seenFlagNoop
	}
	dst = append(dst, seenVersion, flags)
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.HLC))
	dst = binary.AppendUvarint(dst, uint64(e.Seq))
	dst = binary.AppendUvarint(dst, uint64(e.Node))
	dst = binary.AppendUvarint(dst, uint64(len(r.Existed)))
	for i := 0; i < len(r.Existed); i += 8 {
		var bits byte
		for j := i; j < min(i+8, len(r.Existed)); j++ {
			if r.Existed[j] {
				bits |= 1 << (j - i)
			}
		}
		dst = append(dst, bits)
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Names)))
	for _, n := range r.Names {
		dst = binary.AppendUvarint(dst, uint64(len(n)))
		dst = append(dst, n...)
	}
	return dst
}

// decodeSeen decodes the result of a request. It also returns the request's timestamp, which the
// outcome of a request that changed nothing does not have. Expiry goes by that timestamp.
func decodeSeen(b []byte) (seen Seen, hlc rhumb.Timestamp, err error) {
	const op rhumb.Op = "storage.decodeSeen"
	if len(b) < seenHLCAt || b[0] != seenVersion || b[1]&^seenFlagNoop != 0 {
		return seen, 0, rhumb.E(op, rhumb.Corrupt, "the stored result of a request has an unknown version or flag at offset 0")
	}
	in := reader{b: b, at: seenHLCAt}
	hlc = rhumb.Timestamp(in.uint64())
	seen.Seq = rhumb.Seq(in.uvarint())
	node := rhumb.NodeID(in.uvarint())
	// A request that changed nothing has no position and no version of its own.
	if b[1]&seenFlagNoop == 0 {
		seen.Outcome = rhumb.Outcome{Applied: true, Seq: seen.Seq, Version: rhumb.Version{HLC: hlc, Node: node}}
	}
	// Counts are checked before memory is allocated for them: a damaged count must not ask for
	// gigabytes.
	if n := in.uvarint(); n > 0 && n <= rhumb.BatchOpsMax {
		seen.Outcome.Existed = decodeBits(in.take(int(n+7)/8), int(n))
	} else if n > 0 {
		in.bad = true
	}
	names := in.uvarint()
	for i := uint64(0); i < names && !in.bad; i++ {
		n := in.uvarint()
		if n > rhumb.NameSizeMax {
			in.bad = true
			break
		}
		seen.Outcome.Names = append(seen.Outcome.Names, append([]byte{}, in.take(int(n))...))
	}
	if in.bad || in.at != len(b) {
		return Seen{}, 0, rhumb.Ef(op, rhumb.Corrupt, "the stored result of a request is too short or too long at offset %d of %d", in.at, len(b))
	}
	return seen, hlc, nil
}

// A client's floor is the value of the 'q' key with number 0, which no request has. The key sorts
// before the results of the client, so a walk over the results meets it first:
//
//	version(1) = 1
//	hlc      8 bytes, big endian: of the newest request whose result was collected
//	seq      uvarint  the greatest number whose result was collected
//
// The batch that deletes a result writes the floor. So each request in the past of the log either
// has its result here or a number up to the floor. Replicas collect at different times, and this
// holds at each of them: one replica answers a repeated request from its result, another rejects
// it, and none applies it again (docs/replication.md#requests).
const floorVersion = 1

// floor is the greatest request number of a client whose result a range has forgotten.
type floor struct {
	seq uint64
	hlc rhumb.Timestamp
}

// max returns the greater number and the later timestamp. Numbers and timestamps of one client need
// not grow together, because requests may overtake each other.
func (f floor) max(g floor) floor { return floor{max(f.seq, g.seq), max(f.hlc, g.hlc)} }

// appendFloor appends the stored form of a floor.
func appendFloor(dst []byte, f floor) []byte {
	dst = append(dst, floorVersion)
	dst = binary.BigEndian.AppendUint64(dst, uint64(f.hlc))
	return binary.AppendUvarint(dst, f.seq)
}

// decodeFloor decodes a floor.
func decodeFloor(b []byte) (f floor, err error) {
	const op rhumb.Op = "storage.decodeFloor"
	if len(b) == 0 || b[0] != floorVersion {
		return f, rhumb.E(op, rhumb.Corrupt, "the stored floor of a client has an unknown version at offset 0")
	}
	in := reader{b: b, at: 1}
	f.hlc, f.seq = rhumb.Timestamp(in.uint64()), in.uvarint()
	if in.bad || in.at != len(b) {
		return floor{}, rhumb.Ef(op, rhumb.Corrupt, "the stored floor of a client is too short or too long at offset %d of %d", in.at, len(b))
	}
	return f, nil
}

// decodeBits returns the first n bits, lowest first.
func decodeBits(bits []byte, n int) []bool {
	if bits == nil {
		return nil
	}
	out := make([]bool, n)
	for i := range out {
		out[i] = bits[i/8]&(1<<(i%8)) != 0
	}
	return out
}

// Dedup returns the stored result of a request; found is false if none is kept.
func (s *Store) Dedup(id rhumb.RangeID, req rhumb.RequestID) (seen Seen, found bool, err error) {
	const op rhumb.Op = "storage.Store.Dedup"
	v, ok := s.kept.get(keys.Decoded{Kind: keys.KindDedup, Home: id, Request: req})
	if !ok {
		var buf [48]byte
		// Results have no versions, so a point lookup finds them.
		stored, closer, err := s.db.Get(keys.AppendDedup(buf[:0], id, req))
		if err == pebble.ErrNotFound {
			return seen, false, nil
		}
		if err != nil {
			return seen, false, s.dbError(op, err)
		}
		defer func() { _ = closer.Close() }()
		v = stored
	}
	seen, _, err = decodeSeen(v)
	if err != nil {
		return seen, false, &rhumb.Error{Op: op, Kind: rhumb.KindOf(err), Range: id, Msg: fmt.Sprintf("%s: the result of request %s cannot be decoded", s.cfg.Dir, req), Err: err}
	}
	return seen, true, nil
}

// RequestFloor returns the greatest Seq of a client's requests whose results a range had and
// collected, or 0 if there is none or it was raised longer ago than rhumb.DedupFloorKeep. It is
// unknown whether a request up to the floor was applied, unless Dedup finds its result. The caller
// asks Dedup first: if collection runs in between, the floor covers the result that Dedup no longer
// found.
func (s *Store) RequestFloor(id rhumb.RangeID, client rhumb.UUID) (seq uint64, err error) {
	const op rhumb.Op = "storage.Store.RequestFloor"
	f, err := s.floorOf(id, client)
	return f.seq, s.dbError(op, err)
}

// floorOf reads the floor of a client; zero if there is none.
func (s *Store) floorOf(id rhumb.RangeID, client rhumb.UUID) (f floor, err error) {
	var buf [48]byte
	v, closer, err := s.db.Get(keys.AppendDedup(buf[:0], id, rhumb.RequestID{Client: client}))
	if err == pebble.ErrNotFound {
		return floor{}, nil
	}
	if err != nil {
		return floor{}, err
	}
	defer func() { _ = closer.Close() }()
	return decodeFloor(v)
}

// RequestWindow is what a range knows of the last requests of one client.
type RequestWindow struct {
	// Last is the greatest Seq for which the range has a result, or had (see RequestFloor); 0 if there is none.
	Last uint64
	// Floor is the client's floor (see RequestFloor).
	Floor uint64
	// Stored has bit i set if the result of Last-i is stored, for the last rhumb.DedupWindow numbers.
	Stored uint64
}

// RequestWindow returns what a range knows of the last requests of a client. A caller that has seen every request of the
// range since then knows of each further one whether it is new without another read.
func (s *Store) RequestWindow(id rhumb.RangeID, client rhumb.UUID) (w RequestWindow, err error) {
	const op rhumb.Op = "storage.Store.RequestWindow"
	var it *pebble.Iterator
	kept, err := s.kept.lastResults(id, client, func() (err error) {
		it, err = s.db.NewIter(&pebble.IterOptions{
			LowerBound: keys.AppendDedup(nil, id, rhumb.RequestID{Client: client, Seq: 1}),
			UpperBound: keys.AppendDedup(nil, id, rhumb.RequestID{Client: client, Seq: math.MaxUint64}),
		})
		return err
	})
	if err != nil {
		return w, s.dbError(op, err)
	}
	var stored [rhumb.DedupWindow]uint64
	n := 0
	// The bounds exclude the floor, and the greatest number of all, which no client reaches.
	for ok := it.Last(); ok && n < len(stored) && err == nil; ok = it.Prev() {
		var d keys.Decoded
		if d, err = keys.Decode(it.Key()); err == nil {
			stored[n] = d.Request.Seq
			n++
		}
	}
	if err = cmp.Or(err, it.Error(), it.Close()); err != nil {
		return w, s.dbError(op, err)
	}
	// The greatest of both, each once.
	last := append(kept, stored[:n]...)
	slices.SortFunc(last, func(a, b uint64) int { return cmp.Compare(b, a) })
	n = copy(stored[:], slices.Compact(last))
	// After the results: collection raises the floor in the batch that deletes a result, so the floor covers what the
	// iterator did not see.
	f, err := s.floorOf(id, client)
	// A result below the floor stays while its entry is not trimmed, so either may be the greater one.
	w.Last, w.Floor = max(stored[0], f.seq), f.seq
	for _, seq := range stored[:n] {
		if w.Last-seq < rhumb.DedupWindow {
			w.Stored |= 1 << (w.Last - seq)
		}
	}
	return w, s.dbError(op, err)
}

// Forgotten counts how often collection has deleted results or floors of a range since the store was opened. Whoever
// keeps a RequestWindow reads it again after Forgotten has changed. It is read before the window.
func (s *Store) Forgotten(id rhumb.RangeID) uint64 {
	if rs := s.rangeOf(id); rs != nil {
		return rs.forgotten.Load()
	}
	return 0
}
