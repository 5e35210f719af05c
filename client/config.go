package client

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/identity"
)

// Bounds of a client. Package stream has those of the requests to one node.
const (
	// redirectsMax bounds how often one call follows newer range descriptors without a pause.
	redirectsMax = 4
	// hopsMax is how often nodes may forward a request that the client cannot send to the primary
	// itself.
	hopsMax = 2
	// pauseMin and pauseMax bound the pause before a retry. It doubles from one to the other, with
	// half of it as jitter.
	pauseMin = 10 * time.Millisecond
	pauseMax = 500 * time.Millisecond
	// pingTimeout bounds one ping.
	pingTimeout = 2 * time.Second
	// pingsPerRound is how many pings measure one node; the fastest counts.
	pingsPerRound = 3
	// scanBytesMax bounds the pages that one scan holds, over all its ranges.
	scanBytesMax = 64 << 20
	// scanSpare is the number of records that a scan with a limit fetches from a range in addition to
	// twice the share of the range.
	scanSpare = 4
	// scanFetchMax bounds the pages that one scan fetches at once.
	scanFetchMax = 64
)

// Config configures a Client.
type Config struct {
	// Addrs holds the "host:port" of some nodes; at least one must work. The client learns the
	// others from the metadata.
	Addrs []string
	// From is the name of the caller's region. The default is the region of the nearest node.
	From string
	// Dial opens connections, for example through a proxy or with a simulated delay. The default is
	// a plain TCP dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS holds the authorities that the client trusts, and its certificate. It must be set unless Insecure is.
	TLS *TLS
	// Insecure connects without TLS, in plain text. Only nodes that were started with --insecure answer, and those listen on
	// loopback addresses.
	Insecure bool
	// User is the user that the client logs in as, on each connection, with the password that Password returns.
	// They need TLS, and are not needed with the certificate of a user or operator. Password is called
	// before each login; PasswordFile reads a file.
	User     string
	Password func() (string, error)
	// Timeout bounds a call whose context has no deadline. The default is 10 s.
	Timeout time.Duration
	// AttemptTimeout bounds the wait for the answer of one node, after which the call is retried.
	// The default is 3 s.
	AttemptTimeout time.Duration
	// ConnectTimeout bounds Open's search for a node that answers, and each later connection. The
	// default is 5 s.
	ConnectTimeout time.Duration
	// RetryBurst and RetryRatio are the retry budget, so that a cluster in trouble is not drowned
	// in retries: a retry takes one token, a call that succeeds returns RetryRatio of a token, and
	// at most RetryBurst tokens gather. Without tokens, calls fail instead of being retried, except
	// for retryFloor retries a second. The defaults are 4096 and 0.2.
	RetryBurst int
	RetryRatio float64
	// HomesMax bounds the cached homes of named keys. The default is 65,536.
	HomesMax int
	// MeasureInterval is the pause between measurements of the round trips. The default is 1 min.
	MeasureInterval time.Duration
	// GRPC sends all requests by gRPC, and opens no links (docs/formats/link.md). It is for the search for faults, and for a network that
	// passes gRPC only. The environment variable RHUMB_CLIENT_GRPC=true sets it for a process.
	GRPC bool
	// Logger receives events. The default discards them.
	Logger *slog.Logger
}

// TLS is the identity of a client. Each part is given as a path or as PEM text. A file that changes is loaded again without a
// restart.
type TLS struct {
	// CA is the path of the certificates of the authorities of the cluster.
	CA string
	// Cert and Key are the paths of the certificate of a user or operator and of its key. They may be empty for a client that
	// logs in with a password.
	Cert, Key string
	// PEM replaces the paths.
	PEM identity.PEM
	// Cluster is the cluster to connect to. If it is zero, it is the cluster in the certificate; without a certificate, it is that of
	// the first node that answers, and later connections lead to the same cluster only.
	Cluster rhumb.ClusterID
}

// SetDefaults sets the fields that were left empty.
func (c *Config) SetDefaults() {
	setDefault(&c.Timeout, 10*time.Second)
	setDefault(&c.AttemptTimeout, 3*time.Second)
	setDefault(&c.ConnectTimeout, 5*time.Second)
	setDefault(&c.RetryBurst, 4_096)
	setDefault(&c.RetryRatio, 0.2)
	setDefault(&c.HomesMax, 1<<16)
	setDefault(&c.MeasureInterval, time.Minute)
	// For programs that have no flag for it. Other values than those of a boolean change nothing.
	if forced, err := strconv.ParseBool(os.Getenv("RHUMB_CLIENT_GRPC")); err == nil && forced {
		c.GRPC = true
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func setDefault[T comparable](dst *T, value T) {
	if *dst == *new(T) {
		*dst = value
	}
}

// Validate returns an error that lists everything wrong with the configuration.
func (c *Config) Validate() error {
	const op rhumb.Op = "client.Config"
	var faults []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(len(c.Addrs) == 0, "Addrs is empty; give the address of at least one node")
	for _, a := range c.Addrs {
		_, _, err := net.SplitHostPort(a)
		fault(err != nil, "address %s is not host:port", a)
	}
	fault(c.TLS == nil && !c.Insecure, "TLS is not set; set it with the CA file of the cluster, or set Insecure to connect in plain text to a node on this machine")
	fault(c.User != "" && c.TLS == nil, "User is %s, but a login needs TLS", c.User)
	fault((c.User != "") != (c.Password != nil), "User and Password must be set together")
	fault(c.TLS != nil && c.Insecure, "TLS and Insecure are both set; set one of them")
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"Timeout", c.Timeout}, {"AttemptTimeout", c.AttemptTimeout}, {"ConnectTimeout", c.ConnectTimeout}, {"MeasureInterval", c.MeasureInterval},
	} {
		fault(d.value < 0, "%s is %s, but must not be negative", d.name, d.value)
	}
	fault(c.RetryBurst < 0, "RetryBurst is %d, but must not be negative", c.RetryBurst)
	// Written so that a ratio that is not a number is a fault.
	fault(!(c.RetryRatio >= 0 && c.RetryRatio <= 1), "RetryRatio is %v, but must be 0 to 1", c.RetryRatio)
	fault(c.HomesMax < 0, "HomesMax is %d, but must not be negative", c.HomesMax)
	if len(faults) > 0 {
		return rhumb.E(op, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// wantNode describes the servers of a client.
var wantNode = identity.Want{Roles: []identity.Role{identity.RoleNode}}

// openCredentials returns the credentials of all connections and, with TLS, the source behind them.
func (c *Config) openCredentials() (api.Credentials, *identity.Source, error) {
	if c.TLS == nil {
		return api.PlainText(), nil, nil
	}
	src, err := identity.OpenSource(identity.SourceConfig{
		Files: identity.Files{Cert: c.TLS.Cert, Key: c.TLS.Key, CA: c.TLS.CA}, PEM: c.TLS.PEM, Cluster: c.TLS.Cluster, Logger: c.Logger,
		// A node is a client of other nodes, and tools on its host may use its certificate to find out what is wrong.
		Roles: []identity.Role{identity.RoleUser, identity.RoleOperator, identity.RoleNode},
	})
	if err != nil {
		return nil, nil, err
	}
	// Any node of the cluster will do: clients learn the addresses of nodes from the metadata and from people, not their names.
	return src.ClientCredentials(wantNode), src, nil
}

// PasswordFile returns a function for Config.Password that reads the first line of a file, which nobody but its owner may
// read. The file is read before each login, so that a new password needs no restart.
func PasswordFile(name string) func() (string, error) {
	return func() (string, error) {
		text, err := identity.ReadSecret(name)
		line, _, _ := strings.Cut(string(text), "\n")
		return strings.TrimSuffix(line, "\r"), err
	}
}
