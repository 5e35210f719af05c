package authority

import (
	"io/fs"
	"strconv"
	"syscall"
)

// inodeOf returns the number of a file, which is another one after the file was replaced.
func inodeOf(info fs.FileInfo) string {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return strconv.FormatUint(s.Ino, 10)
	}
	return ""
}
