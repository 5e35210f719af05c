package image

import (
	"fmt"
	"math"
)

// othersMax is the number of cores that other processes keep busy above which a run reports it.
const othersMax = 0.1

// computeResults derives goals and rows from the samples.
func (r *run) computeResults() {
	// Rows list every sample, also of cases without a goal.
	r.report.Rows = r.s.makeRows()
	r.goalsOfReads()
	r.goalsOfPeers()
	r.goalsOfWrites()
	r.goalsOfQueries()
	if r.report.Others > othersMax {
		r.addNote("others used %.1f processors meanwhile: ratios may be off, elapsed times are", r.report.Others)
	}
}

// addLeast adds a goal with a lower bound.
func (r *run) addLeast(number int, name string, bound float64, unit string, got Spread) {
	r.report.Goals = append(r.report.Goals, Goal{Number: number, Name: name, Least: bound, Unit: unit, Spread: got, Reached: got.Median >= bound})
}

// addMost adds a goal with an upper bound.
func (r *run) addMost(number int, name string, bound float64, unit string, got Spread) {
	r.report.Goals = append(r.report.Goals, Goal{Number: number, Name: name, Most: bound, Unit: unit, Spread: got, Reached: got.Median <= bound})
}

// addFaster adds a goal for how many times as fast the first case is as the second, if both were
// measured.
func (r *run) addFaster(number int, name, a, b string, bound float64) {
	if r.s.has(a, b) {
		r.addLeast(number, name, bound, "×", r.s.ratioOf(b, a))
	}
}

// limitSecond is the limit of the memory with prefetches into the second-level cache, as the
// readers do. The goals were set against a limit with prefetches into the first-level cache.
const limitSecond = "limit ×32, into the second cache"

// goalsOfReads adds the goals of reads.
func (r *run) goalsOfReads() {
	const limit = "limit ×32"
	if r.s.has(limit, limitSecond) {
		r.addNote("the limit of the goals prefetches into the first cache; prefetching into the second, as the readers do, is %.2f times as fast", r.s.ratioOf(limit, limitSecond).Median)
	}
	r.addFaster(1, "C get / limit", "C get", limit, 0.20)
	r.addFaster(2, "C multiget ×32 / limit", "C multiget ×32", limit, 0.60)
	r.addFaster(3, "Go get / C get", "Go get", "C get", 0.55)
	r.addFaster(3, "Go multiget ×32 / C multiget ×32", "Go multiget ×32", "C multiget ×32", 0.85)
	r.addFaster(4, "C get / chained buckets", "chain: C get", "chain: get", 1.4)
	r.addFaster(4, "C multiget ×32 / chained buckets", "chain: C multiget ×32", "chain: multiget ×32", 1.4)
	r.addFaster(7, "Go get / Go map", "map: Go get", "map: Go map", 1.5)
	r.addFaster(8, "C get on huge pages / on 4 KiB pages", "C get", "C get, 4 KiB pages", 1.5)
	r.addFaster(8, "C multiget ×32 on huge pages / on 4 KiB pages", "C multiget ×32", "C multiget ×32, 4 KiB pages", 1.5)
	if r.s.has("attach and prefault") {
		r.addMost(8, "attach with prefault", 20, "ms", r.s.spreadFor("attach and prefault"))
	}
}

// goalsOfPeers adds the goals against other stores.
func (r *run) goalsOfPeers() {
	r.addFaster(5, "C get / LMDB", "lmdb: C get", "lmdb: get", 12)
	r.addFaster(5, "C multiget ×32 / LMDB", "lmdb: C multiget ×32", "lmdb: get", 30)
	// The faster of the two depths counts, in favour of Redis.
	best := "redis: get, 16 pipelined, processor of the server"
	if other := "redis: get, 128 pipelined, processor of the server"; r.s.has(best, other) && r.s.spreadFor(other).Median < r.s.spreadFor(best).Median {
		best = other
	}
	r.addFaster(6, "C get / Redis pipelined, processor time of the server", "redis: C get", best, 15)
	r.addFaster(6, "C multiget ×32 / Redis pipelined, processor time of the server", "redis: C multiget ×32", best, 40)
	r.addFaster(10, "publish / LMDB, 1000 changes at a time", "lmdb: publish, 1000 a commit", "lmdb: change, 1000 a transaction", 20)
}

// goalsOfWrites adds the goals of writes and rolls.
func (r *run) goalsOfWrites() {
	r.goalsOfVersions()
	for _, g := range []struct {
		changes int
		bound   float64 // µs of processor time
	}{{1, 5}, {1000, 200}, {bulkMax, 150_000}} {
		if name := bulkName(g.changes); r.s.has(name) {
			r.addMost(10, fmt.Sprintf("publish %d changes", g.changes), g.bound, "µs", scaleSpread(r.s.spreadFor(name), float64(g.changes)/1e3))
		}
	}
	if r.s.has("base: all, 1000 a commit") {
		r.addMost(10, "publish 1000 changes: whole base / a tenth of it", 1.5, "×", r.s.ratioOf("base: all, 1000 a commit", "base: a tenth, 1000 a commit"))
	}
	if one := "visible in another process, 1 changes, p50"; r.s.has(one) {
		r.addMost(11, "1 change visible in another process, p50", 100, "µs", r.s.spreadFor(one))
		r.addMost(11, "1000 changes visible in another process, p99", 5000, "µs", r.s.spreadFor("visible in another process, 1000 changes, p99"))
	}
	// Samples are ns per record; a rate is their inverse, which also swaps the least and the
	// greatest.
	rate := func(number int, name, sample string, bound float64) {
		if r.s.has(sample) {
			s := r.s.spreadFor(sample)
			r.addLeast(number, name, bound, "M/s", Spread{1e3 / s.Median, 1e3 / s.Max, 1e3 / s.Min})
		}
	}
	rate(12, "bulk load on recycled pages, R-tree included", "load, recycled pages", 15)
	rate(12, "inserts of new keys, 100,000 a commit", "insert, 100000 a commit", 15)
	rate(12, fmt.Sprintf("updates in random order, %d a commit", r.bulk), bulkName(r.bulk), 12)
	for _, g := range []struct{ goal, sample string }{
		{"roll of 40 M records on recycled pages, scaled", "roll of all shards"},
		{"the same with a fifth of them changed", "roll of all shards, a fifth changed"},
	} {
		if r.s.has(g.sample) {
			r.addMost(13, g.goal, 2, "s", scaleSpread(r.s.spreadFor(g.sample), 40e6/1e9))
		}
	}
	if r.s.has("pairs read") {
		r.addMost(16, fmt.Sprintf("pairs mixed, of %.2g locked reads", r.s.spreadFor("pairs read").Median), 0, "", r.s.spreadFor("pairs mixed"))
	}
}

// goalsOfVersions adds the goals of old and changed views.
func (r *run) goalsOfVersions() {
	if !r.s.has("changed: C get") {
		return
	}
	for _, what := range []string{"C get", "C multiget ×32", "Go get", "Go multiget ×32"} {
		// Each view is compared with the limit in the same rounds, which cancels the drift of the
		// machine.
		before, after := r.s.ratioOf("unchanged: "+what, "unchanged: limit ×32"), r.s.ratioOf("changed: "+what, "changed: limit ×32")
		r.addMost(9, what+": newest view with a fifth changed / without changes, each over the limit", 1.05, "×",
			Spread{after.Median / before.Median, after.Min / before.Max, after.Max / before.Min})
		r.addMost(9, what+": old view / newest view, a fifth changed", 1.4, "×", r.s.ratioOf("old lock: "+what, "changed: "+what))
	}
}

// tileGoalMax is the side in km up to which the R-tree must be ahead.
const tileGoalMax = 10

// goalsOfQueries adds the goals of spatial queries and of the scale-up.
func (r *run) goalsOfQueries() {
	if r.s.has("R-tree build") {
		r.addMost(14, "R-tree build of 40 M boxes, scaled", 6, "s", scaleSpread(r.s.spreadFor("R-tree build"), 40e6/1e9))
		r.addMost(14, "R-tree size", 22, "bytes/item", r.s.spreadFor("R-tree size"))
	}
	for _, rival := range []string{"AoS", "cells"} {
		// The worst of all kinds of tiles counts.
		worst := Spread{Median: math.Inf(1)}
		where := ""
		for _, kind := range kinds {
			for _, side := range sides {
				name := tileName(kind, side)
				if side > tileGoalMax || !r.s.has(name+": SoA") {
					continue
				}
				if got := r.s.ratioOf(name+": "+rival, name+": SoA"); got.Median < worst.Median {
					worst, where = got, name
				}
			}
		}
		if where != "" {
			r.addLeast(15, fmt.Sprintf("tiles up to 10 km: R-tree / %s, least of all (%s)", rival, where), 2, "×", worst)
		}
	}
	for _, s := range r.report.Scale {
		// Attaching and locking are not reads, and are only drawn.
		if s.Processes == r.cfg.Processes && s.Processes > 1 && s.Scaleup.Median > 0 && s.Case != "attach" && s.Case != "lock" {
			r.addLeast(17, "scale-up, "+s.String(), 0.9, "×", s.Scaleup)
		}
	}
}
