package place

import (
	"cmp"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// SplitsMax bounds the splits that one node has under way. Each makes the writes to half of a range wait for two commits.
const SplitsMax = 2

// SplitBytes returns the size above which ranges are split.
func SplitBytes(s *catalog.State) int64 {
	if n, err := rhumb.ParseBytes(s.Setting(rhumb.SettingRangeSplitBytes)); err == nil {
		return n
	}
	return rhumb.RangeSplitBytesDefault
}

// Splits returns the ranges that a node should split now, the largest first: those whose primary it is, that are larger
// than the limit and have more than one slot. Each primary decides about its own ranges, because it knows their sizes. What
// would be refused anyway is left out.
func Splits(s *catalog.State, self rhumb.NodeID, limit int64, size func(rhumb.RangeID) int64) []*rhumb.Range {
	if !s.Has(rhumb.FeatureSplit) || limit <= 0 {
		return nil
	}
	type candidate struct {
		r     *rhumb.Range
		bytes int64
	}
	var large []candidate
	room := SplitsMax
	for r := range s.Ranges() {
		if r.Primary != self {
			continue
		}
		if r.Birth != 0 {
			room--
			continue
		}
		class, ok := s.Class(r.Class)
		_, splits := s.ReservedIn(r)
		if !ok || class.Dropping || splits || r.IsMerging() || r.Prepared != nil || len(r.Leaving) > 0 || r.LastSlot() == r.ID.Slot {
			continue
		}
		if n := size(r.ID); n > limit {
			large = append(large, candidate{r, n})
		}
	}
	slices.SortStableFunc(large, func(a, b candidate) int { return cmp.Compare(b.bytes, a.bytes) })
	var out []*rhumb.Range
	for _, c := range large[:min(len(large), max(room, 0))] {
		out = append(out, c.r)
	}
	return out
}
