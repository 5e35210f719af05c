package storage

import (
	"cmp"
	"encoding/binary"
	"math"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
)

// The result of a request is the value of a 'q' key:
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
	// Seq is the position of the entry that holds the request, applied or not; the result may be told when it is
	// committed.
	Seq     rhumb.Seq
	Outcome rhumb.Outcome
}

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

// decodeSeen reads the result of a request; it also gives the request's timestamp, which an outcome of nothing lacks.
func decodeSeen(b []byte) (seen Seen, hlc rhumb.Timestamp, err error) {
	const op rhumb.Op = "storage.decodeSeen"
	if len(b) < seenHLCAt || b[0] != seenVersion || b[1]&^seenFlagNoop != 0 {
		return seen, 0, rhumb.E(op, rhumb.Corrupt, "request result: unknown version or flags at offset 0")
	}
	in := reader{b: b, at: seenHLCAt}
	hlc = rhumb.Timestamp(in.uint64())
	seen.Seq = rhumb.Seq(in.uvarint())
	node := rhumb.NodeID(in.uvarint())
	if b[1]&seenFlagNoop == 0 {
		seen.Outcome = rhumb.Outcome{Applied: true, Seq: seen.Seq, Version: rhumb.Version{HLC: hlc, Node: node}}
	}
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
		return Seen{}, 0, rhumb.Ef(op, rhumb.Corrupt, "request result: cut short or too long at offset %d of %d", in.at, len(b))
	}
	return seen, hlc, nil
}

// A client's floor is the value of the 'q' key with the number 0, which no request has:
//
//	version(1) = 1
//	hlc      8 bytes, big endian: of the newest request whose result was collected
//	seq      uvarint  the greatest number whose result was collected
//
// It is written by the batch that deletes the result, so that each request in the log's past either has its result here
// or a number up to the floor. That holds at every replica by itself, though replicas collect at different times: one
// answers a repeated request from its result, another refuses it, and none applies it again.
const floorVersion = 1

// floor is up to where a range has forgotten a client's results.
type floor struct {
	seq uint64
	hlc rhumb.Timestamp
}

func (f floor) max(g floor) floor { return floor{max(f.seq, g.seq), max(f.hlc, g.hlc)} }

func appendFloor(dst []byte, f floor) []byte {
	dst = append(dst, floorVersion)
	dst = binary.BigEndian.AppendUint64(dst, uint64(f.hlc))
	return binary.AppendUvarint(dst, f.seq)
}

func decodeFloor(b []byte) (f floor, err error) {
	const op rhumb.Op = "storage.decodeFloor"
	if len(b) == 0 || b[0] != floorVersion {
		return f, rhumb.E(op, rhumb.Corrupt, "floor of a client: unknown version at offset 0")
	}
	in := reader{b: b, at: 1}
	f.hlc, f.seq = rhumb.Timestamp(in.uint64()), in.uvarint()
	if in.bad || in.at != len(b) {
		return floor{}, rhumb.Ef(op, rhumb.Corrupt, "floor of a client: cut short or too long at offset %d of %d", in.at, len(b))
	}
	return f, nil
}

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

// Dedup gives the stored result of a request, and found false when none is kept.
func (s *Store) Dedup(id rhumb.RangeID, req rhumb.RequestID) (seen Seen, found bool, err error) {
	const op rhumb.Op = "storage.Store.Dedup"
	var buf [48]byte
	v, closer, err := s.db.Get(keys.AppendDedup(buf[:0], id, req))
	if err == pebble.ErrNotFound {
		return seen, false, nil
	}
	if err != nil {
		return seen, false, s.dbError(op, err)
	}
	defer func() { _ = closer.Close() }()
	seen, _, err = decodeSeen(v)
	if err != nil {
		return seen, false, &rhumb.Error{Op: op, Kind: rhumb.KindOf(err), Range: id, Msg: "store " + s.cfg.Dir + ", request " + req.String(), Err: err}
	}
	return seen, true, nil
}

// RequestFloor gives the greatest Seq of a client's requests whose result a range had and collected, 0 when there is none
// or it was raised longer ago than rhumb.DedupFloorKeep. Whether a request up to there was applied is not known any more,
// unless Dedup finds its result; ask Dedup first, since collection may run in between.
func (s *Store) RequestFloor(id rhumb.RangeID, client rhumb.UUID) (seq uint64, err error) {
	const op rhumb.Op = "storage.Store.RequestFloor"
	f, err := s.floorOf(id, client)
	return f.seq, s.dbError(op, err)
}

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

// LastRequest gives the greatest Seq of a client's requests that a range has a result of, or had (RequestFloor); 0 when
// there is none. Who has seen every request since then need not look up one with a greater Seq.
func (s *Store) LastRequest(id rhumb.RangeID, client rhumb.UUID) (seq uint64, err error) {
	const op rhumb.Op = "storage.Store.LastRequest"
	it, err := s.db.NewIter(&pebble.IterOptions{
		LowerBound: keys.AppendDedup(nil, id, rhumb.RequestID{Client: client}),
		UpperBound: keys.AppendDedup(nil, id, rhumb.RequestID{Client: client, Seq: math.MaxUint64}),
	})
	if err != nil {
		return 0, s.dbError(op, err)
	}
	if it.Last() {
		var d keys.Decoded
		if d, err = keys.Decode(it.Key()); err == nil {
			seq = d.Request.Seq
		}
		if err == nil && seq == 0 { // all results are collected: only the floor is left
			var f floor
			f, err = decodeFloor(it.Value())
			seq = f.seq
		}
	}
	return seq, s.dbError(op, cmp.Or(err, it.Error(), it.Close()))
}
