// Command modelcheck explores the models of the replication protocol and of the voters of the metadata group from the
// command line: a preset, a mutation, or any bounds of the former; without flags every short preset. It prints the result,
// with the trace of a violation, and exits with 1 if an invariant is broken.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/rhumbdb/rhumb/sim/model"
	"github.com/rhumbdb/rhumb/sim/voter"
)

func main() {
	switch broken, err := run(os.Args[1:], os.Stdout); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "modelcheck:", err)
		os.Exit(2)
	case broken:
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	cfg     model.Config
	limits  model.Limits
	preset  string
	without string
	list    bool
	walk    bool
	bounds  bool // a flag of bounds was given
	seed    uint64
}

func parse(args []string) (o options, err error) {
	fs := flag.NewFlagSet("modelcheck", flag.ContinueOnError)
	fs.BoolVar(&o.list, "list", false, "list presets and mutations")
	fs.StringVar(&o.preset, "preset", "", "take the bounds of this preset, or search all whose names begin so")
	fs.StringVar(&o.without, "without", "", "leave this rule out; without bounds, where it shows soonest")
	fs.BoolVar(&o.walk, "walk", false, "take random walks instead of an exhaustive search")
	fs.Uint64Var(&o.seed, "seed", 1, "seed of the walks")
	fs.DurationVar(&o.limits.Time, "time", 0, "limit of time; 0 is none")
	fs.IntVar(&o.limits.States, "states", 0, "limit of states; 0 is none")
	fs.IntVar(&o.limits.Steps, "steps", 0, "limit of the steps of walks; 0 is none")
	general := map[string]bool{}
	fs.VisitAll(func(f *flag.Flag) { general[f.Name] = true })
	bounds(fs, &o.cfg)
	early := fs.Bool("ignore-early", false, "do not check what breaks before a client sees it: that beliefs are owed, that reported commits are held")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("argument %q is not understood; all options are flags", fs.Arg(0))
	}
	fs.Visit(func(f *flag.Flag) { o.bounds = o.bounds || !general[f.Name] })
	if *early {
		o.cfg.Ignore = []model.Invariant{model.Owed, model.ReportedHeld}
	}
	return o, nil
}

// bounds declares the flags of a model.Config.
func bounds(fs *flag.FlagSet, c *model.Config) {
	fs.IntVar(&c.Epochs, "epochs", 2, "epochs")
	fs.IntVar(&c.Writes, "writes", 1, "client writes")
	fs.IntVar(&c.Rounds, "rounds", 0, "lease rounds of each holder; 0 leaves leases out")
	fs.IntVar(&c.Crashes, "crashes", 0, "restarts that keep the store")
	fs.IntVar(&c.Damages, "damages", 0, "restarts that lose synced data")
	fs.IntVar(&c.Lacking, "lacking", 0, "disks that may lack the same entry at one time; 0 is one less than -min")
	fs.BoolVar(&c.Images, "images", false, "a damage is the return of an older image of a disk")
	fs.BoolVar(&c.OneAnswer, "one-answer", false, "one answer of a recorded life suffices for an election")
	fs.IntVar(&c.Messages, "messages", 2, "messages under way")
	fs.IntVar(&c.Versions, "versions", 0, "last version at which the in-sync set is changed")
	fs.IntVar(&c.Closed, "closed", 0, "closed timestamps")
	fs.IntVar(&c.Slack, "slack", 0, "members that need not acknowledge")
	fs.IntVar(&c.MinInSync, "min", 2, "least in-sync size")
	fs.IntVar(&c.Secondaries, "secondaries", 2, "secondaries in sync at the start")
	fs.BoolVar(&c.Handover, "handover", false, "prepared handover")
	fs.BoolVar(&c.Fencing, "fencing", false, "metadata takes secondaries out of the in-sync set")
	fs.BoolVar(&c.GivesUp, "gives-up", false, "primaries may stop by themselves")
	fs.BoolVar(&c.Partial, "partial", false, "an APPEND may carry any beginning of the log")
	fs.BoolVar(&c.AllHolders, "all-holders", false, "replicas ask for grants before they are primary")
	fs.BoolVar(&c.PairsOnly, "pairs-only", false, "promises and grants between nodes only, no log")
	fs.BoolVar(&c.LateHeartbeats, "late-heartbeats", false, "heartbeats may be under way")
}

// run does what the arguments say and reports whether an invariant was broken.
func run(args []string, out io.Writer) (broken bool, err error) {
	o, err := parse(args)
	if err != nil {
		return false, err
	}
	if o.list {
		list(out)
		return false, nil
	}
	searches, err := o.searches()
	if err != nil {
		return false, err
	}
	for _, s := range searches {
		failed, err := s.run(out)
		if err != nil {
			return broken, err
		}
		broken = broken || failed
	}
	return broken, nil
}

// search is one thing to do.
type search struct {
	name   string
	cfg    model.Config
	walk   bool
	seed   uint64
	limits model.Limits
	voters *voter.Config // if set, the group to search in place of cfg
}

// searches returns what to search.
func (o *options) searches() ([]search, error) {
	if s, ok := o.voterMutation(); ok {
		return []search{s}, nil
	}
	var finding model.Finding
	if o.without != "" {
		var ok bool
		if finding, ok = model.MutationByName(o.without); !ok {
			return nil, fmt.Errorf("no mutation is named %q; -list names them", o.without)
		}
		o.cfg.Without = finding.Mutation
	}
	one := search{name: "bounds", cfg: o.cfg, walk: o.walk, seed: o.seed, limits: o.limits}
	switch {
	case o.preset != "":
		return o.presets()
	case o.without == "" && !o.bounds && !o.walk:
		var short []search
		for _, p := range model.Presets() {
			if p.Short {
				short = append(short, search{name: p.Name, cfg: p.Config, limits: o.limits})
			}
		}
		for _, p := range voter.Presets() {
			if p.Short {
				short = append(short, o.voterSearch(p.Name, p.Config))
			}
		}
		return short, nil
	case o.without != "" && !o.bounds && !o.walk:
		one.name, one.cfg = finding.Name, finding.Config
		if finding.Steps > 0 {
			one.walk, one.seed, one.limits.Steps = true, finding.Seed, finding.Steps
		}
	}
	return []search{one}, nil
}

func (o *options) presets() ([]search, error) {
	all := model.Presets()
	if o.walk {
		all = model.Walks()
	}
	var out []search
	for _, p := range all {
		if p.Name == o.preset {
			out = nil
		}
		if strings.HasPrefix(p.Name, o.preset) || o.preset == "all" {
			p.Config.Without = o.cfg.Without
			out = append(out, search{name: p.Name, cfg: p.Config, walk: o.walk, seed: o.seed, limits: o.limits})
		}
		if p.Name == o.preset {
			return out, nil
		}
	}
	for _, p := range voter.Presets() {
		if !o.walk && (strings.HasPrefix(p.Name, o.preset) || o.preset == "all") {
			out = append(out, o.voterSearch(p.Name, p.Config))
		}
		if p.Name == o.preset {
			return out[len(out)-1:], nil
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no preset is named %q; -list names them", o.preset)
	}
	return out, nil
}

func (o *options) voterSearch(name string, cfg voter.Config) search {
	return search{name: name, limits: o.limits, voters: &cfg}
}

// voterMutation returns the search for a mutation of the voters' rule.
func (o *options) voterMutation() (search, bool) {
	for _, f := range voter.Findings() {
		if f.Name == o.without {
			return o.voterSearch(f.Name, f.Config), true
		}
	}
	return search{}, false
}

// run searches, reports, and returns whether an invariant is broken.
func (s search) run(out io.Writer) (broken bool, err error) {
	if s.voters != nil {
		return s.runVoters(out)
	}
	var res model.Result
	if s.walk {
		res, err = model.Walk(s.cfg, s.seed, s.limits)
	} else {
		res, err = model.Explore(s.cfg, s.limits)
	}
	if err != nil {
		return false, err
	}
	s.report(out, &res)
	return res.Violation != nil, nil
}

func (s search) runVoters(out io.Writer) (broken bool, err error) {
	r, err := voter.Explore(*s.voters, voter.Limits{States: s.limits.States, Time: s.limits.Time})
	if err != nil {
		return false, err
	}
	verdict := "exhausted"
	switch {
	case r.Broken != 0:
		verdict = "BROKEN"
	case !r.Exhausted:
		verdict = "stopped by a limit"
	}
	fmt.Fprintf(out, "%s: %s | %v | %d states | %d transitions | depth %d | %.1f s\n", s.name, verdict, *s.voters, r.States, r.Transitions, r.Depth, r.Elapsed.Seconds())
	if r.Broken != 0 {
		fmt.Fprint(out, &r)
	}
	return r.Broken != 0, nil
}

func (s search) report(out io.Writer, r *model.Result) {
	verdict := "exhausted"
	switch {
	case s.walk:
		verdict = fmt.Sprintf("walked with seed %d", s.seed)
	case !r.Exhausted:
		verdict = "stopped by a limit"
	}
	if r.Violation != nil {
		verdict = "BROKEN"
	}
	fmt.Fprintf(out, "%s: %s | %v | %d states | %d transitions | depth %d | %.1f s\n", s.name, verdict, s.cfg, r.States, r.Transitions, r.Depth, r.Elapsed.Seconds())
	if r.Violation != nil {
		fmt.Fprint(out, r.Violation)
	}
}

func list(out io.Writer) {
	fmt.Fprintln(out, "Presets (-preset NAME):")
	for _, p := range model.Presets() {
		fmt.Fprintf(out, "  %-24s %v\n", p.Name, p.Config)
	}
	for _, p := range voter.Presets() {
		fmt.Fprintf(out, "  %-24s %v\n", p.Name, p.Config)
	}
	fmt.Fprintln(out, "Presets to walk (-walk -preset NAME -time 60s):")
	for _, p := range model.Walks() {
		fmt.Fprintf(out, "  %-24s %v\n", p.Name, p.Config)
	}
	fmt.Fprintln(out, "Mutations (-without NAME):")
	for _, f := range model.Mutations() {
		fmt.Fprintf(out, "  %-24s %-13s breaks: %v\n", f.Name, f.Rule, f.Breaks)
	}
	for _, f := range model.Unnoticed() {
		fmt.Fprintf(out, "  %-24s %-13s nothing shows\n", f.Name, f.Rule)
	}
	for _, f := range voter.Findings() {
		fmt.Fprintf(out, "  %-24s %-13s breaks: %v\n", f.Name, "voters", f.Breaks)
	}
}
