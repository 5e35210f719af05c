package sim

import "slices"

// Bug is a duty that the simulator breaks on purpose, to prove that the checks notice. A bug is
// planted in the world around the host, through host.Probe, or in a frame on its way.
type Bug uint8

// The planted bugs.
const (
	NoBug Bug = iota
	// AckBeforeSync sends acknowledgements before the acknowledged entries are durable.
	AckBeforeSync
	// CountBeforeSync reports the writes of the replica as durable before the sync is answered.
	CountBeforeSync
	// LyingDisk reports writes as durable and loses them in a crash.
	LyingDisk
	// ReadWithoutLease answers reads at a primary regardless of its grants.
	ReadWithoutLease
	// ReadLate answers reads for a while after the lease has ended, like a holder that counts from
	// the receipt of a grant and not from its request.
	ReadLate
	// ActivateAtOnce begins an epoch without waiting for the grants of the node to expire.
	ActivateAtOnce
	// ForgetGrants restarts a node as if it had never granted a lease.
	ForgetGrants
	// IgnoreExclusions withholds from lease holders the exclusions that their grantors have
	// promised.
	IgnoreExclusions
	// NoDedup never finds the stored result of a request.
	NoDedup
	// StaleBase evaluates conditions against the committed state and ignores appended entries.
	StaleBase
	// ReadUncommitted reads the newest version, committed or not.
	ReadUncommitted
	// KeepConflicts does not undo the entries that Ready lists.
	KeepConflicts
	// BlindMetadata applies changes of in-sync sets regardless of the version they were decided on.
	BlindMetadata
	// ElectAnyone makes the controller elect replicas that are not in sync.
	ElectAnyone
	// ReadTooSoon reads at a primary whose epoch-start entry is not committed.
	ReadTooSoon
	// LeaseByWall measures leases with the wall clock.
	LeaseByWall
	// WildClock runs clocks at rates that differ by far more than leases allow for.
	WildClock
	// KeepResults keeps the stored results of requests whose entries are undone.
	KeepResults
	// ForgetLog loses the log but not the identity of a node that crashes.
	ForgetLog
	// CloseAlone publishes closed timestamps that only the node of the primary has agreed to.
	CloseAlone
	// CloseUnfenced counts agreements that were given for earlier epochs.
	CloseUnfenced
	// AgreeOnly agrees to closed timestamps without advancing the clock.
	AgreeOnly
	// ForgetCeiling loses the ceiling of the clock in a crash.
	ForgetCeiling
	// TakeAnyFrame accepts closed timestamps from frames that leave a gap after the known state.
	TakeAnyFrame
	// CloseAhead calls a range closed at a secondary before the secondary has the entries.
	CloseAhead
	// AdoptShorter keeps the log of an elected replica although an answer reports a longer one.
	AdoptShorter
	// BelowReport begins an epoch below a commit position that an answer reports. Two rules hide
	// this bug, so AdoptShorter (which alone merely stops the range) and NoRefusal are planted with
	// it.
	BelowReport
	// SkipAsking begins an epoch without asking for the ends of the other logs.
	SkipAsking
	// ForgetPromises starts a life without the epochs that the metadata knows.
	ForgetPromises
	// AckOfOldLife counts acknowledgements of a life that has ended.
	AckOfOldLife
	// GrantOfOldLife counts grants of a life that has ended.
	GrantOfOldLife
	// NonceIgnored counts the life of a disk that is an older copy as whole.
	NonceIgnored
	// NoRefusal quarantines the member whose committed entries a primary contradicts in place of
	// the primary. Rule P hides this bug, so SkipAsking is planted with it.
	NoRefusal
	// ForgetQuarantine loses the reason of a quarantine in a restart.
	ForgetQuarantine
	// NoProgressTimeout keeps members in sync that acknowledge nothing.
	NoProgressTimeout
	// NoClockRefusal accepts timestamps regardless of how far ahead they are.
	NoClockRefusal
	// VoteAtOnce lets a voter of the metadata group take part before it knows from the other
	// voters which promises it may have forgotten.
	VoteAtOnce
	// NamesWithoutEpoch generates names from a counter alone.
	NamesWithoutEpoch
	// FullDiskAcks acknowledges entries that a full disk did not take.
	FullDiskAcks
	// DropBeforeRemoved drops a copy as soon as it is marked as leaving, although it still is in sync.
	DropBeforeRemoved
	// CommitCopiedTail takes everything in a copy of a range as committed, also the end of the donor's
	// log.
	CommitCopiedTail
	// InstallElectable elects a replica that receives a copy of its range and has not installed it.
	InstallElectable
	// InstallForgetsPromise installs a copy with the promise of the donor, without that of the replica.
	InstallForgetsPromise
	// SkipChecksum installs chunks of a copy as they arrive, also those that were damaged on the way.
	SkipChecksum
	// ResumeWrongSet continues a copy with the chunks of an earlier set of the range.
	ResumeWrongSet
	// AcceptOtherLife takes a handover that was meant for an earlier life.
	AcceptOtherLife
	// RemoveUnrecorded lets a primary commit without a member that is leaving before the metadata has removed it.
	RemoveUnrecorded
	// ShrinkBelowMinimum stores a lower minimum of in-sync members than the table was promised.
	ShrinkBelowMinimum
	// BelieveRemoved counts an acknowledgement of a copy that was removed for the one that took its place.
	BelieveRemoved
	// SecondariesTogether puts both secondaries of a range into one region, by a node that claims to be in another.
	SecondariesTogether
	// AckAfterHandover answers the writes that wait when a primary has handed over its range.
	AckAfterHandover
	// ServeBeforeLast serves reads at the target of a handover before it has committed the last entry.
	ServeBeforeLast
	// AckUnread acknowledges entries that an older build cannot read.
	AckUnread
	// HandOverToFew leaves a member out of the in-sync set that a handover names.
	HandOverToFew
	// SplitForgetsResults divides a range without the results of requests for the new one.
	SplitForgetsResults
	// BirthAtAnyEpoch begins every epoch of a range that is not on record as born without asking anybody, as if it were the first.
	BirthAtAnyEpoch
	// DivideTwice divides a copy twice by one entry.
	DivideTwice
	// MissTheSplit lets secondaries keep their whole copies after an entry that divides the range.
	MissTheSplit
	// SplitLostOnRestart loses the copies of ranges that were split off when a node restarts.
	SplitLostOnRestart
	// BirthBeforeCommit records a split as complete before the entry is committed.
	BirthBeforeCommit
	// MergeForgetsResults forgets the results of requests of ranges that were merged.
	MergeForgetsResults
	// MissTheUnion lets secondaries keep both copies after an entry that unites two ranges.
	MissTheUnion
	// MergeBeforeUnion records a merge as complete before any replica has united its copies.
	MergeBeforeUnion
	// TakeBeforeCommit takes over a range whose end is not committed.
	TakeBeforeCommit
	// TakeWithoutEnd acknowledges that a range is taken over without having its end.
	TakeWithoutEnd
	// WitnessWithData registers a witness as a node that takes copies.
	WitnessWithData
	// LeaveAtOnce drops the copies of a region that is being removed before the other region has copies of its ranges.
	LeaveAtOnce
	// NeverStandIn leaves a range of a dead node with the member that was elected at once, although a nearer node could have it by now.
	NeverStandIn
	// StandInUnready makes the node that is nearest to a dead one primary before it is in sync.
	StandInUnready
	// LeadWithWrongClock lets a node whose clock is wrong keep the leadership of the metadata and judge registrations by its clock.
	LeadWithWrongClock
	// StayUnreadable lets a node whose disk refuses reads stay primary.
	StayUnreadable
	// TallyOfOldLife takes a tally for a frame of an earlier stream, as if the other node had sent it in its present life.
	TallyOfOldLife
	// TallyForRefused counts an Append that was refused as acknowledged by the tally of its frame.
	TallyForRefused
	// TallyBeforeSync sends the tally of a frame when it arrives.
	TallyBeforeSync
	// LongWindow syncs the writes of a table that defers syncs much later than the table says.
	LongWindow
	// DeferSynced acknowledges the writes of a table that does not defer syncs before they are synced.
	DeferSynced
	// DropWithHome drops the copies of all ranges with their home in a region that was given up, also of those that survive it.
	DropWithHome
	// StopBeforeCopied stops the nodes of a region for good when its removal begins, before other nodes have its copies.
	StopBeforeCopied
	// ElectRemoved takes a node of a region that was given up for the primary of the ranges with their home there.
	ElectRemoved
	// TablesBeforeLog makes tables durable before the records of the log that they hold. The stores have logs of their own.
	TablesBeforeLog
	bugs
)

var bugNames = [bugs]string{
	"none", "ack-before-sync", "count-before-sync", "lying-disk", "read-without-lease", "read-late", "activate-at-once",
	"forget-grants", "ignore-exclusions", "no-dedup", "stale-base", "read-uncommitted", "keep-conflicts", "blind-metadata",
	"elect-anyone", "read-too-soon", "lease-by-wall", "wild-clock", "keep-results", "forget-log", "close-alone",
	"close-unfenced", "agree-only", "forget-ceiling", "take-any-frame", "close-ahead",
	"adopt-shorter", "below-report", "skip-asking", "forget-promises", "ack-of-old-life", "grant-of-old-life", "nonce-ignored",
	"no-refusal", "forget-quarantine", "no-progress-timeout", "no-clock-refusal", "vote-at-once", "names-without-epoch",
	"full-disk-acks", "drop-before-removed", "commit-copied-tail",
	"install-electable", "install-forgets-promise", "skip-checksum", "resume-wrong-set", "accept-other-life",
	"remove-unrecorded", "shrink-below-minimum", "believe-removed", "secondaries-together", "ack-after-handover",
	"serve-before-last", "ack-unread", "hand-over-to-few",
	"split-forgets-results", "birth-at-any-epoch", "divide-twice", "miss-the-split", "split-lost-on-restart", "birth-before-commit",
	"merge-forgets-results", "miss-the-union", "merge-before-union", "take-before-commit", "take-without-end", "witness-with-data",
	"leave-at-once", "never-stand-in", "stand-in-unready", "lead-with-wrong-clock",
	"stay-unreadable",
	"tally-of-old-life", "tally-for-refused", "tally-before-sync",
	"long-window", "defer-synced",
	"drop-with-home", "stop-before-copied", "elect-removed",
	"tables-before-log",
}

// String returns the name of the bug, as used by -sim.bug and in test names.
func (b Bug) String() string { return bugNames[b] }

// ParseBug returns the bug with the given name. It reports false if there is none.
func ParseBug(s string) (b Bug, ok bool) {
	i := slices.Index(bugNames[:], s)
	return Bug(max(i, 0)), i >= 0
}
