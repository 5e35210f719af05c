// Package sim runs a whole cluster in virtual time, from one seed: the host (node/host), the metadata group (raftmeta with
// etcd's Raft), the storage engine with Pebble below it, the leases and the hybrid clocks are those of a real node. The
// network, the disks and the clocks below them are simulated and misbehave as real ones do. One seed always gives the same
// run, so every failure can be played again with its trace.
//
// # What is simulated, and what is not
//
// A node gets a sched.Runtime whose timers, workers and waits are events of the world. Code that blocks runs as a process: a
// coroutine that the world resumes when what it waits for is there. One of them runs at a time, so nothing depends on the
// scheduler of Go. What Raft and the engine draw from crypto/rand comes from the seed.
//
// The part of package node that this package replaces is small (member.go): it registers a life, follows the metadata,
// reports suspicions and begins a new life when the node was fenced. Connections (node/peer) and request routing are not
// simulated; streams between nodes are.
//
// # World
//
// The network delays, loses, repeats and reorders messages, is cut in one or both directions, splits the nodes into
// parts that overlap or not. Disks are slow, stall, and lose what was not synced when their node crashes: any number of
// the newest bytes of the log. Pebble writes to a file system in memory at once; the world decides when a sync is answered,
// and a crash cuts the log anywhere behind the last answer (storagetest.Disk). Clocks of nodes run at rates that differ
// within the bound that leases assume; wall clocks are skewed and jump. Nodes crash, restart, restart at once again, and
// are paused; all nodes of a region die for a while. Links lose everything in one direction, and nobody is told. Disks have no
// room for new work. The metadata group elects, loses its majority and catches up by itself.
//
// The disk of a node that was killed is damaged (damage.go): it becomes what it was a life earlier, a bit of the synced part of
// its log flips, its log ends before its synced end (noticed or not), or the directory with its ranges comes back empty. A replica
// meets damage in its data and is discarded later (discard.go).
//
// # Bounds of the faults
//
// Where faults go beyond what the rules promise to bear, a run that breaks would show nothing. So:
//
//   - One disk at a time is damaged, and only while min_in_sync is 2 or more, the other in-sync copies of its ranges are intact, and
//     the metadata group has three voters that all run. The next is damaged once this one holds again what it counts for.
//   - After damage that the node cannot notice, and after an older copy, no other fault begins before the node's voter takes part.
//   - Half of the seeds are strict: nodes refuse timestamps as real ones do, and one clock of the cluster is wrong, by seconds to an
//     hour. In the others all clocks jump, and all timestamps are taken.
//   - A full disk refuses new work and takes what was accepted (storage.DiskRefusing). One without room for that holds up the
//     passes of a real host in real time, which is not simulated.
//   - A node has one directory. That all directories come back empty makes a new node, which is not simulated.
//   - A connection ends with the life of either end, so a message of the metadata group does not outlive its sender.
//
// Each run founds its cluster: one node begins, the others join, a table is made. Then clients put, patch, insert, delete,
// write conditionally and in batches, and read one or several keys. They retry with the same request id until they give up
// and call the outcome unknown.
//
// Each seed draws a size, a set of fault kinds and small bounds of its own (swarm testing: Groce et al., ISSTA 2012), so
// that rare paths such as fetching old log entries are common in some seeds.
//
// # Judgement
//
// While it runs, check.Monitor asserts the protocol's invariants after each step that could break one: host.Probe shows what
// replicas want done, and after each event of a node its replicas are looked at. When the faults stop, every range must
// serve and every live replica rejoin within LivenessMax. At the end the clients' histories must be linearizable, every
// acknowledged write must stand in the committed log once, and the engines must hold exactly what that log makes. Whenever a
// node learns that a range is closed up to a timestamp, it must have everything up to there, and nothing may be committed at
// or below it later. Replicas that cannot rejoin because their part of the log is trimmed away are counted, not failed.
//
// All nodes must have the same metadata at a revision, and no name may be given twice. What a damaged disk lacks must be on record,
// with file and offset or as a short life in the metadata, unless nobody can notice it; an undamaged disk lacks nothing. A
// quarantined replica serves nothing and is not elected; a range whose in-sync set has too few others waits for a person and is
// counted. A clock that is right is not driven ahead. When the faults are over, one data path is broken once more, and its
// range must go on (rule-progress).
//
// # Planted bugs
//
// A Bug breaks one duty on purpose, in the world around the host or through host.Probe: acknowledge before the disk has it,
// read without a lease, forget its grants. A simulator that does not notice is worth nothing, so the tests require that
// each is caught. Some are sought with a mix of faults of their own (plant.go), and TestMixes plays those mixes without the bug.
// Where one rule hides that another is left out, both are left out, and the test says what then happens.
//
// # Testing
//
// go test ./sim first plays testdata/seeds.txt, every seed that ever showed something, then -sim.seeds new ones.
// -sim.seed N plays one with its trace. testdata/seeds.txt says what each seed showed.
package sim
