package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// The rule for where a record is: the prior region comes first and must answer, then the first hit
// counts, and a region that is silent makes a miss an error.
func TestJudge(t *testing.T) {
	down := errors.New("region 3 does not answer")
	for _, tc := range []struct {
		prior  rhumb.RegionID
		states [3]placeState // of regions 1, 2 and 3
		at     rhumb.RegionID
		open   bool
		err    error
	}{
		{1, [3]placeState{asking, asking, asking}, 0, true, nil},
		{1, [3]placeState{with, asking, asking}, 1, false, nil},
		{1, [3]placeState{with, with, silent}, 1, false, nil},
		{1, [3]placeState{asking, with, without}, 0, true, nil},
		{2, [3]placeState{with, asking, without}, 0, true, nil},
		{1, [3]placeState{without, with, asking}, 2, false, nil},
		{1, [3]placeState{without, with, silent}, 2, false, nil},
		{1, [3]placeState{without, without, asking}, 0, true, nil},
		{1, [3]placeState{without, asking, silent}, 0, true, nil},
		{1, [3]placeState{without, without, silent}, 0, false, down},
		{1, [3]placeState{without, without, without}, 0, false, nil},
		{3, [3]placeState{with, without, silent}, 0, false, down},
		{0, [3]placeState{asking, with, silent}, 2, false, nil},
		{0, [3]placeState{without, without, without}, 0, false, nil},
	} {
		s := &survey{prior: tc.prior}
		for i, state := range tc.states {
			p := place{id: rhumb.RangeID{Region: rhumb.RegionID(i + 1)}, state: state}
			if state == silent {
				p.err = down
			}
			s.asked = append(s.asked, p)
		}
		at, decided, err := s.judge()
		var region rhumb.RegionID
		if at != nil {
			region = at.id.Region
		}
		if decided == tc.open || decided && (region != tc.at || err != tc.err) {
			t.Errorf("%+v: at %s, decided %t, %v", tc, region, decided, err)
		}
	}
	if at, decided, err := (&survey{}).judge(); at != nil || !decided || err != nil {
		t.Error("a survey of no region is not decided")
	}
}

// traffic counts what the nodes of a world were asked.
type traffic struct {
	mu                            sync.Mutex // guards all below
	reads, writes, locates, names int
	namesMax                      int
}

// watch counts every request to every node.
func (w *world) watch() *traffic {
	n := &traffic{}
	for _, node := range w.nodes {
		node.set(func(q *rhumbpb.Request) fault {
			n.mu.Lock()
			defer n.mu.Unlock()
			switch {
			case isWrite(q):
				n.writes++
			case isRead(q):
				n.reads++
			case isLocate(q):
				n.locates++
				n.names += len(q.Locate.Names)
				n.namesMax = max(n.namesMax, len(q.Locate.Names))
			}
			return fault{}
		})
	}
	return n
}

// A creation costs one write, at home, and a place in a request to each region. The first one still
// finds out that records of its table are new.
func TestCreationsAreLocated(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	tab := w.table(c, "plain")
	must[Result](t)(tab.Patch(t.Context(), []byte("first"), record(t, "a", 1), PatchOptions{}))
	seen := w.watch()
	const names = 50
	var work sync.WaitGroup
	for i := range names {
		work.Go(func() {
			r, err := tab.Patch(t.Context(), fmt.Append(nil, i), record(t, "a", 1), PatchOptions{})
			if err != nil || r.Existed || r.Key.Home.Region != 1 || r.Receipt.Searched != 2 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	work.Wait()
	if seen.writes != names || seen.reads != 0 || seen.names != 3*names {
		t.Errorf("%d creations took %d writes, %d reads and %d located names", names, seen.writes, seen.reads, seen.names)
	}
	// The next patch of a name that is here is located too; then they are expected here again, and
	// need no other region.
	other := w.table(w.open("singapore"), "plain")
	must[Result](t)(other.Patch(t.Context(), []byte("new"), record(t, "a", 1), PatchOptions{}))
	for i, want := range []int{2, 0} {
		r := must[Result](t)(other.Patch(t.Context(), fmt.Append(nil, i), record(t, "b", 1), PatchOptions{}))
		if !r.Existed || r.Receipt.Searched != want {
			t.Errorf("patch %d of a record that is here: %+v, want %d regions searched", i, r, want)
		}
	}
}

// questioned takes the answers of tests.
type questioned []chan api.Existence

func (q questioned) onLocated(place int, e api.Existence) { q[place] <- e }

// Questions to one node share requests, within the bound of one, and each is answered once.
func TestQuestionsShareRequests(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	tab := w.table(c, "plain")
	const questions = 3 * rhumb.LocateNamesMax
	for i := 0; i < questions; i += 100 {
		must[Result](t)(tab.Put(t.Context(), fmt.Append(nil, i), nil, PutOptions{Home: "virginia"}))
	}
	seen := w.watch()
	answers := make(questioned, questions)
	for i := range questions {
		answers[i] = make(chan api.Existence, 2)
		c.locator.askNode(destination{3, w.nodes[2].addr}, question{1, fmt.Append(nil, i), answers, i})
	}
	for i, a := range answers {
		want := api.Absent
		if i%100 == 0 {
			want = api.Present
		}
		select {
		case e := <-a:
			if e != want {
				t.Fatalf("name %d is %s, want %s", i, e, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("question %d has no answer", i)
		}
	}
	await(t, "the locator is idle", func() bool {
		c.locator.mu.Lock()
		defer c.locator.mu.Unlock()
		return len(c.locator.queues) == 0
	})
	if seen.names != questions || seen.namesMax > rhumb.LocateNamesMax || seen.locates > questions/10 {
		t.Errorf("%d questions took %d requests with %d names, %d in one", questions, seen.locates, seen.names, seen.namesMax)
	}
	if m := c.Metrics(); m.Located != questions || m.Undecided != 0 {
		t.Errorf("%+v", m)
	}
}

// What a node leaves undecided, or does not understand because it is of an older build, is read.
func TestUndecidedIsRead(t *testing.T) {
	for name, f := range map[string]fault{"older build": {refuse: rhumb.InvalidArgument}, "lost": {drop: true, cut: true}} {
		w := newWorld(t, 3, 1)
		c := w.open("singapore")
		tab := w.table(c, "plain")
		absent := PutOptions{If: rhumb.Condition{Kind: rhumb.IfAbsent}}
		must[Result](t)(tab.Put(t.Context(), []byte("far"), nil, PutOptions{Home: "virginia"}))
		for _, n := range w.nodes {
			n.set(func(q *rhumbpb.Request) fault {
				if isLocate(q) {
					return f
				}
				return fault{}
			})
		}
		if _, err := tab.Put(t.Context(), []byte("far"), nil, absent); rhumb.KindOf(err) != rhumb.ConditionFailed {
			t.Errorf("%s: a record of another region: %v", name, err)
		}
		if r, err := tab.Put(t.Context(), []byte("new"), nil, absent); err != nil || r.Key.Home.Region != 1 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if c.Metrics().Undecided == 0 {
			t.Errorf("%s: nothing was undecided", name)
		}
	}
}

// A range that moved is asked where it is now.
func TestLocateFollowsTheRange(t *testing.T) {
	w := newWorld(t, 3, 2)
	c := w.open("singapore")
	tab := w.table(c, "plain")
	must[Result](t)(tab.Put(t.Context(), []byte("k"), nil, PutOptions{Home: "virginia"}))
	id := homeOf(3, "k")
	old := w.rangeOf(id).Primary
	at := slices.DeleteFunc(w.nodesIn(3), func(n rhumb.NodeID) bool { return n == old })[0]
	w.move(id, at) // the client may hear of it late: then the old primary leaves the name undecided
	_, err := tab.Put(t.Context(), []byte("k"), nil, PutOptions{If: rhumb.Condition{Kind: rhumb.IfAbsent}})
	wantKind(t, err, rhumb.ConditionFailed)
	if rs := w.regionsOf("k"); !slices.Equal(rs, []rhumb.RegionID{3}) {
		t.Fatal(rs)
	}
}

// A hit here does not wait for a region that is silent, and a creation does not happen without its
// answer.
func TestSilentRegion(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore", func(cfg *Config) { cfg.Timeout, cfg.AttemptTimeout = 2*time.Second, 500*time.Millisecond })
	tab := w.table(c, "plain")
	absent := PutOptions{If: rhumb.Condition{Kind: rhumb.IfAbsent}}
	must[Result](t)(tab.Put(t.Context(), []byte("here"), nil, PutOptions{}))
	for _, n := range w.nodes { // no node can pass a request on to it either
		n.set(func(q *rhumbpb.Request) fault {
			return fault{drop: q.Read.GetRegion() == 3 || q.Locate.GetRegion() == 3}
		})
	}
	start := time.Now()
	_, err := tab.Put(t.Context(), []byte("here"), nil, absent)
	wantKind(t, err, rhumb.ConditionFailed)
	if took := time.Since(start); took > c.cfg.AttemptTimeout {
		t.Errorf("a hit here took %v", took)
	}
	if _, err = tab.Put(t.Context(), []byte("new"), nil, absent); err == nil || rhumb.KindOf(err) == rhumb.ConditionFailed {
		t.Errorf("a creation without the answer of a region: %v", err)
	}
	if rs := w.regionsOf("new"); len(rs) != 0 {
		t.Errorf("the record was created in %v", rs)
	}
}

// TestListenersAreBounded guards that surveys with an answer do not wait for a region that hangs,
// beyond a number of them.
func TestListenersAreBounded(t *testing.T) {
	for _, tc := range []struct {
		before  int64
		listens bool
	}{{listenersMax - 1, true}, {listenersMax, false}} {
		c := &Client{}
		c.listeners.Store(tc.before)
		s := &survey{t: &Table{c: c}, asked: make([]place, 2)}
		ctx, cancel := context.WithCancel(t.Context())
		var asked context.Context
		answers := make(chan chan<- placeAnswer, 1)
		at, err := s.run(ctx, func(whole context.Context, index int, to chan<- placeAnswer) {
			asked = whole
			if index == 0 {
				to <- placeAnswer{index: 0, state: with}
				answers <- to
			}
		})
		cancel()
		if at == nil || err != nil {
			t.Fatalf("the survey concludes %v, %v", at, err)
		}
		if listens := asked.Err() == nil; listens != tc.listens {
			t.Errorf("with %d listeners a survey listens: %v", tc.before, listens)
		}
		(<-answers) <- placeAnswer{index: 1, state: without} // ends the listener
		c.work.Wait()
		if n := c.listeners.Load(); n != tc.before {
			t.Errorf("%d listeners are counted at the end, %d at the start", n, tc.before)
		}
	}
}
