package node

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/memory"
	"github.com/rhumbdb/rhumb/node/publish"
	"github.com/rhumbdb/rhumb/wan"
)

// Default ports. A node listens on four: clients and peers, the heartbeats of peers, gossip, and HTTP for operators.
const (
	DefaultPort          = 7600
	DefaultHeartbeatPort = 7601
	DefaultGossipPort    = 7602
	DefaultAdminPort     = 7603
)

// Config is what one node needs to run.
type Config struct {
	// Dirs are the node's data directories, one per disk; at least one. Ranges are spread over them.
	Dirs []string
	// AcceptLostStores holds the numbers, from 1, of directories whose disk is lost for good. The node begins a new life
	// without what they held; without this a directory that came back empty is refused.
	AcceptLostStores []int
	// Region is the name of the node's region: letters, digits and '-'.
	Region string
	// Location is where the node stands. The first node of a region gives the region its location.
	Location rhumb.Point
	// Zone is the failure domain within the region; replicas of a range are kept in different zones. Default "a".
	Zone string
	// Addr, HeartbeatAddr, GossipAddr and AdminAddr are the "host:port" to listen on. Defaults: the default ports on
	// 127.0.0.1. Port 0 takes a free one.
	Addr, HeartbeatAddr, GossipAddr, AdminAddr string
	// Join lists gossip addresses of other nodes. Empty waits to be initialised, or to be joined by others.
	Join []string
	// Insecure turns TLS and authorisation off and allows loopback addresses only. TLS does not exist yet, so it must be
	// set: nothing in plain text is ever offered to another machine.
	Insecure bool
	// WAN puts distance between regions, for demos and tests on one machine; nil is none.
	WAN *wan.Network
	// MemoryBytes is how much memory the node may take, without its image in shared memory; memory.Split divides it. Default:
	// half of what the machine or the control group has, as if it were the only node.
	MemoryBytes int64
	// CacheBytes is the size of the block cache, shared by all stores. Default: its part of MemoryBytes.
	CacheBytes int64
	// DrainTimeout bounds how long Drain waits for primaries to move away. Default 10 s.
	DrainTimeout time.Duration
	// Snapshot says where and how the node publishes tables in shared memory.
	Snapshot SnapshotConfig
	// Wall reads the wall clock; nil is time.Now.
	Wall func() time.Time
	// Version is the version of the program, shown by `node ls`.
	Version string
	// Logger takes events. Default slog.Default().
	Logger *slog.Logger
	// Fatal is called when the node cannot go on, for example because its disk fails. It must not return. Default: exit
	// with status 1.
	Fatal func(err error)
}

// SnapshotConfig says where and how a node publishes tables in shared memory. The zero value works.
type SnapshotConfig struct {
	// Dir is the folder of all images of the machine; default publish.DirDefault. The node's is <Dir>/<cluster>/<node>.
	Dir string
	// Policy says when a version is published; by default as soon as something is committed.
	Policy publish.Policy
	// Budget bounds the bytes of the image; default snapshot.BudgetDefault. OverdueMax bounds what readers keep for longer than
	// Leash, beside it; default Budget. Leash must not be less than readers' own; default snapshot.LeashDefault.
	Budget, OverdueMax int64
	Leash              time.Duration
	// HugePages asks for huge pages, GroupReadable shuts out readers that are not of the files' group.
	HugePages, GroupReadable bool
}

// SetDefaults fills what was left empty.
func (c *Config) SetDefaults() {
	addr := func(s *string, port int) {
		if *s == "" {
			*s = fmt.Sprintf("127.0.0.1:%d", port)
		}
	}
	addr(&c.Addr, DefaultPort)
	addr(&c.HeartbeatAddr, DefaultHeartbeatPort)
	addr(&c.GossipAddr, DefaultGossipPort)
	addr(&c.AdminAddr, DefaultAdminPort)
	if c.Zone == "" {
		c.Zone = "a"
	}
	if c.MemoryBytes == 0 {
		c.MemoryBytes = memory.Default(1)
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Memory divides MemoryBytes among the node's uses.
func (c *Config) Memory() (memory.Parts, error) {
	return memory.Split(c.MemoryBytes, c.CacheBytes, max(len(c.Dirs), 1))
}

// Validate lists everything that is wrong with the configuration.
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
	if err := c.Location.Validate(); err != nil {
		fault(true, "location: %v", err)
	}
	if err := c.Snapshot.Policy.Validate(); err != nil {
		fault(true, "snapshot: %v", err)
	}
	if _, err := c.Memory(); err != nil {
		fault(true, "memory: %v", err)
	}
	fault(c.Snapshot.Budget < 0, "snapshot: the budget is %d bytes, want 0 or more", c.Snapshot.Budget)
	fault(c.Snapshot.OverdueMax < 0, "snapshot: the bound of overdue files is %d bytes, want 0 or more", c.Snapshot.OverdueMax)
	fault(c.Snapshot.Leash < 0, "snapshot: the leash is %v, want 0 or more", c.Snapshot.Leash)
	fault(!c.Insecure, "TLS does not exist yet; say --insecure, which binds loopback addresses only")
	for _, a := range []struct{ flag, addr string }{
		{"--addr", c.Addr}, {"--heartbeat-addr", c.HeartbeatAddr}, {"--gossip-addr", c.GossipAddr}, {"--admin-addr", c.AdminAddr},
	} {
		if err := loopback(a.addr); err != nil {
			fault(true, "%s: %v", a.flag, err)
		}
	}
	for _, a := range c.Join {
		if err := loopback(a); err != nil {
			fault(true, "--join: %v", err)
		}
	}
	if len(faults) > 0 {
		return rhumb.E(op, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// loopback refuses an address that another machine could reach.
func loopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is not host:port", addr)
	}
	if host == "localhost" {
		return nil
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("%q is not a loopback address, and an insecure node offers nothing elsewhere", addr)
	}
	return nil
}
