package reader

// locate finds the likely record of the first n hashes: by the assembly kernel where there is one, which prefetches, and
// in plain Go elsewhere. Build with the tag purego to leave the assembly out.
func (q *group) locate(n int, lanes []lane) {
	if !hasKernel {
		q.locatePortable(n, lanes)
		return
	}
	locateKernel(&q.hashes[0], n, &lanes[0], uint64(len(lanes)-1), &q.records[0])
}
