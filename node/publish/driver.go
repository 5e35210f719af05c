package publish

import (
	"cmp"
	"context"
	"errors"
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

// Position states how far a range is committed on this node: the sequence number of its last
// committed entry and the greatest timestamp up to there.
type Position struct {
	Seq rhumb.Seq
	HLC rhumb.Timestamp
}

// Driver publishes one node's image.
//
// Reports and work are separate: Committed only stores its report under mu, and the driver's
// goroutine turns reports into pending work (takeWork) and pending work into versions
// (updateImage). So the host never waits for the image.
type Driver struct {
	cfg Config
	m   metrics

	// mu guards the five fields below.
	mu    sync.Mutex
	moved map[rhumb.RangeID]move
	// reported are births that the next step takes over.
	reported []bornRange
	// queued is the size in bytes of the entries in moved.
	queued int
	// waiting counts the calls of Committed since the last version.
	waiting uint64
	// revision is true if the catalog changed.
	revision bool
	demands  []chan<- answer

	// following is true once the image is open; from then on Committed wakes the driver.
	following atomic.Bool

	// wake holds a token if there is work, and hurry if somebody waits for it. The driver does not look at wake for
	// wakeInterval after a step.
	wake   chan struct{}
	hurry  chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	// The driver's goroutine owns the fields below.
	pub *snapshot.Publisher
	// at holds how far each range is followed.
	at map[rhumb.RangeID]format.Position
	// unsaved holds ranges that were followed past entries without any effect on the image. The
	// image does not have their positions yet.
	unsaved map[rhumb.RangeID]struct{}
	// pending holds ranges that are committed beyond their position in at.
	pending map[rhumb.RangeID]move
	// idle holds the commit positions of ranges that are not followed, for when they will be:
	// storage may have older ones.
	idle map[rhumb.RangeID]Position
	// held is the approximate size in bytes of the entries in pending.
	held   int
	tables map[rhumb.TableID]*table
	// classes are the classes of the published tables.
	classes map[rhumb.ClassID]bool
	// regions is the content of the file next to the image.
	regions map[string]format.TableRegions
	// births holds the ranges that were split off from another one since the start, until the image has their position.
	births map[rhumb.RangeID]birth
	// merged holds ranges that another one took over, and that the image had followed to their end: all their records are in it.
	merged map[rhumb.RangeID]bool
	// loaded holds the last slot that the last load has read of each range.
	loaded map[rhumb.RangeID]rhumb.Slot
	// lag is the last wait for storage, or for the catalog; 0 after progress.
	lag time.Duration
	// behind is when storage was first seen to lack entries that a load needs; 0 if it has them.
	behind time.Duration
	// left are ranges whose positions leave the image with the next version.
	left []rhumb.RangeID
	// last is when the last version was published, and asked when the closed timestamp was last
	// computed.
	last  time.Duration
	asked time.Duration
	// retry is the time before which nothing is tried again after a failure, and pause the last wait for that.
	retry, pause time.Duration
}

// move is how far a range is committed, together with the last entries up to there that are at
// hand, without a gap.
type move struct {
	Position
	entries []*entry.Entry
}

// birth is the parent of a range that was split off, and the position at which both have the same log.
type birth struct {
	parent rhumb.RangeID
	Position
}

// answer is the outcome of a demand for a version.
type answer struct {
	version uint64
	err     error
}

// table is a table of the catalog that is in the image.
type table struct {
	rhumb.Table
	image *snapshot.Table
	// stale is true if the table's content does not match the positions, so that it must be loaded
	// from storage.
	stale bool
}

// Open opens or creates the node's image and begins to follow. If the catalog publishes no table,
// Open creates no file.
func Open(cfg Config) (*Driver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.HeldBytes, cfg.Root = cmp.Or(cfg.HeldBytes, heldBytesDefault), cmp.Or(cfg.Root, DirDefault)
	cfg.Logger = cfg.Logger.With("image", ImageDir(cfg.Root, cfg.Cluster, cfg.Node))
	// revision begins as true, so that the first step applies the catalog.
	ctx, cancel := context.WithCancel(context.Background())
	d := &Driver{
		cfg: cfg, m: newMetrics(), moved: map[rhumb.RangeID]move{}, revision: true, wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1), ctx: ctx, cancel: cancel,
		pending: map[rhumb.RangeID]move{}, idle: map[rhumb.RangeID]Position{}, births: map[rhumb.RangeID]birth{}, merged: map[rhumb.RangeID]bool{}, unsaved: map[rhumb.RangeID]struct{}{}, tables: map[rhumb.TableID]*table{},
		classes: map[rhumb.ClassID]bool{}, loaded: map[rhumb.RangeID]rhumb.Slot{},
	}
	d.work.Go(d.run)
	return d, nil
}

// Close ends publishing. The image remains, and readers keep its last version.
func (d *Driver) Close() error {
	d.cancel()
	d.work.Wait()
	if d.pub == nil {
		return nil
	}
	return d.pub.Close()
}

// Committed reports how far a range is committed, together with the last entries up to there that
// the caller has at hand: none or more, without a gap. The entries must not be changed any more.
// Committed never blocks: entries beyond Config.HeldBytes are dropped and read from storage later.
func (d *Driver) Committed(id rhumb.RangeID, p Position, entries []*entry.Entry) {
	size := 0
	// Without an image the entries would only take memory. The position is kept for the time when a
	// table is published.
	if !d.following.Load() {
		entries = nil
	}
	for _, e := range entries {
		size += e.Size()
	}
	d.mu.Lock()
	if old := d.moved[id]; p.Seq > old.Seq {
		// Storage has every entry, so dropping them costs a read later and nothing else.
		if d.queued += size; d.queued > d.cfg.HeldBytes {
			dropEntries(d.moved)
			d.queued, entries = 0, nil
		}
		d.moved[id] = old.extend(p, entries)
		d.waiting++
	}
	d.mu.Unlock()
	// openImage wakes the driver after it has set following, so no report is missed.
	if d.following.Load() {
		signal(d.wake)
	}
}

// Born reports that a range was split off from another one by an entry of its log. The image has the records of the new range
// up to there as soon as it has followed the old one up to there, so nothing is read again. The caller reports a birth before
// it reports that the old range is committed up to the entry.
func (d *Driver) Born(id, parent rhumb.RangeID, p Position) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reported = append(d.reported, bornRange{id, birth{parent, p}})
}

// bornRange is a reported birth.
type bornRange struct {
	id rhumb.RangeID
	birth
}

// dropEntries forgets the entries at hand.
func dropEntries(moves map[rhumb.RangeID]move) {
	for id, m := range moves {
		m.entries = nil
		moves[id] = m
	}
}

// extend returns the move to a later position p.
func (m move) extend(p Position, entries []*entry.Entry) move {
	if len(entries) == 0 {
		return move{Position: p}
	}
	// With a gap only the newer entries are kept. Storage has those before them.
	if n := len(m.entries); n > 0 && m.entries[n-1].Seq+1 == entries[0].Seq {
		entries = append(m.entries, entries...)
	}
	return move{p, entries}
}

// CatalogChanged reports that tables or ranges may have been added or removed. It never blocks.
func (d *Driver) CatalogChanged() {
	d.mu.Lock()
	// The failure may have interrupted a change of the catalog, so the next step applies the
	// catalog again.
	d.revision = true
	d.mu.Unlock()
	signal(d.hurry)
}

// signal leaves a token for the driver. One is enough, since a step handles everything that waits.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Publish publishes everything committed by now as a version, whatever the policy says, and returns
// its number.
func (d *Driver) Publish(ctx context.Context) (uint64, error) {
	const op rhumb.Op = "publish.Driver.Publish"
	got := make(chan answer, 1)
	d.mu.Lock()
	d.demands = append(d.demands, got)
	d.mu.Unlock()
	signal(d.hurry)
	select {
	case a := <-got:
		return a.version, a.err
	case <-ctx.Done():
		return 0, rhumb.WrapKind(op, rhumb.DeadlineExceeded, ctx.Err())
	case <-d.ctx.Done():
		return 0, rhumb.E(op, rhumb.Unavailable, "the node is stopping; ask again when it serves")
	}
}

// run publishes until the driver is closed. After each step it pauses for wakeInterval: a busy node would otherwise spend
// several percent of its processor time on wake-ups.
func (d *Driver) run() {
	beat := time.NewTicker(beatInterval)
	defer beat.Stop()
	due := time.NewTimer(0)
	defer due.Stop()
	rest := time.NewTimer(0)
	defer rest.Stop()
	var wake <-chan struct{} // nil during a rest
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-beat.C:
			if d.pub != nil {
				// Beats do not depend on commits: readers judge by them whether the publisher is
				// alive.
				d.pub.Beat()
				d.publishClosed()
			}
			continue
		case <-rest.C:
			wake = d.wake
			continue
		case <-wake:
		case <-d.hurry:
		case <-due.C:
		}
		if wait := d.step(); wait > 0 {
			due.Reset(wait)
		}
		// A report during the pause leaves its token in wake.
		wake = nil
		rest.Reset(wakeInterval)
	}
}

// step publishes everything that is due. It returns the time after which there is more to do, or 0
// to wait for an event.
func (d *Driver) step() (wait time.Duration) {
	work := d.takeWork()
	wait = d.policyWait(work)
	// A changed catalog is applied at once, even if the policy delays versions.
	if wait > 0 && !work.catalog {
		return wait
	}
	version, err := d.updateImage(work, wait == 0)
	// Without published tables a demand fails but nothing is wrong, so nothing is logged or
	// retried.
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
			d.cfg.Logger.Error("the image is not brought up to date; readers keep the last version", "err", err)
		}
		d.mu.Lock()
		d.revision = true
		d.mu.Unlock()
		d.lengthenPause(err)
		d.retry = hlc.Boottime() + d.pause
		return d.pause
	}
	d.pause = 0
	switch {
	case wait > 0:
		return wait
	// Storage does not show everything that is committed yet; the pass that committed it is about
	// to end.
	case len(d.pending) > 0 || d.pub != nil && d.anyStale():
		return max(storagePause, d.lag)
	case len(d.unsaved) > 0:
		return max(storagePause, d.last+positionInterval-hlc.Boottime())
	}
	return 0
}

// work is the work of one step.
type work struct {
	demands []chan<- answer
	catalog bool
	entries uint64
}

// takeWork collects the reports since the last step.
func (d *Driver) takeWork() (w work) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range d.reported {
		d.births[b.id] = b.birth
	}
	d.reported = nil
	for id, m := range d.moved {
		// Ranges without published tables are not followed, but their last position is remembered,
		// for a table that is published later.
		if d.pub == nil || !d.followsRange(id) {
			d.idle[id] = m.Position
			continue
		}
		// A load may have read the entries before they were reported. A range that does not move would stay pending.
		if uint64(m.Seq) > d.at[id].Seq {
			d.pending[id] = d.pending[id].extend(m.Position, m.entries)
		}
	}
	clear(d.moved)
	// The sum counts entries that were published meanwhile, so it may be too large. It is reset
	// when nothing is pending.
	if d.held += d.queued; d.held > d.cfg.HeldBytes {
		dropEntries(d.pending)
		d.held = 0
	}
	d.queued = 0
	w = work{d.demands, d.revision && hlc.Boottime() >= d.retry, d.waiting}
	d.demands = nil
	return w
}

// lengthenPause sets the wait after a failure.
func (d *Driver) lengthenPause(err error) {
	switch rhumb.KindOf(err) {
	case rhumb.Overloaded, rhumb.TooLarge, rhumb.DiskFull: // the image has no room
		d.pause = min(max(retryPause, 2*d.pause), retryPauseMax)
	default:
		d.pause = retryPause
	}
}

// never is a wait that only another event ends.
const never time.Duration = math.MaxInt64

// policyWait returns how long the policy or an earlier failure delays the next version. The work
// stays pending meanwhile.
func (d *Driver) policyWait(w work) time.Duration {
	p := d.cfg.Policy
	// A demand overrides the policy and the pause after a failure: its caller waits for the
	// outcome.
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
	// Without an interval only the count publishes.
	if p.Interval == 0 && p.Count > 0 {
		return never
	}
	return max(0, d.last+p.Interval-hlc.Boottime())
}

// updateImage applies a changed catalog, publishes everything pending if that is due, and returns
// the newest version.
func (d *Driver) updateImage(w work, due bool) (uint64, error) {
	if w.catalog {
		// The flag is cleared before the catalog is read: a change after the read sets it again and
		// is not lost.
		d.mu.Lock()
		d.revision = false
		d.mu.Unlock()
	}
	st := d.cfg.State()
	if w.catalog {
		if err := d.applyCatalog(st); err != nil {
			return 0, err
		}
	}
	if d.pub == nil {
		return 0, rhumb.E("publish.Driver", rhumb.NotFound, "no table is published; create one with rhumb table create NAME --snapshot")
	}
	// Tables to load and ranges to drop do not wait for the policy: readers must not see the old
	// tables longer than necessary.
	if !due && !d.anyStale() && len(d.left) == 0 {
		return d.pub.Version(), nil
	}
	d.mu.Lock()
	d.waiting = 0
	d.mu.Unlock()
	// Each version takes in a bounded part of the log. The loop ends when nothing is pending, or
	// when storage shows no more.
	for d.ctx.Err() == nil {
		progress, err := d.makeVersion(st, len(w.demands) > 0)
		if err != nil {
			return 0, err
		}
		if len(d.pending) == 0 {
			d.held = 0
		}
		if d.lag = min(max(2*d.lag, storagePause), storagePauseMax); progress {
			d.lag = 0
		}
		if !progress || len(d.pending) == 0 {
			return d.pub.Version(), nil
		}
	}
	return 0, d.ctx.Err()
}

// makeVersion publishes one version with the pending entries or a part of them. progress is false
// if storage does not show yet everything that is committed. Positions alone make a version only
// once per positionInterval, or if a caller asked for one.
func (d *Driver) makeVersion(st *catalog.State, asked bool) (progress bool, err error) {
	c := &cut{d: d, st: st, at: map[rhumb.RangeID]format.Position{}, limit: commitBytes}
	if err := c.plan(); err != nil {
		return false, err
	}
	must := d.anyStale() || len(d.left) > 0 || len(d.unsaved) > 0 && (asked || hlc.Boottime()-d.last >= positionInterval)
	// There is nothing to write.
	if len(d.pending) == 0 && !must {
		return false, nil
	}
	c.commit = d.pub.Begin()
	// Discard does nothing after Publish. After an error it leaves the image unchanged.
	defer c.commit.Discard()
	if err := c.gather(); errors.Is(err, errStorageBehind) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	// Entries without effects do not make a version. Their positions are remembered in unsaved.
	if must = must || asked && len(c.at) > 0 || c.effects > 0; must {
		if err := c.publish(); err != nil {
			return false, err
		}
	}
	// Only now may the driver's positions move: after an error the same entries are applied again.
	for id, p := range c.absent {
		// It returns when storage has the entries.
		to := d.pending[id].Position
		if uint64(to.Seq) < p.Seq {
			to = Position{rhumb.Seq(p.Seq), p.HLC}
		}
		d.pending[id] = move{Position: to}
		delete(d.at, id)
		delete(d.unsaved, id)
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
	// Positions of earlier steps that made no version are written too.
	for id := range d.unsaved {
		_, moves := c.at[id]
		if _, absent := c.absent[id]; !moves && !absent {
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
	// The closed timestamp is computed for exactly the positions of this version.
	if _, err := c.commit.Publish(snapshot.CommitInfo{Event: c.event, Closed: c.closedTimestamp()}); err != nil {
		return err
	}
	d.m.publishSeconds.Observe(time.Since(start).Seconds())
	d.m.entries.Add(float64(c.entries))
	// From here on the version is visible.
	d.last = hlc.Boottime()
	d.left = nil
	clear(d.unsaved)
	for _, t := range d.tables {
		t.stale = false
	}
	return nil
}

// anyStale reports whether a table has to be loaded.
func (d *Driver) anyStale() bool {
	for _, t := range d.tables {
		if t.stale {
			return true
		}
	}
	return false
}
