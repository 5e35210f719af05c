package access

import (
	"slices"
	"strings"
)

// Filter selects the names of one table that a principal may see. The zero value selects none.
//
// A scan filters by intervals instead of asking about each name. With the question per name, a user
// with one prefix in a table of a billion names would make the node read all of them, and the time
// of the scan would show how many others there are.
type Filter struct {
	all bool
	// prefixes is sorted, and no prefix begins with another one.
	prefixes []string
}

// All reports whether the filter selects every name.
func (f Filter) All() bool { return f.all }

// None reports whether the filter selects no name.
func (f Filter) None() bool { return !f.all && len(f.prefixes) == 0 }

// Allows reports whether the filter selects a name.
func (f Filter) Allows(name []byte) bool { return f.all || hasPrefixOf(f.prefixes, name) }

// Within returns the parts of a scan that the filter selects: a scan by each of the returned
// prefixes, one after the other, yields exactly the names that begin with prefix and are selected,
// in order. No name is yielded twice.
func (f Filter) Within(prefix []byte) [][]byte {
	if f.Allows(prefix) {
		return [][]byte{prefix}
	}
	// Prefixes that begin with the prefix of the scan follow each other.
	var parts [][]byte
	first, _ := slices.BinarySearch(f.prefixes, string(prefix))
	for _, p := range f.prefixes[first:] {
		if !strings.HasPrefix(p, string(prefix)) {
			break
		}
		parts = append(parts, []byte(p))
	}
	return parts
}

// hasPrefixOf reports whether name begins with one of the prefixes, which are sorted and of which
// none begins with another.
func hasPrefixOf(prefixes []string, name []byte) bool {
	// Everything between a prefix of name and name itself begins with that prefix. So if any of the
	// prefixes begins name, it is the last one that is not above name. The search is written out,
	// because slices.BinarySearchFunc would take a closure over name; the conversions here allocate
	// nothing.
	low, high := 0, len(prefixes)
	for low < high {
		mid := int(uint(low+high) >> 1)
		if prefixes[mid] <= string(name) {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low == 0 {
		return false
	}
	p := prefixes[low-1]
	return len(p) <= len(name) && p == string(name[:len(p)])
}

// minimizePrefixes sorts prefixes and removes each one that begins with another, since the shorter
// one selects its names already. It modifies its argument.
func minimizePrefixes(prefixes []string) []string {
	slices.Sort(prefixes)
	kept := prefixes[:0]
	for _, p := range prefixes {
		// A prefix sorts before everything that begins with it.
		if len(kept) == 0 || !strings.HasPrefix(p, kept[len(kept)-1]) {
			kept = append(kept, p)
		}
	}
	return kept
}
