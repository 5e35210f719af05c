package host

import (
	"cmp"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
)

// delayWorld passes delays of peers to a slowness, without a host.
type delayWorld struct {
	slowness
	now   time.Duration
	seq   rhumb.Seq
	trips map[rhumb.NodeID]time.Duration // those that are not a microsecond
	seen  map[rhumb.NodeID]time.Duration // those of all peers so far
	lost  bool
	told  opinions
}

// step sends each peer Appends for a step, which are answered after a delay, and syncs.
func (w *delayWorld) step(own time.Duration, acks map[rhumb.NodeID]time.Duration) judgement {
	for end := w.now + slowStep; w.now < end; w.now += 50 * time.Millisecond {
		w.seq++
		if own > 0 {
			w.noteSync(own)
		}
		for n, delay := range acks {
			m := replica.Message{Kind: replica.Append, Range: rhumb.RangeID{Region: 1}, To: n, Epoch: 1, Entries: []*entry.Entry{{Seq: w.seq}}}
			w.noteSent(w.now, &m, w.seq)
			if !w.lost {
				w.noteReceived(w.now+delay, &replica.Message{Kind: replica.Ack, Range: m.Range, From: n, Epoch: 1, Match: w.seq})
			}
		}
	}
	if w.seen == nil {
		w.seen = make(map[rhumb.NodeID]time.Duration)
	}
	for n := range acks {
		w.seen[n] = cmp.Or(w.trips[n], time.Microsecond)
	}
	return w.judge(w.now, func() map[rhumb.NodeID]time.Duration { return w.seen }, func(rhumb.RangeID, rhumb.Epoch) bool { return true }, func() opinions { return w.told })
}

// TestSlowPeer guards who is called slow: whoever answers late compared with the others, without the round trip, for most of
// five seconds, and not whoever is far away, stalls once, or is as slow as everybody.
func TestSlowPeer(t *testing.T) {
	const ms = time.Millisecond
	type peers = map[rhumb.NodeID]time.Duration
	for _, tt := range []struct {
		name        string
		own         time.Duration
		acks, trips peers
		want        bool
	}{
		{"equal", 2 * ms, peers{2: 3 * ms, 3: 3 * ms}, nil, false},
		{"ten times", 2 * ms, peers{2: 3 * ms, 3: 30 * ms}, nil, true},
		{"four times", 5 * ms, peers{2: 5 * ms, 3: 20 * ms}, nil, false},
		{"too little to matter", 200 * time.Microsecond, peers{2: 300 * time.Microsecond, 3: 7 * ms}, nil, false},
		{"far away", 2 * ms, peers{2: 3 * ms, 3: 103 * ms}, peers{3: 100 * ms}, false},
		{"far away and slow", 2 * ms, peers{2: 3 * ms, 3: 250 * ms}, peers{3: 100 * ms}, true},
		{"far away, on a way that varies", 2 * ms, peers{2: 3 * ms, 3: 190 * ms}, peers{3: 100 * ms}, false},
		{"everybody is slow", 100 * ms, peers{2: 100 * ms, 3: 120 * ms}, nil, false},
		{"two nodes", 2 * ms, peers{3: 40 * ms}, nil, true},
	} {
		w := &delayWorld{trips: tt.trips}
		found := 0
		for i := range 20 {
			j := w.step(tt.own, tt.acks)
			if len(j.slow) > 0 {
				found = i + 1
			}
		}
		if (found > 0) != tt.want || w.isPeerSlow(3) != tt.want || w.isPeerSlow(2) {
			t.Errorf("%s: n3 is slow: %v, found in step %d", tt.name, w.isPeerSlow(3), found)
		}
		if tt.want && found != slowLeaves {
			t.Errorf("%s: found in step %d, want %d", tt.name, found, slowLeaves)
		}
	}
}

// TestSlowPeerReturns guards that a peer that is fast again is called so within slowSteps, and that one that is asked nothing is not
// slow for ever.
func TestSlowPeerReturns(t *testing.T) {
	const ms = time.Millisecond
	slow := map[rhumb.NodeID]time.Duration{2: 3 * ms, 3: 40 * ms}
	for name, then := range map[string]map[rhumb.NodeID]time.Duration{"fast": {2: 3 * ms, 3: 3 * ms}, "asked nothing": {2: 3 * ms}} {
		w := new(delayWorld)
		for range slowSteps {
			w.step(2*ms, slow)
		}
		steps := 0
		for w.isPeerSlow(3) && steps < 100 {
			w.step(2*ms, then)
			steps++
		}
		if steps < 5 || steps > slowSteps {
			t.Errorf("%s: no longer slow after %d steps", name, steps)
		}
	}
	// A single stall, and then an answer.
	w := new(delayWorld)
	for i := range 20 {
		acks := map[rhumb.NodeID]time.Duration{2: 3 * ms, 3: 3 * ms}
		if i == 10 || i == 11 {
			acks[3] = 400 * ms
		}
		if w.step(2*ms, acks); w.isPeerSlow(3) {
			t.Fatal("a stall of a second makes a node slow")
		}
	}
}

// TestUnansweredIsLate guards that a peer whose acknowledgements do not come at all is late, not unknown.
func TestUnansweredIsLate(t *testing.T) {
	const ms = time.Millisecond
	w := &delayWorld{lost: true}
	for range slowSteps {
		w.step(2*ms, map[rhumb.NodeID]time.Duration{3: 0})
	}
	if !w.isPeerSlow(3) {
		t.Error("a peer that answers nothing is not slow")
	}
}

// TestSlowOwnDisk guards that a node knows that its own disk is the slow one by what its peers need in all, also after its ranges have
// moved away and nobody acknowledges anything any more, and that it stays without primaries for longer each time.
func TestSlowOwnDisk(t *testing.T) {
	const ms = time.Millisecond
	w := new(delayWorld)
	fast := map[rhumb.NodeID]time.Duration{2: 3 * ms, 3: 3 * ms}
	round := func() (held time.Duration) {
		for range slowSteps {
			w.step(30*ms, fast)
		}
		if w.fault(w.now) == "" {
			t.Fatal("the own disk is not slow")
		}
		for range 40 {
			w.step(30*ms, nil)
		}
		if w.fault(w.now) == "" {
			t.Fatal("without primaries the disk counts as fast")
		}
		// The hold began when the disk was found slow; a second verdict begins the next one.
		for range slowSteps {
			w.step(2*ms, nil)
		}
		return w.hold.length
	}
	if a, b := round(), round(); a != ownHoldMin || b != 2*ownHoldMin {
		t.Errorf("held for %v, then %v", a, b)
	}
	for range int(ownHoldMax/slowStep) + 100 {
		w.step(2*ms, fast)
	}
	if w.fault(w.now) != "" {
		t.Error("the disk is slow for ever")
	}
	if c := round(); c != ownHoldMin {
		t.Errorf("held for %v after a long time", c)
	}
}

// TestUsualDelayExpires guards that a node whose peers were measured too fast once, before it lost its primaries, has primaries again later. In
// simulated seed 176, with syncs of 10 ms everywhere and round trips that vary by 120 ms, four of five nodes called their disks slow for good.
func TestUsualDelayExpires(t *testing.T) {
	const ms = time.Millisecond
	w := new(delayWorld)
	for range slowSteps {
		w.step(10*ms, map[rhumb.NodeID]time.Duration{2: ms, 3: ms})
	}
	if w.fault(w.now) == "" {
		t.Fatal("the own disk is not slow compared with the peers")
	}
	steps := 0
	for w.fault(w.now) != "" && steps < 1_000 {
		w.step(10*ms, nil)
		steps++
	}
	if held := time.Duration(steps) * slowStep; held < usualKeep || held > usualKeep+slowSteps*slowStep {
		t.Errorf("without acknowledgements the disk is slow for %v, want %v and a judgement", held, usualKeep)
	}
}

// TestToldSlow guards that a node believes its peers only if two of them, and more than the half, call it slow; that it then has no
// primaries for the time of a hold; that a slow disk is named as the reason if it is one; and what the node tells its peers in turn.
func TestToldSlow(t *testing.T) {
	const ms = time.Millisecond
	fast := map[rhumb.NodeID]time.Duration{2: 3 * ms, 3: 3 * ms}
	for _, tt := range []struct {
		told opinions
		want bool
	}{{opinions{0, 0}, false}, {opinions{1, 0}, false}, {opinions{1, 1}, false}, {opinions{2, 0}, true}, {opinions{2, 1}, true}, {opinions{2, 2}, false}, {opinions{3, 4}, false}} {
		w := &delayWorld{told: tt.told}
		w.step(2*ms, fast)
		if why := w.fault(w.now); strings.HasPrefix(why, "node_slow: ") != tt.want {
			t.Errorf("told %+v: %q", tt.told, why)
		}
		begin := w.now
		for w.told = (opinions{}); w.fault(w.now) != ""; {
			w.step(2*ms, fast)
		}
		if held := w.now - begin; tt.want && held != ownHoldMin {
			t.Errorf("told %+v: held for %v", tt.told, held)
		}
	}
	w := &delayWorld{told: opinions{slow: 2}}
	for range slowSteps {
		w.step(30*ms, fast)
	}
	if why := w.fault(w.now); !strings.HasPrefix(why, "disk_slow: ") || w.hold.length != ownHoldMin {
		t.Errorf("a slow disk that peers noticed first: %q for %v", why, w.hold.length)
	}
	w = new(delayWorld)
	var j judgement
	for range slowSteps {
		j = w.step(2*ms, map[rhumb.NodeID]time.Duration{2: 3 * ms, 3: 40 * ms, 4: 3 * ms})
	}
	if want := map[rhumb.NodeID]lease.Speed{2: lease.SpeedUsual, 3: lease.SpeedSlow, 4: lease.SpeedUsual}; !maps.Equal(j.speeds, want) {
		t.Errorf("opinions %v, want %v", j.speeds, want)
	}
	// The delay of n4 does not stand out, but the way to it may vary by more.
	w = &delayWorld{trips: map[rhumb.NodeID]time.Duration{4: 100 * ms, 5: 100 * ms}}
	for range slowSteps {
		j = w.step(2*ms, map[rhumb.NodeID]time.Duration{2: 3 * ms, 3: 40 * ms, 4: 113 * ms, 5: 103 * ms, 6: 3 * ms})
	}
	if want := map[rhumb.NodeID]lease.Speed{2: lease.SpeedUsual, 3: lease.SpeedSlow, 5: lease.SpeedUsual, 6: lease.SpeedUsual}; !maps.Equal(j.speeds, want) {
		t.Errorf("opinions of near and far peers: %v, want %v", j.speeds, want)
	}
	for range slowSteps {
		j = w.step(2*ms, map[rhumb.NodeID]time.Duration{2: 3 * ms})
	}
	if want := map[rhumb.NodeID]lease.Speed{2: lease.SpeedUsual}; !maps.Equal(j.speeds, want) {
		t.Errorf("opinions of peers that were asked nothing: %v, want %v", j.speeds, want)
	}
}

// TestSlowBeats guards the opinion of a node that nobody acknowledges anything to, because it has no primaries: it calls slow whose
// heartbeats take much longer than usual and than those of others, and never contradicts others, because heartbeats need no disk.
func TestSlowBeats(t *testing.T) {
	const ms = time.Millisecond
	type trips = map[rhumb.NodeID]time.Duration
	before := trips{2: ms, 3: ms, 4: 100 * ms}
	for name, tt := range map[string]struct {
		now  trips
		want map[rhumb.NodeID]lease.Speed
	}{
		"equal":                       {before, map[rhumb.NodeID]lease.Speed{}},
		"a slow neighbour":            {trips{2: ms, 3: 9 * ms, 4: 100 * ms}, map[rhumb.NodeID]lease.Speed{3: lease.SpeedSlow}},
		"too little to matter":        {trips{2: ms, 3: 5 * ms, 4: 100 * ms}, map[rhumb.NodeID]lease.Speed{}},
		"a way that varies":           {trips{2: ms, 3: ms, 4: 190 * ms}, map[rhumb.NodeID]lease.Speed{}},
		"this node is slow":           {trips{2: 46 * ms, 3: 45 * ms, 4: 145 * ms}, map[rhumb.NodeID]lease.Speed{}},
		"the neighbour does not talk": {trips{2: ms, 4: 100 * ms}, map[rhumb.NodeID]lease.Speed{}},
	} {
		w := new(slowness)
		var now time.Duration
		step := func(trips trips) map[rhumb.NodeID]lease.Speed {
			now += slowStep
			return w.judge(now, func() map[rhumb.NodeID]time.Duration { return trips }, nil, func() opinions { return opinions{} }).speeds
		}
		for range slowSteps {
			step(before)
		}
		for range slowSteps {
			if got := step(tt.now); len(got) > len(tt.want) {
				t.Errorf("%s: opinions %v", name, got)
			}
		}
		if got := step(tt.now); !maps.Equal(got, tt.want) {
			t.Errorf("%s: opinions %v, want %v", name, got, tt.want)
		}
		for range slowSteps {
			step(before)
		}
		if got := step(before); len(got) > 0 {
			t.Errorf("%s: opinions %v afterwards", name, got)
		}
	}
	// Acknowledgements say more than heartbeats.
	w := &delayWorld{trips: trips{2: ms, 3: ms}}
	acks := trips{2: 3 * ms, 3: 3 * ms}
	w.step(2*ms, acks)
	w.trips = trips{2: ms, 3: 45 * ms}
	var j judgement
	for range slowSteps {
		j = w.step(2*ms, acks)
	}
	if want := map[rhumb.NodeID]lease.Speed{2: lease.SpeedUsual, 3: lease.SpeedUsual}; !maps.Equal(j.speeds, want) {
		t.Errorf("opinions by acknowledgements: %v, want %v", j.speeds, want)
	}
}
