package place

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Refusals are the commands of one round of plans that the catalog refused. The zero value is empty.
//
// A plan follows from the state, so a step that is refused is planned again in the next round, without end if nothing changes. Its
// operation then names the refusal as its obstacle. There are at most as many refusals as commands in a round.
type Refusals struct{ of map[subject][]refusal }

// subject is the object of a command: a range, a node or a region. The other fields are 0.
type subject struct {
	Range  rhumb.RangeID
	Node   rhumb.NodeID
	Region rhumb.RegionID
}

// refusal is why a command was refused.
type refusal struct{ command, why string }

// Add notes the result of a command. It reports whether the command was refused for a reason that concerns the plan. If the record has
// changed since the plan was made, the next plan knows more, and nothing is wrong.
func (f *Refusals) Add(cmd catalog.Command, res catalog.Result) bool {
	if res.Failure == nil || isLate(cmd, res) {
		return false
	}
	if f.of == nil {
		f.of = make(map[subject][]refusal)
	}
	about := subjectOf(cmd)
	f.of[about] = append(f.of[about], refusalOf(cmd, res))
	return true
}

// refusalOf returns why a command was refused, without the operation that package catalog puts before its errors.
func refusalOf(cmd catalog.Command, res catalog.Result) refusal {
	return refusal{CommandName(cmd), res.Failure.Msg}
}

// CommandName returns the name of a command, for logs.
func CommandName(cmd catalog.Command) string {
	return strings.TrimPrefix(fmt.Sprintf("%T", cmd), "catalog.")
}

// Heed makes the planner take note of the refusals of a round that has ended. They replace those of the round before it.
func (p *Planner) Heed(f Refusals) { p.refused = f }

// KnowsRefusal reports whether the same command was refused with the same words in the last round.
func (p *Planner) KnowsRefusal(cmd catalog.Command, res catalog.Result) bool {
	return slices.Contains(p.refused.of[subjectOf(cmd)], refusalOf(cmd, res))
}

// whyRefused returns why the catalog refused a command about a subject in the last round, or "".
func (p *Planner) whyRefused(about subject) string {
	if all := p.refused.of[about]; len(all) > 0 {
		return "the metadata refuses the next step: " + all[0].why
	}
	return ""
}

// isLate reports whether a command names a version that its record no longer had.
func isLate(cmd catalog.Command, res catalog.Result) bool {
	// An operator pauses an operation, or another leader has recorded a step.
	if _, ok := cmd.(catalog.UpdateOperation); ok {
		return res.Failure.Kind == rhumb.Conflict
	}
	_, version, versioned := rangeOf(cmd)
	return versioned && res.Range != nil && res.Range.Version != version
}

// subjectOf returns the object of a command. Commands about anything else share the empty subject, which no operation asks for.
func subjectOf(cmd catalog.Command) subject {
	if id, _, ok := rangeOf(cmd); ok {
		return subject{Range: id}
	}
	switch c := cmd.(type) {
	case catalog.ForgetNode:
		return subject{Node: c.Node}
	case catalog.RemoveRegion:
		return subject{Region: c.Region}
	case catalog.StartOperation:
		return subject{Range: c.Range, Node: c.Node, Region: c.Region}
	}
	return subject{}
}

// rangeOf returns the range whose record a planned command changes, and the version that the record must have; ok is false for other commands.
func rangeOf(cmd catalog.Command) (id rhumb.RangeID, version uint64, ok bool) {
	switch c := cmd.(type) {
	case catalog.SetReplicas:
		return c.Range, c.Version, true
	case catalog.SetLeaving:
		return c.Range, c.Version, true
	case catalog.Elect:
		return c.Range, c.Version, true
	case catalog.PrepareHandover:
		return c.Range, c.Version, true
	case catalog.CancelHandover:
		return c.Range, c.Version, true
	case catalog.PrepareMerge:
		return c.Range, c.Version, true
	}
	return id, 0, false
}
