// Command modelcheck searches the models of the replication protocol and of the voters of the
// metadata group. It searches a preset, a mutation, or any bounds of the replication model; without
// flags it searches every short preset. It prints the result with the trace of a violation, and
// exits with 1 if an invariant is broken.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/rhumbdb/rhumb/sim/model"
	"github.com/rhumbdb/rhumb/sim/voter"
)

func main() {
	switch broken, err := run(os.Args[1:], os.Stdout); {
	// The flag set has printed the help; asking for it is not an error.
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "modelcheck:", err)
		os.Exit(2)
	case broken:
		os.Exit(1)
	}
}

// options are the parsed flags.
type options struct {
	cfg     model.Config
	limits  model.Limits
	preset  string
	without string
	list    bool
	walk    bool
	// bounds is set if any flag of declareBounds was given.
	bounds bool
	seed   uint64
}

// parseFlags parses the flags.
func parseFlags(args []string) (o options, err error) {
	fs := flag.NewFlagSet("modelcheck", flag.ContinueOnError)
	fs.BoolVar(&o.list, "list", false, "list the presets and mutations")
	fs.StringVar(&o.preset, "preset", "", "search this preset, or every preset whose name has this prefix")
	fs.StringVar(&o.without, "without", "", "leave out this rule; without bounds, search the configuration that shows the harm soonest")
	fs.BoolVar(&o.walk, "walk", false, "follow random walks instead of searching exhaustively")
	fs.Uint64Var(&o.seed, "seed", 1, "seed of the walks")
	fs.DurationVar(&o.limits.Time, "time", 0, "limit of the duration; 0 is no limit")
	fs.IntVar(&o.limits.States, "states", 0, "limit of the states; 0 is no limit")
	fs.IntVar(&o.limits.Steps, "steps", 0, "limit of the steps of walks; 0 is no limit")
	// The flags declared so far select and limit searches. Any flag declared later is a bound, and
	// a bound that was given replaces the configuration of a mutation.
	general := map[string]bool{}
	fs.VisitAll(func(f *flag.Flag) { general[f.Name] = true })
	declareBounds(fs, &o.cfg)
	early := fs.Bool("ignore-early", false, "do not check the invariants that break before a client can notice: owed beliefs and reported commits")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q; modelcheck takes flags only", fs.Arg(0))
	}
	// Only flags that were given count: a bound left at its default does not request bounds.
	fs.Visit(func(f *flag.Flag) { o.bounds = o.bounds || !general[f.Name] })
	if *early {
		o.cfg.Ignore = []model.Invariant{model.Owed, model.ReportedHeld}
	}
	return o, nil
}

// declareBounds declares the flags for the bounds of a model.Config.
func declareBounds(fs *flag.FlagSet, c *model.Config) {
	fs.IntVar(&c.Epochs, "epochs", 2, "epochs")
	fs.IntVar(&c.Writes, "writes", 1, "client writes")
	fs.IntVar(&c.Rounds, "rounds", 0, "lease rounds of each holder; 0 leaves leases out")
	fs.IntVar(&c.Crashes, "crashes", 0, "restarts without loss")
	fs.IntVar(&c.Damages, "damages", 0, "restarts that lose synced data")
	fs.IntVar(&c.Removals, "removals", 0, "copies that are removed; their nodes may get others later")
	fs.Func("far", "replicas in the other one of two regions, as bits: 110", bits(&c.Far))
	fs.BoolVar(&c.Spread, "spread", false, "the range survives the loss of a region")
	fs.BoolVar(&c.RegionLoss, "region-loss", false, "the other region may be lost with its disks")
	fs.BoolVar(&c.Alone, "alone", false, "metadata fences nodes, and accepts an in-sync set in one region while all copies elsewhere are on fenced ones")
	fs.BoolVar(&c.GivenUp, "given-up", false, "the other region may be given up after its loss")
	fs.BoolVar(&c.RegionRemoval, "region-removal", false, "the other region may be removed when no copy is left there")
	fs.Func("older", "replicas that begin with an older build, which cannot read client writes, as bits", bits(&c.Older))
	fs.IntVar(&c.Copies, "copies", 0, "sets that replicas receive from each other")
	fs.IntVar(&c.Lacking, "lacking", 0, "disks that may lack the same entry at one time; 0 means one less than -min")
	fs.BoolVar(&c.Images, "images", false, "every damage returns a disk to an older image")
	fs.BoolVar(&c.OneAnswer, "one-answer", false, "one answer of a recorded life suffices for an election")
	fs.IntVar(&c.Messages, "messages", 2, "messages in flight")
	fs.IntVar(&c.Versions, "versions", 0, "last version at which a change of the in-sync set may begin")
	fs.IntVar(&c.Closed, "closed", 0, "closed timestamps")
	fs.IntVar(&c.Slack, "slack", 0, "members that need not acknowledge")
	fs.IntVar(&c.MinInSync, "min", 2, "least size of an in-sync set")
	fs.IntVar(&c.Secondaries, "secondaries", 2, "secondaries that are in sync at the start")
	fs.BoolVar(&c.Handover, "handover", false, "prepared handover")
	fs.BoolVar(&c.Fencing, "fencing", false, "metadata may remove secondaries from the in-sync set")
	fs.BoolVar(&c.GivesUp, "gives-up", false, "primaries may stop at any time")
	fs.BoolVar(&c.Partial, "partial", false, "an APPEND may carry any prefix of the log")
	fs.BoolVar(&c.AllHolders, "all-holders", false, "replicas may ask for grants before they are primary")
	fs.BoolVar(&c.PairsOnly, "pairs-only", false, "search only promises and grants between nodes, without a log")
	fs.BoolVar(&c.LateHeartbeats, "late-heartbeats", false, "heartbeats may stay in flight")
}

// bits returns a parser of a set of replicas, such as 110.
func bits(to *uint8) func(string) error {
	return func(s string) error {
		v, err := strconv.ParseUint(s, 2, 8)
		*to = uint8(v)
		return err
	}
}

// run carries out the command line and reports whether an invariant was broken.
func run(args []string, out io.Writer) (broken bool, err error) {
	o, err := parseFlags(args)
	if err != nil {
		return false, err
	}
	if o.list {
		printList(out)
		return false, nil
	}
	searches, err := o.planSearches()
	if err != nil {
		return false, err
	}
	return runSearches(searches, out)
}

// runSearches runs as many searches at once as there are processors, and prints the results in the order of the searches. All run even
// after a violation, so that one run lists every broken preset.
func runSearches(searches []search, out io.Writer) (broken bool, err error) {
	type result struct {
		text   bytes.Buffer
		broken bool
		err    error
		done   chan struct{}
	}
	// Each search writes into a buffer of its own, so that lines of two searches do not mix.
	results := make([]result, len(searches))
	for i := range results {
		results[i].done = make(chan struct{})
	}
	var next atomic.Int64
	// More searches at once would only need more memory.
	for range min(runtime.GOMAXPROCS(0), len(searches)) {
		go func() {
			for i := next.Add(1) - 1; i < int64(len(searches)); i = next.Add(1) - 1 {
				r := &results[i]
				r.broken, r.err = searches[i].runSearch(&r.text)
				close(r.done)
			}
		}()
	}
	// A result is printed as soon as it and all before it are known.
	for i := range results {
		r := &results[i]
		<-r.done
		if _, err := r.text.WriteTo(out); err != nil {
			return broken, err
		}
		if r.err != nil {
			return broken, r.err
		}
		broken = broken || r.broken
	}
	return broken, nil
}

// search is one search to run.
type search struct {
	name   string
	cfg    model.Config
	walk   bool
	seed   uint64
	limits model.Limits
	// voters, if not nil, is the group to search in place of cfg.
	voters *voter.Config
}

// planSearches returns the searches that the flags select.
func (o *options) planSearches() ([]search, error) {
	// Rules of both models share one flag, and no name occurs in both.
	if s, ok := o.voterMutation(); ok {
		return []search{s}, nil
	}
	var finding model.Finding
	if o.without != "" {
		var ok bool
		if finding, ok = model.MutationByName(o.without); !ok {
			return nil, fmt.Errorf("unknown mutation %q; -list shows the mutations", o.without)
		}
		// Flags of bounds then say where to search.
		o.cfg.Without = finding.Mutation
	}
	one := search{name: "bounds", cfg: o.cfg, walk: o.walk, seed: o.seed, limits: o.limits}
	switch {
	case o.preset != "":
		return o.planPresets()
	case o.without == "" && !o.bounds && !o.walk:
		var short []search
		for _, p := range model.Presets() {
			// Long presets take minutes to hours and must be asked for.
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
	// A mutation without bounds uses the configuration in which its harm shows, by walks if they
	// find it sooner.
	case o.without != "" && !o.bounds && !o.walk:
		one.name, one.cfg = finding.Name, finding.Config
		if finding.Steps > 0 {
			one.walk, one.seed, one.limits.Steps = true, finding.Seed, finding.Steps
		}
	}
	return []search{one}, nil
}

// planPresets returns the searches for -preset: the preset of exactly that name, or every preset
// with the prefix.
func (o *options) planPresets() ([]search, error) {
	all := model.Presets()
	if o.walk {
		all = model.Walks()
	}
	var out []search
	for _, p := range all {
		// An exact match wins over the prefixes before it, such as "lease" over "lease-restart".
		if p.Name == o.preset {
			out = nil
		}
		if strings.HasPrefix(p.Name, o.preset) || o.preset == "all" {
			// A mutation may be searched in any preset, not only in its own configuration.
			p.Config.Without = o.cfg.Without
			out = append(out, search{name: p.Name, cfg: p.Config, walk: o.walk, seed: o.seed, limits: o.limits})
		}
		if p.Name == o.preset {
			return out, nil
		}
	}
	for _, p := range voter.Presets() {
		// Voters have no random walks.
		if !o.walk && (strings.HasPrefix(p.Name, o.preset) || o.preset == "all") {
			out = append(out, o.voterSearch(p.Name, p.Config))
		}
		if p.Name == o.preset {
			return out[len(out)-1:], nil
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("unknown preset %q; -list shows the presets", o.preset)
	}
	return out, nil
}

// voterSearch returns a search of the model of the voters.
func (o *options) voterSearch(name string, cfg voter.Config) search {
	return search{name: name, limits: o.limits, voters: &cfg}
}

// voterMutation returns the search for a mutation of the voters' rule, if -without names one.
func (o *options) voterMutation() (search, bool) {
	for _, f := range voter.Findings() {
		if f.Name == o.without {
			return o.voterSearch(f.Name, f.Config), true
		}
	}
	return search{}, false
}

// runSearch runs the search, prints the result, and reports whether an invariant is broken.
func (s search) runSearch(out io.Writer) (broken bool, err error) {
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
	s.printResult(out, &res)
	return res.Violation != nil, nil
}

// runVoters is runSearch for the model of the voters, whose results have another type.
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

// printResult prints the result in one line, and the trace of a violation.
func (s search) printResult(out io.Writer, r *model.Result) {
	verdict := "exhausted"
	switch {
	case s.walk:
		verdict = fmt.Sprintf("walked with seed %d", s.seed)
	case !r.Exhausted:
		verdict = "stopped by a limit"
	}
	// A violation also ends a walk or a limited search, so it is the verdict of any of them.
	if r.Violation != nil {
		verdict = "BROKEN"
	}
	fmt.Fprintf(out, "%s: %s | %v | %d states | %d transitions | depth %d | %.1f s\n", s.name, verdict, s.cfg, r.States, r.Transitions, r.Depth, r.Elapsed.Seconds())
	if r.Violation != nil {
		fmt.Fprint(out, r.Violation)
	}
}

// printList prints the presets and mutations.
func printList(out io.Writer) {
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
		fmt.Fprintf(out, "  %-24s %-13s breaks: nothing\n", f.Name, f.Rule)
	}
	for _, f := range voter.Findings() {
		fmt.Fprintf(out, "  %-24s %-13s breaks: %v\n", f.Name, "voters", f.Breaks)
	}
}
