package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/cli/doctor"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/cli/probe"
	"github.com/rhumbdb/rhumb/cli/upgrade"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/node"
	"github.com/rhumbdb/rhumb/node/publish"
	"github.com/rhumbdb/rhumb/snapshot"
)

// doctorDoc is the document of `rhumb doctor`.
type doctorDoc struct {
	// Wrong and Warnings count the findings of these levels.
	Wrong    int `json:"wrong"`
	Warnings int `json:"warnings"`
	// Findings are all findings, also those that found nothing wrong.
	Findings []doctor.Finding `json:"findings"`
}

// doctorFlags describe the node that this machine runs or will run.
type doctorFlags struct {
	// dirs are the data directories, and join the nodes to reach. Both may be empty.
	dirs, join []string
	// memory is in bytes; 0 means the default of the node.
	memory flags.ByteSize
	// imageDir is the folder for images, and imageMiB their maximum size in MiB.
	imageDir string
	imageMiB int64
	// local skips everything that needs the network.
	hugePages, local bool
	// The addresses are those of `rhumb start`, where they have the same names except for listen.
	listen, heartbeatAddr, gossipAddr, adminAddr string
	// authority is HOST[:PORT]; empty means that no authority is looked at.
	authority string
}

// doctorCommand returns `rhumb doctor`. It has the flags of a connection and those flags of `rhumb
// start` that matter to the machine. The address of the node is --listen, because --addr names the
// cluster to connect to.
func doctorCommand(s *session) *cobra.Command {
	var f doctorFlags
	c := &cobra.Command{
		Use: "doctor", Short: "Check this machine, its node and the way to the other nodes",
		Long: `Check what a node needs from this machine (limits, memory, disks, shared memory, clock, ports), the certificates, and the
cluster: which nodes answer on which ports, whether clocks and versions agree. Each finding comes with a remedy. The flags of
the node are those of rhumb start, and the configuration file sets them too; before the node exists, --join names others.

The command changes nothing. It writes a small file to each --dir to measure the disk, and removes it. It exits with code 1
if something is wrong; warnings do not count.`,
		Example: `  rhumb doctor
  rhumb doctor --local --dir /var/lib/rhumb --memory 8GiB
  rhumb doctor --dir /var/lib/rhumb --join eu-1.example.net,us-1.example.net --ca ca.crt
  rhumb doctor --context prod -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return examine(cmd.Context(), s, f) },
	}
	f.register(c.Flags())
	flags.Positive(c.Flags(), "snapshot-budget")
	return s.connected(c)
}

// register adds the flags of the node.
// The defaults in the help are those of the node, so that both cannot differ.
func (f *doctorFlags) register(fl *pflag.FlagSet) {
	var defaults node.Config
	defaults.SetDefaults()
	fl.StringSliceVar(&f.dirs, "dir", nil, "data directory of the node; repeat the flag for more")
	fl.Var(&f.memory, "memory", "maximum memory of the node, such as 4GiB")
	flags.Default(fl, "memory", "half of the machine's or the control group's")
	fl.StringVar(&f.imageDir, "snapshot-dir", "", "folder for images of published tables")
	flags.Default(fl, "snapshot-dir", publish.DirDefault)
	fl.Int64Var(&f.imageMiB, "snapshot-budget", 0, "maximum size of the image, in MiB")
	flags.Default(fl, "snapshot-budget", strconv.Itoa(snapshot.BudgetDefault>>20))
	fl.BoolVar(&f.hugePages, "snapshot-huge-pages", false, "the node asks for huge pages")
	fl.StringVar(&f.listen, "listen", "", "address at which the node serves clients and nodes")
	flags.Default(fl, "listen", defaults.Addr)
	fl.StringVar(&f.heartbeatAddr, "heartbeat-addr", "", "address of the node for heartbeats")
	flags.Default(fl, "heartbeat-addr", defaults.HeartbeatAddr)
	fl.StringVar(&f.gossipAddr, "gossip-addr", "", "address of the node for gossip")
	flags.Default(fl, "gossip-addr", defaults.GossipAddr)
	fl.StringVar(&f.adminAddr, "admin-addr", "", "address of the node for operators")
	flags.Default(fl, "admin-addr", defaults.AdminAddr)
	fl.StringSliceVar(&f.join, "join", nil, "nodes to reach, as the node will join them: HOST[:PORT]")
	fl.StringVar(&f.authority, "authority", "", "HOST[:PORT] of the authority that issues certificates")
	fl.BoolVar(&f.local, "local", false, "check this machine only")
}

// examine gathers the facts, judges them and prints the findings. The exit code says only whether
// something is wrong, so that a script can use it before a node is started; warnings are for
// people.
func examine(ctx context.Context, s *session, f doctorFlags) error {
	facts := f.gather(ctx, s)
	// Judge sees nothing but the facts, so its rules can be tested without a machine.
	findings := doctor.Judge(facts)
	doc := doctorDoc{doctor.Count(findings, doctor.Wrong), doctor.Count(findings, doctor.Warning), findings}
	err := s.Print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"LEVEL", "AREA", "CHECK", "WHAT"})
		for _, d := range doc.Findings {
			level := string(d.Level)
			// Capitals make a fault stand out in a long list.
			if d.Level == doctor.Wrong {
				level = "WRONG"
			}
			t.AppendRow(table.Row{level, d.Area, d.Check, d.What})
			if d.Remedy != "" {
				t.AppendRow(table.Row{"", "", "remedy", d.Remedy})
			}
		}
	})
	// The findings are printed in full before the error, which sets the exit code.
	if err == nil && doc.Wrong > 0 {
		err = rhumb.Ef("rhumb.doctor", rhumb.Other, "%s wrong, %s", output.Counted(doc.Wrong, "thing is", "things are"),
			output.Counted(doc.Warnings, "warning", "warnings"))
	}
	return err
}

// gather collects the facts about the machine and, unless --local is set, about the cluster.
func (f *doctorFlags) gather(ctx context.Context, s *session) *doctor.Facts {
	// The flag is in MiB, and 0 is its default.
	budget := cmp.Or(f.imageMiB<<20, snapshot.BudgetDefault)
	facts := &doctor.Facts{
		Now: time.Now(), Version: describeVersion().Version, Clock: probe.ClockState(),
		Machine: probe.Machine(int64(f.memory), budget, f.hugePages), Shm: probe.Shm(cmp.Or(f.imageDir, publish.DirDefault), budget),
	}
	for _, dir := range f.dirs {
		facts.Disks = append(facts.Disks, probe.Disk(dir))
		// A directory without an identity is that of a node that has not enrolled, which is not wrong.
		if files, ok := identityIn(dir); ok {
			facts.Identities = append(facts.Identities, probe.Identity("node in "+dir, files, identity.RoleNode))
		}
	}
	if s.conn.CA != "" {
		facts.Identities = append(facts.Identities, probe.Identity("this command", identity.Files{Cert: s.conn.Cert, Key: s.conn.Key, CA: s.conn.CA}))
	}
	// These need the network.
	if !f.local {
		f.gatherCluster(ctx, s, facts)
		f.gatherPeers(ctx, s, facts)
		f.gatherAuthority(ctx, s, facts)
		// All ports are dialled together: a firewall that drops packets costs the full timeout for each of them.
		probe.Dial(ctx, facts.Reaches)
	}
	// Last, because a ping of the ports on this machine names the nodes that use them, and the node
	// may have been started meanwhile.
	f.gatherBinds(ctx, s, facts)
	return facts
}

// identityIn returns the files of a node's identity in its first data directory, where enrolment
// puts them. ok is false before the enrolment.
func identityIn(dir string) (identity.Files, bool) {
	at := filepath.Join(dir, "identity")
	files := identity.Files{Cert: filepath.Join(at, "node.crt"), Key: filepath.Join(at, "node.key"), CA: filepath.Join(at, "ca.crt")}
	_, err := os.Stat(at)
	return files, err == nil
}

// gatherBinds tries the ports of the node. A port that is in use is free for the node that runs
// there.
func (f *doctorFlags) gatherBinds(ctx context.Context, s *session, facts *doctor.Facts) {
	if f.bindsOfMembers(facts) {
		return
	}
	// The defaults are those of the node, filled in here for the flags that were left out.
	var defaults node.Config
	defaults.SetDefaults()
	listen := cmp.Or(f.listen, defaults.Addr)
	gossip := cmp.Or(f.gossipAddr, defaults.GossipAddr)
	// Gossip needs its port for TCP and for UDP.
	facts.Binds = []doctor.Bind{
		probe.Bind("clients", "tcp", listen),
		probe.Bind("heartbeats", "tcp", cmp.Or(f.heartbeatAddr, defaults.HeartbeatAddr)),
		probe.Bind("gossip", "tcp", gossip),
		probe.Bind("gossip", "udp", gossip),
		probe.Bind("admin", "tcp", cmp.Or(f.adminAddr, defaults.AdminAddr)),
	}
	// If the port of clients is free, the node does not run, and nobody can be asked.
	if !facts.Binds[0].InUse {
		return
	}
	// The node on this port is asked who it is with the identity of the caller. Without one, the
	// connection is insecure, which works only for a node that is too.
	here := s.conn
	here.Addrs, here.LatencyFile = []string{listen}, ""
	if s.conn.CA == "" {
		here.Insecure = true
	}
	for _, pong := range pingNodes(ctx, here) {
		// One process owns all these ports, so the answer on the first one names the owner of the others.
		if pong.Err == nil {
			for i := range facts.Binds {
				facts.Binds[i].Node = nameOfPong(pong)
			}
		}
	}
}

// bindsOfMembers fills in the ports of the nodes of the cluster that run on this machine, and reports whether it did. It does nothing if
// a flag describes a node of this machine: then the question is whether that one can start.
func (f *doctorFlags) bindsOfMembers(facts *doctor.Facts) bool {
	if len(f.dirs)+len(f.join) > 0 || cmp.Or(f.listen, f.heartbeatAddr, f.gossipAddr, f.adminAddr) != "" {
		return false
	}
	// facts.Reaches holds the ports of the members, which have been dialled by now. A port that did not answer is reported there.
	for _, r := range facts.Reaches {
		if r.Network == "tcp" && r.Err == "" && isOwnAddress(r.Addr) {
			facts.Binds = append(facts.Binds, doctor.Bind{Use: r.Use, Network: r.Network, Addr: r.Addr, InUse: true, Node: "node " + r.Node})
		}
	}
	return len(facts.Binds) > 0
}

// isOwnAddress reports whether an address with a port is one of this machine. Names of hosts are not resolved.
func isOwnAddress(addr string) bool {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return false
	}
	if ap.Addr().IsLoopback() {
		return true
	}
	// Addresses of the interfaces have a prefix length. The address of a node may be an IPv4 address in the form of IPv6.
	own, _ := net.InterfaceAddrs() // without the list, the address counts as foreign
	return slices.ContainsFunc(own, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr() == ap.Addr().Unmap()
	})
}

// pingNodes pings the nodes that flags name. It returns nothing if the flags cannot be used: the
// faults are reported by the checks of the certificates and of the cluster.
func pingNodes(ctx context.Context, conn connect.Flags) []client.Pong {
	cfg, err := conn.Config()
	if err != nil {
		return nil
	}
	pongs, err := client.Ping(ctx, cfg)
	if err != nil {
		return nil
	}
	return pongs
}

// nameOfPong names the node that answered a ping.
func nameOfPong(p client.Pong) string {
	if p.Node == rhumb.NoNode {
		return "a node without a cluster"
	}
	return "node " + p.Node.String()
}

// gatherCluster asks the cluster for its nodes, and the nodes for their state. Without an address
// and without a demo, nobody can be asked.
func (f *doctorFlags) gatherCluster(ctx context.Context, s *session, facts *doctor.Facts) {
	if len(s.conn.Addrs) == 0 && s.conn.Context == "" {
		if layout, err := connect.RunningDemo(); err != nil || layout == nil {
			return
		}
	}
	err := s.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		// Each member answers for itself; the metadata has the addresses.
		statuses := c.Status(ctx)
		regions := regionNames(c)
		report := upgrade.Judge(statuses)
		facts.Upgrade = report.Note()
		for _, st := range statuses {
			facts.Members = append(facts.Members, describeMember(st, regions.nameOf(st.Node.Region)))
			facts.Reaches = append(facts.Reaches, portsOf(st.Node.ID.String(), regions.nameOf(st.Node.Region), st.Node.Addr, st.Node.HeartbeatAddr, st.Node.AdminAddr)...)
		}
		facts.Identities = append(facts.Identities, certificatesInUse(ctx, c)...)
		// A ping goes to every node, and not only to those with which the command connected.
		conn := s.conn
		conn.Addrs = nil
		for _, st := range statuses {
			conn.Addrs = append(conn.Addrs, st.Node.Addr)
		}
		cfg, err := s.conn.Config()
		if err != nil {
			return err
		}
		// The distance of a demo is imitated, so the clocks are asked without it.
		cfg.Addrs, cfg.Dial = conn.Addrs, nil
		pongs, err := client.Ping(ctx, cfg)
		facts.Offsets = append(facts.Offsets, offsetsOf(pongs)...)
		return err
	})
	if err != nil {
		// The error is a fact among others: the checks of the machine are still worth printing.
		facts.ClusterErr = rhumb.Message(err)
	}
}

// certificatesInUse returns the certificates with which the nodes of a cluster
// run. Without TLS there are none, and who may not see them learns nothing:
// each node warns of its own certificate, too.
func certificatesInUse(ctx context.Context, c *client.Client) (ids []doctor.Identity) {
	list, err := c.Certificates(ctx)
	if err != nil {
		return nil
	}
	for _, cert := range list.Certificates {
		// Only certificates of nodes are facts about the cluster, and those that were rejected are not in use.
		if cert.Role != identity.RoleNode.String() || cert.Revoked || cert.Distrusted {
			continue
		}
		ids = append(ids, doctor.Identity{
			Of: "node " + cert.Name, Cert: "serial " + cert.Serial, Name: "the certificate in use", Cluster: c.Cluster().String(), NotBefore: cert.NotBefore, NotAfter: cert.NotAfter,
			WarnBefore: identity.ExpiryWarning(&x509.Certificate{NotBefore: cert.NotBefore, NotAfter: cert.NotAfter}),
		})
	}
	return ids
}

// describeMember returns the answer of a node about itself, in the form of the
// facts, which know nothing of clients.
func describeMember(st client.NodeStatus, region string) doctor.Member {
	// Only nodes that are fenced by the metadata count as Fenced; one that merely does not answer has an Err.
	m := doctor.Member{ID: st.Node.ID.String(), Region: region, Version: st.Node.Build().Program, Fenced: st.Node.State == rhumb.NodeFenced, Err: st.Err}
	// A reason is required, so that the finding never ends in an empty sentence.
	if st.Err == "" && !st.Ready {
		m.NotReady = cmp.Or(st.Reason, "no reason was given")
	}
	for _, id := range st.Suspected {
		m.Suspects = append(m.Suspects, id.String())
	}
	for _, store := range st.Stores {
		m.Stores = append(m.Stores, doctor.Store{Dir: store.Dir, Used: int64(store.UsedBytes), Free: int64(store.FreeBytes)})
	}
	return m
}

// offsetsOf returns what pings say about clocks. The clock of a node that is in no cluster has not
// been compared with others, so it says nothing.
func offsetsOf(pongs []client.Pong) (offsets []doctor.Offset) {
	for _, p := range pongs {
		// A failed ping has no time to compare.
		if p.Err == nil && p.Node != rhumb.NoNode {
			offsets = append(offsets, doctor.Offset{Of: p.Node.String() + " at " + p.Addr, Ahead: p.Ahead, Uncertainty: p.Uncertainty})
		}
	}
	return offsets
}

// portsOf returns the ports of a node that this machine must reach. The metadata does not hold the
// address for gossip, so it is looked for only where the ports follow each other as the default
// ones do.
func portsOf(id, region, addr, heartbeatAddr, adminAddr string) []doctor.Reach {
	reaches := []doctor.Reach{
		{Node: id, Region: region, Use: "clients", Network: "tcp", Addr: addr},
		{Node: id, Region: region, Use: "heartbeats", Network: "tcp", Addr: heartbeatAddr},
		{Node: id, Region: region, Use: "admin", Network: "tcp", Addr: adminAddr},
	}
	host, first := splitPort(addr)
	_, second := splitPort(heartbeatAddr)
	_, fourth := splitPort(adminAddr)
	// Nodes that chose other ports for each use are not probed for gossip, rather than at a wrong port.
	if second == first+1 && fourth == first+3 {
		gossip := net.JoinHostPort(host, strconv.Itoa(first+2))
		for _, network := range []string{"tcp", "udp"} {
			reaches = append(reaches, doctor.Reach{Node: id, Region: region, Use: "gossip", Network: network, Addr: gossip})
		}
	}
	return reaches
}

// splitPort splits an address. The port is 0 if there is none, so that no rule about neighbouring
// ports applies.
func splitPort(addr string) (host string, port int) {
	host, text, _ := net.SplitHostPort(addr)
	port, _ = strconv.Atoi(text)
	return host, port
}

// gatherPeers looks at the nodes that --join names. The node may not be in the cluster yet, so only
// their main port is known; the others follow it.
func (f *doctorFlags) gatherPeers(ctx context.Context, s *session, facts *doctor.Facts) {
	for _, peer := range f.join {
		addr := withPort(peer, node.DefaultPort)
		host, port := splitPort(addr)
		at := func(n int) string { return net.JoinHostPort(host, strconv.Itoa(port+n)) }
		// Members that the cluster itself named are there already, with their real ports.
		known := slices.ContainsFunc(facts.Reaches, func(r doctor.Reach) bool { return r.Addr == addr })
		if !known {
			facts.Reaches = append(facts.Reaches, portsOf("a node", host, addr, at(1), at(3))...)
			// A copy, so that the flags of the command still name the cluster.
			conn := s.conn
			conn.Addrs = []string{addr}
			facts.Offsets = append(facts.Offsets, offsetsOf(pingNodes(ctx, conn))...)
		}
	}
}

// withPort adds a port to an address that has none.
func withPort(addr string, port int) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	// Brackets around an IPv6 address are removed, because JoinHostPort adds them.
	return net.JoinHostPort(strings.Trim(addr, "[]"), strconv.Itoa(port))
}

// authorityPort is the default port of the authority.
const authorityPort = 7605

// gatherAuthority looks at the authority: a node whose clock differs from its clock gets
// certificates that are not valid yet.
func (f *doctorFlags) gatherAuthority(ctx context.Context, s *session, facts *doctor.Facts) {
	if f.authority == "" {
		return
	}
	addr := withPort(f.authority, authorityPort)
	facts.Reaches = append(facts.Reaches, doctor.Reach{Node: "the authority", Region: "the authority", Use: "enrolment", Network: "tcp", Addr: addr})
	// An authority that cannot be reached is reported by the probe of its port, so the error is dropped.
	if offset, err := probe.AuthorityClock(ctx, addr, s.conn.CA); err == nil {
		facts.Offsets = append(facts.Offsets, offset)
	}
}
