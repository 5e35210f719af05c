package raftmeta

import (
	"encoding/binary"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rhumbdb/rhumb"
)

// LogCondition says what a replica of the metadata group holds on disk, without starting it.
type LogCondition struct {
	// Term and Vote are those of the hard state; zero when there is none.
	Term, Vote uint64
	// Commit is the commit index of the hard state, a lower bound of what the group committed.
	Commit uint64
	// Transfer is the index of the state transfer behind which the log begins; entries up to it are applied.
	Transfer uint64
	// Last is the index up to which the log holds every entry behind the state transfer.
	Last uint64
	// Gap is the index of an entry behind one that is missing; 0 when none is missing.
	Gap uint64
}

// Short reports whether the replica lacks entries that it had made durable, as far as its own log tells: the log ends
// before the commit index, or has a gap. A log that lost its end together with the hard state does not show it: ask
// storage.Engine.Short, too. A short replica must not vote, and must not answer the leader: Raft would panic on a commit
// index that the leader rightly believes the replica to hold.
func (c LogCondition) Short() bool { return c.Gap != 0 || c.Commit > c.Last }

// InspectLog reads the log of a replica. An error means that it cannot be read, and is Corrupt when its bytes are damaged.
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
		if len(pair.Key) != len(keyEntry)+8 {
			return c, l.corruptError("log", rhumb.Ef("raftmeta.InspectLog", rhumb.Corrupt, "key %x is not that of an entry", pair.Key))
		}
		index := binary.BigEndian.Uint64(pair.Key[len(keyEntry):])
		if index != c.Last+1 {
			c.Gap = index
			break
		}
		c.Last = index
	}
	return c, nil
}
