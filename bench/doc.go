// Package bench measures Rhumb from the view of a client, interleaved with other databases in one
// run, and reports ratios, because absolute figures of a shared machine say little. Package load is
// the loop that drives both, package rounds takes turns between them, and bench/peers, a separate
// module, runs the other databases.
//
// # Clusters under measurement
//
// A Cluster is `rhumb demo` in a process of its own, with its nodes as further processes: the processor
// time, the memory and the death of a node are those of a real one. Faults are signals, links that the
// demo cuts, and disks that can be stopped (package disk). Measurements that must start a node at a time
// of their own note how the demo started it (nodeProcesses).
//
// # Measurements
//
// RunKV measures operations and workloads next to a peer, RunRecovery the restart of a node with many
// records, RunFailover deaths and restarts of a whole cluster, RunStall and RunAdversity faults under a
// constant load, RunOverload more callers than a cluster can serve, RunGrowth splits, and RunTransfer and
// RunBalance copies between nodes. Each returns a report of plain data with the units in its names.
package bench
