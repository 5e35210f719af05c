package replica

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// makeLog returns entries with the given epochs. An entry that begins an epoch is its epoch-start
// entry.
func makeLog(epochs ...rhumb.Epoch) []*entry.Entry {
	var out []*entry.Entry
	prev := entry.Position{}
	for i, epoch := range epochs {
		e := &entry.Entry{Epoch: epoch, Node: rhumb.NodeID(epoch), Seq: prev.Seq + 1, Prev: prev.Hash}
		if epoch != prev.Epoch {
			e.Start = rhumb.Timestamp(10*i + 10)
		} else {
			e.Requests = []entry.Request{{HLC: rhumb.Timestamp(10*i + 10), Writes: []entry.Write{{
				Table: 1, Name: []byte{'k', byte('0' + i)}, Value: rhumb.EncodeOpaque(nil, []byte("v")),
			}}}}
		}
		e.Seal(nil)
		prev = e.Position()
		out = append(out, e)
	}
	return out
}

// at returns the position of the n-th entry of a log, or the place before the first for 0.
func at(log []*entry.Entry, n int) entry.Position {
	if n == 0 {
		return entry.Position{}
	}
	return log[n-1].Position()
}

// follower returns node 2 with a log, a commit position and a promise on its disk.
func follower(log []*entry.Entry, commit rhumb.Seq, promised rhumb.Epoch) *Replica {
	d := testDisk{promised: promised, commit: commit, entries: log}
	return New(Config{Range: testRange, Self: 2}, d.durable())
}

// leader returns node 1 as primary of epoch 1 with the given sets. Its log is the epoch-start entry
// and n more, all durable here and acknowledged by nobody.
func leader(t *testing.T, cfg Config, n int, replicas, inSync []rhumb.NodeID) *Replica {
	t.Helper()
	cfg.Range, cfg.Self = testRange, 1
	r := New(cfg, Durable{})
	for _, p := range replicas {
		r.Peer(time.Second, p, true, false)
	}
	r.Describe(&rhumb.Range{ID: testRange, Epoch: 1, Allocated: 1, Version: 1, Primary: 1, InSync: inSync, Replicas: replicas})
	flush(r)
	r.Activate(100)
	for i := range n {
		r.Propose(100, Proposal{Token: uint64(i + 1), Batch: putBatch("k", "v")})
		flush(r)
	}
	flush(r)
	return r
}

// flush takes Readys and makes them durable until there are none, and returns all of them as one.
func flush(r *Replica) Ready {
	var all Ready
	for r.HasReady() {
		rd := r.Ready()
		r.Persisted(rd.Batch)
		all.Messages = append(append(all.Messages, rd.Messages...), rd.AfterSync...)
		all.Append = append(all.Append, rd.Append...)
		all.Answers = append(all.Answers, rd.Answers...)
		all.Meta = append(all.Meta, rd.Meta...)
		all.Fetch = append(all.Fetch, rd.Fetch...)
		all.Commit = max(all.Commit, rd.Commit)
		if rd.UndoAbove != nil {
			all.UndoAbove = rd.UndoAbove
		}
	}
	return all
}

func putBatch(name, value string) *rhumb.Batch {
	return &rhumb.Batch{Range: testRange, Mutations: []rhumb.Mutation{{
		Kind: rhumb.Put, Table: 1, Name: []byte(name), Value: rhumb.EncodeOpaque(nil, []byte(value)),
	}}}
}

// promise returns the Promise of a member whose log ends at last.
func promise(from rhumb.NodeID, epoch rhumb.Epoch, last entry.Position, commit rhumb.Seq) Message {
	return Message{Kind: Promise, Range: testRange, From: from, To: 1, Epoch: epoch, Prev: last, Commit: commit}
}

func ack(from rhumb.NodeID, epoch rhumb.Epoch, match rhumb.Seq) Message {
	return Message{Kind: Ack, Range: testRange, From: from, To: 1, Epoch: epoch, Match: match}
}

func step(t *testing.T, r *Replica, m Message) {
	t.Helper()
	if err := r.Step(m); err != nil {
		t.Fatal(err)
	}
}

// TestRuleA checks how a secondary responds to an Append, depending on its log (rules A and T).
func TestRuleA(t *testing.T) {
	// n2's log has the epochs 1 1 1 2 2. The log of the primary of epoch 3 agrees up to the third
	// entry.
	mine, theirs := makeLog(1, 1, 1, 2, 2), makeLog(1, 1, 1, 3, 3, 3)
	forged := *mine[3]
	forged.Start++
	forged.Seal(nil)
	late := *theirs[3]
	late.Start = mine[2].LastHLC()
	late.Seal(nil)
	cases := []struct {
		name     string
		commit   rhumb.Seq // of n2
		promised rhumb.Epoch
		epoch    rhumb.Epoch
		prev     entry.Position
		entries  []*entry.Entry
		told     rhumb.Seq // the primary's commit
		want     string
	}{
		{"extends", 3, 3, 3, at(mine, 5), nil, 4, "commit 4; ack match 5"},
		{"a prefix acknowledges only itself", 1, 3, 3, at(theirs, 1), theirs[1:2], 2, "commit 2; ack match 2"},
		{"commit is not told beyond the append", 1, 3, 3, at(theirs, 1), theirs[1:2], 6, "commit 2; ack match 2"},
		{"conflict is undone", 3, 3, 3, at(theirs, 3), theirs[3:6], 3, "undo above 3; append 4-6; ack match 6"},
		{"overlap and conflict", 2, 2, 3, at(theirs, 1), theirs[1:5], 4, "undo above 3; append 4-5; commit 4; ack match 5"},
		{"a gap is refused with the end", 3, 3, 3, at(theirs, 6), nil, 0, "nack reject 6, has 2:5"},
		{"a conflict before is refused with the lineage", 1, 3, 3, at(theirs, 5), theirs[5:6], 0, "nack reject 5, has 2:4"},
		{"the hint is not below commit", 4, 3, 3, at(makeLog(1, 1, 1, 1, 3), 5), nil, 0, "nack reject 5, has 2:4"},
		{"an old epoch is fenced", 3, 4, 3, at(theirs, 3), theirs[3:4], 4, "nack promised 4"},
		{"a committed entry is not undone", 4, 3, 3, at(theirs, 3), theirs[3:4], 4, "nack contradicts at 4,"},
		{"a committed place is not other", 4, 3, 3, at(theirs, 4), theirs[4:5], 4, "nack contradicts at 4,"},
		{"one epoch and place, two contents", 3, 3, 3, at(theirs, 3), []*entry.Entry{&forged}, 3, "nack quarantined; invariant I2"},
		{"one epoch and place before, two contents", 3, 3, 3, forged.Position(), nil, 3, "nack quarantined; invariant I2"},
		{"an epoch cannot undo itself", 3, 2, 2, at(makeLog(1, 1, 1, 1), 3), makeLog(1, 1, 1, 1)[3:4], 3, "nack quarantined; rule T"},
		{"timestamps must grow", 3, 3, 3, at(theirs, 3), []*entry.Entry{&late}, 3, "undo above 3; nack quarantined; invariant I7"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := follower(mine, tc.commit, tc.promised)
			step(t, r, Message{
				Kind: Append, Range: testRange, From: 1, To: 2, Epoch: tc.epoch, Prev: tc.prev, Entries: tc.entries, Commit: tc.told,
			})
			if got := describeFlush(r); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// describeFlush describes the actions of a secondary.
func describeFlush(r *Replica) string {
	rd := flush(r)
	var parts []string
	if rd.UndoAbove != nil {
		parts = append(parts, fmt.Sprintf("undo above %d", *rd.UndoAbove))
	}
	if n := len(rd.Append); n > 0 {
		parts = append(parts, fmt.Sprintf("append %d-%d", rd.Append[0].Seq, rd.Append[n-1].Seq))
	}
	if rd.Commit > 0 {
		parts = append(parts, fmt.Sprintf("commit %d", rd.Commit))
	}
	for i := range rd.Messages {
		s := describeMessage(&rd.Messages[i])
		s = s[strings.Index(s, " ")+1:]
		kind, rest, _ := strings.Cut(s, " epoch ")
		_, rest, _ = strings.Cut(rest, " ")
		rest, _, _ = strings.Cut(rest, " commit")
		parts = append(parts, kind+" "+rest)
	}
	if why := r.Status().Quarantine; why != "" {
		parts = append(parts, why[:strings.Index(why, ":")])
		parts[len(parts)-1] = strings.TrimSuffix(parts[len(parts)-1], ":")
	}
	return strings.Join(parts, "; ")
}

// TestPersistedOfUndone guards that the sync of an undone entry does not count for the one in its
// place.
func TestPersistedOfUndone(t *testing.T) {
	base, old, young := makeLog(1, 1), makeLog(1, 1, 1), makeLog(1, 1, 3)
	r := follower(base, 1, 1)
	step(t, r, Message{Kind: Append, Range: testRange, From: 1, To: 2, Epoch: 1, Prev: at(base, 2), Entries: old[2:]})
	first := r.Ready()
	step(t, r, Message{Kind: Append, Range: testRange, From: 3, To: 2, Epoch: 3, Prev: at(base, 2), Entries: young[2:]})
	second := r.Ready()
	if len(first.AfterSync) != 1 || len(second.AfterSync) != 1 || second.UndoAbove == nil {
		t.Fatalf("got %+v and %+v", first, second)
	}
	r.Persisted(first.Batch)
	if d := r.Status().Durable; d != 2 {
		t.Errorf("durable is %d after the undone entry was synced, want 2", d)
	}
	r.Persisted(second.Batch)
	if d := r.Status().Durable; d != 3 {
		t.Errorf("durable is %d, want 3", d)
	}
}

// TestRuleC checks when a position is committed: once the in-sync set, the pending set and this
// node's own disk have it, and not below the epoch-start entry.
func TestRuleC(t *testing.T) {
	cases := []struct {
		name   string
		inSync []rhumb.NodeID
		match2 rhumb.Seq
		match3 rhumb.Seq
		want   rhumb.Seq
	}{
		{"everyone", []rhumb.NodeID{1, 2, 3}, 3, 3, 3},
		{"the slowest decides", []rhumb.NodeID{1, 2, 3}, 3, 2, 2},
		{"one has nothing", []rhumb.NodeID{1, 2, 3}, 3, 0, 0},
		{"learners do not count", []rhumb.NodeID{1, 2}, 3, 0, 3},
		{"a set below min_insync commits nothing", []rhumb.NodeID{1}, 3, 3, 0},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := leader(t, Config{JoinWithinBytes: 1}, 2, []rhumb.NodeID{1, 2, 3}, tc.inSync)
			for n, match := range map[rhumb.NodeID]rhumb.Seq{2: tc.match2, 3: tc.match3} {
				if match > 0 {
					step(t, r, ack(n, 1, match))
				}
			}
			if got := r.commit; got != tc.want {
				t.Errorf("commit is %d, want %d", got, tc.want)
			}
		})
	}
}

// TestCommitNotBelowStart guards that entries of earlier epochs are committed only by an entry of
// this one (rule C).
func TestCommitNotBelowStart(t *testing.T) {
	d := testDisk{promised: 1, commit: 1, entries: makeLog(1, 1, 1)}
	r := New(Config{Range: testRange, Self: 1}, d.durable())
	r.Peer(0, 2, true, false)
	r.Describe(&rhumb.Range{ID: testRange, Epoch: 2, Version: 2, Primary: 1, InSync: []rhumb.NodeID{1, 2}, Replicas: []rhumb.NodeID{1, 2}})
	flush(r)
	step(t, r, promise(2, 2, at(d.entries, 3), 1))
	flush(r)
	r.Activate(100)
	flush(r)
	step(t, r, ack(2, 2, 3))
	if _, commit, readable := r.Readable(); commit != 1 || readable {
		t.Errorf("after an ack below start: commit %d, readable %v, want 1, false", commit, readable)
	}
	step(t, r, ack(2, 2, 4))
	if at, commit, readable := r.Readable(); commit != 4 || !readable || at != 100 {
		t.Errorf("after an ack of start: commit %d, at %d, readable %v, want 4, 100, true", commit, at, readable)
	}
}

// TestJoinAtStart guards that a learner joins only with the epoch-start entry, not merely with
// everything committed: an entry below start may have been acknowledged in the epoch before. The
// model breaks the weaker rule in five steps.
func TestJoinAtStart(t *testing.T) {
	d := testDisk{promised: 1, commit: 1, entries: makeLog(1, 1, 1)}
	r := New(Config{Range: testRange, Self: 1, JoinWithinBytes: 1 << 20}, d.durable())
	for _, n := range []rhumb.NodeID{2, 3} {
		r.Peer(0, n, true, false)
	}
	r.Describe(&rhumb.Range{ID: testRange, Epoch: 2, Version: 2, Primary: 1, InSync: []rhumb.NodeID{1, 2}, Replicas: []rhumb.NodeID{1, 2, 3}})
	flush(r)
	step(t, r, promise(2, 2, at(d.entries, 3), 1))
	flush(r)
	r.Activate(100)
	flush(r)
	step(t, r, ack(3, 2, 3))
	if rd := flush(r); len(rd.Meta) != 0 {
		t.Errorf("a learner with the log up to 3 of start 4 is proposed: %+v", rd.Meta)
	}
	if why := r.Status().Peers[1].Why; why != "it has acknowledged the log up to 3 and needs 4" {
		t.Errorf("why is %q", why)
	}
	step(t, r, ack(3, 2, 4))
	rd := flush(r)
	if len(rd.Meta) != 1 || !slices.Equal(rd.Meta[0].New, []rhumb.NodeID{1, 2, 3}) {
		t.Errorf("a learner that holds start is not proposed: %+v", rd.Meta)
	}
}

// TestRuleR checks the life of a pending change: both sets count for commits and leases until the
// version moves.
func TestRuleR(t *testing.T) {
	r := leader(t, Config{}, 1, []rhumb.NodeID{1, 2, 3}, []rhumb.NodeID{1, 2})
	step(t, r, ack(2, 1, 2))
	step(t, r, ack(3, 1, 2))
	rd := flush(r)
	if len(rd.Meta) != 1 || rd.Meta[0].Version != 1 || !slices.Equal(r.LeaseSet(), []rhumb.NodeID{2, 3}) {
		t.Fatalf("meta %+v, lease set %v", rd.Meta, r.LeaseSet())
	}
	r.Propose(200, Proposal{Token: 9, Batch: putBatch("k", "w")})
	flush(r)
	step(t, r, ack(2, 1, 3))
	if r.commit != 2 {
		t.Errorf("commit is %d without the joining node, want 2", r.commit)
	}
	// The unchanged record proves nothing: the proposal may still be under way.
	r.Describe(&rhumb.Range{ID: testRange, Epoch: 1, Version: 1, Primary: 1, InSync: []rhumb.NodeID{1, 2}, Replicas: []rhumb.NodeID{1, 2, 3}})
	if r.Status().Pending == nil {
		t.Error("a record of the same version ended the change")
	}
	r.Peer(0, 3, false, true)
	flush(r)
	// A later version without the node settles that the node has not joined.
	r.Describe(&rhumb.Range{ID: testRange, Epoch: 1, Version: 2, Primary: 1, InSync: []rhumb.NodeID{1, 2}, Replicas: []rhumb.NodeID{1, 2, 3}})
	if r.commit != 3 || r.Status().Pending != nil || !slices.Equal(r.LeaseSet(), []rhumb.NodeID{2}) {
		t.Errorf("after version 2: commit %d, pending %v, lease set %v", r.commit, r.Status().Pending, r.LeaseSet())
	}
}

// TestReplacedDisk guards that acknowledgements from before a broken stream do not count for
// joining, since the peer's disk may have been replaced.
func TestReplacedDisk(t *testing.T) {
	r := leader(t, Config{}, 1, []rhumb.NodeID{1, 2, 3}, []rhumb.NodeID{1, 2, 3})
	step(t, r, ack(2, 1, 2))
	step(t, r, ack(3, 1, 2))
	r.Describe(&rhumb.Range{ID: testRange, Epoch: 1, Version: 2, Primary: 1, InSync: []rhumb.NodeID{1, 2}, Replicas: []rhumb.NodeID{1, 2, 3}})
	r.Peer(0, 3, false, false)
	r.Peer(0, 3, true, false)
	if rd := flush(r); len(rd.Meta) != 0 || r.Status().Peers[1].Match != 0 {
		t.Errorf("an old acknowledgement is believed: %+v, %+v", rd.Meta, r.Status().Peers[1])
	}
}

// TestTimestampsGrow guards that the log's timestamps grow strictly whatever the clock says (I7).
func TestTimestampsGrow(t *testing.T) {
	r := leader(t, Config{}, 0, []rhumb.NodeID{1, 2}, []rhumb.NodeID{1, 2})
	for i, ts := range []rhumb.Timestamp{50, 50, 0, 500, 400} {
		r.Propose(ts, Proposal{Token: uint64(i), Batch: putBatch("k", "v")})
	}
	rd := flush(r)
	var got []rhumb.Timestamp
	for _, q := range rd.Append[0].Requests {
		got = append(got, q.HLC)
	}
	if want := []rhumb.Timestamp{101, 102, 103, 500, 501}; !slices.Equal(got, want) {
		t.Errorf("timestamps %v, want %v", got, want)
	}
}

// TestOverlayOutlivesOneReady guards that a base that was read before the last Ready was applied
// does not hide the entries of that Ready, and that the overlay does not hide a newer base.
func TestOverlayOutlivesOneReady(t *testing.T) {
	r := leader(t, Config{}, 0, []rhumb.NodeID{1, 2}, []rhumb.NodeID{1, 2})
	absent := func() *rhumb.Batch {
		b := putBatch("k", "w")
		b.Mutations[0].Cond.Kind = rhumb.IfAbsent
		return b
	}
	r.Propose(200, Proposal{Token: 1, Batch: putBatch("k", "v")})
	r.Ready()
	r.Propose(201, Proposal{Token: 2, Batch: absent(), Base: []Base{{}}})
	if w := r.waiters.queue[len(r.waiters.queue)-1]; rhumb.KindOf(w.err) != rhumb.ConditionFailed {
		t.Errorf("the entry handed out by the last Ready is not seen: %+v", w)
	}
	r.Ready()
	// From here on bases include the entry. This one says that somebody deleted the key.
	r.Propose(202, Proposal{Token: 3, Batch: absent(), Base: []Base{{}}})
	if w := r.waiters.queue[len(r.waiters.queue)-1]; w.err != nil {
		t.Errorf("the overlay hides storage: %v", w.err)
	}
}

// TestRefusals lists the proposals that never enter the log.
func TestRefusals(t *testing.T) {
	patch := putBatch("k", "v")
	patch.Mutations[0] = rhumb.Mutation{Kind: rhumb.Patch, Table: 1, Name: []byte("k"), Value: rhumb.EncodeRecord(nil, nil)}
	insert := putBatch("", "v")
	insert.Mutations[0].Kind = rhumb.Insert
	other := putBatch("k", "v")
	other.Range.Slot++
	cases := []struct {
		name string
		p    Proposal
		want rhumb.Kind
	}{
		{"other range", Proposal{Batch: other}, rhumb.InvalidArgument},
		{"no base", Proposal{Batch: patch}, rhumb.Internal},
		{"no name", Proposal{Batch: insert}, rhumb.Internal},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := leader(t, Config{}, 0, []rhumb.NodeID{1, 2}, []rhumb.NodeID{1, 2})
			end := r.Status().Last
			r.Propose(200, tc.p)
			rd := flush(r)
			if len(rd.Answers) != 1 || rhumb.KindOf(rd.Answers[0].Err) != tc.want || r.Status().Last != end {
				t.Errorf("got %+v", rd.Answers)
			}
		})
	}
}

// TestMergedTooLarge guards that patches that merge to more than an entry holds are rejected before
// all of them are merged.
func TestMergedTooLarge(t *testing.T) {
	r := leader(t, Config{}, 0, []rhumb.NodeID{1, 2}, []rhumb.NodeID{1, 2})
	big := rhumb.EncodeRecord(nil, rhumb.Record{{Name: "big", Value: rhumb.StringField(strings.Repeat("x", rhumb.ValueSizeMax-100))}})
	b := &rhumb.Batch{Range: testRange}
	p := Proposal{Token: 1, Batch: b}
	for i := range 50 {
		b.Mutations = append(b.Mutations, rhumb.Mutation{
			Kind: rhumb.Patch, Table: 1, Name: fmt.Appendf(nil, "k%d", i), Value: rhumb.EncodeRecord(nil, rhumb.Record{{Name: "a", Value: rhumb.Int64Field(1)}}),
		})
		p.Base = append(p.Base, Base{rhumb.Version{HLC: 5, Node: 1}, big})
	}
	r.Propose(200, p)
	step(t, r, ack(2, 1, 1))
	flush(r)
	step(t, r, ack(2, 1, 2))
	rd := flush(r)
	if len(rd.Answers) != 1 || rhumb.KindOf(rd.Answers[0].Err) != rhumb.TooLarge {
		t.Errorf("got %+v", rd.Answers)
	}
}

// TestRejectsMessages guards that a malformed message, or one for another replica, is an error and
// changes nothing.
func TestRejectsMessages(t *testing.T) {
	log := makeLog(1, 1, 1)
	good := Message{Kind: Append, Range: testRange, From: 1, To: 2, Epoch: 1, Prev: at(log, 1), Entries: log[1:]}
	cases := map[string]func(m *Message){
		"other range":   func(m *Message) { m.Range.Slot++ },
		"other node":    func(m *Message) { m.To = 3 },
		"from itself":   func(m *Message) { m.From = 2 },
		"unknown kind":  func(m *Message) { m.Kind = 9 },
		"gap":           func(m *Message) { m.Prev = entry.Position{} },
		"wrong hash":    func(m *Message) { m.Prev.Hash[0]++ },
		"later entries": func(m *Message) { m.Epoch = 0 },
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			r := follower(log[:1], 1, 1)
			m := good
			spoil(&m)
			if err := r.Step(m); err == nil || r.HasReady() {
				t.Errorf("error %v, ready %v", err, r.HasReady())
			}
		})
	}
	r := leader(t, Config{}, 0, []rhumb.NodeID{1, 2}, []rhumb.NodeID{1, 2})
	if err := r.Step(ack(2, 1, 99)); rhumb.KindOf(err) != rhumb.Corrupt {
		t.Errorf("an ack beyond the end: %v", err)
	}
}

// TestRestartedTail guards that a replica learns from storage what it may have to undo, and rejects
// storage that contradicts itself.
func TestRestartedTail(t *testing.T) {
	log := makeLog(1, 1, 2, 2)
	for commit := range rhumb.Seq(5) {
		r := follower(log, commit, 2)
		if s := r.Status(); s.Last != at(log, 4) || s.Commit != commit || s.LastHLC != 40 {
			t.Errorf("commit %d: %+v", commit, s)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a tail with a gap is taken")
		}
	}()
	d := (&testDisk{commit: 1, entries: log}).durable()
	d.Tail = slices.Delete(d.Tail, 1, 2)
	New(Config{Range: testRange, Self: 2}, d)
}

// TestConfigValidate guards that one error lists every fault.
func TestConfigValidate(t *testing.T) {
	if err := (Config{Range: testRange, Self: 1}).Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	err := (Config{MinInSync: -1, EntryBytesMax: rhumb.EntrySizeMax + 1, AppendBytesMax: 9 << 20, TailBytesMax: -1, Retransmit: -1}).Validate()
	if err == nil {
		t.Fatal("nothing is refused")
	}
	for _, want := range []string{"range is not set", "node is not set", "min_in_sync", "entry bytes", "append bytes", "inflight", "a bound is negative", "a duration is negative"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}
