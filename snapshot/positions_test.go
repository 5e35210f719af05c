package snapshot_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// positionsImage makes an image whose positions are three versions of that of one range, in three records of one unit each,
// and returns its directory, the file of the positions and where the records begin in it.
func positionsImage(t *testing.T) (dir, file string, at int64) {
	t.Helper()
	dir = t.TempDir()
	p, err := snapshot.Open(snapshot.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for seq := range uint64(3) {
		c := p.Begin()
		err := c.Position(rhumb.RangeID{Region: 1, Slot: 7}, format.Position{Epoch: 1, Seq: seq + 1, HLC: rhumb.Timestamp(seq + 10)})
		if err == nil {
			_, err = c.Publish(snapshot.CommitInfo{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "seg.*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("segments %v, %v", files, err)
	}
	content, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	head, err := format.DecodeSegment(content, uint64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	heap, _ := head.Find(format.SectionHeap)
	return dir, files[0], int64(heap.Offset)
}

// flipPositions changes each bit of the records while a reader that verifies nothing by itself has a view of the second
// version. In the newest record, which it goes past, and in the one that the view shows, no change may be passed over; one in
// the oldest record, or behind a record, must not show.
func flipPositions(t *testing.T, file string, at int64, ask func(question string) []string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := ask("lock version 2"); got[0] != "version=2 closed=0" {
		t.Fatalf("a view of version 2: %q", got)
	}
	const whole = "epoch=1 seq=2 hlc=11"
	if got := ask("position 1 7"); got[0] != whole {
		t.Fatalf("the position is %q", got)
	}
	size := format.RecordSize(format.KeyUint64, format.FlagHLC, 0, format.PositionSize)
	for i := range int64(3 * format.RecordAlign) {
		var b [1]byte
		if _, err := f.ReadAt(b[:], at+i); err != nil {
			t.Fatal(err)
		}
		for bit := range 8 {
			if _, err := f.WriteAt([]byte{b[0] ^ 1<<bit}, at+i); err != nil {
				t.Fatal(err)
			}
			counts := i >= format.RecordAlign && int(i%format.RecordAlign) < size
			switch got := ask("position 1 7")[0]; {
			case counts && !strings.Contains(got, "corrupt"):
				t.Errorf("record %d, byte %d, bit %d: %q", i/format.RecordAlign, i%format.RecordAlign, bit, got)
			case !counts && got != whole:
				t.Errorf("record %d, byte %d, bit %d, which nobody looks at: %q", i/format.RecordAlign, i%format.RecordAlign, bit, got)
			}
		}
		if _, err := f.WriteAt(b[:], at+i); err != nil {
			t.Fatal(err)
		}
	}
	if got := ask("position 1 7"); got[0] != whole {
		t.Errorf("the position is %q when all is whole again", got)
	}
}

// TestPositionsGo guards that the Go reader serves no damaged position, although it was not asked to verify checksums, and
// that it tells where the damage is.
func TestPositionsGo(t *testing.T) {
	dir, file, at := positionsImage(t)
	c, err := reader.Attach(dir, reader.Options{})
	if err != nil {
		t.Fatal(err)
	}
	q := goQuery{c: c}
	flipPositions(t, file, at, func(question string) []string {
		out, err := q.answer(strings.Fields(question))
		if err == nil {
			return out
		}
		if text := err.Error(); rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(text, filepath.Base(file)) || !strings.Contains(text, "at offset ") {
			t.Errorf("%v is not kind Corrupt with file and offset", err)
		}
		return []string{"! corrupt"}
	})
	q.view.Unlock()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestPositionsC(t *testing.T) {
	flipPositionsOf(t, compileReader(t, "gcc", "-std=c11", "query.c", true))
}

func TestPositionsCpp(t *testing.T) {
	flipPositionsOf(t, compileReader(t, "g++", "-std=c++20", "query_cpp.cc", true))
}

// flipPositionsOf flips the positions under a query program of another language.
func flipPositionsOf(t *testing.T, program ...string) {
	t.Helper()
	dir, file, at := positionsImage(t)
	cmd := exec.Command(program[0], append(slices.Clone(program[1:]), dir, "unverified")...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	flipPositions(t, file, at, func(question string) (answer []string) {
		if _, err := io.WriteString(in, question+"\n"); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() && lines.Text() != "." {
			answer = append(answer, lines.Text())
		}
		if len(answer) == 0 {
			t.Fatalf("%v ended", cmd.Args)
		}
		return answer
	})
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %v", cmd.Args, err)
	}
}
