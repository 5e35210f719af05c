// Package place turns policy, topology and load into what metadata should hold: which nodes hold the replicas of a new
// range, who votes in the metadata group, whether a silent node is dead, and when a node that came back takes its home
// ranges again. It decides; the catalog's commands do. It is pure: time comes from outside, as a time.Duration since an
// arbitrary start.
//
// # Rules
//
// Replicas ([Complete]): all in the home region (survival goal zone), spread over its zones first, then over the nodes
// with the least load, then by distance. Primaries are spread evenly. A range of a node's own block has that node first.
//
// Voters ([Planner.Voters]): one node makes 1 voter, three make 3, five regions make 5. They are spread over regions, then
// over zones. A voter that is there stays unless it was down for long or a region without one has a node.
//
// Death ([Evidence]): a node is fenced on the reports of a majority of those living nodes that share ranges with it, at least
// two, or on the metadata leader's own loss of contact and one such report (replication design, section 1.10 and ruling 11).
//
// Fail-back ([Planner.Failback]): a range goes back to its preferred primary when that is in sync and its node has been
// healthy for a while, which doubles with each relapse.
//
// # Concurrency
//
// The functions may be called by any number of goroutines; a Planner and an Evidence by one at a time.
package place
