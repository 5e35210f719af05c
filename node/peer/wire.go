package peer

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
)

// The form of a message on a link (docs/formats/link.md). Integers without a size are varints:
//
//	size(4, big endian, of what follows) kind(1) fields region slot epoch life, and each field whose bit is set in fields
//
// A field that is zero is left out. Few fields belong to one kind of message, so most
// messages without entries take about 20 bytes. Bits are append only: a receiver that
// meets one that it does not know cannot read what follows.
const (
	hasPrev    = 1 << iota // epoch, sequence number and hash(16)
	hasEntries             // their number, and each as size(4) and its wire form (package entry)
	hasTrim
	hasCommit
	hasCommitHash // 16 bytes
	hasClock
	hasMatch
	hasReject
	hasHintEpoch
	hasHintEnd
	hasPromised
	isQuarantined
	isContradicting
	isTrimmed
	hasRefused
	hasEnds
	hasTargetLife
	hasInSync // the number of nodes, and each
	hasVersion
	fieldsEnd
)

// kindTally is in the place of the kind of a message. A tally follows (package tally). It is not a
// replica.MessageKind: replicas see the acknowledgements that the tallies represent.
const kindTally = 30

// sizeBytes is the length of the size of a message or an entry.
const sizeBytes = 4

// appendSized appends what fill appends, with its size before it.
func appendSized(b []byte, fill func([]byte) []byte) []byte {
	at := len(b)
	b = fill(append(b, 0, 0, 0, 0))
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-sizeBytes))
	return b
}

// appendMessage appends the form of a message. It runs in the goroutine that sends to one
// peer, so that the pass that created the entries does not wait.
func appendMessage(b []byte, m *replica.Message) []byte {
	return appendSized(b, func(b []byte) []byte { return appendFields(append(b, byte(m.Kind)), m) })
}

// appendFields appends everything after the kind.
func appendFields(b []byte, m *replica.Message) []byte {
	numbers := [...]struct {
		bit   uint64
		value uint64
	}{
		{hasTrim, uint64(m.Trim)},
		{hasCommit, uint64(m.Commit)},
		{hasClock, uint64(m.Clock)},
		{hasMatch, uint64(m.Match)},
		{hasReject, uint64(m.Reject)},
		{hasHintEpoch, uint64(m.HintEpoch)},
		{hasHintEnd, uint64(m.HintEnd)},
		{hasPromised, uint64(m.Promised)},
		{hasRefused, uint64(m.Refused)},
		{hasEnds, uint64(m.Ends)},
		{hasTargetLife, uint64(m.TargetLife)},
		{hasVersion, m.Version},
	}
	var fields uint64
	set := func(bit uint64, present bool) {
		if present {
			fields |= bit
		}
	}
	for _, n := range numbers {
		set(n.bit, n.value != 0)
	}
	set(hasPrev, m.Prev != entry.Position{})
	set(hasEntries, len(m.Entries) > 0)
	set(hasCommitHash, m.CommitHash != entry.Hash{})
	set(isQuarantined, m.Quarantined)
	set(isContradicting, m.Contradicts)
	set(isTrimmed, m.Trimmed)
	set(hasInSync, len(m.InSync) > 0)
	for _, v := range [...]uint64{fields, uint64(m.Range.Region), uint64(m.Range.Slot), uint64(m.Epoch), uint64(m.Life)} {
		b = binary.AppendUvarint(b, v)
	}
	if fields&hasPrev != 0 {
		b = binary.AppendUvarint(b, uint64(m.Prev.Epoch))
		b = binary.AppendUvarint(b, uint64(m.Prev.Seq))
		b = append(b, m.Prev.Hash[:]...)
	}
	if fields&hasEntries != 0 {
		b = binary.AppendUvarint(b, uint64(len(m.Entries)))
		for _, e := range m.Entries {
			b = appendSized(b, e.AppendWire)
		}
	}
	for _, n := range numbers {
		if n.value != 0 {
			b = binary.AppendUvarint(b, n.value)
		}
	}
	if fields&hasCommitHash != 0 {
		b = append(b, m.CommitHash[:]...)
	}
	if fields&hasInSync != 0 {
		b = binary.AppendUvarint(b, uint64(len(m.InSync)))
		for _, n := range m.InSync {
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	return b
}

// wireReader reads the fields of a message. Its first error stays, and everything after
// it reads as zero.
type wireReader struct {
	b   []byte
	bad bool
}

// number reads a varint of at most most.
func (r *wireReader) number(most uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > most || r.bad {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

// bytes reads n bytes, which it shares with the message.
func (r *wireReader) bytes(n int) []byte {
	if n < 0 || n > len(r.b) || r.bad {
		r.bad = true
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

// sized reads what appendSized appended.
func (r *wireReader) sized() []byte {
	if size := r.bytes(sizeBytes); !r.bad {
		return r.bytes(int(binary.BigEndian.Uint32(size)))
	}
	return nil
}

// countSized returns how many items that appendSized appended are in b, as far as their sizes make sense.
func countSized(b []byte) (n int) {
	for len(b) >= sizeBytes {
		size := int64(binary.BigEndian.Uint32(b)) + sizeBytes
		if size > int64(len(b)) {
			break
		}
		b = b[size:]
		n++
	}
	return n
}

// count reads the number of items that take at least one byte each.
func (r *wireReader) count() int { return int(r.number(uint64(len(r.b)))) }

// decodeMessage decodes a message without its size, and checks the hash of each entry.
// The entries share memory with b. A message with a field or an entry that a later
// release wrote is Incompatible; but an Append ends before the first such entry. Only the
// range of the message waits for a newer build.
func decodeMessage(b []byte, from, to rhumb.NodeID) (replica.Message, error) {
	const op rhumb.Op = "peer.decodeMessage"
	r := &wireReader{b: b}
	m := replica.Message{From: from, To: to}
	if kind := r.bytes(1); !r.bad {
		m.Kind = replica.MessageKind(kind[0])
	}
	fields := r.number(math.MaxUint64)
	m.Range = rhumb.RangeID{Region: rhumb.RegionID(r.number(math.MaxUint32)), Slot: rhumb.Slot(r.number(math.MaxUint32))}
	m.Epoch, m.Life = rhumb.Epoch(r.number(math.MaxUint64)), rhumb.BootSeq(r.number(math.MaxUint64))
	if !r.bad && bits.Len64(fields) >= bits.Len64(fieldsEnd) {
		return m, rhumb.Ef(op, rhumb.Incompatible, "a message of %s about range %s has fields of a later release (%#x)", from, m.Range, fields)
	}
	if fields&hasPrev != 0 {
		m.Prev = entry.Position{Epoch: rhumb.Epoch(r.number(math.MaxUint64)), Seq: rhumb.Seq(r.number(math.MaxUint64))}
		copy(m.Prev.Hash[:], r.bytes(len(m.Prev.Hash)))
	}
	var entries [][]byte
	if fields&hasEntries != 0 {
		for range r.count() {
			entries = append(entries, r.sized())
		}
	}
	r.numbers(fields, &m)
	if fields&hasCommitHash != 0 {
		copy(m.CommitHash[:], r.bytes(len(m.CommitHash)))
	}
	if fields&hasInSync != 0 {
		for range r.count() {
			m.InSync = append(m.InSync, rhumb.NodeID(r.number(math.MaxUint32)))
		}
	}
	m.Quarantined, m.Contradicts, m.Trimmed = fields&isQuarantined != 0, fields&isContradicting != 0, fields&isTrimmed != 0
	if r.bad || len(r.b) > 0 {
		return m, rhumb.Ef(op, rhumb.Corrupt, "a message of %s with %d bytes does not end where its fields do", from, len(b))
	}
	return m, takeEntries(&m, entries)
}

// numbers reads the fields that are one number each, in the order of appendFields.
func (r *wireReader) numbers(fields uint64, m *replica.Message) {
	read := func(bit, most uint64) uint64 {
		if fields&bit == 0 {
			return 0
		}
		return r.number(most)
	}
	m.Trim, m.Commit = rhumb.Seq(read(hasTrim, math.MaxUint64)), rhumb.Seq(read(hasCommit, math.MaxUint64))
	m.Clock, m.Match = rhumb.Timestamp(read(hasClock, math.MaxUint64)), rhumb.Seq(read(hasMatch, math.MaxUint64))
	m.Reject = rhumb.Seq(read(hasReject, math.MaxUint64))
	m.HintEpoch, m.HintEnd = rhumb.Epoch(read(hasHintEpoch, math.MaxUint64)), rhumb.Seq(read(hasHintEnd, math.MaxUint64))
	m.Promised = rhumb.Epoch(read(hasPromised, math.MaxUint64))
	m.Refused = replica.Refusal(read(hasRefused, math.MaxUint8))
	m.Ends, m.TargetLife = rhumb.Epoch(read(hasEnds, math.MaxUint64)), rhumb.BootSeq(read(hasTargetLife, math.MaxUint64))
	m.Version = read(hasVersion, math.MaxUint64)
}

// takeEntries decodes the entries of a message. Bytes damaged on the way must not reach a
// replica: two contents at one position of one epoch quarantine it (rule A).
func takeEntries(m *replica.Message, encoded [][]byte) error {
	m.Entries = slices.Grow(m.Entries, len(encoded))
	for _, b := range encoded {
		e, err := entry.DecodeWire(b)
		// The replica takes what it can read and refuses the rest, so that its primary
		// can commit without it.
		if rhumb.KindOf(err) == rhumb.Incompatible && m.Kind == replica.Append {
			m.Unknown = true
			return nil
		}
		if err != nil {
			return err
		}
		m.Entries = append(m.Entries, e)
	}
	return nil
}
