package host

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// countedStore counts the reads of results.
type countedStore struct {
	*storage.Store
	reads int
}

func (c *countedStore) Dedup(id rhumb.RangeID, req rhumb.RequestID) (storage.Seen, bool, error) {
	c.reads++
	return c.Store.Dedup(id, req)
}

func (c *countedStore) RequestFloor(id rhumb.RangeID, client rhumb.UUID) (uint64, error) {
	c.reads++
	return c.Store.RequestFloor(id, client)
}

func (c *countedStore) RequestWindow(id rhumb.RangeID, client rhumb.UUID) (storage.RequestWindow, error) {
	c.reads++
	return c.Store.RequestWindow(id, client)
}

// roomyDisk is a disk in memory that is never full.
type roomyDisk struct{ vfs.FS }

func (roomyDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 40}, nil
}

// requestLog is a log with requests, in a store on a disk in memory.
type requestLog struct {
	t      testing.TB
	fs     vfs.FS
	engine *storage.Engine
	store  countedStore
	last   *entry.Entry
	commit *entry.Entry
	hlc    rhumb.Timestamp
}

// newRequestLog returns an empty log. Its time begins late enough that nothing of it seems to be a day old.
func newRequestLog(t testing.TB) *requestLog {
	l := &requestLog{t: t, fs: roomyDisk{vfs.NewMem()}, hlc: 1 << 40, last: &entry.Entry{}, commit: &entry.Entry{}}
	l.open()
	l.batch(func(b *storage.Batch) { b.CreateRange(storage.RangeState{Range: testRange}) })
	t.Cleanup(func() { _ = l.engine.Close() })
	return l
}

// open starts the process on whatever the disk holds.
func (l *requestLog) open() {
	l.t.Helper()
	engine, err := storage.OpenEngine([]string{"store"}, storage.Config{FS: l.fs, CacheBytes: 1 << 20, MemTableBytes: 1 << 20})
	if err != nil {
		l.t.Fatal(err)
	}
	l.engine, l.store.Store = engine, engine.Store(testRange)
}

// restart stops the process in order and starts it again.
func (l *requestLog) restart() {
	l.t.Helper()
	if err := l.engine.Close(); err != nil {
		l.t.Fatal(err)
	}
	l.open()
}

// batch writes one batch and waits until it is durable, as the host does between two passes.
func (l *requestLog) batch(fill func(b *storage.Batch)) {
	l.t.Helper()
	b := l.store.NewBatch()
	fill(b)
	if err := b.Apply(); err != nil {
		l.t.Fatal(err)
	}
	if err := b.Sync(); err != nil {
		l.t.Fatal(err)
	}
}

// append appends an entry of one request.
func (l *requestLog) append(id rhumb.RequestID) {
	l.t.Helper()
	l.hlc++
	e := &entry.Entry{Epoch: 1, Node: 1, Seq: l.last.Seq + 1, Prev: l.last.Hash, Start: 1, Requests: []entry.Request{{
		ID: id, HLC: l.hlc, Existed: []bool{false}, Writes: []entry.Write{{Table: testTable, Name: []byte("k"), Value: rhumb.EncodeOpaque(nil, nil)}},
	}}}
	e.Seal(nil)
	l.batch(func(b *storage.Batch) { b.Append(testRange, e, l.commitPos()) })
	l.last = e
}

// commitPos returns the commit position.
func (l *requestLog) commitPos() storage.Commit {
	return storage.Commit{Seq: l.commit.Seq, HLC: l.commit.LastHLC()}
}

// commitAll commits and trims everything.
func (l *requestLog) commitAll() {
	if l.last.Seq == 0 {
		return
	}
	l.commit = l.last
	l.batch(func(b *storage.Batch) {
		b.SetCommit(testRange, l.commitPos())
		b.Trim(testRange, l.last.Seq)
	})
}

// undo undoes what is not committed.
func (l *requestLog) undo() {
	l.t.Helper()
	l.batch(func(b *storage.Batch) {
		if err := b.Undo(testRange, l.commit.Seq); err != nil {
			l.t.Fatal(err)
		}
	})
	l.last = l.commit
}

// collect removes what may go, as far as the log time of the commit position allows.
func (l *requestLog) collect() {
	l.t.Helper()
	for {
		done, err := l.store.Collect(testRange, storage.CollectLimits{Before: l.commit.LastHLC()})
		if err != nil {
			l.t.Fatal(err)
		}
		if !done.More {
			return
		}
	}
}

// slowRequests judges requests by their results alone, which it reads each time.
type slowRequests struct {
	epoch rhumb.Epoch
	last  map[rhumb.UUID]uint64
}

// lookUp returns the position of the stored result of a request, or 0, and whether the request is refused.
func (r *slowRequests) lookUp(l *requestLog, epoch rhumb.Epoch, id rhumb.RequestID) (seq rhumb.Seq, expired bool) {
	if r.epoch != epoch {
		r.epoch, r.last = epoch, map[rhumb.UUID]uint64{}
	}
	w, err := l.store.Store.RequestWindow(testRange, id.Client)
	if err != nil {
		l.t.Fatal(err)
	}
	r.last[id.Client] = max(r.last[id.Client], w.Last, id.Seq)
	stored, found, err := l.store.Store.Dedup(testRange, id)
	if err != nil {
		l.t.Fatal(err)
	}
	if found {
		return stored.Seq, false
	}
	floor, err := l.store.Store.RequestFloor(testRange, id.Client)
	if err != nil {
		l.t.Fatal(err)
	}
	return 0, r.last[id.Client]-id.Seq >= rhumb.DedupWindow || id.Seq <= floor
}

// TestRequestsLikeTheirResults guards that the memory of requests judges each as the stored results do: new requests and
// repeated ones in any order, results that are collected, floors that are forgotten, undone entries, other primaries
// between, and restarts.
func TestRequestsLikeTheirResults(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			l := newRequestLog(t)
			var fast requests
			var slow slowRequests
			epoch := rhumb.Epoch(1)
			newest := map[rhumb.UUID]uint64{}
			for step := range 400 {
				switch rnd.IntN(40) {
				// Results become old enough to be collected, and a day later their floors.
				case 0:
					l.commitAll()
					l.hlc = l.hlc.Add(rhumb.DedupKeep)
				case 1:
					l.commitAll()
					l.hlc = l.hlc.Add(rhumb.DedupFloorKeep)
				case 2, 3, 4:
					l.collect()
				case 5:
					// Only a replica that is not primary undoes.
					l.undo()
					epoch++
				case 6:
					epoch++
				// The memory is lost, and a restarted primary always has a new epoch (rule S).
				case 7:
					l.restart()
					fast, slow = requests{}, slowRequests{}
					epoch++
				default:
					id := rhumb.RequestID{Client: rhumb.UUID{byte(rnd.IntN(3))}}
					top := newest[id.Client]
					id.Seq = top + 1 + uint64(rnd.IntN(4))
					// Two of three are repeated, or were overtaken, up to twice as far back as the window.
					if n := uint64(rnd.IntN(2 * rhumb.DedupWindow)); rnd.IntN(3) > 0 && n < top {
						id.Seq = top - n
					}
					newest[id.Client] = max(top, id.Seq)
					seen, expired, err := fast.lookUp(&l.store, testRange, epoch, id)
					if err != nil {
						t.Fatal(err)
					}
					seq, wantExpired := slow.lookUp(l, epoch, id)
					if expired != wantExpired || (seen != nil) != (seq != 0) || seen != nil && seen.Seq != seq {
						t.Fatalf("step %d, epoch %d: request %s is %s, and by its result %d, expired %v", step, epoch, id, show(seen, expired), seq, wantExpired)
					}
					// Some fail their conditions and leave no result.
					if seen == nil && !expired && rnd.IntN(4) > 0 {
						l.append(id)
					}
				}
			}
		})
	}
}

// show describes a judgement for messages of tests.
func show(seen *replica.Dedup, expired bool) string {
	if seen != nil {
		return fmt.Sprintf("entry %d", seen.Seq)
	}
	return fmt.Sprintf("expired %v", expired)
}

// TestNewRequestsCostNoRead guards that a client's requests are judged from memory after its first one, also those that
// overtake each other.
func TestNewRequestsCostNoRead(t *testing.T) {
	l := newRequestLog(t)
	var r requests
	ask := func(seq uint64) {
		t.Helper()
		id := requestOf(seq)
		seen, expired, err := r.lookUp(&l.store, testRange, 1, id)
		if seen != nil || expired || err != nil {
			t.Fatalf("request %d is %s: %v", seq, show(seen, expired), err)
		}
		l.append(id)
	}
	// The first request of a client reads its window once.
	ask(2)
	before := l.store.reads
	for i := uint64(3); i < 500; i += 2 {
		ask(i + 1)
		ask(i)
	}
	ask(1 + 500)
	if n := l.store.reads - before; n != 0 {
		t.Errorf("new requests cost %d reads", n)
	}
	// A repeated one costs one read, that of its result.
	if seen, _, err := r.lookUp(&l.store, testRange, 1, requestOf(499)); seen == nil || err != nil {
		t.Errorf("request 499 is not recognised: %v", err)
	}
	if n := l.store.reads - before; n != 1 {
		t.Errorf("a repeated request costs %d reads", n)
	}
}

// TestFloorAboveTheResults guards a request between a kept result and the floor: its result was collected, so it is not new
// for a primary that begins.
func TestFloorAboveTheResults(t *testing.T) {
	l := newRequestLog(t)
	l.append(requestOf(6))
	l.append(requestOf(7))
	l.commitAll()
	l.append(requestOf(5)) // overtaken by both, and not trimmed
	l.hlc = l.hlc.Add(2 * rhumb.DedupKeep)
	l.append(rhumb.RequestID{})
	l.commit = l.last
	l.batch(func(b *storage.Batch) { b.SetCommit(testRange, l.commitPos()) })
	l.collect()
	var r requests
	if seen, expired, err := r.lookUp(&l.store, testRange, 2, requestOf(6)); seen != nil || !expired || err != nil {
		t.Errorf("a request whose result was collected is %s: %v", show(seen, expired), err)
	}
}

// BenchmarkLookUp measures the judgement of a new request that another one of its client has overtaken: from memory, and by
// reading that it has no result.
func BenchmarkLookUp(b *testing.B) {
	l := newRequestLog(b)
	for seq := range uint64(rhumb.DedupWindow) {
		l.append(requestOf(seq + 1))
	}
	b.Run("memory", func(b *testing.B) {
		var r requests
		b.ReportAllocs()
		for i := uint64(0); b.Loop(); i++ {
			if _, _, err := r.lookUp(&l.store, testRange, 1, requestOf(rhumb.DedupWindow+2+i^1)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		w := clientWindow{last: rhumb.DedupWindow + 2}
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := w.readResult(&l.store, testRange, requestOf(rhumb.DedupWindow+1)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
