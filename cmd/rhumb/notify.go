package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/rhumbdb/rhumb/cli/exit"
)

// notifyEvery is how often the node looks whether systemd must hear of a change of its readiness.
const notifyEvery = time.Second

// manager reports the state of the process to the service manager that started it, such as systemd. Without NOTIFY_SOCKET in
// the environment there is none, and nothing is sent.
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
