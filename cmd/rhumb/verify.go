package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/client"
)

// verifyRangeMost bounds the comparison of one range: nodes read it at their --verify-rate.
const verifyRangeMost = 4 * time.Hour

// verifyNoteEvery is the interval of notes about progress if standard error is not a terminal.
const verifyNoteEvery = 5 * time.Second

// verifyCommand is `rhumb range verify`.
func (rc *rangeCommands) verifyCommand() *cobra.Command {
	var all bool
	var region, trust string
	c := &cobra.Command{
		Use: "verify [REGION/SLOT]", Short: "Compare the replicas of ranges, and quarantine those that differ",
		Long: `Compare the records of all replicas of a range, or of all ranges, as of one timestamp. Nodes do the same in the
background, once per --verify-interval. A replica whose records differ from those of a majority of the replicas is quarantined, and
its node replaces it by a copy from another node (--heal-after). Before that the difference is found a second time, and enough
other replicas are in sync. If no copy has a majority, nothing is done: --trust names the node whose copy is right.
` + connect.NodeHelp,
		Example: "  rhumb range verify 1/1042\n  rhumb range verify --all --region frankfurt -o json\n  rhumb range verify 1/1042 --trust n2",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) == 1) {
				return rhumb.E("rhumb.range.verify", rhumb.InvalidArgument, "name a range, such as 1/1042, or write --all")
			}
			// Parsed here, so that a mistyped node fails before the command waits for a cluster.
			var right connect.NodeArg
			if trust != "" {
				var err error
				if right, err = connect.ParseNode(trust); err != nil {
					return err
				}
				if all {
					return rhumb.E("rhumb.range.verify", rhumb.InvalidArgument, "--trust is about one range: name it instead of --all")
				}
			}
			return rc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				ids, err := rangesToVerify(c, args, region)
				if err != nil {
					return err
				}
				// Zero trusts no node more than the others.
				var node rhumb.NodeID
				if trust != "" {
					if node, err = right.Find(c.Nodes()); err != nil {
						return err
					}
				}
				return rc.verify(ctx, c, ids, node)
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "compare all ranges")
	c.Flags().StringVar(&region, "region", "", "with --all: only ranges whose home is this region")
	c.Flags().StringVar(&trust, "trust", "", "node whose copy is right, if no copy has a majority")
	return c
}

// rangesToVerify returns the named range, or all ranges of a region. The list is that of the client's copy of the
// metadata: a range that is created while the command runs is left to the background comparison.
func rangesToVerify(c *client.Client, args []string, region string) (ids []rhumb.RangeID, err error) {
	if len(args) == 1 {
		id, err := parseRange(c, args[0])
		return []rhumb.RangeID{id}, err
	}
	home, err := regionID(c, region)
	if err != nil {
		return nil, err
	}
	for _, r := range c.Ranges() {
		if home == 0 || r.ID.Region == home {
			ids = append(ids, r.ID)
		}
	}
	return ids, nil
}

// verdictDoc is the comparison of one range. Field names are stable.
type verdictDoc struct {
	Range string `json:"range"`
	// Result is equal, alone, differ, undecided, or failed.
	Result string `json:"result"`
	// Position is the committed position of the range, and AsOf its timestamp.
	Position uint64 `json:"position,omitempty"`
	AsOf     string `json:"as_of,omitempty"`
	// Table is the number of the first table with a difference.
	Table uint32 `json:"table,omitempty"`
	// Why is the reason for which nothing was quarantined, or the error of a range that was not compared.
	Why string `json:"why,omitempty"`
	// Seconds is the duration of the comparison, both times if it was repeated.
	Seconds  float64             `json:"seconds"`
	Replicas []replicaVerdictDoc `json:"replicas"`
}

// replicaVerdictDoc is the verdict about one replica.
type replicaVerdictDoc struct {
	Node string `json:"node"`
	// Verdict is trusted, differs, undecided or silent.
	Verdict string `json:"verdict"`
	// Digest is equal for equal records. It is empty for a silent replica.
	Digest string `json:"digest,omitempty"`
	// Records and Bytes count the newest versions, without tombstones.
	Records uint64 `json:"records"`
	Bytes   uint64 `json:"bytes"`
	// Quarantined is set if the replica has left the service because of this comparison.
	Quarantined bool `json:"quarantined,omitempty"`
	// Error is the reason of a silent replica.
	Error string `json:"error,omitempty"`
}

// resultFailed marks a range that could not be compared.
const resultFailed = "failed"

// verify compares ranges one after the other. A range that cannot be compared does not keep the others from it. One
// at a time, because the nodes bound the rate anyway, and so that a stop of the command leaves at most one
// comparison running.
func (rc *rangeCommands) verify(ctx context.Context, c *client.Client, ids []rhumb.RangeID, trust rhumb.NodeID) error {
	// An empty list and not null in the JSON of a region without ranges.
	docs := []verdictDoc{}
	var bytes uint64
	bad, open := 0, 0
	bar, told := rc.Bar(int64(len(ids))), time.Now()
	for i, id := range ids {
		// The usual --timeout is for requests that a node answers at once.
		waiting, cancel := context.WithTimeout(ctx, verifyRangeMost)
		v, err := c.VerifyRange(waiting, id, trust)
		cancel()
		if ctx.Err() != nil || err != nil && len(ids) == 1 {
			return err
		}
		doc := describeVerdict(id, &v, err)
		docs = append(docs, doc)
		switch doc.Result {
		case "equal":
		case "differ", "undecided":
			bad++
		default:
			open++
		}
		for _, r := range doc.Replicas {
			bytes += r.Bytes
		}
		if bar != nil {
			bar.Describe(fmt.Sprintf("compared %d MiB", bytes>>20))
			_ = bar.Set64(int64(i + 1)) // a failure to draw must not fail the work
		} else if time.Since(told) >= verifyNoteEvery {
			// A log that collects standard error shows that the command lives.
			told = time.Now()
			rc.Notef("compared %d of %d ranges, %d MiB", i+1, len(ids), bytes>>20)
		}
	}
	if bar != nil {
		_ = bar.Finish()
	}
	if err := rc.Print(docs, func(t table.Writer) { writeVerdicts(t, docs) }); err != nil {
		return err
	}
	const op rhumb.Op = "rhumb.range.verify"
	switch {
	case bad > 0:
		return rhumb.Ef(op, rhumb.Corrupt, "the replicas of %d of %d ranges differ; docs/runbooks/corrupt-store.md says what to do", bad, len(ids))
	case open > 0:
		return rhumb.Ef(op, rhumb.Unavailable, "%d of %d ranges could not be compared", open, len(ids))
	}
	return nil
}

// describeVerdict returns the document of a comparison.
func describeVerdict(id rhumb.RangeID, v *client.RangeVerdict, err error) verdictDoc {
	doc := verdictDoc{Range: id.String(), Replicas: []replicaVerdictDoc{}}
	if err != nil {
		doc.Result, doc.Why = resultFailed, rhumb.Message(err)
		return doc
	}
	doc.Result, doc.Position, doc.AsOf, doc.Table, doc.Why, doc.Seconds = v.Result, uint64(v.Seq), v.At.String(), uint32(v.Table), v.Why, v.Took.Seconds()
	for _, r := range v.Replicas {
		doc.Replicas = append(doc.Replicas, replicaVerdictDoc{r.Node.String(), r.Verdict, r.Digest, r.Records, r.Bytes, r.Quarantined, r.Error})
	}
	return doc
}

// writeVerdicts prints ranges with equal replicas in one line each, and the replicas of all others.
func writeVerdicts(t table.Writer, docs []verdictDoc) {
	t.AppendHeader(table.Row{"RANGE", "RESULT", "NODE", "VERDICT", "RECORDS", "BYTES", "DIGEST", "WHY"})
	for _, d := range docs {
		if len(d.Replicas) == 0 {
			t.AppendRow(table.Row{d.Range, d.Result, "", "", "", "", "", d.Why})
		}
		for i, r := range d.Replicas {
			if d.Result == "equal" && len(docs) > 1 && i > 0 {
				break
			}
			// Why nothing was done belongs to the replicas that it is about.
			note := r.Error
			switch {
			case r.Quarantined:
				note = "quarantined; its node replaces it"
			case r.Verdict == "differs" || r.Verdict == "undecided":
				note = d.Why
			}
			node := r.Node
			if d.Result == "equal" && len(docs) > 1 {
				node = fmt.Sprintf("%d replicas", len(d.Replicas))
			}
			t.AppendRow(table.Row{d.Range, d.Result, node, r.Verdict, r.Records, r.Bytes, r.Digest, note})
		}
	}
}
