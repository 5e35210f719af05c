package snapshot_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// childEnv tells the test binary to be a child: which one, and the directory of the image.
const childEnv, childDirEnv = "RHUMB_SNAPSHOT_CHILD", "RHUMB_SNAPSHOT_CHILD_DIR"

func TestMain(m *testing.M) {
	run := map[string]func(dir string) error{"writer": writeForEver, "full": fillFileSystem, "huge": useHugePages}[os.Getenv(childEnv)]
	if run == nil {
		os.Exit(runTests(m))
	}
	if err := run(os.Getenv(childDirEnv)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runTests runs the tests, with a folder for the programs that several of them share.
func runTests(m *testing.M) int {
	var err error
	if compiledDir, err = os.MkdirTemp("", "rhumb-readers-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(compiledDir)
	return m.Run()
}

func child(t *testing.T, what, dir string, attr *syscall.SysProcAttr) *exec.Cmd {
	self, err := os.Executable()
	check(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childEnv+"="+what, childDirEnv+"="+dir)
	cmd.SysProcAttr = attr
	return cmd
}

const together = 16 // keys that every commit writes in both tables

func writerSpecs() []snapshot.TableSpec {
	return []snapshot.TableSpec{
		{ID: 1, Name: "left", Shards: 2, Spatial: true, Ordered: true},
		{ID: 2, Name: "right", Shards: 1, KeyKind: format.KeyName, Ordered: true},
		{ID: 3, Name: "steady", Shards: 1, Spatial: true, Ordered: true},
	}
}

func writerTables(t *testing.T, p *snapshot.Publisher) (tables []*snapshot.Table) {
	t.Helper()
	for _, spec := range writerSpecs() {
		table, err := p.Table(spec)
		check(t, err)
		tables = append(tables, table)
	}
	return tables
}

// steady is the table whose keys neither come nor go nor move, so that its rolls keep the layout of the base.
const steady = 2

func writerKey(table, i int) format.Key {
	if table != 1 {
		return format.Key{Number: uint64(i)}
	}
	return format.Key{Name: fmt.Appendf(nil, "key-%d", i)}
}

// writeForEver commits one number after the other under the same keys, with rolls and loads in between, and prints each
// number once it is committed.
func writeForEver(dir string) error {
	p, err := snapshot.Open(snapshot.Config{Dir: dir, AppendRatio: 0.01})
	if err != nil {
		return err
	}
	var tables []*snapshot.Table
	for _, spec := range writerSpecs() {
		t, err := p.Table(spec)
		if err != nil {
			return err
		}
		tables = append(tables, t)
	}
	for n := p.Version() + 1; ; n++ {
		if err := writeNumber(p, tables, n); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

func writeNumber(p *snapshot.Publisher, tables []*snapshot.Table, n uint64) error {
	rng := rand.New(rand.NewPCG(n, 3))
	value := make([]byte, 8+rng.IntN(200))
	binary.LittleEndian.PutUint64(value, n)
	c := p.Begin()
	record := func(table, i int) snapshot.Record {
		r := snapshot.Record{Key: writerKey(table, i), HLC: rhumb.Timestamp(n), Value: value, HasBox: true, Box: format.Box{MinX: int32(n), MaxX: int32(n)}}
		if table == steady {
			r.Value, r.Box = value[:8], format.Box{MinX: int32(i), MaxX: int32(i)}
		}
		return r
	}
	for table := range tables {
		if table == 1 && n%16 == 5 {
			err := c.Load(tables[table], func(yield func(snapshot.Record, error) bool) {
				for i := range together {
					if !yield(record(table, i), nil) {
						return
					}
				}
			})
			if err != nil {
				return err
			}
			continue
		}
		for i := range together {
			if err := c.Put(tables[table], record(table, i)); err != nil {
				return err
			}
		}
		if table == steady {
			for i := range 8 * together {
				if err := c.Put(tables[table], record(table, i%together)); err != nil {
					return err
				}
			}
			continue
		}
		for range rng.IntN(20) {
			if err := c.Put(tables[table], record(table, together+rng.IntN(1000))); err != nil {
				return err
			}
		}
	}
	_, err := c.Publish(snapshot.CommitInfo{})
	return err
}

// A writer that is killed at any moment leaves an image that shows the last commit that was acknowledged, or the one after
// it, and in both tables the same.
func TestKill(t *testing.T) {
	t.Parallel()
	kills := 25
	if testing.Short() {
		kills = 5
	}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	dir := shmDir(t)
	aborted := uint64(0)
	for range kills {
		acked := killOnce(t, dir, 1+rng.IntN(200))
		p, err := snapshot.Open(snapshot.Config{Dir: dir, AppendRatio: 0.01})
		check(t, err)
		r := p.Recovery()
		if r.Fresh || len(r.Quarantined) > 0 {
			t.Fatalf("after a kill: %+v", r)
		}
		aborted += r.Aborted
		img := mustImage(t, dir)
		if img.committed < acked || img.committed > acked+1 {
			t.Fatalf("version %d, acknowledged was %d", img.committed, acked)
		}
		verifyTogether(t, img)
		check(t, p.Close())
	}
	t.Logf("%d records of unfinished commits were aborted", aborted)
}

// What the writer that is killed does rolls shards in both ways.
func TestWriterRolls(t *testing.T) {
	t.Parallel()
	p := open(t, snapshot.Config{Dir: shmDir(t), AppendRatio: 0.01})
	tables := writerTables(t, p)
	for n := range uint64(100) {
		check(t, writeNumber(p, tables, n+1))
	}
	if s := p.Stats(); s.Kept == 0 || s.Kept == s.Rolls {
		t.Errorf("%d of %d rolls kept the layout of the base, want some", s.Kept, s.Rolls)
	}
}

// killOnce runs the writer until it has committed some numbers more, kills it and gives the last number that it printed.
func killOnce(t *testing.T, dir string, commits int) (acked uint64) {
	cmd := child(t, "writer", dir, nil)
	out, err := cmd.StdoutPipe()
	check(t, err)
	cmd.Stderr = os.Stderr
	check(t, cmd.Start())
	lines := bufio.NewReader(out)
	for i := 0; ; i++ {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			break
		}
		check(t, err)
		acked, err = strconv.ParseUint(line[:len(line)-1], 10, 64)
		check(t, err)
		if i == commits {
			check(t, cmd.Process.Kill())
		}
	}
	_ = cmd.Wait()
	return acked
}

func verifyTogether(t *testing.T, img *image) {
	t.Helper()
	v := view{version: img.committed}
	for name, table := range img.tables {
		if name == format.PositionsTable {
			continue
		}
		all := table.all(v)
		for i := range together {
			key := "n" + fmt.Sprintf("key-%d", i)
			if name != "right" {
				key = string(binary.BigEndian.AppendUint64(nil, uint64(i)))
			}
			if r := all[key]; len(r.value) < 8 || binary.LittleEndian.Uint64([]byte(r.value)) != img.committed {
				t.Fatalf("table %s, key %d: value %.8x, want number %d", name, i, r.value, img.committed)
			}
		}
		if keys := table.ordered(v); len(keys) != len(all) {
			t.Fatalf("table %s: a scan gives %d keys of %d", name, len(keys), len(all))
		}
	}
}

// edit changes a file of an image.
func edit(t *testing.T, path string, change func(p []byte) []byte) {
	t.Helper()
	p, err := os.ReadFile(path)
	check(t, err)
	check(t, os.WriteFile(path, change(p), 0o644))
}

// written makes an image with some numbers committed, and closes it.
func written(t *testing.T, dir string, from, to uint64) {
	t.Helper()
	p, err := snapshot.Open(snapshot.Config{Dir: dir, Identity: evenSeeds})
	check(t, err)
	tables := writerTables(t, p)
	for n := from; n <= to; n++ {
		check(t, writeNumber(p, tables, n))
	}
	check(t, p.Close())
}

// writtenUnsettled commits a number more, but for the words in the shards that say that it is committed.
func writtenUnsettled(t *testing.T, dir string, n uint64) {
	t.Helper()
	heads := map[string]uint64{}
	for _, path := range segments(t, dir) {
		p, err := os.ReadFile(path)
		check(t, err)
		heads[path] = binary.LittleEndian.Uint64(p[format.SegmentAppendHead:])
	}
	written(t, dir, n, n)
	for path, head := range heads {
		edit(t, path, func(p []byte) []byte {
			binary.LittleEndian.PutUint64(p[format.SegmentAppendHead:], head)
			return p
		})
	}
}

// segments lists the segment files by shard.
func segments(t *testing.T, dir string) map[int]string {
	t.Helper()
	out := map[int]string{}
	paths, err := filepath.Glob(filepath.Join(dir, "seg.*"))
	check(t, err)
	for _, path := range paths {
		var slot int
		var generation uint64
		_, err := fmt.Sscanf(filepath.Base(path), "seg.%d.%d", &slot, &generation)
		check(t, err)
		out[slot] = path
	}
	return out
}

// A commit whose records are all linked, and whose commit word was never stored, is undone; its version number is used
// again and shows nothing of it.
func TestTornCommit(t *testing.T) {
	t.Parallel()
	dir := shmDir(t)
	written(t, dir, 1, 3)
	writtenUnsettled(t, dir, 4)
	edit(t, filepath.Join(dir, format.RootName), func(p []byte) []byte {
		binary.LittleEndian.PutUint64(p[format.RootCommitted:], 3)
		return p
	})
	p := open(t, snapshot.Config{Dir: dir})
	if r := p.Recovery(); r.Aborted < 2*together || r.Fresh || len(r.Quarantined) > 0 {
		t.Fatalf("recovery %+v, want at least %d records aborted", r, 2*together)
	}
	verifyTogether(t, mustImage(t, dir))
	_, err := p.Begin().Publish(snapshot.CommitInfo{})
	check(t, err)
	img := mustImage(t, dir)
	img.committed-- // the empty version 4 shows what 3 does
	v4 := img.tables["left"].all(view{version: 4})
	for k, r := range img.tables["left"].all(view{version: 3}) {
		if v4[k].ref != r.ref {
			t.Fatalf("key %x: version 4 shows record %d, version 3 record %d", k, v4[k].ref, r.ref)
		}
	}
}

// A commit that was committed when its publisher died, and whose shards did not say so yet, stays.
func TestUnsettledCommit(t *testing.T) {
	t.Parallel()
	dir := shmDir(t)
	written(t, dir, 1, 3)
	writtenUnsettled(t, dir, 4)
	live := mustImageOf(t, dir).tables["left"].all(view{version: 4})
	p := open(t, snapshot.Config{Dir: dir})
	if r := p.Recovery(); r.Aborted != 0 || r.Fresh || len(r.Quarantined) > 0 {
		t.Fatalf("recovery %+v, want nothing aborted", r)
	}
	img := mustImage(t, dir)
	verifyTogether(t, img)
	if got := img.tables["left"].all(view{version: 4}); img.committed != 4 || !maps.Equal(got, live) {
		t.Errorf("version %d shows %d records, %d before", img.committed, len(got), len(live))
	}
}

// A publisher that died while it changed the shards of the root leaves an odd sequence and an entry that is torn, or that
// names a generation of a version that was never committed. The generation that is whole and committed is taken.
func TestTornSwing(t *testing.T) {
	t.Parallel()
	cases := map[string]func(entry []byte){
		"torn entry": func(e []byte) { e[16] ^= 1 },
		"zero entry": func(e []byte) { clear(e) },
		"a base that is not committed": func(e []byte) {
			s, _, _ := format.DecodeShard(e)
			s.Base, s.Generation = 1000, s.Generation+5
			format.EncodeShard(e, s)
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shmDir(t)
			written(t, dir, 1, 3)
			edit(t, filepath.Join(dir, format.RootName), func(p []byte) []byte {
				p[format.RootTableSeq] |= 1
				change(p[format.RootShards+format.ShardEntrySize:][:format.ShardEntrySize])
				return p
			})
			live := segments(t, dir)[1]
			leaveGeneration(t, live, 7, func(h *format.Segment) { h.Base = 4 }, format.SegmentLiveState) // of a load that was not committed
			leaveGeneration(t, live, 6, func(h *format.Segment) { h.Image[0] ^= 1 }, format.SegmentLiveState)
			leaveGeneration(t, live, 5, func(*format.Segment) {}, format.SegmentSuperseded)
			p := open(t, snapshot.Config{Dir: dir})
			if left := segments(t, dir)[1]; left != live {
				t.Errorf("%s is taken, want %s", left, live)
			}
			if r := p.Recovery(); r.Fresh || len(r.Quarantined) > 0 || len(r.Dropped) > 0 {
				t.Fatalf("recovery %+v", r)
			}
			verifyTogether(t, mustImage(t, dir))
		})
	}
}

// tear takes back the commit of one record, given by its place, and changes the slot of the index that leads to it, as if the publisher
// had died while it linked the record.
func tear(t *testing.T, path string, committed, ref uint64, slot func(fingerprint, ref []byte)) {
	t.Helper()
	edit(t, path, func(p []byte) []byte {
		led := 0
		for at := section(p, format.SectionIndex); at < section(p, format.SectionHeap); at += format.BucketSize {
			for i := range uint64(format.BucketSlots) {
				fingerprint, to := p[at+2*i:][:2], p[at+format.BucketRefs+4*i:][:4]
				if u16(fingerprint, 0) != 0 && uint64(u32(to, 0)) == ref {
					slot(fingerprint, to)
					led++
				}
			}
		}
		if led != 1 {
			t.Errorf("%d slots led to the record", led)
		}
		binary.LittleEndian.PutUint64(p[format.SegmentAppendHead:], ref)
		return p
	})
	edit(t, filepath.Join(filepath.Dir(path), format.RootName), func(p []byte) []byte {
		binary.LittleEndian.PutUint64(p[format.RootCommitted:], committed)
		return p
	})
}

// A publisher that died between the skip list and the index leaves a node of a key that the index lacks. The key is not linked
// a second time when it comes again.
func TestTornLink(t *testing.T) {
	t.Parallel()
	dir := shmDir(t)
	p, err := snapshot.Open(snapshot.Config{Dir: dir})
	check(t, err)
	spec := snapshot.TableSpec{ID: 1, Name: "t", Shards: 1, Ordered: true}
	table, err := p.Table(spec)
	check(t, err)
	commit(t, p, table, numberRecord(10, "ten"))
	path := segments(t, dir)[1]
	head := mustImage(t, dir).tables["t"].shards[0].head
	commit(t, p, table, numberRecord(20, "torn"))
	check(t, p.Close())
	tear(t, path, 1, head, func(fingerprint, _ []byte) { clear(fingerprint) })
	p = open(t, snapshot.Config{Dir: dir})
	if r := p.Recovery(); r.Aborted != 1 {
		t.Fatalf("recovery %+v, want one record aborted", r)
	}
	table, err = p.Table(spec)
	check(t, err)
	commit(t, p, table, numberRecord(20, "twenty"))
	img := mustImage(t, dir)
	v := view{version: img.committed}
	if got, all := img.tables["t"].ordered(v), img.tables["t"].all(v); len(got) != 2 || len(all) != 2 || all[got[1]].value != "twenty" {
		t.Errorf("a scan gives %x, the index %v", got, all)
	}
}

// A publisher that died between the link of a record to the one before and the index leaves a key whose newest record is not the one
// that the index leads to. A roll that copies the index is not misled.
func TestTornChain(t *testing.T) {
	t.Parallel()
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir})
	spec := snapshot.TableSpec{ID: 1, Name: "t", Shards: 1}
	table, err := p.Table(spec)
	check(t, err)
	_, err = p.Load(table, all(numberRecord(10, "base"), numberRecord(20, "base")), snapshot.CommitInfo{})
	check(t, err)
	path := segments(t, dir)[1]
	before := mustImage(t, dir).tables["t"].shards[0].head
	commit(t, p, table, numberRecord(10, "more"))
	last := mustImage(t, dir).tables["t"].shards[0].head
	version := commit(t, p, table, numberRecord(10, "torn"))
	check(t, p.Close())
	tear(t, path, version-1, last, func(_, ref []byte) { binary.LittleEndian.PutUint32(ref, uint32(before)) })
	rolls := &rollLog{}
	p = open(t, snapshot.Config{Dir: dir, Logger: slog.New(rolls)})
	if r := p.Recovery(); r.Aborted != 1 {
		t.Fatalf("recovery %+v, want one record aborted", r)
	}
	table, err = p.Table(spec)
	check(t, err)
	check(t, p.Roll(table, 0))
	if st := p.Stats(); st.Kept != 1 || !rolls.copiedIndex {
		t.Errorf("%d rolls kept the layout; the index was copied: %t", st.Kept, rolls.copiedIndex)
	}
	for _, value := range []string{"more", "last"} {
		img := mustImage(t, dir)
		got := img.tables["t"].all(view{version: img.committed})
		if len(got) != 2 || got[string(binary.BigEndian.AppendUint64(nil, 10))].value != value {
			t.Errorf("the image shows %v, want %q", got, value)
		}
		commit(t, p, table, numberRecord(10, "last"))
	}
}

// leaveGeneration leaves a copy of a segment of shard 1 with another header, as a later generation.
func leaveGeneration(t *testing.T, path string, later uint64, change func(h *format.Segment), state uint64) {
	t.Helper()
	p, err := os.ReadFile(path)
	check(t, err)
	h, err := format.DecodeSegment(p, uint64(len(p)))
	check(t, err)
	h.Generation += later
	change(&h)
	format.EncodeSegment(p, h)
	binary.LittleEndian.PutUint64(p[format.SegmentState:], state)
	check(t, os.WriteFile(filepath.Join(filepath.Dir(path), format.SegmentName(1, h.Generation)), p, 0o644))
}

// fillFileSystem runs in a mount namespace of its own. It commits on a small tmpfs until that is full, checks that the image
// is as it was before the commit that failed, and that commits go on once there is room.
func fillFileSystem(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		return err
	}
	p, err := snapshot.Open(snapshot.Config{Dir: filepath.Join(dir, "image"), Recycle: -1})
	if err != nil {
		return err
	}
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 1})
	if err != nil {
		return err
	}
	put := func(n, from, to uint64) error {
		c := p.Begin()
		value := binary.LittleEndian.AppendUint64(make([]byte, 0, 100), n)[:100]
		for i := from; i < to; i++ {
			if err := c.Put(table, snapshot.Record{Key: format.Key{Number: i}, Value: value}); err != nil {
				c.Discard()
				return err
			}
		}
		_, err := c.Publish(snapshot.CommitInfo{})
		return err
	}
	n := uint64(1)
	for ; err == nil && n < 10_000; n++ {
		err = put(n, n*100, n*100+100)
	}
	if rhumb.KindOf(err) != rhumb.DiskFull {
		return fmt.Errorf("after %d commits: %w, want disk_full", n, err)
	}
	img := readImage(filepath.Join(dir, "image"))
	if got, want := len(img.tables["t"].all(view{version: img.committed})), int(n-2)*100; got != want {
		return fmt.Errorf("%d records after the file system was full, want %d", got, want)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=16m"); err != nil {
		return err
	}
	if err := put(n, 0, 10_000); err != nil {
		return fmt.Errorf("with room again: %w", err)
	}
	return p.Close()
}

func TestFull(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("mounting a small tmpfs needs root")
	}
	cmd := child(t, "full", t.TempDir(), &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS})
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// useHugePages runs in a mount namespace of its own. It loads a table on a tmpfs that gives huge pages to who asks for them.
func useHugePages(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "huge=advise,size=128m"); err != nil {
		return fmt.Errorf("%w: %w", errNoHugePages, err)
	}
	for _, how := range []snapshot.HugePages{snapshot.HugeOff, snapshot.HugeTry} {
		p, err := snapshot.Open(snapshot.Config{Dir: filepath.Join(dir, "image"), HugePages: how})
		if err != nil {
			return err
		}
		table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 1})
		if err != nil {
			return err
		}
		_, err = p.Load(table, func(yield func(snapshot.Record, error) bool) {
			value := make([]byte, 100)
			for i := range uint64(200_000) {
				if !yield(snapshot.Record{Key: format.Key{Number: i}, Value: value}, nil) {
					return
				}
			}
		}, snapshot.CommitInfo{})
		if err != nil {
			return err
		}
		all, huge := p.Stats().Bytes, p.HugeBytes()
		if err := p.Close(); err != nil {
			return err
		}
		if got := 100 * huge / all; how == snapshot.HugeOff && got > 0 || how == snapshot.HugeTry && got < 80 {
			return fmt.Errorf("with huge pages %d, %d of %d bytes are in huge pages", how, huge, all)
		}
		if err := os.RemoveAll(filepath.Join(dir, "image")); err != nil {
			return err
		}
	}
	return nil
}

var errNoHugePages = errors.New("no tmpfs with huge pages here")

func TestHugePages(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("mounting a tmpfs with huge pages needs root")
	}
	cmd := child(t, "huge", t.TempDir(), &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS})
	out, err := cmd.CombinedOutput()
	if bytes.Contains(out, []byte(errNoHugePages.Error())) {
		t.Skipf("%s", out)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
