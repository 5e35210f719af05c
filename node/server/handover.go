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
	st, err := s.node.Linearize(ctx)
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	id, to := api.DecodeRangeID(q.GetRange()), rhumb.NodeID(q.GetNode())
	r, ok := st.Range(id)
	// The catalog checks the same when the command is applied. Here the answer can say what to do about it.
	switch _, known := st.Node(to); {
	case !ok:
		return nil, statusError(rhumb.Ef(op, rhumb.NotFound, "range %s does not exist; list ranges with `rhumb range ls`", id))
	case !known:
		return nil, statusError(rhumb.Ef(op, rhumb.NotFound, "node %s does not exist; list nodes with `rhumb node ls`", to))
	case !r.IsInSync(to):
		return nil, statusError(rhumb.Ef(op, rhumb.Conflict, "%s is not in sync with range %s and cannot take over; in sync are %s", to, id, rhumb.NodeList(r.InSync)))
	// Checked here, because the catalog would only name the missing feature.
	case !st.Has(rhumb.FeatureHandover):
		return nil, statusError(rhumb.E(op, rhumb.Incompatible, "the cluster version knows no handovers yet; `rhumb upgrade finalize` raises it"))
	}
	if r.Prepared != nil && r.Prepared.Target != to {
		return nil, statusError(rhumb.Ef(op, rhumb.Conflict, "range %s is being handed over to %s; that ends within %v, then retry", id, r.Prepared.Target, place.HandoverWithin))
	}
	var commands []catalog.Command
	version := r.Version
	if r.Preferred != to {
		commands = append(commands, catalog.SetReplicas{Range: id, Version: version, Replicas: r.Replicas, Preferred: to})
		version++
	}
	// If the first command is refused, the version of the second one is refused as well.
	commands = append(commands, catalog.PrepareHandover{Range: id, Version: version, Target: to})
	res, _, err := s.node.Propose(ctx, catalog.Batch{Commands: commands})
	for _, item := range res.Items {
		if err == nil {
			err = item.Err()
		}
	}
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	// The record as the last command left it. That of the state may be newer: nodes carry a handover out within a few
	// milliseconds, and the record then looks as if nothing had been done.
	return &rhumbpb.HandOverRangeResponse{Range: api.EncodeRange(res.Items[len(commands)-1].Range)}, nil
}

// FailBack prepares handovers of the ranges that prefer a node to this node, and begins to copy its former ranges to it. It does not wait until the node has been
// healthy for a while, as the planner does: the operator has decided that it is.
func (s *Operations) FailBack(ctx context.Context, q *rhumbpb.FailBackRequest) (*rhumbpb.FailBackResponse, error) {
	const op rhumb.Op = "server.Operations.FailBack"
	st, err := s.node.Linearize(ctx)
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	to := rhumb.NodeID(q.GetNode())
	n, known := st.Node(to)
	switch {
	case !known:
		return nil, statusError(rhumb.Ef(op, rhumb.NotFound, "node %s does not exist; list nodes with `rhumb node ls`", to))
	case !st.TakesCopies(to):
		return nil, statusError(rhumb.Ef(op, rhumb.Conflict, "%s is %s and takes no roles", to, n.State))
	case st.Setting(rhumb.SettingFailback) == place.FailbackNever:
		return nil, statusError(rhumb.Ef(op, rhumb.Conflict, "the setting %s is %s: ranges stay with the node that took over; `rhumb setting set %s manual` allows this command", rhumb.SettingFailback, place.FailbackNever, rhumb.SettingFailback))
	case !st.Has(rhumb.FeatureHandover):
		return nil, statusError(rhumb.E(op, rhumb.Incompatible, "the cluster version knows no handovers yet; `rhumb upgrade finalize` raises it"))
	}
	out := &rhumbpb.FailBackResponse{}
	block := func(id rhumb.RangeID, why string) {
		out.Blocked = append(out.Blocked, &rhumbpb.BlockedRange{Range: api.EncodeRangeID(id), Why: why})
	}
	// Each command names the version of its record, so a range that changes meanwhile is refused separately and
	// reported as blocked. The others continue.
	var commands []catalog.Command
	for r := range st.Ranges() {
		// A range that is on its way to the node counts as prepared, so that the command can be repeated.
		switch {
		case r.Preferred != to || r.Primary == to:
		case r.Prepared != nil && r.Prepared.Target == to:
			out.Prepared = append(out.Prepared, api.EncodeRangeID(r.ID))
		case r.Prepared != nil:
			block(r.ID, fmt.Sprintf("it is being handed over to %s", r.Prepared.Target))
		case !place.MayFailBack(st, r):
			block(r.ID, fmt.Sprintf("%s is not in sync with it, or its copy is damaged or leaves", to))
		default:
			commands = append(commands, catalog.PrepareHandover{Range: r.ID, Version: r.Version, Target: to})
		}
	}
	// Ranges whose copies were created elsewhere while the node was dead are copied to it first.
	begin, coming, waiting := place.ReturnsTo(st, to)
	for _, id := range coming {
		out.Returning = append(out.Returning, api.EncodeRangeID(id))
	}
	for _, id := range slices.SortedFunc(maps.Keys(waiting), rhumb.RangeID.Compare) {
		block(id, waiting[id])
	}
	// In the same batches: a node has few of either kind.
	for _, c := range begin {
		commands = append(commands, c)
	}
	for batch := range slices.Chunk(commands, failBackBatch) {
		res, _, err := s.node.Propose(ctx, catalog.Batch{Commands: batch})
		if err != nil {
			return nil, statusError(rhumb.Wrap(op, err))
		}
		for i, item := range res.Items {
			id, returns := rangeOfCommand(batch[i])
			if returns && item.Err() == nil {
				out.Returning = append(out.Returning, api.EncodeRangeID(id))
				continue
			}
			if err := item.Err(); err != nil {
				block(id, rhumb.Message(err))
			} else {
				out.Prepared = append(out.Prepared, api.EncodeRangeID(id))
			}
		}
	}
	return out, nil
}

// rangeOfCommand returns the range of a command of FailBack, and whether the command begins its return.
func rangeOfCommand(cmd catalog.Command) (id rhumb.RangeID, returns bool) {
	if c, ok := cmd.(catalog.SetReplicas); ok {
		return c.Range, true
	}
	return cmd.(catalog.PrepareHandover).Range, false
}
