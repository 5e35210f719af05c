package server

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Service is the key-value service of a node. It is registered before the node belongs to a
// cluster, since gRPC accepts no services later, and rejects everything until Open.
type Service struct {
	rhumbpb.UnimplementedKVServer
	// kv is nil while the node does not serve. A new life of the node has a KV of its own.
	kv atomic.Pointer[KV]
}

// Register registers the service.
func (s *Service) Register(r grpc.ServiceRegistrar) { rhumbpb.RegisterKVServer(r, s) }

// Open makes kv answer the requests; nil rejects them again.
func (s *Service) Open(kv *KV) { s.kv.Store(kv) }

// errNotServing rejects requests while the node does not serve.
var errNotServing = rhumb.E("server.Service", rhumb.Unavailable, "the node does not serve: it waits for init, is joining its cluster, or is stopping; retry, or use another node")

// currentKV returns the KV, or an error while the node does not serve. The error is Unavailable, so
// that clients retry or use another node.
func (s *Service) currentKV() (*KV, error) {
	if kv := s.kv.Load(); kv != nil {
		return kv, nil
	}
	return nil, api.Status(errNotServing, api.Hint{})
}

// Stream answers the requests of one client.
func (s *Service) Stream(stream grpc.BidiStreamingServer[rhumbpb.ClientFrame, rhumbpb.ServerFrame]) error {
	kv := s.kv.Load()
	if kv == nil {
		// The client has sent requests with its hello, and has to learn that none was carried out.
		return api.Status(errNotServing, api.Hint{Unread: true})
	}
	return kv.Stream(stream)
}

// Do answers one request.
func (s *Service) Do(ctx context.Context, q *rhumbpb.Request) (*rhumbpb.Response, error) {
	kv, err := s.currentKV()
	if err != nil {
		return nil, err
	}
	return kv.Do(ctx, q)
}

// Scan sends the records of one range.
func (s *Service) Scan(q *rhumbpb.ScanRequest, stream grpc.ServerStreamingServer[rhumbpb.ScanPage]) error {
	kv, err := s.currentKV()
	if err != nil {
		return err
	}
	return kv.Scan(q, stream)
}
