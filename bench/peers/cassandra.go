package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gocql/gocql"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/freeport"
)

// cassandraConns is the number of client connections.
const cassandraConns = 4

// cassandra is one node with a session.
type cassandra struct {
	server *server
	// session is shared by all callers, and nil until the server answers.
	session *gocql.Session
	version string // from the name of the jar
}

// cassandraOpens are the packages of Java that Cassandra 5 opens by reflection, from its own options
// for Java 17.
var cassandraOpens = []string{
	"java.base/java.io", "java.base/java.lang", "java.base/java.lang.module", "java.base/java.lang.ref", "java.base/java.lang.reflect",
	"java.base/java.math", "java.base/java.net", "java.base/java.nio", "java.base/java.nio.charset", "java.base/java.nio.file.spi",
	"java.base/java.util", "java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic", "java.base/java.util.concurrent.locks",
	"java.base/jdk.internal.loader", "java.base/jdk.internal.math", "java.base/jdk.internal.misc", "java.base/jdk.internal.module",
	"java.base/jdk.internal.ref", "java.base/jdk.internal.reflect", "java.base/jdk.internal.util.jar", "java.base/jdk.internal.vm",
	"java.base/sun.nio.ch", "java.management/com.sun.jmx.remote.security", "java.management/com.sun.jmx.mbeanserver",
	"java.management.rmi/com.sun.jmx.remote.internal.rmi", "java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server", "java.rmi/sun.rmi.transport",
	"java.rmi/sun.rmi.transport.tcp", "java.sql/java.sql", "java.logging/java.util.logging", "jdk.management/com.sun.management.internal",
	"jdk.compiler/com.sun.tools.javac.file", "jdk.compiler/com.sun.tools.javac.api",
}

// cassandraConfig configures a node that syncs its commit log before it answers.
const cassandraConfig = `cluster_name: bench
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
storage_port: %d
native_transport_port: %d
start_native_transport: true
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "127.0.0.1:%d"
commitlog_sync: batch
commit_failure_policy: stop
disk_failure_policy: stop
data_file_directories: [%[4]s/data]
commitlog_directory: %[4]s/commitlog
saved_caches_directory: %[4]s/saved_caches
hints_directory: %[4]s/hints
cdc_raw_directory: %[4]s/cdc
`

// startCassandra starts a node and waits until it has a table.
func startCassandra(ctx context.Context, args []string, dir string) (database, error) {
	jars, err := filepath.Abs(args[0])
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	addrs, err := freeport.Take(3)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "cassandra.yaml")
	// The node is its own seed, so that it begins a cluster.
	storage, native := portOf(addrs[0]), portOf(addrs[1])
	if err := os.WriteFile(config, fmt.Appendf(nil, cassandraConfig, storage, native, storage, dir), 0o600); err != nil {
		return nil, err
	}
	flags := []string{
		// The whole heap at once: a heap that grows would slow the first rounds.
		"-Xms2g", "-Xmx2g", "-XX:+UseG1GC", "-Djdk.attach.allowAttachSelf=true", "-Djava.security.manager=allow",
		"-Dcassandra.config=file://" + config, "-Dcassandra.storagedir=" + dir, "-Dcassandra-foreground=yes", "-Dcassandra.skip_wait_for_gossip_to_settle=0",
		fmt.Sprintf("-Dcassandra.jmx.local.port=%d", portOf(addrs[2])), "-Djava.io.tmpdir=" + dir,
	}
	// Each package is opened for reflection and exported for direct use.
	for _, name := range cassandraOpens {
		flags = append(flags, "--add-opens", name+"=ALL-UNNAMED", "--add-exports", name+"=ALL-UNNAMED")
	}
	cmd, err := java(jars, dir, flags, "org.apache.cassandra.service.CassandraDaemon")
	if err != nil {
		return nil, err
	}
	c := &cassandra{version: versionOf(jars, "cassandra-all")}
	if c.server, err = startServer(cmd, dir, "cassandra"); err != nil {
		return nil, err
	}
	cluster := gocql.NewCluster("127.0.0.1")
	cluster.Port, cluster.NumConns = native, cassandraConns
	cluster.Timeout, cluster.ConnectTimeout = 20*time.Second, 20*time.Second
	// Each attempt before the port is open would print a message.
	cluster.Logger = silent{}
	if err := c.server.await(ctx, func(ctx context.Context) error { return c.connect(ctx, cluster) }); err != nil {
		return nil, err
	}
	return c, nil
}

// silent drops the messages of the client, which complains about a server that is still starting.
type silent struct{}

func (silent) Print(...any)          {}
func (silent) Printf(string, ...any) {}
func (silent) Println(...any)        {}

// connect opens the session and creates the table.
func (c *cassandra) connect(ctx context.Context, cluster *gocql.ClusterConfig) (err error) {
	// An earlier attempt may have opened the session and failed at a statement.
	if c.session == nil {
		if c.session, err = cluster.CreateSession(); err != nil {
			return err
		}
	}
	for _, text := range []string{
		"CREATE KEYSPACE IF NOT EXISTS bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
		"CREATE TABLE IF NOT EXISTS bench.kv (k text PRIMARY KEY, v blob)",
	} {
		if err := c.session.Query(text).WithContext(ctx).Exec(); err != nil {
			return err
		}
	}
	return nil
}

func (c *cassandra) describe() load.Ready {
	return load.Ready{Version: c.version, Ops: []load.Op{load.Put, load.Get, load.Scan}}
}

func (c *cassandra) processes() []int { return []int{c.server.pid()} }

func (c *cassandra) prepare(context.Context, load.Case) error { return nil }

// call executes one operation. The session prepares each statement once. Scans follow the tokens of the
// keys, which is the only order that Cassandra has.
func (c *cassandra) call(ctx context.Context, s load.Step) error {
	name := keyOf(s.Caller, s.Key)
	switch s.Op {
	case load.Put:
		return c.session.Query("INSERT INTO bench.kv (k, v) VALUES (?, ?)", name, s.Value).WithContext(ctx).Exec()
	case load.Scan:
		_, err := c.read(c.session.Query("SELECT k, v FROM bench.kv WHERE token(k) >= token(?) LIMIT ?", name, s.Keys).WithContext(ctx).Iter())
		return err
	}
	n, err := c.read(c.session.Query("SELECT k, v FROM bench.kv WHERE k = ?", name).WithContext(ctx).Iter())
	if err == nil && s.Written && n == 0 {
		err = load.ErrAbsent
	}
	return err
}

// read reads all rows, and counts them.
func (c *cassandra) read(rows *gocql.Iter) (n int, _ error) {
	var name string
	var value []byte
	for ; rows.Scan(&name, &value); n++ {
	}
	return n, rows.Close()
}

func (c *cassandra) stop() {
	if c.session != nil {
		c.session.Close()
	}
	// Nothing reads its data again, so it need not drain.
	c.server.stop(syscall.SIGKILL)
}
