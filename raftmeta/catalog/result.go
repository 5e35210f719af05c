package catalog

import (
	"cmp"
	"slices"

	"github.com/rhumbdb/rhumb"
)

// Result is what a command gives. Fields that do not apply are zero.
type Result struct {
	// Revision is the catalog's after the command.
	Revision uint64
	// Failure says why the command was refused; nil when it was done.
	Failure *rhumb.Error
	// Region, Node, Class and Table are what was made or found.
	Region rhumb.RegionID
	Node   rhumb.NodeID
	// Life is the number of the life that a registration began.
	Life  rhumb.BootSeq
	Class rhumb.ClassID
	Table rhumb.TableID
	// Range is the record of the range the command is about, as it is now: the new one, or with Conflict the one that was
	// in the way. It is shared: only read it.
	Range *rhumb.Range
	// Items are the results of a Batch, one for each command.
	Items []Result
}

// Err gives the refusal as an error, or nil.
func (r Result) Err() error {
	if r.Failure == nil {
		return nil
	}
	return r.Failure
}

// Changes lists what one or several applies touched, each list sorted and without repeats. Look the records up in the
// State.
type Changes struct {
	Regions []rhumb.RegionID
	Nodes   []rhumb.NodeID
	Classes []rhumb.ClassID
	Tables  []rhumb.TableID
	Ranges  []rhumb.RangeID
	// Blocks are named by their first slot.
	Blocks []rhumb.RangeID
}

// Len is the number of records touched.
func (c Changes) Len() int {
	return len(c.Regions) + len(c.Nodes) + len(c.Classes) + len(c.Tables) + len(c.Ranges) + len(c.Blocks)
}

// Merge gives what either lists.
func (c Changes) Merge(o Changes) Changes {
	return Changes{
		Regions: union(c.Regions, o.Regions, cmp.Compare),
		Nodes:   union(c.Nodes, o.Nodes, cmp.Compare),
		Classes: union(c.Classes, o.Classes, cmp.Compare),
		Tables:  union(c.Tables, o.Tables, cmp.Compare),
		Ranges:  union(c.Ranges, o.Ranges, rhumb.RangeID.Compare),
		Blocks:  union(c.Blocks, o.Blocks, rhumb.RangeID.Compare),
	}
}

// normalize sorts the lists and drops repeats.
func (c Changes) normalize() Changes { return c.Merge(Changes{}) }

func union[T comparable](a, b []T, compare func(T, T) int) []T {
	if len(a)+len(b) == 0 {
		return nil
	}
	out := append(slices.Clone(a), b...)
	slices.SortFunc(out, compare)
	return slices.Compact(out)
}
