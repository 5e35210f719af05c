package storage

import (
	"errors"
	"io/fs"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
)

// DiskFullMargin is how far below Config.RefuseFree the free share of the disk may fall before a batch with appends is
// refused, too: what was accepted before still has to be written.
const DiskFullMargin = 0.01

// The RESERVE file takes room on the disk that is given back when the disk is full. What is not an append, above all the
// votes and the log of the metadata group, then still has room, and so has the next start.
const (
	reserveName = "RESERVE"
	// reserveBytesMost bounds the reserve, and reserveShare is its share of a small disk. A start has to flush what the log
	// holds, which is about a memtable.
	reserveBytesMost = 64 << 20
	reserveShare     = 0.05
	// memTableShare is the size of a memtable on a small disk, as a share of the disk: logs that are kept for their blocks,
	// and tables that are being flushed, take several times as much. memTableLeast bounds it.
	memTableShare = 1.0 / 64
	memTableLeast = 4 << 20
)

// Usage is what a store takes on its disk, in bytes.
type Usage struct {
	// Used is what the store's files take, Free and Total what the disk has.
	Used, Free, Total uint64
	// State says what the disk still takes, and FillRate how fast it fills, in bytes a second.
	State    DiskState
	FillRate float64
	// Reserve is what the store holds back for the metadata group; it is not part of Free.
	Reserve uint64
}

// disk is the last answer about the disk; guarded by Store.diskMu.
type disk struct {
	asked       time.Time
	free, total uint64
	fill        fill
	reserve     uint64 // bytes of the RESERVE file
	reserved    bool   // making it was tried since there was room
}

// Usage tells how full the disk is.
func (s *Store) Usage() (Usage, error) {
	d, err := s.diskNow()
	if err != nil {
		return Usage{}, err
	}
	return Usage{
		Used: s.db.Metrics().DiskSpaceUsage(), Free: d.free, Total: d.total,
		State: d.fill.state, FillRate: d.fill.rate, Reserve: d.reserve,
	}, nil
}

// DiskState says what the disk still takes. A disk that does not answer keeps its last state.
func (s *Store) DiskState() DiskState {
	_, _ = s.diskNow()
	s.diskMu.Lock()
	defer s.diskMu.Unlock()
	return s.disk.fill.state
}

// Writable refuses with DiskFull when the disk has less free space than Config.RefuseFree, or than it is about to fill:
// the faster, the sooner. Reads and collection go on. A node asks it before it takes in work, and so never has to give up
// work that it took in: see Batch.Apply.
func (s *Store) Writable() error { return s.checkRoom("storage.Store.Writable", DiskRefusing) }

// checkRoom refuses when the disk is in a state or in a worse one.
func (s *Store) checkRoom(op rhumb.Op, state DiskState) error {
	d, err := s.diskNow()
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if d.fill.state < state {
		return nil
	}
	return rhumb.Ef(op, rhumb.DiskFull, "%s is %s: %d of %d bytes are free, writes need %.0f; make room or move ranges away",
		s.cfg.Dir, d.fill.state, d.free, d.total, d.fill.refuseBelow(d.total))
}

func (s *Store) diskNow() (disk, error) {
	s.diskMu.Lock()
	defer s.diskMu.Unlock()
	d := &s.disk
	if d.total > 0 && time.Since(d.asked) < d.fill.nextQuery(s.cfg.DiskFreeEvery) {
		return *d, nil
	}
	if err := s.askDisk(); err != nil {
		return disk{}, err
	}
	switch state := d.fill.state; {
	case state == DiskFull && d.reserve > 0:
		s.releaseReserve()
		if err := s.askDisk(); err != nil {
			return disk{}, err
		}
	case state == DiskHealthy && d.reserve == 0 && !d.reserved:
		d.reserved = s.askReserve()
	case state != DiskHealthy:
		d.reserved = false
	}
	return *d, nil
}

// askDisk asks how full the disk is; diskMu is held.
func (s *Store) askDisk() error {
	free, total, err := s.cfg.DiskFree(s.cfg.Dir)
	if err != nil {
		return ioError("storage.Store.Usage", s.cfg.Dir, err)
	}
	d := &s.disk
	d.asked, d.free, d.total = time.Now(), free, total
	d.fill.refuseShare, d.fill.fullShare = s.cfg.RefuseFree, max(0, s.cfg.RefuseFree-DiskFullMargin)
	d.fill.observe(time.Since(s.fs.epoch), free, total, s.unflushedBytes())
	s.metrics.diskState.Set(float64(d.fill.state))
	s.metrics.fillRate.Set(d.fill.rate)
	return nil
}

// unflushedBytes returns the bytes in memory that have yet to be written to tables.
func (s *Store) unflushedBytes() uint64 {
	// Close holds the lock while it waits for the sealer, which comes here: waiting for the lock would never end.
	if !s.closeMu.TryRLock() {
		return 0
	}
	defer s.closeMu.RUnlock()
	if s.closed || s.db == nil {
		return 0
	}
	return s.db.Metrics().MemTable.Size
}

// fitMemTable lowers the default size of memtables on a small disk.
func (s *Store) fitMemTable() {
	if !s.cfg.memTableDefaulted {
		return
	}
	if _, total, err := s.cfg.DiskFree(s.cfg.Dir); err == nil && total > 0 {
		s.cfg.MemTableBytes = min(s.cfg.MemTableBytes, max(memTableLeast, int64(memTableShare*float64(total))))
	}
}

// reserveSize returns how much room the reserve may take and leave the disk healthy; diskMu is held.
func (s *Store) reserveSize() uint64 {
	d := &s.disk
	size := min(reserveBytesMost, uint64(reserveShare*float64(d.total)))
	if d.fill.state != DiskHealthy || float64(d.free) < recoverShare*d.fill.refuseBelow(d.total)+2*float64(size) {
		return 0
	}
	return size
}

// askReserve has the reserve made when there is room for it, and reports whether it was asked for: once, since a file system
// that cannot keep room for a file never will. diskMu is held.
func (s *Store) askReserve() bool {
	if s.sealer == nil || s.reserveSize() == 0 {
		return false
	}
	select {
	case s.sealer.room <- struct{}{}:
	default:
	}
	return true
}

// makeReserve takes room for the reserve. A disk may take long over that, so diskMu is not held meanwhile: who asks how the disk
// stands does not wait.
func (s *Store) makeReserve() {
	s.diskMu.Lock()
	size := s.reserveSize()
	if s.disk.reserve > 0 {
		size = 0
	}
	s.diskMu.Unlock()
	if size == 0 {
		return
	}
	f, err := s.fs.Create(s.fs.PathJoin(s.cfg.Dir, reserveName), vfs.WriteCategoryUnspecified)
	if err == nil {
		err = errors.Join(f.Preallocate(0, int64(size)), f.Sync(), f.Close())
	}
	if err != nil {
		s.metrics.reserveFailures.Inc()
		s.log.Warn("no room was reserved for the metadata group", "store", s.cfg.Dir, "bytes", size, "err", err)
		return
	}
	s.diskMu.Lock()
	defer s.diskMu.Unlock()
	d := &s.disk
	d.reserve = size
	d.free -= min(d.free, size)
	d.fill.free = d.free // what the store takes itself does not count as filling
	s.metrics.reserve.Set(float64(size))
}

// releaseReserve gives the room of the reserve back; diskMu is held.
func (s *Store) releaseReserve() {
	err := s.fs.Remove(s.fs.PathJoin(s.cfg.Dir, reserveName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.metrics.reserveFailures.Inc()
		s.log.Warn("the reserve was not released", "store", s.cfg.Dir, "err", err)
		return
	}
	s.log.Error("the disk is full: the reserve is released for the metadata group", "store", s.cfg.Dir, "bytes", s.disk.reserve)
	s.metrics.reserveReleases.Inc()
	s.metrics.reserve.Set(0)
	s.disk.reserve, s.disk.reserved = 0, false
}

// prepareDisk makes sure that a store on a full disk can start: what an earlier start reserved is given back first. The
// reserveLoop is made again once the disk is found healthy.
func (s *Store) prepareDisk() error {
	path := s.fs.PathJoin(s.cfg.Dir, reserveName)
	if err := s.fs.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ioError("storage.Open", path, err)
	}
	return nil
}
