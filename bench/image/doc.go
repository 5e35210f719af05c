// Package image measures the snapshot tier: what reading an image in shared memory costs, what making changes visible
// costs, and how both compare with the physical limit of the memory, with other layouts and with other stores.
//
// Absolute figures of a shared machine say little, so everything is a ratio taken inside one run: each counterpart is a
// process or a part of one that takes short turns with the others, and a ratio is the median of the ratios of single
// rounds. Costs are processor time of the thread that does the work, except where elapsed time is the point: visibility
// and scale-up. The processor time that others used meanwhile is reported with the result.
//
// The image holds road segments of package bench/roads under shuffled 64-bit keys, 128 bytes a record: 24 of head, 16 of
// box and 84 of value. Every client asks for all keys in an order of its own (as TrafficDB's authors do: "each client
// should query for the locations in a random order"), and every read reads the whole value.
//
// Workers are processes that carry out what they are told on their standard input. One kind is the C program in folder c;
// the other is this package again: see Serve.
package image
