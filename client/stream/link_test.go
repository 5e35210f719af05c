package stream

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// linkNode is a fakeNode that accepts links too.
type linkNode struct {
	*fakeNode
	links  link.Set
	refuse atomic.Pointer[rhumb.Error] // answers hellos
	opened atomic.Int32
	byLink atomic.Int32 // requests
	pings  atomic.Int32
}

func newLinkNode(t *testing.T) *linkNode {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &linkNode{fakeNode: &fakeNode{addr: l.Addr().String(), mute: func(uint64) bool { return false }}}
	creds := link.Admit(api.PlainText(), link.Kind{Protocol: link.ClientProtocol, Magic: link.ClientMagic, Serve: func(a link.Accepted) {
		c := link.New(a.Conn, link.ClientConfig)
		n.links.Serve(c, func() { n.serve(c) })
	}})
	server := grpc.NewServer(api.ServerOptions(0, creds)...)
	rhumbpb.RegisterKVServer(server, n)
	rhumbpb.RegisterClusterServer(server, n)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() {
		n.links.Close()
		server.Stop()
	})
	return n
}

// serve answers the requests of a link as Stream does.
func (n *linkNode) serve(c *link.Conn) {
	h := new(rhumbpb.LinkHello)
	if c.ReadProto(link.KindHello, h) != nil {
		return
	}
	if err := n.refuse.Load(); err != nil {
		c.WriteError(err)
		return
	}
	n.opened.Add(1)
	if c.WriteProto(link.KindHello, h) != nil || c.Opened() != nil {
		return
	}
	for {
		kind, content, err := c.NextFrame(link.RequestBytesMax)
		if err != nil {
			return
		}
		if kind == link.KindPing {
			n.pings.Add(1)
			_ = c.AnswerPing()
			continue
		}
		requests, err := link.DecodeRequests(content)
		if err != nil {
			c.WriteError(err)
			return
		}
		n.byLink.Add(int32(len(requests)))
		out, end := n.answer(&rhumbpb.ClientFrame{Requests: requests})
		if end != nil {
			return
		}
		if len(out.Responses) > 0 {
			_ = c.WriteFrame(link.KindMessages, func(b []byte) []byte { return link.AppendResponses(b, out.Responses) })
		}
	}
}

// openLinked opens a Conn that uses links.
func openLinked(t *testing.T, addr string, change ...func(*Config)) *Conn {
	cfg := Config{
		Credentials: api.PlainText(), Addr: addr, ConnectTimeout: 5 * time.Second, Counters: &Counters{}, Cluster: func() rhumb.ClusterID { return rhumb.ClusterID{7} },
		Link: &link.ClientDialer{Addr: addr, Credentials: api.PlainText()},
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// linked sends requests until a link carries them.
func linked(t *testing.T, c *Conn) {
	t.Helper()
	await(t, "a link carries the requests", func() bool {
		do(t, c)
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.carrier != nil && c.carrier.link != nil
	})
}

// TestLinkTakesOver guards that a few requests open no link, that many do, and that the stream ends once the requests that it carries are
// answered, and not before.
func TestLinkTakesOver(t *testing.T) {
	n := newLinkNode(t)
	c := openLinked(t, n.addr)
	for range linkAfter - 1 {
		do(t, c)
	}
	if n.opened.Load() != 0 {
		t.Fatal("a few requests opened a link")
	}
	// One request has no answer, and stays on the stream.
	var held atomic.Uint64
	n.set(func() { n.mute = func(id uint64) bool { return held.CompareAndSwap(0, id) || id == held.Load() } })
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		if _, err := c.Do(ctx, request(1)); err == nil {
			t.Error("a request that the node does not answer was answered")
		}
	})
	await(t, "the request is sent", func() bool { return held.Load() != 0 })
	linked(t, c)
	for range 10 {
		do(t, c)
	}
	if n.byLink.Load() < 10 {
		t.Errorf("%d requests came by the link", n.byLink.Load())
	}
	count := func() int { c.mu.Lock(); defer c.mu.Unlock(); return len(c.carriers) }
	if count() != 2 {
		t.Errorf("%d carriers are open while the stream has an unanswered request", count())
	}
	cancel()
	work.Wait()
	await(t, "the stream ends", func() bool { return count() == 1 })
	if c.cfg.Counters.Links.Load() != 1 || c.cfg.Counters.Broken.Load() != 0 {
		t.Errorf("%d links, %d broken", c.cfg.Counters.Links.Load(), c.cfg.Counters.Broken.Load())
	}
	if _, ids := n.received(); !slices.IsSorted(ids) {
		t.Errorf("the requests came as %v", ids)
	}
}

// TestNodeWithoutLinks guards that the requests to a node which does not know links, or refuses one, are answered by gRPC, and that the attempts
// become rare.
func TestNodeWithoutLinks(t *testing.T) {
	for _, name := range []string{"an older node", "a node that refuses"} {
		t.Run(name, func(t *testing.T) {
			refusing := newLinkNode(t)
			refusing.refuse.Store(&rhumb.Error{Kind: rhumb.Overloaded, Msg: "too many streams"})
			addr := refusing.addr
			if name == "an older node" {
				addr = newFakeNode(t).addr
			}
			c := openLinked(t, addr)
			await(t, "the attempt fails", func() bool { do(t, c); return c.cfg.Counters.NoLinks.Load() == 1 })
			for range 2 * linkAfter {
				do(t, c)
			}
			c.mu.Lock()
			c.linkAt = time.Time{}
			c.mu.Unlock()
			await(t, "the second attempt fails", func() bool { do(t, c); return c.cfg.Counters.NoLinks.Load() == 2 })
			c.mu.Lock()
			defer c.mu.Unlock()
			if wait := time.Until(c.linkAt); wait < linkEvery || c.carrier == nil || c.carrier.link != nil {
				t.Errorf("the next attempt is in %v, carrier %+v", wait, c.carrier)
			}
			if c.cfg.Counters.Broken.Load() != 0 {
				t.Error("the stream broke")
			}
		})
	}
}

// TestBrokenLink guards that the requests on a link that breaks have an unknown outcome, that the next ones are answered by gRPC, and that another
// link is opened later.
func TestBrokenLink(t *testing.T) {
	n := newLinkNode(t)
	c := openLinked(t, n.addr)
	linked(t, c)
	n.set(func() { n.cut = true })
	_, err := c.Do(t.Context(), request(1))
	wantError(t, err, rhumb.Unknown, true)
	before := n.byLink.Load()
	for range linkAfter {
		do(t, c)
	}
	if n.byLink.Load() != before || c.cfg.Counters.Broken.Load() != 1 {
		t.Errorf("%d requests came by the link, %d carriers broke", n.byLink.Load()-before, c.cfg.Counters.Broken.Load())
	}
	c.mu.Lock()
	c.linkAt = time.Time{}
	c.mu.Unlock()
	linked(t, c)
}

// half is a connection that loses what is written once off is set, without an error.
type half struct {
	net.Conn
	off *atomic.Bool
}

func (h half) Write(b []byte) (int, error) {
	if h.off.Load() {
		return len(b), nil
	}
	return h.Conn.Write(b)
}

// TestSilentLink guards that the requests on a link to a node that stops fail long before their timeout, although TCP reports nothing.
func TestSilentLink(t *testing.T) {
	n := newLinkNode(t)
	var off atomic.Bool
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return half{conn, &off}, nil
	}
	c := openLinked(t, n.addr, func(cfg *Config) { cfg.Dial, cfg.Link.Dial = dial, dial })
	linked(t, c)
	// The probes need a connection of gRPC, as the requests before the link opened it.
	off.Store(true)
	begin := time.Now()
	_, err := c.Do(t.Context(), Request{Message: &rhumbpb.Request{}, Size: 1, Timeout: time.Minute})
	wantError(t, err, rhumb.Unknown, true)
	if took := time.Since(begin); took > 10*time.Second || c.cfg.Counters.Silent.Load() == 0 {
		t.Errorf("failed after %v, %d silent", took, c.cfg.Counters.Silent.Load())
	}
	off.Store(false)
	await(t, "the node answers again", func() bool {
		_, err := c.Do(t.Context(), request(1))
		return err == nil
	})
}

// TestRequestsOfALink guards that the bound of the requests in flight is kept, so that the node never stops reading because of their number.
func TestRequestsOfALink(t *testing.T) {
	c := newLinkNode(t).open(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flow.window = windowMax
	for i := range link.RequestsMax - 3 {
		c.unanswered[uint64(i)] = &call{}
	}
	defer clear(c.unanswered)
	for range 5 {
		c.queue = append(c.queue, &call{Request: request(1)})
	}
	if calls := c.takeFrameLocked(); len(calls) != 3 {
		t.Errorf("%d requests were taken", len(calls))
	}
	c.queue = nil
}

// TestLinkIsRenewed guards that another link takes the place of one whose login expires, without a request that fails.
func TestLinkIsRenewed(t *testing.T) {
	n := newLinkNode(t)
	var logins atomic.Int32
	c := openLinked(t, n.addr, func(cfg *Config) {
		cfg.Link.Login = func(*link.Conn, credentials.AuthInfo) (string, time.Time, error) {
			logins.Add(1)
			return "token", time.Now(), nil
		}
	})
	linked(t, c)
	c.mu.Lock()
	c.linkAt = time.Time{}
	c.mu.Unlock()
	await(t, "another link", func() bool { do(t, c); return n.opened.Load() == 2 })
	await(t, "the end of the first one", func() bool { do(t, c); return n.links.Len() == 1 })
	if logins.Load() != 2 || c.cfg.Counters.Broken.Load() != 0 {
		t.Errorf("%d logins, %d carriers broke", logins.Load(), c.cfg.Counters.Broken.Load())
	}
}

// TestInterruptEndsLinks guards that Interrupt fails the requests on a link at once.
func TestInterruptEndsLinks(t *testing.T) {
	n := newLinkNode(t)
	c := openLinked(t, n.addr)
	linked(t, c)
	n.set(func() { n.mute = func(uint64) bool { return true } })
	ended := make(chan error, 1)
	before := n.byLink.Load()
	go func() {
		_, err := c.Do(context.Background(), request(1))
		ended <- err
	}()
	await(t, "the request is sent", func() bool { return n.byLink.Load() > before || len(ended) > 0 })
	c.Interrupt()
	wantError(t, <-ended, rhumb.Unknown, true)
}
