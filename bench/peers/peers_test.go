package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb/bench/load"
)

// TestMain lets this program be an embedded server, as the driver is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "etcd-server" || os.Args[1] == "nats-server") {
		if err := run(os.Args[1:]); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestDatabases starts each database that this machine has, and runs every operation that its driver
// offers: without an error, and with processor time of the servers.
func TestDatabases(t *testing.T) {
	jars, err := filepath.Abs("../../bin/jars")
	if err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"etcd":      {"1"},
		"etcd-3":    {"3"},
		"nats":      nil,
		"redis":     {"always"},
		"postgres":  nil,
		"kafka":     {filepath.Join(jars, "kafka")},
		"cassandra": {filepath.Join(jars, "cassandra")},
	} {
		t.Run(name, func(t *testing.T) {
			// The user that runs PostgreSQL cannot enter t.TempDir.
			dir, err := os.MkdirTemp("", "rhumb-peers-")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			if err := os.Chmod(dir, 0o711); err != nil {
				t.Fatal(err)
			}
			kind := name
			if name == "etcd-3" {
				kind = "etcd"
			}
			db, err := databases[kind].start(t.Context(), args, dir)
			var m *missing
			if errors.As(err, &m) {
				t.Skipf("%v; %s", m, m.install)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer db.stop()
			ready := db.describe()
			if ready.Version == "" {
				t.Error("the version is unknown")
			}
			for _, op := range ready.Ops {
				keys := []int{1}
				if slices.Contains(ready.Many, op) || op == load.Scan {
					keys = append(keys, 16)
				}
				if err := db.prepare(t.Context(), load.Case{Op: op, Callers: 4}); err != nil {
					t.Fatal(err)
				}
				for _, n := range keys {
					for caller := range 4 {
						if err := db.call(t.Context(), load.Step{Op: op, Caller: caller, Key: 3, Keys: n, Value: []byte("value")}); err != nil {
							t.Errorf("%s of %d keys: %v", op, n, err)
						}
					}
				}
			}
			// Processor time is counted in steps of 10 ms.
			for calls := 0; load.CPU(load.Family(db.processes()...)) == 0; calls++ {
				if calls == 20_000 {
					t.Fatalf("the servers have used no processor time for %d calls", calls)
				}
				if err := db.call(t.Context(), load.Step{Op: ready.Ops[0], Keys: 1, Value: []byte("value")}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
