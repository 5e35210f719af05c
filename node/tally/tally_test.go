package tally

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
	"pgregory.net/rapid"
)

// The nodes of the tests: one sends Appends, the other acknowledges.
const (
	primary   rhumb.NodeID  = 1
	secondary rhumb.NodeID  = 2
	life      rhumb.BootSeq = 5 // of the secondary
)

var stream = Stream{Life: 3, Number: 77}

// pair holds both ends of a stream.
type pair struct {
	sent  Sent
	taken *Taken
}

func newPair() *pair {
	p := &pair{taken: NewTaken(stream, secondary, life, primary)}
	p.sent.Begin(stream, primary, secondary, life)
	return p
}

// carry sends a frame from the primary to the secondary.
func (p *pair) carry(msgs []replica.Message) {
	p.taken.Record(p.sent.Record(msgs), msgs, true)
}

// answer sends messages from the secondary to the primary, by tallies as far as possible, and returns what arrives, how many of
// the acknowledgements came by tallies, and the tallies.
func (p *pair) answer(t rapid.TB, msgs []replica.Message) (arrived []replica.Message, byTally int, r Tally) {
	t.Helper()
	rest, r := p.taken.Collect(slices.Clone(msgs))
	decoded, err := DecodeWire(r.AppendWire(nil))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(decoded, r) {
		t.Fatalf("decoded %+v, want %+v", decoded, r)
	}
	acks, dropped := p.sent.Expand(nil, &decoded)
	if dropped > 0 {
		t.Fatalf("%d tallies of %+v were dropped", dropped, r)
	}
	return append(slices.Clone(rest), acks...), len(acks), r
}

// appendTo returns an Append of n entries after prev.
func appendTo(slot rhumb.Slot, epoch rhumb.Epoch, prev rhumb.Seq, n int, commit rhumb.Seq) replica.Message {
	return replica.Message{
		Kind: replica.Append, Range: rhumb.RangeID{Region: 1, Slot: slot}, From: primary, To: secondary, Life: stream.Life,
		Epoch: epoch, Prev: entry.Position{Epoch: epoch, Seq: prev}, Entries: make([]*entry.Entry, n), Commit: commit,
	}
}

// ack returns an acknowledgement.
func ack(slot rhumb.Slot, epoch rhumb.Epoch, match, commit rhumb.Seq) replica.Message {
	return replica.Message{
		Kind: replica.Ack, Range: rhumb.RangeID{Region: 1, Slot: slot}, From: secondary, To: primary, Life: life, Epoch: epoch, Match: match, Commit: commit,
	}
}

// describe returns messages in lines, sorted: the order of acknowledgements of different ranges means nothing.
func describe(msgs []replica.Message) string {
	var lines []string
	for i := range msgs {
		m := &msgs[i]
		lines = append(lines, fmt.Sprintf("%s of %s to %s: range %s life %d epoch %d match %d commit %d\n", m.Kind, m.From, m.To, m.Range, m.Life, m.Epoch, m.Match, min(m.Commit, m.Match)))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// TestTally is a transcript of frames, what replicas answer, and the bytes that carry it.
func TestTally(t *testing.T) {
	p := newPair()
	parse := func(d *datadriven.TestData) (msgs []replica.Message) {
		for line := range strings.Lines(d.Input) {
			var kind string
			var slot rhumb.Slot
			var epoch rhumb.Epoch
			var at, commit rhumb.Seq
			var n int
			if _, err := fmt.Sscanf(line, "%s range=%d epoch=%d at=%d n=%d commit=%d", &kind, &slot, &epoch, &at, &n, &commit); err != nil {
				d.Fatalf(t, "%q: %v", line, err)
			}
			switch kind {
			case "append":
				msgs = append(msgs, appendTo(slot, epoch, at, n, commit))
			case "ack":
				msgs = append(msgs, ack(slot, epoch, at, commit))
			case "ack-of-life-4":
				m := ack(slot, epoch, at, commit)
				m.Life = 4
				msgs = append(msgs, m)
			case "nack":
				m := ack(slot, epoch, at, commit)
				m.Kind, m.Match, m.Reject = replica.Nack, 0, at
				msgs = append(msgs, m)
			}
		}
		return msgs
	}
	datadriven.RunTest(t, "testdata/tally.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "stream":
			p = newPair()
		case "frame":
			p.carry(parse(d))
			return fmt.Sprintf("frame %d\n", p.sent.frames.next-1)
		case "cut-frame":
			msgs := parse(d)
			p.taken.Record(p.sent.Record(msgs), msgs, false)
		case "answers":
			msgs := parse(d)
			rest, r := p.taken.Collect(msgs)
			out := "one by one:\n" + describe(rest)
			if len(r.Frames) > 0 {
				b := r.AppendWire(nil)
				acks, dropped := p.sent.Expand(nil, &r)
				out += fmt.Sprintf("tallies of %d bytes: %x\n%sdropped: %d, both remember frames from %d and %d\n", len(b), b, describe(acks), dropped, p.sent.frames.first, p.taken.frames.first)
			}
			return out
		}
		return ""
	})
}

// TestTalliesSayWhatAcksSay compares tallies with the acknowledgements that replicas sent: over any frames and any answers, the
// primary receives the same acknowledgements as without tallies, and no other.
func TestTalliesSayWhatAcksSay(t *testing.T) {
	covered := 0
	rapid.Check(t, func(t *rapid.T) {
		p := newPair()
		ranges := rapid.IntRange(1, 6).Draw(t, "ranges")
		type state struct {
			epoch      rhumb.Epoch
			end        rhumb.Seq
			unanswered []replica.Message
		}
		states := make([]state, ranges)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			var frame []replica.Message
			for range rapid.IntRange(0, 5).Draw(t, "appends") {
				slot := rapid.IntRange(0, ranges-1).Draw(t, "slot")
				s := &states[slot]
				// An epoch may change, and a primary goes back to send again.
				if rapid.IntRange(0, 9).Draw(t, "epoch") == 0 {
					s.epoch++
				}
				prev := s.end - min(s.end, rhumb.Seq(max(0, rapid.IntRange(-9, 3).Draw(t, "back"))))
				n := rapid.IntRange(0, 3).Draw(t, "entries")
				s.end = prev + rhumb.Seq(n)
				m := appendTo(rhumb.Slot(slot), s.epoch, prev, n, rhumb.Seq(rapid.IntRange(0, int(s.end)+2).Draw(t, "commit")))
				frame = append(frame, m)
				s.unanswered = append(s.unanswered, m)
			}
			p.carry(frame)
			var answers []replica.Message
			for range rapid.IntRange(0, 5).Draw(t, "answers") {
				slot := rapid.IntRange(0, ranges-1).Draw(t, "answered")
				s := &states[slot]
				if len(s.unanswered) == 0 {
					continue
				}
				// One acknowledgement may cover several Appends, some are refused, and some are different from what was asked for.
				i := rapid.IntRange(0, len(s.unanswered)-1).Draw(t, "which")
				m := s.unanswered[i]
				s.unanswered = s.unanswered[i+1:]
				w := wantOf(&m)
				a := ack(m.Range.Slot, w.epoch, w.match, w.commit)
				switch rapid.IntRange(0, 12).Draw(t, "how") {
				case 0:
					a.Kind = replica.Nack
				case 1:
					a.Epoch++
				case 2:
					a.Life--
				case 3:
					a.Match++
				case 4:
					a.Commit = a.Match
				case 5:
					continue
				}
				answers = append(answers, a)
			}
			got, n, _ := p.answer(t, answers)
			if describe(got) != describe(answers) {
				t.Fatalf("arrived:\n%s\nsent:\n%s", describe(got), describe(answers))
			}
			covered += n
		}
	})
	if covered < 100 {
		t.Errorf("only %d acknowledgements came by tallies", covered)
	}
}

// TestVoidTallies guards that tallies which do not belong to the stream, to a life or to a frame stand for nothing.
func TestVoidTallies(t *testing.T) {
	frame := []replica.Message{appendTo(1, 4, 10, 1, 9), appendTo(2, 4, 20, 2, 20), appendTo(3, 4, 30, 0, 30)}
	for _, tc := range []struct {
		what  string
		spoil func(p *pair, r *Tally)
	}{
		{"the connection is another one", func(p *pair, _ *Tally) {
			p.sent.Begin(Stream{stream.Life, 78}, primary, secondary, life)
			p.sent.Record(frame)
		}},
		{"the connection has ended", func(p *pair, _ *Tally) { p.sent.End() }},
		{"the primary is in another life", func(p *pair, _ *Tally) {
			p.sent.Begin(Stream{stream.Life + 1, 77}, primary, secondary, life)
			p.sent.Record(frame)
		}},
		{"the secondary is in another life", func(p *pair, _ *Tally) {
			p.sent.Begin(stream, primary, secondary, life+1)
			p.sent.Record(frame)
		}},
		{"the tally is of an earlier life", func(_ *pair, r *Tally) { r.Life-- }},
		{"the frame is a later one", func(_ *pair, r *Tally) { r.Frames[0].Number++ }},
		{"the frame is unknown", func(_ *pair, r *Tally) { r.Frames[0].Number = 1000 }},
		{"the frame is forgotten", func(p *pair, _ *Tally) { p.sent.frames.dropTo(2) }},
		{"one Append more", func(_ *pair, r *Tally) { r.Frames[0].Indexes = nil }},
		{"another Append", func(_ *pair, r *Tally) { r.Frames[0].Indexes[0] = 2 }},
		{"an Append that is not in the frame", func(_ *pair, r *Tally) { r.Frames[0].Indexes[0] = 3 }},
		{"the others", func(_ *pair, r *Tally) { r.Frames[0].Only = true }},
		{"frames that were never sent are old", func(_ *pair, r *Tally) { r.Oldest = 1000 }},
		{"a lost frame shifts the numbers", func(p *pair, _ *Tally) {
			p.sent.Begin(stream, primary, secondary, life)
			p.sent.Record(frame[:2])
			p.sent.Record(frame)
		}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			p := newPair()
			p.carry(frame)
			rest, r := p.taken.Collect([]replica.Message{ack(1, 4, 11, 9), ack(3, 4, 30, 30)})
			if len(rest) > 0 || len(r.Frames) != 1 || len(r.Frames[0].Indexes) != 1 {
				t.Fatalf("rest %v, tallies %+v", rest, r)
			}
			tc.spoil(p, &r)
			if acks, dropped := p.sent.Expand(nil, &r); len(acks) > 0 || dropped != 1 {
				t.Errorf("%d dropped, and these were taken:\n%s", dropped, describe(acks))
			}
		})
	}
}

// TestTalliesAreBounded guards that neither end remembers more than its bound, whatever is never acknowledged, and that both forget
// what was.
func TestTalliesAreBounded(t *testing.T) {
	p := newPair()
	p.carry([]replica.Message{appendTo(0, 1, 0, 1, 0)}) // never acknowledged
	for i := range 3 * sentMax {
		seq := rhumb.Seq(i)
		p.carry([]replica.Message{appendTo(1, 1, seq, 1, seq)})
		got, n, _ := p.answer(t, []replica.Message{ack(1, 1, seq+1, seq)})
		if len(got) != 1 || n != 1 {
			t.Fatalf("acknowledgement %d: %d by tallies of %d", i, n, len(got))
		}
		if s, k := &p.sent.frames, &p.taken.frames; max(len(s.wants), len(s.ends)) > sentMax || max(len(k.wants), len(k.ends)) > takenMax {
			t.Fatalf("after %d frames, %d and %d are remembered", i, len(s.wants), len(k.wants))
		}
	}
	// The frame without an acknowledgement was given up meanwhile, so nothing holds up the others.
	if s, k := &p.sent.frames, &p.taken.frames; len(s.wants) > 1 || len(k.wants) > 1 {
		t.Errorf("%d and %d Appends are remembered after all acknowledgements", len(s.wants), len(k.wants))
	}
	// Frames that ask for nothing, and their sender gets no tallies.
	for range 2 * sentMax {
		p.sent.Record([]replica.Message{ack(1, 1, 1, 1)})
	}
	if n := len(p.sent.frames.ends); n > sentMax {
		t.Errorf("%d frames without Appends are remembered", n)
	}
}

// FuzzDecodeWire checks that no bytes make the decoder fail otherwise than by an error, and that what it accepts has one form.
func FuzzDecodeWire(f *testing.F) {
	r := Tally{Stream: stream, Life: life, Oldest: 4, Frames: []Frame{{Number: 4, Sum: 9}, {Number: 6, Only: true, Indexes: []int{0, 7}, Sum: 3}}}
	f.Add(r.AppendWire(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeWire(b)
		if err != nil {
			if rhumb.KindOf(err) != rhumb.Corrupt {
				t.Fatalf("kind %v", rhumb.KindOf(err))
			}
			return
		}
		for i := range r.Frames {
			if !slices.IsSorted(r.Frames[i].Indexes) || i > 0 && cmp.Compare(r.Frames[i-1].Number, r.Frames[i].Number) >= 0 {
				t.Fatalf("not ascending: %+v", r)
			}
		}
		again, err := DecodeWire(r.AppendWire(nil))
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("decoded %+v, then %+v, %v", r, again, err)
		}
		// No tallies of strangers make the sender of frames fail.
		p := newPair()
		p.carry([]replica.Message{appendTo(1, 1, 0, 1, 0)})
		r.Stream, r.Life = stream, life
		p.sent.Expand(nil, &r)
	})
}

// BenchmarkTallies is the work of both nodes for one acknowledgement, in frames of ten.
func BenchmarkTallies(b *testing.B) {
	p := newPair()
	var frame, answers []replica.Message
	for i := range 10 {
		frame, answers = append(frame, appendTo(rhumb.Slot(i), 1, 0, 1, 0)), append(answers, ack(rhumb.Slot(i), 1, 0, 0))
	}
	var msgs, acks []replica.Message
	var wire []byte
	b.ReportAllocs()
	for seq := rhumb.Seq(0); b.Loop(); seq++ {
		for i := range frame {
			frame[i].Prev.Seq, answers[i].Match = seq, seq+1
		}
		p.carry(frame)
		msgs = append(msgs[:0], answers...)
		_, r := p.taken.Collect(msgs)
		wire = r.AppendWire(wire[:0])
		r, _ = DecodeWire(wire)
		if acks, _ = p.sent.Expand(acks[:0], &r); len(acks) != len(frame) {
			b.Fatal(len(acks))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/10, "ns/ack")
}
