package catalog

import (
	"cmp"
	"slices"

	"github.com/rhumbdb/rhumb"
)

// Result is the outcome of a command. Fields that do not apply are zero.
type Result struct {
	// Revision is the revision of the catalog after the command.
	Revision uint64
	// Failure is the reason of a refusal, or nil if the command was applied.
	Failure *rhumb.Error
	// Region, Node, Class and Table are the ids of the records that were created or found.
	Region rhumb.RegionID
	Node   rhumb.NodeID
	// Life is the number of the life that a registration began.
	Life  rhumb.BootSeq
	Class rhumb.ClassID
	Table rhumb.TableID
	// Operation is the id of the operation that was started or controlled.
	Operation rhumb.OperationID
	// Range is the present record of the range that the command is about: the new one, or after a
	// Conflict the one that the command did not expect. It is shared and must not be modified.
	Range *rhumb.Range
	// Items are the results of the commands of a Batch, in order.
	Items []Result
}

// Err returns the refusal as an error, or nil.
func (r Result) Err() error {
	// A nil *rhumb.Error in an error interface would not be nil.
	if r.Failure == nil {
		return nil
	}
	return r.Failure
}

// Changes lists the records that one or more commands touched, each list sorted and without
// repetition. The records themselves are in the State.
type Changes struct {
	Regions []rhumb.RegionID
	Nodes   []rhumb.NodeID
	Classes []rhumb.ClassID
	Tables  []rhumb.TableID
	Ranges  []rhumb.RangeID
	// Blocks are identified by their first slot.
	Blocks []rhumb.RangeID
	// Access reports that users, roles or grants changed.
	Access bool
	// Security reports that the security of the cluster changed (State.Security).
	Security bool
	// Operations were started, changed or trimmed.
	Operations []rhumb.OperationID
	// Settings reports that a setting changed.
	Settings bool
	// Version reports that the active cluster version changed (State.Version).
	Version bool
}

// Len returns the number of records. Users, roles and grants count as one, and so do the security and the version.
func (c Changes) Len() int {
	n := len(c.Regions) + len(c.Nodes) + len(c.Classes) + len(c.Tables) + len(c.Ranges) + len(c.Blocks) + len(c.Operations)
	if c.Access {
		n++
	}
	if c.Security {
		n++
	}
	if c.Settings {
		n++
	}
	if c.Version {
		n++
	}
	return n
}

// Merge returns the union of c and o.
func (c Changes) Merge(o Changes) Changes {
	return Changes{
		Regions: union(c.Regions, o.Regions, cmp.Compare),
		Nodes:   union(c.Nodes, o.Nodes, cmp.Compare),
		Classes: union(c.Classes, o.Classes, cmp.Compare),
		Tables:  union(c.Tables, o.Tables, cmp.Compare),
		Ranges:  union(c.Ranges, o.Ranges, rhumb.RangeID.Compare),
		Blocks:  union(c.Blocks, o.Blocks, rhumb.RangeID.Compare),

		Access:   c.Access || o.Access,
		Security: c.Security || o.Security,

		Operations: union(c.Operations, o.Operations, cmp.Compare),
		Settings:   c.Settings || o.Settings,
		Version:    c.Version || o.Version,
	}
}

// normalize returns c with sorted lists that have no repetition.
func (c Changes) normalize() Changes { return c.Merge(Changes{}) }

// union returns the elements of a and b in order, without repetition. It modifies neither, since a
// watch may still hold them.
func union[T comparable](a, b []T, compare func(T, T) int) []T {
	if len(a)+len(b) == 0 {
		return nil
	}
	out := append(slices.Clone(a), b...)
	slices.SortFunc(out, compare)
	return slices.Compact(out)
}
