package storagetest

import (
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb/storage"
)

// Disk is a file system in memory on which a simulator decides which writes to log files become
// durable. A sync of a log file returns at once, and Crash takes back as much of the newest log
// file as the simulator chooses. The simulator also chooses the content of the SYNCED file,
// because a store makes that file durable by the real clock. Other files are durable once they are synced.
//
// Only the newest log file may lose bytes: a store closes a log, with a sync, before a later one
// gets its first record.
//
// A log of the store's own (package nodelog) counts as one file, whose bytes are all that was written to its segments since it was opened, in
// the order of the writes.
type Disk struct {
	vfs.FS
	mem *vfs.MemFS

	mu      sync.Mutex // guards all below
	log     string     // the newest log file, or the directory of the store's own log
	written int64      // its length
	synced  bool       // whether a log was synced since the last call of Log
	// lengths is the SYNCED file as of its opening, and slots are the writes to it since.
	lengths []byte
	slots   []slotWrite
	// segments are the files of the store's own log as of its opening, and records are the writes to them since.
	segments map[string][]byte
	records  []recordWrite
	// firm is how many of the records, from the oldest on, have been synced.
	firm int
	// relied is how much of the store's own log had been synced when a manifest was synced last. Tables may rely on that
	// much and no more: a store that makes tables durable before their records loses these records in a crash, and its
	// next start finds the tables ahead of the log.
	relied int64
	// forgetful is set if syncs of the store's own log are answered and not counted.
	forgetful bool
}

// recordWrite is a write to the store's own log.
type recordWrite struct {
	segment string
	at      int64
	bytes   []byte
	from    int64 // bytes that were written before
	synced  bool  // whether the segment was synced after the write
}

// number returns the number of the record, or of the first one.
func (w *recordWrite) number() int64 { return int64(binary.BigEndian.Uint64(w.bytes[recordNumber:])) }

const diskLogBytes = 12 << 20

// slotWrite is a write of a slot of the SYNCED file, which records that length bytes of log file
// number are synced.
type slotWrite struct {
	at     int64
	bytes  []byte
	number uint64
	length int64
}

// Remains describes a disk after a power loss, and damage before the next start.
type Remains struct {
	// Keep is the length in bytes that remains of the newest log file.
	Keep int64
	// Known is the greatest length of that file that the SYNCED file may record. With Known below
	// Keep the SYNCED file is older than the log, as after a power loss. With Keep below Known the
	// log has lost bytes that were synced.
	Known int64
	// Flipped is set if bit Flip of the newest log file, counted from its start, is flipped.
	Flipped bool
	Flip    int64
}

// NewDisk returns an empty disk.
func NewDisk() *Disk { return newDisk(vfs.NewCrashableMem()) }

// newDisk returns a disk with the given content.
func newDisk(mem *vfs.MemFS) *Disk { return &Disk{FS: mem, mem: mem} }

// OpenEngine opens the engine on the disk. A store's own log is so large that a test hardly writes it over. Compactions run at any time. That does not make a
// simulation less deterministic, because no result of an engine depends on them.
func (d *Disk) OpenEngine(cfg storage.Config) (*storage.Engine, error) {
	cfg.FS, cfg.LogBytes = d, diskLogBytes
	return storage.OpenEngine([]string{Dir}, cfg)
}

// ForgetSyncs makes the disk answer syncs of the store's own log without counting on them. To the disk, the store
// then is one that syncs its log after its tables.
func (d *Disk) ForgetSyncs() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forgetful = true
}

// Log returns the name of the newest log file, its length, and whether a log was synced since the
// last call. Everything that the engine wrote before a sync is part of the length; writes that
// follow it may or may not be.
func (d *Disk) Log() (name string, length int64, synced bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	synced, d.synced = d.synced, false
	return d.log, d.written, synced
}

// Crash returns the disk after a power loss. The engine continues on the old disk until it is
// closed.
//
// Steps: clone the durable bytes, then replace the logs and the SYNCED file, whose durability the
// simulator decides. Older logs are copied whole, because a sync of theirs has been reported.
func (d *Disk) Crash(r Remains) (*Disk, error) {
	newest, _, _ := d.Log()
	// A power loss leaves all that was synced before the newest tables. Damage, which takes more than the SYNCED file
	// knows of, need not.
	if r.Keep >= r.Known {
		d.mu.Lock()
		r.Keep = max(r.Keep, d.relied)
		d.mu.Unlock()
	}
	// CrashClone with no unsynced data keeps exactly the synced bytes. Syncs of logs are not passed
	// on, so the clone has the logs empty.
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
			continue // deleted since the clone, so its content is in tables
		}
		// The cut comes before the flip: a bit beyond the cut is gone.
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
	if err := d.restoreSegments(after, r); err != nil {
		return nil, err
	}
	if b := d.syncedFile(newest, r.Known); b != nil {
		if err := writeSynced(after.mem, path.Join(Dir, syncedFileName), b); err != nil {
			return nil, err
		}
	}
	return after, errors.Join(syncDir(after.mem, data), syncDir(after.mem, Dir))
}

// restoreSegments writes the remains of the store's own log to another disk.
func (d *Disk) restoreSegments(after *Disk, r Remains) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if path.Ext(d.log) == logExt {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(d.segments)) {
		if _, err := after.mem.Stat(name); err != nil {
			continue // the log was set aside
		}
		// The content as of the opening is durable, because a log writes its loose records again before it opens.
		b := slices.Clone(d.segments[name])
		for _, w := range d.records {
			if w.segment != name || w.from >= r.Keep {
				continue
			}
			// The cut may be within this write.
			copy(b[w.at:], w.bytes[:min(int64(len(w.bytes)), r.Keep-w.from)])
			if at := r.Flip/8 - w.from; r.Flipped && at >= 0 && at < int64(len(w.bytes)) && r.Flip/8 < r.Keep {
				b[w.at+at] ^= 1 << (r.Flip % 8)
			}
		}
		if err := writeSynced(after.mem, name, b); err != nil {
			return err
		}
	}
	return syncDir(after.mem, d.log)
}

// syncDir syncs a directory, so that its entries are durable.
func syncDir(fs vfs.FS, name string) error {
	dir, err := fs.OpenDir(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Copy returns a copy of a disk that no engine has open.
func (d *Disk) Copy() *Disk { return newDisk(d.mem.CrashClone(vfs.CrashCloneCfg{})) }

// syncedFile returns the newest content of the SYNCED file that records at most known bytes of the
// newest log file, or nil if the file was never opened for writing.
func (d *Disk) syncedFile(newest string, known int64) []byte {
	number, err := strconv.ParseUint(strings.TrimSuffix(path.Base(newest), logExt), 10, 64)
	d.mu.Lock()
	defer d.mu.Unlock()
	if path.Ext(newest) != logExt {
		number, known, err = 0, d.lastRecord(known), nil
	}
	if err != nil || d.lengths == nil {
		return nil
	}
	// Before the first slot of this start is written, the file has the content of the start before.
	b := slices.Clone(d.lengths)
	// Slots are applied in the order of their writes. Those that record too much are left out, as
	// if the disk had not written them before the power loss.
	for _, w := range d.slots {
		if w.number < number || w.number == number && w.length <= known {
			copy(b[w.at:], w.bytes)
		}
	}
	return b
}

// lastRecord returns the number of the last record within the first bytes that were written to the store's own log: the simulator counts bytes,
// and the SYNCED file of such a store holds numbers of records. mu is held.
func (d *Disk) lastRecord(known int64) (number int64) {
	// Slots that were written before the first record are true.
	number = math.MaxInt64
	for i := range d.records {
		w := &d.records[i]
		if w.from+int64(len(w.bytes)) <= known {
			number = w.number()
		} else if i == 0 {
			number = w.number() - 1
		}
	}
	return number
}

// writeSynced writes a file and makes its content durable.
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
	segmentExt     = ".seg"
	firstSegment   = "000.seg"
	syncedFileName = "SYNCED"
	// recordNumber is the offset of the number in a record of the store's own log (docs/formats/nodelog.md).
	recordNumber = 32
)

// Create implements vfs.FS. The disk decides about the durability of log files.
func (d *Disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	if err == nil && strings.HasPrefix(path.Base(name), "MANIFEST") {
		return &diskManifest{f, d}, nil
	}
	return d.watchLog(name, f, err)
}

// ReuseForWrite implements vfs.FS. It creates a new file, so that a log holds only the bytes that
// were written since.
func (d *Disk) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.FS.Remove(oldname); err != nil {
		return nil, err
	}
	return d.Create(newname, c)
}

// OpenReadWrite implements vfs.FS. A store opens its SYNCED file with it.
func (d *Disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, c, opts...)
	isSegment := path.Ext(name) == segmentExt
	if err != nil || !isSegment && path.Base(name) != syncedFileName {
		return f, err
	}
	b, err := ReadFile(d.mem, name)
	if isSegment {
		return d.watchSegment(name, f, b), err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// The writes of an earlier engine on this disk are part of the content now.
	d.lengths, d.slots = b, nil
	return &diskSynced{f, d}, err
}

// watchLog wraps a file that was just created, if it is a log file.
func (d *Disk) watchLog(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || path.Ext(name) != logExt {
		return f, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log, d.written, d.relied, d.firm = name, 0, 0, 0
	return &diskLog{File: f, d: d, name: name}, nil
}

// watchSegment wraps a segment of the store's own log, whose content is b. Its writes are kept in their order, because a power loss takes the newest of
// them.
func (d *Disk) watchSegment(name string, f vfs.File, b []byte) vfs.File {
	d.mu.Lock()
	defer d.mu.Unlock()
	// A log opens its first segment first. Earlier writes are part of its content.
	if path.Base(name) == firstSegment {
		d.log, d.written, d.relied, d.firm, d.segments, d.records = path.Dir(name), 0, 0, 0, map[string][]byte{}, nil
	}
	d.segments[name] = b
	return &diskSegment{diskLog{File: f, d: d, name: name}}
}

// Unwrap returns the wrapped file system.
func (d *Disk) Unwrap() vfs.FS { return d.mem }

// diskLog is a log file whose syncs succeed at once.
type diskLog struct {
	vfs.File
	d    *Disk
	name string
}

// Write implements vfs.File.
func (f *diskLog) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	// Pebble may still write the trailer of a log when the next one exists.
	if f.d.log == f.name {
		f.d.written += int64(n)
	}
	return n, err
}

// Sync implements vfs.File. It does not sync the file: Crash decides which bytes are durable.
func (f *diskLog) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.synced = true
	return nil
}

// SyncData implements vfs.File.
func (f *diskLog) SyncData() error { return f.Sync() }

// SyncTo implements vfs.File.
func (f *diskLog) SyncTo(int64) (bool, error) { return true, f.Sync() }

// diskManifest is a manifest of the database. Its syncs make tables durable.
type diskManifest struct {
	vfs.File
	d *Disk
}

// Sync implements vfs.File.
func (f *diskManifest) Sync() error {
	f.d.mu.Lock()
	// Records that are written or synced from here on come too late for these tables.
	if path.Ext(f.d.log) != logExt {
		f.d.relied = f.d.firmBytes()
	}
	f.d.mu.Unlock()
	return f.File.Sync()
}

// SyncData implements vfs.File.
func (f *diskManifest) SyncData() error { return f.Sync() }

// diskSegment is a segment of the store's own log.
type diskSegment struct{ diskLog }

// WriteAt implements vfs.File.
func (f *diskSegment) WriteAt(p []byte, at int64) (int, error) {
	b := slices.Clone(p) // a vfs.File may modify its argument
	n, err := f.File.WriteAt(p, at)
	if err == nil {
		f.d.mu.Lock()
		defer f.d.mu.Unlock()
		f.d.records = append(f.d.records, recordWrite{segment: f.name, at: at, bytes: b, from: f.d.written})
		f.d.written += int64(len(b))
	}
	return n, err
}

// Sync implements vfs.File. As with other logs, Crash decides which bytes are durable; but tables may rely on these.
func (f *diskSegment) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.synced = true
	if f.d.forgetful {
		return nil
	}
	// A sync of one segment says nothing about records in others.
	for i := f.d.firm; i < len(f.d.records); i++ {
		if w := &f.d.records[i]; w.segment == f.name {
			w.synced = true
		}
	}
	for f.d.firm < len(f.d.records) && f.d.records[f.d.firm].synced {
		f.d.firm++
	}
	return nil
}

// SyncData implements vfs.File.
func (f *diskSegment) SyncData() error { return f.Sync() }

// SyncTo implements vfs.File.
func (f *diskSegment) SyncTo(int64) (bool, error) { return true, f.Sync() }

// firmBytes returns how much of the store's own log was written up to the last record before which all are synced. mu is
// held.
func (d *Disk) firmBytes() int64 {
	if d.firm < len(d.records) {
		return d.records[d.firm].from
	}
	return d.written
}

// diskSynced is the SYNCED file of a store. It records the writes of slots.
type diskSynced struct {
	vfs.File
	d *Disk
}

// The offsets of the fields of a slot (docs/formats/store.md).
const (
	slotNumber = 24
	slotLength = 32
	slotSize   = 48
)

// WriteAt implements vfs.File.
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
