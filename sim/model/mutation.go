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
	// SentStays (rule R): a P that was proposed is not dropped.
	SentStays
	// BothUntilDecided (rule R): proposing the unchanged set does not end P.
	BothUntilDecided
	// UnchangedMovesVersion (rule R): committing the unchanged set increments the
	// version.
	UnchangedMovesVersion
	// ElectFromISR (rule E): only a member of the in-sync set is elected.
	ElectFromISR
	// ReservedNotReused (rule E): an epoch reserved for a handover is never used for an election.
	ReservedNotReused
	// PrepareQuorum (rule P): an elected node hears enough answers to PREPARE.
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
	// ExclusionListed (rule L, docs/replication.md#exclusions): grants of a node that has promised an epoch exclude the
	// earlier epochs.
	ExclusionListed
	// ListedUntilConfirmed (rule L, docs/replication.md#exclusions): the exclusion is listed until the holder has
	// confirmed it.
	ListedUntilConfirmed
	// ExclusionWithGrant (rule L, docs/replication.md#exclusions): the holder applies exclusion and grant in one step.
	ExclusionWithGrant
	// ConfirmAfterDropping (rule L, docs/replication.md#exclusions): the holder confirms only after it has dropped its
	// belief.
	ConfirmAfterDropping
	// FloorKept (rule L, docs/replication.md#exclusions): the holder keeps the exclusion, so a grant in flight does not
	// cancel it.
	FloorKept
	// ConfirmedPerLife (rule L, docs/replication.md#exclusions): a confirmation does not outlive the holder's process.
	ConfirmedPerLife
	// OldLifeIgnored (rule L, docs/replication.md#exclusions): heartbeats of an earlier life of the holder are ignored.
	OldLifeIgnored
	// GrantOfThisLife (rule L, docs/replication.md#exclusions): a grant for an earlier life of the holder is ignored.
	GrantOfThisLife
	// ExclusionAfterRestart (rule L, docs/replication.md#exclusions): a restarted grantor lists its durable promises
	// again.
	ExclusionAfterRestart
	// PublishNeedsAll (docs/replication.md#closed): publishing a closed timestamp needs the acknowledgement of all
	// members of I.
	PublishNeedsAll
	// PublishNeedsPending (docs/replication.md#closed): publishing also needs all members of P.
	PublishNeedsPending
	// PublishFromStart (docs/replication.md#closed): publishing also needs a committed epoch-start entry.
	PublishFromStart
	// JoinAgreesClosed (docs/replication.md#closed): a joining member has acknowledged the greatest published closed
	// timestamp.
	JoinAgreesClosed
	// ClosedFenced (docs/replication.md#closed): a node that has promised a later epoch acknowledges no closed
	// timestamp of an earlier one.
	ClosedFenced
	// DurableClock (docs/replication.md#closed): the clock stays past an acknowledged closed timestamp across
	// restarts.
	DurableClock
	// HandoverNoPending (section 1.11): no handover during a change.
	HandoverNoPending
	// HandoverStepsDown (section 1.11): the primary stops before it hands over.
	HandoverStepsDown
	// Relearn (docs/replication.md#rule-relearn): a restarted node promises the epoch of the record before it does
	// anything.
	Relearn
	// PrepareAdopts (rule P): the elected node adopts the greatest log of the answers.
	PrepareAdopts
	// AnswerPromises (rule P): a node that answers PREPARE promises the epoch.
	AnswerPromises
	// AnswersOfMembers (rule P): only answers of members of the new in-sync set count.
	AnswersOfMembers
	// BestByEpoch (rule P): the best log is the one with the greatest last epoch, regardless of
	// its length.
	BestByEpoch
	// BestByEnd (rule P): among logs with the same last epoch the longest is the best.
	BestByEnd
	// ReportedReached (rule P): no epoch begins below a commit position that an answer reports.
	ReportedReached
	// AnswerCarriesClock (rule P): the elected node advances its clock past the clocks in the
	// answers.
	AnswerCarriesClock
	// FetchByHash (rule P): the elected node fetches exactly the log that was reported, even if
	// its holder has changed since.
	FetchByHash
	// FetchRecounts (rule P): if the best log cannot be fetched, the answers are dropped and
	// asked for again.
	FetchRecounts
	// RefuseFirst (docs/replication.md#rule-refuse): a replica refuses an epoch that would undo its committed entries;
	// the primary stops.
	RefuseFirst
	// RefuseDiffering (docs/replication.md#rule-refuse): the replica also refuses if the epoch starts above the commit
	// position but the logs differ below it.
	RefuseDiffering
	// HandoverCarriesClock (docs/replication.md#handover): HANDOVER carries the clock of the old primary.
	HandoverCarriesClock
	// HandoverOfThisLife (docs/replication.md#handover): HANDOVER names a life of its receiver, and another life
	// refuses it.
	HandoverOfThisLife
	// LifeCounted (docs/replication.md#lives): the catalog counts every start as a life; an older copy of a disk is
	// a new life.
	LifeCounted
	// AckOfThisLife (docs/replication.md#lives): acknowledgements of older lives are ignored.
	AckOfThisLife
	// MatchPerLife (docs/replication.md#lives): an acknowledgement of a newer life clears earlier acknowledgements.
	MatchPerLife
	// JoinNamesLife (docs/replication.md#lives): a change names the lives of the joining members, and metadata
	// refuses lives that have ended.
	JoinNamesLife
	// DamagedWaits (docs/replication.md#lives): a damaged restart waits for the grants that the node may have
	// given.
	DamagedWaits
	// LivesFromProposer (docs/replication.md#rule-one-answer): the record takes the lives that the primary vouches for, not
	// the registered ones.
	LivesFromProposer
	// VouchForLog (docs/replication.md#rule-one-answer): the primary vouches for a life only if it holds every entry that
	// clients may know.
	VouchForLog
	// VouchForClock (docs/replication.md#rule-one-answer): that life must also have acknowledged the published closed
	// timestamp.
	VouchForClock
	// AgreedPerLife (docs/replication.md#rule-one-answer): a new life of a member clears the closed timestamp that earlier
	// lives acknowledged.
	AgreedPerLife
	// AnswerOfRecordedLife (docs/replication.md#rule-one-answer): a single answer suffices only from the life in the record.
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
	{Mutation: SentStays, Name: "sent-stays", Rule: "R", Config: changing, Breaks: InSyncHolds},
	{Mutation: BothUntilDecided, Name: "both-until-decided", Rule: "R", Config: changing, Breaks: InSyncHolds},
	{Mutation: UnchangedMovesVersion, Name: "unchanged-moves-version", Rule: "R", Config: changing, Breaks: InSyncHolds},
	{Mutation: ElectFromISR, Name: "elect-from-isr", Rule: "E", Config: electing, Breaks: InSyncHolds},
	{Mutation: ReservedNotReused, Name: "reserved-not-reused", Rule: "E", Config: handing, Breaks: BegunOnce},
	{Mutation: PrepareQuorum, Name: "prepare-quorum", Rule: "P", Config: damaging, Breaks: NewPrimaryHolds},
	{Mutation: ReadAfterStart, Name: "read-after-start", Rule: "E", Config: small, Breaks: ConfirmRead},
	{Mutation: WaitForGrants, Name: "wait-for-grants", Rule: "E", Config: leasing, Breaks: LeaseRead},
	{Mutation: DurablePromise, Name: "durable-promise", Rule: "E", Config: slackCrashing, Breaks: NewPrimaryHolds},
	{Mutation: NewEpochAfterRestart, Name: "new-epoch-after-restart", Rule: "S", Config: crashing, Breaks: ConfirmRead},
	{Mutation: RememberGrants, Name: "remember-grants", Rule: "S", Config: leaseCrashing, Breaks: LeaseRead},
	{Mutation: LeaseFromSending, Name: "lease-from-sending", Rule: "L", Config: leasing, Breaks: LeaseRead},
	{Mutation: LeaseFromAll, Name: "lease-from-all", Rule: "L", Config: leasing, Breaks: LeaseRead},
	{Mutation: LeaseNeedsPending, Name: "lease-needs-pending", Rule: "L", Config: leaseChanging, Breaks: LeaseRead},
	{Mutation: ExclusionListed, Name: "exclusion-listed", Rule: "L, exclusions", Config: leasing, Breaks: LeaseRead},
	{Mutation: ListedUntilConfirmed, Name: "listed-until-confirmed", Rule: "L, exclusions", Config: leasing, Breaks: LeaseRead},
	{Mutation: ExclusionWithGrant, Name: "exclusion-with-grant", Rule: "L, exclusions", Config: leasing, Breaks: LeaseRead},
	{Mutation: ConfirmAfterDropping, Name: "confirm-after-dropping", Rule: "L, exclusions", Config: leasing, Breaks: LeaseRead},
	{Mutation: FloorKept, Name: "floor-kept", Rule: "L, exclusions", Config: leaseCrossing, Breaks: LeaseRead},
	{Mutation: ExclusionAfterRestart, Name: "exclusion-after-restart", Rule: "L, exclusions", Config: leaseCrashing, Breaks: LeaseRead},
	{Mutation: ConfirmedPerLife, Name: "confirmed-per-life", Rule: "L, exclusions", Config: pairs, Breaks: Owed},
	{Mutation: GrantOfThisLife, Name: "grant-of-this-life", Rule: "L, exclusions", Config: pairsLate, Breaks: Owed},
	{Mutation: OldLifeIgnored, Name: "old-life-ignored", Rule: "L, exclusions", Config: pairsDeep, Breaks: Owed, Seed: 9, Steps: 3_000_000},
	{Mutation: PublishNeedsAll, Name: "publish-needs-all", Rule: "closed timestamps", Config: damagingClosed, Breaks: ClosedStaysClosed},
	{Mutation: PublishNeedsPending, Name: "publish-needs-pending", Rule: "closed timestamps", Config: joiningClosed, Breaks: ClosedStaysClosed},
	{Mutation: PublishFromStart, Name: "publish-from-start", Rule: "closed timestamps", Config: closingTwice, Breaks: ClosedStaysClosed, Seed: 2, Steps: 2_000_000},
	{Mutation: JoinAgreesClosed, Name: "join-agrees-closed", Rule: "closed timestamps", Config: joiningClosed, Breaks: ClosedStaysClosed},
	{Mutation: ClosedFenced, Name: "closed-fenced", Rule: "closed timestamps", Config: closing, Breaks: ClosedStaysClosed},
	{Mutation: DurableClock, Name: "durable-clock", Rule: "closed timestamps", Config: damagingCrashed, Breaks: ClosedStaysClosed},
	{Mutation: HandoverNoPending, Name: "handover-no-pending", Rule: "handover", Config: handingChanging, Breaks: InSyncHolds},
	{Mutation: HandoverStepsDown, Name: "handover-steps-down", Rule: "handover", Config: handingTwice, Breaks: InSyncHolds},
	{Mutation: Relearn, Name: "relearn", Rule: "S, relearning", Config: damaging, Breaks: BegunOnce},
	{Mutation: PrepareAdopts, Name: "prepare-adopts", Rule: "P", Config: damaging, Breaks: NewPrimaryHolds},
	{Mutation: AnswerPromises, Name: "answer-promises", Rule: "P", Config: damaging, Breaks: NewPrimaryHolds},
	{Mutation: AnswersOfMembers, Name: "answers-of-members", Rule: "P", Config: damagingThrice, Breaks: NewPrimaryHolds},
	{Mutation: BestByEpoch, Name: "best-by-epoch", Rule: "P", Config: imaging, Breaks: NewPrimaryHolds},
	{Mutation: BestByEnd, Name: "best-by-end", Rule: "P", Config: damaging, Breaks: NewPrimaryHolds},
	{Mutation: AnswerCarriesClock, Name: "answer-carries-clock", Rule: "P", Config: damagingClosed, Breaks: ClosedStaysClosed},
	{Mutation: FetchByHash, Name: "fetch-by-hash", Rule: "P", Config: damaging, Breaks: InSyncHolds},
	{Mutation: FetchRecounts, Name: "fetch-recounts", Rule: "P", Config: damaging, Breaks: NewPrimaryHolds},
	{Mutation: RefuseFirst, Name: "refuse-first", Rule: "A, refusal", Config: damagingTwo, Breaks: HealthyStays},
	{Mutation: HandoverCarriesClock, Name: "handover-carries-clock", Rule: "handover", Config: damagingHanding, Breaks: ClosedStaysClosed},
	{Mutation: HandoverOfThisLife, Name: "handover-of-this-life", Rule: "handover", Config: damagingHanding, Breaks: BegunOnce},
	{Mutation: LifeCounted, Name: "life-counted", Rule: "S, lives", Config: damagingLearner, Breaks: InSyncHolds},
	{Mutation: AckOfThisLife, Name: "ack-of-this-life", Rule: "C, lives", Config: joiningLate, Breaks: InSyncHolds},
	{Mutation: MatchPerLife, Name: "match-per-life", Rule: "C, lives", Config: joiningPartial, Breaks: InSyncHolds},
	{Mutation: JoinNamesLife, Name: "join-names-life", Rule: "R, lives", Config: damagingLearner, Breaks: InSyncHolds},
	{Mutation: DamagedWaits, Name: "damaged-waits", Rule: "S, lives", Config: damagingLeased, Breaks: LeaseRead},
	{Mutation: LivesFromProposer, Name: "lives-from-proposer", Rule: "one answer", Config: oneAnswer, Breaks: NewPrimaryHolds},
	{Mutation: VouchForLog, Name: "vouch-for-log", Rule: "one answer", Config: oneAnswerPartial, Breaks: NewPrimaryHolds},
	{Mutation: VouchForClock, Name: "vouch-for-clock", Rule: "one answer", Config: oneAnswerClosed, Breaks: ClosedStaysClosed},
	{Mutation: AgreedPerLife, Name: "agreed-per-life", Rule: "one answer", Config: oneAnswerAgreed, Breaks: ClosedStaysClosed},
	{Mutation: AnswerOfRecordedLife, Name: "answer-of-recorded-life", Rule: "one answer", Config: oneAnswer, Breaks: NewPrimaryHolds},
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
	{Mutation: AdoptPrepared, Name: "adopt-prepared", Rule: "handover", Config: handing, Breaks: ConfirmRead},
	{Mutation: AdoptOfThisLife, Name: "adopt-of-this-life", Rule: "handover", Config: damagingHanding, Breaks: BegunOnce},
}

// Unnoticed returns the rules whose absence breaks nothing; their Breaks is 0. They are second
// lines of defence, and docs/model.md explains why other rules hide them.
func Unnoticed() []Finding { return slices.Clone(unnoticed) }

var unnoticed = []Finding{
	{Mutation: ReportedReached, Name: "reported-reached", Rule: "P", Config: damaging},
	{Mutation: RefuseDiffering, Name: "refuse-differing", Rule: "A, refusal", Config: damagingTwo},
	{Mutation: BeginReadable, Name: "begin-readable", Rule: "builds", Config: mixing},
}
