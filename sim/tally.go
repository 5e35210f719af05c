package sim

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/node/tally"
)

// As package peer does on links, nodes acknowledge the frames of a stream as a whole (package tally). Each call of
// transport.Send is a frame. Streams to a node of an older build carry each acknowledgement as a message.

// ends are the memory that a node has of the frames of its stream with another node.
type ends struct {
	sent tally.Sent
	// taken is nil without a stream, and on one without tallies.
	taken *tally.Taken
	// all is sent without forgetting, former that of the stream before (TallyOfOldLife). asked are the
	// acknowledgements that Appends ask for (TallyForRefused).
	all, former tally.Sent
	asked       map[rhumb.RangeID]replica.Message
}

// beginTallies begins to count the frames of a stream to b, which is in the life of from.
func (n *node) beginTallies(b *node, from rhumb.NodeIdentity, id uint64) {
	if n.older || b.older {
		return
	}
	e, self := &n.ends[b.index], n.identity()
	e.sent.Begin(tally.Stream{Life: self.Boot, Number: id}, n.id, b.id, from.Boot)
	e.all.Begin(tally.Stream{Life: self.Boot, Number: id}, n.id, b.id, from.Boot)
	e.taken = tally.NewTaken(tally.Stream{Life: from.Boot, Number: id}, n.id, self.Boot, b.id)
	e.asked = make(map[rhumb.RangeID]replica.Message)
}

// endTallies forgets the frames of the stream to b.
func (n *node) endTallies(b *node) {
	if e := &n.ends[b.index]; e.taken != nil {
		*e = ends{former: e.all}
	}
}

// packFrame returns the content of a frame to another node, messages and a tally, and its number.
func (n *node) packFrame(to *node, msgs []replica.Message) (rest []replica.Message, tallies []byte, number uint64) {
	e := &n.ends[to.index]
	if e.taken == nil {
		return msgs, nil, 0
	}
	if n.w.cfg.Bug == TallyForRefused {
		for i := range msgs {
			if a, ok := e.asked[msgs[i].Range]; ok && msgs[i].Kind == replica.Nack && msgs[i].Epoch == a.Epoch {
				msgs[i] = a
			}
		}
	}
	rest, r := e.taken.Collect(msgs)
	number = e.sent.Record(rest)
	if n.w.cfg.Bug == TallyOfOldLife {
		e.all.Record(rest)
	}
	if len(r.Frames) > 0 {
		tallies = r.AppendWire(nil)
		n.w.net.late[n.w.net.pairIndex(n.at, to.at)] = tallies
	}
	return rest, tallies, number
}

// unpackFrame returns the messages of a frame, with the acknowledgements that its tallies represent.
func (n *node) unpackFrame(from *node, number uint64, msgs []replica.Message, tallies []byte) []replica.Message {
	e := &n.ends[from.index]
	if e.taken == nil {
		return msgs
	}
	e.taken.Record(number, msgs, true)
	var early []replica.Message
	for i := range msgs {
		if m := &msgs[i]; m.Kind == replica.Append {
			match := m.Prev.Seq + rhumb.Seq(len(m.Entries))
			a := replica.Message{
				Kind: replica.Ack, Range: m.Range, From: n.id, To: from.id, Life: n.identity().Boot, Epoch: m.Epoch, Match: match, Commit: min(m.Commit, match),
			}
			e.asked[m.Range] = a
			early = append(early, a)
		}
	}
	if n.w.cfg.Bug == TallyBeforeSync && len(early) > 0 {
		transport{n}.Send(from.id, early)
	}
	if tallies == nil {
		return msgs
	}
	r, err := tally.DecodeWire(tallies)
	n.w.judge(err)
	all, void := e.sent.Expand(msgs, &r)
	n.w.stats.Tallied += len(all) - len(msgs)
	n.w.stats.Void += void
	return all
}

// expandLate returns the acknowledgements of tallies that arrive although their stream has ended. There are none.
func (n *node) expandLate(from *node, late []byte) (acks []replica.Message) {
	e := &n.ends[from.index]
	if late == nil || e.taken == nil {
		return nil
	}
	r, err := tally.DecodeWire(late)
	n.w.judge(err)
	if n.w.cfg.Bug == TallyOfOldLife {
		acks, _ = e.former.Expand(nil, &r)
		for i := range acks {
			acks[i].Life = n.presentLife(from.id).Boot
		}
		return acks
	}
	if acks, _ = e.sent.Expand(nil, &r); len(acks) > 0 {
		n.w.failf("%s takes tallies of %s for a stream that has ended", n.id, from.id)
	}
	n.w.stats.Void += len(r.Frames)
	return nil
}
