package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
)

// DiskFullMargin is how far below Config.RefuseFree the free share of the disk may fall before
// batches with appends are rejected too. The margin is the room for work that was accepted before
// Writable began to reject.
const DiskFullMargin = 0.01

// The RESERVE file occupies space that is released when the disk is full. Writes that are not
// appends, above all the votes and the log of the metadata group, then still have space, and so
// does the next start.
const (
	reserveName = "RESERVE"
	// reserveBytesMost bounds the reserve, and reserveShare is its share of a small disk. A start
	// has to flush the content of the log, which is about a memtable.
	reserveBytesMost = 64 << 20
	reserveShare     = 0.05
	// acceptedShare is the part of a released reserve that batches with appends may still use, as 1
	// of so many. A disk may fill at once, by another process, after the work was accepted that a
	// commit holds. All passes of a node wait for that commit.
	acceptedShare = 8
	// memTableShare is the size of a memtable on a small disk, as a share of the disk. Logs that
	// are kept for reuse and tables that are being flushed take several times as much: with larger
	// memtables a disk of 400 MiB went from a quarter free to full within one flush. memTableLeast
	// bounds the size.
	memTableShare = 1.0 / 64
	memTableLeast = 4 << 20
)

// Usage is the use of a store's disk, in bytes.
type Usage struct {
	// Used is the size of the store's files, Free and Total describe the disk.
	Used, Free, Total uint64
	// State is the state of the disk, and FillRate how fast it fills, in bytes per second.
	State    DiskState
	FillRate float64
	// Reserve is the space that the store holds back for the metadata group. It is not part of
	// Free.
	Reserve uint64
}

// disk is the last known state of the disk. Store.diskMu guards it.
type disk struct {
	asked       time.Time
	free, total uint64
	fill        fill
	reserve     uint64 // bytes of the RESERVE file
	accepted    uint64 // bytes that batches with appends may add although the disk is full
	reserved    bool   // the sealer was asked to create it since the disk was last healthy
}

// Usage returns how full the disk is.
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

// DiskState returns the state of the disk. If the disk does not answer, its last state is returned.
func (s *Store) DiskState() DiskState {
	_, _ = s.diskNow()
	s.diskMu.Lock()
	defer s.diskMu.Unlock()
	return s.disk.fill.state
}

// Writable returns DiskFull if the disk has less free space than Config.RefuseFree, or less than it
// is about to fill: the faster the disk fills, the earlier. Reads and collection continue. A node
// calls Writable before it accepts work, so that it never has to abandon work that it accepted; see
// Batch.Apply.
func (s *Store) Writable() error { return s.checkRoom("storage.Store.Writable", DiskRefusing) }

// checkRoom returns DiskFull if the disk is in the given state or in a worse one.
func (s *Store) checkRoom(op rhumb.Op, state DiskState) error {
	d, err := s.diskNow()
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if d.fill.state < state {
		return nil
	}
	return explainFull(op, s.cfg.Dir, &d, state)
}

// explainFull returns the error of a disk that is in the given state or in a worse one.
func explainFull(op rhumb.Op, dir string, d *disk, state DiskState) error {
	speed := ""
	if f := &d.fill; state == DiskRefusing && f.rate*fillAhead.Seconds() > f.refuseShare*float64(d.total) {
		// The limit of a fast disk may be far above what is free on a disk that looks empty.
		speed = fmt.Sprintf(" while the disk fills by up to %.0f bytes a second", f.rate)
	}
	return rhumb.Ef(op, rhumb.DiskFull, "the disk of %s is %s: %d of %d bytes are free, and writes are accepted again from %.0f%s; free space on the disk or enlarge it",
		dir, d.fill.state, d.free, d.total, d.fill.acceptFrom(d.total, state), speed)
}

// checkAccepted returns DiskFull if the disk is full and a batch with appends has more bytes than
// what is left of acceptedShare, from which it takes them otherwise.
func (s *Store) checkAccepted(op rhumb.Op, bytes uint64) error {
	err := s.checkRoom(op, DiskFull)
	if rhumb.KindOf(err) != rhumb.DiskFull {
		return err
	}
	s.diskMu.Lock()
	defer s.diskMu.Unlock()
	if s.disk.accepted < bytes {
		return err
	}
	s.disk.accepted -= bytes
	return nil
}

// diskNow returns the state of the disk. It asks the file system at most once per DiskFreeEvery,
// and more often if the disk would be full before that.
//
// Every write path calls diskNow, so it must not wait for the disk's data path. It therefore only
// removes the reserve here, which a full disk needs at once, and leaves its creation to the sealer.
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
		// The limit is evaluated again, because the reserve may be all that is missing.
		s.releaseReserve()
		if err := s.askDisk(); err != nil {
			return disk{}, err
		}
	case state == DiskHealthy && d.reserve == 0 && !d.reserved:
		// Healthy again: the next full disk needs a reserve. Allocating one may take long, so the
		// sealer does it.
		d.reserved = s.askReserve()
	case state != DiskHealthy:
		// Another attempt is made once the disk is healthy.
		d.reserved = false
	}
	return *d, nil
}

// askDisk asks the file system how full the disk is. diskMu is held.
func (s *Store) askDisk() error {
	free, total, err := s.cfg.DiskFree(s.cfg.Dir)
	if err != nil {
		return ioError("storage.Store.Usage", s.cfg.Dir, err)
	}
	d := &s.disk
	d.asked, d.free, d.total = time.Now(), free, total
	d.fill.refuseShare, d.fill.fullShare = s.cfg.RefuseFree, max(0, s.cfg.RefuseFree-DiskFullMargin)
	// The clock is monotonic: a step of the wall clock must not look like a fast disk.
	owed := uint64(0)
	if d.fill.owedMatters(free, total) {
		owed = s.unflushedBytes()
	}
	d.fill.observe(time.Since(s.fs.epoch), free, total, owed)
	s.metrics.diskState.Set(float64(d.fill.state))
	s.metrics.fillRate.Set(d.fill.rate)
	return nil
}

// unflushedBytes returns the bytes in memory that have yet to be written to tables.
func (s *Store) unflushedBytes() uint64 {
	// Close holds the lock while it waits for the sealer, and the sealer calls this function.
	// Waiting for the lock here would never end.
	if !s.closeMu.TryRLock() {
		return 0
	}
	defer s.closeMu.RUnlock()
	if s.closed || s.db == nil {
		return 0
	}
	return s.db.Metrics().MemTable.Size
}

// fitMemTable lowers the default size of memtables on a small disk. A configured size is kept.
func (s *Store) fitMemTable() {
	if !s.cfg.memTableDefaulted {
		return
	}
	if _, total, err := s.cfg.DiskFree(s.cfg.Dir); err == nil && total > 0 {
		s.cfg.MemTableBytes = min(s.cfg.MemTableBytes, max(memTableLeast, int64(memTableShare*float64(total))))
	}
}

// reserveSize returns the size of a reserve that leaves the disk healthy, or 0 if a reserve would
// not fit. diskMu is held.
func (s *Store) reserveSize() uint64 {
	d := &s.disk
	// Twice the size must be free beyond the limit. Otherwise the reserve itself would bring the
	// disk to the limit, be released, and be created again.
	size := min(reserveBytesMost, uint64(reserveShare*float64(d.total)))
	if d.fill.state != DiskHealthy || float64(d.free) < recoverShare*d.fill.refuseBelow(d.total)+2*float64(size) {
		return 0
	}
	return size
}

// askReserve asks the sealer to create the reserve if there is room for it, and reports whether it
// did. The caller does not ask again until the disk was nearly full: a file system that cannot
// preallocate never will. diskMu is held.
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

// makeReserve creates the reserve. A disk may take long to allocate it, so diskMu is not held
// meanwhile: callers that ask for the state of the disk do not wait.
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
	// The file is created without diskMu. Only the sealer calls makeReserve, so nobody else creates
	// it.
	f, err := s.fs.Create(s.fs.PathJoin(s.cfg.Dir, reserveName), vfs.WriteCategoryUnspecified)
	if err == nil {
		err = errors.Join(f.Preallocate(0, int64(size)), f.Sync(), f.Close())
	}
	if err != nil {
		s.metrics.reserveFailures.Inc()
		s.log.Warn("no disk space was reserved for the metadata group", "store", s.cfg.Dir, "bytes", size, "err", err)
		return
	}
	s.diskMu.Lock()
	defer s.diskMu.Unlock()
	d := &s.disk
	d.reserve = size
	d.free -= min(d.free, size)
	d.fill.free = d.free // the reserve must not count as the disk filling up
	s.metrics.reserve.Set(float64(size))
}

// releaseReserve deletes the reserve. diskMu is held.
func (s *Store) releaseReserve() {
	err := s.fs.Remove(s.fs.PathJoin(s.cfg.Dir, reserveName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.metrics.reserveFailures.Inc()
		s.log.Warn("the reserve could not be deleted", "store", s.cfg.Dir, "err", err)
		return
	}
	s.log.Error("the disk is full: its reserve was released for the metadata group", "store", s.cfg.Dir, "bytes", s.disk.reserve)
	s.metrics.reserveReleases.Inc()
	s.metrics.reserve.Set(0)
	s.disk.reserve, s.disk.reserved, s.disk.accepted = 0, false, s.disk.reserve/acceptedShare
}

// prepareDisk deletes the reserve of an earlier start, so that a store on a full disk can start:
// opening a database flushes what its logs hold. The reserve is created again once the disk is
// found healthy.
func (s *Store) prepareDisk() error {
	path := s.fs.PathJoin(s.cfg.Dir, reserveName)
	if err := s.fs.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ioError("storage.Open", path, err)
	}
	return nil
}
