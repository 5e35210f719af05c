package api

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Metadata is the whole of the cluster's metadata at a revision, or what changed since the update before.
type Metadata struct {
	Revision uint64
	// Full says that this is the whole: what is not in it does not exist.
	Full    bool
	Cluster rhumb.ClusterID
	Regions []rhumb.Region
	Nodes   []rhumb.Node
	Classes []rhumb.Class
	Tables  []rhumb.Table
	Blocks  []rhumb.Block
	Ranges  []*rhumb.Range

	RemovedNodes  []rhumb.NodeID
	RemovedTables []rhumb.TableID
	RemovedRanges []rhumb.RangeID
}

// partRangesMax bounds the ranges of one message of metadata; with at most 2*ReplicasMax nodes each that is far below
// rhumb.MessageSizeMax.
const partRangesMax = 1 << 16

// EncodeMetadata makes the messages that carry m: one, unless there are very many ranges. All but the last say more.
func EncodeMetadata(m *Metadata) []*rhumbpb.Metadata {
	first := &rhumbpb.Metadata{
		Revision: m.Revision, Full: m.Full, Cluster: EncodeUUID(m.Cluster),
		Regions:       convert(m.Regions, EncodeRegion),
		Nodes:         convert(m.Nodes, EncodeNode),
		Classes:       convert(m.Classes, EncodeClass),
		Tables:        convert(m.Tables, EncodeTable),
		Blocks:        convert(m.Blocks, EncodeBlock),
		RemovedNodes:  encodeNodes(m.RemovedNodes),
		RemovedTables: convert(m.RemovedTables, func(t rhumb.TableID) uint32 { return uint32(t) }),
		RemovedRanges: convert(m.RemovedRanges, EncodeRangeID),
	}
	parts := []*rhumbpb.Metadata{first}
	rest := convert(m.Ranges, EncodeRange)
	for len(rest) > partRangesMax {
		last := parts[len(parts)-1]
		last.Ranges, rest, last.More = rest[:partRangesMax], rest[partRangesMax:], true
		parts = append(parts, &rhumbpb.Metadata{Revision: m.Revision, Full: m.Full, Cluster: first.Cluster})
	}
	parts[len(parts)-1].Ranges = rest
	return parts
}

// DecodeMetadata reads the parts of one update, in their order.
func DecodeMetadata(parts ...*rhumbpb.Metadata) (*Metadata, error) {
	const op rhumb.Op = "api.DecodeMetadata"
	out := &Metadata{}
	for i, m := range parts {
		if i == 0 {
			out.Revision, out.Full = m.GetRevision(), m.GetFull()
		}
		if m.GetRevision() != out.Revision || m.GetMore() != (i < len(parts)-1) {
			return nil, rhumb.Ef(op, rhumb.InvalidArgument, "part %d of %d at revision %d does not belong to revision %d", i, len(parts), m.GetRevision(), out.Revision)
		}
		if err := decodePart(out, m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func decodePart(out *Metadata, m *rhumbpb.Metadata) (err error) {
	if out.Cluster, err = DecodeUUID(m.GetCluster()); err != nil {
		return err
	}
	for _, n := range m.GetNodes() {
		node, err := DecodeNode(n)
		if err != nil {
			return err
		}
		out.Nodes = append(out.Nodes, node)
	}
	for _, t := range m.GetTables() {
		table, err := DecodeTable(t)
		if err != nil {
			return err
		}
		out.Tables = append(out.Tables, table)
	}
	out.Regions = append(out.Regions, convert(m.GetRegions(), DecodeRegion)...)
	out.Classes = append(out.Classes, convert(m.GetClasses(), DecodeClass)...)
	out.Blocks = append(out.Blocks, convert(m.GetBlocks(), DecodeBlock)...)
	out.Ranges = append(out.Ranges, convert(m.GetRanges(), DecodeRange)...)
	out.RemovedNodes = append(out.RemovedNodes, decodeNodes(m.GetRemovedNodes())...)
	out.RemovedTables = append(out.RemovedTables, convert(m.GetRemovedTables(), func(t uint32) rhumb.TableID { return rhumb.TableID(t) })...)
	out.RemovedRanges = append(out.RemovedRanges, convert(m.GetRemovedRanges(), DecodeRangeID)...)
	return nil
}
