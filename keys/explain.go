package keys

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/rhumbdb/rhumb"
)

// Part is a run of bytes of a key together with its meaning.
type Part struct {
	Offset int    `json:"offset"`
	Bytes  string `json:"bytes"`
	Name   string `json:"name"`
	Value  string `json:"value"`
}

// Explanation describes a key byte by byte.
type Explanation struct {
	// Form is "shard_key", "range", or the kind of a physical key: "data", "log", "state", "dedup",
	// "local".
	Form string `json:"form"`
	Key  string `json:"key"`
	// Region and Slot are the key's home, where it was first written. They do not tell where it is
	// served at the moment.
	Region rhumb.RegionID `json:"region"`
	Slot   rhumb.Slot     `json:"slot"`
	// Sequence, Counter and one of Epoch and Boot (rhumb.Assigned) are set for a shard key. They
	// are also set for a data key with a name of eight bytes, which may be a server-assigned name.
	Sequence *uint64        `json:"sequence,omitempty"`
	Epoch    *rhumb.Epoch   `json:"epoch,omitempty"`
	Boot     *rhumb.BootSeq `json:"boot,omitempty"`
	Counter  *uint64        `json:"counter,omitempty"`
	Table    *rhumb.TableID `json:"table,omitempty"`
	Name     string         `json:"name,omitempty"`
	Version  string         `json:"version,omitempty"`
	Parts    []Part         `json:"parts"`
}

// Explain describes a physical key, the sixteen bytes of a shard key, or the eight bytes of a
// range. It returns InvalidArgument for other bytes.
func Explain(key []byte) (Explanation, error) {
	x := Explanation{Key: hex.EncodeToString(key)}
	home, ok := Home(key)
	if !ok {
		return x, rhumb.Ef("keys.Explain", rhumb.InvalidArgument, "key has %d bytes; keys begin with region and slot, %d bytes", len(key), homeSize)
	}
	x.Region, x.Slot = home.Region, home.Slot
	x.addPart(key, 0, 4, "region", home.Region.String())
	if home.Region == rhumb.LocalRegion {
		x.addPart(key, 4, 4, "space", home.Slot.String())
	} else {
		x.addPart(key, 4, 4, "slot", home.Slot.String())
	}
	if len(key) == homeSize {
		x.Form = "range"
		return x, nil
	}
	// A stored key of sixteen bytes is possible, so the stored form is tried first.
	d, err := Decode(key)
	switch {
	case err == nil:
		x.explainStored(key, &d)
	case len(key) == rhumb.ShardKeySize:
		k, _ := DecodeShardKey(key)
		x.Form = "shard_key"
		x.setSequence(k.Sequence)
		x.addPart(key, homeSize, 8, "sequence", x.sequenceText())
	default:
		return Explanation{}, rhumb.Ef("keys.Explain", rhumb.InvalidArgument, "key is neither a shard key of %d bytes nor a stored key: %v", rhumb.ShardKeySize, err)
	}
	return x, nil
}

// addPart appends a description of n bytes from offset from.
func (x *Explanation) addPart(key []byte, from, n int, name, value string) {
	x.Parts = append(x.Parts, Part{from, hex.EncodeToString(key[from : from+n]), name, value})
}

// setSequence sets the parts of a server-assigned sequence.
func (x *Explanation) setSequence(seq uint64) {
	a := rhumb.SplitSequence(seq)
	x.Sequence, x.Counter = &seq, &a.Counter
	if a.Epoch > 0 {
		x.Epoch = &a.Epoch
	} else {
		x.Boot = &a.Boot
	}
}

// sequenceText formats the sequence that was set before.
func (x *Explanation) sequenceText() string {
	if x.Epoch != nil {
		return fmt.Sprintf("%d (epoch %d, counter %d)", *x.Sequence, *x.Epoch, *x.Counter)
	}
	return fmt.Sprintf("%d (boot %d, counter %d)", *x.Sequence, *x.Boot, *x.Counter)
}

// explainStored describes a stored key after its home.
func (x *Explanation) explainStored(key []byte, d *Decoded) {
	x.Form = d.Kind.String()
	x.addPart(key, kindAt, 1, "kind", d.Kind.String())
	// All kinds but data end in one zero byte, and local keys, which are escaped, in two.
	last := len(key) - 1
	switch d.Kind {
	case KindData:
		x.explainRecord(key, d)
		return
	case KindLog:
		x.addPart(key, tailAt, 8, "seq", strconv.FormatUint(uint64(d.Seq), 10))
	case KindState:
		x.addPart(key, tailAt, 1, "field", d.Field.String())
	case KindDedup:
		x.addPart(key, tailAt, 16, "client", d.Request.Client.String())
		x.addPart(key, tailAt+16, 8, "request", strconv.FormatUint(d.Request.Seq, 10))
	case KindLocal:
		x.addPart(key, tailAt, len(key)-2-tailAt, "key", rhumb.NameString(d.Local))
		last--
	}
	x.addPart(key, last, len(key)-last, "end", "")
}

// explainRecord describes a data key after its kind.
func (x *Explanation) explainRecord(key []byte, d *Decoded) {
	x.Table, x.Name = &d.Table, rhumb.NameString(d.Name)
	x.addPart(key, tailAt, 4, "table", d.Table.String())
	split := Split(key)
	value := x.Name
	// The name may also be one that a client chose, so both readings are shown.
	if len(d.Name) == rhumb.SequenceNameSize {
		x.setSequence(binary.BigEndian.Uint64(d.Name))
		value += ", or sequence " + x.sequenceText()
	}
	x.addPart(key, nameAt, split-2-nameAt, "name", value)
	x.addPart(key, split-2, 2, "end", "")
	if split == len(key) {
		return
	}
	x.Version = d.Version.String()
	x.addPart(key, split, 8, "hlc", d.Version.HLC.String())
	x.addPart(key, split+8, 4, "node", d.Version.Node.String())
	x.addPart(key, split+12, 1, "suffix", "13 bytes")
}

// Format formats a stored key in one line for logs: "1/42 data t3 name @115964116992000001@3".
// Bytes that are not a key are shown in hexadecimal.
func Format(key []byte) string {
	d, err := Decode(key)
	if err != nil {
		return fmt.Sprintf("%x", key)
	}
	head := d.Home.String() + " " + d.Kind.String() + " "
	switch d.Kind {
	case KindData:
		s := head + d.Table.String() + " " + rhumb.NameString(d.Name)
		if d.Version.IsZero() {
			return s
		}
		return s + " @" + d.Version.String()
	case KindLog:
		return head + strconv.FormatUint(uint64(d.Seq), 10)
	case KindDedup:
		return head + d.Request.String()
	case KindState:
		return head + d.Field.String()
	}
	return head + rhumb.NameString(d.Local)
}
