package reader_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// specs are the tables that the model runs over.
var specs = map[string]snapshot.TableSpec{
	"numbers":          {KeyKind: format.KeyUint64, Shards: 1},
	"ordered":          {KeyKind: format.KeyUint64, Shards: 4, Ordered: true},
	"spatial":          {KeyKind: format.KeyUint64, Shards: 32, Spatial: true},
	"names":            {KeyKind: format.KeyName, Shards: 1, Ordered: true, Summed: true},
	"everything":       {KeyKind: format.KeyName, Shards: 4, Ordered: true, Spatial: true, Summed: true},
	"one shard of all": {KeyKind: format.KeyUint64, Shards: 1, Ordered: true, Spatial: true, Summed: true},
}

// TestModel changes a table at random and compares all reads of views old and new with a model, over commits, rolls and
// loads.
func TestModel(t *testing.T) {
	for name, spec := range specs {
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				w := newWorld(t, seed, spec, reader.Options{VerifyChecksums: spec.Summed})
				runModel(w, 25)
				if wanted := spec.KeyKind == format.KeyUint64 && !spec.Summed; (w.plain > 0) != wanted {
					t.Errorf("first looks found %d keys", w.plain)
				}
			})
		}
	}
}

// TestModelPortable does the same without the assembly kernel.
func TestModelPortable(t *testing.T) {
	defer reader.ForcePortable()()
	w := newWorld(t, 11, specs["everything"], reader.Options{})
	runModel(w, 25)
}

func runModel(w *world, steps int) {
	w.t.Helper()
	var views []reader.View
	defer func() {
		for _, v := range views {
			v.Unlock()
		}
	}()
	for range steps {
		switch w.rng.IntN(10) {
		case 0:
			check(w.t, w.pub.Roll(w.table, w.rng.IntN(max(w.spec.Shards, 1))))
		case 1:
			w.load()
		case 2:
			w.commit(keys)
		default:
			w.commit(1 + w.rng.IntN(20))
		}
		if len(views) == 5 {
			i := w.rng.IntN(len(views))
			views[i].Unlock()
			views = append(views[:i], views[i+1:]...)
		}
		views = append(views, w.lock())
		for _, v := range views {
			w.verify(v)
		}
	}
}

// lock takes a view in one of the three ways and checks that it is the one asked for.
func (w *world) lock() reader.View {
	w.t.Helper()
	switch w.rng.IntN(3) {
	case 0:
		v, err := w.client.LockClosed()
		if err == nil {
			if v.Closed() != w.closed || v.Version() != w.newest {
				w.t.Fatalf("closed view of version %d at %d, want %d at %d", v.Version(), v.Closed(), w.newest, w.closed)
			}
			return v
		}
		if !errors.Is(err, rhumb.ErrUnavailable) {
			w.t.Fatal(err)
		}
	case 1:
		at := w.newest - min(uint64(w.rng.IntN(3)), w.newest-1)
		v, err := w.client.LockVersion(at)
		if err == nil {
			if v.Version() != at {
				w.t.Fatalf("view of version %d, want %d", v.Version(), at)
			}
			return v
		}
		if !errors.Is(err, rhumb.ErrUnavailable) || at == w.newest {
			w.t.Fatal(err)
		}
	}
	v, err := w.client.Lock()
	check(w.t, err)
	if v.Version() != w.newest {
		w.t.Fatalf("view of version %d, want %d", v.Version(), w.newest)
	}
	return v
}
