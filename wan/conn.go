package wan

import (
	"io"
	"net"
	"sync"
	"time"
)

const (
	// lingerMax bounds how long bytes may be in flight after Close, beyond the delay of the link.
	lingerMax = 5 * time.Second
	// lingerLost is how long after Close the other side of a half-open connection still sees an
	// open connection.
	lingerLost = time.Minute
	// chunkSize is the number of bytes that move at once between a queue and the inner connection.
	chunkSize = 32 << 10
)

// conn delays an inner connection in both directions. Close returns at once, but bytes written
// before still arrive, and the other side sees the end after the last byte.
type conn struct {
	// All data takes the same path: Write puts it on the queue out, from which sendLoop writes it
	// to raw when it is due; receiveLoop reads raw at once and puts the data on the queue in, from
	// which Read takes it when it is due.
	raw     net.Conn
	out, in *queue

	writeMu, readMu             sync.Mutex // one put on out, and one take from in, at a time
	writeDeadline, readDeadline deadline

	// sent and received record both directions.
	sent, received recorder

	closing sync.Once
}

var _ net.Conn = (*conn)(nil)

// newConn returns a delayed connection over raw and starts its goroutines.
func newConn(raw net.Conn, there, back *link, queueMax int) *conn {
	c := &conn{
		raw: raw, out: newQueue(there, queueMax), in: newQueue(back, queueMax),
		writeDeadline: newDeadline(), readDeadline: newDeadline(),
		sent: recorder{link: there}, received: recorder{link: back},
	}
	go c.sendLoop()
	go c.receiveLoop()
	return c
}

// sendLoop moves bytes that are due to the inner connection, and closes it after the last byte.
func (c *conn) sendLoop() {
	buf := make([]byte, chunkSize)
	for {
		n, err := c.out.take(buf, nil)
		if err != nil {
			_ = c.raw.Close()
			return
		}
		if _, err := c.raw.Write(buf[:n]); err != nil {
			// The writer learns of the failure from its next Write, as with a real socket.
			c.out.abort(err)
			_ = c.raw.Close()
			return
		}
	}
}

// receiveLoop reads until the inner connection ends. After Close it continues to read and discards
// the bytes: a socket that is closed with unread bytes is reset, and the peer would lose the bytes
// that were written last.
func (c *conn) receiveLoop() {
	buf := make([]byte, chunkSize)
	for {
		n, err := c.raw.Read(buf)
		c.received.note(buf[:n])
		// A full queue blocks here, and then the peer by the flow control of the socket.
		_, _ = c.in.put(buf[:n], nil)
		if err != nil {
			c.in.end(err)
			return
		}
	}
}

// Read waits for bytes that are due.
func (c *conn) Read(b []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	// A Read of nothing must not block, and take would.
	if len(b) == 0 {
		return 0, nil
	}
	return c.in.take(b, c.readDeadline.expired())
}

// Write queues bytes for sending. It waits only while QueueBytesMax are in flight.
func (c *conn) Write(b []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.sent.note(b)
	return c.out.put(b, c.writeDeadline.expired())
}

// Close closes the connection. Pending and later calls return net.ErrClosed.
func (c *conn) Close() error {
	err := error(net.ErrClosed)
	// The second Close returns net.ErrClosed, as that of a TCP connection does.
	c.closing.Do(func() {
		err = nil
		// Reading ends at once. Writing ends after the queued bytes, like the FIN of a real socket.
		c.in.abort(net.ErrClosed)
		c.out.end(io.EOF)
		// The inner connection must not stay open forever if the peer does not read.
		linger := c.out.link.sampleDelay() + lingerMax
		// The other side must see an open connection for a while, as it would if this side had
		// vanished.
		if c.out.isLost() {
			linger = lingerLost
		}
		time.AfterFunc(linger, func() { c.hangUp(linger) })
	})
	return err
}

// hangUp closes the inner connection. While a cut keeps the end from the other side, it waits
// another period instead.
func (c *conn) hangUp(again time.Duration) {
	if c.out.link.cutChan() != nil {
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

// SetReadDeadline sets the deadline of Read, including a pending one.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.readDeadline.set(t)
	return nil
}

// SetWriteDeadline sets the deadline of Write, including a pending one.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.writeDeadline.set(t)
	return nil
}

// deadline closes a channel at a time that can be changed, like the deadline of net.Pipe.
type deadline struct {
	mu    sync.Mutex // guards timer and past
	timer *time.Timer
	past  chan struct{}
}

func newDeadline() deadline { return deadline{past: make(chan struct{})} }

// expired returns a channel that is closed when the deadline has passed.
func (d *deadline) expired() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.past
}

// set changes the deadline to t. The zero time means no deadline.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.past // the timer has fired; wait until it has closed the channel
	}
	d.timer = nil
	// A fired deadline stays in force until it is changed, so the channel may be closed already.
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
		// A closed channel cannot be opened again, and a new deadline makes calls possible again.
		d.past = make(chan struct{})
	}
	if !t.IsZero() {
		// The timer must close the channel of its own deadline, not that of a later one.
		past := d.past
		d.timer = time.AfterFunc(wait, func() { close(past) })
	}
}
