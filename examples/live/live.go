// Package live finds the running `rhumb demo` for the example programs: the addresses of its nodes,
// and the image in shared memory that holds a table.
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

// Demo returns the layout of the demo that runs on this machine.
func Demo() (*demo.Layout, error) {
	path := demo.ContextPath()
	l, err := demo.ReadLayout(path)
	// The file of a demo that was killed still exists.
	if errors.Is(err, fs.ErrNotExist) || err == nil && !l.Running() {
		return nil, errors.New("found no running demo; start one with `rhumb demo --latency none`")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return l, nil
}

// Addrs returns the addresses of the nodes of a demo.
func Addrs(l *demo.Layout) (addrs []string) {
	for _, n := range l.Nodes {
		addrs = append(addrs, n.Addr)
	}
	return addrs
}

// Image returns the directory of the image with the most records of a table, among the images of
// all nodes of a demo. Each node publishes only the ranges that it replicates.
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
			// An image that cannot be read must not hide the others.
			err = cmp.Or(err, countErr)
		} else if count > most {
			best, most = dir, count
		}
	}
	if best == "" {
		return "", cmp.Or(err, fmt.Errorf("no image in %s has records of table %s yet; write some and try again", cluster, table))
	}
	return best, nil
}

// Records returns the number of records of a table in an image.
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
