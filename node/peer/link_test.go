package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
	"github.com/rhumbdb/rhumb/node/replica"
)

// stranger is a hand-made link to a side.
type stranger struct {
	t *testing.T
	*link.Conn
	conn net.Conn
}

// dialAs opens a connection to a side and sends the magic. src is nil without TLS.
func dialAs(t *testing.T, to *side, src *identity.Source, magic string) stranger {
	t.Helper()
	raw, err := net.Dial("tcp", to.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	conn := raw
	if src != nil {
		if conn, _, err = src.ClientCredentials(wantNode, link.PeerProtocol).ClientHandshake(t.Context(), to.addr, raw); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Write([]byte(magic)); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	return stranger{t, link.New(conn, linkConfig), conn}
}

// greet sends a hello and returns the error with which the side answers.
func (s stranger) greet(hello *rhumbpb.PeerHello) error {
	if err := s.WriteProto(link.KindHello, hello); err != nil {
		s.t.Fatal(err)
	}
	return s.ReadProto(link.KindHello, new(rhumbpb.PeerHello))
}

// helloOf returns the hello of a node.
func helloOf(cluster rhumb.ClusterID, id rhumb.NodeID) *rhumbpb.PeerHello {
	return &rhumbpb.PeerHello{Protocol: api.Protocol, Cluster: cluster[:], Identity: api.EncodeIdentity(rhumb.NodeIdentity{Node: id, Store: rhumb.UUID{byte(id)}, Boot: 1})}
}

// TestLinkOfSecuredNodes guards that links work over TLS, on the port of gRPC.
func TestLinkOfSecuredNodes(t *testing.T) {
	a := identitytest.New(t)
	bound := bindNames(t, a.Cluster, 2)
	one, two := startSideAs(t, 1, a.Cluster, a.Node(t, "eu-1").Source(t), bound), startSideAs(t, 2, a.Cluster, a.Node(t, "eu-2").Source(t), bound)
	one.network.SetPeers([]*rhumb.Node{two.node()})
	one.await(t, "connected", func() bool { return one.connected[2] })
	one.network.Send(2, []replica.Message{{Kind: replica.Append, Entries: []*entry.Entry{testEntry()}}})
	two.await(t, "the message", func() bool { return len(two.msgs) == 1 && two.msgs[0].From == 1 })
	if p, _ := one.network.lookUpPeer(2); p.link.Load() == nil {
		t.Error("the message did not go by a link")
	}
}

// TestLinkSpeaksForItselfOnly is a hostile peer as in TestNodeSpeaksForItselfOnly, on a link.
func TestLinkSpeaksForItselfOnly(t *testing.T) {
	a := identitytest.New(t)
	bound := bindNames(t, a.Cluster, 3)
	victim := startSideAs(t, 1, a.Cluster, a.Node(t, "eu-1").Source(t), bound)
	for _, tc := range []struct {
		who    string
		src    *identity.Source
		claims rhumb.NodeID
		want   rhumb.Kind
	}{
		{"itself", a.Node(t, "eu-2").Source(t), 2, rhumb.Other},
		{"another node", a.Node(t, "eu-2").Source(t), 3, rhumb.PermissionDenied},
		{"the receiver", a.Node(t, "eu-2").Source(t), 1, rhumb.PermissionDenied},
		{"a new node", a.Node(t, "eu-9").Source(t), 9, rhumb.Unavailable},
		{"a node, by a user", a.User(t, "eu-2").Source(t), 2, rhumb.Unauthenticated},
		{"a node, by nobody", a.Anonymous(t), 2, rhumb.Unauthenticated},
	} {
		t.Run(tc.who, func(t *testing.T) {
			s := dialAs(t, victim, tc.src, link.PeerMagic)
			err := s.greet(helloOf(a.Cluster, tc.claims))
			if rhumb.KindOf(err) != tc.want || err == nil != (tc.want == rhumb.Other) {
				t.Fatalf("%v, want %s", err, tc.want)
			}
			if err != nil {
				_ = s.WriteFrame(link.KindMessages, func(b []byte) []byte { return appendMessage(b, &replica.Message{Kind: replica.Ack}) })
				if _, _, err := s.ReadFrame(link.HelloBytesMax); err == nil {
					t.Error("the link of a refused node stays open")
				}
			}
		})
	}
	victim.mu.Lock()
	defer victim.mu.Unlock()
	if len(victim.msgs) > 0 {
		t.Errorf("messages of refused nodes were taken: %+v", victim.msgs)
	}
}

// TestLinkRefusesBadFrames guards that a link ends at the first frame that is not what
// its kind and size say, and that nothing of the frame is taken.
func TestLinkRefusesBadFrames(t *testing.T) {
	cluster := rhumb.UUID{9}
	b := startSide(t, 2, cluster)
	good := appendMessage(nil, &replica.Message{Kind: replica.Ack, Match: 7})
	for _, tc := range []struct {
		what  string
		bytes func(frame []byte) []byte
	}{
		{"a flipped bit", func(f []byte) []byte { f[len(f)-1] ^= 1; return f }},
		{"a flipped bit in the checksum", func(f []byte) []byte { f[5] ^= 1; return f }},
		{"no content", func([]byte) []byte { return make([]byte, 8) }},
		{"too large a size", func(f []byte) []byte { binary.BigEndian.PutUint32(f, 1<<31); return f }},
	} {
		t.Run(tc.what, func(t *testing.T) {
			s := dialAs(t, b, nil, link.PeerMagic)
			if err := s.greet(helloOf(cluster, 1)); err != nil {
				t.Fatal(err)
			}
			var frame bytes.Buffer
			sender := link.New(&recorded{w: &frame}, linkConfig)
			if err := sender.WriteFrame(link.KindMessages, func(b []byte) []byte { return append(b, good...) }); err != nil {
				t.Fatal(err)
			}
			if _, err := s.conn.Write(tc.bytes(frame.Bytes())); err != nil {
				t.Fatal(err)
			}
			kind, content, err := s.ReadFrame(link.HelloBytesMax)
			if err != nil || kind != link.KindError || rhumb.KindOf(link.DecodeError(content)) != rhumb.Corrupt {
				t.Fatalf("got kind %d, %v, %v", kind, link.DecodeError(content), err)
			}
			if _, _, err := s.ReadFrame(link.HelloBytesMax); err == nil {
				t.Error("the link stays open")
			}
		})
	}
	t.Run("a damaged hello", func(t *testing.T) {
		s := dialAs(t, b, nil, link.PeerMagic)
		if _, err := s.conn.Write([]byte("\x00\x00\x00\x02\x00\x00\x00\x00\x01\x01")); err != nil {
			t.Fatal(err)
		}
		kind, content, err := s.ReadFrame(link.HelloBytesMax)
		if err != nil || kind != link.KindError || rhumb.KindOf(link.DecodeError(content)) != rhumb.Corrupt {
			t.Fatalf("got kind %d, %v, %v", kind, link.DecodeError(content), err)
		}
	})
	if n := testutil.ToFloat64(b.network.m.damaged); n != 5 {
		t.Errorf("%v damaged frames are counted, want 5", n)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.msgs) > 0 {
		t.Errorf("bad frames were taken: %+v", b.msgs)
	}
}

// recorded is a connection that keeps what is written.
type recorded struct {
	net.Conn
	w io.Writer
}

func (r *recorded) Write(b []byte) (int, error) { return r.w.Write(b) }

// TestLinkAnswersPings guards that a node answers a ping, by which the other side knows
// that the link still works.
func TestLinkAnswersPings(t *testing.T) {
	cluster := rhumb.UUID{9}
	b := startSide(t, 2, cluster)
	s := dialAs(t, b, nil, link.PeerMagic)
	if err := s.greet(helloOf(cluster, 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFrame(link.KindPing, nil); err != nil {
		t.Fatal(err)
	}
	if kind, _, err := s.ReadFrame(link.HelloBytesMax); err != nil || kind != link.KindPing {
		t.Fatalf("got kind %d, %v", kind, err)
	}
}

// TestLinkOfLaterRelease guards that a message with a field or an entry of a later
// release is lost alone.
func TestLinkOfLaterRelease(t *testing.T) {
	later := testEntry().AppendWire(nil)
	later[0]++
	message := func(fields uint64, rest []byte) []byte {
		return appendSized(nil, func(b []byte) []byte {
			b = binary.AppendUvarint(append(b, byte(replica.Suffix)), fields)
			return append(append(b, 1, 1, 1, 1), rest...)
		})
	}
	content := message(fieldsEnd, []byte{1})
	content = append(content, message(hasEntries, append([]byte{1, 0, 0, 0, byte(len(later))}, later...))...)
	content = appendMessage(content, &replica.Message{Kind: replica.Ack, Match: 3})
	unknown := 0
	msgs, _, err := decodeMessages(content, 1, 2, func(replica.Message, error) { unknown++ })
	if err != nil || unknown != 2 || len(msgs) != 1 || msgs[0].Match != 3 {
		t.Fatalf("%d unknown, got %+v, %v", unknown, msgs, err)
	}
}

// TestServiceCloseEndsLinks guards that no message is handled after Close.
func TestServiceCloseEndsLinks(t *testing.T) {
	cluster := rhumb.UUID{9}
	a, b := startSide(t, 1, cluster), startSide(t, 2, cluster)
	a.network.SetPeers([]*rhumb.Node{b.node()})
	a.await(t, "connected", func() bool { return a.connected[2] })
	b.service.Close()
	a.await(t, "disconnected", func() bool { return !a.connected[2] })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	p, _ := a.network.lookUpPeer(2)
	if l, _, err := p.dialLink(ctx, p.n.newHello()); err == nil {
		l.Close()
		t.Error("a link was opened after Close")
	}
}

// TestStreamGivesWayToLink guards that a node which began with gRPC, because it did not
// know the version of its cluster, goes on by a link.
func TestStreamGivesWayToLink(t *testing.T) {
	cluster := rhumb.UUID{9}
	a, b := startSide(t, 1, cluster), startSide(t, 2, cluster)
	a.old.Store(true)
	a.network.SetPeers([]*rhumb.Node{b.node()})
	a.await(t, "connected", func() bool { return a.connected[2] })
	p, _ := a.network.lookUpPeer(2)
	if p.link.Load() != nil {
		t.Fatal("the node of an old cluster opened a link")
	}
	a.old.Store(false)
	b.await(t, "a message by the link", func() bool {
		a.network.Send(2, []replica.Message{{Kind: replica.Ack}})
		return p.link.Load() != nil && len(b.msgs) > 0
	})
}

// FuzzDecodeMessages guards that no content of a frame breaks the decoder, and that what
// it accepts has one form.
func FuzzDecodeMessages(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendMessage(nil, &replica.Message{Kind: replica.Ack, Match: 9, Life: 2, Epoch: 3}))
	f.Add(appendMessage(appendMessage(nil, &replica.Message{Kind: replica.Append, Entries: []*entry.Entry{testEntry()}, Trim: 1}),
		&replica.Message{Kind: replica.Handover, InSync: []rhumb.NodeID{1, 2}, Quarantined: true}))
	f.Fuzz(func(t *testing.T, content []byte) {
		msgs, _, err := decodeMessages(content, 1, 2, func(replica.Message, error) {})
		if err != nil {
			return
		}
		for _, m := range msgs {
			// What is not sent.
			if m.Unknown = false; len(m.Entries) == 0 {
				m.Entries = nil
			}
			again, err := decodeMessage(appendMessage(nil, &m)[sizeBytes:], 1, 2)
			if err != nil || !reflect.DeepEqual(again, m) {
				t.Fatalf("%+v became %+v, %v", m, again, err)
			}
		}
	})
}
