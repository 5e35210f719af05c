package node

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// previousRecord is one line that `rhumb scan -o json` of the previous build printed.
type previousRecord struct {
	Name, Home, Version string
	Fields              struct{ Note string }
}

// TestPreviousBuild opens directories that the previous build wrote, one closed cleanly and one
// after a kill. Every record has its version, deleted records are absent, and both directories can
// be written and opened again.
func TestPreviousBuild(t *testing.T) {
	for _, how := range []string{"stopped", "killed"} {
		t.Run(how, func(t *testing.T) {
			base := t.TempDir()
			unpack(t, filepath.Join("testdata", "previous", how+".tar.gz"), base)
			dirs := []string{filepath.Join(base, how, "disk0"), filepath.Join(base, how, "disk1")}
			for boot := range 2 {
				n := startPrevious(t, dirs)
				checkPrevious(t, n, filepath.Join("testdata", "previous", how+".jsonl"))
				put(t, kvClient(t, n), 1, "written", fmt.Sprint(boot))
				n.Close()
			}
			n := startPrevious(t, dirs)
			if got := get(t, kvClient(t, n), 1, "written"); got != "1" {
				t.Errorf("what this build wrote reads %q, want 1", got)
			}
		})
	}
}

func startPrevious(t *testing.T, dirs []string) *Node {
	t.Helper()
	n, err := Start(Config{
		Dirs: dirs, Region: "singapore", Zone: "a", Location: rhumb.Point{Lat: 1.35, Lon: 103.82}, Insecure: true,
		Addr: "127.0.0.1:0", HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
		Snapshot: SnapshotConfig{Dir: dirs[0] + "-images"}, CacheBytes: 8 << 20,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Fatal:  func(err error) { panic(fmt.Sprintf("node cannot go on: %v", err)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	awaitReady(t, n)
	return n
}

// checkPrevious compares what a node serves with the output of the previous build.
func checkPrevious(t *testing.T, n *Node, scan string) {
	t.Helper()
	f, err := os.Open(scan)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	kv := kvClient(t, n)
	seen := 0
	for in := bufio.NewScanner(f); in.Scan(); seen++ {
		var want previousRecord
		if err := json.Unmarshal(in.Bytes(), &want); err != nil {
			t.Fatal(err)
		}
		it := previousItem(t, kv, want.Name, want.Home)
		note, _, err := rhumb.RecordField(it.Value, "note")
		version := fmt.Sprintf("%d@%d", it.Hlc, it.Node)
		if err != nil || version != want.Version || note.Text() != want.Fields.Note {
			t.Errorf("%s has note %q and version %s (%v), want %+v", want.Name, note.Text(), version, err, want)
		}
	}
	if seen != 33 {
		t.Errorf("%d records were compared, want 33", seen)
	}
	for name, home := range map[string]string{"key-7": "1/62", "key-9": "1/12"} {
		if it := previousItem(t, kv, name, home); len(it.Value) > 0 {
			t.Errorf("%s was deleted and reads %x", name, it.Value)
		}
	}
}

func previousItem(t *testing.T, kv rhumbpb.KVClient, printed, home string) (it *rhumbpb.Item) {
	t.Helper()
	id, err := rhumb.ParseRangeID(home)
	if err != nil {
		t.Fatal(err)
	}
	name := []byte(printed)
	if digits, ok := strings.CutPrefix(printed, "0x"); ok {
		if name, err = hex.DecodeString(digits); err != nil {
			t.Fatal(err)
		}
	}
	retry(t, func(ctx context.Context) error {
		resp, err := kv.Do(ctx, &rhumbpb.Request{Hops: 2, Read: &rhumbpb.Read{Table: 1, Region: uint32(id.Region), Slot: uint32(id.Slot), Names: [][]byte{name}}})
		if err == nil {
			it = resp.Items[0]
		}
		return err
	})
	return it
}

// unpack extracts a compressed archive into a directory.
func unpack(t *testing.T, archive, to string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for in := tar.NewReader(z); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			err = unpackOne(in, h, filepath.Join(to, filepath.FromSlash(h.Name)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func unpackOne(in io.Reader, h *tar.Header, path string) error {
	if h.FileInfo().IsDir() {
		return os.MkdirAll(path, 0o755)
	}
	b, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}
