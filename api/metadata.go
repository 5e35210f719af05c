package api

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Metadata is all metadata of the cluster at a revision, or the changes since the update before.
type Metadata struct {
	Revision uint64
	// Full reports that this is all metadata: anything not in it does not exist.
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

// partRangesMax bounds the ranges in one message of metadata. Each range has at most 2*ReplicasMax
// nodes, so a message stays far below rhumb.MessageSizeMax.
const partRangesMax = 1 << 16

// EncodeMetadata returns the messages for m: one, unless there are very many ranges. In all but the
// last, more is set.
func EncodeMetadata(m *Metadata) []*rhumbpb.Metadata {
	first := &rhumbpb.Metadata{
		Revision: m.Revision, Full: m.Full, Cluster: EncodeUUID(m.Cluster),
		Regions:       mapSlice(m.Regions, EncodeRegion),
		Nodes:         mapSlice(m.Nodes, EncodeNode),
		Classes:       mapSlice(m.Classes, EncodeClass),
		Tables:        mapSlice(m.Tables, EncodeTable),
		Blocks:        mapSlice(m.Blocks, EncodeBlock),
		RemovedNodes:  encodeNodes(m.RemovedNodes),
		RemovedTables: mapSlice(m.RemovedTables, func(t rhumb.TableID) uint32 { return uint32(t) }),
		RemovedRanges: mapSlice(m.RemovedRanges, EncodeRangeID),
	}
	parts := []*rhumbpb.Metadata{first}
	rest := mapSlice(m.Ranges, EncodeRange)
	// Only ranges are split, because only their number grows with the data.
	for len(rest) > partRangesMax {
		last := parts[len(parts)-1]
		last.Ranges, rest, last.More = rest[:partRangesMax], rest[partRangesMax:], true
		// Every part has the revision, so that the decoder can detect a missing or foreign part.
		parts = append(parts, &rhumbpb.Metadata{Revision: m.Revision, Full: m.Full, Cluster: first.Cluster})
	}
	parts[len(parts)-1].Ranges = rest
	return parts
}

// DecodeMetadata returns an update from its messages, in their order.
func DecodeMetadata(parts ...*rhumbpb.Metadata) (*Metadata, error) {
	const op rhumb.Op = "api.DecodeMetadata"
	out := &Metadata{}
	for i, m := range parts {
		if i == 0 {
			out.Revision, out.Full = m.GetRevision(), m.GetFull()
		}
		// A part that is missing, or that belongs to another update, must not go unnoticed: in a
		// full update, ranges that are left out do not exist.
		if m.GetRevision() != out.Revision || m.GetMore() != (i < len(parts)-1) {
			return nil, rhumb.Ef(op, rhumb.InvalidArgument, "part %d of %d at revision %d does not belong to revision %d", i, len(parts), m.GetRevision(), out.Revision)
		}
		if err := decodePart(out, m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// decodePart adds one message to out.
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
	// Appended, because an update may arrive in several messages.
	out.Regions = append(out.Regions, mapSlice(m.GetRegions(), DecodeRegion)...)
	out.Classes = append(out.Classes, mapSlice(m.GetClasses(), DecodeClass)...)
	out.Blocks = append(out.Blocks, mapSlice(m.GetBlocks(), DecodeBlock)...)
	out.Ranges = append(out.Ranges, mapSlice(m.GetRanges(), DecodeRange)...)
	out.RemovedNodes = append(out.RemovedNodes, decodeNodes(m.GetRemovedNodes())...)
	out.RemovedTables = append(out.RemovedTables, mapSlice(m.GetRemovedTables(), func(t uint32) rhumb.TableID { return rhumb.TableID(t) })...)
	out.RemovedRanges = append(out.RemovedRanges, mapSlice(m.GetRemovedRanges(), DecodeRangeID)...)
	return nil
}
