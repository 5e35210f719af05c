package api

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/rhumbdb/rhumb"
)

// Settings of connections. Both sides must agree on keepalive: a server ends connections that ping more often than it
// permits.
const (
	// streamWindow and connWindow are the flow-control windows in bytes: above the largest batch, so that a batch to a
	// far region is one flight. A server with little memory has smaller ones, see ServerOptions.
	streamWindow      = 4 << 20
	connWindow        = 8 << 20
	streamWindowLeast = 64 << 10
	// keepaliveTime is how long a connection may be silent before it is probed, keepaliveTimeout how long an answer, or
	// any acknowledgement by TCP, may take before the connection counts as dead.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 3 * time.Second
	// reconnectMax bounds the pause between attempts to connect.
	reconnectMax = time.Second
	// streamWorkers is the number of goroutines that a server keeps for new streams.
	streamWorkers = 32
)

// DialFunc opens a connection; network is "tcp".
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// DialOptions are what clients of a Rhumb server connect with. dial may be nil for the plain dialer.
func DialOptions(dial DialFunc) []grpc.DialOption {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(rhumb.MessageSizeMax), grpc.MaxCallSendMsgSize(rhumb.MessageSizeMax)),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectMax},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithDisableServiceConfig(),
	}
	if dial != nil {
		opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dial(ctx, "tcp", addr)
		}))
	}
	return opts
}

// Connect makes a connection to "host:port". It does not wait for it: the first call does.
func Connect(addr string, dial DialFunc) (*grpc.ClientConn, error) {
	const op rhumb.Op = "api.Connect"
	cc, err := grpc.NewClient("passthrough:///"+addr, DialOptions(dial)...)
	return cc, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
}

// ServerOptions are what a server of clients is made with. window is how many bytes of a stream the network may hold that the
// server has not read, 0 for the most that is of use; a larger message still comes in one piece once it is being read.
func ServerOptions(window int64) []grpc.ServerOption {
	stream := int32(streamWindow)
	if window > 0 {
		stream = int32(min(max(window, streamWindowLeast), streamWindow))
	}
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(rhumb.MessageSizeMax), grpc.MaxSendMsgSize(rhumb.MessageSizeMax),
		grpc.InitialWindowSize(stream), grpc.InitialConnWindowSize(connWindow),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	}
}
