package node

import (
	"context"
	"crypto/sha256"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/audit"
	"github.com/rhumbdb/rhumb/node/gate"
	"github.com/rhumbdb/rhumb/node/memory"
	"github.com/rhumbdb/rhumb/node/server"
	"github.com/rhumbdb/rhumb/node/session"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// AuditDir is the folder of the audit log in the first data directory.
const AuditDir = "audit"

// LimitsConfig bounds what callers can take of a node. Zero fields have defaults.
type LimitsConfig struct {
	// Connections bounds the connections of clients on each port, Unauthenticated those whose caller is
	// not identified yet. Defaults: 4,096 and 256.
	Connections, Unauthenticated int
	// User bounds the requests of one user on this node, Connection those of one connection. Without
	// values, the rates have no bound, and InFlight is three quarters of the memory for requests. Streams is three quarters
	// of the streams that the memory allows for a user, and has no bound for a connection but that of HTTP/2.
	User, Connection gate.Rates
}

// validate reports negative limits.
func (c *LimitsConfig) validate(fault func(bad bool, format string, args ...any)) {
	fault(c.Connections < 0, "limits: %d connections, want 0 or more", c.Connections)
	fault(c.Unauthenticated < 0, "limits: %d unauthenticated connections, want 0 or more", c.Unauthenticated)
	for what, r := range map[string]gate.Rates{"user": c.User, "connection": c.Connection} {
		// Written so that a rate that is not a number is a fault.
		fault(!(r.Requests >= 0) || !(r.Bytes >= 0) || r.InFlight < 0 || r.Streams < 0,
			"limits of a %s: %v requests/s, %v bytes/s, %d bytes in flight, %d streams; want 0 or more", what, r.Requests, r.Bytes, r.InFlight, r.Streams)
	}
}

// guard holds what stands between a node and its callers.
//
// Everything in it is between the listener and the handlers, in this order: a gate admits the
// connection, TLS identifies a certificate, sessions identify the caller, the authorization in
// package server decides about the call, the audit log records it, and the limiter counts it.
type guard struct {
	audit    *audit.Log
	sessions *session.Manager
	limiter  *gate.Limiter
	// recorded bounds the entries of the audit log that users can cause who do not administer the cluster.
	recorded *gate.Pace
	// revoked holds what the audit log has of the revocations in the metadata; only applySecurity uses it.
	revoked map[string]bool
	// main, beats and admin are the gates of the ports, so that connections of clients take nothing from
	// heartbeats.
	main, beats, admin *gate.Gate
	nodes              atomic.Pointer[nodeAddrs]
	// came knows nodes whose addresses in the metadata are names of hosts, as in most deployments.
	came *gate.Nodes
}

// nodeAddrs holds the addresses of the nodes of the cluster at a time.
type nodeAddrs struct {
	at    time.Time
	addrs map[netip.Addr]bool
}

// nodeAddrsFor is how long a list of addresses is used. A flood of connections must not cost a walk through
// the metadata each.
const nodeAddrsFor = time.Second

// shareOf64 is the share of one caller in the memory for requests (LimitsConfig's InFlight) and in the streams (Streams), in
// sixty-fourths: one caller cannot take all.
const shareOf64 = 48

// openGuard opens the audit log and starts the sessions. It comes after the stores, which own the directory.
func (n *Node) openGuard() (err error) {
	g := &n.guard
	g.came = gate.NewNodes()
	g.audit, err = audit.Open(audit.Config{
		Dir: filepath.Join(n.cfg.Dirs[0], AuditDir), Node: n.auditName, Now: n.cfg.Wall, Logger: n.cfg.Logger,
	})
	if err != nil {
		return err
	}
	l := n.cfg.Limits
	for _, r := range []*gate.Rates{&l.User, &l.Connection} {
		if r.InFlight == 0 {
			r.InFlight = n.budgets.parts.Requests / 64 * shareOf64
		}
	}
	if l.User.Streams == 0 {
		l.User.Streams = max(n.budgets.parts.Streams/memory.StreamReserve*shareOf64/64, 1)
	}
	g.recorded = gate.NewPace(recordedEvery, recordedBurst, prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "rhumb", Subsystem: "audit", Name: "paced_total", Help: "Requests that were refused because their user, who does not administer the cluster, fills the audit log.",
	}))
	g.limiter = gate.NewLimiter(gate.LimiterConfig{User: l.User, Conn: l.Connection})
	g.sessions = session.New(session.Config{
		Insecure: n.cfg.Insecure, Policy: n.policy, Confirm: n.confirmPolicy, Limiter: g.limiter, Record: g.audit.Note, Secret: n.mockSecret, NodeFrom: func(a netip.Addr) { g.came.Note(a, time.Now()) }, Logger: n.cfg.Logger,
	})
	mode := "tls"
	if n.cfg.Insecure {
		mode = "insecure"
	}
	// A note: a node must start although its disk is full.
	g.audit.Note(audit.Event{Kind: audit.Start, Action: mode, Detail: "version " + n.cfg.Version})
	n.metrics.MustRegister(g.audit.Collectors()...)
	n.metrics.MustRegister(g.sessions.Collectors()...)
	n.metrics.MustRegister(g.limiter.Collectors()...)
	n.metrics.MustRegister(g.recorded.Collectors()...)
	return nil
}

// closeGuard ends the sessions and the audit log. The servers have stopped.
func (n *Node) closeGuard() {
	g := &n.guard
	// A start that failed half-way closes what exists.
	if g.sessions != nil {
		g.sessions.Close()
	}
	if g.audit == nil {
		return
	}
	g.audit.Note(audit.Event{Kind: audit.Stop})
	if err := g.audit.Close(); err != nil {
		n.cfg.Logger.Warn("cannot close the audit log", "err", err)
	}
	n.cfg.Logger.Info("the audit log is closed", "head", g.audit.Head().String())
}

// auditName returns the name of the node in the audit log.
func (n *Node) auditName() string {
	if n.source != nil {
		if name, ok := n.source.Name(); ok {
			return name.Name
		}
	}
	if id := n.engine.Identity(); !id.Cluster.IsZero() {
		return id.Node.String()
	}
	return ""
}

// policy returns the users and grants of the cluster, or nil before the node knows them.
//
// Every decision of the node reads it again. Copies that sessions or streams kept would be rights
// that outlive their revocation.
func (n *Node) policy() *access.Policy {
	m := n.currentMember()
	if m == nil {
		return nil
	}
	st := m.group.State()
	if st.Cluster().IsZero() {
		return nil
	}
	if p := st.Access(); p != nil {
		return p
	}
	// A cluster without users is known to have none, unlike one whose metadata has not arrived.
	return noUsers
}

// confirmPolicy returns the users that the cluster had after the call began. It asks the metadata leader.
func (n *Node) confirmPolicy(ctx context.Context) (*access.Policy, error) {
	m := n.currentMember()
	if m == nil {
		return nil, rhumb.E("node.confirmPolicy", rhumb.Unavailable, "the node has not joined yet")
	}
	if _, err := m.group.Linearize(ctx); err != nil {
		return nil, err
	}
	return n.policy(), nil
}

// noUsers is the policy of a cluster without users.
var noUsers = access.Compile(nil, 0, nil, nil)

// mockSecret returns bytes that all nodes know and clients do not: the verifiers of the users. They change when a
// user does, and then the challenges for users that do not exist change too.
//
// A secret of its own in the metadata was rejected: it would have to be created, distributed and
// rotated, and the verifiers are secrets that all nodes have anyway. The hash keeps a challenge
// from revealing anything about the verifier.
func (n *Node) mockSecret() []byte {
	// The oldest user with a password is the one that changes least.
	oldest := n.policy().Oldest()
	if oldest == nil {
		return nil
	}
	sum := sha256.Sum256(append([]byte("rhumb mock challenges"), oldest.Verifier.ServerKey...))
	return sum[:]
}

// newGate puts a gate before a listener.
func (n *Node) newGate(port string, l net.Listener) *gate.Gate {
	g := gate.New(l, gate.Config{Port: port, Connections: n.cfg.Limits.Connections, Early: n.cfg.Limits.Unauthenticated, IsNode: n.isNodeAddr})
	n.metrics.MustRegister(g.Collectors()...)
	return g
}

// isNodeAddr reports whether an address is that of a node of the cluster. Names of hosts are not resolved: their
// nodes connect like clients until one of them has called from the address.
//
// An address is no proof, and nothing is granted by it but a place in another queue. Whoever sends
// from the address of a node can take places of nodes, and then still needs a certificate.
func (n *Node) isNodeAddr(a netip.Addr) bool {
	known := n.guard.nodes.Load()
	if now := time.Now(); known == nil || now.Sub(known.at) >= nodeAddrsFor {
		known = &nodeAddrs{now, map[netip.Addr]bool{}}
		add := func(addr string) {
			if ap, err := netip.ParseAddrPort(addr); err == nil {
				known.addrs[gate.AddressOf(net.TCPAddrFromAddrPort(ap))] = true
			}
		}
		for _, addr := range n.cfg.Join {
			add(addr)
		}
		if m := n.currentMember(); m != nil {
			for d := range m.group.State().Nodes() {
				add(d.Addr)
				add(d.HeartbeatAddr)
			}
		}
		n.guard.nodes.Store(known)
	}
	return known.addrs[a] || n.guard.came.Has(a, time.Now())
}

// callersHTTP identifies the callers of the port for operators.
type callersHTTP struct{ n *Node }

// Identify implements server.Callers.
func (c callersHTTP) Identify(r *http.Request) (access.Principal, error) {
	who, err := c.n.guard.sessions.HTTP(c.n.guard.admin, r)
	// The right may have been granted while the node was down. A probe must not wait, so the caller has to ask again.
	if err == nil && who.Kind == access.KindUser && !c.Allows(who, access.Read) && !c.n.isCurrent() {
		return access.Principal{}, server.ErrNotCurrent
	}
	return who, err
}

// Allows implements server.Callers.
func (c callersHTTP) Allows(who access.Principal, right access.Rights) bool {
	return c.n.policy().AllowsCluster(who, right)
}

// Administration by a user who does not administer the cluster, such as creating a table or changing the own password. Each
// request has two entries of about 300 bytes, so one user needs fifty days to fill the 256 MiB of the log and push older
// entries out.
const (
	recordedEvery = 10 * time.Second
	recordedBurst = 60
)

// admitAdministration bounds how often a user may do what the audit log records. Whoever administers the cluster can
// do worse than fill the log, and provisioning must not wait.
func (n *Node) admitAdministration(ctx context.Context) error {
	who, _ := access.FromContext(ctx)
	if who.Kind != access.KindUser || n.policy().AllowsCluster(who, access.Admin) {
		return nil
	}
	wait := n.guard.recorded.Take(who.String(), time.Now())
	if wait == 0 {
		return nil
	}
	err := rhumb.Ef("node.admitAdministration", rhumb.Overloaded, "%s sends many administrative requests, each of which the audit log keeps; the next one is accepted in %v. "+
		"The right to administer the cluster lifts this limit", who, wait.Round(time.Second))
	err.RetryAfter = wait
	return err
}

// recordRevocations records what the metadata has revoked or distrusted since the last call. The first call of a life records nothing:
// the copy on the disk of the node is old news, and the former life recorded it.
func (n *Node) recordRevocations(s *catalog.Security) {
	g := &n.guard
	first := g.revoked == nil
	// Built from scratch, so that what the metadata forgets after the certificate has expired is
	// forgotten here too.
	now := make(map[string]bool, len(s.Revoked)+len(s.Distrusted))
	note := func(key string, e audit.Event) {
		now[key] = true
		if !first && !g.revoked[key] {
			e.Kind = audit.Revoke
			g.audit.Note(e)
		}
	}
	for _, r := range s.Revoked {
		if r.Serial == "" {
			before := r.At.UTC().Format(time.RFC3339)
			note("bearer "+r.Name+" "+before, audit.Event{Action: "bearer", Object: r.Name + " before " + before, Detail: r.Why})
			continue
		}
		note("certificate "+r.Serial, audit.Event{Action: "certificate", Object: strings.TrimSpace("serial " + r.Serial + " " + r.Name), Detail: r.Why})
	}
	for _, fingerprint := range s.Distrusted {
		note("authority "+fingerprint, audit.Event{Action: "authority", Object: "authority " + fingerprint})
	}
	g.revoked = now
}

// MayRead implements server.Callers.
func (c callersHTTP) MayRead(who access.Principal, table string) bool {
	return c.n.policy().Of(who).Allows(access.Read, table, nil)
}

// record records an administrative request.
func (n *Node) record(ctx context.Context, e audit.Event) error {
	e.Policy = n.policy().Revision()
	return n.guard.audit.Append(ctx, e)
}

// Record implements server.Callers.
func (c callersHTTP) Record(ctx context.Context, e audit.Event) error { return c.n.record(ctx, e) }

var _ server.Callers = callersHTTP{}
