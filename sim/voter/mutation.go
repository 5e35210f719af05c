package voter

import "slices"

// Mutation names a part of the rule that a Config can leave out.
type Mutation uint8

// The parts of the rule. Findings tells where leaving one out shows.
const (
	// WholeRule leaves out nothing.
	WholeRule Mutation = iota
	// SilentAtStart: a voter that starts takes no part before it has asked or was admitted.
	SilentAtStart
	// SilentUncounted: acknowledgements of a silent voter do not count.
	SilentUncounted
	// VoteAboveAnswers: a voter that has asked votes in no term up to the greatest of the answers.
	VoteAboveAnswers
	// VoteAboveFloor: nor for a candidate whose log is behind the greatest of the answers.
	VoteAboveFloor
	// CandidateAboveFloor: nor is it a candidate while its own log is.
	CandidateAboveFloor
	// ShortUntilReached: a voter whose damage was noticed remembers that across starts, until its log has reached the
	// greatest of all answers or it was admitted.
	ShortUntilReached
	// AdmissionCommitted: an admission holds once it is committed.
	AdmissionCommitted
	// AdmissionOfThisLife: an admission is for one life.
	AdmissionOfThisLife

	mutations
)

// Finding tells where leaving out a part of the rule shows.
type Finding struct {
	Mutation Mutation
	// Name is how the mutation is called on the command line.
	Name string
	// Config shows it, and Breaks is the invariant that fails first there.
	Config Config
	Breaks Invariant
}

// Findings lists every part of the rule that can be left out. The last three leave out nothing but exceed what the rule
// survives.
func Findings() []Finding {
	out := slices.Clone(findings)
	for i := range out {
		out[i].Config.Without = out[i].Mutation
	}
	return out
}

var findings = []Finding{
	{SilentAtStart, "silent-at-start", asking, OneLeader},
	{SilentUncounted, "silent-uncounted", asking, LeaderHolds},
	{VoteAboveAnswers, "vote-above-answers", askingThrice, OneLeader},
	{VoteAboveFloor, "vote-above-floor", asking, LeaderHolds},
	{CandidateAboveFloor, "candidate-above-floor", asking, LeaderHolds},
	{ShortUntilReached, "short-until-reached", noticed, OneLeader},
	{AdmissionCommitted, "admission-committed", admission, LeaderHolds},
	{AdmissionOfThisLife, "admission-of-this-life", readmission, OneLeader},
	{WholeRule, "one-answer-of-two", Config{
		Voters: 3, Terms: 2, Entries: 1, Restarts: 1, Damages: 1, Damaged: 1, Messages: 1, Asking: true, Answers: 1,
	}, OneLeader},
	{WholeRule, "three-answers-of-four", Config{
		Voters: 5, Terms: 2, Restarts: 1, Damages: 1, Damaged: 1, Messages: 1, Asking: true, Answers: 3,
	}, OneLeader},
	{WholeRule, "two-of-three-damaged", Config{
		Voters: 3, Terms: 2, Entries: 1, Restarts: 2, Damages: 2, Damaged: 2, Messages: 1, Asking: true,
	}, OneLeader},
}
