package memory

import (
	"sync"
	"testing"
	"testing/fstest"

	"github.com/rhumbdb/rhumb"
)

func TestSplit(t *testing.T) {
	for _, tc := range []struct {
		total, cache int64
		stores       int
		want         Parts // in MiB
	}{
		{192, 0, 1, Parts{Cache: 24, MemTable: 6, Requests: 15, Uncommitted: 12, Answers: 9, Streams: 9, PeersIn: 15, PeersOut: 12, Tails: 9, Recent: 3, Names: 3, Rows: 9, Heap: 80}},
		{256, 0, 1, Parts{Cache: 32, MemTable: 8, Requests: 20, Uncommitted: 16, Answers: 12, Streams: 12, PeersIn: 20, PeersOut: 16, Tails: 12, Recent: 4, Names: 4, Rows: 12, Heap: 128}},
		{256, 0, 4, Parts{Cache: 32, MemTable: 2, Requests: 20, Uncommitted: 16, Answers: 12, Streams: 12, PeersIn: 20, PeersOut: 16, Tails: 12, Recent: 4, Names: 4, Rows: 12, Heap: 128}},
		{256, 64, 1, Parts{Cache: 64, MemTable: 8, Requests: 20, Uncommitted: 16, Answers: 12, Streams: 12, PeersIn: 20, PeersOut: 16, Tails: 12, Recent: 4, Names: 4, Rows: 12, Heap: 96}},
		{16 << 10, 0, 1, Parts{Cache: 2048, MemTable: 64, Requests: 64, Uncommitted: 64, Answers: 128, Streams: 256, PeersIn: 128, PeersOut: 128, Tails: 256, Recent: 128, Names: 256, Rows: 768, Heap: 14016}},
	} {
		got, err := Split(tc.total<<20, tc.cache<<20, tc.stores)
		if err != nil {
			t.Errorf("%d MiB: %v", tc.total, err)
			continue
		}
		tc.want.Total = tc.total
		for _, v := range []*int64{
			&tc.want.Total, &tc.want.Cache, &tc.want.MemTable, &tc.want.Requests, &tc.want.Uncommitted, &tc.want.Answers, &tc.want.Streams,
			&tc.want.PeersIn, &tc.want.PeersOut, &tc.want.Tails, &tc.want.Recent, &tc.want.Names, &tc.want.Rows, &tc.want.Heap,
		} {
			*v <<= 20
		}
		tc.want.Stores = got.Total - outsideHeap - got.Heap
		if got != tc.want || got.Stores != got.Cache+got.MemTable*MemTablesPerStore*int64(tc.stores) {
			t.Errorf("%d MiB, cache %d MiB, %d stores:\ngot  %+v\nwant %+v", tc.total, tc.cache, tc.stores, got, tc.want)
		}
	}
	for _, tc := range []struct {
		total, cache int64
		stores       int
	}{{191, 0, 1}, {0, 0, 1}, {256, 128, 1}, {256, 0, 64}} {
		if p, err := Split(tc.total<<20, tc.cache<<20, tc.stores); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%d MiB, cache %d MiB, %d stores: %+v, %v", tc.total, tc.cache, tc.stores, p, err)
		}
	}
}

// The parts leave a quarter of every amount of memory to the program.
func TestSplitLeavesRoom(t *testing.T) {
	for total := int64(Least); total < 1<<40; total += total / 7 {
		for _, stores := range []int{1, 2, 4} {
			p, err := Split(total, 0, stores)
			if err != nil {
				t.Fatal(err)
			}
			sum := p.Stores + p.Requests + p.Uncommitted + p.Answers + p.Streams + p.PeersIn + p.PeersOut + p.Tails + p.Recent + p.Names + p.Rows
			if sum > total/4*3 {
				t.Errorf("%d bytes, %d stores: the parts are %d: %+v", total, stores, sum, p)
			}
		}
	}
}

func TestLimit(t *testing.T) {
	const meminfo = "MemTotal:       16384 kB\nMemFree: 1 kB\n"
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for _, tc := range []struct {
		name  string
		files fstest.MapFS
		want  int64
		from  Source
	}{
		{"nothing is known", fstest.MapFS{}, fallback, FromMachine},
		{"no group", fstest.MapFS{"proc/meminfo": file(meminfo)}, 16 << 20, FromMachine},
		{"v2 without a limit", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("0::/a\n"), "sys/fs/cgroup/a/memory.max": file("max\n"),
		}, 16 << 20, FromMachine},
		{"v2", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("0::/a/b\n"), "sys/fs/cgroup/a/b/memory.max": file("4194304\n"),
		}, 4 << 20, FromCgroup2},
		{"v2, the group above has less", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("0::/a/b\n"),
			"sys/fs/cgroup/a/b/memory.max": file("4194304\n"), "sys/fs/cgroup/a/memory.max": file("2097152\n"),
		}, 2 << 20, FromCgroup2},
		{"v2 in a container", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("4194304\n"),
		}, 4 << 20, FromCgroup2},
		{"v1", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("5:devices:/x\n4:cpu,memory:/docker/x\n0::/\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("8388608\n"),
		}, 8 << 20, FromCgroup1},
		{"v1 without a limit", fstest.MapFS{
			"proc/meminfo": file(meminfo), "proc/self/cgroup": file("4:memory:/\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n"),
		}, 16 << 20, FromMachine},
		{"nonsense", fstest.MapFS{"proc/meminfo": file("MemTotal: x kB"), "proc/self/cgroup": file("what\n")}, fallback, FromMachine},
	} {
		if got, from := limitIn(tc.files); got != tc.want || from != tc.from {
			t.Errorf("%s: %d from %s, want %d from %s", tc.name, got, from, tc.want, tc.from)
		}
	}
}

func TestBudget(t *testing.T) {
	b := NewBudget("x", 100)
	for _, step := range []struct {
		take int64
		want bool
		used int64
	}{{60, true, 60}, {40, true, 100}, {1, false, 100}, {0, true, 100}, {-100, true, 0}, {500, true, 500}, {1, false, 500}, {-500, true, 0}} {
		got := true
		if step.take < 0 {
			b.Release(-step.take)
		} else {
			got = b.TryAcquire(step.take)
		}
		if free := max(100-step.used, 0); b.Free() != free {
			t.Errorf("take %d: %d are free, want %d", step.take, b.Free(), free)
		}
		if got != step.want || b.Used() != step.used {
			t.Errorf("take %d: %v, %d used, want %v, %d", step.take, got, b.Used(), step.want, step.used)
		}
	}
	var none *Budget
	if !none.TryAcquire(1<<60) || none.Full() || none.Used() != 0 || none.Most() != 0 || none.Free() < 1<<60 {
		t.Error("no budget has a bound")
	}
	none.Release(1)
	none.Refuse()
}

// Whoever asks at the same time, a budget is never passed.
func TestBudgetRace(t *testing.T) {
	b := NewBudget("x", 10)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 2_000 {
				if b.TryAcquire(3) {
					if b.Used() > 10 {
						t.Error("more is taken than there is")
					}
					b.Release(3)
				}
			}
		})
	}
	wait.Wait()
	if b.Used() != 0 {
		t.Errorf("%d bytes were lost", b.Used())
	}
}
