package wan

import (
	"io"
	"net"
	"sync"
	"time"
)

const (
	// lingerMax is how long after Close bytes may still be on their way, beyond the link's delay.
	lingerMax = 5 * time.Second
	// lingerLost is how long after Close the other side of a half-open connection hears nothing of the end.
	lingerLost = time.Minute
	// chunkSize is how many bytes move at once between a queue and the connection below.
	chunkSize = 32 << 10
)

// conn delays a connection in both directions. Close returns at once; what was written before still arrives, and the
// other side sees the end as late as the last byte.
type conn struct {
	raw     net.Conn
	out, in *queue

	writeMu, readMu             sync.Mutex // one put on out and one take from in at a time
	writeDeadline, readDeadline deadline

	closing sync.Once
}

var _ net.Conn = (*conn)(nil)

func newConn(raw net.Conn, there, back *link, queueMax int) *conn {
	c := &conn{
		raw: raw, out: newQueue(there, queueMax), in: newQueue(back, queueMax),
		writeDeadline: newDeadline(), readDeadline: newDeadline(),
	}
	go c.send()
	go c.receive()
	return c
}

// send moves what is due to the connection below, and closes it after the last byte.
func (c *conn) send() {
	buf := make([]byte, chunkSize)
	for {
		n, err := c.out.take(buf, nil)
		if err != nil {
			_ = c.raw.Close()
			return
		}
		if _, err := c.raw.Write(buf[:n]); err != nil {
			c.out.abort(err)
			_ = c.raw.Close()
			return
		}
	}
}

// receive reads until the connection below ends. After Close it goes on reading into the void: a socket closed with
// unread bytes would be reset, and what was written last be lost.
func (c *conn) receive() {
	buf := make([]byte, chunkSize)
	for {
		n, err := c.raw.Read(buf)
		_, _ = c.in.put(buf[:n], nil)
		if err != nil {
			c.in.end(err)
			return
		}
	}
}

// Read waits for bytes that have arrived.
func (c *conn) Read(b []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	if len(b) == 0 {
		return 0, nil
	}
	return c.in.take(b, c.readDeadline.expired())
}

// Write sends bytes on their way. It waits only while QueueBytesMax are on it already.
func (c *conn) Write(b []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	return c.out.put(b, c.writeDeadline.expired())
}

// Close ends the connection: pending and later calls return net.ErrClosed.
func (c *conn) Close() error {
	err := error(net.ErrClosed)
	c.closing.Do(func() {
		err = nil
		c.in.abort(net.ErrClosed)
		c.out.end(io.EOF)
		linger := c.out.link.delay() + lingerMax
		if c.out.lost() {
			linger = lingerLost
		}
		time.AfterFunc(linger, func() { c.hangUp(linger) })
	})
	return err
}

// hangUp closes the connection below, but not while a cut keeps the end from the other side.
func (c *conn) hangUp(again time.Duration) {
	if c.out.link.cut() != nil {
		time.AfterFunc(again, func() { c.hangUp(again) })
		return
	}
	c.out.abort(net.ErrClosed)
	_ = c.raw.Close()
}

func (c *conn) LocalAddr() net.Addr  { return c.raw.LocalAddr() }
func (c *conn) RemoteAddr() net.Addr { return c.raw.RemoteAddr() }

// SetDeadline sets both deadlines.
func (c *conn) SetDeadline(t time.Time) error {
	c.readDeadline.set(t)
	c.writeDeadline.set(t)
	return nil
}

// SetReadDeadline ends a Read that waits longer, running ones included.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.readDeadline.set(t)
	return nil
}

// SetWriteDeadline ends a Write that waits longer for room, running ones included.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.writeDeadline.set(t)
	return nil
}

// deadline closes a channel at a time that may be moved.
type deadline struct {
	mu    sync.Mutex // guards all below
	timer *time.Timer
	past  chan struct{}
}

func newDeadline() deadline { return deadline{past: make(chan struct{})} }

// expired gives a channel that is closed once the deadline has passed.
func (d *deadline) expired() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.past
}

// set moves the deadline to t; the zero time means never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.past // the timer fired: wait until it has closed the channel
	}
	d.timer = nil
	passed := false
	select {
	case <-d.past:
		passed = true
	default:
	}
	wait := time.Until(t)
	switch {
	case !t.IsZero() && wait <= 0:
		if !passed {
			close(d.past)
		}
		return
	case passed:
		d.past = make(chan struct{})
	}
	if !t.IsZero() {
		past := d.past
		d.timer = time.AfterFunc(wait, func() { close(past) })
	}
}
