package inspect

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// A superseded generation stays in memory while a process has it mapped, and the image does not
// record which. The kernel does: /proc lists the mappings of every process. Processes of other
// users may hide theirs; those are reported as unreadable.

// Pin is a generation that a process has mapped.
type Pin struct {
	PID     int
	Command string
	// Dir is the image, and Slot the shard's entry in its root.
	Dir        string
	Slot       int
	Generation uint64
	Bytes      int64
	Inode      uint64
	// Superseded reports whether the generation is no longer live: only processes that have it
	// mapped keep its memory. Deleted reports whether its file has no name any more either.
	Superseded, Deleted bool
	// Since is how long ago at least the generation was superseded; 0 if that is unknown.
	Since time.Duration
	// Publisher reports whether the process is the one that publishes the image.
	Publisher bool
}

// Pins lists the generations that the processes of a machine have mapped.
type Pins struct {
	List []Pin
	// Unreadable are processes of other users, whose mappings this process may not see.
	Unreadable []int
	// PinnedBytes is the size of the superseded generations that processes other than their
	// publishers have mapped. Each file counts once.
	PinnedBytes int64
}

// FindPins searches /proc for processes that have generations of images under a folder mapped.
func FindPins(root string) (Pins, error) {
	const op rhumb.Op = "inspect.FindPins"
	root, err := filepath.Abs(root)
	if err != nil {
		return Pins{}, rhumb.Wrap(op, err)
	}
	// The kernel reports resolved paths.
	if real, err := filepath.EvalSymlinks(root); err == nil {
		root = real
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return Pins{}, fileError(op, err)
	}
	var p Pins
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A process may end at any moment, so any error except a denied permission means that it is
		// gone.
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		switch {
		case err == nil:
			p.List = append(p.List, pinsOf(pid, maps, root)...)
		case os.IsPermission(err):
			p.Unreadable = append(p.Unreadable, pid)
		}
	}
	p.judgePins()
	slices.SortFunc(p.List, func(a, b Pin) int {
		return cmp.Or(cmp.Compare(a.Dir, b.Dir), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Generation, b.Generation))
	})
	return p, nil
}

// pinsOf returns the pins of a process from its list of mappings. A file may be mapped in several
// pieces, whose sizes are added up.
func pinsOf(pid int, maps []byte, root string) (out []Pin) {
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		path := lines.Text()
		// The path is the last field and may contain spaces.
		if at := strings.Index(path, root+"/"); at < 0 {
			continue
		} else {
			path = path[at:]
		}
		// The kernel marks mappings of deleted files.
		path, deleted := strings.CutSuffix(path, " (deleted)")
		pin := Pin{PID: pid, Dir: filepath.Dir(path), Deleted: deleted}
		// The root and recycled files pin no generation.
		if n, _ := fmt.Sscanf(filepath.Base(path), "seg.%d.%d", &pin.Slot, &pin.Generation); n != 2 {
			continue
		}
		var from, to, offset uint64
		var perms, device string
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x %s %x %s %d", &from, &to, &perms, &offset, &device, &pin.Inode); n != 6 {
			continue
		}
		pin.Bytes = int64(to - from)
		// The pieces of a file follow each other in the list.
		if last := len(out) - 1; last >= 0 && out[last].Inode == pin.Inode {
			out[last].Bytes += pin.Bytes
			continue
		}
		out = append(out, pin)
	}
	if len(out) > 0 {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // it may have ended
		for i := range out {
			out[i].Command = strings.TrimSpace(string(command))
		}
	}
	return out
}

// judgePins determines which generations are superseded and since when, and adds up the memory that
// only readers keep.
func (p *Pins) judgePins() {
	roots := map[string][]byte{}
	counted := map[uint64]bool{}
	for i := range p.List {
		pin := &p.List[i]
		root, ok := roots[pin.Dir]
		if !ok {
			root, _ = os.ReadFile(filepath.Join(pin.Dir, format.RootName)) // without a root everything is superseded
			roots[pin.Dir] = root
		}
		live := uint64(0)
		if len(root) == format.RootSize {
			pin.Publisher = int(le.Uint32(root[format.RootPID:])) == pin.PID
			if s, used, err := format.DecodeShard(root[format.RootShards+pin.Slot*format.ShardEntrySize:]); err == nil && used {
				live = s.Generation
			}
		}
		// A deleted file may have the number of a live generation of a newer image in the same
		// directory.
		if pin.Superseded = pin.Deleted || live != pin.Generation; !pin.Superseded {
			continue
		}
		pin.Since = supersededSince(pin.Dir, pin.Slot, live)
		// Two readers of one file keep its memory only once. The publisher does not count: it
		// reuses the file once no reader has it mapped.
		if !pin.Publisher && !counted[pin.Inode] {
			counted[pin.Inode] = true
			p.PinnedBytes += pin.Bytes
		}
	}
}

// supersededSince returns the age of the live generation of a shard, which is when its predecessor
// was superseded: a file is created or renamed just before it replaces the previous generation. An
// older generation was superseded even earlier, so the result is a lower bound.
func supersededSince(dir string, slot int, live uint64) time.Duration {
	var st unix.Stat_t
	if live == 0 || unix.Stat(filepath.Join(dir, format.SegmentName(slot, live)), &st) != nil {
		return 0
	}
	return max(0, time.Since(time.Unix(st.Ctim.Unix())))
}
