package check

import (
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// chainOf seals entries into a log: each gets its sequence number, the hash of its predecessor, and
// node 1.
func chainOf(entries ...*entry.Entry) Log {
	var prev entry.Hash
	for i, e := range entries {
		e.Seq, e.Prev, e.Node = rhumb.Seq(i+1), prev, 1
		if e.Epoch == 0 {
			e.Epoch = 1
		}
		e.Seal(nil)
		prev = e.Hash
	}
	return Log{Range: testRange, Entries: entries}
}

// entryOf returns an entry with one request that carries out op at a timestamp.
func entryOf(op *Op, hlc int) *entry.Entry {
	r := entry.Request{ID: op.Request, HLC: rhumb.Timestamp(hlc)}
	for _, m := range op.Mutations {
		r.Writes = append(r.Writes, entry.Write{Table: m.Table, Name: m.Name, Value: m.Value})
	}
	return &entry.Entry{Requests: []entry.Request{r}}
}

func start(hlc int) *entry.Entry { return &entry.Entry{Start: rhumb.Timestamp(hlc)} }

func TestAudit(t *testing.T) {
	v := record(t, "v", 1)
	for _, tc := range []struct {
		name, bad string
		res       Result
		seq, ver  int
		log       func(op *Op) Log
	}{
		{"acknowledged and there", "", OK, 2, 5, func(op *Op) Log { return chainOf(start(1), entryOf(op, 5)) }},
		{"acknowledged and lost", "LOST", OK, 2, 5, func(*Op) Log { return chainOf(start(1), start(5)) }},
		{"acknowledged at another place", "differs from its answer", OK, 2, 5, func(op *Op) Log { return chainOf(start(1), start(2), entryOf(op, 5)) }},
		{"acknowledged with another version", "differs from its answer", OK, 2, 5, func(op *Op) Log { return chainOf(start(1), entryOf(op, 6)) }},
		{"applied twice", "applied twice", OK, 2, 5, func(op *Op) Log { return chainOf(start(1), entryOf(op, 5), entryOf(op, 6)) }},
		{"unknown and there", "", Unknown, 0, 0, func(op *Op) Log { return chainOf(start(1), entryOf(op, 5)) }},
		{"unknown and not there", "", Unknown, 0, 0, func(*Op) Log { return chainOf(start(1)) }},
		{"refused and there", "was refused", ConditionFailed, 0, 0, func(op *Op) Log { return chainOf(start(1), entryOf(op, 5)) }},
		{"not applied and there", "was refused", NotApplied, 0, 0, func(op *Op) Log { return chainOf(start(1), entryOf(op, 5)) }},
		{"a no-op that wrote", "no-op changed data", Unchanged, 0, 0, func(op *Op) Log { return chainOf(start(1), entryOf(op, 5)) }},
		{"timestamps go back", "I7", Unknown, 0, 0, func(op *Op) Log { return chainOf(start(6), entryOf(op, 5)) }},
		{"a key is missing", "lacks key", OK, 2, 5, func(op *Op) Log {
			e := entryOf(op, 5)
			e.Requests[0].Writes = nil
			return chainOf(start(1), e)
		}},
		{"a broken chain", "does not follow", OK, 2, 5, func(op *Op) Log {
			l := chainOf(start(1), entryOf(op, 5))
			l.Entries[1].Prev[0]++
			return l
		}},
		{"a changed value", "fails its hash", OK, 2, 5, func(op *Op) Log {
			l := chainOf(start(1), entryOf(op, 5))
			l.Entries[1].Requests[0].Writes[0].Value = record(t, "v", 9)
			return l
		}},
		{"an entry at another place", "does not follow", OK, 2, 5, func(op *Op) Log {
			l := chainOf(start(1), entryOf(op, 5))
			l.Entries[1].Seq = 3
			l.Entries[1].Seal(nil)
			return l
		}},
		{"an entry that follows another one", "does not follow", OK, 2, 5, func(op *Op) Log {
			l := chainOf(start(1), entryOf(op, 5))
			l.Entries[1].Prev[0]++
			l.Entries[1].Seal(nil)
			return l
		}},
		{"an epoch begins at an old timestamp", "I7", Unknown, 0, 0, func(*Op) Log { return chainOf(start(5), start(5)) }},
		{"two requests with one timestamp", "I7", Unknown, 0, 0, func(op *Op) Log { return chainOf(start(5), entryOf(op, 5)) }},
		{"applied twice by one entry", "applied twice", OK, 2, 5, func(op *Op) Log {
			e := entryOf(op, 5)
			e.Requests = append(e.Requests, entryOf(op, 6).Requests...)
			return chainOf(start(1), e)
		}},
		{"a name that was generated twice", "generated twice", Unknown, 0, 0, func(*Op) Log {
			insert := func(hlc int) *entry.Entry {
				return &entry.Entry{Requests: []entry.Request{{HLC: rhumb.Timestamp(hlc), Names: [][]byte{[]byte("n")}}}}
			}
			return chainOf(start(1), insert(5), insert(6))
		}},
		{"another key instead", "lacks key", OK, 2, 5, func(op *Op) Log {
			e := entryOf(op, 5)
			e.Requests[0].Writes[0].Name = []byte("l")
			return chainOf(start(1), e)
		}},
		{"the key in another table", "lacks key", OK, 2, 5, func(op *Op) Log {
			e := entryOf(op, 5)
			e.Requests[0].Writes[0].Table++
			return chainOf(start(1), e)
		}},
		{"lost by a range that was split off", "LOST", OK, 2, 5, func(*Op) Log {
			l := chainOf(start(1))
			l.Range.Slot, l.Root = 8, testRange
			return l
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var h hist
			op := h.write(0, 10, tc.res, tc.ver, put("k", v))
			if tc.res == OK {
				op.Outcome.Seq = rhumb.Seq(tc.seq)
			}
			wantErr(t, Audit(h.ops, []Log{tc.log(op)}), tc.bad)
		})
	}
}

// TestAuditSplit checks that the parts of a range may both have a request from before it was split,
// and that neither applies one of the other again.
func TestAuditSplit(t *testing.T) {
	var h hist
	v := record(t, "v", 1)
	before := h.write(0, 10, OK, 5, put("k", v))
	before.Outcome.Seq = 2
	after := h.write(11, 20, OK, 6, put("k", v))
	after.Outcome.Seq = 3
	part := func(entries ...*entry.Entry) Log {
		l := chainOf(entries...)
		l.Range, l.Root = rhumb.RangeID{Region: 1, Slot: 8}, testRange
		return l
	}
	for _, tc := range []struct {
		name, bad string
		logs      []Log
	}{
		{"once in all", "", []Log{chainOf(start(1), entryOf(before, 5), entryOf(after, 6)), part(start(1), entryOf(before, 5), start(7))}},
		{"by the part", "", []Log{chainOf(start(1), entryOf(before, 5)), part(start(1), entryOf(before, 5), entryOf(after, 6))}},
		{"by both", "before the range was split", []Log{chainOf(start(1), entryOf(before, 5), entryOf(after, 6)), part(start(1), entryOf(before, 5), start(6), entryOf(after, 7))}},
		{"by neither", "LOST", []Log{chainOf(start(1), entryOf(before, 5)), part(start(1), entryOf(before, 5))}},
	} {
		t.Run(tc.name, func(t *testing.T) { wantErr(t, Audit(h.ops, tc.logs), tc.bad) })
	}
}

// TestReplayMerged checks that of the keys which two ranges have both written, the newest versions
// count.
func TestReplayMerged(t *testing.T) {
	var h hist
	old, next := record(t, "v", 1), record(t, "v", 2)
	left := chainOf(start(1), entryOf(h.write(0, 1, OK, 5, put("a", old), put("b", old)), 5), entryOf(h.write(2, 3, OK, 9, put("b", next)), 9), start(10))
	right := chainOf(start(1), entryOf(h.write(4, 5, OK, 7, put("a", next), put("b", old), put("c", old)), 7))
	left.Merged = []Merged{{At: 4, Log: right}}
	want := State{{1, "a"}: {version(7), next}, {1, "b"}: {version(9), next}, {1, "c"}: {version(7), old}}
	wantErr(t, Replay(left).Equal(want), "")
}

func TestReplayAndDigest(t *testing.T) {
	var h hist
	a := h.write(0, 1, OK, 5, put("a", record(t, "v", 1)))
	b := h.write(2, 3, OK, 6, put("a", record(t, "v", 2)), put("b", record(t, "v", 2)))
	full := Replay(chainOf(start(1), entryOf(a, 5), entryOf(b, 6)))
	if got := full[StateKey{1, "a"}]; got.Version != version(6) || len(full) != 2 {
		t.Fatalf("replay gives %v", full)
	}
	again := Replay(chainOf(start(1), entryOf(a, 5), entryOf(b, 6)))
	if full.Digest() != again.Digest() || full.Equal(again) != nil {
		t.Error("equal logs make different states")
	}
	short := Replay(chainOf(start(1), entryOf(a, 5)))
	if full.Digest() == short.Digest() {
		t.Error("different states have one digest")
	}
	wantErr(t, short.Equal(full), "the log has")
	wantErr(t, full.Equal(State{}), "the log produces")
	// A replica has the right version with another value, or the right value with another version.
	key := StateKey{1, "a"}
	for _, it := range []Item{{version(6), record(t, "v", 1)}, {version(7), record(t, "v", 2)}} {
		again[key] = it
		wantErr(t, again.Equal(full), "the log has")
	}
}

// TestResolve checks that a write of unknown outcome takes its outcome from the log, so that an
// effect that was seen but is missing from the log is detected.
func TestResolve(t *testing.T) {
	var h hist
	v := record(t, "v", 1)
	there := h.write(0, -1, Unknown, 0, put("a", v))
	gone := h.write(0, -1, Unknown, 0, put("b", v))
	noop := h.write(0, -1, Unknown, 0, put("c", v))
	quiet := &entry.Entry{Requests: []entry.Request{{ID: noop.Request, HLC: 6, Noop: true}}}
	logs := []Log{chainOf(start(1), entryOf(there, 5), quiet)}
	ops, err := Resolve(h.ops, logs)
	if err != nil {
		t.Fatal(err)
	}
	if got := ops[0]; got.Result != OK || got.Outcome.Version != version(5) || got.Outcome.Seq != 2 || got.Return != Forever {
		t.Errorf("a write that stands in the log became %v", got)
	}
	if ops[1].Result != NotApplied || ops[2].Result != NotApplied {
		t.Errorf("writes without effect became %v and %v", ops[1], ops[2])
	}
	if gone.Result != Unknown {
		t.Error("the history that was given changed")
	}
	wantErr(t, Linearizable(ops), "")
	h.read(20, 21, "b", 9, v)
	ops, err = Resolve(h.ops, logs)
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, Linearizable(h.ops), "")
	wantErr(t, Linearizable(ops), "not linearizable")
}
