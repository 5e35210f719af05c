package model

import "slices"

// Mutation is a rule of the protocol that a Config can leave out.
type Mutation uint8

// The rules. Mutations lists the harm of leaving out each one.
const (
	// WholeProtocol leaves out no rule.
	WholeProtocol Mutation = iota
	// Fence (rule A): an APPEND of an epoch below the promised one is refused.
	Fence
	// NoCutToCommit (rule T): a log is cut only where it contradicts a later epoch, never back to
	// the commit position.
	NoCutToCommit
	// AckWhatWasSent (rule A): an ACK covers the entries of the APPEND, never the end of the own
	// log.
	AckWhatWasSent
	// CommitNeedsPending (rule C): during a change a commit needs P too.
	CommitNeedsPending
	// ShrinkAfterCommit (rule R): a smaller set counts only once metadata has committed it.
	ShrinkAfterCommit
	// JoinCaughtUp (rule R): a joining member has the log first.
	JoinCaughtUp
	// JoinFromStart (rule R): a joining member has the log up to max(commit, start), not only up to
	// commit.
	JoinFromStart
	// ShrinkKeepsCopies (rule R): with slack, a smaller set has enough copies first.
	ShrinkKeepsCopies
	// PendingUntilVersion (rule R): P ends when the version has changed, not when the record is
	// read again.
	PendingUntilVersion
	// CompareAndSet (rule R): metadata compares epoch and version.
	CompareAndSet
	// SentStays (rule R, ruling 7): a P that was proposed is not dropped.
	SentStays
	// BothUntilDecided (rule R, ruling 7): proposing the unchanged set does not end P.
	BothUntilDecided
	// UnchangedMovesVersion (rule R, ruling 7): committing the unchanged set increments the
	// version.
	UnchangedMovesVersion
	// ElectFromISR (rule E): only a member of the in-sync set is elected.
	ElectFromISR
	// ReservedNotReused (rule E): an epoch reserved for a handover is never used for an election.
	ReservedNotReused
	// PrepareQuorum (rule E, ruling 16): an elected node hears enough answers to PREPARE.
	PrepareQuorum
	// ReadAfterStart (rule E): a primary serves reads only when its epoch-start entry is committed.
	ReadAfterStart
	// WaitForGrants (rule E): an elected node (with slack, a promiser too) waits until its grants
	// have ended.
	WaitForGrants
	// DurablePromise (rule E): a promise is durable.
	DurablePromise
	// NewEpochAfterRestart (rule S): a restarted primary does not continue its epoch.
	NewEpochAfterRestart
	// RememberGrants (rule S): a restarted node waits as if it had given every grant.
	RememberGrants
	// LeaseFromSending (rule L): a lease counts from the sending of the heartbeat, not from the
	// receipt of the grant.
	LeaseFromSending
	// LeaseFromAll (rule L): a lease needs as many grants as a commit needs copies, not a majority.
	LeaseFromAll
	// LeaseNeedsPending (rule L): during a change a lease needs P too.
	LeaseNeedsPending
	// ExclusionListed (rule L, ruling 1): grants of a node that has promised an epoch exclude the
	// earlier epochs.
	ExclusionListed
	// ListedUntilConfirmed (rule L, ruling 1): the exclusion is listed until the holder has
	// confirmed it.
	ListedUntilConfirmed
	// ExclusionWithGrant (rule L, ruling 1): the holder applies exclusion and grant in one step.
	ExclusionWithGrant
	// ConfirmAfterDropping (rule L, ruling 1): the holder confirms only after it has dropped its
	// belief.
	ConfirmAfterDropping
	// FloorKept (rule L, ruling 1): the holder keeps the exclusion, so a grant in flight does not
	// cancel it.
	FloorKept
	// ConfirmedPerLife (rule L, ruling 1): a confirmation does not outlive the holder's process.
	ConfirmedPerLife
	// OldLifeIgnored (rule L, ruling 1): heartbeats of an earlier life of the holder are ignored.
	OldLifeIgnored
	// GrantOfThisLife (rule L, ruling 1): a grant for an earlier life of the holder is ignored.
	GrantOfThisLife
	// ExclusionAfterRestart (rule L, ruling 1): a restarted grantor lists its durable promises
	// again.
	ExclusionAfterRestart
	// PublishNeedsAll (ruling 6): publishing a closed timestamp needs the acknowledgement of all
	// members of I.
	PublishNeedsAll
	// PublishNeedsPending (ruling 6): publishing also needs all members of P.
	PublishNeedsPending
	// PublishFromStart (ruling 6): publishing also needs a committed epoch-start entry.
	PublishFromStart
	// JoinAgreesClosed (ruling 6): a joining member has acknowledged the greatest published closed
	// timestamp.
	JoinAgreesClosed
	// ClosedFenced (ruling 6): a node that has promised a later epoch acknowledges no closed
	// timestamp of an earlier one.
	ClosedFenced
	// DurableClock (ruling 6): the clock stays past an acknowledged closed timestamp across
	// restarts.
	DurableClock
	// HandoverNoPending (section 1.11): no handover during a change.
	HandoverNoPending
	// HandoverStepsDown (section 1.11): the primary stops before it hands over.
	HandoverStepsDown
	// Relearn (ruling 16a): a restarted node promises the epoch of the record before it does
	// anything.
	Relearn
	// PrepareAdopts (ruling 16): the elected node adopts the greatest log of the answers.
	PrepareAdopts
	// AnswerPromises (ruling 16): a node that answers PREPARE promises the epoch.
	AnswerPromises
	// AnswersOfMembers (ruling 16): only answers of members of the new in-sync set count.
	AnswersOfMembers
	// BestByEpoch (ruling 16): the best log is the one with the greatest last epoch, regardless of
	// its length.
	BestByEpoch
	// BestByEnd (ruling 16): among logs with the same last epoch the longest is the best.
	BestByEnd
	// ReportedReached (ruling 16): no epoch begins below a commit position that an answer reports.
	ReportedReached
	// AnswerCarriesClock (ruling 16): the elected node advances its clock past the clocks in the
	// answers.
	AnswerCarriesClock
	// FetchByHash (ruling 16): the elected node fetches exactly the log that was reported, even if
	// its holder has changed since.
	FetchByHash
	// FetchRecounts (ruling 16): if the best log cannot be fetched, the answers are dropped and
	// asked for again.
	FetchRecounts
	// RefuseFirst (ruling 17): a replica refuses an epoch that would undo its committed entries;
	// the primary stops.
	RefuseFirst
	// RefuseDiffering (ruling 17): the replica also refuses if the epoch starts above the commit
	// position but the logs differ below it.
	RefuseDiffering
	// HandoverCarriesClock (ruling 16b): HANDOVER carries the clock of the old primary.
	HandoverCarriesClock
	// HandoverOfThisLife (ruling 16b): HANDOVER names a life of its receiver, and another life
	// refuses it.
	HandoverOfThisLife
	// LifeCounted (ruling 17): the catalog counts every start as a life; an older copy of a disk is
	// a new life.
	LifeCounted
	// AckOfThisLife (ruling 17): acknowledgements of older lives are ignored.
	AckOfThisLife
	// MatchPerLife (ruling 17): an acknowledgement of a newer life clears earlier acknowledgements.
	MatchPerLife
	// JoinNamesLife (ruling 17): a change names the lives of the joining members, and metadata
	// refuses lives that have ended.
	JoinNamesLife
	// DamagedWaits (ruling 17): a damaged restart waits for the grants that the node may have
	// given.
	DamagedWaits
	// LivesFromProposer (ruling 17a): the record takes the lives that the primary vouches for, not
	// the registered ones.
	LivesFromProposer
	// VouchForLog (ruling 17a): the primary vouches for a life only if it holds every entry that
	// clients may know.
	VouchForLog
	// VouchForClock (ruling 17a): that life must also have acknowledged the published closed
	// timestamp.
	VouchForClock
	// AgreedPerLife (ruling 17a): a new life of a member clears the closed timestamp that earlier
	// lives acknowledged.
	AgreedPerLife
	// AnswerOfRecordedLife (ruling 17a): a single answer suffices only from the life in the record.
	AnswerOfRecordedLife
	// RemoveOutOfSync (removal): only a replica outside of the in-sync set is removed.
	RemoveOutOfSync
	// NewEpochForCopy (removal): a node whose copy was removed gets another one in a new epoch only.
	NewEpochForCopy
	// JoinListed (removal): only a replica that the record lists joins.
	JoinListed
	// DropWhenRemoved (removal): a node drops its copy only when the record does not list it.
	DropWhenRemoved
	// DropByRecord (removal): a copy that has promised a later epoch than that of the record which removed it stays.
	DropByRecord
	// ChangeSpans (regions): a change of the in-sync set leaves it in two regions.
	ChangeSpans
	// ElectSpans (regions): so does an election.
	ElectSpans
	// FenceSpans (regions): so does the fencing of a secondary.
	FenceSpans
	// AdoptSpans (regions): so does the record of a handover whose old primary drains.
	AdoptSpans
	// AloneWhenFenced (regions): the in-sync set may be in one region only while all copies elsewhere are on fenced nodes.
	AloneWhenFenced
	// FencedUntilReturn (regions): a node that has registered again is not fenced any more.
	FencedUntilReturn
	// GiveUpInSync (regions): when a lost region is given up, a range continues from copies that are in sync, and from no others.
	GiveUpInSync
	// RegionEmptyFirst (regions): the nodes of a removed region stop when no copy is left there.
	RegionEmptyFirst
	// AckWhatIsRead (builds): an older build acknowledges no entry that it has not read.
	AckWhatIsRead
	// BeginReadable (builds): an elected node that cannot read the end of the best log does not begin.
	BeginReadable
	// CopyReachesEnd (copies): a set that is installed is committed up to the end of the replica's log.
	CopyReachesEnd
	// CopyInOneStep (copies): the old copy stays until the set takes its place in one step.
	CopyInOneStep
	// CopyCountsInstalled (copies): a set counts for nothing before it is installed.
	CopyCountsInstalled
	// CopiedTailOpen (copies): entries of a set above its commit position are not committed.
	CopiedTailOpen
	// CopyKeepsPromise (copies): a copy promises no less than the replica that it replaces.
	CopyKeepsPromise
	// AdoptPrepared (section 1.11): metadata adopts a handover only while it is prepared in this epoch.
	AdoptPrepared
	// AdoptOfThisLife (section 1.11): metadata adopts a handover only for the present life of its target.
	AdoptOfThisLife

	mutations
)

// Finding describes the harm of leaving out a rule.
type Finding struct {
	Mutation Mutation
	// Name is the name of the mutation on the command line, Rule its rule or section in
	// docs/replication.md.
	Name, Rule string
	// Config shows the harm, and Breaks is the first invariant that fails there.
	Config Config
	Breaks Invariant
	// Seed and Steps are set if random walks find the violation sooner than an exhaustive search.
	// Otherwise both are 0.
	Seed  uint64
	Steps int
}

// Find searches for the violation by Explore or Walk.
func (f Finding) Find() (Result, error) {
	if f.Steps > 0 {
		return Walk(f.Config, f.Seed, Limits{Steps: f.Steps})
	}
	return Explore(f.Config, Limits{})
}

// Mutations returns a finding for every rule that can be left out, in the order of the rules.
func Mutations() []Finding {
	var out []Finding
	for _, f := range findings {
		f.Config.Without = f.Mutation
		for _, early := range []Invariant{Owed, ReportedHeld} {
			// These two fail before a client can observe anything. Ignoring them shows the harm to
			// a client.
			if f.Breaks != early {
				f.Config.Ignore = append(f.Config.Ignore, early)
			}
		}
		out = append(out, f)
	}
	return out
}

// MutationByName returns the mutation with the given name.
func MutationByName(name string) (Finding, bool) {
	for _, f := range Mutations() {
		if f.Name == name {
			return f, true
		}
	}
	return Finding{}, false
}

var findings = []Finding{
	{Mutation: Fence, Name: "fence", Rule: "A", Config: small, Breaks: InSyncHolds},
	{Mutation: AckWhatWasSent, Name: "ack-what-was-sent", Rule: "A", Config: partial, Breaks: InSyncHolds},
	{Mutation: NoCutToCommit, Name: "no-cut-to-commit", Rule: "T", Config: small, Breaks: InSyncHolds},
	{Mutation: CommitNeedsPending, Name: "commit-needs-pending", Rule: "C", Config: changing, Breaks: InSyncHolds},
	{Mutation: ShrinkAfterCommit, Name: "shrink-after-commit", Rule: "R", Config: changing, Breaks: InSyncHolds},
	{Mutation: JoinCaughtUp, Name: "join-caught-up", Rule: "R", Config: changing, Breaks: InSyncHolds},
	{Mutation: JoinFromStart, Name: "join-from-start", Rule: "R", Config: changing, Breaks: InSyncHolds},
	{Mutation: ShrinkKeepsCopies, Name: "shrink-keeps-copies", Rule: "R", Config: slackChanging, Breaks: InSyncHolds},
	{Mutation: PendingUntilVersion, Name: "pending-until-version", Rule: "R", Config: changing, Breaks: InSyncHolds},
	{Mutation: CompareAndSet, Name: "compare-and-set", Rule: "R", Config: changing, Breaks: InSyncHolds},
	{Mutation: SentStays, Name: "sent-stays", Rule: "R, ruling 7", Config: changing, Breaks: InSyncHolds},
	{Mutation: BothUntilDecided, Name: "both-until-decided", Rule: "R, ruling 7", Config: changing, Breaks: InSyncHolds},
	{Mutation: UnchangedMovesVersion, Name: "unchanged-moves-version", Rule: "R, ruling 7", Config: changing, Breaks: InSyncHolds},
	{Mutation: ElectFromISR, Name: "elect-from-isr", Rule: "E", Config: electing, Breaks: InSyncHolds},
	{Mutation: ReservedNotReused, Name: "reserved-not-reused", Rule: "E", Config: handing, Breaks: BegunOnce},
	{Mutation: PrepareQuorum, Name: "prepare-quorum", Rule: "E, ruling 16", Config: damaging, Breaks: NewPrimaryHolds},
	{Mutation: ReadAfterStart, Name: "read-after-start", Rule: "E", Config: small, Breaks: ConfirmRead},
	{Mutation: WaitForGrants, Name: "wait-for-grants", Rule: "E", Config: leasing, Breaks: LeaseRead},
	{Mutation: DurablePromise, Name: "durable-promise", Rule: "E", Config: slackCrashing, Breaks: NewPrimaryHolds},
	{Mutation: NewEpochAfterRestart, Name: "new-epoch-after-restart", Rule: "S", Config: crashing, Breaks: ConfirmRead},
	{Mutation: RememberGrants, Name: "remember-grants", Rule: "S, ruling 1", Config: leaseCrashing, Breaks: LeaseRead},
	{Mutation: LeaseFromSending, Name: "lease-from-sending", Rule: "L", Config: leasing, Breaks: LeaseRead},
	{Mutation: LeaseFromAll, Name: "lease-from-all", Rule: "L", Config: leasing, Breaks: LeaseRead},
	{Mutation: LeaseNeedsPending, Name: "lease-needs-pending", Rule: "L", Config: leaseChanging, Breaks: LeaseRead},
	{Mutation: ExclusionListed, Name: "exclusion-listed", Rule: "L, ruling 1", Config: leasing, Breaks: LeaseRead},
	{Mutation: ListedUntilConfirmed, Name: "listed-until-confirmed", Rule: "L, ruling 1", Config: leasing, Breaks: LeaseRead},
	{Mutation: ExclusionWithGrant, Name: "exclusion-with-grant", Rule: "L, ruling 1", Config: leasing, Breaks: LeaseRead},
	{Mutation: ConfirmAfterDropping, Name: "confirm-after-dropping", Rule: "L, ruling 1", Config: leasing, Breaks: LeaseRead},
	{Mutation: FloorKept, Name: "floor-kept", Rule: "L, ruling 1", Config: leaseCrossing, Breaks: LeaseRead},
	{Mutation: ExclusionAfterRestart, Name: "exclusion-after-restart", Rule: "L, ruling 1", Config: leaseCrashing, Breaks: LeaseRead},
	{Mutation: ConfirmedPerLife, Name: "confirmed-per-life", Rule: "L, ruling 1", Config: pairs, Breaks: Owed},
	{Mutation: GrantOfThisLife, Name: "grant-of-this-life", Rule: "L, ruling 1", Config: pairsLate, Breaks: Owed},
	{Mutation: OldLifeIgnored, Name: "old-life-ignored", Rule: "L, ruling 1", Config: pairsDeep, Breaks: Owed, Seed: 9, Steps: 3_000_000},
	{Mutation: PublishNeedsAll, Name: "publish-needs-all", Rule: "ruling 6", Config: damagingClosed, Breaks: ClosedStaysClosed},
	{Mutation: PublishNeedsPending, Name: "publish-needs-pending", Rule: "ruling 6", Config: joiningClosed, Breaks: ClosedStaysClosed},
	{Mutation: PublishFromStart, Name: "publish-from-start", Rule: "ruling 6", Config: closingTwice, Breaks: ClosedStaysClosed, Seed: 2, Steps: 2_000_000},
	{Mutation: JoinAgreesClosed, Name: "join-agrees-closed", Rule: "ruling 6", Config: joiningClosed, Breaks: ClosedStaysClosed},
	{Mutation: ClosedFenced, Name: "closed-fenced", Rule: "ruling 6", Config: closing, Breaks: ClosedStaysClosed},
	{Mutation: DurableClock, Name: "durable-clock", Rule: "ruling 6", Config: damagingCrashed, Breaks: ClosedStaysClosed},
	{Mutation: HandoverNoPending, Name: "handover-no-pending", Rule: "1.11", Config: handingChanging, Breaks: InSyncHolds},
	{Mutation: HandoverStepsDown, Name: "handover-steps-down", Rule: "1.11", Config: handingTwice, Breaks: InSyncHolds},
	{Mutation: Relearn, Name: "relearn", Rule: "S, ruling 16a", Config: damaging, Breaks: BegunOnce},
	{Mutation: PrepareAdopts, Name: "prepare-adopts", Rule: "E, ruling 16", Config: damaging, Breaks: NewPrimaryHolds},
	{Mutation: AnswerPromises, Name: "answer-promises", Rule: "E, ruling 16", Config: damaging, Breaks: NewPrimaryHolds},
	{Mutation: AnswersOfMembers, Name: "answers-of-members", Rule: "E, ruling 16", Config: damagingThrice, Breaks: NewPrimaryHolds},
	{Mutation: BestByEpoch, Name: "best-by-epoch", Rule: "E, ruling 16", Config: imaging, Breaks: NewPrimaryHolds},
	{Mutation: BestByEnd, Name: "best-by-end", Rule: "E, ruling 16", Config: damaging, Breaks: NewPrimaryHolds},
	{Mutation: AnswerCarriesClock, Name: "answer-carries-clock", Rule: "E, ruling 16", Config: damagingClosed, Breaks: ClosedStaysClosed},
	{Mutation: FetchByHash, Name: "fetch-by-hash", Rule: "E, ruling 16", Config: damaging, Breaks: InSyncHolds},
	{Mutation: FetchRecounts, Name: "fetch-recounts", Rule: "E, ruling 16", Config: damaging, Breaks: NewPrimaryHolds},
	{Mutation: RefuseFirst, Name: "refuse-first", Rule: "A, ruling 17", Config: damagingTwo, Breaks: HealthyStays},
	{Mutation: HandoverCarriesClock, Name: "handover-carries-clock", Rule: "1.11, ruling 16b", Config: damagingHanding, Breaks: ClosedStaysClosed},
	{Mutation: HandoverOfThisLife, Name: "handover-of-this-life", Rule: "1.11, ruling 16b", Config: damagingHanding, Breaks: BegunOnce},
	{Mutation: LifeCounted, Name: "life-counted", Rule: "S, ruling 17", Config: damagingLearner, Breaks: InSyncHolds},
	{Mutation: AckOfThisLife, Name: "ack-of-this-life", Rule: "C, ruling 17", Config: joiningLate, Breaks: InSyncHolds},
	{Mutation: MatchPerLife, Name: "match-per-life", Rule: "C, ruling 17", Config: joiningPartial, Breaks: InSyncHolds},
	{Mutation: JoinNamesLife, Name: "join-names-life", Rule: "R, ruling 17", Config: damagingLearner, Breaks: InSyncHolds},
	{Mutation: DamagedWaits, Name: "damaged-waits", Rule: "S, ruling 17", Config: damagingLeased, Breaks: LeaseRead},
	{Mutation: LivesFromProposer, Name: "lives-from-proposer", Rule: "ruling 17a", Config: oneAnswer, Breaks: NewPrimaryHolds},
	{Mutation: VouchForLog, Name: "vouch-for-log", Rule: "ruling 17a", Config: oneAnswerPartial, Breaks: NewPrimaryHolds},
	{Mutation: VouchForClock, Name: "vouch-for-clock", Rule: "ruling 17a", Config: oneAnswerClosed, Breaks: ClosedStaysClosed},
	{Mutation: AgreedPerLife, Name: "agreed-per-life", Rule: "ruling 17a", Config: oneAnswerAgreed, Breaks: ClosedStaysClosed},
	{Mutation: AnswerOfRecordedLife, Name: "answer-of-recorded-life", Rule: "ruling 17a", Config: oneAnswer, Breaks: NewPrimaryHolds},
	{Mutation: RemoveOutOfSync, Name: "remove-out-of-sync", Rule: "removal", Config: removing, Breaks: InSyncHolds},
	{Mutation: NewEpochForCopy, Name: "new-epoch-for-copy", Rule: "removal", Config: removingOnce, Breaks: InSyncHolds},
	{Mutation: JoinListed, Name: "join-listed", Rule: "removal", Config: removing, Breaks: InSyncHolds},
	{Mutation: DropWhenRemoved, Name: "drop-when-removed", Rule: "removal", Config: removing, Breaks: InSyncHolds},
	{Mutation: DropByRecord, Name: "drop-by-record", Rule: "removal", Config: removingOnce, Breaks: InSyncHolds},
	{Mutation: ChangeSpans, Name: "change-spans", Rule: "regions", Config: spreading, Breaks: RegionSurvives},
	{Mutation: ElectSpans, Name: "elect-spans", Rule: "regions", Config: spreading, Breaks: RegionSurvives},
	{Mutation: FenceSpans, Name: "fence-spans", Rule: "regions", Config: spreading, Breaks: RegionSurvives},
	{Mutation: AdoptSpans, Name: "adopt-spans", Rule: "regions", Config: draining, Breaks: RegionSurvives},
	{Mutation: AloneWhenFenced, Name: "alone-when-fenced", Rule: "regions", Config: alone, Breaks: RegionSurvives},
	{Mutation: FencedUntilReturn, Name: "fenced-until-return", Rule: "regions", Config: alone, Breaks: RegionSurvives},
	{Mutation: GiveUpInSync, Name: "give-up-in-sync", Rule: "regions", Config: givingUp, Breaks: InSyncHolds},
	{Mutation: RegionEmptyFirst, Name: "region-empty-first", Rule: "regions", Config: removingRegion, Breaks: InSyncHolds},
	{Mutation: AckWhatIsRead, Name: "ack-what-is-read", Rule: "builds", Config: mixing, Breaks: InSyncHolds},
	{Mutation: CopyReachesEnd, Name: "copy-reaches-end", Rule: "transfer", Config: copying, Breaks: InSyncHolds},
	{Mutation: CopyInOneStep, Name: "copy-in-one-step", Rule: "transfer", Config: copying, Breaks: InSyncHolds},
	{Mutation: CopyCountsInstalled, Name: "copy-counts-installed", Rule: "transfer", Config: copying, Breaks: InSyncHolds},
	{Mutation: CopiedTailOpen, Name: "copied-tail-open", Rule: "transfer", Config: copyingTail, Breaks: HealthyStays},
	{Mutation: CopyKeepsPromise, Name: "copy-keeps-promise", Rule: "transfer", Config: slackCopying, Breaks: NewPrimaryHolds},
	{Mutation: AdoptPrepared, Name: "adopt-prepared", Rule: "1.11", Config: handing, Breaks: ConfirmRead},
	{Mutation: AdoptOfThisLife, Name: "adopt-of-this-life", Rule: "1.11", Config: damagingHanding, Breaks: BegunOnce},
}

// Unnoticed returns the rules whose absence breaks nothing; their Breaks is 0. They are second
// lines of defence, and docs/model.md explains why other rules hide them.
func Unnoticed() []Finding { return slices.Clone(unnoticed) }

var unnoticed = []Finding{
	{Mutation: ReportedReached, Name: "reported-reached", Rule: "E, ruling 16", Config: damaging},
	{Mutation: RefuseDiffering, Name: "refuse-differing", Rule: "A, ruling 17", Config: damagingTwo},
	{Mutation: BeginReadable, Name: "begin-readable", Rule: "builds", Config: mixing},
}
