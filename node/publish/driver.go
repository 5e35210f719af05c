package publish

import (
	"cmp"
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Position is how far a range is committed on this node: the sequence number of its last committed entry and the greatest
// timestamp up to there.
type Position struct {
	Seq rhumb.Seq
	HLC rhumb.Timestamp
}

// Driver publishes one node's image.
type Driver struct {
	cfg Config
	m   metrics

	mu       sync.Mutex // guards the five below
	moved    map[rhumb.RangeID]move
	queued   int    // bytes of the entries in moved
	waiting  uint64 // how often Committed was called since the last version
	revision bool   // the catalog changed
	demands  []chan<- answer

	// following says that the image is open: from then on Committed wakes the driver.
	following atomic.Bool

	wake   chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	// owned by the driver's goroutine
	pub *snapshot.Publisher
	at  map[rhumb.RangeID]format.Position // how far each range is followed
	// unsaved are ranges that were followed past entries without any effect on the image, whose position it does not have yet.
	unsaved map[rhumb.RangeID]struct{}
	// pending are ranges that are committed beyond where they are followed.
	pending map[rhumb.RangeID]move
	// idle are the commit positions of ranges that are not followed, for when they are: storage may know less.
	idle    map[rhumb.RangeID]Position
	held    int // bytes of the entries in pending, about
	tables  map[rhumb.TableID]*table
	classes map[rhumb.ClassID]bool // that have such a table
	// regions is what the file beside the image says.
	regions map[string]format.TableRegions
	left    []rhumb.RangeID // ranges whose positions leave the image with the next version
	last    time.Duration   // when the last version was published
	asked   time.Duration   // when it was last asked how far ranges are closed
	retry   time.Duration   // not before then, after a failure
}

// move is how far a range is committed, with the last entries up to there as far as they are at hand, without a gap.
type move struct {
	Position
	entries []*entry.Entry
}

// answer is what a demand for a version came to.
type answer struct {
	version uint64
	err     error
}

// table is a table of the catalog that is in the image.
type table struct {
	rhumb.Table
	image *snapshot.Table
	// stale says that its content does not stand for the positions and has to be read from storage.
	stale bool
}

// Open opens or makes the node's image and begins to follow. With a catalog without published tables no file is made.
func Open(cfg Config) (*Driver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.HeldBytes = cmp.Or(cfg.HeldBytes, heldBytesDefault)
	cfg.Logger = cfg.Logger.With("image", ImageDir(cfg.Root, cfg.Cluster, cfg.Node))
	ctx, cancel := context.WithCancel(context.Background())
	d := &Driver{
		cfg: cfg, m: newMetrics(), moved: map[rhumb.RangeID]move{}, revision: true, wake: make(chan struct{}, 1), ctx: ctx, cancel: cancel,
		pending: map[rhumb.RangeID]move{}, idle: map[rhumb.RangeID]Position{}, unsaved: map[rhumb.RangeID]struct{}{}, tables: map[rhumb.TableID]*table{},
		classes: map[rhumb.ClassID]bool{},
	}
	d.work.Go(d.run)
	return d, nil
}

// Close ends publishing. The image stays, and readers go on with the last version.
func (d *Driver) Close() error {
	d.cancel()
	d.work.Wait()
	if d.pub == nil {
		return nil
	}
	return d.pub.Close()
}

// Committed tells how far a range is committed, and gives the last entries up to there that the caller has at hand, none or
// more, without a gap. They must not be changed any more. It never blocks: entries beyond Config.HeldBytes are dropped, and read
// from storage later.
func (d *Driver) Committed(id rhumb.RangeID, p Position, entries []*entry.Entry) {
	size := 0
	if !d.following.Load() {
		entries = nil
	}
	for _, e := range entries {
		size += e.Size()
	}
	d.mu.Lock()
	if old := d.moved[id]; p.Seq > old.Seq {
		if d.queued += size; d.queued > d.cfg.HeldBytes {
			dropEntries(d.moved)
			d.queued, entries = 0, nil
		}
		d.moved[id] = old.then(p, entries)
		d.waiting++
	}
	d.mu.Unlock()
	if d.following.Load() { // else open nudges, after it has said so
		d.nudge()
	}
}

// dropEntries forgets the entries at hand.
func dropEntries(moves map[rhumb.RangeID]move) {
	for id, m := range moves {
		m.entries = nil
		moves[id] = m
	}
}

// then gives the move that leads to where a later one leads.
func (m move) then(p Position, entries []*entry.Entry) move {
	if len(entries) == 0 {
		return move{Position: p}
	}
	if n := len(m.entries); n > 0 && m.entries[n-1].Seq+1 == entries[0].Seq {
		entries = append(m.entries, entries...)
	}
	return move{p, entries}
}

// CatalogChanged tells that tables or ranges may have come or gone. It never blocks.
func (d *Driver) CatalogChanged() {
	d.mu.Lock()
	d.revision = true
	d.mu.Unlock()
	d.nudge()
}

func (d *Driver) nudge() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Publish makes a version of all that is committed now, whatever the policy says, and gives its number.
func (d *Driver) Publish(ctx context.Context) (uint64, error) {
	const op rhumb.Op = "publish.Driver.Publish"
	got := make(chan answer, 1)
	d.mu.Lock()
	d.demands = append(d.demands, got)
	d.mu.Unlock()
	d.nudge()
	select {
	case a := <-got:
		return a.version, a.err
	case <-ctx.Done():
		return 0, rhumb.WrapKind(op, rhumb.DeadlineExceeded, ctx.Err())
	case <-d.ctx.Done():
		return 0, rhumb.E(op, rhumb.Unavailable, "the node stops")
	}
}

// run publishes until the driver is closed.
func (d *Driver) run() {
	beat := time.NewTicker(beatInterval)
	defer beat.Stop()
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-beat.C:
			if d.pub != nil {
				d.pub.Beat()
				d.publishClosed()
			}
			continue
		case <-d.wake:
		case <-due.C:
		}
		if wait := d.step(); wait > 0 {
			due.Reset(wait)
		}
	}
}

// step publishes what is due. It gives the time after which there is more to do, 0 for when something happens.
func (d *Driver) step() (wait time.Duration) {
	work := d.take()
	wait = d.early(work)
	if wait > 0 && !work.catalog {
		return wait
	}
	version, err := d.bringUp(work, wait == 0)
	none := rhumb.KindOf(err) == rhumb.NotFound && d.pub == nil
	for _, got := range work.demands {
		got <- answer{version, err}
	}
	if none {
		return 0
	}
	if err != nil {
		if d.ctx.Err() == nil {
			d.m.failures.Inc()
			d.cfg.Logger.Error("the image is not brought up to date; readers go on with the last version", "err", err)
		}
		d.mu.Lock()
		d.revision = true
		d.mu.Unlock()
		d.retry = hlc.Boottime() + retryPause
		return retryPause
	}
	switch {
	case wait > 0:
		return wait
	case len(d.pending) > 0:
		return storagePause
	case len(d.unsaved) > 0:
		return max(storagePause, d.last+positionInterval-hlc.Boottime())
	}
	return 0
}

// work is what waits to be done.
type work struct {
	demands []chan<- answer
	catalog bool
	entries uint64
}

// take gathers what was told since the last time.
func (d *Driver) take() (w work) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, m := range d.moved {
		if d.pub == nil || !d.follows(id) {
			d.idle[id] = m.Position
			continue
		}
		d.pending[id] = d.pending[id].then(m.Position, m.entries)
	}
	clear(d.moved)
	if d.held += d.queued; d.held > d.cfg.HeldBytes {
		dropEntries(d.pending)
		d.held = 0
	}
	d.queued = 0
	w = work{d.demands, d.revision && hlc.Boottime() >= d.retry, d.waiting}
	d.demands = nil
	return w
}

// never is a wait that something else has to end.
const never time.Duration = math.MaxInt64

// early gives how long the policy, or a failure before, wants to wait. What was taken stays pending.
func (d *Driver) early(w work) time.Duration {
	p := d.cfg.Policy
	if len(w.demands) > 0 {
		return 0
	}
	if wait := d.retry - hlc.Boottime(); wait > 0 {
		return wait
	}
	if p.OnDemand {
		return never
	}
	if p.Count > 0 && w.entries >= uint64(p.Count) {
		return 0
	}
	if p.Interval == 0 && p.Count > 0 {
		return never
	}
	return max(0, d.last+p.Interval-hlc.Boottime())
}

// bringUp takes in a changed catalog, publishes everything that is pending if that is due, and gives the newest version.
func (d *Driver) bringUp(w work, due bool) (uint64, error) {
	st := d.cfg.State()
	if w.catalog {
		d.mu.Lock()
		d.revision = false
		d.mu.Unlock()
		if err := d.fitTables(st); err != nil {
			return 0, err
		}
	}
	if d.pub == nil {
		return 0, rhumb.E("publish.Driver", rhumb.NotFound, "no table is published; make one with rhumb table create NAME --snapshot")
	}
	if !due && !d.anyStale() && len(d.left) == 0 {
		return d.pub.Version(), nil
	}
	d.mu.Lock()
	d.waiting = 0
	d.mu.Unlock()
	for d.ctx.Err() == nil {
		progress, err := d.version(st, len(w.demands) > 0)
		if err != nil {
			return 0, err
		}
		if len(d.pending) == 0 {
			d.held = 0
		}
		if !progress || len(d.pending) == 0 {
			return d.pub.Version(), nil
		}
	}
	return 0, d.ctx.Err()
}

// version publishes one version with what is pending, or a part of it. It makes no progress when storage does not show yet
// what is committed. Positions alone make a version only now and then, or when somebody asked for one.
func (d *Driver) version(st *catalog.State, asked bool) (progress bool, err error) {
	c := &cut{d: d, st: st, at: map[rhumb.RangeID]format.Position{}, limit: commitBytes}
	if err := c.plan(); err != nil {
		return false, err
	}
	must := d.anyStale() || len(d.left) > 0 || len(d.unsaved) > 0 && (asked || hlc.Boottime()-d.last >= positionInterval)
	if len(d.pending) == 0 && !must {
		return false, nil
	}
	c.commit = d.pub.Begin()
	defer c.commit.Discard()
	if err := c.gather(); err != nil {
		return false, err
	}
	if must = must || asked && len(c.at) > 0 || c.effects > 0; must {
		if err := c.publish(); err != nil {
			return false, err
		}
	}
	for id, p := range c.at {
		d.at[id] = p
		if !must {
			d.unsaved[id] = struct{}{}
		}
		if uint64(d.pending[id].Seq) <= p.Seq {
			delete(d.pending, id)
		}
	}
	return len(c.at) > 0, nil
}

// publish writes the positions and makes the version visible.
func (c *cut) publish() error {
	d := c.d
	for id := range d.unsaved {
		if _, moves := c.at[id]; !moves {
			if err := c.commit.Position(id, d.at[id]); err != nil {
				return err
			}
		}
	}
	for id, p := range c.at {
		if err := c.commit.Position(id, p); err != nil {
			return err
		}
	}
	start := time.Now()
	if _, err := c.commit.Publish(snapshot.CommitInfo{Event: c.event, Closed: c.closed()}); err != nil {
		return err
	}
	d.m.publishSeconds.Observe(time.Since(start).Seconds())
	d.m.entries.Add(float64(c.entries))
	d.last = hlc.Boottime()
	d.left = nil
	clear(d.unsaved)
	for _, t := range d.tables {
		t.stale = false
	}
	return nil
}

func (d *Driver) anyStale() bool {
	for _, t := range d.tables {
		if t.stale {
			return true
		}
	}
	return false
}
