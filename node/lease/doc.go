// Package lease is what nodes know of each other pair by pair: heartbeats, the grants that let a primary serve reads by
// itself, and suspicion. It is pure: the driver gives the time and carries the frames. One Pairs serves all ranges of a
// node, so the cost is per pair of nodes and not per range.
//
// # Grants
//
// A heartbeat of H asks its receiver G for a grant; G answers at once. The grant lets H believe, until
// (time at which H sent the heartbeat) + Lease - Epsilon on H's clock, that G has not become primary of a range that H
// serves. G's obligation lasts until (time at which G received the heartbeat) + Lease(1 + 2 rho) + Epsilon on G's clock.
// Sending comes before receiving, so the obligation outlasts the belief (I9) when clock rates differ by at most rho.
//
// HAZARD: clocks are CLOCK_BOOTTIME readings. A pause that this clock does not count (a virtual machine stopped by its
// hypervisor) makes H believe too long. DropHeld is for a watchdog that notices; rule F removes the rest.
//
// # Exclusions (ruling 1)
//
// Grants renew for ever, so a grantor that promises epoch e of range R takes R out of them: from then on every grant
// lists (R, e), which says "this grant covers no epoch of R below e", until the holder's frame confirms. The holder
// applies the list and the grant in one step. The elected node waits only for the grants it gave without the exclusion:
// the last such receipt + Lease(1+2 rho) + Epsilon, and for none of a holder that has confirmed. When a list is longer
// than ExclusionsMax the frame carries its beginning and no grant.
//
// A process that starts has forgotten its grants: for what it activates it waits LeaseMax, or until every other node that
// metadata knows has confirmed the exclusion to the present life, unless its store is fresh and so never gave a grant. A
// node that is fenced may hold a grant and cannot confirm. The process re-registers its durable promises by Exclude before
// its first SetPeers.
//
// # Closed timestamps (ruling 6)
//
// A heartbeat asks its receiver to move its clock past a timestamp of the sender's (Close). The receiver's driver does that,
// durably, and says so by Passed; from then on frames to the sender say Agreed. That speaks of every range but those that
// the sender of the frame excludes: exclusions and agreement stand in one frame and are applied in one step, so agreement
// is fenced by epoch as grants are, and is left out when not all exclusions fit. Agreed gives what one peer has agreed to
// for an epoch of a range; package replica makes closed timestamps of that, and Publish has them told to the nodes that
// hold the ranges (package closed).
//
// # Suspicion
//
// A frame proves that its sender lives only when it echoes a frame of ours that was sent within the suspect interval:
// a link that works in one direction is dead for both ends. An unhealthy node (SetHealthy) sends nothing, so that its
// peers see it as dead: liveness follows the data path.
//
// # Concurrency
//
// A Pairs is used by one goroutine at a time.
//
// # Testing
//
// testdata holds transcripts; a seeded property test asserts I9 with skewed clocks, loss, delay and restarts.
package lease
