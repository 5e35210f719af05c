package sim

import (
	"errors"
	"iter"
)

// process is a function of a node that may wait. It runs as a coroutine: the world resumes it in an
// order that the seed determines, and only one process runs at a time. A goroutine with channels
// would leave the order to the Go scheduler.
type process struct {
	next func() (struct{}, bool)
	stop func()
	park func(struct{}) bool
	// waits are the channels that the process waits for, all nil before it has begun. got is the
	// index of the ready one.
	waits   [3]<-chan struct{}
	got     int
	began   bool
	over    bool
	stopped chan struct{}
}

// errKilled unwinds a process from its wait when its node crashes, so that deferred calls run.
var errKilled = errors.New("sim: the node crashed")

// spawn starts a process of a node. The process begins after the present event.
func (n *node) spawn(f func()) <-chan struct{} {
	p := &process{stopped: make(chan struct{})}
	p.next, p.stop = iter.Pull(func(yield func(struct{}) bool) {
		p.park = yield
		defer close(p.stopped)
		// Any other panic is a broken invariant and ends the run (recoverPanics).
		defer func() {
			if r := recover(); r != nil && r != errKilled { //nolint:errorlint // the very value
				panic(r)
			}
		}()
		f()
	})
	n.processes = append(n.processes, p)
	// run resumes processes after each event of the node.
	n.later(0, func() {})
	return p.stopped
}

// takeReady reports whether a process can continue, and receives from the channel that it waited
// for.
func (p *process) takeReady() bool {
	if !p.began {
		p.began = true
		return true
	}
	p.got = pollChannels(p.waits)
	return p.got >= 0
}

// pollChannels receives from the first channel that is ready and returns its index, or -1. The
// fixed order replaces the random choice of select.
func pollChannels(chans [3]<-chan struct{}) int {
	for i, c := range chans {
		select {
		case <-c:
			return i
		default:
		}
	}
	return -1
}

// resumeAll resumes the processes of a node until none can continue. A process may make another one
// ready, or crash the node.
func (n *node) resumeAll() {
	for progress := true; progress; {
		progress = false
		// The length is evaluated in each iteration, because a process may spawn others.
		for i := 0; i < len(n.processes) && !n.down && !n.paused; i++ {
			if p := n.processes[i]; !p.over && p.takeReady() {
				progress = true
				n.resumeProcess(p)
			}
		}
	}
	// Ended processes are removed only now: removal inside the loop would skip their successors.
	kept := n.processes[:0]
	for _, p := range n.processes {
		if !p.over {
			kept = append(kept, p)
		}
	}
	clear(n.processes[len(kept):])
	n.processes = kept
}

// resumeProcess runs one process up to its next wait.
func (n *node) resumeProcess(p *process) {
	w := n.w
	before := w.running
	w.running = p
	w.withChance(func() {
		if _, more := p.next(); !more {
			p.over = true
		}
	})
	w.running = before
}

// awaitChannels is the wait of a process (sched.Runtime.Await).
func (w *world) awaitChannels(a, b, c <-chan struct{}) int {
	chans := [3]<-chan struct{}{a, b, c}
	p := w.running
	// A killed process must not wait: its deferred calls run while the node stops.
	if p == nil || !p.over {
		if i := pollChannels(chans); i >= 0 {
			return i
		}
	}
	// Outside of a process only a ready channel may be awaited.
	if p == nil {
		panic("sim: wait outside of a process")
	}
	p.waits = chans
	// park returns false when killAll stops the coroutine.
	if p.over || !p.park(struct{}{}) {
		panic(errKilled)
	}
	return p.got
}

// killAll ends the processes of a node at their waits.
func (n *node) killAll() {
	processes := n.processes
	n.processes = nil
	for _, p := range processes {
		// A process that never began has nothing to unwind.
		if p.over || !p.began {
			p.over = true
			continue
		}
		before := n.w.running
		// Deferred calls of the process may call Await, which must find the process as over.
		n.w.running, p.over = p, true
		p.stop()
		n.w.running = before
	}
}
