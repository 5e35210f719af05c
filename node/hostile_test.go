package node

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/identity/identitytest"
	"github.com/rhumbdb/rhumb/node/gate"
)

// Numbers of hostile connections of each kind to each port, of streams of a connection, and the size of a message.
const (
	hostileIdle    = 2_000
	hostileStreams = 10_000
	hostileMessage = 100 << 20
	// hostileLife bounds how long a node lets a stranger hold a connection: it waits for a place as long as a handshake may
	// take, and then has the time of a stranger. The rest is for a loaded machine.
	hostileLife = gate.HandshakeTimeout + gate.EarlyTimeout + 5*time.Second
	// heapGrowthMax bounds the memory that hostile connections may take of a node, in bytes.
	heapGrowthMax = 96 << 20
)

// hostile is a secure node under attack, with a well-behaved caller.
type hostile struct {
	t     *testing.T
	n     *Node
	a     *identitytest.Authority
	ports map[string]string // by name, TCP
	tries atomic.Int64
}

// dial connects to a port from a loopback address of its own, as a stranger on another machine would.
func (h *hostile) dial(port string) (net.Conn, error) {
	h.tries.Add(1)
	d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 66)}}
	return d.Dial("tcp", h.ports[port])
}

// secure connects with TLS and without a certificate.
func (h *hostile) secure(port string, protocols ...string) (*tls.Conn, error) {
	return h.secureAs(nil, port, protocols...)
}

// secureAs connects with TLS and a certificate, or without one if issued is nil.
func (h *hostile) secureAs(issued *identitytest.Issued, port string, protocols ...string) (*tls.Conn, error) {
	raw, err := h.dial(port)
	if err != nil {
		return nil, err
	}
	_ = raw.SetDeadline(time.Now().Add(15 * time.Second))
	cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: protocols}
	if issued != nil {
		cfg.Certificates = []tls.Certificate{{Certificate: [][]byte{issued.Cert.Raw}, PrivateKey: issued.Key}}
	}
	c := tls.Client(raw, cfg)
	if err := c.Handshake(); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return c, nil
}

// awaitEnd reads until the node closes a connection, and returns what it sent.
func awaitEnd(c net.Conn) (sent int64, closed bool) {
	_ = c.SetReadDeadline(time.Now().Add(hostileLife))
	sent, err := io.Copy(io.Discard, c)
	var late net.Error
	return sent, !(errors.As(err, &late) && late.Timeout())
}

// TestHostileInput guards the ports of a secure node: whatever strangers send or hold open, a well-behaved user is
// served, the memory stays bounded, and the node answers nothing but refusals.
func TestHostileInput(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute; left out by -short")
	}
	a := identitytest.New(t)
	n := startSecureOne(t, a, nil)
	h := &hostile{t: t, n: n, a: a, ports: map[string]string{"main": n.Addr(), "heartbeat": n.bound.heartbeat, "admin": n.AdminAddr(), "gossip": n.GossipAddr()}}
	c, err := client.Open(t.Context(), userConfig(t, a, "app", testPassword, n))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	table, err := c.Table(t.Context(), "flights")
	if err != nil {
		t.Fatal(err)
	}
	// The well-behaved caller, on an old connection and on new ones, which must log in during the attacks.
	var served, fresh atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	wait.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := table.Put(ctx, fmt.Appendf(nil, "key-%d", i), []byte("value"), client.PutOptions{}); err == nil {
				served.Add(1)
			} else if ctx.Err() == nil {
				t.Errorf("the user was not served: %v", err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	wait.Go(func() {
		for ctx.Err() == nil {
			c, err := client.Open(ctx, userConfig(t, a, "app", testPassword, n))
			if err == nil {
				c.Close()
				fresh.Add(1)
			} else if ctx.Err() == nil {
				t.Errorf("a new client was not served: %v", err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	before := heapInUse()
	peak := before
	for _, attack := range []struct {
		name string
		do   func()
	}{
		{"random bytes", h.randomBytes},
		{"HTTP/1 and plain text", h.plainText},
		{"idle connections", h.idle},
		{"half-open connections", h.halfOpen},
		{"slow senders", h.slow},
		{"large messages", h.largeMessages},
		{"streams", h.streams},
		{"headers", h.headers},
		{"foreign certificates", h.certificates},
	} {
		from, start, ok, opened := h.tries.Load(), time.Now(), served.Load(), fresh.Load()
		attack.do()
		// The caller has been served during the attack, or is now.
		for deadline := time.Now().Add(10 * time.Second); served.Load() == ok; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the user is not served any more", attack.name)
			}
		}
		used := heapInUse()
		peak = max(peak, used)
		t.Logf("%s: %d tries in %v; the user was served %d times, new clients %d times; heap %d MiB", attack.name, h.tries.Load()-from,
			time.Since(start).Round(time.Millisecond), served.Load()-ok, fresh.Load()-opened, used>>20)
	}
	stop()
	wait.Wait()
	if fresh.Load() == 0 {
		t.Error("no new client was served")
	}
	if peak-before > heapGrowthMax {
		t.Errorf("the heap grew from %d to %d MiB", before>>20, peak>>20)
	}
	t.Logf("%d bad inputs tried", h.tries.Load())
}

// heapInUse returns the live heap of the process, which includes the attackers.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // empties the pools too
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// randomBytes sends garbage, plain and within TLS, and datagrams to gossip.
func (h *hostile) randomBytes() {
	r := rand.New(rand.NewPCG(1, 2))
	junk := make([]byte, 64<<10)
	for i := range junk {
		junk[i] = byte(r.Uint32())
	}
	for port := range h.ports {
		for range 50 {
			c, err := h.dial(port)
			if err != nil {
				continue
			}
			from := r.IntN(len(junk) / 2)
			_, _ = c.Write(junk[from : from+1+r.IntN(len(junk)/2)])
			_ = c.Close()
		}
		if port == "gossip" {
			continue
		}
		for range 20 {
			c, err := h.secure(port, map[bool][]string{true: {"http/1.1"}, false: {"h2"}}[port == "admin"]...)
			if err != nil {
				continue
			}
			_, _ = c.Write([]byte(http2.ClientPreface)[:r.IntN(len(http2.ClientPreface)+1)])
			_, _ = c.Write(junk[:1+r.IntN(4_000)])
			_ = c.Close()
		}
	}
	u, err := net.Dial("udp", h.ports["gossip"])
	if err != nil {
		h.t.Error(err)
		return
	}
	defer u.Close()
	for range 500 {
		h.tries.Add(1)
		_, _ = u.Write(junk[:1+r.IntN(1_400)])
	}
}

// plainText speaks protocols that no port answers without TLS.
func (h *hostile) plainText() {
	for port := range h.ports {
		for _, text := range []string{
			"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET /metrics HTTP/1.0\r\n\r\n", "POST /rhumb.v1.KV/Do HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
			http2.ClientPreface, "SSH-2.0-x\r\n", "\x16\x03\x01\xff\xff", "\x00", strings.Repeat("A", 60_000),
		} {
			c, err := h.dial(port)
			if err != nil {
				continue
			}
			_, _ = c.Write([]byte(text))
			_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			answer, _ := io.ReadAll(io.LimitReader(c, 4<<10))
			if strings.Contains(string(answer), " 200 ") || strings.Contains(string(answer), "rhumb_") {
				h.t.Errorf("port %s answers %.20q with %.60q", port, text, answer)
			}
			_ = c.Close()
		}
	}
	// HTTP/1 within TLS on ports for gRPC, and old versions of TLS.
	for _, port := range tlsPorts {
		if c, err := h.secure(port, "http/1.1"); err == nil {
			_, _ = io.WriteString(c, "GET /rhumb.v1.KV/Do HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			answer, _ := io.ReadAll(io.LimitReader(c, 4<<10))
			if strings.Contains(string(answer), " 200 ") {
				h.t.Errorf("port %s answers HTTP/1 with %.60q", port, answer)
			}
			_ = c.Close()
		}
		raw, err := h.dial(port)
		if err != nil {
			continue
		}
		_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
		if tls.Client(raw, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}).Handshake() == nil {
			h.t.Errorf("port %s accepts TLS 1.2", port)
		}
		_ = raw.Close()
	}
}

// hold opens many connections to each port at once and waits until the node has closed them.
func (h *hostile) hold(count int, ports []string, prepare func(c net.Conn)) {
	var wait sync.WaitGroup
	var open atomic.Int64
	for _, port := range ports {
		turns := make(chan struct{}, 256)
		for range count {
			turns <- struct{}{}
			wait.Go(func() {
				c, err := h.dial(port)
				<-turns
				if err != nil {
					return // refused
				}
				defer c.Close()
				prepare(c)
				if _, closed := awaitEnd(c); !closed {
					open.Add(1)
				}
			})
		}
	}
	wait.Wait()
	if n := open.Load(); n > 0 {
		h.t.Errorf("%d of %d connections are still open after %v", n, count*len(ports), hostileLife)
	}
}

var (
	// tlsPorts are the ports that speak TLS.
	tlsPorts = []string{"main", "heartbeat", "admin"}
	// allPorts are all ports of a node. A gate guards each of them.
	allPorts = append(slices.Clone(tlsPorts), "gossip")
)

// idle opens connections and sends nothing.
func (h *hostile) idle() { h.hold(hostileIdle, allPorts, func(net.Conn) {}) }

// halfOpen begins a handshake and does not go on.
func (h *hostile) halfOpen() {
	h.hold(hostileIdle, allPorts, func(c net.Conn) { _, _ = c.Write([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")) })
}

// slow sends one byte at a time: of a handshake, and of an HTTP request within TLS.
func (h *hostile) slow() {
	var wait sync.WaitGroup
	for _, port := range tlsPorts {
		for range 20 {
			wait.Go(func() {
				c, err := h.dial(port)
				if err != nil {
					return
				}
				defer c.Close()
				for start := time.Now(); ; time.Sleep(250 * time.Millisecond) {
					if _, err := c.Write([]byte{0x16}); err != nil {
						return
					}
					if time.Since(start) > 14*time.Second {
						h.t.Errorf("a slow sender holds port %s", port)
						return
					}
				}
			})
		}
	}
	for range 20 {
		wait.Go(func() {
			c, err := h.secure("admin", "http/1.1")
			if err != nil {
				return
			}
			defer c.Close()
			for i := range 60 {
				if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nX: "[i%24:i%24+1]); err != nil {
					return
				}
				time.Sleep(200 * time.Millisecond)
			}
			h.t.Error("a slow HTTP request is not ended")
		})
	}
	wait.Wait()
}

// largeMessages sends 100 MiB as one message to each port: by a stranger, who is cut off soon, and by a user and another node,
// who are refused.
func (h *hostile) largeMessages() {
	cutOff := func(port, what string, sent int) {
		h.t.Helper()
		// The kernels of both sides hold some megabytes that the node never reads.
		if sent > 9<<20 {
			h.t.Errorf("port %s, %s: a stranger sent %d bytes", port, what, sent)
		}
	}
	for _, call := range []struct{ port, method string }{
		{"main", rhumbpb.KV_Do_FullMethodName},
		{"main", rhumbpb.Session_Authenticate_FullMethodName},
		{"main", rhumbpb.Peer_Forward_FullMethodName},
		{"heartbeat", rhumbpb.Peer_Heartbeat_FullMethodName},
	} {
		// A client of TLS 1.3 ends the handshake before the heartbeat port has refused it.
		c, err := h.secure(call.port, "h2")
		if err != nil {
			h.t.Error(err)
			continue
		}
		cutOff(call.port, call.method, sendMessage(c, call.method, hostileMessage))
		_ = c.Close()
	}
	if c, err := h.dial("gossip"); err != nil {
		h.t.Error(err)
	} else {
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		// An encrypted message of memberlist: its type, and its size.
		_, _ = c.Write(binary.BigEndian.AppendUint32([]byte{10}, hostileMessage))
		sent, _ := io.Copy(c, io.LimitReader(zeros{}, hostileMessage))
		cutOff("gossip", "a stream", int(sent))
		_ = c.Close()
	}
	for _, port := range []string{"main", "heartbeat"} {
		conn, err := api.Connect(h.ports[port], nil, h.a.Node(h.t, "eu-2").Source(h.t).ClientCredentials(wantNode), grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(2*hostileMessage)))
		if err != nil {
			h.t.Fatal(err)
		}
		h.tries.Add(1)
		_, err = rhumbpb.NewPeerClient(conn).Forward(h.t.Context(), &rhumbpb.Request{Write: &rhumbpb.Write{Mutations: []*rhumbpb.Mutation{{Value: make([]byte, hostileMessage)}}}})
		if grpcstatus.Code(err) != codes.ResourceExhausted {
			h.t.Errorf("port %s answers a message of 100 MiB from another node: %v", port, err)
		}
		_ = conn.Close()
	}
	// Within limits the node reads a message of a user, beyond them it refuses.
	conn, err := api.Connect(h.n.Addr(), nil, credentialsFor(h.n), grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(2*hostileMessage)))
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close()
	h.tries.Add(1)
	_, err = rhumbpb.NewKVClient(conn).Do(h.t.Context(), &rhumbpb.Request{Write: &rhumbpb.Write{Mutations: []*rhumbpb.Mutation{{Value: make([]byte, hostileMessage)}}}})
	if err == nil {
		h.t.Error("a message of 100 MiB was accepted")
	}
	resp, err := (&http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: h.a.Anonymous(h.t).ClientConfig(wantNode, "http/1.1")}}).Post(
		"https://"+h.n.AdminAddr()+"/v1/snapshot/publish", "text/plain", io.LimitReader(zeros{}, hostileMessage))
	h.tries.Add(1)
	if err == nil {
		if resp.Body.Close(); resp.StatusCode == 200 {
			h.t.Error("100 MiB were accepted by the port for operators")
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// sendMessage opens a call and sends a message of size bytes regardless of flow control, until the node ends the
// connection. It returns the number of bytes sent.
func sendMessage(c *tls.Conn, method string, size int) (sent int) {
	f := beginHTTP2(c)
	go func() { _, _ = io.Copy(io.Discard, c) }()
	writeCall(f, 1, method, nil)
	chunk := make([]byte, 16<<10)
	copy(chunk, []byte{0, byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)})
	_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
	for sent < size {
		if err := f.WriteData(1, false, chunk); err != nil {
			return sent
		}
		sent += len(chunk)
	}
	return sent
}

// beginHTTP2 sends the first bytes of a client.
func beginHTTP2(c net.Conn) *http2.Framer {
	_, _ = io.WriteString(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	_ = f.WriteSettings()
	return f
}

// writeCall sends the headers of a call.
func writeCall(f *http2.Framer, id uint32, method string, more map[string]string) {
	var b strings.Builder
	e := hpack.NewEncoder(&b)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", method}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	for k, v := range more {
		_ = e.WriteField(hpack.HeaderField{Name: k, Value: v})
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte(b.String()), EndHeaders: true})
}

// hostileStreamsMax is how many streams of one connection a node serves at a time.
const hostileStreamsMax = 1_000

// streams opens 10,000 streams on one connection of each port that speaks HTTP/2, as everybody who may connect there. Streams of
// gossip are connections, which idle opens.
func (h *hostile) streams() {
	for _, caller := range []struct {
		name   string
		issued *identitytest.Issued
		port   string
		method string
	}{
		{"a stranger", nil, "main", rhumbpb.KV_Stream_FullMethodName},
		{"an operator", h.a.Operator(h.t, "busy"), "main", rhumbpb.Cluster_WatchMetadata_FullMethodName},
		{"a node", h.a.Node(h.t, "eu-2"), "main", rhumbpb.Peer_Replicate_FullMethodName},
		{"a node", h.a.Node(h.t, "eu-2"), "heartbeat", rhumbpb.Peer_Heartbeat_FullMethodName},
	} {
		c, err := h.secureAs(caller.issued, caller.port, "h2")
		if err != nil {
			h.t.Errorf("%s cannot connect to port %s: %v", caller.name, caller.port, err)
			continue
		}
		open, ended := h.openStreams(c, caller.method)
		h.t.Logf("%s on port %s: %d streams are open, and the connection has ended: %v", caller.name, caller.port, open, ended)
		if open > hostileStreamsMax {
			h.t.Errorf("port %s serves %d streams of %s on one connection", caller.port, open, caller.name)
		}
		_ = c.Close()
	}
	// The port for operators serves one request of a connection at a time.
	if c, err := h.secureAs(h.a.Operator(h.t, "busy"), "admin", "h2"); err == nil {
		_ = c.Close()
		h.t.Error("the port for operators speaks HTTP/2")
	}
}

// openStreams begins 10,000 calls on a connection. It returns how many of them are open once the node has seen all, or
// that the node has ended the connection.
func (h *hostile) openStreams(c *tls.Conn, method string) (open int, ended bool) {
	f := beginHTTP2(c)
	go func() {
		for i := range hostileStreams {
			h.tries.Add(1)
			writeCall(f, uint32(2*i+1), method, nil)
		}
		// The node has decided about every call before it answers the ping behind the last one.
		_ = f.WritePing(false, [8]byte{1})
	}()
	over := map[uint32]bool{}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return 0, true
		}
		switch frame := frame.(type) {
		case *http2.RSTStreamFrame:
			over[frame.StreamID] = true
		case *http2.HeadersFrame:
			if frame.StreamEnded() {
				over[frame.StreamID] = true
			}
		case *http2.PingFrame:
			if frame.IsAck() {
				return hostileStreams - len(over), false
			}
		}
	}
}

// headers sends headers beyond the bound.
func (h *hostile) headers() {
	for _, size := range []int{17 << 10, 100 << 10, 1 << 20} {
		c, err := h.secure("main", "h2")
		if err != nil {
			h.t.Error(err)
			continue
		}
		f := beginHTTP2(c)
		for i := range 8 {
			h.tries.Add(1)
			writeCall(f, uint32(2*i+1), rhumbpb.Cluster_Ping_FullMethodName, map[string]string{"x": strings.Repeat("x", min(size, 16_000)), fmt.Sprint("y", i): strings.Repeat("y", min(max(size-16_000, 1), 300))})
		}
		if size > 64<<10 {
			_, _ = c.Write(make([]byte, size))
		}
		_ = c.Close()
	}
}

// certificates presents certificates that the node must refuse.
func (h *hostile) certificates() {
	foreign := identitytest.New(h.t)
	other := identitytest.NewFor(h.t, h.a.Cluster)
	now := time.Now()
	for _, issued := range []*identitytest.Issued{
		foreign.Node(h.t, "eu-1"), other.Operator(h.t, "eve"), h.a.Operator(h.t, "old", identitytest.Valid(now.Add(-2*time.Hour), now.Add(-time.Hour))),
		h.a.Operator(h.t, "early", identitytest.Valid(now.Add(72*time.Hour), now.Add(73*time.Hour))), h.a.Node(h.t, "eu-9", identitytest.SelfSigned()),
	} {
		for _, port := range tlsPorts {
			c, err := h.secureAs(issued, port, "h2", "http/1.1")
			if err != nil {
				continue
			}
			// TLS 1.3 clients learn of a refusal when they read.
			if _, err := c.Read(make([]byte, 1)); err == nil && port != "admin" {
				h.t.Errorf("port %s accepts a certificate of %s", port, issued.Cert.URIs)
			}
			_ = c.Close()
		}
	}
}
