package client

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Bounds of a client. Those of one node are per node.
const (
	// redirectsMax bounds how often one call follows newer descriptors without a pause.
	redirectsMax = 4
	// hopsMax is how often a node may pass a request on when the client cannot send it to the primary itself.
	hopsMax = 2
	// pauseMin and pauseMax bound the pause before a retry; it grows between them and is jittered by half.
	pauseMin = 10 * time.Millisecond
	pauseMax = 500 * time.Millisecond
	// pingTimeout bounds one ping.
	pingTimeout = 2 * time.Second
	// pingsPerRound is how many pings measure one node; the least counts.
	pingsPerRound = 3
	// scanBytesMax bounds the pages that one scan holds, over all its ranges.
	scanBytesMax = 64 << 20
	// scanFetchMax bounds the pages that one scan fetches at once.
	scanFetchMax = 64
)

// Config configures a Client.
type Config struct {
	// Addrs are the "host:port" of some nodes, at least one that works. The others are learnt.
	Addrs []string
	// From is the name of the caller's region. Default: the region of the nearest node.
	From string
	// Dial opens connections, for example through a proxy or a modelled delay. Default: a plain TCP dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Insecure accepts connections without TLS. TLS does not exist yet, so it must be set.
	Insecure bool
	// Timeout is how long a call may take whose context has no deadline. Default 10 s.
	Timeout time.Duration
	// AttemptTimeout is how long one node may take to answer before the call is tried again. Default 3 s.
	AttemptTimeout time.Duration
	// ConnectTimeout bounds Open's search for a node that answers, and later each connection. Default 5 s.
	ConnectTimeout time.Duration
	// RetryBurst and RetryRatio are the retry budget: a retry takes one token, a call that succeeds returns RetryRatio of
	// one, up to RetryBurst. Without tokens, calls fail instead of being tried again, so that a cluster in trouble is
	// not drowned in retries; retryFloor tokens come back each second all the same. Defaults 4096 and 0.2.
	RetryBurst int
	RetryRatio float64
	// HomesMax bounds the homes of named keys that are remembered. Default 65,536.
	HomesMax int
	// MeasureInterval is how often the round trips are measured again. Default 1 min.
	MeasureInterval time.Duration
	// Logger takes events. Default: none.
	Logger *slog.Logger
}

// SetDefaults fills what was left empty.
func (c *Config) SetDefaults() {
	def(&c.Timeout, 10*time.Second)
	def(&c.AttemptTimeout, 3*time.Second)
	def(&c.ConnectTimeout, 5*time.Second)
	def(&c.RetryBurst, 4_096)
	def(&c.RetryRatio, 0.2)
	def(&c.HomesMax, 1<<16)
	def(&c.MeasureInterval, time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func def[T comparable](dst *T, value T) {
	if *dst == *new(T) {
		*dst = value
	}
}

// Validate lists everything that is wrong with the configuration.
func (c *Config) Validate() error {
	const op rhumb.Op = "client.Config"
	var faults []string
	fault := func(bad bool, what string) {
		if bad {
			faults = append(faults, what)
		}
	}
	fault(len(c.Addrs) == 0, "no address of a node; give at least one")
	for _, a := range c.Addrs {
		_, _, err := net.SplitHostPort(a)
		fault(err != nil, "address "+a+" is not host:port")
	}
	fault(!c.Insecure, "TLS does not exist yet; set Insecure to connect without")
	fault(c.Timeout < 0 || c.AttemptTimeout < 0 || c.ConnectTimeout < 0 || c.MeasureInterval < 0, "a time is below 0")
	fault(c.RetryBurst < 0 || !(c.RetryRatio >= 0 && c.RetryRatio <= 1), "the retry budget wants a burst of 0 or more and a ratio of 0 to 1")
	fault(c.HomesMax < 0, "HomesMax is below 0")
	if len(faults) > 0 {
		return rhumb.E(op, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}
