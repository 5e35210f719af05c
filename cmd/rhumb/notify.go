package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/node"
)

// notifyEvery is how often the node looks whether systemd must hear of a change of its readiness.
const notifyEvery = time.Second

// manager reports the state of the process to the service manager that started it, such as systemd. Without NOTIFY_SOCKET in
// the environment there is none, and nothing is sent.
// Errors in sending are logged, and never end the node.
type manager struct{ logger *slog.Logger }

// send sends lines such as READY=1. The node keeps serving if the manager cannot be reached.
func (m manager) send(lines ...string) {
	if _, err := daemon.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		m.logger.Warn("the service manager was not notified", "err", err)
	}
}

// follow reports that the ports answer, and from then on why the node does not serve yet, until ctx ends. A node without a cluster
// is ready for systemd: it waits for rhumb init, and a start that waits for it would time out.
func (m manager) follow(ctx context.Context, ready func() error) {
	// The first message contains READY=1, so that systemd considers the start complete.
	last := readiness(ready())
	m.send(daemon.SdNotifyReady, last)
	tick := time.NewTicker(notifyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			m.send(daemon.SdNotifyStopping, "STATUS=moving primaries to other nodes")
			return
		case <-tick.C:
		}
		// Only changes are worth a message.
		if now := readiness(ready()); now != last {
			last = now
			m.send(last)
		}
	}
}

// readiness returns the line with the answer of /readyz.
func readiness(err error) string {
	if err == nil {
		return "STATUS=ready"
	}
	// A line ends the value.
	return "STATUS=not ready: " + strings.ReplaceAll(exit.Describe(err).Message, "\n", " ")
}

// surviveHangups keeps SIGHUP from ending a node that a service manager runs or that has TLS, because `systemctl reload` sends it. Nodes
// with an authority act on it (ensureIdentity); files of other authorities are looked at each second anyway. An insecure node
// in a terminal ends with the terminal, as people who try Rhumb expect. The result undoes it.
func surviveHangups(cfg *node.Config) (undo func()) {
	if cfg.Insecure && os.Getenv("NOTIFY_SOCKET") == "" {
		return func() {}
	}
	// The channel is never read: signals for a full channel are dropped. signal.Ignore would also take the signal from the
	// channel of ensureIdentity.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGHUP)
	return func() { signal.Stop(ignored) }
}

// onHangup calls f for each SIGHUP until stop is called.
func onHangup(f func()) (stop func()) {
	hangups, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hangups, syscall.SIGHUP)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			// f runs on this goroutine, so two signals never run it at once.
			case <-hangups:
				f()
			case <-done:
				return
			}
		}
	})
	return func() {
		signal.Stop(hangups)
		close(done)
		// f may be running; stop returns after it.
		work.Wait()
	}
}
