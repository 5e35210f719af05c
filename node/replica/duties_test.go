package replica

import (
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// appendFrom returns an Append of node 1 to node 2.
func appendFrom(epoch rhumb.Epoch, prev entry.Position, entries ...*entry.Entry) Message {
	return Message{Kind: Append, Range: testRange, From: 1, To: 2, Epoch: epoch, Prev: prev, Entries: entries}
}

// TestAckWaitsForThePromise guards that a member acknowledges nothing in an epoch before its promise of the
// epoch is durable, even if it has nothing to write.
func TestAckWaitsForThePromise(t *testing.T) {
	log := makeLog(1, 1)
	r := follower(log, 2, 1)
	step(t, r, appendFrom(2, at(log, 2)))
	first := r.Ready()
	if first.Promised != 2 || len(first.Messages) != 0 || len(first.AfterSync) != 1 {
		t.Fatalf("after the first append: %+v", first)
	}
	step(t, r, appendFrom(2, at(log, 2)))
	if again := r.Ready(); len(again.Messages) != 0 || len(again.AfterSync) != 0 {
		t.Fatalf("a repeated append is acknowledged before the promise is durable: %+v", again)
	}
	r.Persisted(first.Batch)
	if rd := r.Ready(); len(rd.Messages) != 1 || rd.Messages[0].Kind != Ack || rd.Messages[0].Match != 2 {
		t.Errorf("after the sync: %+v, want one ack of 2", rd.Messages)
	}
}

// TestPromiseWaitsForTheLog guards that a member that answers Prepare describes a log that is durable.
func TestPromiseWaitsForTheLog(t *testing.T) {
	log := makeLog(1, 1, 2)
	r := follower(log[:2], 2, 2)
	step(t, r, appendFrom(2, at(log, 2), log[2]))
	first := r.Ready()
	step(t, r, Message{Kind: Prepare, Range: testRange, From: 1, To: 2, Epoch: 2})
	if rd := r.Ready(); len(rd.Messages)+len(rd.AfterSync) != 0 {
		t.Fatalf("a log that is not durable is described: %+v", rd)
	}
	r.Persisted(first.Batch)
	rd := flush(r)
	if len(rd.Messages) != 1 || rd.Messages[0].Kind != Promise || rd.Messages[0].Prev != at(log, 3) {
		t.Errorf("after the sync: %+v, want a promise with %v", rd.Messages, at(log, 3))
	}
}

// TestPromiseReportsLostCommits guards that a member whose disk lost committed entries reports how far it knew
// the log as committed, without a hash that it does not have.
func TestPromiseReportsLostCommits(t *testing.T) {
	log := makeLog(1, 1, 1)
	d := testDisk{promised: 1, commit: 3, entries: log}
	durable := d.durable()
	durable.Known = 9
	r := New(Config{Range: testRange, Self: 2}, durable)
	step(t, r, Message{Kind: Prepare, Range: testRange, From: 1, To: 2, Epoch: 2})
	rd := flush(r)
	if len(rd.Messages) != 1 || rd.Messages[0].Commit != 9 || rd.Messages[0].CommitHash != (entry.Hash{}) {
		t.Errorf("it answers %+v, want commit 9 without a hash", rd.Messages)
	}
}

// candidate returns node 1, elected in epoch 3 with nodes 2 and 3, with a durable promise and no answers.
func candidate(log []*entry.Entry, commit rhumb.Seq) *Replica {
	d := testDisk{promised: 2, commit: commit, entries: log}
	r := New(Config{Range: testRange, Self: 1}, d.durable())
	for _, n := range []rhumb.NodeID{2, 3} {
		r.Peer(time.Second, n, true, false)
	}
	three := []rhumb.NodeID{1, 2, 3}
	r.Describe(&rhumb.Range{ID: testRange, Epoch: 3, Version: 3, Primary: 1, InSync: three, Replicas: three})
	flush(r)
	return r
}

// TestAnswersOfLives guards that the answer of an earlier life does not replace that of a later one, and that
// a later life's answer counts even if it is worse.
func TestAnswersOfLives(t *testing.T) {
	log := makeLog(1, 1, 1)
	r := candidate(log, 1)
	answer := func(life rhumb.BootSeq, n int) {
		m := promise(2, 3, at(log, n), 1)
		m.Life = life
		step(t, r, m)
	}
	for _, tc := range []struct {
		life rhumb.BootSeq
		n    int
		want rhumb.Seq
	}{{7, 2, 2}, {6, 3, 2}, {8, 1, 1}} {
		answer(tc.life, tc.n)
		if got := r.answerOf(2).last.Seq; got != tc.want {
			t.Errorf("after the answer of life %d the log of n2 ends at %d, want %d", tc.life, got, tc.want)
		}
	}
}

// TestStartIsAboveAllClocks guards that a new primary writes above every time that a member has acknowledged
// (docs/replication.md#rule-prepare-clock).
func TestStartIsAboveAllClocks(t *testing.T) {
	log := makeLog(1, 1)
	r := candidate(log, 1)
	for n, clock := range map[rhumb.NodeID]rhumb.Timestamp{2: 9_000, 3: 500} {
		m := promise(n, 3, at(log, 2), 1)
		m.Clock = clock
		step(t, r, m)
	}
	flush(r)
	r.Activate(100)
	if rd := flush(r); len(rd.Append) != 1 || rd.Append[0].Start <= 9_000 {
		t.Errorf("the epoch begins with %+v, want a timestamp above 9000", rd.Append)
	}
}

// TestBestLog guards that the epoch of the last entry decides before the length.
func TestBestLog(t *testing.T) {
	for _, tc := range []struct {
		a, b entry.Position
		want bool
	}{
		{entry.Position{Epoch: 2, Seq: 3}, entry.Position{Epoch: 1, Seq: 9}, true},
		{entry.Position{Epoch: 1, Seq: 9}, entry.Position{Epoch: 2, Seq: 3}, false},
		{entry.Position{Epoch: 2, Seq: 4}, entry.Position{Epoch: 2, Seq: 3}, true},
		{entry.Position{Epoch: 2, Seq: 3}, entry.Position{Epoch: 2, Seq: 3}, false},
	} {
		if got := isLonger(tc.a, tc.b); got != tc.want {
			t.Errorf("a log that ends at %v is better than one that ends at %v: %v", tc.a, tc.b, got)
		}
	}
}

// TestNothingIsUndoneBelowAReport guards that an elected replica that hears of a commit beyond the best log, or
// of another entry there, keeps its own log, although the entries that it asked for have arrived.
func TestNothingIsUndoneBelowAReport(t *testing.T) {
	mine, theirs := makeLog(1, 1, 1), makeLog(1, 1, 2)
	for name, tc := range map[string]struct {
		commit rhumb.Seq
		hash   entry.Hash
		undone bool
	}{
		"a commit beyond it":         {9, entry.Hash{}, false},
		"another entry is committed": {3, entry.Hash{77}, false},
		"the same entry is":          {3, at(theirs, 3).Hash, true},
	} {
		r := candidate(mine, 1)
		step(t, r, promise(2, 3, at(theirs, 3), 1))
		asked := Ready{}
		for now := time.Second; len(asked.Messages) == 0 || asked.Messages[0].Kind != Fetch; now += 50 * time.Millisecond {
			if now > time.Minute {
				t.Fatalf("%s: it does not fetch the better log: %s", name, r.Status().Preparing)
			}
			r.Tick(now)
			asked = flush(r)
			asked.Messages = slices.DeleteFunc(asked.Messages, func(m Message) bool { return m.Kind == Prepare })
		}
		// The logs part before position 3, so the question goes back to 2.
		step(t, r, Message{Kind: Suffix, Range: testRange, From: 2, To: 1, Epoch: 3, Reject: 3, HintEpoch: 1, HintEnd: 2})
		flush(r)
		report := promise(3, 3, at(mine, 1), tc.commit)
		report.CommitHash = tc.hash
		step(t, r, report)
		step(t, r, Message{Kind: Suffix, Range: testRange, From: 2, To: 1, Epoch: 3, Prev: at(theirs, 2), Entries: theirs[2:]})
		rd := flush(r)
		if undone := rd.UndoAbove != nil || r.log.last().Position != at(mine, 3); undone != tc.undone {
			t.Errorf("%s: the log ends at %v, undo %v", name, r.log.last().Position, rd.UndoAbove)
		}
		if _, ready := r.AwaitsActivation(); ready && !tc.undone {
			t.Errorf("%s: the epoch may begin", name)
		}
	}
}

// TestOverlayPrefersNewer guards that the newer of overlay and storage counts, and that a deletion hides both.
func TestOverlayPrefersNewer(t *testing.T) {
	version := func(hlc rhumb.Timestamp) rhumb.Version { return rhumb.Version{HLC: hlc, Node: 1} }
	var o overlay
	o.add(&entry.Write{Table: 1, Name: []byte("k"), Value: []byte("ten")}, version(10))
	o.add(&entry.Write{Table: 1, Name: []byte("gone"), Value: rhumb.Tombstone}, version(10))
	for _, tc := range []struct {
		name string
		base Base
		want string
	}{
		{"k", Base{}, "ten"},
		{"k", Base{version(9), []byte("nine")}, "ten"},
		{"k", Base{version(11), []byte("eleven")}, "eleven"},
		{"gone", Base{version(9), []byte("nine")}, ""},
		{"other", Base{version(9), []byte("nine")}, "nine"},
	} {
		if got := o.newestBase(1, []byte(tc.name), tc.base); string(got.Value) != tc.want {
			t.Errorf("%s over %q is %q, want %q", tc.name, tc.base.Value, got.Value, tc.want)
		}
	}
	if got := o.newestBase(2, []byte("k"), Base{}); got.Value != nil {
		t.Errorf("another table has %q", got.Value)
	}
}

// TestLateAckKeepsProbing guards that only an acknowledgement that reaches the probed place ends a probe.
func TestLateAckKeepsProbing(t *testing.T) {
	var p progress
	p.startProbe(10)
	p.recordAck(5)
	if p.flow != flowProbe || p.match != 5 || p.next != 10 {
		t.Errorf("after a late ack: %s, match %d, next %d", p.flow, p.match, p.next)
	}
	p.recordAck(9)
	if p.flow != flowReplicate || p.match != 9 || p.next != 10 {
		t.Errorf("after the ack of the probe: %s, match %d, next %d", p.flow, p.match, p.next)
	}
}

// TestPeerThatLostData guards what a primary concludes from a member that held more once: a message of an
// earlier life changes nothing, and the loss is shown.
func TestPeerThatLostData(t *testing.T) {
	r := leader(t, Config{}, 2, []rhumb.NodeID{1, 2, 3}, []rhumb.NodeID{1, 2, 3})
	from2 := func(life rhumb.BootSeq, match, commit rhumb.Seq) *progress {
		m := ack(2, 1, match)
		m.Life, m.Commit = life, commit
		step(t, r, m)
		flush(r)
		return r.peer(2)
	}
	if p := from2(6, 3, 9); p.match != 3 || p.commit != 3 {
		t.Fatalf("match %d, commit %d, want 3 and no commit beyond it", p.match, p.commit)
	}
	if p := from2(7, 1, 1); p.match != 1 {
		t.Fatalf("in a new life match is %d, want 1", p.match)
	}
	if p := from2(6, 3, 3); p.match != 1 {
		t.Errorf("an ack of an earlier life raises match to %d", p.match)
	}
	step(t, r, Message{Kind: Nack, Range: testRange, From: 2, To: 1, Life: 7, Epoch: 1, Reject: 3, HintEpoch: 1, HintEnd: 1, Promised: 1})
	flush(r)
	if lost := r.Status().Peers[0].Lost; lost != 3 {
		t.Errorf("the peer lost position %d, want 3", lost)
	}
}

// TestNackTakesNoAckBack guards that the match of a member, which commits rest on, survives a refusal of what
// comes after it.
func TestNackTakesNoAckBack(t *testing.T) {
	r := leader(t, Config{}, 2, []rhumb.NodeID{1, 2}, []rhumb.NodeID{1, 2})
	step(t, r, ack(2, 1, 2))
	flush(r)
	step(t, r, Message{Kind: Nack, Range: testRange, From: 2, To: 1, Epoch: 1, Reject: 3, HintEpoch: 1, HintEnd: 1, Promised: 1})
	flush(r)
	if p := r.peer(2); p.match != 2 || p.next <= 2 {
		t.Errorf("match %d, next %d after a refusal, want 2 and more", p.match, p.next)
	}
}

// TestMemberAcceptsAgain guards that a member that refused entries counts as fit once it acknowledges new ones.
func TestMemberAcceptsAgain(t *testing.T) {
	r := leader(t, Config{}, 1, []rhumb.NodeID{1, 2}, []rhumb.NodeID{1, 2})
	step(t, r, Message{Kind: Nack, Range: testRange, From: 2, To: 1, Epoch: 1, Reject: 1, Promised: 1, Refused: RefusedDisk})
	if r.peer(2).isFit() {
		t.Fatal("a member that refuses entries counts as fit")
	}
	step(t, r, ack(2, 1, 2))
	if !r.peer(2).isFit() {
		t.Error("a member that accepts entries again does not count as fit")
	}
}

// TestBlamedPrimaryKeepsItsSet guards that a primary whose timestamps half of the set refuse removes nobody,
// although enough others would remain: its own clock must be wrong.
func TestBlamedPrimaryKeepsItsSet(t *testing.T) {
	four := []rhumb.NodeID{1, 2, 3, 4}
	for _, refusing := range [][]rhumb.NodeID{{4}, {3, 4}} {
		r := leader(t, Config{MinInSync: 2}, 1, four, four)
		for _, n := range refusing {
			step(t, r, Message{Kind: Nack, Range: testRange, From: n, To: 1, Epoch: 1, Reject: 1, Promised: 1, Refused: RefusedClock})
		}
		removes := slices.ContainsFunc(flush(r).Meta, func(p MetaProposal) bool { return p.Kind == AlterISR })
		if want := len(refusing) == 1; removes != want {
			t.Errorf("%v refuse: a member is removed: %v, want %v", refusing, removes, want)
		}
	}
}

// TestRemovalGoesBeforeJoin guards that a learner that is catching up does not keep a dead member in the set:
// commits wait for both.
func TestRemovalGoesBeforeJoin(t *testing.T) {
	four := []rhumb.NodeID{1, 2, 3, 4}
	r := leader(t, Config{MinInSync: 2}, 2, four, []rhumb.NodeID{1, 2, 3})
	for _, n := range []rhumb.NodeID{2, 3} {
		step(t, r, ack(n, 1, 3))
	}
	step(t, r, ack(4, 1, 1)) // near the end, so it enters the pending set
	flush(r)
	if !slices.Equal(r.Status().Pending, four) {
		t.Fatalf("pending is %v", r.Status().Pending)
	}
	r.Peer(time.Second, 3, true, true)
	rd := flush(r)
	if len(rd.Meta) != 1 || !slices.Equal(rd.Meta[0].New, []rhumb.NodeID{1, 2}) {
		t.Errorf("after a member is suspected: %+v, want the set [n1 n2]", rd.Meta)
	}
}

// TestMessagesKeepTheirEntries guards that entries that are appended later do not overwrite the array of an
// earlier message, which its sender may still use.
func TestMessagesKeepTheirEntries(t *testing.T) {
	log := makeLog(1, 1, 1)
	sentinel := &entry.Entry{Seq: 99}
	sent := []*entry.Entry{log[0], sentinel, sentinel}
	r := New(Config{Range: testRange, Self: 2}, Durable{})
	step(t, r, appendFrom(1, entry.Position{}, sent[:1]...))
	step(t, r, appendFrom(1, at(log, 1), log[1:]...))
	if rd := flush(r); len(rd.Append) != 3 || sent[1] != sentinel || sent[2] != sentinel {
		t.Errorf("%d entries are appended, and the message holds %v", len(rd.Append), sent)
	}
}

// TestUndoKeepsMessages guards the same for entries that replace undone ones before a Ready.
func TestUndoKeepsMessages(t *testing.T) {
	old, young := makeLog(1, 1, 1), makeLog(1, 1, 2)
	sent := slices.Clone(old)
	r := New(Config{Range: testRange, Self: 2}, Durable{})
	step(t, r, appendFrom(1, entry.Position{}, sent...))
	step(t, r, Message{Kind: Append, Range: testRange, From: 3, To: 2, Epoch: 2, Prev: at(young, 2), Entries: young[2:]})
	rd := flush(r)
	if len(rd.Append) != 3 || rd.Append[2].Epoch != 2 || sent[2] != old[2] {
		t.Errorf("%d entries are appended, and the message holds %v in the third place", len(rd.Append), sent[2].Position())
	}
}

// TestTrimKeepsTheEpochBefore guards that the lineage knows the epoch of the trim position: it is the position
// before the first entry that can be sent.
func TestTrimKeepsTheEpochBefore(t *testing.T) {
	for trim, want := range map[rhumb.Seq]rhumb.Epoch{3: 1, 4: 1, 5: 2, 6: 2} {
		l := logState{lineage: []EpochStart{{1, 1}, {2, 5}}, bytes: byteIndex{step: 1, points: []bytePoint{{}}}}
		l.trimTo(trim)
		if got := l.epochAt(trim); got != want {
			t.Errorf("trimmed to %d, its epoch is %d, want %d", trim, got, want)
		}
	}
}
