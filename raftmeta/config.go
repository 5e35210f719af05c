package raftmeta

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
	"github.com/rhumbdb/rhumb/sched"
)

// GroupID identifies a Raft group. Group 0 holds the catalog.
type GroupID uint32

const (
	// CommandSizeMax is the maximum size of an encoded command, in bytes.
	CommandSizeMax = 4 << 20
	// PendingMax bounds the proposals that wait for their result at a leader.
	PendingMax = 4_096
	// ReadsMax bounds the linearizable reads that wait at a node.
	ReadsMax = 4_096
	// asksMax bounds the functions that wait to run in the driver.
	asksMax = 64
	// InboxMax bounds the received messages that wait. More are dropped, as a network may do.
	InboxMax = 4_096
	// FragmentSize is the size in bytes above which a message, usually a state transfer, is sent in
	// parts.
	FragmentSize = 1 << 20
	// StateSizeMax is the maximum size of an encoded state, in bytes. It bounds the memory that a
	// sender of parts can make a receiver allocate.
	StateSizeMax = 256 << 20
	// WatchPendingMax bounds the changed records that a watch holds for a slow reader. Above it the
	// reader gets a full update.
	WatchPendingMax = 4_096
)

// NearMax is the longest round trip between voters that count as near each other.
const NearMax = 50 * time.Millisecond

// Transport carries messages to other nodes. Package node/peer implements it.
type Transport interface {
	// Send sends messages in order, as one unit if possible. It must not block, must copy the bytes
	// that it keeps, and drops everything that it cannot send; Raft repeats. The receiving side
	// passes each message to Group.Step.
	Send(to rhumb.NodeID, group GroupID, messages [][]byte)
	// Forward sends a request to Group.Handle on the other node and returns its response. Kind
	// Unavailable means that the request certainly was not handled: Propose relies on that when it
	// reports an outcome.
	Forward(ctx context.Context, to rhumb.NodeID, group GroupID, request []byte) (response []byte, err error)
}

// Config configures a Group. DefaultConfig returns the defaults; Group, Node, KV and Transport have
// none.
type Config struct {
	Group     GroupID
	Node      rhumb.NodeID
	KV        KV
	Transport Transport
	// Short reports that the disk under KV is known to have lost durable data.
	Short bool
	// Restarted reports that this is not the first start of the node. A replica whose KV is empty
	// then asks the others about its earlier promises, because its disk may be an older copy of
	// itself.
	Restarted bool
	// Hasty lets a simulator break a rule on purpose: the replica takes part before it has asked
	// about its earlier promises. It is false in every node that serves.
	Hasty bool

	// CheckRegistration rejects a registration that another node forwarded to this leader, unless the node
	// that it registers made it. Nil accepts all, as without TLS nobody can tell.
	CheckRegistration func(catalog.RegisterNode) error
	// CheckRevocation rejects a revocation that another node forwarded to this leader. The metadata forgets
	// old revocations by the time of a new one, so a time that is ahead would end others. Nil accepts all.
	CheckRevocation func(rhumb.Revocation) error

	// Tick is Raft's unit of time and the period of the leader's heartbeats; default 100 ms.
	// NearTick replaces it, if shorter, while all voters are near; default 60 ms. Multiplied by
	// ElectionTicks they are the times after which nodes suspect each other
	// (docs/replication.md#timings).
	Tick, NearTick time.Duration
	// ElectionTicks is the number of ticks without a leader after which an election starts; default
	// 10.
	ElectionTicks int
	// RTT returns the round trip to another node, and false while it is unknown. If RTT is nil, no
	// voter counts as near.
	RTT func(rhumb.NodeID) (time.Duration, bool)
	// Clocks returns the comparison of wall clocks that this node has made. A leader whose clock is wrong hands the leadership to a voter whose clock is
	// right, and a voter whose clock is wrong is the last to campaign. If Clocks is nil, all clocks count as right.
	Clocks func() place.Clocks
	// ContactTimeout is the silence after which the leader has lost contact with a node; default 1
	// s.
	ContactTimeout time.Duration
	// AttemptTimeout is how long Propose waits for one leader before it tries again; default 2 s.
	AttemptTimeout time.Duration
	// EvaluateEvery is the interval at which the controller evaluates evidence, PlanEvery the
	// interval at which it plans; default 50 ms and 500 ms.
	EvaluateEvery, PlanEvery time.Duration
	// WallClock returns the time for records of operations; default time.Now.
	WallClock func() time.Time
	// Place holds the waiting times of the planner.
	Place place.Config
	// LogSize is the growth in bytes after which the log is compacted to a copy of the state. If
	// the last copy was larger, the log grows to the size of the copy instead, so that writing
	// states costs no more than writing the log. A start replays the log; a mebibyte holds some
	// 15,000 entries. LogKeep is the number of applied entries that are kept for followers that lag
	// a little; more would need a state transfer. Defaults: 1 MiB and 1,000.
	LogSize int
	LogKeep uint64

	// Runtime runs the group; default sched.System.
	Runtime sched.Runtime
	// Logger receives the events; default none.
	Logger *slog.Logger
	// Registerer receives the metrics; default none.
	Registerer prometheus.Registerer
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Tick: 100 * time.Millisecond, NearTick: 60 * time.Millisecond, ElectionTicks: 10, ContactTimeout: time.Second, AttemptTimeout: 2 * time.Second,
		EvaluateEvery: 50 * time.Millisecond, PlanEvery: 500 * time.Millisecond, Place: place.DefaultConfig(),
		LogSize: 1 << 20, LogKeep: 1_000,
	}
}

// Validate returns an error that lists every fault of the configuration, or nil.
func (c *Config) Validate() error {
	const op rhumb.Op = "raftmeta.Config"
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, rhumb.Ef(op, rhumb.InvalidArgument, format, args...))
		}
	}
	fault(c.Node == rhumb.NoNode, "Node is not set")
	fault(c.KV == nil, "KV is not set")
	fault(c.Transport == nil, "Transport is not set")
	fault(c.Tick <= 0 || c.NearTick <= 0, "Tick is %v and NearTick is %v, but both must be above 0", c.Tick, c.NearTick)
	// With fewer ticks one lost heartbeat would start an election.
	fault(c.ElectionTicks < 3, "ElectionTicks is %d, but must be at least 3", c.ElectionTicks)
	// A healthy node can be silent for a whole tick.
	fault(c.ContactTimeout <= c.Tick, "ContactTimeout is %v, but must be longer than a tick, which is %v", c.ContactTimeout, c.Tick)
	fault(c.AttemptTimeout <= 0, "AttemptTimeout is %v, but must be above 0", c.AttemptTimeout)
	fault(c.EvaluateEvery <= 0 || c.PlanEvery <= 0, "EvaluateEvery is %v and PlanEvery is %v, but both must be above 0", c.EvaluateEvery, c.PlanEvery)
	fault(c.LogSize <= 0, "LogSize is %d, but must be above 0", c.LogSize)
	errs = append(errs, c.Place.Validate())
	return errors.Join(errs...)
}

// logger returns the logger with the group and node as attributes. It never returns nil.
func (c *Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger.With("group", uint32(c.Group), "node", c.Node)
}
