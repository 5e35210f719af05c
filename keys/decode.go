package keys

import (
	"encoding/binary"

	"github.com/rhumbdb/rhumb"
)

// Decoded is a decoded physical key. Fields that its kind does not have are zero.
type Decoded struct {
	Kind Kind
	// Home is the range of the key. For a local key it is the reserved region and the space.
	Home rhumb.RangeID
	// Table, Name and Version belong to data keys. Version is zero if the key has no suffix.
	Table   rhumb.TableID
	Name    []byte
	Version rhumb.Version
	// Seq is the position of a log entry.
	Seq rhumb.Seq
	// Request identifies the request whose result a dedup key holds.
	Request rhumb.RequestID
	// Field is the field of a replica's state.
	Field StateField
	// Local is a store-local key within its space.
	Local []byte
}

// Key returns the logical key of a data key.
func (d *Decoded) Key() rhumb.Key { return rhumb.Key{Table: d.Table, Home: d.Home, Name: d.Name} }

// Home returns the range of a physical key. It returns false if the key is too short to have one.
func Home(key []byte) (id rhumb.RangeID, ok bool) {
	if len(key) < homeSize {
		return id, false
	}
	return rhumb.RangeID{
		Region: rhumb.RegionID(binary.BigEndian.Uint32(key)),
		Slot:   rhumb.Slot(binary.BigEndian.Uint32(key[4:])),
	}, true
}

// KindOf returns the kind of a key without decoding the fields after it, or 0 if the key ends before its kind.
func KindOf(key []byte) Kind {
	if len(key) <= kindAt {
		return 0
	}
	return Kind(key[kindAt])
}

// DecodeData decodes a key that must be a data key. The name shares memory with the key unless it
// contains a zero byte.
func DecodeData(key []byte) (table rhumb.TableID, name []byte, v rhumb.Version, err error) {
	d, err := Decode(key)
	if err != nil {
		return 0, nil, v, err
	}
	if d.Kind != KindData {
		return 0, nil, v, corruptError(kindAt, "kind is "+d.Kind.String()+", want data")
	}
	return d.Table, d.Name, d.Version, nil
}

// Decode decodes a physical key. It returns Corrupt for bytes that no Append function of this
// package writes. The result shares memory with the key.
func Decode(key []byte) (Decoded, error) {
	home, ok := Home(key)
	if !ok || len(key) <= kindAt {
		return Decoded{}, corruptError(len(key), "the key ends before its kind")
	}
	d := Decoded{Kind: Kind(key[kindAt]), Home: home}
	// Local keys are never replicated. A kind in the wrong region would either leak a local key to other
	// nodes or hide a record from replication.
	local := home.Region == rhumb.LocalRegion
	if local != (d.Kind == KindLocal) {
		return d, corruptError(kindAt, "kind "+d.Kind.String()+" does not belong into this region")
	}
	var err error
	switch d.Kind {
	case KindData:
		err = d.decodeRecord(key)
	case KindLog:
		if err = checkTail(key, 8); err == nil {
			d.Seq = rhumb.Seq(binary.BigEndian.Uint64(key[tailAt:]))
		}
	case KindDedup:
		if err = checkTail(key, 24); err == nil {
			copy(d.Request.Client[:], key[tailAt:])
			d.Request.Seq = binary.BigEndian.Uint64(key[tailAt+16:])
		}
	case KindState:
		if err = checkTail(key, 1); err == nil {
			d.Field = StateField(key[tailAt])
		}
	case KindLocal:
		var rest []byte
		if d.Local, rest, ok = decodeEscaped(key[tailAt:]); !ok || len(rest) > 0 {
			err = corruptError(tailAt, "local key is badly escaped or has bytes behind its end")
		}
	default:
		err = corruptError(kindAt, "unknown "+d.Kind.String())
	}
	if err != nil {
		return Decoded{}, err
	}
	return d, nil
}

// decodeRecord decodes the parts of a data key.
func (d *Decoded) decodeRecord(key []byte) error {
	if len(key) < nameAt {
		return corruptError(len(key), "the key ends before its name")
	}
	d.Table = rhumb.TableID(binary.BigEndian.Uint32(key[tailAt:]))
	name, rest, ok := decodeEscaped(key[nameAt:])
	if !ok {
		return corruptError(nameAt, "name is badly escaped or not ended")
	}
	d.Name = name
	// A key without a version is the prefix that all versions share, as used in bounds and filters.
	switch at := len(key) - len(rest); {
	case len(rest) == 0:
		return nil
	case len(rest) != VersionSuffixSize || rest[VersionSuffixSize-1] != VersionSuffixSize:
		return corruptError(at, "bytes behind the name are no version")
	}
	d.Version = decodeVersion(rest)
	return nil
}

// checkTail checks that a key has n bytes and a zero byte after its kind.
func checkTail(key []byte, n int) error {
	if len(key) != tailAt+n+1 || key[len(key)-1] != end {
		return corruptError(tailAt, "the key has the wrong length or end for its kind")
	}
	return nil
}

// corruptError returns an error about the byte at offset.
func corruptError(offset int, what string) error {
	return rhumb.Ef("keys.Decode", rhumb.Corrupt, "%s (offset %d)", what, offset)
}

// AppendShardKey appends the sixteen bytes of a shard key: region, slot, sequence (TippyDB, section 3.1).
func AppendShardKey(dst []byte, k rhumb.ShardKey) []byte {
	return binary.BigEndian.AppendUint64(appendHome(dst, k.Home), k.Sequence)
}

// DecodeShardKey decodes the sixteen bytes of a shard key.
func DecodeShardKey(b []byte) (k rhumb.ShardKey, err error) {
	if len(b) != rhumb.ShardKeySize {
		return k, rhumb.Ef("keys.DecodeShardKey", rhumb.Corrupt, "shard key has %d bytes; shard keys have %d", len(b), rhumb.ShardKeySize)
	}
	k.Home, _ = Home(b)
	k.Sequence = binary.BigEndian.Uint64(b[homeSize:])
	return k, nil
}
