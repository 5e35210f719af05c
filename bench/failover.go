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

// FailoverConfig says what RunFailover does.
type FailoverConfig struct {
	Cluster *Cluster
	// Kills is how often a node that is primary is killed with kill -9; the last LeaderKills of them hit the node that
	// leads the metadata group too.
	Kills, LeaderKills int
	// Restarts is how often all nodes are killed with kill -9 at once and started again, after the kills. The load of
	// Writers is stopped before.
	Restarts int
	// Calm is how long the load is held without a kill, before the first; a change of primary during it is a false
	// failover.
	Calm time.Duration
	// Writers is the number of callers, each writing one key again and again, spread over the regions; default 192.
	Writers int
	// Pause is the time between two writes of a caller; default 20 ms.
	Pause time.Duration
	// Progress is told what happens; it may be nil.
	Progress func(text string)
}

// FailoverReport is what RunFailover saw.
type FailoverReport struct {
	Kills []Kill `json:"kills"`
	// P50 and Max are over the kills that did not hit the metadata leader; LeaderP50 and LeaderMax over those that did.
	P50       time.Duration `json:"p50_ns"`
	Max       time.Duration `json:"max_ns"`
	LeaderP50 time.Duration `json:"leader_p50_ns"`
	LeaderMax time.Duration `json:"leader_max_ns"`
	// Restarts are the restarts of the whole cluster. RestartP50 and RestartMax are the median and the greatest of their Max.
	Restarts   []Restart     `json:"restarts,omitempty"`
	RestartP50 time.Duration `json:"restart_p50_ns"`
	RestartMax time.Duration `json:"restart_max_ns"`
	// Calm is how long the load was held without a kill, and FalseFailovers the changes of epoch during it.
	Calm           time.Duration `json:"calm_ns"`
	FalseFailovers int           `json:"false_failovers"`
	// Writes counts acknowledged writes, Errors those that failed or whose outcome stayed unknown, Lost acknowledged
	// writes that were missing at the end.
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
	// Gap is the longest time that a caller was without a successful write.
	Gap time.Duration `json:"gap_ns"`
	// InSync is how long it took until every range had all its replicas in sync again, the three seconds for which the
	// demo leaves a dead node down included.
	InSync time.Duration `json:"in_sync_ns"`
}

// RunFailover holds a load of writes on a cluster, kills nodes under it, and measures for how long callers could not
// write. At the end it reads back what was acknowledged.
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
	c, err := client.Open(ctx, client.Config{Addrs: cfg.Cluster.Addrs(), Insecure: true, Timeout: 30 * time.Second})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t, err := c.CreateTable(ctx, "failover", client.TableOptions{})
	if err != nil {
		return nil, err
	}
	f := &failover{cfg: cfg, hold: &hold{c: c, t: t}, report: &FailoverReport{Calm: cfg.Calm}}
	if err := f.settled(ctx); err != nil {
		return nil, err
	}
	f.begin(ctx, cfg.Writers, cfg.Pause)
	err = f.kills(ctx)
	f.end()
	if err != nil {
		return nil, err
	}
	if err := f.restarts(ctx); err != nil {
		return nil, err
	}
	f.summarise()
	f.report.Lost, err = f.audit(ctx)
	return f.report, err
}

type failover struct {
	*hold
	cfg    FailoverConfig
	report *FailoverReport
}

// worstGap gives the longest gap of all writers since the last call, one that lasts included.
func (f *failover) worstGap() time.Duration { return slices.Max(f.gaps()) }

func (f *failover) kills(ctx context.Context) error {
	before := f.epochs()
	if f.cfg.Calm > 0 {
		f.cfg.Progress(fmt.Sprintf("holding the load for %v", f.cfg.Calm))
		if err := pause(ctx, f.cfg.Calm); err != nil {
			return err
		}
		f.report.FalseFailovers = f.epochs() - before
		f.cfg.Progress(fmt.Sprintf("%d changes of primary in %v, longest gap %v", f.report.FalseFailovers, f.cfg.Calm, f.worstGap()))
	}
	for i := range f.cfg.Kills {
		if err := f.kill(ctx, i >= f.cfg.Kills-f.cfg.LeaderKills); err != nil {
			return err
		}
	}
	return nil
}

// epochs adds up the epochs of all ranges: each change of primary adds one.
func (f *failover) epochs() (sum int) {
	for _, r := range f.c.Ranges() {
		sum += int(r.Epoch)
	}
	return sum
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// kill kills one primary and waits until the cluster is whole again.
func (f *failover) kill(ctx context.Context, leader bool) error {
	victim, err := f.victim(ctx, leader)
	if err != nil {
		return err
	}
	k := Kill{Node: victim.ID, Leader: leader, Primaries: f.primaries(victim.ID)}
	pid, err := pidOf(victim.Addr)
	if err != nil {
		return err
	}
	f.worstGap()
	start := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill -9 %d: %w", pid, err)
	}
	if err := f.missed(ctx, victim.ID); err != nil {
		return err
	}
	if err := f.settled(ctx); err != nil {
		return err
	}
	k.Gap, k.InSync = f.worstGap(), time.Since(start)
	f.report.Kills = append(f.report.Kills, k)
	f.cfg.Progress(fmt.Sprintf("killed %s (primary of %d ranges, metadata leader: %v): longest gap %v, whole again after %v", k.Node, k.Primaries, leader, k.Gap, k.InSync))
	return nil
}

// missed waits until metadata knows that a node is gone, so that a cluster which has not noticed yet is not taken for a
// whole one.
func (f *failover) missed(ctx context.Context, n rhumb.NodeID) error {
	boot := func() rhumb.BootSeq {
		for _, d := range f.c.Nodes() {
			if d.ID == n && d.State == rhumb.NodeLive {
				return d.Boot
			}
		}
		return 0
	}
	first := boot()
	for deadline := time.Now().Add(settleMax); boot() == first; {
		if time.Now().After(deadline) {
			return fmt.Errorf("node %s is not missed", n)
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// victim picks the node with the most primaries that leads the metadata group, or does not.
func (f *failover) victim(ctx context.Context, leader bool) (best rhumb.Node, err error) {
	lead := f.leader(ctx)
	most := 0
	for _, d := range f.c.Nodes() {
		n := f.primaries(d.ID)
		if leader && d.ID == lead || !leader && d.ID != lead && n > most {
			best, most = d, n
		}
	}
	if best.ID == rhumb.NoNode {
		return best, fmt.Errorf("no node to kill: the metadata leader is %s", lead)
	}
	return best, nil
}

func (f *failover) primaries(n rhumb.NodeID) (count int) {
	for _, r := range f.c.Ranges() {
		if r.Primary == n {
			count++
		}
	}
	return count
}

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
		last = append(last, r.Max)
	}
	f.report.RestartP50, f.report.RestartMax = medianAndMax(last)
	f.report.Writes, f.report.Errors = f.counts()
}

func medianAndMax(ds []time.Duration) (median, most time.Duration) {
	if len(ds) == 0 {
		return 0, 0
	}
	slices.Sort(ds)
	return ds[len(ds)/2], ds[len(ds)-1]
}
