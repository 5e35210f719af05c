package link

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// recorded is a connection that keeps what is written, and reads what it was made with.
type recorded struct {
	net.Conn
	written bytes.Buffer
	in      io.Reader
}

func (r *recorded) Write(b []byte) (int, error) { return r.written.Write(b) }
func (r *recorded) Read(b []byte) (int, error)  { return r.in.Read(b) }
func (r *recorded) RemoteAddr() net.Addr        { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7600} }
func (r *recorded) Close() error                { return nil }

func (r *recorded) SetDeadline(time.Time) error      { return nil }
func (r *recorded) SetReadDeadline(time.Time) error  { return nil }
func (r *recorded) SetWriteDeadline(time.Time) error { return nil }

// parseAll parses a message of each line.
func parseAll[T any, M interface {
	*T
	proto.Message
}](t *testing.T, lines string) (msgs []M) {
	t.Helper()
	for line := range strings.Lines(lines) {
		m := M(new(T))
		if err := prototext.Unmarshal([]byte(line), m); err != nil {
			t.Fatal(err)
		}
		msgs = append(msgs, m)
	}
	return msgs
}

// dump returns bytes in hexadecimal digits, 32 to a line.
func dump(b []byte) string {
	var out strings.Builder
	for ; len(b) > 32; b = b[32:] {
		fmt.Fprintf(&out, "%x\n", b[:32])
	}
	fmt.Fprintf(&out, "%x\n", b)
	return out.String()
}

// TestFrames shows the bytes of frames, which are the wire format of links, and what a reader says of damaged ones. The commands hello, requests and
// answers have a message in the text form of protobuf on each line; read has hexadecimal digits.
func TestFrames(t *testing.T) {
	datadriven.RunTest(t, "testdata/frames.txt", func(t *testing.T, d *datadriven.TestData) string {
		r := &recorded{}
		c := New(r, ClientConfig)
		var err error
		switch d.Cmd {
		case "hello":
			err = c.WriteProto(KindHello, parseAll[rhumbpb.LinkHello](t, d.Input)[0])
		case "requests":
			err = c.WriteFrame(KindMessages, func(b []byte) []byte { return AppendRequests(b, parseAll[rhumbpb.Request](t, d.Input)) })
		case "answers":
			err = c.WriteFrame(KindMessages, func(b []byte) []byte { return AppendResponses(b, parseAll[rhumbpb.Response](t, d.Input)) })
		case "ping":
			err = c.WriteFrame(KindPing, nil)
		case "error":
			c.WriteError(rhumb.E("node.Link", rhumb.Unavailable, d.Input))
		case "read":
			return readAll(t, d.Input)
		default:
			d.Fatalf(t, "unknown command %s", d.Cmd)
		}
		if err != nil {
			t.Fatal(err)
		}
		return dump(r.written.Bytes())
	})
}

// readAll reads frames as a node does.
func readAll(t *testing.T, digits string) string {
	b, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
	if err != nil {
		t.Fatal(err)
	}
	c := New(&recorded{in: bytes.NewReader(b)}, ClientConfig)
	var out strings.Builder
	for {
		kind, content, err := c.NextFrame(RequestBytesMax)
		if err != nil {
			fmt.Fprintln(&out, err)
			return out.String()
		}
		fmt.Fprintf(&out, "kind %d, %d bytes\n", kind, len(content))
		if kind != KindMessages {
			continue
		}
		requests, err := DecodeRequests(content)
		if err != nil {
			fmt.Fprintln(&out, err)
		}
		for _, q := range requests {
			fmt.Fprintf(&out, "request %d: %d writes, %d reads\n", q.Id, len(q.GetWrite().GetMutations()), len(q.GetRead().GetNames()))
		}
	}
}

// TestNextFrame guards that frames of every size arrive whole, in one piece or in many, and that the next frame does not touch the messages of the
// last one.
func TestNextFrame(t *testing.T) {
	r := &recorded{}
	w := New(r, ClientConfig)
	var want []*rhumbpb.Request
	for i, size := range []int{0, 1, 200, sharedMax, sharedMax + 1, ClientConfig.ReadBuffer - 60, ClientConfig.ReadBuffer, 5 << 20, 3} {
		q := &rhumbpb.Request{Id: uint64(i), Write: &rhumbpb.Write{Mutations: []*rhumbpb.Mutation{{Name: []byte{byte(i)}, Value: bytes.Repeat([]byte{byte(i + 1)}, size)}}}}
		want = append(want, q)
		if err := w.WriteFrame(KindMessages, func(b []byte) []byte { return AppendRequests(b, []*rhumbpb.Request{q}) }); err != nil {
			t.Fatal(err)
		}
	}
	r.in = &r.written
	reader := New(r, ClientConfig)
	var got []*rhumbpb.Request
	for range want {
		kind, content, err := reader.NextFrame(RequestBytesMax)
		if err != nil || kind != KindMessages {
			t.Fatalf("kind %d, %v", kind, err)
		}
		requests, err := DecodeRequests(content)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, requests...)
	}
	for i := range want {
		if !proto.Equal(got[i], want[i]) {
			t.Errorf("request %d of %d bytes changed on the way", i, proto.Size(want[i]))
		}
	}
	if _, _, err := reader.NextFrame(RequestBytesMax); err != io.EOF {
		t.Errorf("after the last frame: %v", err)
	}
}

// TestSizeReservesNothing guards that the size of a frame, which anybody can write, takes no memory before the content arrives.
func TestSizeReservesNothing(t *testing.T) {
	head := binary.BigEndian.AppendUint32(nil, RequestBytesMax)
	head = append(head, make([]byte, 4+100)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		if _, _, err := New(&recorded{in: bytes.NewReader(head)}, ClientConfig).NextFrame(RequestBytesMax); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if used := (after.TotalAlloc - before.TotalAlloc) / 100; used > 2*uint64(ClientConfig.ReadStep) {
		t.Errorf("a frame whose content did not arrive took %d bytes", used)
	}
}

// FuzzNextFrame guards that no bytes break the reader of frames and the decoders behind it.
func FuzzNextFrame(f *testing.F) {
	r := &recorded{}
	c := New(r, ClientConfig)
	_ = c.WriteFrame(KindMessages, func(b []byte) []byte {
		return AppendRequests(b, []*rhumbpb.Request{{Id: 1, Read: &rhumbpb.Read{Names: [][]byte{[]byte("a")}}}, {Id: 2}})
	})
	c.WriteError(rhumb.E("x", rhumb.Overloaded, "full"))
	f.Add(r.written.Bytes())
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 0, 3})
	f.Fuzz(func(_ *testing.T, in []byte) {
		c := New(&recorded{in: bytes.NewReader(in)}, ClientConfig)
		for {
			kind, content, err := c.NextFrame(RequestBytesMax)
			if err != nil {
				return
			}
			if kind == KindError {
				_ = DecodeError(content)
			}
		}
	})
}

// checkDecoder compares the messages of a content with those that the decoder of protobuf finds, also after the content was overwritten.
func checkDecoder[T any, M interface {
	*T
	message
	proto.Message
}](t *testing.T, content []byte, decode func([]byte) ([]M, error)) {
	var want []M
	accepted := true
	for rest := content; len(rest) > 0; {
		size, ok := nextSize(rest)
		m := M(new(T))
		if !ok || proto.Unmarshal(rest[sizeBytes:sizeBytes+size], m) != nil {
			accepted = false
			break
		}
		want, rest = append(want, m), rest[sizeBytes+size:]
	}
	own := bytes.Clone(content)
	got, err := decode(own)
	clear(own)
	if err != nil {
		return
	}
	for i, m := range got {
		if accepted && !proto.Equal(m, want[i]) {
			t.Fatalf("message %d is %v, want %v", i, m, want[i])
		}
	}
	if again, err := decode(appendMessages(nil, got)); err != nil || len(again) != len(got) {
		t.Fatalf("%d messages became %d, %v", len(got), len(again), err)
	}
}

// FuzzDecodeRequests guards that no content of a frame of requests breaks the decoder, and that it finds what the decoder of gRPC would.
func FuzzDecodeRequests(f *testing.F) {
	f.Add(AppendRequests(nil, []*rhumbpb.Request{
		{Id: 1, TimeoutUs: 9, Write: &rhumbpb.Write{Region: 2, ClientHigh: 3, Seq: 4, Mutations: []*rhumbpb.Mutation{
			{Kind: rhumbpb.MutationKind_MUTATION_KIND_PUT, Table: 7, Name: []byte("n"), Value: []byte("v"), Condition: &rhumbpb.Condition{Kind: rhumbpb.ConditionKind_CONDITION_KIND_IF_NEWER, Fields: []string{"f"}}},
		}}},
		{Id: 2, Read: &rhumbpb.Read{Table: 1, Names: [][]byte{[]byte("a"), nil}}},
		{Id: 3, Locate: &rhumbpb.Locate{Names: [][]byte{{1}}, Tables: []uint32{1}}, Scan: &rhumbpb.ScanRequest{Prefix: []byte("p")}, Principal: &rhumbpb.Principal{Name: "x"}},
	}))
	f.Fuzz(func(t *testing.T, content []byte) { checkDecoder(t, content, DecodeRequests) })
}

// FuzzDecodeResponses is FuzzDecodeRequests for answers, at a client.
func FuzzDecodeResponses(f *testing.F) {
	f.Add(AppendResponses(nil, []*rhumbpb.Response{
		{Id: 1, Outcome: &rhumbpb.Outcome{Applied: true, Hlc: 1, Existed: []bool{true}, Names: [][]byte{{1}}}, Receipt: &rhumbpb.Receipt{Region: 1, Timestamp: 2, Unasked: []uint32{1}}},
		{Id: 2, Items: []*rhumbpb.Item{{Name: []byte("n"), Hlc: 3, Value: []byte("v")}}, More: true, Located: []rhumbpb.Existence{1}},
		{Id: 3, Error: &rhumbpb.Error{Kind: rhumbpb.Kind_KIND_NOT_PRIMARY, Newer: &rhumbpb.Range{}}},
	}))
	f.Fuzz(func(t *testing.T, content []byte) { checkDecoder(t, content, DecodeResponses) })
}
