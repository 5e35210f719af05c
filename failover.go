package rhumb

import "time"

// FailoverFate is what a failure means for a range.
type FailoverFate string

// The fates. Their text is part of the interface of `rhumb plan failover -o json`.
const (
	// FailoverTakesOver: another in-sync copy becomes primary, and the range is served.
	FailoverTakesOver FailoverFate = "takes-over"
	// FailoverStays: the primary survives. Writes wait until the failed copy has left the in-sync set.
	FailoverStays FailoverFate = "stays"
	// FailoverUnserved: the range takes no writes until a node returns, or an operator decides.
	FailoverUnserved FailoverFate = "unserved"
)

// RangeFailover is what a failure means for one range.
type RangeFailover struct {
	Range RangeID
	Fate  FailoverFate
	// From is the primary now, and To the primary after the failure: NoNode if nobody can take over.
	From NodeID
	To   NodeID
	// Left are the in-sync copies that survive.
	Left []NodeID
	// Pause bounds the time for which writes wait; 0 if the range is not served.
	Pause time.Duration
	// Reason says why the range is not served.
	Reason string
}

// A bound without its parts could not be checked by the person who reads it, and a change of a timing would change it without a
// trace. So a plan carries the parts, with the reason for each.

// PauseStep is a part of a pause: what takes up to so long.
type PauseStep struct {
	Name string
	Most time.Duration
	Why  string
}

// PausePlan is the bound of a pause of writes with the parts of which it consists. The bound is their sum.
type PausePlan struct {
	Most  time.Duration
	Steps []PauseStep
}

// FailoverPlan says beforehand what happens when some nodes fail together.
type FailoverPlan struct {
	// Kind is "node", "zone" or "region". Name is the name of what fails, and Nodes are the nodes in it that count as alive now.
	Kind  string
	Name  string
	Nodes []NodeID
	// Ranges are those with a failing node in their in-sync set, ordered by id. Untouched counts the others.
	Ranges    []RangeFailover
	Untouched int
	// TakeOver bounds the pause of ranges whose primary fails, and Stall that of ranges which lose another in-sync copy. They
	// are for the range with the longest pause.
	TakeOver PausePlan
	Stall    PausePlan
	// Voters counts the voters of the metadata group, and VotersLeft those that survive. LeaderFails is whether the leader is
	// among the nodes. Without a majority nobody can be elected.
	Voters      int
	VotersLeft  int
	LeaderFails bool
}

// HasMajority reports whether the metadata group can still decide.
func (p *FailoverPlan) HasMajority() bool { return 2*p.VotersLeft > p.Voters }
