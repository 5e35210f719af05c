package load

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestWorkloads checks that each workload has its operations in the shares of YCSB, that inserts take
// new keys, and that other operations take keys that exist.
func TestWorkloads(t *testing.T) {
	const keys, fresh = 1000, 1_000_000
	for w, want := range map[Workload]map[Op]float64{
		"A": {Get: 0.5, Put: 0.5},
		"B": {Get: 0.95, Put: 0.05},
		"C": {Get: 1},
		"D": {Get: 0.95, Put: 0.05},
		"E": {Scan: 0.95, Put: 0.05},
		// A read-modify-write is a get and a put.
		"F": {Get: 2 / 3.0, Put: 1 / 3.0},
	} {
		var mu sync.Mutex
		got := map[Op]float64{}
		inserted := map[int]bool{}
		c := Case{Workload: w, Callers: 4, Keys: keys, Fresh: fresh, Measure: 100 * time.Millisecond}
		r := Run(t.Context(), c, nil, func(_ context.Context, s Step) error {
			mu.Lock()
			defer mu.Unlock()
			got[s.Op]++
			insert := s.Op == Put && s.Key >= fresh
			if insert && inserted[s.Key] {
				t.Errorf("%s: key %d was inserted twice", w, s.Key)
			}
			if insert {
				inserted[s.Key] = true
			}
			if s.Caller != sharedCaller || s.Key < 0 || s.Key >= keys && s.Key < fresh || s.Key > fresh+len(inserted)+c.Callers || s.Op == Scan && (s.Keys < 1 || s.Keys > scanRecords) {
				t.Errorf("%s: %+v with %d inserted", w, s, len(inserted))
			}
			return nil
		})
		var sum float64
		for op, n := range got {
			sum += n
			if !slices.Contains(r.Needs(), op) {
				t.Errorf("%s needs %v and calls %s", w, r.Needs(), op)
			}
		}
		for op, share := range want {
			if d := got[op]/sum - share; d > 0.03 || d < -0.03 {
				t.Errorf("%s: %.3f of %v calls are %s, want %.3f", w, got[op]/sum, sum, op, share)
			}
		}
		if (w == "D" || w == "E") != (len(inserted) > 0) {
			t.Errorf("%s: %d inserts", w, len(inserted))
		}
	}
}

// TestZipf checks the skew against the probabilities of the distribution, which are in proportion to
// the reciprocals of the ranks. The method is exact for the first two ranks only.
func TestZipf(t *testing.T) {
	const n, draws = 1000, 400_000
	z := newZipf(n, zipfTheta)
	random := rand.New(rand.NewPCG(1, 2))
	counts := make([]int, n)
	for range draws {
		counts[z.draw(random)]++
	}
	for rank, within := range map[int]float64{0: 0.02, 1: 0.02, 9: 0.15} {
		want := draws * pow(rank+1) / z.zeta
		if d := float64(counts[rank])/want - 1; d > within || d < -within {
			t.Errorf("rank %d was drawn %d times, want %.0f", rank, counts[rank], want)
		}
	}
	if one := newZipf(1, zipfTheta); one.draw(random) != 0 {
		t.Error("the only rank was not drawn")
	}
}

func pow(rank int) float64 { return newZipf(rank, zipfTheta).zeta - newZipf(rank-1, zipfTheta).zeta }

// TestFill checks that each record that a case reads is written once, also if the last call has
// fewer and some calls are refused for a moment, that later cases add what they lack, and that an
// error that stays ends the filling.
func TestFill(t *testing.T) {
	var mu sync.Mutex
	type record struct{ caller, key int }
	got := map[record]int{}
	busy := 3 // calls to refuse
	write := func(_ context.Context, s Step) error {
		mu.Lock()
		defer mu.Unlock()
		if busy--; busy >= 0 {
			return errors.New("busy")
		}
		for i := range s.Keys {
			got[record{s.Caller, s.Key + i}]++
		}
		return nil
	}
	var f Filled
	for _, step := range []struct {
		c     Case
		wrote int // by all cases so far
	}{
		{Case{Workload: "A", Keys: 1003, ValueBytes: 10}, 1003},
		{Case{Workload: "B", Keys: 1003, ValueBytes: 10}, 1003},
		{Case{Op: Put, Callers: 4, Keys: 100, ValueBytes: 10}, 1003},
		{Case{Op: Get, Callers: 1, Keys: 100, ValueBytes: 10}, 1103},
		{Case{Op: Get, Callers: 4, Keys: 100, ValueBytes: 10, Batch: 4}, 1403},
		{Case{Op: Get, Callers: 2, Keys: 100, ValueBytes: 10}, 1403},
	} {
		if err := f.Fill(t.Context(), step.c, 64, write); err != nil || len(got) != step.wrote {
			t.Fatalf("after %+v there are %d records, want %d: %v", step.c, len(got), step.wrote, err)
		}
	}
	for r, n := range got {
		if n != 1 || r.key >= 1003 {
			t.Errorf("record %+v was written %d times", r, n)
		}
	}
	refused := errors.New("refused")
	if err := f.Fill(t.Context(), Case{Op: Get, Callers: 5, Keys: 100, ValueBytes: 10}, 1, func(context.Context, Step) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("the error is %v", err)
	}
}

// TestFamily checks that the children of a server count as the server.
func TestFamily(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	if got := Family(os.Getpid()); !slices.Contains(got, child.Process.Pid) || got[0] != os.Getpid() {
		t.Errorf("the family is %v, without the child %d", got, child.Process.Pid)
	}
}

// TestUsage checks that the work of other processes is seen, and that of our own is not.
func TestUsage(t *testing.T) {
	u := StartUsage([]int{os.Getpid()})
	for begin := time.Now(); time.Since(begin) < 300*time.Millisecond; { // work
	}
	all, others := u.OtherCores(nil), u.OtherCores([]int{os.Getpid()})
	if all-others < 0.5 {
		t.Errorf("%.2f cores were busy, %.2f without this process, which worked all the time", all, others)
	}
}
