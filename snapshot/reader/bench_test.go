package reader_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// benchRecords is how many records of 128 bytes the benchmarks read: more than the caches hold.
const benchRecords = 1 << 20

// benchKey spreads keys over the numbers.
func benchKey(n uint64) uint64 { return n * 0x9E3779B97F4A7C15 }

// benchImage publishes road segments in memory and attaches to them.
func benchImage(b *testing.B) *reader.Client {
	b.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "rhumb-bench-")
	if err != nil {
		dir, err = os.MkdirTemp("", "rhumb-bench-")
	}
	check(b, err)
	b.Cleanup(func() { check(b, os.RemoveAll(dir)) })
	pub, err := snapshot.Open(snapshot.Config{Dir: dir})
	check(b, err)
	b.Cleanup(func() { check(b, pub.Close()) })
	table, err := pub.Table(snapshot.TableSpec{ID: 1, Name: tableName, Shards: 4, Spatial: true})
	check(b, err)
	rng := rand.New(rand.NewPCG(1, 1))
	value := make([]byte, 88) // with key, box and head 128 bytes
	_, err = pub.Load(table, func(yield func(snapshot.Record, error) bool) {
		for n := range uint64(benchRecords) {
			p := rhumb.Point{Lat: 48 + 4*rng.Float64(), Lon: 8 + 6*rng.Float64()}
			rec := snapshot.Record{Key: format.Key{Number: benchKey(n)}, Value: value, Box: format.MakePoint(p), HasBox: true}
			if !yield(rec, nil) {
				return
			}
		}
	}, snapshot.CommitInfo{})
	check(b, err)
	c, err := reader.Attach(dir, reader.Options{Populate: true, HugePages: true})
	check(b, err)
	b.Cleanup(func() { check(b, c.Close()) })
	return c
}

func benchTable(b *testing.B, c *reader.Client) reader.Table {
	b.Helper()
	v, err := c.Lock()
	check(b, err)
	b.Cleanup(v.Unlock)
	tb, err := v.Table(tableName)
	check(b, err)
	return tb
}

// cpuTime returns the CPU time of the thread, which other work on the machine disturbs less than the time that passes.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	check(b, unix.Getrusage(unix.RUSAGE_THREAD, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// reportCPU reports the CPU time of each of n parts of an operation since start.
func reportCPU(b *testing.B, start time.Duration, n int) {
	b.Helper()
	b.ReportMetric(float64(cpuTime(b)-start)/float64(b.N*n), "cpu-ns/read")
}

func BenchmarkReads(b *testing.B) {
	c := benchImage(b)
	b.Run("get", func(b *testing.B) {
		tb := benchTable(b, c)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		start := cpuTime(b)
		rng := rand.New(rand.NewPCG(1, 1))
		var sum byte
		for b.Loop() {
			it, err := tb.GetUint64(benchKey(rng.Uint64N(benchRecords)))
			if err != nil {
				b.Fatal(err)
			}
			sum += it.Value[80]
		}
		reportCPU(b, start, 1)
		_ = sum
	})
	for _, n := range []int{8, 32, 64} {
		b.Run(fmt.Sprintf("multiget%d", n), func(b *testing.B) { benchMultiGet(b, c, n) })
	}
	b.Run("multiget32portable", func(b *testing.B) {
		defer reader.ForcePortable()()
		benchMultiGet(b, c, 32)
	})
	b.Run("lock", func(b *testing.B) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func(start time.Duration) { reportCPU(b, start, 1) }(cpuTime(b))
		for b.Loop() {
			v, err := c.Lock()
			if err != nil {
				b.Fatal(err)
			}
			v.Unlock()
		}
	})
	b.Run("lock parallel", func(b *testing.B) {
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				v, err := c.Lock()
				if err != nil {
					b.Error(err)
					return
				}
				v.Unlock()
			}
		})
	})
	for _, km := range []float64{0.1, 2, 10} {
		b.Run(fmt.Sprintf("bbox%gkm", km), func(b *testing.B) { benchBBox(b, c, km) })
	}
	b.Run("nearest10", func(b *testing.B) {
		tb := benchTable(b, c)
		rng := rand.New(rand.NewPCG(1, 1))
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func(start time.Duration) { reportCPU(b, start, 1) }(cpuTime(b))
		for b.Loop() {
			check(b, tb.VisitNearest(rhumb.Point{Lat: 48 + 4*rng.Float64(), Lon: 8 + 6*rng.Float64()}, 10, func(*reader.Item) bool { return true }))
		}
	})
}

// benchMultiGet reports the CPU time of one key.
func benchMultiGet(b *testing.B, c *reader.Client, n int) {
	b.Helper()
	tb := benchTable(b, c)
	rng := rand.New(rand.NewPCG(1, 1))
	numbers, out := make([]uint64, n), make([]reader.Item, n)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := cpuTime(b)
	var sum byte
	for b.Loop() {
		for i := range numbers {
			numbers[i] = benchKey(rng.Uint64N(benchRecords))
		}
		if found, err := tb.MultiGetUint64(numbers, out); err != nil || found != n {
			b.Fatal(found, err)
		}
		for i := range out {
			sum += out[i].Value[80]
		}
	}
	_ = sum
	reportCPU(b, start, n)
}

func benchBBox(b *testing.B, c *reader.Client, km float64) {
	b.Helper()
	tb := benchTable(b, c)
	rng := rand.New(rand.NewPCG(1, 1))
	n := 0
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func(start time.Duration) { reportCPU(b, start, 1) }(cpuTime(b))
	for b.Loop() {
		p := rhumb.Point{Lat: 48 + 4*rng.Float64(), Lon: 8 + 6*rng.Float64()}
		box := rhumb.Box{Min: p, Max: rhumb.Point{Lat: p.Lat + km/111, Lon: p.Lon + km/72}}
		check(b, tb.VisitBBox(box, func(*reader.Item) bool { n++; return true }))
	}
	b.ReportMetric(float64(n)/float64(b.N), "results")
}
