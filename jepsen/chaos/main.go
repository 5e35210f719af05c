//go:build linux

// Command chaos brings up a secured cluster on hosts of this machine, holds a load, does what faults do, and checks what clients saw.
// It exits with 1 if a promise was broken or the run could not be done, and with 3 if this machine cannot run hosts.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb/deploy/hosts"
	"github.com/rhumbdb/rhumb/jepsen/local"
)

func main() {
	// Hosts run this program as their first process.
	hosts.TakeRole()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ends := &interrupts{all: cancel}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for range signals {
			ends.next()
		}
	}()
	err := command(ends).ExecuteContext(ctx)
	code := local.ExitCode(err)
	switch code {
	case 0:
	case local.ExitUnsupported:
		fmt.Fprintln(os.Stderr, "chaos: skipped:", err)
	default:
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	os.Exit(code)
}

// interrupts is what Ctrl-C and SIGTERM end. A run of hours that is interrupted has seen much, so the
// first one ends the faults only, and the run is judged. The next one ends everything.
type interrupts struct {
	all func() // ends everything

	mu     sync.Mutex
	faults func() // ends the faults; nil while there are none
}

// next ends the faults, or everything if there are none any more.
func (i *interrupts) next() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.faults == nil {
		i.all()
		return
	}
	fmt.Fprintln(os.Stderr, "chaos: after the present fault, what was seen is judged; interrupt again to end at once")
	i.faults()
	i.faults = nil
}

// begin returns a channel that is closed by the next interrupt.
func (i *interrupts) begin() <-chan struct{} {
	enough := make(chan struct{})
	i.mu.Lock()
	defer i.mu.Unlock()
	i.faults = func() { close(enough) }
	return enough
}

// command returns the command line.
func command(ends *interrupts) *cobra.Command {
	var plan local.Plan
	cfg := local.Config{Log: os.Stdout}
	var dir, out string
	var list bool
	var trials int
	cmd := &cobra.Command{
		Use:   "chaos",
		Short: "Do what faults do to a cluster on hosts of this machine, and check what clients saw",
		Example: `  make chaos
  make chaos FAULTS=kill,cut DURATION=5m SEED=7
  go run ./jepsen/chaos --regions eu,us,ap --duration 10m --out report`,
		SilenceUsage: true, SilenceErrors: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if list {
				local.List(os.Stdout)
				return nil
			}
			if err := hosts.Supported(); err != nil {
				return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
			}
			if err := plan.Check(&cfg, trials); err != nil {
				return err
			}
			return run(cmd.Context(), ends, cfg, plan, trials, dir, out)
		},
	}
	// This program copies itself to the hosts, and runs this command there.
	cmd.AddCommand(&cobra.Command{
		Use: local.ReaderCommand + " DIR TABLE", Short: "Read views of an image, on the host of a node", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return local.FollowViews(cmd.Context(), args[0], args[1], os.Stdout)
		},
	})
	f := cmd.Flags()
	f.StringSliceVar(&plan.Faults, "faults", nil, "faults to draw from (default: all)")
	f.StringSliceVar(&plan.Workloads, "workloads", nil, "workloads (default: all)")
	f.DurationVar(&plan.Duration, "duration", time.Minute, "how long faults are drawn")
	f.DurationVar(&plan.Hold, "hold", 4*time.Second, "how long a fault lasts")
	f.Uint64Var(&plan.Seed, "seed", 1, "seed of faults and operations")
	f.IntVar(&plan.PerSecond, "rate", 500, "steps a second, of all workloads together; some make several calls")
	f.StringSliceVar(&cfg.Regions, "regions", []string{"eu"}, "regions")
	f.IntVar(&cfg.Nodes, "nodes", 3, "nodes in each region")
	f.StringVar(&cfg.Memory, "memory", "256MiB", "memory of a node")
	f.StringVar(&cfg.Binary, "binary", "", "program to test (default: built from this repository)")
	f.StringVar(&cfg.Previous, "previous", "", "previous release of the program, with which all nodes begin, for the fault upgrade")
	f.BoolVar(&cfg.NodeLog, "experimental-node-log", false, "give each store a log of its own, as rhumb start does with this flag; the previous release does not read it")
	cmd.MarkFlagsMutuallyExclusive("experimental-node-log", "previous")
	f.BoolVar(&plan.Meanwhile, "meanwhile", false, "change something during each fault: hand over or split ranges, drain a node, or replace the key of gossip")
	f.BoolVar(&plan.AnyGap, "any-gap", false, "report the time without service of a key, and do not judge it, nor calls that fail without a fault; for machines that are busy with other work")
	f.IntVar(&trials, "trials", 0, "measure the time without service: make so many trials of each fault, until --duration is over; a run continues an earlier one, or a soak, of the same --out")
	f.BoolVar(&plan.Soak, "soak", false, "draw only faults that end no process in the second half, so that memory, goroutines, files and data of processes that live long are judged")
	f.StringVar(&dir, "dir", "", "where hosts keep their disks (default: a directory that is removed at the end)")
	f.StringVar(&out, "out", "bin/chaos", "folder for the report and, if the run is not valid, the logs")
	f.BoolVar(&list, "list", false, "list faults and workloads, and end")
	return cmd
}

// run runs the plan on a cluster of its own and writes the report. With trials, it measures.
func run(ctx context.Context, ends *interrupts, cfg local.Config, plan local.Plan, trials int, dir, out string) (err error) {
	var measured *local.Availability
	if plan.Soak {
		plan.Profiles = filepath.Join(out, "profiles")
	}
	if trials > 0 || plan.Soak {
		// Before the cluster comes up, which takes long.
		if measured, err = local.LoadAvailability(out, cfg); err != nil {
			return err
		}
	}
	if err := local.ClearReport(out); err != nil {
		return err
	}
	if dir == "" {
		if dir, err = local.MakeDir(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	cfg.Dir = dir
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("run it within the repository: %w", err)
	}
	source := strings.TrimSpace(string(root))
	if source == "" {
		return errors.New("run it within the repository: this folder is in no module")
	}
	cfg.Units = filepath.Join(source, "deploy", "systemd")
	if cfg.Binary == "" {
		cfg.Binary = filepath.Join(dir, "rhumb")
		build := exec.CommandContext(ctx, "go", "build", "-o", cfg.Binary, "./cmd/rhumb")
		build.Dir = source
		if text, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w: %s", err, text)
		}
	}
	cfg.Disks = plan.NeedsDisks()
	c, err := local.Start(ctx, cfg)
	if err != nil {
		return err
	}
	// Close removes the hosts, also after a failure.
	defer func() { err = errors.Join(err, c.Close()) }()
	if trials > 0 {
		if err := local.Measure(ctx, c, plan, trials, measured, out); err != nil {
			return errors.Join(err, c.KeepLogs(out))
		}
		measured.Print(os.Stdout)
		return nil
	}
	result, err := local.Run(ctx, c, plan, ends.begin())
	if err != nil {
		// The logs are the only trace of a run that could not be done.
		return errors.Join(err, c.KeepLogs(out))
	}
	// Printed first: an error of a file must not hide the verdict.
	result.Print(os.Stdout)
	failed := result.Save(out)
	if measured != nil {
		measured.Add(&cfg, result)
		failed = errors.Join(failed, measured.Save(out))
	}
	if err := result.Err(); err != nil {
		failed = errors.Join(err, failed, c.KeepLogs(out))
	}
	return failed
}
