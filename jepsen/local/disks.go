package local

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb/bench/disk"
	"github.com/rhumbdb/rhumb/deploy/hosts"
)

// diskFaults returns the faults of disks that work badly.
func diskFaults() []Fault {
	return []Fault{
		{"stall", "F34", "the disk of one node answers nothing", gapSlow, strikeStall},
		{"slow-disk", "F34", "the disk of one node answers nothing for 100 ms out of each 120", gapSlow, strikeSlowDisk},
		{"full", "F35", "the disk of one node is full, or nearly so", gapSlow, strikeFull},
		{"read-error", "F33", "the disk of one node refuses all reads, or a part of them, while the node runs or when it starts", gapSlow, strikeReadError},
		{"lost-store", "F36", "one of the two stores of a node is lost; it starts without it", gapFailover, strikeLostStore},
	}
}

// ownDisks reports whether a fault needs a disk for each node.
func (f Fault) ownDisks() bool { return f.Name == "stall" || f.Name == "slow-disk" || f.Name == "full" }

// mountDisk mounts a disk of its own for a host. The host is restarted, because it
// binds its folders at its start.
func (c *Cluster) mountDisk(ctx context.Context, h *hosts.Host) error {
	if err := h.Kill(); err != nil {
		return err
	}
	if _, err := disk.Mount(ctx, c.diskImage(h), h.DataDir(dataDir)); err != nil {
		return err
	}
	return h.Start()
}

// diskImage is the file with the disk of a host, if it has one.
func (c *Cluster) diskImage(h *hosts.Host) string { return filepath.Join(c.cfg.Dir, "disk-"+h.Name()) }

// unmountDisk takes the disk of a host away, if it has one, and removes its file. The
// host is down.
func (c *Cluster) unmountDisk(ctx context.Context, h *hosts.Host) error {
	return disk.At(c.diskImage(h), h.DataDir(dataDir)).Remove(ctx)
}

// ownDisk is the disk of a node, for freezing it. Its file is not known here, so it
// cannot be removed.
func (n *Node) ownDisk() disk.Disk { return disk.At("", n.disk()) }

// stalledLeast is how long a write must have waited for a disk that was stalled or
// slow.
const stalledLeast = 50 * time.Millisecond

// strikeStall freezes the disk of a node. The node cannot acknowledge anything, and
// must not keep others from doing so.
func strikeStall(_ context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	return n.strikeFreeze("stall "+n.Name, 0, 0)
}

// The disk of a slow node answers nothing for slowFrozen, and everything for
// slowThawed, in turn.
const (
	slowFrozen = 100 * time.Millisecond
	slowThawed = 20 * time.Millisecond
)

// strikeSlowDisk freezes and thaws the disk of a node in turn.
func strikeSlowDisk(_ context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	return n.strikeFreeze("slow-disk "+n.Name, slowFrozen, slowThawed)
}

// strikeFreeze freezes the disk until the strike ends, or in turn if thawed is not 0.
// The evidence is how long writes of its own took.
func (n *Node) strikeFreeze(what string, frozen, thawed time.Duration) (*Strike, error) {
	stopGuard, err := n.ownDisk().Guard()
	if err != nil {
		return nil, err
	}
	if err := n.ownDisk().Freeze(); err != nil {
		stopGuard()
		return nil, err
	}
	// The probe cannot be interrupted while the disk is frozen, so it ends after the
	// last thaw.
	var writes, sum, longest atomic.Int64
	// Not of the context of the caller: an interrupted run thaws the disk too.
	ending, end := context.WithCancel(context.Background())
	probed, pulsed := make(chan error, 1), make(chan error, 1)
	go func() {
		for {
			took, err := n.ownDisk().Probe()
			writes.Add(1)
			sum.Add(int64(took))
			longest.Store(max(longest.Load(), int64(took)))
			if err != nil || ending.Err() != nil {
				probed <- err
				return
			}
			// Few probes: they must not be the load of the disk themselves.
			_ = wait(ending, pollWait)
		}
	}()
	go func() { pulsed <- n.pulse(ending, frozen, thawed) }()
	return &Strike{What: what, heal: func(context.Context) (string, error) {
		end()
		err := errors.Join(<-pulsed, n.ownDisk().Thaw())
		stopGuard()
		err = errors.Join(err, <-probed)
		if err == nil {
			err = checkStalled(time.Duration(longest.Load()))
		}
		return fmt.Sprintf("%d other writes took %v on average and %v at most", writes.Load(),
			(time.Duration(sum.Load()) / time.Duration(writes.Load())).Round(time.Millisecond), time.Duration(longest.Load()).Round(time.Millisecond)), err
	}}, nil
}

// pulse thaws and freezes a frozen disk in turn until ctx ends, and leaves it frozen.
// Without thawed, it stays frozen.
func (n *Node) pulse(ctx context.Context, frozen, thawed time.Duration) error {
	if thawed == 0 {
		<-ctx.Done()
		return nil
	}
	for wait(ctx, frozen) == nil {
		if err := n.ownDisk().Thaw(); err != nil {
			return err
		}
		_ = wait(ctx, thawed)
		if err := n.ownDisk().Freeze(); err != nil {
			return err
		}
	}
	return nil
}

// fullLeft holds how much of a full disk is left, in parts of its size: nothing, and
// less than the node needs to take entries.
var fullLeft = []float64{0, 0.02}

// strikeFull fills the disk of a node with a file of somebody else. The node must
// refuse writes that it cannot store, and others continue without it.
func strikeFull(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	// A disk without a free byte and one with a little are different states of a node.
	n := draw(c, random)
	left := fullLeft[random.IntN(len(fullLeft))]
	filler := filepath.Join(n.disk(), "lost+found", "filler")
	if err := n.fill(filler, left); err != nil {
		return nil, errors.Join(err, os.Remove(filler))
	}
	return &Strike{What: fmt.Sprintf("full %s, %.0f %% left", n.Name, 100*left), heal: func(ctx context.Context) (string, error) {
		why, err := c.refusal(ctx, n)
		return why, errors.Join(err, os.Remove(filler))
	}}, nil
}

// fill writes a file that leaves a part of the disk free.
func (n *Node) fill(name string, left float64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(n.disk(), &fs); err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	size := int64(fs.Bavail)*fs.Bsize - int64(left*disk.Size)
	err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	// The node writes meanwhile, and the tree of the file itself needs space too.
	if errors.Is(err, unix.ENOSPC) {
		return nil
	}
	return err
}

// refusal returns why the stores of a node refuse writes, and an error if they do not.
// A node that does not answer was stopped by its disk, which is an effect too.
func (c *Cluster) refusal(ctx context.Context, n *Node) (string, error) {
	// Only the node itself knows its stores.
	return checkRefusal(n.Name, c.identity(n).Node, c.operator.Status(ctx))
}

// secondStore is the second directory of a node.
const secondStore = dataDir + "/second"

// strikeLostStore removes the second store of a node. An operator who knows that it is
// lost starts the node without it: the node begins a new life, and the copies in that
// store are made again.
func strikeLostStore(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	if err := n.install(ctx, argsFile, "root", "0644", c.defaultArgs("--accept-lost-store 2")); err != nil {
		return nil, err
	}
	s, err := strikeDisk(ctx, c, n, "lost-store", func(context.Context) (string, error) {
		return n.loseSecond()
	})
	if err != nil {
		return nil, err
	}
	return &Strike{What: s.What, heal: func(ctx context.Context) (string, error) {
		evidence, err := s.heal(ctx)
		// The node refuses to start with the flag again.
		return evidence, errors.Join(err, n.install(ctx, argsFile, "root", "0644", c.defaultArgs("")))
	}}, nil
}

// loseSecond empties the folder of the second store.
func (n *Node) loseSecond() (string, error) {
	dir := filepath.Join(n.disk(), strings.TrimPrefix(secondStore, dataDir))
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if len(entries) == 0 {
		return "", fmt.Errorf("%w: %s is empty", errNoEffect, dir)
	}
	// The folder stays, as the mount point of a disk does.
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return fmt.Sprintf("%d files and folders lost", len(entries)), err
}

// diskFile is the file on a host with the error of the node's disk (`rhumb start --disk-error-file`). No file system of this machine returns errors on
// request, so the error is one of the process.
const diskFile = "/etc/rhumb/disk"

// readNotice is the message in the log of a node about reads that its disk refused, which it writes once a second at most.
const readNotice = "the disk refused a read"

// readShares holds the shares of the reads that fail, from a disk that is gone to one with bad spots. A node that runs reads too little for the last
// one to hit a read for sure, and a node that starts reads some dozens of blocks.
var readShares = []string{"1", "0.5", "0.05"}

// strikeReadError lets reads of a disk fail until the strike ends, from a start of the node on, or after it. In both cases the node is killed, because
// what it keeps in memory needs no reads.
func strikeReadError(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n, runs := draw(c, random), random.IntN(2) == 0
	shares := readShares
	if runs {
		shares = shares[:2]
	}
	share := shares[random.IntN(len(shares))]
	before, err := n.logged(readNotice)
	if err != nil {
		return nil, err
	}
	lives := c.lives(n)
	if err := c.breakReads(ctx, n, share, runs); err != nil {
		return nil, errors.Join(err, c.mendReads(context.WithoutCancel(ctx), n))
	}
	what := fmt.Sprintf("read-error %s, share %s, of a node that %s", n.Name, share, map[bool]string{true: "runs", false: "starts"}[runs])
	return &Strike{What: what, heal: func(ctx context.Context) (string, error) {
		after, err := n.logged(readNotice)
		if err == nil {
			err = checkLogged(n.Name, "a read was refused", before, after)
		}
		if err := errors.Join(err, c.mendReads(ctx, n)); err != nil {
			return "", err
		}
		lived, err := c.awaitLife(ctx, lives)
		return fmt.Sprintf("reads were refused in %d seconds; %s", after-before, lived), err
	}}, nil
}

// breakReads restarts a node with the flag for errors of its disk, and lets reads fail, after the start if runs is set.
func (c *Cluster) breakReads(ctx context.Context, n *Node, share string, runs bool) error {
	// Only the node of the fault has the flag: with it the node reads from its disk what others have in their caches.
	if err := n.install(ctx, argsFile, "root", "0644", c.defaultArgs("--disk-error-file "+diskFile)); err != nil {
		return err
	}
	lives := c.lives(n)
	fail := func() error { return n.install(ctx, diskFile, "root", "0644", "read-errors="+share) }
	if !runs {
		if err := fail(); err != nil {
			return err
		}
	}
	if err := n.signal(ctx, "KILL"); err != nil || !runs {
		return err
	}
	if _, err := c.awaitLife(ctx, lives); err != nil {
		return err
	}
	// A node that has just started is primary of nothing for half a minute. Secondaries only write, so nobody would read from the disk.
	if err := c.makePrimary(ctx, n); err != nil {
		return err
	}
	return fail()
}

// makePrimary hands a range over to a node, unless it is primary of one.
func (c *Cluster) makePrimary(ctx context.Context, n *Node) error {
	return eventually(ctx, func() error {
		id := c.identity(n).Node
		if c.primaries(id) > 0 {
			return nil
		}
		why := fmt.Errorf("%s is in sync in no range after %v", n.Name, patience)
		for _, r := range c.operator.Ranges() {
			if !slices.Contains(r.InSync, id) {
				continue
			}
			why = fmt.Errorf("%s is primary of no range after %v", n.Name, patience)
			if _, err := c.operator.HandOverRange(ctx, r.ID, id); err == nil || !isRefusal(err) {
				return errors.Join(why, err)
			}
		}
		return why
	})
}

// mendReads ends the errors of reads. The flag goes with the next restart.
func (c *Cluster) mendReads(ctx context.Context, n *Node) error {
	return errors.Join(n.install(ctx, diskFile, "root", "0644", ""), n.install(ctx, argsFile, "root", "0644", c.defaultArgs("")))
}
