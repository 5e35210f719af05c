package check

import (
	"fmt"
	"math"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Forever is the Return of an operation whose outcome never became known: the operation may take
// effect at any later time, or never.
const Forever = time.Duration(math.MaxInt64)

// Result is the outcome of an operation as its client saw it.
type Result uint8

// The results.
const (
	// Unknown means that no definite answer arrived. A write may have been applied.
	Unknown Result = iota
	// OK means that a read was answered or a write applied.
	OK
	// Unchanged means that an IfNewer condition turned the write into a no-op.
	Unchanged
	// ConditionFailed means that a condition of the write did not hold.
	ConditionFailed
	// NotApplied means that the operation was refused for a reason that does not depend on the
	// data.
	NotApplied
)

// String returns the name of the result, as used in traces.
func (r Result) String() string {
	return [...]string{"unknown", "ok", "unchanged", "condition_failed", "not_applied"}[r]
}

// Op is one operation of a client. A write has Mutations; a read has Names, and Items in the order
// of Names.
type Op struct {
	// ID identifies the operation in reports.
	ID int
	// Client identifies the client. A client has one operation in progress at a time.
	Client int
	Range  rhumb.RangeID
	// Part names the part of the range that always stays in one range: splits divide the range between its parts.
	Part int
	// Call and Return bound the operation in true time. The checks rely on true time, which only an
	// observer outside of the cluster has; timestamps of the cluster are among the data under test.
	Call, Return time.Duration
	Result       Result

	// Request is the request ID of a write.
	Request   rhumb.RequestID
	Mutations []rhumb.Mutation
	// Outcome is the answer to a write that was applied.
	Outcome rhumb.Outcome

	// Table and Names are the keys of a read, all read at one timestamp.
	Table rhumb.TableID
	Names [][]byte
	Items []Item
	// At is the timestamp of a read.
	At rhumb.Timestamp
}

// Item is the value that a read returned for one key. A zero Version means that the key did not
// exist.
type Item struct {
	Version rhumb.Version
	Value   []byte
}

// IsWrite reports whether the operation is a write.
func (o *Op) IsWrite() bool { return len(o.Mutations) > 0 }

// String describes the operation in one line.
func (o *Op) String() string {
	end := "-"
	if o.Return != Forever {
		end = o.Return.String()
	}
	head := fmt.Sprintf("op %d client %d range %s [%v %s] ", o.ID, o.Client, o.Range, o.Call, end)
	if !o.IsWrite() {
		for i, n := range o.Names {
			head += fmt.Sprintf("get %s ", rhumb.NameString(n))
			if i < len(o.Items) {
				head += fmt.Sprintf("= %v %x ", o.Items[i].Version, o.Items[i].Value)
			}
		}
		return head + fmt.Sprintf("at %d: %s", o.At, o.Result)
	}
	for _, m := range o.Mutations {
		head += fmt.Sprintf("%s %s %s %x ", m.Kind, m.Cond.Kind, rhumb.NameString(m.Name), m.Value)
	}
	return head + fmt.Sprintf("-> %d %v: %s", o.Outcome.Seq, o.Outcome.Version, o.Result)
}
