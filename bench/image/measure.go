package image

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"github.com/rhumbdb/rhumb/bench/roads"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// measureGet compares reads in C and in Go with the physical limit, on huge pages and on small
// ones.
func (r *run) measureGet(ctx context.Context) error {
	n := r.turnSize(1)
	turns := []turn{
		// The limit fetches records at computed positions, without an index: no reader can be
		// faster.
		{"limit, loop", r.c, "limit", 1, n},
		{"limit ×32", r.c, "limit", 32, n},
		{limitSecond, r.c, "limit-second", 32, n},
		{"C get", r.c, "get", 0, n},
		{"Go get", r.golang, "get", 0, n},
	}
	for _, g := range []int{8, 16, 32, 64} {
		turns = append(turns, turn{fmt.Sprintf("C multiget ×%d", g), r.c, "mget", g, n}, turn{fmt.Sprintf("Go multiget ×%d", g), r.golang, "mget", g, n})
	}
	var err error
	// A worker of its own maps the same image with small pages.
	if r.small, err = r.startC(ctx, 3, "small"); err != nil {
		return err
	}
	turns = append(turns, turn{"limit ×32, 4 KiB pages", r.small, "limit", 32, n}, turn{"C get, 4 KiB pages", r.small, "get", 0, n},
		turn{"C multiget ×32, 4 KiB pages", r.small, "mget", 32, n})
	return r.runRounds(turns)
}

// measureChain compares with the chained buckets of TrafficDB, built in the C worker.
func (r *run) measureChain(context.Context) error {
	if _, err := r.c.do("chain-build", 0, 0); err != nil {
		return err
	}
	n := r.turnSize(1)
	err := r.runRounds([]turn{
		// The image is measured again in the same turns, since ratios need values of one round.
		{"chain: get", r.c, "chain", 1, n},
		{"chain: C get", r.c, "get", 0, n},
		{"chain: multiget ×32", r.c, "chain", 32, n},
		{"chain: C multiget ×32", r.c, "mget", 32, n},
	})
	if err != nil {
		return err
	}
	// The copy would take memory from later sections.
	_, err = r.c.do("chain-free", 0, 0)
	return err
}

// measureMap compares with a Go map of the same records.
func (r *run) measureMap(context.Context) error {
	if _, err := r.golang.do("map-build", 0, 0); err != nil {
		return err
	}
	n := r.turnSize(1)
	err := r.runRounds([]turn{{"map: Go map", r.golang, "map", 0, n}, {"map: Go get", r.golang, "get", 0, n}, {"map: Go multiget ×32", r.golang, "mget", 32, n}})
	if err != nil {
		return err
	}
	_, err = r.golang.do("map-free", 0, 0)
	return err
}

// measureLMDB compares reads and writes with LMDB.
func (r *run) measureLMDB(context.Context) error {
	if !r.cfg.LMDB {
		r.addNote("LMDB was not compared; install liblmdb-dev and rebuild the worker")
		return nil
	}
	if _, err := r.c.do("lmdb-load", 0, r.mem.path("lmdb")); err != nil {
		return err
	}
	n := r.turnSize(1)
	err := r.runRounds([]turn{
		// LMDB takes a quarter of the operations, because it is slower.
		{"lmdb: get", r.c, "lmdb", 0, n / 4}, {"lmdb: C get", r.c, "get", 0, n}, {"lmdb: C multiget ×32", r.c, "mget", 32, n},
	})
	if err != nil {
		return err
	}
	for range r.cfg.Rounds {
		if err := r.lmdbWrites(); err != nil {
			return err
		}
	}
	if _, err = r.c.do("lmdb-free", 0, 0); err != nil {
		return err
	}
	// The files are on the file system in memory and would count against its size.
	for _, name := range []string{"lmdb", "lmdb-lock"} {
		if err := os.Remove(r.mem.path(name)); err != nil {
			return err
		}
	}
	return nil
}

// lmdbWrites compares transactions of 1000 changes.
func (r *run) lmdbWrites() error {
	const each = 1000
	// A turn consists of whole transactions.
	n := r.turnSize(100) / each * each
	if n == 0 {
		n = each
	}
	if err := r.freshKeys([]turn{{worker: r.c, ops: n}}); err != nil {
		return err
	}
	got, err := r.c.do("lmdb-write", n, each)
	if err != nil {
		return err
	}
	r.s.add("lmdb: change, 1000 a transaction", "ns", got.perOp())
	return r.measureCommits("lmdb: publish, 1000 a commit", each, n/each)
}

// measureAttach measures attaching, detaching and locking.
func (r *run) measureAttach(ctx context.Context) (err error) {
	if r.small == nil {
		if r.small, err = r.startC(ctx, 3, "small"); err != nil {
			return err
		}
	}
	for range r.cfg.Rounds {
		for name, w := range map[string]*worker{"attach and prefault": r.c, "attach and prefault, 4 KiB pages": r.small} {
			// Attaching is measured on a process that has no mapping left.
			if _, err := w.do("detach", 0, 0); err != nil {
				return err
			}
			got, err := w.do("attach", 1, 0)
			if err != nil {
				return err
			}
			r.s.add(name, "ms", float64(got.Wall)/1e6)
			r.s.add(name+", processor", "ms", float64(got.CPU)/1e6)
		}
	}
	return r.runRounds([]turn{{"C lock and unlock", r.c, "locks", 0, 200_000}, {"Go lock and unlock", r.golang, "locks", 0, 200_000}})
}

// sides are the sides of tiles in km; the paper has all but the first.
var sides = []float64{0.1, 2, 5, 10, 20, 50}

// kinds are the distributions of tiles (roads.Tiles).
var kinds = []string{"data", "area"}

// tilesEach is the number of tiles of each kind, enough for a turn of tileTurn with small tiles. A
// shorter turn would end before the caches hold again the lines that the previous index evicted,
// and would then compare how fast they fill.
const tilesEach = 1 << 17

// makeTiles writes a file of tiles for each kind and side.
func (r *run) makeTiles() error {
	// Several sections use the tiles.
	if len(r.tiles) > 0 {
		return nil
	}
	draw := roads.NewTiles(r.cfg.Seed, r.boxes)
	for _, kind := range kinds {
		for _, side := range sides {
			boxes := make([]format.Box, tilesEach)
			for i := range boxes {
				if kind == "data" {
					boxes[i] = draw.Data(side)
				} else {
					boxes[i] = draw.Area(side)
				}
			}
			b, err := binary.Append(nil, binary.LittleEndian, boxes)
			if err != nil {
				return err
			}
			name := tileName(kind, side)
			r.tiles[name] = r.mem.path("tiles-" + kind + fmt.Sprint(side))
			if err := os.WriteFile(r.tiles[name], b, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// tileName returns the name of a kind of tiles.
func tileName(kind string, side float64) string { return fmt.Sprintf("%s %g km", kind, side) }

// measureSpatial compares the R-tree with its rivals over all boxes, and measures queries of the
// whole image.
func (r *run) measureSpatial(context.Context) error {
	if err := r.makeTiles(); err != nil {
		return err
	}
	got, err := r.golang.do("tree-build", 0, r.cfg.Seed)
	if err != nil {
		return err
	}
	r.s.add("R-tree build", "ns/item", float64(got.Latencies[0])/float64(r.cfg.Records))
	r.s.add("R-tree build, sorting", "ns/item", float64(got.Latencies[1])/float64(r.cfg.Records))
	r.s.add("R-tree size", "bytes/item", float64(got.Found)/float64(r.cfg.Records))
	for _, kind := range kinds {
		for _, side := range sides {
			if err := r.measureTiles(kind, side); err != nil {
				return err
			}
		}
	}
	_, err = r.golang.do("tree-free", 0, 0)
	return err
}

// tileTurn bounds the time of one turn of queries.
const tileTurn = 30 * time.Millisecond

// measureTiles compares the indexes on one kind of tiles.
func (r *run) measureTiles(kind string, side float64) error {
	name := tileName(kind, side)
	for _, w := range []*worker{r.c, r.golang} {
		if _, err := w.do("tiles", 0, r.tiles[name]); err != nil {
			return err
		}
	}
	// Queries of the image are in degrees, which are rounded outwards: the image may find more
	// items at the edge of a tile.
	turns := []turn{
		{"SoA", r.golang, "soa", nil, 0},
		{"AoS", r.golang, "aos", nil, 0},
		{"cells", r.golang, "cells", nil, 0},
		{"Go image", r.golang, "bbox", nil, 0},
		{"C image", r.c, "bbox", nil, 0},
	}
	// A short trial decides how many queries fit into a turn.
	trial, err := r.golang.do("aos", 20, 0)
	if err != nil {
		return err
	}
	n := min(max(int(float64(tileTurn)/max(trial.perOp(), 1)), 10), tilesEach/2)
	for round := range r.cfg.Rounds {
		// All indexes must find the same number of boxes. The two readers of the image must agree
		// with each other, and find at least as many.
		found := map[bool]uint64{}
		for i := range turns {
			// The order rotates, so that no index always runs in the caches of the same
			// predecessor.
			t := turns[(i+round)%len(turns)]
			got, err := t.worker.do(t.what, n, round*n)
			if err != nil {
				return err
			}
			image := t.what == "bbox"
			// A wrong answer would make a query look fast.
			if before, ok := found[image]; ok && before != got.Found || got.Found < found[false] {
				return fmt.Errorf("%s, %s: found %d boxes, other indexes found %v", name, t.name, got.Found, found)
			}
			found[image] = got.Found
			r.s.add(name+": "+t.name, "ns", got.perOp())
		}
		r.s.add(name+": hits", "", float64(found[false])/float64(n))
	}
	return nil
}
