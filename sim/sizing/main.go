// Command sizing prints how the messages, the metadata and the failover of a cluster grow with its
// nodes and ranges. It simulates clusters of up to 81 nodes with the ranges of one table, in virtual
// time, and builds the metadata of up to 100,000 ranges. docs/scale.md has a run.
//
// The first table is simulated, so that a seed always has the same figures, on every machine. Its
// columns are the messages of the whole cluster per second while nothing happens (heartbeats of the
// leases, replication, metadata group, and the bytes of the latter), the bytes of the encoded metadata,
// the ranges whose primary died with one node, when the first and the last of them was served again, and
// the messages of all kinds until then, with the bytes of those of the metadata group.
//
// The second table is measured: the bytes of the encoded metadata, the time to encode and to decode it,
// the bytes of the command that fences a node and the time to apply it, how many ranges it changes, and
// how many of these lose their primary. Times depend on the machine.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rhumbdb/rhumb/sim"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "sizing:", err)
		os.Exit(1)
	}
}

// options are the parsed flags.
type options struct {
	// nodes and ranges are combined, each number with each. records are the ranges of metadata that is
	// not simulated.
	nodes, ranges, records []int
	// calm is the virtual time over which messages are counted.
	calm time.Duration
	seed uint64
	// json prints documents in place of tables.
	json bool
}

// sizes is a flag with a list of numbers.
type sizes struct{ to *[]int }

// String returns the numbers with commas.
func (s sizes) String() string {
	if s.to == nil {
		return ""
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(*s.to), "[]"), " ", ",")
}

// Set parses numbers with commas.
func (s sizes) Set(text string) error {
	// The flag replaces the default, and does not add to it.
	*s.to = nil
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			return err
		}
		*s.to = append(*s.to, n)
	}
	return nil
}

// parseFlags parses the flags.
func parseFlags(args []string) (options, error) {
	o := options{nodes: []int{3, 9, 27, 81}, ranges: []int{1, 64, 1024}, records: []int{1, 100, 10_000, 100_000}}
	fs := flag.NewFlagSet("sizing", flag.ContinueOnError)
	fs.Var(sizes{&o.nodes}, "nodes", "numbers of nodes, 3 to 81")
	fs.Var(sizes{&o.ranges}, "ranges", "numbers of ranges of simulated clusters, 1 to 1024")
	fs.Var(sizes{&o.records}, "metadata", "numbers of ranges of metadata that is not simulated")
	fs.DurationVar(&o.calm, "calm", 10*time.Second, "virtual time over which messages are counted")
	fs.Uint64Var(&o.seed, "seed", 1, "seed of the simulation")
	fs.BoolVar(&o.json, "json", false, "print lines of JSON")
	return o, fs.Parse(args)
}

// run prints each row when it is known, because the large ones take minutes.
func run(args []string, out io.Writer) error {
	o, err := parseFlags(args)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(out, 9, 0, 2, ' ', tabwriter.AlignRight)
	// A row is a line of JSON, or aligned cells.
	row := func(doc any, cells ...any) error {
		if o.json {
			return json.NewEncoder(out).Encode(doc)
		}
		for _, c := range cells {
			fmt.Fprintf(t, "%v\t", c)
		}
		fmt.Fprintln(t)
		return t.Flush()
	}
	header := func(words ...any) error {
		if o.json {
			return nil
		}
		return row(nil, words...)
	}
	if err := header("nodes", "ranges", "heartbeats/s", "replication/s", "metadata/s", "bytes/s", "state bytes", "lost", "first served", "last served", "messages", "bytes"); err != nil {
		return err
	}
	// The simulated clusters come first, from the smallest to the largest.
	for _, nodes := range o.nodes {
		for _, ranges := range o.ranges {
			r, err := sim.RunScale(sim.ScaleConfig{Seed: o.seed, Nodes: nodes, Ranges: ranges, Calm: o.calm})
			if err != nil {
				return fmt.Errorf("%d nodes with %d ranges: %w", nodes, ranges, err)
			}
			if err := row(r, r.Nodes, r.Ranges, round(r.Heartbeats), round(r.Messages), round(r.MetaMessages), round(r.MetaBytes), r.StateBytes, r.Lost, r.First, r.Last, r.During, r.MetaDuring); err != nil {
				return err
			}
		}
	}
	if err := header("nodes", "ranges", "state bytes", "encode", "decode", "fence bytes", "fence", "changed", "primaries"); err != nil {
		return err
	}
	for _, nodes := range o.nodes {
		// No simulation: the metadata alone, with more ranges than a simulated cluster can have.
		for _, ranges := range o.records {
			r, err := sim.MeasureCatalog(nodes, ranges)
			if err != nil {
				return err
			}
			ms := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
			if err := row(r, r.Nodes, r.Ranges, r.StateBytes, ms(r.Encode), ms(r.Decode), r.CommandBytes, ms(r.Fence), r.Moved, r.Excluded); err != nil {
				return err
			}
		}
	}
	return nil
}

func round(f float64) string { return strconv.FormatFloat(f, 'f', 0, 64) }
