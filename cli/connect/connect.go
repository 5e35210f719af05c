// Package connect opens the client of a command. It takes the address and
// region from the flags or, if the flags are not set, from the demo that runs
// on this machine.
package connect

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/contexts"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/target"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/demo"
	"github.com/rhumbdb/rhumb/wan"
)

// AddrDefault is the address that nodes listen on by default.
const AddrDefault = "127.0.0.1:7600"

const op rhumb.Op = "rhumb.connect"

// Flags select the cluster that a command connects to, the identity with
// which it does, and the region from which it does.
type Flags struct {
	target.Target
	LatencyFile string
	// Context is the name of the context from which the values are, or "".
	Context string
}

// Register adds the flags to a set.
func (f *Flags) Register(set *pflag.FlagSet) {
	f.Target.Register(set)
	set.StringVar(&f.LatencyFile, "latency-file", "", "imitate the round trips between regions in this file")
	flags.Default(set, "addr", "the demo that runs here, else "+AddrDefault)
	flags.Default(set, "from", "the nearest region; with a demo, its first")
}

// Config returns the configuration of the client.
func (f Flags) Config() (client.Config, error) {
	if err := f.findDemo(); err != nil {
		return client.Config{}, err
	}
	cfg, err := f.Target.Config()
	if err != nil || f.LatencyFile == "" {
		return cfg, err
	}
	if cfg.From == "" {
		return cfg, rhumb.E(op, rhumb.InvalidArgument, "--latency-file needs --from REGION: round trips are imitated from that region")
	}
	network, err := wan.Open(f.LatencyFile)
	if err != nil {
		return cfg, err
	}
	cfg.Dial = network.Dialer(cfg.From)
	return cfg, nil
}

// findDemo fills in the demo that runs on this machine, unless the flags name
// another cluster. Who names an authority or an identity does not mean the
// demo, unless the context says so: --context demo with --cert or --user
// connects to the demo as somebody else.
func (f *Flags) findDemo() error {
	if len(f.Addrs) > 0 {
		return nil
	}
	var layout *demo.Layout
	if !f.IsSecure() || f.Context == contexts.Demo {
		var err error
		if layout, err = RunningDemo(); err != nil {
			return err
		}
	}
	switch {
	case layout != nil && f.From != "" && !slices.ContainsFunc(layout.Regions, func(r demo.Region) bool { return r.Name == f.From }):
		return rhumb.Ef(op, rhumb.InvalidArgument, "--from %s: the demo has no such region; `rhumb region ls` lists its regions", f.From)
	case layout != nil:
		// The demo listens on loopback addresses only, so --insecure would
		// protect nobody. A secure demo leaves the identity of an operator.
		f.From, f.Insecure = cmp.Or(f.From, layout.Regions[0].Name), layout.Identity == nil
		if id := layout.Identity; id != nil {
			// Who names an identity is somebody else than the operator; only the authority of the
			// demo is filled in then.
			if f.Cert+f.Key+f.User == "" {
				f.Cert, f.Key = id.Cert, id.Key
			}
			f.CA = cmp.Or(f.CA, id.CA)
		}
		// All nodes and not only those of the region, so that a command works while a region of the
		// demo is down.
		f.Addrs = demoAddrs(layout, f.From)
		f.LatencyFile = cmp.Or(f.LatencyFile, layout.LatencyFile)
		return nil
	case f.Context == contexts.Demo:
		return rhumb.E(op, rhumb.Unavailable, "no demo runs on this machine; start one with `rhumb demo`, or choose another context")
	}
	f.Addrs = []string{AddrDefault}
	if !f.Insecure && !f.IsSecure() {
		return rhumb.Ef(op, rhumb.InvalidArgument, "no demo runs here, and nothing says whom to trust at %s: name the cluster's authority with --ca FILE and yourself with --cert and --key or with --user (`rhumb context add` keeps them), or add --insecure for nodes of this machine that run without TLS, or start `rhumb demo`",
			AddrDefault)
	}
	return nil
}

// demoAddrs returns the addresses of the nodes of a demo, those in region from first.
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

// RunningDemo returns the layout of the demo that runs on this machine, or nil if none does.
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

// Open opens a client.
func (f Flags) Open(ctx context.Context) (*client.Client, error) {
	cfg, err := f.Config()
	if err != nil {
		return nil, err
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
