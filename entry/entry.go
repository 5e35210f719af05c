// Package entry defines the entries of a range's replication log: layout, codec and hash chain. It
// is pure.
//
// An entry groups requests that one range accepted together (docs/replication.md#entries:
// entries are batches). Requests hold effects, not intentions: the primary has decided conditions
// and merged patches, so every replica that applies an entry stores the same bytes. An entry
// without requests starts an epoch (rule E).
//
// # Hash chain
//
// Hash = xxh3-128(Prev || body), where body is the wire form without both hashes. Log matching
// compares (epoch, seq, hash), so different contents under one (epoch, seq) are detected and never
// merged.
package entry

import (
	"encoding/hex"
	"fmt"

	"github.com/rhumbdb/rhumb"
)

// Hash is the 128-bit hash of an entry. It depends on all earlier entries of the log.
type Hash [16]byte

// String returns the first eight hexadecimal digits, which suffice to distinguish entries in a
// trace.
func (h Hash) String() string { return hex.EncodeToString(h[:4]) }

// Position identifies an entry. Log matching (rule A, invariant I2) compares all three fields.
type Position struct {
	Epoch rhumb.Epoch
	Seq   rhumb.Seq
	Hash  Hash
}

// String returns "epoch:seq#hash".
func (p Position) String() string { return fmt.Sprintf("%d:%d#%s", p.Epoch, p.Seq, p.Hash) }

// Entry is one entry of the log of one range. It is immutable after Seal has set its hash.
type Entry struct {
	// Epoch is the epoch of the primary that created the entry; Node is that primary.
	Epoch rhumb.Epoch
	Node  rhumb.NodeID
	// Seq is the position in the log. Entries are numbered from 1 without gaps.
	Seq rhumb.Seq
	// Prev is the hash of the preceding entry; zero for the first.
	Prev Hash
	Hash Hash
	// Start is the timestamp of an entry that starts an epoch, so that these entries are ordered by
	// time too. It is 0 in all others.
	Start rhumb.Timestamp
	// Requests are in ascending order of their timestamps, which increase strictly within the entry
	// and along the log (I7).
	Requests []Request
}

// Request is the effect of one accepted batch.
type Request struct {
	// ID is zero if the client disabled deduplication.
	ID rhumb.RequestID
	// HLC is the timestamp of every version that the request writes. The node of those versions is
	// Entry.Node.
	HLC rhumb.Timestamp
	// Existed and Names are the parts of rhumb.Outcome that the answer to a retry must repeat.
	Existed []bool
	Names   [][]byte
	// Noop reports that the request changed nothing because its IfNewer condition did not hold. It
	// is in the log only so that its answer is ordered and remembered.
	Noop bool
	// Split, if not 0, divides the range: the slots from Split on belong to a new range, whose log continues
	// after this entry (docs/replication.md#rule-split). The request is then a Noop and the last of its entry.
	Split rhumb.Slot
	// End reports that the range ends with this entry: it orders nothing after it, because the range before it takes over its slots
	// (docs/replication.md#rule-merge). The request is then a Noop and the last of its entry.
	End bool
	// Take, if its Slot is not 0, makes the range take over the slots of the range after it, which has ended. The request is then a
	// Noop and the last of its entry.
	Take Take
	// Writes holds the final values, at most one per key.
	Writes []Write
}

// Take names the end of the range that another one takes over.
type Take struct {
	// Slot is the first slot of the range that has ended, and Last its last one.
	Slot, Last rhumb.Slot
	// Epoch and Seq are the epoch and the position of the entry that ended it.
	Epoch rhumb.Epoch
	Seq   rhumb.Seq
}

// IsZero reports whether nothing is taken over.
func (t Take) IsZero() bool { return t.Slot == 0 }

// Write is the final value of one key.
type Write struct {
	Table rhumb.TableID
	Name  []byte
	// Value is in stored form. rhumb.Tombstone deletes the key.
	Value []byte
	// Slot is the slot of the key's home. 0 means the first slot of the range, which is the only one of most
	// ranges.
	Slot rhumb.Slot
}

// Home returns the home of the key in a range.
func (w *Write) Home(id rhumb.RangeID) rhumb.RangeID {
	if w.Slot != 0 {
		id.Slot = w.Slot
	}
	return id
}

// Position returns the position of the entry in the log.
func (e *Entry) Position() Position { return Position{e.Epoch, e.Seq, e.Hash} }

// LastHLC returns the greatest timestamp in the entry.
func (e *Entry) LastHLC() rhumb.Timestamp {
	if n := len(e.Requests); n > 0 {
		return e.Requests[n-1].HLC
	}
	return e.Start
}

// Version returns the version that request r of this entry writes.
func (e *Entry) Version(r *Request) rhumb.Version { return rhumb.Version{HLC: r.HLC, Node: e.Node} }

// Split returns the first slot of the range that the entry splits off, or 0.
func (e *Entry) Split() rhumb.Slot {
	if n := len(e.Requests); n > 0 {
		return e.Requests[n-1].Split
	}
	return 0
}

// Ends reports whether the range ends with the entry.
func (e *Entry) Ends() bool {
	n := len(e.Requests)
	return n > 0 && e.Requests[n-1].End
}

// Take returns the range that the entry takes over, or the zero value.
func (e *Entry) Take() Take {
	if n := len(e.Requests); n > 0 {
		return e.Requests[n-1].Take
	}
	return Take{}
}

// Size returns the number of bytes in the names and values that the entry writes.
func (e *Entry) Size() (n int) {
	for i := range e.Requests {
		for j := range e.Requests[i].Writes {
			w := &e.Requests[i].Writes[j]
			n += len(w.Name) + len(w.Value)
		}
	}
	return n
}
