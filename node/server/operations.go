package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// OperationsNode is the part of a node that the service for operations uses.
type OperationsNode interface {
	State() *catalog.State
	Linearize(ctx context.Context) (*catalog.State, error)
	Propose(ctx context.Context, cmd catalog.Command) (catalog.Result, *catalog.State, error)
	PlanBalance(ctx context.Context, only rhumb.RegionID) (place.BalancePlan, error)
	PlanFailover(ctx context.Context, name string) (rhumb.FailoverPlan, error)
	LeadMetadata(ctx context.Context, to rhumb.NodeID) error
	RangeInfo(ctx context.Context, n rhumb.NodeID, id rhumb.RangeID) (RangeInfo, error)
}

// Operations is the service for long operations, for nodes that come and go, and for settings of the cluster.
//
// It checks what can be checked beforehand against a linearized catalog, so that an operation which cannot work is refused
// with the reason. The catalog decides again when the command is applied.
type Operations struct {
	rhumbpb.UnimplementedOperationsServer
	node OperationsNode
}

// NewOperations returns the service.
func NewOperations(n OperationsNode) *Operations { return &Operations{node: n} }

// Register registers the service.
func (s *Operations) Register(r grpc.ServiceRegistrar) { rhumbpb.RegisterOperationsServer(r, s) }

// ListOperations returns all operations that the catalog keeps.
func (s *Operations) ListOperations(ctx context.Context, _ *rhumbpb.ListOperationsRequest) (*rhumbpb.ListOperationsResponse, error) {
	st, err := s.node.Linearize(ctx)
	if err != nil {
		return nil, statusError(err)
	}
	out := &rhumbpb.ListOperationsResponse{}
	for o := range st.Operations() {
		out.Operations = append(out.Operations, api.EncodeOperation(o))
	}
	return out, nil
}

// decideMost bounds how often a request is decided again because a record changed between the decision and its command: balance, for
// example, begins another move, or gives a new range another preferred primary.
const decideMost = 4

// proposeFresh proposes the command that decide returns for the newest metadata, nil for none. If metadata refuses the command as a Conflict,
// it is decided again. Of a batch only the last command counts: the others make room for it.
func (s *Operations) proposeFresh(ctx context.Context, decide func(*catalog.State) (catalog.Command, error)) (catalog.Result, *catalog.State, error) {
	for try := 1; ; try++ {
		st, err := s.node.Linearize(ctx)
		if err != nil {
			return catalog.Result{}, nil, err
		}
		cmd, err := decide(st)
		if err != nil || cmd == nil {
			return catalog.Result{}, st, err
		}
		res, st, err := s.node.Propose(ctx, cmd)
		if err == nil && len(res.Items) > 0 {
			err = refusalOf(res.Items)
			res = res.Items[len(res.Items)-1]
		}
		if rhumb.KindOf(err) != rhumb.Conflict || try == decideMost {
			return res, st, err
		}
	}
}

// refusalOf returns why the last command of a batch was refused, nil if it was not. If an earlier command about the same range was
// refused, the last one does not fit the record and that refusal is the cause.
func refusalOf(items []catalog.Result) error {
	last := items[len(items)-1]
	if last.Failure == nil || last.Failure.Range.IsZero() {
		return last.Err()
	}
	first := slices.IndexFunc(items, func(r catalog.Result) bool { return r.Failure != nil && r.Failure.Range == last.Failure.Range })
	return items[first].Err()
}

// StartOperation starts an operation.
func (s *Operations) StartOperation(ctx context.Context, q *rhumbpb.StartOperationRequest) (*rhumbpb.StartOperationResponse, error) {
	const op rhumb.Op = "server.Operations.StartOperation"
	who, _ := access.FromContext(ctx)
	cmd := catalog.StartOperation{
		Kind: rhumb.OperationKind(q.GetKind()), Node: rhumb.NodeID(q.GetNode()), Target: rhumb.NodeID(q.GetTarget()),
		Region: rhumb.RegionID(q.GetRegion()), Into: rhumb.RegionID(q.GetInto()), By: who.String(), At: time.Now(),
	}
	if q.GetRange() != nil {
		cmd.Range = api.DecodeRangeID(q.GetRange())
	}
	res, st, err := s.proposeFresh(ctx, func(st *catalog.State) (catalog.Command, error) { return decideStart(op, st, cmd) })
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	o, ok := st.Operation(res.Operation)
	if !ok {
		return nil, statusError(rhumb.Ef(op, rhumb.NotFound, "operation %s was trimmed meanwhile", res.Operation))
	}
	return &rhumbpb.StartOperationResponse{Operation: api.EncodeOperation(o)}, nil
}

// decideStart returns the command that starts an operation, or why the operation cannot work.
func decideStart(op rhumb.Op, st *catalog.State, cmd catalog.StartOperation) (catalog.Command, error) {
	switch cmd.Kind {
	case rhumb.OperationDecommission:
		if n, ok := st.Node(cmd.Node); ok && !n.Forgotten {
			if why := place.WhyNotLeave(st, cmd.Node); why != "" {
				return nil, rhumb.Ef(op, rhumb.Conflict, "%s cannot be decommissioned: %s", cmd.Node, why)
			}
		}
		return afterBalance(st, cmd), nil
	case rhumb.OperationReplace:
		if why := place.WhyNotReplace(st, cmd.Node, cmd.Target); why != "" {
			return nil, rhumb.Ef(op, rhumb.Conflict, "%s cannot be replaced by %s: %s", cmd.Node, cmd.Target, why)
		}
		return afterBalance(st, cmd), nil
	case rhumb.OperationRemoveRegion:
		into, err := planRemoval(op, st, cmd.Region, cmd.Into)
		cmd.Into = into
		return cmd, err
	case rhumb.OperationRebalance:
		if why := place.WhyNotRebalance(st, cmd.Region); why != "" {
			return nil, rhumb.Ef(op, rhumb.Conflict, "nothing can be balanced: %s", why)
		}
	case rhumb.OperationMove, rhumb.OperationMoveVote:
	default:
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "operations of kind %s are not started by this request", cmd.Kind)
	}
	return cmd, nil
}

// afterBalance returns the command that starts an operation which empties a node, after those that end what balance does with the node. An
// operator need not wait for balance: a node that has just joined attracts copies for minutes, and it often joined to replace another one.
func afterBalance(st *catalog.State, cmd catalog.StartOperation) catalog.Command {
	if ends := place.EndBalance(st, cmd.Node, cmd.At); len(ends) > 0 {
		return catalog.Batch{Commands: append(ends, cmd)}
	}
	return cmd
}

// planRemoval returns the region that takes the ranges of another one, or why that one cannot be removed.
func planRemoval(op rhumb.Op, st *catalog.State, region, into rhumb.RegionID) (rhumb.RegionID, error) {
	r, ok := st.Region(region)
	switch {
	case !ok:
		return 0, rhumb.Ef(op, rhumb.NotFound, "region %s does not exist; list regions with `rhumb region ls`", region)
	// The command may be a repetition, after the answer was lost.
	case r.Into != 0 && !r.Removed && (into == 0 || into == r.Into):
		return r.Into, nil
	case place.IsRegionLost(st, region):
		return 0, rhumb.Ef(op, rhumb.Conflict, "no node of region %s serves, so nothing can be moved away; start its nodes, or give the region up with --force if it is lost for good", r.Name)
	}
	host, why := place.PlanRegionRemoval(st, region, into)
	if why != "" {
		return 0, rhumb.Ef(op, rhumb.Conflict, "region %s cannot be removed: %s", r.Name, why)
	}
	return host, nil
}

// The checks here are for messages that help. The catalog decides again when the command is applied, because nodes may register, and
// ranges may move, between the two: a request that passes here may still be refused, and one that is refused here changes nothing.

// hasNodes reports whether a region has nodes that were not removed for good.
func hasNodes(st *catalog.State, id rhumb.RegionID) bool {
	for n := range st.Nodes() {
		if n.Region == id && !n.Forgotten {
			return true
		}
	}
	return false
}

// GiveUpRegion removes a region whose nodes are all dead, with the ranges that only they had.
func (s *Operations) GiveUpRegion(ctx context.Context, q *rhumbpb.GiveUpRegionRequest) (*rhumbpb.GiveUpRegionResponse, error) {
	const op rhumb.Op = "server.Operations.GiveUpRegion"
	st, err := s.node.Linearize(ctx)
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	id := rhumb.RegionID(q.GetRegion())
	r, ok := st.Region(id)
	switch {
	case !ok:
		return nil, statusError(rhumb.Ef(op, rhumb.NotFound, "region %s does not exist; list regions with `rhumb region ls`", id))
	case !place.IsRegionLost(st, id) && !hasNodes(st, id):
		return nil, statusError(rhumb.Ef(op, rhumb.Conflict, "region %s has neither nodes nor lost ranges, so there is nothing to give up; remove it without --force", r.Name))
	case !place.IsRegionLost(st, id):
		return nil, statusError(rhumb.Ef(op, rhumb.Conflict, "region %s is not lost: nodes of it serve; remove it without --force", r.Name))
	}
	// The region that takes the rest matters only for ranges that have copies elsewhere, and for lost ranges of the same tables:
	// only the latter need room.
	into := rhumb.RegionID(q.GetInto())
	switch {
	case into != 0:
	// A removal had begun. What it has moved is in the region that was chosen then.
	case r.Into != 0:
		into = st.HostRegion(id)
	default:
		into = place.NearestHost(st, id)
	}
	lost, stuck := st.LostRanges(id)
	out := &rhumbpb.GiveUpRegionResponse{Into: uint32(into), Lost: encodeIDs(lost)}
	if q.GetDryRun() {
		// The caller shows these before it asks anybody for a decision.
		out.Undecided, out.Restarts = encodeIDs(stuck), encodeIDs(st.BrokenRanges(lost))
		return out, nil
	}
	who, _ := access.FromContext(ctx)
	cmd := catalog.RemoveRegion{Region: id, Into: into, Force: true, Lost: q.GetLost(), By: who.String(), At: time.Now()}
	if _, _, err = s.node.Propose(ctx, cmd); err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	return out, nil
}

// encodeIDs returns the messages for the names of ranges.
func encodeIDs(ranges []*rhumb.Range) (out []*rhumbpb.RangeID) {
	for _, r := range ranges {
		out = append(out, api.EncodeRangeID(r.ID))
	}
	return out
}

// PlanRebalance returns what balance would do now.
func (s *Operations) PlanRebalance(ctx context.Context, q *rhumbpb.PlanRebalanceRequest) (*rhumbpb.PlanRebalanceResponse, error) {
	// Nothing is proposed, and a plan by a leader that was just replaced does no harm.
	plan, err := s.node.PlanBalance(ctx, rhumb.RegionID(q.GetRegion()))
	if err != nil {
		return nil, statusError(rhumb.Wrap("server.Operations.PlanRebalance", err))
	}
	out := &rhumbpb.PlanRebalanceResponse{Waits: plan.Waits, Moving: uint32(plan.Moving)}
	for _, m := range plan.Moves {
		out.Moves = append(out.Moves, &rhumbpb.PlannedMove{
			Range: api.EncodeRangeID(m.Range), From: uint32(m.From), To: uint32(m.To), Bytes: m.Size.Bytes, Writes: m.Size.Writes,
			WrittenRate: m.Size.WrittenRate, Why: m.Why,
		})
	}
	// Before and After list the same regions in the same order.
	for i, b := range plan.Before {
		a := plan.After[i]
		out.Spreads = append(out.Spreads, &rhumbpb.RegionSpread{Region: uint32(b.Region), Least: b.Least, Most: b.Most, LeastAfter: a.Least, MostAfter: a.Most})
	}
	return out, nil
}

// PlanFailover returns what happens when a node, a zone or a region fails.
func (s *Operations) PlanFailover(ctx context.Context, q *rhumbpb.PlanFailoverRequest) (*rhumbpb.PlanFailoverResponse, error) {
	plan, err := s.node.PlanFailover(ctx, q.GetName())
	if err != nil {
		return nil, statusError(rhumb.Wrap("server.Operations.PlanFailover", err))
	}
	return api.EncodeFailoverPlan(&plan), nil
}

// ControlOperation pauses, resumes or cancels an operation.
func (s *Operations) ControlOperation(ctx context.Context, q *rhumbpb.ControlOperationRequest) (*rhumbpb.ControlOperationResponse, error) {
	const op rhumb.Op = "server.Operations.ControlOperation"
	res, st, err := s.node.Propose(ctx, catalog.ControlOperation{
		ID: rhumb.OperationID(q.GetOperation()), Action: catalog.OperationAction(q.GetAction()), At: time.Now(),
	})
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	o, ok := st.Operation(res.Operation)
	if !ok {
		return nil, statusError(rhumb.Ef(op, rhumb.NotFound, "operation %s was trimmed meanwhile", res.Operation))
	}
	return &rhumbpb.ControlOperationResponse{Operation: api.EncodeOperation(o)}, nil
}

// DescribeNodes returns what each node has. It reads this node's copy of the catalog, so that it answers without a leader.
func (s *Operations) DescribeNodes(context.Context, *rhumbpb.DescribeNodesRequest) (*rhumbpb.DescribeNodesResponse, error) {
	st := s.node.State()
	out := &rhumbpb.DescribeNodesResponse{}
	if st == nil {
		return out, nil
	}
	holdings := place.Holdings(st)
	why := place.WhyVotes(st)
	for n := range st.Nodes() {
		h := holdings[n.ID]
		out.Nodes = append(out.Nodes, &rhumbpb.NodeHoldings{
			VoteWhy: why[n.ID],
			Node:    uint32(n.ID), Copies: uint32(h.Copies), Primaries: uint32(h.Primaries), Voter: n.Voter, Stays: h.Stays, Operation: uint64(h.Operation),
		})
	}
	return out, nil
}

// RemoveNode removes a node for good.
func (s *Operations) RemoveNode(ctx context.Context, q *rhumbpb.RemoveNodeRequest) (*rhumbpb.RemoveNodeResponse, error) {
	const op rhumb.Op = "server.Operations.RemoveNode"
	st, err := s.node.Linearize(ctx)
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	n, ok := st.Node(rhumb.NodeID(q.GetNode()))
	if !ok {
		return nil, statusError(rhumb.Ef(op, rhumb.NotFound, "node %s does not exist; list nodes with `rhumb node ls`", rhumb.NodeID(q.GetNode())))
	}
	if _, st, err = s.node.Propose(ctx, catalog.ForgetNode{Node: n.ID, Boot: n.Boot, Empty: !q.GetForce()}); err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	n, _ = st.Node(n.ID)
	return &rhumbpb.RemoveNodeResponse{Node: api.EncodeNode(*n)}, nil
}

// ListSettings returns the settings that differ from their defaults.
func (s *Operations) ListSettings(ctx context.Context, _ *rhumbpb.ListSettingsRequest) (*rhumbpb.ListSettingsResponse, error) {
	st, err := s.node.Linearize(ctx)
	if err != nil {
		return nil, statusError(err)
	}
	out := &rhumbpb.ListSettingsResponse{}
	for _, x := range rhumb.Settings() {
		if v := st.Setting(x.Name); v != "" {
			out.Settings = append(out.Settings, &rhumbpb.Setting{Name: x.Name, Value: v})
		}
	}
	return out, nil
}

// AlterSetting changes a setting.
func (s *Operations) AlterSetting(ctx context.Context, q *rhumbpb.AlterSettingRequest) (*rhumbpb.AlterSettingResponse, error) {
	const op rhumb.Op = "server.Operations.AlterSetting"
	if err := rhumb.CheckSetting(q.GetName(), q.GetValue()); err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	if _, _, err := s.node.Propose(ctx, catalog.SetSetting{Name: q.GetName(), Value: q.GetValue()}); err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	return &rhumbpb.AlterSettingResponse{}, nil
}

// SplitRange reserves a range for the slots of one from At on, or for its upper half.
func (s *Operations) SplitRange(ctx context.Context, q *rhumbpb.SplitRangeRequest) (*rhumbpb.SplitRangeResponse, error) {
	const op rhumb.Op = "server.Operations.SplitRange"
	id := api.DecodeRangeID(q.GetRange())
	res, _, err := s.proposeFresh(ctx, func(st *catalog.State) (catalog.Command, error) {
		r, ok := st.RangeOf(id)
		if !ok {
			return nil, noRangeError(op, id)
		}
		at := rhumb.Slot(q.GetAt())
		if at == 0 {
			// Names are hashed, so half of the slots have about half of the data.
			at = r.ID.Slot + (r.LastSlot()-r.ID.Slot+1)/2
			if free, ok := catalog.FreeSlot(r, at); ok {
				at = free
			}
		}
		return catalog.PrepareSplit{Range: r.ID, Version: r.Version, At: at, Kept: st.Has(rhumb.FeatureMerge)}, nil
	})
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	return &rhumbpb.SplitRangeResponse{Range: api.EncodeRange(res.Range)}, nil
}

// noRangeError returns the error of a request about a slot that no range has.
func noRangeError(op rhumb.Op, id rhumb.RangeID) error {
	return rhumb.Ef(op, rhumb.NotFound, "no range has the slot %s; list ranges with `rhumb range ls`", id)
}

// MergeRange marks a range and the one that begins where it ends for a merge.
func (s *Operations) MergeRange(ctx context.Context, q *rhumbpb.MergeRangeRequest) (*rhumbpb.MergeRangeResponse, error) {
	const op rhumb.Op = "server.Operations.MergeRange"
	id := api.DecodeRangeID(q.GetRange())
	var left, right *rhumb.Range
	res, _, err := s.proposeFresh(ctx, func(st *catalog.State) (cmd catalog.Command, err error) {
		if left, right, err = s.checkMerge(ctx, st, id); err != nil || q.GetDryRun() {
			return nil, err
		}
		return catalog.PrepareMerge{Range: left.ID, Version: left.Version, RightVersion: right.Version}, nil
	})
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	if !q.GetDryRun() {
		left = res.Range
	}
	return &rhumbpb.MergeRangeResponse{Left: api.EncodeRange(left), Right: api.EncodeRange(right)}, nil
}

// checkMerge returns the range that has a slot, and the one that begins where it ends, or why they cannot be merged now.
func (s *Operations) checkMerge(ctx context.Context, st *catalog.State, id rhumb.RangeID) (left, right *rhumb.Range, err error) {
	const op rhumb.Op = "server.Operations.checkMerge"
	left, ok := st.RangeOf(id)
	if !ok {
		return nil, nil, noRangeError(op, id)
	}
	right, ok = st.RightOf(left)
	if !ok {
		return nil, nil, rhumb.Ef(op, rhumb.NotFound, "no range begins at slot %d, where range %s ends", left.LastSlot()+1, left.ID)
	}
	// Both checks are those of the command itself. A dry run needs their reasons without a proposal,
	// and a refusal from this copy of the metadata says the same as one from the leader.
	if err := st.Admits(catalog.PrepareMerge{}); err != nil {
		return nil, nil, err
	}
	why := st.WhyNotMerge(left)
	if why == "" {
		why = s.whyApart(ctx, left, right)
	}
	if why != "" {
		return nil, nil, &rhumb.Error{Op: op, Kind: rhumb.Conflict, Range: left.ID, Msg: "ranges " + left.ID.String() + " and " + right.ID.String() + " cannot be merged now: " + why}
	}
	return left, right, nil
}

// whyApart returns which node has the copies of two ranges in different stores, with the remedy, or "". The nodes are asked, because the metadata
// does not know their stores. A node that does not answer is left to the merge itself, which needs it in sync.
func (s *Operations) whyApart(ctx context.Context, left, right *rhumb.Range) string {
	asking, cancel := context.WithTimeout(ctx, replicaTimeout)
	defer cancel()
	reasons := make([]string, len(left.Replicas))
	var wait sync.WaitGroup
	for i, n := range left.Replicas {
		wait.Go(func() {
			a, errA := s.node.RangeInfo(asking, n, left.ID)
			b, errB := s.node.RangeInfo(asking, n, right.ID)
			if errA == nil && errB == nil && a.Store != b.Store {
				reasons[i] = fmt.Sprintf("%s has range %s in its store %d and range %s in its store %d, and copies in two stores cannot be united; merges of small ranges that the cluster starts on its own bring them together (range_merge_after)",
					n, left.ID, a.Store, right.ID, b.Store)
			}
		})
	}
	wait.Wait()
	for _, why := range reasons {
		if why != "" {
			return why
		}
	}
	return ""
}

// LeadMetadata makes a voter the leader of the metadata group.
//
// Nothing is recorded: the leadership is not a part of the metadata, and any failure may move it again.
func (s *Operations) LeadMetadata(ctx context.Context, q *rhumbpb.LeadMetadataRequest) (*rhumbpb.LeadMetadataResponse, error) {
	if err := s.node.LeadMetadata(ctx, rhumb.NodeID(q.GetNode())); err != nil {
		return nil, statusError(rhumb.Wrap("server.Operations.LeadMetadata", err))
	}
	return &rhumbpb.LeadMetadataResponse{}, nil
}

// UnpinVotes lets the cluster choose its voters again.
func (s *Operations) UnpinVotes(ctx context.Context, q *rhumbpb.UnpinVotesRequest) (*rhumbpb.UnpinVotesResponse, error) {
	const op rhumb.Op = "server.Operations.UnpinVotes"
	st, err := s.node.Linearize(ctx)
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	cmd := catalog.UnpinVotes{}
	for _, id := range q.GetNodes() {
		cmd.Nodes = append(cmd.Nodes, rhumb.NodeID(id))
	}
	// The answer names what was pinned before, so that an operator can pin it again.
	out := &rhumbpb.UnpinVotesResponse{}
	for n := range st.Nodes() {
		if n.VotePinned && (len(cmd.Nodes) == 0 || slices.Contains(cmd.Nodes, n.ID)) {
			out.Unpinned = append(out.Unpinned, uint32(n.ID))
		}
	}
	if _, _, err := s.node.Propose(ctx, cmd); err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	return out, nil
}
