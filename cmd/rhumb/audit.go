package main

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/audit"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/output"
)

// auditFilter selects entries of `rhumb audit ls`.
type auditFilter struct {
	// kinds selects entries of any of these kinds.
	kinds []string
	// caller, action and outcome are compared without regard to case.
	caller, action, outcome string
	// since is the greatest age of an entry.
	since time.Duration
	// last keeps the newest entries only, after all other fields have selected.
	last int
}

// auditCommand returns the group of commands for audit logs. None of them collects the logs of all
// nodes: each log proves something only together with a head that was kept elsewhere, and a
// collection made by the cluster would be as trustworthy as the node that assembled it.
func auditCommand(s *session) *cobra.Command {
	var head string
	verify := &cobra.Command{
		Use:   "verify DIR",
		Short: "Check that an audit log is complete and unchanged",
		Long: `Read the audit log of a node and check its chain of hashes. DIR is the node's first directory, or the folder audit in it;
the node may be running. The first break is named by file and offset, and the exit code is 1.

The chain alone cannot show that entries were cut off its end. The command prints the newest entry as SEQ:HASH. Keep that
text on another machine and pass it as --head the next time.`,
		Example: `  rhumb audit verify /var/lib/rhumb
  rhumb audit verify /var/lib/rhumb --head 17:cb8379ac2098aa165029e3938a51da0bcecfc008fd6795f401178647f96c5b34`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// Without this, a variable without a value would skip the check that the operator asked for.
			if head == "" && cmd.Flags().Changed("head") {
				return rhumb.E("rhumb.audit", rhumb.InvalidArgument, "--head is empty; give the head that an earlier run printed, or leave the flag out")
			}
			return verifyAudit(s, args[0], head)
		},
	}
	verify.Flags().StringVar(&head, "head", "", "newest entry that the log is known to have had, as SEQ:HASH")
	// Files are read and not the node: the log matters most when the node is down or in doubt.
	var f auditFilter
	ls := &cobra.Command{
		Use:   "ls DIR",
		Short: "List the entries of an audit log",
		Long: `List who administered a node and who logged in, oldest first. DIR is the node's first directory, or the folder audit in it;
each node records what was done through it. Check the log with rhumb audit verify before you rely on it.`,
		Example: `  rhumb audit ls /var/lib/rhumb --since 24h
  rhumb audit ls /var/lib/rhumb --kind login_failed --caller 'user app' -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return listAudit(s, args[0], f) },
	}
	fl := ls.Flags()
	fl.StringSliceVar(&f.kinds, "kind", nil, "only entries of these kinds, such as admin or login_failed")
	fl.StringVar(&f.caller, "caller", "", "only entries of this caller, such as 'operator anna'")
	fl.StringVar(&f.action, "action", "", "only entries of this action, such as CreateTable")
	fl.StringVar(&f.outcome, "outcome", "", "only entries with this outcome, such as permission_denied")
	fl.DurationVar(&f.since, "since", 0, "only entries that are not older")
	flags.Default(fl, "since", "all")
	fl.IntVar(&f.last, "last", 0, "only this many of the newest entries")
	flags.Default(fl, "last", "all")
	flags.Positive(fl, "since", "last")
	return commandGroup("audit", "Read and check audit logs", ls, verify)
}

// auditDoc is the document of `rhumb audit verify`.
type auditDoc struct {
	// Dir is the folder that was read, which may be below the one on the command line.
	Dir string `json:"dir"`
	// Files and Entries count the files and entries that were read, up to the first break.
	Files   int    `json:"files"`
	Entries uint64 `json:"entries"`
	// First is the sequence number of the oldest entry that exists. It grows when old files are removed.
	First uint64 `json:"first"`
	// Head is the newest entry as SEQ:HASH, which `--head` accepts the next time.
	Head string `json:"head"`
	// Unfinished is set if the last line of the log is incomplete.
	Unfinished bool `json:"unfinished"`
	// Faults has at most one element: nothing after the first break can be judged.
	Faults []output.Fault `json:"faults"`
}

// auditDir returns the directory of a log. People name the directory of the node, too.
func auditDir(dir string) string {
	inner := filepath.Join(dir, "audit")
	if info, err := os.Stat(inner); err == nil && info.IsDir() {
		return inner
	}
	return dir
}

// verifyAudit checks the log in dir and prints the report. A break is reported as an error of kind Corrupt, after the
// report. With a head that is not empty, the log must contain that entry.
func verifyAudit(s *session, dir, head string) error {
	dir = auditDir(dir)
	// Parsed before the log is read, which may take seconds.
	var want audit.Head
	if head != "" {
		var err error
		if want, err = audit.ParseHead(head); err != nil {
			return err
		}
	}
	r, err := audit.Verify(dir, want)
	// Other errors, such as a missing folder, say nothing about the log, so none is printed.
	broken, isBreak := errors.AsType[*audit.BreakError](err)
	if err != nil && !isBreak {
		return err
	}
	doc := auditDoc{Dir: dir, Files: r.Files, Entries: r.Entries, First: r.First, Head: r.Head.String(), Unfinished: r.Unfinished, Faults: []output.Fault{}}
	if isBreak {
		// The first break is the only one: the hashes of all later entries build on it.
		doc.Faults = append(doc.Faults, output.Fault{File: broken.File, Offset: broken.Offset, What: rhumb.Message(broken.Err)})
	}
	if err := s.Print(doc, func(t table.Writer) {
		if isBreak {
			output.AppendFaults(t, doc.Faults)
			return
		}
		t.AppendRow(table.Row{"entries", doc.Entries})
		t.AppendRow(table.Row{"files", doc.Files})
		t.AppendRow(table.Row{"first", doc.First})
		t.AppendRow(table.Row{"head", doc.Head})
	}); err != nil {
		return err
	}
	// A running node writes all the time, so this is not a fault.
	if doc.Unfinished {
		s.Notef("the last file ends within an entry: the node is writing it, or was killed while it wrote")
	}
	// The report is printed in full before the error, which only sets the exit code.
	if isBreak {
		return rhumb.Ef("rhumb.audit", rhumb.Corrupt, "the chain of %s is broken; entries before the break are as they were written, those after it prove nothing", dir)
	}
	return nil
}

// listAudit prints the entries that a filter selects. Entries before a break are printed before the
// error.
func listAudit(s *session, dir string, f auditFilter) error {
	// Not nil, so that -o json prints [] if no entry is selected.
	docs := []audit.Entry{}
	var failed error
	for e, err := range audit.All(auditDir(dir)) {
		// The folder holds no log, so an empty list would be misleading.
		if rhumb.KindOf(err) == rhumb.NotFound {
			return err
		}
		if err != nil {
			// Everything before the break is valid and is printed below.
			failed = err
			break
		}
		if f.selects(&e, time.Now()) {
			docs = append(docs, e)
		}
		// Bounded, because a log may have a million entries.
		if f.last > 0 && len(docs) > f.last {
			docs = docs[1:]
		}
	}
	if err := s.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"SEQ", "TIME", "KIND", "CALLER", "ADDRESS", "ACTION", "OBJECT", "OUTCOME", "DETAIL"})
		for _, e := range docs {
			t.AppendRow(table.Row{e.Seq, e.Time.UTC().Format(time.DateTime), e.Kind, e.Caller, e.Address, e.Action, e.Object, e.Outcome, e.Detail})
		}
	}); err != nil {
		return err
	}
	return failed
}

// selects reports whether a filter selects an entry.
func (f *auditFilter) selects(e *audit.Entry, now time.Time) bool {
	// An empty part of the filter selects everything.
	return (len(f.kinds) == 0 || slices.Contains(f.kinds, e.Kind)) &&
		(f.since == 0 || now.Sub(e.Time) <= f.since) &&
		strings.EqualFold(cmp.Or(f.caller, e.Caller), e.Caller) &&
		strings.EqualFold(cmp.Or(f.action, e.Action), e.Action) &&
		strings.EqualFold(cmp.Or(f.outcome, e.Outcome), e.Outcome)
}
