package snapshot

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/roll"
)

// Publisher keeps one image.
//
// It is a thin driver. Package segment writes the bytes of a generation, package roll decides how
// the next generation is built, files keeps the files within the budget, and root holds the words
// that readers start from. The publisher decides when the root changes, and in which order.
type Publisher struct {
	cfg     Config
	metrics *metrics
	files   files
	root    root
	lock    int // file descriptor that owns the directory

	// mu guards everything below, the files and the root. One goroutine writes, so mu is needed
	// only because Beat may reclaim files at any time. Put holds mu only while it rolls: locking
	// for every record would make each record slower.
	mu        sync.Mutex
	closed    rhumb.Timestamp // newest closed timestamp that was published; never falls
	committed uint64          // newest version
	tables    tableSet
	roller    roll.Roller
	commit    *Commit // the open one, or nil
	pipeline  pipeline
	touched   []*shard // memory for the next commit's list
	ended     bool     // Close was called
	recovery  Recovery
	stats     counters
	clock     clock
}

// clock derives both clocks of a commit from one reading of the time.
type clock struct {
	start time.Time
	mono  uint64 // CLOCK_MONOTONIC at start, in ns
}

// readBoth returns CLOCK_REALTIME and CLOCK_MONOTONIC in ns.
func (c *clock) readBoth() (wall int64, mono uint64) {
	t := time.Now()
	return t.UnixNano(), c.mono + uint64(t.Sub(c.start))
}

// counters are the numbers that Stats returns. Any goroutine may read them.
type counters struct {
	version, commits, records, rolls, kept, aborted, loads atomic.Uint64
	quarantined                                            atomic.Uint64
	live, large                                            atomic.Int64
}

// checkUsable returns an error if the publisher is closed or has an open commit.
func (p *Publisher) checkUsable(op rhumb.Op) error {
	switch {
	case p.ended:
		return rhumb.E(op, rhumb.Canceled, "the publisher is closed")
	case p.commit != nil:
		return rhumb.E(op, rhumb.ConditionFailed, "a commit is open; publish or discard it first")
	}
	return nil
}

// Beat shows readers that the publisher is alive, and recycles files whose readers have gone. Call
// it a few times a second.
func (p *Publisher) Beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.storeHeartbeat()
	// Readers cannot notify the publisher, so it looks for released files periodically.
	p.files.reclaimRetired()
}

// storeHeartbeat stores the current time. Readers use it to decide whether the publisher is alive.
func (p *Publisher) storeHeartbeat() {
	_, mono := p.clock.readBoth()
	p.root.file.Store64(format.RootHeartbeat, mono)
}

// Version returns the newest version.
func (p *Publisher) Version() uint64 { return p.stats.version.Load() }

// Closed returns the newest closed timestamp that was published, or 0 if none was.
func (p *Publisher) Closed() rhumb.Timestamp { return p.closed }

// Recovery returns what Open found.
func (p *Publisher) Recovery() Recovery { return p.recovery }

// Close ends publishing. The image stays readable, and the next Open continues it. An open commit
// is discarded.
func (p *Publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	// Mark its records as aborted now. Otherwise the next Open would have to find them.
	if p.commit != nil {
		p.commit.takeBack()
	}
	p.ended = true
	for t := range p.tables.all() {
		for _, s := range t.shards {
			if t.listed {
				s.seg.File.Close()
			} else {
				// The root does not name the files of this table, so the next Open would remove
				// them as orphans.
				p.files.Remove(s.seg.File)
			}
		}
	}
	// Live files stay for the next Open. Retired and recycled files are removed now, because Open
	// would only remove them.
	p.files.closeAll()
	p.storeHeartbeat()
	// The state comes last: readers treat an image in this state as complete and stopped cleanly.
	p.root.file.Store32(format.RootState, format.StateStopping)
	p.root.file.Close()
	p.metrics.unregister(p.cfg.Registerer)
	return releaseLock(p.lock)
}

// Positions returns the log positions that the newest version represents, as the commits wrote
// them.
func (p *Publisher) Positions() map[rhumb.RangeID]format.Position {
	out := map[rhumb.RangeID]format.Position{}
	for rec := range p.tables.positions.All() {
		// A value of another length is not written by any version of this format.
		if pos, ok := format.DecodePosition(rec.Value); ok {
			id := rhumb.RangeID{Region: rhumb.RegionID(rec.Key.Number >> 32), Slot: rhumb.Slot(uint32(rec.Key.Number))}
			out[id] = pos
		}
	}
	return out
}
