package raftmeta

import (
	"encoding/binary"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rhumbdb/rhumb"
)

// LogCondition describes the log of a stopped replica of the metadata group, as found on disk.
type LogCondition struct {
	// Term and Vote are those of the hard state, or zero without one.
	Term, Vote uint64
	// Commit is the commit index of the hard state, a lower bound of the group's commit index.
	Commit uint64
	// Transfer is the index of the state transfer that precedes the log. Entries up to it are
	// applied.
	Transfer uint64
	// Last is the index up to which the log holds every entry after the state transfer.
	Last uint64
	// Gap is the index of the first entry after a missing one, or 0 if none is missing.
	Gap uint64
}

// Short reports whether the replica lacks entries that it had made durable, as far as its own log
// shows: the log has a gap or ends before the commit index. A log that lost its end together with
// the hard state does not show it; ask storage.Engine.Short as well. A short replica must not vote,
// and must not answer the leader: Raft would panic on a commit index that the leader rightly
// believes the replica to hold.
func (c LogCondition) Short() bool { return c.Gap != 0 || c.Commit > c.Last }

// InspectLog examines the log of a stopped replica. An error of kind Corrupt means that its bytes
// are damaged. It reads keys only, not entries, and tolerates a log that Open would refuse.
func InspectLog(kv KV) (c LogCondition, err error) {
	l := &logStore{kv: kv}
	var transfer raftpb.Snapshot
	if _, err := l.readMessage(keyTransfer, &transfer); err != nil {
		return c, err
	}
	c.Transfer = transfer.GetMetadata().GetIndex()
	c.Last = c.Transfer
	var hard raftpb.HardState
	if _, err := l.readMessage(keyHardState, &hard); err != nil {
		return c, err
	}
	c.Term, c.Vote, c.Commit = hard.GetTerm(), hard.GetVote(), hard.GetCommit()
	for pair, err := range kv.Scan(entryKey(c.Transfer+1), keyEntryEnd) {
		if err != nil {
			return c, err
		}
		// A foreign key would otherwise be read as a wrong index.
		if len(pair.Key) != len(keyEntry)+8 {
			return c, l.corruptError("log", rhumb.Ef("raftmeta.InspectLog", rhumb.Corrupt, "key %x is not the key of an entry", pair.Key))
		}
		index := binary.BigEndian.Uint64(pair.Key[len(keyEntry):])
		// Entries after a gap are of no use, so the scan stops.
		if index != c.Last+1 {
			c.Gap = index
			break
		}
		c.Last = index
	}
	return c, nil
}
