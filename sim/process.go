package sim

import (
	"errors"
	"iter"
)

// process is a function of a node that waits for things: it runs as a coroutine, so that only one of the world runs at a
// time, and is resumed only by the world, in the order that the seed decides.
type process struct {
	next    func() (struct{}, bool)
	stop    func()
	park    func(struct{}) bool
	waits   [3]<-chan struct{} // what it waits for; all nil before it began
	got     int                // which of them came
	began   bool
	over    bool
	stopped chan struct{}
}

// errKilled ends a process in the middle of its wait: its node has crashed.
var errKilled = errors.New("sim: the node crashed")

// spawn makes a process of a node. It begins after the present event.
func (n *node) spawn(f func()) <-chan struct{} {
	p := &process{stopped: make(chan struct{})}
	p.next, p.stop = iter.Pull(func(yield func(struct{}) bool) {
		p.park = yield
		defer close(p.stopped)
		defer func() {
			if r := recover(); r != nil && r != errKilled { //nolint:errorlint // the very value
				panic(r)
			}
		}()
		f()
	})
	n.processes = append(n.processes, p)
	n.later(0, func() {}) // the world looks at the node's processes after each of its events
	return p.stopped
}

// ready reports whether a process can go on, and takes what it waited for.
func (p *process) ready() bool {
	if !p.began {
		p.began = true
		return true
	}
	p.got = poll(p.waits)
	return p.got >= 0
}

// poll receives from the first channel that it can receive from at once, and gives its index, or -1.
func poll(chans [3]<-chan struct{}) int {
	for i, c := range chans {
		select {
		case <-c:
			return i
		default:
		}
	}
	return -1
}

// resumeAll lets the processes of a node run until none can go on.
func (n *node) resumeAll() {
	for progress := true; progress; {
		progress = false
		for i := 0; i < len(n.processes) && !n.down && !n.paused; i++ {
			if p := n.processes[i]; !p.over && p.ready() {
				progress = true
				n.resume1(p)
			}
		}
	}
	kept := n.processes[:0]
	for _, p := range n.processes {
		if !p.over {
			kept = append(kept, p)
		}
	}
	clear(n.processes[len(kept):])
	n.processes = kept
}

// resume1 runs one process to its next wait.
func (n *node) resume1(p *process) {
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

// await is the wait of a process.
func (w *world) await(a, b, c <-chan struct{}) int {
	chans := [3]<-chan struct{}{a, b, c}
	p := w.running
	if p == nil || !p.over { // a killed process waits for nothing any more
		if i := poll(chans); i >= 0 {
			return i
		}
	}
	if p == nil {
		panic("sim: a wait outside of a process")
	}
	p.waits = chans
	if p.over || !p.park(struct{}{}) {
		panic(errKilled)
	}
	return p.got
}

// killAll ends the processes of a node where they wait.
func (n *node) killAll() {
	processes := n.processes
	n.processes = nil
	for _, p := range processes {
		if p.over || !p.began {
			p.over = true
			continue
		}
		before := n.w.running
		n.w.running, p.over = p, true
		p.stop()
		n.w.running = before
	}
}
