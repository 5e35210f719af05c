package local

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/rhumbdb/rhumb"
)

// probeName is the name of the workload that measures the time without service.
const probeName = "probe"

// probe writes growing numbers to one key for each caller. The numbers make a lost
// write visible: the key never goes back.
type probe struct {
	e *env

	mu   sync.Mutex // guards the fields below
	last map[string]probed
	// ops counts the writes, and acked those that were acknowledged.
	ops, acked int
}

// probed holds the last number that was acknowledged and the last one that was
// tried.
type probed struct{ acked, tried int }

// judge returns an error unless a key holds a number between the two.
func (p probed) judge(name, text string) error {
	if got, err := strconv.Atoi(text); err != nil || got < p.acked || got > p.tried {
		return fmt.Errorf("%s holds %q, but %d was acknowledged and %d was the last try", name, text, p.acked, p.tried)
	}
	return nil
}

// newProbe starts the workload probe.
func newProbe(e *env) script { return &probe{e: e, last: map[string]probed{}} }

// call writes the next number to the caller's own key. Only this caller writes the
// key, so the numbers in it grow.
func (p *probe) call(ctx context.Context, c *caller) {
	name := fmt.Sprintf("probe-%d", c.index)
	c.count++
	p.mu.Lock()
	p.ops++
	state := p.last[name]
	state.tried = c.count
	// The try is noted before the call, because a write without an answer may take
	// effect later.
	p.last[name] = state
	p.mu.Unlock()
	if c.put(ctx, name, fmt.Sprint(c.count), rhumb.Condition{}, p.e.region) != acked {
		return
	}
	p.e.record.ack(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	state = p.last[name]
	state.acked = c.count
	p.acked++
	p.last[name] = state
}

// check reads each key. It must hold a number between the last that was
// acknowledged and the last that was tried. A key without any acknowledged write has
// no gap between two of them, and would pass for one with service.
func (p *probe) check(ctx context.Context) Verdict {
	v := Verdict{Operations: p.ops, Acknowledged: p.acked}
	for name, state := range p.last {
		if state.acked == 0 {
			v.Err = fmt.Errorf("no write to %s was acknowledged", name)
			return v
		}
		text, _, err := p.e.finalText(ctx, name, p.e.region)
		if err != nil {
			v.Err = err
			return v
		}
		if v.Err = state.judge(name, text); v.Err != nil {
			return v
		}
	}
	return v
}
