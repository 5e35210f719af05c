// Package admin turns what operators and clients ask of the cluster into operations on the catalog: tables, draining, and
// the slots into which this node inserts server-named keys.
package admin

import (
	"context"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Metadata is the metadata group.
type Metadata interface {
	// Propose brings a command to the metadata leader and waits until this node has applied it.
	Propose(ctx context.Context, cmd catalog.Command) (catalog.Result, error)
	// State gives the newest catalog of this node.
	State() *catalog.State
}

// Sizes tells how large a range is on this node.
type Sizes interface {
	// DataBytes gives the size of a range's data, 0 when the node holds no copy.
	DataBytes(id rhumb.RangeID) int64
}

// Loads tells how loaded the nodes of this region are.
type Loads interface {
	// Load gives the bytes of a class that a node orders the writes of; known is false when it has not said so of late.
	Load(n rhumb.NodeID, class rhumb.ClassID) (bytes int64, known bool)
}

// Config is what an Admin needs.
type Config struct {
	Self  rhumb.NodeID
	Meta  Metadata
	Sizes Sizes
	// Loads may be nil: then inserts stay on the node that they come to.
	Loads Loads
}

// Admin carries out operations on the catalog.
type Admin struct {
	cfg  Config
	open sync.Mutex // one slot is opened at a time
}

// drainPoll is how often Drain looks whether the primaries have moved.
const drainPoll = 20 * time.Millisecond

// New makes an Admin.
func New(cfg Config) *Admin { return &Admin{cfg: cfg} }

// CreateTable makes a table, and gives it with a catalog that holds it.
func (a *Admin) CreateTable(ctx context.Context, cmd catalog.CreateTable) (*rhumb.Table, *catalog.State, error) {
	const op rhumb.Op = "admin.CreateTable"
	res, err := a.propose(ctx, op, cmd)
	if err != nil {
		return nil, nil, err
	}
	st := a.cfg.Meta.State()
	t, ok := st.Table(res.Table)
	if !ok {
		return nil, nil, rhumb.Ef(op, rhumb.Internal, "table %q was made and is not there", cmd.Name)
	}
	return t, st, nil
}

// propose gives the refusal of a command as an error.
func (a *Admin) propose(ctx context.Context, op rhumb.Op, cmd catalog.Command) (catalog.Result, error) {
	res, err := a.cfg.Meta.Propose(ctx, cmd)
	if err == nil {
		err = res.Err()
	}
	return res, rhumb.Wrap(op, err)
}

// Drain makes a node give up its primaries and take no new role; undo makes it live again. It answers when the node has
// no primaries left that another node could take, or when ctx ends, and gives the number that it still has.
func (a *Admin) Drain(ctx context.Context, n rhumb.NodeID, undo bool) (int, error) {
	const op rhumb.Op = "admin.Drain"
	node, ok := a.cfg.Meta.State().Node(n)
	if !ok {
		return 0, rhumb.Ef(op, rhumb.NotFound, "node %s does not exist; rhumb node ls lists those that do", n)
	}
	state := rhumb.NodeDraining
	if undo {
		state = rhumb.NodeLive
	}
	if _, err := a.propose(ctx, op, catalog.SetNodeState{Node: n, Boot: node.Boot, State: state}); err != nil {
		return 0, err
	}
	if undo {
		return a.primaries(n), nil
	}
	for a.movable(n) > 0 {
		select {
		case <-ctx.Done():
			return a.primaries(n), nil
		case <-time.After(drainPoll):
		}
	}
	return a.primaries(n), nil
}

// primaries counts the ranges whose primary is n.
func (a *Admin) primaries(n rhumb.NodeID) (count int) {
	for r := range a.cfg.Meta.State().Ranges() {
		if r.Primary == n {
			count++
		}
	}
	return count
}

// movable counts the ranges of n that another live in-sync node could take over.
func (a *Admin) movable(n rhumb.NodeID) (count int) {
	st := a.cfg.Meta.State()
	for r := range st.Ranges() {
		if r.Primary != n {
			continue
		}
		for _, m := range r.InSync {
			if m != n && st.IsLive(m) {
				count++
				break
			}
		}
	}
	return count
}
