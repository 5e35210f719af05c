package storagetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/storage"
)

// Case is one promise of a store. Do brings the store into a state and syncs every batch. The logs
// that Do returns, and Check if it is set, must hold then and after every restart.
type Case struct {
	Name  string
	Do    func(w *World) []*Log
	Check func(w *World)
}

// Run runs the conformance suite: each case once for each way in which a store may continue after
// it. With own, the stores have logs of their own.
func Run(t *testing.T, own bool) {
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			// What happens between Do and the checks. Since every batch is synced, nothing may be
			// lost, whatever share of the unsynced bytes a crash keeps.
			ends := map[string]func(w *World){
				"at once":        func(*World) {},
				"restarted":      (*World).Restart,
				"verified":       (*World).Verify,
				"crashed, 0 %":   func(w *World) { w.Crash(0) },
				"crashed, 50 %":  func(w *World) { w.Crash(50) },
				"crashed, 100 %": func(w *World) { w.Crash(100) },
				"flushed, crashed": func(w *World) {
					if err := w.Store.Flush(); err != nil {
						w.Fatal(err)
					}
					w.Crash(50)
				},
				// Compactions are where SINGLEDEL and DELETE take effect.
				"compacted, crashed twice": func(w *World) {
					states, err := w.Store.Ranges()
					if err != nil {
						w.Fatal(err)
					}
					for _, st := range states {
						if err := w.Store.Compact(st.Range); err != nil {
							w.Fatal(err)
						}
					}
					w.Crash(20)
					w.Crash(80)
				},
			}
			// Each way gets a store of its own, because a crash affects everything that follows.
			for name, end := range ends {
				t.Run(name, func(t *testing.T) {
					w := NewWorld(t, Seed(t, 1))
					w.OwnLog = own
					w.Start()
					logs := c.Do(w)
					end(w)
					for _, l := range logs {
						if err := l.Check(w.Store); err != nil {
							t.Error(err)
						}
					}
					if c.Check != nil {
						c.Check(w)
					}
					w.Verify()
				})
			}
		})
	}
}

// R is the range of cases that need only one.
var R = rhumb.RangeID{Region: 1, Slot: 7}

// Batch applies a batch and makes it durable.
func (w *World) Batch(do func(b *storage.Batch)) {
	w.Helper()
	b := w.Store.NewBatch()
	do(b)
	if err := b.Apply(); err != nil {
		w.Fatalf("apply: %v", err)
	}
	if err := b.Sync(); err != nil {
		w.Fatalf("sync: %v", err)
	}
}

// Create adds a range to the store and returns its model.
func (w *World) Create(id rhumb.RangeID) *Log {
	w.Helper()
	w.Batch(func(b *storage.Batch) { b.CreateRange(storage.RangeState{Range: id}) })
	return &Log{ID: id}
}

// Append writes one entry for each request.
func (w *World) Append(l *Log, reqs ...entry.Request) {
	w.Helper()
	w.Batch(func(b *storage.Batch) {
		for _, r := range reqs {
			b.Append(l.ID, l.Add(1, 1, r), l.CommitPos())
		}
	})
}

// Collect calls Store.Collect until nothing is left to collect.
func (w *World) Collect(l *Log, lim storage.CollectLimits) (sum storage.Collected) {
	w.Helper()
	for {
		c, err := w.Store.Collect(l.ID, lim)
		if err != nil {
			w.Fatalf("collect: %v", err)
		}
		sum.Entries += c.Entries
		sum.Versions += c.Versions
		sum.Results += c.Results
		sum.Bytes += c.Bytes
		if !c.More {
			return sum
		}
	}
}

// commitAndTrim raises the commit and the trim position to the end of the log.
func (w *World) commitAndTrim(l *Log) {
	w.Helper()
	l.Commit = rhumb.Seq(len(l.Entries))
	l.Trim = l.Commit
	w.Batch(func(b *storage.Batch) {
		b.SetCommit(l.ID, l.CommitPos())
		b.Trim(l.ID, l.Trim)
	})
}

// everything is the limit of a collection while no read is in progress.
var everything = storage.CollectLimits{Before: storage.Newest}

// cases are the promises of a store, from appends to collection and dropping. Each case names the
// promise; a comment says why a store could break it.
var cases = []Case{
	{Name: "empty range", Do: func(w *World) []*Log { return []*Log{w.Create(R)} }},
	{Name: "append", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Append(l, Put("a", "1"), Put("b", "2"), Put("a", "3"), Del("b"), Put("\x00\xff", ""), Put("", "no name"))
		return []*Log{l}
	}},
	// The versions of one key in one batch differ only in their timestamps.
	{Name: "one entry of several requests writes a key twice", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Batch(func(b *storage.Batch) {
			// One batch holds three versions of one key, under three timestamps.
			b.Append(R, l.Add(1, 1, Put("k", "first"), Del("k"), Put("k", "third")), l.CommitPos())
		})
		return []*Log{l}
	}},
	{Name: "several tables and ranges in one batch", Do: func(w *World) []*Log {
		a, b := w.Create(R), w.Create(rhumb.RangeID{Region: 1, Slot: 8})
		w.Batch(func(batch *storage.Batch) {
			for _, l := range []*Log{a, b} {
				req := Put("x", "t1")
				for t := rhumb.TableID(2); t <= 3; t++ {
					req.Writes = append(req.Writes, entry.Write{Table: t, Name: []byte("x"), Value: rhumb.EncodeOpaque(nil, []byte{byte(t)})})
				}
				batch.Append(l.ID, l.Add(1, 1, req), l.CommitPos())
			}
		})
		return []*Log{a, b}
	}},
	// A crash may lose a commit position that has a key of its own, but not one that a synced
	// record carries.
	{Name: "records carry the commit position, a lower bound", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Append(l, Put("a", "1"), Put("a", "2"))
		l.Commit = 2
		w.Append(l, Put("a", "3"))
		// A position below the recorded one must be ignored: commit positions never go back.
		w.Batch(func(b *storage.Batch) { b.SetCommit(R, storage.Commit{Seq: 1, HLC: l.At(1)}) })
		return []*Log{l}
	}, Check: func(w *World) {
		if st, _ := w.Store.State(R); st.Commit != 2 {
			w.Errorf("commit is %d, want 2", st.Commit)
		}
	}},
	{Name: "promise, epoch start and lineage", Do: func(w *World) []*Log {
		l := w.Create(R)
		l.Promised = 7
		w.Batch(func(b *storage.Batch) {
			b.SetPromised(R, 7)
			b.SetPromised(R, 5) // ignored
			// Entries without requests start an epoch. The lineage must list both epochs.
			b.Append(R, l.Add(3, 1), storage.Commit{})
			b.Append(R, l.Add(7, 2), storage.Commit{})
			b.Append(R, l.Add(7, 2, Put("a", "1")), storage.Commit{})
		})
		return []*Log{l}
	}},
	// Undo deletes versions and does not write old values back, so the older versions must still
	// exist.
	{Name: "undo makes older versions the newest again", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Append(l, Put("a", "old"), Put("b", "old"))
		// The undone entries overwrite, delete and create a key, and one of them has a request id.
		w.Append(l, Put("a", "new"), Del("b"), withID(Put("c", "new"), 1))
		w.Batch(func(b *storage.Batch) { mustUndo(w, b, R, 2) })
		l.Undo(2)
		return []*Log{l}
	}, Check: func(w *World) {
		if _, found, err := w.Store.Dedup(R, rhumb.RequestID{Seq: 1}); found || err != nil {
			w.Errorf("the result of an undone request exists: %v %v", found, err)
		}
	}},
	// A version is set, deleted and set again before SINGLEDEL deletes it (docs/replication.md#entries).
	{Name: "undo, then append the same entries again", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Append(l, Put("a", "1"), Put("a", "2"))
		again := l.Entries[1]
		w.Batch(func(b *storage.Batch) {
			mustUndo(w, b, R, 1)
			b.Append(R, again, storage.Commit{})
		})
		w.commitAndTrim(l)
		w.Append(l, Put("a", "3"), Put("a", "4"))
		w.commitAndTrim(l)
		w.Collect(l, everything)
		return []*Log{l}
	}},
	// Such entries are not in the database yet, so undo must find them in the batch.
	{Name: "undo of what the same batch appended", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Append(l, Put("a", "1"))
		w.Batch(func(b *storage.Batch) {
			b.Append(R, l.Add(1, 1, Put("a", "2")), l.CommitPos())
			b.Append(R, l.Add(1, 1, Put("a", "3")), l.CommitPos())
			mustUndo(w, b, R, 2)
			l.Undo(2)
			b.Append(R, l.Add(2, 2, Put("a", "4")), l.CommitPos())
			mustUndo(w, b, R, 1)
			l.Undo(1)
			b.Append(R, l.Add(3, 3, Put("a", "5")), l.CommitPos())
		})
		return []*Log{l}
	}},
	// The record that carried the commit position is deleted, so the position needs its own key.
	{Name: "undo keeps the commit position of undone records", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Append(l, Put("a", "1"), Put("a", "2"))
		l.Commit = 2
		w.Append(l, Put("a", "3"))
		w.Batch(func(b *storage.Batch) { mustUndo(w, b, R, 2) })
		l.Undo(2)
		return []*Log{l}
	}, Check: func(w *World) {
		if st, _ := w.Store.State(R); st.Commit != 2 {
			w.Errorf("commit is %d, want 2", st.Commit)
		}
	}},
	// The end of the log becomes the entry at the trim position, so collection must have kept its
	// record.
	{Name: "undo right above the trim position after collection", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Append(l, Put("a", "1"), Put("a", "2"), Put("a", "3"))
		w.commitAndTrim(l)
		// Collection has removed the records before the trim position. The one at it is the new end
		// of the log.
		w.Append(l, Put("a", "4"), Del("a"))
		w.Collect(l, everything)
		w.Batch(func(b *storage.Batch) { mustUndo(w, b, R, 3) })
		l.Undo(3)
		w.Append(l, Put("a", "5"))
		return []*Log{l}
	}},
	// An uncommitted entry may still be undone, which needs its record.
	{Name: "trim never passes commit", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Append(l, Put("a", "1"), Put("a", "2"), Put("a", "3"))
		l.Commit, l.Trim = 2, 2
		w.Batch(func(b *storage.Batch) {
			b.SetCommit(R, l.CommitPos())
			b.Trim(R, 3)
			b.Trim(R, 1) // ignored
		})
		w.Collect(l, everything)
		return []*Log{l}
	}},
	{Name: "collection keeps the versions at the commit position", Do: func(w *World) []*Log {
		l := w.Create(R)
		for i := range 20 {
			w.Append(l, Put("a", fmt.Sprint(i)), Put(fmt.Sprint("k", i%3), fmt.Sprint(i)))
		}
		w.Append(l, Del("k1"), Put("z", "after"))
		w.commitAndTrim(l)
		w.Append(l, Put("k2", "beyond"))
		if c := w.Collect(l, everything); c.Versions == 0 || c.Entries != 41 {
			w.Errorf("collected %+v", c)
		}
		return []*Log{l}
	}, Check: func(w *World) {
		// a: 20 versions, one left; k0: 7, one left; k1: 7 and a tombstone, none left; k2: 6, one left and one beyond trim.
		if n := countVersions(w); n != 5 {
			w.Errorf("%d versions are left, want 5", n)
		}
	}},
	{Name: "collection keeps versions of reads in progress", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Append(l, Put("a", "1"), Put("a", "2"), Put("a", "3"), Put("a", "4"))
		w.commitAndTrim(l)
		w.Collect(l, storage.CollectLimits{Before: l.At(2)})
		return []*Log{l}
	}, Check: func(w *World) {
		f, err := w.Store.Lookup(rhumb.Key{Table: 1, Home: R, Name: []byte("a")}, storage.Newest)
		if err != nil {
			w.Fatal(err)
		}
		if _, err := w.Store.Lookup(rhumb.Key{Table: 1, Home: R, Name: []byte("a")}, f.Version.HLC-3); rhumb.KindOf(err) != rhumb.Unavailable {
			w.Errorf("a read below the floor returns %v, want unavailable", err)
		}
		if _, err := w.Store.Exists(R, []rhumb.Key{{Table: 1, Home: R, Name: []byte("a")}}, f.Version.HLC-3); rhumb.KindOf(err) != rhumb.Unavailable {
			w.Errorf("Exists below the floor returns %v, want unavailable", err)
		}
	}},
	// Each piece collects whole entries. The next piece must not find versions without a record.
	{Name: "collection in small pieces", Do: func(w *World) []*Log {
		l := w.Create(R)
		for i := range 50 {
			w.Append(l, Put(fmt.Sprint("k", i%5), fmt.Sprint(i)))
		}
		w.commitAndTrim(l)
		w.Collect(l, storage.CollectLimits{Before: storage.Newest, WritesMax: 3})
		return []*Log{l}
	}, Check: func(w *World) {
		if n := countVersions(w); n != 6 { // the last entry's own predecessor waits for the next trim
			w.Errorf("%d versions are left, want 6", n)
		}
	}},
	{Name: "tables with history are collected separately", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Append(l, Put("a", "1"), Put("a", "2"), Del("b"), Put("a", "3"), Put("c", "1"), Put("last", ""))
		w.commitAndTrim(l)
		lim := everything
		lim.History = func(rhumb.TableID) time.Duration { return time.Hour }
		if c := w.Collect(l, lim); c.Versions != 0 || c.Entries == 0 {
			w.Errorf("collected %+v of a table with history", c)
		}
		_, c, err := w.Store.CollectHistory(R, 1, l.At(2), nil)
		if err != nil || c.Versions != 1 {
			w.Errorf("collected %+v, want the version superseded at 2: %v", c, err)
		}
		if _, c, err = w.Store.CollectHistory(R, 1, storage.Newest, nil); err != nil || c.Versions != 2 {
			w.Errorf("collected %+v, want one more version and the tombstone: %v", c, err)
		}
		return []*Log{l}
	}},
	{Name: "results of requests", Do: func(w *World) []*Log {
		l := w.Create(R)
		insert := withID(Put("\x00\x00\x00\x00\x00\x00\x00\x01", "x"), 1)
		// A result with a name from the server, one of a request that changed nothing, and one
		// whose bits fill more than two bytes.
		insert.Names = [][]byte{insert.Writes[0].Name, {}}
		noop := withID(entry.Request{Noop: true, Existed: []bool{true}}, 2)
		many := withID(Put("m", "x"), 3)
		many.Existed = make([]bool, 17)
		many.Existed[0], many.Existed[16] = true, true
		w.Append(l, insert, noop, many)
		return []*Log{l}
	}},
	// A result must outlive its entry in the log: the entry may be sent again, and a repetition of
	// the request must not be applied again.
	{Name: "results expire by log time, once their entry is trimmed", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Append(l, withID(Put("a", "old, trimmed"), 1))
		w.commitAndTrim(l)
		w.Append(l, withID(Put("a", "old, not trimmed"), 2))
		l.HLC = l.HLC.Add(2 * rhumb.DedupKeep)
		w.Append(l, withID(Put("a", "young"), 3))
		l.Commit = 3
		l.Expired = l.At(1)
		w.Batch(func(b *storage.Batch) { b.SetCommit(R, l.CommitPos()) })
		if c := w.Collect(l, everything); c.Results != 1 {
			w.Errorf("collected %+v, want one result", c)
		}
		return []*Log{l}
	}},
	{Name: "the last request of a client while its results are collected", Do: func(w *World) []*Log {
		if last, err := w.Store.RequestWindow(R, rhumb.UUID{}); last != (storage.RequestWindow{}) || err != nil {
			w.Errorf("the window of a range that does not exist is %+v: %v", last, err)
		}
		l := w.Create(R)
		other := rhumb.RequestID{Client: rhumb.UUID{9}, Seq: 40}
		stranger := Put("c", "another client's")
		stranger.ID = other
		w.Append(l, withID(Put("a", "1"), 7), withID(Put("a", "2"), 5), stranger, withID(Put("b", "undone"), 8))
		w.Batch(func(b *storage.Batch) { mustUndo(w, b, R, 3) })
		l.Undo(3)
		windowIs := func(want storage.RequestWindow) {
			w.Helper()
			if got, err := w.Store.RequestWindow(R, rhumb.UUID{}); got != want || err != nil {
				w.Errorf("the window is %+v, want %+v: %v", got, want, err)
			}
		}
		windowIs(storage.RequestWindow{Last: 7, Stored: 0b101})
		forgotten := w.Store.Forgotten(R)
		w.commitAndTrim(l)
		l.HLC = l.HLC.Add(2 * rhumb.DedupKeep)
		w.Append(l, Put("last", ""))
		l.Commit, l.Expired = 4, l.At(3)
		w.Batch(func(b *storage.Batch) { b.SetCommit(R, l.CommitPos()) })
		if c := w.Collect(l, storage.CollectLimits{Before: storage.Newest, WritesMax: 1}); c.Results != 3 {
			w.Errorf("collected %+v, want three results", c)
		}
		windowIs(storage.RequestWindow{Last: 7, Floor: 7})
		if w.Store.Forgotten(R) == forgotten {
			w.Errorf("results were deleted, and Forgotten is still %d", forgotten)
		}
		for client, want := range map[rhumb.UUID]uint64{{}: 7, other.Client: 40, {1}: 0} {
			if floor, err := w.Store.RequestFloor(R, client); floor != want || err != nil {
				w.Errorf("the floor of client %s is %d, want %d: %v", client, floor, want, err)
			}
		}
		return []*Log{l}
	}},
	{Name: "floors of clients expire after a day", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Append(l, withID(Put("a", "1"), 1))
		for _, pause := range []time.Duration{2 * rhumb.DedupKeep, rhumb.DedupFloorKeep} {
			w.commitAndTrim(l)
			l.HLC = l.HLC.Add(pause)
			w.Append(l, Put("last", ""))
			l.Commit++
			w.Batch(func(b *storage.Batch) { b.SetCommit(R, l.CommitPos()) })
			w.Collect(l, everything)
		}
		if last, err := w.Store.RequestWindow(R, rhumb.UUID{}); last != (storage.RequestWindow{}) || err != nil {
			w.Errorf("the window is %+v: %v", last, err)
		}
		return nil
	}},
	{Name: "drop", Do: func(w *World) []*Log {
		other := w.Create(rhumb.RangeID{Region: 1, Slot: 6})
		l := w.Create(R)
		w.Append(other, Put("a", "stays"))
		w.Append(l, Put("a", "goes"))
		w.Batch(func(b *storage.Batch) { b.DropRange(R) })
		if _, err := w.Store.Collect(R, everything); err != nil {
			w.Errorf("collection of a dropped range: %v", err)
		}
		return []*Log{other}
	}, Check: func(w *World) {
		if _, ok := w.Store.State(R); ok || countVersions(w) != 1 {
			w.Error("the dropped range still exists")
		}
	}},
	// The range deletion of the drop must not cover writes of the new replica.
	{Name: "drop and create again", Do: func(w *World) []*Log {
		l := w.Create(R)
		w.Append(l, Put("a", "1"), withID(Put("b", "2"), 1))
		w.Batch(func(b *storage.Batch) { b.DropRange(R) })
		l = w.Create(R)
		w.Append(l, Put("a", "3"))
		return []*Log{l}
	}},
	// No record exists at the base, so its position, timestamp and totals are in the state keys.
	{Name: "a range that begins in the middle of a log", Do: func(w *World) []*Log {
		full := &Log{ID: R}
		for i := range 5 {
			full.Add(2, 1, Put("a", fmt.Sprint(i)))
		}
		last, hlc := full.Last()
		w.Batch(func(b *storage.Batch) {
			b.CreateRange(storage.RangeState{Range: R, Promised: 2, Last: last, LastHLC: hlc, Commit: last.Seq, CommitHLC: hlc, Lineage: []storage.EpochStart{{Epoch: 2, First: 1}}})
			b.Append(R, full.Add(2, 1, Put("a", "beyond")), storage.Commit{})
		})
		w.Batch(func(b *storage.Batch) { mustUndo(w, b, R, 5) })
		return nil
	}, Check: func(w *World) {
		st, ok := w.Store.State(R)
		if !ok || st.Last.Seq != 5 || st.Commit != 5 || st.Trim != 5 || len(st.Lineage) != 1 {
			w.Errorf("state is %+v", st)
		}
	}},
	{Name: "local keys", Do: func(w *World) []*Log {
		l := w.Store.Local(storage.SpaceRaft)
		b := l.NewBatch()
		for i := range 10 {
			b.Set([]byte{byte(i), 0}, []byte{byte(i)})
		}
		mustCommit(w, b)
		b = l.NewBatch()
		b.Delete([]byte{0, 0})
		b.DeleteRange([]byte{3, 0}, []byte{6, 0})
		b.DeleteRange([]byte{9}, nil)
		mustCommit(w, b)
		if err := w.Store.Local(storage.SpaceRaft+1).Set([]byte("k"), nil); err != nil {
			w.Fatal(err)
		}
		return nil
	}, Check: func(w *World) {
		var got []byte
		for p, err := range w.Store.Local(storage.SpaceRaft).Scan(nil, nil) {
			if err != nil {
				w.Fatal(err)
			}
			got = append(got, p.Value...)
		}
		if string(got) != "\x01\x02\x06\x07\x08" {
			w.Errorf("local keys hold %x", got)
		}
		if v, ok, err := w.Store.Local(storage.SpaceRaft + 1).Get([]byte("k")); !ok || len(v) != 0 || err != nil {
			w.Errorf("empty local value: %x %v %v", v, ok, err)
		}
		if _, ok, err := w.Store.Local(storage.SpaceRaft).Get([]byte{0, 0}); ok || err != nil {
			w.Errorf("deleted local key: %v %v", ok, err)
		}
	}},
	{Name: "identity", Do: func(w *World) []*Log {
		if err := w.Store.SetIdentity(rhumb.UUID{1}, 3); err != nil {
			w.Fatal(err)
		}
		return nil
	}, Check: func(w *World) {
		id := w.Store.Identity()
		if id.Cluster != (rhumb.UUID{1}) || id.Node != 3 || id.Store.IsZero() || id.Boot == 0 {
			w.Errorf("identity is %+v", id)
		}
		if err := w.Store.SetIdentity(rhumb.UUID{1}, 3); err != nil {
			w.Errorf("the same identity again: %v", err)
		}
		if err := w.Store.SetIdentity(rhumb.UUID{2}, 3); rhumb.KindOf(err) != rhumb.WrongCluster {
			w.Errorf("another cluster: %v", err)
		}
	}},
}

func withID(r entry.Request, seq uint64) entry.Request {
	r.ID = rhumb.RequestID{Seq: seq}
	return r
}

func mustUndo(w *World, b *storage.Batch, id rhumb.RangeID, above rhumb.Seq) {
	w.Helper()
	if err := b.Undo(id, above); err != nil {
		w.Fatalf("undo: %v", err)
	}
}

func mustCommit(w *World, b *storage.LocalBatch) {
	w.Helper()
	if err := b.Commit(true); err != nil {
		w.Fatalf("commit: %v", err)
	}
}

// countVersions collects all ranges, which a crash may have undone, and counts the versions that are left in the store.
func countVersions(w *World) int64 {
	w.Helper()
	states, err := w.Store.Ranges()
	if err != nil {
		w.Fatal(err)
	}
	for _, st := range states {
		w.Collect(&Log{ID: st.Range}, everything)
	}
	w.Stop()
	rep, err := storage.Verify(Dir, w.Mem)
	if err != nil {
		w.Fatal(err)
	}
	w.Start()
	return rep.Versions
}
