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

// A recovered log goes on this far behind the old one: no other survivor can have accepted an entry or a term in between,
// so that all of them take the recovered state over whole.
const (
	recoverEntries = 1 << 20
	recoverTerms   = 1 << 10
)

// Survivor is what a stopped replica of a metadata group holds.
type Survivor struct {
	Node rhumb.NodeID `json:"node"`
	// Term and Last are those of the last entry. Of two survivors, the one with the greater term has more, and with equal terms
	// the one with the greater last entry. Commit is up to where the replica knew that entries were decided.
	Term   uint64 `json:"term"`
	Last   uint64 `json:"last_index"`
	Commit uint64 `json:"commit"`
	// Voters are those of the newest configuration in the log. Nodes are all that the catalog knows.
	Voters []rhumb.NodeID `json:"voters"`
	Nodes  []*rhumb.Node  `json:"-"`
	// Short says that the replica lacks something that it had made durable.
	Short bool `json:"short"`
	// Revision is that of the catalog with all entries applied.
	Revision uint64 `json:"revision"`
	// Recovered is the last recovery, nil if there was none.
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

// Inspect reads what a stopped replica holds, and changes nothing.
func Inspect(kv KV, self rhumb.NodeID) (Survivor, error) {
	s, _, _, err := readSurvivor(kv, self)
	return s, rhumb.Wrap("raftmeta.Inspect", err)
}

// survive reads a replica, and applies all entries of its log to its state: each may have been decided by voters that are
// gone.
func readSurvivor(kv KV, self rhumb.NodeID) (Survivor, *logStore, *catalog.State, error) {
	l, err := readLog(kv, true)
	if err != nil {
		return Survivor{}, nil, nil, err
	}
	transfer, err := l.Snapshot()
	if err != nil {
		return Survivor{}, nil, nil, err
	}
	if raft.IsEmptySnap(transfer) {
		return Survivor{}, nil, nil, rhumb.Ef("raftmeta.survive", rhumb.NotFound, "node %s holds no metadata; recover from another node", self)
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

// Recover makes a stopped replica the only voter of its group, with all that its log holds. Whatever only the lost voters
// had is lost, so it is for the case that most voters are gone for good. The other nodes join the group again once the node
// runs; they take its state over.
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
	s.Recovered = &Recovery{At: now.UTC(), Term: s.Term, Last: s.Last, Lost: lost}
	l.record.Recovered, l.record.Short = s.Recovered, false
	index, term := s.Last+recoverEntries, max(hard.GetTerm(), s.Term)+recoverTerms
	b := kv.NewBatch()
	b.DeleteRange(keyEntry, keyEntryEnd)
	b.DeleteRange(keyOthers, keyOthersEnd)
	l.putTransfer(b, &raftpb.Snapshot{
		Data: state.Encode(),
		Metadata: &raftpb.SnapshotMetadata{
			Index: proto.Uint64(index), Term: proto.Uint64(term), ConfState: &raftpb.ConfState{Voters: []uint64{uint64(self)}},
		},
	})
	b.Set(keyHardState, mustMarshal(&raftpb.HardState{Term: proto.Uint64(term), Vote: proto.Uint64(uint64(self)), Commit: proto.Uint64(index)}))
	return s, rhumb.Wrap(op, b.Commit(true))
}
