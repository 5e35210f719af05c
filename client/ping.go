package client

import (
	"context"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
)

// Pong is the answer of a node to a ping.
type Pong struct {
	Addr string
	// Err says why there was no answer. If it is set, the fields below are empty.
	Err error
	// Node, Region and Cluster are empty before the node is in a cluster.
	Node    rhumb.NodeID
	Region  string
	Cluster rhumb.ClusterID
	// Ready is set if the node serves.
	Ready bool
	// Ahead is how far the clock of the node is ahead of the clock of this process; the true value
	// differs by at most Uncertainty. The clock of a node is hybrid: if another node is ahead, all
	// nodes are.
	Ahead, Uncertainty time.Duration
	RoundTrip          time.Duration
}

// Ping asks the node at each address of cfg who it is and what time it has. The nodes need not be
// in a cluster yet.
func Ping(ctx context.Context, cfg Config) ([]Pong, error) {
	const op rhumb.Op = "client.Ping"
	c, err := newClient(cfg)
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	defer c.Close()
	pongs := make([]Pong, len(cfg.Addrs))
	var work sync.WaitGroup
	for i, addr := range cfg.Addrs {
		work.Go(func() { pongs[i] = c.pingOften(ctx, addr) })
	}
	work.Wait()
	return pongs, nil
}

// pingOften returns the fastest of several answers. The first includes the time to connect, and the
// error of the other clock is half the round trip.
func (c *Client) pingOften(ctx context.Context, addr string) (best Pong) {
	for i := range pingsPerRound {
		start := time.Now()
		resp, err := c.ping(ctx, addr)
		took := time.Since(start)
		if err != nil {
			if i == 0 {
				best = Pong{Addr: addr, Err: unwrapAnswer(err)}
			}
			return best
		}
		// The fastest exchange has the least queueing in it, and half of its round trip bounds the
		// error. An average would mix in the delays of the slow ones.
		if i > 0 && took >= best.RoundTrip {
			continue
		}
		best = Pong{
			Addr: addr, Node: rhumb.NodeID(resp.GetNode()), Region: resp.GetRegionName(), Ready: resp.GetReady(), RoundTrip: took,
			Uncertainty: took/2 + time.Millisecond, // timestamps have milliseconds
		}
		if ts := rhumb.Timestamp(resp.GetTimestamp()); ts != 0 {
			best.Ahead = ts.Time().Sub(start.Add(took / 2)).Round(time.Microsecond)
		}
		if id, err := api.DecodeUUID(resp.GetCluster()); err == nil {
			best.Cluster = id
		}
	}
	return best
}
