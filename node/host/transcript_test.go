package host

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/sched"
)

// manual is a runtime whose clock the test moves. It runs nothing: a test that needs a worker, a
// timer or the disk fails with a nil pointer.
type manual struct {
	sched.Runtime
	now time.Duration
}

func (m *manual) Now() time.Duration { return m.now }

// bytesArg returns an argument such as size=3MiB or size=700.
func bytesArg(td *datadriven.TestData, key string) int {
	for _, arg := range td.CmdArgs {
		if arg.Key != key {
			continue
		}
		var n int
		var unit string
		// A number without a unit ends the scan early, which is no error here.
		_, _ = fmt.Sscanf(arg.Vals[0], "%d%s", &n, &unit)
		return n * cmp.Or(map[string]int{"KiB": 1 << 10, "MiB": 1 << 20}[unit], 1)
	}
	return 0
}

// millisArg returns the first argument, a number of milliseconds.
func millisArg(t *testing.T, td *datadriven.TestData) time.Duration {
	var ms int
	if _, err := fmt.Sscan(td.CmdArgs[0].Key, &ms); err != nil {
		td.Fatalf(t, "%v", err)
	}
	return time.Duration(ms) * time.Millisecond
}

// showBytes prints sizes in the unit that has no fraction.
func showBytes(n int) string {
	switch {
	case n != 0 && n%(1<<20) == 0:
		return fmt.Sprintf("%dMiB", n>>20)
	case n != 0 && n%(1<<10) == 0:
		return fmt.Sprintf("%dKiB", n>>10)
	}
	return fmt.Sprint(n)
}

// TestAdmissionTranscript replays testdata/admission.txt, the story of a node that slows down and
// recovers. Every command ends with the state of the admission.
//
//	new most=SIZE        an admission without batches
//	advance MS           time passes
//	admit NAME size=SIZE
//	answer NAME
func TestAdmissionTranscript(t *testing.T) {
	rt := &manual{now: time.Hour}
	var a *admission
	batches := map[string]*admitted{}
	datadriven.RunTest(t, "testdata/admission.txt", func(t *testing.T, td *datadriven.TestData) string {
		said := ""
		switch td.Cmd {
		case "new":
			clear(batches)
			a = &admission{clock: rt.Now, pace: newPace(int64(bytesArg(td, "most")))}
		case "advance":
			rt.now += millisArg(t, td)
		case "admit":
			b, ok := a.admitBatch(rt.Now(), int64(bytesArg(td, "size")))
			if !ok {
				said = fmt.Sprintf("rejected, retry after %v\n", a.retryAfter().Round(time.Millisecond))
				break
			}
			batches[td.CmdArgs[0].Key] = b
		case "answer":
			a.endBatch(rt.Now(), batches[td.CmdArgs[0].Key])
		default:
			td.Fatalf(t, "unknown command %s", td.Cmd)
		}
		used, limit := a.readUsage()
		return fmt.Sprintf("%sused %s of %s, latency %v\n", said, showBytes(int(used)), showBytes(int(limit)), a.latency.Round(time.Millisecond))
	})
}

// wakes is a worker that only counts how often it is woken.
type wakes int

func (w *wakes) Wake() { *w++ }
func (w *wakes) Stop() {}

// TestQueueTranscript replays testdata/queue.txt: which events wait on a host, who runs the next
// pass, and what that pass takes. The host has no ranges, so a pass has no commits; inflight stands
// for those of earlier passes.
//
//	new
//	advance MS
//	messages from=N size=SIZE    entries of a peer; size 0 is an acknowledgement; nack adds a refusal
//	batch size=SIZE              a client batch
//	tick
//	inflight N                   N commits are being synced
//	drive                        a caller has posted its events
//	take / done                  a pass takes its events, and ends
func TestQueueTranscript(t *testing.T) {
	var h *Host
	var woken *wakes
	answered := 0
	rt := &manual{}
	datadriven.RunTest(t, "testdata/queue.txt", func(t *testing.T, td *datadriven.TestData) string {
		var out strings.Builder
		switch td.Cmd {
		case "new":
			rt.now, woken = time.Hour, new(wakes)
			h = &Host{rt: rt, driver: woken, cfg: Config{SyncOutstanding: func() time.Duration { return 0 }}}
		case "advance":
			rt.now += millisArg(t, td)
		case "messages":
			var from int
			td.ScanArgs(t, "from", &from)
			size := bytesArg(td, "size")
			h.enqueue(messagesEvent{from: rhumb.NodeID(from), msgs: []replica.Message{{}}, size: size, at: rt.now, acks: size == 0, answers: td.HasArg("nack")})
		case "batch":
			h.enqueue(&proposeEvent{batch: &rhumb.Batch{}, size: bytesArg(td, "size"), since: rt.now, done: func(rhumb.Outcome, error) { answered++ }})
		case "tick":
			h.enqueue(tickEvent{})
		case "inflight":
			if _, err := fmt.Sscan(td.CmdArgs[0].Key, &h.syncing); err != nil {
				td.Fatalf(t, "%v", err)
			}
		case "drive":
			*woken, answered = 0, 0
			before := len(h.prompt)
			h.Drive()
			taken := before > 0 && len(h.prompt) == 0
			switch {
			case *woken > 0 && answered > 0:
				out.WriteString("the caller runs a pass and wakes the worker\n")
			case *woken > 0:
				out.WriteString("wakes the worker\n")
				h.driving = false
			case answered > 0 || taken:
				fmt.Fprintf(&out, "the caller runs a pass with %d batches\n", answered)
			default:
				out.WriteString("no pass\n")
			}
		case "take":
			h.driving = true
			h.takeEventsLocked()
			fmt.Fprintf(&out, "takes %s\n", showEvents(h.events))
		case "done":
			h.driving = false
		default:
			td.Fatalf(t, "unknown command %s", td.Cmd)
		}
		waiting := slices.Concat(h.prompt, h.queue)
		for _, ev := range h.proposals {
			waiting = append(waiting, ev)
		}
		fmt.Fprintf(&out, "waiting %s, %s\n", showEvents(waiting), showBytes(h.waiting))
		if ok, why := h.checkHealth(); !ok {
			fmt.Fprintf(&out, "unhealthy: %s\n", why)
		}
		return out.String()
	})
}

// showEvents lists events in order, with equal neighbours counted.
func showEvents(events []event) string {
	var names []string
	count := 0
	for i, ev := range events {
		name := fmt.Sprintf("%T", ev)
		switch ev := ev.(type) {
		case messagesEvent:
			name = fmt.Sprintf("n%d:%s", ev.from, showBytes(ev.size))
		case *proposeEvent:
			name = "batch:" + showBytes(ev.size)
		case tickEvent:
			name = "tick"
		}
		count++
		if i+1 < len(events) && showEvents(events[i+1:i+2]) == name {
			continue
		}
		if count > 1 {
			name = fmt.Sprintf("%d*%s", count, name)
		}
		names, count = append(names, name), 0
	}
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, " ")
}
