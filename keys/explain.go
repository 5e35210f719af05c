package keys

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/rhumbdb/rhumb"
)

// Part is a run of bytes of a key with its meaning.
type Part struct {
	Offset int    `json:"offset"`
	Bytes  string `json:"bytes"`
	Name   string `json:"name"`
	Value  string `json:"value"`
}

// Explanation says what a key is, byte by byte.
type Explanation struct {
	// Form is "shard_key", "range", or the kind of a physical key: "data", "log", "state", "dedup", "local".
	Form string `json:"form"`
	Key  string `json:"key"`
	// Region and Slot are the key's home: where it was first written. They say nothing about where it is served now.
	Region rhumb.RegionID `json:"region"`
	Slot   rhumb.Slot     `json:"slot"`
	// Sequence, Counter and one of Epoch and Boot (rhumb.Assigned) are set for a shard key and for a data key with a name of eight bytes, which may be one
	// that a server assigned.
	Sequence *uint64        `json:"sequence,omitempty"`
	Epoch    *rhumb.Epoch   `json:"epoch,omitempty"`
	Boot     *rhumb.BootSeq `json:"boot,omitempty"`
	Counter  *uint64        `json:"counter,omitempty"`
	Table    *rhumb.TableID `json:"table,omitempty"`
	Name     string         `json:"name,omitempty"`
	Version  string         `json:"version,omitempty"`
	Parts    []Part         `json:"parts"`
}

// Explain takes any key apart: a physical key, the sixteen bytes of a shard key, or the eight bytes of a range. Bytes
// that are none of these are InvalidArgument.
func Explain(key []byte) (Explanation, error) {
	x := Explanation{Key: hex.EncodeToString(key)}
	home, ok := Home(key)
	if !ok {
		return x, rhumb.Ef("keys.Explain", rhumb.InvalidArgument, "a key has at least %d bytes, region and slot; this has %d", homeSize, len(key))
	}
	x.Region, x.Slot = home.Region, home.Slot
	x.part(key, 0, 4, "region", home.Region.String())
	if home.Region == rhumb.LocalRegion {
		x.part(key, 4, 4, "space", home.Slot.String())
	} else {
		x.part(key, 4, 4, "slot", home.Slot.String())
	}
	if len(key) == homeSize {
		x.Form = "range"
		return x, nil
	}
	d, err := Decode(key)
	switch {
	case err == nil:
		x.physical(key, &d)
	case len(key) == rhumb.ShardKeySize:
		k, _ := DecodeShardKey(key)
		x.Form = "shard_key"
		x.sequence(k.Sequence)
		x.part(key, homeSize, 8, "sequence", x.sequenceText())
	default:
		return Explanation{}, rhumb.Ef("keys.Explain", rhumb.InvalidArgument, "neither a shard key of %d bytes nor a stored key: %v", rhumb.ShardKeySize, err)
	}
	return x, nil
}

func (x *Explanation) part(key []byte, from, n int, name, value string) {
	x.Parts = append(x.Parts, Part{from, hex.EncodeToString(key[from : from+n]), name, value})
}

func (x *Explanation) sequence(seq uint64) {
	a := rhumb.SplitSequence(seq)
	x.Sequence, x.Counter = &seq, &a.Counter
	if a.Epoch > 0 {
		x.Epoch = &a.Epoch
	} else {
		x.Boot = &a.Boot
	}
}

func (x *Explanation) sequenceText() string {
	if x.Epoch != nil {
		return fmt.Sprintf("%d (epoch %d, counter %d)", *x.Sequence, *x.Epoch, *x.Counter)
	}
	return fmt.Sprintf("%d (boot %d, counter %d)", *x.Sequence, *x.Boot, *x.Counter)
}

func (x *Explanation) physical(key []byte, d *Decoded) {
	x.Form = d.Kind.String()
	x.part(key, kindAt, 1, "kind", d.Kind.String())
	last := len(key) - 1
	switch d.Kind {
	case KindData:
		x.data(key, d)
		return
	case KindLog:
		x.part(key, tailAt, 8, "seq", strconv.FormatUint(uint64(d.Seq), 10))
	case KindState:
		x.part(key, tailAt, 1, "field", d.Field.String())
	case KindDedup:
		x.part(key, tailAt, 16, "client", d.Request.Client.String())
		x.part(key, tailAt+16, 8, "request", strconv.FormatUint(d.Request.Seq, 10))
	case KindLocal:
		x.part(key, tailAt, len(key)-2-tailAt, "key", rhumb.NameString(d.Local))
		last--
	}
	x.part(key, last, len(key)-last, "end", "")
}

func (x *Explanation) data(key []byte, d *Decoded) {
	x.Table, x.Name = &d.Table, rhumb.NameString(d.Name)
	x.part(key, tailAt, 4, "table", d.Table.String())
	split := Split(key)
	value := x.Name
	if len(d.Name) == rhumb.SequenceNameSize {
		x.sequence(binary.BigEndian.Uint64(d.Name))
		value += ", or sequence " + x.sequenceText()
	}
	x.part(key, nameAt, split-2-nameAt, "name", value)
	x.part(key, split-2, 2, "end", "")
	if split == len(key) {
		return
	}
	x.Version = d.Version.String()
	x.part(key, split, 8, "hlc", d.Version.HLC.String())
	x.part(key, split+8, 4, "node", d.Version.Node.String())
	x.part(key, split+12, 1, "suffix", "13 bytes")
}

// Format shows a stored key in one line, for logs: "1/42 data t3 name @115964116992000001@3". Bytes that are no key are
// shown in hexadecimal.
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
