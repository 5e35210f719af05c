package peer

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/node/digest"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/memory"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/node/tally"
	"github.com/rhumbdb/rhumb/node/transfer"
)

// Bounds of the connections to one peer.
const (
	// queueBytesDefault and frameBytesDefault are the defaults of Config.QueueBytesMax and
	// Config.FrameBytesMax.
	queueBytesDefault = 16 << 20
	frameBytesDefault = 4 << 20
	// heartbeatsMax bounds the heartbeats in the queue. If more wait, they are stale.
	heartbeatsMax = 8
	// raftQueueMax bounds the frames of the metadata group in the queue.
	raftQueueMax = 4_096
	// redialMin and redialMax bound the pause before a broken stream is opened again.
	redialMin = 50 * time.Millisecond
	redialMax = 400 * time.Millisecond
)

// Handler receives the messages and requests of other nodes. Its methods are called from many
// goroutines. Methods without a context must not block.
type Handler interface {
	// Verify rejects a node that the catalog does not contain in the given life.
	Verify(id rhumb.NodeIdentity) error
	Replication(from rhumb.NodeID, msgs []replica.Message)
	Heartbeat(from rhumb.NodeIdentity, f *lease.Frame)
	// Load receives the load of another node; it arrives with a heartbeat.
	Load(from rhumb.NodeID, load NodeLoad)
	// Connected reports that replication messages to a peer get through from now on, or no longer.
	// Calls for one peer are ordered.
	Connected(n rhumb.NodeID, connected bool)
	// Refused reports that the host of a peer in a life refuses connections: no process listens there.
	Refused(n rhumb.NodeID, boot rhumb.BootSeq)
	Raft(from rhumb.NodeID, group uint32, msgs [][]byte)
	// Metadata answers a request of the metadata group.
	Metadata(ctx context.Context, from rhumb.NodeID, group uint32, request []byte) ([]byte, error)
	// DescribeReplica describes this node's replica of a range.
	DescribeReplica(ctx context.Context, id rhumb.RangeID) (*rhumbpb.DescribeReplicaResponse, error)
	// DiscardReplica discards this node's damaged copy of a range.
	DiscardReplica(ctx context.Context, id rhumb.RangeID, acceptLoss bool) error
	// Transfers returns what sends copies of ranges, nil before the node serves its ranges.
	Transfers() *transfer.Manager
	// Digests returns what compares the replicas of ranges, nil before the node serves its ranges.
	Digests() *digest.Manager
	// DistrustReplica quarantines this node's replica, because the primary found that it differs.
	DistrustReplica(ctx context.Context, from rhumb.NodeID, id rhumb.RangeID, why string) error
	// VerifyReplicas compares the replicas of a range whose primary is this node.
	VerifyReplicas(ctx context.Context, q *rhumbpb.VerifyRangeRequest) (*rhumbpb.VerifyRangeResponse, error)
	// Forward answers a request of a client that another node forwarded.
	Forward(ctx context.Context, q *rhumbpb.Request) *rhumbpb.Response
	// MaySpeak rejects a bearer of a node certificate that acts as another node. With joining, the node may
	// be one that is not registered yet.
	MaySpeak(name string, id rhumb.NodeID, joining bool) error
	// NodeNamed returns the registered node to which a name is bound.
	NodeNamed(name string) (rhumb.NodeID, bool)
	// DescribeIdentity lists the certificates and the keys of gossip that this node knows.
	DescribeIdentity() *rhumbpb.NodeIdentityReport
}

// Config configures a Network.
type Config struct {
	Cluster rhumb.ClusterID
	// Self returns the identity of this node. A new life in place changes it.
	Self func() rhumb.NodeIdentity
	// Identity is the certificate of this node, and decides which others are valid. Nil means without TLS:
	// then nothing proves who a message is from.
	Identity *identity.Source
	// Wall reads the wall clock. Nil means time.Now.
	Wall func() time.Time
	// Load returns the load that a heartbeat to another node carries. With ok false it carries
	// none. Load must not block. It may be nil.
	Load func(to rhumb.NodeID) (load NodeLoad, ok bool)
	// Via returns the node that relays messages of the metadata group to a node that is out of
	// contact. With ok false they go directly. Via must not block. Nil means always directly.
	Via func(to rhumb.NodeID) (via rhumb.NodeID, ok bool)
	// Dial opens connections. Nil means plain TCP.
	Dial api.DialFunc
	// Credentials returns the credentials of the connections to a node. They verify that the node at the other side is the one in
	// the catalog.
	Credentials func(d *rhumb.Node, protocol ...string) api.Credentials
	// Links reports whether every node of the cluster understands links. Messages of replicas go by gRPC until then. It must
	// not block. Nil means that all do.
	Links func() bool
	// QueueBytesMax bounds the replication messages that wait for one peer; default 16 MiB. The
	// messages share the entries that replicas hold, so they take little memory of their own.
	// Queued counts them for all peers.
	QueueBytesMax int
	Queued        *memory.Budget
	// FrameBytesMax bounds the messages in one frame; a larger message has a frame of its own. A
	// frame in flight takes about three times its size. Default 4 MiB.
	FrameBytesMax int
	Handler       Handler
	Logger        *slog.Logger
}

// Network holds the connections of this node to all others.
type Network struct {
	cfg Config
	m   networkMetrics

	mu    sync.RWMutex // guards peers and ended
	peers map[rhumb.NodeID]*peer
	// ended holds, for each node that is no longer a peer, a channel that closes after the Handler
	// received its last event about the node.
	ended map[rhumb.NodeID]<-chan struct{}

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// networkMetrics holds the counters of a Network.
type networkMetrics struct {
	dropped  *prometheus.CounterVec
	rejected *prometheus.CounterVec
	redials  prometheus.Counter
	silent   prometheus.Counter
	relayed  prometheus.Counter
	sent     prometheus.Counter
	frames   prometheus.Counter
	// tallied counts the acknowledgements that went by tallies, and void the tallies that were dropped on arrival.
	tallied, void prometheus.Counter
	// gaps has the times between two heartbeats of a peer as they arrive. A lease ends when the gap is too large.
	gaps prometheus.Histogram
	// unknown counts messages with entries that this build cannot read.
	unknown prometheus.Counter
	// damaged counts frames of links that were not what their sender wrote.
	damaged prometheus.Counter
}

// NewNetwork returns a network without peers.
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
			rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
				Namespace: "rhumb", Subsystem: "peer", Name: "rejected_total", Help: "Streams, calls and messages of nodes that were rejected because their certificate or signature is not that of the node they name.",
			}, []string{"reason"}),
			relayed: counter("relayed_total", "Frames and requests of the metadata group that were relayed between two other nodes."),
			silent:  counter("silent_total", "Connections that were closed because the peer did not answer. They are opened again."),
			redials: counter("redials_total", "Streams to peers that broke. They are opened again."),
			sent:    counter("messages_total", "Replication messages sent."),
			unknown: counter("unknown_entries_total", "Replication messages with entries that a later release wrote. Their ranges wait until this node has a newer build."),
			damaged: counter("damaged_frames_total", "Frames of other nodes whose size, checksum or content was wrong. Their links were closed, and the messages are sent again."),
			frames:  counter("frames_total", "Frames in which replication messages were sent."),

			tallied: counter("tallied_total", "Acknowledgements of replicas for which a tally of a whole frame was sent, in the place of a message."),
			void:    counter("void_tallies_total", "Tallies that were dropped because they were for another connection or frame. The entries are sent again."),
			gaps: prometheus.NewHistogram(prometheus.HistogramOpts{
				Namespace: "rhumb", Subsystem: "peer", Name: "heartbeat_gap_seconds", Help: "Time between two heartbeats of a peer as they arrive.",
				Buckets: []float64{.05, .1, .16, .2, .26, .3, .4, .5, .6, .8, 1, 1.5, 2, 5},
			}),
		},
	}
	// A counter with labels appears in the metrics only once it has a value, and alerts need a
	// value of 0.
	for _, traffic := range []string{"replication", "heartbeat", "raft"} {
		n.m.dropped.WithLabelValues(traffic)
	}
	for _, reason := range []string{rejectedNoBearer, rejectedSpeaker, rejectedProof} {
		n.m.rejected.WithLabelValues(reason)
	}
	return n
}

// Collectors returns the metrics of the network.
func (n *Network) Collectors() []prometheus.Collector {
	return []prometheus.Collector{n.m.dropped, n.m.rejected, n.m.redials, n.m.silent, n.m.relayed, n.m.sent, n.m.frames, n.m.tallied, n.m.void, n.m.gaps, n.m.unknown, n.m.damaged}
}

// SetPeers replaces the set of peers. A peer whose address or life changed is connected to again.
func (n *Network) SetPeers(nodes []*rhumb.Node) {
	self := n.cfg.Self().Node
	// n.mu is held throughout, so that Close, which cancels n.ctx under it, does not miss a peer.
	n.mu.Lock()
	defer n.mu.Unlock()
	// After Close no goroutine may be added to n.work, which Close waits for.
	if n.ctx.Err() != nil {
		return
	}
	keep := map[rhumb.NodeID]bool{}
	for _, d := range nodes {
		if d.ID == self {
			continue
		}
		old := n.peers[d.ID]
		// A removed node gets no new connection: metadata remembers it for good, and its address may be another node's by now. On
		// the connection that it has, it may still read of its removal.
		if d.Forgotten {
			if old != nil {
				old.removed.Store(true)
			}
			keep[d.ID] = old != nil
			continue
		}
		keep[d.ID] = true
		// An unchanged peer keeps its streams: this is called for every change of any node.
		if old != nil && old.addr == d.Addr && old.heartbeatAddr == d.HeartbeatAddr && old.boot == d.Boot && old.name == d.Name {
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

// replaceLocked closes the connections to a node and, unless d is nil, opens new ones. The Handler
// receives the last event of the old connections before the first of the new ones: otherwise a late
// "not connected" of the old ones could be its last word on a node that is connected.
func (n *Network) replaceLocked(id rhumb.NodeID, d *rhumb.Node) {
	before := n.ended[id]
	if old := n.peers[id]; old != nil {
		old.cancel()
		// The old peer itself waits for its predecessor, so waiting for it covers all earlier ones.
		before = old.ended
		delete(n.peers, id)
	}
	if d != nil {
		n.peers[id] = n.newPeer(d, before)
		return
	}
	// Kept for the case that the node becomes a peer again.
	n.ended[id] = before
}

// endRemoved closes the connections to a removed node.
func (n *Network) endRemoved(p *peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p.cancel()
	// No peer with this ID follows, so nobody has to wait for the end of this one.
	if n.peers[p.id] == p {
		delete(n.peers, p.id)
		delete(n.ended, p.id)
	}
}

// Close closes all connections.
func (n *Network) Close() {
	n.mu.Lock()
	n.cancel()
	n.mu.Unlock()
	n.work.Wait()
}

// lookUpPeer returns the peer with an ID.
func (n *Network) lookUpPeer(id rhumb.NodeID) (*peer, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	p, ok := n.peers[id]
	return p, ok
}

// Send queues replication messages for a peer. It drops them all if they do not fit: the replicas
// send them again.
func (n *Network) Send(to rhumb.NodeID, msgs []replica.Message) {
	p, ok := n.lookUpPeer(to)
	if !ok || !p.replication.add(msgs) {
		n.m.dropped.WithLabelValues("replication").Add(float64(len(msgs)))
	}
}

// SendHeartbeat queues a lease frame. Heartbeats have a connection of their own.
func (n *Network) SendHeartbeat(to rhumb.NodeID, f *lease.Frame) {
	p, ok := n.lookUpPeer(to)
	if !ok {
		return
	}
	select {
	case p.heartbeats <- f:
	default:
		n.m.dropped.WithLabelValues("heartbeat").Inc()
	}
}

// SendRaft queues messages of the metadata group, for the peer or for the node that relays to it.
func (n *Network) SendRaft(to rhumb.NodeID, group uint32, msgs [][]byte) {
	f := &rhumbpb.RaftFrame{Group: group, Messages: msgs}
	if via, ok := n.relayFor(to); ok {
		proof, err := n.signProof(proofRaft, to, group, msgs...)
		if err != nil {
			n.cfg.Logger.Warn("cannot sign messages that another node relays; they are dropped", "to", to, "err", err)
			n.m.dropped.WithLabelValues("raft").Add(float64(len(msgs)))
			return
		}
		// The receiver relays the frame to its final destination.
		f.Proof, f.To, to = proof, uint32(to), via
	}
	n.queueRaft(to, f)
}

// queueRaft queues a frame for a peer, or drops it: Raft sends again.
func (n *Network) queueRaft(to rhumb.NodeID, f *rhumbpb.RaftFrame) {
	p, ok := n.lookUpPeer(to)
	if !ok {
		return
	}
	select {
	case p.raft <- f:
	default:
		n.m.dropped.WithLabelValues("raft").Add(float64(len(f.Messages)))
	}
}

// Metadata sends a request to a member of the metadata group and returns the response. An error of
// kind Unavailable means that the request was certainly not handled.
func (n *Network) Metadata(ctx context.Context, to rhumb.NodeID, group uint32, request []byte) ([]byte, error) {
	const op rhumb.Op = "peer.Network.Metadata"
	resp := new(rhumbpb.MetadataResponse)
	q := &rhumbpb.MetadataRequest{Hello: n.newHello(), Group: group, Request: request}
	via, relayed := n.relayFor(to)
	if !relayed {
		err := n.callPeer(ctx, op, to, rhumbpb.Peer_Metadata_FullMethodName, q, resp)
		return resp.Response, err
	}
	var err error
	if q.Proof, err = n.signProof(proofRequest, to, group, request); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	q.To = uint32(to)
	if err := n.callPeer(ctx, op, via, rhumbpb.Peer_Metadata_FullMethodName, q, resp); err != nil {
		return nil, err
	}
	// The relay could invent an answer. The answer is bound to the request by the signature of the request.
	if err := n.checkProof(proofResponse, resp.Proof, to, group, q.Proof.GetSignature(), resp.Response); err != nil {
		return nil, &rhumb.Error{Op: op, Kind: rhumb.Unknown, Node: to, Msg: "the relayed answer is not signed by the node that was asked", Err: err}
	}
	return resp.Response, nil
}

// Forward forwards a request of a client to another node. An error of kind Unavailable means that
// the request was certainly not received; an error of kind Unknown means that it may have been.
func (n *Network) Forward(ctx context.Context, to rhumb.NodeID, q *rhumbpb.Request) (*rhumbpb.Response, error) {
	const op rhumb.Op = "peer.Network.Forward"
	resp := new(rhumbpb.Response)
	if err := n.callPeer(ctx, op, to, rhumbpb.Peer_Forward_FullMethodName, q, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// DescribeReplica asks another node to describe its replica of a range.
func (n *Network) DescribeReplica(ctx context.Context, to rhumb.NodeID, id rhumb.RangeID) (*rhumbpb.DescribeReplicaResponse, error) {
	const op rhumb.Op = "peer.Network.DescribeReplica"
	resp := new(rhumbpb.DescribeReplicaResponse)
	if err := n.callPeer(ctx, op, to, rhumbpb.Peer_DescribeReplica_FullMethodName, &rhumbpb.DescribeReplicaRequest{Range: api.EncodeRangeID(id)}, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// DiscardReplica makes another node discard its damaged copy of a range.
func (n *Network) DiscardReplica(ctx context.Context, to rhumb.NodeID, q *rhumbpb.DiscardReplicaRequest) error {
	const op rhumb.Op = "peer.Network.DiscardReplica"
	return n.callPeer(ctx, op, to, rhumbpb.Peer_DiscardReplica_FullMethodName, q, new(rhumbpb.DiscardReplicaResponse))
}

// newHello returns the first frame's identification of this node.
func (n *Network) newHello() *rhumbpb.PeerHello {
	return &rhumbpb.PeerHello{Protocol: api.Protocol, Cluster: n.cfg.Cluster[:], Identity: api.EncodeIdentity(n.cfg.Self())}
}

// fromStatus converts the error of a call to another node. If the node answered, its error is
// conclusive. If only the transport failed, the outcome of the request is unknown.
func fromStatus(op rhumb.Op, to rhumb.NodeID, err error) error {
	if err == nil {
		return nil
	}
	// A connection that breaks after the request was sent leaves the outcome open. Reporting
	// Unavailable would allow the caller to repeat the request as if it were new.
	e, _, remote := api.FromStatus(op, err)
	if remote {
		return e
	}
	return &rhumb.Error{Op: op, Kind: rhumb.Unknown, Node: to, Msg: "the connection failed", Err: e}
}

// peer holds the connections to one other node.
type peer struct {
	n                   *Network
	id                  rhumb.NodeID
	boot                rhumb.BootSeq
	name                string
	addr, heartbeatAddr string
	conn                *api.Conn // replication, raft and requests
	beatConn            *api.Conn // heartbeats only
	bulkConn            *api.Conn // copies of ranges only; connects when the first is asked for

	replication *queue
	heartbeats  chan *lease.Frame
	raft        chan *rhumbpb.RaftFrame
	// linkCreds secure the link, and link is the present one.
	linkCreds api.Credentials
	link      atomic.Pointer[link.Conn]

	sentMu sync.Mutex // guards sent
	sent   tally.Sent // the frames of the present link
	// takesTallies reports whether the peer sends tallies for them. The goroutine that sends owns it.
	takesTallies bool
	// taken lists the frames of the newest link from the peer, for the tallies of this node; nil if the peer takes none.
	taken atomic.Pointer[takenFrames]

	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{} // closed after the last event about this peer
	// removed is set if the node was removed from the cluster for good: a stream that breaks is the last one.
	removed atomic.Bool
}

// newPeer connects to a node after before is closed.
func (n *Network) newPeer(d *rhumb.Node, before <-chan struct{}) *peer {
	p := &peer{
		n: n, id: d.ID, boot: d.Boot, name: d.Name, addr: d.Addr, heartbeatAddr: d.HeartbeatAddr,
		replication: newQueue(n.cfg.QueueBytesMax, n.cfg.Queued), heartbeats: make(chan *lease.Frame, heartbeatsMax), raft: make(chan *rhumbpb.RaftFrame, raftQueueMax),
		ended: make(chan struct{}),
	}
	// Two connections: a large append on one must not delay heartbeats on the other.
	p.ctx, p.cancel = context.WithCancel(n.ctx)
	var err1, err2, err3 error
	creds := n.cfg.Credentials(d)
	p.linkCreds = n.cfg.Credentials(d, link.PeerProtocol)
	p.conn, err1 = api.NewConn(d.Addr, n.cfg.Dial, creds, nil)
	p.beatConn, err2 = api.NewConn(d.HeartbeatAddr, n.cfg.Dial, creds, nil)
	p.bulkConn, err3 = api.NewConn(d.Addr, n.cfg.Dial, creds, nil)
	// Only an address that does not parse fails here, and the catalog rejects such addresses.
	if err1 != nil || err2 != nil || err3 != nil {
		n.cfg.Logger.Error("cannot create the connections to a peer", "node", d.ID, "addr", d.Addr, "err", err1, "heartbeat_err", err2)
		close(p.ended)
		return p
	}
	n.work.Go(func() {
		defer close(p.ended)
		// Only this stream waits: the Handler hears of connections from it alone.
		if before != nil {
			<-before
		}
		p.runStream(p.sendMessages)
	})
	n.work.Go(func() { p.runStream(p.sendHeartbeats) })
	n.work.Go(func() { p.runStream(p.sendRaft) })
	// Both are watched: a half-open connection may affect only one of the ports.
	for _, c := range []*api.Conn{p.conn, p.beatConn} {
		n.work.Go(func() {
			// A stopped process still acknowledges TCP, and gRPC's keepalive would notice it only
			// after 10 s (docs/decisions/0017). The connection counts as in use at all times.
			c.Watch(p.ctx, nil, func() api.Use { return api.Awaited }, func() {
				n.m.silent.Inc()
				// The link goes to the same port and is not probed as often.
				if l := p.link.Load(); l != nil && c == p.conn {
					l.Close()
				}
			})
			c.Close()
		})
	}
	n.work.Go(func() {
		// Queued messages count against a budget that all peers share.
		<-p.ctx.Done()
		p.replication.clear()
		p.bulkConn.Close()
	})
	return p
}

// runStream runs a stream until the peer is closed. When the stream breaks, it is opened again
// after a pause, which doubles while streams break at once.
func (p *peer) runStream(stream func(ctx context.Context) error) {
	pause := redialMin
	for p.ctx.Err() == nil {
		ctx, cancel := context.WithCancel(p.ctx)
		start := time.Now()
		// The stream must not outlive this call: its receiving goroutine ends with the context.
		err := stream(ctx)
		cancel()
		if p.ctx.Err() != nil {
			return
		}
		// The next one takes the place of one that worked.
		if err == nil {
			continue
		}
		if p.removed.Load() {
			p.n.endRemoved(p)
			return
		}
		p.n.m.redials.Inc()
		p.n.cfg.Logger.Debug("stream to peer ended", "node", p.id, "err", err)
		// A stream that worked for a while starts over with the short pause. One that breaks at
		// once, for example because the peer rejects this node, is tried less and less often.
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

// usesLinks reports whether messages of replicas go by links.
func (n *Network) usesLinks() bool { return n.cfg.Links == nil || n.cfg.Links() }

// sendMessages sends the messages in the replication queue until the link or stream breaks.
func (p *peer) sendMessages(ctx context.Context) error {
	if p.n.usesLinks() {
		return p.sendByLink(ctx)
	}
	return p.sendReplication(ctx)
}

// sendReplication is sendMessages for clusters with nodes of an earlier release. It returns nil when the cluster has none any more; a
// node that joins learns that from its first copy of the metadata.
func (p *peer) sendReplication(ctx context.Context) error {
	s, err := rhumbpb.NewPeerClient(p.conn.Client()).Replicate(ctx)
	if err != nil {
		return err
	}
	if err := s.Send(&rhumbpb.ReplicaFrame{Hello: p.n.newHello()}); err != nil {
		return err
	}
	// The hello of the peer proves that it verified the hello of this node. Before that, the peer
	// may still reject the stream, and must not be reported as connected.
	if _, err := s.Recv(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	// A send into a broken connection may succeed for a while, because it only fills a buffer.
	// Receiving shows the end at once.
	p.n.work.Go(func() {
		_, err := s.Recv() // the peer sends nothing more, so this returns when the stream breaks
		ended <- err
	})
	// Messages queued before belong to the stream that broke. Replicas consider them lost and start
	// from the peer's position again once they learn that the peer is connected.
	p.replication.clear()
	p.n.cfg.Handler.Connected(p.id, true)
	// runStream opens the next stream only after this, so the Handler sees every break.
	defer p.n.cfg.Handler.Connected(p.id, false)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return err
		case <-p.replication.wake:
		}
		if p.n.usesLinks() {
			return nil
		}
		// The wake token covers any number of messages, so the queue is emptied before waiting
		// again.
		for msgs := p.replication.take(p.n.cfg.FrameBytesMax); len(msgs) > 0; msgs = p.replication.take(p.n.cfg.FrameBytesMax) {
			// Encoded one frame at a time, so that a slow peer holds the bytes of one frame, not of
			// its whole queue.
			f := &rhumbpb.ReplicaFrame{Messages: make([]*rhumbpb.ReplicaMessage, len(msgs))}
			for i := range msgs {
				f.Messages[i] = messageToPB(&msgs[i])
			}
			p.n.m.frames.Inc()
			p.n.m.sent.Add(float64(len(msgs)))
			// Send blocks while the flow-control window of the stream is full. Messages then gather
			// in the queue, which drops what does not fit.
			if err := s.Send(f); err != nil {
				return err
			}
		}
	}
}

// sendHeartbeats sends lease frames until the stream breaks.
func (p *peer) sendHeartbeats(ctx context.Context) error {
	s, err := rhumbpb.NewPeerClient(p.beatConn.Client()).Heartbeat(ctx)
	if err != nil {
		return err
	}
	if err := s.Send(&rhumbpb.HeartbeatFrame{Hello: p.n.newHello()}); err != nil {
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
	// Frames that waited for the stream are stale: a lease counts from the sending of the heartbeat
	// (rule L).
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
			if err := s.Send(p.heartbeatFrame(f)); err != nil {
				return err
			}
		}
	}
}

// heartbeatFrame encodes a lease frame. Unless it is a reply, the frame also carries the load of
// this node.
func (p *peer) heartbeatFrame(f *lease.Frame) *rhumbpb.HeartbeatFrame {
	out := frameToPB(f)
	// Both nodes of a pair send heartbeats, so replies need not carry the load again.
	if p.n.cfg.Load != nil && !f.Reply {
		if load, tell := p.n.cfg.Load(p.id); tell {
			out.Load = loadToPB(load)
		}
	}
	return out
}

// sendRaft sends frames of the metadata group until the stream breaks.
func (p *peer) sendRaft(ctx context.Context) error {
	s, err := rhumbpb.NewPeerClient(p.conn.Client()).Raft(ctx)
	if err != nil {
		return err
	}
	if err := s.Send(&rhumbpb.RaftFrame{Hello: p.n.newHello()}); err != nil {
		return err
	}
	for {
		select {
		// The peer sends nothing until it ends the stream, so the context of the stream is the only
		// sign.
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
