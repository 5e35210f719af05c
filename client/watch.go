package client

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// watchMetadata keeps the metadata up to date until the client is closed. It watches at the nearest
// node that answers, and at the next one when that watch ends. It sends on first once: nil when the
// first full state has arrived, or an error that no other node can cure.
func (c *Client) watchMetadata(first chan<- error) {
	pause := newPause()
	var ended string // where the last watch was
	for c.ctx.Err() == nil {
		var err error
		// The nearest node first: every change travels from there to this client. The node of the last watch comes last: it may answer
		// pings at once and yet learn nothing.
		near := c.nearestFirst()
		if i := slices.Index(near, ended); i >= 0 {
			near = append(slices.Delete(near, i, i+1), ended)
		}
		for _, addr := range near {
			var began bool
			ended = addr
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
			// A stopped node accepts another call and never answers it. Until the node is measured
			// again, it counts as the farthest.
			c.rtt.recordSample(addr, 0, false)
			if began {
				pause.Reset()
				break // the order of the nodes may have changed during the watch
			}
		}
		if k := rhumb.KindOf(err); first != nil && (k == rhumb.WrongCluster || k == rhumb.Incompatible || isDenial(err)) {
			first <- err
			return
		}
		if !c.sleep(c.ctx, pause.NextBackOff()) {
			return
		}
	}
}

// watchAt watches the metadata at one node until that watch ends. It calls ready when the full
// state has arrived, which began reports.
func (c *Client) watchAt(addr string, ready func()) (began bool, err error) {
	const op rhumb.Op = "client.watch"
	conn, err := c.connTo(addr)
	if err != nil {
		return false, err
	}
	// While nothing changes, the watch delivers nothing. Probes distinguish such a node from one
	// that has stopped.
	defer conn.Hold()()
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	late := time.AfterFunc(c.cfg.ConnectTimeout, cancel) // for a node that accepts the call and sends nothing
	defer late.Stop()
	c.meta.watched(addr, cancel)
	defer c.meta.watched("", nil)
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
		// A state that does not fit into one message has several parts, which must be applied
		// together.
		if parts = append(parts, m); m.More {
			continue
		}
		u, err := api.DecodeMetadata(parts...)
		if err != nil {
			return began, err
		}
		parts = nil
		// Changes are useless without the state that they apply to.
		if !began && !u.Full {
			return false, rhumb.Ef(op, rhumb.Internal, "node at %s began its watch without the full state", addr)
		}
		// An address may have been reused by another cluster.
		if want := c.Cluster(); !want.IsZero() && u.Cluster != want {
			return began, rhumb.Ef(op, rhumb.WrongCluster, "node at %s belongs to cluster %s, this client to %s", addr, u.Cluster, want)
		}
		if !c.applyUpdate(u) {
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

// applyUpdate applies an update of the metadata and breaks the streams to nodes that are gone, so
// that their callers stop waiting. It returns false if the update is older than the metadata.
func (c *Client) applyUpdate(u *api.Metadata) bool {
	// The metadata changes first: callers whose requests fail below must see the new primaries.
	lost, ok := c.meta.applyUpdate(u)
	// Requests to these nodes would otherwise wait for the whole timeout of an attempt.
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

const (
	// checkNodes is how many nodes a check asks at most, and checkTimeout how long it waits for
	// them. The next check may begin then, so a node that does not answer delays no other.
	checkNodes   = 3
	checkTimeout = 500 * time.Millisecond
)

// checkWatch finds out whether the watch lacks metadata that other nodes have, because the
// node at the address silent does not answer a request. The watch is left if it does not deliver
// them soon. To leave it without a check would be wrong more often than not: a primary
// also answers late while it waits for one of its secondaries, and another watch begins with
// the full state, for each of the clients.
func (c *Client) checkWatch(silent string) {
	if !c.checking.CompareAndSwap(false, true) {
		return
	}
	c.spawn(func() {
		defer c.checking.Store(false)
		ctx, cancel := context.WithTimeout(c.ctx, checkTimeout)
		defer cancel()
		at := c.meta.watchedAt()
		var work sync.WaitGroup
		asked := 0
		for _, addr := range c.nearestFirst() {
			if addr == silent || addr == at || asked == checkNodes {
				continue
			}
			asked++
			work.Go(func() {
				if resp, err := c.ping(ctx, addr); err == nil {
					c.meta.noteRevision(resp.GetRevision(), silent)
				}
			})
		}
		work.Wait()
	})
}

// sleep waits for d and returns true, or returns false if ctx or the client ends first.
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
