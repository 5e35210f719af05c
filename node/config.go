package node

import (
	"fmt"
	"log/slog"
	"net"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/node/digest"
	"github.com/rhumbdb/rhumb/node/memory"
	"github.com/rhumbdb/rhumb/node/publish"
	"github.com/rhumbdb/rhumb/node/transfer"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/wan"
)

// Default ports. A node listens on four ports: for clients and peers, for heartbeats of peers, for
// gossip, and for HTTP requests of operators. Heartbeats have a port of their own so that they
// never wait for a large append or a snapshot.
const (
	DefaultPort          = 7600
	DefaultHeartbeatPort = 7601
	DefaultGossipPort    = 7602
	DefaultAdminPort     = 7603
)

// Config configures a node.
type Config struct {
	// Dirs holds the data directories of the node, one per disk; at least one. Ranges are spread
	// over them. The metadata is in the first.
	Dirs []string
	// AcceptLostStores holds the numbers, from 1, of directories whose disk is lost for good. The
	// node begins a new life without their data. A directory that is empty without being listed
	// here is rejected: acknowledgements of this node relied on its contents.
	AcceptLostStores []int
	// NodeLog equips each store with a log of its own (package nodelog). A store that has one keeps it; one that was written by an earlier build gets it at its
	// first start after the cluster version allows it.
	NodeLog bool
	// Region is the name of the node's region: letters, digits and '-'.
	Region string
	// Location is the location of the node. The first node of a region determines the location of
	// the region.
	Location rhumb.Point
	// Zone is the failure domain within the region; replicas of a range are placed in different
	// zones. Default "a".
	Zone string
	// Witness makes a new node one that votes in the metadata group and never holds data.
	Witness bool
	// Addr, HeartbeatAddr, GossipAddr and AdminAddr are the "host:port" to listen on. Defaults: the
	// default ports on 127.0.0.1, or on all interfaces if Advertise is set. Port 0 selects a free port.
	Addr, HeartbeatAddr, GossipAddr, AdminAddr string
	// Join lists addresses of other nodes, as in their Addr; the default port may be left out. If it is
	// empty, the node waits for Init or for another node that joins it.
	Join []string
	// Identity names the certificate, the key and the authorities of the node. Default: the files in the folder IdentityDir of
	// the first directory.
	Identity identity.Files
	// Insecure turns TLS and authorisation off and allows loopback addresses only. A store that was once served with TLS is
	// never served without it again.
	Insecure bool
	// Advertise is the host under which others reach the node, or a list of PORT=HOST[:NUMBER] (see parseAdvertise). It is
	// required if a port binds all interfaces. Default: the bound addresses.
	Advertise string
	// Founder makes a node without a cluster create the one in its certificate, unless a node that it joins belongs to it already.
	Founder bool
	// Founded says that this node created its cluster in a former life of its directory, and so does not create it again although its
	// data is gone.
	Founded bool
	// OnFounded is called each time when a founder is in its cluster. It records what Founded says; nil records nothing.
	OnFounded func() error
	// Collectors holds further metrics for the admin port, such as those
	// of the renewal of the certificate.
	Collectors []prometheus.Collector
	// WAN simulates the distance between regions, for demos and tests on one machine. Nil simulates
	// nothing.
	WAN *wan.Network
	// MemoryBytes bounds the memory of the node, without its image in shared memory; memory.Split
	// divides it. Default: half of the limit of the machine or the control group, as if no other
	// node ran there.
	MemoryBytes int64
	// CacheBytes is the size of the block cache, shared by all stores. Default: the cache part of
	// MemoryBytes.
	CacheBytes int64
	// ReadFaults makes reads of the disk fail, for tests. Nil means none.
	ReadFaults *storage.ReadFaults
	// DrainTimeout bounds how long Drain waits for primaries to move away. Default 10 s.
	DrainTimeout time.Duration
	// HealAfter is how long the node keeps a damaged copy of a range in service as quarantined before it
	// replaces the copy by one from another node, if enough copies are intact. Default 30 s; a negative
	// value leaves that to operators.
	HealAfter time.Duration
	// LogKeep bounds the log that each range keeps for replicas that lag, in bytes; a replica that
	// lags further copies the range as a whole. Default rhumb.LogKeepRange.
	LogKeep int64
	// VerifyInterval is how often the replicas of each range are compared; default digest.IntervalDefault.
	// Negative: only when an operator asks. VerifyRate bounds, in bytes per second, what the node reads for
	// that; default digest.RateDefault. A negative value means no bound.
	VerifyInterval time.Duration
	VerifyRate     int64
	// TransferRate bounds, in bytes per second and in each direction, the copies of ranges that the
	// node receives and sends; default transfer.RateDefault. A negative value means no bound.
	TransferRate int64
	// Limits bounds what callers can take of the node.
	Limits LimitsConfig
	// Snapshot configures the tables that the node publishes in shared memory.
	Snapshot SnapshotConfig
	// Wall reads the wall clock. Nil means time.Now.
	Wall func() time.Time
	// Version is the version of the program, shown by `node ls`.
	Version string
	// Logger receives events. Default slog.Default().
	Logger *slog.Logger
	// Fatal is called when the node cannot continue, for example because its disk fails. It must
	// not return. Default: exit with status 1.
	Fatal func(err error)
}

// SnapshotConfig configures the tables that a node publishes in shared memory. The zero value is
// valid.
type SnapshotConfig struct {
	// Dir is the folder of all images of the machine; default publish.DirDefault. The image of this
	// node is in <Dir>/<cluster>/<node>.
	Dir string
	// Policy decides when a version is published; by default after each commit.
	Policy publish.Policy
	// Budget bounds the bytes of the image; default snapshot.BudgetDefault. OverdueMax bounds the
	// bytes that readers hold for longer than Leash, in addition to Budget; default Budget. Leash
	// must not be less than the leash of the readers; default snapshot.LeashDefault.
	Budget, OverdueMax int64
	Leash              time.Duration
	// HugePages asks for huge pages. GroupReadable excludes readers outside the group of the files.
	// Without Insecure, it is set by default.
	HugePages, GroupReadable bool
	// Group is the name or number of the group of the files, "" for that of the process.
	Group string
}

// groupNumber returns the number of a group, which is given by name or by number.
func groupNumber(group string) (int, error) {
	const op rhumb.Op = "node.groupNumber"
	if group == "" {
		return 0, nil
	}
	// A container may have numbers without names.
	if id, err := strconv.Atoi(group); err == nil && id > 0 {
		return id, nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, rhumb.Ef(op, rhumb.InvalidArgument, "--snapshot-group: there is no group %q on this machine; create it, or give its number", group)
	}
	id, err := strconv.Atoi(g.Gid)
	return id, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
}

// SetDefaults sets fields that have no value.
func (c *Config) SetDefaults() {
	// Loopback, because an insecure node must not listen elsewhere, and a secure one only where it was asked to.
	host := "127.0.0.1"
	if c.Advertise != "" && !c.Insecure {
		host = "0.0.0.0"
	}
	addr := func(s *string, port int) {
		if *s == "" {
			*s = fmt.Sprintf("%s:%d", host, port)
		}
	}
	addr(&c.Addr, DefaultPort)
	addr(&c.HeartbeatAddr, DefaultHeartbeatPort)
	addr(&c.GossipAddr, DefaultGossipPort)
	addr(&c.AdminAddr, DefaultAdminPort)
	if c.Identity.IsZero() && !c.Insecure && len(c.Dirs) > 0 {
		c.Identity = DefaultIdentity(c.Dirs[0])
	}
	// A copy, because the caller may use its list for several nodes.
	c.Join = slices.Clone(c.Join)
	for i, a := range c.Join {
		c.Join[i] = joinAddr(a)
	}
	// Everybody on the machine may read the images of an insecure node, and of no other.
	if !c.Insecure {
		c.Snapshot.GroupReadable = true
	}
	if c.Zone == "" {
		c.Zone = "a"
	}
	if c.MemoryBytes == 0 {
		c.MemoryBytes = memory.Default(1)
	}
	if c.VerifyInterval == 0 {
		c.VerifyInterval = digest.IntervalDefault
	}
	if c.VerifyRate == 0 {
		c.VerifyRate = digest.RateDefault
	}
	if c.TransferRate == 0 {
		c.TransferRate = transfer.RateDefault
	}
	if c.HealAfter == 0 {
		c.HealAfter = 30 * time.Second
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Memory returns how MemoryBytes is divided among the uses of memory.
func (c *Config) Memory() (memory.Parts, error) {
	return memory.Split(c.MemoryBytes, c.CacheBytes, max(len(c.Dirs), 1))
}

// Validate reports all faults of the configuration in one error, so that an operator corrects them
// in one go.
func (c *Config) Validate() error {
	const op rhumb.Op = "node.Config"
	var faults []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(len(c.Dirs) == 0, "no data directory; give --dir")
	fault(rhumb.ValidateTableName(c.Region) != nil, "region name %q: want 1 to %d letters, digits, '_', '-' and '.'; give --region", c.Region, rhumb.TableNameSizeMax)
	// A node that registers creates its region and its zone.
	for what, name := range map[string]string{"region": c.Region, "zone": c.Zone} {
		if err := rhumb.ValidateNewName(what, name); err != nil {
			fault(true, "%s; give --%s", rhumb.Message(err), what)
		}
	}
	if err := c.Location.Validate(); err != nil {
		fault(true, "location: %s", rhumb.Message(err))
	}
	if err := c.Snapshot.Policy.Validate(); err != nil {
		fault(true, "snapshot: %s", rhumb.Message(err))
	}
	if _, err := c.Memory(); err != nil {
		fault(true, "memory: %s", rhumb.Message(err))
	}
	fault(c.LogKeep < 0, "the log to keep is %d bytes; it must be 0 for the default, or more", c.LogKeep)
	c.Limits.validate(fault)
	fault(c.Snapshot.Budget < 0, "snapshot: the budget is %d bytes, want 0 or more", c.Snapshot.Budget)
	fault(c.Snapshot.OverdueMax < 0, "snapshot: the bound of overdue files is %d bytes, want 0 or more", c.Snapshot.OverdueMax)
	fault(c.Snapshot.Leash < 0, "snapshot: the leash is %v, want 0 or more", c.Snapshot.Leash)
	for _, why := range c.addressFaults() {
		fault(true, "%s", why)
	}
	if len(faults) > 0 {
		return rhumb.E(op, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// addressFaults returns what is wrong with the addresses and the identity.
func (c *Config) addressFaults() (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	hosts, err := parseAdvertise(c.Advertise)
	if err != nil {
		fault("--advertise: %s", rhumb.Message(err))
	}
	if c.Insecure && !c.Identity.IsZero() {
		fault("--insecure and a certificate exclude each other; leave out --insecure to use TLS")
	}
	if c.Insecure && c.Founder {
		fault("a node that is started with --insecure founds no cluster; run rhumb init")
	}
	for _, a := range []struct{ flag, port, addr string }{
		{"--addr", "main", c.Addr}, {"--heartbeat-addr", "heartbeat", c.HeartbeatAddr}, {"--gossip-addr", "gossip", c.GossipAddr}, {"--admin-addr", "admin", c.AdminAddr},
	} {
		others := advertise(hosts, a.port, a.addr)
		switch _, _, err := net.SplitHostPort(a.addr); {
		case err != nil:
			fault("%s: %q is not host:port", a.flag, a.addr)
		case c.Insecure && checkLoopback(a.addr) != nil:
			fault("%s: %v", a.flag, checkLoopback(a.addr))
		case c.Insecure && checkLoopback(others) != nil:
			fault("--advertise: %v", checkLoopback(others))
		case isUnspecified(others):
			fault("%s: others cannot connect to %s; give the host that they connect to: --advertise HOST", a.flag, a.addr)
		}
	}
	// The node also sends plain text to the nodes that it joins, not only to those that connect to
	// it.
	for _, a := range c.Join {
		if err := checkLoopback(a); c.Insecure && err != nil {
			fault("--join: %v", err)
		}
	}
	return faults
}

// checkLoopback rejects an address that another machine could reach.
func checkLoopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is not host:port", addr)
	}
	// localhost is accepted without resolving it: the check must not depend on a name server.
	if host == "localhost" {
		return nil
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("%q is not a loopback address, and an insecure node offers nothing elsewhere", addr)
	}
	return nil
}
