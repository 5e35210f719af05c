package image

import (
	"fmt"
	"math"
)

// finish makes goals and rows of the samples.
func (r *run) finish() {
	r.report.Rows = r.s.rows()
	r.goalsOfReads()
	r.goalsOfPeers()
	r.goalsOfWrites()
	r.goalsOfQueries()
	if r.report.Others > othersMax {
		r.note("others used %.1f processors meanwhile: ratios may be off, elapsed times are", r.report.Others)
	}
}

// least adds a goal that is reached from a bound on.
func (r *run) least(number int, name string, bound float64, unit string, got Spread) {
	r.report.Goals = append(r.report.Goals, Goal{Number: number, Name: name, Least: bound, Unit: unit, Spread: got, Reached: got.Median >= bound})
}

// most adds a goal that is reached up to a bound.
func (r *run) most(number int, name string, bound float64, unit string, got Spread) {
	r.report.Goals = append(r.report.Goals, Goal{Number: number, Name: name, Most: bound, Unit: unit, Spread: got, Reached: got.Median <= bound})
}

// faster adds a goal on how many times as fast the first case is as the second, when both were measured.
func (r *run) faster(number int, name, a, b string, bound float64) {
	if r.s.has(a, b) {
		r.least(number, name, bound, "×", r.s.ratio(b, a))
	}
}

// limitSecond is the limit of the memory where records are fetched as the readers fetch them. The goals were drawn from one
// with prefetches into the first cache.
const limitSecond = "limit ×32, into the second cache"

func (r *run) goalsOfReads() {
	const limit = "limit ×32"
	if r.s.has(limit, limitSecond) {
		r.note("the limit that the goals name fetches into the first cache; into the second, as the readers do, it is %.2f times as fast", r.s.ratio(limit, limitSecond).Median)
	}
	r.faster(1, "C get / limit", "C get", limit, 0.20)
	r.faster(2, "C multiget ×32 / limit", "C multiget ×32", limit, 0.60)
	r.faster(3, "Go get / C get", "Go get", "C get", 0.55)
	r.faster(3, "Go multiget ×32 / C multiget ×32", "Go multiget ×32", "C multiget ×32", 0.85)
	r.faster(4, "C get / chained buckets", "chain: C get", "chain: get", 1.4)
	r.faster(4, "C multiget ×32 / chained buckets", "chain: C multiget ×32", "chain: multiget ×32", 1.4)
	r.faster(7, "Go get / Go map", "map: Go get", "map: Go map", 1.5)
	r.faster(8, "C get on huge pages / on 4 KiB pages", "C get", "C get, 4 KiB pages", 1.5)
	r.faster(8, "C multiget ×32 on huge pages / on 4 KiB pages", "C multiget ×32", "C multiget ×32, 4 KiB pages", 1.5)
	if r.s.has("attach and prefault") {
		r.most(8, "attach with prefault", 20, "ms", r.s.spread("attach and prefault"))
	}
}

func (r *run) goalsOfPeers() {
	r.faster(5, "C get / LMDB", "lmdb: C get", "lmdb: get", 12)
	r.faster(5, "C multiget ×32 / LMDB", "lmdb: C multiget ×32", "lmdb: get", 30)
	best := "redis: get, 16 pipelined, processor of the server"
	if other := "redis: get, 128 pipelined, processor of the server"; r.s.has(best, other) && r.s.spread(other).Median < r.s.spread(best).Median {
		best = other
	}
	r.faster(6, "C get / Redis pipelined, processor time of the server", "redis: C get", best, 15)
	r.faster(6, "C multiget ×32 / Redis pipelined, processor time of the server", "redis: C multiget ×32", best, 40)
	r.faster(10, "publish / LMDB, 1000 changes at a time", "lmdb: publish, 1000 a commit", "lmdb: change, 1000 a transaction", 20)
}

func (r *run) goalsOfWrites() {
	r.goalsOfVersions()
	for _, g := range []struct {
		changes int
		bound   float64 // µs of processor time
	}{{1, 5}, {1000, 200}, {bulkMax, 150_000}} {
		if name := bulkName(g.changes); r.s.has(name) {
			r.most(10, fmt.Sprintf("publish %d changes", g.changes), g.bound, "µs", scaled(r.s.spread(name), float64(g.changes)/1e3))
		}
	}
	if r.s.has("base: all, 1000 a commit") {
		r.most(10, "publish 1000 changes: whole base / a tenth of it", 1.5, "×", r.s.ratio("base: all, 1000 a commit", "base: a tenth, 1000 a commit"))
	}
	if one := "visible in another process, 1 changes, p50"; r.s.has(one) {
		r.most(11, "1 change visible in another process, p50", 100, "µs", r.s.spread(one))
		r.most(11, "1000 changes visible in another process, p99", 5000, "µs", r.s.spread("visible in another process, 1000 changes, p99"))
	}
	rate := func(number int, name, sample string, bound float64) {
		if r.s.has(sample) {
			s := r.s.spread(sample)
			r.least(number, name, bound, "M/s", Spread{1e3 / s.Median, 1e3 / s.Max, 1e3 / s.Min})
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
			r.most(13, g.goal, 2, "s", scaled(r.s.spread(g.sample), 40e6/1e9))
		}
	}
	if r.s.has("pairs read") {
		r.most(16, fmt.Sprintf("pairs mixed, of %.2g locked reads", r.s.spread("pairs read").Median), 0, "", r.s.spread("pairs mixed"))
	}
}

func (r *run) goalsOfVersions() {
	if !r.s.has("changed: C get") {
		return
	}
	for _, what := range []string{"C get", "C multiget ×32", "Go get", "Go multiget ×32"} {
		before, after := r.s.ratio("unchanged: "+what, "unchanged: limit ×32"), r.s.ratio("changed: "+what, "changed: limit ×32")
		r.most(9, what+": newest view with a fifth changed / without changes, each over the limit", 1.05, "×",
			Spread{after.Median / before.Median, after.Min / before.Max, after.Max / before.Min})
		r.most(9, what+": old view / newest view, a fifth changed", 1.4, "×", r.s.ratio("old lock: "+what, "changed: "+what))
	}
}

// tileGoalMax is the side in km up to which the R-tree promises to be ahead.
const tileGoalMax = 10

func (r *run) goalsOfQueries() {
	if r.s.has("R-tree build") {
		r.most(14, "R-tree build of 40 M boxes, scaled", 6, "s", scaled(r.s.spread("R-tree build"), 40e6/1e9))
		r.most(14, "R-tree size", 22, "bytes/item", r.s.spread("R-tree size"))
	}
	for _, rival := range []string{"AoS", "cells"} {
		worst := Spread{Median: math.Inf(1)}
		where := ""
		for _, kind := range kinds {
			for _, side := range sides {
				name := tileName(kind, side)
				if side > tileGoalMax || !r.s.has(name+": SoA") {
					continue
				}
				if got := r.s.ratio(name+": "+rival, name+": SoA"); got.Median < worst.Median {
					worst, where = got, name
				}
			}
		}
		if where != "" {
			r.least(15, fmt.Sprintf("tiles up to 10 km: R-tree / %s, least of all (%s)", rival, where), 2, "×", worst)
		}
	}
	for _, s := range r.report.Scale {
		if s.Processes == r.cfg.Processes && s.Processes > 1 && s.Scaleup.Median > 0 && s.Case != "attach" && s.Case != "lock" {
			r.least(17, "scale-up, "+s.String(), 0.9, "×", s.Scaleup)
		}
	}
}
