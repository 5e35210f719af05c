package model

import (
	"errors"
	"fmt"

	"github.com/rhumbdb/rhumb"
)

// Bounds of the state's arrays.
const (
	// Replicas is the number of replicas of the one range.
	Replicas = 3
	// EpochsMax bounds Config.Epochs, WritesMax Config.Writes, MessagesMax Config.Messages, ClosedMax Config.Closed.
	EpochsMax   = 6
	WritesMax   = 7
	MessagesMax = 4
	ClosedMax   = 3

	// logMax bounds a log; what would not fit is not done.
	logMax = 5
)

// Config is a protocol and the bounds within which it is explored.
type Config struct {
	// Epochs bounds the epochs that metadata gives away, the first included; at least 1.
	Epochs int
	// Writes bounds the writes of clients.
	Writes int
	// Rounds bounds the lease rounds of each holder. 0 leaves leases out: nobody holds one.
	Rounds int
	// Crashes bounds the restarts that keep what was synced, over all replicas together.
	Crashes int
	// Damages bounds the restarts that lose synced data, over all replicas together.
	Damages int
	// Lacking bounds the disks that lack, at one time, the same entry or the same closed timestamp after they had it.
	// Default MinInSync-1, which is what the protocol survives.
	Lacking int
	// Images makes every damage the return of an older image of a disk, taken at any time. Otherwise a damaged restart
	// cuts the log anywhere; it keeps the promise, the clock and the stored commit, or rolls them back too.
	Images bool
	// OneAnswer is ruling 17a: the record holds a life of each member, and one answer of a recorded life suffices for an
	// election.
	OneAnswer bool
	// Messages bounds the messages under way; at least 1.
	Messages int
	// Versions is the last version of the range's record at which a change of the in-sync set is begun.
	Versions int
	// Closed bounds the closed timestamps. 0 leaves them out.
	Closed int

	// Slack is how many members of an in-sync set need not acknowledge, 0 or 1.
	Slack int
	// MinInSync is the least size of an in-sync set. Default 2.
	MinInSync int
	// Secondaries is how many replicas besides the first primary are in sync at the start; the others are empty
	// learners. 1 or 2.
	Secondaries int
	// Handover lets metadata prepare handovers.
	Handover bool
	// Fencing lets metadata take a secondary out of the in-sync set by itself.
	Fencing bool
	// GivesUp lets a primary stop by itself.
	GivesUp bool
	// Partial lets an APPEND carry any beginning of the log instead of all of it.
	Partial bool
	// AllHolders lets replicas ask for grants before they are primary. Without it only those that know themselves
	// elected do, which is where grants matter most.
	AllHolders bool
	// PairsOnly leaves out the log: nobody becomes active. What is left are promises, heartbeats, grants and restarts,
	// for the contract between two nodes (Owed) in depth.
	PairsOnly bool
	// LateHeartbeats lets heartbeats be under way. Without it each is received at the moment it is sent.
	LateHeartbeats bool

	// Without names the rule to leave out; WholeProtocol leaves out none.
	Without Mutation
	// Ignore lists invariants that are not checked, so that a mutation can show what it does to a user rather than
	// the first thing it does.
	Ignore []Invariant

	// raw and named switch off the two reductions, so that tests can compare.
	raw, named bool
}

// withDefaults fills the fields that are zero.
func (c Config) withDefaults() Config {
	if c.MinInSync == 0 {
		c.MinInSync = rhumb.MinInSyncDefault
	}
	if c.Lacking == 0 {
		c.Lacking = c.MinInSync - 1
	}
	return c
}

// Validate lists every fault of the configuration, after defaults.
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
	within("Lacking", c.Lacking, 0, Replicas)
	within("Messages", c.Messages, 1, MessagesMax)
	within("Versions", c.Versions, 0, 15)
	within("Closed", c.Closed, 0, ClosedMax)
	within("Slack", c.Slack, 0, 1)
	within("MinInSync", c.MinInSync, 1, c.Secondaries+1)
	within("Secondaries", c.Secondaries, 1, Replicas-1)
	return errors.Join(faults...)
}

// String gives the bounds in one line, as they stand in docs/model.md.
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
		{c.OneAnswer, "one answer"},
		{c.Handover, "handover"},
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
