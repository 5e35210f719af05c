package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/demo"
	"github.com/rhumbdb/rhumb/wan"
)

// addrDefault is where a node listens by default.
const addrDefault = "127.0.0.1:7600"

// connFlags say which cluster a command talks to, and from where.
type connFlags struct {
	addrs       []string
	from        string
	latencyFile string
	timeout     time.Duration
	insecure    bool
}

// connected gives a command the flags of a connection.
func (a *app) connected(c *cobra.Command) *cobra.Command {
	f := c.Flags()
	f.StringSliceVar(&a.conn.addrs, "addr", nil, "host:port of a node; repeat it for more (default: the demo that runs here, else "+addrDefault+")")
	f.StringVar(&a.conn.from, "from", "", "the region that this command stands in (default: the nearest; of a demo, its first)")
	f.StringVar(&a.conn.latencyFile, "latency-file", "", "imitate the distances between regions that this file gives")
	f.DurationVar(&a.conn.timeout, "timeout", 10*time.Second, "how long to wait for the cluster")
	f.BoolVar(&a.conn.insecure, "insecure", false, "talk without TLS, to loopback addresses only")
	return c
}

const opConnect rhumb.Op = "rhumb.connect"

// clientConfig resolves the flags: what they leave out, the demo that runs here fills in.
func (f connFlags) clientConfig() (client.Config, error) {
	cfg := client.Config{Addrs: f.addrs, From: f.from, Insecure: f.insecure, Timeout: f.timeout}
	latencyFile := f.latencyFile
	if len(f.addrs) == 0 {
		layout, err := runningDemo()
		switch {
		case err != nil:
			return cfg, err
		case layout != nil && f.from != "" && !slices.ContainsFunc(layout.Regions, func(r demo.Region) bool { return r.Name == f.from }):
			return cfg, rhumb.Ef(opConnect, rhumb.InvalidArgument, "--from %s: the demo has no such region; `rhumb region ls` lists them", f.from)
		case layout != nil:
			cfg.Addrs, cfg.From, cfg.Insecure = demoAddrs(layout, &f), f.from, true
			latencyFile = orElse(latencyFile, layout.LatencyFile)
		default:
			cfg.Addrs = []string{addrDefault}
		}
	}
	if err := checkInsecure(cfg); err != nil {
		return cfg, err
	}
	if latencyFile == "" {
		return cfg, nil
	}
	if cfg.From == "" {
		return cfg, rhumb.E(opConnect, rhumb.InvalidArgument, "--latency-file needs --from REGION: distances hold from somewhere")
	}
	network, err := wan.Open(latencyFile)
	if err != nil {
		return cfg, err
	}
	cfg.Dial = network.Dialer(cfg.From)
	return cfg, nil
}

// demoAddrs lists the nodes of a demo, those of the caller's region first; the caller stands in its first region unless
// it says otherwise.
func demoAddrs(layout *demo.Layout, f *connFlags) (addrs []string) {
	f.from = orElse(f.from, layout.Regions[0].Name)
	for _, here := range []bool{true, false} {
		for _, n := range layout.Nodes {
			if (n.Region == f.from) == here {
				addrs = append(addrs, n.Addr)
			}
		}
	}
	return addrs
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// runningDemo gives the layout of the demo that runs on this machine, or nil.
func runningDemo() (*demo.Layout, error) {
	path := demo.ContextPath()
	layout, err := demo.ReadLayout(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !layout.Running() {
		return nil, nil
	}
	if err == nil && len(layout.Regions) == 0 {
		err = rhumb.Ef(opConnect, rhumb.Corrupt, "%s names no regions; remove it", path)
	}
	return layout, err
}

// checkInsecure refuses to send anything in plain text, or to another machine.
func checkInsecure(cfg client.Config) error {
	if !cfg.Insecure {
		return rhumb.Ef(opConnect, rhumb.InvalidArgument,
			"no demo runs here, and TLS does not exist yet: give --insecure to talk to %s in plain text (loopback addresses only), or start `rhumb demo`",
			strings.Join(cfg.Addrs, ", "))
	}
	for _, addr := range cfg.Addrs {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return rhumb.Ef(opConnect, rhumb.InvalidArgument, "--addr %q is not host:port", addr)
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return rhumb.Ef(opConnect, rhumb.InvalidArgument, "--addr %q is not a loopback address, and nothing is sent elsewhere without TLS", addr)
		}
	}
	return nil
}

// connect opens a client for a command.
func (a *app) connect(ctx context.Context) (*client.Client, error) {
	cfg, err := a.conn.clientConfig()
	if err != nil {
		return nil, err
	}
	if a.conn.timeout > 0 {
		cfg.ConnectTimeout = a.conn.timeout
	}
	return client.Open(ctx, cfg)
}

// withClient runs f with an open client.
func (a *app) withClient(ctx context.Context, f func(ctx context.Context, c *client.Client) error) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(ctx, c)
}
