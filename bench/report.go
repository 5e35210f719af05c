package bench

import (
	"cmp"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb/bench/load"
)

// KVRun is the result of one case on one target in one round.
type KVRun struct {
	Target string `json:"target"`
	Round  int    `json:"round"`
	load.Result
}

// KVRow holds the medians of all rounds of one case on one target.
type KVRow struct {
	Target    string  `json:"target"`
	Op        load.Op `json:"op"`
	Callers   int     `json:"callers"`
	Ops       float64 `json:"ops_per_second"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	ServerCPU float64 `json:"server_cpu_us"`
	ClientCPU float64 `json:"client_cpu_us"`
	Errors    int64   `json:"errors"`
	// FirstError is the first error of any round.
	FirstError string `json:"first_error,omitempty"`
}

// KVRatio compares Rhumb with a peer of as many nodes, or Rhumb with TLS and users with Rhumb
// without them: the median of the ratios within single
// rounds, with the least and the greatest.
type KVRatio struct {
	Rhumb   string  `json:"rhumb"`
	Peer    string  `json:"peer"`
	Op      load.Op `json:"op"`
	Callers int     `json:"callers"`
	Ops     Spread  `json:"ops"`
	P50     Spread  `json:"p50"`
	CPU     Spread  `json:"server_cpu"`
}

// Spread is the median of several values with the least and the greatest.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// KVReport holds everything that RunKV measured.
type KVReport struct {
	Rows   []KVRow   `json:"rows"`
	Ratios []KVRatio `json:"ratios"`
	Runs   []KVRun   `json:"runs"`
}

// kvCase identifies a case within a report.
type kvCase struct {
	op      load.Op
	callers int
}

// summarise computes rows and ratios from the runs.
func (r *KVReport) summarise() {
	var cases []kvCase
	var targets []string
	runs := map[string]map[kvCase][]KVRun{}
	for _, x := range r.Runs {
		c := kvCase{x.Op, x.Callers}
		// Cases and targets keep the order of their first run.
		if !slices.Contains(cases, c) {
			cases = append(cases, c)
		}
		if runs[x.Target] == nil {
			runs[x.Target] = map[kvCase][]KVRun{}
			targets = append(targets, x.Target)
		}
		runs[x.Target][c] = append(runs[x.Target][c], x)
	}
	// Puts come before gets, and fewer callers before more.
	slices.SortStableFunc(cases, func(a, b kvCase) int { return cmp.Or(-cmp.Compare(a.op, b.op), cmp.Compare(a.callers, b.callers)) })
	for _, c := range cases {
		for _, t := range targets {
			r.Rows = append(r.Rows, makeRow(t, c, runs[t][c]))
		}
		for _, t := range targets {
			// A peer of as many nodes has the same suffix. Clusters of several regions have none.
			nodes, ok := strings.CutPrefix(t, "rhumb-")
			peer := "etcd-" + nodes
			if plain, secure := strings.CutSuffix(t, secureSuffix); secure {
				peer = plain
			}
			if ok && runs[peer] != nil {
				r.Ratios = append(r.Ratios, makeRatio(t, peer, c, runs[t][c], runs[peer][c]))
			}
		}
	}
}

// makeRow returns the medians of the runs of one case on one target.
func makeRow(target string, c kvCase, runs []KVRun) KVRow {
	out := KVRow{Target: target, Op: c.op, Callers: c.callers}
	pick := func(f func(KVRun) float64) float64 { return spreadOf(runs, f).Median }
	out.Ops = pick(func(x KVRun) float64 { return x.OpsPerSecond })
	out.P50 = pick(func(x KVRun) float64 { return float64(x.P50) })
	out.P99 = pick(func(x KVRun) float64 { return float64(x.P99) })
	out.ServerCPU = pick(func(x KVRun) float64 { return x.ServerCPU })
	out.ClientCPU = pick(func(x KVRun) float64 { return x.ClientCPU })
	for _, x := range runs {
		out.Errors += x.Errors
		out.FirstError = cmp.Or(out.FirstError, x.FirstError)
	}
	return out
}

// makeRatio returns the ratios of two targets in one case. The i-th runs of both are of one round.
func makeRatio(name, peer string, c kvCase, ours, theirs []KVRun) KVRatio {
	type pair struct{ a, b KVRun }
	var pairs []pair
	for i := range min(len(ours), len(theirs)) {
		pairs = append(pairs, pair{ours[i], theirs[i]})
	}
	by := func(f func(KVRun) float64) Spread {
		return spreadOf(pairs, func(p pair) float64 {
			// A peer that measured 0 has failed; the ratio is then meaningless.
			if f(p.b) == 0 {
				return 0
			}
			return f(p.a) / f(p.b)
		})
	}
	return KVRatio{
		Rhumb: name, Peer: peer, Op: c.op, Callers: c.callers,
		Ops: by(func(x KVRun) float64 { return x.OpsPerSecond }),
		P50: by(func(x KVRun) float64 { return float64(x.P50) }),
		CPU: by(func(x KVRun) float64 { return x.ServerCPU }),
	}
}

// spreadOf returns the median, least and greatest of f over xs, or zeros if xs is empty.
func spreadOf[T any](xs []T, f func(T) float64) Spread {
	if len(xs) == 0 {
		return Spread{}
	}
	vs := make([]float64, len(xs))
	for i, x := range xs {
		vs[i] = f(x)
	}
	slices.Sort(vs)
	return Spread{vs[len(vs)/2], vs[0], vs[len(vs)-1]}
}
