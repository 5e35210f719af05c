// Package tally acknowledges frames as a whole. A node that has taken a frame of messages from
// another one answers each Append in it by an acknowledgement. Most of these repeat a request of the sender of
// the frame: the range, the epoch and the position in its Append. A tally stands
// for all of them in a few bytes.
//
// Both ends count the frames of a connection, and remember the Appends of each frame:
// Sent at the node that sends them, Taken at the one that receives them. When the replicas of the
// receiver acknowledge, Taken.Collect turns the acknowledgements that are exactly as requested
// into tallies, and leaves all other messages as they are: refusals, and acknowledgements
// of other positions, epochs, lives or connections. Sent.Expand turns a tally back into the
// acknowledgements.
//
// So a tally is another form of messages that replicas have sent, and decides nothing. Whatever an
// acknowledgement means (docs/replication.md#durable) is decided where it was before: a replica sends
// it after the sync, and its primary checks epoch and life. A range that refuses is not in the
// tally, because its replica sends no acknowledgement.
//
// A tally names the stream and the life of both nodes. One that does not belong to the present
// stream is dropped, and its acknowledgements are lost, like those on a connection that breaks. A
// sum over everything that a tally represents guards against two ends that count differently.
package tally

import (
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// Bounds of the memory of a node for one other node.
const (
	// takenMax bounds the Appends, and the frames, that a receiver remembers. Older ones are
	// acknowledged one by one.
	takenMax = 1 << 13
	// sentMax bounds those that a sender remembers. It is larger, because the sender may be ahead of
	// the receiver by the frames that are under way. If it does not suffice, acknowledgements are lost,
	// and replicas send the entries again.
	sentMax = 1 << 15
)

// Stream identifies the frames that one node sends to another over one connection.
type Stream struct {
	// Life is the life of the sender.
	Life rhumb.BootSeq
	// Number distinguishes the connections of that life. It is never 0.
	Number uint64
}

// Tally represents the acknowledgements that frames of a stream asked for.
type Tally struct {
	Stream Stream
	// Life is the life in which the sender of the tallies acknowledges.
	Life rhumb.BootSeq
	// Oldest is the first frame that may still get a tally. The node that sent the frames forgets
	// those before it.
	Oldest uint64
	Frames []Frame
}

// Frame is the tally for one frame. It represents the acknowledgements of all its Appends, except
// for those in Indexes; or, with Only, for those in Indexes and no others.
type Frame struct {
	// Number is the number of the frame in its stream, from 1.
	Number uint64
	Only   bool
	// Indexes are places among the Appends of the frame, ascending.
	Indexes []int
	// Sum is the checksum of the acknowledgements.
	Sum uint64
}

// stands reports whether the tally represents the Append with an index. from is where the search
// in Indexes continues, since callers ask in ascending order.
func (f *Frame) stands(index int, from *int) bool {
	for *from < len(f.Indexes) && f.Indexes[*from] < index {
		*from++
	}
	return (*from < len(f.Indexes) && f.Indexes[*from] == index) == f.Only
}

// want is the acknowledgement that the receiver of an Append sends if it takes all of it.
type want struct {
	id     rhumb.RangeID
	epoch  rhumb.Epoch
	match  rhumb.Seq
	commit rhumb.Seq
	// The fields below belong to Taken. before is where the Append before this one of the same range
	// is. done reports that no tally will represent this Append any more, or that the one for which
	// due is set does.
	before    place
	done, due bool
}

// place is where an Append is: a frame, and an index among its Appends. The frame 0 does not exist.
type place struct {
	frame uint64
	index int
}

// wantOf returns the acknowledgement that an Append requests. Its receiver learns the commit position of the sender, as
// far as it holds the entries.
func wantOf(m *replica.Message) want {
	match := m.Prev.Seq + rhumb.Seq(len(m.Entries))
	return want{id: m.Range, epoch: m.Epoch, match: match, commit: min(m.Commit, match)}
}

// mix adds an acknowledgement to a sum. The multiplications spread each bit, so that swapped fields
// change the sum.
func (w *want) mix(sum uint64) uint64 {
	const odd = 0x9e3779b97f4a7c15
	for _, v := range [...]uint64{uint64(w.id.Region)<<32 | uint64(w.id.Slot), uint64(w.epoch), uint64(w.match), uint64(w.commit)} {
		sum = (sum ^ v) * odd
		sum ^= sum >> 29
	}
	return sum
}

// frames lists the requests of the last frames, oldest frame first.
type frames struct {
	// first is the number of the oldest frame that is listed, and next that of the next one.
	first, next uint64
	// ends holds, for each frame listed, where its Appends end in wants, counted from the first Append
	// of the stream. base is how many of those were dropped.
	ends  []uint64
	wants []want
	base  uint64
}

// begin forgets everything. The next frame has the given number.
func (f *frames) begin(next uint64) {
	f.first, f.next, f.base = next, next, 0
	f.ends, f.wants = f.ends[:0], f.wants[:0]
}

// add lists the next frame and returns its requests.
func (f *frames) add(msgs []replica.Message) []want {
	n := len(f.wants)
	for i := range msgs {
		if msgs[i].Kind == replica.Append {
			f.wants = append(f.wants, wantOf(&msgs[i]))
		}
	}
	f.ends = append(f.ends, f.base+uint64(len(f.wants)))
	f.next++
	return f.wants[n:]
}

// of returns the requests of a frame, and nil if the frame is not listed.
func (f *frames) of(number uint64) []want {
	if number < f.first || number >= f.next {
		return nil
	}
	i, from := int(number-f.first), f.base
	if i > 0 {
		from = f.ends[i-1]
	}
	return f.wants[from-f.base : f.ends[i]-f.base]
}

// dropTo drops the frames before one.
func (f *frames) dropTo(number uint64) {
	if number <= f.first {
		return
	}
	n := int(min(number, f.next) - f.first)
	cut := f.ends[n-1]
	// Usually next to nothing remains, so the move costs little.
	f.wants = f.wants[:copy(f.wants, f.wants[cut-f.base:])]
	f.ends = f.ends[:copy(f.ends, f.ends[n:])]
	f.base, f.first = cut, f.first+uint64(n)
}

// bound drops the older half if more than most Appends, or frames, are listed: dropping one frame
// after the other would move the others each time.
func (f *frames) bound(most int) {
	if len(f.wants) > most {
		n, _ := slices.BinarySearch(f.ends, f.base+uint64(len(f.wants)-most/2))
		f.dropTo(f.first + uint64(n) + 1)
	}
	if len(f.ends) > most {
		f.dropTo(f.first + uint64(len(f.ends)/2))
	}
}

// Sent remembers the frames that a node has sent over its present stream to another node.
type Sent struct {
	stream     Stream
	self, peer rhumb.NodeID
	peerLife   rhumb.BootSeq
	frames     frames
}

// Begin forgets the stream before, and begins one to a peer in a life of the peer.
func (s *Sent) Begin(stream Stream, self, peer rhumb.NodeID, peerLife rhumb.BootSeq) {
	s.stream, s.self, s.peer, s.peerLife = stream, self, peer, peerLife
	s.frames.begin(1)
}

// End forgets the stream. Tallies that still arrive for it are dropped.
func (s *Sent) End() { s.Begin(Stream{}, 0, 0, 0) }

// Record counts a frame that is about to be sent, and returns its number.
func (s *Sent) Record(msgs []replica.Message) uint64 {
	s.frames.add(msgs)
	s.frames.bound(sentMax)
	// A node that is primary of nothing here gets no tallies, whose Oldest would end its memory.
	if len(s.frames.wants) == 0 {
		s.frames.dropTo(s.frames.next)
	}
	return s.frames.next - 1
}

// Expand appends the acknowledgements that tallies represent to acks. It returns the number of
// frames whose tallies it dropped, because they are of another stream, another life or another
// frame than this node remembers.
func (s *Sent) Expand(acks []replica.Message, r *Tally) ([]replica.Message, int) {
	if r.Stream.Number == 0 || r.Stream != s.stream || r.Life != s.peerLife || r.Oldest > s.frames.next {
		return acks, len(r.Frames)
	}
	dropped := 0
	for i := range r.Frames {
		f := &r.Frames[i]
		wants := s.frames.of(f.Number)
		if !f.fits(wants) {
			dropped++
			continue
		}
		from := 0
		for k := range wants {
			if w := &wants[k]; f.stands(k, &from) {
				acks = append(acks, replica.Message{
					Kind: replica.Ack, Range: w.id, From: s.peer, To: s.self, Life: r.Life, Epoch: w.epoch, Match: w.match, Commit: w.commit,
				})
			}
		}
	}
	s.frames.dropTo(r.Oldest)
	return acks, dropped
}

// fits reports whether a tally is about Appends that ask for wants.
func (f *Frame) fits(wants []want) bool {
	if n := len(f.Indexes); len(wants) == 0 || n > 0 && f.Indexes[n-1] >= len(wants) {
		return false
	}
	sum, from := f.Number, 0
	for i := range wants {
		if f.stands(i, &from) {
			sum = wants[i].mix(sum)
		}
	}
	return sum == f.Sum
}

// Taken remembers the frames that a node has taken from a stream of another node, until they are
// acknowledged.
type Taken struct {
	stream     Stream
	self, peer rhumb.NodeID
	selfLife   rhumb.BootSeq
	frames     frames
	// newest is where the newest Append of each range is, unless that is acknowledged.
	newest map[rhumb.RangeID]place
	// touched are the frames with acknowledgements that Collect has taken.
	touched []uint64
}

// NewTaken returns an empty list of the frames of a stream from peer. self is in its present life.
func NewTaken(stream Stream, self rhumb.NodeID, selfLife rhumb.BootSeq, peer rhumb.NodeID) *Taken {
	t := &Taken{stream: stream, self: self, selfLife: selfLife, peer: peer, newest: make(map[rhumb.RangeID]place)}
	t.frames.begin(1)
	return t
}

// Record lists a frame that has arrived, before its messages reach the replicas. whole is false if
// the node could not read all of it. Its Appends are then acknowledged one by one: one that was cut
// asks for less than its sender remembers.
func (t *Taken) Record(number uint64, msgs []replica.Message, whole bool) {
	switch {
	// It was overtaken, or is a copy. Connections bring each frame once and in order.
	case number < t.frames.next:
		return
	case number > t.frames.next:
		clear(t.newest)
		t.frames.begin(number)
	}
	if !whole {
		msgs = nil
	}
	wants := t.frames.add(msgs)
	for i := range wants {
		w := &wants[i]
		w.before = t.newest[w.id]
		t.newest[w.id] = place{number, i}
	}
	t.frames.bound(takenMax)
	t.dropDone()
}

// at returns the Append at a place, or nil if it is not listed any more.
func (t *Taken) at(p place) *want {
	if wants := t.frames.of(p.frame); p.index < len(wants) {
		return &wants[p.index]
	}
	return nil
}

// dropDone drops the oldest frames, as far as no tally will be sent for them.
func (t *Taken) dropDone() {
	number := t.frames.first
	for number < t.frames.next && !slices.ContainsFunc(t.frames.of(number), func(w want) bool { return !w.done }) {
		number++
	}
	t.frames.dropTo(number)
}

// Collect takes the acknowledgements that tallies can represent out of messages to the peer, and
// returns the others, which share memory with msgs, and the tally. It is to be sent after the
// others.
func (t *Taken) Collect(msgs []replica.Message) (rest []replica.Message, r Tally) {
	r = Tally{Stream: t.stream, Life: t.selfLife}
	// Acknowledgements do not overtake other answers, such as a refusal, which may be about the same
	// entries.
	for i := range msgs {
		if k := msgs[i].Kind; k != replica.Ack && k != replica.Append {
			return msgs, r
		}
	}
	rest = msgs[:0]
	for i := range msgs {
		if !t.take(&msgs[i]) {
			rest = append(rest, msgs[i])
		}
	}
	slices.Sort(t.touched)
	for _, number := range slices.Compact(t.touched) {
		r.Frames = append(r.Frames, tallyFor(number, t.frames.of(number)))
	}
	t.touched = t.touched[:0]
	t.dropDone()
	r.Oldest = t.frames.first
	return rest, r
}

// take reports whether a message is the acknowledgement that an Append asked for, and marks that
// Append.
func (t *Taken) take(m *replica.Message) bool {
	if m.Kind != replica.Ack || m.Life != t.selfLife || m.From != t.self || m.To != t.peer {
		return false
	}
	// Usually there is one Append of the range, or a few that were taken in one pass.
	var later *want
	p := t.newest[m.Range]
	w := t.at(p)
	for w != nil && (w.match != m.Match || w.epoch != m.Epoch) {
		later, p = w, w.before
		w = t.at(p)
	}
	// An acknowledgement with a commit position that the peer does not know says more than was asked.
	if w == nil || w.commit != min(m.Commit, m.Match) {
		return false
	}
	w.due = true
	t.touched = append(t.touched, p.frame)
	// The acknowledgement covers the Appends before, which get no other one.
	for b := w; b != nil && !b.done; b = t.at(b.before) {
		b.done = true
	}
	if later != nil {
		later.before = place{}
	} else {
		delete(t.newest, m.Range)
	}
	return true
}

// tallyFor returns the tally for the Appends of a frame that are due, in the shorter of its two
// forms.
func tallyFor(number uint64, wants []want) Frame {
	f := Frame{Number: number, Sum: number}
	due := 0
	for i := range wants {
		if wants[i].due {
			f.Sum = wants[i].mix(f.Sum)
			due++
		}
	}
	f.Only = 2*due < len(wants)
	for i := range wants {
		if wants[i].due == f.Only {
			f.Indexes = append(f.Indexes, i)
		}
		wants[i].due = false
	}
	return f
}
