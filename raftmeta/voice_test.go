package raftmeta

import (
	"slices"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
)

// TestSilentReplicaSendsNothing checks which messages of Raft each state of the proof lets out, and
// which it lets in.
func TestSilentReplicaSendsNothing(t *testing.T) {
	type rights struct{ campaign, vote, acknowledge bool }
	for name, c := range map[string]struct {
		set  func(p *proof)
		want rights
	}{
		"silent":            {func(p *proof) { p.silent = true }, rights{}},
		"admitted to learn": {func(p *proof) { p.silent, p.learner = true, true }, rights{acknowledge: true}},
		"below its floor":   {func(p *proof) { p.silent, p.floor = false, position{9, 9} }, rights{vote: true, acknowledge: true}},
		"taking part":       {func(p *proof) { p.silent = false }, rights{true, true, true}},
	} {
		d, _ := newTestDriver(t, founded(t, 3), nil)
		c.set(d.proof)
		d.campaign.quiet = d.campaign.timeout + 1 // its turn
		for typ, want := range map[raftpb.MessageType]bool{
			raftpb.MsgVote: c.want.campaign, raftpb.MsgPreVote: c.want.campaign,
			raftpb.MsgVoteResp: c.want.vote, raftpb.MsgPreVoteResp: c.want.vote,
			raftpb.MsgAppResp: c.want.acknowledge, raftpb.MsgHeartbeatResp: c.want.acknowledge,
			raftpb.MsgReadIndex: true,
		} {
			if d.maySend(&raftpb.Message{Type: typ.Enum()}) != want {
				t.Errorf("%s: sends %s: %v, want %v", name, typ, !want, want)
			}
		}
		if d.mayReceive(&raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum()}) != c.want.campaign {
			t.Errorf("%s: takes the request to campaign: %v", name, !c.want.campaign)
		}
	}
}

// TestVotesAboveFloor: a replica below its floor votes for a candidate that has what the replica
// may have helped to commit.
func TestVotesAboveFloor(t *testing.T) {
	d, _ := newTestDriver(t, founded(t, 3), nil)
	d.proof.silent, d.proof.floor = false, position{4, 10}
	for last, want := range map[position]bool{{4, 10}: true, {4, 9}: false, {3, 99}: false, {5, 1}: true} {
		for _, typ := range []raftpb.MessageType{raftpb.MsgVote, raftpb.MsgPreVote} {
			m := &raftpb.Message{Type: typ.Enum(), LogTerm: proto.Uint64(last.Term), Index: proto.Uint64(last.Index)}
			if d.mayReceive(m) != want {
				t.Errorf("a %s of a log that ends at %v is taken: %v, want %v", typ, last, !want, want)
			}
		}
	}
}

// TestHeartbeatBeyondTheLog: the leader counts on entries that this replica lost. Raft would panic
// on their commit index, and without the heartbeat the replica would not know its leader.
func TestHeartbeatBeyondTheLog(t *testing.T) {
	d, _ := newTestDriver(t, founded(t, 3), nil)
	last := d.lastPosition().Index
	for commit, want := range map[uint64]uint64{last: last, last + 1: 0} {
		m := &raftpb.Message{
			Type: raftpb.MsgHeartbeat.Enum(), From: proto.Uint64(2), To: proto.Uint64(1), Term: proto.Uint64(5), Commit: proto.Uint64(commit),
		}
		d.stepMessage(inbound{from: 2, message: m})
		if m.GetCommit() != want {
			t.Errorf("a heartbeat with commit %d reaches Raft with %d, want %d", commit, m.GetCommit(), want)
		}
	}
	if err := d.handleReady(); err != nil || d.lead != 2 {
		t.Errorf("the leader is %d, want 2 (%v)", d.lead, err)
	}
}

// TestJudgeAsker is a table of which replicas a leader readmits, and when.
func TestJudgeAsker(t *testing.T) {
	silent, short := question{Life: 5, Silent: true, Last: position{1, 10}}, question{Life: 5, Silent: true, Short: true, Last: position{1, 10}}
	for name, c := range map[string]struct {
		q        question
		match    uint64
		admitted bool
		waited   uint64
		voter    bool
		want     bool
	}{
		"takes part":                        {q: question{Life: 5, Short: true}, match: 99, waited: 1000, voter: true},
		"whole and silent":                  {q: silent, match: 10, waited: 1000, voter: true},
		"the leader counts on more":         {q: silent, match: 11, want: true},
		"short for a while":                 {q: short, waited: readmitAfter - 1, voter: true},
		"short for long":                    {q: short, waited: readmitAfter, voter: true, want: true},
		"admitted, and catching up":         {q: silent, match: 11, admitted: true, waited: readmitAgain - 1},
		"admitted, and counted on for long": {q: silent, match: 11, admitted: true, waited: readmitAgain, want: true},
		"admitted as a learner for long":    {q: short, match: 10, admitted: true, waited: readmitAgain},
		"a voter that stays silent":         {q: short, match: 10, admitted: true, waited: readmitAgain, voter: true, want: true},
	} {
		id := uint64(4) // no voter
		if c.voter {
			id = 2
		}
		d, _ := newTestDriver(t, founded(t, 3), nil)
		d.ticks = 7
		d.judgeAsker(id, question{Life: c.q.Life, Silent: c.q.Silent, Short: c.q.Short, Last: position{1, 1 << 40}}, 0, c.admitted)
		d.ticks += c.waited
		d.judgeAsker(id, c.q, c.match, c.admitted)
		if d.askers[id].lost != c.want {
			t.Errorf("%s: readmitted %v, want %v", name, !c.want, c.want)
		}
	}
}

// TestAskerOfNewLife: the patience of a leader begins with each life, and what is known of the last
// life does not convict it.
func TestAskerOfNewLife(t *testing.T) {
	d, _ := newTestDriver(t, founded(t, 3), nil)
	q := question{Life: 5, Silent: true, Short: true}
	d.judgeAsker(2, q, 0, false)
	d.ticks += readmitAfter
	q.Life = 6
	d.judgeAsker(2, q, 0, false)
	if d.askers[2].lost {
		t.Error("a new life was convicted by the time that the last one waited")
	}
	d.ticks += readmitAfter
	d.judgeAsker(2, q, 0, false)
	if !d.askers[2].lost || !slices.Equal(d.replicasToReadmit(), []uint64{2}) {
		t.Errorf("not readmitted: %+v", d.askers)
	}
}

// TestAdmissions follows the life of a replica through a change of membership: proposed by a
// leader, applied and stored by every member, told to the replica, and known after a restart.
func TestAdmissions(t *testing.T) {
	kv := founded(t, 3)
	d, sent := newTestDriver(t, kv, nil)
	if err := d.answerQuestion(2, question{Life: 77, Silent: true}); err != nil {
		t.Fatal(err)
	}
	context := d.admissionContext([]*raftpb.ConfChangeSingle{
		memberChange(raftpb.ConfChangeAddLearnerNode, 2), memberChange(raftpb.ConfChangeAddNode, 3), memberChange(raftpb.ConfChangeRemoveNode, 2),
	})
	cc := &raftpb.ConfChangeV2{Context: context, Changes: []*raftpb.ConfChangeSingle{memberChange(raftpb.ConfChangeAddLearnerNode, 2)}}
	if got := decodeAdmitted(cc); len(got) != 1 || got[0].node != 2 || got[0].life != 77 {
		t.Fatalf("the change admits %+v, want life 77 of node 2 alone: of 3 no life is known", got)
	}
	d.conf = &raftpb.ConfState{Voters: []uint64{1, 3}, Learners: []uint64{2}}
	if err := d.noteAdmissions(50, cc); err != nil {
		t.Fatal(err)
	}
	if err := d.noteAdmissions(40, cc); err != nil { // an older change, applied again after a restart
		t.Fatal(err)
	}
	want := admission{Life: 77, Index: 50, Learner: true}
	again, _ := newTestDriver(t, kv, nil)
	if d.others[2].Admitted != want || again.others[2].Admitted != want {
		t.Fatalf("stored %+v, and after a restart %+v; want %+v", d.others[2].Admitted, again.others[2].Admitted, want)
	}
	sent.take()
	if err := d.answerQuestion(2, question{Life: 77, Silent: true}); err != nil {
		t.Fatal(err)
	}
	for _, m := range sent.take() {
		if m.message[0] != messageAnswer {
			continue
		}
		if in, err := decodeInbound(1, m.message); err != nil || m.to != 2 || in.answer.Admitted != want {
			t.Errorf("%s is told %+v, %v", m.to, in.answer, err)
		}
		return
	}
	t.Error("the question was not answered")
}

// TestAnswerIsDurable: a replica is told that its life is known only once that outlives a crash. An
// asker that cannot be stored gets no answer.
func TestAnswerIsDurable(t *testing.T) {
	kv := founded(t, 3)
	d, sent := newTestDriver(t, kv, nil)
	if err := d.answerQuestion(2, question{Life: 77}); err != nil {
		t.Fatal(err)
	}
	after, _ := newTestDriver(t, kv.crash(), nil)
	if after.others[2].Life != 77 {
		t.Errorf("after a crash the life of node 2 is %d, want 77", after.others[2].Life)
	}
	sent.take()
	kv.failure = rhumb.E("test", rhumb.DiskFull, "no room")
	if err := d.answerQuestion(3, question{Life: 78}); err == nil || len(sent.take()) != 0 {
		t.Errorf("the life was not stored and the question answered: %v", err)
	}
}

// TestOtherBytesAdmitNobody decodes contexts that no leader of this build wrote.
func TestOtherBytesAdmitNobody(t *testing.T) {
	for _, b := range [][]byte{nil, []byte("etcd"), make([]byte, 15)} {
		if got := decodeAdmitted(&raftpb.ConfChangeV2{Context: b}); len(got) != 0 {
			t.Errorf("%x admits %+v", b, got)
		}
	}
}

// TestTakingPartIsDurable: the silence ends with a vote for the replica itself, on the disk, in the
// greatest term that it may have voted in. It votes for nobody else in that term, also after a
// crash.
func TestTakingPartIsDurable(t *testing.T) {
	kv := founded(t, 3)
	d, sent := newTestDriver(t, kv, nil)
	for from, term := range map[rhumb.NodeID]uint64{2: 7, 3: 4} {
		a := &answer{Life: d.proof.record.Life, Term: term, Last: d.lastPosition(), Applied: d.applied, Voters: []uint64{1, 2, 3}}
		if err := d.handleInbound(inbound{from: from, answer: a}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.handleReady(); err != nil || d.proof.silent {
		t.Fatalf("silent %v, %v", d.proof.silent, err)
	}
	log, err := openLog(kv.crash())
	if err != nil {
		t.Fatal(err)
	}
	if hard, _, _ := log.InitialState(); hard.GetTerm() != 7 || hard.GetVote() != 1 || log.record.Short {
		t.Errorf("after a crash: %v, %+v; want the vote of term 7 for node 1", hard, log.record)
	}
	if err := d.handleReady(); err != nil {
		t.Fatal(err)
	}
	sent.take()
	for _, term := range []uint64{7, 8} {
		last := d.lastPosition()
		d.stepMessage(inbound{from: 2, message: &raftpb.Message{
			Type: raftpb.MsgVote.Enum(), From: proto.Uint64(2), To: proto.Uint64(1), Term: &term, LogTerm: &last.Term, Index: &last.Index,
		}})
		if err := d.handleReady(); err != nil {
			t.Fatal(err)
		}
		granted := false
		for _, s := range sent.take() {
			var m raftpb.Message
			if s.message[0] == messageWhole && proto.Unmarshal(s.message[1:], &m) == nil && m.GetType() == raftpb.MsgVoteResp {
				granted = granted || !m.GetReject()
			}
		}
		if want := term == 8; granted != want {
			t.Errorf("the vote of term %d was given: %v, want %v", term, granted, want)
		}
	}
}

// TestFloorKeepsShort: a replica that takes part below its floor says so on its disk, with the floor, since the
// next start would otherwise look intact. The mark ends, also on the disk, when the log has reached
// the floor.
func TestFloorKeepsShort(t *testing.T) {
	kv := founded(t, 3)
	d, _ := newTestDriver(t, kv, nil)
	last := d.lastPosition()
	for _, from := range []rhumb.NodeID{2, 3} {
		a := &answer{Life: d.proof.record.Life, Term: 1, Last: position{last.Term, last.Index + 1}, Applied: d.applied, Voters: []uint64{1, 2, 3}}
		if err := d.handleInbound(inbound{from: from, answer: a}); err != nil {
			t.Fatal(err)
		}
	}
	want := position{last.Term, last.Index + 1}
	isShort := func() bool {
		if err := d.handleReady(); err != nil {
			t.Fatal(err)
		}
		log, err := openLog(kv.crash())
		if err != nil {
			t.Fatal(err)
		}
		if log.record.Short != (log.record.Floor == want) {
			t.Fatalf("short %v with the floor %v, want %v", log.record.Short, log.record.Floor, want)
		}
		return log.record.Short
	}
	if !isShort() || d.proof.silent || d.proof.mayCampaign() {
		t.Fatalf("below the floor: silent %v, campaigns %v", d.proof.silent, d.proof.mayCampaign())
	}
	d.stepMessage(inbound{from: 2, message: &raftpb.Message{
		Type: raftpb.MsgApp.Enum(), From: proto.Uint64(2), To: proto.Uint64(1), Term: proto.Uint64(2), LogTerm: &last.Term, Index: &last.Index,
		Entries: []*raftpb.Entry{{Term: proto.Uint64(2), Index: proto.Uint64(last.Index + 1)}},
	}})
	if isShort() || !d.proof.mayCampaign() {
		t.Errorf("the log has reached the floor: campaigns %v", d.proof.mayCampaign())
	}
}
