// Package hlc is the hybrid logical clock and the only place where wall time becomes a rhumb.Timestamp. It also reads
// the monotonic clock that leases are measured with, and watches that the two agree.
//
// The clock follows Kulkarni et al., "Logical Physical Clocks" (2014): a timestamp is the wall time where that has moved
// on, otherwise the last timestamp plus one. Wall time in milliseconds fills the upper 48 bits, the logical count the
// lower 16; a count that overflows carries into the wall part.
//
// # Invariants
//
//   - Timestamps issued by one store only grow, across restarts too. The clock never issues above a ceiling that the
//     store has made durable, and after a restart it starts above the last durable ceiling.
//   - When Update or Forward has returned without an error for a timestamp, everything the store issues later, across
//     restarts too, is greater. A node may therefore acknowledge a closed timestamp as soon as Update accepted it.
//   - A wall clock that was set back is ignored until it has caught up: the logical part grows meanwhile.
//
// # Where a clock matters
//
// The safety of strong ranges does not rest on wall clocks. Every place that reads a clock, and what a wrong one does:
//
//   - Versions of records (Clock.Now, Clock.Reserve). HAZARD: in available mode the greatest timestamp wins, so a clock
//     that runs ahead beats later writes for as long as it is ahead. Update bounds this by rhumb.ClockAheadMax. In
//     strong mode versions follow the log, and a wrong clock shows only in the times reported to users.
//   - Closed timestamps and bounded-staleness reads (Clock.Read). HAZARD: staleness is judged on the reader's wall
//     clock, so an answer can be older than promised by as much as the clocks of primary and reader differ.
//     No answer is inconsistent because of it.
//   - Leases between nodes (Boottime). HAZARD: two monotonic clocks may differ in rate by at most 0.1 % over one lease;
//     a clock that stops while the machine is suspended makes the holder believe in a lease that its grantor has given
//     away, and reads under it are stale. This is why Boottime is CLOCK_BOOTTIME and not Go's monotonic clock.
//   - Pauses that no guest clock counts (Watchdog). HAZARD: a hypervisor may stop a machine without its clocks noticing.
//     The watchdog drops all leases when monotonic and wall time part, which is seen only after wall time has been
//     corrected; classes that cannot live with the gap use read_guard=confirm.
//   - The wall clock set forward (Config.Mono). The durable ceiling follows it at twice the speed of time at most, and not
//     at all while the node knows from its peers that its clock is wrong (Distrust): what is given out cannot be taken back.
//     After five minutes nobody contradicted, it is followed. HAZARD: a ceiling that is far ahead when the node starts stays
//     there. Peers refuse entries more than rhumb.ClockAheadMax ahead, so the node hands its primaries over until real time
//     has caught up; what it copies is not affected.
//   - Restarts in a row. Each starts at the old ceiling, which lies up to Config.Window ahead of the wall clock. A clock
//     that is ahead asks for little more (headroom), so a node that restarts in a loop does not run away from its peers.
//
// # Concurrency
//
// Clock is safe for concurrent use; Now is one reading of the wall clock and one compare-and-swap. Only raising the ceiling
// takes a lock and waits for the disk. Watchdog is a plain value for one goroutine.
//
// # Testing
//
// Wall clock, persister and monotonic clock are injected; Run and Watch run in synctest bubbles.
package hlc
