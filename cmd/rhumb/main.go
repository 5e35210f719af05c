// Command rhumb is the single binary of Rhumb: the node, the commands that use and operate a
// cluster, the feed reader and the demonstration. docs/cli.md describes its flags, configuration,
// output and exit codes.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the program at once: without a handler, the system's default applies
	// again.
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr})
	// A deferred call would not run: os.Exit ends the process at once.
	stop()
	os.Exit(code)
}
