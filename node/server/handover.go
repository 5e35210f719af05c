package server

// The requests of operators that move primaries. They prepare handovers, as the planner of the metadata leader does, and return before the
// nodes carry them out: the caller watches the metadata, and nothing here has to survive until then. The planner ends handovers
// that do not succeed, whoever prepared them.

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// failBackBatch bounds the handovers that FailBack proposes as one command.
const failBackBatch = 256

// HandOverRange prepares the handover of a range to an in-sync node, and makes the node its preferred primary, since
// fail-back would otherwise return the range at once.
func (s *Operations) HandOverRange(ctx context.Context, q *rhumbpb.HandOverRangeRequest) (*rhumbpb.HandOverRangeResponse, error) {
	const op rhumb.Op = "server.Operations.HandOverRange"
	id, to := api.DecodeRangeID(q.GetRange()), rhumb.NodeID(q.GetNode())
	res, _, err := s.proposeFresh(ctx, func(st *catalog.State) (catalog.Command, error) { return decideHandover(op, st, id, to) })
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	// The record as the last command left it. That of the state may be newer: nodes carry a handover out within a few
	// milliseconds, and the record then looks as if nothing had been done.
	return &rhumbpb.HandOverRangeResponse{Range: api.EncodeRange(res.Range)}, nil
}

// decideHandover returns the commands that prepare a handover, or why the node cannot take over.
func decideHandover(op rhumb.Op, st *catalog.State, id rhumb.RangeID, to rhumb.NodeID) (catalog.Command, error) {
	r, ok := st.Range(id)
	// The catalog checks the same when the command is applied. Here the answer can say what to do about it.
	switch _, known := st.Node(to); {
	case !ok:
		return nil, rhumb.Ef(op, rhumb.NotFound, "range %s does not exist; list ranges with `rhumb range ls`", id)
	case !known:
		return nil, rhumb.Ef(op, rhumb.NotFound, "node %s does not exist; list nodes with `rhumb node ls`", to)
	case !r.IsInSync(to):
		return nil, rhumb.Ef(op, rhumb.Conflict, "%s is not in sync with range %s and cannot take over; in sync are %s", to, id, rhumb.NodeList(r.InSync))
	// Checked here, because the catalog would only name the missing feature.
	case !st.Has(rhumb.FeatureHandover):
		return nil, rhumb.E(op, rhumb.Incompatible, "the cluster version knows no handovers yet; `rhumb upgrade finalize` raises it")
	case r.Prepared != nil && r.Prepared.Target != to:
		return nil, rhumb.Ef(op, rhumb.Conflict, "range %s is being handed over to %s; that ends within %v, then retry", id, r.Prepared.Target, place.HandoverWithin)
	}
	commands := []catalog.Command{catalog.PrepareHandover{Range: id, Version: r.Version, Target: to}}
	if r.Preferred != to {
		// If the handover is refused, the version of this command is refused as well: the preference stays. A handover that there is
		// already does not change the record.
		version := r.Version
		if r.Primary != to && r.Prepared == nil {
			version++
		}
		commands = append(commands, catalog.SetReplicas{Range: id, Version: version, Replicas: r.Replicas, Preferred: to})
	}
	return catalog.Batch{Commands: commands}, nil
}

// FailBack prepares handovers of the ranges that prefer a node to this node, and begins to copy its former ranges to it. It does not wait until the node has been
// healthy for a while, as the planner does: the operator has decided that it is.
func (s *Operations) FailBack(ctx context.Context, q *rhumbpb.FailBackRequest) (*rhumbpb.FailBackResponse, error) {
	const op rhumb.Op = "server.Operations.FailBack"
	f := failBack{to: rhumb.NodeID(q.GetNode()), prepared: map[rhumb.RangeID]bool{}, returning: map[rhumb.RangeID]bool{}}
	for try := 1; ; try++ {
		st, err := s.node.Linearize(ctx)
		if err == nil {
			err = f.check(op, st)
		}
		if err != nil {
			return nil, statusError(rhumb.Wrap(op, err))
		}
		changed := false
		for batch := range slices.Chunk(f.decide(st), failBackBatch) {
			res, _, err := s.node.Propose(ctx, catalog.Batch{Commands: batch})
			if err != nil {
				return nil, statusError(rhumb.Wrap(op, err))
			}
			for i, item := range res.Items {
				changed = changed || rhumb.KindOf(item.Err()) == rhumb.Conflict
				f.record(batch[i], item.Err())
			}
		}
		// A record that changed between the decision and its command may allow the handover all the same.
		if !changed || try == decideMost {
			return f.response(), nil
		}
	}
}

// failBack is one request to FailBack: what was done, and what stands in the way of the rest.
type failBack struct {
	to                  rhumb.NodeID
	prepared, returning map[rhumb.RangeID]bool
	// blocked has the reasons of the last decision, by range.
	blocked map[rhumb.RangeID]string
}

// check returns why no range may return to the node.
func (f *failBack) check(op rhumb.Op, st *catalog.State) error {
	n, known := st.Node(f.to)
	switch {
	case !known:
		return rhumb.Ef(op, rhumb.NotFound, "node %s does not exist; list nodes with `rhumb node ls`", f.to)
	case !st.TakesCopies(f.to):
		return rhumb.Ef(op, rhumb.Conflict, "%s is %s and takes no roles", f.to, n.State)
	case st.Setting(rhumb.SettingFailback) == place.FailbackNever:
		return rhumb.Ef(op, rhumb.Conflict, "the setting %s is %s: ranges stay with the node that took over; `rhumb setting set %s manual` allows this command", rhumb.SettingFailback, place.FailbackNever, rhumb.SettingFailback)
	case !st.Has(rhumb.FeatureHandover):
		return rhumb.E(op, rhumb.Incompatible, "the cluster version knows no handovers yet; `rhumb upgrade finalize` raises it")
	}
	return nil
}

// decide returns the commands for the ranges that may return. Each names the version of its record, so a range that changes meanwhile is refused
// separately. The others continue.
func (f *failBack) decide(st *catalog.State) (commands []catalog.Command) {
	f.blocked = map[rhumb.RangeID]string{}
	for r := range st.Ranges() {
		// A range that is on its way to the node counts as prepared, so that the command can be repeated.
		switch {
		case r.Preferred != f.to || r.Primary == f.to:
		case r.Prepared != nil && r.Prepared.Target == f.to:
			f.prepared[r.ID] = true
		case r.Prepared != nil:
			f.blocked[r.ID] = fmt.Sprintf("it is being handed over to %s", r.Prepared.Target)
		case !place.MayFailBack(st, r):
			f.blocked[r.ID] = fmt.Sprintf("%s is not in sync with it, or its copy is damaged or leaves", f.to)
		default:
			commands = append(commands, catalog.PrepareHandover{Range: r.ID, Version: r.Version, Target: f.to})
		}
	}
	// Ranges whose copies were created elsewhere while the node was dead are copied to it first.
	begin, coming, waiting := place.ReturnsTo(st, f.to)
	for _, id := range coming {
		f.returning[id] = true
	}
	maps.Copy(f.blocked, waiting)
	// In the same batches: a node has few of either kind.
	for _, c := range begin {
		commands = append(commands, c)
	}
	return commands
}

// record notes what became of a command.
func (f *failBack) record(cmd catalog.Command, err error) {
	into, id := f.prepared, rhumb.RangeID{}
	switch c := cmd.(type) {
	case catalog.SetReplicas:
		into, id = f.returning, c.Range
	case catalog.PrepareHandover:
		id = c.Range
	}
	if err != nil {
		f.blocked[id] = rhumb.Message(err)
		return
	}
	into[id] = true
}

func (f *failBack) response() *rhumbpb.FailBackResponse {
	out := &rhumbpb.FailBackResponse{}
	for _, id := range slices.SortedFunc(maps.Keys(f.prepared), rhumb.RangeID.Compare) {
		out.Prepared = append(out.Prepared, api.EncodeRangeID(id))
	}
	for _, id := range slices.SortedFunc(maps.Keys(f.returning), rhumb.RangeID.Compare) {
		out.Returning = append(out.Returning, api.EncodeRangeID(id))
	}
	for _, id := range slices.SortedFunc(maps.Keys(f.blocked), rhumb.RangeID.Compare) {
		out.Blocked = append(out.Blocked, &rhumbpb.BlockedRange{Range: api.EncodeRangeID(id), Why: f.blocked[id]})
	}
	return out
}
