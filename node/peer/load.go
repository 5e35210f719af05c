package peer

import (
	"cmp"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// NodeLoad holds, for each class, the size in bytes of the data for which a node is primary. A
// missing class has size 0.
type NodeLoad map[rhumb.ClassID]int64

// loadClassesMax bounds the number of classes in a heartbeat.
const loadClassesMax = 64

// loadToPB encodes a load.
func loadToPB(l NodeLoad) *rhumbpb.NodeLoad {
	p := &rhumbpb.NodeLoad{}
	for class, bytes := range l {
		p.Classes = append(p.Classes, &rhumbpb.ClassLoad{Class: uint32(class), Bytes: bytes})
	}
	if len(p.Classes) > loadClassesMax {
		// The largest classes are kept, since they decide whether a node is overloaded.
		slices.SortFunc(p.Classes, func(a, b *rhumbpb.ClassLoad) int { return cmp.Compare(b.Bytes, a.Bytes) })
		p.Classes = p.Classes[:loadClassesMax]
	}
	return p
}

// loadFromPB decodes a load and ignores values that no node sends.
func loadFromPB(p *rhumbpb.NodeLoad) NodeLoad {
	l := NodeLoad{}
	for _, c := range p.Classes[:min(len(p.Classes), loadClassesMax)] {
		// A negative size would make the node look like the least loaded one.
		if c.GetBytes() >= 0 {
			l[rhumb.ClassID(c.GetClass())] = c.GetBytes()
		}
	}
	return l
}
