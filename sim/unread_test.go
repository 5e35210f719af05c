package sim

import (
	"errors"
	"testing"
)

// TestProcessStops checks that nothing of a process runs after its disk has ended it, in an event and in a process that the event resumes.
// Host code that went on appended to a batch whose undo had failed, and panicked: seed 224 with -sim.own-log, on one processor.
func TestProcessStops(t *testing.T) {
	for _, resumed := range []bool{false, true} {
		w := newWorld(Config{Seed: 1})
		n := w.nodes[0]
		n.start()
		if w.err != nil {
			t.Fatal(w.err)
		}
		n.disk.refusing = true
		reached := false
		stop := func() {
			n.stopByError(errors.New("the disk refuses reads"))
			reached = true
		}
		life := n.life
		if resumed {
			n.spawn(stop)
			w.until(w.now)
		} else {
			n.run(life, stop)
		}
		if reached || !n.down || n.working || n.stopping || w.running != nil {
			t.Errorf("resumed %v: went on %v, down %v", resumed, reached, n.down)
		}
		w.until(w.now + 2*stoppedFor)
		if w.err != nil || n.down || n.life <= life {
			t.Errorf("resumed %v: not started again: down %v, life %d, %v", resumed, n.down, n.life, w.err)
		}
		w.shutDown()
	}
}
