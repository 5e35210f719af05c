package snapshot_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// flipsC is how many bits of each segment are flipped under the C reader.
const flipsC = 60

// TestFlippedBitsC asks the C reader, built with the sanitizers, of an image in which one bit is flipped. Whatever bit that is, it
// neither faults nor goes on for ever. In the records of a summed table it answers as if nothing had happened or says that the
// image is corrupt.
func TestFlippedBitsC(t *testing.T) {
	program := compileReader(t, "gcc", "-std=c11", "query.c", true)
	dir := unpackGolden(t, "appended")
	var asks []question
	var input strings.Builder
	for _, q := range goldenQuestions(t, "appended") {
		if strings.HasPrefix(q.Ask, "lock") || strings.Contains(q.Ask, " cars ") {
			asks = append(asks, q)
			fmt.Fprintln(&input, q.Ask)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "seg.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		head, err := format.DecodeSegment(content, uint64(len(content)))
		if err != nil {
			t.Fatal(err)
		}
		heap, _ := head.Find(format.SectionHeap)
		summed := head.Table == 11 // cars
		bits := bitsOf(content)
		told := 0
		for i := range flipsC {
			bit := bits[i*len(bits)/flipsC]
			flipped := slices.Clone(content)
			flipped[bit/8] ^= 1 << (bit % 8)
			if err := os.WriteFile(path, flipped, 0o600); err != nil {
				t.Fatal(err)
			}
			where := fmt.Sprintf("%s, byte %d, bit %d", filepath.Base(path), bit/8, bit%8)
			cmd := exec.CommandContext(t.Context(), program, dir)
			cmd.Stdin = strings.NewReader(input.String())
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil && cmd.ProcessState.ExitCode() != 1 || strings.Contains(stderr.String(), "Sanitizer") || strings.Contains(stderr.String(), "runtime error") {
				t.Fatalf("%s: %v\n%s", where, err, stderr.String())
			}
			if err != nil || bytes.Contains(out, []byte("! corrupt")) {
				told++
			}
			if uint64(bit/8) >= heap.Offset && summed && err == nil {
				rightOrCorrupt(t, where, asks, string(out))
			}
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d of %d flips told", filepath.Base(path), told, flipsC)
		if summed && told < flipsC/4 {
			t.Errorf("%s: only %d of %d flips were told", filepath.Base(path), told, flipsC)
		}
	}
}

// bitsOf lists the bits of the lines that hold something.
func bitsOf(content []byte) (bits []int) {
	zero := make([]byte, format.RecordAlign)
	for at := 0; at < len(content); at += len(zero) {
		if !bytes.Equal(content[at:at+len(zero)], zero) {
			for bit := range 8 * len(zero) {
				bits = append(bits, 8*at+bit)
			}
		}
	}
	return bits
}

// rightOrCorrupt compares the answers with the golden ones, but for those in which the reader told of damage.
func rightOrCorrupt(t *testing.T, where string, asks []question, out string) {
	t.Helper()
	lines := strings.Split(out, "\n")
	for _, q := range asks {
		end := slices.Index(lines, ".")
		if end < 0 {
			t.Fatalf("%s: no answer to %q", where, q.Ask)
		}
		got := lines[:end]
		lines = lines[end+1:]
		if !slices.ContainsFunc(got, func(l string) bool { return strings.HasPrefix(l, "! corrupt") }) {
			sameAnswer(t, q, got)
		}
	}
	if t.Failed() {
		t.Fatal(where)
	}
}
