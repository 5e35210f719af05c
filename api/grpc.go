package api

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/rhumbdb/rhumb"
)

// Settings of connections. Both sides must agree on keepalive: a server closes connections that
// ping more often than it permits.
const (
	// streamWindow and connWindow are the flow-control windows in bytes. They exceed the largest
	// batch, so that a batch to a distant region takes one round trip. Servers with little memory
	// use smaller windows (ServerOptions).
	streamWindow      = 4 << 20
	connWindow        = 8 << 20
	streamWindowLeast = 64 << 10
	// keepaliveTime is the time after which a silent connection is probed. keepaliveTimeout is the
	// time in which an answer, or any TCP acknowledgement, must arrive.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 3 * time.Second
	// reconnectMax bounds the pause between attempts to connect. gRPC's default is two minutes, for
	// which a node that restarted would look dead.
	reconnectMax = time.Second
	// dialTimeout bounds an attempt to connect without TLS, and connectTimeout the whole attempt: with
	// TLS, it includes the wait for a place (openingWait), a handshake, and the pause after one that a busy
	// node refused.
	dialTimeout    = 2 * time.Second
	connectTimeout = 12 * time.Second
	// streamsMax bounds the streams of one connection, HeaderBytesMax the headers of one request, and
	// handshakeTimeout the handshakes of TLS and HTTP/2.
	streamsMax       = 1_000
	HeaderBytesMax   = 16 << 10
	handshakeTimeout = 5 * time.Second
	// streamWorkers is the number of goroutines that a server keeps for new streams.
	streamWorkers = 32
)

// DialFunc opens a connection. network is always "tcp".
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Credentials secure a connection: those of an identity.Source, or PlainText.
type Credentials = credentials.TransportCredentials

// PlainText returns credentials without TLS. Only a process that was started with --insecure may use them, and for loopback addresses
// only.
func PlainText() Credentials { return insecure.NewCredentials() }

// DialOptions returns the options of connections to a Rhumb server. dial may be nil, for plain TCP. creds must not be nil: gRPC
// refuses to connect without credentials.
func DialOptions(dial DialFunc, creds Credentials) []grpc.DialOption {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	opts := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(rhumb.MessageSizeMax), grpc.MaxCallSendMsgSize(rhumb.MessageSizeMax)),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectMax},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithDisableServiceConfig(),
	}
	if creds != nil {
		opts = append(opts, grpc.WithTransportCredentials(creds))
	}
	return append(opts, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dialPaced(ctx, addr, dial, creds) }))
}

// dialPaced dials within dialTimeout, once the connection has a place if creds are Paced.
func dialPaced(ctx context.Context, addr string, dial DialFunc, creds Credentials) (net.Conn, error) {
	bounded := func(ctx context.Context) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		return dial(ctx, "tcp", addr)
	}
	if p, ok := creds.(*paced); ok {
		return p.dial(ctx, bounded)
	}
	return bounded(ctx)
}

// Dial opens a connection that does not speak gRPC, with the same bounds and credentials as those that do. raw is the connection below TLS.
func Dial(ctx context.Context, addr string, dial DialFunc, creds Credentials) (conn, raw net.Conn, info credentials.AuthInfo, err error) {
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	if raw, err = dialPaced(ctx, addr, dial, creds); err != nil {
		return nil, nil, nil, err
	}
	if conn, info, err = creds.ClientHandshake(ctx, addr, raw); err != nil {
		_ = raw.Close()
		return nil, nil, nil, err
	}
	return conn, raw, info, nil
}

// Connect returns a connection to "host:port". The connection is established by the first call.
func Connect(addr string, dial DialFunc, creds Credentials, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	const op rhumb.Op = "api.Connect"
	// Without passthrough, gRPC would resolve the name itself; dial must see the address as
	// written, because a latency file may name it.
	cc, err := grpc.NewClient("passthrough:///"+addr, append(DialOptions(dial, creds), more...)...)
	return cc, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
}

// ServerOptions returns the options of a server. window is the number of bytes of a stream that the
// network may hold before the server reads them; 0 means the largest useful window. A message
// larger than the window still arrives in one piece once the server reads it. creds must not be nil.
func ServerOptions(window int64, creds Credentials) []grpc.ServerOption {
	stream := int32(streamWindow)
	if window > 0 {
		stream = int32(min(max(window, streamWindowLeast), streamWindow))
	}
	return []grpc.ServerOption{
		grpc.Creds(creds),
		grpc.MaxRecvMsgSize(rhumb.MessageSizeMax), grpc.MaxSendMsgSize(rhumb.MessageSizeMax),
		grpc.InitialWindowSize(stream), grpc.InitialConnWindowSize(connWindow),
		grpc.NumStreamWorkers(streamWorkers), grpc.MaxConcurrentStreams(streamsMax), grpc.MaxHeaderListSize(HeaderBytesMax),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		// Half of the interval of clients, so that a ping that arrives a little early is permitted.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	}
}
