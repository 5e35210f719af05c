// Package bench measures Rhumb as a client sees it, side by side with other databases in one interleaved run, and reports
// ratios: absolute figures of a shared machine say little. Package load is the loop that drives both; bench/peers, a module
// of its own, runs the others.
package bench
