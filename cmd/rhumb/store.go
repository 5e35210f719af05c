package main

import (
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/storage"
)

// storeCommand returns the group `rhumb store`. Its command opens files and needs no node.
func storeCommand(s *session) *cobra.Command {
	verify := &cobra.Command{
		Use:   "verify DIR",
		Short: "Check every file and key in the store of a stopped node",
		Long: `Read every file and every key of a store, verify the checksums, and name damage by file and offset. The command changes
nothing. The node that owns the store must be stopped. Exit code 1 means that something is damaged: do not start the node
on the store, see docs/runbooks/corrupt-store.md.`,
		Example: "  rhumb store verify /var/lib/rhumb\n  rhumb store verify ./my-demo/singapore-a -o json",
		Args:    cobra.ExactArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return verifyStore(s, args[0]) },
	}
	return commandGroup("store", "Check the data of a stopped node", verify)
}

// verifyDoc is the document of `store verify`.
type verifyDoc struct {
	// Dir is the directory that was checked.
	Dir string `json:"dir"`
	// Files, Bytes, Keys and Ranges are totals of the parts that were read.
	Files  int   `json:"files"`
	Bytes  int64 `json:"bytes"`
	Keys   int64 `json:"keys"`
	Ranges int   `json:"ranges"`
	// Faults are never nil, so that -o json prints [] for a sound store.
	Faults []output.Fault `json:"faults"`
}

// verifyStore checks the store in dir, prints the faults, and returns an error of kind Corrupt if there are any.
func verifyStore(s *session, dir string) error {
	const op rhumb.Op = "rhumb.store"
	r, err := storage.Verify(dir, nil)
	if err != nil {
		return err
	}
	doc := verifyDoc{Dir: dir, Files: r.Files, Bytes: r.Bytes, Keys: r.Keys, Ranges: r.Ranges, Faults: []output.Fault{}}
	for _, f := range r.Faults {
		doc.Faults = append(doc.Faults, output.Fault{File: f.File, Offset: f.Offset, What: f.What})
	}
	if err := s.Print(doc, func(t table.Writer) { output.AppendFaults(t, doc.Faults) }); err != nil {
		return err
	}
	s.Notef("checked %d files, %d bytes, %d keys of %d ranges", doc.Files, doc.Bytes, doc.Keys, doc.Ranges)
	// The report is printed in full before the error, which only sets the exit code.
	if len(doc.Faults) > 0 {
		return rhumb.Ef(op, rhumb.Corrupt, "%s in %s; do not start the node on it", output.Counted(len(doc.Faults), "fault", "faults"), dir)
	}
	return nil
}
