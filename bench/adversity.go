package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench/disk"
)

// AdversityConfig configures RunAdversity.
type AdversityConfig struct {
	// Cluster was started with --cuts and --no-restart, and has three nodes or
	// more in each of three regions or more.
	Cluster *Cluster
	// Disk is the disk of the node StalledNode, or nil to leave out the phase
	// with a stalled disk.
	Disk *disk.Disk
	// Hold is how long a phase lasts, besides the time to heal. It must exceed
	// adversityAfter.
	Hold time.Duration
	// Keys is the number of callers of each table in each region. Each calls a
	// key of its own, one time per Interval, or per five of them in the table
	// that survives the loss of a region. One call in four is a read.
	Keys     int
	Interval time.Duration
	// Random draws the moments of the calls.
	Random *rand.Rand
	// Progress receives a line about each phase. It may be nil.
	Progress func(text string)
}

// AdversityReport is the result of RunAdversity.
type AdversityReport struct {
	Phases []AdversityPhase `json:"phases"`
	Goals  []AdversityGoal  `json:"goals"`
	// Offered is the number of calls a second that the callers make.
	Offered float64 `json:"offered_per_second"`
	// Lost counts the keys without their last acknowledged write at the end, of
	// those that were read back. Checked counts all of these.
	Lost    int `json:"lost"`
	Checked int `json:"checked"`
	// LoadAverage is that of the machine over the last minute, at the start and
	// the end of the run.
	LoadAverage [2]float64 `json:"load_average"`
	// Skipped says which phase is missing and why.
	Skipped string `json:"skipped,omitempty"`

	calls []adversityCall
}

// Missed returns the goals that were not met.
func (r *AdversityReport) Missed() (missed []AdversityGoal) {
	for _, g := range r.Goals {
		if !g.Met {
			missed = append(missed, g)
		}
	}
	return missed
}

// AdversityPhase is a part of the run. Times count from the start of the load.
type AdversityPhase struct {
	Name string `json:"name"`
	// What says whom the fault struck.
	What string        `json:"what,omitempty"`
	From time.Duration `json:"from_ns"`
	// Healed is the end of the fault, and To the time at which all nodes were
	// live and all replicas in sync.
	Healed time.Duration `json:"healed_ns"`
	To     time.Duration `json:"to_ns"`

	// Goodput is the number of calls a second that were answered from From to
	// Healed. GoodputAfter leaves out the first five seconds. Share is the part
	// of the offered calls that GoodputAfter is. None of them counts calls to
	// keys without an intact copy.
	Goodput      float64 `json:"goodput"`
	GoodputAfter float64 `json:"goodput_after_5s"`
	Share        float64 `json:"share_after_5s"`
	// Near has the latencies of the table whose copies are in one region, in
	// microseconds, Wide those of the other one. A call that is late because
	// the one before it took long has its wait counted.
	Near Quantiles `json:"near_us"`
	Wide Quantiles `json:"wide_us"`
	// NearP999 is the 99.9th percentile of Near.
	NearP999 float64 `json:"near_p999_us"`
	// NearWriteP99 is the 99th percentile of the writes of the same table, from
	// adversitySlowAfter on in the phase with a slow node.
	NearWriteP99 float64 `json:"near_write_p99_us"`
	// FailedWrites and FailedReads count calls that failed for their caller,
	// without those to keys without an intact copy.
	FailedWrites int `json:"failed_writes"`
	FailedReads  int `json:"failed_reads"`
	// FirstError is the first error of them.
	FirstError string `json:"first_error,omitempty"`
	// Gap is the longest time without an acknowledged write to a range, of the
	// ranges that the fault struck.
	Gap time.Duration `json:"gap_ns"`

	// samples counts the calls that the figures are computed from.
	samples phaseSamples
	// parts has for each caller which part of its range the fault struck.
	parts  []struckPart
	leader bool // the fault struck the metadata leader
}

// phaseSamples counts calls of a phase, without those to keys without an intact
// copy.
type phaseSamples struct {
	writes, reads int // those that ended, with or without success
	near, settled int // in Near, and of these in NearWriteP99
	due           int // those from which Share is computed
}

// struckPart names the effect of a fault on the range of a caller.
type struckPart struct {
	at      rhumb.RangeID // the range
	primary bool          // its primary is struck
	copy    bool          // another of its in-sync copies is
	none    bool          // no copy is left
}

// The names of the phases, in their order.
const (
	phaseBaseline    = "baseline"
	phaseMaintenance = "maintenance"
	phaseSlow        = "slow node"
	phaseStall       = "disk stall"
	phasePartition   = "partition"
	phaseNode        = "node loss"
	phaseRegion      = "region loss"
	phaseHealing     = "healing"
)

// StalledNode returns the directory, inside of that of the cluster, of the node
// whose disk is stalled: the second one of a region, because the first one of
// the first region founds the cluster and begins as metadata leader.
func StalledNode(dir, region string) string { return filepath.Join(dir, region+"-b") }

// The load is open: a caller has a time at which each of its calls is due, and
// does not slow down because the cluster does. A closed load would hide an
// outage, since nobody would call meanwhile. A caller has one call at a time,
// so that the numbers in its key only grow and a lost write shows. Calls that
// become due while one is under way are skipped: they are missing in the rate,
// and their waits are in the latencies.
//
// Gaps are those of ranges and not of keys: a range fails over as a whole, and
// its keys together show within tens of milliseconds when it was available
// again. A gap counts until everything is in sync again, so that a second pause
// at the return of a node shows too.
//
// The demo starts the processes, because it knows how to form a cluster. It
// does not restart them: a dead node must stay dead for a whole phase. So this
// program notes the commands of the processes and starts them itself.
//
// A phase without evidence that its fault happened is an error and not a good
// result: a write of another process must have waited for the stalled disk, and
// the cut links must have withheld something.

// adversity is a run of RunAdversity.
type adversity struct {
	*hold
	*nodeProcesses
	cfg    *AdversityConfig
	load   *adversityLoad
	report *AdversityReport
}

// RunAdversity holds a constant load on a cluster, lets it meet one adversity
// after the other, and judges what the callers saw by the goals of the project.
// At the end it reads back every key. A missed goal is in the report, and no
// error. After a failure, the report has the phases that ended before.
func RunAdversity(ctx context.Context, cfg AdversityConfig) (*AdversityReport, error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	processes, err := cfg.Cluster.findCommands()
	if err != nil {
		return nil, err
	}
	defer processes.stopAll()
	load, err := openLoad(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer load.close()
	a := &adversity{&hold{c: load.clients[0]}, processes, &cfg, load, &AdversityReport{}}
	for _, c := range load.callers {
		a.report.Offered += 1 / c.interval.Seconds()
	}
	a.report.LoadAverage[0] = loadAverage()
	// Primaries stay where a fault has put them: fail-back would move them
	// while the next fault is measured.
	if err := a.c.SetSetting(ctx, rhumb.SettingFailback, "manual"); err != nil {
		return nil, err
	}
	if err := a.awaitSettled(ctx); err != nil {
		return nil, err
	}
	load.start(ctx, cfg.Random)
	defer load.stop()
	// The first calls create the records and open connections.
	if err := pauseFor(ctx, 3*time.Second); err != nil {
		return nil, err
	}
	failed := a.runPhases(ctx)
	load.stop()
	a.report.LoadAverage[1] = loadAverage()
	a.report.calls = load.calls
	// After a failure, keys may have no service. What the phases showed is
	// reported all the same.
	if failed == nil {
		a.report.Lost, a.report.Checked, failed = load.countLost(ctx)
	}
	a.report.judge(load.callers)
	return a.report, failed
}

// loadAverage returns the load of the machine over the last minute, or 0 if the
// machine does not report it.
func loadAverage() (load float64) {
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(text), &load)
	}
	return load
}

// runPhases runs all phases.
func (a *adversity) runPhases(ctx context.Context) error {
	// The order is that of growing harm. Each phase but the loss of a region
	// begins with a whole cluster, so that it measures one fault.
	steps := []struct {
		name string
		run  func(ctx context.Context, p *AdversityPhase) error
	}{
		{phaseBaseline, func(ctx context.Context, _ *AdversityPhase) error { return pauseFor(ctx, a.cfg.Hold) }},
		{phaseMaintenance, a.maintain},
		{phaseSlow, a.slowNode},
		{phaseStall, a.stallDisk},
		{phasePartition, a.partition},
		{phaseNode, a.loseNode},
		{phaseRegion, a.loseRegion},
		{phaseHealing, a.heal},
	}
	for _, s := range steps {
		if s.name == phaseStall && a.cfg.Disk == nil {
			a.report.Skipped = phaseStall + ": " + disk.Missing()
			continue
		}
		p := &AdversityPhase{Name: s.name, From: time.Since(a.load.begin)}
		if err := s.run(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if p.Healed == 0 {
			p.Healed = time.Since(a.load.begin)
		}
		// A lost region returns in the phase after it.
		if s.name != phaseRegion {
			if err := a.awaitSettled(ctx); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		p.To = time.Since(a.load.begin)
		a.report.Phases = append(a.report.Phases, *p)
		a.cfg.Progress(fmt.Sprintf("%s %s: %v, in sync again %v after the end", p.Name, p.What, (p.Healed - p.From).Round(time.Second), (p.To - p.Healed).Round(10*time.Millisecond)))
	}
	return nil
}

// strike notes whom a fault is about to strike, and the moment.
func (a *adversity) strike(ctx context.Context, p *AdversityPhase, what string, victims ...rhumb.NodeID) {
	p.What = what
	p.leader = slices.Contains(victims, a.metadataLeader(ctx))
	struck := func(n rhumb.NodeID) bool { return slices.Contains(victims, n) }
	ranges := a.c.Ranges()
	for _, c := range a.load.callers {
		c.mu.Lock()
		at := c.at
		c.mu.Unlock()
		var part struckPart
		for _, r := range ranges {
			if r.ID.Region != at.Region || at.Slot < r.ID.Slot || at.Slot > r.LastSlot() {
				continue
			}
			part = struckPart{at: r.ID, primary: struck(r.Primary), none: true}
			for _, n := range r.InSync {
				part.copy = part.copy || struck(n) && n != r.Primary
				part.none = part.none && struck(n)
			}
		}
		p.parts = append(p.parts, part)
	}
	p.From = time.Since(a.load.begin)
}

// pickVictim returns the node that is primary of the most ranges and does not
// lead the metadata group.
func (a *adversity) pickVictim(ctx context.Context) (victim ClusterNode) {
	lead, most := a.metadataLeader(ctx), -1
	for _, n := range a.cfg.Cluster.Nodes {
		count := 0
		for _, r := range a.c.Ranges() {
			if r.Primary == n.ID {
				count++
			}
		}
		if n.ID != lead && count > most {
			victim, most = n, count
		}
	}
	return victim
}
