// A report is computed from the runs alone, so that it can be computed again from a document: the rows
// are medians over the rounds of one case on one target, and the ratios compare two targets within each
// round first and take the median after that. The two orders differ on a machine whose speed changes:
// the ratio of two medians compares rounds that had nothing to do with each other.

package rounds

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb/bench/load"
)

// Case identifies a case within a report.
type Case struct {
	Op         load.Op       `json:"op,omitempty"`
	Workload   load.Workload `json:"workload,omitempty"`
	Callers    int           `json:"callers"`
	Batch      int           `json:"batch"`
	ValueBytes int           `json:"value_bytes"`
}

// CaseOf returns the identity of a case.
func CaseOf(c load.Case) Case {
	// Durations and numbers of keys are not part of the identity.
	out := Case{c.Op, c.Workload, c.Callers, max(c.Batch, 1), c.ValueBytes}
	if out.Workload != "" {
		out.Op = ""
	}
	return out
}

// Title describes the case in a few words. It is not a String method, which rows would inherit.
func (c Case) Title() string {
	text := string(c.Op)
	if c.Workload != "" {
		text = "workload " + string(c.Workload)
	}
	text += fmt.Sprintf(", %d callers", c.Callers)
	if c.Callers == 1 {
		text = text[:len(text)-1]
	}
	if c.Batch > 1 {
		text += fmt.Sprintf(" of %d keys", c.Batch)
	}
	return text
}

// Row holds the medians of all rounds of one case on one target.
type Row struct {
	Target string `json:"target"`
	Case
	Ops       float64 `json:"ops_per_second"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	P999      float64 `json:"p999_us"`
	ServerCPU float64 `json:"server_cpu_us"`
	ClientCPU float64 `json:"client_cpu_us"`
	// RowHits is the share of reads by name that nodes answered from memory, if it is known.
	RowHits float64 `json:"row_hits,omitempty"`
	// OtherCores is the number of cores that other processes kept busy.
	OtherCores float64 `json:"other_cores"`
	// OpsSpread has the least and the greatest throughput of the rounds.
	OpsSpread Spread `json:"ops_spread"`
	Errors    int64  `json:"errors"`
	// FirstError is the first error of any round.
	FirstError string `json:"first_error,omitempty"`
}

// Ratio compares two targets: the median of the ratios within single rounds, with the least and the
// greatest.
type Ratio struct {
	Rhumb string `json:"rhumb"`
	Peer  string `json:"peer"`
	Case
	Ops Spread `json:"ops"`
	P50 Spread `json:"p50"`
	CPU Spread `json:"server_cpu"`
}

// Spread is the median of several values with the least and the greatest.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// String returns the median with its range.
func (s Spread) String() string { return fmt.Sprintf("%.2f [%.2f..%.2f]", s.Median, s.Min, s.Max) }

// SpreadOf returns the median, least and greatest of f over xs, or zeros if xs is empty.
func SpreadOf[T any](xs []T, f func(T) float64) Spread {
	if len(xs) == 0 {
		return Spread{}
	}
	vs := make([]float64, len(xs))
	for i, x := range xs {
		vs[i] = f(x)
	}
	slices.Sort(vs)
	middle := (vs[(len(vs)-1)/2] + vs[len(vs)/2]) / 2
	return Spread{middle, vs[0], vs[len(vs)-1]}
}

// table holds runs by case and target, both in the order of their first run.
type table struct {
	cases   []Case
	targets []string
	runs    map[Case]map[string][]Run
}

func tableOf(runs []Run) *table {
	t := &table{runs: map[Case]map[string][]Run{}}
	for _, x := range runs {
		c := CaseOf(x.Case)
		if t.runs[c] == nil {
			t.cases, t.runs[c] = append(t.cases, c), map[string][]Run{}
		}
		if !slices.Contains(t.targets, x.Target) {
			t.targets = append(t.targets, x.Target)
		}
		t.runs[c][x.Target] = append(t.runs[c][x.Target], x)
	}
	return t
}

// Rows returns the medians of all cases on all targets that ran them.
func Rows(runs []Run) (out []Row) {
	t := tableOf(runs)
	for _, c := range t.cases {
		// The order of the targets is that of the measurement, with Rhumb first.
		for _, target := range t.targets {
			if runs := t.runs[c][target]; runs != nil {
				out = append(out, makeRow(target, c, runs))
			}
		}
	}
	return out
}

// Ratios returns the ratios of each pair of a target and its peer, in all cases that both ran.
func Ratios(runs []Run, pairs [][2]string) (out []Ratio) {
	t := tableOf(runs)
	for _, c := range t.cases {
		for _, p := range pairs {
			if pairs := pairUp(t.runs[c][p[0]], t.runs[c][p[1]]); pairs != nil {
				out = append(out, makeRatio(p, c, pairs))
			}
		}
	}
	return out
}

// makeRow returns the medians of the runs of one case on one target.
func makeRow(target string, c Case, runs []Run) Row {
	out := Row{Target: target, Case: c}
	pick := func(f func(Run) float64) float64 { return SpreadOf(runs, f).Median }
	// Each figure has its own median: they need not be of one round.
	out.OpsSpread = SpreadOf(runs, func(x Run) float64 { return x.OpsPerSecond })
	out.Ops = out.OpsSpread.Median
	out.P50 = pick(func(x Run) float64 { return float64(x.P50) })
	out.P99 = pick(func(x Run) float64 { return float64(x.P99) })
	out.P999 = pick(func(x Run) float64 { return float64(x.P999) })
	out.ServerCPU = pick(func(x Run) float64 { return x.ServerCPU })
	out.ClientCPU = pick(func(x Run) float64 { return x.ClientCPU })
	out.RowHits = pick(func(x Run) float64 { return x.RowHits })
	out.OtherCores = pick(func(x Run) float64 { return x.OtherCores })
	for _, x := range runs {
		out.Errors += x.Errors
		out.FirstError = cmp.Or(out.FirstError, x.FirstError)
	}
	return out
}

// both holds the results of two targets in one round.
type both struct{ a, b Run }

// pairUp returns the rounds in which both targets completed calls. A measurement without a single
// call, because each takes longer, has no ratio.
func pairUp(ours, theirs []Run) (out []both) {
	for _, a := range ours {
		i := slices.IndexFunc(theirs, func(b Run) bool { return b.Round == a.Round })
		if i >= 0 && a.OpsPerSecond > 0 && theirs[i].OpsPerSecond > 0 {
			out = append(out, both{a, theirs[i]})
		}
	}
	return out
}

// makeRatio returns the ratios of two targets in one case.
func makeRatio(pair [2]string, c Case, pairs []both) Ratio {
	by := func(f func(Run) float64) Spread {
		// Processor time is counted in steps of 10 ms, and can be 0. Such a round has no ratio.
		some := slices.DeleteFunc(slices.Clone(pairs), func(p both) bool { return f(p.b) == 0 })
		return SpreadOf(some, func(p both) float64 { return f(p.a) / f(p.b) })
	}
	return Ratio{
		Rhumb: pair[0], Peer: pair[1], Case: c,
		Ops: by(func(x Run) float64 { return x.OpsPerSecond }),
		P50: by(func(x Run) float64 { return float64(x.P50) }),
		CPU: by(func(x Run) float64 { return x.ServerCPU }),
	}
}
