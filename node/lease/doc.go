// Package lease holds a node's knowledge of each other node: heartbeats, the grants that let a
// primary serve reads without asking anybody, and suspicion. The package is pure: the driver passes
// in the time and carries the frames. One Pairs serves all ranges of a node, so the cost grows with
// the number of node pairs and not with the number of ranges.
//
// # Grants
//
// A heartbeat of node H asks its receiver G for a grant, and G answers at once (rule L). The grant
// lets H believe that G has not become primary of a range that H serves, until (time at which H
// sent the heartbeat) + Lease - Epsilon on H's clock. G's obligation lasts until (time at which G
// received the heartbeat) + Lease(1 + 2 rho) + Epsilon on G's clock. Sending precedes receiving, so
// the obligation outlasts the belief (I9) if clock rates differ by at most rho.
//
// HAZARD: clocks are CLOCK_BOOTTIME readings. If a pause is not counted by this clock (a virtual
// machine stopped by its hypervisor), H believes too long. DropHeld is for a watchdog that notices
// the pause; rule F covers the reads that follow.
//
// # Exclusions (docs/replication.md#exclusions)
//
// Grants are renewed indefinitely, so a grantor that promises epoch e of range R must take R out of
// them. From then on every grant lists (R, e), which means "this grant covers no epoch of R below
// e", until a frame of the holder confirms the list. The holder applies the list and the grant in
// one step. The elected node waits only for the grants that it issued without the exclusion: until
// the last such receipt + Lease(1 + 2 rho) + Epsilon. It does not wait for a holder that has
// confirmed. If a list is longer than ExclusionsMax, the frame carries the beginning of the list
// and no grant.
//
// A process that starts has forgotten its grants. Before it activates a range it waits LeaseMax, or
// until every other node in the metadata has confirmed the exclusion to the present life (rule S).
// A fresh store never granted anything, so its node does not wait. A fenced node may hold a grant
// and cannot confirm. The process registers its durable promises again by Exclude before its first
// SetPeers.
//
// # Closed timestamps (docs/replication.md#closed)
//
// A heartbeat asks its receiver to move its clock past a timestamp of the sender (Close). The
// receiver's driver moves the clock, durably, and reports it by Passed; from then on frames to the
// sender carry Agreed. Agreed covers every range except those that the sender of the frame
// excludes. Exclusions and agreement travel in one frame and are applied in one step, so agreement
// is fenced by epoch as grants are; a frame that cannot hold all exclusions carries no agreement.
// Pairs.Agreed returns how far one peer agrees for an epoch of a range. Package replica derives
// closed timestamps from it, and Publish sends them to the nodes that hold the ranges (package
// closed).
//
// # Suspicion
//
// A frame proves that its sender is alive only if it echoes a frame of this node that was sent
// within the suspect interval: a link that works in one direction is dead for both ends. An
// unhealthy node (SetHealthy) echoes nothing, so its peers consider it dead: liveness follows the
// data path. It says that it is unhealthy, so its peers wait half as long.
//
// # Concurrency
//
// A Pairs is used by one goroutine at a time.
//
// # Testing
//
// testdata holds transcripts. A seeded property test asserts I9 with skewed clocks, loss, delay and
// restarts.
package lease
