package peer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// names is a catalog in which node i is named eu-i.
type names struct{ state *catalog.State }

// bindNames returns a catalog with nodes eu-1 to eu-n.
func bindNames(t *testing.T, cluster rhumb.ClusterID, n int) *names {
	t.Helper()
	s := catalog.New()
	for i := 1; i <= n; i++ {
		r := catalog.RegisterNode{Store: rhumb.UUID{byte(i)}, Boot: 1, Region: "fra", Zone: "z", HasLocation: true, Name: fmt.Sprintf("eu-%d", i)}
		var cmd catalog.Command = r
		if i == 1 {
			cmd = catalog.Init{Cluster: cluster, First: r}
		}
		var res catalog.Result
		if s, res, _ = s.Apply(cmd); res.Failure != nil {
			t.Fatal(res.Failure)
		}
	}
	return &names{s}
}

func (s *side) MaySpeak(name string, id rhumb.NodeID, joining bool) error {
	return s.names.state.MaySpeak(name, id, joining)
}

func (s *side) NodeNamed(name string) (rhumb.NodeID, bool) {
	d, ok := s.names.state.NodeByName(name)
	if !ok {
		return 0, false
	}
	return d.ID, true
}

func (s *side) DescribeIdentity() *rhumbpb.NodeIdentityReport {
	return &rhumbpb.NodeIdentityReport{Node: uint32(s.id.Node)}
}

// connectAs connects to a side with an identity.
func connectAs(t *testing.T, to *side, src *identity.Source) *grpc.ClientConn {
	t.Helper()
	conn, err := api.Connect(to.addr, nil, src.ClientCredentials(wantNode))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// kindOf returns the kind of the error that a call ended with.
func kindOf(err error) rhumb.Kind {
	if err == nil {
		return rhumb.Other
	}
	e, _, _ := api.FromStatus("test", err)
	return rhumb.KindOf(e)
}

// TestNodeSpeaksForItselfOnly is a hostile peer: it has a valid certificate and claims to be somebody else on
// every stream and call, and as a relay.
func TestNodeSpeaksForItselfOnly(t *testing.T) {
	a := identitytest.New(t)
	bound := bindNames(t, a.Cluster, 3)
	victim := startSideAs(t, 1, a.Cluster, a.Node(t, "eu-1").Source(t), bound)
	hello := func(id rhumb.NodeID) *rhumbpb.PeerHello {
		return &rhumbpb.PeerHello{Protocol: api.Protocol, Cluster: a.Cluster[:], Identity: api.EncodeIdentity(rhumb.NodeIdentity{Node: id, Store: rhumb.UUID{byte(id)}, Boot: 1})}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, tc := range []struct {
		who    string
		src    *identity.Source
		claims rhumb.NodeID
		// member and joining are the kinds of the refusals where a registered node is needed, and where a
		// node that registers may speak; Other means that the call succeeds.
		member, joining, unclaimed rhumb.Kind
	}{
		{"itself", a.Node(t, "eu-2").Source(t), 2, rhumb.Other, rhumb.Other, rhumb.Other},
		{"itself with a second certificate", a.Node(t, "eu-2").Source(t), 2, rhumb.Other, rhumb.Other, rhumb.Other},
		{"another node", a.Node(t, "eu-2").Source(t), 3, rhumb.PermissionDenied, rhumb.PermissionDenied, rhumb.Other},
		{"the receiver", a.Node(t, "eu-2").Source(t), 1, rhumb.PermissionDenied, rhumb.PermissionDenied, rhumb.Other},
		{"a node that does not exist", a.Node(t, "eu-2").Source(t), 9, rhumb.PermissionDenied, rhumb.PermissionDenied, rhumb.Other},
		{"nobody", a.Node(t, "eu-2").Source(t), 0, rhumb.PermissionDenied, rhumb.PermissionDenied, rhumb.Other},
		{"a node, by one that is not registered", a.Node(t, "eu-9").Source(t), 2, rhumb.PermissionDenied, rhumb.PermissionDenied, rhumb.Unavailable},
		{"a new node, by one that is not registered", a.Node(t, "eu-9").Source(t), 9, rhumb.Unavailable, rhumb.Other, rhumb.Unavailable},
		{"a node, by a user", a.User(t, "eu-2").Source(t), 2, rhumb.Unauthenticated, rhumb.Unauthenticated, rhumb.Unauthenticated},
		{"a node, by an operator", a.Operator(t, "eu-2").Source(t), 2, rhumb.Unauthenticated, rhumb.Unauthenticated, rhumb.Unauthenticated},
		{"a node, by nobody", a.Anonymous(t), 2, rhumb.Unauthenticated, rhumb.Unauthenticated, rhumb.Unauthenticated},
	} {
		t.Run(tc.who, func(t *testing.T) {
			p := rhumbpb.NewPeerClient(connectAs(t, victim, tc.src))
			check := func(what string, err error, want rhumb.Kind) {
				t.Helper()
				if got := kindOf(err); got != want || err == nil != (want == rhumb.Other) {
					t.Errorf("%s: %v, want %s", what, err, want)
				}
			}
			s, err := p.Replicate(ctx)
			if err == nil {
				_ = s.Send(&rhumbpb.ReplicaFrame{Hello: hello(tc.claims)})
				_, err = s.Recv()
			}
			check("Replicate", err, tc.member)
			beat, err := p.Heartbeat(ctx)
			if err == nil {
				_ = beat.Send(&rhumbpb.HeartbeatFrame{Hello: hello(tc.claims)})
				_, err = beat.Recv()
			}
			check("Heartbeat", err, tc.member)

			_, err = p.Metadata(ctx, &rhumbpb.MetadataRequest{Hello: hello(tc.claims), Request: []byte("q")})
			check("Metadata", err, tc.joining)
			before := victim.countRaft()
			raft, err := p.Raft(ctx)
			if err == nil {
				_ = raft.Send(&rhumbpb.RaftFrame{Hello: hello(tc.claims)})
				_ = raft.Send(&rhumbpb.RaftFrame{Messages: [][]byte{{1}}})
				if tc.joining == rhumb.Other {
					victim.await(t, "raft", func() bool { return victim.raft > before && victim.raftFrom == tc.claims })
				} else {
					_, err = raft.CloseAndRecv()
				}
			}
			check("Raft", err, tc.joining)
			if tc.joining != rhumb.Other && victim.countRaft() != before {
				t.Error("messages were taken")
			}

			_, err = p.Forward(ctx, &rhumbpb.Request{})
			check("Forward", err, tc.unclaimed)
			_, err = p.DescribeReplica(ctx, &rhumbpb.DescribeReplicaRequest{Range: &rhumbpb.RangeID{}})
			check("DescribeReplica", err, tc.unclaimed)
			_, err = p.DiscardReplica(ctx, &rhumbpb.DiscardReplicaRequest{Range: &rhumbpb.RangeID{}})
			check("DiscardReplica", err, tc.unclaimed)
			_, err = p.VerifyReplicas(ctx, &rhumbpb.VerifyRangeRequest{Range: &rhumbpb.RangeID{}})
			check("VerifyReplicas", err, tc.unclaimed)
			_, err = p.DescribeIdentity(ctx, &rhumbpb.DescribeIdentityRequest{})
			check("DescribeIdentity", err, tc.unclaimed)
		})
	}
}

func (s *side) countRaft() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raft
}

// TestDialedNodeHasItsName guards that a node sends nothing to a server that presents the certificate of
// another node at its address.
func TestDialedNodeHasItsName(t *testing.T) {
	a := identitytest.New(t)
	bound := bindNames(t, a.Cluster, 3)
	one := startSideAs(t, 1, a.Cluster, a.Node(t, "eu-1").Source(t), bound)
	two := startSideAs(t, 2, a.Cluster, a.Node(t, "eu-2").Source(t), bound)
	wrong := *two.node()
	wrong.ID, wrong.Store, wrong.Name = 3, rhumb.UUID{3}, "eu-3"
	one.network.SetPeers([]*rhumb.Node{two.node(), &wrong})
	one.await(t, "connected", func() bool { return one.connected[2] })
	one.network.Send(2, []replica.Message{{Kind: replica.Ack}})
	two.await(t, "the message", func() bool { return len(two.msgs) == 1 })
	two.await(t, "heartbeats", func() bool {
		one.network.SendHeartbeat(2, &lease.Frame{})
		return two.beats > 0
	})
	_, err := one.network.Forward(t.Context(), 3, &rhumbpb.Request{})
	if rhumb.KindOf(err) != rhumb.Unavailable && rhumb.KindOf(err) != rhumb.Unknown || !strings.Contains(err.Error(), "eu-3") {
		t.Errorf("forwarding to the wrong node: %v", err)
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.connected[3] {
		t.Error("connected to a node with another name")
	}
}

// TestRelayCannotSpeak guards that a node that relays messages of the metadata group can neither invent nor
// change them, nor send them to somebody else or much later.
func TestRelayCannotSpeak(t *testing.T) {
	a := identitytest.New(t)
	bound := bindNames(t, a.Cluster, 3)
	var sides []*side
	for i := 1; i <= 3; i++ {
		sides = append(sides, startSideAs(t, rhumb.NodeID(i), a.Cluster, a.Node(t, fmt.Sprintf("eu-%d", i)).Source(t), bound))
	}
	one, relay, three := sides[0], sides[1], sides[2]
	one.via = map[rhumb.NodeID]rhumb.NodeID{3: 2}
	one.network.SetPeers([]*rhumb.Node{relay.node()})
	relay.network.SetPeers([]*rhumb.Node{one.node(), three.node()})
	three.await(t, "raft by the relay", func() bool {
		one.network.SendRaft(3, 0, [][]byte{{1}})
		return three.raft > 0 && three.raftFrom == 1
	})
	// The loop above may have sent more frames than one. They are all there once the next one is.
	one.network.SendRaft(3, 0, [][]byte{[]byte("last")})
	three.await(t, "the last frame by the relay", func() bool { return string(three.raftLast) == "last" })
	if got, err := one.network.Metadata(t.Context(), 3, 0, []byte("q")); err != nil || string(got) != "re:q" {
		t.Fatalf("metadata answered %q, %v", got, err)
	}

	// The relay sends what it likes to node 3, with frames that node 1 signed.
	sign := func(n *Network, statement string, to rhumb.NodeID, group uint32, contents ...[]byte) *rhumbpb.OriginProof {
		p, err := n.signProof(statement, to, group, contents...)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	early := NewNetwork(one.network.cfg)
	early.cfg.Wall = func() time.Time { return time.Now().Add(-proofAgeMax - time.Second) }
	defer early.Close()
	messages := [][]byte{{1, 2}, {3}}
	for _, tc := range []struct {
		what string
		f    *rhumbpb.RaftFrame
		ok   bool
	}{
		{"what node 1 signed", &rhumbpb.RaftFrame{From: 1, Messages: messages, Proof: sign(one.network, proofRaft, 3, 0, messages...)}, true},
		{"nothing signed", &rhumbpb.RaftFrame{From: 1, Messages: messages}, false},
		{"its own signature", &rhumbpb.RaftFrame{From: 1, Messages: messages, Proof: sign(relay.network, proofRaft, 3, 0, messages...)}, false},
		{"other messages", &rhumbpb.RaftFrame{From: 1, Messages: [][]byte{{1}}, Proof: sign(one.network, proofRaft, 3, 0, messages...)}, false},
		{"bytes moved between messages", &rhumbpb.RaftFrame{From: 1, Messages: [][]byte{{1}, {2, 3}}, Proof: sign(one.network, proofRaft, 3, 0, messages...)}, false},
		{"what was for another node", &rhumbpb.RaftFrame{From: 1, Messages: messages, Proof: sign(one.network, proofRaft, 2, 0, messages...)}, false},
		{"another group", &rhumbpb.RaftFrame{From: 1, Group: 7, Messages: messages, Proof: sign(one.network, proofRaft, 3, 0, messages...)}, false},
		{"a request as messages", &rhumbpb.RaftFrame{From: 1, Messages: messages, Proof: sign(one.network, proofRequest, 3, 0, messages...)}, false},
		{"what is long over", &rhumbpb.RaftFrame{From: 1, Messages: messages, Proof: sign(early, proofRaft, 3, 0, messages...)}, false},
	} {
		before := three.countRaft()
		relay.network.queueRaft(3, tc.f)
		if tc.ok {
			three.await(t, tc.what, func() bool { return three.raft == before+len(messages) })
			continue
		}
		// A frame that node 3 takes arrives after the one in question, on the same stream.
		marker := [][]byte{{9}}
		relay.network.queueRaft(3, &rhumbpb.RaftFrame{Messages: marker})
		three.await(t, "the frame after "+tc.what, func() bool { return three.raft > before })
		if got := three.countRaft(); got != before+1 {
			t.Errorf("%s was taken: %d messages", tc.what, got-before)
		}
	}

	// Requests: the relay invents one, and invents an answer.
	hello := one.network.newHello()
	forged := &rhumbpb.MetadataRequest{Hello: hello, Request: []byte("other"), Proof: sign(one.network, proofRequest, 3, 0, []byte("q"))}
	for what, q := range map[string]*rhumbpb.MetadataRequest{
		"changed":  forged,
		"unsigned": {Hello: hello, Request: []byte("q")},
	} {
		err := relay.network.callPeer(t.Context(), "test", 3, rhumbpb.Peer_Metadata_FullMethodName, q, new(rhumbpb.MetadataResponse))
		if k := rhumb.KindOf(err); k != rhumb.Unauthenticated && k != rhumb.PermissionDenied {
			t.Errorf("a request that is %s: %v", what, err)
		}
	}
	p := sign(one.network, proofRequest, 3, 0, []byte("q"))
	answer := []byte("a lie")
	for what, proof := range map[string]*rhumbpb.OriginProof{
		"nothing":              nil,
		"the relay's":          sign(relay.network, proofResponse, 1, 0, p.Signature, answer),
		"that of other bytes":  sign(three.network, proofResponse, 1, 0, p.Signature, []byte("re:q")),
		"that of a request":    sign(three.network, proofRequest, 1, 0, p.Signature, answer),
		"that of another call": sign(three.network, proofResponse, 1, 0, []byte("another"), answer),
	} {
		if err := one.network.checkProof(proofResponse, proof, 3, 0, p.Signature, answer); err == nil {
			t.Errorf("an answer with the signature %s was accepted", what)
		}
	}
}

// TestRevokedNodeIsCutOff guards that the streams of a revoked node end, that it opens no other, and that what
// it signed before is not accepted from a relay either.
func TestRevokedNodeIsCutOff(t *testing.T) {
	a := identitytest.New(t)
	bound := bindNames(t, a.Cluster, 3)
	lost := a.Node(t, "eu-2")
	one := startSideAs(t, 1, a.Cluster, a.Node(t, "eu-1").Source(t), bound)
	two := startSideAs(t, 2, a.Cluster, lost.Source(t), bound)
	two.network.SetPeers([]*rhumb.Node{one.node()})
	two.await(t, "connected", func() bool { return two.connected[1] })
	proof, err := two.network.signProof(proofRaft, 1, 0, []byte("m"))
	if err != nil {
		t.Fatal(err)
	}
	if err := one.network.checkProof(proofRaft, proof, 2, 0, []byte("m")); err != nil {
		t.Fatal(err)
	}
	one.source.SetTrust(identity.Trust{Revoked: []identity.Revoked{{Serial: identity.SerialOf(lost.Cert)}}})
	start := time.Now()
	two.await(t, "cut off", func() bool { return !two.connected[1] })
	t.Logf("cut off after %v", time.Since(start))
	if err := one.network.checkProof(proofRaft, proof, 2, 0, []byte("m")); identity.ReasonOf(err) != identity.ReasonRevoked {
		t.Errorf("a proof of a revoked node: %v", err)
	}
	if _, err := two.network.Forward(t.Context(), 1, &rhumbpb.Request{}); err == nil {
		t.Error("a revoked node was answered")
	}
	// A new certificate brings it back.
	one.source.SetTrust(identity.Trust{})
	two.await(t, "connected again", func() bool { return two.connected[1] })
}
