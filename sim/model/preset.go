package model

// losses are the invariants that exclude the loss of data.
var losses = []Invariant{InSyncHolds, NewPrimaryHolds, OneHistory, ConfirmRead, LeaseRead, ReportedHeld, ClosedStaysClosed}

// Small configurations in which mutations show. Each is also a preset, which proves that the whole
// protocol passes there; the exception is pairsDeep, which is only walked.
var (
	small           = Config{Epochs: 2, Writes: 1, Messages: 2, Secondaries: 2}
	electing        = Config{Epochs: 3, Writes: 1, Messages: 1, Secondaries: 2}
	partial         = Config{Epochs: 3, Writes: 1, Messages: 1, Secondaries: 2, Partial: true}
	changing        = Config{Epochs: 2, Writes: 1, Messages: 1, Versions: 3, Secondaries: 1}
	slackOnly       = Config{Epochs: 2, Writes: 1, Messages: 2, Secondaries: 2, Slack: 1}
	slackChanging   = Config{Epochs: 2, Writes: 1, Messages: 2, Versions: 2, Secondaries: 2, Slack: 1}
	slackCrashing   = Config{Epochs: 3, Writes: 1, Messages: 2, Crashes: 1, Secondaries: 2, Slack: 1}
	crashing        = Config{Epochs: 1, Writes: 1, Messages: 2, Crashes: 1, Secondaries: 2}
	leasing         = Config{Epochs: 2, Writes: 1, Messages: 1, Rounds: 2, Secondaries: 2}
	leaseCrashing   = Config{Epochs: 2, Messages: 1, Rounds: 1, Crashes: 1, Secondaries: 2}
	leaseCrossing   = Config{Epochs: 2, Messages: 2, Rounds: 2, Secondaries: 2}
	leaseChanging   = Config{Epochs: 2, Writes: 1, Messages: 1, Rounds: 1, Versions: 2, Secondaries: 1}
	pairs           = Config{Epochs: 2, Messages: 1, Rounds: 1, Crashes: 1, Secondaries: 2, AllHolders: true, PairsOnly: true}
	pairsLate       = Config{Epochs: 2, Messages: 1, Rounds: 1, Crashes: 1, Secondaries: 2, AllHolders: true, PairsOnly: true, LateHeartbeats: true}
	pairsDeep       = Config{Epochs: 2, Messages: 3, Rounds: 1, Crashes: 1, Secondaries: 2, AllHolders: true, PairsOnly: true, LateHeartbeats: true}
	closing         = Config{Epochs: 2, Writes: 1, Messages: 1, Closed: 1, Secondaries: 2}
	closingTwice    = Config{Epochs: 3, Writes: 2, Messages: 1, Closed: 1, Secondaries: 2}
	closingChanging = Config{Epochs: 2, Writes: 1, Messages: 1, Closed: 1, Versions: 2, Secondaries: 1}
	closingCrashing = Config{Epochs: 2, Writes: 1, Messages: 1, Closed: 1, Crashes: 1, Secondaries: 2}
	damaging        = Config{Epochs: 2, Writes: 1, Messages: 1, Damages: 1, Secondaries: 2}
	damagingThrice  = Config{Epochs: 3, Messages: 1, Damages: 1, Secondaries: 2}
	damagingLearner = Config{Epochs: 2, Writes: 1, Messages: 1, Damages: 1, Versions: 3, Secondaries: 1}
	damagingLeased  = Config{Epochs: 2, Writes: 1, Messages: 1, Damages: 1, Rounds: 1, Secondaries: 2}
	damagingClosed  = Config{Epochs: 2, Messages: 1, Damages: 1, Closed: 1, Secondaries: 2}
	damagingCrashed = Config{Epochs: 2, Messages: 1, Damages: 1, Crashes: 1, Closed: 1, Secondaries: 2}
	damagingHanding = Config{Epochs: 2, Messages: 1, Damages: 1, Closed: 1, Secondaries: 2, Handover: true}
	// Two disks that lack the same data lose it. The remaining invariants state that no other
	// replica is harmed.
	damagingTwo      = Config{Epochs: 2, Writes: 1, Messages: 1, Damages: 2, Lacking: 2, Secondaries: 2, Ignore: losses}
	imaging          = Config{Epochs: 3, Writes: 1, Messages: 1, Damages: 1, Images: true, Secondaries: 2}
	joiningPartial   = Config{Epochs: 1, Writes: 1, Messages: 1, Damages: 1, Versions: 2, Secondaries: 1, Partial: true}
	joiningLate      = Config{Epochs: 1, Writes: 1, Messages: 2, Damages: 1, Versions: 2, Secondaries: 1, Partial: true}
	joiningClosed    = Config{Epochs: 2, Messages: 1, Damages: 1, Closed: 1, Versions: 2, Secondaries: 1}
	oneAnswer        = Config{Epochs: 2, Writes: 1, Messages: 1, Damages: 1, Versions: 3, Secondaries: 1, OneAnswer: true}
	oneAnswerPartial = Config{Epochs: 2, Writes: 1, Messages: 1, Damages: 1, Versions: 3, Secondaries: 1, OneAnswer: true, Partial: true}
	oneAnswerClosed  = Config{Epochs: 2, Messages: 1, Damages: 1, Closed: 1, Versions: 3, Secondaries: 1, OneAnswer: true}
	oneAnswerAgreed  = Config{Epochs: 2, Messages: 1, Damages: 1, Closed: 1, Versions: 2, Secondaries: 1, OneAnswer: true}
	removing         = Config{Epochs: 2, Writes: 1, Messages: 1, Versions: 3, Secondaries: 1, Removals: 1}
	removingOnce     = Config{Epochs: 2, Messages: 1, Versions: 4, Secondaries: 1, Removals: 1}
	spreading        = Config{Epochs: 2, Writes: 1, Messages: 1, Versions: 3, Secondaries: 2, Far: 0b110, Spread: true, Fencing: true}
	draining         = Config{Epochs: 2, Writes: 1, Messages: 1, Versions: 2, Secondaries: 2, Far: 0b110, Spread: true, Handover: true, Drains: true}
	alone            = Config{Epochs: 1, Writes: 1, Messages: 1, Versions: 4, Secondaries: 2, Far: 0b100, Spread: true, Alone: true}
	givingUp         = Config{Epochs: 2, Writes: 1, Messages: 1, Versions: 2, Secondaries: 1, MinInSync: 1, Far: 0b011, RegionLoss: true, GivenUp: true}
	removingRegion   = Config{Epochs: 2, Messages: 1, Versions: 3, Secondaries: 2, Far: 0b100, RegionRemoval: true, Removals: 1}
	mixing           = Config{Epochs: 2, Writes: 1, Messages: 2, Secondaries: 2, Older: 0b110}
	copying          = Config{Epochs: 2, Writes: 1, Messages: 1, Versions: 3, Secondaries: 1, Copies: 2}
	copyingTail      = Config{Epochs: 2, Writes: 1, Messages: 1, Secondaries: 1, MinInSync: 1, Copies: 1}
	slackCopying     = Config{Epochs: 3, Writes: 1, Messages: 2, Secondaries: 2, Slack: 1, Copies: 1}
	handing          = Config{Epochs: 3, Writes: 1, Messages: 1, Secondaries: 2, Handover: true}
	handingChanging  = Config{Epochs: 2, Writes: 1, Messages: 1, Versions: 3, Secondaries: 1, Handover: true}
	handingTwice     = Config{Epochs: 2, Writes: 1, Messages: 2, Secondaries: 2, Handover: true}
)

// Preset is a configuration with a name.
type Preset struct {
	Name   string
	Config Config
	// Short marks the presets that the tests exhaust in every run.
	Short bool
}

// Presets returns the configurations whose exhaustion docs/model.md reports.
func Presets() []Preset {
	return []Preset{
		{"log", small, true},
		{"log-partial", Config{Epochs: 2, Writes: 2, Messages: 1, Secondaries: 2, Partial: true}, true},
		{"log-restart", crashing, true},
		{"election", electing, true},
		{"change", changing, true},
		{"change-fencing", Config{Epochs: 2, Writes: 1, Messages: 1, Versions: 3, Secondaries: 2, Fencing: true}, true},
		{"removal", removing, true},
		{"removal-once", removingOnce, true},
		{"region", spreading, true},
		{"region-handover", draining, true},
		{"region-removal", removingRegion, true},
		{"region-alone", Config{Epochs: 2, Writes: 1, Messages: 1, Versions: 2, Secondaries: 2, Far: 0b100, Spread: true, Alone: true}, true},
		{"region-alone-again", alone, true},
		{"region-given-up", givingUp, true},
		{"region-loss", Config{Epochs: 2, Writes: 1, Messages: 1, Versions: 2, Secondaries: 2, Far: 0b100, Spread: true, RegionLoss: true}, true},
		{"builds", mixing, true},
		{"copy-chain", copying, true},
		{"copy-tail", copyingTail, true},
		{"copy-twice", Config{Epochs: 2, Writes: 1, Messages: 2, Secondaries: 2, Copies: 2}, true},
		{"slack", slackOnly, true},
		{"slack-change", slackChanging, true},
		{"slack-restart", Config{Epochs: 2, Writes: 1, Messages: 2, Crashes: 1, Secondaries: 2, Slack: 1}, true},
		{"slack-lease", Config{Epochs: 2, Writes: 1, Messages: 1, Rounds: 1, Secondaries: 2, Slack: 1}, true},
		{"lease", leasing, true},
		{"lease-restart", leaseCrashing, true},
		{"lease-crossing", leaseCrossing, true},
		{"lease-change", leaseChanging, true},
		{"lease-handover", Config{Epochs: 2, Writes: 1, Messages: 2, Rounds: 1, Secondaries: 2, Handover: true}, true},
		{"pairs", pairs, true},
		{"pairs-late", Config{Epochs: 2, Messages: 2, Rounds: 1, Secondaries: 1, AllHolders: true, PairsOnly: true, LateHeartbeats: true}, true},
		{"closed", closing, true},
		{"closed-change", closingChanging, true},
		{"closed-restart", closingCrashing, true},
		{"closed-slack", Config{Epochs: 2, Writes: 1, Messages: 1, Closed: 1, Versions: 2, Secondaries: 2, Slack: 1}, true},
		{"handover", handing, true},
		{"handover-twice", handingTwice, true},
		{"handover-change", handingChanging, true},

		{"damage", damaging, true},
		{"damage-twice", Config{Epochs: 2, Writes: 1, Messages: 1, Damages: 2, Secondaries: 2}, true},
		{"damage-image", Config{Epochs: 2, Writes: 1, Messages: 1, Damages: 1, Images: true, Secondaries: 2}, true},
		{"damage-restart", damagingCrashed, true},
		{"damage-learner", Config{Epochs: 2, Writes: 1, Messages: 1, Damages: 1, Versions: 2, Secondaries: 1}, true},
		{"damage-fencing", Config{Epochs: 2, Writes: 1, Messages: 1, Damages: 1, Versions: 2, Secondaries: 2, Fencing: true, GivesUp: true}, true},
		{"damage-lease", damagingLeased, true},
		{"damage-closed", damagingClosed, true},
		{"damage-handover", damagingHanding, true},
		{"damage-handover-late", Config{Epochs: 2, Writes: 1, Messages: 2, Damages: 1, Secondaries: 2, Handover: true}, true},
		{"damage-slack", Config{Epochs: 2, Writes: 1, Messages: 2, Damages: 1, Secondaries: 2, Slack: 1}, true},
		{"damage-copy", Config{Epochs: 2, Writes: 1, Messages: 1, Damages: 1, Secondaries: 2, Copies: 1}, true},
		{"damage-two", damagingTwo, true},
		{"one-answer", Config{Epochs: 2, Writes: 1, Messages: 1, Damages: 1, Versions: 2, Secondaries: 1, OneAnswer: true}, true},
		{"one-answer-closed", oneAnswerAgreed, true},
		{"joining-partial", joiningPartial, true},
		{"joining-late", joiningLate, true},
		{"joining-closed", joiningClosed, true},

		{"long-change-thrice", Config{Epochs: 3, Writes: 1, Messages: 1, Versions: 3, Secondaries: 1}, false},
		{"long-change", Config{Epochs: 3, Writes: 1, Messages: 2, Versions: 2, Secondaries: 2}, false},
		{"long-change-late", Config{Epochs: 3, Writes: 1, Messages: 2, Versions: 4, Secondaries: 1}, false},
		{"long-log-partial", partial, false},
		{"long-slack-restart", slackCrashing, false},
		{"long-lease", Config{Epochs: 2, Writes: 1, Messages: 2, Rounds: 2, Secondaries: 2}, false},
		{"long-lease-fencing", Config{Epochs: 2, Writes: 1, Messages: 1, Rounds: 1, Versions: 2, Secondaries: 2, Fencing: true}, false},
		{"long-lease-restart", Config{Epochs: 2, Writes: 1, Messages: 1, Rounds: 2, Crashes: 1, Secondaries: 2}, false},
		{"long-lease-change", Config{Epochs: 2, Writes: 1, Messages: 1, Rounds: 2, Crashes: 1, Versions: 2, Secondaries: 1}, false},
		{"long-pairs-late", pairsLate, false},
		{"long-closed-twice", closingTwice, false},
		{"long-closed", Config{Epochs: 3, Messages: 1, Closed: 2, Versions: 2, Secondaries: 1}, false},
		{"long-closed-handover", Config{Epochs: 2, Writes: 1, Messages: 1, Closed: 1, Versions: 2, Secondaries: 2, Handover: true}, false},
		{"long-closed-fencing", Config{Epochs: 3, Writes: 1, Messages: 1, Closed: 1, Versions: 2, Secondaries: 2, Fencing: true}, false},
		{"long-handover", Config{Epochs: 3, Writes: 1, Messages: 2, Versions: 2, Secondaries: 1, Handover: true}, false},
		{"long-damage", Config{Epochs: 3, Writes: 1, Messages: 1, Damages: 1, Secondaries: 2}, false},
		{"long-damage-two", Config{Epochs: 2, Writes: 2, Messages: 1, Damages: 2, Lacking: 2, Secondaries: 2, Ignore: losses}, false},
		{"long-damage-late", Config{Epochs: 2, Writes: 1, Messages: 2, Damages: 2, Secondaries: 2}, false},
		{"long-damage-image", imaging, false},
		{"long-damage-learner", damagingLearner, false},
		{"long-damage-closed", Config{Epochs: 2, Writes: 1, Messages: 1, Damages: 1, Closed: 1, Secondaries: 2}, false},
		{"long-one-answer", oneAnswer, false},
		{"long-one-answer-closed", oneAnswerClosed, false},
		{"long-one-answer-partial", oneAnswerPartial, false},
	}
}

// Walks returns configurations that are too large to exhaust and are walked at random instead.
func Walks() []Preset {
	return []Preset{
		{"walk", Config{
			Epochs: 5, Writes: 3, Rounds: 3, Crashes: 2, Messages: 4, Versions: 8, Closed: 2, Secondaries: 2, Handover: true,
			Fencing: true, Partial: true, AllHolders: true, LateHeartbeats: true,
		}, true},
		{"walk-learner", Config{
			Epochs: 5, Writes: 2, Rounds: 2, Crashes: 1, Messages: 3, Versions: 8, Closed: 2, Secondaries: 1, Handover: true,
		}, true},
		{"walk-log", Config{Epochs: 5, Writes: 3, Crashes: 2, Messages: 3, Versions: 8, Secondaries: 1, Fencing: true, Partial: true}, true},
		{"walk-slack", Config{
			Epochs: 4, Writes: 3, Rounds: 2, Crashes: 2, Messages: 4, Versions: 6, Closed: 2, Secondaries: 2, Slack: 1, AllHolders: true,
		}, true},
		{"walk-slack-log", Config{Epochs: 4, Writes: 3, Crashes: 2, Messages: 3, Versions: 6, Secondaries: 2, Slack: 1}, true},
		{"walk-pairs", pairsDeep, true},
		{"walk-damage", Config{
			Epochs: 4, Writes: 3, Rounds: 2, Crashes: 1, Damages: 3, Messages: 3, Versions: 6, Closed: 2, Secondaries: 2, Handover: true,
			Fencing: true, GivesUp: true, Partial: true,
		}, true},
		{"walk-damage-image", Config{
			Epochs: 4, Writes: 3, Crashes: 1, Damages: 2, Images: true, Messages: 3, Versions: 6, Closed: 1, Secondaries: 1, Handover: true,
		}, true},
		{"walk-damage-log", Config{Epochs: 5, Writes: 2, Damages: 3, Messages: 2, Secondaries: 2}, true},
		{"walk-one-answer", Config{
			Epochs: 4, Writes: 2, Damages: 3, Messages: 2, Versions: 8, Closed: 1, Secondaries: 2, OneAnswer: true, Partial: true,
		}, true},
	}
}
