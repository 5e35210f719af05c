package model

import (
	"fmt"
	"slices"
)

// Conformance: the rules of one replica, stated about the glimpses that an observer has of it before and after a step. An implementation that runs
// under observation is checked against them step by step (package sim does so), and TestGuards checks the guards themselves
// on the model: they accept every step of the whole protocol, and each refuses a step when its rule is left out.

// Glimpse is the view that an observer has of a replica at one moment. Positions count entries from 1; nodes are any numbers.
type Glimpse struct {
	Self, Promised uint64
	// Primary reports that the replica acts as primary of the promised epoch, Elected that it prepares to.
	Primary, Elected bool
	// Last is the end of the log, and Start the position of the own epoch-start entry.
	Last, Commit, Start uint64
	// Appended counts the entries that were appended.
	Appended uint64
	// Version is that of the record that InSync is from. Pending is the wanted set, nil without one. Sent reports that it was proposed.
	Version         uint64
	InSync, Pending []uint64
	Sent            bool
	// Match is the position up to which each node has acknowledged the log, the replica included.
	Match map[uint64]uint64
	// Answers are the members, the replica included, that answered PREPARE of the promised epoch; Vouched reports that
	// one of them answered from the life that the record names, and Unasked that the epoch needs no answers.
	Answers          []uint64
	Vouched, Unasked bool
}

// Guards check steps of a replica of a range.
type Guards struct {
	// MinInSync is the least size of an in-sync set.
	MinInSync int
}

// Two glimpses say nothing about the messages between them. So a guard states what must be true of any step that changes a glimpse in its way,
// not which step it was. Steps that end a life are not compared: the caller begins again with the first glimpse of the next.

// guards are the rules in the order in which they are checked. The name of a guard is that of a mutation, where the model has one.
var guards = []struct {
	name   string
	broken func(g *Guards, a, b *Glimpse) bool
}{
	{"durable-promise", func(_ *Guards, a, b *Glimpse) bool { return b.Promised < a.Promised }},
	{"commit-is-stable", func(_ *Guards, a, b *Glimpse) bool { return b.Commit < a.Commit || b.Last < b.Commit }},
	{"no-cut-to-commit", func(_ *Guards, a, b *Glimpse) bool {
		// Entries are undone only where those of a later epoch take their place.
		return b.Last < a.Last && b.Appended == a.Appended && !a.Elected
	}},
	{"commit-needs-all", (*Guards).commitsEarly},
	{"prepare-quorum", (*Guards).beginsEarly},
	{"change-in-bounds", (*Guards).changesTooMuch},
	{"join-from-start", (*Guards).joinsEarly},
	{"pending-until-version", (*Guards).endsChangeEarly},
}

// Check returns the name of the first rule that a step breaks and a description, or "". Both glimpses are of one life of the replica.
func (g *Guards) Check(before, after *Glimpse) (rule, what string) {
	for _, r := range guards {
		if r.broken(g, before, after) {
			return r.name, fmt.Sprintf("from %+v to %+v", *before, *after)
		}
	}
	return "", ""
}

// holdAll reports whether all members of a set have acknowledged a position.
func (b *Glimpse) holdAll(members []uint64, at uint64) bool {
	return !slices.ContainsFunc(members, func(n uint64) bool { return b.Match[n] < at })
}

// leads reports whether a step begins and ends in the same epoch of a primary.
func leads(a, b *Glimpse) bool { return a.Primary && b.Primary && a.Promised == b.Promised }

// commitsEarly is rule C: a primary commits entries from its epoch-start entry on, when all members of its set and of the wanted set have them. In one step a
// replica may commit with the sets before it and then begin a change, so either sets justify a commit.
func (g *Guards) commitsEarly(a, b *Glimpse) bool {
	if !leads(a, b) || b.Commit == a.Commit {
		return false
	}
	// The acknowledgements are those after the step: they only grow within an epoch and a life.
	by := func(x *Glimpse) bool {
		return len(x.InSync) >= g.MinInSync && b.holdAll(x.InSync, b.Commit) && b.holdAll(x.Pending, b.Commit)
	}
	// A newer record may have ended one change, or one that was not proposed may have been dropped, before another one began in the same
	// step.
	dropped := a.Pending != nil && !a.Sent && !slices.Equal(a.Pending, b.Pending)
	ended := (b.Version > a.Version || dropped) && len(b.InSync) >= g.MinInSync && b.holdAll(b.InSync, b.Commit)
	return b.Commit < b.Start || !by(a) && !by(b) && !ended
}

// beginsEarly is rule P: an elected node begins its epoch when enough members have answered, or one of the life that the record names.
func (g *Guards) beginsEarly(a, b *Glimpse) bool {
	if !b.Primary || leads(a, b) || b.Unasked || b.Vouched {
		return false
	}
	// Answers count that were given by members before or after the record changed within the step.
	members := 0
	for _, n := range b.Answers {
		if slices.Contains(b.InSync, n) || slices.Contains(a.InSync, n) {
			members++
		}
	}
	return members < g.MinInSync
}

// changesTooMuch is rule R: a change begins when none is pending, keeps the primary and the least size, and one wanted set does not
// become another.
func (g *Guards) changesTooMuch(a, b *Glimpse) bool {
	if !leads(a, b) || b.Pending == nil || slices.Equal(a.Pending, b.Pending) && a.Version == b.Version {
		return false
	}
	// A wanted set that nobody heard of may be dropped and replaced.
	replaced := a.Pending != nil && a.Version == b.Version && a.Sent
	return replaced || len(b.Pending) < g.MinInSync || !slices.Contains(b.Pending, b.Self)
}

// joinsEarly is rule R: when a change is proposed, the joining members have all that clients may know.
func (g *Guards) joinsEarly(a, b *Glimpse) bool {
	if !b.Primary || !b.Sent || a.Sent && a.Version == b.Version {
		return false
	}
	joining := slices.DeleteFunc(slices.Clone(b.Pending), func(n uint64) bool { return slices.Contains(b.InSync, n) })
	// Entries that were appended in the same step, after the proposal, are above both positions.
	return !b.holdAll(joining, max(a.Commit, b.Start))
}

// endsChangeEarly is rule R: a change that was proposed ends with a newer version of the record.
func (g *Guards) endsChangeEarly(a, b *Glimpse) bool {
	return leads(a, b) && a.Sent && b.Pending == nil && b.Version <= a.Version
}

// GuardNames returns the names of the guards.
func GuardNames() (out []string) {
	for _, r := range guards {
		out = append(out, r.name)
	}
	return out
}
