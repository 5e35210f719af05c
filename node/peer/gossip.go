package peer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/wan"
)

// Member is what a node says of itself to whoever gossips with it.
type Member struct {
	// Cluster is zero while the node belongs to no cluster.
	Cluster rhumb.ClusterID
	// Node is NoNode while the node is not registered.
	Node rhumb.NodeID
	// Boot is the node's present life: of two addresses of a node, that of the later life is right.
	Boot rhumb.BootSeq
	// Region is the name of the node's region.
	Region string
	// Addr takes peers and clients (gRPC).
	Addr string
}

// memberLabels is the wire form of Member. memberlist caps it at 512 bytes (memberlist.MetaMaxSize).
type memberLabels struct {
	Cluster string `json:"c,omitempty"`
	Node    uint32 `json:"n,omitempty"`
	Boot    uint64 `json:"b,omitempty"`
	Region  string `json:"r,omitempty"`
	Addr    string `json:"a"`
}

// GossipConfig says where a node gossips.
type GossipConfig struct {
	// Name is unique among all nodes of the world; the store's UUID.
	Name string
	// Addr is the "host:port" to bind, for UDP and TCP. Port 0 takes a free one.
	Addr string
	// WAN puts distance between regions, and From is the region or address that this node stands at; nil is none.
	WAN  *wan.Network
	From string
	// Logger takes what memberlist has to say, at debug level.
	Logger *slog.Logger
}

// Gossip finds the other nodes by memberlist.
type Gossip struct {
	list    *memberlist.Memberlist
	labels  *labels
	members *members
	addr    string
}

// gossipLeaveTimeout bounds how long Close waits to tell others that the node goes.
const gossipLeaveTimeout = 500 * time.Millisecond

// gossipUpdateTimeout bounds how long Announce waits for others to hear.
const gossipUpdateTimeout = 2 * time.Second

// StartGossip begins to listen. It knows nobody until Join or until somebody joins it.
func StartGossip(cfg GossipConfig, self Member) (*Gossip, error) {
	const op rhumb.Op = "peer.StartGossip"
	host, portText, err := net.SplitHostPort(cfg.Addr)
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "gossip address %q is not host:port: %v", cfg.Addr, err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "gossip port %q is no number", portText)
	}
	logger := log.New(&slogWriter{cfg.Logger}, "", 0)
	inner, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{host}, BindPort: port, Logger: logger})
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.Unavailable, "cannot listen for gossip on %s: %v; is another node using the address?", cfg.Addr, err)
	}
	l := &labels{}
	l.set(self)
	c := memberlist.DefaultWANConfig()
	c.Name = cfg.Name
	c.BindAddr, c.BindPort = host, inner.GetAutoBindPort()
	c.AdvertisePort = c.BindPort
	c.Transport = newDelayedTransport(inner, cfg.WAN, cfg.From)
	c.Delegate = l
	known := &members{byName: map[string]Member{}}
	c.Events = known
	c.Logger = logger
	c.GossipInterval = 200 * time.Millisecond
	list, err := memberlist.Create(c)
	if err != nil {
		_ = inner.Shutdown()
		return nil, rhumb.Wrap(op, err)
	}
	return &Gossip{list: list, labels: l, members: known, addr: net.JoinHostPort(host, strconv.Itoa(c.BindPort))}, nil
}

// Addr gives the bound "host:port".
func (g *Gossip) Addr() string { return g.addr }

// Join contacts the given gossip addresses; it fails when none answers.
func (g *Gossip) Join(addrs []string) error {
	const op rhumb.Op = "peer.Gossip.Join"
	if len(addrs) == 0 {
		return nil
	}
	if _, err := g.list.Join(addrs); err != nil {
		return rhumb.Ef(op, rhumb.Unavailable, "none of %v answers: %v", addrs, err)
	}
	return nil
}

// Announce changes what the node says of itself.
func (g *Gossip) Announce(self Member) error {
	g.labels.set(self)
	return rhumb.WrapKind("peer.Gossip.Announce", rhumb.Unavailable, g.list.UpdateNode(gossipUpdateTimeout))
}

// Members lists the nodes heard of, this one included, sorted by address. Labels that do not parse are left out.
func (g *Gossip) Members() []Member {
	out := g.members.list()
	slices.SortFunc(out, func(a, b Member) int { return cmp.Compare(a.Addr, b.Addr) })
	return out
}

// Close says goodbye and stops.
func (g *Gossip) Close() error {
	err := g.list.Leave(gossipLeaveTimeout)
	return cmp.Or(g.list.Shutdown(), err)
}

func encodeLabels(m Member) []byte {
	l := memberLabels{Node: uint32(m.Node), Boot: uint64(m.Boot), Region: m.Region, Addr: m.Addr}
	if !m.Cluster.IsZero() {
		l.Cluster = m.Cluster.String()
	}
	b, err := json.Marshal(l)
	if err != nil {
		panic(fmt.Sprintf("peer: labels of plain strings do not marshal: %v", err))
	}
	return b
}

func decodeLabels(b []byte) (m Member, err error) {
	const op rhumb.Op = "peer.decodeLabels"
	var l memberLabels
	if err := json.Unmarshal(b, &l); err != nil {
		return m, rhumb.Ef(op, rhumb.Corrupt, "labels %.60q: %v", b, err)
	}
	m = Member{Node: rhumb.NodeID(l.Node), Boot: rhumb.BootSeq(l.Boot), Region: l.Region, Addr: l.Addr}
	if l.Cluster != "" {
		m.Cluster, err = rhumb.ParseUUID(l.Cluster)
	}
	return m, err
}

// slogWriter passes memberlist's lines on as debug events: what it calls errors are hints here.
type slogWriter struct{ logger *slog.Logger }

func (w *slogWriter) Write(p []byte) (int, error) {
	w.logger.Debug("memberlist", "line", string(p))
	return len(p), nil
}

var _ io.Writer = (*slogWriter)(nil)
