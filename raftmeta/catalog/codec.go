package catalog

import (
	"errors"

	"github.com/fxamacker/cbor/v2"

	"github.com/rhumbdb/rhumb"
)

// commandVersion, resultVersion and stateVersion are the encoding versions that this binary writes
// and reads. A new field or code needs a new version only if older binaries may still apply
// commands. Older binaries stop at a field or code that they do not know.
const (
	commandVersion = 1
	resultVersion  = 1
	stateVersion   = 1
)

// wireElementsMax bounds the arrays in a decoded message. The longest is the list of ranges in a
// state.
const wireElementsMax = rhumb.RangesMax

var (
	encMode = must(cbor.CoreDetEncOptions().EncMode())
	// Decoding is strict. If one binary ignored a duplicate key or an unknown field that another
	// one uses, their states would differ.
	decMode = must(cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		FieldNameMatching: cbor.FieldNameMatchingCaseSensitive,
		MaxNestedLevels:   16,
		MaxArrayElements:  wireElementsMax,
	}.DecMode())
)

// must panics on an error that only a wrong constant in this file can cause.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// encodeWire encodes a wire type of this package. Encoding them cannot fail.
func encodeWire(v any) []byte { return must(encMode.Marshal(v)) }

// decodeWire decodes into a wire type.
func decodeWire(op rhumb.Op, b []byte, v any) error {
	err := decMode.Unmarshal(b, v)
	if err == nil {
		return nil
	}
	// Only a newer binary adds fields, so an unknown one is not damage.
	if _, ok := errors.AsType[*cbor.UnknownFieldError](err); ok {
		return &rhumb.Error{Op: op, Kind: rhumb.Incompatible, Msg: "the encoding has a field that this binary does not know; use a newer binary", Err: err}
	}
	return &rhumb.Error{Op: op, Kind: rhumb.Corrupt, Msg: "the bytes are not CBOR of the expected form", Err: err}
}

// checkVersion returns an error if an encoding has another version. Version 0 means that the field
// is missing, which no binary writes, so that is damage rather than a newer format.
func checkVersion(op rhumb.Op, got, want uint8) error {
	switch {
	case got == want:
		return nil
	case got == 0:
		return rhumb.E(op, rhumb.Corrupt, "the encoding has no version")
	}
	return rhumb.Ef(op, rhumb.Incompatible, "the encoding has version %d, but this binary reads %d; use a newer binary", got, want)
}

// The wire types below are shared by commands, results and states. A struct that is encoded as an
// array never changes; a new field goes into the map that contains the array.
type wireRangeID struct {
	_      struct{} `cbor:",toarray"`
	Region rhumb.RegionID
	Slot   rhumb.Slot
}

type wirePoint struct {
	_        struct{} `cbor:",toarray"`
	Lat, Lon float64
}

type wireSettings struct {
	Mode      rhumb.Mode     `cbor:"1,keyasint"`
	Replicas  int            `cbor:"2,keyasint"`
	MinInSync int            `cbor:"3,keyasint"`
	Survival  rhumb.Survival `cbor:"4,keyasint"`
	HashSlots int            `cbor:"5,keyasint"`
	Buckets   int            `cbor:"60,keyasint,omitempty"`
	ShardSize int64          `cbor:"6,keyasint"`

	Regions rhumb.RegionSet `cbor:"7,keyasint,omitempty"`
	// A number: the text of a durability is for people.
	Durability rhumb.Durability `cbor:"8,keyasint,omitempty"`
}

type wirePlacement struct {
	_        struct{} `cbor:",toarray"`
	Region   rhumb.RegionID
	Replicas [][]rhumb.NodeID
}

type wireMember struct {
	_    struct{} `cbor:",toarray"`
	Node rhumb.NodeID
	Boot rhumb.BootSeq
}

type wireRange struct {
	_         struct{} `cbor:",toarray"`
	Region    rhumb.RegionID
	Slot      rhumb.Slot
	Class     rhumb.ClassID
	Epoch     rhumb.Epoch
	Allocated rhumb.Epoch
	Version   uint64
	Primary   rhumb.NodeID
	Preferred rhumb.NodeID
	InSync    []rhumb.NodeID
	Replicas  []rhumb.NodeID
}

func toWireRangeID(id rhumb.RangeID) *wireRangeID {
	return &wireRangeID{Region: id.Region, Slot: id.Slot}
}

func (w *wireRangeID) toRangeID() rhumb.RangeID {
	if w == nil {
		return rhumb.RangeID{}
	}
	return rhumb.RangeID{Region: w.Region, Slot: w.Slot}
}

func toWirePoint(p rhumb.Point) *wirePoint { return &wirePoint{Lat: p.Lat, Lon: p.Lon} }

func (w *wirePoint) toPoint() rhumb.Point {
	if w == nil {
		return rhumb.Point{}
	}
	return rhumb.Point{Lat: w.Lat, Lon: w.Lon}
}

func toWireSettings(s rhumb.ClassSettings) *wireSettings {
	w := wireSettings(s)
	return &w
}

func (w *wireSettings) toSettings() rhumb.ClassSettings {
	if w == nil {
		return rhumb.ClassSettings{}
	}
	return rhumb.ClassSettings(*w)
}

func toWireRange(r *rhumb.Range) *wireRange {
	if r == nil {
		return nil
	}
	return &wireRange{
		Region: r.ID.Region, Slot: r.ID.Slot, Class: r.Class, Epoch: r.Epoch, Allocated: r.Allocated, Version: r.Version,
		Primary: r.Primary, Preferred: r.Preferred, InSync: r.InSync, Replicas: r.Replicas,
	}
}

func (w *wireRange) toRange() *rhumb.Range {
	if w == nil {
		return nil
	}
	return &rhumb.Range{
		ID: rhumb.RangeID{Region: w.Region, Slot: w.Slot}, Class: w.Class, Epoch: w.Epoch, Allocated: w.Allocated, Version: w.Version,
		Primary: w.Primary, Preferred: w.Preferred, InSync: w.InSync, Replicas: w.Replicas,
	}
}
