// Package live finds the running `rhumb demo` for the example programs: the addresses of its nodes, and the image in shared
// memory that holds a table.
package live

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rhumbdb/rhumb/demo"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// Demo gives the layout of the demo that runs on this machine.
func Demo() (*demo.Layout, error) {
	path := demo.ContextPath()
	l, err := demo.ReadLayout(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !l.Running() {
		return nil, errors.New("no demo runs here; start one with `rhumb demo --latency none`")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// Addrs gives the addresses of its nodes.
func Addrs(l *demo.Layout) (addrs []string) {
	for _, n := range l.Nodes {
		addrs = append(addrs, n.Addr)
	}
	return addrs
}

// Image gives the directory of the image that holds the most records of a table, among those of all nodes of a demo: each
// node publishes the ranges it has a replica of.
func Image(l *demo.Layout, table string) (string, error) {
	cluster := filepath.Join(l.SnapshotDir, l.ClusterID)
	nodes, err := os.ReadDir(cluster)
	if err != nil {
		return "", err
	}
	best, most := "", 0
	for _, n := range nodes {
		dir := filepath.Join(cluster, n.Name())
		count, countErr := Records(dir, table)
		if countErr != nil {
			err = cmp.Or(err, countErr)
		} else if count > most {
			best, most = dir, count
		}
	}
	if best == "" {
		return "", cmp.Or(err, fmt.Errorf("no image under %s has records of the table %s yet", cluster, table))
	}
	return best, nil
}

// Records counts the records of a table of an image.
func Records(dir, table string) (n int, err error) {
	c, err := reader.Attach(dir, reader.Options{})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	v, err := c.Lock()
	if err != nil {
		return 0, err
	}
	defer v.Unlock()
	t, err := v.Table(table)
	if err != nil {
		return 0, err
	}
	err = t.VisitAll(func(*reader.Item) bool { n++; return true })
	return n, err
}
