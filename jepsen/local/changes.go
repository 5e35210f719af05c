package local

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// The faults of this file are none: they are what operators do while clients write.
// Every promise holds meanwhile.

// changeFaults returns the changes that an operator makes.
func changeFaults() []Fault {
	return []Fault{
		{"handover", "F51", "ranges are handed over from node to node, one after the other", gapFailover, strikeHandover},
		{"split", "F51", "ranges are split in two, one after the other", gapFailover, strikeSplit},
		{"drain", "F52", "one node is drained, and takes its ranges back when the fault ends", gapFailover, strikeDrain},
		{"rotate", "F58", "the key of gossip is replaced, again and again", gapFailover, strikeRotate},
	}
}

const (
	// changePause is the time between two changes.
	changePause = 100 * time.Millisecond
	// changesMost bounds the changes of one fault, so that a long run does not make
	// ranges without end.
	changesMost = 40
)

// keepChanging repeats a change until the strike ends. change reports whether it
// did anything; a refusal is none, because another change may be in progress. The
// evidence is the number of changes.
func keepChanging(ctx context.Context, what, unit string, change func(context.Context) (done bool, err error)) *Strike {
	changing, stop := context.WithCancel(ctx)
	var count int
	done := make(chan error, 1)
	go func() {
		var err error
		for err == nil && changing.Err() == nil && count < changesMost {
			var changed bool
			// Not under changing: a change that has begun is carried out, and
			// counted.
			if changed, err = change(ctx); changed {
				count++
			}
			_ = wait(changing, changePause)
		}
		done <- err
	}()
	return &Strike{What: what, heal: func(context.Context) (string, error) {
		stop()
		err := <-done
		if err == nil && count == 0 {
			err = fmt.Errorf("%w: nothing was changed", errNoEffect)
		}
		return fmt.Sprintf("%d %s", count, unit), err
	}}
}

// with returns a strike that does what s does, and in the same time what an
// operator does. The evidence of s counts: a change may be impossible during a
// fault.
func (s *Strike) with(ctx context.Context, c *Cluster, random *rand.Rand) *Strike {
	changes := changeFaults()
	change, err := changes[random.IntN(len(changes))].strike(ctx, c, random)
	if err != nil {
		return s
	}
	return s.and(change)
}

// and returns a strike that heals both. A refused change does not count as a failure.
func (s *Strike) and(change *Strike) *Strike {
	return &Strike{What: s.What + " + " + change.What, heal: func(ctx context.Context) (string, error) {
		evidence, err := s.heal(ctx)
		changed, failed := change.heal(ctx)
		if failed != nil && !errors.Is(failed, errNoEffect) && !isRefusal(failed) {
			err = errors.Join(err, failed)
		}
		return evidence + "; " + changed, err
	}}
}

// isRefusal reports whether a change was refused for a reason that passes.
func isRefusal(err error) bool {
	k := rhumb.KindOf(err)
	return k == rhumb.Conflict || k == rhumb.Unavailable || k == rhumb.Overloaded || k == rhumb.DeadlineExceeded || k == rhumb.Unknown
}

// strikeHandover moves primaries by handovers. Each pauses the writes of one range
// for a moment, and loses none.
func strikeHandover(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	return keepChanging(ctx, "handover", "handovers", func(ctx context.Context) (bool, error) {
		ranges := c.operator.Ranges()
		r := ranges[random.IntN(len(ranges))]
		others := slices.DeleteFunc(slices.Clone(r.InSync), func(id rhumb.NodeID) bool { return id == r.Primary })
		if len(others) == 0 {
			return false, nil
		}
		to := others[random.IntN(len(others))]
		before, err := c.operator.HandOverRange(ctx, r.ID, to)
		if err != nil {
			if isRefusal(err) {
				err = nil
			}
			return false, err
		}
		// A handover that takes too long is cancelled, which shows in the record
		// too.
		now, err := c.awaitRange(ctx, r.ID, func(r *rhumb.Range) bool { return r.Version >= before.Version && r.Prepared == nil })
		return err == nil && now.Primary == to, err
	}), nil
}

// splitMost bounds the ranges of the cluster, so that a long run does not make
// ranges without end.
const splitMost = 600

// maySplit returns an error if a cluster has as many ranges as splits may make.
func maySplit(count int) error {
	if count >= splitMost {
		return fmt.Errorf("%w: there are %d ranges already, and splits make no more than %d", errNoEffect, count, splitMost)
	}
	return nil
}

// strikeSplit splits ranges in the middle. Writes go to both halves afterwards, and
// each request is applied once.
func strikeSplit(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	if err := maySplit(len(c.operator.Ranges())); err != nil {
		return nil, err
	}
	return keepChanging(ctx, "split", "splits", func(ctx context.Context) (bool, error) {
		wide := slices.DeleteFunc(c.operator.Ranges(), func(r *rhumb.Range) bool { return r.Last <= r.ID.Slot || r.Birth != 0 })
		if len(wide) == 0 {
			return false, nil
		}
		r := wide[random.IntN(len(wide))]
		born, err := c.operator.SplitRange(ctx, r.ID, 0)
		if err != nil {
			if isRefusal(err) {
				err = nil
			}
			return false, err
		}
		limited, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		_, err = c.operator.AwaitSplit(limited, born)
		// A fault that lasts longer than the primary tries has the split given up.
		if rhumb.KindOf(err) == rhumb.Conflict {
			return false, nil
		}
		return err == nil, err
	}), nil
}

// awaitRange waits until f holds for a range, and returns its record.
func (c *Cluster) awaitRange(ctx context.Context, id rhumb.RangeID, f func(*rhumb.Range) bool) (*rhumb.Range, error) {
	var found *rhumb.Range
	err := eventually(ctx, func() error {
		ranges := c.operator.Ranges()
		i := slices.IndexFunc(ranges, func(r *rhumb.Range) bool { return r.ID == id && f(r) })
		if i < 0 {
			return fmt.Errorf("a change of range %s is not over after %v", id, patience)
		}
		found = ranges[i]
		return nil
	})
	return found, err
}

// strikeDrain drains a node: others take over its ranges by handovers, and it gets
// them back afterwards.
func strikeDrain(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	// A node that has just started is primary of nothing, so a drain of it moves
	// nothing. It is not made primary first: during another fault it may be dead.
	primaries := slices.DeleteFunc(slices.Clone(c.nodes), func(n *Node) bool { return c.primaries(c.identity(n).Node) == 0 })
	if len(primaries) == 0 {
		return nil, fmt.Errorf("%w: no node is primary of a range", errNoEffect)
	}
	n := primaries[random.IntN(len(primaries))]
	id := c.identity(n).Node
	before := c.primaries(id)
	if _, err := c.operator.Drain(ctx, id, false); err != nil {
		return nil, err
	}
	return &Strike{What: "drain " + n.Name, heal: func(ctx context.Context) (string, error) {
		left := c.primaries(id)
		_, err := c.operator.Drain(ctx, id, true)
		if err == nil {
			err = checkDrained(n.Name, before, left)
		}
		return fmt.Sprintf("%d ranges left the node", before), err
	}}, nil
}

// primaries counts the ranges whose primary is a node.
func (c *Cluster) primaries(id rhumb.NodeID) (count int) {
	for _, r := range c.operator.Ranges() {
		if r.Primary == id {
			count++
		}
	}
	return count
}

// strikeRotate replaces the key of gossip.
func strikeRotate(ctx context.Context, c *Cluster, _ *rand.Rand) (*Strike, error) {
	last, _, _, err := c.operator.GossipKeys(ctx)
	if err != nil {
		return nil, err
	}
	return keepChanging(ctx, "rotate", "keys", func(ctx context.Context) (bool, error) {
		now, err := c.operator.RotateGossipKeys(ctx)
		if isRefusal(err) {
			return false, nil
		}
		changed := err == nil && now.Version > last
		last = max(last, now.Version)
		return changed, err
	}), nil
}
