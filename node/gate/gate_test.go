package gate

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/rhumbdb/rhumb"
)

// world is a gate with a server that accepts everything.
type world struct {
	*Gate
	accepted chan *Conn
	total    atomic.Int64
}

func newWorld(t *testing.T, cfg Config) *world {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Gate: New(l, cfg), accepted: make(chan *Conn, 10_000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := w.Accept()
			if err != nil {
				return
			}
			w.total.Add(1)
			w.accepted <- c.(*Conn)
		}
	}()
	t.Cleanup(func() {
		_ = w.Close()
		<-done
	})
	return w
}

// dial connects from an address of this machine.
func (w *world) dial(t *testing.T, from string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", w.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// next returns the next accepted connection.
func (w *world) next(t *testing.T) *Conn {
	t.Helper()
	select {
	case c := <-w.accepted:
		return c
	case <-time.After(20 * time.Second):
		t.Fatal("no connection was accepted")
		return nil
	}
}

// awaitClosed waits until the other side has closed a connection.
func awaitClosed(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Read(make([]byte, 1)); errors.Is(err, context.DeadlineExceeded) || err == nil {
		t.Fatalf("the connection is open: %v", err)
	}
}

// counted returns the refusals for a reason.
func (w *world) counted(t *testing.T, reason string) int {
	t.Helper()
	return int(valueOf(t, w.refused[reason]))
}

func valueOf(t *testing.T, c prometheus.Metric) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.Counter.GetValue()
}

// Strangers that fill their places do not keep a caller from another address away, and authenticated
// connections do not count as strangers.
func TestStrangers(t *testing.T) {
	w := newWorld(t, Config{Port: "test", Early: 8})
	for range 4 {
		w.dial(t, "127.0.0.1")
	}
	for range 4 {
		if !w.next(t).Authenticated() {
			t.Fatal("refused")
		}
	}
	for range 50 {
		w.dial(t, "127.0.0.2")
	}
	for range 4 {
		w.next(t)
	}
	w.dial(t, "127.0.0.3")
	if c := w.next(t); c.From().String() != "127.0.0.3" {
		t.Errorf("%v has the free place", c.From())
	}
	w.mu.Lock()
	early, waiting, open := w.clients.Len(), w.waiting.Len(), w.open
	w.mu.Unlock()
	if early != 5 || waiting != 46 || open != 4 {
		t.Errorf("%d early, %d waiting, %d open", early, waiting, open)
	}
}

// A well-behaved caller gets a place although strangers hold them all, because places that were held
// for long go to others.
func TestDisplace(t *testing.T) {
	w := newWorld(t, Config{Port: "test", Early: 4})
	var strangers []net.Conn
	for range 6 {
		strangers = append(strangers, w.dial(t, "127.0.0.1"))
	}
	first := w.next(t)
	w.dial(t, "127.0.0.2")
	w.dial(t, "127.0.0.3")
	w.dial(t, "127.0.0.4") // there is no place now
	start := time.Now()
	for seen := (netip.Addr{}); seen != netip.MustParseAddr("127.0.0.4"); {
		seen = w.next(t).From()
	}
	if waited := time.Since(start); waited > 10*patience {
		t.Errorf("waited for %v", waited)
	}
	awaitClosed(t, strangers[0])
	if !first.ended.Load() || w.counted(t, refusedTaken) == 0 {
		t.Error("the oldest stranger keeps its place")
	}
}

// A stranger has bounded time and bytes.
func TestEarlyBounds(t *testing.T) {
	w := newWorld(t, Config{Port: "test", EarlyTimeout: 3 * time.Second})
	idle := w.dial(t, "127.0.0.1")
	known := w.dial(t, "127.0.0.1")
	w.next(t)
	if !w.next(t).Authenticated() {
		t.Fatal("refused")
	}
	talker := w.dial(t, "127.0.0.1")
	server := w.next(t)
	go func() { _, _ = talker.Write(make([]byte, 2*earlyBytesMax)) }()
	if n, err := io.Copy(io.Discard, server); err == nil || n > earlyBytesMax {
		t.Errorf("read %d bytes of a stranger, %v", n, err)
	}
	if w.counted(t, refusedTalker) != 1 {
		t.Error("the talker was not refused")
	}
	awaitClosed(t, idle)
	if w.counted(t, refusedLate) != 1 {
		t.Error("the stranger did not run out of time")
	}
	// The known caller, who came at the same time, has neither bound. Once unknown again, it has.
	_ = known.SetReadDeadline(time.Now().Add(time.Second))
	if _, err := known.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) && err.(net.Error).Timeout() == false {
		t.Errorf("an authenticated connection: %v", err)
	}
	w.mu.Lock()
	var c *Conn
	for _, o := range w.conns {
		c = o
	}
	w.mu.Unlock()
	c.Anonymous()
	awaitClosed(t, known)
}

// Connections of nodes have places of their own.
func TestNodes(t *testing.T) {
	node := netip.MustParseAddr("127.0.0.9")
	w := newWorld(t, Config{Port: "test", Early: 2, Connections: 1, IsNode: func(a netip.Addr) bool { return a == node }})
	w.dial(t, "127.0.0.1")
	w.dial(t, "127.0.0.2")
	w.dial(t, "127.0.0.3")
	if !w.next(t).Authenticated() {
		t.Fatal("refused")
	}
	if w.next(t).Authenticated() {
		t.Error("more connections than are allowed")
	}
	w.dial(t, "127.0.0.9")
	for {
		if c := w.next(t); c.node {
			if !c.Authenticated() {
				t.Error("a node was refused")
			}
			break
		}
	}
}

// Whatever connections do, the counts return to zero.
func TestCounts(t *testing.T) {
	w := newWorld(t, Config{Port: "test", Early: 6, EarlyTimeout: 200 * time.Millisecond})
	var open []net.Conn
	for i := range 40 {
		open = append(open, w.dial(t, "127.0.0.1"))
		if i%3 == 0 {
			var c *Conn
			select {
			case c = <-w.accepted:
			case <-time.After(300 * time.Millisecond):
				continue
			}
			c.Authenticated()
			if i%2 == 0 {
				c.Anonymous()
			}
			if i%4 == 0 {
				_ = c.Close()
				_ = c.Close()
			}
		}
	}
	for _, c := range open {
		_ = c.Close()
	}
	deadline := time.After(20 * time.Second)
	for {
		select {
		case c := <-w.accepted:
			_ = c.Close()
		case <-deadline:
			t.Fatal("connections remain")
		case <-time.After(50 * time.Millisecond):
		}
		w.mu.Lock()
		left, from := len(w.conns), len(w.clients.from)
		if left == 0 {
			if w.clients.Len() != 0 || w.waiting.Len() != 0 || from != 0 || w.open != 0 {
				t.Errorf("%d early, %d waiting, %d addresses, %d open", w.clients.Len(), w.waiting.Len(), from, w.open)
			}
			w.mu.Unlock()
			return
		}
		for _, c := range w.conns {
			if c.known.Load() {
				go c.Close()
			}
		}
		w.mu.Unlock()
	}
}

func TestAddressOf(t *testing.T) {
	for _, tc := range []struct{ addr, want string }{
		{"127.0.0.1:5", "127.0.0.1"}, {"[::1]:5", "::1"}, {"[2001:db8:1:2:3:4:5:6]:5", "2001:db8:1:2::"}, {"[::ffff:10.0.0.1]:5", "10.0.0.1"},
	} {
		a, err := net.ResolveTCPAddr("tcp", tc.addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := AddressOf(a).String(); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.addr, got, tc.want)
		}
	}
}

// Each limit refuses what exceeds it, says when to come back, and takes nothing for what it refuses.
func TestLimiter(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cfg   LimiterConfig
		size  int64
		fits  int // requests without an answer in between
		limit string
	}{
		{"none", LimiterConfig{}, 1 << 20, 100, ""},
		{"requests of a user", LimiterConfig{User: Rates{Requests: 5}}, 10, 5, "userrequests"},
		{"requests of a connection", LimiterConfig{Conn: Rates{Requests: 3}, User: Rates{Requests: 5}}, 10, 3, "connectionrequests"},
		{"bytes of a user", LimiterConfig{User: Rates{Bytes: 1}}, rhumb.MessageSizeMax / 4, 4, "userbytes"},
		{"bytes in flight of a connection", LimiterConfig{Conn: Rates{InFlight: 1_000}}, 300, 3, "connectionin_flight"},
		{"a request larger than the bytes in flight", LimiterConfig{User: Rates{InFlight: 1_000}}, 3_000, 1, "userin_flight"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := NewLimiter(tc.cfg)
			a := l.Account("user app", &Conn{})
			for i := range tc.fits {
				if err := a.Acquire(tc.size); err != nil {
					t.Fatalf("request %d: %v", i, err)
				}
			}
			if tc.limit == "" {
				return
			}
			err := a.Acquire(tc.size)
			if rhumb.KindOf(err) != rhumb.Overloaded || rhumb.RetryAfterOf(err) <= 0 {
				t.Fatalf("one more: %v, retry after %v", err, rhumb.RetryAfterOf(err))
			}
			if got := valueOf(t, l.m.refused[tc.limit]); got != 1 {
				t.Errorf("%v refusals counted", got)
			}
			for range tc.fits {
				a.Release(tc.size)
			}
			if u, c := a.user.inFlight.Load(), a.conn.inFlight.Load(); u != 0 || c != 0 {
				t.Errorf("%d and %d bytes in flight remain", u, c)
			}
			// Another user on another connection has limits of its own.
			if err := l.Account("user other", &Conn{}).Acquire(tc.size); err != nil {
				t.Errorf("another user: %v", err)
			}
		})
	}
}

// TestLimiterOfStreams guards the streams of one user: all its connections share them, another user has its own, and a
// stream that ends makes room.
func TestLimiterOfStreams(t *testing.T) {
	l := NewLimiter(LimiterConfig{User: Rates{Streams: 3}, Conn: Rates{Streams: 2}})
	conn := &Conn{}
	first, second := l.Account("user app", conn), l.Account("user app", &Conn{})
	for i, a := range []*Account{first, first, second} {
		if err := a.OpenStream(); err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
	}
	for limit, a := range map[string]*Account{"userstreams": second, "connectionstreams": l.Account("", conn)} {
		if err := a.OpenStream(); rhumb.KindOf(err) != rhumb.Overloaded || rhumb.RetryAfterOf(err) <= 0 {
			t.Errorf("%s, one more: %v", limit, err)
		}
		if got := valueOf(t, l.m.refused[limit]); got != 1 {
			t.Errorf("%s: %v refusals counted", limit, got)
		}
	}
	if err := l.Account("user other", &Conn{}).OpenStream(); err != nil {
		t.Errorf("another user: %v", err)
	}
	first.CloseStream()
	if err := second.OpenStream(); err != nil {
		t.Errorf("after the end of a stream: %v", err)
	}
}

// Answers count in the bytes per second of later requests.
func TestAnswersCount(t *testing.T) {
	l := NewLimiter(LimiterConfig{User: Rates{Bytes: 1 << 20}})
	a := l.Account("user app", &Conn{})
	if err := a.Acquire(10); err != nil {
		t.Fatal(err)
	}
	a.Release(10)
	a.Answered(2 * rhumb.MessageSizeMax)
	a.Answered(rhumb.MessageSizeMax)
	if err := a.Acquire(10); rhumb.RetryAfterOf(err) < time.Second {
		t.Errorf("after 32 MiB at 1 MiB a second: %v", err)
	}
	var none *Account
	if none.Acquire(1) != nil {
		t.Error("no account has a limit")
	}
	none.Release(1)
}

// TestHandshakesInProgressStay guards that a connection that has begun its handshake is not displaced
// before HandshakeTimeout. Once every connection was displaced after a second, and of a thousand
// clients that returned at the same time none finished a handshake.
func TestHandshakesInProgressStay(t *testing.T) {
	w := newWorld(t, Config{Port: "test"})
	w.dial(t, "127.0.0.1")
	c := w.next(t)
	c.read.Store(1) // its first byte has arrived
	displaced := func(age time.Duration) bool {
		c.g.mu.Lock()
		defer c.g.mu.Unlock()
		c.g.displaceLocked(c.list, c.began.Add(age), func(*Conn) bool { return true })
		return c.ended.Load()
	}
	if displaced(2 * patience) {
		t.Fatal("a handshake in progress was displaced")
	}
	if !displaced(HandshakeTimeout) {
		t.Error("a handshake that takes longer than it may keeps its place")
	}
}
