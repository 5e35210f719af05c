package segment

// Fetches is a group of records whose memory is requested together.
type Fetches struct {
	reads, writes [GroupSize]uintptr
	n             int
}

// Len returns how many records were added since the last Wait or Start. A group has GroupSize at most.
func (f *Fetches) Len() int { return f.n }

// AddRead adds a record that is to be read.
func (f *Fetches) AddRead(heap Heap, ref uint32) {
	f.reads[f.n] = heap.Address(ref)
	f.n++
}

// AddCopy adds a record that is to be copied from one heap to another.
func (f *Fetches) AddCopy(from Heap, ref uint32, to Heap, at uint32) {
	f.reads[f.n], f.writes[f.n] = from.Address(ref), to.Address(at)
	f.n++
}

// Wait loads the first line of each record that is to be read, all at the same time.
func (f *Fetches) Wait() {
	prefetch(&f.reads, f.n)
	f.n = 0
}

// Start requests the first two lines of every source and destination and does not wait for them.
func (f *Fetches) Start() {
	prefetchPairs(&f.reads, f.n)
	prefetchPairs(&f.writes, f.n)
	f.n = 0
}
