package peer

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
)

// asked returns an Append of node from to node to, and the acknowledgement that it asks for.
func asked(slot rhumb.Slot, from, to rhumb.NodeID) (appended, acknowledged replica.Message) {
	id := rhumb.RangeID{Region: 1, Slot: slot}
	appended = replica.Message{Kind: replica.Append, Range: id, From: from, To: to, Life: 1, Epoch: 3, Prev: entry.Position{Seq: 8}, Entries: []*entry.Entry{testEntry()}, Commit: 7}
	acknowledged = replica.Message{Kind: replica.Ack, Range: id, From: to, To: from, Life: 1, Epoch: 3, Match: 9, Commit: 7}
	return appended, acknowledged
}

// connectedSides returns nodes 1 and 2 of a cluster, each with a link to the other one.
func connectedSides(t *testing.T) (a, b *side) {
	cluster := rhumb.UUID{9}
	a, b = startSide(t, 1, cluster), startSide(t, 2, cluster)
	a.network.SetPeers([]*rhumb.Node{b.node()})
	b.network.SetPeers([]*rhumb.Node{a.node()})
	a.await(t, "connected", func() bool { return a.connected[2] })
	b.await(t, "connected", func() bool { return b.connected[1] })
	return a, b
}

// TestTalliesBetweenNodes guards that a node acknowledges the Appends of a frame by one tally, together with the messages that it
// sends anyway, that the primary takes the same acknowledgements as if they were sent one by one, and that a refusal stays a message.
func TestTalliesBetweenNodes(t *testing.T) {
	a, b := connectedSides(t)
	var frame, acks []replica.Message
	for slot := range rhumb.Slot(10) {
		appended, acknowledged := asked(slot, 1, 2)
		frame, acks = append(frame, appended), append(acks, acknowledged)
	}
	a.network.Send(2, frame)
	b.await(t, "the Appends", func() bool { return len(b.msgs) == len(frame) })
	// The replica of slot 4 refuses; b is a primary itself.
	refused := acks[4]
	refused.Kind, refused.Match, refused.Reject = replica.Nack, 0, 8
	own, _ := asked(20, 2, 1)
	acks = append(acks[:4], acks[5:]...)
	b.network.Send(1, append(acks, own))
	a.await(t, "the acknowledgements", func() bool { return len(a.msgs) == len(acks)+1 })
	b.network.Send(1, []replica.Message{refused})
	a.await(t, "the refusal", func() bool { return len(a.msgs) == len(acks)+2 })
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := map[rhumb.RangeID]replica.Message{}
	for _, m := range a.msgs {
		taken[m.Range] = m
	}
	for _, want := range acks {
		if got := taken[want.Range]; got.Kind != replica.Ack || got.Match != want.Match || got.Epoch != want.Epoch || got.Life != want.Life || got.From != 2 || got.To != 1 || got.Commit != 7 {
			t.Errorf("%+v arrived as %+v", want, got)
		}
	}
	if got := taken[refused.Range]; got.Kind != replica.Nack {
		t.Errorf("the refusal arrived as %+v", got)
	}
	// The own Append, the tally and the refusal.
	if sent, n := testutil.ToFloat64(b.network.m.sent), testutil.ToFloat64(b.network.m.tallied); sent != 3 || int(n) != len(acks) {
		t.Errorf("%v messages were sent, and tallies for %v acknowledgements", sent, n)
	}
}

// TestTalliesOfEarlierLink guards that what a node took from a link that broke is acknowledged one by one, and
// that tallies for it which still arrive are void.
func TestTalliesOfEarlierLink(t *testing.T) {
	a, b := connectedSides(t)
	appended, acknowledged := asked(1, 1, 2)
	a.network.Send(2, []replica.Message{appended})
	b.await(t, "the Append", func() bool { return len(b.msgs) == 1 })
	to2, _ := a.network.lookUpPeer(2)
	to1, _ := b.network.lookUpPeer(1)
	former := to1.taken.Load()
	first := to2.link.Load()
	first.Close()
	b.await(t, "the end of the link", func() bool { return to1.taken.Load() != former })
	a.await(t, "another link", func() bool { l := to2.link.Load(); return l != nil && l != first })
	b.network.Send(1, []replica.Message{acknowledged})
	a.await(t, "the acknowledgement", func() bool { return len(a.msgs) == 1 && a.msgs[0].Match == 9 })
	if n := testutil.ToFloat64(b.network.m.tallied); n != 0 {
		t.Errorf("%v acknowledgements went by tallies for a link that had ended", n)
	}
	// b has not noticed the end.
	to1.taken.Store(former)
	b.network.Send(1, []replica.Message{acknowledged})
	a.await(t, "the void tally", func() bool { return testutil.ToFloat64(a.network.m.void) == 1 })
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.msgs) != 1 {
		t.Errorf("a tally for a link that had ended was taken: %+v", a.msgs)
	}
}

// TestNoTalliesForEarlierBuild guards that a node of a build without tallies gets every acknowledgement as a message.
func TestNoTalliesForEarlierBuild(t *testing.T) {
	cluster := rhumb.UUID{9}
	b := startSide(t, 2, cluster)
	old := startSide(t, 1, cluster)
	b.network.SetPeers([]*rhumb.Node{old.node()})
	b.await(t, "connected", func() bool { return b.connected[1] })
	s := dialAs(t, b, nil, link.PeerMagic)
	// An earlier build leaves out the field, and does not read the one of the answer.
	if err := s.WriteProto(link.KindHello, helloOf(cluster, 1)); err != nil {
		t.Fatal(err)
	}
	answer := new(rhumbpb.PeerHello)
	if err := s.ReadProto(link.KindHello, answer); err != nil || answer.Tallies {
		t.Fatalf("got %v, %v", answer, err)
	}
	appended, acknowledged := asked(1, 1, 2)
	if err := s.WriteFrame(link.KindMessages, func(c []byte) []byte { return appendMessage(c, &appended) }); err != nil {
		t.Fatal(err)
	}
	b.await(t, "the Append", func() bool { return len(b.msgs) == 1 })
	b.network.Send(1, []replica.Message{acknowledged})
	old.await(t, "the acknowledgement", func() bool { return len(old.msgs) == 1 && old.msgs[0].Kind == replica.Ack })
	if n := testutil.ToFloat64(b.network.m.tallied); n != 0 {
		t.Errorf("%v acknowledgements went by tallies", n)
	}
}
