package server

import (
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/memory"
)

// TestRequestsAreBounded guards that requests beyond the budget are rejected as Overloaded at once,
// while admitted ones still wait, and that nothing is counted once all are answered.
func TestRequestsAreBounded(t *testing.T) {
	w := newWorld()
	c, kv, _ := w.start(t)
	b := Budgets{Requests: memory.NewBudget("requests", 64<<10), Answers: memory.NewBudget("answers", 1<<20)}
	kv.cfg.Budgets = b
	held := make(chan struct{})
	w.held = held
	value := strings.Repeat("x", 20<<10)
	var qs []*rhumbpb.Request
	for i := range uint64(10) {
		qs = append(qs, putReq(i+1, home, "a", value))
	}
	s := openStream(t, c, hello(), qs...)
	got := take(t, s, 7) // the other three wait
	for id, r := range got {
		if r.Error.GetKind() != rhumbpb.Kind_KIND_OVERLOADED {
			t.Errorf("request %d is answered %v", id, r)
		}
	}
	if b.Requests.Used() < 60<<10 || b.Requests.Used() > 64<<10 {
		t.Errorf("%d bytes count while three requests of 20 KiB wait", b.Requests.Used())
	}
	close(held)
	for id, r := range take(t, s, 3) {
		if r.Error != nil || got[id] != nil {
			t.Errorf("request %d, which was taken in, is answered %v", id, r)
		}
	}
	if b.Requests.Used() != 0 {
		t.Errorf("%d bytes count when all is answered", b.Requests.Used())
	}
}

// TestReadsWaitForAnswersToBeTaken guards that no read adds to a full budget of answers, while
// writes, whose answers are small, are accepted.
func TestReadsWaitForAnswersToBeTaken(t *testing.T) {
	w := newWorld()
	c, kv, _ := w.start(t)
	answers := memory.NewBudget("answers", 1<<20)
	kv.cfg.Budgets = Budgets{Answers: answers}
	answers.Add(1 << 20)
	if _, err, _ := do(t, c, getReq(1, home, "a")); err.Kind != rhumb.Overloaded {
		t.Errorf("a read is answered %v", err)
	}
	if _, err, _ := do(t, c, putReq(2, home, "a", "v")); err.Kind != rhumb.Other {
		t.Errorf("a write is answered %v", err)
	}
	answers.Release(1 << 20)
	if _, err, _ := do(t, c, getReq(3, home, "a")); err.Kind != rhumb.Other {
		t.Errorf("a read is answered %v when there is room", err)
	}
}

// TestStreamsAreLimited guards that clients beyond a node's memory are rejected before they send
// anything, and that the end of a stream makes room.
func TestStreamsAreLimited(t *testing.T) {
	w := newWorld()
	_, _, s := w.start(t)
	budget := memory.NewBudget("streams", 2*memory.StreamReserve)
	c := rhumbpb.NewKVClient(serve(t, func(g *grpc.Server) { s.Register(g) }, grpc.InTapHandle(LimitStreams(budget))))
	first := openStream(t, c, hello(), putReq(1, home, "a", "v"))
	take(t, first, 1)
	second := openStream(t, c, hello(), putReq(1, home, "a", "v"))
	take(t, second, 1)
	third, err := c.Stream(t.Context())
	if err == nil {
		_, err = third.Recv()
	}
	e, _, remote := api.FromStatus("test", err)
	if rhumb.KindOf(e) != rhumb.Overloaded {
		t.Fatalf("a third stream: %v, of the node: %v", err, remote)
	}
	if err := first.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; {
		_, err = first.Recv()
	}
	for budget.Used() > memory.StreamReserve { // its end is noticed soon
	}
	take(t, openStream(t, c, hello(), putReq(1, home, "a", "v")), 1)
}

// TestRequestBytesCountNames guards that names count in every kind of request: otherwise a client
// could fill the node's memory with names to locate.
func TestRequestBytesCountNames(t *testing.T) {
	names := [][]byte{make([]byte, 4<<10), make([]byte, 4<<10)}
	for what, q := range map[string]*rhumbpb.Request{
		"read":   {Read: &rhumbpb.Read{Names: names}},
		"locate": {Locate: &rhumbpb.Locate{Names: names}},
	} {
		if n := requestBytes(q); n < 8<<10 {
			t.Errorf("a %s of two names of 4 KiB counts as %d bytes", what, n)
		}
	}
}
