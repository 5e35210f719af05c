package host

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// TestHistoryOfATable guards that each table of a range keeps its superseded versions for its own
// time: one table keeps an hour of them, one keeps none, and one that metadata does not know yet
// keeps all.
func TestHistoryOfATable(t *testing.T) {
	const kept, plain, unknown rhumb.TableID = 2, 3, 4
	w := newWorldWith(t, 3, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(c *Config) {
		c.History = func(t rhumb.TableID) (time.Duration, bool) {
			return map[rhumb.TableID]time.Duration{kept: time.Hour}[t], t != unknown
		}
	})
	w.put(1, "other", "")
	write := func(round int) rhumb.Timestamp {
		var ms []rhumb.Mutation
		for _, table := range []rhumb.TableID{kept, plain, unknown} {
			m := putOf("k", fmt.Sprint(round))
			m.Table = table
			ms = append(ms, m)
		}
		got := make(chan answer, 1)
		w.hosts[1].Propose(&rhumb.Batch{Range: testRange, Mutations: ms}, func(o rhumb.Outcome, err error) { got <- answer{o, err} })
		w.hosts[1].Drive()
		a := w.answered(got)
		if a.err != nil {
			t.Fatal(a.err)
		}
		return a.o.Version.HLC
	}
	var at []rhumb.Timestamp
	for round := range 4 {
		at = append(at, write(round))
		w.pass(25 * time.Minute)
	}
	// Now 100 minutes have passed since round 0 and 75 since round 1: an hour ago the version of round 1 was the newest.
	filler := strings.Repeat("x", 32<<10)
	for n, h := range w.hosts {
		s, _ := h.findSlot(testRange)
		versions := func(table rhumb.TableID) int {
			seen := map[rhumb.Version]bool{}
			for _, ts := range at {
				found, err := s.store.Lookup(rhumb.Key{Table: table, Home: testRange, Name: []byte("k")}, ts)
				if err != nil && rhumb.KindOf(err) != rhumb.Unavailable { // what is there is found all the same
					t.Fatal(err)
				}
				seen[found.Version] = true
			}
			delete(seen, rhumb.Version{})
			return len(seen)
		}
		w.eventually(func() error {
			w.put(1, "other", filler)
			for table, want := range map[rhumb.TableID]int{kept: 3, plain: 1, unknown: 4} {
				if got := versions(table); got != want {
					return fmt.Errorf("%s keeps %d versions of table %s, want %d", n, got, table, want)
				}
			}
			return nil
		})
	}
}
