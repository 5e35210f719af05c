package nodelog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/rhumbdb/rhumb"
	"pgregory.net/rapid"
)

var testID = rhumb.UUID{0x10, 0x6, 15: 0x77}

// openTest opens the log of a disk.
func openTest(d vfs.FS, boot rhumb.BootSeq) (*Log, error) {
	return Open(Config{Dir: testDir, FS: d, Boot: boot, ID: testID})
}

// mustOpen opens the log of a disk.
func mustOpen(t testing.TB, d vfs.FS, boot rhumb.BootSeq) *Log {
	t.Helper()
	l, err := openTest(d, boot)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// records reads a log.
func records(l *Log) (out []Record, err error) {
	for r, err := range l.Replay() {
		if err != nil {
			return out, err
		}
		out = append(out, Record{r.Number, bytes.Clone(r.Payload)})
	}
	return out, nil
}

// model is what a log has to hold.
type model struct {
	content         map[Number][]byte // data records by their number
	last            Number
	synced, trimmed Number
	// flying is the payload of an append that the power loss interrupted.
	flying []byte
}

// check compares a log that was just opened with the model, and forgets what the log has lost.
func (m *model) check(l *Log) error {
	got, err := records(l)
	if err != nil {
		return err
	}
	if l.Last() < m.synced {
		return fmt.Errorf("the log ends with record %d, although record %d was synced", l.Last(), m.synced)
	}
	if l.Trimmed() > m.trimmed {
		return fmt.Errorf("the log is trimmed up to %d, although only %d was", l.Trimmed(), m.trimmed)
	}
	i := 0
	for n := l.Trimmed() + 1; n <= l.Last(); n++ {
		want, ok := m.content[n]
		present := i < len(got) && got[i].Number == n
		if !ok && n > m.last && present && m.flying != nil {
			want, ok, m.flying = m.flying, true, nil
			m.content[n] = want
		}
		switch {
		case ok != present:
			return fmt.Errorf("record %d: present is %v, want %v", n, present, ok)
		case ok && !bytes.Equal(got[i].Payload, want):
			return fmt.Errorf("record %d has another payload", n)
		}
		if present {
			i++
		}
	}
	if i != len(got) {
		return fmt.Errorf("record %d does not belong to the log", got[i].Number)
	}
	for n := range m.content {
		if n > l.Last() {
			delete(m.content, n)
		}
	}
	m.last, m.synced, m.flying = l.Last(), l.Last(), nil
	return nil
}

// TestCrashes guards the promise of the log: whatever happens to the power, no synced record is lost, none appears that was discarded, and no
// undamaged log is called damaged. Operations and power losses are drawn at random and compared with a map.
func TestCrashes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := newLog(t, rapid.IntRange(2, 4).Draw(rt, "segments"))
		boot := rhumb.BootSeq(2)
		m := &model{content: map[Number][]byte{}}
		l := mustOpen(t, d, boot)
		if err := m.check(l); err != nil {
			rt.Fatal(err)
		}
		// reopen starts on a disk after a power loss, or after a kill, which loses nothing. Opening may be interrupted by a power loss too.
		reopen := func(after *disk, least Number) {
			d = after
			for {
				boot++
				d.left = -1
				if rapid.IntRange(0, 3).Draw(rt, "interrupted") == 0 {
					d.left = rapid.IntRange(0, 2).Draw(rt, "operations of the start")
				}
				var err error
				if l, err = openTest(d, boot); err == nil {
					break
				}
				if !errors.Is(err, errPower) {
					rt.Fatalf("the log does not open: %v", err)
				}
				d, least = d.cut(t, rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "chance"), 0)), 50), m.synced
			}
			d.left = -1
			if l.Last() < least {
				rt.Fatalf("the log ends with record %d, and has lost record %d", l.Last(), least)
			}
			if err := m.check(l); err != nil {
				rt.Fatal(err)
			}
		}
		lost := func() {
			keep := rapid.SampledFrom([]int{0, 50, 90, 100}).Draw(rt, "kept")
			reopen(d.cut(t, rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "chance"), 1)), keep), m.synced)
		}
		// attempt runs an operation with the power failing at some operation of the disk.
		attempt := func(do func() error) bool {
			if rapid.IntRange(0, 4).Draw(rt, "power") == 0 {
				d.left = rapid.IntRange(0, 4).Draw(rt, "operations")
			}
			err := do()
			d.left = -1
			if errors.Is(err, errPower) {
				lost()
				return false
			}
			if err != nil {
				rt.Fatal(err)
			}
			return true
		}
		appendOne := func() {
			b := rapid.SliceOfN(rapid.Byte(), 0, rapid.SampledFrom([]int{0, 10, 600, l.RecordBytesMax()}).Draw(rt, "size")).Draw(rt, "payload")
			m.flying = b
			done := attempt(func() error {
				n, err := l.Append(b[:len(b)/2], b[len(b)/2:])
				if rhumb.KindOf(err) == rhumb.Overloaded {
					// All segments are needed. Once everything is trimmed, there is room.
					if err := l.Sync(); err != nil {
						return err
					}
					m.synced, m.trimmed = l.Synced(), l.Synced()
					l.Trim(l.Last())
					n, err = l.Append(b)
				}
				if err == nil {
					m.content[n], m.last = b, n
				}
				return err
			})
			if done {
				m.flying = nil
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(*rapid.T) { appendOne() },
			"several": func(*rapid.T) {
				for range rapid.IntRange(1, 6).Draw(rt, "records") {
					appendOne()
				}
			},
			"sync": func(*rapid.T) {
				if attempt(l.Sync) {
					m.synced = l.Last()
				}
			},
			"trim": func(*rapid.T) {
				n := Number(rapid.Uint64Range(0, uint64(l.Last())).Draw(rt, "number"))
				l.Trim(n)
				m.trimmed = max(m.trimmed, min(n, l.Synced()))
			},
			"close": func(*rapid.T) {
				m.synced = max(m.synced, l.Synced())
				if attempt(l.Close) {
					m.synced = m.last
					reopen(d.cut(t, rand.New(rand.NewPCG(1, 1)), 0), m.synced)
				}
			},
			"kill":  func(*rapid.T) { reopen(d.kill(t), m.last) },
			"power": func(*rapid.T) { lost() },
		})
	})
}

// TestCrashAtEveryOperation cuts the power at each write and sync of a fixed run that fills the ring three times, and leaves several parts of
// what was not synced.
func TestCrashAtEveryOperation(t *testing.T) {
	d := newLog(t, 3)
	l := mustOpen(t, d, 2)
	random := rand.New(rand.NewPCG(7, 7))
	type moment struct {
		ops             int
		last            Number
		synced, trimmed Number
	}
	moments, content := []moment{{}}, map[Number][]byte{}
	note := func() { moments = append(moments, moment{len(d.ops), l.Last(), l.Synced(), l.Trimmed()}) }
	note()
	for i := range 60 {
		b := bytes.Repeat([]byte{byte(i)}, random.IntN(1200))
		n, err := l.Append(b)
		if err != nil {
			t.Fatal(err)
		}
		content[n] = b
		note()
		if i%3 != 0 {
			continue
		}
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
		note()
		l.Trim(l.Last() - 2)
		note()
	}
	if l.lap < 9 {
		t.Fatalf("the run has %d laps, want three rounds of the ring", l.lap)
	}
	for n := range d.ops {
		// What was durable is that of the last moment before; what was written or trimmed may be that of the first one after.
		m := &model{content: map[Number][]byte{}}
		for _, at := range moments {
			if at.ops <= n {
				m.synced, m.last = at.synced, at.last
				m.trimmed = at.trimmed
				continue
			}
			m.trimmed = max(m.trimmed, at.trimmed)
			m.last = at.last
			break
		}
		for seed := range uint64(6) {
			keep := []int{0, 100, 50, 50, 80, 20}[seed]
			after := newDisk(t, d.remains(n, rand.New(rand.NewPCG(seed, uint64(n))), keep))
			re, err := openTest(after, 3)
			if err != nil {
				t.Fatalf("operation %d, seed %d: %v", n, seed, err)
			}
			m.content = map[Number][]byte{}
			for k, b := range content {
				m.content[k] = b
			}
			c := *m
			if err := c.check(re); err != nil {
				t.Fatalf("operation %d, seed %d: %v", n, seed, err)
			}
		}
	}
}

// TestCreateCrashes cuts the power at each operation of the creation of a log. The next start creates it, or opens it whole.
func TestCreateCrashes(t *testing.T) {
	for n, done := 0, false; !done; n++ {
		for seed := range uint64(4) {
			mem := vfs.NewCrashableMem()
			left := n
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
					return nil
				}
				if left == 0 {
					return errPower
				}
				left--
				return nil
			}))
			cfg := Config{Dir: testDir, FS: fs, Boot: 1, ID: testID, Create: true, Segments: 2, SegmentBytes: SegmentBytesLeast}
			if _, err := Open(cfg); err == nil {
				done = true
			} else if !errors.Is(err, errPower) {
				t.Fatalf("operation %d: %v", n, err)
			}
			after := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed) * 30, RNG: rand.New(rand.NewPCG(seed, uint64(n)))})
			cfg.FS, cfg.Boot = after, 2
			l, err := Open(cfg)
			if err != nil {
				t.Fatalf("operation %d, seed %d: %v", n, seed, err)
			}
			if _, err := l.Append([]byte("first")); err != nil {
				t.Fatal(err)
			}
			if err := l.Sync(); err != nil {
				t.Fatal(err)
			}
			// Without Create: what was synced must be found after the next power loss.
			cfg.FS, cfg.Boot, cfg.Create = after.CrashClone(vfs.CrashCloneCfg{}), 3, false
			if l, err = Open(cfg); err != nil {
				t.Fatalf("operation %d, seed %d, second start: %v", n, seed, err)
			}
			if got, err := records(l); err != nil || len(got) != 1 || string(got[0].Payload) != "first" {
				t.Fatalf("operation %d, seed %d: %v, %v", n, seed, got, err)
			}
		}
	}
}

// TestFailedSyncIsFatal guards that a sync is never tried again, and that a start does not rely on what only the cache of the kernel holds: the
// pages of a failed sync count as written although they are not.
func TestFailedSyncIsFatal(t *testing.T) {
	d := newLog(t, 2)
	l := mustOpen(t, d, 2)
	if _, err := l.Append([]byte("record")); err != nil {
		t.Fatal(err)
	}
	d.failing = true
	first := l.Sync()
	if rhumb.KindOf(first) != rhumb.Unavailable {
		t.Fatalf("a failed sync returns %v, want unavailable", first)
	}
	d.failing = false
	if err := l.Sync(); !errors.Is(err, first) || d.tried != 1 {
		t.Errorf("the second sync returns %v after %d attempts, want the first error after one", err, d.tried)
	}
	if _, err := l.Append([]byte("more")); !errors.Is(err, first) {
		t.Errorf("an append after the failed sync returns %v", err)
	}
	// The process ends. The next one finds the record in the cache, and answers for it.
	d = d.kill(t)
	l = mustOpen(t, d, 3)
	got, err := records(l)
	if err != nil || len(got) != 1 {
		t.Fatalf("%v, %v; want the record from the cache", got, err)
	}
	l = mustOpen(t, d.cut(t, rand.New(rand.NewPCG(1, 2)), 0), 4)
	if got, err = records(l); err != nil || len(got) != 1 {
		t.Errorf("after a power loss the log holds %v, %v; want the record", got, err)
	}
}

// TestFailedWriteIsFatal guards that nothing is appended behind a gap.
func TestFailedWriteIsFatal(t *testing.T) {
	d := newLog(t, 2)
	l := mustOpen(t, d, 2)
	d.left = 0
	if _, err := l.Append([]byte("lost")); err == nil {
		t.Fatal("the write did not fail")
	}
	d.left = -1
	if _, err := l.Append([]byte("behind")); err == nil {
		t.Error("a record was appended behind a failed write")
	}
	if err := l.Close(); err == nil {
		t.Error("a failed log was closed without its error")
	}
}

// counts counts what a log reports.
type counts struct{ bytes, syncs, turns, refused int }

func (c *counts) Wrote(n int)          { c.bytes += n }
func (c *counts) Synced(time.Duration) { c.syncs++ }
func (c *counts) Turned()              { c.turns++ }
func (c *counts) Refused()             { c.refused++ }

// TestFullLog guards that needed records are never written over, that a record that does not fit says why, and that the metrics count each.
func TestFullLog(t *testing.T) {
	d := newLog(t, 2)
	var c counts
	l, err := Open(Config{Dir: testDir, FS: d, Boot: 2, ID: testID, Metrics: &c})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(make([]byte, l.RecordBytesMax()+1)); rhumb.KindOf(err) != rhumb.TooLarge {
		t.Errorf("a record above the bound returns %v", err)
	}
	n := 0
	for ; err == nil; n++ {
		if _, err = l.Append([]byte{byte(n)}); err == nil {
			err = l.Sync()
		}
	}
	n--
	if rhumb.KindOf(err) != rhumb.Overloaded || c.refused != 1 || c.turns != 1 || c.syncs < n {
		t.Fatalf("%v after %d records, %+v", err, n, c)
	}
	before, err := records(l)
	if err != nil || len(before) != n {
		t.Fatalf("a full log holds %d records, want %d: %v", len(before), n, err)
	}
	// The start of a full log must succeed, or nobody could trim it.
	l = mustOpen(t, d.cut(t, rand.New(rand.NewPCG(1, 3)), 0), 3)
	if _, err := l.Append(nil); rhumb.KindOf(err) != rhumb.Overloaded {
		t.Errorf("an append to a full log returns %v", err)
	}
	l.Trim(before[n-2].Number)
	if _, err := l.Append([]byte("room")); err != nil {
		t.Errorf("an append after a trim returns %v", err)
	}
	got, err := records(l)
	if err != nil || len(got) != 2 || got[0].Number != before[n-1].Number || string(got[1].Payload) != "room" {
		t.Errorf("after the trim the log holds %v, %v", got, err)
	}
}

// TestNewest guards that programs which damage a log find its newest records, in each lap.
func TestNewest(t *testing.T) {
	d := newLog(t, 2)
	l := mustOpen(t, d, 2)
	for l.lap < 5 {
		last, err := l.Append([]byte("text"))
		if err == nil {
			err = l.Sync()
		}
		if err != nil {
			t.Fatal(err)
		}
		l.Trim(last)
		want := Extent{l.segmentFile(segmentOf(l.lap, len(l.files))), Sector, l.at}
		if got, err := Newest(Config{Dir: testDir, FS: d}); err != nil || got != want {
			t.Fatalf("in lap %d the newest records are in %+v, %v; want %+v", l.lap, got, err, want)
		}
	}
	if got, err := Newest(Config{Dir: testDir + "-missing", FS: d}); err == nil {
		t.Errorf("a log that does not exist has records in %+v", got)
	}
}

// TestTrimIsDurableBeforeReuse guards that a segment is written over only after a synced record says that it was trimmed. Otherwise a power loss
// in the middle of the first write would leave a log that seems to need the records which are gone.
func TestTrimIsDurableBeforeReuse(t *testing.T) {
	d := newLog(t, 2)
	l := mustOpen(t, d, 2)
	for l.lap < 2 || l.at < l.size-Sector {
		if _, err := l.Append([]byte("needed")); err != nil {
			t.Fatal(err)
		}
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	// No record follows in this lap that could hold the trim position.
	first := l.ends[0]
	l.Trim(first)
	if _, err := l.Append([]byte("first of the next lap")); err != nil || l.lap != 3 {
		t.Fatalf("lap %d, %v", l.lap, err)
	}
	write := d.ops[len(d.ops)-1]
	image := d.remains(len(d.ops), rand.New(rand.NewPCG(1, 4)), 0)
	copy(image[write.path][write.at:], write.b[:headerSize/2])
	l, err := openTest(newDisk(t, image), 3)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := records(l); err != nil || len(got) == 0 || got[0].Number != first+1 {
		t.Errorf("the log holds %v, %v; want the records from %d on", got, err, first+1)
	}
}

// TestWrapIO guards that a full disk and a used-up quota have a kind of their own: an operator can do something about them.
func TestWrapIO(t *testing.T) {
	for err, want := range map[error]rhumb.Kind{
		syscall.ENOSPC: rhumb.DiskFull, syscall.EDQUOT: rhumb.DiskFull, syscall.EIO: rhumb.Unavailable, io.ErrUnexpectedEOF: rhumb.Unavailable,
	} {
		wrapped := WrapIO("storage.Open", "/data/1", fmt.Errorf("write: %w", err))
		if rhumb.KindOf(wrapped) != want || !errors.Is(wrapped, err) || rhumb.Message(wrapped) != "/data/1: write: "+err.Error() {
			t.Errorf("%v becomes %v, want kind %s", err, wrapped, want)
		}
	}
	if err := WrapIO("storage.Open", "/data/1", nil); err != nil {
		t.Errorf("no error becomes %v", err)
	}
}
