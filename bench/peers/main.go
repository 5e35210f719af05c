// Command peers runs another database and drives it with the same load as Rhumb, so that `rhumb
// bench` can report ratios. It is a separate module: its dependencies never become dependencies of
// Rhumb.
//
//	peers etcd NODES DIR                a cluster of processes with embedded etcd
//	peers nats DIR                      a process with an embedded NATS server, JetStream synced always
//	peers redis always|everysec DIR     redis-server with an append-only file, synced so often
//	peers postgres DIR                  PostgreSQL in a new data directory
//	peers cassandra JARS DIR            Cassandra with synced batches, from the jars of a directory
//	peers kafka JARS DIR                a Kafka broker that syncs every message, from the jars of a directory
//
// The driver reads one load.Case as a line of JSON from stdin, runs it, and writes a load.Answer as a
// line of JSON. It first writes a load.Ready. It ends, with its database, at the end of stdin. DIR must
// not exist. All servers listen on loopback.
//
// A database that this machine lacks is not an error of the driver: load.Ready then has the reason and
// the command that installs the database. The driver searches a database where its packages put it, and
// downloads nothing.
//
// A further database needs a function that starts its processes and waits until they answer
// (startServer and server.await), the methods of the interface database, and a line in databases. Its
// settings are the defaults, except for durability: a write must be on the disk before it is
// acknowledged. Servers die with the driver, whichever way it ends, and TestDatabases runs all their
// operations.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/rhumbdb/rhumb/bench/load"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// database is a running database with its clients. Its methods except call are used by one goroutine.
type database interface {
	// describe returns the version and the operations.
	describe() load.Ready
	// processes returns the processes of the servers.
	processes() []int
	// prepare opens the connections of a case.
	prepare(ctx context.Context, c load.Case) error
	call(ctx context.Context, s load.Step) error
	stop()
}

// missing reports that this machine lacks a database.
type missing struct{ reason, install string }

func (m *missing) Error() string { return m.reason }

const usage = "usage: peers etcd NODES DIR | nats DIR | redis always|everysec DIR | postgres DIR | cassandra JARS DIR | kafka JARS DIR"

// databases holds the function that starts each kind. The arguments are those between the kind and the directory.
var databases = map[string]struct {
	args  int
	start func(ctx context.Context, args []string, dir string) (database, error)
}{
	"etcd":      {1, startEtcd},
	"nats":      {0, startNATS},
	"redis":     {1, startRedis},
	"postgres":  {0, startPostgres},
	"cassandra": {1, startCassandra},
	"kafka":     {1, startKafka},
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	// Embedded servers are processes of this program, so that their processor time is apart from
	// that of the clients.
	switch {
	case len(args) == 6 && args[0] == "etcd-server":
		return serveEtcd(args[1], args[2], args[3], args[4], args[5])
	case len(args) == 3 && args[0] == "nats-server":
		return serveNATS(args[1], args[2])
	}
	// Between the kind and the directory are as many arguments as the kind needs.
	d, ok := databases[args[0]]
	if !ok || len(args) != d.args+2 {
		return errors.New(usage)
	}
	dir := args[len(args)-1]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	ctx := context.Background()
	db, err := d.start(ctx, args[1:len(args)-1], dir)
	if err != nil {
		// The reader of stdout decides whether a database that does not run ends the measurement.
		ready := load.Ready{Failed: err.Error()}
		var m *missing
		if errors.As(err, &m) {
			ready.Install = m.install
		}
		return json.NewEncoder(os.Stdout).Encode(ready)
	}
	// The servers end with the driver, at the end of stdin.
	defer db.stop()
	return drive(ctx, db)
}

// drive runs the cases from stdin.
func drive(ctx context.Context, db database) error {
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(db.describe()); err != nil {
		return err
	}
	var filled load.Filled
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var cs load.Case
		if err := json.Unmarshal(in.Bytes(), &cs); err != nil {
			return fmt.Errorf("case %q: %w", in.Text(), err)
		}
		// A case that fails has an answer too: the other databases continue without this one.
		var a load.Answer
		if err := runCase(ctx, db, cs, &filled, &a.Result); err != nil {
			a.Failed = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return in.Err()
}

// runCase runs a case, after it has written the records that the case expects.
func runCase(ctx context.Context, db database, c load.Case, filled *load.Filled, r *load.Result) error {
	if err := db.prepare(ctx, c); err != nil {
		return err
	}
	if err := filled.Fill(ctx, c, 1, db.call); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	// The family is read after prepare: PostgreSQL has a process for each connection.
	*r = load.Run(ctx, c, load.Family(db.processes()...), db.call)
	return nil
}

// keyOf returns the name of a key. Scans follow the order of these names.
func keyOf(caller, key int) string {
	return "k/" + strconv.Itoa(caller) + "/" + strconv.Itoa(key)
}
