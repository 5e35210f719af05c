package raftmeta

import (
	"maps"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// A recovered log continues this far beyond the old one. No other survivor can have accepted an
// entry or a term in between, so every other survivor replaces its whole log by the recovered
// state.
const (
	recoverEntries = 1 << 20
	recoverTerms   = 1 << 10
)

// Survivor describes a stopped replica of a metadata group.
type Survivor struct {
	Node rhumb.NodeID `json:"node"`
	// Term and Last are the term and index of the last entry. Of two survivors, the one with the
	// greater Term holds more; with equal terms, the one with the greater Last. Commit is the index
	// up to which the replica knew entries to be decided.
	Term   uint64 `json:"term"`
	Last   uint64 `json:"last_index"`
	Commit uint64 `json:"commit"`
	// Voters are those of the newest configuration in the log. Nodes are all nodes in the catalog.
	Voters []rhumb.NodeID `json:"voters"`
	Nodes  []*rhumb.Node  `json:"-"`
	// Short reports that the replica lacks data that it had made durable.
	Short bool `json:"short"`
	// Revision is the revision of the catalog with all entries applied.
	Revision uint64 `json:"revision"`
	// Recovered is the last recovery, or nil.
	Recovered *Recovery `json:"recovered,omitempty"`
}

// Recovery records that a replica was made the only voter of its group by force.
type Recovery struct {
	At   time.Time `json:"at" cbor:"1,keyasint"`
	Term uint64    `json:"term" cbor:"2,keyasint"` // of the last entry that was kept
	Last uint64    `json:"last_index" cbor:"3,keyasint"`
	// Lost are the voters that were given up.
	Lost []rhumb.NodeID `json:"lost" cbor:"4,keyasint"`
}

// Inspect describes a stopped replica. It changes nothing.
func Inspect(kv KV, self rhumb.NodeID) (Survivor, error) {
	s, _, _, err := readSurvivor(kv, self)
	return s, rhumb.Wrap("raftmeta.Inspect", err)
}

// readSurvivor reads a replica and applies all entries of its log to its state, committed or not.
// Each may have been committed by voters that are gone, and dropping a committed entry would lose
// an acknowledged change. Keeping an uncommitted one is safe: its proposer does not know its
// outcome.
func readSurvivor(kv KV, self rhumb.NodeID) (Survivor, *logStore, *catalog.State, error) {
	// A log that lost its end is accepted: it may be the best copy left.
	l, err := readLog(kv, true)
	if err != nil {
		return Survivor{}, nil, nil, err
	}
	transfer, err := l.Snapshot()
	if err != nil {
		return Survivor{}, nil, nil, err
	}
	if raft.IsEmptySnap(transfer) {
		return Survivor{}, nil, nil, rhumb.Ef("raftmeta.survive", rhumb.NotFound, "%s holds no metadata; recover from another node", self)
	}
	state, err := catalog.Decode(transfer.GetData())
	if err != nil {
		return Survivor{}, nil, nil, err
	}
	voters := make(map[uint64]bool)
	for _, id := range votingMembers(transfer.GetMetadata().GetConfState()) {
		voters[id] = true
	}
	last, _ := l.LastIndex()
	term, _ := l.Term(last)
	var entries []*raftpb.Entry
	if last > l.transferred {
		if entries, err = l.Entries(l.transferred+1, last+1, 1<<62); err != nil {
			return Survivor{}, nil, nil, err
		}
	}
	// The configuration is applied by hand, because no raft node runs here.
	for _, e := range entries {
		if state, err = applyRecovered(state, voters, e); err != nil {
			return Survivor{}, nil, nil, err
		}
	}
	hard, _, err := l.InitialState()
	s := Survivor{
		Node: self, Term: term, Last: last, Commit: hard.GetCommit(), Voters: nodeIDs(slices.Sorted(maps.Keys(voters))),
		Nodes: slices.Collect(state.Nodes()), Short: l.record.Short || l.lost != nil, Revision: state.Revision(), Recovered: l.record.Recovered,
	}
	return s, l, state, err
}

// applyRecovered applies one entry to the catalog, or to the set of voters.
func applyRecovered(state *catalog.State, voters map[uint64]bool, e *raftpb.Entry) (*catalog.State, error) {
	switch {
	case e.GetType() != raftpb.EntryNormal:
		cc, err := decodeConfChange(e)
		if err != nil {
			return nil, err
		}
		for _, c := range cc.GetChanges() {
			if c.GetType() == raftpb.ConfChangeAddNode {
				voters[c.GetNodeId()] = true
			} else {
				delete(voters, c.GetNodeId())
			}
		}
	case len(e.GetData()) > 0:
		_, cmd, err := decodeProposal(e.GetData())
		if err != nil {
			return nil, err
		}
		state, _, _ = state.Apply(cmd)
	}
	return state, nil
}

// Recover makes a stopped replica the only voter of its group, with everything that its log holds.
// Changes that only the lost voters had are lost, so it is for the case that most voters are gone
// for good. The other nodes join the group again once this node runs, and replace their state by
// its state.
func Recover(kv KV, self rhumb.NodeID, now time.Time) (Survivor, error) {
	const op rhumb.Op = "raftmeta.Recover"
	s, l, state, err := readSurvivor(kv, self)
	if err != nil {
		return s, rhumb.Wrap(op, err)
	}
	hard, _, err := l.InitialState()
	if err != nil {
		return s, rhumb.Wrap(op, err)
	}
	state, _, _ = state.Apply(catalog.SetVoters{Voters: []rhumb.NodeID{self}})
	lost := slices.DeleteFunc(slices.Clone(s.Voters), func(id rhumb.NodeID) bool { return id == self })
	// A repeated recovery removes no voter. The record of the first one stays, because it names the voters whose changes may be lost.
	if len(lost) > 0 || s.Recovered == nil {
		s.Recovered = &Recovery{At: now.UTC(), Term: s.Term, Last: s.Last, Lost: lost}
	}
	// The replica is the reference now, so it lacks nothing.
	l.record.Recovered, l.record.Short, l.record.Floor = s.Recovered, false, position{}
	// A survivor with a greater term or a longer log would ignore the recovered one.
	index, term := s.Last+recoverEntries, max(hard.GetTerm(), s.Term)+recoverTerms
	b := kv.NewBatch()
	b.DeleteRange(keyEntry, keyEntryEnd)
	// The stored lives of other members belong to the old group.
	b.DeleteRange(keyOthers, keyOthersEnd)
	l.putTransfer(b, &raftpb.Snapshot{
		Data: state.Encode(),
		Metadata: &raftpb.SnapshotMetadata{
			Index: proto.Uint64(index), Term: proto.Uint64(term), ConfState: &raftpb.ConfState{Voters: []uint64{uint64(self)}},
		},
	})
	b.Set(keyHardState, mustMarshal(&raftpb.HardState{Term: proto.Uint64(term), Vote: proto.Uint64(uint64(self)), Commit: proto.Uint64(index)}))
	// One batch: a crash leaves the old group or the recovered one.
	return s, rhumb.Wrap(op, b.Commit(true))
}
