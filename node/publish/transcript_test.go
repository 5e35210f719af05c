package publish

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	dto "github.com/prometheus/client_model/go"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// TestTranscript replays testdata/image.txt, the story of one node's image. Versions are published
// on demand only, so that nothing happens between two commands.
//
//	new
//	table NAME [hidden]               creates a table, published or not
//	put RANGE TABLE NAME=VALUE...     one committed entry; NAME=- deletes. The driver hears of it, and
//	    [late] [alone]                late: only by report; alone: without the entry itself
//	report RANGE                      the driver hears of the last commit, without entries
//	trim RANGE                        storage drops the committed log
//	publish                           demands a version
//	restart                           closes the driver and opens another
//	image                             what a reader sees, and how many tables were loaded from storage
func TestTranscript(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			if td.Cmd == "new" {
				w = newWorld(t, Policy{OnDemand: true})
				return "ok\n"
			}
			return w.run(td)
		})
	})
}

// run carries out one command of TestTranscript.
func (w *world) run(td *datadriven.TestData) string {
	arg := func(i int) string { return td.CmdArgs[i].Key }
	at := func() rhumb.RangeID {
		var n int
		if _, err := fmt.Sscan(arg(0), &n); err != nil || n >= hashSlots {
			w.t.Fatalf("%s: range %q", td.Pos, arg(0))
		}
		return hashRange(n)
	}
	switch td.Cmd {
	case "table":
		features := rhumb.SnapshotOn
		if td.HasArg("hidden") {
			features = 0
		}
		w.table(arg(0), features)
	case "put":
		table, ok := w.state.TableByName(arg(1))
		if !ok {
			w.t.Fatalf("%s: no table %q", td.Pos, arg(1))
		}
		var writes []entry.Write
		for _, a := range td.CmdArgs[2:] {
			switch {
			case len(a.Vals) == 0: // late or alone
			case a.Vals[0] == "-":
				writes = append(writes, entry.Write{Table: table.ID, Name: []byte(a.Key), Value: rhumb.Tombstone})
			default:
				writes = append(writes, entry.Write{Table: table.ID, Name: []byte(a.Key), Value: opaque(a.Vals[0])})
			}
		}
		w.append(at(), !td.HasArg("late"), !td.HasArg("alone"), writes...)
	case "report":
		w.driver.Committed(at(), w.logs[at()].commit, nil)
	case "trim":
		w.trim(at())
	case "publish":
		ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
		defer cancel()
		if _, err := w.driver.Publish(ctx); err != nil {
			return rhumb.KindOf(err).String() + ": " + rhumb.Message(err) + "\n"
		}
	case "restart":
		if err := w.driver.Close(); err != nil {
			w.t.Fatal(err)
		}
		w.open(Policy{OnDemand: true})
	case "image":
		return w.showImage()
	default:
		w.t.Fatalf("%s: unknown command %s", td.Pos, td.Cmd)
	}
	return "ok\n"
}

// showImage lists the rows of every table and the position of every range in the image.
func (w *world) showImage() string {
	var out strings.Builder
	err := w.view(func(v reader.View) error {
		for t := range w.state.Tables() {
			rows, err := w.rows(t.Name)
			if rhumb.KindOf(err) == rhumb.NotFound {
				continue
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, "%s:", t.Name)
			for _, name := range slices.Sorted(maps.Keys(rows)) {
				value, _ := rhumb.DecodeOpaque([]byte(rows[name]))
				fmt.Fprintf(&out, " %s=%s", name, value)
			}
			out.WriteString("\n")
		}
		out.WriteString("positions:")
		for i := range hashSlots {
			if p, err := v.Position(hashRange(i)); err == nil {
				fmt.Fprintf(&out, " %d@%d", i, p.Seq)
			}
		}
		var m dto.Metric
		err := w.driver.m.loads.Write(&m)
		fmt.Fprintf(&out, "\nloads: %v\n", m.GetCounter().GetValue())
		return err
	})
	if err != nil {
		return "no image\n"
	}
	return out.String()
}
