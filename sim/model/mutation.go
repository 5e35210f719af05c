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
	// LivesCompared (rule R): metadata compares the lives of those who join.
	LivesCompared
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
	// RegistrationFirst (rule S): a new life acts on no state of metadata older than its registration.
	RegistrationFirst
	// RememberGrants (rule S): a restarted node waits as if it had given every grant.
	RememberGrants
	// FreshNodeOnly (rule S, ruling 1): only a node that never lived before skips that wait, not an old node with an empty store.
	FreshNodeOnly
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
