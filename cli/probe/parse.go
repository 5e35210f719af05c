package probe

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rhumbdb/rhumb/cli/doctor"
)

// memInfo parses /proc/meminfo into bytes by name.
func memInfo(text string) map[string]int64 {
	fields := map[string]int64{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		words := strings.Fields(rest)
		if len(words) == 0 {
			continue
		}
		n, err := strconv.ParseInt(words[0], 10, 64)
		if err != nil {
			continue
		}
		if len(words) > 1 && words[1] == "kB" {
			n <<= 10
		}
		fields[name] = n
	}
	return fields
}

// bracketed returns the selected word of a setting of the kernel, such as madvise in "always
// [madvise] never".
func bracketed(text string) string {
	_, text, _ = strings.Cut(text, "[")
	word, _, found := strings.Cut(text, "]")
	if !found {
		return ""
	}
	return word
}

// parseMounts parses /proc/self/mountinfo. Later mounts hide earlier ones at the same place.
func parseMounts(text string) []doctor.Mount {
	var mounts []doctor.Mount
	for line := range strings.Lines(text) {
		// 36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/sda rw,errors=continue
		before, after, found := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !found || len(left) < 6 || len(right) < 1 {
			continue
		}
		m := doctor.Mount{Kind: right[0], At: unescape(left[4]), Options: strings.Split(left[5], ",")}
		if len(right) > 2 {
			m.Options = append(m.Options, strings.Split(right[2], ",")...)
		}
		mounts = append(mounts, m)
	}
	return mounts
}

// unescape replaces the octal escapes of spaces and the like in a path.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountOf returns the mount that holds a path.
func mountOf(path string, mounts []doctor.Mount) (best doctor.Mount) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	for _, m := range mounts {
		// Compared by whole components: /data2 is not inside /data.
		inside := m.At == "/" || path == m.At || strings.HasPrefix(path, m.At+"/")
		// The longest mount point wins, and of equal ones the later, which hides the earlier.
		if inside && len(m.At) >= len(best.At) {
			best = m
		}
	}
	return best
}
