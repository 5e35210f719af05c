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
// it (docs/replication.md#failure-detection).
//
// Fail-back ([Planner.Failback]): a range returns to its preferred primary when that replica is in
// sync and its node has been healthy for a while. The wait doubles with each relapse.
//
// Operations ([Planner.Operations]): what moves next follows from the state and from the operations in it, never from
// what an earlier plan has done. A new metadata leader makes the next plan as the old one would have, and a command that was
// lost, or refused because a range had changed, is planned again. A planner remembers only refusals ([Planner.Heed]), and on which nodes copies do
// not arrive; a new leader finds both out again. A copy leaves a range only when as many others as the
// class has replicas are in sync, so a move never makes data less safe than it was. At most sixteen ranges of an operation
// move at a time, and those that cannot move do not count. An obstacle is named in the operation, so that an operator sees the reason of a delay.
//
// Merges ([Planner.Merges]): two neighbours that have been small together for a while become one range. An operation brings
// their copies together first.
//
// Repair ([Planner.Repair]): a node that was dead for long enough counts as gone, and its copies are created elsewhere. It
// keeps its place in the records until the new copies are in sync, because it may return.
//
// Regions ([PlanRegionRemoval]): the ranges of a region that is being removed belong to the region that takes them, in every
// decision of this package: which nodes may hold a copy, how many are missing, and whether there is room. So everything that
// moves or repairs copies works for them without a rule of its own. The nearest region that has room for all of them takes
// them; a region to which tables are confined has none for those.
//
// # Concurrency
//
// The functions are safe for concurrent use. A Planner and an Evidence serve one goroutine at a
// time.
package place
