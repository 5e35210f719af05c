package peer

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/closed"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
)

// messageToPB encodes a message of a replica. Entries are encoded here, in the goroutine that sends
// to one peer, so that the pass that created them does not wait.
func messageToPB(m *replica.Message) *rhumbpb.ReplicaMessage {
	p := &rhumbpb.ReplicaMessage{
		Kind: rhumbpb.ReplicaMessageKind(m.Kind), Region: uint32(m.Range.Region), Slot: uint32(m.Range.Slot),
		Epoch: uint64(m.Epoch), PrevEpoch: uint64(m.Prev.Epoch), PrevSeq: uint64(m.Prev.Seq),
		PrevHashHigh: binary.BigEndian.Uint64(m.Prev.Hash[:8]), PrevHashLow: binary.BigEndian.Uint64(m.Prev.Hash[8:]),
		Trim: uint64(m.Trim), Commit: uint64(m.Commit), Match: uint64(m.Match), Reject: uint64(m.Reject),
		HintEpoch: uint64(m.HintEpoch), HintEnd: uint64(m.HintEnd), Promised: uint64(m.Promised), Quarantined: m.Quarantined,
		Life: uint64(m.Life), Clock: uint64(m.Clock), Contradicts: m.Contradicts, Trimmed: m.Trimmed,
		CommitHashHigh: binary.BigEndian.Uint64(m.CommitHash[:8]), CommitHashLow: binary.BigEndian.Uint64(m.CommitHash[8:]),
		Refused: uint32(m.Refused), Ends: uint64(m.Ends), TargetLife: uint64(m.TargetLife), Version: m.Version,
	}
	for _, n := range m.InSync {
		p.InSync = append(p.InSync, uint32(n))
	}
	if len(m.Entries) > 0 {
		p.Entries = make([][]byte, len(m.Entries))
		for i, e := range m.Entries {
			p.Entries[i] = e.AppendWire(nil)
		}
	}
	return p
}

// messageFromPB decodes a message and checks the hash of each entry. The entries share memory with
// p. An Append ends before the first entry that a later release wrote; another message with such an entry is
// Incompatible.
func messageFromPB(p *rhumbpb.ReplicaMessage, from, to rhumb.NodeID) (replica.Message, error) {
	m := replica.Message{
		Kind: replica.MessageKind(p.Kind), From: from, To: to,
		Range: rhumb.RangeID{Region: rhumb.RegionID(p.Region), Slot: rhumb.Slot(p.Slot)},
		Epoch: rhumb.Epoch(p.Epoch), Prev: entry.Position{Epoch: rhumb.Epoch(p.PrevEpoch), Seq: rhumb.Seq(p.PrevSeq)},
		Trim: rhumb.Seq(p.Trim), Commit: rhumb.Seq(p.Commit), Match: rhumb.Seq(p.Match), Reject: rhumb.Seq(p.Reject),
		HintEpoch: rhumb.Epoch(p.HintEpoch), HintEnd: rhumb.Seq(p.HintEnd), Promised: rhumb.Epoch(p.Promised), Quarantined: p.Quarantined,
		Life: rhumb.BootSeq(p.Life), Clock: rhumb.Timestamp(p.Clock), Contradicts: p.Contradicts, Trimmed: p.Trimmed,
		// A conversion alone would turn a large value into the code of another refusal.
		Refused: replica.Refusal(min(p.Refused, math.MaxUint8)),
		Ends:    rhumb.Epoch(p.Ends), TargetLife: rhumb.BootSeq(p.TargetLife), Version: p.Version,
	}
	for _, n := range p.InSync {
		m.InSync = append(m.InSync, rhumb.NodeID(n))
	}
	binary.BigEndian.PutUint64(m.CommitHash[:8], p.CommitHashHigh)
	binary.BigEndian.PutUint64(m.CommitHash[8:], p.CommitHashLow)
	binary.BigEndian.PutUint64(m.Prev.Hash[:8], p.PrevHashHigh)
	binary.BigEndian.PutUint64(m.Prev.Hash[8:], p.PrevHashLow)
	return m, takeEntries(&m, p.Entries)
}

// frameToPB encodes a lease frame.
func frameToPB(f *lease.Frame) *rhumbpb.HeartbeatFrame {
	p := &rhumbpb.HeartbeatFrame{
		Sent: int64(f.Sent), Reply: f.Reply, Lease: int64(f.Lease), EchoBoot: uint64(f.EchoBoot), Echo: int64(f.Echo),
		Held: int64(f.Held), Granted: int64(f.Granted), GrantedLease: int64(f.GrantedLease),
		ExclusionSeq: f.ExclusionSeq, Confirmed: f.Confirmed, Close: uint64(f.Close), Agreed: uint64(f.Agreed), Closed: closedToPB(&f.Closed),
		Wall: f.Wall.Microseconds(), Speed: uint32(f.Speed), Unhealthy: f.Unhealthy,
	}
	for _, n := range f.Suspects {
		p.Suspects = append(p.Suspects, uint32(n))
	}
	for _, x := range f.Exclusions {
		p.Exclusions = append(p.Exclusions, &rhumbpb.Exclusion{Region: uint32(x.Range.Region), Slot: uint32(x.Range.Slot), Epoch: uint64(x.Epoch)})
	}
	return p
}

// frameFromPB decodes a lease frame. Package lease checks its contents.
func frameFromPB(p *rhumbpb.HeartbeatFrame) *lease.Frame {
	f := &lease.Frame{
		Sent: time.Duration(p.Sent), Reply: p.Reply, Lease: time.Duration(p.Lease), EchoBoot: rhumb.BootSeq(p.EchoBoot),
		Echo: time.Duration(p.Echo), Held: time.Duration(p.Held), Granted: time.Duration(p.Granted),
		GrantedLease: time.Duration(p.GrantedLease), ExclusionSeq: p.ExclusionSeq, Confirmed: p.Confirmed,
		Close: rhumb.Timestamp(p.Close), Agreed: rhumb.Timestamp(p.Agreed), Closed: closedFromPB(p.Closed),
		// Bounded before the multiplication, which would overflow and turn a wrong clock into a
		// plausible one.
		Wall: time.Duration(min(max(0, p.Wall), math.MaxInt64/1000)) * time.Microsecond,
		// A conversion alone would turn the opinion of a later build into another one.
		Speed: lease.Speed(min(p.Speed, math.MaxUint8)), Unhealthy: p.Unhealthy,
	}
	for _, n := range p.Suspects {
		f.Suspects = append(f.Suspects, rhumb.NodeID(n))
	}
	for _, x := range p.Exclusions {
		f.Exclusions = append(f.Exclusions, lease.Exclusion{
			Range: rhumb.RangeID{Region: rhumb.RegionID(x.Region), Slot: rhumb.Slot(x.Slot)}, Epoch: rhumb.Epoch(x.Epoch),
		})
	}
	return f
}

// closedToPB encodes a frame of closed timestamps, or returns nil if it is empty, to keep
// heartbeats small.
func closedToPB(f *closed.Frame) *rhumbpb.ClosedFrame {
	if f.Number == 0 && f.Applied == 0 {
		return nil
	}
	p := &rhumbpb.ClosedFrame{Number: f.Number, Base: f.Base, At: uint64(f.At), Applied: f.Applied}
	for _, c := range f.Covers {
		p.Covers = append(p.Covers, uint64(c.Range.Region), uint64(c.Range.Slot), uint64(c.Seq))
	}
	return p
}

// closedFromPB decodes a frame of closed timestamps. If its covers are malformed, the result
// carries no claim, because a claim about only some of the ranges must not be applied. The
// acknowledgement (Applied) is independent of the covers and is kept.
func closedFromPB(p *rhumbpb.ClosedFrame) (f closed.Frame) {
	c := p.GetCovers()
	if p == nil || len(c)%3 != 0 || len(c)/3 > closed.CoversMax {
		return closed.Frame{Applied: p.GetApplied()}
	}
	f = closed.Frame{Number: p.Number, Base: p.Base, At: rhumb.Timestamp(p.At), Applied: p.Applied}
	// Each cover is three numbers in one packed list: region, slot and sequence number.
	for ; len(c) > 0; c = c[3:] {
		if c[0] > math.MaxUint32 || c[1] > math.MaxUint32 {
			return closed.Frame{Applied: p.Applied}
		}
		f.Covers = append(f.Covers, closed.Cover{
			Range: rhumb.RangeID{Region: rhumb.RegionID(c[0]), Slot: rhumb.Slot(c[1])}, Seq: rhumb.Seq(c[2]),
		})
	}
	return f
}
