package snapshot

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Publisher keeps one image.
type Publisher struct {
	cfg     Config
	metrics *metrics
	files   files
	root    root
	lock    int // file descriptor that owns the directory

	// mu is held by whatever changes the image. It is needed only because Beat may reclaim files at any time.
	mu     sync.Mutex
	closed rhumb.Timestamp // newest closed timestamp published; it never falls
	// committed is the newest version.
	committed uint64
	tables    map[string]*Table
	entries   [format.TablesMax]*Table
	positions *Table
	commit    *Commit       // that is open
	stages    [stages]stage // of it; the one at stage is being filled
	stage     int
	ended     bool
	recovery  Recovery
	stats     counters
	clock     clock

	scratch
	touched []*shard // memory of commits
}

// clock gives both clocks of a commit from one look at the time.
type clock struct {
	start time.Time
	mono  uint64 // CLOCK_MONOTONIC at start, in ns
}

// now gives CLOCK_REALTIME and CLOCK_MONOTONIC in ns.
func (c *clock) now() (wall int64, mono uint64) {
	t := time.Now()
	return t.UnixNano(), c.mono + uint64(t.Sub(c.start))
}

// counters are what Stats tells, kept where any goroutine may read it.
type counters struct {
	version, commits, records, rolls, kept, aborted, loads atomic.Uint64
	quarantined                                            atomic.Uint64
	live, large                                            atomic.Int64
}

// usable fails when the publisher is closed or broken.
func (p *Publisher) usable(op rhumb.Op) error {
	switch {
	case p.ended:
		return rhumb.E(op, rhumb.Canceled, "the publisher is closed")
	case p.commit != nil:
		return rhumb.E(op, rhumb.ConditionFailed, "a commit is open; publish or discard it first")
	}
	return nil
}

// Beat tells readers that the publisher is alive and recycles files whose readers have gone. Call it a few times a second.
func (p *Publisher) Beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.beat()
	p.files.reclaim()
}

func (p *Publisher) beat() {
	_, mono := p.clock.now()
	p.root.file.store64(format.RootHeartbeat, mono)
}

// Version gives the newest version.
func (p *Publisher) Version() uint64 { return p.stats.version.Load() }

// Closed gives the newest closed timestamp that was published, 0 when none was.
func (p *Publisher) Closed() rhumb.Timestamp { return p.closed }

// Recovery tells what Open found.
func (p *Publisher) Recovery() Recovery { return p.recovery }

// Close ends publishing. The image stays readable, and the next Open goes on from it. A commit that is open is discarded.
func (p *Publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	if p.commit != nil {
		p.commit.discard()
	}
	p.ended = true
	for _, t := range p.entries {
		if t == nil {
			continue
		}
		for _, s := range t.shards {
			if t.listed {
				s.seg.file.close()
			} else {
				p.files.remove(s.seg.file)
			}
		}
	}
	p.files.close()
	p.beat()
	p.root.file.store32(format.RootState, format.StateStopping)
	p.root.file.close()
	p.metrics.unregister(p.cfg.Registerer)
	return releaseOwner(p.lock)
}

// Positions gives the log positions that the newest version stands for, as the commits put them.
func (p *Publisher) Positions() map[rhumb.RangeID]format.Position {
	out := map[rhumb.RangeID]format.Position{}
	for rec := range p.positions.All() {
		if pos, ok := format.DecodePosition(rec.Value); ok {
			id := rhumb.RangeID{Region: rhumb.RegionID(rec.Key.Number >> 32), Slot: rhumb.Slot(uint32(rec.Key.Number))}
			out[id] = pos
		}
	}
	return out
}
