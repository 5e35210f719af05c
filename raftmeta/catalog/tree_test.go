package catalog

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestTreeAgainstMap compares random versions of a tree with maps, including old versions, which
// must not change.
func TestTreeAgainstMap(t *testing.T) {
	type version struct {
		tree tree[int]
		want map[uint64]int
	}
	rapid.Check(t, func(t *rapid.T) {
		versions := []version{{want: map[uint64]int{}}}
		for range rapid.IntRange(1, 8).Draw(t, "applies") {
			base := versions[rapid.IntRange(0, len(versions)-1).Draw(t, "base")]
			next := version{base.tree, maps.Clone(base.want)}
			o := new(owner)
			// Some applies mostly delete, so that nodes merge down to an empty tree as well.
			deletes := rapid.IntRange(0, 10).Draw(t, "deletes")
			for range rapid.IntRange(0, 200).Draw(t, "sets") {
				key, v := rapid.Uint64Range(0, 400).Draw(t, "key"), rapid.Int().Draw(t, "v")
				if rapid.IntRange(0, 9).Draw(t, "what") < deletes {
					_, had := next.want[key]
					delete(next.want, key)
					if next.tree.delete(o, key) != had {
						t.Fatalf("delete %d: had %v", key, had)
					}
					continue
				}
				next.tree.set(o, key, v)
				next.want[key] = v
			}
			versions = append(versions, next)
		}
		for _, v := range versions {
			checkTree(t, &v.tree, v.want)
		}
	})
}

func checkTree(t *rapid.T, got *tree[int], want map[uint64]int) {
	if got.size != len(want) {
		t.Fatalf("size %d, want %d", got.size, len(want))
	}
	for key := range uint64(401) {
		v, ok := got.get(key)
		if w, exists := want[key]; v != w || ok != exists {
			t.Fatalf("get %d gives %d %v, want %d %v", key, v, ok, w, exists)
		}
	}
	first := rapid.Uint64Range(0, 401).Draw(t, "first")
	var keys []uint64
	for key := range got.from(first) {
		keys = append(keys, key)
	}
	all := slices.Sorted(maps.Keys(want))
	i, _ := slices.BinarySearch(all, first)
	if !slices.Equal(keys, all[i:]) {
		t.Fatalf("from %d gives %v, want %v", first, keys, all[i:])
	}
}

// TestTreeShrinks fills a tree of three levels and deletes every key in a random order: each node stays
// within its bounds, and an older version keeps its keys.
func TestTreeShrinks(t *testing.T) {
	const size = 20_000
	var full tree[int]
	o := new(owner)
	for i := range size {
		full.set(o, uint64(i), i)
	}
	rest := full
	rnd := rand.New(rand.NewPCG(1, 2))
	o = new(owner)
	for n, i := range rnd.Perm(size) {
		if !rest.delete(o, uint64(i)) || rest.size != size-n-1 {
			t.Fatalf("deleting %d left %d keys after %d deletions", i, rest.size, n+1)
		}
		if n%1_000 == 0 {
			checkBounds(t, rest.root, true)
			o = new(owner)
		}
	}
	if rest.root != nil {
		t.Fatal("an empty tree has a node")
	}
	for i := range size {
		if v, ok := full.get(uint64(i)); !ok || v != i {
			t.Fatalf("the older version lost %d", i)
		}
	}
}

func checkBounds(t *testing.T, n *treeNode[int], root bool) {
	if len(n.keys) > treeKeysMax || !root && len(n.keys) < treeKeysMin || n.kids != nil && len(n.kids) != len(n.keys)+1 {
		t.Fatalf("a node has %d keys and %d children", len(n.keys), len(n.kids))
	}
	for _, k := range n.kids {
		checkBounds(t, k, false)
	}
}

// TestTreeStopsEarly stops an iteration at every position.
func TestTreeStopsEarly(t *testing.T) {
	var tr tree[int]
	o := new(owner)
	for i := range 100 {
		tr.set(o, uint64(i), i)
	}
	for stop := range 100 {
		n := 0
		for range tr.all() {
			if n++; n > stop {
				break
			}
		}
		if n != stop+1 {
			t.Fatalf("stopped after %d, want %d", n, stop+1)
		}
	}
}
