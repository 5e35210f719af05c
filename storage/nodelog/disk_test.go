package nodelog

import (
	"errors"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const testDir = "/log"

var errPower = errors.New("the power is gone")

// disk is a file system that records each write and sync of a file that is written in place, so that a test can cut the power at any of them.
// The files that exist when it is made are durable.
type disk struct {
	vfs.FS
	image map[string][]byte // what is durable
	ops   []diskOp
	// left is how many operations succeed before the power fails; negative: it never does.
	left int
	// syncs fail while failing is set: the kernel then drops what was written, and calls it clean.
	failing bool
	tried   int // failed syncs
}

// diskOp is a write, or a sync if b is nil.
type diskOp struct {
	path string
	at   int64
	b    []byte
}

// newDisk returns a disk with files.
func newDisk(t testing.TB, image map[string][]byte) *disk {
	d := &disk{FS: vfs.NewMem(), image: image, left: -1}
	if err := d.MkdirAll(testDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, b := range image {
		d.put(t, name, b)
	}
	return d
}

// put creates a file.
func (d *disk) put(t testing.TB, name string, b []byte) {
	f, err := d.Create(name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(slices.Clone(b))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// newLog returns a disk with an empty log of small segments.
func newLog(t testing.TB, segments int) *disk {
	fs := vfs.NewMem()
	l, err := Open(Config{Dir: testDir, FS: fs, Boot: 1, ID: testID, Create: true, Segments: segments, SegmentBytes: SegmentBytesLeast})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return newDisk(t, contentOf(t, fs))
}

// contentOf returns all files of the log.
func contentOf(t testing.TB, fs vfs.FS) map[string][]byte {
	out := map[string][]byte{}
	names, err := fs.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		f, err := fs.Open(path.Join(testDir, name))
		if err != nil {
			t.Fatal(err)
		}
		info, _ := f.Stat()
		b := make([]byte, info.Size())
		if _, err := f.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		out[path.Join(testDir, name)] = b
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// kill returns the disk after the process died: the kernel has all that was written.
func (d *disk) kill(t testing.TB) *disk {
	after := newDisk(t, contentOf(t, d.FS))
	// It is not durable yet: what was not synced before is still to be written.
	after.image, after.ops = d.image, d.ops
	return after
}

// cut returns the disk after a power loss. Of what was not synced, each sector is kept, lost, or torn in the middle, as the power of chance has
// it: keep is the share that is kept.
func (d *disk) cut(t testing.TB, random *rand.Rand, keep int) *disk {
	return newDisk(t, d.remains(len(d.ops), random, keep))
}

// remains returns what a power loss after the first n operations leaves.
func (d *disk) remains(n int, random *rand.Rand, keep int) map[string][]byte {
	image := map[string][]byte{}
	for name, b := range d.image {
		image[name] = slices.Clone(b)
	}
	pending := map[string][]diskOp{}
	for _, op := range d.ops[:n] {
		if op.b != nil {
			pending[op.path] = append(pending[op.path], op)
			continue
		}
		for _, w := range pending[op.path] {
			copy(image[op.path][w.at:], w.b)
		}
		delete(pending, op.path)
	}
	for _, name := range slices.Sorted(maps.Keys(pending)) {
		for _, w := range pending[name] {
			for at := 0; at < len(w.b); at += Sector {
				sector := w.b[at:min(at+Sector, len(w.b))]
				if random.IntN(100) >= keep {
					continue
				}
				if random.IntN(8) == 0 && keep < 100 {
					sector = sector[:random.IntN(len(sector))]
				}
				copy(image[name][w.at+int64(at):], sector)
			}
		}
	}
	return image
}

// use counts an operation.
func (d *disk) use() error {
	if d.left == 0 {
		return errPower
	}
	d.left--
	return nil
}

// OpenReadWrite implements vfs.FS.
func (d *disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, c, opts...)
	return &diskFile{f, d, name}, err
}

type diskFile struct {
	vfs.File
	d    *disk
	name string
}

// WriteAt implements vfs.File.
func (f *diskFile) WriteAt(b []byte, at int64) (int, error) {
	if err := f.d.use(); err != nil {
		return 0, err
	}
	f.d.ops = append(f.d.ops, diskOp{f.name, at, slices.Clone(b)})
	return f.File.WriteAt(b, at)
}

// SyncData implements vfs.File.
func (f *diskFile) SyncData() error {
	if err := f.d.use(); err != nil {
		return err
	}
	if f.d.failing {
		f.d.tried++
		f.d.ops = slices.DeleteFunc(f.d.ops, func(op diskOp) bool { return op.path == f.name && op.b != nil })
		return errors.New("the disk refuses")
	}
	f.d.ops = append(f.d.ops, diskOp{path: f.name})
	return nil
}
