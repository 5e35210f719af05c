package digest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// Answer is the digest of one replica, or the reason why there is none.
type Answer struct {
	Node rhumb.NodeID
	// Digest is nil if the replica did not answer; Err is why.
	Digest *storage.Digest
	Err    error
}

// Result is the outcome of a comparison.
type Result uint8

const (
	// Equal: all replicas that answered have the same records, and at least two did.
	Equal Result = iota + 1
	// Alone: fewer than two replicas answered, so nothing was compared.
	Alone
	// Differ: the replicas in Verdict.Differ differ from those that are trusted.
	Differ
	// Undecided: replicas differ, and none of the copies has a majority.
	Undecided
)

// String returns the stable name of the result.
func (r Result) String() string {
	return [...]string{"none", "equal", "alone", "differ", "undecided"}[r]
}

// Verdict says which replicas differ.
type Verdict struct {
	Result Result
	// Trusted are the replicas whose records are taken as right, Differ those with others, and Silent those
	// that did not answer.
	Trusted, Differ, Silent []rhumb.NodeID
	// Table is the first table in which replicas differ.
	Table rhumb.TableID
	// May is set if the replicas in Differ may be quarantined: enough others are in sync. Otherwise Why says
	// what is missing.
	May bool
	Why string
}

// Judge compares the answers of the replicas of a range. It is pure.
//
// A copy is trusted if more than half of the replicas in the record have it; those that are silent count
// against every copy, because they may agree with any of them. So of two copies that differ none is
// trusted, unless an operator names one of them: trust is that node, or rhumb.NoNode. Neither the primary's
// copy nor the newest one is better: a primary is a replica like the others, and it answers clients
// from the disk that may be wrong.
//
// Whoever is trusted, no replica is to be quarantined unless minInSync trusted members stay in sync: the
// range continues to serve, and the data for the new copy exists. ignored reports tables that do not exist any
// more; replicas delete their records at different times.
func Judge(r *rhumb.Range, minInSync int, answers []Answer, trust rhumb.NodeID, ignored func(rhumb.TableID) bool) Verdict {
	answers = slices.Clone(answers)
	slices.SortFunc(answers, func(a, b Answer) int { return cmp.Compare(a.Node, b.Node) })
	var v Verdict
	// Each group has equal digests. There are few replicas, so comparing each with the first of each group
	// costs nothing.
	var groups [][]Answer
	for _, a := range answers {
		if a.Digest == nil || r.IsQuarantined(a.Node) {
			v.Silent = append(v.Silent, a.Node)
			continue
		}
		at := slices.IndexFunc(groups, func(g []Answer) bool {
			_, differ := firstDifference(g[0].Digest, a.Digest, ignored)
			return !differ
		})
		if at < 0 {
			groups = append(groups, []Answer{a})
			continue
		}
		groups[at] = append(groups[at], a)
	}
	switch {
	case len(groups) == 0, len(groups) == 1 && len(groups[0]) == 1:
		v.Result, v.Why = Alone, "fewer than two replicas answered"
		return v
	case len(groups) == 1:
		v.Result, v.Trusted = Equal, nodesOf(groups[0])
		return v
	}
	v.Table, _ = firstDifference(groups[0][0].Digest, groups[1][0].Digest, ignored)
	at := slices.IndexFunc(groups, func(g []Answer) bool {
		if trust != rhumb.NoNode {
			return slices.Contains(nodesOf(g), trust)
		}
		return 2*len(g) > len(r.Replicas)
	})
	if at < 0 {
		v.Result = Undecided
		v.Why = undecidedReason(groups, trust)
		for _, g := range groups {
			v.Differ = append(v.Differ, nodesOf(g)...)
		}
		slices.Sort(v.Differ)
		return v
	}
	v.Result, v.Trusted = Differ, nodesOf(groups[at])
	for i, g := range groups {
		if i != at {
			v.Differ = append(v.Differ, nodesOf(g)...)
		}
	}
	slices.Sort(v.Differ)
	// Replicas that copy the log and are not in sync may be right, and do not replace those that are.
	left := 0
	for _, n := range v.Trusted {
		if r.IsInSync(n) && !r.IsQuarantined(n) {
			left++
		}
	}
	if least := max(minInSync, 1); left < least {
		v.Why = fmt.Sprintf("%d trusted replicas are in sync and the range needs %d; bring another replica in sync first", left, least)
		return v
	}
	v.May = true
	return v
}

// undecidedReason says why no copy is trusted.
func undecidedReason(groups [][]Answer, trust rhumb.NodeID) string {
	if trust != rhumb.NoNode {
		return fmt.Sprintf("%s, whose copy is to be trusted, did not answer", trust)
	}
	var b strings.Builder
	b.WriteString("no copy is that of a majority of the replicas:")
	for i, g := range groups {
		if i > 0 {
			b.WriteString(";")
		}
		fmt.Fprintf(&b, " %v have %d records", nodesOf(g), g[0].Digest.Records())
	}
	b.WriteString("; name the node whose copy is right with `rhumb range verify --trust NODE`, or bring another replica in sync")
	return b.String()
}

// nodesOf returns the nodes of a group, in ascending order because the answers are.
func nodesOf(g []Answer) (out []rhumb.NodeID) {
	for _, a := range g {
		out = append(out, a.Node)
	}
	return out
}

// firstDifference returns the first table in which two digests differ. A table that only one of them has is a
// difference: the other replica has lost all of its records, or never had them.
func firstDifference(a, b *storage.Digest, ignored func(rhumb.TableID) bool) (rhumb.TableID, bool) {
	// Both are sorted by table, as in a merge.
	x, y := a.Tables, b.Tables
	for len(x) > 0 || len(y) > 0 {
		switch {
		case len(y) == 0 || len(x) > 0 && x[0].Table < y[0].Table:
			if !ignored(x[0].Table) {
				return x[0].Table, true
			}
			x = x[1:]
		case len(x) == 0 || y[0].Table < x[0].Table:
			if !ignored(y[0].Table) {
				return y[0].Table, true
			}
			y = y[1:]
		default:
			if x[0] != y[0] && !ignored(x[0].Table) {
				return x[0].Table, true
			}
			x, y = x[1:], y[1:]
		}
	}
	return 0, false
}

// Confirmed reports whether a second verdict finds what a first one found: the same replicas differ from
// the same trusted ones. A difference that only one comparison finds may be an artefact of it.
func Confirmed(first, second *Verdict) bool {
	return first.Result == Differ && second.Result == Differ && second.May &&
		slices.Equal(first.Differ, second.Differ) && slices.Equal(first.Trusted, second.Trusted)
}
