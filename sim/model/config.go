package model

import (
	"errors"
	"fmt"

	"github.com/rhumbdb/rhumb"
)

// Bounds of the arrays of a state. An entry has no bits for more writes or closed timestamps.
const (
	// Replicas is the number of replicas of the range.
	Replicas = 3
	// EpochsMax bounds Config.Epochs, WritesMax Config.Writes, MessagesMax Config.Messages,
	// ClosedMax Config.Closed.
	EpochsMax   = 6
	WritesMax   = 7
	MessagesMax = 4
	ClosedMax   = 3

	// logMax bounds a log. A step that would exceed it is left out.
	logMax = 5
)

// Config selects the parts of the protocol and the bounds of the search.
type Config struct {
	// Epochs bounds the epochs that metadata allocates, including the first; at least 1.
	Epochs int
	// Writes bounds the client writes.
	Writes int
	// Rounds bounds the lease rounds of each holder. 0 leaves leases out: no node holds one.
	Rounds int
	// Crashes bounds the restarts without loss, over all replicas together.
	Crashes int
	// Damages bounds the restarts that lose synced data, over all replicas together.
	Damages int
	// Removals bounds the copies that are removed. Their nodes may get new, empty ones later.
	Removals int
	// Far are the replicas in the other one of two regions, one bit each.
	Far uint8
	// Spread makes the range survive the loss of a region: its in-sync set is never in one region.
	Spread bool
	// RegionLoss lets the other region stop for good, with all its disks.
	RegionLoss bool
	// Alone lets metadata fence the nodes of a range with Spread, and accept an in-sync set in one region while all copies elsewhere are on
	// fenced nodes. A fenced node returns in a new life.
	Alone bool
	// GivenUp lets an operator give up the other region after its loss: the range continues from the copies in sync that are left.
	GivenUp bool
	// RegionRemoval lets the other region be removed, and its nodes stop for good, when no copy is left there.
	RegionRemoval bool
	// Older are the replicas that begin with an older build, which cannot read client writes. An upgrade is a restart.
	Older uint8
	// Copies bounds the sets that replicas receive from each other, over all replicas together.
	Copies int
	// Lacking bounds the disks that lack, at one time, the same entry or the same closed timestamp
	// that they once held. The default is MinInSync-1, the greatest number that the protocol
	// survives.
	Lacking int
	// Images makes every damage a return to an older image of the disk, taken at any time.
	// Otherwise a damaged restart cuts the log anywhere, and keeps or rolls back the promise, the
	// clock and the stored commit position.
	Images bool
	// OneAnswer enables the rule of docs/replication.md#rule-one-answer: the record holds a life of each member, and a single answer
	// from a recorded life suffices for an election.
	OneAnswer bool
	// Messages bounds the messages in flight; at least 1.
	Messages int
	// Versions is the last version of the record at which a change of the in-sync set may begin.
	Versions int
	// Closed bounds the closed timestamps. 0 leaves them out.
	Closed int

	// Slack is the number of members of an in-sync set that need not acknowledge, 0 or 1.
	Slack int
	// MinInSync is the least size of an in-sync set. The default is 2.
	MinInSync int
	// Secondaries is the number of replicas, apart from the first primary, that are in sync at the
	// start, 1 or 2. The others are empty learners.
	Secondaries int
	// Handover lets metadata prepare handovers.
	Handover bool
	// Drains lets the old primary leave the in-sync set when metadata records a handover, because its node is to stop.
	Drains bool
	// Fencing lets metadata remove a secondary from the in-sync set without a request of the
	// primary.
	Fencing bool
	// GivesUp lets a primary stop at any time.
	GivesUp bool
	// Partial lets an APPEND carry any prefix of the log instead of all of it.
	Partial bool
	// AllHolders lets replicas ask for grants before they are primary. Otherwise only elected
	// replicas ask, for whom grants matter most.
	AllHolders bool
	// PairsOnly leaves out the log, so no replica becomes active. Promises, heartbeats, grants and
	// restarts remain: the contract between two nodes (Owed) can then be searched deeper.
	PairsOnly bool
	// LateHeartbeats lets heartbeats stay in flight. Otherwise each heartbeat is received when it
	// is sent.
	LateHeartbeats bool

	// Without is the rule to leave out; WholeProtocol leaves out none.
	Without Mutation
	// Ignore lists invariants that are not checked, so that a mutation shows its harm to a user
	// instead of the first invariant that it breaks.
	Ignore []Invariant

	// raw and named disable the two reductions, so that tests can compare.
	raw, named bool
}

// withDefaults returns the configuration with defaults in the zero fields.
func (c Config) withDefaults() Config {
	if c.MinInSync == 0 {
		c.MinInSync = rhumb.MinInSyncDefault
	}
	if c.Lacking == 0 {
		c.Lacking = c.MinInSync - 1
	}
	return c
}

// Validate returns an error that lists every fault of the configuration, after applying defaults.
func (c Config) Validate() error {
	const op rhumb.Op = "model.Config.Validate"
	c = c.withDefaults()
	var faults []error
	within := func(name string, v, lo, hi int) {
		if v < lo || v > hi {
			faults = append(faults, rhumb.Ef(op, rhumb.InvalidArgument, "%s is %d, want %d to %d", name, v, lo, hi))
		}
	}
	within("Epochs", c.Epochs, 1, EpochsMax)
	within("Writes", c.Writes, 0, WritesMax)
	within("Rounds", c.Rounds, 0, 7)
	within("Crashes", c.Crashes, 0, 7)
	within("Damages", c.Damages, 0, 7)
	within("Removals", c.Removals, 0, 7)
	within("Copies", c.Copies, 0, 7)
	within("Lacking", c.Lacking, 0, Replicas)
	within("Messages", c.Messages, 1, MessagesMax)
	within("Versions", c.Versions, 0, 15)
	within("Closed", c.Closed, 0, ClosedMax)
	within("Slack", c.Slack, 0, 1)
	within("Far", int(c.Far), 0, int(everyone))
	within("Older", int(c.Older), 0, int(everyone))
	if c.Alone && !c.Spread || c.GivenUp && !c.RegionLoss {
		faults = append(faults, rhumb.E(op, rhumb.InvalidArgument, "Alone needs Spread, and GivenUp needs RegionLoss"))
	}
	if c.Slack > 0 && c.Spread {
		faults = append(faults, rhumb.E(op, rhumb.InvalidArgument, "Spread needs Slack 0: with slack, not every member holds every entry"))
	}
	within("MinInSync", c.MinInSync, 1, c.Secondaries+1)
	within("Secondaries", c.Secondaries, 1, Replicas-1)
	return errors.Join(faults...)
}

// String returns the bounds in one line, in the form of docs/model.md.
func (c Config) String() string {
	c = c.withDefaults()
	s := fmt.Sprintf("slack %d, E%d W%d R%d C%d D%d M%d V%d T%d, in sync %d min %d",
		c.Slack, c.Epochs, c.Writes, c.Rounds, c.Crashes, c.Damages, c.Messages, c.Versions, c.Closed, c.Secondaries+1, c.MinInSync)
	for _, o := range []struct {
		on   bool
		name string
	}{
		{c.Lacking != c.MinInSync-1, fmt.Sprintf("lacking %d", c.Lacking)},
		{c.Images, "images"},
		{c.Removals > 0, fmt.Sprintf("removals %d", c.Removals)},
		{c.Far != 0, fmt.Sprintf("far %03b", c.Far)},
		{c.Spread, "spread"},
		{c.RegionLoss, "region loss"},
		{c.Alone, "alone"},
		{c.GivenUp, "given up"},
		{c.RegionRemoval, "region removal"},
		{c.Older != 0, fmt.Sprintf("older %03b", c.Older)},
		{c.Copies > 0, fmt.Sprintf("copies %d", c.Copies)},
		{c.OneAnswer, "one answer"},
		{c.Handover, "handover"},
		{c.Drains, "drains"},
		{c.Fencing, "fencing"},
		{c.GivesUp, "gives up"},
		{c.Partial, "partial"},
		{c.AllHolders, "all hold"},
		{c.PairsOnly, "pairs only"},
		{c.LateHeartbeats, "late heartbeats"},
	} {
		if o.on {
			s += ", " + o.name
		}
	}
	return s
}
