package node

import (
	"fmt"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

// TestSecureAnInsecureCluster guards that a cluster of three nodes that began with --insecure is secured by a
// restart with certificates: its data stays, names are bound, gossip gets its first key, and a revoked node is
// refused from then on.
func TestSecureAnInsecureCluster(t *testing.T) {
	nodes, table := startThree(t)
	put(t, kvClient(t, nodes[0]), table.Id, "k", "v")
	a := identitytest.NewFor(t, nodes[0].Identity().Cluster)
	var configs []Config
	for i, n := range nodes {
		cfg := secureConfig(t, a, n.cfg.Dirs[0], fmt.Sprintf("eu-%d", i+1))
		// The addresses stay, as they do for hosts.
		cfg.Addr, cfg.HeartbeatAddr, cfg.Region, cfg.Zone = n.bound.addr, n.bound.heartbeat, n.cfg.Region, n.cfg.Zone
		configs = append(configs, cfg)
	}
	for _, n := range nodes {
		n.Close()
	}
	for i := range nodes {
		n, err := Start(configs[i])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		nodes[i] = n
	}
	awaitReady(t, nodes...)
	for i, n := range nodes {
		await(t, "names and a key of gossip", func() bool {
			d, ok := n.State().Node(nodes[i].Identity().Node)
			return ok && d.Name == fmt.Sprintf("eu-%d", i+1) && n.gossip.Keys().Version == 1
		})
	}
	for _, n := range nodes {
		await(t, "gossip", gossipKnows(n, 3))
	}
	operator := a.Operator(t, "ann").Source(t)
	if got := get(t, kvAs(t, nodes[1], operator), table.Id, "k"); got != "v" {
		t.Fatalf("k is %q", got)
	}
	resp, err := rhumbpb.NewSecurityClient(dialAs(t, nodes[0], operator)).RevokeCertificate(t.Context(), &rhumbpb.RevokeCertificateRequest{NodeName: "eu-3", Why: "test"})
	if err != nil || len(resp.Revoked) != 1 {
		t.Fatalf("revoked %v, %v", resp, err)
	}
	await(t, "the revoked node to be fenced", func() bool {
		d, _ := nodes[0].State().Node(nodes[2].Identity().Node)
		return d.State == rhumb.NodeFenced
	})
	// Whether it has learned of the revocation itself or only meets refusals, it must not get traffic.
	await(t, "the revoked node to be not ready", func() bool { return nodes[2].Ready() != nil })
}
