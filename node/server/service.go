package server

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Service is the key-value service of a node. It is registered before the node belongs to a cluster, and refuses
// everything until Open.
type Service struct {
	rhumbpb.UnimplementedKVServer
	kv atomic.Pointer[KV]
}

// Register offers the service on a server.
func (s *Service) Register(r grpc.ServiceRegistrar) { rhumbpb.RegisterKVServer(r, s) }

// Open begins to answer by kv; nil refuses again.
func (s *Service) Open(kv *KV) { s.kv.Store(kv) }

// errNotServing refuses what a node does not serve.
var errNotServing = rhumb.E("server.Service", rhumb.Unavailable, "the node does not serve: it waits for init, joins its cluster, or stops; retry, or ask another node")

func (s *Service) open() (*KV, error) {
	if kv := s.kv.Load(); kv != nil {
		return kv, nil
	}
	return nil, api.Status(errNotServing, api.Hint{})
}

// Stream answers the requests of one client.
func (s *Service) Stream(stream grpc.BidiStreamingServer[rhumbpb.ClientFrame, rhumbpb.ServerFrame]) error {
	kv, err := s.open()
	if err != nil {
		return err
	}
	return kv.Stream(stream)
}

// Do answers one request.
func (s *Service) Do(ctx context.Context, q *rhumbpb.Request) (*rhumbpb.Response, error) {
	kv, err := s.open()
	if err != nil {
		return nil, err
	}
	return kv.Do(ctx, q)
}

// Scan sends the records of one range.
func (s *Service) Scan(q *rhumbpb.ScanRequest, stream grpc.ServerStreamingServer[rhumbpb.ScanPage]) error {
	kv, err := s.open()
	if err != nil {
		return err
	}
	return kv.Scan(q, stream)
}
