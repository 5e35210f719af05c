package host

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/memory"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// TestAgreeToClose guards what a node answers to a peer that asks it to close a timestamp: it agrees
// at once below its durable ceiling, later above it, and never if the timestamp is too far ahead of
// its own clock.
func TestAgreeToClose(t *testing.T) {
	var stored rhumb.Timestamp
	clock, err := hlc.New(hlc.Config{Persist: func(ceiling rhumb.Timestamp) error { stored = ceiling; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	self, peer := rhumb.NodeIdentity{Node: 1, Boot: 1}, rhumb.NodeIdentity{Node: 2, Boot: 1}
	now := time.Hour
	pairs := lease.New(self, now, true)
	pairs.SetPeers(now, []lease.PeerInfo{{ID: 2, Boot: 1, Timing: lease.RegionTiming()}})
	var woken wakes
	l := &Leases{clock: clock, pairs: pairs, ahead: make(chan rhumb.Timestamp, 1), raiser: &woken}

	// ask returns the timestamp that the node's answer agrees to.
	ask := func(ts rhumb.Timestamp) rhumb.Timestamp {
		t.Helper()
		pairs.Passed(l.agreeToClose(ts))
		now += time.Millisecond
		out := pairs.Receive(now, peer, &lease.Frame{Sent: now, Close: ts})
		if len(out) != 1 {
			t.Fatalf("%d answers to a heartbeat, want 1", len(out))
		}
		return out[0].Frame.Agreed
	}

	below := clock.Read()
	if got := ask(below); got != below || woken != 0 {
		t.Errorf("below the ceiling the answer agrees to %v, want %v; the raiser is woken %d times", got, below, woken)
	}
	if first, err := clock.Now(); err != nil || first <= below {
		t.Errorf("the clock issues %v (%v) after the node agreed to %v", first, err, below)
	}

	above := clock.Ceiling().Add(time.Second)
	if got := ask(above); got != below || woken != 1 {
		t.Errorf("above the ceiling the answer agrees to %v, want %v as before; the raiser is woken %d times", got, below, woken)
	}
	if got := ask(above); got != below {
		t.Errorf("a repeated question is agreed to at %v before the ceiling is raised", got)
	}
	l.raiseCeiling()
	if stored < above {
		t.Errorf("the stored ceiling is %v, want at least %v", stored, above)
	}
	if got := ask(above); got != above {
		t.Errorf("once the ceiling is raised the answer agrees to %v, want %v", got, above)
	}

	tooFar := clock.Read().Add(2 * rhumb.ClockAheadMax)
	for range 2 {
		if got := ask(tooFar); got != above {
			t.Errorf("the answer agrees to %v, want %v: the question is too far ahead", got, above)
		}
		l.raiseCeiling()
	}
}

// TestHealthIsLoggedOnce guards that a node which withholds its heartbeats says so once for each
// reason, not with every tick.
func TestHealthIsLoggedOnce(t *testing.T) {
	var out bytes.Buffer
	l := &Leases{log: slog.New(slog.NewTextHandler(&out, nil))}
	for _, why := range []string{"", "a slow pass", "a slow pass", "a slow disk", "", "", "a slow pass"} {
		l.logHealth(why)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("logs %q, want 3 lines", lines)
	}
	for i, why := range []string{"a slow pass", "a slow disk", "a slow pass"} {
		if !strings.Contains(lines[i], "withholds its heartbeats") || !strings.Contains(lines[i], why) {
			t.Errorf("line %d is %q, want %q", i, lines[i], why)
		}
	}
}

// TestCommittedWithoutMemory guards Budgets.Recent: without memory for entries the positions are
// reported all the same, and nothing stays in the budget.
func TestCommittedWithoutMemory(t *testing.T) {
	budget := memory.NewBudget("recent", 1)
	told := make(chan Committed, 1_000)
	w := newWorldWith(t, 1, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(cfg *Config) {
		cfg.Budgets.Recent = budget
		cfg.Committed = func(c Committed) { told <- c }
	})
	w.put(1, "k", "v")
	var last rhumb.Seq
	for i := range 20 {
		o, err := w.propose(1, putOf(fmt.Sprint(i), "v"), rhumb.RequestID{})
		if err != nil {
			t.Fatal(err)
		}
		last = o.Seq
	}
	for c := (Committed{}); c.Seq < last; {
		select {
		case c = <-told:
			if len(c.Entries) != 0 {
				t.Fatalf("%d entries are held up to %d", len(c.Entries), c.Seq)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("position %d is not reported", last)
		}
	}
	// A pass ends before it answers this question, so the budget is settled.
	if _, err := w.hosts[1].Status(t.Context(), testRange); err != nil {
		t.Fatal(err)
	}
	if used := budget.Used(); used != 0 {
		t.Errorf("%d bytes stay in the budget", used)
	}
}

// TestHistoryWalkIsRare guards the cost of tables with history: a walk over all names begins after a
// quarter of the kept time, and at least after historyWalkMin.
func TestHistoryWalkIsRare(t *testing.T) {
	w := newWorld(t, 1)
	w.put(1, "k", "v")
	s, _ := w.hosts[1].findSlot(testRange)
	start := rhumb.MakeTimestamp(1_800_000_000_000_000, 0)
	for _, tc := range []struct {
		name  string
		keep  time.Duration
		after time.Duration // the least time between two walks
	}{
		{"an hour", time.Hour, 15 * time.Minute},
		{"a short time", 10 * time.Second, historyWalkMin},
		{"nothing any more", 0, historyWalkMin},
	} {
		walk := &historyWalk{}
		var begun []time.Duration
		const step = 20 * time.Second
		for i := range int(time.Hour/step) + 1 {
			now := start.Add(time.Duration(i) * step)
			before := walk.begun
			if more, err := walk.step(s, testTable, tc.keep, now); err != nil || more {
				t.Fatalf("%s: more is %v, %v", tc.name, more, err)
			}
			if walk.begun != before {
				begun = append(begun, walk.begun.Sub(start))
			}
		}
		for i := 1; i < len(begun); i++ {
			if gap := begun[i] - begun[i-1]; gap != tc.after {
				t.Errorf("%s: a walk begins after %v, want %v", tc.name, gap, tc.after)
			}
		}
		if want := 1 + int(time.Hour/tc.after); len(begun) != want {
			t.Errorf("%s: %d walks in an hour, want %d", tc.name, len(begun), want)
		}
	}
	// The only version of the key is not superseded, so every walk kept it.
	if got, err := w.get(1, "k"); err != nil || got != "v" {
		t.Errorf("k is %q, %v", got, err)
	}
}

// TestTroubles guards what operators are shown: a quarantined replica is listed with its reason, and
// healthy ones are not.
func TestTroubles(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "k", "v")
	h := w.hosts[2]
	h.Receive(3, []replica.Message{{Kind: replica.Append, Range: testRange, From: 3, To: 2, Epoch: 1}})
	w.eventually(func() error {
		all, err := h.Troubles(t.Context())
		if err != nil {
			return err
		}
		if len(all.Listed) != 1 || all.Counts[replica.DataDamaged] != 1 {
			return fmt.Errorf("troubles are %+v, want one", all)
		}
		if x := all.Listed[0]; x.Kind != replica.DataDamaged || x.Node != 2 || x.Range != testRange || !strings.Contains(x.Reason, "I1") {
			return fmt.Errorf("the trouble is %+v", x)
		}
		return nil
	})
	count, err := h.Summary(t.Context())
	if err != nil || count[replica.Quarantined] != 1 || len(count) != 1 {
		t.Errorf("the node counts its replicas as %v, %v", count, err)
	}
}
