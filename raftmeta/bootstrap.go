package raftmeta

import (
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Bootstrap creates a cluster. It writes to the KV of the first node a log that begins with the
// catalog after init, with that node (node 1) as the only voter. A KV that contains a log is
// AlreadyExists.
func Bootstrap(kv KV, init catalog.Init) (catalog.Result, error) {
	const op rhumb.Op = "raftmeta.Bootstrap"
	// The hard state is written with the log and never removed while the log is there, so it shows
	// whether one exists.
	if _, ok, err := kv.Get(keyHardState); err != nil || ok {
		if err != nil {
			return catalog.Result{}, rhumb.Wrap(op, err)
		}
		return catalog.Result{}, rhumb.E(op, rhumb.AlreadyExists, "this node already belongs to a cluster")
	}
	state, res, _ := catalog.New().Apply(init)
	if err := res.Err(); err != nil {
		return res, rhumb.Wrap(op, err)
	}
	// The founder is the only voter. Later changes of membership update the catalog through
	// applyConfChange.
	state, _, _ = state.Apply(catalog.SetVoters{Voters: []rhumb.NodeID{res.Node}})
	// The log begins with a state transfer, as after a compaction, so that every later start
	// follows one path.
	transfer := &raftpb.Snapshot{
		Data: state.Encode(),
		Metadata: &raftpb.SnapshotMetadata{
			Index: proto.Uint64(1), Term: proto.Uint64(1),
			ConfState: &raftpb.ConfState{Voters: []uint64{uint64(res.Node)}},
		},
	}
	b := kv.NewBatch()
	b.Set(keyTransfer, mustMarshal(transfer))
	b.Set(keyHardState, mustMarshal(&raftpb.HardState{Term: proto.Uint64(1), Vote: proto.Uint64(0), Commit: proto.Uint64(1)}))
	// One batch: after a crash the cluster exists with its first state or not at all.
	return res, rhumb.Wrap(op, b.Commit(true))
}
