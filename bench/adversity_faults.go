package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
// is among them, and its log is elsewhere from now on.
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
	return nil
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
