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
	// watchPeriodMax is the longest time between two runs of the watch, which looks at the ages of
	// views and at whether root was replaced.
	watchPeriodMax = time.Second
)

// Options controls how an image is mapped. The zero value is ready for use.
type Options struct {
	// MaxLockAge is how long a view may be read; 0 means MaxLockAgeDefault. Reads of an older view
	// fail with kind Expired.
	MaxLockAge time.Duration
	// ViewsMax bounds the views that are locked at the same time; 0 means ViewsMaxDefault. Lock
	// fails with kind Overloaded when that many are locked.
	ViewsMax int
	// Populate fills the page tables when a generation is mapped, so that no read takes a page
	// fault.
	Populate bool
	// HugePages asks for pages of 2 MiB. They take effect only if the file system has them; see
	// Client.HugePages.
	HugePages bool
	// VerifyChecksums checks the base of each generation when the generation is mapped, which reads
	// all of it, and each record that carries a checksum when the record is read.
	VerifyChecksums bool
	// Logger receives which generations are mapped and unmapped, and which views grew too old; nil
	// discards it.
	Logger *slog.Logger
}

// Validate returns an error that names the first invalid option.
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

// withDefaults returns the options with the zero values replaced by defaults.
func (o Options) withDefaults() Options {
	o.MaxLockAge = cmp.Or(o.MaxLockAge, MaxLockAgeDefault)
	o.ViewsMax = cmp.Or(o.ViewsMax, ViewsMaxDefault)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Client is an attached image. Any number of goroutines may use it.
//
// Lock takes no mutex. A view is registered in a slot, which also keeps its mappings alive; see
// Client.fillSlot. The mutex guards only changes of generations.
type Client struct {
	dir string
	opt Options

	// current is the holding of the next view; nil once the client is closed.
	current atomic.Pointer[holding]
	slots   []slot
	hot     uint32 // the slots that are tried first, a power of two less one
	start   time.Time
	wall    atomic.Int64 // CLOCK_REALTIME at start, in ns, updated whenever the watch runs
	stale   atomic.Bool  // root was replaced by another file

	mu     sync.Mutex
	closed bool
	mapped map[*mapping]string // every mapping and its file
	watch  *time.Timer
	counts counts
}

// counts are numbers that Stats returns. The client's mutex guards them.
type counts struct {
	remaps, reopens, unmaps, expired uint64
}

// Attach maps the image in a directory: a live image, <shm>/rhumb/<cluster>/<node>, or a saved one.
// It checks all headers. It fails with kind NotFound if there is no image, Incompatible if the
// image has another format, Corrupt if it is damaged, PermissionDenied if it may not be read, and
// Unavailable if the publisher does not finish a change of generations. Close the client to unmap
// the image.
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
	h, err := c.loadHolding(nil)
	if err != nil {
		c.unmapUnused()
		return nil, rhumb.Wrap(op, err)
	}
	c.current.Store(h)
	// The watch arms itself again. The mutex is held here, so that it cannot run before the client
	// is complete.
	c.watch = time.AfterFunc(c.watchPeriod(), c.watchOnce)
	return c, nil
}

// Close unmaps the image. While views are locked, Close fails with kind ConditionFailed and changes
// nothing: the results of their reads would no longer be mapped. A second Close does nothing.
func (c *Client) Close() error {
	const op rhumb.Op = "reader.Client.Close"
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	// From here on no view can be locked, so the count below cannot grow. A view that is being
	// locked right now sees nil when it reads current a second time.
	h := c.current.Swap(nil) // see above
	if n := c.countLocked(); n > 0 {
		c.current.Store(h)
		return rhumb.Ef(op, rhumb.ConditionFailed, "%d views are locked; unlock them first", n)
	}
	// No view is locked and none can be, so everything may be unmapped.
	c.closed = true
	c.watch.Stop()
	c.unmapUnused()
	return nil
}

// Tables returns the tables of the image in the order of their entries, including
// format.PositionsTable; nil once the client is closed.
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

// Dir returns the directory of the image.
func (c *Client) Dir() string { return c.dir }

// sinceStart returns the time since the client was made, in ns. It uses the monotonic clock, so
// that a step of the wall clock cannot expire a view.
func (c *Client) sinceStart() int64 { return int64(time.Since(c.start)) }

// watchPeriod returns the time between two runs of the watch: views expire at most an eighth of
// their age late.
func (c *Client) watchPeriod() time.Duration {
	return min(watchPeriodMax, max(c.opt.MaxLockAge/8, time.Millisecond))
}
