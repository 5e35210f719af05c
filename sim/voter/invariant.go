package voter

// Invariant is a promise of the group that must hold in every state.
type Invariant uint8

const (
	// OneLeader: at most one life leads each term.
	OneLeader Invariant = 1 + iota
	// LeaderHolds: a leader holds every entry that was committed in an earlier term.
	LeaderHolds
	// OneHistory: at most one entry is committed at each position.
	OneHistory

	invariants
)

var invariantNames = [invariants]string{"", "one leader per term", "leader holds every committed entry", "one history"}

// String returns the invariant in a few words.
func (i Invariant) String() string {
	if i < invariants {
		return invariantNames[i]
	}
	return "no such invariant"
}

// markBroken records that the step in progress breaks an invariant. Only the first one of a step
// counts.
func (g *stepper) markBroken(i Invariant) {
	if g.broken == 0 {
		g.broken = i
	}
}
