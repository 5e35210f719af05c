package node

import (
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/node/session"
)

// IdentityDir is the folder in the first data directory in which a node looks for its certificate,
// unless Config.Identity names files. Enrolment writes them.
const IdentityDir = "identity"

// DefaultIdentity returns the identity files in a data directory.
func DefaultIdentity(dir string) identity.Files {
	dir = filepath.Join(dir, IdentityDir)
	return identity.Files{Cert: filepath.Join(dir, "node.crt"), Key: filepath.Join(dir, "node.key"), CA: filepath.Join(dir, "ca.crt")}
}

// The roles that each port accepts.
var (
	// wantNode describes the servers that a node dials, and the callers that its heartbeat port accepts.
	wantNode = identity.Want{Roles: []identity.Role{identity.RoleNode}}
	// wantClient describes the callers that its other ports accept. A caller without a certificate has to
	// log in.
	wantClient = identity.Want{Roles: []identity.Role{identity.RoleNode, identity.RoleUser, identity.RoleOperator}, Optional: true}
)

// openIdentity loads the certificate of the node. It comes before the stores are opened, so that a
// start without a certificate leaves no trace.
func (n *Node) openIdentity() (err error) {
	const op rhumb.Op = "node.openIdentity"
	if n.cfg.Insecure {
		return nil
	}
	// RoleNode alone: a node that runs with the certificate of an operator would be refused by
	// every other node, so it is refused here, where the operator sees why.
	n.source, err = identity.OpenSource(identity.SourceConfig{
		Files: n.cfg.Identity, Roles: wantNode.Roles, Wall: n.cfg.Wall, Logger: n.cfg.Logger,
	})
	if err != nil {
		if rhumb.KindOf(err) == rhumb.NotFound {
			return rhumb.Ef(op, rhumb.InvalidArgument, "the node has no identity: %v; enrol it with --token FILE, or give --cert, --key and --ca, or say --insecure for a test on this machine", err)
		}
		return rhumb.Wrap(op, err)
	}
	if _, ok := n.source.Name(); !ok {
		return rhumb.E(op, rhumb.InvalidArgument, "the node has no certificate; give --cert and --key")
	}
	n.metrics.MustRegister(n.source.Collectors()...)
	return nil
}

// checkIdentity compares the certificate of the node with what the stores know. It comes before
// anything listens.
func (n *Node) checkIdentity() error {
	const op rhumb.Op = "node.checkIdentity"
	secured, err := n.engine.Secured()
	if err != nil {
		return err
	}
	if n.source == nil {
		// Without TLS nothing is authorised either, so a forgotten flag would serve all data to
		// everybody on this machine.
		if secured {
			return rhumb.Ef(op, rhumb.InvalidArgument, "%s has been served with TLS, and --insecure would serve its data to every process on this machine without a login; "+
				"start the node without --insecure, with its certificate in %s or in --cert, --key and --ca", n.cfg.Dirs[0], filepath.Join(n.cfg.Dirs[0], IdentityDir))
		}
		return nil
	}
	name, _ := n.source.Name()
	if own := n.engine.Identity().Cluster; !own.IsZero() && own != name.Cluster {
		return rhumb.Ef(op, rhumb.WrongCluster, "certificate %s belongs to cluster %s, and the data in %s to cluster %s; "+
			"use a certificate of that cluster, or another --dir", n.cfg.Identity.Cert, name.Cluster, n.cfg.Dirs[0], own)
	}
	n.hideDirs()
	if secured {
		return nil
	}
	// After all checks, so that a start with the wrong certificate does not make the store secure.
	return n.engine.MarkSecured()
}

// hideDirs takes the data directories, and the folders in them, from other users of this machine: who reads them needs no
// login. Directories that an administrator made, or that were used with --insecure, are mostly open to everybody. The
// group keeps what it has.
func (n *Node) hideDirs() {
	for _, dir := range n.cfg.Dirs {
		paths := []string{dir}
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			if e.IsDir() {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
		for _, path := range paths {
			info, serr := os.Stat(path)
			if serr == nil && info.Mode().Perm()&0o007 != 0 {
				serr = os.Chmod(path, info.Mode()&^0o007)
			}
			err = errors.Join(err, serr)
		}
		// A volume may belong to root. Its folders belong to the node.
		if err != nil {
			n.cfg.Logger.Warn("cannot hide a data directory from other users of this machine; run chmod o= on it", "dir", dir, "err", err)
		}
	}
}

// serverCredentials returns the credentials of a gRPC server that accepts links on its port.
func (n *Node) serverCredentials(want identity.Want, links []link.Kind) api.Credentials {
	if n.source == nil {
		return link.Admit(api.PlainText(), links...)
	}
	// The port for heartbeats accepts fewer kinds than the main port, and negotiates only those.
	var protocols []string
	for _, k := range links {
		protocols = append(protocols, k.Protocol)
	}
	return link.Admit(session.Certified(n.source.ServerCredentials(want, protocols...)), links...)
}

// peerCredentials returns the credentials of connections to a node. An empty name accepts every
// node of the cluster: a node that joins does not know the others yet.
func (n *Node) peerCredentials(name string, protocol ...string) api.Credentials {
	if n.source == nil {
		return api.PlainText()
	}
	want := wantNode
	want.Name = name
	return n.source.ClientCredentials(want, protocol...)
}

// listenAdmin adds TLS to the port for operators.
func (n *Node) listenAdmin(l net.Listener) net.Listener {
	if n.source == nil {
		return l
	}
	// Only HTTP/1.1: tools of operators need nothing else, and one protocol fewer is one fewer to
	// defend.
	return n.source.NewListener(l, wantClient, "http/1.1")
}

// errorLog returns the logger of the HTTP server.
func (n *Node) errorLog() *log.Logger {
	if n.source == nil {
		return slog.NewLogLogger(n.cfg.Logger.Handler(), slog.LevelDebug)
	}
	return n.source.ErrorLog()
}

// portNames holds the names by which --advertise distinguishes the ports.
var portNames = []string{"main", "heartbeat", "gossip", "admin"}

// parseAdvertise parses Config.Advertise: HOST for all ports, or a list of PORT=HOST[:NUMBER], such
// as "main=eu-1.example.com:17600,admin=10.0.0.7". A bare HOST in the list is for the ports that it
// does not name.
func parseAdvertise(text string) (hosts map[string]string, err error) {
	hosts = map[string]string{}
	if text == "" {
		return hosts, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		port, host, named := strings.Cut(part, "=")
		if !named {
			port, host = "", part
		}
		if named && !slices.Contains(portNames, port) {
			return nil, fmt.Errorf("%q names no port; ports are %s", part, strings.Join(portNames, ", "))
		}
		if _, twice := hosts[port]; twice {
			return nil, fmt.Errorf("%q gives a second host for one port", part)
		}
		if err := checkAdvertised(host, named); err != nil {
			return nil, err
		}
		hosts[port] = host
	}
	return hosts, nil
}

// checkAdvertised rejects a host that others cannot connect to.
func checkAdvertised(host string, portAllowed bool) error {
	bare, _, err := net.SplitHostPort(host)
	switch {
	case err != nil:
		bare = strings.Trim(host, "[]")
	case !portAllowed:
		return fmt.Errorf("%q has a port; give a host alone, or NAME=HOST:PORT for one of %s", host, strings.Join(portNames, ", "))
	}
	if ip := net.ParseIP(bare); bare == "" || strings.ContainsAny(bare, " /@=") || ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%q is no host that others can connect to", host)
	}
	return nil
}

// advertise returns the address under which others reach a port that is bound to an address.
func advertise(hosts map[string]string, port, bound string) string {
	host, ok := hosts[port]
	if !ok {
		host, ok = hosts[""]
	}
	if !ok {
		return bound
	}
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	_, number, err := net.SplitHostPort(bound)
	if err != nil {
		return bound
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), number)
}

// gossipAdvertised returns the address that others use for gossip, or "" if it is the bound one.
func (n *Node) gossipAdvertised() string {
	hosts, err := parseAdvertise(n.cfg.Advertise)
	if err != nil || len(hosts) == 0 {
		return ""
	}
	if a := advertise(hosts, "gossip", n.cfg.GossipAddr); a != n.cfg.GossipAddr {
		return a
	}
	return ""
}

// isUnspecified reports whether an address binds all interfaces of the machine, so that others
// cannot use it unchanged.
func isUnspecified(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}
