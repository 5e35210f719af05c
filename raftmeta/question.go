package raftmeta

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/fxamacker/cbor/v2"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/rhumbdb/rhumb"
)

// questionMax bounds an encoded question or answer, in bytes.
const questionMax = 64 << 10

// question asks another member what it knows. It tells the asker's life.
type question struct {
	// Life is that of the asker, and Formers the lives before it back to the last that took part.
	Life    uint64   `cbor:"1,keyasint"`
	Formers []uint64 `cbor:"2,keyasint,omitempty"`
	// Short says that the asker may lack something that it had made durable, Silent that it does not take part.
	Short  bool `cbor:"3,keyasint,omitempty"`
	Silent bool `cbor:"4,keyasint,omitempty"`
	// Last is the asker's last entry.
	Last position `cbor:"5,keyasint"`
}

// answer tells what a member has on disk.
type answer struct {
	// Life repeats that of the asker.
	Life    uint64  `cbor:"1,keyasint"`
	Verdict verdict `cbor:"2,keyasint,omitempty"`
	// Term is the greatest that the member has promised, and Last its last entry.
	Term uint64   `cbor:"3,keyasint"`
	Last position `cbor:"4,keyasint"`
	// Leads says that the member leads, and Match up to where it counts on the asker's log.
	Leads bool   `cbor:"5,keyasint,omitempty"`
	Match uint64 `cbor:"6,keyasint,omitempty"`
	// Voters are those of the configuration that the member has applied, at the index Applied.
	Applied uint64   `cbor:"7,keyasint"`
	Voters  []uint64 `cbor:"8,keyasint,omitempty"`
	// Admitted is the newest admission of the asker that the member knows.
	Admitted admission `cbor:"9,keyasint"`
	// Silent says that the member does not take part itself.
	Silent bool `cbor:"10,keyasint,omitempty"`
}

// encodeMessage puts a message that is not Raft's into its envelope.
func encodeMessage(kind byte, m any) []byte { return append([]byte{kind}, encodeCBOR(m)...) }

// encodeCBOR encodes one of the group's own values; they all can be.
func encodeCBOR(m any) []byte {
	b, err := cbor.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// decodeInbound decodes a question or answer.
func decodeInbound(from rhumb.NodeID, b []byte) (in inbound, err error) {
	const op rhumb.Op = "raftmeta.Step"
	if len(b) > questionMax {
		return in, rhumb.Ef(op, rhumb.Corrupt, "a question of %d bytes from %s, want at most %d", len(b), from, questionMax)
	}
	in.from = from
	if b[0] == messageQuestion {
		in.question = new(question)
		err = cbor.Unmarshal(b[1:], in.question)
	} else {
		in.answer = new(answer)
		err = cbor.Unmarshal(b[1:], in.answer)
	}
	if err == nil && (in.question != nil && (in.question.Life == 0 || len(in.question.Formers) > formersMax) ||
		in.answer != nil && (in.answer.Life == 0 || len(in.answer.Voters) > rhumb.NodesMax)) {
		err = errors.New("a life is missing, or a list is too long")
	}
	return in, rhumb.WrapKind(op, rhumb.Corrupt, err)
}

// acquaintance is what a member stores about another one.
type acquaintance struct {
	// Life is the newest life of the other, and Verdict how it compared with the one stored before.
	Life    uint64  `cbor:"1,keyasint"`
	Verdict verdict `cbor:"2,keyasint,omitempty"`
	// Admitted is the newest admission of the other.
	Admitted admission `cbor:"3,keyasint"`
}

// meet compares the life in a question with the one that is stored. A life that is not the successor of the stored one is
// taken over only when its node says that it is short: a life that everybody knows looks whole.
func (a acquaintance) compareLife(q question) (met acquaintance, v verdict) {
	switch {
	case a.Life == q.Life:
		return a, a.Verdict
	case a.Life == 0:
		a.Verdict = lifeUnknown
	case slices.Contains(q.Formers, a.Life):
		a.Verdict = lifeMatched
	case !q.Short:
		return a, lifeDiffers
	default:
		a.Verdict = lifeDiffers
	}
	a.Life = q.Life
	return a, a.Verdict
}

// admits is the context of a change of members: pairs of node(8) life(8) for those that it takes in.
type admittedLives []struct{ node, life uint64 }

func (a admittedLives) encode() []byte {
	var b []byte
	for _, one := range a {
		b = binary.BigEndian.AppendUint64(b, one.node)
		b = binary.BigEndian.AppendUint64(b, one.life)
	}
	return b
}

// decodeAdmits decodes the context of a change; other bytes than it wrote admit nobody.
func decodeAdmitted(cc *raftpb.ConfChangeV2) (a admittedLives) {
	b := cc.GetContext()
	for ; len(b) >= 16; b = b[16:] {
		a = append(a, struct{ node, life uint64 }{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])})
	}
	return a
}
