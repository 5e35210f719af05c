package raftmeta

import (
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Bootstrap founds a cluster: it writes into the KV of the first node a log that begins with the catalog after init, with
// that node (node 1) as the only voter. A KV that holds a log already is AlreadyExists.
func Bootstrap(kv KV, init catalog.Init) (catalog.Result, error) {
	const op rhumb.Op = "raftmeta.Bootstrap"
	if _, ok, err := kv.Get(keyHardState); err != nil || ok {
		if err != nil {
			return catalog.Result{}, rhumb.Wrap(op, err)
		}
		return catalog.Result{}, rhumb.E(op, rhumb.AlreadyExists, "this node belongs to a cluster already")
	}
	state, res, _ := catalog.New().Apply(init)
	if err := res.Err(); err != nil {
		return res, rhumb.Wrap(op, err)
	}
	state, _, _ = state.Apply(catalog.SetVoters{Voters: []rhumb.NodeID{res.Node}})
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
	return res, rhumb.Wrap(op, b.Commit(true))
}
