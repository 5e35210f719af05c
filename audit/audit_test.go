package audit

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// openLog opens a log in dir that ends with the test.
func openLog(t *testing.T, dir string, change func(*Config)) *Log {
	t.Helper()
	cfg := Config{Dir: dir, Node: func() string { return "eu-1" }, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return time.Unix(1e9, 0) }}
	if change != nil {
		change(&cfg)
	}
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// appendN appends events named after their number.
func appendN(t *testing.T, l *Log, n int) {
	t.Helper()
	for i := range n {
		if err := l.Append(t.Context(), Event{Kind: Admin, Caller: "operator anna", Action: "CreateTable", Object: fmt.Sprintf("table t%d", i), Outcome: OutcomeOK}); err != nil {
			t.Fatal(err)
		}
	}
}

// The log of three lives is one chain, and every event is in it.
func TestAppend(t *testing.T) {
	dir := t.TempDir()
	for life := range uint64(3) {
		l := openLog(t, dir, nil)
		appendN(t, l, 10)
		head := l.Head()
		if head.Seq != 10*(life+1) {
			t.Fatalf("head %v after %d lives", head, life+1)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := l.Append(t.Context(), Event{}); rhumb.KindOf(err) != rhumb.Unavailable {
			t.Errorf("a closed log: %v", err)
		}
		if r, err := Verify(dir, head); err != nil || r.Head != head || r.Entries != head.Seq || r.First != 1 || r.Unfinished {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	n := 0
	for e, err := range All(dir) {
		if err != nil || e.Node != "eu-1" || e.Object != fmt.Sprintf("table t%d", n%10) || e.Seq != uint64(n+1) || !e.Time.Equal(time.Unix(1e9, 0)) {
			t.Fatalf("entry %d: %+v, %v", n, e, err)
		}
		n++
	}
	if n != 30 {
		t.Errorf("%d entries", n)
	}
}

// The chain shows each change of a file: every byte flipped, every entry removed, swapped or added,
// and every file removed or cut.
func TestVerifyFindsEachChange(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, func(c *Config) { c.SegmentBytes = 700 })
	appendN(t, l, 9)
	head := l.Head()
	_ = l.Close()
	segs, err := listSegments(dir)
	if err != nil || len(segs) < 3 {
		t.Fatal(segs, err)
	}
	for _, s := range segs {
		clean, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		try := func(what string, text []byte) {
			t.Helper()
			if err := os.WriteFile(s.path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Verify(dir, head)
			broken, ok := errors.AsType[*BreakError](err)
			if !ok || rhumb.KindOf(err) != rhumb.Corrupt && rhumb.KindOf(err) != rhumb.Incompatible {
				t.Errorf("%s: %s: %+v, %v", s.name(), what, r, err)
			} else if broken.File < s.path || broken.Offset > int64(len(clean)) {
				t.Errorf("%s: %s: found in %s at %d", s.name(), what, broken.File, broken.Offset)
			}
		}
		for i := range clean {
			flipped := bytes.Clone(clean)
			flipped[i] ^= 1
			try(fmt.Sprintf("byte %d flipped", i), flipped)
			// Without a head kept elsewhere too: zeros must not pass for the end of an interrupted write.
			flipped[i] = 0
			if err := os.WriteFile(s.path, flipped, 0o600); err != nil {
				t.Fatal(err)
			}
			if r, err := Verify(dir, Head{}); err == nil && flipped[len(flipped)-1] != 0 {
				t.Errorf("%s: byte %d is zero: %+v", s.name(), i, r)
			}
		}
		lines := bytes.SplitAfter(clean, []byte("\n"))
		for i := range lines[:len(lines)-1] {
			without := bytes.Join(append(append([][]byte{}, lines[:i]...), lines[i+1:]...), nil)
			try(fmt.Sprintf("line %d removed", i), without)
			twice := bytes.Join(append(append([][]byte{}, lines[:i+1]...), lines[i:]...), nil)
			try(fmt.Sprintf("line %d twice", i), twice)
		}
		for _, n := range []int{0, 1, len(clean) / 2, len(clean) - 1} {
			try(fmt.Sprintf("cut to %d", n), clean[:n])
		}
		if err := os.Remove(s.path); err != nil {
			t.Fatal(err)
		}
		if r, err := Verify(dir, head); err == nil {
			t.Errorf("%s removed: %+v", s.name(), r)
		}
		if err := os.WriteFile(s.path, clean, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Verify(dir, head); err != nil {
		t.Fatal(err)
	}
	// A log that was written again has a chain that holds, but another head.
	again := t.TempDir()
	l = openLog(t, again, nil)
	appendN(t, l, 12)
	if _, err := Verify(again, Head{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(again, Head{Seq: head.Seq, Hash: Hash{1}}); rhumb.KindOf(err) != rhumb.Corrupt {
		t.Errorf("another log: %v", err)
	}
}

// An interrupted write at the end is removed and recorded; damage elsewhere stays as evidence.
func TestRepair(t *testing.T) {
	for _, tc := range []struct {
		name   string
		damage func(text []byte) []byte
		want   string // kind of the entry that records it, or ""
		verify bool   // whether the chain holds afterwards
	}{
		{"whole", func(b []byte) []byte { return b }, "", true},
		{"half a line", func(b []byte) []byte { return append(b, b[len(b)-100:len(b)-1]...) }, Repair, true},
		{"zeros", func(b []byte) []byte { return append(b, make([]byte, 5_000)...) }, Repair, true},
		{"zeros and a line feed", func(b []byte) []byte { return append(append(b, make([]byte, 50)...), '\n') }, Repair, true},
		{"the last line is cut", func(b []byte) []byte { return b[:len(b)-10] }, Repair, true},
		{"only half a header", func(b []byte) []byte { return b[:20] }, "", true},
		{"empty", func(b []byte) []byte { return nil }, "", true},
		{"a changed entry", func(b []byte) []byte { return bytes.Replace(b, []byte("table t2"), []byte("table t9"), 1) }, Break, false},
		{"a changed header", func(b []byte) []byte { return append([]byte("X"), b[1:]...) }, Break, false},
		{"a zero in an entry", func(b []byte) []byte { return bytes.Replace(b, []byte("table t2"), []byte("table\x00t2"), 1) }, Break, false},
		{"a zero in the last entry", func(b []byte) []byte { return bytes.Replace(b, []byte("table t4"), []byte("table\x00t4"), 1) }, Break, false},
		{"zeros before entries", func(b []byte) []byte { return bytes.Replace(b, []byte("table t2"), make([]byte, 8), 1) }, Break, false},
		{"many zeros before entries", func(b []byte) []byte {
			i := bytes.Index(b, []byte("table t2"))
			return slices.Concat(b[:i], make([]byte, 3*lineMax), b[i:])
		}, Break, false},
		{"a foreign line", func(b []byte) []byte { return append(b, "hello\n"...) }, Break, false},
		{"an endless line", func(b []byte) []byte { return append(b, bytes.Repeat([]byte("x"), 2*lineMax)...) }, Break, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			l := openLog(t, dir, nil)
			appendN(t, l, 5)
			_ = l.Close()
			segs, _ := listSegments(dir)
			text, err := os.ReadFile(segs[0].path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(segs[0].path, tc.damage(text), 0o600); err != nil {
				t.Fatal(err)
			}
			l = openLog(t, dir, nil)
			appendN(t, l, 1)
			head := l.Head()
			_ = l.Close()
			if _, err := Verify(dir, head); (err == nil) != tc.verify {
				t.Errorf("verify: %v", err)
			}
			segs, _ = listSegments(dir)
			var kinds []string
			_, _, _, bad, err := scanSegment(segs[len(segs)-1], func(e Entry, _ Head, _ int64) error {
				kinds = append(kinds, e.Kind)
				return nil
			})
			if bad != nil || err != nil {
				t.Fatal(bad, err)
			}
			if got := strings.Join(kinds, " "); tc.want != "" && !strings.Contains(got, tc.want) || tc.want == "" && strings.Contains(got, "audit_") {
				t.Errorf("entries: %s, want %q among them", got, tc.want)
			}
		})
	}
}

// The log keeps a bounded number of files, and what it drops it has named before.
func TestDrop(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, func(c *Config) { c.SegmentBytes, c.Segments = 2_000, 3 })
	appendN(t, l, 100)
	head := l.Head()
	segs, _ := listSegments(dir)
	if len(segs) != 3 {
		t.Fatalf("%d files", len(segs))
	}
	if r, err := Verify(dir, head); err != nil || r.First == 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	_ = l.Close()
	// A head from before the oldest file can no longer be compared. Whoever writes the folder could invent a log that begins later.
	if _, err := Verify(dir, Head{Seq: 1}); rhumb.KindOf(err) != rhumb.NotFound {
		t.Error(err)
	}
	if err := os.Remove(segs[0].path); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(dir, head); err == nil || !strings.Contains(err.Error(), "no entry records") {
		t.Errorf("a file that no entry names is missing: %v", err)
	}
}

// badFile fails while bad is set, after half of the bytes.
type badFile struct {
	*os.File
	bad *atomic.Bool
}

func (f badFile) Write(b []byte) (int, error) {
	if f.bad.Load() {
		n, _ := f.File.Write(b[:len(b)/2])
		return n, &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
	}
	return f.File.Write(b)
}

// While the disk is full, appends fail and notes are counted; afterwards the chain holds, and an
// entry has the count.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	var bad atomic.Bool
	l := openLog(t, dir, func(c *Config) {
		c.OpenFile = func(name string) (File, error) {
			f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			return badFile{f, &bad}, err
		}
	})
	appendN(t, l, 3)
	bad.Store(true)
	for range 3 {
		err := l.Append(t.Context(), Event{Kind: Admin})
		if rhumb.KindOf(err) != rhumb.DiskFull {
			t.Fatalf("append: %v", err)
		}
	}
	l.Note(Event{Kind: LoginFailed})
	_ = l.Append(t.Context(), Event{Kind: Admin})
	bad.Store(false)
	appendN(t, l, 1)
	head := l.Head()
	_ = l.Close()
	r, err := Verify(dir, head)
	if err != nil {
		t.Fatal(err)
	}
	var lost uint64
	for e, err := range All(dir) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == Lost {
			lost += e.Count
		}
	}
	if lost != 1 {
		t.Errorf("%d lost events in %+v, want 1", lost, r)
	}
}

// Concurrent callers share syncs, and nobody is answered before the entry is on disk.
func TestConcurrentAppends(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, func(c *Config) { c.SegmentBytes = 10_000 })
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			for range 25 {
				if err := l.Append(t.Context(), Event{Kind: Login, Caller: fmt.Sprintf("user u%d", i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	head := l.Head()
	_ = l.Close()
	if r, err := Verify(dir, head); err != nil || r.Entries != 200 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestParseHead(t *testing.T) {
	h := Head{7, Hash{1, 2, 3}}
	if got, err := ParseHead(" " + h.String() + "\n"); err != nil || got != h {
		t.Errorf("%v, %v", got, err)
	}
	for _, s := range []string{"", "7", "7:", "x:" + h.Hash.String(), "7:" + strings.ToUpper(Hash{0xab}.String()), "7:" + h.Hash.String() + "00"} {
		if got, err := ParseHead(s); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
}

// Texts from callers cannot grow an entry beyond a line.
func TestLongTexts(t *testing.T) {
	long := strings.Repeat("\x00é", lineMax)
	e := Entry{Seq: 1, Node: long, Event: Event{Kind: Admin, Caller: long, Address: long, Action: long, Object: long, Outcome: long, Detail: long}}
	line, head, err := appendEntry(nil, Hash{}, &e)
	if err != nil {
		t.Fatal(err)
	}
	if len(line) > lineMax {
		t.Errorf("%d bytes, at most %d can be read", len(line), lineMax)
	}
	if _, h, err := decodeEntry(bytes.TrimSuffix(line, []byte("\n")), Head{}); err != nil || h.Hash != head {
		t.Error(err)
	}
}

// Any content is read up to a place, and what is before that place is a chain of its own.
func FuzzScan(f *testing.F) {
	text := headerOf(Head{})
	var head Hash
	for i := range uint64(3) {
		text, head, _ = appendEntry(text, head, &Entry{Seq: i + 1, Event: Event{Kind: Admin, Action: "CreateTable"}})
	}
	f.Add(text)
	f.Add(text[:len(text)-5])
	f.Add(append(bytes.Clone(text), 0, 0, '\n'))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		entries := 0
		count := func(Entry, Head, int64) error { entries++; return nil }
		before, head, end, bad, err := scanBytes(bytes.NewReader(text), 1, count)
		if err != nil || end > int64(len(text)) || bad == nil && end != int64(len(text)) {
			t.Fatal(head, end, bad, err)
		}
		if head.Seq != before.Seq+uint64(entries) && end > 0 {
			t.Fatalf("%d entries from %v to %v", entries, before, head)
		}
		if end == 0 {
			return
		}
		// What counts as valid stays valid when an entry is added.
		kept, _, err := appendEntry(bytes.Clone(text[:end]), head.Hash, &Entry{Seq: head.Seq + 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, h, _, bad, err := scanBytes(bytes.NewReader(kept), 1, nil); bad != nil || err != nil || h.Seq != head.Seq+1 {
			t.Fatal(h, bad, err)
		}
	})
}
