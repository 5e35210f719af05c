package sim

import (
	"context"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta"
)

// transport carries what a node sends: it is what package peer is to a real one.
type transport struct{ n *node }

// SendHeartbeat sends a frame of the leases, which needs no stream.
func (t transport) SendHeartbeat(id rhumb.NodeID, f *lease.Frame) {
	n, w := t.n, t.n.w
	to := w.nodes[id-1]
	from, frame := n.identity(), *f
	n.spoil(to, &frame)
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
				from = to.present(n.id)
			}
			if to.member.knows(from) {
				frame := frame
				to.misread(n, &frame)
				to.host.Leases().Receive(from, &frame)
			}
		})
	})
}

// Send sends messages of replicas over the stream to the peer; without one they are lost.
func (t transport) Send(id rhumb.NodeID, msgs []replica.Message) {
	n, w := t.n, t.n.w
	to := w.nodes[id-1]
	stream := w.net.streams[w.net.pair(n.at, to.at)]
	if stream == 0 || w.net.mute[n.index] || w.net.mute[to.index] || w.net.vanish[w.net.pair(n.at, to.at)] {
		return
	}
	msgs = slices.Clone(msgs)
	for i := range msgs {
		if w.p.vague && msgs[i].Kind == replica.Nack {
			w.blur(&msgs[i])
		}
		if w.tracing() {
			w.tracef(n.name(), "send %s", describe(&msgs[i]))
		}
	}
	w.net.keepStray(n, to, msgs)
	w.net.sendStream(n.at, to.at, func() {
		to.run(to.life, func() {
			if to.host != nil && w.net.streams[w.net.pair(to.at, n.at)] == stream {
				to.receive(n, slices.Clone(msgs))
			}
		})
	})
}

// receive hands messages of replicas over, as far as no planted bug changes them.
func (n *node) receive(from *node, msgs []replica.Message) {
	n.host.Receive(from.id, n.misreadAll(from, msgs))
}

// metaMessagesMax bounds the messages of the metadata group in a run; a usual one has less than a tenth of it.
const metaMessagesMax = 500_000

// raft carries the metadata group's messages.
type raft struct{ n *node }

var _ raftmeta.Transport = raft{}

// Send sends messages of the metadata group, which works between lives that are not registered yet, too.
func (t raft) Send(id rhumb.NodeID, _ raftmeta.GroupID, msgs [][]byte) {
	n, w := t.n, t.n.w
	to := w.nodes[id-1]
	if w.net.deaf[n.index] || w.net.deaf[to.index] {
		return
	}
	if w.metaMessages += len(msgs); w.metaMessages > metaMessagesMax {
		w.failf("%s sends message number %d of the metadata group: members repeat themselves without end", n.id, w.metaMessages)
		return
	}
	copies := make([][]byte, len(msgs))
	for i, b := range msgs {
		copies[i] = slices.Clone(b)
	}
	from, life := n.id, n.life
	w.net.sendStream(n.at, to.at, func() {
		if n.life != life {
			return // the connection ended with the life
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

// Forward asks another node's group. A node that is down refuses.
func (t raft) Forward(ctx context.Context, id rhumb.NodeID, _ raftmeta.GroupID, request []byte) (response []byte, err error) {
	n, w := t.n, t.n.w
	to := w.nodes[id-1]
	if w.net.deaf[n.index] || w.net.deaf[to.index] {
		n.rt.Await(ctx.Done(), nil, nil)
		return nil, rhumb.WrapKind("sim.Forward", rhumb.Unavailable, context.Cause(ctx))
	}
	request = slices.Clone(request)
	answered := make(chan struct{})
	life := n.life
	answer := func(b []byte, failure error) {
		w.net.send(to.at, n.at, func() {
			n.run(life, func() {
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
		if to.down || to.group == nil {
			answer(nil, rhumb.E("sim.Forward", rhumb.Unavailable, "the node is down"))
			return
		}
		to.run(to.life, func() {
			group := to.group
			to.spawn(func() {
				ctx, cancel := to.rt.WithTimeout(to.ctx, changeTimeout)
				defer cancel()
				answer(group.Handle(ctx, n.id, request))
			})
		})
	})
	if n.rt.Await(answered, ctx.Done(), nil) == 1 {
		return nil, rhumb.WrapKind("sim.Forward", rhumb.Unknown, context.Cause(ctx))
	}
	return response, err
}

// blur lowers the hint of a refusal: a hint may be lower than it need be, but not below what is settled.
func (w *world) blur(m *replica.Message) {
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
