package snapshot

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// The names beside root and the segments in the directory of an image.
const (
	lockName       = "lock"
	rootNew        = "root.new"
	quarantineName = "quarantine"
)

// Recovery tells what Open found.
type Recovery struct {
	// Fresh says that the image was made anew: there was none, or none that could be used.
	Fresh bool
	// Aborted is the number of records of a commit that was not finished.
	Aborted uint64
	// Quarantined lists the files that failed a check, and Dropped the tables that were taken out for it: make and load
	// them again.
	Quarantined []Quarantined
	Dropped     []string
}

// Quarantined is a file that failed a check.
type Quarantined struct {
	// File is where it lies now.
	File string
	// Err names the file as it was, the offset and the fault.
	Err error
}

// Open takes the image in a directory, or makes one, and owns it until Close. It aborts what a dead publisher left
// unfinished and checks everything it goes on with; what fails is moved to the directory quarantine, and Recovery tells
// which tables are gone. It fails with kind Unavailable when another process publishes there, with DiskFull when the file
// system is full, and with PermissionDenied.
func Open(cfg Config) (*Publisher, error) {
	const op rhumb.Op = "snapshot.Open"
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Publisher{cfg: cfg.filled(), tables: map[string]*Table{}}
	p.files = files{cfg: &p.cfg, root: &p.root}
	if err := p.clock.init(); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	if err := p.ownDirectory(); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	err := p.recover()
	if err == nil {
		p.metrics, err = newMetrics(p)
	}
	if err != nil {
		p.abandon()
		return nil, rhumb.Wrap(op, err)
	}
	return p, nil
}

// abandon lets go of everything after a failed Open.
func (p *Publisher) abandon() {
	for _, t := range p.tables {
		for _, s := range t.shards {
			s.seg.file.close()
		}
	}
	if p.root.file != nil {
		p.root.file.store32(format.RootState, format.StateStopping)
		p.root.file.close()
	}
	_ = releaseOwner(p.lock)
}

func (c *clock) init() error {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return rhumb.WrapKind("snapshot.clock", rhumb.Other, err)
	}
	c.start, c.mono = time.Now(), uint64(ts.Nano())
	return nil
}

// ownDirectory makes the directory and takes its lock, so that there is one publisher.
func (p *Publisher) ownDirectory() error {
	const op rhumb.Op = "snapshot.lock"
	mode := p.cfg.dirMode()
	if err := os.MkdirAll(p.cfg.Dir, os.FileMode(mode)); err != nil {
		return fileError(op, p.cfg.Dir, unwrapErrno(err))
	}
	if err := unix.Chmod(p.cfg.Dir, mode); err != nil {
		return fileError(op, p.cfg.Dir, err)
	}
	path := filepath.Join(p.cfg.Dir, lockName)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fileError(op, path, err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = unix.Close(fd)
		return rhumb.Ef(op, rhumb.Unavailable, "%s is locked: another process publishes there; end it first", path)
	}
	p.lock = fd
	return nil
}

func releaseOwner(fd int) error {
	_ = unix.Flock(fd, unix.LOCK_UN) // a child that is being started may share the descriptor for a moment
	if err := unix.Close(fd); err != nil {
		return rhumb.WrapKind("snapshot.Close", rhumb.Other, err)
	}
	return nil
}

func unwrapErrno(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// recover takes the image that lies in the directory, or makes one.
func (p *Publisher) recover() error {
	found, err := p.openRoot()
	if err == nil && found {
		err = p.recoverTables()
	}
	if k := rhumb.KindOf(err); k == rhumb.Corrupt || k == rhumb.Incompatible {
		if err := p.quarantineImage(err); err != nil {
			return err
		}
		found, err = false, nil
	}
	if err != nil {
		return err
	}
	p.removeOrphans()
	if !found {
		p.recovery.Fresh = true
		if err := p.createImage(); err != nil {
			return err
		}
	}
	p.goLive()
	return nil
}

// goLive says in the root that this process publishes.
func (p *Publisher) goLive() {
	r := p.root.file
	r.store64(format.RootLife, r.load64(format.RootLife)+1)
	r.store32(format.RootPID, uint32(os.Getpid()))
	p.beat()
	r.store32(format.RootState, format.StateLive)
	if seq := r.load64(format.RootTableSeq); seq&1 != 0 {
		r.store64(format.RootTableSeq, seq+1)
	}
	p.stats.version.Store(p.committed)
	for _, t := range p.tables {
		p.stats.live.Add(t.Records())
	}
	p.countLarge()
}

// createImage makes root with the positions under another name and renames it, so that no reader sees half of it.
func (p *Publisher) createImage() error {
	path := filepath.Join(p.cfg.Dir, rootNew)
	if err := unix.Unlink(path); err != nil && err != unix.ENOENT {
		return fileError("snapshot.create", path, err)
	}
	file, err := createMapping(path, format.RootSize, p.cfg.fileMode(), false)
	if err != nil {
		return err
	}
	p.root = root{file: file, head: identity(p.cfg.Identity)}
	format.EncodeRoot(file.mem, p.root.head)
	p.committed, p.closed = 0, 0
	spec := TableSpec{Name: format.PositionsTable, KeyKind: format.KeyUint64, Shards: 1, Summed: true}
	t, err := p.newTable("snapshot.create", spec.entry(), 1)
	if err != nil {
		return err
	}
	p.positions, t.listed = t, true
	t.shards[0].seg.file.unlock()
	p.root.change(func() { p.root.putTable(t) })
	return file.rename(filepath.Join(p.cfg.Dir, format.RootName))
}

// identity gives the identity of a new image: random, unless a test gives one.
func identity(given *format.Root) format.Root {
	if given != nil {
		return *given
	}
	var b [32]byte
	_, _ = rand.Read(b[:]) // it never fails
	return format.Root{
		Minor: format.Minor, Image: rhumb.UUID(b[:16]), Seed0: le.Uint64(b[16:]), Seed1: le.Uint64(b[24:]) | 1,
	}
}
