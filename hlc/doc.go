// Package hlc is the hybrid logical clock and the only place where wall time becomes a
// rhumb.Timestamp. It also reads the monotonic clock that measures leases, and detects when the two
// clocks disagree.
//
// The clock follows Kulkarni et al., "Logical Physical Clocks" (2014): a timestamp is the wall time
// if that has advanced, otherwise the last timestamp plus one. Wall time in milliseconds fills the
// upper 48 bits, the logical count the lower 16; a count that overflows carries into the wall part.
//
// # Invariants
//
//   - Timestamps issued by one store only increase, even across restarts. The clock never issues
//     a timestamp above a durable ceiling, and starts above the last durable ceiling after a
//     restart.
//   - After Update or Forward accepts a timestamp, the store issues only greater ones, even
//     across restarts. A node may therefore acknowledge a closed timestamp as soon as Update has
//     accepted it.
//   - A wall clock that was set back is ignored until it catches up. Meanwhile the logical part
//     increases.
//
// # Where a clock matters
//
// The safety of strong ranges does not depend on wall clocks. This is every place that reads a
// clock, and the effect of a wrong one:
//
//   - Versions of records (Clock.Now, Clock.Reserve). HAZARD: in available mode the greatest
//     timestamp wins, so writes of a node whose clock is ahead defeat later writes. Update limits
//     this to rhumb.ClockAheadMax. In strong mode versions follow the log, and a wrong clock shows
//     only in the times reported to users.
//   - Closed timestamps and bounded-staleness reads (Clock.Read). HAZARD: staleness is measured
//     by the reader's wall clock, so an answer can be older than promised by the difference of the
//     clocks of primary and reader. The answer is still consistent.
//   - Leases between nodes (Boottime). HAZARD: two monotonic clocks may differ in rate by at most
//     0.1 % over one lease. If a clock stops while the machine is suspended, its node believes in a
//     lease that others have already granted to another node, and serves stale reads. Therefore
//     Boottime is CLOCK_BOOTTIME and not Go's monotonic clock.
//   - Pauses that no guest clock counts (Watchdog). HAZARD: a hypervisor may pause a machine
//     without its clocks noticing. The watchdog drops all leases when monotonic and wall time
//     diverge, which shows only after wall time was corrected. Classes that cannot tolerate the gap
//     use read_guard=confirm.
//   - The wall clock set forward (Config.Mono). The durable ceiling follows it at twice the speed
//     of time at most, and not at all while the node knows from its peers that its clock is wrong
//     (Distrust), because an issued timestamp cannot be taken back. After five minutes without
//     contradiction the ceiling follows. HAZARD: a ceiling that is far ahead when the node starts
//     stays there. Peers reject entries more than rhumb.ClockAheadMax ahead, so the node hands over
//     its primaries until real time has caught up. Data that it copies from others is not affected.
//   - Repeated restarts. Each starts at the old ceiling, up to Config.Window ahead of the wall
//     clock. A clock that is ahead raises the ceiling only by headroom, so a node that restarts in
//     a loop does not run away from its peers.
//
// # Concurrency
//
// Clock is safe for concurrent use. Now reads the wall clock once and does one compare-and-swap.
// Only raising the ceiling takes a lock and waits for the disk. Watchdog is a plain value for one
// goroutine.
//
// # Testing
//
// Tests inject wall clock, persister and monotonic clock, and run Run and Watch in synctest
// bubbles.
package hlc
