package transfer

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/sched"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// testRange is the range that the tests copy from donorNode to receiverNode.
var testRange = rhumb.RangeID{Region: 1, Slot: 7}

const (
	donorNode    rhumb.NodeID = 1
	receiverNode rhumb.NodeID = 2
)

// testRuntime is the system with a clock that a test moves. The test calls look itself.
type testRuntime struct {
	sched.Runtime
	ahead atomic.Int64
}

func (rt *testRuntime) Now() time.Duration {
	return rt.Runtime.Now() + time.Duration(rt.ahead.Load())
}

func (rt *testRuntime) Every(time.Duration, bool, func()) func() { return func() {} }

// testHost holds the range with one replica.
type testHost struct {
	mu      sync.Mutex
	commit  storage.Commit
	copying rhumb.Seq
	refused error // the answer to Install
	gone    bool
}

func (h *testHost) CopiesWanted() []Want { return nil }

func (h *testHost) SetCopying(_ rhumb.RangeID, at rhumb.Seq) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.copying = at
}

func (h *testHost) Install(_ context.Context, in *storage.Install) error {
	if h.refused != nil {
		return h.refused
	}
	_, err := in.Finish(1, 0)
	return err
}

func (h *testHost) MayDonate(rhumb.RangeID) (storage.Commit, error) { return h.commit, nil }
func (h *testHost) Holds(rhumb.RangeID) bool                        { return !h.gone }
func (h *testHost) ReportDamage(rhumb.RangeID)                      {}

// keptFrom returns the position from which the primary keeps its log, 0 for none.
func (h *testHost) keptFrom() rhumb.Seq {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.copying
}

// testWire joins two managers in one process.
type testWire struct {
	donor *Manager
	// breaksAt is the chunk before which a read breaks, 0 for none.
	breaksAt int
	mu       sync.Mutex
	released []storage.SetID
	asked    int
}

var errWire = rhumb.E("test", rhumb.Unavailable, "the wire is cut")

func (w *testWire) Open(ctx context.Context, _ rhumb.NodeID, q Question) (Offer, error) {
	w.mu.Lock()
	w.asked++
	w.mu.Unlock()
	return w.donor.Open(ctx, receiverNode, q)
}

func (w *testWire) Read(ctx context.Context, _ rhumb.NodeID, id storage.SetID, from int, take func(int, []byte) error) error {
	return w.donor.Read(ctx, id, from, func(chunk int, b []byte) error {
		if w.breaksAt > 0 && chunk >= w.breaksAt {
			return errWire
		}
		return take(chunk, b)
	})
}

func (w *testWire) Release(_ context.Context, _ rhumb.NodeID, id storage.SetID) {
	w.mu.Lock()
	w.released = append(w.released, id)
	w.mu.Unlock()
	w.donor.Release(id)
}

// pair is a donor with a range of some chunks, and a receiver without.
type pair struct {
	rt              *testRuntime
	donor, receiver *Manager
	from, to        *testHost
	wire            *testWire
	// removals counts the removals of files of sets, and lockedRemovals those under the lock of the manager.
	removals, lockedRemovals atomic.Int64
}

// newPair starts both nodes. rate is that of the donor, in bytes per second.
func newPair(t *testing.T, rate int64) *pair {
	p := &pair{rt: &testRuntime{Runtime: sched.System}, from: &testHost{}, to: &testHost{}, wire: &testWire{}}
	start := func(node rhumb.NodeID, h *testHost, rate int64) *Manager {
		var m *Manager
		// The files of a set are removed outside of the lock of the manager: a disk may stall.
		watch := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if (op.Kind == errorfs.OpRemove || op.Kind == errorfs.OpRemoveAll) && strings.Contains(op.Path, "/out/") {
				p.removals.Add(1)
				if !m.mu.TryLock() {
					p.lockedRemovals.Add(1)
					return nil
				}
				m.mu.Unlock()
			}
			return nil
		})
		e, err := storage.OpenEngine([]string{"/disk"}, storage.Config{
			FS: errorfs.Wrap(vfs.NewMem(), watch), MemTableBytes: 8 << 20, DiskFree: func(string) (uint64, uint64, error) { return 1 << 40, 1 << 40, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		m = New(Config{
			Self: rhumb.NodeIdentity{Node: node, Boot: 1}, Engine: e, Host: h, Net: p.wire, Runtime: p.rt, Logger: slog.New(slog.DiscardHandler), Rate: rate,
		})
		t.Cleanup(func() {
			m.Close()
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		return m
	}
	p.receiver, p.donor = start(receiverNode, p.to, 0), start(donorNode, p.from, rate)
	p.wire.donor = p.donor
	p.fill(t)
	return p
}

// fill creates the range at the donor. Its values cannot be compressed, so that a set has some chunks.
func (p *pair) fill(t *testing.T) {
	l := &storagetest.Log{ID: testRange}
	random := rand.NewChaCha8([32]byte{1})
	b := p.donor.cfg.Engine.Store(testRange).NewBatch()
	b.CreateRange(storage.RangeState{Range: testRange})
	for range 6 {
		value := make([]byte, 600<<10)
		_, _ = random.Read(value)
		l.Commit++
		b.Append(testRange, l.Add(1, donorNode, storagetest.Put("key", string(value))), storage.Commit{})
	}
	p.from.commit = l.CommitPos()
	if err := errors.Join(b.Apply(), b.Sync()); err != nil {
		t.Fatal(err)
	}
}

// attempt makes an attempt to copy the range, after failed others.
func (p *pair) attempt(failed int) {
	s := start{want: Want{Range: testRange, Least: 1}, donor: donorNode, failed: failed}
	p.receiver.mu.Lock()
	p.receiver.in[testRange] = &incoming{start: s, began: p.rt.Now()}
	p.receiver.plan.running[testRange] = true
	p.receiver.mu.Unlock()
	p.receiver.copyRange(s)
}

// part returns the set of which the receiver has a part.
func (p *pair) part() *storage.Set {
	return p.receiver.cfg.Engine.Store(testRange).Installing(testRange)
}

// TestBrokenCopyKeepsLog: the primary keeps the log that follows a set while a part of the set waits for the next attempt. Otherwise a primary
// under load trims that log in the pause, and the part is of no use. The bound is keptMost.
func TestBrokenCopyKeepsLog(t *testing.T) {
	p := newPair(t, 0)
	p.wire.breaksAt = 1
	p.attempt(0)
	set := p.part()
	if set == nil {
		t.Fatal("no part of the set is kept")
	}
	if got := p.to.keptFrom(); got != set.Commit || got == 0 {
		t.Fatalf("the log is kept from %d, want from %d, where the set ends", got, set.Commit)
	}
	p.rt.ahead.Add(int64(keptMost - time.Second))
	p.receiver.look()
	if p.to.keptFrom() == 0 {
		t.Fatal("the log is not kept until the end of keptMost")
	}
	p.rt.ahead.Add(int64(time.Second))
	p.receiver.look()
	if at := p.to.keptFrom(); at != 0 {
		t.Fatalf("the log is kept from %d after keptMost", at)
	}
	// The next attempt continues, and nothing is kept after it.
	p.wire.breaksAt = 0
	p.attempt(1)
	if p.part() != nil || p.to.keptFrom() != 0 {
		t.Fatalf("after a success: part %v, log kept from %d", p.part(), p.to.keptFrom())
	}
	if p.wire.asked != 1 {
		t.Errorf("%d questions: the second attempt did not continue", p.wire.asked)
	}
}

// TestGivenUpSetIsReleased: a set that does not fit gives up its place at the donor at once, and is not offered again. The same holds for a set
// that another one has replaced, and for one of a range that the receiver does not hold any more.
func TestGivenUpSetIsReleased(t *testing.T) {
	held := func(p *pair) int {
		p.donor.mu.Lock()
		defer p.donor.mu.Unlock()
		return len(p.donor.out)
	}
	t.Run("refused", func(t *testing.T) {
		p := newPair(t, 0)
		p.to.refused = rhumb.E("test", rhumb.Corrupt, "the set is damaged")
		p.attempt(0)
		first := slices.Clone(p.wire.released)
		if len(first) != 1 || held(p) != 0 {
			t.Fatalf("released %v; the donor holds %d sets", first, held(p))
		}
		p.to.refused = nil
		p.attempt(1)
		if len(p.wire.released) != 2 || p.wire.released[1] == first[0] {
			t.Fatalf("released %v: the refused set was offered again", p.wire.released)
		}
	})
	t.Run("replaced", func(t *testing.T) {
		p := newPair(t, 0)
		p.wire.breaksAt = 1
		p.attempt(0)
		old := p.part().ID
		// The donor of the first set has forgotten for whom it made the set, so that it makes another one.
		p.donor.mu.Lock()
		p.donor.out[old].to = 9
		p.donor.mu.Unlock()
		p.wire.breaksAt = 0
		p.attempt(resumesMost)
		p.receiver.Close() // waits for the release
		if !slices.Contains(p.wire.released, old) || held(p) != 0 {
			t.Fatalf("released %v, want %v too; the donor holds %d sets", p.wire.released, old, held(p))
		}
	})
	t.Run("range is gone", func(t *testing.T) {
		p := newPair(t, 0)
		p.wire.breaksAt = 1
		p.attempt(0)
		p.to.gone = true
		p.receiver.dropPart(p.receiver.cfg.Engine.Store(testRange), testRange)
		if p.part() != nil || held(p) != 0 {
			t.Fatalf("part %v; the donor holds %d sets", p.part(), held(p))
		}
	})
}

// TestSlowSet: a set that takes longer than the patience of the donor is made while the receiver asks again, once for all questions. A donor
// whose receiver asks no more ends its work.
func TestSlowSet(t *testing.T) {
	// The range has 3.5 MiB, so the set takes more than two seconds.
	p := newPair(t, 1500<<10)
	p.attempt(0)
	if p.wire.asked < 2 || p.donor.number != 1 || p.part() != nil || p.receiver.errors[testRange] != "" {
		t.Fatalf("%d questions, %d sets, error %q", p.wire.asked, p.donor.number, p.receiver.errors[testRange])
	}

	p = newPair(t, 1) // a set takes weeks
	o, err := p.donor.Open(t.Context(), receiverNode, Question{Range: testRange, Least: 1, AsksAgain: true})
	if err != nil || o.Set != nil || o.Made == 0 {
		t.Fatalf("offer %+v: %v; want one of a set that is being made", o, err)
	}
	p.rt.ahead.Add(int64(idleLeast))
	p.donor.look()
	p.donor.mu.Lock()
	left := len(p.donor.making)
	p.donor.mu.Unlock()
	if left != 0 {
		t.Fatal("a set that nobody asks for is made to its end")
	}
}

// stuckDonor offers a set that it never makes.
type stuckDonor struct {
	testWire
	rt *testRuntime
}

func (d *stuckDonor) Open(context.Context, rhumb.NodeID, Question) (Offer, error) {
	d.asked++
	d.rt.ahead.Add(int64(unmadeMost / 4))
	return Offer{Made: 5}, nil
}

// TestStuckDonor: a receiver leaves a donor that makes no progress, after a bounded time.
func TestStuckDonor(t *testing.T) {
	p := newPair(t, 0)
	p.receiver.cfg.Net = &stuckDonor{rt: p.rt}
	_, err := p.receiver.open(donorNode, Question{Range: testRange, AsksAgain: true})
	if rhumb.KindOf(err) != rhumb.Unavailable || !strings.Contains(err.Error(), "read nothing more") {
		t.Fatalf("got %v", err)
	}
}

// TestOlderReceiver: a receiver that does not ask again waits until the set is made, as before.
func TestOlderReceiver(t *testing.T) {
	p := newPair(t, 2<<20)
	o, err := p.donor.Open(t.Context(), receiverNode, Question{Range: testRange, Least: 1})
	if err != nil || o.Set == nil {
		t.Fatalf("offer %+v: %v", o, err)
	}
}

// TestFilesAreRemovedOutsideLock: a disk that stalls while files of a set are removed stops no call of the manager.
func TestFilesAreRemovedOutsideLock(t *testing.T) {
	p := newPair(t, 0)
	p.attempt(0)
	if p.removals.Load() == 0 || p.lockedRemovals.Load() > 0 {
		t.Errorf("%d removals, %d of them under the lock", p.removals.Load(), p.lockedRemovals.Load())
	}
}

// TestCleanupKeepsError: when cleaning up fails too, the error of the failure stays first.
func TestCleanupKeepsError(t *testing.T) {
	first := rhumb.E("a", rhumb.Corrupt, "chunk 3 is damaged")
	err := withCleanup(first, errors.New("the disk is gone"))
	if text := err.Error(); rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(text, "chunk 3 is damaged") || !strings.Contains(text, "the disk is gone") {
		t.Errorf("got %q of kind %s", text, rhumb.KindOf(err))
	}
	if withCleanup(first, nil) != error(first) {
		t.Error("an error without a second one has changed")
	}
}
