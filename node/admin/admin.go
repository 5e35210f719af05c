// Package admin implements the operations that operators and clients perform on the catalog:
// creating tables, draining nodes, and opening the slots into which this node inserts server-named
// keys.
package admin

import (
	"context"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Metadata is the metadata group as seen from this node.
type Metadata interface {
	// Propose sends a command to the metadata leader and waits for the decision, and for a while until this node has applied it.
	Propose(ctx context.Context, cmd catalog.Command) (catalog.Result, error)
	// AwaitRevision waits until this node has applied a revision.
	AwaitRevision(ctx context.Context, revision uint64) error
	// State returns the newest catalog of this node.
	State() *catalog.State
}

// Sizes provides the sizes of ranges on this node.
type Sizes interface {
	// DataBytes returns the size of a range's data, or 0 if the node holds no copy.
	DataBytes(id rhumb.RangeID) int64
}

// Loads provides the loads of the nodes in this region.
type Loads interface {
	// Load returns the number of bytes in ranges of a class whose primary is n. known is false if n
	// has not reported for a while.
	Load(n rhumb.NodeID, class rhumb.ClassID) (bytes int64, known bool)
}

// Config holds the dependencies of an Admin.
type Config struct {
	Self  rhumb.NodeID
	Meta  Metadata
	Sizes Sizes
	// Loads may be nil. Inserts then stay on the node that received them.
	Loads Loads
}

// Admin performs operations on the catalog. It is safe for concurrent use.
type Admin struct {
	cfg  Config
	open sync.Mutex // held while a slot is opened, so that concurrent inserts open one slot
}

// drainPoll is how often Drain checks whether the primaries have moved.
const drainPoll = 20 * time.Millisecond

// New returns an Admin.
func New(cfg Config) *Admin { return &Admin{cfg: cfg} }

// CreateTable creates a table and returns it together with a catalog that contains it.
func (a *Admin) CreateTable(ctx context.Context, cmd catalog.CreateTable) (*rhumb.Table, *catalog.State, error) {
	const op rhumb.Op = "admin.CreateTable"
	res, err := a.proposeCommand(ctx, op, cmd)
	if err != nil {
		return nil, nil, err
	}
	st := a.cfg.Meta.State()
	t, ok := st.Table(res.Table)
	if !ok {
		return nil, nil, rhumb.Ef(op, rhumb.Internal, "table %q was created but is missing from the catalog; report this", cmd.Name)
	}
	return t, st, nil
}

// ChangeAccess applies a command about users, roles or grants, and returns a catalog that includes it.
func (a *Admin) ChangeAccess(ctx context.Context, cmd catalog.Command) (*catalog.State, error) {
	if _, err := a.proposeCommand(ctx, "admin.ChangeAccess", cmd); err != nil {
		return nil, err
	}
	return a.cfg.Meta.State(), nil
}

// proposeCommand proposes a command and turns its rejection by the catalog into an error.
func (a *Admin) proposeCommand(ctx context.Context, op rhumb.Op, cmd catalog.Command) (catalog.Result, error) {
	res, err := a.cfg.Meta.Propose(ctx, cmd)
	if err == nil {
		err = res.Err()
	}
	// The answer to the caller reads this node's catalog. A command that is decided was not refused, so no other node must be asked.
	if err == nil {
		err = rhumb.WrapKind(op, rhumb.Unknown, a.cfg.Meta.AwaitRevision(ctx, res.Revision))
	}
	return res, rhumb.Wrap(op, err)
}

// Drain makes a node hand over its primaries and accept no new role; undo makes it live again.
// Drain returns when no other node could take over any of the remaining primaries, or when ctx
// ends. It returns the number of primaries that the node still has.
func (a *Admin) Drain(ctx context.Context, n rhumb.NodeID, undo bool) (int, error) {
	const op rhumb.Op = "admin.Drain"
	node, ok := a.cfg.Meta.State().Node(n)
	if !ok {
		return 0, rhumb.Ef(op, rhumb.NotFound, "node %s does not exist; list nodes with `rhumb node ls`", n)
	}
	state := rhumb.NodeDraining
	if undo {
		state = rhumb.NodeLive
	}
	// The boot sequence keeps a late command from draining a later life of the node.
	if _, err := a.proposeCommand(ctx, op, catalog.SetNodeState{Node: n, Boot: node.Boot, State: state}); err != nil {
		return 0, err
	}
	if undo {
		return a.countPrimaries(n), nil
	}
	// Primaries that no other node can take over are not waited for: their in-sync sets may not
	// recover before the node has stopped.
	for a.countMovable(n) > 0 {
		select {
		case <-ctx.Done():
			return a.countPrimaries(n), nil
		case <-time.After(drainPoll):
		}
	}
	return a.countPrimaries(n), nil
}

// countPrimaries returns the number of ranges whose primary is n.
func (a *Admin) countPrimaries(n rhumb.NodeID) (count int) {
	for r := range a.cfg.Meta.State().Ranges() {
		if r.Primary == n {
			count++
		}
	}
	return count
}

// countMovable returns the number of primaries of n that another live in-sync node could take over.
func (a *Admin) countMovable(n rhumb.NodeID) (count int) {
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
