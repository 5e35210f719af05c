package lease

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/rhumbdb/rhumb"
)

// A crew drives the Pairs of some nodes over a network that keeps every frame until the test
// decides about it.
type crew struct {
	now   time.Duration // true time; the clock of a node is offset + rate * now
	nodes []*member
	net   []flying
	cut   map[[2]rhumb.NodeID]bool
	log   strings.Builder
}

type member struct {
	id     rhumb.NodeID
	life   rhumb.NodeIdentity
	pairs  *Pairs // nil while the node is down
	offset time.Duration
	rate   float64
	timing Timing
}

// flying is a frame in flight.
type flying struct {
	from rhumb.NodeIdentity
	to   rhumb.NodeID
	f    Frame
}

func newCrew(n int, timing Timing) *crew {
	c := &crew{now: time.Second, cut: map[[2]rhumb.NodeID]bool{}}
	for i := range n {
		id := rhumb.NodeID(i + 1)
		c.nodes = append(c.nodes, &member{
			id: id, life: rhumb.NodeIdentity{Node: id, Store: rhumb.UUID{byte(id)}}, offset: time.Duration(id) * 1000 * time.Second, rate: 1, timing: timing,
		})
	}
	return c
}

func (c *crew) clock(m *member) time.Duration {
	return m.offset + time.Duration(m.rate*float64(c.now))
}

// start begins a new life of a node that watches all others.
func (c *crew) start(m *member, fresh bool) {
	m.life.Boot++
	m.pairs = New(m.life, c.clock(m), fresh)
	c.setPeers(m)
}

func (c *crew) setPeers(m *member, absent ...rhumb.NodeID) {
	var peers []PeerInfo
	for _, q := range c.nodes {
		peers = append(peers, PeerInfo{ID: q.id, Timing: m.timing, Absent: slices.Contains(absent, q.id)})
	}
	m.pairs.SetPeers(c.clock(m), peers)
}

func (c *crew) send(m *member, out []Outgoing) {
	for _, o := range out {
		c.net = append(c.net, flying{m.life, o.To, o.Frame})
	}
}

func (c *crew) tick(m *member) { c.send(m, m.pairs.Tick(c.clock(m))) }

// deliver hands over frame i, unless its link is cut or its receiver is down.
func (c *crew) deliver(i int) {
	x := c.net[i]
	c.net = slices.Delete(c.net, i, i+1)
	to := c.nodes[x.to-1]
	if to.pairs == nil || c.cut[[2]rhumb.NodeID{x.from.Node, x.to}] {
		return
	}
	c.send(to, to.pairs.Receive(c.clock(to), x.from, &x.f))
}

// pass advances the time in steps of 10 ms, with a network without delay.
func (c *crew) pass(d time.Duration) {
	for end := c.now + d; c.now < end; {
		c.now += 10 * time.Millisecond
		for _, m := range c.nodes {
			if m.pairs != nil {
				c.tick(m)
			}
		}
		for len(c.net) > 0 {
			c.deliver(0)
		}
	}
}

var testRange = rhumb.RangeID{Region: 1, Slot: 7}

// TestTranscripts replays the transcripts of testdata. The clock of node n starts at n000 s; all
// clocks run at the same rate.
//
//	new nodes=3 [old]              nodes that know each other, with fresh stores (old: used ones)
//	pass MS                        heartbeats run; frames arrive at once
//	advance MS                     time passes and nothing is sent
//	tick N / net                   send the due heartbeats of N / list the frames in flight
//	deliver|drop [from=N] [to=N] [count=C]
//	cut from=N to=M / mend         the link in one direction
//	crash N / start N [fresh] / reborn N
//	refused N by=M [before=L]      the host of M, or of its life that many lives ago, refuses a connection of N
//	exclude N epoch=E [primary=M]  N promises epoch E of the range
//	holds N epoch=E members=(...) / wait N epoch=E / suspects N / status N
//	unhealthy N / healthy N / distrust N
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var c *crew
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			if td.Cmd == "new" {
				c = newCrew(intArg(td, "nodes"), RegionTiming())
				for _, m := range c.nodes {
					c.start(m, !td.HasArg("old"))
				}
				return "ok"
			}
			c.log.Reset()
			c.run(t, td)
			if c.log.Len() == 0 {
				return "ok"
			}
			return c.log.String()
		})
	})
}

func intArg(td *datadriven.TestData, key string) int {
	for _, arg := range td.CmdArgs {
		if arg.Key == key && len(arg.Vals) == 1 {
			n, err := strconv.Atoi(arg.Vals[0])
			if err != nil {
				panic(err.Error())
			}
			return n
		}
	}
	return 0
}

func firstArg(td *datadriven.TestData) int {
	if len(td.CmdArgs) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(td.CmdArgs[0].Key)
	return n
}

func (c *crew) logf(format string, args ...any) { fmt.Fprintf(&c.log, format+"\n", args...) }

func (c *crew) run(t *testing.T, td *datadriven.TestData) {
	var m *member
	n := firstArg(td)
	if n > 0 && n <= len(c.nodes) {
		m = c.nodes[n-1]
	}
	epoch := rhumb.Epoch(intArg(td, "epoch"))
	switch td.Cmd {
	case "pass":
		c.pass(time.Duration(n) * time.Millisecond)
	case "advance":
		c.now += time.Duration(n) * time.Millisecond
	case "tick":
		c.tick(m)
		c.describeNet()
	case "net":
		c.describeNet()
	case "deliver", "drop":
		c.runNet(td)
	case "cut":
		c.cut[[2]rhumb.NodeID{rhumb.NodeID(intArg(td, "from")), rhumb.NodeID(intArg(td, "to"))}] = true
	case "mend":
		clear(c.cut)
	case "crash":
		m.pairs = nil
	case "start":
		if td.HasArg("fresh") {
			m.life.Store[15]++
		}
		c.start(m, td.HasArg("fresh"))
	case "reborn":
		m.life.Boot++
		m.pairs.Rebirth(m.life)
	case "refused":
		by := c.nodes[intArg(td, "by")-1]
		m.pairs.NoteRefused(c.clock(m), by.id, by.life.Boot-rhumb.BootSeq(intArg(td, "before")))
	case "exclude":
		m.pairs.Exclude(testRange, epoch, rhumb.NodeID(intArg(td, "primary")))
	case "holds":
		var members []rhumb.NodeID
		for _, arg := range td.CmdArgs {
			if arg.Key == "members" {
				for _, v := range arg.Vals {
					i, _ := strconv.Atoi(v)
					members = append(members, rhumb.NodeID(i))
				}
			}
		}
		c.logf("%v", m.pairs.Holds(c.clock(m), testRange, epoch, members))
	case "wait":
		if left := m.pairs.WaitUntil(testRange, epoch) - c.clock(m); left > 0 {
			c.logf("%v more", left.Round(100*time.Microsecond))
		} else {
			c.logf("over")
		}
	case "suspects":
		c.logf("%v", m.pairs.Suspects(c.clock(m)))
	case "status":
		now := c.clock(m)
		for _, s := range m.pairs.Status(now) {
			c.logf("%s contact %v ago, holds for %v, obliged for %v, unconfirmed %d", s.Node, now-s.Contact,
				max(0, s.HeldUntil-now), max(0, s.ObligedUntil-now), s.Unconfirmed)
		}
	case "unhealthy":
		m.pairs.SetHealthy(c.clock(m), false, "the disk hangs")
	case "healthy":
		m.pairs.SetHealthy(c.clock(m), true, "")
	case "distrust":
		m.pairs.DropHeld(c.clock(m))
	default:
		t.Fatalf("unknown command %q", td.Cmd)
	}
}

func (c *crew) runNet(td *datadriven.TestData) {
	from, to := intArg(td, "from"), intArg(td, "to")
	left := len(c.net)
	if n := intArg(td, "count"); n > 0 {
		left = n
	}
	for i := 0; i < len(c.net) && left > 0; {
		x := c.net[i]
		if from != 0 && int(x.from.Node) != from || to != 0 && int(x.to) != to {
			i++
			continue
		}
		left--
		c.logf("%s", x)
		if td.Cmd == "drop" {
			c.net = slices.Delete(c.net, i, i+1)
		} else {
			c.deliver(i)
		}
	}
}

func (c *crew) describeNet() {
	for _, x := range c.net {
		c.logf("%s", x)
	}
}

// String shows a frame; times are as on the clocks that they belong to.
func (x flying) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s->%s", x.from.Node, x.to)
	if x.f.Reply {
		b.WriteString(" reply")
	} else {
		fmt.Fprintf(&b, " heartbeat asks %v", x.f.Lease)
	}
	fmt.Fprintf(&b, " at %v", x.f.Sent)
	if x.f.Echo > 0 {
		fmt.Fprintf(&b, " echo %v", x.f.Echo)
	}
	if x.f.GrantedLease > 0 {
		fmt.Fprintf(&b, " grants %v from %v", x.f.GrantedLease, x.f.Granted)
	}
	for _, e := range x.f.Exclusions {
		fmt.Fprintf(&b, " but not %s below %d", e.Range, e.Epoch)
	}
	if x.f.Confirmed > 0 {
		fmt.Fprintf(&b, " confirms %d", x.f.Confirmed)
	}
	return b.String()
}
