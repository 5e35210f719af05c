package lease

import (
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/closed"
)

// asking returns two nodes that know each other. The first asks the second to close ts.
func asking(ts rhumb.Timestamp) (c *crew, asker, asked *member) {
	c = newCrew(2, RegionTiming())
	for _, m := range c.nodes {
		c.start(m, true)
	}
	c.pass(RegionTiming().Heartbeat)
	c.nodes[0].pairs.Close(ts)
	return c, c.nodes[0], c.nodes[1]
}

// TestAgreed guards that a node agrees once its clock is past the requested timestamp, and never
// for an epoch that is over.
func TestAgreed(t *testing.T) {
	beat := RegionTiming().Heartbeat
	c, asker, asked := asking(500)
	agreed := func(what string, e rhumb.Epoch, want rhumb.Timestamp) {
		t.Helper()
		if got := asker.pairs.Agreed(2, asked.life.Boot, testRange, e); got != want {
			t.Errorf("%s: in epoch %d agreed to %d, want %d", what, e, got, want)
		}
	}
	c.pass(beat)
	agreed("its clock stands", 3, 0)
	asked.pairs.Passed(400)
	c.pass(2 * beat)
	agreed("its clock is past a part", 3, 400)
	asked.pairs.Passed(900)
	c.pass(2 * beat)
	agreed("its clock is past it", 3, 500)
	asked.pairs.Exclude(testRange, 4, 2)
	agreed("before the promise is told", 3, 500)
	c.pass(beat)
	agreed("epoch 4 is promised", 3, 0)
	agreed("epoch 4 is promised", 4, 500)
	if got := asker.pairs.Agreed(2, asked.life.Boot, rhumb.RangeID{Region: 1, Slot: 8}, 3); got != 500 {
		t.Errorf("another range: agreed to %d", got)
	}
	asker.life.Boot++
	asker.pairs.Rebirth(asker.life)
	agreed("a new life", 4, 0)
	c.pass(2 * beat)
	agreed("a new life that asked", 4, 500)
	if got := asker.pairs.Agreed(2, asked.life.Boot+1, testRange, 4); got != 0 {
		t.Errorf("a life that was not heard yet has agreed to %d", got)
	}
}

// TestAgreedNeedsAllExclusions guards that a frame that cannot list all exclusions carries no
// agreement.
func TestAgreedNeedsAllExclusions(t *testing.T) {
	beat := RegionTiming().Heartbeat
	c, asker, asked := asking(500)
	asked.pairs.Passed(500)
	for i := range ExclusionsMax + 1 {
		asked.pairs.Exclude(rhumb.RangeID{Region: 2, Slot: rhumb.Slot(i)}, 2, 2)
	}
	c.now += beat
	c.tick(asker)
	for parts := 0; len(c.net) > 0 || parts == 0; c.deliver(0) {
		f := &c.net[0].f
		if c.net[0].to != 1 || len(f.Exclusions) < ExclusionsMax {
			continue
		}
		if parts++; f.Agreed != 0 {
			t.Fatal("agreement stands beside a part of the exclusions")
		}
	}
	c.pass(3 * beat)
	if got := asker.pairs.Agreed(2, asked.life.Boot, testRange, 1); got != 500 {
		t.Errorf("after all were confirmed: agreed to %d", got)
	}
}

// TestPublish guards that a node learns how far ranges are closed from the frames of their primary,
// even after frames were lost and after either of them has restarted.
func TestPublish(t *testing.T) {
	beat := RegionTiming().Heartbeat
	c, primary, other := asking(500)
	publish := func(at rhumb.Timestamp, seq rhumb.Seq) {
		primary.pairs.Publish([]Published{{
			RangeClaim: closed.RangeClaim{Range: testRange, Claim: closed.Claim{At: at, Seq: seq}}, Replicas: []rhumb.NodeID{1, 2},
		}})
	}
	want := func(what string, upTo rhumb.Seq, own, others rhumb.Timestamp) {
		t.Helper()
		if got := primary.pairs.ClosedAt(testRange, upTo); got != own {
			t.Errorf("%s: at the primary closed up to %d, want %d", what, got, own)
		}
		if got := other.pairs.ClosedAt(testRange, upTo); got != others {
			t.Errorf("%s: at the other closed up to %d, want %d", what, got, others)
		}
	}
	publish(100, 7)
	want("nothing is told yet", 7, 100, 0)
	c.pass(beat)
	want("told", 7, 100, 100)
	want("an earlier position", 6, 0, 0)
	publish(200, 8)
	c.tick(primary)
	c.net = nil
	publish(300, 9)
	c.pass(2 * beat)
	want("after a loss", 9, 300, 300)
	want("what was told before", 7, 0, 100)
	c.start(other, true)
	want("the other restarts", 9, 300, 0)
	c.pass(3 * beat)
	want("and hears of it again", 9, 300, 300)
	c.start(primary, true)
	c.pass(2 * beat)
	want("the primary restarts", 9, 0, 300)
	publish(400, 9)
	c.pass(3 * beat)
	want("and publishes", 9, 400, 400)
}

// BenchmarkPublish measures one round of 1,000 idle ranges with two other replicas each, sent to
// two peers.
func BenchmarkPublish(b *testing.B) {
	c := newCrew(3, RegionTiming())
	for _, m := range c.nodes {
		c.start(m, true)
	}
	c.pass(RegionTiming().Heartbeat)
	claims := make([]Published, 1000)
	for i := range claims {
		claims[i] = Published{Replicas: []rhumb.NodeID{1, 2, 3}}
		claims[i].Range, claims[i].Seq = rhumb.RangeID{Region: 1, Slot: rhumb.Slot(i)}, 7
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		for i := range claims {
			claims[i].At = rhumb.Timestamp(n + 1)
		}
		c.nodes[0].pairs.Publish(claims)
	}
}
