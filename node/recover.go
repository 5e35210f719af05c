package node

import (
	"errors"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/storage"
)

// InspectMetadata reads the metadata replica in the directories of a stopped node. It changes
// nothing.
func InspectMetadata(dirs []string) (raftmeta.Survivor, error) {
	return onMetadata(dirs, raftmeta.Inspect)
}

// RecoverMetadata makes the metadata replica in the directories of a stopped node the only voter of
// its group. See raftmeta.Recover.
func RecoverMetadata(dirs []string) (raftmeta.Survivor, error) {
	return onMetadata(dirs, func(kv raftmeta.KV, self rhumb.NodeID) (raftmeta.Survivor, error) {
		return raftmeta.Recover(kv, self, time.Now())
	})
}

// onMetadata opens the stores of a stopped node and calls f with the metadata replica.
func onMetadata(dirs []string, f func(raftmeta.KV, rhumb.NodeID) (raftmeta.Survivor, error)) (s raftmeta.Survivor, err error) {
	engine, err := storage.OpenEngine(dirs, storage.Config{})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	id := engine.Identity()
	if id.Cluster.IsZero() {
		return s, rhumb.Ef("node.onMetadata", rhumb.NotFound, "%s belongs to no cluster; name the directories of a node that survived", dirs[0])
	}
	return f(raftmeta.StoreKV(engine.Stores()[0], 0), id.Node)
}
