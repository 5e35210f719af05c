package server

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/memory"
)

// linkPair returns the end of a client, and that of a node, of a link over TCP.
func linkPair(t *testing.T) (mine, theirs *link.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	// Small buffers, so that a client that does not read is noticed after little.
	_ = dialled.(*net.TCPConn).SetReadBuffer(64 << 10)
	_ = accepted.(*net.TCPConn).SetWriteBuffer(64 << 10)
	mine, theirs = link.New(dialled, link.ClientConfig), link.New(accepted, link.ClientConfig)
	t.Cleanup(mine.Close)
	t.Cleanup(theirs.Close)
	return mine, theirs
}

// startLink serves a link, and returns the end of the client after the hello, and what the node ends the link with.
func startLink(t *testing.T, s *Service) (mine *link.Conn, ended chan error) {
	t.Helper()
	mine, theirs := linkPair(t)
	serve, err := s.Greet(hello())
	if err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() {
		ended <- serve(access.WithPrincipal(context.Background(), access.Principal{Kind: access.KindInsecure}), theirs)
		theirs.Close()
	}()
	if err := mine.ReadProto(link.KindHello, new(rhumbpb.LinkHello)); err != nil {
		t.Fatal(err)
	}
	mine.LimitOpening(waitMax)
	return mine, ended
}

// sendByLink sends a frame of requests.
func sendByLink(t *testing.T, c *link.Conn, qs ...*rhumbpb.Request) {
	t.Helper()
	if err := c.WriteFrame(link.KindMessages, func(b []byte) []byte { return link.AppendRequests(b, qs) }); err != nil {
		t.Fatal(err)
	}
}

// takeByLink receives n answers.
func takeByLink(t *testing.T, c *link.Conn, n int) map[uint64]*rhumbpb.Response {
	t.Helper()
	out := map[uint64]*rhumbpb.Response{}
	for len(out) < n {
		kind, content, err := c.NextFrame(link.AnswerBytesMax)
		if err != nil {
			t.Fatalf("after %d answers: %v", len(out), err)
		}
		if kind != link.KindMessages {
			continue
		}
		responses, err := link.DecodeResponses(content)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range responses {
			out[r.Id] = r
		}
	}
	return out
}

// TestLinkIsServed guards that a link answers like a stream: out of order, many requests per frame, errors with their kinds, and pings.
func TestLinkIsServed(t *testing.T) {
	w := newWorld()
	_, kv, s := w.start(t)
	c, ended := startLink(t, s)
	if n := gauge(t, kv, "rhumb_server_links"); n != 1 {
		t.Errorf("%v links are open", n)
	}
	sendByLink(t, c, putReq(1, home, "a", "v"), putReq(2, home, "b", "w"))
	for id, r := range takeByLink(t, c, 2) {
		if r.Error != nil || r.Outcome == nil || r.Receipt == nil {
			t.Errorf("put %d: %v", id, r)
		}
	}
	if err := c.WriteFrame(link.KindPing, nil); err != nil {
		t.Fatal(err)
	}
	sendByLink(t, c, getReq(3, home, "a"), getReq(4, away, "a"), &rhumbpb.Request{Id: 5})
	got := takeByLink(t, c, 3)
	if string(got[3].Items[0].Value) != "\x11v" || rhumb.Kind(got[4].Error.GetKind()) != rhumb.NotPrimary || rhumb.Kind(got[5].Error.GetKind()) != rhumb.InvalidArgument {
		t.Errorf("%v", got)
	}
	c.Close()
	if err := <-ended; err != nil {
		t.Errorf("the link of a client that has finished ended with %v", err)
	}
	if n := gauge(t, kv, "rhumb_server_links"); n != 0 {
		t.Errorf("%v links are open", n)
	}
}

// TestLinkRefusesDamage guards that nothing of a damaged or invalid frame is carried out, and that the link ends with an error that says why.
func TestLinkRefusesDamage(t *testing.T) {
	for _, tc := range []struct {
		what string
		fill func([]byte) []byte
		kind rhumb.Kind
	}{
		{"a message beyond the end", func(b []byte) []byte { return append(b, 0, 0, 0, 9, 8) }, rhumb.Corrupt},
		{"half a size", func(b []byte) []byte { return append(b, 0, 0) }, rhumb.Corrupt},
		{"bytes that are no message", func(b []byte) []byte { return append(b, 0, 0, 0, 2, 0xff, 0xff) }, rhumb.InvalidArgument},
		{"too many messages", func(b []byte) []byte { return append(b, make([]byte, 4*(link.FrameMessagesMax+1))...) }, rhumb.TooLarge},
		{"a field that is not UTF-8", func(b []byte) []byte {
			q := putReq(1, home, "a", "v")
			q.Write.Mutations[0].Condition = &rhumbpb.Condition{Kind: rhumbpb.ConditionKind_CONDITION_KIND_IF_NEWER, Fields: []string{"\xff"}}
			return link.AppendRequests(b, []*rhumbpb.Request{putReq(2, home, "a", "v"), q})
		}, rhumb.InvalidArgument},
	} {
		t.Run(tc.what, func(t *testing.T) {
			w := newWorld()
			_, _, s := w.start(t)
			c, ended := startLink(t, s)
			if err := c.WriteFrame(link.KindMessages, tc.fill); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; rhumb.KindOf(err) != tc.kind {
				t.Errorf("%v, want %s", err, tc.kind)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.proposed) > 0 {
				t.Errorf("%d writes were proposed", len(w.proposed))
			}
		})
	}
}

// TestLinkOfClientThatTakesNothing guards that a client which sends and does not read loses its link, and that its answers do not occupy
// memory any longer.
func TestLinkOfClientThatTakesNothing(t *testing.T) {
	w := newWorld()
	_, kv, s := w.start(t)
	answers := memory.NewBudget("answers", 64<<20)
	kv.cfg.Budgets.Answers, kv.cfg.TakeTimeout = answers, 300*time.Millisecond
	w.items[home]["large"] = bytes.Repeat([]byte{1}, 1<<20)
	c, ended := startLink(t, s)
	go func() {
		for id := uint64(1); ; id++ {
			if c.WriteFrame(link.KindMessages, func(b []byte) []byte { return link.AppendRequests(b, []*rhumbpb.Request{getReq(id, home, "large")}) }) != nil {
				return
			}
		}
	}()
	if err, _, _ := api.FromStatus("test", <-ended); rhumb.KindOf(err) != rhumb.Overloaded {
		t.Errorf("the link ended with %v", err)
	}
	await(t, "the answers are forgotten", func() bool { return gauge(t, kv, "rhumb_server_links") == 0 && answers.Used() == 0 })
}

// TestClientsThatTakeNothingLeaveRoom guards that no read of others is refused while some clients ask for much and do not read, until they lose their
// links.
func TestClientsThatTakeNothingLeaveRoom(t *testing.T) {
	const hogs = 8
	w := newWorld()
	grpcClient, kv, s := w.start(t)
	answers := memory.NewBudget("answers", 16<<20)
	kv.cfg.Budgets.Answers, kv.cfg.TakeTimeout = answers, 500*time.Millisecond
	w.items[home]["large"] = bytes.Repeat([]byte{1}, 256<<10)
	var gets []*rhumbpb.Request
	for id := range uint64(4_000) {
		gets = append(gets, getReq(id+1, home, "large"))
	}
	good, _ := startLink(t, s)
	var ends []chan error
	for range hogs {
		c, ended := startLink(t, s)
		ends = append(ends, ended)
		sendByLink(t, c, gets...)
	}
	for id := uint64(1); gauge(t, kv, "rhumb_server_cut_off_total") < hogs; id++ {
		if _, err, _ := do(t, grpcClient, getReq(1, home, "large")); err.Kind != rhumb.Other {
			t.Fatalf("a read by gRPC is answered %v", err)
		}
		sendByLink(t, good, getReq(2*id, home, "large"), getReq(2*id+1, home, "large"))
		for _, r := range takeByLink(t, good, 2) {
			if r.Error != nil || len(r.Items) != 1 {
				t.Fatalf("a read by a link is answered %v", r.Error)
			}
		}
	}
	for _, ended := range ends {
		if err, _, _ := api.FromStatus("test", <-ended); rhumb.KindOf(err) != rhumb.Overloaded {
			t.Errorf("the link of a client that does not read ended with %v", err)
		}
	}
	await(t, "the answers are forgotten", func() bool { return answers.Used() == 0 })
}

// TestLateAnswersAreBounded guards that the answers to reads at other nodes, which arrive all at once at a client that does not read, take no more than its
// share, and that each of its requests has an answer nevertheless.
func TestLateAnswersAreBounded(t *testing.T) {
	const reads = 200
	w := newWorld()
	_, kv, s := w.start(t)
	answers := memory.NewBudget("answers", 16<<20)
	kv.cfg.Budgets.Answers = answers
	arrive := make(chan struct{})
	value := bytes.Repeat([]byte{1}, 256<<10)
	w.answer = func(context.Context, rhumb.NodeID, *rhumbpb.Request) (*rhumbpb.Response, error) {
		<-arrive
		return &rhumbpb.Response{Items: []*rhumbpb.Item{{Value: value}}, Receipt: &rhumbpb.Receipt{}}, nil
	}
	c, _ := startLink(t, s)
	var gets []*rhumbpb.Request
	for id := range uint64(reads) {
		q := getReq(id+1, away, "x")
		q.Hops = 1
		gets = append(gets, q)
	}
	sendByLink(t, c, gets...)
	await(t, "all are asked for", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.forwards) == reads
	})
	close(arrive)
	// A frame that is being sent has left the budget.
	const sent = (frameBytes+lateShares*(16<<20)/readyShare)/(256<<10) + 2
	await(t, "the others are refused", func() bool {
		if answers.Used() > 16<<20 {
			t.Fatalf("%d bytes of answers wait", answers.Used())
		}
		return testutil.ToFloat64(kv.metrics.failed.WithLabelValues(rhumb.Overloaded.String())) >= reads-sent
	})
	records := 0
	for id, r := range takeByLink(t, c, reads) {
		switch {
		case r.Error == nil:
			records++
		case rhumb.Kind(r.Error.Kind) != rhumb.Overloaded || !strings.Contains(r.Error.Message, "read from the stream"):
			t.Errorf("read %d is answered %v", id, r.Error)
		}
	}
	if records == 0 || records > sent {
		t.Errorf("%d reads have their records, want 1 to %d", records, sent)
	}
	if answers.Used() != 0 {
		t.Errorf("%d bytes count when all is answered", answers.Used())
	}
}

// TestLinksEndWithTheirKV guards that no client stays connected to a past life of a node.
func TestLinksEndWithTheirKV(t *testing.T) {
	w := newWorld()
	_, kv, s := w.start(t)
	c, ended := startLink(t, s)
	sendByLink(t, c, putReq(1, home, "a", "v"))
	takeByLink(t, c, 1)
	s.Open(nil)
	kv.Close()
	if err := <-ended; err == nil {
		t.Error("the link ended without an error")
	}
	if _, err := s.Greet(hello()); err == nil {
		t.Errorf("a node that does not serve: %v", err)
	}
}

// TestLinkHello guards that a client of another cluster or protocol is refused.
func TestLinkHello(t *testing.T) {
	w := newWorld()
	_, _, s := w.start(t)
	other := hello()
	other.Cluster = make([]byte, 16)
	past, future := hello(), hello()
	past.Protocol, future.Protocol = 0, 99
	for _, tc := range []struct {
		h    *rhumbpb.Hello
		kind rhumb.Kind
	}{{nil, rhumb.InvalidArgument}, {other, rhumb.WrongCluster}, {past, rhumb.Incompatible}} {
		if _, err := s.Greet(tc.h); rhumb.KindOf(err) != tc.kind {
			t.Errorf("%v: %v, want %s", tc.h, err, tc.kind)
		}
	}
	// A client of a later release speaks the protocol of this node as well.
	if _, err := s.Greet(future); err != nil {
		t.Errorf("a client of a later release is refused: %v", err)
	}
}
