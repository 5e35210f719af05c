package storage

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// A disk may refuse reads (EIO) for a moment, for as long as it is overheated or unplugged, or always in a bad sector. None of that is
// damage: the bytes may be there. So the store remembers the places and reads them again. Who asks for these probes decides whether
// the node should have primaries (package node/host). A place of a table that stays unreadable for UnreadableAfter is as good as
// damaged, and is handled like damage from there on.

const (
	// readSpotsMax bounds the places that a store remembers. A disk that refuses everything is known by any of them.
	readSpotsMax = 64
	// probeTables is how many tables a wide probe reads a block of, other ones each time. A disk that refuses a part of its reads seldom refuses
	// the same one twice.
	probeTables = 4
	// probeSize is the size in bytes of a read of a probe for which no size is known.
	probeSize = 4 << 10
	// probeBytesMax bounds the bytes of one read of a probe.
	probeBytesMax = 256 << 10
	// UnreadableAfter is how long a place of a table must be refused by every probe until it counts as damaged. It is longer than a disk
	// needs that is reset, or a volume that is attached again: the node has no primaries meanwhile, so nothing is urgent.
	UnreadableAfter = 5 * time.Minute
)

// readSpot is a place of a file that the disk refused to read.
type readSpot struct {
	path string
	// at is -1 for a read of a file from its beginning to its end, whose place is not known.
	at   int64
	size int
}

// fault describes the place as damage.
func (p readSpot) fault(lasted time.Duration) Fault {
	return Fault{p.path, p.at, fmt.Sprintf("the disk has refused to read it for %v", lasted.Round(time.Second))}
}

// readSpots are the places that the disk refused to read. It is a value without I/O or clock: probes report their results.
type readSpots struct {
	waiting []waitingSpot
	// lost are the places that were refused for UnreadableAfter. Reads of them are no news.
	lost []readSpot
}

// waitingSpot is a place with the time of the first probe that was refused, if there was one since a read of it succeeded.
type waitingSpot struct {
	readSpot
	since  time.Duration
	probed bool
}

// note remembers a place that was refused, and reports whether that says anything about the disk: a place that is lost does not.
func (r *readSpots) note(p readSpot) bool {
	if slices.ContainsFunc(r.lost, func(q readSpot) bool { return q.path == p.path && q.at == p.at }) {
		return false
	}
	if len(r.waiting) < readSpotsMax && !slices.ContainsFunc(r.waiting, func(w waitingSpot) bool { return w.path == p.path && w.at == p.at }) {
		r.waiting = append(r.waiting, waitingSpot{readSpot: p})
	}
	return true
}

// probed records the result of a probe of a place at time now. It returns how long the place was refused if that makes it lost.
func (r *readSpots) probed(now time.Duration, p readSpot, refused bool) (lasted time.Duration, lost bool) {
	i := slices.IndexFunc(r.waiting, func(w waitingSpot) bool { return w.readSpot == p })
	switch {
	case i < 0:
		return 0, false
	case !refused:
		r.waiting = slices.Delete(r.waiting, i, i+1)
		return 0, false
	}
	w := &r.waiting[i]
	if !w.probed {
		w.since, w.probed = now, true
	}
	// Of other files, such as logs, no node has a copy.
	lasted = now - w.since
	if lasted < UnreadableAfter || !strings.HasSuffix(p.path, tableSuffix) {
		return lasted, false
	}
	r.waiting = slices.Delete(r.waiting, i, i+1)
	// Without room the place is found again, and is lost again after as long.
	if len(r.lost) < readSpotsMax {
		r.lost = append(r.lost, p)
	}
	return lasted, true
}

// refusals are the reads that the disk of a store refused.
type refusals struct {
	mu    sync.Mutex // guards all below
	spots readSpots
	// news is set since the last probe if a read was refused at a place that is not lost.
	news bool
	// next is the table that the next wide probe begins with.
	next int
}

// note records a read that the disk refused.
func (r *refusals) note(p readSpot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.news = r.spots.note(p) || r.news
}

// take returns the places to probe, and whether reads were refused since the last call.
func (r *refusals) take() (spots []readSpot, news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.spots.waiting {
		spots = append(spots, w.readSpot)
	}
	news, r.news = r.news, false
	return spots, news
}

// ProbeReads reports whether the disk has refused reads since the last call, or refuses them now: it reads the places again that were
// refused, and with wide also blocks of some tables. A store whose disk never refused a read reads nothing. now is the time since any
// moment, the same in all calls. A call may take as long as the disk needs.
func (s *Store) ProbeReads(now time.Duration, wide bool) (refused bool) {
	spots, refused := s.refusals.take()
	for _, p := range spots {
		err := s.probe(p)
		s.refusals.mu.Lock()
		lasted, lost := s.refusals.spots.probed(now, p, err != nil)
		s.refusals.mu.Unlock()
		if lost {
			s.metrics.unreadable.Inc()
			s.metDamage(p.fault(lasted))
		}
		refused = refused || err != nil
	}
	if wide {
		for _, p := range s.someTables() {
			refused = s.probe(p) != nil || refused
		}
	}
	// Refusals during the probe, of its own reads or of others, belong to this call.
	_, news := s.refusals.take()
	return refused || news
}

// probe reads a place, and returns an error if the disk refuses that. A file that is gone, or is shorter, is none.
func (s *Store) probe(p readSpot) error {
	f, err := s.fs.Open(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	b := make([]byte, min(max(p.size, 1), probeBytesMax))
	_, err = f.ReadAt(b, max(p.at, 0))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// someTables returns blocks of probeTables tables, in turn of all.
func (s *Store) someTables() (spots []readSpot) {
	levels, err := s.db.SSTables()
	if err != nil {
		return nil // the database is closed, or says so elsewhere
	}
	tables := slices.Concat(levels...)
	// The order of the levels is not that of the turns.
	slices.SortFunc(tables, func(a, b pebble.SSTableInfo) int { return cmp.Compare(a.BackingSSTNum, b.BackingSSTNum) })
	s.refusals.mu.Lock()
	first := s.refusals.next
	s.refusals.next += probeTables
	s.refusals.mu.Unlock()
	for i := range min(probeTables, len(tables)) {
		t := tables[(first+i)%len(tables)]
		spots = append(spots, readSpot{s.fs.PathJoin(s.dataDir(), t.BackingSSTNum.String()+tableSuffix), 0, probeSize})
	}
	return spots
}

// UnreadPlaces returns the number of places that the disk refused to read, and has not let read since.
func (s *Store) UnreadPlaces() int {
	s.refusals.mu.Lock()
	defer s.refusals.mu.Unlock()
	return len(s.refusals.spots.waiting) + len(s.refusals.spots.lost)
}
