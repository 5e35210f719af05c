package client

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// watch keeps the metadata until the client is closed: from the nearest node that answers, and from the next when that
// one ends. It tells first how the beginning went.
func (c *Client) watch(first chan<- error) {
	pause := newPause()
	for c.ctx.Err() == nil {
		var err error
		for _, addr := range c.nearestFirst() {
			var began bool
			began, err = c.watchAt(addr, func() {
				if first != nil {
					first <- nil
					first = nil
				}
			})
			if c.ctx.Err() != nil {
				return
			}
			c.log.Debug("metadata watch ended", "addr", addr, "err", err)
			c.rtt.note(addr, 0, false) // until it is measured again: it may be stopped, and take another call without a word
			if began {
				pause.Reset()
				break // look again which node is nearest
			}
		}
		if k := rhumb.KindOf(err); first != nil && (k == rhumb.WrongCluster || k == rhumb.Incompatible) {
			first <- err
			return
		}
		if !c.sleep(c.ctx, pause.NextBackOff()) {
			return
		}
	}
}

// watchAt watches at one node until that ends. began says that a full state arrived.
func (c *Client) watchAt(addr string, ready func()) (began bool, err error) {
	const op rhumb.Op = "client.watch"
	conn, err := c.connTo(addr)
	if err != nil {
		return false, err
	}
	defer conn.Hold()()
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	// A node that takes the call and says nothing is given up.
	late := time.AfterFunc(c.cfg.ConnectTimeout, cancel)
	defer late.Stop()
	stream, err := conn.Cluster().WatchMetadata(ctx, &rhumbpb.WatchMetadataRequest{})
	if err != nil {
		e, _, _ := api.FromStatus(op, err)
		return false, e
	}
	var parts []*rhumbpb.Metadata
	for {
		m, err := stream.Recv()
		if err != nil {
			e, _, _ := api.FromStatus(op, err)
			return began, e
		}
		if parts = append(parts, m); m.More {
			continue
		}
		u, err := api.DecodeMetadata(parts...)
		if err != nil {
			return began, err
		}
		parts = nil
		if !began && !u.Full {
			return false, rhumb.Ef(op, rhumb.Internal, "node at %s began its watch without the full state", addr)
		}
		if want := c.Cluster(); !want.IsZero() && u.Cluster != want {
			return began, rhumb.Ef(op, rhumb.WrongCluster, "node at %s belongs to cluster %s, this client to %s", addr, u.Cluster, want)
		}
		if !c.take(u) {
			return false, rhumb.Ef(op, rhumb.Unavailable, "node at %s has older metadata than this client", addr)
		}
		if !began {
			began = true
			late.Stop()
			c.m.watches.Add(1)
			ready()
		}
	}
}

// take applies an update and gives up waiting for nodes that it says are gone.
func (c *Client) take(u *api.Metadata) bool {
	lost, ok := c.meta.apply(u)
	for _, addr := range lost {
		c.mu.Lock()
		conn := c.conns[addr]
		c.mu.Unlock()
		if conn != nil {
			conn.Interrupt()
		}
	}
	if len(lost) > 0 {
		c.closeUnknown()
	}
	return ok
}

// sleep waits, and reports false when ctx or the client ended instead.
func (c *Client) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	return false
}
