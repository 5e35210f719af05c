package link

import (
	"bufio"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// The two kinds of links. TLS negotiates the protocol. With and without TLS, the dialer begins with the magic, which without TLS
// distinguishes a link from HTTP/2.
const (
	PeerProtocol   = "rhumb-link"
	PeerMagic      = "RHUMBLNK"
	ClientProtocol = "rhumb-client"
	ClientMagic    = "RHUMBCLI"

	magicSize = 8
)

// The kinds of frames.
const (
	KindHello    = 1 // PeerHello of nodes, Hello of clients
	KindMessages = 2 // messages of replicas, requests of clients, or answers, one after the other
	KindPing     = 3 // nothing; the receiver answers with the same
	KindError    = 4 // Error
	KindLogin    = 5 // AuthenticateRequest of clients, and AuthenticateResponse
)

// Bounds of links.
const (
	// HelloBytesMax bounds the frames of a side that has not been verified.
	HelloBytesMax = 64 << 10
	// PingEvery is the interval of pings. A link on which nothing arrives for Config.SilentMax is closed. Processes that stop are
	// noticed much sooner, by the probes of a gRPC connection to the same port, and connections that a firewall has lost by
	// unackedMax.
	PingEvery = 5 * time.Second
	// OpenMax bounds the time from the dial to the hello of the other side.
	OpenMax = 5 * time.Second
	// unackedMax is how long bytes may be without an acknowledgement of TCP. It is that of gRPC's connections.
	unackedMax = 3 * time.Second
	// silenceStep is the precision of Config.SilentMax: a deadline for each read would cost more than the read of a small frame.
	silenceStep = time.Second
	// headSize is the length of size and checksum.
	headSize = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Config has the bounds of one link.
type Config struct {
	// ReadBuffer is the size of the buffer of reads in bytes, WriteKept that of the largest buffer that an idle writer keeps.
	ReadBuffer, WriteKept int
	// ReadStep is how much of a large frame is allocated before its first byte arrives. The other side may announce a frame and not send it.
	ReadStep int
	// SilentMax is how long an open link may be silent. It is longer than the content of the kernel's buffers may take on a slow line.
	SilentMax time.Duration
}

// Conn is one end of a link. Its reader and its writer may be different goroutines.
type Conn struct {
	cfg  Config
	conn net.Conn
	r    *bufio.Reader
	end  sync.Once
	// opened is set once the hellos are exchanged. limited is the start of the present deadline for reads, and held the bytes of the
	// buffer that the last frame of NextFrame occupies. All three belong to the reader.
	opened  bool
	limited time.Time
	held    int

	writing sync.Mutex // guards buf and writes
	buf     []byte
}

// New returns a link on a connection.
func New(conn net.Conn, cfg Config) *Conn {
	c := &Conn{cfg: cfg, conn: conn}
	c.r = bufio.NewReaderSize(patient{c}, cfg.ReadBuffer)
	return c
}

// patient reads from the connection of a link for as long as something arrives.
type patient struct{ c *Conn }

// Read implements io.Reader.
func (p patient) Read(b []byte) (int, error) {
	// Before each read and not after the last one: the reader of a link may have been busy for longer than the deadline.
	if now := time.Now(); p.c.opened && now.Sub(p.c.limited) > silenceStep {
		p.c.limited = now
		_ = p.c.conn.SetReadDeadline(now.Add(p.c.cfg.SilentMax))
	}
	return p.c.conn.Read(b)
}

// Opened ends the opening, once the hellos are exchanged. It removes the deadline of the opening; from then on the silence of the other side
// is bounded.
func (c *Conn) Opened() error {
	c.opened = true
	return c.conn.SetDeadline(time.Time{})
}

// Close ends the link. It may be called more than once.
func (c *Conn) Close() { c.end.Do(func() { _ = c.conn.Close() }) }

// RemoteAddr returns the address of the other side.
func (c *Conn) RemoteAddr() net.Addr { return c.conn.RemoteAddr() }

// LimitOpening bounds the time until Opened is called.
func (c *Conn) LimitOpening(d time.Duration) { _ = c.conn.SetDeadline(time.Now().Add(d)) }

// WriteMagic begins a link.
func (c *Conn) WriteMagic(magic string) error {
	_, err := c.conn.Write([]byte(magic))
	return err
}

// WriteFrame sends a frame whose content fill appends; nil means none. It blocks while the other side does not read.
func (c *Conn) WriteFrame(kind byte, fill func([]byte) []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	// The head is filled in at the end: the size is known only when the content is encoded. One write for all of it makes one packet of a
	// small frame, and one record of TLS.
	b := append(c.buf[:0], make([]byte, headSize)...)
	b = append(b, kind)
	if fill != nil {
		b = fill(b)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-headSize))
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[headSize:], castagnoli))
	// A large frame is rare, and there may be many links.
	if c.buf = b; cap(b) > c.cfg.WriteKept {
		c.buf = nil
	}
	_, err := c.conn.Write(b)
	return err
}

// AnswerPing answers a ping. It fails if the other side does not read for as long as it may be silent.
func (c *Conn) AnswerPing() error {
	// The deadline is for this write only, and another goroutine may write meanwhile: whoever writes bounds the time.
	late := time.AfterFunc(c.cfg.SilentMax, c.Close)
	defer late.Stop()
	return c.WriteFrame(KindPing, nil)
}

// WriteProto sends a frame with a protobuf message.
func (c *Conn) WriteProto(kind byte, m proto.Message) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return c.WriteFrame(kind, func(dst []byte) []byte { return append(dst, b...) })
}

// WriteError sends an error to the other side, which may not read: it takes OpenMax at most.
func (c *Conn) WriteError(err error) {
	_ = c.conn.SetWriteDeadline(time.Now().Add(OpenMax)) // also of a write that is in progress
	_ = c.WriteProto(KindError, api.EncodeError(err, api.Hint{}))
}

// ReadFrame reads a frame of at most most bytes. The content belongs to the caller.
func (c *Conn) ReadFrame(most int) (kind byte, content []byte, err error) {
	size, sum, err := c.readHead(most)
	if err != nil {
		return 0, nil, err
	}
	b, err := c.readContent(size)
	if err != nil {
		return 0, nil, err
	}
	return c.verify(b, sum)
}

// readContent reads size bytes. It allocates not much more than has arrived: whoever announces a large frame need not send it, and
// could reserve all memory of a node with a few bytes for each of many links.
func (c *Conn) readContent(size int) ([]byte, error) {
	b := make([]byte, min(size, c.cfg.ReadStep))
	for n := 0; ; {
		if _, err := io.ReadFull(c.r, b[n:]); err != nil {
			return nil, err
		}
		if len(b) == size {
			return b, nil
		}
		n = len(b)
		b = slices.Grow(b, min(size-n, n))[:min(size, 2*n)]
	}
}

// NextFrame is ReadFrame, but the content is valid only until the next call of NextFrame or ReadFrame. It copies and allocates nothing
// for a frame that fits into the buffer.
func (c *Conn) NextFrame(most int) (kind byte, content []byte, err error) {
	size, sum, err := c.readHead(most)
	if err != nil {
		return 0, nil, err
	}
	// The checksum covers all of the frame, so it has to be in the buffer as a whole before anything of it is used.
	if size <= c.r.Size() {
		b, err := c.r.Peek(size)
		if err != nil {
			return 0, nil, err
		}
		c.held = size
		return c.verify(b, sum)
	}
	b, err := c.readContent(size)
	if err != nil {
		return 0, nil, err
	}
	return c.verify(b, sum)
}

// readHead reads the size and the checksum of the next frame.
func (c *Conn) readHead(most int) (size int, sum uint32, err error) {
	if c.held > 0 {
		_, _ = c.r.Discard(c.held) // it is in the buffer
		c.held = 0
	}
	head, err := c.r.Peek(headSize)
	if err != nil {
		// The end between two frames is io.EOF, as for ReadFull. In the middle of a head it is not.
		if err == io.EOF && len(head) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return 0, 0, err
	}
	size, sum = int(binary.BigEndian.Uint32(head)), binary.BigEndian.Uint32(head[4:])
	_, _ = c.r.Discard(headSize)
	if size < 1 || size > most {
		return 0, 0, rhumb.Ef("link.ReadFrame", rhumb.Corrupt, "a frame from %s has %d bytes; between 1 and %d are allowed here", c.RemoteAddr(), size, most)
	}
	return size, sum, nil
}

// verify compares kind and content of a frame with its checksum, and separates them.
//
// The checksum of TCP has 16 bits only, and a damaged acknowledgement would commit what nobody has.
func (c *Conn) verify(b []byte, want uint32) (kind byte, content []byte, err error) {
	if got := crc32.Checksum(b, castagnoli); got != want {
		return 0, nil, rhumb.Ef("link.ReadFrame", rhumb.Corrupt, "a frame of %d bytes from %s has checksum %08x, and its content %08x", len(b), c.RemoteAddr(), want, got)
	}
	return b[0], b[1:], nil
}

// ReadProto reads a frame of one kind into a protobuf message. An error frame is returned as its error.
func (c *Conn) ReadProto(kind byte, into proto.Message) error {
	const op rhumb.Op = "link.ReadProto"
	got, content, err := c.ReadFrame(HelloBytesMax)
	switch {
	case err != nil:
		return err
	case got == KindError:
		return DecodeError(content)
	case got != kind:
		return rhumb.Ef(op, rhumb.InvalidArgument, "a frame of kind %d in the place of one of kind %d", got, kind)
	}
	return rhumb.WrapKind(op, rhumb.InvalidArgument, proto.Unmarshal(content, into))
}

// DecodeError decodes an error frame. The error is an *Answer, unless the frame is invalid.
func DecodeError(content []byte) error {
	m := new(rhumbpb.Error)
	if err := proto.Unmarshal(content, m); err != nil {
		return rhumb.WrapKind("link.DecodeError", rhumb.InvalidArgument, err)
	}
	err, _ := api.DecodeError(m)
	return &Answer{err}
}

// Answer is an error with which the other side answered, so that its kind is conclusive.
type Answer struct{ Err *rhumb.Error }

func (a *Answer) Error() string { return a.Err.Error() }

// Unwrap returns the error.
func (a *Answer) Unwrap() error { return a.Err }
