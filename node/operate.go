package node

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/node/server"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// Node implements server.Node with the methods below, for the Cluster service.
var _ server.Node = (*Node)(nil)

// requireMember returns the member, or an error of kind Unavailable that says why there is none.
func (n *Node) requireMember() (*member, error) {
	if m := n.member.Load(); m != nil {
		return m, nil
	}
	if err := n.Ready(); err != nil {
		return nil, err
	}
	// The node became a member after the first check.
	return nil, rhumb.E("node.joined", rhumb.Unavailable, "the node is joining its cluster; retry")
}

// Ping returns the identity and readiness of the node from memory, without asking another node.
func (n *Node) Ping() server.Info {
	i := server.Info{Region: n.cfg.Region, Ready: n.Ready(), Time: n.clock.Read(), Uptime: time.Since(n.started)}
	if m := n.currentMember(); m != nil {
		i.Cluster = m.cluster
		// Before the registration the catalog does not contain this node.
		if d, ok := m.group.State().Node(m.self.Node); ok {
			i.Node = *d
		}
	}
	return i
}

// summaryTimeout bounds each of the questions to the metadata group and to the replicas, so that
// Info of a busy node still returns the other fields.
const summaryTimeout = time.Second

// Info returns the state of the node.
func (n *Node) Info(ctx context.Context) server.Info {
	i := n.Ping()
	i.DatabaseFormat, i.Start = n.engine.Format(), n.phases.list()
	// Also for a node that cannot register: an operator needs the state of its metadata
	// group.
	if m := n.currentMember(); m != nil {
		i.Leader, _ = m.group.Leader()
		ctx, cancel := context.WithTimeout(ctx, summaryTimeout)
		if s, err := m.group.Status(ctx); err == nil {
			i.Metadata = &s
		}
		cancel()
	}
	if m := n.member.Load(); m != nil {
		i.Suspects = m.host.Leases().Suspects()
		ctx, cancel := context.WithTimeout(ctx, summaryTimeout)
		defer cancel()
		i.Unfit, i.DeferredLosses = m.host.Unfit(), m.host.DeferredLosses()
		if count, err := m.host.Summary(ctx); err == nil {
			// Counts of replicas on this node, not of ranges in the cluster.
			for state, c := range count {
				i.Ranges += c
				if state == replica.Primary {
					i.Primaries += c
				}
			}
		}
		// If the replicas do not answer in time, Ranges shows it too.
		i.Troubles, _ = m.host.Troubles(ctx)
		if d := m.Digests(); d != nil {
			i.Differing = d.Differing()
		}
	}
	i.Sights = n.sights.listSights(time.Now())
	for _, s := range n.engine.Stores() {
		// The stores are open from the start, so they are reported even if the node is in no
		// cluster.
		info := server.StoreInfo{Dir: s.Dir(), Store: s.Identity().Store, Refuses: s.Writable()}
		if u, err := s.Usage(); err == nil {
			info.Used, info.Free = u.Used, u.Free
		}
		if ranges, err := s.Ranges(); err == nil {
			info.Ranges = len(ranges)
		}
		info.Damages, info.DamagedRanges = s.Damage(), len(s.DamagedRanges())
		i.Stores = append(i.Stores, info)
	}
	return i
}

// State returns the newest catalog of this node, or nil before there is one. A node that cannot
// register, for example because its metadata group has no leader, returns the copy that it has.
func (n *Node) State() *catalog.State {
	if m := n.currentMember(); m != nil {
		return m.group.State()
	}
	return nil
}

// linearizeTimeout bounds how long an operator's request waits for the metadata leader. It covers an election of a leader. A node
// that is cut off from the others then says so while the caller has time to ask another node.
const linearizeTimeout = 3 * time.Second

// Linearize returns a catalog that includes everything decided before the call. Without a leader for linearizeTimeout it is
// Unavailable.
func (n *Node) Linearize(ctx context.Context) (*catalog.State, error) {
	const op rhumb.Op = "node.Linearize"
	m, err := n.requireMember()
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, linearizeTimeout)
	defer cancel()
	st, err := m.group.Linearize(waiting)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		return nil, rhumb.Ef(op, rhumb.Unavailable, "%s had no contact with the metadata leader for %v; name another node with --addr", m.self.Node, linearizeTimeout)
	}
	return st, err
}

// Watch returns a watch on the catalog.
func (n *Node) Watch() (*raftmeta.Watch, error) {
	if m := n.currentMember(); m != nil {
		return m.group.Watch(), nil
	}
	m, err := n.requireMember()
	if err != nil {
		return nil, err
	}
	return m.group.Watch(), nil
}

// Join registers another node and returns its identity, its region, and a catalog that contains it.
func (n *Node) Join(ctx context.Context, cmd catalog.RegisterNode) (id rhumb.NodeIdentity, region rhumb.RegionID, st *catalog.State, err error) {
	const op rhumb.Op = "node.Join"
	m, err := n.requireMember()
	if err != nil {
		// The other node reports this error as its own obstacle. The error leaves out the obstacle
		// of this node: two nodes that ask each other would quote each other in an ever longer
		// message.
		if self := n.Identity(); !self.Cluster.IsZero() {
			err = rhumb.Ef(op, rhumb.Unavailable, "node %s is not in the cluster yet either", self.Node)
		}
		return id, 0, nil, err
	}
	// The connection says who joins, whatever the request says.
	if cmd.Name, err = n.callerName(ctx); err != nil {
		return id, 0, nil, rhumb.Wrap(op, err)
	}
	if err := n.checkRegistration(cmd); err != nil {
		return id, 0, nil, rhumb.Wrap(op, err)
	}
	res, err := m.group.Propose(ctx, cmd)
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		return id, 0, nil, rhumb.Wrap(op, err)
	}
	return rhumb.NodeIdentity{Node: res.Node, Store: cmd.Store, Boot: res.Life}, res.Region, m.group.State(), nil
}

// ChangeAccess proposes a command about users, roles or grants.
func (n *Node) ChangeAccess(ctx context.Context, cmd catalog.Command) (*catalog.State, error) {
	m, err := n.requireMember()
	if err != nil {
		return nil, err
	}
	return m.admin.ChangeAccess(ctx, cmd)
}

// CreateTable creates a table.
func (n *Node) CreateTable(ctx context.Context, cmd catalog.CreateTable) (*rhumb.Table, *catalog.State, error) {
	m, err := n.requireMember()
	if err != nil {
		return nil, nil, err
	}
	return m.admin.CreateTable(ctx, cmd)
}

// DrainNode moves the primaries of a node to other nodes, or undoes that.
func (n *Node) DrainNode(ctx context.Context, id rhumb.NodeID, undo bool) (int, error) {
	m, err := n.requireMember()
	if err != nil {
		return 0, err
	}
	// The command names the life of the node, which this node's copy of the metadata may not have yet.
	if _, err := n.Linearize(ctx); err != nil {
		return 0, err
	}
	return m.admin.Drain(ctx, id, undo)
}

// RangeInfo asks a node for the state of its replica of a range.
func (n *Node) RangeInfo(ctx context.Context, id rhumb.NodeID, r rhumb.RangeID) (server.RangeInfo, error) {
	m, err := n.requireMember()
	if err != nil {
		return server.RangeInfo{}, err
	}
	// A question to this node itself needs no connection, and works while the network is down.
	ask := m.DescribeReplica
	if id != m.self.Node {
		ask = func(ctx context.Context, r rhumb.RangeID) (*rhumbpb.DescribeReplicaResponse, error) {
			return m.network.DescribeReplica(ctx, id, r)
		}
	}
	resp, err := ask(ctx, r)
	if err != nil {
		return server.RangeInfo{}, err
	}
	s := resp.GetStatus()
	info := server.RangeInfo{
		State: s.GetState(), Epoch: rhumb.Epoch(s.GetEpoch()), End: rhumb.Seq(s.GetEnd()), Commit: rhumb.Seq(s.GetCommit()),
		Trim: rhumb.Seq(s.GetTrim()), EndTime: rhumb.Timestamp(s.GetEndTime()), CommitTime: rhumb.Timestamp(s.GetCommitTime()), Bytes: resp.SizeBytes, Reason: s.GetReason(), Behind: map[rhumb.NodeID]string{},
		Copying: s.GetCopying(), Store: s.GetStore(),
	}
	for node, why := range resp.Behind {
		info.Behind[rhumb.NodeID(node)] = why
	}
	return info, nil
}

// VerifyRange lets the primary of a range compare its replicas.
func (n *Node) VerifyRange(ctx context.Context, primary rhumb.NodeID, q *rhumbpb.VerifyRangeRequest) (*rhumbpb.VerifyRangeResponse, error) {
	m, err := n.requireMember()
	if err != nil {
		return nil, err
	}
	if primary == m.self.Node {
		return m.VerifyReplicas(ctx, q)
	}
	return m.network.VerifyReplicas(ctx, primary, q)
}

// DiscardReplica makes a node discard its damaged copy of a range.
func (n *Node) DiscardReplica(ctx context.Context, id rhumb.NodeID, r rhumb.RangeID, acceptLoss bool) error {
	m, err := n.requireMember()
	if err != nil {
		return err
	}
	if id == m.self.Node {
		return m.DiscardReplica(ctx, r, acceptLoss)
	}
	return m.network.DiscardReplica(ctx, id, &rhumbpb.DiscardReplicaRequest{Range: api.EncodeRangeID(r), Node: uint32(id), AcceptLoss: acceptLoss})
}

// PlanBalance asks the metadata leader which copies balance would move.
func (n *Node) PlanBalance(ctx context.Context, only rhumb.RegionID) (place.BalancePlan, error) {
	m, err := n.requireMember()
	if err != nil {
		return place.BalancePlan{}, err
	}
	return m.group.PlanBalance(ctx, only)
}

// LeadMetadata makes a voter the leader of the metadata group, and waits until it leads.
func (n *Node) LeadMetadata(ctx context.Context, to rhumb.NodeID) error {
	m, err := n.requireMember()
	if err != nil {
		return err
	}
	return m.group.Lead(ctx, to)
}

// machineAllowance is the part of a planned pause for what no protocol bounds: syncs of the disks, processors that are busy, and
// clients that connect again. Measured failovers of idle machines need a tenth of it (docs/benchmarks.md).
const machineAllowance = 500 * time.Millisecond

// failoverTimings returns the times of which a failover consists, as this node is configured.
// The values are constants of this program: a cluster whose nodes run programs with others would have a plan for those of the node
// that was asked. Heartbeats of two nodes of a region, and of two regions, differ, so each range has the bound of its own set.
func failoverTimings() place.FailoverTimings {
	c := raftmeta.DefaultConfig()
	pair := func(t lease.Timing) place.PairTimings {
		return place.PairTimings{Heartbeat: t.Heartbeat, Suspect: t.Suspect, Lease: t.Obligation()}
	}
	// Voters wait for a leader, take turns, and fall back to Raft's random time, which is at most two timeouts.
	elect := func(tick time.Duration) time.Duration { return time.Duration(2*c.ElectionTicks+2) * tick }
	return place.FailoverTimings{
		Near: pair(lease.RegionTiming()), Far: pair(lease.WANTiming()), Report: reportInterval, Evaluate: c.EvaluateEvery, Contact: c.ContactTimeout,
		ElectNear: elect(min(c.Tick, c.NearTick)), ElectFar: elect(c.Tick), Prepare: replica.PrepareWaitDefault, Machine: machineAllowance,
	}
}

// PlanFailover returns what happens when a node, a zone or a region fails, by this node's copy of the metadata.
func (n *Node) PlanFailover(ctx context.Context, name string) (rhumb.FailoverPlan, error) {
	m, err := n.requireMember()
	if err != nil {
		return rhumb.FailoverPlan{}, err
	}
	// The plan is for the present records. Without a metadata leader, which a person may want to plan for just then, the copy is
	// what there is.
	s, err := n.Linearize(ctx)
	if err != nil {
		s = m.group.State()
	}
	kind, nodes, err := place.FailureDomain(s, name)
	if err != nil {
		return rhumb.FailoverPlan{}, err
	}
	leader, _ := m.group.Leader()
	plan := place.PlanFailover(s, nodes, leader, failoverTimings())
	plan.Kind, plan.Name = kind, name
	return plan, nil
}

// Propose applies a command of an operator, and waits until the node's own copy of the metadata contains it.
func (n *Node) Propose(ctx context.Context, cmd catalog.Command) (catalog.Result, *catalog.State, error) {
	m, err := n.requireMember()
	if err != nil {
		return catalog.Result{}, nil, err
	}
	res, err := m.group.Propose(ctx, cmd)
	if err == nil {
		err = res.Err()
	}
	// Decided is not refused, although this node has not seen it: Unavailable would make the client ask another node again.
	if err == nil {
		err = rhumb.WrapKind("node.Propose", rhumb.Unknown, m.group.AwaitRevision(ctx, res.Revision))
	}
	return res, m.group.State(), err
}

// RecoverRange makes a range available again from the remaining copies. Writes that
// only damaged copies, or copies on lost nodes, hold.
func (n *Node) RecoverRange(ctx context.Context, cmd catalog.RecoverRange) (*rhumb.Range, error) {
	const op rhumb.Op = "node.RecoverRange"
	m, err := n.requireMember()
	if err != nil {
		return nil, err
	}
	res, err := m.group.Propose(ctx, cmd)
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	// Counted and logged as an error, although the command succeeded: acknowledged writes may be
	// lost.
	n.recovered.Inc()
	n.cfg.Logger.Error("an operator accepted the loss of data", "range", cmd.Range, "node", cmd.Node, "epoch", res.Range.Epoch, "in_sync", res.Range.InSync)
	return res.Range, nil
}
