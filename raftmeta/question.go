package raftmeta

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/fxamacker/cbor/v2"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/rhumbdb/rhumb"
)

// questionMax is the maximum size of an encoded question or answer, in bytes. A question is about
// 50 bytes.
const questionMax = 64 << 10

// question asks another member about the asker's earlier promises, and announces the asker's life
// (docs/replication.md#rule-voter-ask).
type question struct {
	// Life is the asker's present life. Formers are the lives before it that its disk knows.
	Life    uint64   `cbor:"1,keyasint"`
	Formers []uint64 `cbor:"2,keyasint,omitempty"`
	// Short reports that the asker may lack durable data, Silent that it does not take part.
	Short  bool `cbor:"3,keyasint,omitempty"`
	Silent bool `cbor:"4,keyasint,omitempty"`
	// Last is the position of the asker's last entry.
	Last position `cbor:"5,keyasint"`
}

// answer describes the disk of a member, in reply to a question.
type answer struct {
	// Life is the asker's life, copied from the question.
	Life    uint64  `cbor:"1,keyasint"`
	Verdict verdict `cbor:"2,keyasint,omitempty"`
	// Term is the greatest term that the member has promised, and Last its last entry.
	Term uint64   `cbor:"3,keyasint"`
	Last position `cbor:"4,keyasint"`
	// Leads reports that the member leads; Match is then the index up to which it counts on the
	// asker's log.
	Leads bool   `cbor:"5,keyasint,omitempty"`
	Match uint64 `cbor:"6,keyasint,omitempty"`
	// Voters are the voters of the configuration that the member has applied, at index Applied.
	Applied uint64   `cbor:"7,keyasint"`
	Voters  []uint64 `cbor:"8,keyasint,omitempty"`
	// Admitted is the newest admission of the asker that the member knows.
	Admitted admission `cbor:"9,keyasint"`
	// Silent reports that the member does not take part itself.
	Silent bool `cbor:"10,keyasint,omitempty"`
}

// encodeMessage encodes a message that does not belong to Raft.
func encodeMessage(kind byte, m any) []byte { return append([]byte{kind}, encodeCBOR(m)...) }

// encodeCBOR encodes one of the group's own values. Encoding them cannot fail.
func encodeCBOR(m any) []byte {
	b, err := cbor.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// decodeInbound decodes a question or an answer.
func decodeInbound(from rhumb.NodeID, b []byte) (in inbound, err error) {
	const op rhumb.Op = "raftmeta.Step"
	if len(b) > questionMax {
		return in, rhumb.Ef(op, rhumb.Corrupt, "a question or answer of %d bytes from %s exceeds the limit of %d", len(b), from, questionMax)
	}
	in.from = from
	if b[0] == messageQuestion {
		in.question = new(question)
		err = cbor.Unmarshal(b[1:], in.question)
	} else {
		in.answer = new(answer)
		err = cbor.Unmarshal(b[1:], in.answer)
	}
	// A life of 0 would match the zero value of a member that is unknown.
	if err == nil && (in.question != nil && (in.question.Life == 0 || len(in.question.Formers) > formersMax) ||
		in.answer != nil && (in.answer.Life == 0 || len(in.answer.Voters) > rhumb.NodesMax)) {
		err = errors.New("a question or answer has no life or too long a list")
	}
	return in, rhumb.WrapKind(op, rhumb.Corrupt, err)
}

// acquaintance holds the facts that a member stores about another member.
type acquaintance struct {
	// Life is the newest life of the other member, and Verdict the result of comparing it with the
	// life stored before.
	Life    uint64  `cbor:"1,keyasint"`
	Verdict verdict `cbor:"2,keyasint,omitempty"`
	// Admitted is the newest admission of the other member.
	Admitted admission `cbor:"3,keyasint"`
}

// compareLife compares the life in a question with the stored one, and returns the value to store.
//
// The asker presents its former lives. If the stored life is among them, the asker's disk is at
// least as new as the peer's knowledge. If not, the disk is an older copy.
func (a acquaintance) compareLife(q question) (met acquaintance, v verdict) {
	switch {
	case a.Life == q.Life:
		return a, a.Verdict
	case a.Life == 0:
		a.Verdict = lifeUnknown
	case slices.Contains(q.Formers, a.Life):
		a.Verdict = lifeMatched
	// The life is not stored until the asker says that it is short, which it stores first.
	// Otherwise its next start would present a life that everybody knows, and look intact
	// (docs/replication.md#rule-voter-short).
	case !q.Short:
		return a, lifeDiffers
	default:
		a.Verdict = lifeDiffers
	}
	a.Life = q.Life
	return a, a.Verdict
}

// admittedLives is the context of a change of membership: pairs of node(8) life(8) of the members
// that it admits.
type admittedLives []struct{ node, life uint64 }

func (a admittedLives) encode() []byte {
	var b []byte
	for _, one := range a {
		b = binary.BigEndian.AppendUint64(b, one.node)
		b = binary.BigEndian.AppendUint64(b, one.life)
	}
	return b
}

// decodeAdmitted decodes the context of a change. Bytes in any other form admit nobody.
func decodeAdmitted(cc *raftpb.ConfChangeV2) (a admittedLives) {
	b := cc.GetContext()
	for ; len(b) >= 16; b = b[16:] {
		a = append(a, struct{ node, life uint64 }{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])})
	}
	return a
}
