package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node"
	"github.com/rhumbdb/rhumb/raftmeta"
)

// unsafeRecoverCommand groups the ways to continue after a loss.
func unsafeRecoverCommand(s *session) *cobra.Command {
	return commandGroup("unsafe-recover", "Accept losses that nothing can undo",
		s.connected((&rangeCommands{s}).recoverRangeCommand()), (&metadataRecovery{s}).recoverMetadataCommand())
}

// metadataRecovery is `rhumb unsafe-recover metadata`, which works on the directories of a stopped node.
type metadataRecovery struct{ *session }

func (mr *metadataRecovery) recoverMetadataCommand() *cobra.Command {
	var dirs []string
	var yes, show bool
	metadata := &cobra.Command{
		Use:   "metadata --dir DIR [--yes | --show]",
		Short: "Make one survivor the only voter of the metadata, when most voters are lost for good",
		Long: `Make the metadata of one stopped node the only voter, when most of the voters are lost for good and no table can be
created or moved any more. What only the lost voters had is lost. It may be the last changes to tables, nodes or primaries.

Never use it while a lost voter may come back: then there would be two clusters. Remove the directories of the lost nodes first.

  1. Stop every node that survived.
  2. Run this command with --show on each of them. Choose the one with the greatest term, and among equals the greatest
     last index.
  3. Run it there without --show, and start that node. Then start the other survivors: they take over its metadata.

The records of tables are not touched. A range is served again when a member of its in-sync set is up and reaches as many
others as its class asks for. See docs/runbooks/metadata-lost.md.`,
		Example: `  rhumb unsafe-recover metadata --dir /var/lib/rhumb --show
  rhumb unsafe-recover metadata --dir /var/lib/rhumb
  rhumb unsafe-recover metadata --dir /disk0/rhumb --dir /disk1/rhumb --yes -o json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return mr.recoverMetadata(dirs, yes, show) },
	}
	fl := metadata.Flags()
	fl.StringSliceVar(&dirs, "dir", nil, "data directory of the stopped node; name all that it has, in their order")
	fl.BoolVar(&yes, "yes", false, "do not ask")
	fl.BoolVar(&show, "show", false, "show what the node holds, and change nothing")
	must(metadata.MarkFlagRequired("dir"))
	metadata.MarkFlagsMutuallyExclusive("yes", "show")
	return metadata
}

// recoverDoc is the document of `unsafe-recover metadata`.
type recoverDoc struct {
	raftmeta.Survivor
	// Recover is true when the node was made the only voter.
	Recover bool `json:"recover"`
}

func (mr *metadataRecovery) recoverMetadata(dirs []string, yes, show bool) error {
	const op rhumb.Op = "rhumb.recover"
	for _, dir := range dirs { // opening would make a store of a directory that is misspelt
		if _, err := os.Stat(filepath.Join(dir, "STORE")); err != nil {
			return rhumb.Ef(op, rhumb.NotFound, "%s is not the directory of a node: %v", dir, err)
		}
	}
	s, err := node.InspectMetadata(dirs)
	if err != nil {
		return err
	}
	if show {
		return mr.printSurvivor(recoverDoc{Survivor: s})
	}
	if !yes {
		if err := mr.printSurvivor(recoverDoc{Survivor: s}); err != nil {
			return err
		}
		if !mr.agreed(s) {
			return rhumb.E(op, rhumb.InvalidArgument, "not confirmed; nothing was changed")
		}
	}
	if s, err = node.RecoverMetadata(dirs); err != nil {
		return err
	}
	mr.Notef("node %s is the only voter of the metadata now. Start it, and then the other survivors.", s.Node)
	if yes {
		return mr.printSurvivor(recoverDoc{s, true})
	}
	return nil
}

// agreed asks for the node's name, so that nobody agrees by habit.
func (mr *metadataRecovery) agreed(s raftmeta.Survivor) bool {
	mr.Notef("The voters %s are given up for good. Nothing brings back what only they had.", namesOf(others(s)))
	return mr.askFor(fmt.Sprintf("Type %s to make it the only voter: ", s.Node)) == s.Node.String()
}

// others returns the voters but for the survivor.
func others(s raftmeta.Survivor) []rhumb.NodeID {
	return slices.DeleteFunc(slices.Clone(s.Voters), func(id rhumb.NodeID) bool { return id == s.Node })
}

func namesOf(ids []rhumb.NodeID) string {
	return cmp.Or(strings.Join(nodeNames(ids), ", "), "none")
}

func (mr *metadataRecovery) printSurvivor(doc recoverDoc) error {
	return mr.Print(doc, func(t table.Writer) {
		t.AppendRow(table.Row{"node", doc.Node})
		t.AppendRow(table.Row{"log ends", fmt.Sprintf("term %d, index %d; known as decided up to %d", doc.Term, doc.Last, doc.Commit)})
		t.AppendRow(table.Row{"catalog", fmt.Sprintf("revision %d, %d nodes", doc.Revision, len(doc.Nodes))})
		t.AppendRow(table.Row{"voters", namesOf(doc.Voters)})
		t.AppendRow(table.Row{"given up", namesOf(others(doc.Survivor))})
		for _, n := range doc.Nodes {
			if slices.Contains(doc.Voters, n.ID) && n.ID != doc.Node {
				t.AppendRow(table.Row{"", fmt.Sprintf("%s in zone %s at %s, last seen %s", n.ID, n.Zone, n.Addr, n.State)})
			}
		}
		if doc.Short {
			t.AppendRow(table.Row{"damage", "this replica lacks entries that it had made durable; prefer another survivor"})
		}
		if r := doc.Recovered; r != nil {
			t.AppendRow(table.Row{"recovered", fmt.Sprintf("%s, after index %d of term %d; given up: %s", r.At.Format("2006-01-02 15:04:05 MST"), r.Last, r.Term, namesOf(r.Lost))})
		}
		t.AppendRow(table.Row{"may be lost", "what another survivor has with a greater term, or in the same term behind this index, and what only the lost voters had"})
	})
}
