package lease

import (
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// TestFirstFrameKeepsExclusions guards exclusions at a grantor that has just started and hears a
// holder for the first time. The holder may be the primary of an epoch below the grantor's
// promises, so the first grant must list them, and so must the first grant to a new life of the
// holder.
func TestFirstFrameKeepsExclusions(t *testing.T) {
	grantor := rhumb.NodeIdentity{Node: 1, Store: rhumb.UUID{1}, Boot: 2}
	holder := rhumb.NodeIdentity{Node: 2, Store: rhumb.UUID{2}, Boot: 7}
	r := rhumb.RangeID{Region: 1, Slot: 3}
	g := New(grantor, time.Hour, false)
	g.Exclude(r, 9, rhumb.NoNode)
	g.SetPeers(time.Hour, []PeerInfo{{ID: holder.Node, Boot: holder.Boot, Timing: RegionTiming()}})
	for _, boot := range []rhumb.BootSeq{7, 8} {
		holder.Boot = boot
		h := New(holder, time.Minute, true)
		h.SetPeers(time.Minute, []PeerInfo{{ID: grantor.Node, Boot: grantor.Boot, Timing: RegionTiming()}})
		// The holder learns the grantor's life from the first answer, and can hold a grant from the
		// second on.
		for range 2 {
			for _, beat := range h.Tick(time.Minute + time.Second) {
				for _, answer := range g.Receive(time.Hour+time.Second, holder, &beat.Frame) {
					if !slices.Contains(answer.Frame.Exclusions, Exclusion{r, 9}) {
						t.Errorf("boot %d: a grant of %v excludes %v, want range %s below epoch 9", boot, answer.Frame.GrantedLease, answer.Frame.Exclusions, r)
					}
					h.Receive(time.Minute+time.Second, grantor, &answer.Frame)
				}
			}
		}
		if h.Holds(time.Minute+time.Second, r, 8, []rhumb.NodeID{grantor.Node}) {
			t.Errorf("boot %d: the holder believes in epoch 8 though its grantor has promised 9", boot)
		}
	}
}
