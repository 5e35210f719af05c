// Command peers runs another database and drives it with the same load as Rhumb, so that `rhumb
// bench` can report ratios. It is a separate module: its dependencies never become dependencies of
// Rhumb.
//
//	peers etcd-server NAME DIR CLIENT-URL PEER-URL INITIAL-CLUSTER   one embedded etcd node, until killed
//	peers etcd NODES DIR                                             a cluster of such processes, driven from stdin
//
// The driver reads one load.Case as a line of JSON from stdin, runs it, and writes the load.Result
// as a line of JSON. It first writes {"ready":true}. It ends, with its cluster, at the end of
// stdin.
package main

import (
	"bufio"
	"context"
	"encoding/json"
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

func run(args []string) error {
	switch {
	case len(args) == 6 && args[0] == "etcd-server":
		return serveEtcd(args[1], args[2], args[3], args[4], args[5])
	case len(args) == 3 && args[0] == "etcd":
		nodes, err := strconv.Atoi(args[1])
		if err != nil || nodes < 1 || nodes > 5 {
			return fmt.Errorf("invalid number of nodes %q; want 1 to 5", args[1])
		}
		c, err := startEtcd(nodes, args[2])
		if err != nil {
			return err
		}
		// The cluster ends with the driver, at the end of stdin.
		defer c.stop()
		return driveCluster(c)
	}
	return fmt.Errorf("usage: peers etcd NODES DIR | peers etcd-server NAME DIR CLIENT-URL PEER-URL INITIAL-CLUSTER")
}

// driveCluster runs the cases from stdin.
func driveCluster(c *etcd) error {
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(map[string]any{"ready": true}); err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var cs load.Case
		if err := json.Unmarshal(in.Bytes(), &cs); err != nil {
			return fmt.Errorf("case %q: %w", in.Text(), err)
		}
		if err := out.Encode(load.Run(context.Background(), cs, c.nodePIDs(), c.callOne)); err != nil {
			return err
		}
	}
	return in.Err()
}
