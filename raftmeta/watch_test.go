package raftmeta

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// TestWatch reconstructs a state from the changes of a watch alone.
func TestWatch(t *testing.T) {
	inBubble(t, 3, nil, func(c *cluster) {
		c.propose(1, catalog.CreateTable{Name: "t", Settings: smallClass()})
		c.awaitVoters(3)
		c.awaitAlike()
		w := c.groups[2].Watch()
		defer w.Close()
		u, err := w.Next(c.t.Context())
		if err != nil || !u.Full {
			t.Fatalf("the first update: %+v, %v", u, err)
		}
		seen := u.State.Revision()
		id := rhumb.RangeID{Region: 1}
		res := c.propose(1, catalog.Elect{Range: id, Version: 1, Node: 2})
		res = c.propose(1, catalog.Elect{Range: id, Version: res.Range.Version, Node: 3})
		touched := false
		for seen < res.Revision {
			if u, err = w.Next(c.t.Context()); err != nil || u.Full || u.State.Revision() <= seen {
				t.Fatalf("update %+v, %v", u, err)
			}
			seen = u.State.Revision()
			touched = touched || reflect.DeepEqual(u.Changes.Ranges, []rhumb.RangeID{id})
		}
		if r, _ := u.State.Range(id); !touched || r.Primary != 3 {
			t.Errorf("the watch ended with primary %s, listed %v", r.Primary, touched)
		}
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		defer cancel()
		if _, err := w.Next(ctx); rhumb.KindOf(err) != rhumb.Canceled {
			t.Errorf("a watch with nothing new gives %v, want kind canceled", err)
		}
		c.kill(2)
		if _, err := w.Next(c.t.Context()); rhumb.KindOf(err) != rhumb.Unavailable {
			t.Errorf("a watch of a stopped node gives %v, want kind unavailable", err)
		}
	})
}

// TestSlowWatch lets a reader lag. It gets one update with everything, and the memory for it stays
// bounded.
func TestSlowWatch(t *testing.T) {
	inBubble(t, 3, nil, func(c *cluster) {
		w := c.groups[1].Watch()
		defer w.Close()
		if _, err := w.Next(c.t.Context()); err != nil {
			t.Fatal(err)
		}
		wide := smallClass()
		wide.HashSlots = rhumb.BlockSlots
		for i := range 5 {
			wide.ShardSize = int64(1<<20 + i)
			c.propose(1, catalog.CreateClass{Settings: wide})
			w.mu.Lock()
			if n := w.pending.Changes.Len(); n > WatchPendingMax {
				t.Errorf("%d changes are remembered", n)
			}
			w.mu.Unlock()
		}
		u, err := w.Next(c.t.Context())
		if err != nil || !u.Full || u.Changes.Len() != 0 || u.State.RangeCount() != 5*rhumb.BlockSlots {
			t.Errorf("full %v, %d changes, %d ranges, %v", u.Full, u.Changes.Len(), u.State.RangeCount(), err)
		}
	})
}
