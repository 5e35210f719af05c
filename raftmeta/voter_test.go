package raftmeta

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// image returns a copy of the durable contents of a node's disk.
func (c *cluster) image(id rhumb.NodeID) *memKV { return c.kvs[id].crash() }

// cutLog removes the last entries of a stopped node's log and keeps its hard state.
func cutLog(kv *memKV, entries int) {
	for range entries {
		last := ""
		for k := range kv.current {
			if k[0] == 'e' && k > last {
				last = k
			}
		}
		delete(kv.current, last)
		delete(kv.durable, last)
	}
}

// regions proposes n new regions through a node.
func (c *cluster) regions(via rhumb.NodeID, prefix string, n int) {
	c.t.Helper()
	for i := range n {
		c.propose(via, catalog.AddRegion{Name: fmt.Sprintf("%s%d", prefix, i)})
	}
}

// awaitSound waits until all nodes that are up take part, lack nothing, and know so many voters.
func (c *cluster) awaitSound(voters int) {
	c.t.Helper()
	c.await("all take part", func() bool {
		for id := range c.groups {
			if s := c.status(id); s.Silent || s.Short || s.Floor != 0 || len(s.Voters) != voters {
				return false
			}
		}
		return true
	})
	c.awaitAlike()
}

// TestLostEnd removes the end of one voter's log while the others live. They readmit the voter, and
// it gets its vote back.
func TestLostEnd(t *testing.T) {
	inBubble(t, 3, nil, func(c *cluster) {
		c.awaitVoters(3)
		c.regions(1, "before", 10)
		victim := c.ids(c.leader())[0]
		c.awaitAlike()
		c.kill(victim)
		cutLog(c.kvs[victim], 6)
		c.open(victim)
		c.awaitSound(3)
		c.regions(victim, "after", 3)
		c.awaitSound(3)
	})
}

// TestEmptied removes everything from the disk of one voter. It joins again as a learner and gets
// its vote back.
func TestEmptied(t *testing.T) {
	victim := rhumb.NoNode
	inBubble(t, 3, func(config *Config) { config.Short = config.Node == victim }, func(c *cluster) {
		c.awaitVoters(3)
		c.regions(1, "before", 10)
		victim = c.ids(c.leader())[0]
		c.kill(victim)
		c.kvs[victim] = newMemKV()
		c.open(victim)
		c.awaitSound(3)
		c.regions(victim, "after", 3)
	})
	victim = rhumb.NoNode
}

// TestEmptiedUnnoticed replaces a node's disk by an older copy, from before the first entry reached
// it, and nothing on that disk shows it.
func TestEmptiedUnnoticed(t *testing.T) {
	for _, nodes := range []int{3, 4} { // the victim votes, or it does not
		victim := rhumb.NoNode
		inBubble(t, nodes, func(config *Config) { config.Restarted = config.Node == victim }, func(c *cluster) {
			c.awaitVoters(3)
			c.regions(1, "before", 10)
			c.awaitAlike()
			for _, id := range c.ids(c.leader()) {
				if slices.Contains(c.status(1).Voters, id) == (nodes == 3) {
					victim = id
				}
			}
			c.kill(victim)
			c.kvs[victim] = newMemKV()
			c.open(victim)
			c.awaitSound(3)
			c.regions(victim, "after", 3)
			c.awaitSound(3)
		})
	}
}

// TestFounderForgetsVoters cuts the founder's log back to where the founder was the only voter:
// before the others joined, or while they were learners. It must not lead alone, since it is one
// voter of three.
func TestFounderForgetsVoters(t *testing.T) {
	for _, alone := range []bool{true, false} {
		short := false
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, map[bool]int{true: 1, false: 3}[alone], func(config *Config) { config.Short = short && config.Node == 1 })
			defer c.close()
			image := c.image(1)
			if s := c.status(1); len(s.Voters) != 1 || (len(s.Learners) == 0) != alone {
				t.Fatalf("the image is not that of the only voter: %+v", s)
			}
			for len(c.kvs) < 3 {
				c.join()
			}
			c.awaitVoters(3)
			c.regions(2, "decided", 5)
			c.awaitAlike()
			c.kill(1) // it leads, or may: nobody does while it starts
			c.kvs[1], short = image, true
			c.open(1)
			for range 100 {
				if s := c.status(1); s.Role == "leader" && len(s.Voters) == 1 {
					t.Fatalf("it leads alone: %+v", s)
				}
				time.Sleep(20 * time.Millisecond)
			}
			c.awaitSound(3)
			if _, ok := c.groups[1].State().RegionByName("decided4"); !ok {
				t.Error("what was decided is lost")
			}
		})
	}
}

// TestDamagedLog makes the log of one voter unreadable in every way that the store distinguishes.
func TestDamagedLog(t *testing.T) {
	for name, damage := range map[string]func(m map[string][]byte){
		"hard state":  func(m map[string][]byte) { m["h"] = []byte{0xff} },
		"transfer":    func(m map[string][]byte) { m["s"] = m["s"][:9] },
		"no transfer": func(m map[string][]byte) { delete(m, "s") },
		"entry":       func(m map[string][]byte) { m[lastEntry(m)] = []byte{0xff} },
		"gap":         func(m map[string][]byte) { delete(m, firstEntry(m)) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, func(config *Config) { config.LogSize, config.LogKeep = 1<<10, 0 }, func(c *cluster) {
				c.awaitVoters(3)
				c.regions(1, "before", 40)
				c.awaitAlike()
				victim := c.ids(c.leader())[0]
				c.kill(victim)
				damage(c.kvs[victim].current)
				damage(c.kvs[victim].durable)
				c.open(victim)
				c.awaitSound(3)
				c.regions(victim, "after", 3)
			})
		})
	}
}

func lastEntry(m map[string][]byte) (last string) {
	for k := range m {
		if k[0] == 'e' {
			last = max(last, k)
		}
	}
	return last
}

func firstEntry(m map[string][]byte) string {
	first := lastEntry(m)
	for k := range m {
		if k[0] == 'e' {
			first = min(first, k)
		}
	}
	return first
}

// TestRolledBack starts all voters at once, one of them from an older copy of its disk. No
// committed entry is lost, and one round trip is enough to take part.
func TestRolledBack(t *testing.T) {
	inBubble(t, 3, nil, func(c *cluster) {
		c.awaitVoters(3)
		c.awaitAlike()
		victim := c.ids(c.leader())[0]
		image := c.image(victim)
		c.regions(victim, "new", 20)
		for _, id := range c.ids() {
			c.kill(id)
		}
		c.kvs[victim] = image
		start := time.Now()
		for id := range rhumb.NodeID(3) {
			c.open(id + 1)
		}
		c.await("all have asked", func() bool {
			for id := range c.groups {
				if c.status(id).Silent {
					return false
				}
			}
			return true
		})
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("took part after %v, want about a round trip", took)
		}
		c.awaitSound(3)
		if _, ok := c.groups[victim].State().RegionByName("new19"); !ok {
			t.Error("what was decided is lost")
		}
	})
}

// TestRolledBackAlone starts one voter from an older copy of its disk while another one is down. It
// must not form a majority with the remaining one, which may lack entries that the third has.
func TestRolledBackAlone(t *testing.T) {
	inBubble(t, 3, nil, func(c *cluster) {
		c.awaitVoters(3)
		c.awaitAlike()
		holder := c.leader()
		victim, third := c.ids(holder)[0], c.ids(holder)[1]
		// A life begins after the copy, so that the copy can be recognised.
		image := c.image(victim)
		c.kill(victim)
		c.open(victim)
		c.awaitSound(3)
		c.await("leads", func() bool { return c.leader() == holder })
		c.net.isolate(third, c.ids(third), true)
		c.regions(victim, "decided", 5) // by the holder and the victim
		c.kill(victim)
		c.kill(holder)
		c.kvs[victim] = image
		c.net.isolate(third, []rhumb.NodeID{victim, holder}, false)
		c.open(victim)
		time.Sleep(time.Minute)
		for id := range c.groups {
			if s := c.status(id); s.Role == "leader" {
				t.Fatalf("n%d leads and lacks what was decided", id)
			}
		}
		if s := c.status(victim); !s.Silent || !s.Short {
			t.Fatalf("the voter that was rolled back: %+v", s)
		}
		c.open(holder)
		c.awaitSound(3)
		if _, ok := c.groups[victim].State().RegionByName("decided4"); !ok {
			t.Error("what was decided is lost")
		}
	})
}

// TestRestartWithOneDown restarts an intact voter while another one is down. After a while the two
// continue.
func TestRestartWithOneDown(t *testing.T) {
	inBubble(t, 3, nil, func(c *cluster) {
		c.awaitVoters(3)
		c.awaitAlike()
		time.Sleep(time.Second)
		c.kill(3)
		c.kill(2)
		start := time.Now()
		c.open(2)
		c.await("the two go on", func() bool { return !c.status(2).Silent })
		if took := time.Since(start); took > 1500*time.Millisecond {
			t.Errorf("after %v", took)
		}
		c.regions(2, "after", 3)
	})
}

// TestVoterMissesLives restarts an intact voter twice while another one is down, which knows neither life when it returns. The two
// continue when the third voter is lost and the first one restarts again.
func TestVoterMissesLives(t *testing.T) {
	inBubble(t, 3, nil, func(c *cluster) {
		c.awaitVoters(3)
		c.awaitAlike()
		c.kill(3)
		for range 2 {
			c.kill(2)
			c.open(2)
			c.await("voter 2 takes part", func() bool { return !c.status(2).Silent })
		}
		c.open(3)
		c.awaitSound(3)
		c.kill(1)
		c.kill(2)
		c.open(2)
		c.await("the two that are left go on", func() bool { return !c.status(2).Silent && !c.status(2).Short })
		c.regions(2, "after", 3)
	})
}

// TestRecover gives up two of three voters for good. The third, or a learner, becomes the only
// voter and keeps everything in its log, and the other nodes join again.
func TestRecover(t *testing.T) {
	for _, survivor := range []rhumb.NodeID{3, 5} {
		t.Run(survivor.String(), func(t *testing.T) {
			inBubble(t, 6, nil, func(c *cluster) {
				c.awaitVoters(3)
				c.regions(1, "kept", 5)
				c.awaitAlike()
				voters := c.status(c.leader()).Voters
				if survivor == 3 {
					survivor = c.status(c.leader()).Voters[2]
				}
				for _, id := range voters {
					c.kill(id)
				}
				if !slices.Contains(voters, survivor) {
					c.kill(survivor)
				}
				s, err := Recover(c.kvs[survivor], survivor, time.Now())
				if err != nil || !slices.Equal(s.Voters, voters) || s.Recovered == nil {
					t.Fatalf("%+v, %v", s, err)
				}
				// An operator who is not sure repeats the command. The record of the first one stays.
				again, err := Recover(c.kvs[survivor], survivor, time.Now().Add(time.Hour))
				if err != nil || len(s.Recovered.Lost) == 0 || !slices.Equal(again.Recovered.Lost, s.Recovered.Lost) || again.Recovered.At.Sub(s.Recovered.At) > time.Minute {
					t.Errorf("repeated: %+v, %v; the first time: %+v", again.Recovered, err, s.Recovered)
				}
				for _, id := range c.ids() { // one of the others starts again, too
					c.kill(id)
					c.open(id)
					break
				}
				c.open(survivor)
				c.regions(survivor, "after", 3)
				c.await("there are voters again", func() bool { return len(c.status(survivor).Voters) > 1 })
				c.awaitAlike()
				if !has(c.groups[survivor].State(), "kept4") {
					t.Error("what the survivor had is lost")
				}
				if s, err := Inspect(c.kvs[survivor], survivor); err != nil || s.Recovered == nil {
					t.Errorf("the recovery is not on record: %+v, %v", s, err)
				}
			})
		})
	}
}

// TestOnlyVoterLostItsEnd damages the only voter. Its log stays unchanged, and the error is
// corrupt.
func TestOnlyVoterLostItsEnd(t *testing.T) {
	c := &cluster{t: t}
	kv := newMemKV()
	if _, err := Bootstrap(kv, catalog.Init{Cluster: rhumb.UUID{7}, First: registration(1, 1)}); err != nil {
		c.t.Fatal(err)
	}
	kv.current["h"] = mustMarshal(&raftpb.HardState{Term: proto.Uint64(1), Commit: proto.Uint64(9)})
	_, err := openLog(kv)
	if rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(rhumb.Message(err), "unsafe-recover metadata") {
		t.Fatalf("got %v, want kind corrupt and the command that recovers", err)
	}
	if _, ok := kv.current["h"]; !ok {
		t.Error("the log of the only voter was removed")
	}
}

// TestDamages kills, restarts and damages voters at random, one disk at a time. Committed entries
// remain, and all voters return without help.
func TestDamages(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testDamages(t, seed) })
	}
}

func testDamages(t *testing.T, seed uint64) {
	short := rhumb.NoNode
	nodes := 3 + int(seed%2)*2
	inBubble(t, nodes, func(config *Config) {
		config.Short = config.Node == short
		if seed%3 == 0 {
			config.LogSize, config.LogKeep = 1<<10, 3
		}
	}, func(c *cluster) {
		r := rand.New(rand.NewPCG(seed, 7))
		c.awaitVoters(3)
		c.net.mu.Lock()
		c.net.loss, c.net.delay = 0.02, time.Duration(1+r.IntN(20))*time.Millisecond
		c.net.mu.Unlock()
		for step := range 12 {
			c.regions(rhumb.NodeID(1+r.IntN(nodes)), fmt.Sprintf("a%d-", step), 1+r.IntN(5))
			victim := rhumb.NodeID(1 + r.IntN(nodes))
			image := c.image(victim)
			c.regions(rhumb.NodeID(1+r.IntN(nodes)), fmt.Sprintf("b%d-", step), 1+r.IntN(5))
			down := []rhumb.NodeID{victim}
			if r.IntN(2) == 0 {
				down = c.ids()
			}
			for _, id := range down {
				c.kill(id)
			}
			switch r.IntN(4) {
			case 0:
				cutLog(c.kvs[victim], r.IntN(6))
			case 1:
				c.kvs[victim] = image
			case 2:
				c.kvs[victim], short = newMemKV(), victim
			}
			r.Shuffle(len(down), func(i, j int) { down[i], down[j] = down[j], down[i] })
			for _, id := range down {
				c.open(id)
				time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
			}
			short = rhumb.NoNode
			c.awaitSound(3)
			c.regions(victim, fmt.Sprintf("c%d-", step), 1) // all apply what was decided before it
			c.awaitAlike()
			for _, id := range c.ids() {
				if st := c.groups[id].State(); !has(st, fmt.Sprintf("a%d-0", step)) || !has(st, fmt.Sprintf("b%d-0", step)) {
					t.Fatalf("step %d: n%d lost what was decided", step, id)
				}
			}
		}
	})
}

func has(st *catalog.State, region string) bool {
	_, ok := st.RegionByName(region)
	return ok
}

// TestProof is a table of what a replica may do after certain answers.
func TestProof(t *testing.T) {
	three := []uint64{1, 2, 3}
	own := standing{Last: position{3, 10}, Applied: 10, Voters: three}
	heard := func(v verdict, last position) answer {
		return answer{Life: 9, Verdict: v, Term: 4, Last: last, Applied: 10, Voters: three}
	}
	heardOf5 := func(v verdict) answer {
		return answer{Life: 9, Verdict: v, Applied: 11, Voters: []uint64{1, 2, 3, 4, 5}}
	}
	learning := func(v verdict) answer { // the replica learns, and 4 does not answer
		return answer{Life: 9, Verdict: v, Applied: 11, Voters: []uint64{2, 3, 4}}
	}
	whole := record{Life: 9, Formers: []uint64{8}}
	lacking := record{Life: 9, Formers: []uint64{8}, Short: true}
	floored := record{Life: 9, Formers: []uint64{8}, Short: true, Floor: position{3, 14}}
	for _, c := range []struct {
		name    string
		record  record
		waited  int
		answers map[uint64]answer
		silent  bool
		floor   position
	}{
		{"nobody answers", whole, 1000, nil, true, position{}},
		{"all answer", whole, 0, map[uint64]answer{2: heard(0, own.Last), 3: heard(0, own.Last)}, false, position{}},
		{"all answer and one has more", whole, 0, map[uint64]answer{2: heard(0, own.Last), 3: heard(0, position{3, 12})}, false, position{3, 12}},
		{"all answer and one has a later term", lacking, 0, map[uint64]answer{2: heard(0, own.Last), 3: heard(0, position{4, 2})}, false, position{4, 2}},
		{"a majority at once", whole, 0, map[uint64]answer{2: heard(lifeMatched, own.Last)}, true, position{}},
		{"a majority after a while", whole, fewAfter, map[uint64]answer{2: heard(lifeMatched, own.Last)}, false, position{}},
		{"a majority that does not know the life", whole, 1000, map[uint64]answer{2: heard(lifeUnknown, own.Last)}, true, position{}},
		{"no voter, and a majority that does not know the life", whole, fewAfter, map[uint64]answer{2: learning(lifeUnknown), 3: learning(lifeUnknown)}, false, position{}},
		{"no voter, and one that knows a newer life", whole, 1000, map[uint64]answer{2: learning(lifeUnknown), 3: learning(lifeDiffers)}, true, position{}},
		{"no voter, and no majority", whole, 1000, map[uint64]answer{2: learning(lifeUnknown)}, true, position{}},
		{"a majority that knows a newer life", whole, 1000, map[uint64]answer{2: heard(lifeDiffers, own.Last)}, true, position{}},
		// Voters 4 and 5 may have got their votes while the replica was down. The others know what they know.
		{"a majority, one of which is a new voter", whole, fewAfter, map[uint64]answer{
			2: heardOf5(lifeMatched), 4: heardOf5(lifeUnknown),
		}, false, position{}},
		{"a majority, one of which is a new voter that knows a newer life", whole, 1000, map[uint64]answer{
			2: heardOf5(lifeMatched), 3: heardOf5(lifeMatched), 4: heardOf5(lifeDiffers),
		}, true, position{}},
		{"a majority, one of which has not heard of the life", whole, 1000, map[uint64]answer{
			2: heardOf5(lifeMatched), 3: heardOf5(lifeUnknown), 4: heardOf5(lifeMatched),
		}, true, position{}},
		{"a majority of new voters", whole, 1000, map[uint64]answer{4: heardOf5(lifeUnknown), 5: heardOf5(lifeUnknown)}, true, position{}},
		{"a majority and an earlier floor", floored, fewAfter, map[uint64]answer{2: heard(lifeMatched, own.Last)}, false, floored.Floor},
		{"a majority and an earlier floor that was exceeded", floored, fewAfter, map[uint64]answer{2: heard(lifeMatched, position{4, 2})}, false, position{4, 2}},
		{"all answer, and nobody has the earlier floor any more", floored, 0, map[uint64]answer{2: heard(0, own.Last), 3: heard(0, own.Last)}, false, position{}},
		{"an earlier floor, and one that knows a newer life", floored, 1000, map[uint64]answer{2: heard(lifeDiffers, own.Last)}, true, position{}},
		{"a majority and known damage", lacking, 1000, map[uint64]answer{2: heard(lifeMatched, own.Last)}, true, position{}},
		{"a leader counts on more", whole, 1000, map[uint64]answer{2: heard(0, own.Last), 3: {Life: 9, Term: 4, Last: own.Last, Leads: true, Match: 11}}, true, position{}},
		{"answers to an older life", whole, 1000, map[uint64]answer{2: {Life: 8}, 3: {Life: 8}}, true, position{}},
		{"a newer configuration", whole, 1000, map[uint64]answer{2: heard(0, own.Last), 3: {Life: 9, Applied: 11, Voters: []uint64{1, 2, 3, 4, 5}}}, true, position{}},
		{"admitted to vote", lacking, 0, map[uint64]answer{2: {Life: 9, Admitted: admission{Life: 9, Index: 10}}}, false, position{}},
		{"admitted to vote, not applied", lacking, 0, map[uint64]answer{2: {Life: 9, Admitted: admission{Life: 9, Index: 11}}}, true, position{}},
		{"an older life was admitted", lacking, 0, map[uint64]answer{2: {Life: 9, Admitted: admission{Life: 8, Index: 10}}}, true, position{}},
		{"admitted to learn", lacking, 0, map[uint64]answer{2: {Life: 9, Admitted: admission{Life: 9, Index: 10, Learner: true}}}, true, position{}},
	} {
		p := newProof(1, c.record, false, own)
		p.waited = c.waited
		for id, a := range c.answers {
			p.hearAnswer(id, a, own)
		}
		p.nextRuling(own)
		if p.silent != c.silent || p.floor != c.floor {
			t.Errorf("%s: silent %v, floor %v; want %v, %v", c.name, p.silent, p.floor, c.silent, c.floor)
		}
		if p.mayCampaign() != (!c.silent && c.floor == position{}) || p.mayVote(own.Last) != (!c.silent && !own.Last.less(c.floor)) {
			t.Errorf("%s: campaigns %v, votes %v", c.name, p.mayCampaign(), p.mayVote(own.Last))
		}
		if !p.silent && (p.record.Short != (c.floor != position{}) || p.record.Floor != c.floor) {
			t.Errorf("%s: short %v, stored floor %v, with floor %v", c.name, p.record.Short, p.record.Floor, c.floor)
		}
	}
	p := newProof(1, lacking, false, own)
	p.hearAnswer(2, answer{Life: 9, Term: 7, Admitted: admission{Life: 9, Index: 12, Learner: true}}, own)
	if r := p.nextRuling(own); r.Vote != 7 || !p.mayAcknowledge() || p.mayVote(position{9, 99}) {
		t.Errorf("taken in as a learner: %+v, acknowledges %v", r, p.mayAcknowledge())
	}
}

// TestLives follows the lives of a replica through starts, and the verdicts of a peer.
func TestLives(t *testing.T) {
	r := record{}.beginLife(1, false)
	known := acquaintance{Life: 1}
	for life := uint64(2); life < 5; life++ { // starts that this peer did not hear of
		r = r.beginLife(life, false)
	}
	if want := []uint64{1, 2, 3}; !slices.Equal(r.Formers, want) {
		t.Fatalf("formers %v, want %v", r.Formers, want)
	}
	met, v := known.compareLife(question{Life: 4, Formers: r.Formers})
	if v != lifeMatched || met.Life != 4 {
		t.Fatalf("%v, %+v", v, met)
	}
	if _, v = met.compareLife(question{Life: 4, Formers: r.Formers}); v != lifeMatched {
		t.Errorf("a repetition: %v", v)
	}
	old := question{Life: 5, Formers: []uint64{1}}
	if again, v := met.compareLife(old); v != lifeDiffers || again != met {
		t.Errorf("an older copy: %v, %+v", v, again)
	}
	old.Short = true
	if again, v := met.compareLife(old); v != lifeDiffers || again.Life != 5 {
		t.Errorf("an older copy that knows it: %v, %+v", v, again)
	}
}

// FuzzQuestion decodes questions and answers from arbitrary bytes. Whatever decodes has a life and
// lists of bounded length.
func FuzzQuestion(f *testing.F) {
	f.Add(encodeMessage(messageQuestion, question{Life: 1, Formers: []uint64{2}, Last: position{3, 4}}))
	f.Add(encodeMessage(messageAnswer, answer{Life: 1, Voters: []uint64{1, 2, 3}}))
	f.Add([]byte{messageAnswer})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		in, err := decodeInbound(2, b)
		switch {
		case err != nil:
			if rhumb.KindOf(err) != rhumb.Corrupt {
				t.Errorf("got %v, want kind corrupt", err)
			}
		case in.question != nil && (in.question.Life == 0 || len(in.question.Formers) > formersMax),
			in.answer != nil && (in.answer.Life == 0 || len(in.answer.Voters) > rhumb.NodesMax):
			t.Errorf("%+v", in)
		}
	})
}
