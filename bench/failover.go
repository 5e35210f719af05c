package bench

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// FailoverConfig configures RunFailover.
type FailoverConfig struct {
	Cluster *Cluster
	// Roles says which nodes are killed, one role after the other, each Kills times.
	Roles []Role
	Kills int
	// Restarts is the number of kill -9 of all nodes at once, after the kills. The load of Writers
	// has stopped by then.
	Restarts int
	// Calm is how long the load runs before the first kill. A change of primary in that time is a
	// false failover.
	Calm time.Duration
	// Writers is the number of callers, spread over the regions. Each writes one key repeatedly.
	// The default is 192.
	Writers int
	// Pause is the time between two writes of a caller. The default is 20 ms.
	Pause time.Duration
	// Progress receives a line about each step. It may be nil.
	Progress func(text string)
}

// FailoverReport is the result of RunFailover.
type FailoverReport struct {
	Kills []Kill `json:"kills"`
	// Roles has the unavailability of ranges, by the role of the killed node.
	Roles []RoleGaps `json:"roles,omitempty"`
	// Restarts are the restarts of the whole cluster. RestartP50 and RestartMax are the median and
	// the maximum of their Max.
	Restarts   []Restart     `json:"restarts,omitempty"`
	RestartP50 time.Duration `json:"restart_p50_ns"`
	RestartMax time.Duration `json:"restart_max_ns"`
	// Calm is how long the load ran without a kill, and FalseFailovers the number of epoch changes
	// in that time.
	Calm           time.Duration `json:"calm_ns"`
	FalseFailovers int           `json:"false_failovers"`
	// Writes counts acknowledged writes, Errors the writes that failed or whose outcome is unknown,
	// and Lost the acknowledged writes that were missing at the end.
	Writes int64 `json:"writes"`
	Errors int64 `json:"errors"`
	Lost   int   `json:"lost"`
}

// Role is the role of a node that is killed.
type Role string

// The roles. A node that is killed as a secondary is primary of nothing: its ranges are handed over before. The metadata leader may
// be primary of ranges or of none.
const (
	RolePrimary   Role = "primary"
	RoleSecondary Role = "secondary"
	RoleLeader    Role = "leader"
)

// Roles returns all roles, in the order in which they are described.
func Roles() []Role { return []Role{RolePrimary, RoleSecondary, RoleLeader} }

// RoleGaps has the unavailability of ranges over all kills of nodes of one role. That of a range is the longest time for which a caller of the
// range was without a successful write, from the kill until all replicas were in sync again; it includes the time between two writes.
type RoleGaps struct {
	Role  Role `json:"role"`
	Kills int  `json:"kills"`
	// Primary covers the ranges whose primary the node was: how long no write was possible. Secondary covers the ranges with
	// another copy on it: the stall until it left their in-sync sets.
	Primary   Gaps `json:"primary"`
	Secondary Gaps `json:"secondary"`
	// Plan compares the kills with what `rhumb plan failover` said before each of them.
	Plan PlanMatch `json:"plan"`
}

// Gaps is a distribution of times without a successful write.
type Gaps struct {
	Ranges int           `json:"ranges"`
	P50    time.Duration `json:"p50_ns"`
	P99    time.Duration `json:"p99_ns"`
	Max    time.Duration `json:"max_ns"`
}

// gapsOf sorts ds and returns its distribution.
func gapsOf(ds []time.Duration) (g Gaps) {
	if g.Ranges = len(ds); g.Ranges > 0 {
		slices.Sort(ds)
		g.P50, g.Max = medianAndMax(ds)
		g.P99 = ds[(len(ds)*99+99)/100-1]
	}
	return g
}

// Kill is one kill -9.
type Kill struct {
	Node rhumb.NodeID `json:"node"`
	Role Role         `json:"role"`
	// Primaries is the number of ranges whose primary the node was.
	Primaries int `json:"primaries"`
	// Gap is the longest time without a successful write, over all callers.
	Gap time.Duration `json:"gap_ns"`
	// InSync is the time until every range had all replicas in sync again. It includes the three
	// seconds for which the demo leaves a dead node down.
	InSync time.Duration `json:"in_sync_ns"`

	// Plan compares the kill with the plan of it.
	Plan PlanMatch `json:"plan"`

	// primary and secondary are the gaps of the ranges by the role of the node in them.
	primary, secondary []time.Duration
}

// RunFailover writes to a cluster, kills nodes under that load, and measures for how long callers
// could not write. At the end it reads back every acknowledged write.
func RunFailover(ctx context.Context, cfg FailoverConfig) (*FailoverReport, error) {
	if cfg.Writers == 0 {
		cfg.Writers = 192
	}
	if cfg.Pause == 0 {
		cfg.Pause = 20 * time.Millisecond
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	c, err := client.Open(ctx, cfg.Cluster.ClientConfig(30*time.Second))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t, err := c.CreateTable(ctx, "failover", client.TableOptions{})
	if err != nil {
		return nil, err
	}
	f := &failover{cfg: cfg, hold: &hold{c: c, t: t}, report: &FailoverReport{Calm: cfg.Calm}}
	// The kills must hit a cluster in which every range can elect another primary.
	if err := f.awaitSettled(ctx); err != nil {
		return nil, err
	}
	f.startWriters(ctx, cfg.Writers, cfg.Pause)
	err = f.killNodes(ctx)
	f.stopWriters()
	if err != nil {
		return nil, err
	}
	if err := f.restartAll(ctx); err != nil {
		return nil, err
	}
	f.report.Writes, f.report.Errors = f.countWrites()
	f.report.summarise(cfg.Roles)
	f.report.Lost, err = f.countLost(ctx)
	return f.report, err
}

// failover is a run of RunFailover.
type failover struct {
	*hold
	cfg    FailoverConfig
	report *FailoverReport
}

// worstGap returns the longest gap of all writers since the last call, including gaps that still
// last.
func (f *failover) worstGap() time.Duration { return slices.Max(f.takeGaps()) }

// killNodes measures the calm time and then kills one node after the other.
func (f *failover) killNodes(ctx context.Context) error {
	before := f.sumEpochs()
	if f.cfg.Calm > 0 {
		f.cfg.Progress(fmt.Sprintf("holding the load for %v", f.cfg.Calm))
		if err := pauseFor(ctx, f.cfg.Calm); err != nil {
			return err
		}
		f.report.FalseFailovers = f.sumEpochs() - before
		f.cfg.Progress(fmt.Sprintf("%d changes of primary in %v, longest gap %v", f.report.FalseFailovers, f.cfg.Calm, f.worstGap()))
	}
	if f.cfg.Kills > 0 {
		// Primaries stay where failovers and handOver put them. Otherwise they would return to a node while it is killed for its other copies.
		if err := f.c.SetSetting(ctx, rhumb.SettingFailback, "manual"); err != nil {
			return err
		}
	}
	for _, role := range f.cfg.Roles {
		for range f.cfg.Kills {
			if err := f.killOne(ctx, role); err != nil {
				return err
			}
		}
	}
	return nil
}

// sumEpochs returns the sum of the epochs of all ranges, which grows by one with each change of
// primary.
func (f *failover) sumEpochs() (sum int) {
	for _, r := range f.c.Ranges() {
		sum += int(r.Epoch)
	}
	return sum
}

// pauseFor waits for d, or until ctx ends.
func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// killOne kills one node of a role and waits until every range has recovered.
func (f *failover) killOne(ctx context.Context, role Role) error {
	// The leader is looked up for each kill, because an earlier kill may have moved it.
	victim, err := f.pickVictim(ctx, role)
	if err != nil {
		return err
	}
	k := Kill{Node: victim.ID, Role: role, Primaries: f.countPrimaries(victim.ID)}
	plan, err := f.c.PlanFailover(ctx, victim.ID.String())
	if err != nil {
		return err
	}
	before := f.c.Ranges()
	// The demo restarts nodes, so a process may be another one than at the start.
	pid, err := pidOf(victim.Addr)
	if err != nil {
		return err
	}
	// The gaps before the kill are discarded.
	f.worstGap()
	start := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill -9 %d: %w", pid, err)
	}
	// Without this wait, awaitSettled could return before the cluster has noticed the kill.
	if err := f.awaitMissed(ctx, victim.ID); err != nil {
		return err
	}
	// One command fences the node and elects the primaries, so what metadata shows now is who took over first.
	after := f.c.Ranges()
	if err := f.awaitSettled(ctx); err != nil {
		return err
	}
	k.InSync = time.Since(start)
	longest := k.sortGaps(before, f.homes(), f.takeGaps())
	k.Plan = matchPlan(&plan, after, longest)
	f.report.Kills = append(f.report.Kills, k)
	f.cfg.Progress(fmt.Sprintf("killed %s (%s, primary of %d ranges): longest gap %v, in sync again after %v", k.Node, role, k.Primaries, k.Gap, k.InSync))
	return nil
}

// sortGaps assigns the gap of each caller to the range of its key, as the ranges were before the kill. It returns the longest gap of each range
// that had a caller.
func (k *Kill) sortGaps(before []*rhumb.Range, homes []rhumb.RangeID, gaps []time.Duration) map[rhumb.RangeID]time.Duration {
	longest := make(map[rhumb.RangeID]time.Duration)
	for _, r := range before {
		for i, home := range homes {
			if home.Region == r.ID.Region && home.Slot >= r.ID.Slot && home.Slot <= r.LastSlot() {
				longest[r.ID] = max(longest[r.ID], gaps[i])
			}
		}
		// A range without a caller was not observed.
		gap, observed := longest[r.ID]
		switch {
		case observed && r.Primary == k.Node:
			k.primary = append(k.primary, gap)
		case observed && r.IsInSync(k.Node):
			k.secondary = append(k.secondary, gap)
		}
	}
	k.Gap = slices.Max(gaps)
	return longest
}

// awaitMissed waits until the metadata shows that a node is gone or in a new life. Only then does
// an intact cluster mean that it has recovered.
func (f *failover) awaitMissed(ctx context.Context, n rhumb.NodeID) error {
	boot := func() rhumb.BootSeq {
		for _, d := range f.c.Nodes() {
			if d.ID == n && d.State == rhumb.NodeLive {
				return d.Boot
			}
		}
		return 0
	}
	// If the node is already fenced, first is 0 and the wait ends with its next life.
	first := boot()
	for deadline := time.Now().Add(settleMax); boot() == first; {
		if time.Now().After(deadline) {
			return fmt.Errorf("the metadata still shows node %s as live after %v", n, settleMax)
		}
		if err := pauseFor(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// pickVictim returns a node of a role, and brings it into that role if need be.
func (f *failover) pickVictim(ctx context.Context, role Role) (best rhumb.Node, err error) {
	lead := f.metadataLeader(ctx)
	if role == RolePrimary && f.countPrimaries(lead) == f.countAllPrimaries() {
		// Earlier kills have left everything to the leader, which another role is for.
		if err := f.handOver(ctx, lead, func(i int) bool { return i%2 == 0 }); err != nil {
			return best, err
		}
	}
	most := 0
	for _, d := range f.c.Nodes() {
		n := f.countPrimaries(d.ID)
		fits := d.ID != lead && (role == RoleSecondary || n > 0)
		if role == RoleLeader {
			fits = d.ID == lead
		}
		if role == RoleSecondary {
			// Each node in turn: the last one that was killed is still primary of nothing, and would be killed again and again.
			n = -f.kills(d.ID)
		}
		if fits && (best.ID == rhumb.NoNode || n > most) {
			best, most = d, n
		}
	}
	if best.ID == rhumb.NoNode {
		return best, fmt.Errorf("found no node to kill as %s; the metadata leader is %s", role, lead)
	}
	if role == RoleSecondary {
		err = f.handOver(ctx, best.ID, func(int) bool { return true })
	}
	return best, err
}

// kills returns how often a node was killed.
func (f *failover) kills(n rhumb.NodeID) (count int) {
	for _, k := range f.report.Kills {
		if k.Node == n {
			count++
		}
	}
	return count
}

// handOver hands over the ranges of a node that which selects by their order, each to its next in-sync member, and waits until the node is
// primary of none of them.
func (f *failover) handOver(ctx context.Context, from rhumb.NodeID, which func(i int) bool) error {
	moved := make(map[rhumb.RangeID]bool)
	i := 0
	for _, r := range f.c.Ranges() {
		if r.Primary != from {
			continue
		}
		i++
		if !which(i - 1) {
			continue
		}
		others := slices.DeleteFunc(slices.Clone(r.InSync), func(id rhumb.NodeID) bool { return id == from })
		if len(others) > 0 {
			moved[r.ID] = true
			// In turn, so that the others share the ranges. A refusal shows below: the range stays.
			_, _ = f.c.HandOverRange(ctx, r.ID, others[i%len(others)])
		}
	}
	for deadline := time.Now().Add(settleMax); ; {
		left := 0
		for _, r := range f.c.Ranges() {
			if moved[r.ID] && r.Primary == from {
				left++
				// Asked again: a handover under load may be given up. A repetition of one in progress changes nothing.
				if r.Prepared == nil {
					if to := slices.IndexFunc(r.InSync, func(id rhumb.NodeID) bool { return id != from }); to >= 0 {
						_, _ = f.c.HandOverRange(ctx, r.ID, r.InSync[to])
					}
				}
			}
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d ranges were not handed over by %s after %v", left, from, settleMax)
		}
		if err := pauseFor(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// countAllPrimaries returns the number of ranges that have a primary.
func (f *failover) countAllPrimaries() (count int) {
	for _, r := range f.c.Ranges() {
		if r.Primary != rhumb.NoNode {
			count++
		}
	}
	return count
}

// countPrimaries returns the number of ranges whose primary is n.
func (f *failover) countPrimaries(n rhumb.NodeID) (count int) {
	for _, r := range f.c.Ranges() {
		if r.Primary == n {
			count++
		}
	}
	return count
}

// summarise computes the figures over all kills and restarts.
func (r *FailoverReport) summarise(roles []Role) {
	r.Roles = nil
	for _, role := range roles {
		g := RoleGaps{Role: role}
		var primary, secondary []time.Duration
		for _, k := range r.Kills {
			if k.Role == role {
				g.Kills++
				g.Plan.add(k.Plan)
				primary, secondary = append(primary, k.primary...), append(secondary, k.secondary...)
			}
		}
		g.Primary, g.Secondary = gapsOf(primary), gapsOf(secondary)
		r.Roles = append(r.Roles, g)
	}
	var last []time.Duration
	for _, restart := range r.Restarts {
		// The slowest key of a restart counts, because a service is back only with all of its keys.
		last = append(last, restart.Max)
	}
	r.RestartP50, r.RestartMax = medianAndMax(last)
}

// Add counts the kills and restarts of another run, on a cluster of its own, as if they were of r. roles are those of both runs.
func (r *FailoverReport) Add(o *FailoverReport, roles []Role) {
	r.Kills, r.Restarts = append(r.Kills, o.Kills...), append(r.Restarts, o.Restarts...)
	r.Calm += o.Calm
	r.FalseFailovers += o.FalseFailovers
	r.Writes += o.Writes
	r.Errors += o.Errors
	r.Lost += o.Lost
	r.summarise(roles)
}

// medianAndMax sorts ds and returns its median and maximum.
func medianAndMax(ds []time.Duration) (median, most time.Duration) {
	if len(ds) == 0 {
		return 0, 0
	}
	slices.Sort(ds)
	// The upper median of an even number of values.
	return ds[len(ds)/2], ds[len(ds)-1]
}
