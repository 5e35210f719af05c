package voter

import "slices"

// Mutation is a part of the rule that a Config can leave out.
type Mutation uint8

// The parts of the rule. Findings lists the harm that leaving one out does.
const (
	// WholeRule leaves out nothing.
	WholeRule Mutation = iota
	// SilentAtStart: a voter that starts does not take part before it has asked or was admitted.
	SilentAtStart
	// SilentUncounted: acknowledgements of a silent voter do not count.
	SilentUncounted
	// VoteAboveAnswers: a voter that has asked votes in no term up to the greatest in the answers.
	VoteAboveAnswers
	// VoteAboveFloor: a voter that has asked votes for no candidate whose log ends before the
	// greatest log in the answers.
	VoteAboveFloor
	// CandidateAboveFloor: a voter that has asked does not campaign while its own log ends before
	// the greatest log in the answers.
	CandidateAboveFloor
	// ShortUntilAnswered: a voter whose damage was noticed remembers it across starts, until all others
	// have answered or it was admitted.
	ShortUntilAnswered
	// FloorStored: a voter remembers the greatest log in the answers across starts, until its log has
	// reached it.
	FloorStored
	// DamageEndsFloor: a damage that is noticed makes the voter ask all others, whatever it remembers.
	DamageEndsFloor
	// AdmissionCommitted: an admission counts once it is committed.
	AdmissionCommitted
	// AdmissionOfThisLife: an admission is for one life.
	AdmissionOfThisLife
	// LearnerKnowsAdmission: a learner acknowledges only when it knows that this life was admitted.
	LearnerKnowsAdmission
	// PromotionOfThisLife: a promotion is for one life.
	PromotionOfThisLife

	mutations
)

// Finding is a configuration in which leaving out a part of the rule does harm.
type Finding struct {
	Mutation Mutation
	// Name is the name of the mutation on the command line.
	Name string
	// Config is the group in which the harm shows, and Breaks the invariant that breaks first in
	// it.
	Config Config
	Breaks Invariant
}

// Findings lists every part of the rule that can be left out. The last three leave out nothing;
// they exceed the failures that the rule survives.
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
	{ShortUntilAnswered, "short-until-answered", noticed, OneLeader},
	{FloorStored, "floor-stored", noticed, LeaderHolds},
	{DamageEndsFloor, "damage-ends-floor", noticedTwice, LeaderHolds},
	{AdmissionCommitted, "admission-committed", admission, LeaderHolds},
	{AdmissionOfThisLife, "admission-of-this-life", readmission, OneLeader},
	{LearnerKnowsAdmission, "learner-knows-admission", learning, LeaderHolds},
	{PromotionOfThisLife, "promotion-of-this-life", relearning, OneLeader},
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
