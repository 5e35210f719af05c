package image

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// workerEnv turns this test binary into a worker.
const workerEnv = "RHUMB_IMAGE_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) == "" {
		os.Exit(m.Run())
	}
	if err := Serve(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// buildWorker builds the C program, with LMDB if it is installed.
func buildWorker(t *testing.T) (path string, lmdb bool) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no cc: apt-get install gcc libc6-dev")
	}
	path = filepath.Join(t.TempDir(), "worker")
	for _, libs := range [][]string{{"-lm", "-llmdb"}, {"-lm"}} {
		out, err := exec.Command(cc, append([]string{"-O2", "-o", path, "c/worker.c"}, libs...)...).CombinedOutput()
		if err == nil {
			return path, len(libs) == 2
		}
		t.Logf("%v: %s", err, out)
	}
	t.Fatal("the C worker does not build")
	return "", false
}

// TestRun measures a small image. Every read finds its record, all counterparts find the same, no
// pair is mixed, and every goal that needs no other store has a figure.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes")
	}
	worker, lmdb := buildWorker(t)
	t.Setenv(workerEnv, "1")
	r, err := Run(t.Context(), Config{
		Records: 30_000, Shards: 16, Rounds: 1, Ops: 5000, Worker: worker, LMDB: lmdb, Self: []string{os.Args[0]},
		Pairs: 200 * time.Millisecond, Samples: 20, Seed: 1, Dir: t.TempDir(), Processes: 2, Progress: func(text string) { t.Log(text) },
	})
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[int]bool{}
	for _, g := range r.Goals {
		numbers[g.Number] = true
		if g.Number == 16 && g.Median != 0 {
			t.Errorf("%s: %v", g.Name, g.Spread)
		}
		if g.Max <= 0 && g.Number != 16 && g.Number != 13 {
			t.Errorf("goal %d, %s: no figure", g.Number, g.Name)
		}
	}
	for _, n := range []int{1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17} {
		if !numbers[n] {
			t.Errorf("goal %d was not measured", n)
		}
	}
	if lmdb != numbers[5] {
		t.Errorf("LMDB there: %v, compared: %v", lmdb, numbers[5])
	}
	if _, err := exec.LookPath("redis-server"); (err == nil) != numbers[6] {
		t.Errorf("Redis there: %v, compared: %v", err == nil, numbers[6])
	}
	if err := r.Draw(t.TempDir()); err != nil {
		t.Error(err)
	}
}

func TestRefusesWhatDoesNotFit(t *testing.T) {
	if _, err := Run(t.Context(), Config{Records: 1 << 40}); err == nil {
		t.Error("it would build an image of 2^40 records")
	}
	if _, err := Run(t.Context(), Config{Records: 1000, Only: []string{"nothing"}}); err == nil {
		t.Error("it knows a section called nothing")
	}
}
