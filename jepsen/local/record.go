package local

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Call is one call of a workload, for the picture.
type Call struct {
	// At and Took are when the call began after the start of the run, and how long
	// it lasted.
	At, Took time.Duration
	// OK is set if the call was answered. That a record is missing or a condition
	// does not hold is an answer.
	OK bool
	// Kind is the kind of the error otherwise, and Err its text.
	Kind rhumb.Kind
	Err  string
	// Read is set if the call changes nothing.
	Read bool
	// Refused is set if the outcome of a write is unknown although the cluster answered it: the write
	// was sent a second time, and its condition did not hold then, perhaps because of the first time.
	Refused bool
}

// Window is a fault as it happened.
type Window struct {
	// What names the fault and the nodes that it hit. Evidence shows that it had an
	// effect.
	Fault    Fault
	What     string
	Evidence string
	// Failed is set if the fault was not possible or had no effect, or if the cluster was
	// not whole in time.
	Failed bool
	// From and To bound the fault; Whole is when all copies were in sync again.
	From, To, Whole time.Duration
	// Gap is the longest time without an acknowledged write to a key that overlaps
	// the time from From to Whole, and Key the key.
	Gap time.Duration
	Key string
	// Gaps are the longest times of all keys.
	Gaps []time.Duration
}

// Record collects the events of a run.
type Record struct {
	// begin is the zero of all times in the record.
	begin time.Time

	mu      sync.Mutex // guards the fields below
	calls   []Call
	acks    map[string][]time.Duration // of the keys of the probe, in order
	windows []Window
	// examples holds the text of the first error of each kind.
	examples map[rhumb.Kind]string
	// failed counts the calls that keep the text of their error, at most failedTexts.
	failed int
}

// failedTexts bounds the calls that keep the text of their error.
const failedTexts = 10_000

// newRecord returns an empty record that begins now.
func newRecord() *Record {
	return &Record{begin: time.Now(), acks: map[string][]time.Duration{}, examples: map[rhumb.Kind]string{}}
}

// now returns the time since the start of the run.
func (r *Record) now() time.Duration { return time.Since(r.begin) }

// add records a write that began at a time.
func (r *Record) add(at time.Duration, err error) { r.addCall(at, err, false) }

// addRead records a read that began at a time.
func (r *Record) addRead(at time.Duration, err error) { r.addCall(at, err, true) }

// addCall records a call.
func (r *Record) addCall(at time.Duration, err error, read bool) {
	kind := rhumb.KindOf(err)
	// These kinds are answers: the cluster served the request.
	ok := err == nil || kind == rhumb.NotFound || kind == rhumb.ConditionFailed || kind == rhumb.AlreadyExists
	r.mu.Lock()
	defer r.mu.Unlock()
	if !ok && r.examples[kind] == "" {
		r.examples[kind] = err.Error()
	}
	c := Call{At: at, Took: r.now() - at, OK: ok, Kind: kind, Read: read, Refused: wasRefused(err)}
	// Hundreds of calls fail alike during a fault.
	if !ok && r.failed < failedTexts {
		r.failed++
		c.Err = err.Error()
	}
	r.calls = append(r.calls, c)
}

// wasRefused reports whether an error says that a write may have been applied when it was sent first,
// and that the condition did not hold when it was sent again.
func wasRefused(err error) bool {
	e, ok := errors.AsType[*rhumb.Error](err)
	return ok && e.Kind == rhumb.Unknown && rhumb.KindOf(e.Err) == rhumb.ConditionFailed
}

// ack records an acknowledged write of the probe.
func (r *Record) ack(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acks[key] = append(r.acks[key], r.now())
}

// longestGaps returns for each key the longest time between two acknowledged writes
// that overlaps the time from from to to. A key that was never served again has a
// gap until to.
func longestGaps(acks map[string][]time.Duration, from, to time.Duration) map[string]time.Duration {
	out := map[string]time.Duration{}
	for k := range acks {
		last := time.Duration(0)
		for _, at := range append(slices.Clone(acks[k]), to) {
			if at > from && last < to {
				out[k] = max(out[k], at-last)
			}
			last = at
		}
	}
	return out
}

// measure fills in the gaps of a window.
func (w *Window) measure(acks map[string][]time.Duration) {
	w.Gap, w.Key, w.Gaps = 0, "", nil
	gaps := longestGaps(acks, w.From, w.Whole)
	for _, k := range slices.Sorted(maps.Keys(gaps)) {
		if w.Gaps = append(w.Gaps, gaps[k]); gaps[k] > w.Gap {
			w.Gap, w.Key = gaps[k], k
		}
	}
}

// close completes the windows of the faults.
func (r *Record) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.windows {
		r.windows[i].measure(r.acks)
	}
}

// String describes a window in one line.
func (w Window) String() string {
	bound := "no bound"
	if w.Fault.Gap > 0 {
		bound = "bound " + w.Fault.Gap.String()
	}
	end := "whole after"
	if w.Failed {
		end = "FAILED after"
	}
	return fmt.Sprintf("%6.1f s  %-4s %-28s %5.1f s, %s %5.1f s, longest gap %6.3f s (%s): %s",
		w.From.Seconds(), w.Fault.ID, w.What, (w.To - w.From).Seconds(), end, (w.Whole - w.To).Seconds(), w.Gap.Seconds(), bound, w.Evidence)
}
