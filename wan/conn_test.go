package wan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rhumbdb/rhumb"
	"golang.org/x/net/nettest"
)

const (
	rtt  = 100 * time.Millisecond
	half = rtt / 2
)

// twoRegions returns a network with the regions here and there. Every dial returns one end of a
// pipe and puts the other into peers.
func twoRegions(t *testing.T) (n *Network, peers chan net.Conn) {
	t.Helper()
	f, err := Parse([]byte("round_trips_ms: {here: {there: 100}}\naddresses: {'there:1': there, 'here:1': here}"))
	if err != nil {
		t.Fatal(err)
	}
	n = New(f)
	peers = make(chan net.Conn, 16)
	n.dial = func(context.Context, string, string) (net.Conn, error) {
		a, b := net.Pipe()
		peers <- b
		return a, nil
	}
	return n, peers
}

// dialled returns both ends of a connection from here to there.
func dialled(t *testing.T) (n *Network, near, far net.Conn) {
	t.Helper()
	n, peers := twoRegions(t)
	near, err := n.Dialer("here")(t.Context(), "tcp", "there:1")
	if err != nil {
		t.Fatal(err)
	}
	return n, near, <-peers
}

// took runs f and checks that it took exactly want on the clock of the bubble.
func took(t *testing.T, want time.Duration, what string, f func()) {
	t.Helper()
	start := time.Now()
	f()
	if got := time.Since(start); got != want {
		t.Errorf("%s took %v, want %v", what, got, want)
	}
}

// advance lets time pass in the bubble.
func advance(d time.Duration) { <-time.After(d) }

// hangUp closes both ends and waits until the end has arrived: the time of a bubble stops with its
// test.
func hangUp(near, far net.Conn) {
	_ = near.Close()
	_ = far.Close()
	advance(rtt)
	synctest.Wait()
}

func mustWrite(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if n, err := io.WriteString(c, s); err != nil || n != len(s) {
		t.Fatalf("wrote %d bytes of %d: %v", n, len(s), err)
	}
}

func mustRead(t *testing.T, c net.Conn, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("read %q, %v; want %q", b, err, want)
	}
}

func TestConnDelaysBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, peers := twoRegions(t)
		var near net.Conn
		took(t, rtt, "dialling", func() {
			var err error
			if near, err = n.Dialer("here")(t.Context(), "tcp", "there:1"); err != nil {
				t.Fatal(err)
			}
		})
		far := <-peers
		took(t, 0, "a write", func() { mustWrite(t, near, "ping") })
		took(t, half, "the way there", func() { mustRead(t, far, "ping") })
		took(t, 0, "the answer", func() { mustWrite(t, far, "pong") })
		took(t, half, "the way back", func() { mustRead(t, near, "pong") })
		hangUp(near, far)
	})
}

// A thousand messages are in flight together: delay must not divide throughput.
func TestConnPipelines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, near, far := dialled(t)
		took(t, half, "a thousand messages", func() {
			for i := range 1000 {
				mustWrite(t, near, fmt.Sprintf("message %3d;", i))
			}
			for i := range 1000 {
				mustRead(t, far, fmt.Sprintf("message %3d;", i))
			}
		})
		hangUp(near, far)
	})
}

// Bytes sent at different times arrive with the same distance in time.
func TestConnKeepsPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, near, far := dialled(t)
		go func() {
			for range 3 {
				mustWrite(t, near, "x")
				advance(7 * time.Millisecond)
			}
		}()
		took(t, half, "the first byte", func() { mustRead(t, far, "x") })
		took(t, 7*time.Millisecond, "the second byte", func() { mustRead(t, far, "x") })
		took(t, 7*time.Millisecond, "the third byte", func() { mustRead(t, far, "x") })
		hangUp(near, far)
	})
}

func TestConnKeepsOrderUnderJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, near, far := dialled(t)
		linkOf(n, "here", "there").setDelay(half, 40*time.Millisecond)
		start := time.Now()
		for i := range 200 {
			mustWrite(t, near, fmt.Sprintf("%03d", i))
		}
		for i := range 200 {
			mustRead(t, far, fmt.Sprintf("%03d", i))
		}
		if d := time.Since(start); d < half || d > half+40*time.Millisecond {
			t.Errorf("all bytes took %v, want 50ms to 90ms", d)
		}
		hangUp(near, far)
	})
}

func TestConnCloseDeliversWhatWasWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, near, far := dialled(t)
		mustWrite(t, near, "last words")
		took(t, 0, "closing", func() {
			if err := near.Close(); err != nil {
				t.Fatal(err)
			}
		})
		if _, err := near.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write after close: %v", err)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after close: %v", err)
		}
		if err := near.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("second close: %v", err)
		}
		took(t, half, "the last words and the end", func() {
			got, err := io.ReadAll(far)
			if err != nil || string(got) != "last words" {
				t.Errorf("read %q, %v", got, err)
			}
		})
	})
}

func TestConnSeesEndLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, near, far := dialled(t)
		mustWrite(t, far, "bye")
		_ = far.Close()
		took(t, half, "the other side's end", func() {
			got, err := io.ReadAll(near)
			if err != nil || string(got) != "bye" {
				t.Errorf("read %q, %v", got, err)
			}
		})
		hangUp(near, far)
	})
}

func TestConnCloseWakesReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, near, far := dialled(t)
		got := make(chan error)
		go func() {
			_, err := near.Read(make([]byte, 1))
			got <- err
		}()
		synctest.Wait()
		_ = near.Close()
		if err := <-got; !errors.Is(err, net.ErrClosed) {
			t.Errorf("read returned %v", err)
		}
		hangUp(near, far)
	})
}

// A side that never reads must not keep a closed connection alive forever.
func TestConnLingerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, near, far := dialled(t)
		mustWrite(t, near, "never read")
		_ = near.Close()
		advance(half + lingerMax)
		synctest.Wait()
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the far side reads %v, want EOF", err)
		}
	})
}

func TestConnDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, near, far := dialled(t)
		expect := func(what string, err error) {
			t.Helper()
			var ne net.Error
			if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() {
				t.Errorf("%s: %v", what, err)
			}
		}
		b := make([]byte, 4)
		_ = near.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		took(t, 20*time.Millisecond, "a read with a deadline", func() {
			_, err := near.Read(b)
			expect("read", err)
		})
		mustWrite(t, far, "data")
		_ = near.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // before the bytes are due
		took(t, 20*time.Millisecond, "a read of bytes on their way", func() {
			_, err := near.Read(b)
			expect("read", err)
		})
		_ = near.SetDeadline(time.Time{})
		took(t, half-20*time.Millisecond, "the read after it", func() { mustRead(t, near, "data") })

		_ = near.SetDeadline(time.Now().Add(-time.Second))
		_, err := near.Write(b)
		expect("write after its deadline", err)
		_, err = near.Read(b)
		expect("read after its deadline", err)
		hangUp(near, far)
	})
}

// A deadline that is set while a read waits ends the read.
func TestConnDeadlineMovesUnderReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, near, far := dialled(t)
		_ = near.SetReadDeadline(time.Now().Add(time.Hour))
		go func() {
			advance(10 * time.Millisecond)
			_ = near.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		}()
		took(t, 15*time.Millisecond, "the read", func() {
			if _, err := near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read: %v", err)
			}
		})
		hangUp(near, far)
	})
}

func TestConnBoundsBytesOnTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, peers := twoRegions(t)
		raw, _ := n.dial(t.Context(), "tcp", "there:1")
		far := <-peers
		near := newConn(raw, linkOf(n, "here", "there"), linkOf(n, "there", "here"), 1000)
		_ = near.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		wrote, err := near.Write(make([]byte, 1500))
		if wrote != 1000 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("wrote %d bytes, %v; want 1000 and a deadline", wrote, err)
		}
		_ = near.SetWriteDeadline(time.Time{})
		go func() { _, _ = io.Copy(io.Discard, far) }()
		took(t, half-10*time.Millisecond, "a write into a full queue", func() { mustWrite(t, near, "more") })
		hangUp(near, far)
	})
}

func TestPartitionHoldsBytesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, near, far := dialled(t)
		mustWrite(t, near, "before")
		n.Partition("there", "here")
		mustWrite(t, near, " during")
		mustWrite(t, far, "answer")
		time.AfterFunc(time.Second, func() { n.Heal("here", "there") })
		took(t, time.Second, "the partition", func() { mustRead(t, far, "before during") })
		took(t, 0, "the answer held back", func() { mustRead(t, near, "answer") })
		took(t, half, "a message after it", func() {
			mustWrite(t, near, "after")
			mustRead(t, far, "after")
		})
		hangUp(near, far)
	})
}

func TestCutIsOneWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, near, far := dialled(t)
		n.Cut("here", "there")
		mustWrite(t, far, "still heard")
		took(t, half, "the whole direction", func() { mustRead(t, near, "still heard") })
		mustWrite(t, near, "unheard")
		_ = far.SetReadDeadline(time.Now().Add(time.Minute))
		if got, err := far.Read(make([]byte, 8)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read %d bytes over a cut link, %v", got, err)
		}
		n.Heal("here", "there")
		_ = far.SetReadDeadline(time.Time{})
		mustRead(t, far, "unheard")
		hangUp(near, far)
	})
}

func TestDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, peers := twoRegions(t)
		dial := n.Dialer("here")

		ctx, cancel := context.WithTimeout(t.Context(), 70*time.Millisecond)
		defer cancel()
		took(t, 70*time.Millisecond, "a dial that is given up", func() {
			if _, err := dial(ctx, "tcp", "there:1"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
		})
		if _, err := (<-peers).Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the connection given up was not closed: %v", err)
		}

		n.Partition("here", "there")
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		took(t, time.Second, "a dial over a cut link", func() {
			if _, err := dial(ctx, "tcp", "there:1"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
		})
		n.Heal("here", "there")

		refused := errors.New("refused")
		n.dial = func(context.Context, string, string) (net.Conn, error) { return nil, refused }
		took(t, rtt, "being refused", func() {
			if _, err := dial(t.Context(), "tcp", "there:1"); !errors.Is(err, refused) {
				t.Errorf("error %v", err)
			}
		})

		if _, err := dial(t.Context(), "tcp", "elsewhere:1"); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("an address that the file does not name: %v", err)
		}
		if _, err := n.Dialer("mars")(t.Context(), "tcp", "there:1"); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("a region that the file does not name: %v", err)
		}
	})
}

func TestDialWithinRegionIsPlain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, peers := twoRegions(t)
		took(t, 0, "dialling within a region", func() {
			c, err := n.Dialer("here")(t.Context(), "tcp", "here:1")
			if err != nil {
				t.Fatal(err)
			}
			if _, delayed := c.(*conn); delayed {
				t.Error("a connection without delay is wrapped")
			}
			_ = c.Close()
		})
		_ = (<-peers).Close()
	})
}

// The contract of net.Conn, as the Go project tests it.
func TestConnContract(t *testing.T) {
	nettest.TestConn(t, func() (near, far net.Conn, stop func(), err error) {
		l := &link{oneWay: time.Millisecond}
		a, b := net.Pipe()
		near = newConn(a, l, l, 1<<20)
		return near, b, func() {
			_ = near.Close()
			_ = b.Close()
		}, nil
	})
}

// Bulk data over real sockets: nothing is lost or changed, and 50 ms of delay does not limit 16 MiB
// to one window per round trip.
func TestConnLoopbackBulk(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	f := &File{
		RoundTrips: map[string]map[string]float64{"here": {"there": 50}},
		Addresses:  map[string]string{ln.Addr().String(): "there"},
	}
	var echo sync.WaitGroup
	echo.Go(func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(c, c)
		_ = c.Close()
	})
	start := time.Now()
	c, err := New(f).Dialer("here")(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 16<<20)
	for i := range want {
		want[i] = byte(i >> 8 * i)
	}
	var sender sync.WaitGroup
	sender.Go(func() { _, _ = c.Write(want) })
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the echo differs: %v", err)
	}
	elapsed := time.Since(start)
	t.Logf("%d MiB there and back in %v", len(want)>>20, elapsed)
	if elapsed < 100*time.Millisecond {
		t.Errorf("%v is less than two round trips", elapsed)
	}
	// One 64 KiB window per round trip would take 256 round trips, 12.8 s.
	if elapsed > 10*time.Second {
		t.Errorf("%v: the delay layer throttles", elapsed)
	}
	sender.Wait()
	_ = c.Close()
	echo.Wait()
}

func TestNilNetwork(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var n *Network
	c, err := n.Dialer("anywhere")(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if n.RoundTrip("a", "b") != 0 || n.Reload() != nil {
		t.Error("a nil network does something")
	}
}

func BenchmarkConnSmallWrites(b *testing.B) {
	l := &link{oneWay: time.Millisecond}
	near, far := net.Pipe()
	c := newConn(near, l, l, QueueBytesMax)
	go func() { _, _ = io.Copy(io.Discard, far) }()
	msg := make([]byte, 100)
	b.SetBytes(int64(len(msg)))
	for b.Loop() {
		if _, err := c.Write(msg); err != nil {
			b.Fatal(err)
		}
	}
	_ = c.Close()
}
