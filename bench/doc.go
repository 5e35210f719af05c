// Package bench measures Rhumb from the view of a client, interleaved with other databases in one
// run, and reports ratios, because absolute figures of a shared machine say little. Package load is
// the loop that drives both, package rounds takes turns between them, and bench/peers, a separate
// module, runs the other databases.
package bench
