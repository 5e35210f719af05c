package peer

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/node/tally"
)

// linkConfig has the bounds of links between nodes. They carry large frames, and there are few of them.
var linkConfig = link.Config{ReadBuffer: 64 << 10, WriteKept: 1 << 20, ReadStep: rhumb.MessageSizeMax, SilentMax: 30 * time.Second}

// dialLink opens the link to a peer and exchanges hellos. It returns the one of the peer.
func (p *peer) dialLink(ctx context.Context, hello *rhumbpb.PeerHello) (*link.Conn, *rhumbpb.PeerHello, error) {
	ctx, cancel := context.WithTimeout(ctx, link.OpenMax)
	defer cancel()
	dial := p.n.cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	raw, err := dial(ctx, "tcp", p.addr)
	if errors.Is(err, syscall.ECONNREFUSED) {
		p.n.cfg.Handler.Refused(p.id, p.boot)
	}
	if err != nil {
		return nil, nil, err
	}
	link.LimitUnacked(raw)
	conn, _, err := p.linkCreds.ClientHandshake(ctx, p.addr, raw)
	if err != nil {
		_ = raw.Close()
		return nil, nil, err
	}
	l := link.New(conn, linkConfig)
	defer context.AfterFunc(ctx, l.Close)()
	if err = l.WriteMagic(link.PeerMagic); err == nil {
		err = l.WriteProto(link.KindHello, hello)
	}
	answer := new(rhumbpb.PeerHello)
	// The hello of the peer proves that it verified the hello of this node. Before that, the peer
	// may still reject the link, and must not be reported as connected.
	if err == nil {
		err = l.ReadProto(link.KindHello, answer)
	}
	if err = cmp.Or(err, ctx.Err()); err == nil {
		err = l.Opened()
	}
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	return l, answer, nil
}

// sendByLink sends the messages in the replication queue until the link breaks.
func (p *peer) sendByLink(ctx context.Context) error {
	hello := p.n.newHello()
	// Drawn, so that no tally for another link names this one by chance.
	hello.Stream = max(rand.Uint64(), 1)
	l, answer, err := p.dialLink(ctx, hello)
	if err != nil {
		return err
	}
	defer l.Close()
	// Before the first frame, which a tally may answer.
	p.beginTallies(hello, answer)
	defer p.endTallies()
	// A write blocks while the peer does not read, and ends with the connection.
	defer context.AfterFunc(ctx, l.Close)()
	p.link.Store(l)
	defer p.link.Store(nil)
	ended := make(chan error, 1)
	p.n.work.Go(func() { ended <- awaitEnd(l) })
	// Messages queued before belong to the link that broke. Replicas consider them lost and start
	// from the peer's position again once they learn that the peer is connected.
	p.replication.clear()
	p.n.cfg.Handler.Connected(p.id, true)
	// runStream opens the next link only after this, so the Handler sees every break.
	defer p.n.cfg.Handler.Connected(p.id, false)
	ping := time.NewTicker(link.PingEvery)
	defer ping.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return err
		case <-ping.C:
			err = l.WriteFrame(link.KindPing, nil)
		case <-p.replication.wake:
			err = p.sendQueued(l)
		}
		if err != nil {
			return err
		}
	}
}

// sendQueued sends what waits in the queue. Messages are encoded one frame at a time, so
// that a slow peer holds the bytes of one frame, not of its whole queue.
func (p *peer) sendQueued(l *link.Conn) error {
	for {
		msgs := p.replication.take(p.n.cfg.FrameBytesMax)
		if len(msgs) == 0 {
			return nil
		}
		rest, acks := p.prepareFrame(msgs)
		p.n.m.frames.Inc()
		p.n.m.sent.Add(float64(len(rest)))
		err := l.WriteFrame(link.KindMessages, func(b []byte) []byte {
			for i := range rest {
				b = appendMessage(b, &rest[i])
			}
			// After the messages: acknowledgements do not overtake earlier answers.
			if len(acks.Frames) > 0 {
				p.n.m.sent.Inc()
				b = appendSized(b, func(b []byte) []byte { return acks.AppendWire(append(b, kindTally)) })
			}
			return b
		})
		p.replication.recycle(msgs)
		if err != nil {
			return err
		}
	}
}

// awaitEnd reads the answers of the receiver until the link ends, and closes it.
func awaitEnd(l *link.Conn) error {
	defer l.Close()
	for {
		kind, content, err := l.ReadFrame(link.HelloBytesMax)
		switch {
		case err != nil:
			return err
		case kind == link.KindError:
			return link.DecodeError(content)
		}
	}
}

// messagesAhead bounds the messages of a frame for which memory is allocated before they are decoded.
const messagesAhead = 512

// decodeMessages decodes the content of a frame of messages from another node, and returns the
// tallies in it apart. Messages with entries or fields of a later release are lost, like ones on a bad
// link, and counted by unknown.
func decodeMessages(content []byte, from, to rhumb.NodeID, unknown func(replica.Message, error)) (msgs []replica.Message, tallies []tally.Tally, err error) {
	// A message is large in memory, so a slice that grows would copy more than all of the frame. But a hostile frame may
	// announce millions of empty messages.
	if n := min(countSized(content), messagesAhead); n > 0 {
		msgs = make([]replica.Message, 0, n)
	}
	r := &wireReader{b: content}
	for len(r.b) > 0 {
		b := r.sized()
		if r.bad {
			return nil, nil, rhumb.Ef("peer.decodeMessages", rhumb.Corrupt, "a frame of %s with %d bytes does not end where its messages do", from, len(content))
		}
		if len(b) > 0 && b[0] == kindTally {
			rs, err := tally.DecodeWire(b[1:])
			if err != nil {
				return nil, nil, err
			}
			tallies = append(tallies, rs)
			continue
		}
		m, err := decodeMessage(b, from, to)
		if m.Unknown || rhumb.KindOf(err) == rhumb.Incompatible {
			unknown(m, err)
		}
		switch {
		case rhumb.KindOf(err) == rhumb.Incompatible:
			continue
		case err != nil:
			return nil, nil, err
		}
		msgs = append(msgs, m)
	}
	return msgs, tallies, nil
}
