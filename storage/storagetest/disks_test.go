package storagetest_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// engineOf creates an engine with one range in each store, for the given node.
func engineOf(t *testing.T, fs *vfs.MemFS, node rhumb.NodeID, dirs []string) {
	t.Helper()
	e := openEngine(t, fs, dirs)
	if err := e.SetIdentity(rhumb.UUID{1}, node); err != nil {
		t.Fatal(err)
	}
	for i := range dirs {
		l := &storagetest.Log{ID: rhumb.RangeID{Region: 1, Slot: rhumb.Slot(i)}}
		b := e.Store(l.ID).NewBatch()
		b.CreateRange(storage.RangeState{Range: l.ID})
		b.Append(l.ID, l.Add(1, 1, storagetest.Put("a", "1")), storage.Commit{})
		if err := b.Apply(); err != nil {
			t.Fatal(err)
		}
		if err := b.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	closeEngine(t, e)
}

// TestDirectories opens an engine with wrong lists of directories. Each mistake must be refused
// with an error that names the directory and the remedy, and must change nothing: the right list
// must open afterwards.
func TestDirectories(t *testing.T) {
	fs := vfs.NewCrashableMem()
	engineOf(t, fs, 5, disks(3))
	engineOf(t, fs, 6, []string{"/other0", "/other1", "/other2"})
	writeText(t, fs, "/foreign", "photo.jpg")
	d := disks(3)
	for _, c := range []struct {
		name   string
		dirs   []string
		accept []int
		kind   rhumb.Kind
		says   []string
	}{
		{"one came back empty", []string{d[0], "/new", d[2]}, nil, rhumb.Corrupt, []string{"/new is empty", "store 2", "--accept-lost-store 2"}},
		{"the first came back empty", []string{"/new", d[1], d[2]}, nil, rhumb.Corrupt, []string{"/new is empty", "store 1"}},
		{"two are swapped", []string{d[0], d[2], d[1]}, nil, rhumb.InvalidArgument, []string{d[2], "store 2", "--dir " + d[0] + " --dir " + d[1] + " --dir " + d[2]}},
		{"one is added before the others", []string{"/new", d[0], d[1], d[2]}, nil, rhumb.InvalidArgument, []string{"/new", "--dir " + d[0] + " --dir " + d[1] + " --dir " + d[2] + " --dir /new"}},
		{"one belongs to another node", []string{d[0], d[1], "/other2"}, nil, rhumb.WrongCluster, []string{"/other2", "node n6"}},
		{"one is missing", d[:2], nil, rhumb.InvalidArgument, []string{"one of 3 stores", "2 directories are given"}},
		{"one is given twice", []string{d[0], d[1], d[1]}, nil, rhumb.InvalidArgument, []string{d[1], "store 2"}},
		{"one holds no store", []string{d[0], "/foreign", d[2]}, nil, rhumb.InvalidArgument, []string{"/foreign", "photo.jpg"}},
		{"an added one holds no store", append(disks(3), "/foreign"), nil, rhumb.InvalidArgument, []string{"/foreign", "photo.jpg"}},
		{"no store at all", []string{"/foreign"}, nil, rhumb.InvalidArgument, []string{"/foreign", "photo.jpg"}},
		{"an existing store is given up", d, []int{2}, rhumb.InvalidArgument, []string{d[1] + " holds it"}},
		{"a store beyond the last is given up", d, []int{4}, rhumb.InvalidArgument, []string{"store 4"}},
		{"a store of a new node is given up", []string{"/new"}, []int{1}, rhumb.InvalidArgument, []string{"no directory holds a store"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := storage.OpenEngine(c.dirs, storage.Config{FS: fs, AcceptLost: c.accept})
			if rhumb.KindOf(err) != c.kind || !slices.ContainsFunc(c.says, func(s string) bool { return err != nil && strings.Contains(err.Error(), s) }) {
				t.Errorf("error is %v, want %s with %q", err, c.kind, c.says)
			}
			for _, s := range c.says {
				if err != nil && !strings.Contains(err.Error(), s) {
					t.Errorf("error %v does not say %q", err, s)
				}
			}
		})
	}
	e := openEngine(t, fs, d)
	if states, err := e.Ranges(); len(states) != 3 || err != nil || e.Short() {
		t.Errorf("%d ranges, %v, short %v", len(states), err, e.Short())
	}
	closeEngine(t, e)
}

// TestAcceptLost gives up each store of an engine in turn. The engine must be short until its host
// confirms a new life, keep the data of the other stores, and never take the lost store back.
func TestAcceptLost(t *testing.T) {
	for lost := range 3 {
		fs := vfs.NewCrashableMem()
		d := disks(3)
		engineOf(t, fs, 5, d)
		was := openEngine(t, fs, d)
		boot := was.Identity().Boot
		closeEngine(t, was)
		given := slices.Clone(d)
		given[lost] = "/new"
		e, err := storage.OpenEngine(given, storage.Config{FS: fs, AcceptLost: []int{lost + 1}})
		if err != nil {
			t.Fatal(err)
		}
		id := e.Identity()
		if states, err := e.Ranges(); len(states) != 2 || err != nil || !e.Short() || len(e.Damage()) != 1 {
			t.Errorf("store %d lost: %d ranges, %v, short %v, %v", lost+1, len(states), err, e.Short(), e.Damage())
		}
		if id.Node != 5 || id.Boot <= boot || id.Store != was.Identity().Store || id.Fresh {
			t.Errorf("store %d lost: identity is %+v, boot was %d", lost+1, id, boot)
		}
		closeEngine(t, e)
		if _, err := storage.OpenEngine(d, storage.Config{FS: fs}); rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), "was replaced") {
			t.Errorf("the lost store was accepted again: %v", err)
		}
		e = openEngine(t, fs, given)
		if !e.Short() {
			t.Error("a restart forgets that the engine is short")
		}
		if err := e.ClearShort(); err != nil {
			t.Fatal(err)
		}
		closeEngine(t, e)
		if e = openEngine(t, fs, given); e.Short() {
			t.Error("short again")
		}
		closeEngine(t, e)
	}
}

// TestFirstStartFails ends the first start of an engine of three stores at each of its renames. The
// next start must create the rest, and no store may count as lost.
func TestFirstStartFails(t *testing.T) {
	failed := 0
	for n := int64(1); ; n++ {
		fs := vfs.NewCrashableMem()
		var renames atomic.Int64
		f := &faulty{fail: func(op errorfs.Op) error {
			if op.Kind == errorfs.OpRename && strings.Contains(op.Path, "STORE") && renames.Add(1) == n {
				return syscall.EIO
			}
			return nil
		}}
		f.on.Store(true)
		e, err := storage.OpenEngine(disks(3), storage.Config{FS: f.wrap(fs), MemTableBytes: 1 << 20})
		if err == nil {
			closeEngine(t, e)
			break
		}
		failed++
		e = openEngine(t, clone(fs), disks(3))
		if e.Short() || len(e.Damage()) > 0 || e.Identity().Store.IsZero() {
			t.Errorf("after rename %d failed: short %v, %v", n, e.Short(), e.Damage())
		}
		closeEngine(t, e)
	}
	if failed < 3 {
		t.Errorf("%d renames failed, want 3 and more", failed)
	}
}

func writeText(t *testing.T, fs vfs.FS, dir, name string) {
	t.Helper()
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := fs.Create(dir+"/"+name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
