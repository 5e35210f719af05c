package snapshot

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/segment"
	"github.com/rhumbdb/rhumb/snapshot/shm"
)

// Names of the other files in the directory of an image.
const (
	lockName       = "lock"
	rootNew        = "root.new"
	quarantineName = "quarantine"
)

// Recovery reports what Open found and repaired.
type Recovery struct {
	// Fresh reports whether Open created a new image, because there was none or it could not be
	// used.
	Fresh bool
	// Aborted is the number of records of a commit that was not finished.
	Aborted uint64
	// Quarantined lists the files that failed a check, and Dropped the tables that were removed
	// because of them: create and load these tables again.
	Quarantined []Quarantined
	Dropped     []string
}

// Quarantined is a file that failed a check.
type Quarantined struct {
	// File is where the file is now; empty if it could not be moved.
	File string
	// Err names the file as it was, the offset and the fault.
	Err error
}

// Open opens the image in a directory, or creates one, and owns it until Close. It aborts
// unfinished commits of a dead publisher and checks everything that it keeps. A file that fails a
// check is moved to the directory quarantine, and Recovery lists the tables that are gone. Open
// fails with kind Unavailable if another process publishes there, with DiskFull if the file system
// is full, and with PermissionDenied.
func Open(cfg Config) (*Publisher, error) {
	const op rhumb.Op = "snapshot.Open"
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Publisher{cfg: cfg.withDefaults()}
	p.tables.byName = map[string]*Table{}
	p.files = files{cfg: &p.cfg, root: &p.root}
	p.roller.Builder = &segment.Builder{Files: &p.files, AppendRatio: p.cfg.AppendRatio}
	if err := p.clock.startClock(); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	if err := p.lockDirectory(); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	// Recovery runs with the directory locked, so no other publisher changes the image meanwhile.
	err := (&opening{p}).openImage()
	if err == nil {
		p.metrics, err = newMetrics(p)
	}
	if err != nil {
		p.abandonOpen()
		return nil, rhumb.Wrap(op, err)
	}
	return p, nil
}

// abandonOpen releases everything after a failed Open.
func (p *Publisher) abandonOpen() {
	for t := range p.tables.all() {
		for _, s := range t.shards {
			s.seg.File.Close()
		}
	}
	if p.root.file != nil {
		// Readers see at once that nobody publishes, instead of waiting for the heartbeat to age.
		p.root.file.Store32(format.RootState, format.StateStopping)
		p.root.file.Close()
	}
	_ = releaseLock(p.lock)
}

// startClock notes both clocks. CLOCK_MONOTONIC goes into the heartbeat because all processes of a
// machine share it; Go's own monotonic reading cannot be compared between processes.
func (c *clock) startClock() error {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return rhumb.WrapKind("snapshot.clock", rhumb.Other, err)
	}
	c.start, c.mono = time.Now(), uint64(ts.Nano())
	return nil
}

// lockDirectory creates the directory and locks it, so that there is one publisher. The lock is on
// a file of its own: root is replaced by a rename, and a lock on root would stay with the old file.
func (p *Publisher) lockDirectory() error {
	const op rhumb.Op = "snapshot.lock"
	mode := p.cfg.dirMode()
	if err := os.MkdirAll(p.cfg.Dir, os.FileMode(mode)); err != nil {
		var errno unix.Errno
		if errors.As(err, &errno) {
			err = errno // WrapError derives the kind from the errno
		}
		return shm.WrapError(op, p.cfg.Dir, err)
	}
	if err := unix.Chmod(p.cfg.Dir, mode); err != nil {
		return shm.WrapError(op, p.cfg.Dir, err)
	}
	if err := p.setGroup(mode); err != nil {
		return err
	}
	path := filepath.Join(p.cfg.Dir, lockName)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return shm.WrapError(op, path, err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = unix.Close(fd)
		return rhumb.Ef(op, rhumb.Unavailable, "%s is locked: another process publishes there; end it first", path)
	}
	p.lock = fd
	return nil
}

// setGroup makes the configured group that of the directory, of the files in it and of all files to
// come.
func (p *Publisher) setGroup(mode uint32) error {
	const op rhumb.Op = "snapshot.setGroup"
	if p.cfg.Group == 0 {
		return nil
	}
	// Files of an earlier life may have another group.
	files, err := os.ReadDir(p.cfg.Dir)
	if err != nil {
		return shm.WrapError(op, p.cfg.Dir, err)
	}
	paths := []string{p.cfg.Dir}
	for _, f := range files {
		paths = append(paths, filepath.Join(p.cfg.Dir, f.Name()))
	}
	for _, path := range paths {
		if err := unix.Lchown(path, -1, p.cfg.Group); err != nil {
			return rhumb.Ef(op, rhumb.PermissionDenied, "%s cannot get the group %d of --snapshot-group: %v; make the user of the node a member of the group", path, p.cfg.Group, err)
		}
	}
	// With the bit S_ISGID, new files inherit the group of the directory. A change of the owner clears
	// the bit, so it is set last.
	if err := unix.Chmod(p.cfg.Dir, mode|unix.S_ISGID); err != nil {
		return shm.WrapError(op, p.cfg.Dir, err)
	}
	return nil
}

// releaseLock unlocks the directory. It unlocks explicitly: between fork and exec, a child process
// shares the descriptor, and closing the descriptor here would leave the lock held until the exec.
func releaseLock(fd int) error {
	_ = unix.Flock(fd, unix.LOCK_UN)
	if err := unix.Close(fd); err != nil {
		return rhumb.WrapKind("snapshot.Close", rhumb.Other, err)
	}
	return nil
}

// opening is a publisher while its image is being opened. Its methods recover the image of the
// previous publisher.
type opening struct{ *Publisher }

// openImage opens the image that is in the directory, or creates one. If the root cannot be used,
// the whole image is given up: its segments are useless without the identity and the hash seeds in
// the root.
func (o *opening) openImage() error {
	found, err := o.openRoot()
	if err == nil && found {
		err = o.recoverTables()
	}
	if k := rhumb.KindOf(err); k == rhumb.Corrupt || k == rhumb.Incompatible {
		if err := o.quarantineImage(err); err != nil {
			return err
		}
		found, err = false, nil
	}
	if err != nil {
		return err
	}
	// Orphans go before a new image is created: their pages count in the same file system.
	o.removeOrphans()
	if !found {
		o.recovery.Fresh = true
		if err := o.createImage(); err != nil {
			return err
		}
	}
	o.goLive()
	return nil
}

// goLive stores in the root that this process publishes. If the previous publisher died in the
// middle of a change, the sequence word becomes even only here, after all entries were checked.
// Readers wait until then.
func (o *opening) goLive() {
	r := o.root.file
	r.Store64(format.RootLife, r.Load64(format.RootLife)+1)
	r.Store32(format.RootPID, uint32(os.Getpid()))
	o.storeHeartbeat()
	// The heartbeat precedes the state: a reader that sees a live publisher must not find an old
	// heartbeat.
	r.Store32(format.RootState, format.StateLive)
	if seq := r.Load64(format.RootTableSeq); seq&1 != 0 {
		r.Store64(format.RootTableSeq, seq+1)
	}
	o.stats.version.Store(o.committed)
	for t := range o.tables.all() {
		o.stats.live.Add(t.Records())
	}
	o.countLargeShards()
}

// createImage writes root, with the table of positions, under another name and renames it, so that
// no reader sees an incomplete root.
func (o *opening) createImage() error {
	path := filepath.Join(o.cfg.Dir, rootNew)
	if err := unix.Unlink(path); err != nil && err != unix.ENOENT {
		return shm.WrapError("snapshot.create", path, err)
	}
	file, err := shm.Create(path, format.RootSize, o.cfg.fileMode(), false)
	if err != nil {
		return err
	}
	o.root = root{file: file, head: newIdentity(o.cfg.Identity)}
	format.EncodeRoot(file.Mem, o.root.head)
	o.committed, o.closed = 0, 0
	// Positions are summed: a driver resumes from them after a restart, and a wrong position would
	// skip log entries.
	spec := TableSpec{Name: format.PositionsTable, KeyKind: format.KeyUint64, Shards: 1, Summed: true}
	t, err := o.createTable("snapshot.create", spec.rootEntry(), 1)
	if err != nil {
		return err
	}
	o.tables.positions, t.listed = t, true
	t.shards[0].seg.File.Unlock()
	o.root.changeTables(func() { o.root.putTable(t) })
	return file.Rename(filepath.Join(o.cfg.Dir, format.RootName))
}

// newIdentity returns the identity of a new image: random, unless a test sets one.
func newIdentity(given *format.Root) format.Root {
	if given != nil {
		return *given
	}
	var b [32]byte
	_, _ = rand.Read(b[:]) // it never fails
	le := binary.LittleEndian
	return format.Root{
		Minor: format.Minor, Image: rhumb.UUID(b[:16]), Seed0: le.Uint64(b[16:]), Seed1: le.Uint64(b[24:]) | 1,
	}
}
