package local

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/deploy/hosts"
)

// The faults of this file are none: nodes come and go, get another program and
// other certificates, while clients write.

// memberFaults returns the changes of nodes.
func memberFaults() []Fault {
	return []Fault{
		{"join", "F50", "a node joins, gets copies, and is decommissioned again", gapFailover, strikeJoin},
		{"replace", "F50", "a new node takes the place of one that is live, or dead", gapFailover, strikeReplace},
		{"upgrade", "F56", "a node is stopped and starts with the other program, older or newer (--previous)", gapFailover, strikeUpgrade},
		{"certificates", "F58", "the key of the authority is replaced, all nodes get new certificates, and the old key is retired", gapFailover, strikeCertificates},
	}
}

// memberWait bounds the time until a new node holds a copy, and until a node that
// leaves holds none.
const memberWait = 2 * time.Minute

// addNode brings up a new host of a region with a node on it.
func (c *Cluster) addNode(ctx context.Context, region string) (*Node, error) {
	c.added++
	// A name is used once: the metadata remembers those of removed nodes.
	spec := hosts.Spec{Name: fmt.Sprintf("%s-new%d", region, c.added), Region: region}
	if err := c.fleet.Up(netip.Prefix{}, spec); err != nil {
		return nil, err
	}
	if err := c.startNode(ctx, spec); err != nil {
		return nil, err
	}
	// startNode has appended it.
	n := c.nodes[len(c.nodes)-1]
	return n, c.AwaitWhole(ctx, bootWait)
}

// dropNode ends the host of a node that is not in the cluster any more.
func (c *Cluster) dropNode(ctx context.Context, n *Node) error {
	c.setNodes(slices.DeleteFunc(c.Nodes(), func(o *Node) bool { return o == n }))
	if err := n.host.Kill(); err != nil {
		return err
	}
	// Otherwise the authority waits until the last certificate of the node has
	// expired before it retires the key of it.
	_, err := c.asAuthority(ctx, "authority", "revoke", "--authority", authorityDir, "--node", n.Name, "--why", "removed")
	return errors.Join(err, c.unmountDisk(ctx, n.host), c.fleet.Remove(n.Name))
}

// copies counts the ranges with a copy on a node.
func (c *Cluster) copies(id rhumb.NodeID) (count int) {
	for _, r := range c.operator.Ranges() {
		if r.IsReplica(id) {
			count++
		}
	}
	return count
}

// awaitCopies waits until a node holds a copy.
func (c *Cluster) awaitCopies(ctx context.Context, n *Node) (count int, err error) {
	// The balance of copies decides when, so only the end of the wait is known.
	id := c.identity(n).Node
	for deadline := time.Now().Add(memberWait); time.Now().Before(deadline); {
		if count = c.copies(id); count > 0 {
			return count, nil
		}
		if err := wait(ctx, pollWait); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("%w: %s has no copy after %v", errNoEffect, n.Name, memberWait)
}

// orders runs a command of the operator, and again while it is refused for a reason
// that passes.
func (c *Cluster) orders(ctx context.Context, args ...string) error {
	return eventually(ctx, func() error {
		if out, err := c.Rhumb(ctx, args...); err != nil {
			return fmt.Errorf("rhumb %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	})
}

// strikeJoin adds a node. The node leaves when the strike ends, and its copies move
// to other nodes.
func strikeJoin(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n, err := c.addNode(ctx, draw(c, random).Region)
	if err != nil {
		return nil, err
	}
	return &Strike{What: "join " + n.Name, heal: func(ctx context.Context) (string, error) {
		count, err := c.awaitCopies(ctx, n)
		id := c.identity(n).Node.String()
		// A node without a copy leaves too, so that the next fault begins with the
		// same nodes.
		for _, verb := range []string{"decommission", "rm"} {
			if err == nil || errors.Is(err, errNoEffect) {
				err = errors.Join(err, c.orders(ctx, "node", verb, id))
			}
		}
		return fmt.Sprintf("%d copies came and went", count), errors.Join(err, c.dropNode(ctx, n))
	}}, nil
}

// strikeReplace replaces a node by a new one. Every second time, the old one has
// lost its power before.
func strikeReplace(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	old := draw(c, random)
	next, err := c.addNode(ctx, old.Region)
	if err != nil {
		return nil, err
	}
	state := "live"
	if random.IntN(2) == 0 {
		state = "dead"
		if err := old.host.Kill(); err != nil {
			return nil, err
		}
	}
	// Taken now: the metadata may list the old node under its name only while it
	// counts.
	from, to := c.identity(old).Node, c.identity(next).Node
	return &Strike{What: fmt.Sprintf("replace %s %s", state, old.Name), heal: func(ctx context.Context) (string, error) {
		err := c.orders(ctx, "node", "replace", from.String(), to.String())
		count := c.copies(to)
		if err == nil {
			err = checkHolds(next.Name, count)
		}
		return fmt.Sprintf("%s has %d copies", next.Name, count), errors.Join(err, c.dropNode(ctx, old))
	}}, nil
}

// exchange stops a node and starts it with the other of the two programs. A stop
// moves the primaries of the node away first.
func (c *Cluster) exchange(ctx context.Context, n *Node) error {
	n.old = !n.old
	binary := c.cfg.Binary
	if n.old {
		binary = c.cfg.Previous
	}
	if _, err := n.host.Run(ctx, "systemctl", "stop", "rhumb"); err != nil {
		return err
	}
	// The program of a running process cannot be replaced in place.
	if err := n.host.CopyIn(binary, "/usr/bin/rhumb"); err != nil {
		return err
	}
	_, err := n.host.Run(ctx, "systemctl", "start", "rhumb")
	return err
}

// strikeUpgrade exchanges the program of a random node. Clusters of both programs
// are thus mixed in all proportions, and nodes also go back.
func strikeUpgrade(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	before, from := c.lives(n), c.programOf(n)
	if err := c.exchange(ctx, n); err != nil {
		return nil, err
	}
	return &Strike{What: "upgrade " + n.Name, heal: func(ctx context.Context) (string, error) {
		lived, err := c.awaitLife(ctx, before)
		to := c.programOf(n)
		if err == nil {
			err = checkExchanged(n.Name, from, to)
		}
		return fmt.Sprintf("from %q to %q; %s", from, to, lived), err
	}}, nil
}

// finalize ends a run with a previous program: the nodes that have it get the newer
// one, one after the other, and then the operator raises the cluster version, under
// load. The seed never draws it, because no node can go back afterwards.
var finalize = Fault{"finalize", "F56", "the rest of the nodes get the newer program, and the upgrade is finalized", gapFailover, strikeFinalize}

// strikeFinalize upgrades the nodes that are left and raises the cluster version.
func strikeFinalize(ctx context.Context, c *Cluster, _ *rand.Rand) (*Strike, error) {
	// At most a minority is stopped at any time: one node.
	exchanged := 0
	for _, n := range c.Nodes() {
		if !n.old {
			continue
		}
		before := c.lives(n)
		if err := c.exchange(ctx, n); err != nil {
			return nil, err
		}
		// The next node stops when the copies of this one are in sync again, as the
		// book says.
		if _, err := c.awaitLife(ctx, before); err != nil {
			return nil, err
		}
		if err := c.AwaitWhole(ctx, healWait); err != nil {
			return nil, err
		}
		exchanged++
	}
	return &Strike{What: "finalize", heal: func(ctx context.Context) (string, error) {
		// A table can be dropped by the newer program only, and only when the
		// version is raised.
		if err := c.orders(ctx, "table", "create", upgradedTable); err != nil {
			return "", err
		}
		drop := []string{"table", "drop", upgradedTable, "--yes"}
		if out, err := c.Rhumb(ctx, drop...); err == nil || !strings.Contains(out, "upgrade finalize") {
			return "", fmt.Errorf("a feature of the newer program is not refused before the version is raised: %w: %s", err, out)
		}
		if err := c.orders(ctx, "upgrade", "finalize", "--yes"); err != nil {
			return "", err
		}
		// The same command works now.
		return fmt.Sprintf("%d nodes upgraded, version raised, and a feature of it used", exchanged), c.orders(ctx, drop...)
	}}, nil
}

// upgradedTable is the table that shows whether the cluster has the features of the
// newer program.
const upgradedTable = "upgraded"

// programOf returns the program of a node, as the metadata has it.
func (c *Cluster) programOf(n *Node) string {
	id := c.identity(n).Node
	for _, o := range c.operator.Nodes() {
		if o.ID == id {
			return o.Binary
		}
	}
	return ""
}

// strikeCertificates replaces the key of the authority, as
// docs/operations/rotate.md says: all nodes get certificates of the new key, so
// does the operator, and at the end nobody trusts the old key. Connections stay
// open.
func strikeCertificates(ctx context.Context, c *Cluster, _ *rand.Rand) (*Strike, error) {
	before, err := c.operator.Certificates(ctx)
	if err != nil {
		return nil, err
	}
	old := authoritiesOf(&before)
	if _, err := c.asAuthority(ctx, "authority", "rotate", "--authority", authorityDir); err != nil {
		return nil, err
	}
	// The operator first: the nodes trust both keys, and clients that know one only
	// must not meet the other.
	if err := c.makeOperator(ctx); err != nil {
		return nil, err
	}
	if err := c.reload(ctx); err != nil {
		return nil, err
	}
	return &Strike{What: "certificates", heal: func(ctx context.Context) (string, error) {
		for _, hash := range old {
			// Refused until each node uses a certificate of the new key.
			err := eventually(ctx, func() error {
				_, err := c.asAuthority(ctx, "authority", "rotate", "--authority", authorityDir, "--retire", hash)
				return err
			})
			if err != nil {
				return "", err
			}
		}
		if err := errors.Join(c.makeOperator(ctx), c.reload(ctx)); err != nil {
			return "", err
		}
		now, err := c.operator.Certificates(ctx)
		after := authoritiesOf(&now)
		if err == nil {
			err = checkAuthorities(old, after)
		}
		return fmt.Sprintf("certificates of %v before, of %v now", old, after), err
	}}, nil
}

// authoritiesOf returns the hashes of the authorities that signed the certificates
// of the nodes.
func authoritiesOf(all *client.Certificates) (out []string) {
	for _, cert := range all.Certificates {
		// Users and operators may have certificates of any key that is trusted.
		if cert.Role == "node" && !slices.Contains(out, cert.Authority) {
			out = append(out, cert.Authority)
		}
	}
	slices.Sort(out)
	return out
}

// reload makes all nodes ask the authority at once.
func (c *Cluster) reload(ctx context.Context) (err error) {
	for _, n := range c.nodes {
		_, failed := n.host.Run(ctx, "systemctl", "reload", "rhumb")
		err = errors.Join(err, failed)
	}
	return err
}

// makeOperator makes the certificate of the operator and copies it, with the
// trusted authorities, to the folder from which clients read them.
func (c *Cluster) makeOperator(ctx context.Context) error {
	h, err := c.fleet.Host("authority")
	if err != nil {
		return err
	}
	// The authority writes into a new folder only.
	if _, err := h.Run(ctx, "rm", "-rf", authorityDir+"/operator"); err != nil {
		return err
	}
	if _, err := c.asAuthority(ctx, "authority", "operator", userName, "--authority", authorityDir, "--out", authorityDir+"/operator"); err != nil {
		return err
	}
	dir := filepath.Join(c.cfg.Dir, "operator")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The authorities first, and each file whole: clients load files that change.
	for _, name := range []string{"ca.crt", "operator.key", "operator.crt"} {
		part := filepath.Join(dir, name+".part")
		if err := h.CopyOut(authorityDir+"/operator/"+name, part); err != nil {
			return err
		}
		if err := os.Rename(part, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
