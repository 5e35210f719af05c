package peer

import (
	"context"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
)

// call asks another node one thing. Its error is Unavailable when the node certainly did not receive the request, for
// example because it refuses the connection: grpc takes up a stream first and sends the request after it.
func (n *Network) call(ctx context.Context, op rhumb.Op, to rhumb.NodeID, method string, request, response any) error {
	p, ok := n.peer(to)
	if !ok {
		return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Node: to, Msg: "the node is not known here"}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream, whatever became of it
	s, err := p.conn.Client().NewStream(ctx, &grpc.StreamDesc{}, method)
	if err != nil {
		return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Node: to, Msg: "cannot connect to the node; retry", Err: err}
	}
	if err = s.SendMsg(request); err == nil {
		err = s.RecvMsg(response)
	}
	return fromStatus(op, to, err)
}
