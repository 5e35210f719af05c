package reader

import (
	"cmp"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Defaults and bounds of Options.
const (
	MaxLockAgeDefault = 60 * time.Second
	ViewsMaxDefault   = 4096
	// watchPeriodMax is the longest time between two looks at the ages of views and at whether root was replaced.
	watchPeriodMax = time.Second
)

// Options say how an image is mapped. The zero value is ready for use.
type Options struct {
	// MaxLockAge is how long a view may be read, MaxLockAgeDefault when 0. Reads of an older one fail with kind Expired.
	MaxLockAge time.Duration
	// ViewsMax bounds the views that are locked at the same time, ViewsMaxDefault when 0. Lock fails with kind Overloaded
	// beyond.
	ViewsMax int
	// Populate maps all pages when a generation is mapped, so that no read takes a page fault.
	Populate bool
	// HugePages asks for pages of 2 MiB; they come into effect when the file system has them. See Client.HugePages.
	HugePages bool
	// VerifyChecksums checks the base of each generation when it is mapped, which reads all of it, and each record that
	// carries a checksum when it is read.
	VerifyChecksums bool
	// Logger hears of generations mapped and unmapped and of views that grew too old; nil is silent.
	Logger *slog.Logger
}

// Validate lists everything that is wrong with the options.
func (o Options) Validate() error {
	const op rhumb.Op = "reader.Options"
	switch {
	case o.MaxLockAge < 0:
		return rhumb.Ef(op, rhumb.InvalidArgument, "MaxLockAge is %v, want 0 for %v or more", o.MaxLockAge, MaxLockAgeDefault)
	case o.ViewsMax < 0 || o.ViewsMax > 1<<20:
		return rhumb.Ef(op, rhumb.InvalidArgument, "ViewsMax is %d, want 0 for %d, up to %d", o.ViewsMax, ViewsMaxDefault, 1<<20)
	}
	return nil
}

func (o Options) withDefaults() Options {
	o.MaxLockAge = cmp.Or(o.MaxLockAge, MaxLockAgeDefault)
	o.ViewsMax = cmp.Or(o.ViewsMax, ViewsMaxDefault)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Client is an attached image.
type Client struct {
	dir string
	opt Options

	// current is what the next view holds; nil once the client is closed.
	current atomic.Pointer[holding]
	slots   []slot
	hot     uint32 // the slots that are tried first, a power of two less one
	start   time.Time
	wall    atomic.Int64 // CLOCK_REALTIME at start, in ns, set anew whenever the watch runs
	stale   atomic.Bool  // root was replaced by another file

	mu     sync.Mutex
	closed bool
	mapped map[*mapping]string // every mapping and its file
	watch  *time.Timer
	counts counts
}

// counts are what Stats reports; they change under the client's mutex.
type counts struct {
	remaps, reopens, unmaps, expired uint64
}

// Attach maps the image in a directory: a live one, <shm>/rhumb/<cluster>/<node>, or a saved one. It checks all headers,
// and fails with kind NotFound when there is no image, Incompatible when it is of another format, Corrupt when it is
// damaged, PermissionDenied when it may not be read, and Unavailable when the publisher does not finish a change of
// generations. Close the client to unmap it.
func Attach(dir string, opt Options) (*Client, error) {
	const op rhumb.Op = "reader.Attach"
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	opt = opt.withDefaults()
	c := &Client{
		dir: filepath.Clean(dir), opt: opt, slots: make([]slot, opt.ViewsMax), hot: hotSlots(opt.ViewsMax), start: time.Now(),
		mapped: map[*mapping]string{},
	}
	c.wall.Store(c.start.UnixNano())
	c.mu.Lock()
	defer c.mu.Unlock()
	h, err := c.load(nil)
	if err != nil {
		c.sweep()
		return nil, rhumb.Wrap(op, err)
	}
	c.current.Store(h)
	c.watch = time.AfterFunc(c.watchPeriod(), c.look)
	return c, nil
}

// Close unmaps the image. It refuses with kind ConditionFailed, and changes nothing, while views are locked: what they
// returned would no longer be mapped. A second Close does nothing.
func (c *Client) Close() error {
	const op rhumb.Op = "reader.Client.Close"
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	h := c.current.Swap(nil) // no view can be locked from here on
	if n := c.locked(); n > 0 {
		c.current.Store(h)
		return rhumb.Ef(op, rhumb.ConditionFailed, "%d views are locked; unlock them first", n)
	}
	c.closed = true
	c.watch.Stop()
	c.sweep()
	return nil
}

// Tables lists the tables of the image, in the order of their entries, PositionsTable among them.
func (c *Client) Tables() []format.Table {
	h := c.current.Load()
	if h == nil {
		return nil
	}
	out := make([]format.Table, 0, len(h.order))
	for _, t := range h.order {
		out = append(out, t.Table)
	}
	return out
}

// Dir gives the directory of the image.
func (c *Client) Dir() string { return c.dir }

// now gives the time since the client was made, in ns.
func (c *Client) now() int64 { return int64(time.Since(c.start)) }

func (c *Client) watchPeriod() time.Duration {
	return min(watchPeriodMax, max(c.opt.MaxLockAge/8, time.Millisecond))
}
