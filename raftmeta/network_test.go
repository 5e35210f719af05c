package raftmeta

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/sched"
)

// testNetwork carries messages between groups in one process, with delay, loss and partitions.
type testNetwork struct {
	mu     sync.Mutex
	groups map[rhumb.NodeID]*Group
	cuts   map[[2]rhumb.NodeID]bool
	links  map[[2]rhumb.NodeID]chan delivery
	delay  time.Duration
	loss   float64
	random *rand.Rand
	passes func(to rhumb.NodeID, message []byte) bool // nil lets everything pass
	closed chan struct{}
	wg     sync.WaitGroup
}

type delivery struct {
	at       time.Time
	messages [][]byte
}

func newTestNetwork(seed uint64) *testNetwork {
	return &testNetwork{
		groups: make(map[rhumb.NodeID]*Group), cuts: make(map[[2]rhumb.NodeID]bool), links: make(map[[2]rhumb.NodeID]chan delivery),
		delay: time.Millisecond, random: rand.New(rand.NewPCG(seed, 1)), closed: make(chan struct{}),
	}
}

func (n *testNetwork) close() {
	close(n.closed)
	n.wg.Wait()
}

// set connects a node's group, or disconnects the node if g is nil.
func (n *testNetwork) set(id rhumb.NodeID, g *Group) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.groups[id] = g
}

// cut stops messages from a to b, or with false lets them pass again.
func (n *testNetwork) cut(a, b rhumb.NodeID, yes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cuts[[2]rhumb.NodeID{a, b}] = yes
}

// filter drops every message for which passes returns false. passes runs in the sender, one call at
// a time.
func (n *testNetwork) filter(passes func(to rhumb.NodeID, message []byte) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.passes = passes
}

// filtered returns copies of the messages that the filter lets pass.
func (n *testNetwork) filtered(to rhumb.NodeID, messages [][]byte) (out [][]byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range messages {
		if n.passes == nil || n.passes(to, m) {
			out = append(out, bytes.Clone(m))
		}
	}
	return out
}

// isolate cuts all links of a node in both directions, or with false restores them.
func (n *testNetwork) isolate(id rhumb.NodeID, others []rhumb.NodeID, yes bool) {
	for _, o := range others {
		n.cut(id, o, yes)
		n.cut(o, id, yes)
	}
}

// route returns the group at the other end, or nil if the link is cut or the node is down. lost
// reports that the message is lost at random.
func (n *testNetwork) route(from, to rhumb.NodeID) (g *Group, cut, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.groups[to], n.cuts[[2]rhumb.NodeID{from, to}], n.random.Float64() < n.loss
}

// endpoint is one node's side of the network.
type endpoint struct {
	*testNetwork
	self rhumb.NodeID
}

func (e endpoint) Send(to rhumb.NodeID, _ GroupID, messages [][]byte) {
	if _, cut, lost := e.route(e.self, to); cut || lost {
		return
	}
	select {
	case e.link(to) <- delivery{time.Now().Add(e.delay), e.filtered(to, messages)}:
	default:
	}
}

// link gives the queue to another node, which one goroutine empties in order.
func (e endpoint) link(to rhumb.NodeID) chan delivery {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := [2]rhumb.NodeID{e.self, to}
	if c, ok := e.links[key]; ok {
		return c
	}
	c := make(chan delivery, 1024)
	e.links[key] = c
	e.wg.Go(func() {
		for {
			select {
			case <-e.closed:
				return
			case d := <-c:
				e.wait(time.Until(d.at))
				if g, cut, _ := e.route(e.self, to); g != nil && !cut {
					for _, m := range d.messages {
						_ = g.Step(e.self, m) // a stopped group refuses; the network does not care
					}
				}
			}
		}
	})
	return c
}

func (e endpoint) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-e.closed:
	}
}

func (e endpoint) Forward(ctx context.Context, to rhumb.NodeID, _ GroupID, request []byte) ([]byte, error) {
	g, cut, lost := e.route(e.self, to)
	if g == nil {
		return nil, rhumb.E("test.Forward", rhumb.Unavailable, "connection refused")
	}
	if cut || lost {
		<-ctx.Done()
		return nil, rhumb.E("test.Forward", rhumb.Unknown, "no answer")
	}
	e.wait(e.delay)
	response, err := g.Handle(ctx, e.self, bytes.Clone(request))
	e.wait(e.delay)
	if _, cut, lost := e.route(to, e.self); cut || lost {
		<-ctx.Done()
		return nil, rhumb.E("test.Forward", rhumb.Unknown, "the answer was lost")
	}
	return response, err
}

// TestParts splits messages of many sizes into parts and joins them.
func TestParts(t *testing.T) {
	var a assembler
	for _, size := range []int{0, 1, FragmentSize - 1, FragmentSize, FragmentSize + 1, 3*FragmentSize - 1, 3 * FragmentSize} {
		message := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		parts := splitMessage(7, message)
		for i, part := range parts {
			got, err := a.addPart(1, part)
			if err != nil {
				t.Fatal(err)
			}
			if last := i == len(parts)-1; last != (got != nil) || last && !bytes.Equal(got, message) {
				t.Fatalf("size %d, part %d of %d: got %d bytes", size, i, len(parts), len(got))
			}
		}
	}
	if len(a.open) != 0 {
		t.Fatalf("%d messages are left unfinished", len(a.open))
	}
}

// TestPartsWithGaps loses, repeats and mixes parts. The assembler returns only messages that were
// sent.
func TestPartsWithGaps(t *testing.T) {
	one := splitMessage(1, bytes.Repeat([]byte("a"), 3*FragmentSize))
	two := splitMessage(2, bytes.Repeat([]byte("b"), 3*FragmentSize))
	tests := map[string][][]byte{
		"lost first":  {one[1], one[2]},
		"lost middle": {one[0], one[2]},
		"repeated":    {one[0], one[0], one[0]},
		"mixed":       {one[0], two[1], one[2]},
		"backwards":   {one[2], one[1], one[0]},
	}
	for name, parts := range tests {
		var a assembler
		for _, p := range parts {
			if got, err := a.addPart(1, p); got != nil || err != nil {
				t.Errorf("%s: got %d bytes, %v", name, len(got), err)
			}
		}
		for _, p := range two { // a whole message after it comes through
			if got, err := a.addPart(1, p); err != nil || got != nil && !slices.Equal(got, bytes.Repeat([]byte("b"), 3*FragmentSize)) {
				t.Errorf("%s: the next message: %d bytes, %v", name, len(got), err)
			}
		}
		if len(a.open) != 0 {
			t.Errorf("%s: the next message did not come through", name)
		}
	}
}

func TestPartsRefused(t *testing.T) {
	var a assembler
	for _, b := range [][]byte{nil, {}, {9}, {messagePart}, {messagePart, 0, 0, 0, 1, 0, 2, 0, 2, 'x'}, {messagePart, 0, 0, 0, 1, 0, 0, 0xff, 0xff, 'x'}} {
		if _, err := a.addPart(1, b); rhumb.KindOf(err) != rhumb.Corrupt {
			t.Errorf("%x: got %v, want kind corrupt", b, err)
		}
	}
}

// TestPassedOnReads checks that a read request may arrive from a node other than the reader, since
// a node that no longer leads forwards it. No other message may.
func TestPassedOnReads(t *testing.T) {
	g := &Group{config: Config{Node: 1}, rt: sched.System, inbox: make(chan inbound, 2), metrics: newMetrics(nil, 0)}
	for typ, want := range map[raftpb.MessageType]rhumb.Kind{raftpb.MsgReadIndex: 0, raftpb.MsgApp: rhumb.Corrupt, raftpb.MsgVoteResp: rhumb.Corrupt} {
		m := &raftpb.Message{Type: typ.Enum(), From: proto.Uint64(3), To: proto.Uint64(1)}
		err := g.Step(2, append([]byte{messageWhole}, mustMarshal(m)...))
		if want == 0 && err != nil || want != 0 && rhumb.KindOf(err) != want {
			t.Errorf("%s of n3 through n2: %v", typ, err)
		}
	}
	if len(g.inbox) != 1 {
		t.Errorf("%d messages reach Raft, want 1", len(g.inbox))
	}
}

func FuzzStep(f *testing.F) {
	f.Add([]byte{messageWhole})
	f.Add(splitMessage(1, make([]byte, FragmentSize+1))[0][:64])
	f.Fuzz(func(t *testing.T, b []byte) {
		g := &Group{config: Config{Node: 1}, rt: sched.System, inbox: make(chan inbound, 1), metrics: newMetrics(nil, 0)}
		if err := g.Step(2, b); err != nil && rhumb.KindOf(err) != rhumb.Corrupt {
			t.Fatalf("kind of %v", err)
		}
	})
}

func FuzzDecodeProposal(f *testing.F) {
	f.Add([]byte{proposalVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, _, err := decodeProposal(b); err != nil {
			if k := rhumb.KindOf(err); k != rhumb.Corrupt && k != rhumb.Incompatible {
				t.Fatalf("kind %s: %v", k, err)
			}
		}
	})
}
