package peer

import (
	"context"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
)

// callPeer sends one request to another node and waits for the response. The error is of kind
// Unavailable if the node certainly did not receive the request, and of kind Unknown if it may
// have. Callers rely on the difference: only a request that was not received may be sent to another
// node as if it were new.
func (n *Network) callPeer(ctx context.Context, op rhumb.Op, to rhumb.NodeID, method string, request, response any) error {
	p, ok := n.lookUpPeer(to)
	if !ok {
		return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Node: to, Msg: "this node does not know the other node"}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // releases the stream on every path
	// conn.Invoke would not distinguish the two cases. NewStream fails before the request is sent,
	// for example because the node refuses the connection.
	s, err := p.conn.Client().NewStream(ctx, &grpc.StreamDesc{}, method)
	if err != nil {
		// Commands show the reason to operators, without the words of gRPC around it.
		plain, _, _ := api.FromStatus(op, err)
		return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Node: to, Msg: "cannot connect to the node; retry", Err: plain}
	}
	// From here on, the node may have received the request.
	if err = s.SendMsg(request); err == nil {
		err = s.RecvMsg(response)
	}
	return fromStatus(op, to, err)
}
