package reader

// ForcePortable leaves the assembly out until the function that it gives is called.
func ForcePortable() (restore func()) {
	old := hasKernel
	hasKernel = false
	return func() { hasKernel = old }
}

// Look runs the watch at once.
func (c *Client) Look() { c.watchOnce() }

// TrustLengths lets first looks find records up to the end of the heap, which in the small images of tests is always near.
func (t *Table) TrustLengths() {
	for i, g := range t.t.segments {
		t.t.lanes[i].units = uint64(g.units)
	}
}

// Hidden returns how many of some names, at most 32, MultiGet finds a newer version of than the view shows.
func (t *Table) Hidden(names [][]byte) int {
	var q group
	for i, name := range names {
		q.hashes[i], _ = t.hashName(name)
	}
	q.locateRecords(len(names), t.t.lanes)
	q.fetchHidden(t, len(names))
	return q.lates
}

// IsPlain reports whether a first look finds a key.
func (t *Table) IsPlain(number uint64) bool {
	_, l := t.firstLook(number)
	return l != nil
}
