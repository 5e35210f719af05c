// Package entry is one entry of a range's replication log: its layout, its codec and its hash chain. It is pure.
//
// An entry groups the requests that one range accepted together (ruling 10 of the replication design: entries are
// batches). Its requests hold effects, not intentions: conditions are decided and patches are merged, so that every
// replica that applies it holds the same bytes. An entry without requests is an epoch-start entry (rule E).
//
// # Hash chain
//
// Hash = xxh3-128(Prev || body), where body is the wire form without both hashes. Log matching compares (epoch, seq,
// hash), so two different contents under one (epoch, seq) are detected and never merged.
package entry

import (
	"encoding/hex"
	"fmt"

	"github.com/rhumbdb/rhumb"
)

// Hash is the 128-bit hash of an entry, chained over all entries before it.
type Hash [16]byte

// String gives the first eight hexadecimal digits, enough to tell entries apart in a trace.
func (h Hash) String() string { return hex.EncodeToString(h[:4]) }

// Position names an entry: log matching (rule A, invariant I2) compares all three.
type Position struct {
	Epoch rhumb.Epoch
	Seq   rhumb.Seq
	Hash  Hash
}

// String gives "epoch:seq#hash".
func (p Position) String() string { return fmt.Sprintf("%d:%d#%s", p.Epoch, p.Seq, p.Hash) }

// Entry is one entry of the log of one range. It is immutable once Seal has set its hash.
type Entry struct {
	// Epoch is the epoch of the primary that made the entry, Node that primary.
	Epoch rhumb.Epoch
	Node  rhumb.NodeID
	// Seq is its position; entries of a log are numbered without gaps from 1.
	Seq rhumb.Seq
	// Prev is the hash of the entry before; zero for the first.
	Prev Hash
	Hash Hash
	// Start is the timestamp of an epoch-start entry, so that its HLC is ordered too; 0 for others.
	Start rhumb.Timestamp
	// Requests are in the order of their timestamps, which grow strictly within the entry and along the log (I7).
	Requests []Request
}

// Request is the effect of one accepted batch.
type Request struct {
	// ID is zero when the client asked for no deduplication.
	ID rhumb.RequestID
	// HLC is the timestamp of every version that the request writes; the node of those versions is Entry.Node.
	HLC rhumb.Timestamp
	// Existed and Names are what the answer to a retry must repeat (rhumb.Outcome).
	Existed []bool
	Names   [][]byte
	// Noop is true for a request that changed nothing (an IfNewer condition): it stands in the log only so that its
	// answer is ordered and remembered.
	Noop bool
	// Writes are the final values, at most one per key.
	Writes []Write
}

// Write is the final value of one key.
type Write struct {
	Table rhumb.TableID
	Name  []byte
	// Value is in stored form; rhumb.Tombstone deletes the key.
	Value []byte
}

// Position gives the entry's place in the log.
func (e *Entry) Position() Position { return Position{e.Epoch, e.Seq, e.Hash} }

// LastHLC gives the greatest timestamp in the entry.
func (e *Entry) LastHLC() rhumb.Timestamp {
	if n := len(e.Requests); n > 0 {
		return e.Requests[n-1].HLC
	}
	return e.Start
}

// Version gives the version that a request of this entry writes.
func (e *Entry) Version(r *Request) rhumb.Version { return rhumb.Version{HLC: r.HLC, Node: e.Node} }

// Size gives the bytes of the names and values that the entry writes.
func (e *Entry) Size() (n int) {
	for i := range e.Requests {
		for j := range e.Requests[i].Writes {
			w := &e.Requests[i].Writes[j]
			n += len(w.Name) + len(w.Value)
		}
	}
	return n
}
