package rhumb

import (
	"encoding/json"
	"slices"
	"strings"
)

// RegionSet is a set of regions by name. Its text has the names in ascending order, separated by commas, so
// that equal sets are equal values: ClassSettings is comparable. The empty set means every region.
type RegionSet string

// NewRegionSet returns the set of the given names.
func NewRegionSet(names ...string) RegionSet {
	set := slices.Clone(names)
	slices.Sort(set)
	return RegionSet(strings.Join(slices.Compact(set), ","))
}

// ParseRegionSet parses names that are separated by commas, in any order, with or without spaces.
func ParseRegionSet(text string) (RegionSet, error) {
	if strings.TrimSpace(text) == "" {
		return "", nil
	}
	names := strings.Split(text, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	s := NewRegionSet(names...)
	return s, s.Validate()
}

// Names returns the names in ascending order, or nil for every region.
func (s RegionSet) Names() []string {
	if s == "" {
		return nil
	}
	return strings.Split(string(s), ",")
}

// Has reports whether the set has a region. The empty set has every region.
func (s RegionSet) Has(name string) bool { return s == "" || slices.Contains(s.Names(), name) }

// Validate rejects a text that is not the one of a set.
func (s RegionSet) Validate() error {
	const op Op = "rhumb.RegionSet"
	// The text comes from other programs and from disks too.
	names := s.Names()
	if len(names) > RegionsMax {
		return Ef(op, TooLarge, "%d regions are named; the limit is %d", len(names), RegionsMax)
	}
	for i, n := range names {
		if n == "" || i > 0 && names[i-1] >= n {
			return Ef(op, InvalidArgument, "the regions %q are not a list of different names in ascending order", string(s))
		}
	}
	return nil
}

// MarshalJSON writes the set as a list.
func (s RegionSet) MarshalJSON() ([]byte, error) { return json.Marshal(s.Names()) }

// UnmarshalJSON reads a list.
func (s *RegionSet) UnmarshalJSON(b []byte) error {
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		return Wrap("rhumb.RegionSet", err)
	}
	*s = NewRegionSet(names...)
	return nil
}
