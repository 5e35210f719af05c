package voter

// Invariant is a promise of the group.
type Invariant uint8

const (
	// OneLeader: no two lives lead one term.
	OneLeader Invariant = 1 + iota
	// LeaderHolds: a leader holds every entry that was committed before its term began.
	LeaderHolds
	// OneHistory: no two entries are committed at one position.
	OneHistory

	invariants
)

var invariantNames = [invariants]string{"", "one leader per term", "leader holds every committed entry", "one history"}

// String names the invariant in a few words.
func (i Invariant) String() string {
	if i < invariants {
		return invariantNames[i]
	}
	return "no such invariant"
}

// fail notes that the step being made breaks an invariant. The first counts.
func (g *stepper) markBroken(i Invariant) {
	if g.broken == 0 {
		g.broken = i
	}
}
