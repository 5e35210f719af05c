package check

import (
	"fmt"
	"math"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Forever is the Return of an operation whose outcome never became known: it may take effect at any later time, or never.
const Forever = time.Duration(math.MaxInt64)

// Result is what became of an operation, as its client saw it.
type Result uint8

// The results.
const (
	// Unknown: no answer, or one that says so. A write may have been applied.
	Unknown Result = iota
	// OK: a read answered, a write applied.
	OK
	// Unchanged: the write's IfNewer condition made it a no-op.
	Unchanged
	// ConditionFailed: a condition of the write did not hold.
	ConditionFailed
	// NotApplied: refused for a reason that says nothing about the state.
	NotApplied
)

// String names the result in traces.
func (r Result) String() string {
	return [...]string{"unknown", "ok", "unchanged", "condition_failed", "not_applied"}[r]
}

// Op is one operation of a client. A write has Mutations; a read has Names, and Items in the order of Names.
type Op struct {
	// ID tells operations apart in messages.
	ID int
	// Client is a small number; one client has one operation at a time.
	Client int
	Range  rhumb.RangeID
	// Call and Return bound the operation in true time.
	Call, Return time.Duration
	Result       Result

	// Request is the write's request id.
	Request   rhumb.RequestID
	Mutations []rhumb.Mutation
	// Outcome is the answer to a write that was applied.
	Outcome rhumb.Outcome

	// Table and Names are what a read asked for: all keys at one timestamp.
	Table rhumb.TableID
	Names [][]byte
	Items []Item
	// At is the timestamp at which a read saw the range.
	At rhumb.Timestamp
}

// Item is what a read saw of one key; the zero Version says that the key did not exist.
type Item struct {
	Version rhumb.Version
	Value   []byte
}

// IsWrite reports whether the operation writes.
func (o *Op) IsWrite() bool { return len(o.Mutations) > 0 }

// String gives one line for a person.
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
