package local

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// The functions of this file judge the evidence of faults. A fault that did nothing proves nothing,
// so each returns an error if it left no trace.

// isLater reports whether a node is in a later life, or has come back as another node.
func isLater(now, old rhumb.NodeIdentity) bool {
	return now.Node > old.Node || now.Node == old.Node && now.Boot > old.Boot
}

// checkStopped returns an error unless the state of a process, as ps prints it, is stopped.
func checkStopped(state string) error {
	if !strings.Contains(state, "T") {
		return fmt.Errorf("%w: the state of the process is %q", errNoEffect, strings.TrimSpace(state))
	}
	return nil
}

// checkDropped returns an error if a host dropped no packet.
func checkDropped(host string, packets int) error {
	if packets == 0 {
		return fmt.Errorf("%w: %s dropped no packet", errNoEffect, host)
	}
	return nil
}

// checkPackets returns an error if a shape met no packet, or lost none although it should.
func (s *shape) checkPackets(passed, lost, overtaken int) error {
	if passed == 0 || s.loss > 0 && lost == 0 || s.overtake > 0 && overtaken == 0 {
		return fmt.Errorf("%w: %d packets passed, %d were lost, %d overtook others", errNoEffect, passed, lost, overtaken)
	}
	return nil
}

// checkStalled returns an error if no write had to wait for a disk.
func checkStalled(longest time.Duration) error {
	if longest < stalledLeast {
		return fmt.Errorf("%w: no write took longer than %v", errNoEffect, longest)
	}
	return nil
}

// checkLogged returns an error unless a node has logged something since before, when its log had so
// many lines about it.
func checkLogged(node, what string, before, after int) error {
	if after <= before {
		return fmt.Errorf("%w: the log of %s does not say that %s", errNoEffect, node, what)
	}
	return nil
}

// checkRefusal returns why the stores of a node refuse writes, and an error if they do not. A node
// that does not answer was stopped by its disk.
func checkRefusal(name string, id rhumb.NodeID, all []client.NodeStatus) (why string, err error) {
	for _, s := range all {
		if s.Node.ID != id {
			continue
		}
		if s.Err != "" {
			return "the node does not answer: " + s.Err, nil
		}
		for _, store := range s.Stores {
			if store.Refuses != "" {
				return "the node says: " + store.Refuses, nil
			}
		}
	}
	return "", fmt.Errorf("%w: the stores of %s refuse nothing", errNoEffect, name)
}

// checkDrained returns an error unless a node was primary of ranges before it was drained, and of
// none afterwards.
func checkDrained(node string, before, left int) error {
	if before == 0 || left > 0 {
		return fmt.Errorf("%w: %s was primary of %d ranges before it was drained, and of %d afterwards", errNoEffect, node, before, left)
	}
	return nil
}

// checkHolds returns an error if a node that took the place of another one has no copy.
func checkHolds(node string, copies int) error {
	if copies == 0 {
		return fmt.Errorf("%w: %s has no copy", errNoEffect, node)
	}
	return nil
}

// checkExchanged returns an error if a node still runs the same program.
func checkExchanged(node, from, to string) error {
	if to == from {
		return fmt.Errorf("%w: the program of %s is still %q", errNoEffect, node, from)
	}
	return nil
}

// checkAuthorities returns an error if the certificates of the nodes are still signed by the same
// authorities.
func checkAuthorities(before, after []string) error {
	if slices.Equal(after, before) {
		return fmt.Errorf("%w: the certificates of the nodes are still of %v", errNoEffect, before)
	}
	return nil
}
