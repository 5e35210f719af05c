package peer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/wan"
)

// Member is the label that a node spreads by gossip.
type Member struct {
	// Cluster is zero while the node belongs to no cluster.
	Cluster rhumb.ClusterID
	// Node is NoNode while the node is not registered.
	Node rhumb.NodeID
	// Boot is the current life of the node. If gossip reports two addresses of a node, the address
	// of the later life is correct.
	Boot rhumb.BootSeq
	// Region is the name of the node's region.
	Region string
	// Addr is the address for peers and clients (gRPC).
	Addr string
}

// memberLabels is the wire form of Member. memberlist limits it to 512 bytes
// (memberlist.MetaMaxSize), hence the short keys.
type memberLabels struct {
	Cluster string `json:"c,omitempty"`
	Node    uint32 `json:"n,omitempty"`
	Boot    uint64 `json:"b,omitempty"`
	Region  string `json:"r,omitempty"`
	Addr    string `json:"a"`
}

// GossipConfig configures Gossip.
type GossipConfig struct {
	// Name is unique among all nodes of all clusters: the UUID of a store.
	Name string
	// Addr is the "host:port" to bind, for UDP and TCP. Port 0 selects a free port.
	Addr string
	// Advertise is the "host:port" that others connect to, with port 0 for the port that Addr selects. Empty means Addr.
	Advertise string
	// WAN simulates distance between regions; nil simulates nothing. From is the region or address
	// of this node in it.
	WAN  *wan.Network
	From string
	// Encrypted encrypts gossip with AES-256-GCM and rejects everything else. The keys arrive later, by
	// Gossip.SetKeys; until then the node hears nobody.
	Encrypted bool
	// IsNode reports whether an address is that of a node of the cluster. Streams of strangers take no place from
	// those of nodes. Nil means that none is known.
	IsNode func(netip.Addr) bool
	// Logger receives the messages of memberlist, at debug level.
	Logger *slog.Logger
}

// Gossip finds other nodes with memberlist.
type Gossip struct {
	list      *memberlist.Memberlist
	labels    *labels
	members   *members
	transport *delayedTransport
	// addr is where the node listens, advertised where others connect to.
	addr, advertised string

	keys *gossipKeys // nil without encryption
}

// gossipLeaveTimeout bounds the time that Close takes to announce that the node leaves.
const gossipLeaveTimeout = 500 * time.Millisecond

// gossipUpdateTimeout bounds the time that Announce waits until other nodes have the label.
const gossipUpdateTimeout = 2 * time.Second

// gossipTries bounds the attempts to listen on a port that the kernel chooses.
const gossipTries = 10

// listenGossip listens for TCP and UDP on one port. If the kernel chooses the port of the one, that of the other may be in use.
func listenGossip(cfg *memberlist.NetTransportConfig) (t *memberlist.NetTransport, err error) {
	for range gossipTries {
		t, err = memberlist.NewNetTransport(cfg)
		// The error does not wrap its cause.
		if err == nil || cfg.BindPort != 0 || !strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) {
			break
		}
	}
	return t, err
}

// StartGossip starts to listen. It knows no other node until Join, or until another node joins it.
func StartGossip(cfg GossipConfig, self Member) (*Gossip, error) {
	const op rhumb.Op = "peer.StartGossip"
	host, portText, err := net.SplitHostPort(cfg.Addr)
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "gossip address %q is not host:port: %v", cfg.Addr, err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "gossip address %q: port %q is not a number", cfg.Addr, portText)
	}
	// The transport is created here instead of by memberlist: delayedTransport wraps it, and with
	// port 0 only the transport knows the port that the label must name.
	logger := log.New(&slogWriter{cfg.Logger}, "", 0)
	inner, err := listenGossip(&memberlist.NetTransportConfig{BindAddrs: []string{host}, BindPort: port, Logger: logger})
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.Unavailable, "cannot listen on %s for gossip: %v; check whether another node uses the address", cfg.Addr, err)
	}
	l := &labels{}
	l.set(self)
	// Nodes may be in different regions, so the defaults for a LAN would suspect distant nodes.
	c := memberlist.DefaultWANConfig()
	c.Name = cfg.Name
	c.BindAddr, c.BindPort = host, inner.GetAutoBindPort()
	c.AdvertisePort = c.BindPort
	if cfg.Advertise != "" {
		if c.AdvertiseAddr, c.AdvertisePort, err = resolveAdvertised(cfg.Advertise, c.BindPort); err != nil {
			_ = inner.Shutdown()
			return nil, err
		}
	}
	var keys *gossipKeys
	if cfg.Encrypted {
		keys = newGossipKeys()
	}
	transport := newDelayedTransport(inner, cfg.WAN, cfg.From, keys, cfg.IsNode)
	c.Transport = transport
	c.Delegate = l
	known := &members{byName: map[string]Member{}}
	c.Events = known
	c.Logger = logger
	c.GossipInterval = 200 * time.Millisecond
	g := &Gossip{labels: l, members: known, transport: transport, keys: keys, addr: net.JoinHostPort(host, strconv.Itoa(c.BindPort))}
	g.advertised = g.addr
	if cfg.Advertise != "" {
		g.advertised = net.JoinHostPort(c.AdvertiseAddr, strconv.Itoa(c.AdvertisePort))
	}
	if cfg.Encrypted {
		c.Keyring, c.GossipVerifyIncoming, c.GossipVerifyOutgoing = g.keys.ring, true, true
	}
	list, err := memberlist.Create(c)
	if err != nil {
		_ = transport.Shutdown()
		return nil, rhumb.Wrap(op, err)
	}
	g.list = list
	return g, nil
}

// resolveAdvertised returns the IP address and the port of an advertised "host:port". memberlist spreads addresses, not names.
func resolveAdvertised(addr string, bound int) (ip string, port int, err error) {
	const op rhumb.Op = "peer.StartGossip"
	host, portText, err := net.SplitHostPort(addr)
	if err == nil {
		port, err = strconv.Atoi(portText)
	}
	if err != nil {
		return "", 0, rhumb.Ef(op, rhumb.InvalidArgument, "advertised gossip address %q: %v", addr, err)
	}
	if port == 0 {
		port = bound
	}
	if net.ParseIP(host) != nil {
		return host, port, nil
	}
	ips, err := net.LookupIP(host)
	if err != nil || len(ips) == 0 {
		return "", 0, rhumb.Ef(op, rhumb.Unavailable, "the advertised host %q has no address: %v; check --advertise and the name server", host, err)
	}
	// The first address of the family that most networks route.
	for _, found := range ips {
		if found.To4() != nil {
			return found.String(), port, nil
		}
	}
	return ips[0].String(), port, nil
}

// Collectors returns the metrics of gossip.
func (g *Gossip) Collectors() []prometheus.Collector { return g.transport.collectors() }

// Addr returns the bound "host:port".
func (g *Gossip) Addr() string { return g.addr }

// Advertised returns the "host:port" that others connect to.
func (g *Gossip) Advertised() string { return g.advertised }

// Join contacts the given gossip addresses. It fails if none answers.
func (g *Gossip) Join(addrs []string) error {
	const op rhumb.Op = "peer.Gossip.Join"
	if len(addrs) == 0 {
		return nil
	}
	// Join succeeds if at least one address answers; the others are then found by gossip.
	if _, err := g.list.Join(addrs); err != nil {
		return rhumb.Ef(op, rhumb.Unavailable, "none of %v answers: %v; check that a node runs there", addrs, err)
	}
	return nil
}

// Announce replaces the label of this node.
func (g *Gossip) Announce(self Member) error {
	g.labels.set(self)
	return rhumb.WrapKind("peer.Gossip.Announce", rhumb.Unavailable, g.list.UpdateNode(gossipUpdateTimeout))
}

// Members returns the labels of all known nodes, including this node, sorted by address. Labels
// that cannot be decoded are left out.
func (g *Gossip) Members() []Member {
	out := g.members.list()
	slices.SortFunc(out, func(a, b Member) int { return cmp.Compare(a.Addr, b.Addr) })
	return out
}

// Close announces that the node leaves, and stops.
func (g *Gossip) Close() error {
	err := g.list.Leave(gossipLeaveTimeout)
	return cmp.Or(g.list.Shutdown(), err)
}

// encodeLabels encodes a label.
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

// decodeLabels decodes a label.
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

// slogWriter logs the messages of memberlist at debug level: gossip is only a hint, so its errors
// are no errors of the node.
type slogWriter struct{ logger *slog.Logger }

func (w *slogWriter) Write(p []byte) (int, error) {
	w.logger.Debug("memberlist", "line", string(p))
	return len(p), nil
}

var _ io.Writer = (*slogWriter)(nil)
