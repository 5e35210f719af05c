package host

import (
	"context"
	"fmt"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/memory"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// frozenRecord is a metadata group that changes no record.
type frozenRecord struct{}

func (frozenRecord) Change(_ replica.MetaProposal, done func(error)) { done(nil) }

func (frozenRecord) ConfirmPrimary(context.Context, rhumb.RangeID, rhumb.Epoch) (bool, error) {
	return false, nil
}

// TestDiscardReleasesMemory guards the node's budgets: a discarded copy no longer counts in them,
// although it held entries that were never committed.
func TestDiscardReleasesMemory(t *testing.T) {
	recent := memory.NewBudget("recent", 1<<20)
	w := newWorldWith(t, 3, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(cfg *Config) {
		cfg.Meta = frozenRecord{}
		if cfg.Self.Node == 2 {
			cfg.Budgets.Recent = recent
			cfg.Committed = func(Committed) {}
		}
	})
	w.put(1, "k", "v")

	// Node 3 acknowledges nothing, so the entry stays uncommitted on node 2.
	w.isolate(3, true)
	ask(w.hosts[1], putOf("k", "later"))
	w.hosts[1].Drive()
	h := w.hosts[2]
	w.eventually(func() error {
		st, err := h.Status(t.Context(), testRange)
		if err == nil && st.Last.Seq == st.Commit {
			err = fmt.Errorf("node 2 has no uncommitted entry, its log ends at %d", st.Last.Seq)
		}
		return err
	})
	if recent.Used() == 0 {
		t.Fatal("the uncommitted entry does not count in the budget")
	}

	// A second primary of epoch 1 quarantines the copy, and metadata takes it out of the in-sync set.
	h.Receive(3, []replica.Message{{Kind: replica.Append, Range: testRange, From: 3, To: 2, Epoch: 1}})
	w.mu.Lock()
	rec := w.rec.Clone()
	rec.Version++
	rec.InSync, rec.Quarantined = []rhumb.NodeID{1, 3}, []rhumb.NodeID{2}
	w.publishLocked(rec)
	w.mu.Unlock()
	w.eventually(func() error { return h.Discard(t.Context(), testRange, false) })
	if used := recent.Used(); used != 0 {
		t.Errorf("%d bytes of the discarded copy still count in the budget", used)
	}
}

// TestCloseAnswersDiscard guards that Discard returns when the host closes, whichever of its steps
// is waiting for a pass.
func TestCloseAnswersDiscard(t *testing.T) {
	h := newWorld(t, 1).hosts[1]
	answer := make(chan error, 1)
	step := discardEvent{id: testRange, answer: answer}
	for _, ev := range []event{step, dropEvent{discardEvent: step}, discardedEvent{answer: answer}} {
		h.refuseEvent(ev)
		select {
		case err := <-answer:
			if rhumb.KindOf(err) != rhumb.Unavailable {
				t.Errorf("%T is answered %v, want unavailable", ev, err)
			}
		default:
			t.Errorf("%T is not answered", ev)
		}
	}
}
