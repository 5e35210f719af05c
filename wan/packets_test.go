package wan

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rhumbdb/rhumb"
)

// inbox records delivered packets, with the time since its creation.
type inbox struct {
	start time.Time
	mu    sync.Mutex // guards got
	got   []string
}

func newInbox() *inbox { return &inbox{start: time.Now()} }

func (i *inbox) send(b []byte, addr string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.got = append(i.got, fmt.Sprintf("%s to %s at %dms", b, addr, time.Since(i.start).Milliseconds()))
	return nil
}

func (i *inbox) expect(t *testing.T, want ...string) {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	if fmt.Sprint(i.got) != fmt.Sprint(want) {
		t.Errorf("delivered %q, want %q", i.got, want)
	}
}

func TestPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := Parse([]byte(`
round_trips_ms: {here: {near: 20, far: 100}, near: {far: 1}}
addresses: {'far:1': far, 'near:1': near, 'here:1': here}`))
		if err != nil {
			t.Fatal(err)
		}
		n, box := New(f), newInbox()
		p := n.Packets("here", box.send)
		body := []byte("one")
		for _, addr := range []string{"far:1", "near:1", "here:1"} {
			if err := p.Send(body, addr); err != nil {
				t.Fatal(err)
			}
		}
		copy(body, "xxx") // the caller may reuse its buffer
		_ = p.Send([]byte("two"), "far:1")
		advance(time.Second)
		box.expect(t, "one to here:1 at 0ms", "one to near:1 at 10ms", "one to far:1 at 50ms", "two to far:1 at 50ms")
		if err := p.Send(body, "elsewhere:1"); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("an address that the file does not name: %v", err)
		}
		p.Close()
		p.Close()
		if err := p.Send(body, "far:1"); err == nil {
			t.Error("sent after close")
		}
	})
}

func TestPacketsAreLostOnCutLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := twoRegions(t)
		box := newInbox()
		p := n.Packets("here", box.send)
		_ = p.Send([]byte("on its way"), "there:1")
		n.Partition("here", "there")
		_ = p.Send([]byte("into the cut"), "there:1")
		advance(rtt)
		n.Heal("here", "there")
		_ = p.Send([]byte("after"), "there:1")
		advance(rtt)
		box.expect(t, "after to there:1 at 150ms")
		if got := p.Dropped(); got != 2 {
			t.Errorf("%d packets dropped, want 2", got)
		}
		p.Close()
	})
}

func TestPacketsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := twoRegions(t)
		fail := errors.New("no route")
		p := n.Packets("here", func([]byte, string) error { return fail })
		for range PacketsMax + 5 {
			if err := p.Send([]byte("x"), "there:1"); err != nil {
				t.Fatal(err)
			}
		}
		if got := p.Dropped(); got != 5 {
			t.Errorf("%d packets dropped, want 5", got)
		}
		advance(half)
		synctest.Wait()
		if got := p.Dropped(); got != PacketsMax+5 {
			t.Errorf("%d packets dropped after sending failed, want %d", got, PacketsMax+5)
		}
		p.Close()
	})
}

func TestPacketsOfNilNetwork(t *testing.T) {
	var n *Network
	box := newInbox()
	p := n.Packets("here", func(b []byte, addr string) error {
		box.start = time.Now()
		return box.send(b, addr)
	})
	defer p.Close()
	if err := p.Send([]byte("x"), "anywhere:1"); err != nil {
		t.Fatal(err)
	}
	box.expect(t, "x to anywhere:1 at 0ms")
}
