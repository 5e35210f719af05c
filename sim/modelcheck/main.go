// Command modelcheck explores the model of the replication protocol from the command line: a preset, a mutation, or any
// bounds. It prints what it found, with the trace of a violation, and exits with 1 when an invariant was broken.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/rhumbdb/rhumb/sim/model"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "modelcheck:", err)
		os.Exit(2)
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
	seed    uint64
}

func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("modelcheck", flag.ContinueOnError)
	c := &o.cfg
	fs.BoolVar(&o.list, "list", false, "list presets and mutations")
	fs.StringVar(&o.preset, "preset", "", "explore this preset; the flags of bounds below are not used")
	fs.StringVar(&o.without, "without", "", "leave this rule out; with no flag of bounds, where it shows fastest")
	fs.BoolVar(&o.walk, "walk", false, "random walks instead of exhaustive search")
	fs.Uint64Var(&o.seed, "seed", 1, "seed of the walks")
	fs.DurationVar(&o.limits.Time, "time", 10*time.Minute, "time limit")
	fs.IntVar(&o.limits.States, "states", 0, "limit of states; 0 is none")
	fs.IntVar(&o.limits.Steps, "steps", 0, "limit of the steps of walks; 0 is none")
	fs.IntVar(&c.Epochs, "epochs", 2, "epochs")
	fs.IntVar(&c.Writes, "writes", 1, "client writes")
	fs.IntVar(&c.Rounds, "rounds", 0, "lease rounds of each holder; 0 leaves leases out")
	fs.IntVar(&c.Crashes, "crashes", 0, "restarts that keep the store")
	fs.IntVar(&c.Wipes, "wipes", 0, "restarts that lose the store")
	fs.IntVar(&c.Messages, "messages", 2, "messages under way")
	fs.IntVar(&c.Versions, "versions", 0, "last version at which the in-sync set is changed")
	fs.IntVar(&c.Closed, "closed", 0, "closed timestamps")
	fs.IntVar(&c.Slack, "slack", 0, "members that need not acknowledge")
	fs.IntVar(&c.MinInSync, "min", 2, "least in-sync size")
	fs.IntVar(&c.Secondaries, "secondaries", 2, "secondaries in sync at the start")
	fs.BoolVar(&c.Handover, "handover", false, "prepared handover")
	fs.BoolVar(&c.Fencing, "fencing", false, "metadata takes secondaries out of the in-sync set")
	fs.BoolVar(&c.Partial, "partial", false, "an APPEND may carry any beginning of the log")
	fs.BoolVar(&c.AllHolders, "all-holders", false, "replicas ask for grants before they are primary")
	fs.BoolVar(&c.PairsOnly, "pairs-only", false, "promises and grants between nodes only, no log")
	fs.BoolVar(&c.LateHeartbeats, "late-heartbeats", false, "heartbeats are messages under way")
	harm := fs.Bool("harm", false, "do not check that beliefs are owed, so that what a client sees is found instead")
	err := fs.Parse(args)
	if *harm {
		c.Ignore = []model.Invariant{model.Owed}
	}
	return o, err
}

func run(args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.without != "" {
		m, ok := model.MutationByName(o.without)
		if !ok {
			return fmt.Errorf("no mutation is named %q", o.without)
		}
		o.cfg.Without = m.Mutation
	}
	var res model.Result
	if o.walk {
		res, err = model.Walk(o.cfg, o.seed, o.limits)
	} else {
		res, err = model.Explore(o.cfg, o.limits)
	}
	if err != nil {
		return err
	}
	fmt.Printf("%v: states=%d transitions=%d depth=%d exhausted=%v %.1fs\n", o.cfg, res.States, res.Transitions, res.Depth, res.Exhausted, res.Elapsed.Seconds())
	if res.Violation != nil {
		fmt.Print(res.Violation)
		os.Exit(1)
	}
	return nil
}
