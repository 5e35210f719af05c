package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
)

// listMost is the number of elements at which the callers begin another list, so that values stay small.
const listMost = 200

// lists is the workload append. An element is added by a write that holds only if the list has not changed since it was read, so that the
// final list shows the order of all appends.
type lists struct {
	e *env

	mu sync.Mutex // guards the fields below
	// list is the list to which callers append at present.
	list int
	// tries and reads are the history, which check judges at the end.
	tries []*listTry
	reads []listRead
}

// listTry is one append.
type listTry struct {
	// element is unique over all lists.
	list    int
	element string
	outcome outcome
	// began and answer are times since the start of the run.
	began, answer time.Duration
}

// listRead is one read.
type listRead struct {
	list     int
	elements []string
	began    time.Duration
}

// newAppend starts the workload append.
func newAppend(e *env) script { return &lists{e: e} }

// elementsOf returns the elements of a stored list.
func elementsOf(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, " ")
}

// listName returns the name of the record that holds a list.
func listName(list int) string { return "list-" + strconv.Itoa(list) }

// call reads the present list and appends one element to it. A read that finds the list full moves all callers to the next one.
func (l *lists) call(ctx context.Context, c *caller) {
	l.mu.Lock()
	list := l.list
	l.mu.Unlock()
	began := l.e.record.now()
	text, version, ok := c.get(ctx, listName(list), l.e.region)
	if !ok {
		return
	}
	l.mu.Lock()
	l.reads = append(l.reads, listRead{list, elementsOf(text), began})
	if len(elementsOf(text)) >= listMost {
		l.list = max(l.list, list+1)
		l.mu.Unlock()
		return
	}
	// The try is recorded before it is sent: an element of unknown outcome may be in the final list.
	t := &listTry{list: list, element: c.unique(), began: l.e.record.now()}
	l.tries = append(l.tries, t)
	l.mu.Unlock()
	cond := rhumb.Condition{Kind: rhumb.IfVersion, Version: version}
	if version.IsZero() {
		cond = rhumb.Condition{Kind: rhumb.IfAbsent}
	}
	// answer is taken when the write has returned, which is after its effect: a read that began later must have the element.
	out := c.put(ctx, listName(list), strings.TrimPrefix(text+" "+t.element, " "), cond, l.e.region)
	l.mu.Lock()
	t.outcome, t.answer = out, l.e.record.now()
	l.mu.Unlock()
}

// check compares all tries and reads with the final lists.
func (l *lists) check(ctx context.Context) Verdict {
	final := map[int][]string{}
	for list := range l.list + 1 {
		text, _, err := l.e.finalText(ctx, listName(list), l.e.region)
		if err != nil {
			return Verdict{Err: err}
		}
		final[list] = elementsOf(text)
	}
	v := Verdict{Operations: len(l.tries) + len(l.reads), Text: fmt.Sprintf("%d lists", l.list+1), Err: checkLists(final, l.tries, l.reads)}
	for _, t := range l.tries {
		if t.outcome == acked {
			v.Acknowledged++
		}
	}
	return v
}

// checkLists returns an error unless the final lists explain all answers: an acknowledged element is in its list once, a refused one is not,
// no list has an element that nobody appended to it, each read is a prefix of the final list and has all elements that were acknowledged
// before it began.
func checkLists(final map[int][]string, tries []*listTry, reads []listRead) error {
	tried := map[string]int{}
	for _, t := range tries {
		tried[t.element] = t.list
	}
	place := map[string]int{}
	for list, elements := range final {
		for i, e := range elements {
			if in, ok := tried[e]; !ok || in != list {
				return fmt.Errorf("%s has element %s, which nobody tried to append to it", listName(list), e)
			}
			if _, twice := place[e]; twice {
				return fmt.Errorf("%s has element %s twice", listName(list), e)
			}
			place[e] = i
		}
	}
	type ack struct {
		answer time.Duration
		place  int
	}
	acks := map[int][]ack{}
	for _, t := range tries {
		at, there := place[t.element]
		switch {
		case t.outcome == acked && !there:
			return fmt.Errorf("%s lost element %s, acknowledged at %v", listName(t.list), t.element, t.answer)
		case t.outcome == refused && there:
			return fmt.Errorf("%s has element %s, which was refused at %v", listName(t.list), t.element, t.answer)
		case t.outcome == acked:
			acks[t.list] = append(acks[t.list], ack{t.answer, at})
		}
	}
	// For each read, the greatest place that was acknowledged before: acks in the order of their answers, with the greatest place so far.
	for list := range acks {
		slices.SortFunc(acks[list], func(a, b ack) int { return int(a.answer - b.answer) })
		for i := 1; i < len(acks[list]); i++ {
			acks[list][i].place = max(acks[list][i].place, acks[list][i-1].place)
		}
	}
	for _, r := range reads {
		all := final[r.list]
		if len(r.elements) > len(all) || !slices.Equal(r.elements, all[:len(r.elements)]) {
			return fmt.Errorf("a read of %s at %v is no prefix of the final list: %v, and %v", listName(r.list), r.began, r.elements, all)
		}
		before, _ := slices.BinarySearchFunc(acks[r.list], r.began, func(a ack, at time.Duration) int { return int(a.answer - at) })
		if before > 0 && acks[r.list][before-1].place >= len(r.elements) {
			return fmt.Errorf("a read of %s at %v has %d elements, but element %d was acknowledged before", listName(r.list), r.began,
				len(r.elements), acks[r.list][before-1].place+1)
		}
	}
	return nil
}

// counter is the workload that increments one number.
type counter struct {
	e *env

	mu    sync.Mutex // guards the fields below
	acked int
	open  int // of unknown outcome
	ops   int
	err   error // the first read that was too small
}

// newCounter starts the workload counter.
func newCounter(e *env) script { return &counter{e: e} }

// call adds one to the counter, on the condition that nobody else has changed it since it was read.
func (k *counter) call(ctx context.Context, c *caller) {
	k.mu.Lock()
	least := k.acked
	k.ops++
	k.mu.Unlock()
	text, version, ok := c.get(ctx, "counter", k.e.region)
	if !ok {
		return
	}
	n, _ := strconv.Atoi(text)
	k.sawCount(n, least)
	cond := rhumb.Condition{Kind: rhumb.IfVersion, Version: version}
	if version.IsZero() {
		cond = rhumb.Condition{Kind: rhumb.IfAbsent}
	}
	out := c.put(ctx, "counter", strconv.Itoa(n+1), cond, k.e.region)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch out {
	case acked:
		k.acked++
	case unknown:
		k.open++
	}
}

// sawCount judges a read that began when least increments were acknowledged.
func (k *counter) sawCount(n, least int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n < least && k.err == nil {
		k.err = fmt.Errorf("a read returned %d after %d increments were acknowledged", n, least)
	}
}

// judge compares the last count with the increments. Those of unknown outcome may be in it or not.
func (k *counter) judge(text string) error {
	n, _ := strconv.Atoi(text)
	if k.err == nil && (n < k.acked || n > k.acked+k.open) {
		return fmt.Errorf("the counter is %d after %d acknowledged and %d unknown increments", n, k.acked, k.open)
	}
	return k.err
}

// check reads the counter once more, when no fault and no caller is left.
func (k *counter) check(ctx context.Context) Verdict {
	v := Verdict{Operations: k.ops, Acknowledged: k.acked, Text: fmt.Sprintf("%d acknowledged, %d unknown", k.acked, k.open)}
	text, _, err := k.e.finalText(ctx, "counter", k.e.region)
	if err != nil {
		// A read that was wrong before stays wrong.
		v.Err = errors.Join(k.err, err)
		return v
	}
	v.Err = k.judge(text)
	return v
}
