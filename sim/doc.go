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
// are paused. The metadata group elects, loses its majority and catches up by itself.
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
// # Planted bugs
//
// A Bug breaks one duty on purpose, in the world around the host or through host.Probe: acknowledge before the disk has it,
// read without a lease, forget its grants. A simulator that does not notice is worth nothing, so the tests require that
// each is caught.
//
// # Testing
//
// go test ./sim first plays testdata/seeds.txt, every seed that ever showed something, then -sim.seeds new ones.
// -sim.seed N plays one with its trace. testdata/seeds.txt says what each seed showed.
package sim
