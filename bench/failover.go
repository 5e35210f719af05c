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
	// Kills is the number of kill -9 of a node that is primary. The last LeaderKills of them hit
	// the leader of the metadata group.
	Kills, LeaderKills int
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
	// P50 and Max cover the kills that did not hit the metadata leader, LeaderP50 and LeaderMax
	// those that did.
	P50       time.Duration `json:"p50_ns"`
	Max       time.Duration `json:"max_ns"`
	LeaderP50 time.Duration `json:"leader_p50_ns"`
	LeaderMax time.Duration `json:"leader_max_ns"`
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

// Kill is one kill -9.
type Kill struct {
	Node   rhumb.NodeID `json:"node"`
	Leader bool         `json:"leader"`
	// Primaries is the number of ranges whose primary the node was.
	Primaries int `json:"primaries"`
	// Gap is the longest time without a successful write, over all callers.
	Gap time.Duration `json:"gap_ns"`
	// InSync is the time until every range had all replicas in sync again. It includes the three
	// seconds for which the demo leaves a dead node down.
	InSync time.Duration `json:"in_sync_ns"`
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
	f.summarise()
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
	// The last LeaderKills kills hit the metadata leader.
	for i := range f.cfg.Kills {
		if err := f.killOne(ctx, i >= f.cfg.Kills-f.cfg.LeaderKills); err != nil {
			return err
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

// killOne kills one primary and waits until every range has recovered.
func (f *failover) killOne(ctx context.Context, leader bool) error {
	// The leader is looked up for each kill, because an earlier kill may have moved it.
	victim, err := f.pickVictim(ctx, leader)
	if err != nil {
		return err
	}
	k := Kill{Node: victim.ID, Leader: leader, Primaries: f.countPrimaries(victim.ID)}
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
	if err := f.awaitSettled(ctx); err != nil {
		return err
	}
	k.Gap, k.InSync = f.worstGap(), time.Since(start)
	f.report.Kills = append(f.report.Kills, k)
	f.cfg.Progress(fmt.Sprintf("killed %s (primary of %d ranges, metadata leader: %v): longest gap %v, in sync again after %v", k.Node, k.Primaries, leader, k.Gap, k.InSync))
	return nil
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

// pickVictim returns the metadata leader if leader is set, and otherwise the node with the most
// primaries among the others.
func (f *failover) pickVictim(ctx context.Context, leader bool) (best rhumb.Node, err error) {
	lead := f.metadataLeader(ctx)
	most := 0
	for _, d := range f.c.Nodes() {
		n := f.countPrimaries(d.ID)
		// A node without primaries would cause no gap.
		if leader && d.ID == lead || !leader && d.ID != lead && n > most {
			best, most = d, n
		}
	}
	if best.ID == rhumb.NoNode {
		return best, fmt.Errorf("found no node to kill; the metadata leader is %s", lead)
	}
	return best, nil
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
func (f *failover) summarise() {
	var plain, leader []time.Duration
	for _, k := range f.report.Kills {
		if k.Leader {
			leader = append(leader, k.Gap)
		} else {
			plain = append(plain, k.Gap)
		}
	}
	f.report.P50, f.report.Max = medianAndMax(plain)
	f.report.LeaderP50, f.report.LeaderMax = medianAndMax(leader)
	var last []time.Duration
	for _, r := range f.report.Restarts {
		// The slowest key of a restart counts, because a service is back only with all of its keys.
		last = append(last, r.Max)
	}
	f.report.RestartP50, f.report.RestartMax = medianAndMax(last)
	f.report.Writes, f.report.Errors = f.countWrites()
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
