package memory

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// Source says where a limit comes from.
type Source string

// The sources of a limit.
const (
	FromMachine Source = "machine"
	FromCgroup2 Source = "cgroup v2"
	FromCgroup1 Source = "cgroup v1"
)

// fallback is the memory that is assumed where the system says nothing of it.
const fallback = 1 << 30

// Limit returns the memory in bytes that this process may use: that of the machine, or less where its control group allows less.
func Limit() (bytes int64, from Source) { return limitIn(os.DirFS("/")) }

func limitIn(root fs.FS) (bytes int64, from Source) {
	bytes, from = fallback, FromMachine
	if n, ok := machineMemory(root); ok {
		bytes = n
	}
	for _, line := range lines(root, "proc/self/cgroup") {
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
		// Within a container the path may be the host's while only its own group is mounted, at the root of the mount.
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			if n, ok := number(root, path.Join(mount, dir, file)); ok && n < bytes {
				bytes, from = n, source
			}
			if dir == "/" {
				break
			}
		}
	}
	return bytes, from
}

// machineMemory reads the memory of the machine.
func machineMemory(root fs.FS) (bytes int64, ok bool) {
	for _, line := range lines(root, "proc/meminfo") {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n << 10, err == nil && n > 0
		}
	}
	return 0, false
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

func lines(root fs.FS, name string) []string {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// number reads a file that holds one number; "max" is none.
func number(root fs.FS, name string) (n int64, ok bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil && n > 0
}

// Default is the memory that a node takes when nobody says how much: half of Limit, divided among the nodes that share the machine.
func Default(nodes int) int64 {
	limit, _ := Limit()
	return max(limit/2/int64(max(nodes, 1)), Least)
}
