package raftmeta

import (
	"context"
	"testing"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/rhumbdb/rhumb"
)

// witness is a transport that compares each message, when it is sent, with what a crash at that
// moment would leave on the disk.
type witness struct {
	t     *rapid.T
	kv    *memKV
	votes map[uint64]uint64 // by term, across restarts
	seen  map[raftpb.MessageType]int
}

func (w *witness) Forward(context.Context, rhumb.NodeID, GroupID, []byte) ([]byte, error) {
	return nil, rhumb.E("test.Forward", rhumb.Unavailable, "nobody is there")
}

func (w *witness) Send(to rhumb.NodeID, _ GroupID, messages [][]byte) {
	for _, b := range messages {
		switch b[0] {
		case messageWhole:
			m := new(raftpb.Message)
			if err := proto.Unmarshal(b[1:], m); err != nil {
				w.t.Fatal(err)
			}
			w.seen[m.GetType()]++
			w.checkMessage(m)
		case messageAnswer:
			in, err := decodeInbound(to, b)
			if err != nil {
				w.t.Fatal(err)
			}
			w.checkAnswer(uint64(to), in.answer)
		}
	}
}

// durable returns the hard state, the last position and the acquaintances after a crash.
func (w *witness) durable() (*raftpb.HardState, position, map[uint64]acquaintance) {
	log, err := openLog(w.kv.crash())
	if err != nil {
		w.t.Fatal(err)
	}
	others, err := log.readOthers()
	if err != nil {
		w.t.Fatal(err)
	}
	hard, _, _ := log.InitialState()
	last, _ := log.LastIndex()
	term, _ := log.Term(last)
	return hard, position{term, last}, others
}

func (w *witness) checkMessage(m *raftpb.Message) {
	hard, last, _ := w.durable()
	typ := m.GetType()
	switch typ {
	case raftpb.MsgPreVote, raftpb.MsgPreVoteResp:
		return // they name a term that nobody has begun
	case raftpb.MsgVote:
		w.noteVote(hard, m.GetTerm(), 1)
	case raftpb.MsgVoteResp:
		if !m.GetReject() {
			w.noteVote(hard, m.GetTerm(), m.GetTo())
		}
	case raftpb.MsgAppResp:
		// A leader of a later term may have replaced the entries before this message left.
		if !m.GetReject() && m.GetTerm() == hard.GetTerm() && m.GetIndex() > last.Index {
			w.t.Fatalf("entry %d is acknowledged, and after a crash the log ends at %v", m.GetIndex(), last)
		}
	}
	if m.GetTerm() > hard.GetTerm() {
		w.t.Fatalf("a %s of term %d was sent, and after a crash the term is %d", typ, m.GetTerm(), hard.GetTerm())
	}
}

// noteVote checks that a vote is durable and the only one of its term.
func (w *witness) noteVote(hard *raftpb.HardState, term, vote uint64) {
	if hard.GetTerm() < term || hard.GetTerm() == term && hard.GetVote() != vote {
		w.t.Fatalf("%d has the vote of term %d, and after a crash the vote of term %d is %d", vote, term, hard.GetTerm(), hard.GetVote())
	}
	if other, ok := w.votes[term]; ok && other != vote {
		w.t.Fatalf("%d and %d have the vote of term %d", other, vote, term)
	}
	w.votes[term] = vote
}

func (w *witness) checkAnswer(to uint64, a *answer) {
	hard, last, others := w.durable()
	if a.Term > hard.GetTerm() || last.less(a.Last) {
		w.t.Fatalf("an answer says %d, %v, and after a crash it is %d, %v", a.Term, a.Last, hard.GetTerm(), last)
	}
	if a.Verdict != lifeDiffers && others[to].Life != a.Life {
		w.t.Fatalf("node %d is told that its life %d is known, and after a crash it is %d", to, a.Life, others[to].Life)
	}
}

// promises is a replica that receives random messages and crashes at random.
type promises struct {
	t     *rapid.T
	w     *witness
	d     *driver
	kv    *memKV
	hasty bool
	logs  map[uint64][]uint64 // of leaders, by term
}

// start opens the replica from what a crash has left.
func (p *promises) start(t *testing.T) {
	p.kv = p.kv.crash()
	p.w.kv = p.kv
	p.d, _ = newTestDriver(t, p.kv, func(c *Config) {
		c.Transport, c.Hasty, c.Restarted = p.w, p.hasty, true
	})
}

func (p *promises) draw(name string, lo, hi uint64) uint64 {
	return rapid.Uint64Range(lo, max(lo, hi)).Draw(p.t, name)
}

// leaderLog returns the terms of the entries after the second of the leader of a term. Its log is
// some beginning of an earlier leader's and entries of its own, and does not change.
func (p *promises) leaderLog(term uint64) []uint64 {
	if log, ok := p.logs[term]; ok {
		return log
	}
	var log []uint64
	for earlier := term - 1; earlier > 0; earlier-- {
		if before, ok := p.logs[earlier]; ok && rapid.Bool().Draw(p.t, "continues") {
			log = append(log, before[:p.draw("kept", 0, uint64(len(before)))]...)
			break
		}
	}
	for range p.draw("own entries", 1, 3) {
		log = append(log, term)
	}
	p.logs[term] = log
	return log
}

// receive draws a message of Raft that another voter might send. Every third term may be won by
// this replica, the others have another leader. No entry is committed, so each may be replaced.
func (p *promises) receive() {
	last := p.d.lastPosition()
	term := p.draw("term", max(1, p.d.term), p.d.term+2)
	from := 2 + term%2
	m := &raftpb.Message{From: &from, To: proto.Uint64(1), Term: &term}
	if term%3 == 0 || rapid.Bool().Draw(p.t, "asks for the vote") {
		m.Type = raftpb.MsgVote.Enum()
		m.LogTerm, m.Index = proto.Uint64(p.draw("log term", last.Term, term)), proto.Uint64(p.draw("index", 2, last.Index+1))
	} else {
		log := p.leaderLog(term)
		prev := p.draw("after", 0, uint64(len(log)))
		m.Type, m.Index, m.LogTerm, m.Commit = raftpb.MsgApp.Enum(), proto.Uint64(2+prev), proto.Uint64(1), proto.Uint64(2)
		if prev > 0 {
			m.LogTerm = &log[prev-1]
		}
		for i := range log[prev:] {
			m.Entries = append(m.Entries, &raftpb.Entry{Term: &log[int(prev)+i], Index: proto.Uint64(3 + prev + uint64(i))})
		}
	}
	p.d.stepMessage(inbound{from: rhumb.NodeID(from), message: m})
}

// campaign asks for votes, or lets another voter grant one. It gets none in a term that has another
// leader.
func (p *promises) campaign() {
	status := p.d.node.BasicStatus()
	term := status.HardState.GetTerm()
	m := &raftpb.Message{From: proto.Uint64(2), To: proto.Uint64(1), Term: &term}
	switch {
	case status.RaftState == raft.StatePreCandidate:
		m.Type, m.Term = raftpb.MsgPreVoteResp.Enum(), proto.Uint64(term+1)
	case status.RaftState == raft.StateCandidate && term%3 == 0:
		m.Type = raftpb.MsgVoteResp.Enum()
	default:
		if p.d.proof.mayCampaign() {
			_ = p.d.node.Campaign() // refused while a change of membership is not applied
		}
		return
	}
	p.d.stepMessage(inbound{from: 2, message: m})
}

// hear draws a question, or an answer to this replica's own.
func (p *promises) hear() {
	in := inbound{from: rhumb.NodeID(p.draw("from", 2, 3))}
	if rapid.Bool().Draw(p.t, "asks") {
		in.question = &question{Life: p.draw("life", 1, 4), Formers: []uint64{p.draw("former", 1, 4)}, Short: rapid.Bool().Draw(p.t, "short")}
	} else {
		term := p.draw("term", 1, p.d.term+2)
		in.answer = &answer{
			Life: p.d.proof.record.Life, Term: term, Last: position{p.draw("last term", 1, term), p.draw("last", 2, 6)}, Applied: 2, Voters: []uint64{1, 2, 3},
		}
	}
	if err := p.d.handleInbound(in); err != nil {
		p.t.Fatal(err)
	}
}

// TestPromisesAreDurable sends random messages to a replica that crashes at random: whatever it
// promises in a message would survive a crash at the moment at which the message leaves, and no
// term has two votes.
func TestPromisesAreDurable(t *testing.T) {
	all := make(map[raftpb.MessageType]int)
	rapid.Check(t, func(rt *rapid.T) {
		p := &promises{t: rt, kv: founded(t, 3), hasty: rapid.Bool().Draw(rt, "takes part at once"), logs: make(map[uint64][]uint64)}
		p.w = &witness{t: rt, votes: make(map[uint64]uint64), seen: all}
		p.start(t)
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"receive", "receive", "campaign", "campaign", "hear", "hear", "tick", "crash"}).Draw(rt, "step") {
			case "receive":
				p.receive()
			case "campaign":
				p.campaign()
			case "hear":
				p.hear()
			case "tick":
				p.d.tick()
			case "crash":
				p.start(t)
			}
			if rapid.Bool().Draw(rt, "ready") {
				if err := p.d.handleReady(); err != nil {
					rt.Fatal(err)
				}
			}
		}
	})
	t.Logf("messages sent: %v", all)
	for _, typ := range []raftpb.MessageType{raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgAppResp} {
		if all[typ] == 0 {
			t.Errorf("no %s was ever sent, so nothing was checked", typ)
		}
	}
}
