package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// filesMin is the fewest open files with which a node can serve, filesWanted what it should
	// have: two for each table file of Pebble and one for each connection.
	filesMin    = 4_096
	filesWanted = 65_536
	// freeMin is the least room on a disk, in bytes, and freeShareWanted the wanted percentage.
	freeMin         = 1 << 30
	freeShareWanted = 10
	// filesFreeMin is the fewest new files that a disk must be able to hold.
	filesFreeMin = 10_000
	// syncWanted is the wanted median time to make a write durable, syncMax the greatest with which
	// writes are of use, and syncLie less than any disk takes.
	syncWanted = 10 * time.Millisecond
	syncMax    = 200 * time.Millisecond
	syncLie    = 5 * time.Microsecond
)

const machine = area(AreaMachine)

// checkOpenFiles looks at the hard limit. Every store keeps up to a thousand table files open,
// every client and peer is a connection, and a node that cannot open a file stops: the shells and
// containers of many distributions allow only 1,024.
func checkOpenFiles(f *Facts) []Finding {
	if f.Machine == nil {
		return nil
	}
	const check, remedy = "open files", "set LimitNOFILE=1048576 in the systemd unit, or `ulimit -n 1048576` in the shell that starts the node"
	// A node raises its soft limit to the hard one, as all Go programs do.
	n := f.Machine.FilesHard
	switch what := fmt.Sprintf("a process may open %d files (%d unless it asks for more)", n, f.Machine.FilesSoft); {
	case n < filesMin:
		return one(machine.wrong(check, what+fmt.Sprintf("; a node needs %d", filesMin), remedy))
	case n < filesWanted:
		return one(machine.warning(check, what+fmt.Sprintf("; a node under load wants %d", filesWanted), remedy))
	default:
		return one(machine.good(check, what))
	}
}

// checkMemory compares what the node and its image may use with what there is. The image is shared
// memory, which counts for the control group but not for --memory. Memory that is in use now is
// only a warning, because the node itself may be what uses it.
func checkMemory(f *Facts) []Finding {
	m := f.Machine
	if m == nil || m.MemoryLimit == 0 {
		return nil
	}
	const check = "memory"
	what := fmt.Sprintf("a node may use %s, and %s in shared memory; the %s has %s, of which %s are free",
		size(m.MemoryAsked), size(m.ImageBudget), m.LimitFrom, size(m.MemoryLimit), size(m.MemoryAvailable))
	switch {
	case m.MemoryAsked+m.ImageBudget > m.MemoryLimit:
		return one(machine.wrong(check, what, "lower --memory or --snapshot-budget: the kernel kills a node that needs more than there is"))
	case m.MemoryAsked > m.MemoryAvailable:
		return one(machine.warning(check, what, "lower --memory, or stop what uses the memory, unless that is the node itself"))
	}
	return one(machine.good(check, what))
}

// checkSwap warns of any swap. A node whose pages are on disk answers heartbeats late, and the
// other nodes take its primaries away although nothing has failed.
func checkSwap(f *Facts) []Finding {
	if f.Machine == nil {
		return nil
	}
	if n := f.Machine.SwapTotal; n > 0 {
		return one(machine.warning("swap", size(n)+" of swap: a node whose memory is on disk misses heartbeats", "run `swapoff -a` and remove swap from /etc/fstab, or set MemorySwapMax=0 in the systemd unit"))
	}
	return one(machine.good("swap", "no swap"))
}

// checkOvercommit warns of strict accounting. The Go runtime reserves address space that it never
// touches, which counts as used there, so a node fails to allocate while most memory is free.
func checkOvercommit(f *Facts) []Finding {
	if f.Machine == nil {
		return nil
	}
	if f.Machine.Overcommit == 2 {
		return one(machine.warning("overcommit", "vm.overcommit_memory is 2: the kernel refuses memory that is reserved and not used, as Go programs do", "run `sysctl -w vm.overcommit_memory=0` and keep it in /etc/sysctl.d"))
	}
	return one(machine.good("overcommit", fmt.Sprintf("vm.overcommit_memory is %d", f.Machine.Overcommit)))
}

// checkHugePages looks at transparent huge pages for the memory of the node and, if the node asks
// for them, for its image. The setting for all memory makes the kernel copy pages together in the
// middle of requests. Images have their own setting, an option of the mount.
func checkHugePages(f *Facts) []Finding {
	m := f.Machine
	if m == nil {
		return nil
	}
	const check = "huge pages"
	out := []Finding{}
	switch m.HugePages {
	case "":
		out = append(out, machine.skipped(check, "the kernel has no transparent huge pages"))
	case "always":
		out = append(out, machine.warning(check, "transparent huge pages are used for all memory, which grows that of a node and stalls it while the kernel makes them", "run `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` at boot"))
	default:
		out = append(out, machine.good(check, "transparent huge pages: "+m.HugePages))
	}
	if !m.WantsHugePages {
		return out
	}
	mounted := f.Shm != nil && slices.ContainsFunc(f.Shm.Mount.Options, func(o string) bool {
		return slices.Contains([]string{"huge=advise", "huge=always", "huge=within_size"}, o)
	})
	if !mounted && m.HugePagesShm != "force" {
		return append(out, machine.warning("huge pages of images", "--snapshot-huge-pages has no effect: the mount of the folder for images does not allow huge pages", "run `mount -o remount,huge=advise /dev/shm`, or mount a tmpfs with huge=advise for --snapshot-dir"))
	}
	return append(out, machine.good("huge pages of images", "the mount allows huge pages"))
}

// checkShm looks at the folder for images. An image has to fit next to the version that readers
// still hold; its budget covers both.
func checkShm(f *Facts) []Finding {
	s := f.Shm
	if s == nil {
		return nil
	}
	const shm = area(AreaShm)
	out := []Finding{}
	add := func(f Finding) { out = append(out, f) }
	where := fmt.Sprintf("%s is on %s (%s)", s.Dir, s.Mount.At, s.Mount.Kind)
	switch {
	case s.Err != "":
		add(shm.wrong("folder", s.Dir+": "+s.Err, "create the folder for the user of the node: `install -d -o rhumb -g rhumb -m 0755 "+s.Dir+"`"))
	case s.Mount.Kind != "tmpfs" && s.Mount.Kind != "hugetlbfs":
		add(shm.warning("file system", where+": every version of the image is written to a disk", "choose a --snapshot-dir on a tmpfs, such as /dev/shm/rhumb"))
	default:
		add(shm.good("folder", where))
	}
	if slices.Contains(s.Mount.Options, "ro") {
		add(shm.wrong("mount", s.Mount.At+" is mounted read-only", "run `mount -o remount,rw "+s.Mount.At+"`; in a container, mount a writable tmpfs there"))
	}
	// With the sticky bit, as on /dev/shm itself, others may add files there but not replace those
	// of the node.
	if s.Exists && s.Mode&0o022 != 0 && s.Mode&0o1000 == 0 {
		add(shm.wrong("permissions", fmt.Sprintf("others may write %s (mode %04o) and could replace an image", s.Dir, s.Mode), "run `chmod 755 "+s.Dir+"`"))
	}
	switch what := fmt.Sprintf("%s of %s are free; an image may have %s", size(s.Free), size(s.Size), size(s.ImageBudget)); {
	// The size of the file system is unknown, so nothing can be judged.
	case s.Size == 0:
	case s.Size < s.ImageBudget:
		add(shm.wrong("size", what, fmt.Sprintf("run `mount -o remount,size=%d %s`, or lower --snapshot-budget", 2*s.ImageBudget, s.Mount.At)))
	case s.Free < s.ImageBudget:
		add(shm.warning("size", what, "remove what fills "+s.Mount.At+", unless that is the image of the node itself"))
	default:
		add(shm.good("size", what))
	}
	return out
}

const disk = area(AreaDisk)

// directoryRemedy says what to do about a directory in which the test file cannot be written. The cause is a text of the system,
// because facts may come from a machine whose error numbers differ.
func directoryRemedy(d *Disk) string {
	switch {
	case strings.Contains(d.Err, "no space left"), strings.Contains(d.Err, "quota exceeded"):
		return "make room in it, or name another --dir: not even a small file fits"
	case strings.Contains(d.Err, "read-only file system"):
		return "look at the log of the kernel for errors of the disk; if there are none, `mount -o remount,rw` the file system"
	}
	return "create the directory for the user of the node: `install -d -o rhumb -g rhumb -m 0700 " + d.Dir + "`"
}

// checkDisks looks at each data directory. A directory that does not exist is created by the node,
// so only the place where it will be has to be usable.
func checkDisks(f *Facts) []Finding {
	out := []Finding{}
	for i := range f.Disks {
		d := &f.Disks[i]
		if d.Err != "" {
			out = append(out, disk.wrong("directory", d.Dir+": "+d.Err, directoryRemedy(d)))
			continue
		}
		out = append(out, checkFileSystem(d), checkRoom(d), checkSync(d))
		if d.Exists && d.Mode&0o077 != 0 {
			out = append(out, disk.warning("permissions", fmt.Sprintf("others may look into %s (mode %04o), which holds records and keys", d.Dir, d.Mode), "run `chmod 700 "+d.Dir+"`"))
		}
	}
	return out
}

// localKinds are file systems whose syncs are known to reach the disk.
var localKinds = []string{"ext4", "ext3", "ext2", "xfs", "btrfs", "zfs", "f2fs", "apfs"}

// checkFileSystem judges where the data will be. Rhumb acknowledges a write when a sync has
// returned, so the file system has to keep that promise, and to keep the data at all.
func checkFileSystem(d *Disk) Finding {
	const check = "file system"
	what := fmt.Sprintf("%s is on %s (%s)", d.Dir, d.Mount.At, d.Mount.Kind)
	switch {
	case slices.Contains(d.Mount.Options, "ro"):
		return disk.wrong(check, what+", which is mounted read-only", "run `mount -o remount,rw "+d.Mount.At+"`, after `dmesg` has said why it is read-only")
	case d.Mount.Kind == "tmpfs" || d.Mount.Kind == "ramfs":
		return disk.wrong(check, what+": it forgets everything when the machine restarts", "choose a --dir on a disk")
	// Warned of and not refused: some of these keep their promises, and it is the operator who
	// knows.
	case strings.HasPrefix(d.Mount.Kind, "nfs") || slices.Contains([]string{"cifs", "smb3", "9p", "ceph", "glusterfs"}, d.Mount.Kind) || strings.HasPrefix(d.Mount.Kind, "fuse"):
		return disk.warning(check, what+", which another machine provides: a node stalls whenever that one does", "choose a --dir on a disk of this machine")
	case d.Mount.Kind == "overlay":
		return disk.warning(check, what+", the layer of a container: it goes away with the container", "mount a volume for --dir")
	case !slices.Contains(localKinds, d.Mount.Kind):
		return disk.warning(check, what+", which was not tried with Rhumb", "ext4 and XFS are known to work")
	}
	return disk.good(check, what)
}

// checkRoom warns long before a node refuses writes, because new table files are written before the
// old ones are removed.
func checkRoom(d *Disk) Finding {
	const check, remedy = "room", "make room or choose a larger disk: a node refuses writes before its disk is full"
	what := fmt.Sprintf("%s has %s of %s free", d.Dir, size(d.Free), size(d.Size))
	switch {
	case d.Free < freeMin:
		return disk.wrong(check, what, remedy)
	// File systems without a table of inodes report zero, which is not a lack.
	case d.FilesFree > 0 && d.FilesFree < filesFreeMin:
		return disk.wrong(check, fmt.Sprintf("%s can hold %d more files", d.Dir, d.FilesFree), "remove files, or make a file system with more inodes")
	case d.Size > 0 && d.Free < d.Size/100*freeShareWanted:
		return disk.warning(check, what+fmt.Sprintf(", less than %d %%", freeShareWanted), remedy)
	}
	return disk.good(check, what)
}

// checkSync judges how long a write takes to become durable. All writes wait for it, and a primary
// waits for the slowest of its in-sync secondaries, so the slowest sync counts too.
func checkSync(d *Disk) Finding {
	const check = "sync"
	if d.SyncMedian == 0 {
		return disk.skipped(check, "the time of a sync was not measured in "+d.Dir)
	}
	what := fmt.Sprintf("a write to %s is durable after %v (median), %v (slowest)", d.Dir, round(d.SyncMedian), round(d.SyncSlowest))
	switch {
	case d.SyncMedian > syncMax:
		return disk.wrong(check, what, "use a disk that syncs within 10 ms: every write waits for the disks of all in-sync copies")
	case d.SyncMedian > syncWanted || d.SyncSlowest > syncMax:
		return disk.warning(check, what, "use a disk that syncs within 10 ms, and let nothing else write to it")
	case d.SyncMedian < syncLie && d.Mount.Kind != "tmpfs":
		return disk.warning(check, what+", faster than a disk can be", "check that the disk honours flushes: without them, a loss of power loses acknowledged writes")
	}
	return disk.good(check, what)
}

// checkSharedDisks finds data directories on one file system.
func checkSharedDisks(f *Facts) []Finding {
	out := []Finding{}
	for i := range f.Disks {
		// Each pair once.
		for j := range i {
			a, b := &f.Disks[j], &f.Disks[i]
			if a.Err == "" && b.Err == "" && a.Device == b.Device && a.Device != 0 {
				out = append(out, disk.warning("separate disks", a.Dir+" and "+b.Dir+" are on one file system: they fail and fill together", "give each --dir a disk of its own, or use one --dir"))
			}
		}
	}
	return out
}

// size writes bytes for people.
func size(n int64) string {
	const unit = 1 << 10
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	div, exp := int64(unit), 0
	for n/div >= unit && exp < 5 {
		div *= unit
		exp++
	}
	return fmt.Sprintf("%.1f %ciB", float64(n)/float64(div), "KMGTPE"[exp])
}

// round shortens a duration to three digits.
func round(d time.Duration) time.Duration {
	switch {
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	case d > time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(10 * time.Nanosecond)
}
