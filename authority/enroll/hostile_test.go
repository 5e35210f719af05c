package enroll

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb/authority"
)

const (
	hostileConns = 2_000
	hostileBody  = 100 << 20
	// hostilePatience is how long a connection of a stranger may be held open: the gate's 10 s and a loaded machine.
	hostilePatience = 20 * time.Second
	// hostileHeap bounds what strangers may take of the server's memory, in bytes. The attackers run in the same process.
	hostileHeap = 64 << 20
)

// stranger attacks the port of an authority from a loopback address of its own.
type stranger struct {
	t     *testing.T
	addr  string
	tries atomic.Int64
}

// dial opens a connection.
func (s *stranger) dial() (net.Conn, error) {
	s.tries.Add(1)
	// Like another machine: the bounds for one address must not hit the node that enrols.
	d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 66)}}
	return d.Dial("tcp", s.addr)
}

// secure opens a connection with TLS.
func (s *stranger) secure() (*tls.Conn, error) {
	raw, err := s.dial()
	if err != nil {
		return nil, err
	}
	_ = raw.SetDeadline(time.Now().Add(hostilePatience))
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err := c.Handshake(); err != nil {
		_ = raw.Close()
		return nil, err
	}
	// Were HTTP/2 on, one connection could carry any number of requests.
	if p := c.ConnectionState().NegotiatedProtocol; p == "h2" {
		s.t.Error("the authority speaks HTTP/2")
	}
	return c, nil
}

// hold opens many connections at once, lets prepare send what it likes, and waits until the server has closed them.
func (s *stranger) hold(prepare func(net.Conn)) {
	var wait sync.WaitGroup
	var open atomic.Int64
	turns := make(chan struct{}, 256) // that dial at the same time
	for range hostileConns {
		turns <- struct{}{}
		wait.Go(func() {
			c, err := s.dial()
			<-turns
			if err != nil {
				return // refused
			}
			defer c.Close()
			prepare(c)
			_ = c.SetReadDeadline(time.Now().Add(hostilePatience))
			_, err = io.Copy(io.Discard, c)
			var late net.Error
			if errors.As(err, &late) && late.Timeout() {
				open.Add(1)
			}
		})
	}
	wait.Wait()
	if n := open.Load(); n > 0 {
		s.t.Errorf("%d of %d connections are still open after %v", n, hostileConns, hostilePatience)
	}
}

// randomBytes sends garbage, plain and within TLS.
func (s *stranger) randomBytes() {
	r := rand.New(rand.NewPCG(3, 4))
	junk := make([]byte, 64<<10)
	for i := range junk {
		junk[i] = byte(r.Uint32())
	}
	for i := range 200 {
		var c net.Conn
		var err error
		// Garbage within TLS reaches the parser of HTTP.
		if c, err = s.dial(); i%4 == 0 && err == nil {
			_ = c.Close()
			c, err = s.secure()
		}
		if err != nil {
			continue
		}
		from := r.IntN(len(junk) / 2)
		_, _ = c.Write(junk[from : from+1+r.IntN(len(junk)/2)])
		_ = c.Close()
	}
}

// garbage sends requests of HTTP that the server must refuse, and protocols that it does not speak.
func (s *stranger) garbage() {
	for _, text := range []string{
		"GET / HTTP/9.9\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "POST " + authority.PathEnrol + " HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
		"POST " + authority.PathEnrol + " HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
		"POST " + authority.PathRenew + " HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
		"GET " + authority.PathEnrol + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "GET /../authority.key HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"GET /x HTTP/1.1\r\nHost: x\r\nY: " + strings.Repeat("y", 1<<20), strings.Repeat("A", 1<<20), "SSH-2.0-x\r\n",
	} {
		for _, open := range []func() (net.Conn, error){s.dial, func() (net.Conn, error) { return s.secure() }} {
			c, err := open()
			if err != nil {
				continue
			}
			_ = c.SetDeadline(time.Now().Add(3 * time.Second))
			_, _ = io.WriteString(c, text)
			answer, _ := io.ReadAll(io.LimitReader(c, 4<<10))
			if strings.Contains(string(answer), " 200 ") || strings.Contains(string(answer), "PRIVATE") {
				s.t.Errorf("%.40q is answered with %.80q", text, answer)
			}
			_ = c.Close()
		}
	}
}

// slow sends a byte at a time: of a handshake, of a header and of a body.
func (s *stranger) slow() {
	var wait sync.WaitGroup
	for i := range 60 {
		wait.Go(func() {
			var c net.Conn
			var err error
			text := strings.Repeat("\x16", 1<<10)
			switch i % 3 {
			case 0:
				c, err = s.dial()
			case 1:
				c, err = s.secure()
				text = "GET /livez HTTP/1.1\r\nX: " + strings.Repeat("x", 1<<10)
			default:
				c, err = s.secure()
				text = strings.Repeat(" ", 1<<10)
			}
			if err != nil {
				return
			}
			defer c.Close()
			if i%3 == 2 {
				_, _ = io.WriteString(c, "POST "+authority.PathEnrol+" HTTP/1.1\r\nHost: x\r\nContent-Length: 1024\r\n\r\n")
			}
			// A server that ends the connection resets it, and then a write fails.
			_ = c.SetDeadline(time.Now().Add(2 * hostilePatience))
			for start := time.Now(); time.Since(start) < hostilePatience; time.Sleep(100 * time.Millisecond) {
				if _, err := io.WriteString(c, text[:1]); err != nil {
					return
				}
				text = text[1:]
			}
			s.t.Error("a slow sender is not ended")
		})
	}
	wait.Wait()
}

// bodies sends 100 MiB to each path.
func (s *stranger) bodies() {
	for _, path := range []string{authority.PathEnrol, authority.PathRenew, authority.PathCheck, "/nothing"} {
		for _, length := range []string{fmt.Sprintf("Content-Length: %d", hostileBody), "Transfer-Encoding: chunked"} {
			c, err := s.secure()
			if err != nil {
				s.t.Errorf("%s: %v", path, err)
				continue
			}
			_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", path, length)
			chunk := []byte(strings.Repeat(" ", 16<<10))
			if strings.HasPrefix(length, "Transfer") {
				chunk = fmt.Appendf(nil, "%x\r\n%s\r\n", len(chunk), chunk)
			}
			sent := 0
			for sent < hostileBody {
				n, err := c.Write(chunk)
				sent += n
				if err != nil {
					break
				}
			}
			// Buffers of both kernels take some megabytes before the sender notices.
			if sent > 16<<20 {
				s.t.Errorf("%s: a stranger sent %d bytes", path, sent)
			}
			_ = c.Close()
		}
	}
}

// TestHostileInput guards the port of the authority: whatever strangers send or hold open, a node with a token enrols meanwhile,
// and the memory stays bounded.
func TestHostileInput(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute; left out by -short")
	}
	w := newWorld(t)
	s := &stranger{t: t, addr: w.addr}
	a := w.authority()
	// The enrolling node runs through all attacks, each time under another name with a token of its own.
	var enrolled, slowest atomic.Int64
	stop := make(chan struct{})
	var wait sync.WaitGroup
	halt := sync.OnceFunc(func() {
		close(stop)
		wait.Wait()
	})
	defer halt()
	wait.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			name := fmt.Sprintf("eu-%d", i+1)
			tok, err := a.CreateToken(authority.TokenRequest{Node: name})
			if err != nil {
				t.Errorf("token of %s: %v", name, err)
				return
			}
			dir := filepath.Join(t.TempDir(), "identity")
			if err := os.WriteFile(dir+".token", []byte(tok.Encode()+"\n"), 0o600); err != nil {
				t.Error(err)
				return
			}
			start := time.Now()
			if err := Ensure(t.Context(), Config{Dir: dir, Wall: w.wall, Logger: quietly}, dir+".token"); err != nil {
				t.Errorf("%s was not enrolled: %v", name, err)
				return
			}
			enrolled.Add(1)
			slowest.Store(max(slowest.Load(), int64(time.Since(start))))
		}
	})
	before := heapOf()
	peak := before
	for _, attack := range []struct {
		name string
		do   func()
	}{
		{"random bytes", s.randomBytes},
		{"garbage of HTTP", s.garbage},
		{"idle connections", func() { s.hold(func(net.Conn) {}) }},
		{"half-open connections", func() {
			s.hold(func(c net.Conn) { _, _ = c.Write([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")) })
		}},
		{"slow senders", s.slow},
		{"large bodies", s.bodies},
	} {
		from, tried, start := enrolled.Load(), s.tries.Load(), time.Now()
		attack.do()
		for deadline := time.Now().Add(hostilePatience); enrolled.Load() == from; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: no node enrols any more", attack.name)
			}
		}
		used := heapOf()
		peak = max(peak, used)
		t.Logf("%s: %d tries in %v; %d nodes enrolled; heap %d MiB", attack.name, s.tries.Load()-tried, time.Since(start).Round(time.Millisecond), enrolled.Load()-from, used>>20)
	}
	halt()
	if peak-before > hostileHeap {
		t.Errorf("the heap grew from %d to %d MiB", before>>20, peak>>20)
	}
	t.Logf("%d bad inputs tried; %d nodes enrolled, the slowest in %v", s.tries.Load(), enrolled.Load(), time.Duration(slowest.Load()).Round(time.Millisecond))

	// The server counts what it refused. This machine may read the metrics without an identity.
	resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}).Get("https://" + w.addr + "/metrics")
	check(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	check(t, err)
	if !strings.Contains(string(text), `rhumb_gate_refused_total{port="authority",reason="timeout"}`) {
		t.Errorf("no refusal was counted:\n%s", text)
	}
}

// heapOf returns the live heap of the process.
func heapOf() int64 {
	runtime.GC()
	runtime.GC() // empties the pools too
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
