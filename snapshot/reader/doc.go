// Package reader reads the image that a node publishes in shared memory, from any process of the
// machine. A read makes no system call, copies nothing, and exchanges no message with the
// publisher. The package also reads an image that was saved to a disk.
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
// A Client maps an image. A View is the image at one version: whatever is committed later, every
// read of a view returns the state at the moment when the view was locked, in all tables and
// shards. Results point into the mapped memory. They stay unchanged and mapped until the view is
// unlocked, and must not be used after that. An unlocked view rejects reads. So does a view that is
// older than Options.MaxLockAge, with kind Expired, because it pins memory of the whole machine.
//
// # Where to look
//
// A get of a number begins with Table.firstLook (table.go), which finds nearly every record. If it
// does not, Table.findKey follows. Multi-gets (multi.go) do the same for groups of keys, by a
// kernel in assembly (kernel.go). Queries by place are in query.go, scans in scan.go. Locking a
// view is in lock.go, mapping generations in holding.go.
//
// # Invariants
//
//   - Nothing is ever written to the image.
//   - A file is unmapped only if it is not current and no view holds it. Each locked view publishes
//     its holding in its slot, and checks again that the holding is still current before it relies
//     on it (M. Michael, Hazard Pointers, IEEE TPDS 15(6), 2004).
//   - A view's version V is at least the base of every generation that the view holds, and at most
//     the last commit that went to these generations: committed is read before table_seq, and
//     table_seq shows that no later generation had taken commits.
//   - The header is checked when a generation is mapped. Every reference, length and number read
//     later is compared with the end of its section before it is followed, so that damage becomes
//     an error of kind Corrupt and never a fault.
//
// # Concurrency
//
// Any number of goroutines may use a Client. They may share a View too, but the caller of Unlock
// must know that no read of the view is in progress. Lock and Unlock write one cache line that no
// other view shares; reads write nothing.
//
// # Testing
//
// The tests compare every kind of read with a model or with brute force, over images that the
// publisher wrote. They read damaged images too, and then expect only that nothing faults.
package reader
