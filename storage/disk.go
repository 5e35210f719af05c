package storage

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// DiskFullMargin is how far below Config.RefuseFree the free share of the disk may fall before a batch with appends is
// refused, too: what was accepted before still has to be written.
const DiskFullMargin = 0.01

// Usage is what a store takes on its disk, in bytes.
type Usage struct {
	// Used is what the store's files take, Free and Total what the disk has.
	Used, Free, Total uint64
}

// disk is the last answer about the disk; guarded by Store.diskMu.
type disk struct {
	asked       time.Time
	free, total uint64
}

// Usage tells how full the disk is.
func (s *Store) Usage() (Usage, error) {
	d, err := s.diskNow()
	if err != nil {
		return Usage{}, err
	}
	return Usage{Used: s.db.Metrics().DiskSpaceUsage(), Free: d.free, Total: d.total}, nil
}

// Writable refuses with DiskFull when the disk has less free space than Config.RefuseFree. Reads and collection go on. A
// node asks it before it takes in work, and so never has to give up work that it took in: see Batch.Apply.
func (s *Store) Writable() error { return s.room("storage.Store.Writable", 0) }

// room refuses when the free share of the disk is smaller than Config.RefuseFree less a margin.
func (s *Store) room(op rhumb.Op, margin float64) error {
	d, err := s.diskNow()
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if want := s.cfg.RefuseFree - margin; d.total > 0 && float64(d.free) < want*float64(d.total) {
		return rhumb.Ef(op, rhumb.DiskFull, "%s: %d of %d bytes are free, writes need %.1f %%; make room or move ranges away", s.cfg.Dir, d.free, d.total, 100*want)
	}
	return nil
}

func (s *Store) diskNow() (disk, error) {
	s.diskMu.Lock()
	defer s.diskMu.Unlock()
	if s.disk.total > 0 && time.Since(s.disk.asked) < s.cfg.DiskFreeEvery {
		return s.disk, nil
	}
	free, total, err := s.cfg.DiskFree(s.cfg.Dir)
	if err != nil {
		return disk{}, ioError("storage.Store.Usage", s.cfg.Dir, err)
	}
	s.disk = disk{time.Now(), free, total}
	return s.disk, nil
}
