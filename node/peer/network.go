package peer

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/memory"
	"github.com/rhumbdb/rhumb/node/replica"
)

// Bounds of a connection to one peer.
const (
	// queueBytesDefault and frameBytesDefault are Config.QueueBytesMax and FrameBytesMax where nothing is said.
	queueBytesDefault = 16 << 20
	frameBytesDefault = 4 << 20
	// heartbeatsMax bounds the heartbeats that wait; more are stale and dropped.
	heartbeatsMax = 8
	// raftQueueMax bounds the metadata messages that wait.
	raftQueueMax = 4_096
	// redialMin and redialMax bound the pause before a stream that broke is opened again.
	redialMin = 50 * time.Millisecond
	redialMax = 400 * time.Millisecond
)

// Handler takes what other nodes send. Its methods are called from many goroutines and, but for the requests with a
// context, must not block.
type Handler interface {
	// Verify refuses a node that is not of this cluster's catalog in that life.
	Verify(id rhumb.NodeIdentity) error
	Replication(from rhumb.NodeID, msgs []replica.Message)
	Heartbeat(from rhumb.NodeIdentity, f *lease.Frame)
	// Load tells how loaded another node is; it comes with heartbeats.
	Load(from rhumb.NodeID, load NodeLoad)
	// Connected tells that replication messages to a peer get through from now on, or do not.
	Connected(n rhumb.NodeID, connected bool)
	Raft(from rhumb.NodeID, group uint32, msgs [][]byte)
	// Metadata answers a request of the metadata group.
	Metadata(ctx context.Context, from rhumb.NodeID, group uint32, request []byte) ([]byte, error)
	// DescribeReplica tells how this node's replica of a range stands.
	DescribeReplica(ctx context.Context, id rhumb.RangeID) (*rhumbpb.DescribeReplicaResponse, error)
	// DiscardReplica drops this node's damaged copy of a range.
	DiscardReplica(ctx context.Context, id rhumb.RangeID, acceptLoss bool) error
	// Forward answers a client's request that another node passed on.
	Forward(ctx context.Context, q *rhumbpb.Request) *rhumbpb.Response
}

// Config is what a network needs.
type Config struct {
	Cluster rhumb.ClusterID
	// Self gives the identity of this node; a new life in place changes it.
	Self func() rhumb.NodeIdentity
	// Load gives what this node tells another of its own load with each heartbeat, and tell false when that is nothing. It
	// must not block. Nil tells nothing.
	Load func(to rhumb.NodeID) (load NodeLoad, tell bool)
	// Via returns the node by way of which messages of the metadata group reach another one that is out of contact, and ok false
	// when they are to go there directly. It must not block. Nil is always directly.
	Via func(to rhumb.NodeID) (via rhumb.NodeID, ok bool)
	// Dial opens connections; nil is the plain dialer.
	Dial api.DialFunc
	// QueueBytesMax bounds the replication messages that wait for the network, for each peer; default 16 MiB. Their entries
	// are those that the replicas hold, so they take little memory of their own. Queued counts them for all peers.
	QueueBytesMax int
	Queued        *memory.Budget
	// FrameBytesMax bounds the messages that are gathered into one frame; a larger message travels alone. A frame under way
	// takes about three times its size. Default 4 MiB.
	FrameBytesMax int
	Handler       Handler
	Logger        *slog.Logger
}

// Network is this node's connections to all others.
type Network struct {
	cfg Config
	m   networkMetrics

	mu    sync.RWMutex // guards the two below
	peers map[rhumb.NodeID]*peer
	// ended tells, for nodes that are peers no more, when the Handler has heard of it.
	ended map[rhumb.NodeID]<-chan struct{}

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

type networkMetrics struct {
	dropped *prometheus.CounterVec
	redials prometheus.Counter
	silent  prometheus.Counter
	relayed prometheus.Counter
	sent    prometheus.Counter
	frames  prometheus.Counter
}

// NewNetwork makes a network without peers.
func NewNetwork(cfg Config) *Network {
	cfg.QueueBytesMax = cmp.Or(cfg.QueueBytesMax, queueBytesDefault)
	cfg.FrameBytesMax = cmp.Or(cfg.FrameBytesMax, frameBytesDefault)
	ctx, cancel := context.WithCancel(context.Background())
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "rhumb", Subsystem: "peer", Name: name, Help: help})
	}
	n := &Network{
		cfg: cfg, peers: map[rhumb.NodeID]*peer{}, ended: map[rhumb.NodeID]<-chan struct{}{}, ctx: ctx, cancel: cancel,
		m: networkMetrics{
			dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
				Namespace: "rhumb", Subsystem: "peer", Name: "dropped_total", Help: "Messages dropped because a peer's queue was full.",
			}, []string{"traffic"}),
			relayed: counter("relayed_total", "Frames and requests of the metadata group passed on between two nodes that are out of contact."),
			silent:  counter("silent_total", "Connections to peers that were given up because no answer came; they are made anew."),
			redials: counter("redials_total", "Streams to peers that broke and were opened again."),
			sent:    counter("messages_total", "Replication messages sent."),
			frames:  counter("frames_total", "Frames in which replication messages were sent."),
		},
	}
	for _, traffic := range []string{"replication", "heartbeat", "raft"} { // so that they stand at 0 from the start
		n.m.dropped.WithLabelValues(traffic)
	}
	return n
}

// Collectors gives the network's metrics for registration.
func (n *Network) Collectors() []prometheus.Collector {
	return []prometheus.Collector{n.m.dropped, n.m.redials, n.m.silent, n.m.relayed, n.m.sent, n.m.frames}
}

// SetPeers says which other nodes there are. A node whose addresses or life changed is connected to anew.
func (n *Network) SetPeers(nodes []*rhumb.Node) {
	self := n.cfg.Self().Node
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		return
	}
	keep := map[rhumb.NodeID]bool{}
	for _, d := range nodes {
		if d.ID == self {
			continue
		}
		keep[d.ID] = true
		old := n.peers[d.ID]
		if old != nil && old.addr == d.Addr && old.heartbeatAddr == d.HeartbeatAddr && old.boot == d.Boot {
			continue
		}
		n.replaceLocked(d.ID, d)
	}
	for id := range n.peers {
		if !keep[id] {
			n.replaceLocked(id, nil)
		}
	}
}

// replaceLocked ends the connections to a node and, with d, opens others. The Handler hears of the end of the old before
// the beginning of the new.
func (n *Network) replaceLocked(id rhumb.NodeID, d *rhumb.Node) {
	before := n.ended[id]
	if old := n.peers[id]; old != nil {
		old.cancel()
		before = old.ended
		delete(n.peers, id)
	}
	if d != nil {
		n.peers[id] = n.newPeer(d, before)
		return
	}
	n.ended[id] = before
}

// Close ends all connections.
func (n *Network) Close() {
	n.mu.Lock()
	n.cancel()
	n.mu.Unlock()
	n.work.Wait()
}

func (n *Network) peer(id rhumb.NodeID) (*peer, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	p, ok := n.peers[id]
	return p, ok
}

// Send hands over replication messages for one peer. What does not fit into its queue is dropped.
func (n *Network) Send(to rhumb.NodeID, msgs []replica.Message) {
	p, ok := n.peer(to)
	if !ok || !p.replication.add(msgs) {
		n.m.dropped.WithLabelValues("replication").Add(float64(len(msgs)))
	}
}

// SendHeartbeat sends a lease frame ahead of everything else.
func (n *Network) SendHeartbeat(to rhumb.NodeID, f *lease.Frame) {
	p, ok := n.peer(to)
	if !ok {
		return
	}
	select {
	case p.heartbeats <- f:
	default:
		n.m.dropped.WithLabelValues("heartbeat").Inc()
	}
}

// SendRaft sends messages of the metadata group.
func (n *Network) SendRaft(to rhumb.NodeID, group uint32, msgs [][]byte) {
	f := &rhumbpb.RaftFrame{Group: group, Messages: msgs}
	if via, ok := n.via(to); ok {
		f.To, to = uint32(to), via
	}
	n.queueRaft(to, f)
}

func (n *Network) queueRaft(to rhumb.NodeID, f *rhumbpb.RaftFrame) {
	p, ok := n.peer(to)
	if !ok {
		return
	}
	select {
	case p.raft <- f:
	default:
		n.m.dropped.WithLabelValues("raft").Add(float64(len(f.Messages)))
	}
}

// Metadata hands a request of the metadata group to one of its members. An error of kind Unavailable says that it was
// certainly not handled.
func (n *Network) Metadata(ctx context.Context, to rhumb.NodeID, group uint32, request []byte) ([]byte, error) {
	const op rhumb.Op = "peer.Network.Metadata"
	resp := new(rhumbpb.MetadataResponse)
	q := &rhumbpb.MetadataRequest{Hello: n.hello(), Group: group, Request: request}
	if via, ok := n.via(to); ok {
		q.To, to = uint32(to), via
	}
	err := n.call(ctx, op, to, rhumbpb.Peer_Metadata_FullMethodName, q, resp)
	if err != nil {
		return nil, err
	}
	return resp.Response, nil
}

// Forward passes a client's request on to another node. An error of kind Unavailable means that it was certainly not
// received, Unknown that nobody knows.
func (n *Network) Forward(ctx context.Context, to rhumb.NodeID, q *rhumbpb.Request) (*rhumbpb.Response, error) {
	const op rhumb.Op = "peer.Network.Forward"
	resp := new(rhumbpb.Response)
	if err := n.call(ctx, op, to, rhumbpb.Peer_Forward_FullMethodName, q, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// DescribeReplica asks another node how its replica of a range stands.
func (n *Network) DescribeReplica(ctx context.Context, to rhumb.NodeID, id rhumb.RangeID) (*rhumbpb.DescribeReplicaResponse, error) {
	const op rhumb.Op = "peer.Network.DescribeReplica"
	resp := new(rhumbpb.DescribeReplicaResponse)
	if err := n.call(ctx, op, to, rhumbpb.Peer_DescribeReplica_FullMethodName, &rhumbpb.DescribeReplicaRequest{Range: api.EncodeRangeID(id)}, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// DiscardReplica makes another node drop its damaged copy of a range.
func (n *Network) DiscardReplica(ctx context.Context, to rhumb.NodeID, q *rhumbpb.DiscardReplicaRequest) error {
	const op rhumb.Op = "peer.Network.DiscardReplica"
	return n.call(ctx, op, to, rhumbpb.Peer_DiscardReplica_FullMethodName, q, new(rhumbpb.DiscardReplicaResponse))
}

func (n *Network) hello() *rhumbpb.PeerHello {
	return &rhumbpb.PeerHello{Protocol: api.Protocol, Cluster: n.cfg.Cluster[:], Identity: api.EncodeIdentity(n.cfg.Self())}
}

// fromStatus reads the error of a call to another node. A node that answered knows; when only the transport failed, what
// became of the request is not known.
func fromStatus(op rhumb.Op, to rhumb.NodeID, err error) error {
	if err == nil {
		return nil
	}
	e, _, remote := api.FromStatus(op, err)
	if remote {
		return e
	}
	return &rhumb.Error{Op: op, Kind: rhumb.Unknown, Node: to, Msg: "the connection failed", Err: err}
}

// peer is the connections to one other node.
type peer struct {
	n                   *Network
	id                  rhumb.NodeID
	boot                rhumb.BootSeq
	addr, heartbeatAddr string
	conn                *api.Conn // replication, raft and requests
	beatConn            *api.Conn // heartbeats only

	replication *queue
	heartbeats  chan *lease.Frame
	raft        chan *rhumbpb.RaftFrame

	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{} // closed when the Handler hears no more of this peer
}

// newPeer connects to a node once the Handler hears no more of the connections before.
func (n *Network) newPeer(d *rhumb.Node, before <-chan struct{}) *peer {
	p := &peer{
		n: n, id: d.ID, boot: d.Boot, addr: d.Addr, heartbeatAddr: d.HeartbeatAddr,
		replication: newQueue(n.cfg.QueueBytesMax, n.cfg.Queued), heartbeats: make(chan *lease.Frame, heartbeatsMax), raft: make(chan *rhumbpb.RaftFrame, raftQueueMax),
		ended: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(n.ctx)
	var err1, err2 error
	p.conn, err1 = api.NewConn(d.Addr, n.cfg.Dial)
	p.beatConn, err2 = api.NewConn(d.HeartbeatAddr, n.cfg.Dial)
	if err1 != nil || err2 != nil { // only an address that does not parse, which the catalog refuses
		n.cfg.Logger.Error("cannot make a connection", "node", d.ID, "addr", d.Addr, "err", err1, "heartbeat_err", err2)
		close(p.ended)
		return p
	}
	n.work.Go(func() {
		defer close(p.ended)
		if before != nil {
			<-before
		}
		p.keep(p.replicate)
	})
	n.work.Go(func() { p.keep(p.beat) })
	n.work.Go(func() { p.keep(p.sendRaft) })
	for _, c := range []*api.Conn{p.conn, p.beatConn} {
		n.work.Go(func() {
			c.Watch(p.ctx, func() bool { return true }, n.m.silent.Inc)
			c.Close()
		})
	}
	n.work.Go(func() {
		<-p.ctx.Done()
		p.replication.clear()
	})
	return p
}

// keep runs a stream for as long as the peer is wanted, opening it again after a growing pause when it breaks.
func (p *peer) keep(stream func(ctx context.Context) error) {
	pause := redialMin
	for p.ctx.Err() == nil {
		ctx, cancel := context.WithCancel(p.ctx)
		start := time.Now()
		err := stream(ctx)
		cancel()
		if p.ctx.Err() != nil {
			return
		}
		p.n.m.redials.Inc()
		p.n.cfg.Logger.Debug("stream to peer ended", "node", p.id, "err", err)
		if time.Since(start) > redialMax {
			pause = redialMin
		}
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, redialMax)
	}
}

// replicate sends what waits in the replication queue until the stream breaks.
func (p *peer) replicate(ctx context.Context) error {
	s, err := rhumbpb.NewPeerClient(p.conn.Client()).Replicate(ctx)
	if err != nil {
		return err
	}
	if err := s.Send(&rhumbpb.ReplicaFrame{Hello: p.n.hello()}); err != nil {
		return err
	}
	if _, err := s.Recv(); err != nil { // the answerer's hello: it has verified ours
		return err
	}
	ended := make(chan error, 1)
	p.n.work.Go(func() {
		_, err := s.Recv() // nothing more comes but the end
		ended <- err
	})
	p.replication.clear()
	p.n.cfg.Handler.Connected(p.id, true)
	defer p.n.cfg.Handler.Connected(p.id, false)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return err
		case <-p.replication.wake:
		}
		for msgs := p.replication.take(p.n.cfg.FrameBytesMax); len(msgs) > 0; msgs = p.replication.take(p.n.cfg.FrameBytesMax) {
			f := &rhumbpb.ReplicaFrame{Messages: make([]*rhumbpb.ReplicaMessage, len(msgs))}
			for i := range msgs {
				f.Messages[i] = messageToPB(&msgs[i])
			}
			p.n.m.frames.Inc()
			p.n.m.sent.Add(float64(len(msgs)))
			if err := s.Send(f); err != nil {
				return err
			}
		}
	}
}

// beat sends heartbeats until the stream breaks. Those that waited while there was no stream are stale and dropped.
func (p *peer) beat(ctx context.Context) error {
	s, err := rhumbpb.NewPeerClient(p.beatConn.Client()).Heartbeat(ctx)
	if err != nil {
		return err
	}
	if err := s.Send(&rhumbpb.HeartbeatFrame{Hello: p.n.hello()}); err != nil {
		return err
	}
	if _, err := s.Recv(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	p.n.work.Go(func() {
		_, err := s.Recv()
		ended <- err
	})
	for len(p.heartbeats) > 0 {
		<-p.heartbeats
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return err
		case f := <-p.heartbeats:
			if err := s.Send(p.beatFrame(f)); err != nil {
				return err
			}
		}
	}
}

// beatFrame encodes a heartbeat, with this node's load.
func (p *peer) beatFrame(f *lease.Frame) *rhumbpb.HeartbeatFrame {
	out := frameToPB(f)
	if p.n.cfg.Load != nil && !f.Reply {
		if load, tell := p.n.cfg.Load(p.id); tell {
			out.Load = loadToPB(load)
		}
	}
	return out
}

// sendRaft sends metadata messages until the stream breaks.
func (p *peer) sendRaft(ctx context.Context) error {
	s, err := rhumbpb.NewPeerClient(p.conn.Client()).Raft(ctx)
	if err != nil {
		return err
	}
	if err := s.Send(&rhumbpb.RaftFrame{Hello: p.n.hello()}); err != nil {
		return err
	}
	for {
		select {
		case <-s.Context().Done():
			_, err := s.CloseAndRecv()
			return err
		case f := <-p.raft:
			if err := s.Send(f); err != nil {
				return err
			}
		}
	}
}
