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
		s.connected((&rangeCommands{s}).recoverRangeCommand()), s.connected((&operationCommands{session: s}).recoverRegionCommand()), (&metadataRecovery{s}).recoverMetadataCommand())
}

// metadataRecovery is `rhumb unsafe-recover metadata`, which works on the directories of a stopped
// node.
type metadataRecovery struct{ *session }

// recoverMetadataCommand returns `rhumb unsafe-recover metadata`. Its flags name directories: a connection would need the
// metadata that is lost.
func (mr *metadataRecovery) recoverMetadataCommand() *cobra.Command {
	var dirs []string
	var yes, show bool
	metadata := &cobra.Command{
		Use:   "metadata --dir DIR [--yes | --show]",
		Short: "Make one survivor the only voter of the metadata after most voters are lost for good",
		Long: `Make one stopped node the only voter of the metadata. The command is for clusters in which most voters are lost for good, so
that no table can be created and no range can fail over. What only the lost voters had is lost: possibly the last changes to
tables, nodes and primaries.

Never use it while a lost voter may return: there would be two clusters. Remove the directories of the lost nodes first.

  1. Stop every node that survived.
  2. Run this command with --show on each of them. Choose the one with the highest term, and among equals the one with the
     highest last index.
  3. Run it there without --show, and start that node. Then start the other survivors: they adopt its metadata.

The records of tables are not changed. A range is served again when a member of its in-sync set is up and reaches as many
others as its class requires. See docs/runbooks/metadata-lost.md.`,
		Example: `  rhumb unsafe-recover metadata --dir /var/lib/rhumb --show
  rhumb unsafe-recover metadata --dir /var/lib/rhumb
  rhumb unsafe-recover metadata --dir /disk0/rhumb --dir /disk1/rhumb --yes -o json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return mr.recoverMetadata(dirs, yes, show) },
	}
	fl := metadata.Flags()
	fl.StringSliceVar(&dirs, "dir", nil, "data directory of the stopped node; repeat the flag for all its directories, in their order")
	fl.BoolVar(&yes, "yes", false, "do not ask for confirmation")
	fl.BoolVar(&show, "show", false, "show what the node holds and change nothing")
	must(metadata.MarkFlagRequired("dir"))
	metadata.MarkFlagsMutuallyExclusive("yes", "show")
	return metadata
}

// recoverDoc is the document of `unsafe-recover metadata`. Nodes have the names that all other commands print.
type recoverDoc struct {
	raftmeta.Survivor
	Node      string        `json:"node"`
	Voters    []string      `json:"voters"`
	Recovered *recoveredDoc `json:"recovered,omitempty"`
	// Recover is true if the node was made the only voter.
	Recover bool `json:"recover"`
}

// recoveredDoc is the last recovery in a recoverDoc.
type recoveredDoc struct {
	*raftmeta.Recovery
	Lost []string `json:"lost"`
}

// newRecoverDoc returns the document of a survivor.
func newRecoverDoc(s raftmeta.Survivor, recovered bool) recoverDoc {
	doc := recoverDoc{Survivor: s, Node: s.Node.String(), Voters: nodeNames(s.Voters), Recover: recovered}
	if s.Recovered != nil {
		doc.Recovered = &recoveredDoc{s.Recovered, nodeNames(s.Recovered.Lost)}
	}
	return doc
}

// recoverMetadata prints the state of the node in dirs and, unless show is set, makes the node the only voter after a
// confirmation.
func (mr *metadataRecovery) recoverMetadata(dirs []string, yes, show bool) error {
	const op rhumb.Op = "rhumb.recover"
	// Opening a directory creates a store in it, so a misspelt one has to be caught first.
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "STORE")); err != nil {
			return rhumb.Ef(op, rhumb.NotFound, "%s is not the data directory of a node: %v", dir, err)
		}
	}
	s, err := node.InspectMetadata(dirs)
	if err != nil {
		return err
	}
	// With --show the command may run on every survivor.
	if show {
		return mr.printSurvivor(newRecoverDoc(s, false))
	}
	// With --yes the survivor is printed afterwards, as the one document of the command.
	if !yes {
		if err := mr.printSurvivor(newRecoverDoc(s, false)); err != nil {
			return err
		}
		if !mr.confirmRecovery(s) {
			return rhumb.E(op, rhumb.InvalidArgument, "nothing was changed: the recovery was not confirmed")
		}
	}
	if s, err = node.RecoverMetadata(dirs); err != nil {
		return err
	}
	mr.Notef("Node %s is the only voter of the metadata now. Start it, and then the other survivors.", s.Node)
	if yes {
		return mr.printSurvivor(newRecoverDoc(s, true))
	}
	return nil
}

// confirmRecovery asks for the name of the node rather than for "yes", so that nobody confirms by
// habit.
func (mr *metadataRecovery) confirmRecovery(s raftmeta.Survivor) bool {
	mr.Notef("The voters %s are given up for good. What only they had cannot be restored.", namesOf(otherVoters(s)))
	return mr.askFor(fmt.Sprintf("Type %s to make it the only voter: ", s.Node)) == s.Node.String()
}

// otherVoters returns the voters without the survivor.
func otherVoters(s raftmeta.Survivor) []rhumb.NodeID {
	return slices.DeleteFunc(slices.Clone(s.Voters), func(id rhumb.NodeID) bool { return id == s.Node })
}

// namesOf returns a list of nodes for people, and "none" for an empty one.
func namesOf(ids []rhumb.NodeID) string {
	return cmp.Or(strings.Join(nodeNames(ids), ", "), "none")
}

// printSurvivor prints the metadata of a survivor. The rows of term and index are those by which operators compare survivors.
func (mr *metadataRecovery) printSurvivor(doc recoverDoc) error {
	return mr.Print(doc, func(t table.Writer) {
		t.AppendRow(table.Row{"node", doc.Node})
		t.AppendRow(table.Row{"log ends", fmt.Sprintf("term %d, index %d; known to be committed up to %d", doc.Term, doc.Last, doc.Commit)})
		t.AppendRow(table.Row{"catalog", fmt.Sprintf("revision %d, %d nodes", doc.Revision, len(doc.Nodes))})
		t.AppendRow(table.Row{"voters", namesOf(doc.Survivor.Voters)})
		t.AppendRow(table.Row{"given up", namesOf(otherVoters(doc.Survivor))})
		// The other voters are listed with their addresses, so that the operator can make sure that they are gone.
		for _, n := range doc.Nodes {
			if slices.Contains(doc.Survivor.Voters, n.ID) && n.ID != doc.Survivor.Node {
				t.AppendRow(table.Row{"", fmt.Sprintf("%s in zone %s at %s, last seen %s", n.ID, n.Zone, n.Addr, n.State)})
			}
		}
		if doc.Short {
			t.AppendRow(table.Row{"damage", "this replica lacks entries that it had stored; prefer another survivor"})
		}
		if r := doc.Survivor.Recovered; r != nil {
			t.AppendRow(table.Row{"recovered", fmt.Sprintf("%s, after index %d of term %d; given up: %s", r.At.Format("2006-01-02 15:04:05 MST"), r.Last, r.Term, namesOf(r.Lost))})
		}
		t.AppendRow(table.Row{"may be lost", "entries of other survivors with a higher term or, in the same term, a higher index; entries that only the lost voters had"})
	})
}
