package storagetest

import (
	"encoding/binary"
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb/storage"
)

// Disk is a file system in memory on which a simulator decides when writes to log files become durable: a sync of a log
// file returns at once, and Crash takes back as much of the newest log file as the simulator chooses. It also chooses what
// the SYNCED file says: a store makes that file durable by the real clock. Other files are durable when they were synced.
type Disk struct {
	vfs.FS
	mem *vfs.MemFS

	mu      sync.Mutex // guards all below
	log     string     // the newest log file
	written int64      // its length
	synced  bool       // since Log was called
	// lengths is the SYNCED file as it was opened, slots what was written to it since.
	lengths []byte
	slots   []slotWrite
}

// slotWrite is a write of a slot of the SYNCED file: that so many bytes of a log file are synced.
type slotWrite struct {
	at     int64
	bytes  []byte
	number uint64
	length int64
}

// Remains says what a loss of power leaves of a disk, and what becomes of that before the next start.
type Remains struct {
	// Keep is the length in bytes of what stays of the newest log file.
	Keep int64
	// Known is the greatest length of that file that the SYNCED file may name. With Known below Keep it lags, as after a loss of
	// power; with Keep below Known the log has lost bytes that were synced.
	Known int64
	// Flipped says that bit Flip of the newest log file, counted from its start, is flipped.
	Flipped bool
	Flip    int64
}

// NewDisk makes an empty disk.
func NewDisk() *Disk { return newDisk(vfs.NewCrashableMem()) }

func newDisk(mem *vfs.MemFS) *Disk { return &Disk{FS: mem, mem: mem} }

// OpenEngine opens the engine on the disk. Compaction runs as it pleases: nothing that an engine answers depends on it.
func (d *Disk) OpenEngine(cfg storage.Config) (*storage.Engine, error) {
	cfg.FS = d
	return storage.OpenEngine([]string{Dir}, cfg)
}

// Log returns the name of the newest log file, its length, and whether a sync was made since the last call. What the engine
// has written before a sync is all there; what it has written since may be.
func (d *Disk) Log() (name string, length int64, synced bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	synced, d.synced = d.synced, false
	return d.log, d.written, synced
}

// Crash returns what a loss of power leaves. The engine goes on with the disk as it was, until it is closed.
func (d *Disk) Crash(r Remains) (*Disk, error) {
	newest, _, _ := d.Log()
	after := newDisk(d.mem.CrashClone(vfs.CrashCloneCfg{}))
	data := path.Join(Dir, "data")
	names, err := after.mem.List(data)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if path.Ext(name) != logExt {
			continue
		}
		name = path.Join(data, name)
		b, err := ReadFile(d.mem, name)
		if err != nil {
			continue // deleted since the clone: nobody needs it
		}
		if name == newest {
			b = b[:min(r.Keep, int64(len(b)))]
			if at := r.Flip / 8; r.Flipped && at < int64(len(b)) {
				b[at] ^= 1 << (r.Flip % 8)
			}
		}
		if err := writeSynced(after.mem, name, b); err != nil {
			return nil, err
		}
	}
	if b := d.syncedFile(newest, r.Known); b != nil {
		if err := writeSynced(after.mem, path.Join(Dir, syncedFileName), b); err != nil {
			return nil, err
		}
	}
	return after, errors.Join(syncDir(after.mem, data), syncDir(after.mem, Dir))
}

func syncDir(fs vfs.FS, name string) error {
	dir, err := fs.OpenDir(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Copy returns a copy of a disk that no engine has open.
func (d *Disk) Copy() *Disk { return newDisk(d.mem.CrashClone(vfs.CrashCloneCfg{})) }

// syncedFile returns the newest content of the SYNCED file that names at most so many bytes of the newest log file; nil when
// it was not written.
func (d *Disk) syncedFile(newest string, known int64) []byte {
	number, err := strconv.ParseUint(strings.TrimSuffix(path.Base(newest), logExt), 10, 64)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil || d.lengths == nil {
		return nil
	}
	b := slices.Clone(d.lengths)
	for _, w := range d.slots {
		if w.number < number || w.number == number && w.length <= known {
			copy(b[w.at:], w.bytes)
		}
	}
	return b
}

func writeSynced(fs vfs.FS, name string, b []byte) error {
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

const (
	logExt         = ".log"
	syncedFileName = "SYNCED"
)

// Create makes a file, and takes over the decision about its durability if it is a log file.
func (d *Disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	return d.watchLog(name, f, err)
}

// ReuseForWrite is Create for a log file that is used again.
func (d *Disk) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.FS.Remove(oldname); err != nil {
		return nil, err
	}
	return d.Create(newname, c)
}

// OpenReadWrite is how a store opens its SYNCED file.
func (d *Disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, c, opts...)
	if err != nil || path.Base(name) != syncedFileName {
		return f, err
	}
	b, err := ReadFile(d.mem, name)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lengths, d.slots = b, nil
	return &diskSynced{f, d}, err
}

func (d *Disk) watchLog(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || path.Ext(name) != logExt {
		return f, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log, d.written = name, 0
	return &diskLog{File: f, d: d, name: name}, nil
}

// Unwrap returns the file system below.
func (d *Disk) Unwrap() vfs.FS { return d.mem }

// diskLog is a log file whose syncs succeed at once.
type diskLog struct {
	vfs.File
	d    *Disk
	name string
}

func (f *diskLog) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.log == f.name {
		f.d.written += int64(n)
	}
	return n, err
}

func (f *diskLog) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.synced = true
	return nil
}

func (f *diskLog) SyncData() error { return f.Sync() }

func (f *diskLog) SyncTo(int64) (bool, error) { return true, f.Sync() }

// diskSynced is the SYNCED file of a store.
type diskSynced struct {
	vfs.File
	d *Disk
}

// The offsets of the fields of a slot, as package storage has them.
const (
	slotNumber = 24
	slotLength = 32
	slotSize   = 48
)

func (f *diskSynced) WriteAt(p []byte, at int64) (int, error) {
	n, err := f.File.WriteAt(p, at)
	if err == nil && len(p) == slotSize {
		f.d.mu.Lock()
		defer f.d.mu.Unlock()
		f.d.slots = append(f.d.slots, slotWrite{
			at, slices.Clone(p), binary.BigEndian.Uint64(p[slotNumber:]), int64(binary.BigEndian.Uint64(p[slotLength:])),
		})
	}
	return n, err
}
