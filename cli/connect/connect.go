// Package connect opens the client of a command. It takes the address and
// region from the flags or, if the flags are not set, from the demo that runs
// on this machine, and it refuses connections in plain text to other
// machines.
package connect

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/contexts"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/demo"
	"github.com/rhumbdb/rhumb/wan"
)

// TimeoutDefault is how long commands wait for a cluster by default.
const TimeoutDefault = 10 * time.Second

// AddrDefault is the address that nodes listen on by default.
const AddrDefault = "127.0.0.1:7600"

const op rhumb.Op = "rhumb.connect"

// Flags select the cluster that a command connects to, the identity with
// which it does, and the region from which it does.
type Flags struct {
	Addrs       []string
	From        string
	LatencyFile string
	Timeout     time.Duration
	Insecure    bool

	CA, Cert, Key      string // files
	User, PasswordFile string
	Cluster            string // an ID, or "" for any

	// Context is the name of the context from which the values are, or "".
	Context string
}

// Register adds the flags to a set.
func (f *Flags) Register(set *pflag.FlagSet) {
	set.StringSliceVar(&f.Addrs, "addr", nil, "host:port of a node; repeat the flag for more nodes")
	set.StringVar(&f.From, "from", "", "region in which this command runs")
	set.StringVar(&f.LatencyFile, "latency-file", "", "imitate the round trips between regions in this file")
	set.DurationVar(&f.Timeout, "timeout", TimeoutDefault, "how long to wait for the cluster")
	set.BoolVar(&f.Insecure, "insecure", false, "connect without TLS, to loopback addresses only")
	set.StringVar(&f.CA, "ca", "", "file with the certificates of the cluster's authorities")
	set.StringVar(&f.Cert, "cert", "", "file with the certificate to connect with")
	set.StringVar(&f.Key, "key", "", "file with the key of the certificate")
	set.StringVar(&f.User, "user", "", "user to log in as; the password is asked for")
	set.StringVar(&f.PasswordFile, "password-file", "", "file that holds the password of the user")
	set.StringVar(&f.Cluster, "cluster", "", "ID of the cluster; nodes of another are refused")
	flags.Connection(set, "addr", "from", "insecure", "ca", "cert", "key", "user", "password-file", "cluster")
	flags.Default(set, "addr", "the demo that runs here, else "+AddrDefault)
	flags.Default(set, "from", "the nearest region; with a demo, its first")
}

// Config returns the configuration of the client.
func (f Flags) Config() (client.Config, error) {
	cfg := client.Config{Addrs: f.Addrs, From: f.From, Insecure: f.Insecure, Timeout: f.Timeout}
	latencyFile := f.LatencyFile
	if err := f.checkIdentity(); err != nil {
		return cfg, err
	}
	// Who names an authority or an identity does not mean the demo.
	if len(f.Addrs) == 0 && f.secure() {
		cfg.Addrs = []string{AddrDefault}
	}
	if len(cfg.Addrs) == 0 {
		layout, err := RunningDemo()
		switch {
		case err != nil:
			return cfg, err
		case layout != nil && f.From != "" && !slices.ContainsFunc(layout.Regions, func(r demo.Region) bool { return r.Name == f.From }):
			return cfg, rhumb.Ef(op, rhumb.InvalidArgument, "--from %s: the demo has no such region; `rhumb region ls` lists its regions", f.From)
		case layout != nil:
			// The demo listens on loopback addresses only, so --insecure
			// would protect nobody.
			cfg.From, cfg.Insecure = cmp.Or(f.From, layout.Regions[0].Name), true
			cfg.Addrs = demoAddrs(layout, cfg.From)
			latencyFile = cmp.Or(latencyFile, layout.LatencyFile)
		case f.Context == contexts.Demo:
			return cfg, rhumb.E(op, rhumb.Unavailable, "no demo runs on this machine; start one with `rhumb demo`, or choose another context")
		default:
			cfg.Addrs = []string{AddrDefault}
		}
	}
	if err := f.checkPlainText(cfg); err != nil {
		return cfg, err
	}
	if !cfg.Insecure {
		cfg.TLS = f.identityOf()
	}
	if latencyFile == "" {
		return cfg, nil
	}
	if cfg.From == "" {
		return cfg, rhumb.E(op, rhumb.InvalidArgument, "--latency-file needs --from REGION: round trips are imitated from that region")
	}
	network, err := wan.Open(latencyFile)
	if err != nil {
		return cfg, err
	}
	cfg.Dial = network.Dialer(cfg.From)
	return cfg, nil
}

// secure reports whether any setting of a secured connection is given.
func (f Flags) secure() bool { return f.CA+f.Cert+f.Key+f.User+f.PasswordFile != "" }

// checkIdentity rejects settings that contradict each other, and names what
// is missing.
func (f Flags) checkIdentity() error {
	fault := func(format string, args ...any) error { return rhumb.Ef(op, rhumb.InvalidArgument, format, args...) }
	if f.Cluster != "" {
		if _, err := rhumb.ParseUUID(f.Cluster); err != nil {
			return fault("--cluster: %s", rhumb.Message(err))
		}
	}
	switch {
	case f.Insecure && f.secure():
		return fault("--insecure sends plain text and cannot be combined with --ca, --cert, --key, --user or --password-file; `rhumb config show` says where each is from")
	case (f.Cert == "") != (f.Key == ""):
		return fault("--cert and --key belong together: a certificate is of no use without its key")
	case f.Cert != "" && f.User != "":
		return fault("--cert and --user are two identities; choose one")
	case f.PasswordFile != "" && f.User == "":
		return fault("--password-file needs --user NAME")
	case f.secure() && f.CA == "":
		return fault("--ca is missing: the file with the certificates of the cluster's authorities says whom to trust")
	}
	return nil
}

// demoAddrs returns the addresses of the nodes of a demo, those in region
// from first.
func demoAddrs(layout *demo.Layout, from string) (addrs []string) {
	for _, here := range []bool{true, false} {
		for _, n := range layout.Nodes {
			if (n.Region == from) == here {
				addrs = append(addrs, n.Addr)
			}
		}
	}
	return addrs
}

// RunningDemo returns the layout of the demo that runs on this machine, or
// nil if none does.
func RunningDemo() (*demo.Layout, error) {
	path := demo.ContextPath()
	layout, err := demo.ReadLayout(path)
	// A demo that was killed leaves its layout.
	if errors.Is(err, fs.ErrNotExist) || err == nil && !layout.Running() {
		return nil, nil
	}
	if err == nil && len(layout.Regions) == 0 {
		err = rhumb.Ef(op, rhumb.Corrupt, "%s names no regions; remove the file", path)
	}
	return layout, err
}

// checkPlainText rejects a connection without TLS unless the user asked for
// one and every address is on this machine.
func (f Flags) checkPlainText(cfg client.Config) error {
	if !cfg.Insecure && !f.secure() {
		why, other := "", ""
		if len(f.Addrs) == 0 { // a demo was looked for
			why, other = "no demo runs here, and ", ", or start `rhumb demo`"
		}
		return rhumb.Ef(op, rhumb.InvalidArgument, "%snothing says whom to trust at %s: name the cluster's authority with --ca FILE and yourself with --cert and --key or with --user (`rhumb context add` keeps them), or add --insecure for nodes of this machine that run without TLS%s",
			why, strings.Join(cfg.Addrs, ", "), other)
	}
	for _, addr := range cfg.Addrs {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return rhumb.Ef(op, rhumb.InvalidArgument, "--addr %q is not host:port", addr)
		}
		if !cfg.Insecure {
			continue
		}
		// Names other than localhost are rejected without resolving them: the
		// address may change before the connection is made.
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return rhumb.Ef(op, rhumb.InvalidArgument, "--addr %q is not a loopback address; without TLS, nothing is sent to other machines", addr)
		}
	}
	return nil
}

// Open opens a client.
func (f Flags) Open(ctx context.Context) (*client.Client, error) {
	cfg, err := f.Config()
	if err != nil {
		return nil, err
	}
	if f.Timeout > 0 {
		cfg.ConnectTimeout = f.Timeout
	}
	return client.Open(ctx, cfg)
}

// With runs fn with an open client.
func (f Flags) With(ctx context.Context, fn func(ctx context.Context, c *client.Client) error) error {
	c, err := f.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return fn(ctx, c)
}

// ParseNode parses a node as commands print it, such as n3, or its number
// alone.
func ParseNode(s string) (rhumb.NodeID, error) {
	digits := s
	if len(s) > 1 && s[0] == 'n' {
		digits = s[1:]
	}
	id, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || id == 0 {
		return 0, rhumb.Ef("rhumb.node", rhumb.InvalidArgument, "%q is not a node; write n1, as `rhumb node ls` prints it", s)
	}
	return rhumb.NodeID(id), nil
}
