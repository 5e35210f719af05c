package peer

import (
	"bytes"
	"compress/lzw"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rhumbdb/rhumb"
)

// sealPacket encrypts a packet as memberlist does. version 0 is its oldest form, with padding that the sender chooses.
func sealPacket(version byte, key, plain []byte) []byte {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err)
	}
	seal, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	head := append([]byte{version}, make([]byte, gossipNonceSize)...)
	return seal.Seal(head, head[1:], plain, nil)
}

// message returns a message of memberlist with the given type and fields.
func message(kind byte, fields map[string]any) []byte {
	out := bytes.NewBuffer([]byte{kind})
	if err := codec.NewEncoder(out, &codec.MsgpackHandle{WriteExt: true}).Encode(fields); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// compress returns a compressed message.
func compress(algo uint8, plain []byte) []byte {
	var b bytes.Buffer
	w := lzw.NewWriter(&b, lzw.LSB, 8)
	_, _ = w.Write(plain)
	_ = w.Close()
	return message(gossipCompressed, map[string]any{"Algo": algo, "Buf": b.Bytes()})
}

// compound returns a compound of messages.
func compound(messages ...[]byte) []byte {
	out := []byte{gossipCompound, byte(len(messages))}
	for _, m := range messages {
		out = binary.BigEndian.AppendUint16(out, uint16(len(m)))
	}
	return append(out, bytes.Join(messages, nil)...)
}

// TestCheckPacket lists forms of packets, and which of them reach memberlist.
func TestCheckPacket(t *testing.T) {
	user := []byte{gossipUser, 'x'}
	for _, tt := range []struct {
		name   string
		packet []byte
		want   error
	}{
		{"message", user, nil},
		{"ping", []byte{0, 1}, nil},
		{"compound", compound(user, user), nil},
		{"compressed message", compress(0, user), nil},
		{"compressed compound", compress(0, compound(user, user)), nil},
		{"checksum", append([]byte{gossipChecked, 1, 2, 3, 4}, compress(0, compound(user, user))...), nil},
		{"largest", compress(0, append(user, make([]byte, gossipPacketBytes-len(user))...)), nil},

		{"empty", nil, errPacketForm},
		{"checksum of nothing", []byte{gossipChecked, 1, 2, 3, 4}, errPacketForm},
		{"checksum twice", []byte{gossipChecked, 1, 2, 3, 4, gossipChecked, 1, 2, 3, 4, gossipUser}, errPacketForm},
		{"state of members", []byte{6, 1}, errPacketForm},
		{"unknown type", []byte{99}, errPacketForm},
		{"empty message in a compound", compound(user, nil), errPacketForm},
		{"compound in a compound", compound(user, compound(user)), errPacketForm},
		{"compressed in a compound", compound(compress(0, user)), errPacketForm},
		{"compressed twice", compress(0, compress(0, user)), errPacketForm},
		{"compound without sizes", []byte{gossipCompound}, errPacketForm},
		{"compound of 255 without sizes", []byte{gossipCompound, 255, 0}, errPacketForm},
		{"size beyond the end", append([]byte{gossipCompound, 1, 0, 9}, user...), errPacketForm},
		{"unknown compression", compress(1, user), errPacketForm},
		{"compressed garbage", message(gossipCompressed, map[string]any{"Algo": 0, "Buf": []byte{255, 255, 255}}), errPacketForm},
		{"compressed without fields", []byte{gossipCompressed}, errPacketForm},
		{"too large", compress(0, append(user, make([]byte, gossipPacketBytes)...)), errPacketSize},
		{"bomb", compress(0, make([]byte, 40<<20)), errPacketSize},
	} {
		if err := checkPacket(tt.packet); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

// FuzzCheckPacket guards that no packet of a holder of the key makes a node panic or expand it without bound.
func FuzzCheckPacket(f *testing.F) {
	user := []byte{gossipUser, 'x'}
	for _, seed := range [][]byte{nil, user, compound(user), compress(0, user), compress(0, compound(user, user)), compress(0, make([]byte, 1<<20))} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, plain []byte) {
		if checkPacket(plain) == nil && len(plain) == 0 {
			t.Error("accepted nothing")
		}
	})
}

// TestHostileGossip sends well-formed packets that only somebody who has or had a key of gossip can make. The node answers members
// after each of them, and lists nobody that it should not.
func TestHostileGossip(t *testing.T) {
	start := func(name string) *Gossip {
		g, err := StartGossip(GossipConfig{Name: name, Addr: "127.0.0.1:0", Encrypted: true, Logger: slog.New(slog.DiscardHandler)}, Member{Addr: name + ":1"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = g.Close() })
		return g
	}
	old, key := gossipKey(1), gossipKey(2)
	g, other := start("one"), start("two")
	for _, x := range []*Gossip{g, other} {
		for version, keys := range [][]rhumb.GossipKey{{old}, {old, key}, {key, old}, {key}} {
			if err := x.SetKeys(rhumb.GossipKeys{Version: uint64(version + 1), Keys: keys}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := other.Join([]string{g.Addr()}); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("udp", g.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	// What memberlist would believe: a member that does not exist. Its label is valid.
	invented := message(4, map[string]any{
		"Incarnation": 1, "Node": "ghost", "Addr": []byte{127, 0, 0, 1}, "Port": 1, "Meta": encodeLabels(Member{Addr: "ghost:1"}), "Vsn": []byte{1, 5, 2, 0, 0, 0},
	})
	nested := invented
	for range 1000 {
		nested = compound(nested)
	}
	bomb := compress(0, make([]byte, 40<<20))
	for len(bomb) > 60<<10 {
		bomb = compress(0, make([]byte, 20<<20))
	}
	for _, tt := range []struct {
		name, reason string // reason is empty if the packet reaches memberlist
		packet       []byte
	}{
		{"replay under a removed key", "key", sealPacket(1, old.Secret, invented)},
		{"label of another cluster", "key", append([]byte{244, 5, 'o', 't', 'h', 'e', 'r'}, sealPacket(1, key.Secret, invented)...)},
		{"plain", "key", invented},
		{"oldest encryption with padding that is longer than the packet", "key", sealPacket(0, key.Secret, bytes.Repeat([]byte{255}, 16))},
		{"a thousand compounds in each other", "form", sealPacket(1, key.Secret, nested)},
		{"bomb", "size", sealPacket(1, key.Secret, bomb)},
		{"bombs in a compound", "form", sealPacket(1, key.Secret, compound(bomb, bomb))},
		{"state of members in a packet", "form", sealPacket(1, key.Secret, []byte{6})},
		{"alive without fields", "", sealPacket(1, key.Secret, []byte{4})},
		{"ping for another node", "", sealPacket(1, key.Secret, message(0, map[string]any{"SeqNo": 1, "Node": "ghost"}))},
		{"fields of wrong types", "", sealPacket(1, key.Secret, message(4, map[string]any{"Incarnation": "x", "Node": 7, "Vsn": "y"}))},
		{"suspicion of a stranger", "", sealPacket(1, key.Secret, message(3, map[string]any{"Incarnation": 9, "Node": "ghost", "From": "two"}))},
	} {
		refused := func() float64 {
			if tt.reason == "" {
				return 1
			}
			return testutil.ToFloat64(g.transport.refused.WithLabelValues(tt.reason))
		}
		before := refused()
		if _, err := conn.Write(tt.packet); err != nil {
			t.Fatalf("%s: %d bytes: %v", tt.name, len(tt.packet), err)
		}
		for start := time.Now(); tt.reason != "" && refused() == before; time.Sleep(time.Millisecond) {
			if time.Since(start) > 10*time.Second {
				t.Fatalf("%s: not refused for its %s", tt.name, tt.reason)
			}
		}
		// Packets are handled in order, and a join needs an answer.
		if err := other.Join([]string{g.Addr()}); err != nil {
			t.Fatalf("after %s: %v", tt.name, err)
		}
		if got := fmt.Sprint(g.Members()); got != fmt.Sprint(other.Members()) || len(g.Members()) != 2 {
			t.Errorf("after %s, the node lists %s", tt.name, got)
		}
	}

	// The same padding in a stream.
	stream, err := net.Dial("tcp", g.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	packet := sealPacket(0, key.Secret, bytes.Repeat([]byte{255}, 16))
	head := binary.BigEndian.AppendUint32([]byte{gossipEncrypted}, uint32(len(packet)))
	if _, err := stream.Write(append(head, packet...)); err != nil {
		t.Fatal(err)
	}
	_ = stream.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := stream.Read(make([]byte, 1)); err == nil {
		t.Error("a stream in the oldest encryption was answered")
	}
	if err := other.Join([]string{g.Addr()}); err != nil {
		t.Errorf("after a stream in the oldest encryption: %v", err)
	}
}
