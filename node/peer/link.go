package peer

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// A link carries the messages of replicas from one node to another, on a connection of
// its own to the main port of the receiver (docs/formats/link.md). gRPC would pass each
// frame through two more goroutines on each side, which costs more than the frame itself.
// All other traffic between nodes is rare and goes by gRPC.
//
// A frame is
//
//	size(4, of kind and content) checksum(4, CRC-32C of kind and content) kind(1) content
//
// with integers in big endian. The dialer sends linkMagic, then frameHello with a
// PeerHello. The receiver answers with its own frameHello, or with frameError. From then
// on the dialer sends frameMessages and framePing, and the receiver only framePing, one
// for each that it gets, and frameError before it closes the link.
const (
	// LinkProtocol is the application protocol that TLS negotiates for a link. Without
	// TLS, linkMagic tells a link from HTTP/2.
	LinkProtocol = "rhumb-link"
	linkMagic    = "RHUMBLNK"

	frameHello    = 1 // PeerHello
	frameMessages = 2 // messages (appendMessage)
	framePing     = 3 // nothing
	frameError    = 4 // Error

	// frameHead is the length of size and checksum.
	frameHead = 8
	// helloBytesMax bounds the frames of a node that has not been verified.
	helloBytesMax = 64 << 10
	// linkBufferKept is the largest buffer that an idle sender keeps.
	linkBufferKept = 1 << 20

	// linkPingEvery is the interval of pings. A link on which nothing arrives for
	// linkSilentMax is closed. That is longer than the content of the kernel's buffers
	// may take on a slow line. Processes that stop are noticed much sooner, by the probes
	// of the gRPC connection, and connections that a firewall has lost by unackedMax.
	linkPingEvery = 5 * time.Second
	linkSilentMax = 30 * time.Second
	// unackedMax is how long bytes may be without an acknowledgement of TCP. It is that
	// of gRPC's connections.
	unackedMax = 3 * time.Second
	// silenceStep is the precision of linkSilentMax: a deadline for each read would cost
	// more than the read of a small frame.
	silenceStep = time.Second
	// linkOpenMax bounds the time from the dial to the hello of the other side.
	linkOpenMax = 5 * time.Second
)

var linkTable = crc32.MakeTable(crc32.Castagnoli)

// link is one end of a link. Its reader and its writer may be different goroutines.
type link struct {
	conn net.Conn
	r    *bufio.Reader
	end  sync.Once
	// watched is set once both sides have said hello. limited is the start of the present
	// deadline for reads. Both belong to the reader.
	watched bool
	limited time.Time

	writing sync.Mutex // guards buf and writes
	buf     []byte
}

func newLink(conn net.Conn) *link {
	l := &link{conn: conn}
	l.r = bufio.NewReaderSize(patient{l}, 64<<10)
	return l
}

// patient reads from the connection of a link for as long as something arrives.
type patient struct{ l *link }

// Read implements io.Reader.
func (p patient) Read(b []byte) (int, error) {
	if now := time.Now(); p.l.watched && now.Sub(p.l.limited) > silenceStep {
		p.l.limited = now
		_ = p.l.conn.SetReadDeadline(now.Add(linkSilentMax))
	}
	return p.l.conn.Read(b)
}

// close ends the link. It may be called more than once.
func (l *link) close() { l.end.Do(func() { _ = l.conn.Close() }) }

// writeFrame sends a frame whose content fill appends. It blocks while the other side
// does not read.
func (l *link) writeFrame(kind byte, fill func([]byte) []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	b := append(l.buf[:0], make([]byte, frameHead)...)
	b = append(b, kind)
	if fill != nil {
		b = fill(b)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-frameHead))
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[frameHead:], linkTable))
	// A large frame is rare, and there may be many links.
	if l.buf = b; cap(b) > linkBufferKept {
		l.buf = nil
	}
	_, err := l.conn.Write(b)
	return err
}

// writeProto sends a frame with a protobuf message.
func (l *link) writeProto(kind byte, m proto.Message) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return l.writeFrame(kind, func(dst []byte) []byte { return append(dst, b...) })
}

// readFrame reads a frame of at most most bytes. The content belongs to the caller.
func (l *link) readFrame(most int) (kind byte, content []byte, err error) {
	const op rhumb.Op = "peer.readFrame"
	var head [frameHead]byte
	if _, err := io.ReadFull(l.r, head[:]); err != nil {
		return 0, nil, err
	}
	size := int(binary.BigEndian.Uint32(head[:]))
	if size < 1 || size > most {
		return 0, nil, rhumb.Ef(op, rhumb.Corrupt, "a frame from %s has %d bytes; between 1 and %d are allowed here", l.conn.RemoteAddr(), size, most)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(l.r, b); err != nil {
		return 0, nil, err
	}
	// The checksum of TCP has 16 bits only, and a damaged acknowledgement would commit
	// what nobody has.
	if got, want := crc32.Checksum(b, linkTable), binary.BigEndian.Uint32(head[4:]); got != want {
		return 0, nil, rhumb.Ef(op, rhumb.Corrupt, "a frame of %d bytes from %s has checksum %08x, and its content %08x", size, l.conn.RemoteAddr(), want, got)
	}
	return b[0], b[1:], nil
}

// readProto reads a frame of one kind into a protobuf message. An error frame is returned
// as its error.
func (l *link) readProto(kind byte, into proto.Message) error {
	const op rhumb.Op = "peer.readProto"
	got, content, err := l.readFrame(helloBytesMax)
	switch {
	case err != nil:
		return err
	case got == frameError:
		return decodeLinkError(content)
	case got != kind:
		return rhumb.Ef(op, rhumb.InvalidArgument, "a frame of kind %d in the place of one of kind %d", got, kind)
	}
	return rhumb.WrapKind(op, rhumb.InvalidArgument, proto.Unmarshal(content, into))
}

// decodeLinkError decodes an error frame.
func decodeLinkError(content []byte) error {
	m := new(rhumbpb.Error)
	if err := proto.Unmarshal(content, m); err != nil {
		return rhumb.WrapKind("peer.decodeLinkError", rhumb.InvalidArgument, err)
	}
	err, _ := api.DecodeError(m)
	return err
}

// dialLink opens the link to a peer and exchanges hellos.
func (p *peer) dialLink(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, linkOpenMax)
	defer cancel()
	dial := p.n.cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	raw, err := dial(ctx, "tcp", p.addr)
	if err != nil {
		return nil, err
	}
	limitUnacked(raw)
	conn, _, err := p.linkCreds.ClientHandshake(ctx, p.addr, raw)
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	l := newLink(conn)
	defer context.AfterFunc(ctx, l.close)()
	if _, err = conn.Write([]byte(linkMagic)); err == nil {
		err = l.writeProto(frameHello, p.n.newHello())
	}
	// The hello of the peer proves that it verified the hello of this node. Before that, the peer
	// may still reject the link, and must not be reported as connected.
	if err == nil {
		err = l.readProto(frameHello, new(rhumbpb.PeerHello))
	}
	if err = cmp.Or(err, ctx.Err()); err != nil {
		l.close()
		return nil, err
	}
	l.watched = true
	return l, nil
}

// sendByLink sends the messages in the replication queue until the link breaks.
func (p *peer) sendByLink(ctx context.Context) error {
	l, err := p.dialLink(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	// A write blocks while the peer does not read, and ends with the connection.
	defer context.AfterFunc(ctx, l.close)()
	p.link.Store(l)
	defer p.link.Store(nil)
	ended := make(chan error, 1)
	p.n.work.Go(func() { ended <- l.awaitEnd() })
	// Messages queued before belong to the link that broke. Replicas consider them lost and start
	// from the peer's position again once they learn that the peer is connected.
	p.replication.clear()
	p.n.cfg.Handler.Connected(p.id, true)
	// runStream opens the next link only after this, so the Handler sees every break.
	defer p.n.cfg.Handler.Connected(p.id, false)
	ping := time.NewTicker(linkPingEvery)
	defer ping.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return err
		case <-ping.C:
			err = l.writeFrame(framePing, nil)
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
func (p *peer) sendQueued(l *link) error {
	for {
		msgs := p.replication.take(p.n.cfg.FrameBytesMax)
		if len(msgs) == 0 {
			return nil
		}
		p.n.m.frames.Inc()
		p.n.m.sent.Add(float64(len(msgs)))
		err := l.writeFrame(frameMessages, func(b []byte) []byte {
			for i := range msgs {
				b = appendMessage(b, &msgs[i])
			}
			return b
		})
		if err != nil {
			return err
		}
	}
}

// awaitEnd reads the answers of the receiver until the link ends, and closes it.
func (l *link) awaitEnd() error {
	defer l.close()
	for {
		kind, content, err := l.readFrame(helloBytesMax)
		switch {
		case err != nil:
			return err
		case kind == frameError:
			return decodeLinkError(content)
		}
	}
}

// decodeMessages decodes the content of a frame of messages from another node. Messages
// with entries or fields of a later release are lost, like ones on a bad link, and
// counted by unknown.
func decodeMessages(content []byte, from, to rhumb.NodeID, unknown func(replica.Message, error)) ([]replica.Message, error) {
	r := &wireReader{b: content}
	var msgs []replica.Message
	for len(r.b) > 0 {
		b := r.sized()
		if r.bad {
			return nil, rhumb.Ef("peer.decodeMessages", rhumb.Corrupt, "a frame of %s with %d bytes does not end where its messages do", from, len(content))
		}
		m, err := decodeMessage(b, from, to)
		if m.Unknown || rhumb.KindOf(err) == rhumb.Incompatible {
			unknown(m, err)
		}
		switch {
		case rhumb.KindOf(err) == rhumb.Incompatible:
			continue
		case err != nil:
			return nil, err
		}
		msgs = append(msgs, m)
	}
	return msgs, nil
}
