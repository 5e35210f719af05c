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

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/node/peer"
	"github.com/rhumbdb/rhumb/node/server"
	"github.com/rhumbdb/rhumb/storage"
)

// Timeouts of a node's life.
const (
	// stopTimeout bounds how long Close waits for requests under way.
	stopTimeout = 300 * time.Millisecond
	// seekInterval is how often a node without a cluster looks for one.
	seekInterval = 200 * time.Millisecond
	// strangersPatience is how long a node that meets only nodes of another cluster waits for one of its own.
	strangersPatience = 3 * time.Second
	// twinTimeout bounds the question whether another process takes part as this node.
	twinTimeout = time.Second
	// registerTimeout bounds one attempt to register.
	registerTimeout = 3 * time.Second
)

// Node is one running node.
type Node struct {
	cfg     Config
	engine  *storage.Engine
	clock   *hlc.Clock
	gossip  *peer.Gossip
	metrics *prometheus.Registry
	started time.Time

	kv      *server.Service
	peers   *peer.Service
	servers []*grpc.Server
	admin   *http.Server
	bound   bound
	budgets budgets

	member atomic.Pointer[member] // nil before the node takes part in its cluster
	sights sights
	// recovered counts ranges whose loss an operator accepted through this node.
	recovered prometheus.Counter
	entrant   atomic.Pointer[member] // while the node registers: its copy of the metadata can be read
	obstacle  atomic.Pointer[string] // why the node is not in its cluster yet
	draining  atomic.Bool
	entering  sync.Mutex   // held while the node becomes, or ceases to be, a member
	life      storage.Life // the present life; guarded by entering
	rebirths  rebirths     // guarded by entering
	closing   sync.Once

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// bound is where a node listens.
type bound struct{ addr, heartbeat, admin string }

// Start opens the stores, listens, and begins to look for its cluster. It does not wait for it: Ready tells.
func Start(cfg Config) (*Node, error) {
	const op rhumb.Op = "node.Start"
	cfg.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, metrics: prometheus.NewRegistry(), started: time.Now(), kv: &server.Service{}, peers: &peer.Service{}, recovered: newRecovered()}
	if n.cfg.Fatal == nil {
		n.cfg.Fatal = n.exit
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if err := n.open(); err != nil {
		n.Close()
		return nil, rhumb.Wrap(op, err)
	}
	n.work.Go(n.live)
	return n, nil
}

// exit is the default end of a node that cannot go on.
func (n *Node) exit(err error) {
	n.cfg.Logger.Error("the node cannot go on and stops", "err", err)
	os.Exit(1)
}

func (n *Node) open() (err error) {
	parts, err := n.cfg.Memory()
	if err != nil {
		return err
	}
	n.budgets = newBudgets(parts)
	n.engine, err = storage.OpenEngine(n.cfg.Dirs, storage.Config{
		CacheBytes: parts.Cache, MemTableBytes: parts.MemTable, Logger: n.cfg.Logger, AcceptLost: n.cfg.AcceptLostStores,
		FatalHandler: func(msg string) { n.cfg.Fatal(rhumb.E("storage", rhumb.Internal, msg)) },
	})
	if err != nil {
		return err
	}
	ceiling, err := n.engine.HLCCeiling()
	if err != nil {
		return err
	}
	if n.clock, err = hlc.New(hlc.Config{Ceiling: ceiling, Persist: n.engine.SetHLCCeiling, Mono: hlc.Boottime, Wall: n.cfg.Wall}); err != nil {
		return err
	}
	n.work.Go(func() {
		_ = n.clock.Run(n.ctx, func(err error) { n.cfg.Logger.Warn("the clock's ceiling was not made durable", "err", err) })
	})
	n.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	n.metrics.MustRegister(n.engine.Collectors()...)
	n.metrics.MustRegister(n.budgets.collector(), n.recovered, newWithheld(n.cfg.WAN))
	if n.cfg.WAN != nil {
		n.work.Go(func() {
			n.cfg.WAN.Watch(n.ctx, func(err error) { n.cfg.Logger.Warn("the latency file stays as it was", "err", err) })
		})
	}
	ports, err := n.listen()
	if err != nil {
		return err
	}
	n.gossip, err = peer.StartGossip(peer.GossipConfig{
		Name: n.engine.Identity().Store.String(), Addr: n.cfg.GossipAddr, WAN: n.cfg.WAN, From: n.cfg.place(), Logger: n.cfg.Logger,
	}, n.label())
	if err != nil {
		ports.close()
		return err
	}
	n.serve(ports) // handlers ask gossip: whoever connected before waits until here
	return nil
}

// label is what the node says of itself in gossip.
func (n *Node) label() peer.Member {
	id := n.engine.Identity()
	return peer.Member{Cluster: id.Cluster, Node: id.Node, Boot: id.Boot, Region: n.cfg.Region, Addr: n.bound.addr}
}

// ports are what a node listens on, but for gossip.
type ports struct{ main, beats, admin net.Listener }

func (p ports) close() {
	for _, l := range []net.Listener{p.main, p.beats, p.admin} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// listen opens the four ports but gossip's.
func (n *Node) listen() (p ports, err error) {
	if p.main, err = listen("clients and peers", n.cfg.Addr); err == nil {
		p.beats, err = listen("heartbeats", n.cfg.HeartbeatAddr)
	}
	if err == nil {
		p.admin, err = listen("operators", n.cfg.AdminAddr)
	}
	if err != nil {
		p.close()
		return p, err
	}
	n.bound = bound{p.main.Addr().String(), p.beats.Addr().String(), p.admin.Addr().String()}
	return p, nil
}

// serve serves the ports that listen opened.
func (n *Node) serve(p ports) {
	options := append(api.ServerOptions(n.budgets.parts.Streams/streamsUsual), grpc.WaitForHandlers(true)) // the stores are closed after the last of them
	all, only := grpc.NewServer(append(options, server.LimitStreams(n.budgets.streams))...), grpc.NewServer(options...)
	n.kv.Register(all)
	n.peers.Register(all)
	n.peers.Register(only)
	server.NewCluster(n).Register(all)
	n.servers = []*grpc.Server{all, only}
	n.admin = &http.Server{Handler: server.AdminHandler(n, n.metrics, image{n}), ReadHeaderTimeout: 5 * time.Second}
	n.work.Go(func() { _ = all.Serve(p.main) })
	n.work.Go(func() { _ = only.Serve(p.beats) })
	n.work.Go(func() { _ = n.admin.Serve(p.admin) })
}

func listen(what, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, rhumb.Ef("node.listen", rhumb.Unavailable, "cannot listen for %s on %s: %v; is another node using the address?", what, addr, err)
	}
	return l, nil
}

// Addr, AdminAddr and GossipAddr tell where the node listens.
func (n *Node) Addr() string { return n.bound.addr }

// AdminAddr is where the node answers HTTP.
func (n *Node) AdminAddr() string { return n.bound.admin }

// GossipAddr is what other nodes give to join this one.
func (n *Node) GossipAddr() string { return n.gossip.Addr() }

// Identity tells who the node is.
func (n *Node) Identity() storage.Identity { return n.engine.Identity() }

// Live is nil while the process should be left alone.
func (n *Node) Live() error { return n.ctx.Err() }

// Ready is nil while the node should get traffic.
func (n *Node) Ready() error {
	const op rhumb.Op = "node.Ready"
	id, m := n.engine.Identity(), n.member.Load()
	switch {
	case n.ctx.Err() != nil:
		return rhumb.E(op, rhumb.Unavailable, "the node is stopping")
	case n.draining.Load():
		return rhumb.E(op, rhumb.Unavailable, "the node is draining")
	case id.Cluster.IsZero() && len(n.cfg.Join) == 0:
		return rhumb.E(op, rhumb.Unavailable, "the node belongs to no cluster; run rhumb init on one node, or start it with --join")
	case id.Cluster.IsZero():
		return rhumb.Ef(op, rhumb.Unavailable, "the node waits to join a cluster through %s: %s", strings.Join(n.cfg.Join, ", "), n.hindrance())
	case m == nil:
		return rhumb.Ef(op, rhumb.Unavailable, "node %s is joining its cluster, %s: %s", id.Node, id.Cluster, n.hindrance())
	}
	if d, ok := m.group.State().Node(m.self.Node); ok && d.State == rhumb.NodeDraining {
		return rhumb.E(op, rhumb.Unavailable, "the node is draining; rhumb node drain --undo lets it take part again")
	}
	return nil
}

// hindrance returns why the node is not in its cluster yet.
func (n *Node) hindrance() string {
	if why := n.obstacle.Load(); why != nil {
		return *why
	}
	return "it has only begun"
}

// hinder keeps why the node is not in its cluster yet, and logs it once.
func (n *Node) hinder(why string) {
	if old := n.obstacle.Swap(&why); old == nil || *old != why {
		n.cfg.Logger.Warn("the node is not in its cluster yet; trying on", "why", why)
	}
}

// present returns the member that the node is or is becoming; nil when it is neither. Of a member that the node is becoming,
// only the copy of the metadata may be read.
func (n *Node) present() *member {
	if m := n.member.Load(); m != nil {
		return m
	}
	return n.entrant.Load()
}

// AwaitReady waits until Ready is nil.
func (n *Node) AwaitReady(ctx context.Context) error {
	for n.Ready() != nil {
		select {
		case <-ctx.Done():
			return rhumb.Wrap("node.AwaitReady", n.Ready())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// Drain gives up all primaries that other nodes can take and the lead of the metadata group, for at most
// Config.DrainTimeout. The node still answers; /readyz says that it should not be asked.
func (n *Node) Drain(ctx context.Context) error {
	n.draining.Store(true)
	m := n.member.Load()
	if m == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DrainTimeout)
	defer cancel()
	left, err := m.admin.Drain(ctx, m.self.Node, false)
	if left > 0 {
		n.cfg.Logger.Warn("drained, but no other node can take all primaries", "left", left)
	}
	return errors.Join(err, m.group.StepAside(ctx))
}

// Close stops the node. What was acknowledged is on disk. A second Close does nothing.
func (n *Node) Close() { n.closing.Do(n.close) }

func (n *Node) close() {
	n.cancel()
	if n.gossip != nil {
		_ = n.gossip.Close()
	}
	n.stopServers()
	n.entering.Lock()
	if m := n.member.Swap(nil); m != nil {
		m.close()
	}
	n.entering.Unlock()
	n.work.Wait()
	if n.engine != nil {
		_ = n.engine.Close()
	}
}

// stopServers lets requests under way finish for a while. What takes longer is broken off, and for RPCs it waits until they
// have noticed.
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
	for _, s := range n.servers {
		wait.Go(func() {
			late := time.AfterFunc(stopTimeout, s.Stop)
			defer late.Stop()
			s.GracefulStop()
		})
	}
	wait.Wait()
}
