package benchcmd

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/cli/flags"
)

// ycsbRecordsMax bounds the records of a workload: the tables of the generator grow with it.
const ycsbRecordsMax = 10_000_000

// ycsbCommand returns `rhumb bench ycsb`. It shares the measurement, the report and most flags with
// `rhumb bench kv`; the two are apart because their cases, defaults and sizes of values differ.
func (bc *commands) ycsbCommand() *cobra.Command {
	var cfg bench.KVConfig
	var clusters kvClusters
	var names []string
	var own bool
	var replicas int
	c := &cobra.Command{
		Use: "ycsb", Short: "Run the workloads A to F of YCSB",
		Long: `Run the core workloads of the Yahoo! Cloud Serving Benchmark through the default client, on clusters that the command starts or,
with --own, on a running one, with the identity of the connection flags or the context. The records are written first, in the
table bench, which the command creates if it may. They stay there.

  A  half reads, half writes          D  95 % reads of recent records, 5 % inserts
  B  95 % reads, 5 % writes           E  95 % scans of 1 to 100 records, 5 % inserts
  C  reads                            F  half reads, half reads that are followed by a write

Keys are popular by a Zipf distribution with the exponent 0.99. Processor time of servers is known only for clusters that the
command started. rhumb bench sidebyside runs the workloads on other databases too.`,
		Example: `  rhumb bench ycsb --nodes 3 --rounds 1
  rhumb bench ycsb --own --context prod --workload A,B --records 1000000 --callers 64
  rhumb bench ycsb --workload E -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Both cases of a letter are in use.
			for _, name := range names {
				w, err := load.ParseWorkload(name)
				if err != nil {
					return rhumb.Ef(op, rhumb.InvalidArgument, "--workload: %v", err)
				}
				cfg.Workloads = append(cfg.Workloads, w)
			}
			if own {
				return bc.measureOwn(cmd.Context(), cfg, replicas)
			}
			if err := refuseConnection(cmd); err != nil {
				return err
			}
			return bc.measureKV(cmd.Context(), cfg, clusters, bc.dir)
		},
	}
	fl := c.Flags()
	// The size of a record is that of YCSB: ten fields of 100 bytes.
	fl.StringSliceVar(&names, "workload", strings.Fields(strings.Trim(fmt.Sprint(load.Workloads()), "[]")), "workloads to run")
	fl.IntVar(&cfg.Records, "records", 20_000, "number of records that exist before")
	fl.IntVar(&cfg.ValueBytes, "value-bytes", 1000, "size of a record")
	fl.IntSliceVar(&cfg.Callers, "callers", []int{64}, "numbers of callers")
	fl.IntVar(&cfg.Rounds, "rounds", 5, "how often each workload runs")
	fl.DurationVar(&cfg.Measure, "measure", 2*time.Second, "how long a workload is measured")
	fl.StringSliceVar(&clusters.regions, "regions", []string{"singapore"}, "regions of each cluster, as for demo --regions")
	fl.IntSliceVar(&clusters.nodes, "nodes", []int{1, 3}, "nodes per region; one cluster runs for each number")
	fl.StringVar(&clusters.latency, "latency", "none", "round trips between regions: real, none, or a latency file")
	fl.BoolVar(&clusters.secure, "secure", false, "also measure each cluster with TLS and users, in ratio to the one without")
	fl.BoolVar(&own, "own", false, "measure the cluster that --addr or the context names, as its user, in its table bench")
	fl.IntVar(&replicas, "replicas", rhumb.ReplicasDefault, "with --own: copies of each range, if the table does not exist yet")
	bc.conn.Register(fl)
	boundCases(fl)
	flags.Positive(fl, "records")
	flags.AtMost(fl, ycsbRecordsMax, "records")
	ownOnly(c, "regions", "nodes", "latency", "secure")
	return c
}
