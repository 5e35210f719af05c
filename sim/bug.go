package sim

import "slices"

// Bug is a duty that is broken on purpose, to see that the judges notice: by the world around the host, by what host.Probe
// may change, or on the way of a frame.
type Bug uint8

// The planted bugs.
const (
	NoBug Bug = iota
	// AckBeforeSync sends acknowledgements before the disk has what they acknowledge.
	AckBeforeSync
	// CountBeforeSync tells the replica that its writes are durable when they are not.
	CountBeforeSync
	// LyingDisk calls writes durable and loses them in a crash.
	LyingDisk
	// ReadWithoutLease answers reads at a primary whatever grants it holds.
	ReadWithoutLease
	// ReadLate answers reads for a while after the lease has ended, as a holder does that counts from the receipt.
	ReadLate
	// ActivateAtOnce does not wait until the grants that the node gave are over.
	ActivateAtOnce
	// ForgetGrants restarts a node as if it had never granted anything.
	ForgetGrants
	// IgnoreExclusions keeps from the holders of leases what their grantors have promised since.
	IgnoreExclusions
	// NoDedup never finds the stored result of a request.
	NoDedup
	// StaleBase evaluates conditions against what is committed, not against what is written.
	StaleBase
	// ReadUncommitted reads the newest version, committed or not.
	ReadUncommitted
	// KeepConflicts does not undo what Ready says must be undone.
	KeepConflicts
	// BlindMetadata applies changes of in-sync sets whatever version they were decided on.
	BlindMetadata
	// ElectAnyone makes the controller elect replicas that are not in sync.
	ElectAnyone
	// ReadTooSoon reads at a primary whose epoch-start entry is not committed.
	ReadTooSoon
	// LeaseByWall measures leases with the wall clock.
	LeaseByWall
	// WildClock runs clocks at rates that differ by far more than leases allow for.
	WildClock
	// KeepResults leaves the stored results of requests behind when their entries are undone.
	KeepResults
	// ForgetLog loses the log, not the identity, of a node that crashes.
	ForgetLog
	// CloseAlone publishes closed timestamps that only the primary's own node has agreed to.
	CloseAlone
	// CloseUnfenced counts agreement for epochs that are over.
	CloseUnfenced
	// AgreeOnly agrees to closed timestamps without moving the clock.
	AgreeOnly
	// ForgetCeiling loses the clock's ceiling in a crash.
	ForgetCeiling
	// TakeAnyFrame takes news of closed timestamps that does not connect to what is known.
	TakeAnyFrame
	// CloseAhead calls a range closed at a secondary before it has the entries.
	CloseAhead
	// AdoptShorter keeps the own log of an elected replica although an answer has a longer one.
	AdoptShorter
	// BelowReport begins an epoch below a commit position that an answer reports. Two rules hide that: AdoptShorter, which by itself
	// only stops the range, and NoRefusal are planted with it.
	BelowReport
	// SkipAsking begins an epoch without asking for the ends of the logs.
	SkipAsking
	// ForgetPromises starts a life without what metadata knows of the epochs.
	ForgetPromises
	// AckOfOldLife counts acknowledgements of a life that is over.
	AckOfOldLife
	// GrantOfOldLife counts grants of a life that is over.
	GrantOfOldLife
	// NonceIgnored counts the life of a disk that is an older copy as whole.
	NonceIgnored
	// NoRefusal quarantines a member whose committed entries a primary contradicts, and not the primary. Asking hides that:
	// SkipAsking is planted with it.
	NoRefusal
	// ForgetQuarantine loses the reason of a quarantine in a restart.
	ForgetQuarantine
	// NoProgressTimeout lets members stay in sync that acknowledge nothing.
	NoProgressTimeout
	// NoClockRefusal takes timestamps however far ahead they are.
	NoClockRefusal
	// VoteAtOnce lets a voter of the metadata group take part before it has heard what it may have promised.
	VoteAtOnce
	// NamesWithoutEpoch gives names that only count.
	NamesWithoutEpoch
	// FullDiskAcks acknowledges what a full disk did not take.
	FullDiskAcks
	bugs
)

var bugNames = [bugs]string{
	"none", "ack-before-sync", "count-before-sync", "lying-disk", "read-without-lease", "read-late", "activate-at-once",
	"forget-grants", "ignore-exclusions", "no-dedup", "stale-base", "read-uncommitted", "keep-conflicts", "blind-metadata",
	"elect-anyone", "read-too-soon", "lease-by-wall", "wild-clock", "keep-results", "forget-log", "close-alone",
	"close-unfenced", "agree-only", "forget-ceiling", "take-any-frame", "close-ahead",
	"adopt-shorter", "below-report", "skip-asking", "forget-promises", "ack-of-old-life", "grant-of-old-life", "nonce-ignored",
	"no-refusal", "forget-quarantine", "no-progress-timeout", "no-clock-refusal", "vote-at-once", "names-without-epoch",
	"full-disk-acks",
}

// String names the bug.
func (b Bug) String() string { return bugNames[b] }

// ParseBug reads what String writes; ok is false for any other name.
func ParseBug(s string) (b Bug, ok bool) {
	i := slices.Index(bugNames[:], s)
	return Bug(max(i, 0)), i >= 0
}
