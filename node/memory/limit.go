package memory

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// Source is the origin of a limit.
type Source string

// The sources of a limit.
const (
	FromMachine Source = "machine"
	FromCgroup2 Source = "cgroup v2"
	FromCgroup1 Source = "cgroup v1"
)

// fallback is the assumed memory of a system that does not report it.
const fallback = 1 << 30

// Limit returns the memory in bytes that this process may use: that of the machine, or less if its
// control group allows less.
func Limit() (bytes int64, from Source) { return limitIn(os.DirFS("/")) }

// limitIn is Limit for a given root file system, for tests.
func limitIn(root fs.FS) (bytes int64, from Source) {
	bytes, from = fallback, FromMachine
	if n, ok := machineMemory(root); ok {
		bytes = n
	}
	for _, line := range readLines(root, "proc/self/cgroup") {
		parts := strings.SplitN(line, ":", 3) // number, controllers, path
		if len(parts) != 3 {
			continue
		}
		mount, file, source := "sys/fs/cgroup", "memory.max", FromCgroup2
		if parts[1] != "" {
			mount, file, source = "sys/fs/cgroup/memory", "memory.limit_in_bytes", FromCgroup1
			if !hasWord(parts[1], "memory") {
				continue
			}
		}
		// In a container the path may be the host's while only the container's own group is
		// mounted, at the root of the mount.
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			// Every ancestor may impose a lower limit, so the walk continues to the root.
			if n, ok := readNumber(root, path.Join(mount, dir, file)); ok && n < bytes {
				bytes, from = n, source
			}
			if dir == "/" {
				break
			}
		}
	}
	return bytes, from
}

// machineMemory returns the memory of the machine.
func machineMemory(root fs.FS) (bytes int64, ok bool) {
	for _, line := range readLines(root, "proc/meminfo") {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			// The file counts in KiB.
			return n << 10, err == nil && n > 0
		}
	}
	return 0, false
}

// hasWord reports whether a list separated by commas contains word.
func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// readLines returns the lines of a file, or nil if it cannot be read.
func readLines(root fs.FS, name string) []string {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// readNumber returns the number in a file. It returns false for other content, such as "max", which
// means no limit.
func readNumber(root fs.FS, name string) (n int64, ok bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil && n > 0
}

// Default returns the memory of a node that is started without a limit: half of Limit, divided by
// the number of nodes on the machine.
func Default(nodes int) int64 {
	limit, _ := Limit()
	return max(limit/2/int64(max(nodes, 1)), Least)
}
