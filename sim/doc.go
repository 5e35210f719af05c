// Package sim runs a whole cluster in virtual time, driven by one seed. The host (node/host), the
// metadata group (raftmeta with etcd's Raft), the storage engine with Pebble, the leases and the
// hybrid clocks are the code of a real node. The network, the disks and the physical clocks are
// simulated and fail as real ones do. One seed always produces the same run, so every failure can
// be replayed with its trace.
//
// # The parts of a world
//
// A node gets a sched.Runtime whose timers, workers and waits are events of the world. Code that
// blocks runs as a process: a coroutine that the world resumes when the awaited channel is ready.
// One process runs at a time, so nothing depends on the Go scheduler. Raft and the engine draw from
// crypto/rand; the simulator replaces that source by one seeded from the run.
//
// The simulator replaces only a small part of package node (member.go): registering a life,
// following the metadata, reporting suspicions, and beginning a new life after the node was fenced.
// Connections (node/peer) and request routing are not simulated; streams between nodes are.
//
// # Sizes
//
// RunScale simulates a cluster of up to 81 nodes without load and with one death as its only fault, and counts
// its messages. It shares everything with the other runs except for the profile, which is fixed.
//
// # Faults
//
// The network delays, loses, repeats and reorders messages. Links are cut in one or both
// directions, and nodes are split into disjoint or overlapping groups. Some links lose everything
// in one direction without either side noticing.
//
// Disks are slow or stall, and a crash loses unsynced data: any number of the newest bytes of the
// log. Pebble writes to a file system in memory immediately. The world decides when a sync is
// answered, and a crash cuts the log anywhere after the last answer (storagetest.Disk). A disk can
// also run out of room for new work.
//
// Ranges are split in every third seed, on command and, in some, because they are large (split.go). A key belongs to its root for
// ever, which is one of the ranges that the table was created with, and the log of a range that was split off continues that of
// the old one: the judges compare both as one. A split must be completed or cancelled in the end.
//
// Monotonic clocks run at rates that differ within the bound that leases assume. Wall clocks are
// skewed and jump. Nodes crash, restart, crash again while starting, and pause; all nodes of a
// region go down together. Copies are moved, and nodes are decommissioned, and replaced for good
// (removal.go). In some seeds a region is removed with all its nodes (leaving.go), in some, one is lost for good
// and given up (forgood.go), and in some, dead nodes are replaced within
// seconds, and one node dies for so long that the second phase of its failover ends (standin.go). In a sixth of the seeds, one node runs an older build at first, which does not know
// some entries (older.go). The metadata group elects leaders, loses its majority and catches up.
//
// A crash may also damage the disk (damage.go): the disk returns to the state of an earlier life, a
// bit of the synced part of its log flips, the log ends before its synced end (detectably or not),
// or the directory of the ranges comes back empty. A replica that finds damage in its data is
// quarantined and later discarded (discard.go). In half of the seeds, chunks of copies of ranges are
// damaged on the way (transfer.go).
//
// In a sixth of the new seeds the table defers syncs (deferred.go). Crashes then keep everything that the operating system had. A fault of its
// own takes writes that one node had acknowledged and not synced: no more than were written within the window, and nobody may miss them.
//
// # Bounds of the faults
//
// A fault beyond the guarantees of the protocol would make a failed run meaningless. Therefore:
//
//   - At most one disk is damaged at a time, and only while min_in_sync is at least 2, the other
//     in-sync copies of its ranges are intact, and the metadata group has three voters that all
//     run. The next disk is damaged once this one again holds everything that it counts for.
//   - After damage that the node cannot detect, and after a roll-back to an older copy, no other
//     fault starts until the voter of the node takes part again.
//   - Half of the seeds are strict: nodes reject timestamps as real ones do, and only one clock of
//     the cluster is ever wrong, by seconds to an hour. In the other half all clocks jump and every
//     timestamp is accepted.
//   - A full disk rejects new work and completes accepted work (storage.DiskRefusing). A disk
//     without room even for accepted work blocks the passes of the host in real time, which is not
//     simulated.
//   - A region is lost for good only while the other voters of the metadata run and have all of it, the ranges that survive a region have enough
//     intact copies in sync elsewhere, and no disk is damaged. Until the metadata group has replaced the lost voters, no other fault begins.
//   - A node has one directory. A node whose every directory comes back empty is a new node, which
//     is not simulated.
//   - A connection ends with the life of either end, so no message of the metadata group outlives
//     the life of its sender.
//
// # A run
//
// Each run founds its cluster: one node bootstraps, the others join, and a table is created. Then
// clients put, patch, insert, delete, write conditionally and in batches, and read one or several
// keys. A client retries with the same request ID until it abandons the operation and records the
// outcome as unknown.
//
// In an eighth of the seeds the last node is a witness, which votes in the metadata group and must never hold a copy. In every eighth seed each
// step of each replica is checked against the guards of the model (conform.go).
//
// Each seed draws a cluster size, a set of fault kinds and small bounds (swarm testing: Groce et
// al., ISSTA 2012), so that rare paths such as fetching old log entries are common in some seeds.
//
// # Checks
//
// During the run check.Monitor asserts the invariants of the protocol after each step that could
// break one: host.Probe reports what each replica wants done, and after each event of a node its
// replicas are examined. Whenever a node learns that a range is closed up to a timestamp, it must
// hold everything up to there, and nothing may be committed at or below that timestamp later.
//
// After the last fault every range must serve, acknowledge writes, and every live replica must rejoin within
// LivenessMax, also those that have to copy a range because their part of the log is trimmed away.
// Then one more data path is cut, and its range must keep serving (rule-progress). In an eighth of
// the seeds the table survives the loss of a region, and a whole region is lost then: every range
// must keep serving, and be whole again after the return (region.go). A removal of a region that nobody cancels must be done, and in the
// second phase of a failover each range must get to the live node nearest to the dead one, and return to that later.
//
// At the end the histories of the clients must be linearizable, every acknowledged write must
// appear in the committed log exactly once, and the engines must hold exactly the state that the
// log produces.
//
// All nodes must have the same metadata at the same revision, and no generated name may be used
// twice. Data missing from a damaged disk must be on record, with file and offset or as a short
// life in the metadata, unless the damage is undetectable; an undamaged disk must lack nothing. A
// quarantined replica must not serve or be elected. A range whose in-sync set has too few intact
// members waits for an operator and is counted. A correct clock must not be driven ahead by a wrong
// one.
//
// # Planted bugs
//
// A Bug breaks one duty on purpose, in the world around the host or through host.Probe:
// acknowledging before the disk has the entry, reading without a lease, forgetting grants. A
// simulator that misses such a bug proves nothing, so the tests require that each is found. Some
// bugs are searched with a mix of faults of their own (plant.go); TestMixes runs those mixes
// without the bug. Where one rule hides the absence of another, both are left out, and the test
// states the expected failure.
//
// # Testing
//
// go test ./sim first runs testdata/seeds.txt, which holds every seed that ever exposed a problem
// and names the problem, then -sim.seeds new ones. -sim.seed N runs one seed with its trace.
package sim
