package host

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Command returns the metadata command for a proposal of a replica on node self.
func Command(self rhumb.NodeID, p replica.MetaProposal) catalog.Command {
	switch p.Kind {
	case replica.AlterISR:
		c := catalog.AlterISR{Range: p.Range, Epoch: p.Epoch, Version: p.Version}
		for i, n := range p.New {
			c.Members = append(c.Members, catalog.Member{Node: n, Boot: p.Lives[i], Vouched: p.Vouched[i]})
		}
		return c
	case replica.ElectMe:
		return catalog.Elect{Range: p.Range, Version: p.Version, Node: self}
	case replica.ElectOther:
		return catalog.Elect{Range: p.Range, Version: p.Version, Node: p.Node}
	case replica.Yield:
		// A yielding primary names no heir. The metadata leader fills one in.
		return catalog.Elect{Range: p.Range, Version: p.Version}
	case replica.Quarantine:
		return catalog.QuarantineReplica{Range: p.Range, Node: p.Node, Epoch: p.Epoch}
	case replica.Adopt:
		return catalog.AdoptHandover{Range: p.Range, Epoch: p.Epoch, Boot: p.Lives[0]}
	case replica.Complete:
		return catalog.CompleteSplit{Range: p.Range, Epoch: p.Epoch}
	case replica.CancelSplit:
		return catalog.CancelSplit{Range: p.Range, Epoch: p.Epoch, Version: p.Version}
	case replica.CancelMerge:
		return catalog.CancelMerge{Range: p.Range, Epoch: p.Epoch, Version: p.Version}
	case replica.CompleteMerge:
		return catalog.CompleteMerge{Range: p.Range, Epoch: p.Epoch, Merge: p.Version}
	case replica.Readmit:
		return catalog.ReadmitReplica{Range: p.Range, Node: p.Node, Epoch: p.Epoch}
	}
	panic(fmt.Sprintf("host: unknown proposal %s", p.Kind))
}
