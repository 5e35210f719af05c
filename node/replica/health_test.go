package replica

import (
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// healthCluster returns three nodes with n1 as primary and one committed entry.
func healthCluster(t *testing.T, cfg Config) *cluster {
	t.Helper()
	cfg.MinInSync = 2
	ids := []rhumb.NodeID{1, 2, 3}
	c := newCluster(cfg, ids, ids, 1)
	c.quiet = true
	c.describe()
	c.run()
	c.clock++
	c.node(1).r.Activate(c.clock)
	c.put("a")
	c.run()
	if st := c.node(1).r.Status(); st.State != Primary || st.Commit != 2 {
		t.Fatalf("%+v", st)
	}
	return c
}

// describe passes the newest record to every node.
func (c *cluster) describe() {
	for _, n := range c.nodes {
		n.r.Describe(c.record)
	}
}

func (c *cluster) put(name string) {
	c.node(c.record.Primary).propose(&rhumb.Batch{Range: testRange, Mutations: []rhumb.Mutation{{
		Kind: rhumb.Put, Table: 1, Name: []byte(name), Value: rhumb.EncodeOpaque(nil, []byte("v")),
	}}})
}

// run runs until only lost messages and timers are left. Metadata decides at once.
func (c *cluster) run(lost ...func(*Message) bool) {
	for busy := true; busy; {
		busy = false
		for _, n := range c.nodes {
			for n.r.HasReady() {
				n.ready()
				busy = true
			}
			for len(n.pending) > 0 {
				n.persist()
				busy = true
			}
		}
		for len(c.net) > 0 {
			if slices.ContainsFunc(lost, func(is func(*Message) bool) bool { return is(&c.net[0]) }) {
				c.net = c.net[1:]
				continue
			}
			c.deliver(0)
			busy = true
		}
		for len(c.meta) > 0 {
			if c.decide(0) {
				c.describe()
				for _, n := range c.nodes {
					if _, ok := n.r.AwaitsActivation(); ok {
						c.clock++
						n.r.Activate(c.clock)
					}
				}
			}
			busy = true
		}
	}
}

// pass lets time pass in ticks.
func (c *cluster) pass(d time.Duration, lost ...func(*Message) bool) {
	for end := c.now + d; c.now < end; {
		c.now += 50 * time.Millisecond
		for _, n := range c.nodes {
			n.r.Tick(c.now)
			if _, ok := n.r.AwaitsActivation(); ok {
				c.clock++
				n.r.Activate(c.clock)
			}
		}
		c.run(lost...)
	}
}

// between matches the messages from one node to another, to be lost.
func between(from, to rhumb.NodeID) func(*Message) bool {
	return func(m *Message) bool { return m.From == from && m.To == to }
}

func (c *cluster) wantInSync(t *testing.T, what string, primary rhumb.NodeID, want ...rhumb.NodeID) {
	t.Helper()
	if c.record.Primary != primary || !slices.Equal(c.record.InSync, want) {
		t.Fatalf("%s: %s is primary of %v, want n%d and %v", what, c.record.Primary, c.record.InSync, primary, want)
	}
}

func (c *cluster) commit() rhumb.Seq { return c.node(c.record.Primary).r.Status().Commit }

// TestStuckMemberLeaves guards that a member that acknowledges nothing while entries wait leaves
// the in-sync set although nobody suspects it, and that the entries are committed without it. A
// member without waiting entries stays.
func TestStuckMemberLeaves(t *testing.T) {
	for name, lost := range map[string]func(*Message) bool{"entries are lost": between(1, 3), "acknowledgements are lost": between(3, 1)} {
		c := healthCluster(t, Config{})
		c.pass(10*time.Second, lost)
		c.wantInSync(t, name+", nothing waits", 1, 1, 2, 3)
		c.put("b")
		c.pass(1400*time.Millisecond, lost)
		if c.commit() != 2 {
			t.Fatalf("%s: committed without a member", name)
		}
		c.pass(200*time.Millisecond, lost)
		c.wantInSync(t, name, 1, 1, 2)
		if c.commit() != 3 {
			t.Fatalf("%s: commit is %d once the member has left", name, c.commit())
		}
	}
}

// TestSlowMemberLeaves guards docs/replication.md#rule-slow: a member that is called slow leaves once entries wait for it, and not
// before; a set of the least size keeps it; and it joins when it is fast again, later each time.
func TestSlowMemberLeaves(t *testing.T) {
	c := healthCluster(t, Config{HoldOffMin: time.Second, HoldOffMax: 4 * time.Second})
	r := c.node(1).r
	slow := func(n rhumb.NodeID, is bool) {
		r.SetSlow(n, is)
		c.run()
	}
	slow(3, true)
	c.pass(10 * time.Second)
	c.wantInSync(t, "slow, and nothing waits", 1, 1, 2, 3)
	c.put("b")
	c.run(between(3, 1))
	c.wantInSync(t, "slow", 1, 1, 2)
	if c.commit() != 3 {
		t.Fatal("not committed without the slow member")
	}
	slow(2, true)
	c.put("c")
	c.pass(time.Second, between(2, 1), between(3, 1))
	c.wantInSync(t, "both are slow", 1, 1, 2)
	slow(2, false)
	for i, want := range []time.Duration{0, 2 * time.Second, 4 * time.Second} {
		if i > 0 {
			slow(3, true)
			c.put("d")
			c.run(between(3, 1))
			c.wantInSync(t, "slow again", 1, 1, 2)
		}
		c.pass(10 * time.Second)
		c.wantInSync(t, "still slow", 1, 1, 2)
		// The pause is counted from the departure, so it is over by now only if it is shorter than that.
		slow(3, false)
		c.pass(max(100*time.Millisecond, want-10*time.Second))
		c.wantInSync(t, "fast again", 1, 1, 2, 3)
	}
	if got := r.flaps[3].pause; got != 4*time.Second {
		t.Errorf("the hold-off of a member that comes and goes is %v", got)
	}
}

// TestSlowMemberKeepsRegions guards that a slow member stays while the others would be in too few regions.
func TestSlowMemberKeepsRegions(t *testing.T) {
	c := healthCluster(t, Config{Spans: func(members []rhumb.NodeID) bool { return slices.Contains(members, 3) }})
	c.node(1).r.SetSlow(3, true)
	c.put("b")
	c.pass(time.Second, between(3, 1))
	c.wantInSync(t, "the only member elsewhere is slow", 1, 1, 2, 3)
}

// TestSmallerSetFromMetadataCommits guards that entries in flight are committed as soon as the
// record names a smaller set, whoever made it smaller.
func TestSmallerSetFromMetadataCommits(t *testing.T) {
	c := healthCluster(t, Config{})
	c.put("b")
	c.run(between(1, 3))
	c.change(func(d *rhumb.Range) { d.InSync = []rhumb.NodeID{1, 2} }) // as FenceNode does
	c.describe()
	if got := c.commit(); got != 3 {
		t.Fatalf("commit is %d", got)
	}
}

// TestPausedPrimaryBlamesNobody guards that the pause of a primary does not count against its
// peers.
func TestPausedPrimaryBlamesNobody(t *testing.T) {
	c := healthCluster(t, Config{})
	c.put("b")
	c.pass(100*time.Millisecond, between(1, 3)) // from here on the primary measures how long n3 takes
	c.now += time.Hour
	c.pass(500 * time.Millisecond)
	c.wantInSync(t, "after the pause", 1, 1, 2, 3)
	if c.commit() != 3 {
		t.Fatal("not committed")
	}
}

// TestBlockedPrimaryYields guards that a primary that cannot commit in any set asks for another
// one, and that the other commits. The set stays whole until then, so that all of it can be
// elected.
func TestBlockedPrimaryYields(t *testing.T) {
	c := healthCluster(t, Config{})
	lost := []func(*Message) bool{between(1, 2), between(1, 3)}
	c.put("b")
	c.pass(1400*time.Millisecond, lost...)
	c.wantInSync(t, "before the time is over", 1, 1, 2, 3)
	c.pass(200*time.Millisecond, lost...)
	c.wantInSync(t, "after it", 2, 1, 2, 3)
	c.pass(2*time.Second, lost...)
	start := c.commit()
	c.put("c")
	c.pass(100*time.Millisecond, lost...)
	if c.commit() != start+1 {
		t.Fatalf("the new primary does not commit: %+v", c.node(2).r.Status())
	}
}

// TestYieldIsNotRepeatedFast guards that a primary that nobody can relieve asks with growing
// pauses.
func TestYieldIsNotRepeatedFast(t *testing.T) {
	c := healthCluster(t, Config{})
	r := c.node(1).r
	r.Peer(c.now, 2, true, true)
	r.Peer(c.now, 3, true, true)
	c.put("b")
	asked := 0
	for range 60 * 20 { // a minute
		c.now += 50 * time.Millisecond
		r.Tick(c.now)
		for r.HasReady() {
			rd := r.Ready()
			for _, p := range rd.Meta {
				if p.Kind != Yield {
					t.Fatalf("%+v", p)
				}
				asked++
			}
		}
	}
	if asked < 4 || asked > 8 {
		t.Errorf("asked %d times in a minute", asked)
	}
}

// TestSlowDiskYields guards that a primary whose own disk does not sync the log asks to be
// relieved.
func TestSlowDiskYields(t *testing.T) {
	c := healthCluster(t, Config{})
	r := c.node(1).r
	c.put("b")
	asked := false
	for range 40 {
		c.now += 50 * time.Millisecond
		r.Tick(c.now)
		for r.HasReady() {
			rd := r.Ready() // nothing is ever durable
			asked = asked || slices.ContainsFunc(rd.Meta, func(p MetaProposal) bool { return p.Kind == Yield })
			for _, m := range rd.Messages {
				_ = c.node(m.To).r.Step(m)
			}
		}
		for _, id := range []rhumb.NodeID{2, 3} {
			n := c.node(id)
			for n.r.HasReady() {
				n.ready()
			}
			for len(n.pending) > 0 {
				n.persist()
			}
		}
		for len(c.net) > 0 {
			c.deliver(0)
		}
	}
	if !asked {
		t.Error("it does not ask to be relieved")
	}
}

// TestUnfitNodeYields guards that a node that must not be primary yields at once, also when it is
// elected again.
func TestUnfitNodeYields(t *testing.T) {
	c := healthCluster(t, Config{})
	c.node(1).r.SetUnfit(true)
	c.pass(100 * time.Millisecond)
	c.wantInSync(t, "unfit", 2, 1, 2, 3)
	c.node(2).r.SetUnfit(true)
	c.node(3).r.SetUnfit(false)
	c.pass(100 * time.Millisecond)
	c.wantInSync(t, "the next is unfit too", 3, 1, 2, 3)
	c.put("b")
	before := c.commit()
	c.pass(100 * time.Millisecond)
	if c.commit() != before+1 {
		t.Fatal("an unfit node does not copy either")
	}
}

// TestUnfitNodeEndsItsHandover guards that a node which handed over its range to a target that never took over becomes primary again
// although it is unfit, if metadata finds nobody else: it has stopped serving, and nobody but it knows.
func TestUnfitNodeEndsItsHandover(t *testing.T) {
	c := healthCluster(t, Config{})
	never := func(m *Message) bool { return m.Kind == Handover }
	c.prepare(3)
	c.describe()
	c.run(never)
	if _, to, ok := c.node(1).r.HandingOver(); !ok || to != 3 {
		t.Fatal("the range was not handed over")
	}
	c.lost = 2 // Nobody is fit, so no request to be relieved finds an heir.
	c.node(1).r.SetUnfit(true)
	c.pass(5*time.Second, never)
	if st := c.node(1).r.Status(); st.State != Primary || c.record.Epoch != 3 {
		t.Errorf("n1 is %s of epoch %d and the record has epoch %d, want a primary of epoch 3", st.State, st.Epoch, c.record.Epoch)
	}
}

// TestRefusedElectionIsFollowedAtOnce guards the time without service when a node drains while the target of its handover is dead: metadata elects no
// node that drains, so the request to be elected itself is in vain, and the next one, which leaves the choice to metadata, must not wait for
// a second.
func TestRefusedElectionIsFollowedAtOnce(t *testing.T) {
	c := healthCluster(t, Config{})
	never := func(m *Message) bool { return m.Kind == Handover }
	c.prepare(3)
	c.describe()
	c.run(never)
	r := c.node(1).r
	// asked waits for the next request for an election, and returns its kind and how long that took.
	asked := func() (kind MetaKind, after time.Duration) {
		t.Helper()
		for begun := c.now; c.now-begun < 5*time.Second; {
			c.now += 10 * time.Millisecond
			r.Tick(c.now)
			for _, m := range r.Ready().Meta {
				if m.Kind == ElectMe || m.Kind == Yield {
					return m.Kind, c.now - begun
				}
			}
		}
		t.Fatal("no election was asked for")
		return 0, 0
	}
	for range 3 {
		if kind, _ := asked(); kind != ElectMe {
			t.Fatalf("asked for %v, want ElectMe", kind)
		}
		// An answer about another epoch says nothing about this one.
		r.ElectionRefused(c.record.Epoch - 1)
		r.ElectionRefused(c.record.Epoch)
		if kind, after := asked(); kind != Yield || after > 100*time.Millisecond {
			t.Fatalf("asked for %v after %v, want Yield at once", kind, after)
		}
		// Also refused: then the pace is kept.
		r.ElectionRefused(c.record.Epoch)
		if kind, after := asked(); kind != ElectMe || after < 900*time.Millisecond {
			t.Fatalf("asked for %v after %v, want ElectMe after a second", kind, after)
		}
		r.ElectionRefused(c.record.Epoch)
		if kind, _ := asked(); kind != Yield {
			t.Fatalf("asked for %v, want Yield", kind)
		}
	}
}

// TestHoldOff guards that a member that comes and goes is held off for longer each time, within
// bounds, and that the time is reset after the node has been a member for long enough.
func TestHoldOff(t *testing.T) {
	c := healthCluster(t, Config{HoldOffMin: time.Second, HoldOffMax: 4 * time.Second})
	r := c.node(1).r
	away := func() time.Duration {
		t.Helper()
		r.Peer(c.now, 3, true, true)
		c.run()
		c.wantInSync(t, "suspected", 1, 1, 2)
		r.Peer(c.now, 3, true, false)
		start := c.now
		for !slices.Contains(c.record.InSync, 3) {
			if c.now-start > time.Minute {
				t.Fatalf("held off for ever: %+v", r.Status().Peers)
			}
			c.pass(50 * time.Millisecond)
		}
		return c.now - start
	}
	var got []time.Duration
	for range 4 {
		got = append(got, away())
	}
	c.pass(3 * time.Second)
	got = append(got, away())
	c.pass(5 * time.Second)
	got = append(got, away())
	want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second, 4 * time.Second, time.Second}
	for i := range want {
		if got[i] < want[i] || got[i] > want[i]+200*time.Millisecond {
			t.Fatalf("held off for %v, want %v", got, want)
		}
	}
}

// TestHoldOffEndsWhenBlocked guards that a member that is held off for a long time joins nevertheless while nothing can be committed
// without it, since the other member of a smallest set is behind a broken data path.
func TestHoldOffEndsWhenBlocked(t *testing.T) {
	c := healthCluster(t, Config{HoldOffMin: time.Second, HoldOffMax: time.Minute})
	r := c.node(1).r
	suspect := func(is bool) {
		r.Peer(c.now, 3, true, is)
		c.run()
	}
	for !slices.Contains(c.record.InSync, 3) || r.flaps[3].pause < 16*time.Second {
		suspect(true)
		suspect(false)
		for !slices.Contains(c.record.InSync, 3) {
			c.pass(50 * time.Millisecond)
		}
	}
	suspect(true)
	suspect(false)
	c.wantInSync(t, "held off", 1, 1, 2)
	c.lost = 2 // an election would not help
	before := c.commit()
	c.put("b")
	c.pass(4*time.Second, between(1, 2), between(2, 1))
	c.wantInSync(t, "blocked", 1, 1, 3)
	if c.commit() != before+1 {
		t.Fatal("the entry is not committed")
	}
}

// TestHoldOffOfRestarts guards that a node that restarts rejoins as soon as after its first
// departure, three times within a short while, and later each time from then on.
func TestHoldOffOfRestarts(t *testing.T) {
	c := healthCluster(t, Config{HoldOffMin: time.Second, HoldOffMax: 4 * time.Second})
	restart := func() time.Duration {
		t.Helper()
		c.node(1).r.Peer(c.now, 3, false, true)
		c.run()
		c.wantInSync(t, "stopped", 1, 1, 2)
		start := c.now
		c.pass(300 * time.Millisecond)
		c.node(3).crash(0)
		c.node(3).start()
		c.node(3).r.Describe(c.record)
		for !slices.Contains(c.record.InSync, 3) {
			if c.now-start > time.Minute {
				t.Fatalf("held off for ever: %+v", c.node(1).r.Status().Peers)
			}
			c.pass(50 * time.Millisecond)
		}
		return c.now - start
	}
	var got []time.Duration
	for range 6 {
		got = append(got, restart())
	}
	want := []time.Duration{time.Second, time.Second, time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second}
	for i := range want {
		if got[i] < want[i] || got[i] > want[i]+200*time.Millisecond {
			t.Fatalf("held off for %v, want %v", got, want)
		}
	}
}

// TestRefusedClock guards that entries too far ahead of the receiver's clock are answered and not
// dropped silently. One refusing member leaves the set; if half of the set refuses, the primary
// yields.
func TestRefusedClock(t *testing.T) {
	limit := rhumb.MakeTimestamp(1_000, 0)
	wrong := rhumb.MakeTimestamp(3_600_000, 0) // an hour ahead
	for _, tc := range []struct {
		refusing []rhumb.NodeID
		primary  rhumb.NodeID
		inSync   []rhumb.NodeID
	}{
		{[]rhumb.NodeID{3}, 1, []rhumb.NodeID{1, 2}},
		{[]rhumb.NodeID{2, 3}, 2, []rhumb.NodeID{1, 2, 3}},
	} {
		c := healthCluster(t, Config{})
		for _, id := range tc.refusing {
			c.node(id).r.SetClockLimit(limit)
		}
		c.clock = wrong
		c.put("b")
		c.pass(100 * time.Millisecond)
		c.wantInSync(t, "refused", tc.primary, tc.inSync...)
		if tc.primary == 1 {
			// Everybody accepts committed entries, so that every copy becomes whole.
			if c.pass(5 * time.Second); c.node(3).r.Status().Last.Seq != 3 {
				t.Fatalf("n3 lacks what is committed: %+v", c.node(3).r.Status())
			}
			continue
		}
		c.clock = rhumb.MakeTimestamp(500, 0)
		c.pass(3 * time.Second)
		c.put("c")
		c.pass(100 * time.Millisecond)
		// The new primary cannot know that the refused entry was never acknowledged, and adopts it (rule
		// P). The log continues from that timestamp. What matters is that the range accepts writes.
		if st := c.node(2).r.Status(); st.Commit != st.Last.Seq || st.Last.Seq < 5 {
			t.Fatalf("after the primary yielded: %+v", st)
		}
	}
}

// TestLogsAreComparedBeforeClocks guards that a member whose log is too short says where it ends, whatever the timestamps of the
// entries that it gets are. Told only of its clock, the primary would never send the entries before them, and those may be
// committed.
func TestLogsAreComparedBeforeClocks(t *testing.T) {
	log := makeLog(1, 1, 1, 1, 1, 1)
	ahead := log[5]
	ahead.Requests[0].HLC = rhumb.MakeTimestamp(3_600_000, 0)
	ahead.Seal(nil)
	for _, tc := range []struct {
		prev int
		want string
	}{
		{5, "nack reject 5, has 1:3"},
		{3, "append 4-5; commit 4; nack reject 3, has 0:0; ack match 5"},
	} {
		r := follower(log[:3], 3, 1)
		r.SetClockLimit(rhumb.MakeTimestamp(1_000, 0))
		step(t, r, Message{Kind: Append, Range: testRange, From: 1, To: 2, Epoch: 1, Prev: at(log, tc.prev), Entries: log[tc.prev:], Commit: 4})
		if got := describeFlush(r); got != tc.want {
			t.Errorf("after %d: got %q, want %q", tc.prev, got, tc.want)
		}
	}
}

// TestUnknownEntryIsRefused guards that a member takes the entries before one that its build cannot read, says why it takes no more, and
// acknowledges nothing after them. A log that does not reach the entries comes first, as with clocks.
func TestUnknownEntryIsRefused(t *testing.T) {
	log := makeLog(1, 1, 1, 1, 1, 1)
	for _, tc := range []struct {
		prev, end int
		want      string
	}{
		{5, 5, "nack reject 5, has 1:3"},
		{3, 5, "append 4-5; commit 4; nack reject 3, has 0:0; ack match 5"},
		{3, 3, "nack reject 3, has 0:0"},
	} {
		r := follower(log[:3], 3, 1)
		step(t, r, Message{Kind: Append, Range: testRange, From: 1, To: 2, Epoch: 1, Prev: at(log, tc.prev), Entries: log[tc.prev:tc.end], Unknown: true, Commit: 4})
		if got := describeFlush(r); got != tc.want {
			t.Errorf("after %d, %d entries: got %q, want %q", tc.prev, tc.end-tc.prev, got, tc.want)
		}
	}
}

// TestLogAheadOfClocks guards that a range whose log is an hour ahead of all clocks stays writable:
// an entry is compared with its log, not only with the clock.
func TestLogAheadOfClocks(t *testing.T) {
	c := healthCluster(t, Config{})
	c.clock = rhumb.MakeTimestamp(3_600_000, 0)
	c.put("b")
	c.run()
	for _, n := range c.nodes {
		n.r.SetClockLimit(rhumb.MakeTimestamp(10_000, 0))
	}
	c.clock = rhumb.MakeTimestamp(500, 0) // the clocks are right again
	c.put("c")
	c.pass(100 * time.Millisecond)
	if st := c.node(1).r.Status(); st.Commit != 4 || st.LastHLC <= rhumb.MakeTimestamp(3_600_000, 0) {
		t.Fatalf("%+v", st)
	}
	c.wantInSync(t, "log ahead", 1, 1, 2, 3)
	c.clock = rhumb.MakeTimestamp(7_200_000, 0)
	c.put("d")
	c.run()
	if st := c.node(2).r.Status(); st.Last.Seq != 4 {
		t.Fatalf("an hour above the log was taken: %+v", st)
	}
}

// TestRefusedDisk guards that a member that cannot store entries leaves at once, and that it gets
// few further Appends.
func TestRefusedDisk(t *testing.T) {
	c := healthCluster(t, Config{})
	c.put("b")
	n1 := c.node(1)
	for n1.r.HasReady() {
		n1.ready()
	}
	n1.persist()
	for i := 0; i < len(c.net); i++ {
		if m := c.net[i]; m.To == 3 {
			c.node(3).r.Refuse(&m, RefusedDisk)
		}
	}
	c.run(between(1, 3))
	c.wantInSync(t, "disk full", 1, 1, 2)
	if c.commit() != 3 {
		t.Fatal("not committed")
	}
	sent := 0
	count := func(m *Message) bool {
		if m.From == 1 && m.To == 3 {
			sent++
			n3 := c.node(3).r
			n3.Refuse(m, RefusedDisk)
			return true
		}
		return false
	}
	c.pass(30*time.Second, count)
	if sent == 0 || sent > 30 {
		t.Errorf("asked %d times in 30 s", sent)
	}
	c.wantInSync(t, "still full", 1, 1, 2)
}

// TestLeavingMemberLeaves guards the removal of a copy: a marked member leaves the in-sync set and does not join again, the set
// does not fall below its minimum, and the mark of the primary itself changes nothing (docs/replication.md#rule-removal).
func TestLeavingMemberLeaves(t *testing.T) {
	c := healthCluster(t, Config{})
	mark := func(ids ...rhumb.NodeID) {
		c.change(func(d *rhumb.Range) { d.Leaving = ids })
		c.describe()
		c.run()
		c.put("b")
		c.run()
		c.pass(10 * time.Second)
	}
	mark(1)
	c.wantInSync(t, "the primary is marked", 1, 1, 2, 3)
	mark(3)
	c.wantInSync(t, "n3 is marked", 1, 1, 2)
	if c.commit() != c.node(1).r.Status().Last.Seq {
		t.Error("entries are not committed without n3")
	}
	mark(2, 3)
	c.wantInSync(t, "at the minimum", 1, 1, 2)
	mark()
	c.wantInSync(t, "nothing is marked any more", 1, 1, 2, 3)
}

// TestLeavingMemberWaitsForItsRegion guards survival of a region: a marked member stays in the in-sync set while the others are in one region.
// Metadata refuses the smaller set, and its proposal, which is repeated for ever, would keep everybody from joining
// (docs/replication.md#rule-removal).
func TestLeavingMemberWaitsForItsRegion(t *testing.T) {
	spread := func(members []rhumb.NodeID) bool { return slices.Contains(members, 3) || slices.Contains(members, 4) }
	c := healthCluster(t, Config{Spans: spread})
	c.change(func(d *rhumb.Range) { d.Leaving = []rhumb.NodeID{3} })
	c.describe()
	c.run()
	c.pass(10 * time.Second)
	c.wantInSync(t, "n3 alone is in another region", 1, 1, 2, 3)
	if p := c.node(1).r.Status().Pending; p != nil {
		t.Errorf("the change to %v is pending, which metadata refuses", p)
	}
}
