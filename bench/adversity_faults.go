package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/wan"
)

// The phases of RunAdversity. Each function notes whom it strikes before it
// does, holds the fault, and ends it. Whatever happens, a fault that this
// program can end is ended: a frozen disk would keep processes that nobody can
// kill, and cut links would stay cut for a cluster whose directory the caller
// has named and continues with.

// maintain restarts one node of each region, one after the other, as a person
// does for an upgrade: the node drains first. The node with the disk of its own
// is among them, and its log is elsewhere from now on. Then it moves copies of
// ranges from node to node.
func (a *adversity) maintain(ctx context.Context, p *AdversityPhase) error {
	p.From = time.Since(a.load.begin)
	done := map[string]int{}
	for _, n := range a.cfg.Cluster.Nodes {
		// The second node of each region.
		if done[n.Region]++; done[n.Region] != 2 {
			continue
		}
		if _, err := a.c.Drain(ctx, n.ID, false); err != nil {
			return err
		}
		if err := a.awaitDrained(ctx, n.ID); err != nil {
			return err
		}
		if err := a.stopNode(ctx, n.ID); err != nil {
			return err
		}
		if err := a.startNode(n.ID); err != nil {
			return err
		}
		if err := a.awaitBack(ctx, n.ID); err != nil {
			return err
		}
		p.What += " " + n.ID.String()
	}
	moved, err := a.moveRanges(ctx)
	p.What += fmt.Sprintf(", %d copies moved", moved)
	return err
}

// movesMost bounds the copies that are moved.
const movesMost = 4

// moveRanges moves a copy of each of a few ranges of the callers to another node
// of the same region. Only ranges that survive the loss of a region have such a
// node: those of one region have copies on all three of its nodes.
func (a *adversity) moveRanges(ctx context.Context) (moved int, err error) {
	for _, r := range a.c.Ranges() {
		from, to := a.movable(r)
		if to == rhumb.NoNode || moved == movesMost {
			continue
		}
		op, err := a.c.StartOperation(ctx, rhumb.Operation{Kind: rhumb.OperationMove, Range: r.ID, Node: from, Target: to})
		if err != nil {
			return moved, err
		}
		err = a.await(ctx, fmt.Sprintf("a copy of range %s to move from %s to %s", r.ID, from, to), func() bool {
			now, err := a.c.Operation(ctx, op.ID)
			return err == nil && now.State.IsOver()
		})
		if err != nil {
			return moved, err
		}
		// An operation that failed is over too.
		now := slices.ContainsFunc(a.c.Ranges(), func(n *rhumb.Range) bool { return n.ID == r.ID && n.IsReplica(to) && !n.IsReplica(from) })
		if !now {
			return moved, fmt.Errorf("range %s did not move from %s to %s", r.ID, from, to)
		}
		moved++
	}
	if moved == 0 {
		return 0, errors.New("no range has a node to which a copy could move")
	}
	return moved, nil
}

// movable returns a secondary of a range that callers use, and a node of the same
// region without a copy, or no node.
func (a *adversity) movable(r *rhumb.Range) (from, to rhumb.NodeID) {
	// The move of a range without callers would show nothing.
	used := slices.ContainsFunc(a.load.callers, func(c *adversityCaller) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.wide && c.at.Region == r.ID.Region && c.at.Slot >= r.ID.Slot && c.at.Slot <= r.LastSlot()
	})
	for _, n := range a.cfg.Cluster.Nodes {
		if !used || n.ID == r.Primary || !r.IsInSync(n.ID) {
			continue
		}
		for _, o := range a.cfg.Cluster.Nodes {
			if o.Region == n.Region && !r.IsReplica(o.ID) {
				return n.ID, o.ID
			}
		}
	}
	return rhumb.NoNode, rhumb.NoNode
}

// The process of a slow node is stopped for slowStopped and runs for slowRuns, in
// turn, so that it is ten times slow.
const (
	slowStopped = 18 * time.Millisecond
	slowRuns    = 2 * time.Millisecond
)

// slowNode makes a node ten times slow for long enough to be found, and then for
// the time of a phase.
func (a *adversity) slowNode(ctx context.Context, p *AdversityPhase) error {
	victim := a.pickVictim(ctx)
	pid, err := pidOf(victim.Addr)
	if err != nil {
		return err
	}
	// The evidence is the processor time that the node did not get.
	before, err := processorTime(pid)
	if err != nil {
		return err
	}
	a.strike(ctx, p, fmt.Sprintf("%s in %s", victim.ID, victim.Region), victim.ID)
	begin := time.Now()
	for err == nil && time.Since(begin) < adversitySlowAfter+a.cfg.Hold {
		if err = syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			break
		}
		err = pauseFor(ctx, slowStopped)
		// Whatever happens, the process runs again.
		err = errors.Join(err, syscall.Kill(pid, syscall.SIGCONT))
		if err == nil {
			err = pauseFor(ctx, slowRuns)
		}
	}
	p.Healed = time.Since(a.load.begin)
	if err != nil {
		return err
	}
	after, err := processorTime(pid)
	// A process that was stopped nine tenths of the time cannot have used more than
	// a third of it, on two processors. Timers are not exact.
	if used := after - before; err == nil && used > time.Since(begin)/3 {
		err = fmt.Errorf("the node was not slow: it used %v of %v", used, time.Since(begin))
	}
	return err
}

// processorTime returns the processor time that a process has used.
func processorTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, the name in parentheses, may contain blanks. User and system
	// time are the 14th and 15th field, in ticks of 10 ms.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat is %q", pid, text)
	}
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, err
}

// awaitDrained waits until a node is primary of nothing.
func (a *adversity) awaitDrained(ctx context.Context, n rhumb.NodeID) error {
	return a.await(ctx, fmt.Sprintf("node %s to hand over its ranges", n), func() bool {
		return !slices.ContainsFunc(a.c.Ranges(), func(r *rhumb.Range) bool { return r.Primary == n })
	})
}

// awaitBack waits until a restarted node is live and all copies are in sync. It
// ends the draining of the node if the restart has not.
func (a *adversity) awaitBack(ctx context.Context, n rhumb.NodeID) error {
	var failed error
	err := a.await(ctx, fmt.Sprintf("node %s to return", n), func() bool {
		for _, d := range a.c.Nodes() {
			if d.ID == n && d.State == rhumb.NodeDraining {
				_, failed = a.c.Drain(ctx, n, true)
			}
			if d.ID == n && d.State == rhumb.NodeLive {
				return true
			}
		}
		return false
	})
	if err != nil {
		return errors.Join(err, failed)
	}
	return a.awaitSettled(ctx)
}

// await waits until done returns true.
func (a *adversity) await(ctx context.Context, what string, done func() bool) error {
	for deadline := time.Now().Add(settleMax); !done(); {
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %v for %s", settleMax, what)
		}
		if err := pauseFor(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// stallDisk freezes the disk of a node.
func (a *adversity) stallDisk(ctx context.Context, p *AdversityPhase) error {
	victim := rhumb.NoNode
	for i, n := range a.cfg.Cluster.Nodes {
		// The node that has the disk is the second one of its region, as
		// StalledNode says.
		if i > 0 && a.cfg.Cluster.Nodes[i-1].Region == n.Region && StalledNode(a.cfg.Cluster.Dir, n.Region) == a.cfg.Disk.At {
			victim = n.ID
			break
		}
	}
	// A stall of a node that is primary of nothing would be no test of
	// failover.
	if err := a.giveRanges(ctx, victim); err != nil {
		return err
	}
	stopGuard, err := a.cfg.Disk.Guard()
	if err != nil {
		return err
	}
	defer stopGuard()
	a.strike(ctx, p, victim.String(), victim)
	if err := a.cfg.Disk.Freeze(); err != nil {
		return err
	}
	// The probe is the evidence that the disk was stalled. It ends after the
	// thaw.
	took := make(chan time.Duration, 1)
	go func() {
		d, _ := a.cfg.Disk.Probe() // an error leaves d at 0
		took <- d
	}()
	err = pauseFor(ctx, a.cfg.Hold)
	err = errors.Join(err, a.cfg.Disk.Thaw())
	p.Healed = time.Since(a.load.begin)
	if d := <-took; err == nil && d < a.cfg.Hold/2 {
		err = fmt.Errorf("the disk was not stalled: a write of another process took %v", d)
	}
	return err
}

// giveRanges hands over ranges to a node until it is primary of one of each
// table.
func (a *adversity) giveRanges(ctx context.Context, to rhumb.NodeID) error {
	given := map[bool]bool{}
	for _, r := range a.c.Ranges() {
		// The ranges of the callers only: others are not observed.
		for _, c := range a.load.callers {
			c.mu.Lock()
			inside := c.at.Region == r.ID.Region && c.at.Slot >= r.ID.Slot && c.at.Slot <= r.LastSlot()
			c.mu.Unlock()
			if !inside || given[c.wide] || !r.IsInSync(to) {
				continue
			}
			given[c.wide] = true
			if r.Primary == to {
				continue
			}
			id := r.ID
			if _, err := a.c.HandOverRange(ctx, id, to); err != nil {
				return err
			}
			err := a.await(ctx, fmt.Sprintf("range %s to be handed over to node %s", id, to), func() bool {
				return slices.ContainsFunc(a.c.Ranges(), func(r *rhumb.Range) bool { return r.ID == id && r.Primary == to })
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// partition cuts a node off from all others.
func (a *adversity) partition(ctx context.Context, p *AdversityPhase) error {
	victim := a.pickVictim(ctx)
	whole, err := wan.ReadFile(a.cfg.Cluster.LatencyFile)
	if err != nil {
		return err
	}
	hurt, err := wan.ReadFile(a.cfg.Cluster.LatencyFile)
	if err != nil {
		return err
	}
	own, ok := nameOf(whole, victim.Addr)
	if !ok {
		return fmt.Errorf("latency file %s does not name node %s", a.cfg.Cluster.LatencyFile, victim.ID)
	}
	for name := range whole.Nodes {
		if name != own {
			hurt.Cut = append(hurt.Cut, []string{own, name})
		}
	}
	before := a.cfg.Cluster.Withheld(ctx)
	a.strike(ctx, p, own, victim.ID)
	if err := hurt.Save(a.cfg.Cluster.LatencyFile); err != nil {
		return err
	}
	err = pauseFor(ctx, a.cfg.Hold)
	if err == nil && a.cfg.Cluster.Withheld(ctx) == before {
		err = errors.New("the cut links withheld nothing")
	}
	err = errors.Join(err, whole.Save(a.cfg.Cluster.LatencyFile))
	p.Healed = time.Since(a.load.begin)
	return err
}

// loseNode kills a node that is primary of ranges, and starts it again at the
// end.
func (a *adversity) loseNode(ctx context.Context, p *AdversityPhase) error {
	victim := a.pickVictim(ctx)
	a.strike(ctx, p, fmt.Sprintf("%s in %s", victim.ID, victim.Region), victim.ID)
	// kill -9 loses what the process has not written, and its connections are
	// reset at once.
	if _, err := a.signal(victim.ID, syscall.SIGKILL); err != nil {
		return err
	}
	err := pauseFor(ctx, a.cfg.Hold)
	p.Healed = time.Since(a.load.begin)
	return errors.Join(err, a.startNode(victim.ID))
}

// loseRegion kills all nodes of the region of the metadata leader.
func (a *adversity) loseRegion(ctx context.Context, p *AdversityPhase) error {
	lead, region := a.metadataLeader(ctx), ""
	for _, n := range a.cfg.Cluster.Nodes {
		if n.ID == lead || region == "" {
			region = n.Region
		}
	}
	// Its keys of the table with copies in one region have no service until it
	// returns. That is what the table was created for, so they count in no
	// figure.
	victims := a.nodesIn(region)
	a.strike(ctx, p, region, victims...)
	for _, n := range victims {
		if _, err := a.signal(n, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return pauseFor(ctx, a.cfg.Hold)
}

// nodesIn returns the nodes of a region.
func (a *adversity) nodesIn(region string) (out []rhumb.NodeID) {
	for _, n := range a.cfg.Cluster.Nodes {
		if n.Region == region {
			out = append(out, n.ID)
		}
	}
	return out
}

// heal starts the nodes of the lost region, and holds the load once all is in
// sync.
func (a *adversity) heal(ctx context.Context, p *AdversityPhase) error {
	lost := a.report.Phases[len(a.report.Phases)-1].What
	p.What = lost
	for _, n := range a.nodesIn(lost) {
		if err := a.startNode(n); err != nil {
			return err
		}
	}
	for _, n := range a.nodesIn(lost) {
		if err := a.awaitBack(ctx, n); err != nil {
			return err
		}
	}
	// From here on, the rate must be that of the start again.
	p.From = time.Since(a.load.begin)
	return pauseFor(ctx, a.cfg.Hold)
}
