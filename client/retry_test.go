package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// A write whose answer is lost with its connection is sent again under its id, and takes effect
// once.
func TestLostAnswerAppliedOnce(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("")
	tab := w.table(c, "plain")
	w.nodes[0].set(first(3, isWrite, fault{lose: true, cut: true}))
	put := must[Result](t)(tab.Put(t.Context(), []byte("k"), []byte("v"), PutOptions{}))
	if total, most := w.times(); total != 1 || most != 1 {
		t.Fatalf("took effect %d times", total)
	}
	got := must[Got](t)(tab.Get(t.Context(), []byte("k"), GetOptions{}))
	if got.Version != put.Version {
		t.Fatalf("the answer to the retry is %v, the record %v", put.Version, got.Version)
	}
	if m := c.Metrics(); m.Retries != 3 || m.Broken != 3 {
		t.Fatalf("%+v", m)
	}
}

// Inserts of a known range are as safe.
func TestLostInsertAppliedOnce(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("")
	tab := w.table(c, "plain")
	w.nodes[0].set(first(1, isWrite, fault{lose: true, cut: true}))
	r := must[Result](t)(tab.Insert(t.Context(), []byte("v"), InsertOptions{}))
	got := must[Got](t)(tab.Get(t.Context(), r.Key.Name, GetOptions{Home: r.Key.Home.String()}))
	if b, _ := got.Bytes(); string(b) != "v" || got.Version != r.Version {
		t.Fatalf("%+v %+v", got, r)
	}
	if total, _ := w.times(); total != 1 {
		t.Fatalf("took effect %d times", total)
	}
}

// An insert on a node whose range is not known is not sent again once it was sent: its outcome is
// unknown.
func TestInsertWithoutRangeIsUnknown(t *testing.T) {
	w := newWorld(t, 1, 1)
	blocks := w.meta.Blocks
	w.meta.Blocks = blocks[:1]
	c := w.open("")
	w.mu.Lock()
	w.meta.Blocks = blocks // as if the node had opened it a moment ago
	w.mu.Unlock()
	tab := w.table(c, "plain")
	r := must[Result](t)(tab.Insert(t.Context(), []byte("v"), InsertOptions{}))
	if r.Key.Home.Slot != insertFirst {
		t.Fatalf("%+v", r)
	}
	w.nodes[0].set(first(1, isWrite, fault{lose: true, cut: true}))
	_, err := tab.Insert(t.Context(), []byte("v"), InsertOptions{})
	wantKind(t, err, rhumb.Unknown)
	if total, _ := w.times(); total != 2 {
		t.Fatalf("took effect %d times", total)
	}
}

// A full range sends its inserts to another, under a new id.
func TestInsertMovesOn(t *testing.T) {
	w := newWorld(t, 1, 2)
	c := w.open("")
	tab := w.table(c, "plain")
	other := w.rangeOf(rhumb.RangeID{Region: 1, Slot: insertFirst + rhumb.BlockSlots})
	w.nodes[0].set(func(q *rhumbpb.Request) fault {
		if q.Write != nil {
			return fault{refuse: rhumb.NotPrimary, newer: other}
		}
		return fault{}
	})
	for range 4 {
		r := must[Result](t)(tab.Insert(t.Context(), nil, InsertOptions{}))
		if r.Key.Home != other.ID {
			t.Fatalf("inserted into %s", r.Key.Home)
		}
	}
}

// A node that sends inserts to another is passed by, until its time is over, for the class it said
// it of; when all are, none is.
func TestInsertsPassByWhoSendsThemAway(t *testing.T) {
	w := newWorld(t, 1, 3)
	c := w.open("")
	tab := w.table(c, "plain")
	other := w.rangeOf(rhumb.RangeID{Region: 1, Slot: insertFirst + rhumb.BlockSlots})
	w.nodes[0].set(func(q *rhumbpb.Request) fault {
		if q.Write == nil {
			return fault{}
		}
		return fault{refuse: rhumb.NotPrimary, newer: other}
	})
	// until moves the end of the time, so that a slow machine does not reach it.
	until := func(at time.Time) {
		c.full.mu.Lock()
		defer c.full.mu.Unlock()
		for n := range c.full.until {
			c.full.until[n] = at
		}
	}
	redirects := func(inserts int) uint64 {
		before := c.Metrics().Redirects
		for range inserts {
			must[Result](t)(tab.Insert(t.Context(), nil, InsertOptions{}))
		}
		return c.Metrics().Redirects - before
	}
	for round := range 2 {
		if n := redirects(3); n != 1 {
			t.Fatalf("round %d: %d redirects while each node had its turn, want 1", round, n)
		}
		until(time.Now().Add(time.Hour))
		if n := redirects(30); n != 0 {
			t.Fatalf("round %d: %d redirects to a node that sends inserts away", round, n)
		}
		until(time.Now().Add(-time.Nanosecond))
	}
}

// TestFullNodes guards that inserts avoid a node that redirected one of their class, that they
// still have a node if all did, and that the memory is bounded.
func TestFullNodes(t *testing.T) {
	var f fullNodes
	nodes, into := []rhumb.Node{{ID: 1}, {ID: 2}}, []rhumb.RangeID{{Region: 1, Slot: 1}, {Region: 1, Slot: 2}}
	check := func(what string, class rhumb.ClassID, want ...rhumb.NodeID) {
		t.Helper()
		got, ranges := f.withoutFull(nodes, into, class)
		var ids []rhumb.NodeID
		for i, n := range got {
			ids = append(ids, n.ID)
			if ranges[i].Slot != rhumb.Slot(n.ID) {
				t.Errorf("%s: node %v comes with range %v", what, n.ID, ranges[i])
			}
		}
		if !slices.Equal(ids, want) || len(ranges) != len(got) {
			t.Errorf("%s: nodes %v with ranges %v, want %v", what, ids, ranges, want)
		}
	}
	check("nothing is known", 1, 1, 2)
	f.markFull(1, 1)
	check("one is full", 1, 2)
	check("another class", 2, 1, 2)
	f.markFull(2, 1)
	check("all are full", 1, 1, 2)
	for n := range 3 * fullMax {
		f.markFull(rhumb.NodeID(n+3), 1)
	}
	if len(f.until) > fullMax {
		t.Errorf("%d are remembered, want at most %d", len(f.until), fullMax)
	}
}

// A client with old metadata follows the descriptor that comes with the refusal, without a pause.
func TestRedirect(t *testing.T) {
	w := newWorld(t, 1, 2)
	c := w.open("")
	tab := w.table(c, "plain")
	id := homeOf(1, "k")
	now := w.rangeOf(id)
	to := 3 - now.Primary
	// The world changes without telling the watchers.
	w.mu.Lock()
	moveIn(&w.meta, id, to)
	w.mu.Unlock()
	r := must[Result](t)(tab.Put(t.Context(), []byte("k"), nil, PutOptions{}))
	if r.Receipt.Node != to {
		t.Fatalf("served by %s", r.Receipt.Node)
	}
	if m := c.Metrics(); m.Redirects != 1 || m.Retries != 1 {
		t.Fatalf("%+v", m)
	}
}

// A call that waits for a primary goes on at the new one as soon as metadata declares the old one
// dead, long before its attempt would time out.
func TestFencedPrimaryIsLeft(t *testing.T) {
	w := newWorld(t, 1, 2)
	c := w.open("", func(cfg *Config) { cfg.AttemptTimeout = time.Hour; cfg.Timeout = time.Hour })
	tab := w.table(c, "plain")
	id := homeOf(1, "k")
	dead := w.rangeOf(id).Primary
	arrived := make(chan struct{}, 1)
	w.node(dead).set(func(q *rhumbpb.Request) fault {
		if q.Write != nil {
			arrived <- struct{}{}
			return fault{drop: true}
		}
		return fault{}
	})
	done := make(chan Result, 1)
	go func() {
		r, err := tab.Put(context.Background(), []byte("k"), nil, PutOptions{})
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	<-arrived
	w.fence(dead, 3-dead)
	select {
	case r := <-done:
		if r.Receipt.Node != 3-dead {
			t.Fatalf("served by %s", r.Receipt.Node)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the call still waits for the dead node")
	}
}

// A client that watches the metadata at a node which is cut off finds the new primaries through another node, and watches there from then
// on. It would otherwise be cut off with that node, although it reaches all others.
func TestCutOffNodeIsLeft(t *testing.T) {
	w := newWorld(t, 1, 2)
	primary := w.rangeOf(homeOf(1, "k")).Primary
	// The watch begins at the only address that the client knows.
	c := w.open("", func(cfg *Config) { cfg.Addrs = []string{w.node(primary).addr} })
	tab := w.table(c, "plain")
	must[Result](t)(tab.Put(t.Context(), []byte("k"), nil, PutOptions{}))
	w.isolate(primary, 3-primary)
	if r := must[Result](t)(tab.Put(t.Context(), []byte("k"), nil, PutOptions{})); r.Receipt.Node != 3-primary {
		t.Fatalf("served by %s", r.Receipt.Node)
	}
	// Once the watch is at the other node, no call goes through the one that is cut off.
	await(t, "the new primary is known", func() bool {
		r, _, _ := c.meta.primaryOf(homeOf(1, "k"))
		return r.Primary == 3-primary
	})
}

// A primary that cannot be reached, but lives, is reached through another node.
func TestReachedThroughAnother(t *testing.T) {
	w := newWorld(t, 1, 2)
	c := w.open("")
	tab := w.table(c, "plain")
	primary := w.rangeOf(homeOf(1, "k")).Primary
	w.node(primary).server.Stop()
	r := must[Result](t)(tab.Put(t.Context(), []byte("k"), nil, PutOptions{}))
	if r.Receipt.Node != primary || r.Receipt.Hops != 2 {
		t.Fatalf("%+v", r.Receipt)
	}
}

// A read whose connection breaks again and again has no unknown outcome: it changed nothing.
func TestReadHasNoOutcome(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("", func(cfg *Config) { cfg.Timeout = 500 * time.Millisecond })
	tab := w.table(c, "plain")
	w.nodes[0].set(func(*rhumbpb.Request) fault { return fault{drop: true, cut: true} })
	_, err := tab.Get(t.Context(), []byte("k"), GetOptions{Home: "singapore"})
	wantKind(t, err, rhumb.Unavailable)
	_, err = tab.Put(t.Context(), []byte("k"), nil, PutOptions{Home: "singapore"})
	wantKind(t, err, rhumb.Unknown)
}

// A restarted node is connected to again.
func TestReconnect(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("")
	tab := w.table(c, "plain")
	must[Result](t)(tab.Put(t.Context(), []byte("k"), nil, PutOptions{}))
	n := w.nodes[0]
	n.server.Stop()
	done := make(chan error, 1)
	go func() {
		_, err := tab.Put(context.Background(), []byte("k"), nil, PutOptions{})
		done <- err
	}()
	await(t, "the client retries", func() bool { return c.Metrics().Retries > 0 })
	n.listen(n.addr)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	await(t, "the watch is back", func() bool { return c.Metrics().Watches >= 2 })
}

// What a refusal says after a first try may have been applied is not the outcome of the write.
func TestRefusalAfterLostAnswerIsUnknown(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("")
	tab := w.table(c, "plain")
	n := 0
	w.nodes[0].set(func(q *rhumbpb.Request) fault {
		if q.Write == nil {
			return fault{}
		}
		if n++; n == 1 {
			return fault{drop: true, cut: true} // it may yet arrive, for all the client knows
		}
		return fault{refuse: rhumb.ConditionFailed}
	})
	_, err := tab.Put(t.Context(), []byte("k"), nil, PutOptions{Home: "singapore", If: rhumb.Condition{Kind: rhumb.IfAbsent}})
	wantKind(t, err, rhumb.Unknown)
	_, err = tab.Put(t.Context(), []byte("k"), nil, PutOptions{Home: "singapore", If: rhumb.Condition{Kind: rhumb.IfAbsent}})
	wantKind(t, err, rhumb.ConditionFailed) // n is 3 now: refused at the first try
	if m := c.Metrics(); m.Unknown != 1 || m.Errors != 1 {
		t.Fatalf("%+v", m)
	}
}

// A node that says how long to wait is not asked before, and no caller waits for ever because of
// it.
func TestRetryAfterIsKept(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("")
	tab := w.table(c, "plain")
	const after = 300 * time.Millisecond
	w.nodes[0].set(first(1, isWrite, fault{refuse: rhumb.Overloaded, after: after}))
	begin := time.Now()
	must[Result](t)(tab.Put(t.Context(), []byte("k"), nil, PutOptions{}))
	if took := time.Since(begin); took < after {
		t.Errorf("the next try came after %v, want %v or more", took, after)
	}
	for range 100 {
		if d := withJitter(time.Hour); d < retryAfterMax || d > retryAfterMax*3/2 {
			t.Fatalf("a wait of an hour becomes %v", d)
		}
	}
	if d := withJitter(0); d != 0 {
		t.Fatalf("no wait becomes %v", d)
	}
}

// A kind that cannot help by a retry ends the call at once; one that can is tried again.
func TestKindsOfRefusal(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("")
	tab := w.table(c, "plain")
	for _, tc := range []struct {
		kind  rhumb.Kind
		retry bool
		read  bool
	}{
		{rhumb.InvalidArgument, false, false},
		{rhumb.ConditionFailed, false, false},
		{rhumb.DiskFull, false, false},
		{rhumb.Corrupt, false, true},
		{rhumb.PermissionDenied, false, true},
		{rhumb.Expired, false, false},
		{rhumb.Internal, false, false},
		{rhumb.Unavailable, true, false},
		{rhumb.Unavailable, true, true},
		{rhumb.Overloaded, true, false},
		{rhumb.Unknown, true, false},
		{rhumb.DeadlineExceeded, true, true},
		{rhumb.Canceled, true, false},
		{rhumb.NotPrimary, true, false},
	} {
		match := isWrite
		if tc.read {
			match = isRead
		}
		w.nodes[0].set(first(1, match, fault{refuse: tc.kind}))
		var err error
		if tc.read {
			_, err = tab.GetMany(t.Context(), [][]byte{[]byte("k")}, GetOptions{})
		} else {
			_, err = tab.Put(t.Context(), []byte("k"), nil, PutOptions{})
		}
		if tc.retry != (err == nil) || err != nil && rhumb.KindOf(err) != tc.kind {
			t.Errorf("%s: %v", tc.kind, err)
		}
	}
}

// A node that has not heard of a range yet, because its metadata is older than the client's, is
// asked again.
func TestNodeBehind(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("")
	tab := w.table(c, "plain")
	w.nodes[0].set(first(2, isWrite, fault{refuse: rhumb.NotFound, of: homeOf(1, "k")}))
	must[Result](t)(tab.Put(t.Context(), []byte("k"), nil, PutOptions{}))
	w.nodes[0].set(first(1, isWrite, fault{refuse: rhumb.NotFound}))
	_, err := tab.Put(t.Context(), []byte("k"), nil, PutOptions{})
	wantKind(t, err, rhumb.NotFound) // something else does not exist
}

// Every way in which a call can run out of time says what is known of its effect.
func TestOutOfTime(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("", func(cfg *Config) { cfg.Timeout = 1500 * time.Millisecond; cfg.AttemptTimeout = 200 * time.Millisecond })
	tab := w.table(c, "plain")
	arrived := make(chan struct{}, 1000)
	drop := func(*rhumbpb.Request) fault {
		arrived <- struct{}{}
		return fault{drop: true}
	}
	w.nodes[0].set(drop)
	_, err := tab.Put(t.Context(), []byte("k"), nil, PutOptions{})
	wantKind(t, err, rhumb.Unknown)
	if len(arrived) < 2 {
		t.Fatal("an attempt without an answer is not repeated")
	}
	_, err = tab.Get(t.Context(), []byte("k"), GetOptions{})
	wantKind(t, err, rhumb.DeadlineExceeded)

	for len(arrived) > 0 {
		<-arrived
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { _, err := tab.Put(ctx, []byte("k"), nil, PutOptions{}); done <- err }()
	<-arrived
	cancel()
	err = <-done
	wantKind(t, err, rhumb.Unknown)

	_, err = tab.Put(ctx, []byte("k"), nil, PutOptions{})
	wantKind(t, err, rhumb.Canceled)
	_, err = tab.Get(ctx, []byte("k"), GetOptions{})
	wantKind(t, err, rhumb.Canceled)
	ctx, cancel = context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	_, err = tab.Put(ctx, []byte("k"), nil, PutOptions{})
	wantKind(t, err, rhumb.DeadlineExceeded)
	if total, _ := w.times(); total != 0 {
		t.Fatal("a dropped write took effect")
	}
}

// When the budget for retries is used up, calls fail with what they met instead of being tried
// again.
func TestBudgetExhausted(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("", func(cfg *Config) { cfg.RetryBurst = 5 })
	tab := w.table(c, "plain")
	w.nodes[0].set(func(*rhumbpb.Request) fault { return fault{refuse: rhumb.Unavailable} })
	var work sync.WaitGroup
	for i := range 20 {
		work.Go(func() {
			_, err := tab.Put(context.Background(), fmt.Append(nil, i), nil, PutOptions{})
			if rhumb.KindOf(err) != rhumb.Unavailable {
				t.Errorf("got %v", err)
			}
		})
	}
	work.Wait()
	m := c.Metrics()
	if m.Refused != 20 || m.Retries < 5 || m.Retries > 30 {
		t.Fatalf("%+v", m)
	}
}

func TestBudget(t *testing.T) {
	b := newBudget(2, 0.5)
	for i := range 3 {
		if b.takeToken() != (i < 2) {
			t.Fatal("a burst of two is two")
		}
	}
	b.payIn()
	if b.takeToken() {
		t.Fatal("half a token bought a retry")
	}
	b.payIn()
	b.payIn()
	if !b.takeToken() {
		t.Fatal("a whole token bought nothing")
	}
	for range 100 {
		b.payIn()
	}
	if b.tokens != 2 {
		t.Fatalf("%v tokens in a bucket of 2", b.tokens)
	}
	b.tokens, b.filled = 0, time.Now().Add(-time.Second)
	if !b.takeToken() {
		t.Fatal("the floor was not paid in")
	}
}

// Never are more than 64 requests of a range unanswered, counted from the oldest.
func TestWindow(t *testing.T) {
	w := newWindow()
	ctx, cancel := context.WithCancel(t.Context())
	for i := uint64(1); i <= rhumb.DedupWindow; i++ {
		if n, err := w.takeNumber(ctx); n != i || err != nil {
			t.Fatal(n, err)
		}
	}
	got := make(chan uint64, 1)
	go func() {
		n, _ := w.takeNumber(context.Background())
		got <- n
	}()
	await(t, "it waits", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.freed != nil
	})
	w.releaseNumber(2) // not the oldest
	cancel()
	if _, err := w.takeNumber(ctx); err == nil {
		t.Fatal("a number was given that is 64 above one unanswered")
	}
	w.releaseNumber(1)
	if n := <-got; n != rhumb.DedupWindow+1 {
		t.Fatal(n)
	}
	if n, err := w.takeNumber(t.Context()); n != rhumb.DedupWindow+2 || err != nil {
		t.Fatal(n, err)
	}
}
