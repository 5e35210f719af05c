package wan

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
)

// recorder writes what one direction of a connection carries between two regions to a file of its own, before the link
// delays it. Each connection has files of its own, because bytes of two connections in one file would tear what
// passed on either. The folder is that of the latency file at the moment of the first byte.
type recorder struct {
	link *link
	once sync.Once
	file *os.File
}

// recordings numbers the files of this process.
var recordings atomic.Uint64

// note records bytes. A recording that fails is worse than none, because a test would take silence for proof: the process
// ends.
func (r *recorder) note(b []byte) {
	dir := r.link.recordDir()
	if dir == "" || len(b) == 0 {
		return
	}
	r.once.Do(func() {
		name := fmt.Sprintf("%s--%s.%d.%d", r.link.from, r.link.to, os.Getpid(), recordings.Add(1))
		f, err := os.Create(filepath.Join(dir, strings.ReplaceAll(name, "/", "_")))
		if err != nil {
			panic("wan: cannot record: " + err.Error())
		}
		r.file = f
	})
	if _, err := r.file.Write(b); err != nil {
		panic("wan: cannot record: " + err.Error())
	}
}

// recordDir returns the folder of recordings, or "" if this link is not recorded: within a region nothing is.
func (l *link) recordDir() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.from == l.to {
		return ""
	}
	return l.record
}

// setRecord changes the folder of recordings.
func (l *link) setRecord(dir, from, to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record, l.from, l.to = dir, from, to
}
