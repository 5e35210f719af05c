package node

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"
	"google.golang.org/grpc/tap"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/node/gate"
	"github.com/rhumbdb/rhumb/node/peer"
	"github.com/rhumbdb/rhumb/node/server"
	"github.com/rhumbdb/rhumb/storage"
)

// Timeouts of a node's life.
const (
	// stopTimeout bounds the time that Close waits for requests in progress.
	stopTimeout = 300 * time.Millisecond
	// seekInterval is the interval at which a node without a cluster looks for one.
	seekInterval = 200 * time.Millisecond
	// strangersPatience is the time that a node waits for members of its own cluster while it meets
	// only nodes of another one. Gossip may hear of the others first.
	strangersPatience = 3 * time.Second
	// founderPatience is the time for which a founder looks for its cluster before it creates it.
	founderPatience = 3 * time.Second
	// twinTimeout bounds the question whether another process acts as this node.
	twinTimeout = time.Second
	// adminIdle is how long an HTTP connection of an operator's tool may be idle.
	adminIdle = 2 * time.Minute
	// registerTimeout bounds one attempt to register.
	registerTimeout = 3 * time.Second
	// catchUpMax bounds the wait for the own copy of the metadata before a registration. The wait ends after
	// catchUpStall without progress. catchUpAsks nodes are asked how far the metadata is.
	catchUpMax   = 5 * time.Minute
	catchUpStall = 3 * time.Second
	catchUpAsks  = 4
	// currentWait bounds the wait of a request for current metadata, and currentPoll is the interval of the looks at it.
	currentWait = 2 * time.Second
	currentPoll = 20 * time.Millisecond
)

// Node is a running node. Fields that change are atomic or guarded by entering.
type Node struct {
	cfg     Config
	engine  *storage.Engine
	clock   *hlc.Clock
	gossip  *peer.Gossip
	metrics *prometheus.Registry
	started time.Time
	phases  *phases // of the start of this process

	kv      *server.Service
	peers   *peer.Service
	servers []*grpc.Server
	admin   *http.Server
	// source holds the certificate of the node and its open connections; nil with Config.Insecure.
	source *identity.Source
	// bound holds the addresses that the node listens on, outside those that others connect to.
	bound, outside bound
	budgets        budgets
	guard          guard
	// imageGroup is the number of the group of Config.Snapshot, 0 for none.
	imageGroup int

	// member is nil before the node takes part in its cluster.
	member atomic.Pointer[member]
	sights sights
	// answer holds the result of the last question for the clocks of other nodes.
	answer clockAnswer
	// callers are nodes that contacted this one before it had a cluster.
	callers callers
	// recovered counts ranges whose data loss an operator accepted through this node.
	recovered prometheus.Counter
	// unsigned counts registrations that their node did not sign, or not recently.
	unsigned prometheus.Counter
	// denied counts calls for which their callers lacked an identity or a right.
	denied *prometheus.CounterVec
	// authorizer decides which calls their callers may make, and clientLinks serves the links of clients.
	authorizer  *server.Authorizer
	clientLinks clientLinks
	// entrant is the member that registers; only its copy of the metadata may be used.
	entrant atomic.Pointer[member]
	// obstacle is the reason why the node is not in its cluster yet.
	obstacle atomic.Pointer[string]
	draining atomic.Bool
	// entering is held while the node becomes a member or ceases to be one, so that Init, the
	// search for a cluster, a new life and Close exclude each other.
	entering sync.Mutex
	life     storage.Life // the current life; guarded by entering
	rebirths rebirths     // guarded by entering
	closing  sync.Once

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// bound holds the addresses that a node listens on.
type bound struct{ addr, heartbeat, admin string }

// Start opens the stores, listens, and starts to look for the cluster. It does not wait until the
// node is in its cluster; AwaitReady does.
func Start(cfg Config) (*Node, error) {
	const op rhumb.Op = "node.Start"
	cfg.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, metrics: prometheus.NewRegistry(), started: time.Now(), kv: &server.Service{}, peers: &peer.Service{}, recovered: newRecovered(), unsigned: newUnsigned(), denied: server.NewDenied()}
	n.phases = newPhases(n.started)
	n.authorizer = &server.Authorizer{State: n.State, Current: n.awaitCurrent, Denied: n.denied}
	// SetDefaults cannot set Fatal, because its default logs through n.
	if n.cfg.Fatal == nil {
		n.cfg.Fatal = n.exitProcess
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if err := n.openNode(); err != nil {
		n.Close()
		return nil, rhumb.Wrap(op, err)
	}
	n.work.Go(n.findCluster)
	return n, nil
}

// exitProcess is the default of Config.Fatal.
func (n *Node) exitProcess(err error) {
	n.cfg.Logger.Error("the node cannot continue and stops", "err", err)
	os.Exit(exitStatus(err))
}

// ExitNoRestart is the exit status of a node that fails in the same way each time it is started, for example after it was removed from the
// cluster. Service managers do not start it again (deploy/systemd). It is the status of wrong usage (docs/cli.md#exit-codes).
const ExitNoRestart = 2

// exitStatus returns the exit status of a node that stops with an error.
func exitStatus(err error) int {
	if rhumb.KindOf(err) == rhumb.InvalidArgument {
		return ExitNoRestart
	}
	return 1
}

// openNode opens the stores, the clock, the ports and gossip. After an error the caller calls
// Close, which closes the opened parts.
func (n *Node) openNode() (err error) {
	// Before anything is opened: a misspelled group has to show at the start.
	if n.imageGroup, err = groupNumber(n.cfg.Snapshot.Group); err != nil {
		return err
	}
	parts, err := n.cfg.Memory()
	if err != nil {
		return err
	}
	n.budgets = newBudgets(parts)
	if err := n.openIdentity(); err != nil {
		return err
	}
	stores := int64(max(len(n.cfg.Dirs), 1))
	n.engine, err = storage.OpenEngine(n.cfg.Dirs, storage.Config{
		CacheBytes: parts.Cache, MemTableBytes: parts.MemTable, NamesBytes: parts.Names / stores, RowsBytes: parts.Rows / stores,
		Logger: n.cfg.Logger, AcceptLost: n.cfg.AcceptLostStores, ReadFaults: n.cfg.ReadFaults, OwnLog: n.cfg.NodeLog,
		FatalHandler: func(msg string) { n.cfg.Fatal(rhumb.E("storage", rhumb.Internal, msg)) },
	})
	if err != nil {
		return err
	}
	opening := n.engine.Opening()
	n.phases.add("check", opening.Check)
	n.phases.add("replay", opening.Replay)
	n.phases.add("load", opening.Load)
	// The clock starts above the ceiling on disk: every timestamp of earlier lives is below it.
	ceiling, err := n.engine.HLCCeiling()
	if err != nil {
		return err
	}
	if n.clock, err = hlc.New(hlc.Config{Ceiling: ceiling, Persist: n.engine.SetHLCCeiling, Mono: hlc.Boottime, Wall: n.cfg.Wall}); err != nil {
		return err
	}
	n.work.Go(func() {
		_ = n.clock.Run(n.ctx, func(err error) { n.cfg.Logger.Warn("cannot store the clock ceiling", "err", err) })
	})
	n.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	n.metrics.MustRegister(n.engine.Collectors()...)
	n.metrics.MustRegister(n.cfg.Collectors...)
	n.metrics.MustRegister(n.budgets.newCollector(), n.recovered, n.unsigned, n.denied, n.phases.gauge, newWithheld(n.cfg.WAN))
	if n.cfg.WAN != nil {
		n.work.Go(func() {
			n.cfg.WAN.Watch(n.ctx, func(err error) {
				n.cfg.Logger.Warn("cannot reload the latency file; its former content remains in effect", "err", err)
			})
		})
	}
	// The ports are opened before gossip starts, because gossip announces their addresses: with
	// port 0 the addresses are known only now.
	if err := n.checkIdentity(); err != nil {
		return err
	}
	if err := n.openGuard(); err != nil {
		return err
	}
	ports, err := n.openPorts()
	if err != nil {
		return err
	}
	n.gossip, err = peer.StartGossip(peer.GossipConfig{
		Name: n.engine.Identity().Store.String(), Addr: n.cfg.GossipAddr, Advertise: n.gossipAdvertised(), WAN: n.cfg.WAN, From: n.cfg.wanPlace(), Logger: n.cfg.Logger,
		Encrypted: !n.cfg.Insecure, IsNode: n.isNodeAddr,
	}, n.gossipLabel())
	if err != nil {
		ports.close()
		return err
	}
	n.metrics.MustRegister(n.gossip.Collectors()...)
	// Handlers use gossip. A client that connects earlier waits until here.
	n.servePorts(ports)
	n.phases.end("ports", opening.Check, opening.Replay, opening.Load)
	return nil
}

// gossipLabel returns the label that gossip spreads about this node.
func (n *Node) gossipLabel() peer.Member {
	id := n.engine.Identity()
	return peer.Member{Cluster: id.Cluster, Node: id.Node, Boot: id.Boot, Region: n.cfg.Region, Addr: n.outside.addr}
}

// ports holds the listeners of a node, except that of gossip.
type ports struct{ main, beats, admin net.Listener }

func (p ports) close() {
	for _, l := range []net.Listener{p.main, p.beats, p.admin} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// openPorts opens all ports except that of gossip.
func (n *Node) openPorts() (p ports, err error) {
	if p.main, err = listenOn("clients and peers", n.cfg.Addr); err == nil {
		p.beats, err = listenOn("heartbeats", n.cfg.HeartbeatAddr)
	}
	if err == nil {
		p.admin, err = listenOn("operators", n.cfg.AdminAddr)
	}
	if err != nil {
		p.close()
		return p, err
	}
	n.bound = bound{p.main.Addr().String(), p.beats.Addr().String(), p.admin.Addr().String()}
	hosts, err := parseAdvertise(n.cfg.Advertise)
	if err != nil {
		p.close()
		return p, err
	}
	n.outside = bound{advertise(hosts, "main", n.bound.addr), advertise(hosts, "heartbeat", n.bound.heartbeat), advertise(hosts, "admin", n.bound.admin)}
	return p, nil
}

// servePorts serves the ports that openPorts opened.
func (n *Node) servePorts(p ports) {
	// With WaitForHandlers, Stop returns after the last handler: Close then closes the stores,
	// which handlers use.
	g := &n.guard
	g.main, g.beats, g.admin = n.newGate("main", p.main), n.newGate("heartbeat", p.beats), n.newGate("admin", p.admin)
	options := func(want identity.Want, tap tap.ServerInHandle, links ...link.Kind) []grpc.ServerOption {
		options := append(api.ServerOptions(n.budgets.parts.Streams/streamsUsual, n.serverCredentials(want, links)), grpc.WaitForHandlers(true),
			// The principal first: the rights are checked against it. Handlers run only if both have let the call in.
			grpc.InTapHandle(tap), grpc.ChainStreamInterceptor(g.sessions.Stream),
			grpc.ChainUnaryInterceptor(server.AuditRefusals(g.sessions.RecordFailure)))
		options = append(options, n.authorizer.Options()...)
		return append(options, grpc.ChainUnaryInterceptor(server.Audit(n.admitAdministration, n.record)))
	}
	n.clientLinks.n, n.clientLinks.tap = n, g.sessions.Tap(g.main, server.LimitStreams(n.budgets.streams))
	all := grpc.NewServer(options(wantClient, n.clientLinks.tap, n.peers.Links(), n.clientLinks.kind())...)
	only := grpc.NewServer(options(wantNode, g.sessions.Tap(g.beats, nil), n.peers.Links())...)
	// The main port serves peers as well, because replication, Raft and requests of peers arrive
	// there. The other server is for heartbeats. Both offer the whole service: which stream a peer
	// opens where is the choice of the peer.
	n.kv.Register(all)
	n.peers.Register(all)
	n.peers.Register(only)
	g.sessions.Register(all)
	server.NewCluster(n).Register(all)
	server.NewSecurity(n).Register(all)
	server.NewOperations(n).Register(all)
	server.NewAccess(n).Register(all)
	n.servers = []*grpc.Server{all, only}
	n.admin = &http.Server{
		Handler: server.AdminHandler(n, n.metrics, image{n}, callersHTTP{n}), ConnContext: identity.HTTPContext, ErrorLog: n.errorLog(),
		ReadHeaderTimeout: gate.HandshakeTimeout, IdleTimeout: adminIdle, MaxHeaderBytes: api.HeaderBytesMax,
	}
	n.work.Go(func() { _ = all.Serve(g.main) })
	n.work.Go(func() { _ = only.Serve(g.beats) })
	n.work.Go(func() { _ = n.admin.Serve(n.listenAdmin(g.admin)) })
}

// listenOn opens one port. The purpose appears in the error.
func listenOn(what, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, rhumb.Ef("node.listen", rhumb.Unavailable, "cannot listen on %s for %s: %v; check whether another node uses the address", addr, what, err)
	}
	return l, nil
}

// Addr returns the address for clients and peers, which other nodes pass to Config.Join.
func (n *Node) Addr() string { return n.bound.addr }

// AdminAddr returns the address for HTTP requests of operators.
func (n *Node) AdminAddr() string { return n.bound.admin }

// GossipAddr returns the address on which the node gossips.
func (n *Node) GossipAddr() string { return n.gossip.Addr() }

// Identity returns the identity of the node.
func (n *Node) Identity() storage.Identity { return n.engine.Identity() }

// Live returns nil unless the process should be restarted.
func (n *Node) Live() error { return n.ctx.Err() }

// Ready returns nil if the node should receive traffic, and otherwise the reason.
func (n *Node) Ready() error {
	const op rhumb.Op = "node.Ready"
	// The first reason that applies is returned: a node that stops or drains is not ready whatever
	// else holds.
	id, m := n.engine.Identity(), n.member.Load()
	switch {
	case n.ctx.Err() != nil:
		return rhumb.E(op, rhumb.Unavailable, "the node is stopping")
	case n.draining.Load():
		return rhumb.E(op, rhumb.Unavailable, "the node is draining")
	case id.Cluster.IsZero() && len(n.cfg.Join) == 0:
		return rhumb.E(op, rhumb.Unavailable, "the node belongs to no cluster; name nodes of its cluster with --join, or, if there is no cluster: "+n.beginning())
	case id.Cluster.IsZero():
		return rhumb.Ef(op, rhumb.Unavailable, "the node is waiting to join a cluster through %s: %s", strings.Join(n.cfg.Join, ", "), n.obstacleText())
	case m == nil:
		return rhumb.Ef(op, rhumb.Unavailable, "node %s is joining its cluster, %s: %s", id.Node, id.Cluster, n.obstacleText())
	}
	// An operator may drain this node through another node. Then only the catalog knows.
	if d, ok := m.group.State().Node(m.self.Node); ok && d.State == rhumb.NodeDraining {
		return rhumb.E(op, rhumb.Unavailable, "the node is draining; rhumb node drain --undo lets it take part again")
	}
	if n.source != nil {
		if err := n.source.OwnFault(); err != nil {
			return rhumb.Ef(op, rhumb.Unavailable, "other nodes refuse the certificate of this node: %s", rhumb.Message(err))
		}
	}
	if missed := m.reachesNobody(); missed > 0 {
		return rhumb.Ef(op, rhumb.Unavailable, "the node reaches none of the %d other nodes; it may be cut off, or they refuse its certificate", missed)
	}
	return nil
}

// obstacleText returns the reason why the node is not in its cluster yet.
func (n *Node) obstacleText() string {
	if why := n.obstacle.Load(); why != nil {
		return *why
	}
	return "it has just started"
}

// setObstacle records the reason why the node is not in its cluster yet, and logs it if it changed:
// the node retries several times per second.
func (n *Node) setObstacle(why string) {
	if old := n.obstacle.Swap(&why); old == nil || *old != why {
		n.cfg.Logger.Warn("the node is not in its cluster yet; it keeps trying", "why", why)
	}
}

// currentMember returns the member that the node is or is becoming, or nil. If the node is still
// becoming the member, only the copy of the metadata may be used.
func (n *Node) currentMember() *member {
	if m := n.member.Load(); m != nil {
		return m
	}
	if m := n.entrant.Load(); m != nil {
		return m
	}
	// It may have become the member between the two loads.
	return n.member.Load()
}

// isCurrent reports whether the node's copy of the metadata has everything that was decided before this life was registered. Before
// that, the copy is as old as the end of the former life.
func (n *Node) isCurrent() bool { return n.member.Load() != nil }

// awaitCurrent waits until isCurrent, for currentWait at most, and reports whether it is.
func (n *Node) awaitCurrent(ctx context.Context) bool {
	// Polled, because only requests that come early wait at all.
	for end := time.Now().Add(currentWait); !n.isCurrent(); {
		select {
		case <-ctx.Done():
			return false
		case <-n.ctx.Done():
			return false
		case <-time.After(currentPoll):
		}
		if time.Now().After(end) {
			return n.isCurrent()
		}
	}
	return true
}

// AwaitReady waits until Ready returns nil.
func (n *Node) AwaitReady(ctx context.Context) error {
	// Polled, because readiness depends on several things that change without a signal.
	for n.Ready() != nil {
		select {
		case <-ctx.Done():
			return rhumb.Wrap("node.AwaitReady", n.Ready())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// Drain moves all primaries that other nodes can take, and the lead of the metadata group, for at
// most Config.DrainTimeout. The node still answers requests; /readyz reports that it should not
// receive them.
func (n *Node) Drain(ctx context.Context) error {
	// Set before primaries move, so that /readyz keeps new clients away from the beginning.
	n.draining.Store(true)
	m := n.member.Load()
	if m == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DrainTimeout)
	defer cancel()
	left, err := m.admin.Drain(ctx, m.self.Node, false)
	if left > 0 {
		n.cfg.Logger.Warn("drained, but no other node can take some of the primaries", "left", left)
	}
	// The lead of the metadata group moves even if some primaries cannot.
	return errors.Join(err, m.group.StepAside(ctx))
}

// Close stops the node. Acknowledged writes are on disk. A second Close does nothing.
func (n *Node) Close() { n.closing.Do(n.close) }

// close stops the parts in the reverse order of their dependencies: nothing arrives after the
// servers have stopped, the member stops before the stores that it uses, and the stores close last.
func (n *Node) close() {
	// Cancelled first: searches, watches and retries hold entering or belong to n.work.
	n.cancel()
	if n.gossip != nil {
		_ = n.gossip.Close()
	}
	n.stopServers()
	// A start, an Init or a new life in progress holds entering. Each of them ends soon, because
	// the context is cancelled, and none begins after this.
	n.entering.Lock()
	if m := n.member.Swap(nil); m != nil {
		m.close()
	}
	n.entering.Unlock()
	n.work.Wait()
	n.closeGuard()
	if n.source != nil {
		n.source.Close()
	}
	if n.engine != nil {
		_ = n.engine.Close()
	}
}

// stopServers waits stopTimeout for requests in progress and then cancels them. It returns
// once all handlers of RPCs have returned.
func (n *Node) stopServers() {
	var wait sync.WaitGroup
	if n.admin != nil {
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
			defer cancel()
			if n.admin.Shutdown(ctx) != nil {
				_ = n.admin.Close()
			}
		})
	}
	wait.Go(n.peers.Close)
	wait.Go(n.clientLinks.close)
	for _, s := range n.servers {
		// Stop cancels the handlers that GracefulStop waits for; GracefulStop then returns.
		wait.Go(func() {
			late := time.AfterFunc(stopTimeout, s.Stop)
			defer late.Stop()
			s.GracefulStop()
		})
	}
	wait.Wait()
}
