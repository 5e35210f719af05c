package raftmeta

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/place"
	"github.com/rhumbdb/rhumb/sched"
)

// GroupID numbers a Raft group. Group 0 holds the catalog.
type GroupID uint32

// Bounds of a group.
const (
	// CommandSizeMax bounds one encoded command, in bytes.
	CommandSizeMax = 4 << 20
	// PendingMax bounds the proposals that wait for their result at a leader.
	PendingMax = 4_096
	// ReadsMax bounds the linearizable reads that wait at a node.
	ReadsMax = 4_096
	// asksMax bounds the questions about a replica's state that wait for its driver.
	asksMax = 64
	// InboxMax bounds the received messages that wait; more are dropped, as a network may.
	InboxMax = 4_096
	// FragmentSize is the size in bytes above which a message (a state transfer) is sent in parts.
	FragmentSize = 1 << 20
	// StateSizeMax bounds an encoded state, in bytes.
	StateSizeMax = 256 << 20
	// WatchPendingMax bounds the changed records that a watch remembers for a reader who lags; above it the reader gets
	// a full update.
	WatchPendingMax = 4_096
)

// NearMax is the longest round trip between voters that are near each other.
const NearMax = 50 * time.Millisecond

// Transport carries messages to other nodes. Package node/peer implements it.
type Transport interface {
	// Send sends messages in order, as one unit where it can. It does not block, keeps no bytes after it returns unless it
	// copies them, and drops what it cannot send: Raft repeats. Each message goes to Group.Step at the other side.
	Send(to rhumb.NodeID, group GroupID, messages [][]byte)
	// Forward sends a request to Group.Handle at the other side and gives its response. An error of kind Unavailable says
	// that the request certainly was not handled.
	Forward(ctx context.Context, to rhumb.NodeID, group GroupID, request []byte) (response []byte, err error)
}

// Config configures a Group. DefaultConfig gives the defaults; Group, Node, KV and Transport have none.
type Config struct {
	Group     GroupID
	Node      rhumb.NodeID
	KV        KV
	Transport Transport
	// Short says that the disk under KV is known to have lost something that it had made durable.
	Short bool
	// Restarted says that this is not the node's first start. A replica whose KV is empty then asks the others what it may have
	// promised: its disk may be an older copy of itself.
	Restarted bool
	// Hasty lets a simulator break a rule on purpose: the replica takes part before it has heard what it may have promised.
	// False in every node that serves.
	Hasty bool

	// Tick is Raft's unit of time, and the period of the leader's heartbeats; default 100 ms. NearTick takes its place while
	// all voters are near, if it is shorter; default 60 ms. With ElectionTicks they make the times after which pairs of nodes
	// suspect each other (section 1.9).
	Tick, NearTick time.Duration
	// ElectionTicks without a leader start an election; default 10.
	ElectionTicks int
	// RTT returns the round trip to another node, and false while it is not known. Without it no voter is near.
	RTT func(rhumb.NodeID) (time.Duration, bool)
	// ContactTimeout is how long the leader hears nothing of a node before it counts as lost; default 1 s.
	ContactTimeout time.Duration
	// AttemptTimeout is how long Propose waits for one leader before it tries again; default 2 s.
	AttemptTimeout time.Duration
	// EvaluateEvery is the period of the controller's look at the evidence, PlanEvery that of its plans; default 50 ms
	// and 500 ms.
	EvaluateEvery, PlanEvery time.Duration
	// Place has the waiting times of the planner.
	Place place.Config
	// LogSize is the number of bytes by which the log grows before it is cut behind a copy of the state, if the last copy was smaller; a
	// larger state lets the log grow to its own size, so that writing states costs no more than writing the log. LogKeep
	// is the number of applied entries that stay for followers that lag a little. Defaults: 8 MiB and 1,000.
	LogSize int
	LogKeep uint64

	// Runtime runs the group; default sched.System.
	Runtime sched.Runtime
	// Logger takes the events; default none.
	Logger *slog.Logger
	// Registerer takes the metrics; default none.
	Registerer prometheus.Registerer
}

// DefaultConfig gives the defaults.
func DefaultConfig() Config {
	return Config{
		Tick: 100 * time.Millisecond, NearTick: 60 * time.Millisecond, ElectionTicks: 10, ContactTimeout: time.Second, AttemptTimeout: 2 * time.Second,
		EvaluateEvery: 50 * time.Millisecond, PlanEvery: 500 * time.Millisecond, Place: place.DefaultConfig(),
		LogSize: 8 << 20, LogKeep: 1_000,
	}
}

// Validate lists everything that is wrong.
func (c *Config) Validate() error {
	const op rhumb.Op = "raftmeta.Config"
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, rhumb.Ef(op, rhumb.InvalidArgument, format, args...))
		}
	}
	fault(c.Node == rhumb.NoNode, "Node is missing")
	fault(c.KV == nil, "KV is missing")
	fault(c.Transport == nil, "Transport is missing")
	fault(c.Tick <= 0 || c.NearTick <= 0, "Tick is %v and NearTick %v, want more than 0", c.Tick, c.NearTick)
	fault(c.ElectionTicks < 3, "ElectionTicks is %d, want at least 3", c.ElectionTicks)
	fault(c.ContactTimeout <= c.Tick, "ContactTimeout is %v, want more than a tick (%v)", c.ContactTimeout, c.Tick)
	fault(c.AttemptTimeout <= 0, "AttemptTimeout is %v, want more than 0", c.AttemptTimeout)
	fault(c.EvaluateEvery <= 0 || c.PlanEvery <= 0, "EvaluateEvery is %v and PlanEvery %v, want more than 0", c.EvaluateEvery, c.PlanEvery)
	fault(c.LogSize <= 0, "LogSize is %d, want more than 0", c.LogSize)
	errs = append(errs, c.Place.Validate())
	return errors.Join(errs...)
}

func (c *Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger.With("group", uint32(c.Group), "node", c.Node)
}
