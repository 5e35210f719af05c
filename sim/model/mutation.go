package model

// Mutation names a rule of the protocol that a Config can leave out.
type Mutation uint8

// The rules. Mutations tells where leaving one out shows.
const (
	// WholeProtocol leaves out nothing.
	WholeProtocol Mutation = iota
	// Fence (rule A): an APPEND of an epoch below the promised one is refused.
	Fence
	// NoCutToCommit (rule T): a log is cut only where it contradicts a later epoch, never back to the commit position.
	NoCutToCommit
	// AckWhatWasSent (rule A): an ACK covers what the APPEND carried, never the log's own end.
	AckWhatWasSent
	// CommitNeedsPending (rule C): while a change is under way a commit needs P too.
	CommitNeedsPending
	// ShrinkAfterCommit (rule R): a smaller set counts only once metadata has committed it.
	ShrinkAfterCommit
	// JoinCaughtUp (rule R): who joins has the log first.
	JoinCaughtUp
	// JoinFromStart (rule R): who joins has the log up to max(commit, start), not only up to commit.
	JoinFromStart
	// ShrinkKeepsCopies (rule R): with slack, a smaller set has enough copies first.
	ShrinkKeepsCopies
	// PendingUntilVersion (rule R): P ends when the version has moved, not when the record is read again.
	PendingUntilVersion
	// CompareAndSet (rule R): metadata compares epoch and version.
	CompareAndSet
	// SentStays (rule R, ruling 7): a P that was sent is not dropped.
	SentStays
	// BothUntilDecided (rule R, ruling 7): proposing the unchanged set does not end P.
	BothUntilDecided
	// UnchangedMovesVersion (rule R, ruling 7): committing the unchanged set moves the version.
	UnchangedMovesVersion
	// ElectFromISR (rule E): only a member of the in-sync set is elected.
	ElectFromISR
	// ReservedNotReused (rule E): an epoch reserved for a handover is never given to an election.
	ReservedNotReused
	// PrepareQuorum (rule E): with slack, a candidate hears a quorum of promises.
	PrepareQuorum
	// ReadAfterStart (rule E): a primary serves reads only when its epoch-start entry is committed.
	ReadAfterStart
	// WaitForGrants (rule E): an elected node (with slack, a promiser too) waits until its grants are over.
	WaitForGrants
	// DurablePromise (rule E): a promise is durable.
	DurablePromise
	// NewEpochAfterRestart (rule S): a restarted primary does not go on with its epoch.
	NewEpochAfterRestart
	// NewNameForNewStore (section 1.2): a node that lost its store joins as a new one, never under its old name.
	NewNameForNewStore
	// RememberGrants (rule S): a restarted node waits as if it had given every grant.
	RememberGrants
	// LeaseFromSending (rule L): a lease counts from when the heartbeat was sent, not from when the grant came.
	LeaseFromSending
	// LeaseFromAll (rule L): a lease needs as many grants as a commit needs copies, not a majority.
	LeaseFromAll
	// LeaseNeedsPending (rule L): while a change is under way a lease needs P too.
	LeaseNeedsPending
	// ExclusionListed (rule L, ruling 1): grants of a node that has promised an epoch exclude the epochs before.
	ExclusionListed
	// ListedUntilConfirmed (rule L, ruling 1): the exclusion is listed until the holder has confirmed it.
	ListedUntilConfirmed
	// ExclusionWithGrant (rule L, ruling 1): the holder applies exclusion and grant in one step.
	ExclusionWithGrant
	// ConfirmAfterDropping (rule L, ruling 1): the holder confirms only after it has given up its belief.
	ConfirmAfterDropping
	// FloorKept (rule L, ruling 1): the holder keeps the exclusion: a grant that was under way does not undo it.
	FloorKept
	// ConfirmedPerLife (rule L, ruling 1): a confirmation does not outlive the holder's process.
	ConfirmedPerLife
	// OldLifeIgnored (rule L, ruling 1): heartbeats of an earlier life of the holder are ignored.
	OldLifeIgnored
	// GrantOfThisLife (rule L, ruling 1): a grant for an earlier life of the holder is ignored.
	GrantOfThisLife
	// ExclusionAfterRestart (rule L, ruling 1): a restarted grantor lists its durable promises again.
	ExclusionAfterRestart
	// PublishNeedsAll (ruling 6): publishing a closed timestamp needs the acknowledgement of all of I.
	PublishNeedsAll
	// PublishNeedsPending (ruling 6): and of all of P.
	PublishNeedsPending
	// PublishFromStart (ruling 6): and a committed epoch-start entry.
	PublishFromStart
	// JoinAgreesClosed (ruling 6): who joins has acknowledged the greatest published closed timestamp.
	JoinAgreesClosed
	// ClosedFenced (ruling 6): a node that has promised a later epoch acknowledges no closed timestamp of an earlier one.
	ClosedFenced
	// DurableClock (ruling 6): the clock stays past an acknowledged closed timestamp across restarts.
	DurableClock
	// HandoverNoPending (section 1.11): no handover while a change is under way.
	HandoverNoPending
	// HandoverStepsDown (section 1.11): who hands over stops first.
	HandoverStepsDown

	mutations
)

// Finding tells where leaving a rule out shows.
type Finding struct {
	Mutation Mutation
	// Name is how the mutation is called on the command line, Rule the rule or section of the replication design.
	Name, Rule string
	// Config shows it, and Breaks is the invariant that fails first there.
	Config Config
	Breaks Invariant
	// Seed and Steps are set where random walks find it sooner than an exhaustive search; else both are 0.
	Seed  uint64
	Steps int
}

// Find searches for the violation, as Config, Seed and Steps say.
func (f Finding) Find() (Result, error) {
	if f.Steps > 0 {
		return Walk(f.Config, f.Seed, Limits{Steps: f.Steps})
	}
	return Explore(f.Config, Limits{})
}

// Mutations lists every rule that can be left out, by rule.
func Mutations() []Finding {
	var out []Finding
	for _, f := range findings {
		f.Config.Without = f.Mutation
		if f.Breaks != Owed {
			// What is owed breaks before a client can see anything; show what a client sees.
			f.Config.Ignore = []Invariant{Owed}
		}
		out = append(out, f)
	}
	return out
}

// MutationByName finds a mutation by the name that Finding gives.
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
	{Mutation: ReservedNotReused, Name: "reserved-not-reused", Rule: "E", Config: handing, Breaks: OnePrimary},
	{Mutation: PrepareQuorum, Name: "prepare-quorum", Rule: "E", Config: slackOnly, Breaks: NewPrimaryHolds},
	{Mutation: ReadAfterStart, Name: "read-after-start", Rule: "E", Config: small, Breaks: ConfirmRead},
	{Mutation: WaitForGrants, Name: "wait-for-grants", Rule: "E", Config: leasing, Breaks: LeaseRead},
	{Mutation: DurablePromise, Name: "durable-promise", Rule: "E", Config: slackCrashing, Breaks: NewPrimaryHolds},
	{Mutation: NewEpochAfterRestart, Name: "new-epoch-after-restart", Rule: "S", Config: crashing, Breaks: ConfirmRead},
	{Mutation: NewNameForNewStore, Name: "new-name-for-new-store", Rule: "1.2", Config: wiping, Breaks: InSyncHolds},
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
	{Mutation: PublishNeedsAll, Name: "publish-needs-all", Rule: "ruling 6", Config: closing, Breaks: ClosedStaysClosed},
	{Mutation: PublishNeedsPending, Name: "publish-needs-pending", Rule: "ruling 6", Config: closingChanging, Breaks: ClosedStaysClosed},
	{Mutation: PublishFromStart, Name: "publish-from-start", Rule: "ruling 6", Config: closingTwice, Breaks: ClosedStaysClosed, Seed: 6, Steps: 200_000},
	{Mutation: JoinAgreesClosed, Name: "join-agrees-closed", Rule: "ruling 6", Config: closingChanging, Breaks: ClosedStaysClosed},
	{Mutation: ClosedFenced, Name: "closed-fenced", Rule: "ruling 6", Config: closing, Breaks: ClosedStaysClosed},
	{Mutation: DurableClock, Name: "durable-clock", Rule: "ruling 6", Config: closingCrashing, Breaks: ClosedStaysClosed},
	{Mutation: HandoverNoPending, Name: "handover-no-pending", Rule: "1.11", Config: handingChanging, Breaks: InSyncHolds},
	{Mutation: HandoverStepsDown, Name: "handover-steps-down", Rule: "1.11", Config: handingTwice, Breaks: InSyncHolds},
}
