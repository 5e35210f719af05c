package ledger

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

var testCluster = rhumb.ClusterID{7}

var testTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func testWall() time.Time { return testTime }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	check(t, Create(dir, testCluster, false, testWall))
	return dir
}

func open(t testing.TB, dir string) *Ledger {
	t.Helper()
	l, err := Open(dir, testCluster, testWall, nil)
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// add appends records.
func add(t testing.TB, l *Ledger, records ...Record) {
	t.Helper()
	check(t, l.Update(func(*State) ([]Record, error) { return records, nil }))
}

func created(id string) Record {
	return Record{Kind: Created, Token: id, Secret: "00", Role: "node", Name: "eu-1", Expires: testTime.Add(time.Hour)}
}

func used(id string) Record { return Record{Kind: Used, Token: id, Key: "k"} }

// stateOf returns the state of a token, or "unknown".
func stateOf(t testing.TB, l *Ledger, id string) (state string) {
	t.Helper()
	check(t, l.View(func(s *State) {
		state = "unknown"
		if tok := s.Tokens[id]; tok != nil {
			state = tok.State(s.Now(testTime))
		}
	}))
	return state
}

// TestGolden guards the bytes of the files.
func TestGolden(t *testing.T) {
	dir := create(t)
	add(t, open(t, dir), created("0102"))
	for name, want := range map[string]string{
		FileName: `ab57f2dd {"seq":1,"time":"2026-03-01T12:00:00Z","kind":"made","cluster":"07000000000000000000000000000000"}
b675b88b {"seq":2,"time":"2026-03-01T12:00:00Z","kind":"created","token":"0102","secret":"00","role":"node","name":"eu-1","expires":"2026-03-01T13:00:00Z"}
`,
		MarkName: `a1517736 {"seq":2,"head":"2d84ca8e45b8b0a8865e1317ead663525af43e3c6a2bdb1ce2bfc93d91bf06dd"}
`,
	} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		check(t, err)
		if string(got) != want {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}

// TestShared guards that several open ledgers of one directory see each other's records and never
// give two records one number.
func TestShared(t *testing.T) {
	dir := create(t)
	var work sync.WaitGroup
	for i := range 4 {
		l := open(t, dir)
		work.Go(func() {
			for j := range 10 {
				if err := l.Update(func(*State) ([]Record, error) { return []Record{created(fmt.Sprint(i, "/", j))}, nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	check(t, open(t, dir).View(func(s *State) {
		if len(s.Tokens) != 40 || s.Head().Seq != 41 || s.Gaps != 0 {
			t.Errorf("%d tokens, %d records, %d gaps", len(s.Tokens), s.Head().Seq, s.Gaps)
		}
	}))
}

// TestCrash guards that a process that dies while it appends loses at most what nobody relies on:
// the end is cut off wherever it is torn, unless the mark acknowledges it.
func TestCrash(t *testing.T) {
	dir := create(t)
	l := open(t, dir)
	add(t, l, created("a"))
	before, err := os.ReadFile(l.path())
	check(t, err)
	mark, err := os.ReadFile(l.markPath())
	check(t, err)
	add(t, l, used("a"), Record{Kind: Issued, Serial: "1", Role: "node", Name: "eu-1", Expires: testTime.Add(time.Hour)})
	after, err := os.ReadFile(l.path())
	check(t, err)
	newMark, err := os.ReadFile(l.markPath())
	check(t, err)
	for size := len(before); size <= len(after); size++ {
		for _, marked := range []bool{false, true} {
			crashed := t.TempDir()
			check(t, os.WriteFile(filepath.Join(crashed, FileName), after[:size], 0o600))
			m := mark
			if marked {
				m = newMark
			}
			check(t, os.WriteFile(filepath.Join(crashed, MarkName), m, 0o600))
			l, err := Open(crashed, testCluster, testWall, nil)
			torn := size != len(before) && size != len(after) && after[size-1] != '\n'
			switch {
			case marked && torn:
				// Records that were answered for are gone: that is damage, with its place.
				if rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), "at offset") {
					t.Fatalf("size %d: %v", size, err)
				}
				continue
			case err != nil:
				t.Fatalf("size %d, marked %v: %v", size, marked, err)
			}
			state := stateOf(t, l, "a")
			// Whatever is lost, the token that was used is never open again after an answer.
			if marked && state == "open" || !marked && state != "open" && state != "used" {
				t.Fatalf("size %d, marked %v: the token is %s", size, marked, state)
			}
			add(t, l, created("b"))
			if stateOf(t, l, "b") != "open" {
				t.Fatalf("size %d: a new token is %s", size, stateOf(t, l, "b"))
			}
			_ = l.Close()
		}
	}
}

// TestLost guards that a ledger that was rolled back, emptied, replaced or removed, or whose mark
// was, lets no token be used twice, and works with new tokens at once.
func TestLost(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, dir string, old []byte){
		"rolled back": func(t *testing.T, dir string, old []byte) {
			check(t, os.WriteFile(filepath.Join(dir, FileName), old, 0o600))
		},
		"replaced by an older copy": func(t *testing.T, dir string, old []byte) {
			check(t, WriteFile(filepath.Join(dir, FileName), old, 0o600))
		},
		"emptied":      func(t *testing.T, dir string, _ []byte) { check(t, os.Truncate(filepath.Join(dir, FileName), 0)) },
		"removed":      func(t *testing.T, dir string, _ []byte) { check(t, os.Remove(filepath.Join(dir, FileName))) },
		"mark removed": func(t *testing.T, dir string, _ []byte) { check(t, os.Remove(filepath.Join(dir, MarkName))) },
		"mark damaged": func(t *testing.T, dir string, _ []byte) {
			check(t, os.WriteFile(filepath.Join(dir, MarkName), []byte("zzz"), 0o600))
		},
	} {
		for _, running := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, running %v", name, running), func(t *testing.T) {
				dir := create(t)
				l := open(t, dir)
				add(t, l, created("a"))
				old, err := os.ReadFile(l.path())
				check(t, err)
				add(t, l, used("a"))
				add(t, l, created("c"))
				lose(t, dir, old)
				if !running {
					l = open(t, dir)
				}
				for _, id := range []string{"a", "c"} {
					if state := stateOf(t, l, id); state == "open" {
						t.Errorf("token %s is open", id)
					}
				}
				add(t, l, created("b"))
				again := open(t, dir)
				if state := stateOf(t, again, "b"); state != "open" {
					t.Errorf("a new token is %s", state)
				}
				check(t, again.View(func(s *State) {
					if s.Gaps != 1 {
						t.Errorf("%d gaps", s.Gaps)
					}
				}))
			})
		}
	}
}

// TestDamage guards that damage is reported with its place, at every byte, and that repair keeps the
// records before it and voids tokens.
func TestDamage(t *testing.T) {
	dir := create(t)
	l := open(t, dir)
	for i := range 3 {
		add(t, l, created(fmt.Sprint(i)))
	}
	whole, err := os.ReadFile(l.path())
	check(t, err)
	first := bytes.IndexByte(whole, '\n') + 1
	for i := range whole {
		damaged := bytes.Clone(whole)
		damaged[i] ^= 1
		check(t, os.WriteFile(l.path(), damaged, 0o600))
		_, err := Open(dir, testCluster, testWall, nil)
		if kind := rhumb.KindOf(err); kind != rhumb.Corrupt {
			t.Fatalf("byte %d: %v", i, err)
		}
		if offset := 0; i < first && !strings.Contains(err.Error(), fmt.Sprint("offset ", offset)) {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
	damaged := bytes.Clone(whole)
	damaged[len(damaged)-20] ^= 1
	check(t, os.WriteFile(l.path(), damaged, 0o600))
	aside, err := Repair(dir, testCluster, testWall, nil)
	check(t, err)
	if kept, err := os.ReadFile(aside); err != nil || !bytes.Equal(kept, damaged) {
		t.Errorf("%s: %v", aside, err)
	}
	repaired := open(t, dir)
	if a, b := stateOf(t, repaired, "1"), stateOf(t, repaired, "2"); a != "void" || b != "unknown" {
		t.Errorf("tokens are %s and %s", a, b)
	}
	if aside, err := Repair(dir, testCluster, testWall, nil); err != nil || aside != "" {
		t.Errorf("a second repair: %q, %v", aside, err)
	}
}

// TestForeign guards that the ledger of another cluster is not used.
func TestForeign(t *testing.T) {
	if _, err := Open(create(t), rhumb.ClusterID{9}, testWall, nil); rhumb.KindOf(err) != rhumb.WrongCluster {
		t.Error(err)
	}
}

// FuzzOpen guards that no content of the files panics, that a ledger that opens works, and that an
// acknowledged use of a token is never forgotten without a trace.
func FuzzOpen(f *testing.F) {
	dir := create(f)
	l := open(f, dir)
	add(f, l, created("a"))
	add(f, l, used("a"))
	whole, err := os.ReadFile(l.path())
	check(f, err)
	mark, err := os.ReadFile(l.markPath())
	check(f, err)
	f.Add(whole, mark)
	f.Add(whole[:len(whole)/2], mark)
	f.Add([]byte(nil), []byte(nil))
	f.Add(sealLine([]byte(`{"seq":1,"kind":"gap"}`)), mark)
	f.Add(append(bytes.Clone(whole), whole...), mark)
	f.Fuzz(func(t *testing.T, content, mark []byte) {
		dir := t.TempDir()
		check(t, os.WriteFile(filepath.Join(dir, FileName), content, 0o600))
		check(t, os.WriteFile(filepath.Join(dir, MarkName), mark, 0o600))
		l, err := Open(dir, testCluster, testWall, nil)
		if err != nil {
			return
		}
		defer l.Close()
		if head, err := decodeMark(mark); err == nil && head.Seq > 0 {
			check(t, l.View(func(s *State) {
				if !s.Holds(head) && s.Gaps == 0 {
					t.Error("records that the mark names are missing without a gap")
				}
			}))
		}
		err = l.Update(func(s *State) ([]Record, error) {
			if s.Tokens["fuzz"] != nil {
				return nil, nil
			}
			return []Record{created("fuzz")}, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestHandOver guards that root, who runs commands on the directory of a service, leaves files that
// the service can read.
func TestHandOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away; run as root")
	}
	dir := t.TempDir()
	check(t, os.Chown(dir, 12345, 12346))
	check(t, os.Chmod(dir, 0o700))
	check(t, Create(dir, testCluster, false, testWall))
	add(t, open(t, dir), created("a"))
	for _, name := range []string{FileName, MarkName, lockName} {
		info, err := os.Stat(filepath.Join(dir, name))
		check(t, err)
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 12345 || st.Gid != 12346 {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
	}
}
