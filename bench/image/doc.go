// Package image measures the snapshot tier: the cost of reading an image in shared memory, the cost
// of making changes visible, and how both compare with the physical limit of the memory, with other
// layouts and with other stores.
//
// Absolute figures of a shared machine say little, so everything is a ratio within one run. Each
// counterpart is a process, or a part of one, that alternates with the others in short turns, and a
// ratio is the median of the ratios of single rounds. Costs are processor time of the working
// thread, except for visibility and scale-up, where elapsed time matters. The report includes the
// processor time that other processes used during the run.
//
// The image holds road segments of package bench/roads under shuffled 64-bit keys. A record has 128
// bytes: 24 of header, 16 of box and 84 of value. Every client reads all keys in an order of its
// own, as the authors of TrafficDB do ("each client should query for the locations in a random
// order"), and every read reads the whole value.
//
// Workers are processes that execute the cases they receive on standard input. One kind is the C
// program in directory c; the other kind is this package (see Serve).
package image
