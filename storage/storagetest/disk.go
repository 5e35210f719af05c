package storagetest

import (
	"io"
	"path"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb/storage"
)

// Disk is a file system in memory on which a simulator decides when writes to log files become durable: a sync of a log
// file returns at once, and Crash takes back as much of the newest log file as the simulator chooses. Other files are
// durable when they were synced.
type Disk struct {
	vfs.FS
	mem *vfs.MemFS

	mu      sync.Mutex // guards the three below
	log     string     // the newest log file
	written int64      // its length
	synced  bool       // since Log was called
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

// Crash returns what a loss of power leaves, with so many bytes of the newest log file. The engine goes on with the disk as
// it was, until it is closed.
func (d *Disk) Crash(keep int64) (*Disk, error) {
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
			b = b[:min(keep, int64(len(b)))]
		}
		if err := writeSynced(after.mem, name, b); err != nil {
			return nil, err
		}
	}
	return after, nil
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

const logExt = ".log"

// Create makes a file, and takes over the decision about its durability if it is a log file.
func (d *Disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	return d.watch(name, f, err)
}

// ReuseForWrite is Create for a log file that is used again.
func (d *Disk) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.FS.Remove(oldname); err != nil {
		return nil, err
	}
	return d.Create(newname, c)
}

func (d *Disk) watch(name string, f vfs.File, err error) (vfs.File, error) {
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

// Lock is that of the file system below, which belongs to one engine at a time.
func (d *Disk) Lock(name string) (io.Closer, error) { return d.FS.Lock(name) }

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
