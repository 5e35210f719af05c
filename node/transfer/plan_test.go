package transfer

import (
	"errors"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// want returns a replica that needs a copy, with donors 1 and 2, of which 2 is nearer.
func want(slot rhumb.Slot, inSync int) Want {
	return Want{Range: rhumb.RangeID{Region: 1, Slot: slot}, InSync: inSync, Donors: []Donor{{1, 9 * time.Millisecond}, {2, time.Millisecond}}}
}

// TestPlan: ranges with the fewest in-sync replicas come first, at most inMost at a time, from the
// nearest donor that did not fail; a failure is followed by a pause that grows.
func TestPlan(t *testing.T) {
	p := newPlan()
	wants := []Want{want(1, 3), want(2, 1), want(3, 2)}
	got := p.next(0, wants)
	if len(got) != inMost || got[0].want.Range.Slot != 2 || got[1].want.Range.Slot != 3 || got[0].donor != 2 {
		t.Fatalf("begins with %+v", got)
	}
	if more := p.next(0, wants); len(more) != 0 {
		t.Fatalf("%d more than the bound", len(more))
	}
	id := got[0].want.Range
	now := time.Duration(0)
	for i, donor := range []rhumb.NodeID{1, 2, 1} {
		p.ended(now, id, 3-donor, errors.New("broken"))
		if early := p.next(now, wants[1:2]); len(early) != 0 {
			t.Fatalf("failure %d: tried again at once", i+1)
		}
		now += pauseMin << i
		again := p.next(now, wants[1:2])
		if len(again) != 1 || again[0].donor != donor || again[0].failed != i+1 {
			t.Fatalf("failure %d: %+v, want donor %d", i+1, again, donor)
		}
	}
	p.ended(now, id, 1, nil)
	if p.failures(id) != 0 {
		t.Error("failures are remembered after a success")
	}
}

// TestBucket: what passes in a while is the rate times that while, whatever the pieces are.
func TestBucket(t *testing.T) {
	b := bucket{rate: 1 << 20}
	now := time.Hour
	start := now
	for range 64 {
		now += b.take(now, 64<<10)
	}
	if took := now - start; took < 3900*time.Millisecond || took > 4*time.Second {
		t.Errorf("4 MiB at 1 MiB/s took %v", took)
	}
	if (&bucket{}).take(0, 1<<30) != 0 {
		t.Error("a bucket without a rate makes its caller wait")
	}
}

// TestBusyDonor: a donor that is busy has not failed, so the pause does not grow, and another donor is asked meanwhile. Places of donors
// that their receivers left become free half a minute later, which a doubled pause would miss by as much again.
func TestBusyDonor(t *testing.T) {
	p := newPlan()
	wants := []Want{want(1, 2)}
	for i, now := 0, time.Duration(0); i < 20; i, now = i+1, now+pauseBusy {
		donor := rhumb.NodeID(2 - i%2)
		if i > 0 && len(p.next(now-1, wants)) != 0 {
			t.Fatalf("asked again after less than %v", pauseBusy)
		}
		got := p.next(now, wants)
		if len(got) != 1 || got[0].donor != donor || got[0].failed != 0 {
			t.Fatalf("at %v: %+v, want donor %d", now, got, donor)
		}
		p.ended(now, wants[0].Range, donor, rhumb.E("t", rhumb.Overloaded, "busy"))
	}
}

// TestIdleSets: a set that nobody reads keeps its place for a while if another node waits for the place, and not as long if an earlier start made
// it and nobody has asked for it since: its receiver is done, and its Release was lost. One that is read stays.
func TestIdleSets(t *testing.T) {
	const now = time.Hour
	for name, tt := range map[string]struct {
		o    outgoing
		idle time.Duration
		want bool
	}{
		"asked for lately":            {outgoing{to: 2, used: now - idleLeast + 1}, idleLeast, false},
		"not asked for":               {outgoing{to: 2, used: now - idleLeast}, idleLeast, true},
		"read":                        {outgoing{to: 2, readers: 1}, idleLeast, false},
		"nobody waits":                {outgoing{to: 2, used: now - idleLeast}, idleMost, false},
		"of an earlier start, new":    {outgoing{used: now - idleKept + 1}, idleLeast, false},
		"of an earlier start":         {outgoing{used: now - idleKept}, idleLeast, true},
		"of an earlier start, read":   {outgoing{readers: 1}, idleLeast, false},
		"of an earlier start, no one": {outgoing{used: now - idleLeast}, idleMost, false},
	} {
		if got := tt.o.isIdle(now, tt.idle); got != tt.want {
			t.Errorf("%s: idle %v, want %v", name, got, tt.want)
		}
	}
}
