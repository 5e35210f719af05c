package inspect

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// TestSaveLoadDiff guards the way of an image to a file and back: it verifies, shows what it showed, and differs from the
// live one in what was written since.
func TestSaveLoadDiff(t *testing.T) {
	w := newWorld(t, 11)
	for range 10 {
		w.commit(100, 200)
	}
	tmp := t.TempDir()
	file, dir := filepath.Join(tmp, "image"+FileSuffix), filepath.Join(tmp, "image")
	saved, err := Save(t.Context(), w.dir, file, nil)
	check(t, err)
	if saved.Version != w.p.Version() || saved.Files != 6 {
		t.Errorf("saved %+v, the version is %d", saved, w.p.Version())
	}
	loaded, err := Load(t.Context(), file, dir, LoadOptions{})
	check(t, err)
	if loaded.Version != saved.Version || loaded.Bytes != saved.Bytes {
		t.Errorf("saved %+v, loaded %+v", saved, loaded)
	}
	wantClean(t, dir)
	if !maps.Equal(contents(t, dir, saved.Version), contents(t, w.dir, saved.Version)) {
		t.Error("the copy shows something else")
	}
	var hows []string
	counts, err := Diff(t.Context(), dir, w.dir, "", func(d *Difference) { hows = append(hows, d.How) })
	check(t, err)
	if len(hows) != 0 || len(counts) != 3 || counts[0].Same == 0 {
		t.Errorf("a copy differs: %v, %v", hows, counts)
	}
	for w.p.Version() == saved.Version {
		w.commit(50, 200)
	}
	want := len(diffOf(t, dir, w.dir))
	total := int64(0)
	counts, err = Diff(t.Context(), dir, w.dir, "", func(*Difference) {})
	check(t, err)
	for _, c := range counts {
		total += c.Added + c.Removed + c.Changed
	}
	if total != int64(want) || want == 0 {
		t.Errorf("%d differences, want %d", total, want)
	}
}

// diffOf compares two images by what All shows; the positions are left out.
func diffOf(t *testing.T, a, b string) map[string]bool {
	t.Helper()
	gather := func(dir string) map[string]string {
		out := map[string]string{}
		c, err := Attach(dir)
		check(t, err)
		defer c.Close()
		v, err := c.Lock()
		check(t, err)
		defer v.Unlock()
		for _, spec := range worldSpecs {
			table, err := v.Table(spec.Name)
			check(t, err)
			for it, err := range table.All() {
				check(t, err)
				doc, err := Describe(table.Info(), &it, false)
				check(t, err)
				out[spec.Name+doc.Key+doc.ShardKey] = doc.Expiry + string(it.Value)
			}
		}
		return out
	}
	was, is := gather(a), gather(b)
	out := map[string]bool{}
	for k, v := range was {
		if is[k] != v {
			out[k] = true
		}
	}
	for k := range is {
		if _, ok := was[k]; !ok {
			out[k] = true
		}
	}
	return out
}

// TestSaveWhileCommitting guards that a copy of an image under commits is the version that it says it is, and whole.
func TestSaveWhileCommitting(t *testing.T) {
	w := newWorld(t, 5)
	w.commit(300, 100)
	keep, err := reader.Attach(w.dir, reader.Options{})
	check(t, err)
	defer keep.Close()
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				w.commit(40, 100)
			}
		}
	}()
	tmp, compared := t.TempDir(), 0
	for i := range 20 {
		dir := filepath.Join(tmp, string(rune('a'+i)))
		saved, err := Save(t.Context(), w.dir, dir, nil)
		if err != nil {
			t.Error(err)
			break
		}
		if r, err := Verify(t.Context(), dir, VerifyOptions{Deep: true}); err != nil || len(r.Faults) > 0 || r.Version != saved.Version {
			t.Errorf("copy of version %d: %v, %+v", saved.Version, err, r)
			break
		}
		if v, err := keep.LockVersion(saved.Version); err == nil { // it may be rolled away by now
			v.Unlock()
			compared++
		}
	}
	close(stop)
	<-ended
	if t.Failed() {
		return
	}
	// The last copy of a version that the live image still has shows the same.
	saved, err := Save(t.Context(), w.dir, filepath.Join(tmp, "last"), nil)
	check(t, err)
	for range 3 {
		w.commit(5, 100)
	}
	if live, err := keep.LockVersion(saved.Version); err == nil {
		live.Unlock()
		if !maps.Equal(contents(t, filepath.Join(tmp, "last"), saved.Version), contents(t, w.dir, saved.Version)) {
			t.Error("the copy shows something else than its version")
		}
	}
	t.Logf("%d of 20 versions were still to be had", compared)
}

// TestLoadRefuses guards that nothing is overwritten unasked, a live image never, and that damage is found before.
// Whatever is broken off leaves nothing behind, and what stood there stands there still.
func TestCanceled(t *testing.T) {
	w := newWorld(t, 5)
	w.commit(200, 200)
	tmp := t.TempDir()
	saved := filepath.Join(tmp, "saved.rhs")
	if _, err := Save(t.Context(), w.dir, saved, nil); err != nil {
		t.Fatal(err)
	}
	here := filepath.Join(tmp, "here")
	if _, err := Load(t.Context(), saved, here, LoadOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		do   func(ctx context.Context, progress Progress) error
	}{
		{"a directory", func(ctx context.Context, p Progress) error {
			_, err := Save(ctx, w.dir, filepath.Join(tmp, "dir"), p)
			return err
		}},
		{"a file", func(ctx context.Context, p Progress) error {
			_, err := Save(ctx, w.dir, filepath.Join(tmp, "file.rhs"), p)
			return err
		}},
		{"load", func(ctx context.Context, p Progress) error {
			_, err := Load(ctx, saved, filepath.Join(tmp, "loaded"), LoadOptions{Progress: p})
			return err
		}},
		{"replace", func(ctx context.Context, p Progress) error {
			_, err := Load(ctx, saved, here, LoadOptions{Replace: true, Progress: p})
			return err
		}},
		{"verify", func(ctx context.Context, p Progress) error {
			_, err := Verify(ctx, w.dir, VerifyOptions{Deep: true, Progress: p})
			return err
		}},
		{"diff", func(ctx context.Context, p Progress) error {
			p(0, 0)
			_, err := Diff(ctx, w.dir, here, "", func(*Difference) {})
			return err
		}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if err := tc.do(ctx, func(int64, int64) { cancel() }); rhumb.KindOf(err) != rhumb.Canceled {
			t.Errorf("%s: %v", tc.name, err)
		}
		cancel()
	}
	var left []string
	entries, err := os.ReadDir(tmp)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if err != nil || !slices.Equal(left, []string{"here", "saved.rhs"}) {
		t.Errorf("there are %q, %v", left, err)
	}
	if r, err := Verify(t.Context(), here, VerifyOptions{Deep: true}); err != nil || len(r.Faults) > 0 {
		t.Errorf("what stood there: %+v, %v", r, err)
	}
}

func TestLoadRefuses(t *testing.T) {
	w := newWorld(t, 2)
	w.commit(100, 50)
	w.commit(100, 50)
	tmp := t.TempDir()
	file := filepath.Join(tmp, "image"+FileSuffix)
	_, err := Save(t.Context(), w.dir, file, nil)
	check(t, err)
	if _, err := Save(t.Context(), w.dir, file, nil); rhumb.KindOf(err) != rhumb.AlreadyExists {
		t.Errorf("save over a file: %v", err)
	}
	if _, err := Load(t.Context(), file, w.dir, LoadOptions{Replace: true}); rhumb.KindOf(err) != rhumb.AlreadyExists {
		t.Errorf("load over a live image: %v", err)
	}
	dir := filepath.Join(tmp, "image")
	_, err = Load(t.Context(), file, dir, LoadOptions{})
	check(t, err)
	if _, err := Load(t.Context(), file, dir, LoadOptions{}); rhumb.KindOf(err) != rhumb.AlreadyExists {
		t.Errorf("load over an image: %v", err)
	}
	_, err = Load(t.Context(), file, dir, LoadOptions{Replace: true})
	check(t, err)
	content, err := os.ReadFile(file)
	check(t, err)
	for _, bad := range [][]byte{content[:len(content)/2], []byte("no archive"), nil} {
		check(t, os.WriteFile(filepath.Join(tmp, "bad"), bad, 0o600))
		if _, err := Load(t.Context(), filepath.Join(tmp, "bad"), filepath.Join(tmp, "never"), LoadOptions{}); rhumb.KindOf(err) != rhumb.Corrupt {
			t.Errorf("load of %d bytes of %d: %v", len(bad), len(content), err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestPins guards that a superseded generation is found with the process that has it.
func TestPins(t *testing.T) {
	w := newWorld(t, 9)
	w.commit(50, 30)
	w.commit(50, 30)
	c, err := Attach(w.dir)
	check(t, err)
	v, err := c.Lock()
	check(t, err)
	root := filepath.Dir(filepath.Dir(w.dir))
	before, err := FindPins(root)
	check(t, err)
	if len(before.List) == 0 || before.List[0].PID != os.Getpid() || !before.List[0].Publisher {
		t.Errorf("%+v", before)
	}
	for range 40 { // until something is rolled
		w.commit(400, 3000)
	}
	after, err := FindPins(root)
	check(t, err)
	superseded := 0
	for _, p := range after.List {
		if p.Superseded {
			superseded++
		}
	}
	if superseded == 0 || after.PinnedBytes != 0 { // this process is the publisher too
		t.Errorf("%d superseded, %d bytes: %+v", superseded, after.PinnedBytes, after.List)
	}
	v.Unlock()
	check(t, c.Close())
	if l, err := List(root); err != nil || len(l) != 1 || !l[0].Publisher.Alive || l[0].Version != w.p.Version() || l[0].Records == 0 {
		t.Errorf("%+v, %v", l, err)
	}
}
