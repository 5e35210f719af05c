// Package place derives what metadata should hold from policy, topology and load: the nodes that
// hold the replicas of a new range, the voters of the metadata group, whether a silent node is
// dead, and when a node that recovered takes its home ranges back. It only decides; commands of the
// catalog carry the decisions out. It is pure: callers pass the time, as a time.Duration since an
// arbitrary start.
//
// # Rules
//
// Replicas ([Complete]): with survival goal zone all are in the home region, spread over its zones
// first, then over the nodes with the least load, then by distance. With goal region the home holds as many
// as it may, then the nearest region by measured round trip, and so on (2 + 2 + 1 of 5). The residency of a
// class excludes regions. Primaries are spread evenly. A
// range of a node's own block has that node as its first replica.
//
// Voters ([Planner.Voters]): one node means 1 voter, three nodes 3 and five regions 5. Voters are
// spread over regions, then over zones. A voter keeps its vote unless it was down for long, or a
// region without a voter has a node.
//
// Death ([Evidence]): a node is fenced if a majority of the living nodes that share ranges with it,
// and at least two, report it; or if the metadata leader has lost contact and one such node reports
// it (replication design, section 1.10 and ruling 11).
//
// Fail-back ([Planner.Failback]): a range returns to its preferred primary when that replica is in
// sync and its node has been healthy for a while. The wait doubles with each relapse.
//
// # Concurrency
//
// The functions are safe for concurrent use. A Planner and an Evidence serve one goroutine at a
// time.
package place
