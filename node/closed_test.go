package node

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// counter writes increasing numbers to two keys of different ranges, first to one and then to the
// other.
type counter struct {
	kv    rhumbpb.KVClient
	table uint32
	names [2]string
}

// newCounter returns a counter for two keys whose ranges have different primaries if possible.
func newCounter(t *testing.T, kv rhumbpb.KVClient, table uint32) *counter {
	t.Helper()
	c := &counter{kv: kv, table: table, names: [2]string{"a0"}}
	first := c.put(t, "a0", 0)
	for i := range 64 {
		name := fmt.Sprint("b", i)
		got := c.put(t, name, 0)
		if got.Receipt.Slot == first.Receipt.Slot && got.Receipt.Home == first.Receipt.Home {
			continue
		}
		c.names[1] = name
		if got.Receipt.Node != first.Receipt.Node {
			break
		}
	}
	if c.names[1] == "" {
		t.Fatal("all keys lie in one range")
	}
	return c
}

func (c *counter) put(t *testing.T, name string, n int64) *rhumbpb.Response {
	t.Helper()
	return write(t, c.kv, &rhumbpb.Mutation{
		Kind: rhumbpb.MutationKind_MUTATION_KIND_PUT, Table: c.table, Name: []byte(name), Value: car(t, 1, 1, n),
	})
}

// run writes until stop. Between the two writes of a number it lets the wall clock advance:
// versions of different ranges are in the order of their clocks, and clocks of two nodes do not
// order events within a millisecond.
func (c *counter) run(t *testing.T, stop *atomic.Bool) {
	for n := int64(1); !stop.Load(); n++ {
		for _, name := range c.names {
			at := rhumb.Timestamp(c.put(t, name, n).Outcome.Hlc)
			for time.Now().UnixMilli() <= at.WallMs() {
				runtime.Gosched()
			}
		}
	}
}

// number returns the number that a key has in the cut, or 0 if the key is not in the cut.
func number(table reader.Table, name string) (int64, error) {
	it, err := table.Get([]byte(name))
	if rhumb.KindOf(err) == rhumb.NotFound {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	f, _, err := rhumb.RecordField(it.Value, "speed")
	return f.Int64(), err
}

// watchCuts reads closed views of a node's image until it has seen the given number of different
// ones. It returns their ages.
func (c *counter) watchCuts(ctx context.Context, dir string, cuts int) (ages []time.Duration, err error) {
	// The node may have the table before it has an image.
	client, err := reader.Attach(dir, reader.Options{})
	for k := rhumb.KindOf(err); (k == rhumb.NotFound || k == rhumb.Unavailable) && ctx.Err() == nil; k = rhumb.KindOf(err) {
		time.Sleep(20 * time.Millisecond)
		client, err = reader.Attach(dir, reader.Options{})
	}
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var last rhumb.Timestamp
	var seen [2]int64
	for len(ages) < cuts {
		if ctx.Err() != nil {
			return ages, fmt.Errorf("only %d cuts after the time, the last at %v: %w", len(ages), last, ctx.Err())
		}
		runtime.Gosched()
		v, err := client.LockClosed()
		if rhumb.KindOf(err) == rhumb.Unavailable {
			continue
		}
		if err != nil {
			return ages, err
		}
		at := v.Closed()
		if at == last {
			v.Unlock()
			continue
		}
		age := time.Since(at.Time())
		table, err := v.Table("cars")
		var now [2]int64
		for i := 0; i < 2 && err == nil; i++ {
			now[i], err = number(table, c.names[i])
		}
		v.Unlock()
		switch {
		case err != nil:
			return ages, err
		case at < last:
			return ages, fmt.Errorf("closed went back from %v to %v", last, at)
		case now[1] > now[0]:
			return ages, fmt.Errorf("the cut at %v shows %s = %d, written after %s = %d", at, c.names[1], now[1], c.names[0], now[0])
		case now[0] < seen[0] || now[1] < seen[1]:
			return ages, fmt.Errorf("the cut at %v shows %v, an earlier one %v", at, now, seen)
		}
		last, seen = at, now
		ages = append(ages, age)
	}
	if seen[1] == 0 {
		return ages, fmt.Errorf("no cut shows what was written: %v", seen)
	}
	return ages, nil
}

// TestClosedCut guards that the image of every node offers a cut that is consistent across ranges
// and advances, also while a node is down and after it is back.
func TestClosedCut(t *testing.T) {
	nodes := startRegion(t)
	a, b, c := nodes[0], nodes[1], nodes[2]
	table := publishedTable(t, a, "cars", 3).Id
	count := newCounter(t, kvClient(t, a), table)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		count.run(t, &stop)
	}()
	watch := func(what string, cuts int, nodes ...*Node) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for _, n := range nodes {
			ages, err := count.watchCuts(ctx, imageDir(n), cuts)
			if err != nil {
				t.Errorf("%s, %s: %v", what, n.engine.Identity().Node, err)
				continue
			}
			slices.Sort(ages)
			t.Logf("%s, %s: %d cuts, age when first seen p50 %v, greatest %v", what, n.engine.Identity().Node, len(ages), ages[len(ages)/2], ages[len(ages)-1])
		}
	}
	watch("all nodes live", 20, a, b, c)
	c.Close()
	watch("one node gone", 10, a, b)
	c = startAgain(t, c, a)
	watch("it is back", 10, a, b, c)
	stop.Store(true)
	<-done
	// Nothing is written anymore, and the last writes enter the cut.
	last := count.put(t, "last", 1)
	for _, n := range []*Node{a, b, c} {
		awaitView(t, n, "what was written last", (*reader.Client).LockClosed, func(v reader.View) error {
			cars, err := v.Table("cars")
			if err != nil {
				return err
			}
			if _, err := cars.Get([]byte("last")); err != nil {
				return fmt.Errorf("the cut at %v does not show what was written at %v: %w", v.Closed(), rhumb.Timestamp(last.Outcome.Hlc), err)
			}
			return nil
		})
	}
}
