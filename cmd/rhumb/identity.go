package main

import (
	"context"
	"strings"
	"sync"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority/enroll"
	"github.com/rhumbdb/rhumb/authority/token"
	"github.com/rhumbdb/rhumb/node"
)

// ensureIdentity obtains a certificate for a node from the authority of the cluster, unless the
// node has one, has files of another authority, or runs without TLS. It runs before the stores are
// opened, because a node that is refused must leave nothing else in its directories. The result
// starts the renewal of the certificate, and then returns the function that stops it. SIGHUP makes
// the node ask the authority at once.
func ensureIdentity(ctx context.Context, cfg *node.Config, tokenFile string) (keep func() (stop func()), err error) {
	const op rhumb.Op = "rhumb.start"
	// The functions of a node without renewal do nothing, so that its caller need not ask.
	nothing := func() func() { return func() {} }
	// Any other path than the default one means that the operator names the files.
	own := cfg.Identity != node.DefaultIdentity(cfg.Dirs[0])
	switch {
	case strings.HasPrefix(tokenFile, token.Prefix):
		// Other users of the machine can read command lines.
		return nil, rhumb.E(op, rhumb.InvalidArgument, "--token takes the name of a file, not the token itself, which everybody on this machine can see now; remove the token (rhumb token rm) and make a new one with --out FILE")
	case tokenFile != "" && cfg.Insecure:
		return nil, rhumb.E(op, rhumb.InvalidArgument, "--token and --insecure exclude each other: a node without TLS needs no certificate")
	case tokenFile != "" && own:
		return nil, rhumb.E(op, rhumb.InvalidArgument, "--token and --cert, --key and --ca exclude each other: the certificate comes either from the token or from the files")
	case cfg.Insecure || own:
		return nothing, nil
	}
	ec := enroll.Config{Dir: enroll.DirIn(cfg.Dirs[0]), Wall: cfg.Wall, Logger: cfg.Logger}
	if err := enroll.Ensure(ctx, ec, tokenFile); err != nil {
		return nil, err
	}
	// Without the memory of an authority, somebody copied files into the folder and replaces them
	// too.
	keeper := enroll.NewKeeper(ec)
	if keeper == nil {
		return nothing, nil
	}
	state, err := enroll.ReadState(ec.Dir)
	if err != nil {
		return nil, err
	}
	// The token of the founder made this node the one that creates the cluster, once.
	cfg.Founder = state.Founder
	if state.Founder && enroll.HasFounded(ec.Dir) {
		cfg.Founder, cfg.Founded = false, true
	}
	// The mark is in the folder of the certificate, because it has to outlive the data.
	cfg.OnFounded = func() error { return enroll.MarkFounded(ec.Dir) }
	cfg.Collectors = append(cfg.Collectors, keeper.Collectors()...)
	return func() func() {
		// The renewal outlives the signal that stops the node: a node that drains for minutes still
		// needs its certificate.
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		var work sync.WaitGroup
		work.Go(func() { keeper.Run(ctx) })
		// SIGHUP renews at once, for example after a rotation.
		stop := onHangup(keeper.CheckNow)
		return func() {
			stop()
			cancel()
			work.Wait()
		}
	}, nil
}
