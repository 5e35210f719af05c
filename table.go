package rhumb

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Mode is how the ranges of a class keep their copies together.
type Mode uint8

// The modes. Modes stand in stored bytes: append only.
const (
	// Strong: acknowledged when every in-sync replica has it on disk. No acknowledged write is ever lost.
	Strong Mode = 1
	// Available: both sides of a partition go on and merge when it heals (TippyDB's choice).
	Available Mode = 2
)

// String gives the stable name of the mode.
func (m Mode) String() string {
	switch m {
	case Strong:
		return "strong"
	case Available:
		return "available"
	}
	return fmt.Sprintf("mode_%d", uint8(m))
}

// Survival is the failure that a class survives without a pause to restore data.
type Survival uint8

// The survival goals. They stand in stored bytes: append only.
const (
	// SurviveZone keeps all replicas in the home region, spread over its zones.
	SurviveZone Survival = 1
	// SurviveRegion keeps replicas in several regions.
	SurviveRegion Survival = 2
)

// String gives the stable name of the goal.
func (s Survival) String() string {
	switch s {
	case SurviveZone:
		return "zone"
	case SurviveRegion:
		return "region"
	}
	return fmt.Sprintf("survival_%d", uint8(s))
}

// ClassSettings say how the ranges of a class are replicated. Tables with equal settings share a class. A table's
// settings are fixed when it is created. The type is comparable: equality is "replicates alike".
type ClassSettings struct {
	// Mode is Strong by default.
	Mode Mode `json:"mode"`
	// Replicas is the replication factor, 1 to ReplicasMax; default ReplicasDefault.
	Replicas int `json:"replicas"`
	// MinInSync is the least size of an in-sync set, 1 to Replicas; default MinInSyncDefault, or 1 for one replica.
	MinInSync int `json:"min_in_sync"`
	// Survival is SurviveZone by default.
	Survival Survival `json:"survival"`
	// HashSlots is the number of hash slots in each region, 1 to BlockSlots; default HashSlotsDefault.
	HashSlots int `json:"hash_slots"`
	// ShardSize is the size in bytes at which a node's active slot counts as full; default ShardSizeDefault.
	ShardSize int64 `json:"shard_size"`
}

// DefaultClassSettings gives the settings of a table for which nobody asked for others.
func DefaultClassSettings() ClassSettings {
	return ClassSettings{
		Mode: Strong, Replicas: ReplicasDefault, MinInSync: MinInSyncDefault, Survival: SurviveZone,
		HashSlots: HashSlotsDefault, ShardSize: ShardSizeDefault,
	}
}

// Validate lists everything that is wrong with the settings.
func (c ClassSettings) Validate() error {
	const op Op = "rhumb.ClassSettings"
	var faults []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(c.Mode != Strong, "mode %s is not offered yet; use strong", c.Mode)
	fault(c.Survival != SurviveZone, "survival goal %s is not offered yet; use zone", c.Survival)
	fault(c.Replicas < 1 || c.Replicas > ReplicasMax, "replicas is %d, want 1 to %d", c.Replicas, ReplicasMax)
	fault(c.MinInSync < 1 || c.MinInSync > max(c.Replicas, 1), "min_in_sync is %d, want 1 to %d", c.MinInSync, c.Replicas)
	fault(c.HashSlots < 1 || c.HashSlots > BlockSlots, "hash_slots is %d, want 1 to %d", c.HashSlots, BlockSlots)
	fault(c.ShardSize < 1<<20 || c.ShardSize > RangeSizeMax, "shard_size is %d bytes, want 1 MiB to %d", c.ShardSize, RangeSizeMax)
	if len(faults) > 0 {
		return E(op, InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// Class is a set of tables that replicate alike.
type Class struct {
	ID       ClassID       `json:"id"`
	Settings ClassSettings `json:"settings"`
}

// TableNameSizeMax bounds the name of a table, in bytes.
const TableNameSizeMax = 128

// LocationFieldDefault is the field that holds a record's location unless the table names another.
const LocationFieldDefault = "location"

// Table is a named set of records.
type Table struct {
	ID    TableID `json:"id"`
	Name  string  `json:"name"`
	Class ClassID `json:"class"`
	// Colocate, when not 0, is the byte at which a name is cut before it is hashed to a slot: names that are equal up to
	// it share a range, across all tables of the class, so that one batch may write them together. 0 hashes the whole name.
	Colocate byte `json:"colocate,omitempty"`
	// LocationField names the field that holds a record's location (point or box).
	LocationField string `json:"location_field"`
	// History is how long superseded versions are kept; 0 keeps none beyond what replication needs.
	History time.Duration `json:"history,omitempty"`
	// Snapshot says whether and how nodes publish the table in shared memory; 0 does not.
	Snapshot SnapshotFeatures `json:"snapshot,omitempty"`
}

// SnapshotFeatures are what a table has in the images that nodes publish, as bits. They stand in stored bytes: append only.
type SnapshotFeatures uint8

// The features. All others need SnapshotOn.
const (
	// SnapshotOn publishes the table.
	SnapshotOn SnapshotFeatures = 1
	// SnapshotSpatial indexes records by their location.
	SnapshotSpatial SnapshotFeatures = 2
	// SnapshotOrdered allows scans by prefix.
	SnapshotOrdered SnapshotFeatures = 4
	// SnapshotSummed gives every record a checksum.
	SnapshotSummed SnapshotFeatures = 8

	snapshotFeaturesEnd SnapshotFeatures = 16
)

// SnapshotNameSizeMax bounds a record's name in a table that is published, SnapshotFieldSizeMax the name of its location
// field, in bytes.
const (
	SnapshotNameSizeMax  = 254
	SnapshotFieldSizeMax = 63
)

var snapshotFeatureNames = [...]string{"plain", "spatial", "ordered", "summed"}

// Has reports whether all features of o are among s.
func (s SnapshotFeatures) Has(o SnapshotFeatures) bool { return s&o == o }

// String lists the features, "plain" for a table that is published without any more, "" for one that is not published.
func (s SnapshotFeatures) String() string {
	if s&SnapshotOn == 0 {
		return ""
	}
	var names []string
	for i, name := range snapshotFeatureNames[1:] {
		if s&(SnapshotSpatial<<i) != 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return snapshotFeatureNames[0]
	}
	return strings.Join(names, ",")
}

// ParseSnapshotFeatures reads what SnapshotFeatures.String writes.
func ParseSnapshotFeatures(s string) (f SnapshotFeatures, err error) {
	const op Op = "rhumb.ParseSnapshotFeatures"
	if s == "" {
		return 0, nil
	}
	f = SnapshotOn
	for name := range strings.SplitSeq(s, ",") {
		i := slices.Index(snapshotFeatureNames[:], name)
		if i < 0 {
			return 0, Ef(op, InvalidArgument, "%q is no feature of a snapshot; use %s, with commas between", name, strings.Join(snapshotFeatureNames[:], ", "))
		}
		f |= 1 << i
	}
	return f, nil
}

// Validate refuses bits without a meaning, and features of a table that is not published.
func (s SnapshotFeatures) Validate() error {
	if s >= snapshotFeaturesEnd || s != 0 && s&SnapshotOn == 0 {
		return Ef("rhumb.SnapshotFeatures", InvalidArgument, "snapshot features %#x are not known", uint8(s))
	}
	return nil
}

// ValidateTableName refuses names that are empty, long, or hold anything but letters, digits, '_', '-' and '.'.
func ValidateTableName(name string) error {
	const op Op = "rhumb.Table"
	if name == "" || len(name) > TableNameSizeMax {
		return Ef(op, InvalidArgument, "a table name has 1 to %d characters, %.20q has %d", TableNameSizeMax, name, len(name))
	}
	for _, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.') {
			return Ef(op, InvalidArgument, "table name %q holds %q; use letters, digits, '_', '-' and '.'", name, c)
		}
	}
	return nil
}
