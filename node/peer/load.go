package peer

import (
	"cmp"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// NodeLoad is the size, in bytes, of the data of each class that a node orders the writes of. A class that is left out
// is 0.
type NodeLoad map[rhumb.ClassID]int64

// loadClassesMax bounds the classes of which a heartbeat tells: the greatest.
const loadClassesMax = 64

func loadToPB(l NodeLoad) *rhumbpb.NodeLoad {
	p := &rhumbpb.NodeLoad{}
	for class, bytes := range l {
		p.Classes = append(p.Classes, &rhumbpb.ClassLoad{Class: uint32(class), Bytes: bytes})
	}
	if len(p.Classes) > loadClassesMax {
		slices.SortFunc(p.Classes, func(a, b *rhumbpb.ClassLoad) int { return cmp.Compare(b.Bytes, a.Bytes) })
		p.Classes = p.Classes[:loadClassesMax]
	}
	return p
}

// loadFromPB leaves out what no node would send.
func loadFromPB(p *rhumbpb.NodeLoad) NodeLoad {
	l := NodeLoad{}
	for _, c := range p.Classes[:min(len(p.Classes), loadClassesMax)] {
		if c.GetBytes() >= 0 {
			l[rhumb.ClassID(c.GetClass())] = c.GetBytes()
		}
	}
	return l
}
