package node

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// A node judges registrations, revocations and relayed messages of others by their time. If its own clock is wrong, that judgement is
// wrong too, and a metadata leader would refuse every node that registers. So a node whose clock differs from the majority judges by
// the clocks of the majority. Heartbeats compare the clocks of nodes that are registered. That is not enough for a leader that
// does not see a majority because the others have just restarted: it refuses them, so it never compares its clock with theirs.
// Therefore it asks them for their time before it refuses a registration because of its time.

const (
	// clockAsksMax bounds the nodes that are asked for their time at once.
	clockAsksMax = 16
	// clockAskKeep is how long the answers count, so that registrations which are refused cause few questions.
	clockAskKeep = 5 * time.Second
)

// clockAnswer holds the result of the last question for the clocks of other nodes.
type clockAnswer struct {
	mu    sync.Mutex // guards all below, and is held while nodes are asked, so that one question answers all callers
	asked time.Time
	// ahead is how far the clock of this node was ahead of the median.
	ahead time.Duration
}

// clocks returns the comparison of wall clocks by heartbeats. Before this life serves, nothing is known.
func (m *member) clocks() place.Clocks {
	h := m.hostIfReady()
	if h == nil {
		return place.Clocks{}
	}
	_, wrong, right := h.Leases().ClockOff()
	return place.Clocks{Wrong: wrong, Right: right}
}

// judgeWall returns the time by which statements of other nodes are judged: that of the wall clock, or the median of all clocks if
// heartbeats say that the own one is wrong.
func (n *Node) judgeWall() time.Time {
	now := n.wall()
	if m := n.currentMember(); m != nil {
		if h := m.hostIfReady(); h != nil {
			if ahead, wrong, _ := h.Leases().ClockOff(); wrong {
				return now.Add(-ahead)
			}
		}
	}
	return now
}

// askWall returns the median of the clocks of the nodes that answer now, this one included. If it is alone, or one of two, its own
// clock counts.
func (n *Node) askWall() time.Time {
	n.answer.mu.Lock()
	defer n.answer.mu.Unlock()
	// Not compared by the wall clock, which may be set at any time.
	if n.answer.asked.IsZero() || time.Since(n.answer.asked) >= clockAskKeep {
		n.answer.ahead = -lease.MedianOffset(n.askOffsets())
		n.answer.asked = time.Now()
	}
	return n.wall().Add(-n.answer.ahead)
}

// askOffsets returns how far the clocks of other nodes of the cluster are ahead of this node's, after 0 for its own. TLS proves that nodes
// of this cluster answer, and that they answer now.
func (n *Node) askOffsets() []time.Duration {
	offsets := []time.Duration{0}
	m := n.currentMember()
	if m == nil {
		return offsets
	}
	addrs := n.memberAddrs(m)
	addrs = addrs[:min(len(addrs), clockAsksMax)]
	answers := make([]offsetAnswer, len(addrs))
	var wait sync.WaitGroup
	for i, addr := range addrs {
		wait.Go(func() { answers[i] = n.offsetOf(addr, m.cluster) })
	}
	wait.Wait()
	// A node may be known by two addresses, and has one voice.
	var heard []rhumb.NodeID
	for _, a := range answers {
		if a.node != rhumb.NoNode && a.node != m.self.Node && !slices.Contains(heard, a.node) {
			heard, offsets = append(heard, a.node), append(offsets, a.ahead)
		}
	}
	return offsets
}

// offsetAnswer is how far the clock of a node is ahead; NoNode did not answer.
type offsetAnswer struct {
	node  rhumb.NodeID
	ahead time.Duration
}

// offsetOf asks a node for its time. A node that starts answers too: it is the one that wants to register.
func (n *Node) offsetOf(addr string, cluster rhumb.ClusterID) offsetAnswer {
	conn, err := n.connectAny(addr)
	if err != nil {
		return offsetAnswer{}
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(n.ctx, contactTimeout)
	defer cancel()
	began := time.Now()
	resp, err := rhumbpb.NewClusterClient(conn).Ping(ctx, &rhumbpb.PingRequest{})
	if err != nil || !bytes.Equal(resp.Cluster, cluster[:]) {
		return offsetAnswer{}
	}
	// The other node read its clock about half of the time ago.
	return offsetAnswer{rhumb.NodeID(resp.Node), rhumb.Timestamp(resp.Timestamp).Time().Sub(n.wall().Add(-time.Since(began) / 2))}
}
