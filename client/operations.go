package client

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/client/stream"
)

// NodeHoldings counts the copies of a node according to the metadata, and explains why it cannot be removed.
type NodeHoldings struct {
	Node rhumb.NodeID `json:"node"`
	// Copies and Primaries count the node's copies of ranges, and the ranges that have it as primary.
	Copies    int  `json:"copies"`
	Primaries int  `json:"primaries"`
	Voter     bool `json:"voter"`
	// VoteWhy is why the node votes in the metadata group, "" if it does not.
	VoteWhy string `json:"vote_why,omitempty"`
	// Stays is why the node cannot be removed for good now, "" if it can.
	Stays string `json:"stays,omitempty"`
	// Operation moves its copies away; 0 if nothing does.
	Operation rhumb.OperationID `json:"operation,omitempty"`
}

// The actions of ControlOperation, as the catalog numbers them.
const (
	PauseOperation  = 1
	ResumeOperation = 2
	CancelOperation = 3
)

// askOperations is askNearest for the service of operations.
func askOperations[T any](ctx context.Context, c *Client, op rhumb.Op, call func(context.Context, rhumbpb.OperationsClient) (T, error)) (T, error) {
	out, err := askNearestConn(ctx, c, op, func(ctx context.Context, conn *stream.Conn) (T, error) { return call(ctx, conn.Operations()) })
	return out, rhumb.Wrap(op, err)
}

// Operations returns the long operations of the cluster that are not over, and the newest that are, ordered by id.
func (c *Client) Operations(ctx context.Context) ([]*rhumb.Operation, error) {
	resp, err := askOperations(ctx, c, "client.Client.Operations", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.ListOperationsResponse, error) {
		return oc.ListOperations(ctx, &rhumbpb.ListOperationsRequest{})
	})
	var out []*rhumb.Operation
	for _, o := range resp.GetOperations() {
		out = append(out, api.DecodeOperation(o))
	}
	return out, err
}

// Operation returns one operation. The error kind NotFound means that there is none, or that it ended long ago.
func (c *Client) Operation(ctx context.Context, id rhumb.OperationID) (*rhumb.Operation, error) {
	all, err := c.Operations(ctx)
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		if o.ID == id {
			return o, nil
		}
	}
	return nil, rhumb.Ef("client.Client.Operation", rhumb.NotFound, "there is no operation %s; `rhumb operation ls` lists those that run and the newest that ended", id)
}

// StartOperation starts an operation: Kind, Node, Target, Region and Range of o define it. An equal operation that is not
// over is the result. The error kind Conflict means that it cannot be done now; the message says why and what would fit.
func (c *Client) StartOperation(ctx context.Context, o rhumb.Operation) (*rhumb.Operation, error) {
	q := &rhumbpb.StartOperationRequest{Kind: uint32(o.Kind), Node: uint32(o.Node), Target: uint32(o.Target), Region: uint32(o.Region)}
	if !o.Range.IsZero() {
		q.Range = api.EncodeRangeID(o.Range)
	}
	resp, err := askOperations(ctx, c, "client.Client.StartOperation", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.StartOperationResponse, error) {
		return oc.StartOperation(ctx, q)
	})
	if err != nil {
		return nil, err
	}
	return api.DecodeOperation(resp.GetOperation()), nil
}

// RemoveRegion starts the removal of a region. into takes its ranges; 0 leaves the choice to the cluster. The error kind Conflict
// says what keeps the region, and what would help.
func (c *Client) RemoveRegion(ctx context.Context, region, into rhumb.RegionID) (*rhumb.Operation, error) {
	q := &rhumbpb.StartOperationRequest{Kind: uint32(rhumb.OperationRemoveRegion), Region: uint32(region), Into: uint32(into)}
	resp, err := askOperations(ctx, c, "client.Client.RemoveRegion", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.StartOperationResponse, error) {
		return oc.StartOperation(ctx, q)
	})
	if err != nil {
		return nil, err
	}
	return api.DecodeOperation(resp.GetOperation()), nil
}

// A region is given up in two requests, so that a person can decide in between: the first one describes the loss, the second one repeats
// its size. A program should not decide this: whether a region is lost for good is not visible from inside the cluster.

// RegionLoss lists the losses with a region whose nodes are all dead.
type RegionLoss struct {
	// Ranges have no copy on any node of another region.
	Ranges []rhumb.RangeID
	// Into takes the other ranges of the region.
	Into rhumb.RegionID
	// Undecided have copies in other regions, and none of these is in sync. While there are any, the region cannot be given up: RecoverRange decides
	// about each. Restarts are those of Ranges that begin again empty in Into, because other ranges of their tables stay. Only DescribeLoss
	// fills both, and only if the node that answers is of this release or a later one.
	Undecided, Restarts []rhumb.RangeID
}

// DescribeLoss returns what GiveUpRegion would lose. The error kind Conflict means that the region is not lost.
func (c *Client) DescribeLoss(ctx context.Context, region, into rhumb.RegionID) (RegionLoss, error) {
	return c.giveUpRegion(ctx, &rhumbpb.GiveUpRegionRequest{Region: uint32(region), Into: uint32(into), DryRun: true})
}

// GiveUpRegion removes a region whose nodes are all dead, and everything that only they had. seen is what DescribeLoss returned; if
// the loss has changed since, the error kind is Conflict.
func (c *Client) GiveUpRegion(ctx context.Context, region rhumb.RegionID, seen RegionLoss) (RegionLoss, error) {
	return c.giveUpRegion(ctx, &rhumbpb.GiveUpRegionRequest{Region: uint32(region), Into: uint32(seen.Into), Lost: uint32(len(seen.Ranges))})
}

func (c *Client) giveUpRegion(ctx context.Context, q *rhumbpb.GiveUpRegionRequest) (RegionLoss, error) {
	resp, err := askOperations(ctx, c, "client.Client.GiveUpRegion", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.GiveUpRegionResponse, error) {
		return oc.GiveUpRegion(ctx, q)
	})
	if err != nil {
		return RegionLoss{}, err
	}
	return RegionLoss{
		Into: rhumb.RegionID(resp.GetInto()), Ranges: decodeIDs(resp.GetLost()), Undecided: decodeIDs(resp.GetUndecided()), Restarts: decodeIDs(resp.GetRestarts()),
	}, nil
}

// decodeIDs returns the names of ranges of an answer.
func decodeIDs(ids []*rhumbpb.RangeID) (out []rhumb.RangeID) {
	for _, id := range ids {
		out = append(out, api.DecodeRangeID(id))
	}
	return out
}

// PlannedMove is one copy of a range that a rebalance would move. Sizes are 0 if they are not known.
type PlannedMove struct {
	Range rhumb.RangeID
	From  rhumb.NodeID
	To    rhumb.NodeID
	Bytes int64
	// Writes and WrittenRate are the entries and the bytes of the range's log per second.
	Writes      uint32
	WrittenRate uint64
	Why         string
}

// RegionSpread has the least and the greatest weight of a node of a region, in bytes: now, and after the moves.
type RegionSpread struct {
	Region                rhumb.RegionID
	Least, Most           int64
	LeastAfter, MostAfter int64
}

// RebalancePlan lists the moves that a rebalance would begin now. Waits says why nothing moves at the moment, "" if nothing prevents it; Moving
// counts the copies that move already.
type RebalancePlan struct {
	Moves   []PlannedMove
	Spreads []RegionSpread
	Waits   string
	Moving  int
}

// PlanRebalance returns the plan of a rebalance in a region, or in all for 0. It changes nothing. StartOperation with
// rhumb.OperationRebalance does it.
func (c *Client) PlanRebalance(ctx context.Context, region rhumb.RegionID) (RebalancePlan, error) {
	resp, err := askOperations(ctx, c, "client.Client.PlanRebalance", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.PlanRebalanceResponse, error) {
		return oc.PlanRebalance(ctx, &rhumbpb.PlanRebalanceRequest{Region: uint32(region)})
	})
	// A failed request has no answer: the getters of nil return nothing.
	out := RebalancePlan{Waits: resp.GetWaits(), Moving: int(resp.GetMoving())}
	for _, m := range resp.GetMoves() {
		out.Moves = append(out.Moves, PlannedMove{
			Range: api.DecodeRangeID(m.GetRange()), From: rhumb.NodeID(m.GetFrom()), To: rhumb.NodeID(m.GetTo()), Bytes: m.GetBytes(),
			Writes: m.GetWrites(), WrittenRate: m.GetWrittenRate(), Why: m.GetWhy(),
		})
	}
	for _, x := range resp.GetSpreads() {
		out.Spreads = append(out.Spreads, RegionSpread{rhumb.RegionID(x.GetRegion()), x.GetLeast(), x.GetMost(), x.GetLeastAfter(), x.GetMostAfter()})
	}
	return out, err
}

// PlanFailover returns a plan of the failure of a node, a zone (ZONE or REGION/ZONE) or a region: who takes over, how long writes pause at
// most, and which ranges are not served. It changes nothing. It returns an error of kind Conflict if the named nodes have failed already.
func (c *Client) PlanFailover(ctx context.Context, name string) (rhumb.FailoverPlan, error) {
	resp, err := askOperations(ctx, c, "client.Client.PlanFailover", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.PlanFailoverResponse, error) {
		return oc.PlanFailover(ctx, &rhumbpb.PlanFailoverRequest{Name: name})
	})
	if err != nil {
		return rhumb.FailoverPlan{}, err
	}
	plan := api.DecodeFailoverPlan(resp)
	plan.Name = name
	return plan, nil
}

// ControlOperation pauses, resumes or cancels an operation.
func (c *Client) ControlOperation(ctx context.Context, id rhumb.OperationID, action uint32) (*rhumb.Operation, error) {
	resp, err := askOperations(ctx, c, "client.Client.ControlOperation", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.ControlOperationResponse, error) {
		return oc.ControlOperation(ctx, &rhumbpb.ControlOperationRequest{Operation: uint64(id), Action: action})
	})
	if err != nil {
		return nil, err
	}
	return api.DecodeOperation(resp.GetOperation()), nil
}

// Holdings returns what each node has, ordered by node. Nodes of builds without this request are missing.
func (c *Client) Holdings(ctx context.Context) ([]NodeHoldings, error) {
	resp, err := askOperations(ctx, c, "client.Client.Holdings", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.DescribeNodesResponse, error) {
		return oc.DescribeNodes(ctx, &rhumbpb.DescribeNodesRequest{})
	})
	var out []NodeHoldings
	for _, n := range resp.GetNodes() {
		out = append(out, NodeHoldings{
			Node: rhumb.NodeID(n.GetNode()), Copies: int(n.GetCopies()), Primaries: int(n.GetPrimaries()), Voter: n.GetVoter(), Stays: n.GetStays(),
			Operation: rhumb.OperationID(n.GetOperation()), VoteWhy: n.GetVoteWhy(),
		})
	}
	return out, err
}

// RemoveNode removes a node for good. Without force the node must hold neither a copy nor a vote; with force it must be fenced.
// The message of the error kind Conflict names its copies and its vote.
func (c *Client) RemoveNode(ctx context.Context, node rhumb.NodeID, force bool) (rhumb.Node, error) {
	resp, err := askOperations(ctx, c, "client.Client.RemoveNode", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.RemoveNodeResponse, error) {
		return oc.RemoveNode(ctx, &rhumbpb.RemoveNodeRequest{Node: uint32(node), Force: force})
	})
	if err != nil {
		return rhumb.Node{}, err
	}
	return api.DecodeNode(resp.GetNode())
}

// Settings returns the values of the settings that differ from their defaults.
func (c *Client) Settings(ctx context.Context) (map[string]string, error) {
	resp, err := askOperations(ctx, c, "client.Client.Settings", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.ListSettingsResponse, error) {
		return oc.ListSettings(ctx, &rhumbpb.ListSettingsRequest{})
	})
	out := make(map[string]string)
	for _, s := range resp.GetSettings() {
		out[s.GetName()] = s.GetValue()
	}
	return out, err
}

// SetSetting changes a setting of the cluster; an empty value resets it to its default.
func (c *Client) SetSetting(ctx context.Context, name, value string) error {
	_, err := askOperations(ctx, c, "client.Client.SetSetting", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.AlterSettingResponse, error) {
		return oc.AlterSetting(ctx, &rhumbpb.AlterSettingRequest{Name: name, Value: value})
	})
	return err
}

// HandOverRange asks for the handover of a range to an in-sync node, which also becomes its preferred primary. It
// returns the record with the prepared handover, or without one if the node was primary already; Ranges shows when the node has become
// primary. The error kind Conflict means that the node cannot take over now; the message says why.
func (c *Client) HandOverRange(ctx context.Context, id rhumb.RangeID, to rhumb.NodeID) (*rhumb.Range, error) {
	resp, err := askOperations(ctx, c, "client.Client.HandOverRange", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.HandOverRangeResponse, error) {
		return oc.HandOverRange(ctx, &rhumbpb.HandOverRangeRequest{Range: api.EncodeRangeID(id), Node: uint32(to)})
	})
	if err != nil {
		return nil, err
	}
	return api.DecodeRange(resp.GetRange()), nil
}

// splitPoll is how often AwaitSplit looks at the client's own copy of the metadata, which costs no request.
const splitPoll = 5 * time.Millisecond

// AwaitSplit waits until a range that SplitRange has reserved has its slots, and returns its record. The error kind Conflict means that the split was
// given up, and the old range is whole.
func (c *Client) AwaitSplit(ctx context.Context, reserved *rhumb.Range) (*rhumb.Range, error) {
	const op rhumb.Op = "client.Client.AwaitSplit"
	for {
		switch born, over := splitOutcome(c.Ranges(), reserved); {
		case born != nil:
			return born, nil
		case over:
			return nil, rhumb.Ef(op, rhumb.Conflict, "the split at slot %d was given up, and the range is whole: its in-sync copies were not all reachable; retry", reserved.ID.Slot)
		}
		select {
		case <-ctx.Done():
			return nil, rhumb.WrapKind(op, rhumb.DeadlineExceeded, ctx.Err())
		case <-time.After(splitPoll):
		}
	}
}

// splitOutcome returns the record of a reserved range that has its slots, and whether its split is over. A copy of the metadata from before the
// reservation has no record of it either: then the range that holds the slots has a smaller version, because a split that is given up
// raises it above that of the reserved range.
func splitOutcome(ranges []*rhumb.Range, reserved *rhumb.Range) (born *rhumb.Range, over bool) {
	for _, r := range ranges {
		switch {
		case r.ID == reserved.ID && r.Birth == 0:
			return r, true
		case r.ID == reserved.ID:
			return nil, false
		case r.Birth == 0 && r.Holds(reserved.ID) && r.Version > reserved.Version:
			over = true
		}
	}
	return nil, over
}

// SplitRange divides the range of a home in two, at a slot or, if at is 0, in the middle. It returns the record of the new
// range, which is reserved: the primary divides the range soon after, and Birth is then 0 in the record.
func (c *Client) SplitRange(ctx context.Context, home rhumb.RangeID, at rhumb.Slot) (*rhumb.Range, error) {
	resp, err := askOperations(ctx, c, "client.Client.SplitRange", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.SplitRangeResponse, error) {
		return oc.SplitRange(ctx, &rhumbpb.SplitRangeRequest{Range: api.EncodeRangeID(home), At: uint32(at)})
	})
	if err != nil {
		return nil, err
	}
	return api.DecodeRange(resp.GetRange()), nil
}

// MergeRange asks for the merge of the range of a home with the one that begins where it ends, and returns the records of both from before.
// Their primary merges them soon after: the right one is then gone. With dryRun, MergeRange only checks whether they could be merged now. The
// error is Conflict, with the reason, if they cannot.
func (c *Client) MergeRange(ctx context.Context, home rhumb.RangeID, dryRun bool) (left, right *rhumb.Range, err error) {
	resp, err := askOperations(ctx, c, "client.Client.MergeRange", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.MergeRangeResponse, error) {
		return oc.MergeRange(ctx, &rhumbpb.MergeRangeRequest{Range: api.EncodeRangeID(home), DryRun: dryRun})
	})
	if err != nil {
		return nil, nil, err
	}
	return api.DecodeRange(resp.GetLeft()), api.DecodeRange(resp.GetRight()), nil
}

// FailBack asks for the handover of all ranges that prefer a node to this node, and for the return of those that it had before it was
// dead for long. It returns the ranges whose handover is prepared, those that are being copied to the node, and for those that stay
// where they are the reason.
func (c *Client) FailBack(ctx context.Context, node rhumb.NodeID) (prepared, returning []rhumb.RangeID, blocked map[rhumb.RangeID]string, err error) {
	resp, err := askOperations(ctx, c, "client.Client.FailBack", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.FailBackResponse, error) {
		return oc.FailBack(ctx, &rhumbpb.FailBackRequest{Node: uint32(node)})
	})
	for _, id := range resp.GetPrepared() {
		prepared = append(prepared, api.DecodeRangeID(id))
	}
	for _, id := range resp.GetReturning() {
		returning = append(returning, api.DecodeRangeID(id))
	}
	blocked = make(map[rhumb.RangeID]string)
	for _, b := range resp.GetBlocked() {
		blocked[api.DecodeRangeID(b.GetRange())] = b.GetWhy()
	}
	return prepared, returning, blocked, err
}

// LeadMetadata makes a voter the leader of the metadata group, and returns when it leads. Changes of the fleet and failovers are
// decided at the leader, and each waits for a round trip to a majority of the voters. It changes nothing if the node leads already.
// A node that does not vote or is not live is a Conflict, and one that lacks entries of the metadata is Unavailable.
func (c *Client) LeadMetadata(ctx context.Context, node rhumb.NodeID) error {
	_, err := askOperations(ctx, c, "client.Client.LeadMetadata", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.LeadMetadataResponse, error) {
		return oc.LeadMetadata(ctx, &rhumbpb.LeadMetadataRequest{Node: uint32(node)})
	})
	return err
}

// UnpinVotes lets the cluster choose again who votes in the metadata group, for the given nodes or, without any, for all. It returns
// the nodes whose votes were pinned.
func (c *Client) UnpinVotes(ctx context.Context, nodes ...rhumb.NodeID) (unpinned []rhumb.NodeID, err error) {
	q := &rhumbpb.UnpinVotesRequest{}
	for _, id := range nodes {
		q.Nodes = append(q.Nodes, uint32(id))
	}
	resp, err := askOperations(ctx, c, "client.Client.UnpinVotes", func(ctx context.Context, oc rhumbpb.OperationsClient) (*rhumbpb.UnpinVotesResponse, error) {
		return oc.UnpinVotes(ctx, q)
	})
	for _, id := range resp.GetUnpinned() {
		unpinned = append(unpinned, rhumb.NodeID(id))
	}
	return unpinned, err
}
