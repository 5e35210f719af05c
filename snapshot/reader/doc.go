// Package reader reads the image that a node publishes in shared memory, from any process of the machine: no system call,
// no copy and no word to the publisher on the way of a read. It also reads an image that was saved to a disk.
//
//	c, err := reader.Attach("/dev/shm/rhumb/7f…/n3", reader.Options{})
//	…
//	v, err := c.Lock()
//	defer v.Unlock()
//	cars, err := v.Table("cars")
//	item, err := cars.GetUint64(42)
//	use(item.Value) // valid until v.Unlock
//
// # Views
//
// A Client maps an image. A View is the image at one version: whatever is committed later, every read of a view gives what
// was visible when the view was locked, in all tables and shards. What reads return lies in the mapped memory itself; it
// stays unchanged and mapped until the view is unlocked, and must not be used after that. A view that was unlocked
// refuses reads; so does one older than Options.MaxLockAge, with kind Expired, since it pins memory of the whole machine.
//
// # Invariants
//
//   - Nothing is ever written to the image.
//   - A mapping is undone only when it is not current and no view holds it: each locked view publishes in its slot what it
//     holds, and looks again whether that is still current before it relies on it (M. Michael, Hazard Pointers, IEEE TPDS
//     15(6), 2004).
//   - A view's version V lies between the base of every generation it holds and the last commit that went to these
//     generations, because committed is read before table_seq, and table_seq shows that no later generation took commits.
//   - What the header promises is checked when a generation is mapped; every reference, length and number found behind it
//     is compared with the end of its section before it is followed, so that damage gives kind Corrupt and never a fault.
//
// # Concurrency
//
// A Client may be used by any number of goroutines. A View may too, but whoever unlocks it must know that no read of it is
// under way. Lock and Unlock write one cache line that is not shared with other views; reads write nothing.
//
// # Testing
//
// The tests compare every kind of read with a model or with brute force over images that the publisher wrote, and damaged
// images with no expectation but that nothing faults.
package reader
