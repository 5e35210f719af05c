package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/demo"
	"github.com/rhumbdb/rhumb/storage/storagetest"
	"github.com/rhumbdb/rhumb/wan"
)

// newToken returns random text that compression leaves as it is.
func newToken() string { return "canary" + strings.ToLower(rand.Text()) }

// tokenSet holds random texts and what each of them is in.
type tokenSet map[string]string

// add returns a new token.
func (k tokenSet) add(what string) string {
	s := newToken()
	k[s] = what
	return s
}

// findIn notes which tokens some bytes contain.
func (k tokenSet) findIn(b []byte, where string, found map[string]string) {
	for s := range k {
		if bytes.Contains(b, []byte(s)) {
			found[s] = where
		}
	}
}

// searchFiles reads every file below a folder. The files of a running or stopped node are its data, its logs, the copies
// that it receives and sends, its metadata and its audit log.
func (k tokenSet) searchFiles(t *testing.T, dir string, take func(path string) bool, found map[string]string) (files int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		var b []byte
		switch {
		case err != nil:
		case !d.Type().IsRegular() || !take(path):
			return nil
		default:
			b, err = os.ReadFile(path)
		}
		// Running nodes rename and remove files.
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		files++
		k.findIn(b, path, found)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestResidencyCanary confines a table to one of three regions, and plants random tokens in its names and values. The
// table is written, published in shared memory, fails over, drains, loses a disk and is copied again. Then no
// token may be anywhere else: not in a file of a node of another region, not in its database before compression, not
// in its image, and not in anything that a node or the client sent to another region. The cluster has no TLS, so what
// the links record is what the processes say.
//
// A table that is not confined has tokens, too. They must be found in all these places, or the search would find nothing
// in any case.
func TestResidencyCanary(t *testing.T) {
	const home = "frankfurt"
	layout, _ := startDemo(t, "--regions", home+",virginia,singapore", "--nodes-per-region", "2", "--latency", "none", "--cuts", "--load", "none", "--no-restart")
	captured := t.TempDir()
	f, err := wan.ReadFile(layout.LatencyFile)
	if err != nil {
		t.Fatal(err)
	}
	f.Record = captured
	if err := f.Save(layout.LatencyFile); err != nil {
		t.Fatal(err)
	}
	await(t, "recordings of nodes of all regions", settleWait, func() bool {
		from := map[string]bool{}
		names, _ := os.ReadDir(captured)
		for _, n := range names {
			region, _, _ := strings.Cut(n.Name(), "--")
			from[region] = true
		}
		return len(from) == 3
	})
	network, err := wan.Open(layout.LatencyFile)
	if err != nil {
		t.Fatal(err)
	}
	var local []demo.Node
	var addrs []string
	for _, n := range layout.Nodes {
		if n.Region == home {
			local = append(local, n)
			addrs = append(addrs, n.Addr)
		}
	}
	c, err := client.Open(t.Context(), client.Config{Addrs: addrs, Insecure: true, Dial: network.Dialer(home), Timeout: 20 * time.Second, ConnectTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)

	secret, control := tokenSet{}, tokenSet{}
	// The name of a table is metadata, which is everywhere.
	metadata := tokenSet{}
	confined := metadata.add("the name of the table")
	ok(t, "table", "create", confined, "--regions", home, "--replicas", "2", "--min-in-sync", "1", "--hash-slots", "4", "--snapshot=plain")
	ok(t, "table", "create", "open", "--survive", "region", "--hash-slots", "4", "--snapshot=plain")
	open, err := c.Table(t.Context(), "open")
	if err != nil {
		t.Fatal(err)
	}
	closed, err := c.Table(t.Context(), confined)
	if err != nil {
		t.Fatal(err)
	}
	// Some writes name their home, some do not, some insert, some fail. Each has tokens of its own.
	write := func(table *client.Table, k tokenSet, round string) {
		t.Helper()
		for i := range 4 {
			name, value := k.add("a name, "+round), k.add("a value, "+round)
			o := client.PutOptions{}
			if i%2 == 0 {
				o.Home = home
			}
			retry(t, func(ctx context.Context) error {
				_, err := table.Put(ctx, []byte(name), []byte(value), o)
				return err
			})
			// Refused: the record exists.
			_, err := table.Put(t.Context(), []byte(name), []byte(k.add("a refused value, "+round)), client.PutOptions{If: rhumb.Condition{Kind: rhumb.IfAbsent}})
			if err == nil {
				t.Errorf("a second put if absent succeeded")
			}
		}
		retry(t, func(ctx context.Context) error {
			_, err := table.Insert(ctx, []byte(k.add("an inserted value, "+round)), client.InsertOptions{})
			return err
		})
		absent := k.add("a name that does not exist, " + round)
		if got, err := table.Get(t.Context(), []byte(absent), client.GetOptions{}); err == nil && got.Exists() {
			t.Error("an absent record exists")
		}
	}
	both := func(round string) { write(closed, secret, round); write(open, control, round) }
	both("first")
	// A planned change of primaries, and back.
	ok(t, "node", "drain", local[0].ID.String())
	both("drained")
	ok(t, "node", "drain", local[0].ID.String(), "--undo")
	// A node dies, the other one takes over; then the dead one comes back with an empty disk and copies everything.
	args := commandLine(t, local[0].PID)
	if err := syscall.Kill(local[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "the node to be gone", settleWait, func() bool { return gone(local[0].PID) })
	both("failed over")
	if err := os.RemoveAll(local[0].Dir); err != nil {
		t.Fatal(err)
	}
	again := startProcess(t, nil, withJoin(args, local[1].Addr)...)
	await(t, "two copies of every range of the region", 2*time.Minute, func() bool {
		for _, r := range c.Ranges() {
			if len(r.InSync) < 2 {
				return false
			}
		}
		return true
	})
	both("copied again")
	// What operators see comes from any node.
	for _, args := range [][]string{{"status"}, {"range", "ls"}, {"range", "verify", "--all"}, {"table", "describe", confined}} {
		if _, _, code := runIn(t.Context(), "", args...); code != exit.OK && code != exit.Failure && code != exit.Unavailable {
			t.Errorf("rhumb %v ended with %d", args, code)
		}
	}
	// Images are made within a quarter of a second; the control shows that they were.
	search := func(k tokenSet, dir string, take func(string) bool) map[string]string {
		found := map[string]string{}
		k.searchFiles(t, dir, take, found)
		return found
	}
	outside := map[rhumb.NodeID]bool{}
	for _, n := range layout.Nodes {
		outside[n.ID] = n.Region != home
	}
	images := func(path string) bool {
		for id, out := range outside {
			if out && strings.Contains(path, fmt.Sprintf("%c%s%c", filepath.Separator, id, filepath.Separator)) {
				return true
			}
		}
		return false
	}
	imageDir := imagesOf(t, layout, c)
	await(t, "tokens of the open table in images of other regions", settleWait, func() bool { return len(search(control, imageDir, images)) > 0 })
	leaked := search(secret, imageDir, images)

	// Stopped, so that the databases can be opened. Killed, so that nothing is tidied up before.
	c.Close()
	for _, n := range layout.Nodes {
		if n.ID != local[0].ID {
			_ = syscall.Kill(n.PID, syscall.SIGKILL)
			await(t, "the node to be gone", settleWait, func() bool { return gone(n.PID) })
		}
	}
	_ = again.Process.Kill()
	all := func(string) bool { return true }
	seen := map[string]map[string]string{"files": {}, "databases": {}, "captured": search(control, captured, all)}
	named := search(metadata, captured, all)
	for s, where := range search(secret, captured, all) {
		leaked[s] = where
	}
	for _, n := range layout.Nodes {
		if n.Region == home {
			continue
		}
		for s, where := range search(secret, n.Dir, all) {
			leaked[s] = where
		}
		for s, where := range search(control, n.Dir, all) {
			seen["files"][s] = where
		}
		err := storagetest.Visit(n.Dir, func(key, value []byte) {
			for _, b := range [][]byte{key, value} {
				secret.findIn(b, "the database of "+n.ID.String(), leaked)
				control.findIn(b, "the database of "+n.ID.String(), seen["databases"])
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for s, where := range leaked {
		t.Errorf("%s is outside of %s, in %s", secret[s], home, where)
	}
	for where, found := range seen {
		t.Logf("%d of %d tokens of the open table are in %s of other regions", len(found), len(control), where)
		if len(found) == 0 {
			t.Errorf("the search of %s finds nothing at all", where)
		}
	}
	// As the documentation says, the names of tables are everywhere.
	if len(named) != 1 {
		t.Error("the name of the table did not leave the region: the documentation says that it does")
	}
}

// retry repeats a write that fails while a node is taking over, or while the ranges of a new table are not known yet.
func retry(t *testing.T, do func(ctx context.Context) error) {
	t.Helper()
	await(t, "a write", settleWait, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := do(ctx)
		if k := rhumb.KindOf(err); err != nil && k != rhumb.Unavailable && k != rhumb.DeadlineExceeded && k != rhumb.Unknown && k != rhumb.NotPrimary {
			t.Fatal(err)
		}
		return err == nil
	})
}

// imagesOf returns the folder with the images of a demo's cluster.
func imagesOf(t *testing.T, l *demo.Layout, c *client.Client) string {
	t.Helper()
	for _, dir := range []string{filepath.Join(l.SnapshotDir, c.Cluster().String()), l.SnapshotDir} {
		if s, err := os.Stat(dir); err == nil && s.IsDir() {
			return dir
		}
	}
	t.Fatalf("no images in %s", l.SnapshotDir)
	return ""
}
