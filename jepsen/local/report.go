package local

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rhumbdb/rhumb"
)

// List prints the faults and the workloads.
func List(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "fault\tid\tlongest time without service\twhat it does")
	for _, f := range Faults() {
		bound := "no bound"
		if f.Gap > 0 {
			bound = f.Gap.String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", f.Name, f.ID, bound, f.Doc)
	}
	fmt.Fprintln(t, "\nworkload\t\t\twhat it does, and what is checked")
	for _, w := range workloads() {
		fmt.Fprintf(t, "%s\t\t\t%s\n", w.name, w.doc)
	}
	_ = t.Flush()
}

// allOr lists names. An empty list means all.
func allOr(names []string) string {
	if len(names) == 0 {
		return "all"
	}
	return strings.Join(names, ",")
}

// Print prints the result for people.
func (r *Result) Print(w io.Writer) {
	// Reads are counted apart: an error of a read has no unknown outcome to excuse it.
	failed, reads := map[rhumb.Kind]int{}, map[rhumb.Kind]int{}
	for _, c := range r.Calls {
		if !c.OK {
			failed[c.Kind]++
		}
		if !c.OK && c.Read {
			reads[c.Kind]++
		}
	}
	fmt.Fprintf(w, "\nprogram %s, %s\n", r.Program, r.Began.UTC().Format(time.DateTime))
	fmt.Fprintf(w, "faults %s of %v, workloads %s\n", allOr(r.Plan.Faults), r.Plan.Hold, allOr(r.Plan.Workloads))
	fmt.Fprintf(w, "seed %d, %d regions of %d nodes, %.0f s, %d calls\n", r.Plan.Seed, len(r.Regions), r.Nodes, r.Length.Seconds(), len(r.Calls))
	for _, kind := range slices.Sorted(maps.Keys(failed)) {
		fmt.Fprintf(w, "  %d failed as %s, %d of them reads, such as: %s\n", failed[kind], kind, reads[kind], r.Examples[kind])
	}
	fmt.Fprintln(w)
	for _, win := range r.Windows {
		fmt.Fprintln(w, win)
	}
	r.printGaps(w)
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, v := range r.Verdicts {
		verdict := "valid"
		if v.problem() != nil {
			verdict = "NOT VALID"
		}
		fmt.Fprintf(t, "%s\t%d operations\t%s\t%s\n", v.Workload, v.Operations, verdict, v.Text)
	}
	_ = t.Flush()
	printGrowths(w, r.growths())
	fmt.Fprintf(w, "\n%d operations were checked", r.Operations())
	if len(r.Broken) == 0 {
		fmt.Fprintln(w, "; everything is valid")
		return
	}
	fmt.Fprintf(w, "; not valid:\n  %s\n", strings.Join(r.Broken, "\n  "))
}

// printGrowths prints how the resources of each process grew that lived long enough to be judged.
func printGrowths(w io.Writer, all []growth) {
	// A short run judges no process.
	if len(all) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\nnode\tresource\tmedian\tgrown\tbound\twithin\t")
	for _, g := range all {
		fmt.Fprintf(t, "%s\t%s\t%.0f\t%.1f\t%.0f\t%v\t\n", g.node, g.resource.name, g.median, g.grown, g.most, g.over.Round(time.Second))
	}
	_ = t.Flush()
}

// printGaps prints for each fault how long the keys had no service, over all its windows.
func (r *Result) printGaps(w io.Writer) {
	gaps, trials := map[string][]time.Duration{}, map[string]int{}
	for _, win := range r.Windows {
		gaps[win.Fault.Name] = append(gaps[win.Fault.Name], win.Gaps...)
		trials[win.Fault.Name]++
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\nfault\ttimes\tmedian gap of a key\tlongest\tbound\t")
	for _, f := range append(Faults(), finalize) {
		all := gaps[f.Name]
		if len(all) == 0 {
			continue
		}
		// The median is that of all keys and repetitions together.
		slices.Sort(all)
		bound := "none"
		if f.Gap > 0 {
			bound = fmt.Sprintf("%d ms", f.Gap.Milliseconds())
		}
		fmt.Fprintf(t, "%s\t%d\t%.0f ms\t%.0f ms\t%s\t\n", f.Name, trials[f.Name], percentile(all, 0.5), percentile(all, 1), bound)
	}
	_ = t.Flush()
}

// The files of a report, and the folder of the logs of a run that is not valid.
const (
	reportText    = "report.txt"
	reportImage   = "report.png"
	resourceImage = "resources.png"
	logsFolder    = "logs"
)

// ClearReport makes a folder for the report of a run, and removes the report of an earlier run, so
// that nobody takes it for that of the new run. The trials of earlier runs stay. It returns an error
// if the folder cannot be written, which a run of hours must not learn at its end.
func ClearReport(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{reportText, reportImage, resourceImage, logsFolder} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	f, err := os.CreateTemp(dir, "written-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Save writes the text of the result and its picture into a folder.
func (r *Result) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var text strings.Builder
	r.Print(&text)
	if err := os.WriteFile(filepath.Join(dir, reportText), []byte(text.String()), 0o644); err != nil {
		return err
	}
	// A run shorter than one sample has none.
	if len(r.Samples) > 0 {
		if err := drawResources(filepath.Join(dir, resourceImage), r.Samples, r.Length); err != nil {
			return err
		}
	}
	return r.Draw(filepath.Join(dir, reportImage))
}
