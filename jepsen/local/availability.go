package local

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Availability holds how long keys had no service in trials of each kind of fault.
// It is kept in a file, and a later run adds to it, so that many trials need not be
// made in one run.
type Availability struct {
	// Regions and Nodes are those of the cluster of all trials.
	Regions []string `json:"regions"`
	Nodes   int      `json:"nodes"`
	// Faults are in the order of the documentation.
	Faults []FaultAvailability `json:"faults"`
	// Sources are the runs that the trials are from. Those of different loads or programs do not
	// compare well.
	Sources []Source `json:"sources"`
}

// Source is a kind of run that has added trials.
type Source struct {
	// Load names the workloads and their calls a second, Hold is how long a fault lasts, and
	// Program the revision of the nodes' program and its options.
	Load    string        `json:"load"`
	Hold    time.Duration `json:"hold_ns"`
	Program string        `json:"program"`
	// Trials counts those that it has added.
	Trials int `json:"trials"`
}

// From names the run that the next trials are from.
func (a *Availability) From(cfg *Config, p *Plan) {
	load := "all workloads"
	if len(p.Workloads) > 0 {
		load = strings.Join(p.Workloads, ", ")
	}
	if p.Meanwhile {
		load += ", changes during faults"
	}
	program := revision(cfg.Binary)
	if cfg.NodeLog {
		program += " with logs of the stores' own"
	}
	// A run like an earlier one adds to it; it is moved to the end, which counts the trials that follow.
	from := Source{Load: fmt.Sprintf("%s, %d calls a second", load, p.PerSecond), Hold: p.Hold, Program: program}
	same := func(s Source) bool { s.Trials = 0; return s == from }
	if i := slices.IndexFunc(a.Sources, same); i >= 0 {
		from = a.Sources[i]
		a.Sources = slices.Delete(a.Sources, i, i+1)
	}
	a.Sources = append(a.Sources, from)
}

// revision returns the revision of the repository that a program was built from.
func revision(binary string) string {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return "unknown"
	}
	found := map[string]string{}
	for _, s := range info.Settings {
		found[s.Key] = s.Value
	}
	// A program that was built by make names its version.
	if _, version, ok := strings.Cut(found["-ldflags"], "main.version="); ok {
		return strings.Trim(version, `"' `)
	}
	switch {
	case found["vcs.revision"] == "":
		return "unknown"
	case found["vcs.modified"] == "true":
		return found["vcs.revision"] + ", changed"
	}
	return found["vcs.revision"]
}

// FaultAvailability holds the trials of one kind of fault. Times are in
// milliseconds.
type FaultAvailability struct {
	Fault string `json:"fault"`
	ID    string `json:"id"`
	// Bound is the longest time that a key may have no service; 0 means that the
	// fault has no bound.
	Bound float64 `json:"bound_ms"`
	// Median and Longest are those of all keys in all trials, and Over counts the
	// trials in which a key was over the bound.
	Median  float64 `json:"p50_ms"`
	Longest float64 `json:"max_ms"`
	Over    int     `json:"over"`
	// Trials holds the longest time without an acknowledged write of each key, for
	// each trial.
	Trials [][]float64 `json:"trials_ms"`
}

// availabilityFile is the name of the file in the folder of a report, with the
// table as text.
const availabilityFile, availabilityText = "availability.json", "availability.txt"

// LoadAvailability reads what earlier runs have measured on clusters of the same
// size, from the folder of a report.
func LoadAvailability(dir string, cfg Config) (*Availability, error) {
	a := &Availability{Regions: cfg.Regions, Nodes: cfg.Nodes}
	text, err := os.ReadFile(filepath.Join(dir, availabilityFile))
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err != nil {
		return nil, err
	}
	var earlier Availability
	if err := json.Unmarshal(text, &earlier); err != nil {
		return nil, fmt.Errorf("%s: %w; remove it to begin anew", availabilityFile, err)
	}
	if !slices.Equal(earlier.Regions, cfg.Regions) || earlier.Nodes != cfg.Nodes {
		return nil, fmt.Errorf("%s has trials with regions %v of %d nodes, and this cluster has %v of %d; use another folder", availabilityFile,
			earlier.Regions, earlier.Nodes, cfg.Regions, cfg.Nodes)
	}
	return &earlier, nil
}

// of returns the trials of a fault, which may be none.
func (a *Availability) of(f Fault) *FaultAvailability {
	// The list is short, and its order is that of the table.
	i := slices.IndexFunc(a.Faults, func(one FaultAvailability) bool { return one.Fault == f.Name })
	if i < 0 {
		i = len(a.Faults)
		a.Faults = append(a.Faults, FaultAvailability{Fault: f.Name, ID: f.ID, Bound: f.Gap.Seconds() * 1000})
	}
	return &a.Faults[i]
}

// add adds a trial and computes the figures of all trials of the fault again.
func (a *Availability) add(f Fault, gaps []time.Duration) {
	one := a.of(f)
	var trial []float64
	for _, gap := range gaps {
		trial = append(trial, float64(gap.Microseconds())/1000)
	}
	one.Trials = append(one.Trials, trial)
	if last := len(a.Sources) - 1; last >= 0 {
		a.Sources[last].Trials++
	}
	// The file has every trial, so the figures are computed again and never drift.
	one.Over = 0
	for _, trial := range one.Trials {
		if one.Bound > 0 && slices.Max(trial) > one.Bound {
			one.Over++
		}
	}
	all := slices.Sorted(slices.Values(slices.Concat(one.Trials...)))
	one.Median, one.Longest = all[(len(all)-1)/2], all[len(all)-1]
}

// Add adds the windows of a run as trials, but for those in which a fault failed, as
// Measure does.
func (a *Availability) Add(cfg *Config, r *Result) {
	a.From(cfg, &r.Plan)
	for _, w := range r.Windows {
		// Without the workload probe, there are no gaps.
		if !w.Failed && len(w.Gaps) > 0 {
			a.add(w.Fault, w.Gaps)
		}
	}
}

// missing returns the faults with the fewest trials of those that have less than
// wanted, so that all kinds get about as many.
func (a *Availability) missing(faults []Fault, wanted int) (out []Fault) {
	// A fault that has as many as wanted is never in the result.
	least := wanted
	for _, f := range faults {
		switch count := len(a.of(f).Trials); {
		case count < least:
			least, out = count, []Fault{f}
		case count == least && count < wanted:
			out = append(out, f)
		}
	}
	return out
}

// Print prints the table.
func (a *Availability) Print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "fault\tid\ttrials\tp50 of a key\tmax\tbound\ttrials over it\t")
	for _, one := range a.Faults {
		bound := "none"
		if one.Bound > 0 {
			bound = fmt.Sprintf("%.0f ms", one.Bound)
		}
		if len(one.Trials) > 0 {
			fmt.Fprintf(t, "%s\t%s\t%d\t%.0f ms\t%.0f ms\t%s\t%d\t\n", one.Fault, one.ID, len(one.Trials), one.Median, one.Longest, bound, one.Over)
		}
	}
	_ = t.Flush()
	for _, s := range a.Sources {
		fmt.Fprintf(w, "%d trials: %s, faults of %v, program %s\n", s.Trials, s.Load, s.Hold, s.Program)
	}
}

// Save writes the figures as JSON and as text into a folder. A run that is cut off
// in between leaves the earlier file.
func (a *Availability) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(a, "", " ")
	if err != nil {
		return err
	}
	name := filepath.Join(dir, availabilityFile)
	if err := errors.Join(os.WriteFile(name+".part", text, 0o644), os.Rename(name+".part", name)); err != nil {
		return err
	}
	// The table is for people. A program reads the JSON.
	f, err := os.Create(filepath.Join(dir, availabilityText))
	if err != nil {
		return err
	}
	a.Print(f)
	return f.Close()
}

// Measure makes trials of each fault of a plan until each has the wanted number or
// the duration of the plan is over, and adds them to a, which it saves after each
// trial. An error means that the run could not be done, or that a promise was
// broken; the time without service is reported, and not judged.
func Measure(ctx context.Context, c *Cluster, p Plan, trials int, a *Availability, dir string) error {
	if !selected(p.Workloads, probeName) {
		return fmt.Errorf("the time without service is that of the keys of the workload %s; add it", probeName)
	}
	faults, err := p.chosen(c)
	if err != nil {
		return err
	}
	// Other workloads would take the processors from the nodes.
	if len(p.Workloads) == 0 {
		p.Workloads = []string{probeName}
	}
	a.From(&c.cfg, &p)
	record := newRecord()
	l, err := startLoad(ctx, c, record, p.Seed, p.PerSecond, p.Workloads)
	if err != nil {
		return err
	}
	// A later run of the same seed hits other nodes than the earlier one.
	random := rand.New(rand.NewPCG(p.Seed, uint64(time.Now().UnixNano())))
	var broken []error
	var windows []Window
	for record.now() < p.Duration && ctx.Err() == nil {
		left := a.missing(faults, trials)
		if len(left) == 0 {
			break
		}
		f := left[random.IntN(len(left))]
		w, err := inflict(ctx, c, record, f, &p, random)
		c.Logf("%s", w)
		if err != nil && !canGoOn(err) {
			return err
		}
		// A key that had no service to the end of the trial is measured when it
		// has.
		if err := wait(ctx, calm); err != nil {
			return err
		}
		if err != nil {
			broken = append(broken, fmt.Errorf("%s at %.1f s: %w", w.What, w.From.Seconds(), err))
			continue
		}
		record.mu.Lock()
		w.measure(record.acks)
		windows = append(windows, w)
		record.mu.Unlock()
		if len(w.Gaps) == 0 {
			return fmt.Errorf("%s at %.1f s: no write was acknowledged, before or after", w.What, w.From.Seconds())
		}
		a.add(f, w.Gaps)
		if err := a.Save(dir); err != nil {
			return err
		}
	}
	// The answers are judged although the gaps are not.
	for _, v := range l.finish(ctx) {
		if err := v.problem(); err != nil {
			broken = append(broken, fmt.Errorf("workload %s: %w", v.Workload, err))
		}
	}
	record.mu.Lock()
	defer record.mu.Unlock()
	for _, line := range judgeCalls(record.calls, windows, record.examples, c.cfg.Previous != "", p.AnyGap) {
		broken = append(broken, errors.New(line))
	}
	return errors.Join(broken...)
}
