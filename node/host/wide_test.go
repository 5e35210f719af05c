package host

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/storage"
)

// TestWideRange writes a range of 64 slots at three replicas: every read sees the records of all slots, scans have the
// order of names, keys of other ranges are rejected, and the range has no limit of size.
func TestWideRange(t *testing.T) {
	const slots, most = 64, 200_000
	last := testRange.Slot + slots - 1
	w := newWideWorld(t, 3, last, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(c *Config) {
		c.RangeSizeMax = most
		c.HomeIn = func(id rhumb.RangeID, _ rhumb.TableID, name []byte) rhumb.RangeID {
			// Names that begin with x are in the range behind this one.
			if name[0] == 'x' {
				return rhumb.RangeID{Region: id.Region, Slot: last + 1}
			}
			return rhumb.RangeID{Region: id.Region, Slot: testRange.Slot + keys.HashSlot(name, 0, slots)}
		}
	})
	want := map[string]string{}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 400 {
		name, value := fmt.Sprintf("%c%d", 'a'+rune(i%3), r.IntN(1000)), strings.Repeat("v", 1+r.IntN(1500))
		w.put(1, name, value)
		if want[name] = value; i%7 == 0 {
			w.eventually(func() error {
				_, err := w.propose(1, rhumb.Mutation{Kind: rhumb.Delete, Name: []byte(name)}, rhumb.RequestID{})
				return err
			})
			delete(want, name)
		}
	}
	if size := w.hosts[1].DataBytes(testRange); size <= most {
		t.Fatalf("the range has %d bytes, so it shows nothing about the limit", size)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for name, value := range want {
		if got, err := w.get(1, name); err != nil || got != value {
			t.Fatalf("%s has %d bytes, %v, want %d", name, len(got), err, len(value))
		}
	}
	for _, c := range []struct {
		prefix string
		limit  int
	}{{"", 1000}, {"b", 3}, {"a1", 7}, {"c", 40}, {"nothing", 5}} {
		var wanted, got []string
		for name := range want {
			if strings.HasPrefix(name, c.prefix) {
				wanted = append(wanted, name)
			}
		}
		slices.Sort(wanted)
		var after []byte
		for more := true; more; {
			page, _, err := w.hosts[1].Scan(ctx, rhumb.ScanQuery{Range: testRange, Table: testTable, Prefix: []byte(c.prefix), After: after, Limit: c.limit, BytesMax: 1 << 20})
			if err != nil || page.Last != last {
				t.Fatalf("scan: %v, up to slot %s", err, page.Last)
			}
			for _, it := range page.Items {
				if v, _ := rhumb.DecodeOpaque(it.Value); string(v) != want[string(it.Key.Name)] {
					t.Fatalf("%s has %d bytes", it.Key.Name, len(v))
				}
				if home := w.hosts[1].homeOf(testRange, testTable, it.Key.Name); it.Key.Home != home {
					t.Fatalf("%s has the home %s, want %s", it.Key.Name, it.Key.Home, home)
				}
				got, after = append(got, string(it.Key.Name)), it.Key.Name
			}
			more = page.More
		}
		if !slices.Equal(got, wanted) {
			t.Fatalf("prefix %q, limit %d: %d names, want %d", c.prefix, c.limit, len(got), len(wanted))
		}
	}
	// A key of another range is certainly not written, and a read of it says that it is elsewhere.
	if _, err := w.propose(1, putOf("x", "v"), rhumb.RequestID{}); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Fatalf("a key of another range: %v", err)
	}
	if _, err := w.get(1, "x"); rhumb.KindOf(err) != rhumb.NotPrimary {
		t.Fatalf("a read of a key of another range: %v", err)
	}
	// Requests may name any home of the range.
	home := w.hosts[1].homeOf(testRange, testTable, []byte("q"))
	answered := make(chan error, 1)
	w.hosts[1].Propose(&rhumb.Batch{Range: home, Mutations: []rhumb.Mutation{{Kind: rhumb.Put, Table: testTable, Name: []byte("q"), Value: rhumb.EncodeOpaque(nil, []byte("1"))}}},
		func(_ rhumb.Outcome, err error) { answered <- err })
	w.hosts[1].Drive()
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	items, receipt, err := w.hosts[1].Get(ctx, home, testTable, [][]byte{[]byte("q")})
	if err != nil || receipt.Range != testRange || !bytes.HasSuffix(items[0].Value, []byte("1")) {
		t.Fatalf("%+v, %+v, %v", items, receipt, err)
	}
}

// TestHandoverOfWideRange guards that both nodes of a handover answer for every slot of the range, before metadata records it: requests
// name the slot of their key. Otherwise the old primary refused what it should pass on, until a metadata leader on another continent
// had recorded the handover.
func TestHandoverOfWideRange(t *testing.T) {
	inside := testRange.Slot + 5
	w := newWideWorld(t, 3, testRange.Slot+9, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(c *Config) {
		c.HomeIn = func(id rhumb.RangeID, _ rhumb.TableID, _ []byte) rhumb.RangeID {
			return rhumb.RangeID{Region: id.Region, Slot: inside}
		}
	})
	w.put(1, "a", "before")
	w.prepare(2)
	id := rhumb.RangeID{Region: testRange.Region, Slot: inside}
	w.eventually(func() error {
		if epoch, to, ok := w.hosts[1].HandedOver(id); !ok || epoch != 2 || to != 2 {
			return fmt.Errorf("handed over: epoch %d to %s, %v", epoch, to, ok)
		}
		return nil
	})
	if err := w.hosts[2].AwaitPrimary(t.Context(), id, 2, true); err != nil {
		t.Fatal(err)
	}
	if e := w.hosts[2].PrimaryEpoch(id); e != 2 {
		t.Errorf("primary in epoch %d", e)
	}
	if _, err := w.propose(2, putOf("a", "after"), rhumb.RequestID{}); err != nil {
		t.Error(err)
	}
	if rec := w.rec; rec.Epoch != 1 {
		t.Errorf("the record names epoch %d, so the test shows nothing", rec.Epoch)
	}
}
