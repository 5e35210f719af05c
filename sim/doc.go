// Package sim runs a whole cluster in one goroutine, from one seed, in virtual time: the real protocol cores
// (node/replica, node/lease, raftmeta/catalog, hlc) on a network, on disks and under clocks that misbehave as real ones
// do. One seed always gives the same run, so every failure can be played again with its trace.
//
// # World
//
// The network delays, loses, repeats and reorders messages, is cut in one or both directions, splits the nodes into
// parts that overlap or not. Disks are slow, stall, and lose what was not synced when their node crashes: any number of
// the newest writes, but always the newest. Clocks of nodes run at rates that differ within the bound that leases assume;
// wall clocks are skewed and jump. Nodes crash, restart, restart at once again, and are paused. The metadata group is a
// plain linearizable register that applies catalog commands: proposals reach it late, in any order or never, and news of
// it reach the nodes late.
//
// Clients put, patch, insert, delete, write conditionally and in batches, and read one or several keys. They retry with
// the same request id until they give up and call the outcome unknown.
//
// Each seed draws a size, a set of fault kinds and small bounds of its own (swarm testing: Groce et al., ISSTA 2012), so
// that rare paths such as fetching old log entries are common in some seeds.
//
// # Judgement
//
// While it runs, check.Monitor asserts the protocol's invariants after each step that could break one. When the faults
// stop, every range must serve and every live replica rejoin within LivenessMax. At the end the clients' histories must
// be linearizable, every acknowledged write must stand in the committed log once, and the replicas must hold exactly what
// that log makes. Whenever a node learns that a range is closed up to a timestamp, it must
// have everything up to there, and nothing may be committed at or below it later. Replicas that cannot rejoin because their part of the log is trimmed away are counted, not failed.
//
// # Planted bugs
//
// A Bug makes the driver break one duty on purpose: acknowledge before the disk has it, read without a lease, forget its
// grants. A simulator that does not notice is worth nothing, so the tests require that each is caught.
//
// # Testing
//
// go test ./sim first plays testdata/seeds.txt, every seed that ever showed something, then -sim.seeds new ones.
// -sim.seed N plays one with its trace. testdata/seeds.txt says what each seed showed.
package sim
