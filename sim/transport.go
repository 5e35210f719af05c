package sim

import (
	"context"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta"
)

// transport sends the messages of a node. It takes the place of package peer.
type transport struct{ n *node }

// SendHeartbeat sends a frame of the leases. Frames need no stream.
func (t transport) SendHeartbeat(id rhumb.NodeID, f *lease.Frame) {
	n, w := t.n, t.n.w
	to := w.nodes[id-1]
	// The sender may reuse f, and repeated deliveries must not share it.
	from, frame := n.identity(), *f
	w.traffic.heartbeats++
	n.spoilFrame(to, &frame)
	if w.tracing() {
		w.tracef(n.name(), "frame to %s boot %d: %+v", id, from.Boot, frame)
	}
	w.net.send(n.at, to.at, func() {
		to.run(to.life, func() {
			if to.host == nil {
				return
			}
			from := from
			if w.cfg.Bug == GrantOfOldLife {
				from = to.presentLife(n.id)
			}
			// Frames of a life that the metadata does not show yet are dropped.
			if to.member.knowsLife(from) {
				frame := frame
				to.misreadFrame(n, &frame)
				to.host.Leases().Receive(from, &frame)
			}
		})
	})
}

// Send sends replication messages over the stream to a peer. Without a stream they are lost.
func (t transport) Send(id rhumb.NodeID, msgs []replica.Message) {
	n, w := t.n, t.n.w
	to := w.nodes[id-1]
	stream := w.net.streams[w.net.pairIndex(n.at, to.at)]
	if stream == 0 || w.net.mute[n.index] || w.net.mute[to.index] || w.net.vanish[w.net.pairIndex(n.at, to.at)] {
		return
	}
	// The receiver owns its messages, and the sender may reuse the slice.
	msgs = slices.Clone(msgs)
	for i := range msgs {
		if w.p.vague && msgs[i].Kind == replica.Nack {
			w.blurHint(&msgs[i])
		}
		if w.tracing() {
			w.tracef(n.name(), "send %s", describeMessage(&msgs[i]))
		}
	}
	w.net.keepStray(n, to, msgs)
	msgs, tallies, number := n.packFrame(to, msgs)
	w.traffic.messages += len(msgs) + min(len(tallies), 1)
	w.net.sendStream(n.at, to.at, func() {
		to.run(to.life, func() {
			// A message of a stream that the receiver has replaced since is dropped.
			if to.host != nil && w.net.streams[w.net.pairIndex(to.at, n.at)] == stream {
				to.receiveMessages(n, to.unpackFrame(n, number, slices.Clone(msgs), tallies))
			}
		})
	})
}

// receiveMessages passes replication messages to the host, except as planted bugs change them.
func (n *node) receiveMessages(from *node, msgs []replica.Message) {
	if n.older {
		msgs = n.readOlder(msgs)
	}
	if n.w.conforms() {
		n.hearMessages(msgs)
	}
	n.host.Receive(from.id, n.misreadAll(from, msgs))
}

// metaMessagesMax bounds the messages of the metadata group in a run. A usual run sends less than a
// tenth of that; two members that answer each other forever exceed it.
const metaMessagesMax = 500_000

// raft sends the messages of the metadata group.
type raft struct{ n *node }

var _ raftmeta.Transport = raft{}

// Send sends messages of the metadata group. They need no registered life, because registering one
// needs them.
func (t raft) Send(id rhumb.NodeID, _ raftmeta.GroupID, msgs [][]byte) {
	n, w := t.n, t.n.w
	to := w.nodes[id-1]
	if w.net.deaf[n.index] || w.net.deaf[to.index] {
		return
	}
	if w.traffic.meta += len(msgs); w.traffic.meta > w.metaMessagesMost {
		w.failf("%s sends message %d of the metadata group: members repeat themselves forever", n.id, w.traffic.meta)
		return
	}
	copies := make([][]byte, len(msgs))
	for i, b := range msgs {
		copies[i] = slices.Clone(b)
		w.traffic.metaBytes += int64(len(b))
	}
	from, life := n.id, n.life
	w.net.sendStream(n.at, to.at, func() {
		if n.life != life {
			// The connection ended with the life.
			return
		}
		to.run(to.life, func() {
			for _, b := range copies {
				if to.group != nil {
					w.judge(to.group.Step(from, b))
				}
			}
		})
	})
}

// Forward sends a request to the group of another node. A node that is down refuses it.
func (t raft) Forward(ctx context.Context, id rhumb.NodeID, _ raftmeta.GroupID, request []byte) (response []byte, err error) {
	n, w := t.n, t.n.w
	to := w.nodes[id-1]
	if w.net.deaf[n.index] || w.net.deaf[to.index] {
		// The caller gets no refusal: a lost request has no answer.
		n.rt.Await(ctx.Done(), nil, nil)
		return nil, rhumb.WrapKind("sim.Forward", rhumb.Unavailable, context.Cause(ctx))
	}
	request = slices.Clone(request)
	answered := make(chan struct{})
	life := n.life
	answer := func(b []byte, failure error) {
		w.net.send(to.at, n.at, func() {
			n.run(life, func() {
				// The answer may be repeated, and the caller may have given up; only the first one
				// counts.
				select {
				case <-answered:
				default:
					response, err = b, failure
					close(answered)
				}
			})
		})
	}
	w.net.send(n.at, to.at, func() {
		// A connection to a machine whose process is gone is refused.
		if to.down || to.group == nil {
			answer(nil, rhumb.E("sim.Forward", rhumb.Unavailable, "the node is down"))
			return
		}
		to.run(to.life, func() {
			group := to.group
			// Handle may wait, so it runs as a process.
			to.spawn(func() {
				ctx, cancel := to.rt.WithTimeout(to.ctx, changeTimeout)
				defer cancel()
				answer(group.Handle(ctx, n.id, request))
			})
		})
	})
	if n.rt.Await(answered, ctx.Done(), nil) == 1 {
		// The request may have been executed.
		return nil, rhumb.WrapKind("sim.Forward", rhumb.Unknown, context.Cause(ctx))
	}
	return response, err
}

// blurHint lowers the hint of a refusal. A hint may be lower than necessary, but not below the
// settled part of the log, which may be trimmed.
func (w *world) blurHint(m *replica.Message) {
	settled := m.Commit
	if h := w.nodes[m.To-1].host; h != nil {
		if r, ok := h.Replica(m.Range); ok {
			settled = max(settled, r.Status().Trim)
		}
	}
	if m.HintEnd > settled {
		m.HintEnd -= rhumb.Seq(w.rnd.Int64N(int64(m.HintEnd-settled) + 1))
	}
}
