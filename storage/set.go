package storage

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/zeebo/xxh3"
)

// Bounds of a set.
const (
	// ChunkBytes is the size of all chunks of a file but the last. A broken transfer is repeated
	// from the first chunk that is not whole, so this is also the most that is sent twice.
	ChunkBytes = 1 << 20
	// setFileBytes is the size at which an export begins the next table. A table is written at once
	// and read at once, so its size bounds neither memory nor the work that is repeated.
	setFileBytes = 32 << 20
	// SetFilesMax bounds the tables of a set, and with them the size of its description.
	SetFilesMax = 1 << 14
	// setChunksMax bounds the chunks of a set, which is 256 GiB of data.
	setChunksMax = 1 << 18
)

// SetID identifies a set. No two sets have the same one: Number counts the sets of one life of the
// donor. So chunks of two sets are never mixed, whatever was interrupted in between.
type SetID struct {
	Range  rhumb.RangeID  `json:"range"`
	Donor  rhumb.NodeID   `json:"donor"`
	Life   rhumb.BootSeq  `json:"life"`
	Number uint64         `json:"number"`
	Last   entry.Position `json:"last"`
}

// String returns the identity for messages.
func (id SetID) String() string {
	return fmt.Sprintf("%s of %s, life %d, number %d, up to %d", id.Range, id.Donor, id.Life, id.Number, id.Last.Seq)
}

// SetField is one field of the state of a range, as stored.
type SetField struct {
	Field byte   `json:"field"`
	Value []byte `json:"value"`
}

// SetFile is one table of a set.
type SetFile struct {
	Bytes int64 `json:"bytes"`
	// Chunks holds the CRC32C of each chunk.
	Chunks []uint32 `json:"chunks"`
}

// Set describes a copy of a range in the form of sorted tables: everything that is needed to receive
// it, to check it and to continue after an interruption. The tables hold the data, the log and the
// results of requests. The state is not in a table, because the receiver keeps its own promise.
type Set struct {
	ID SetID `json:"id"`
	// Commit is the commit position of the copy, a lower bound. Everything up to it is final;
	// entries above it may still be undone.
	Commit rhumb.Seq `json:"commit"`
	// Promised is the greatest epoch that the donor had promised, at least that of the last entry.
	Promised rhumb.Epoch `json:"promised"`
	// State holds the fields of the state without the promise and a quarantine.
	State []SetField `json:"state"`
	Files []SetFile  `json:"files"`
	// Keys counts the keys in the tables.
	Keys int64 `json:"keys"`
	// SHA256 is the digest of all files, one after the other.
	SHA256 []byte `json:"sha256"`
}

// Bytes returns the size of all files.
func (s *Set) Bytes() (n int64) {
	for i := range s.Files {
		n += s.Files[i].Bytes
	}
	return n
}

// Chunks returns the number of chunks of all files.
func (s *Set) Chunks() (n int) {
	for i := range s.Files {
		n += len(s.Files[i].Chunks)
	}
	return n
}

// chunkAt returns the file and the extent of a chunk; ok is false if the set has no such chunk.
func (s *Set) chunkAt(chunk int) (file int, at int64, size int, sum uint32, ok bool) {
	if chunk < 0 {
		return 0, 0, 0, 0, false
	}
	for i := range s.Files {
		f := &s.Files[i]
		if chunk >= len(f.Chunks) {
			chunk -= len(f.Chunks)
			continue
		}
		at = int64(chunk) * ChunkBytes
		return i, at, int(min(ChunkBytes, f.Bytes-at)), f.Chunks[chunk], true
	}
	return 0, 0, 0, 0, false
}

// Encode returns the description as JSON, followed by a line with a checksum, like the DAMAGE file.
func (s *Set) Encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic("storage: the description of a set cannot be encoded: " + err.Error())
	}
	b = append(b, '\n')
	return fmt.Appendf(b, "sum %016x\n", xxh3.Hash(b))
}

// DecodeSet decodes a description and checks that it does not contradict itself.
func DecodeSet(b []byte) (*Set, error) {
	const op rhumb.Op = "storage.DecodeSet"
	body, sum, ok := cutLast(b, "sum ")
	if !ok || sum != fmt.Sprintf("%016x\n", xxh3.Hash(body)) {
		return nil, rhumb.E(op, rhumb.Corrupt, "the checksum of the description of a set does not match")
	}
	s := new(Set)
	if err := json.Unmarshal(body, s); err != nil {
		return nil, rhumb.WrapKind(op, rhumb.Incompatible, err)
	}
	if why := s.fault(); why != "" {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "the description of set %s contradicts itself: %s", s.ID, why)
	}
	_, err := s.state()
	return s, rhumb.Wrap(op, err)
}

// fault returns why the sizes of the set are impossible, or "".
func (s *Set) fault() string {
	switch {
	case s.ID.Range.Region == rhumb.LocalRegion:
		return "the range is in the reserved region"
	case len(s.Files) > SetFilesMax || s.Chunks() > setChunksMax:
		return "it has too many files or chunks"
	case s.Commit > s.ID.Last.Seq:
		return "the commit position is beyond the last entry"
	case s.Promised < s.ID.Last.Epoch:
		return "the last entry is of an epoch that was not promised"
	case len(s.SHA256) != 32:
		return "the digest has a wrong length"
	}
	for _, f := range s.Files {
		if f.Bytes <= 0 || int64(len(f.Chunks)) != (f.Bytes+ChunkBytes-1)/ChunkBytes {
			return "the chunks of a file do not cover it"
		}
	}
	return ""
}

// state decodes the fields of the state. A field that this build does not know may forbid something,
// so such a set is rejected as a whole.
func (s *Set) state() (*rangeState, error) {
	const op rhumb.Op = "storage.Set"
	rs := &rangeState{log: logState{RangeState: RangeState{Range: s.ID.Range}}}
	present := false
	for _, f := range s.State {
		field := keys.StateField(f.Field)
		// The receiver has its own promise, and a quarantined copy is never sent.
		if field == keys.StatePromised || field == keys.StateQuarantine || !rs.setField(field, f.Value) {
			return nil, rhumb.Ef(op, rhumb.Incompatible, "set %s has the state %q = %x, which this build does not accept; use the build of the donor, or a newer one", s.ID, field.String(), f.Value)
		}
		present = present || field == keys.StateRange
	}
	if !present || rs.log.Trim > s.Commit {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "the state of set %s is incomplete", s.ID)
	}
	return rs, nil
}

// fieldsWith returns the fields of the state in the order of their keys, with the given promise.
func (s *Set) fieldsWith(promised rhumb.Epoch) []SetField {
	fields := append(slices.Clone(s.State), SetField{byte(keys.StatePromised), encodeWords(uint64(promised))})
	slices.SortFunc(fields, func(a, b SetField) int { return int(a.Field) - int(b.Field) })
	return fields
}
