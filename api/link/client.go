package link

import (
	"cmp"
	"context"
	"encoding/binary"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/credentials"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
)

// ClientConfig has the bounds of links of clients, at both ends. A node with little memory has many of them, so their buffers are no
// larger than those of gRPC. SilentMax is the sum of the times after which gRPC's keepalive ends a connection.
var ClientConfig = Config{ReadBuffer: 32 << 10, WriteKept: 32 << 10, ReadStep: 64 << 10, SilentMax: 13 * time.Second}

// RequestsMax bounds the requests of a link that are not answered. A client that keeps to it never makes the node stop reading because of
// their number.
const RequestsMax = 1 << 15

// RequestBytesMax bounds a frame of requests, AnswerBytesMax one of answers: a node adds answers to a frame until it has a few MiB, and the
// last one may be large. FrameMessagesMax bounds the requests or answers of a frame.
const (
	RequestBytesMax  = rhumb.MessageSizeMax + FrameMessagesMax*sizeBytes
	AnswerBytesMax   = rhumb.MessageSizeMax + 8<<20
	FrameMessagesMax = 4_096
)

// sharedMax is the largest message whose fields share one allocation. The fields of a larger message are copied one by one, because one
// of them would otherwise keep all others in memory: a small value is kept for long by whoever reads it, or by the log of its range.
const sharedMax = 1 << 10

// sizeBytes is the length of the size before each message of a frame.
const sizeBytes = 4

// message is implemented by Request and Response, with code that vtprotobuf generates. It uses no reflection, and appends to the buffer of
// the link, so that encoding allocates nothing. Its decoder can share memory with its input, which that of protobuf cannot.
type message interface {
	SizeVT() int
	MarshalToSizedBufferVT(b []byte) (int, error)
	UnmarshalVT(b []byte) error
	UnmarshalVTUnsafe(b []byte) error
}

// appendMessages appends messages, each with its size before it.
func appendMessages[M message](b []byte, msgs []M) []byte {
	for _, m := range msgs {
		size := m.SizeVT()
		b = binary.BigEndian.AppendUint32(b, uint32(size))
		b = slices.Grow(b, size)[:len(b)+size]
		// It fails only for messages of other packages, which these do not have.
		_, _ = m.MarshalToSizedBufferVT(b[len(b)-size:])
	}
	return b
}

// decodeMessages decodes the content of a frame. The messages share no memory with it.
func decodeMessages[T any, M interface {
	*T
	message
}](op rhumb.Op, content []byte) ([]M, error) {
	// Counted first: an empty message takes four bytes here, and fifty times as many when it is decoded.
	count := 0
	for rest := content; len(rest) > 0; count++ {
		size, ok := nextSize(rest)
		if !ok {
			return nil, rhumb.Ef(op, rhumb.Corrupt, "a frame with %d bytes does not end where its messages do", len(content))
		}
		rest = rest[sizeBytes+size:]
	}
	if count > FrameMessagesMax {
		return nil, rhumb.Ef(op, rhumb.TooLarge, "a frame has %d messages; it may have %d", count, FrameMessagesMax)
	}
	msgs := make([]M, count)
	for i := range msgs {
		// It was checked when the messages were counted.
		size, _ := nextSize(content)
		m, b := M(new(T)), content[sizeBytes:sizeBytes+size]
		var err error
		if size <= sharedMax {
			err = m.UnmarshalVTUnsafe(slices.Clone(b))
		} else {
			err = m.UnmarshalVT(b)
		}
		if err != nil {
			return nil, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
		}
		msgs[i], content = m, content[sizeBytes+size:]
	}
	return msgs, nil
}

// nextSize returns the size of the first message of a content. ok is false if the content ends before the message.
func nextSize(content []byte) (size int, ok bool) {
	if len(content) < sizeBytes {
		return 0, false
	}
	n := binary.BigEndian.Uint32(content)
	return int(n), n <= math.MaxInt32 && int(n) <= len(content)-sizeBytes
}

// AppendRequests appends the content of a frame of requests.
func AppendRequests(b []byte, requests []*rhumbpb.Request) []byte { return appendMessages(b, requests) }

// DecodeRequests decodes the content of a frame of requests. Like gRPC, it rejects texts that are not UTF-8: the request could not be passed on to
// another node.
func DecodeRequests(content []byte) ([]*rhumbpb.Request, error) {
	const op rhumb.Op = "link.DecodeRequests"
	requests, err := decodeMessages[rhumbpb.Request](op, content)
	if err != nil {
		return nil, err
	}
	for _, q := range requests {
		for _, m := range q.GetWrite().GetMutations() {
			for _, field := range m.GetCondition().GetFields() {
				if !utf8.ValidString(field) {
					return nil, rhumb.Ef(op, rhumb.InvalidArgument, "a condition of request %d names the field %q, which is not UTF-8", q.Id, field)
				}
			}
		}
	}
	return requests, nil
}

// AppendResponses appends the content of a frame of answers.
func AppendResponses(b []byte, responses []*rhumbpb.Response) []byte {
	return appendMessages(b, responses)
}

// DecodeResponses decodes the content of a frame of answers.
func DecodeResponses(content []byte) ([]*rhumbpb.Response, error) {
	return decodeMessages[rhumbpb.Response]("link.DecodeResponses", content)
}

// ClientDialer opens links to one node.
type ClientDialer struct {
	// Addr is the "host:port" of the node, Dial opens the TCP connection, and Credentials secure it. They offer ClientProtocol, and the
	// protocol of gRPC for nodes that do not know it.
	Addr        string
	Dial        api.DialFunc
	Credentials api.Credentials
	// Login logs the link in, and returns the token and when to log in again. It may be nil.
	Login func(c *Conn, info credentials.AuthInfo) (token string, renew time.Time, err error)
}

// Open opens a link and exchanges hellos. renew is when another link has to take its place because its login expires, or zero. The error is an
// *Answer if the node refused the link; a node that does not know links ends the connection, or chooses another protocol.
func (d *ClientDialer) Open(ctx context.Context, cluster rhumb.ClusterID) (c *Conn, renew time.Time, err error) {
	const op rhumb.Op = "link.Open"
	conn, raw, info, err := api.Dial(ctx, d.Addr, d.Dial, d.Credentials)
	if err != nil {
		return nil, renew, err
	}
	LimitUnacked(raw)
	c = New(conn, ClientConfig)
	// The handshake and the hellos end with ctx. The link itself does not: it outlives the call.
	stop := context.AfterFunc(ctx, c.Close)
	defer stop()
	if a, ok := info.(identity.AuthInfo); ok && a.State.NegotiatedProtocol != ClientProtocol {
		err = rhumb.Ef(op, rhumb.Incompatible, "%s does not know links of clients", d.Addr)
	}
	if err == nil {
		renew, err = d.greet(c, info, cluster)
	}
	if err = cmp.Or(err, ctx.Err(), c.Opened()); err != nil {
		c.Close()
		return nil, renew, err
	}
	return c, renew, nil
}

// greet logs in and exchanges hellos. The node checks the identity, the limits, the rights and the cluster before it answers, so an error
// says that the link was refused as a whole.
func (d *ClientDialer) greet(c *Conn, info credentials.AuthInfo, cluster rhumb.ClusterID) (renew time.Time, err error) {
	if err := c.WriteMagic(ClientMagic); err != nil {
		return renew, err
	}
	hello := &rhumbpb.LinkHello{Hello: &rhumbpb.Hello{Protocol: api.Protocol, Cluster: api.EncodeUUID(cluster)}}
	// Before the hello, so that the hello can carry the token, and the node knows the caller when it checks the rest.
	if d.Login != nil {
		if hello.Token, renew, err = d.Login(c, info); err != nil {
			return renew, err
		}
	}
	if err := c.WriteProto(KindHello, hello); err != nil {
		return renew, err
	}
	// Nothing is sent before the node has answered: a node that does not know links would otherwise leave the caller in doubt about its
	// requests.
	return renew, c.ReadProto(KindHello, new(rhumbpb.LinkHello))
}

// ClientProtocols are the application protocols that a client offers for a link. A node of an earlier release chooses that of gRPC, by which the
// client learns that it has no links.
var ClientProtocols = []string{ClientProtocol, "h2"}
