package api

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// EncodeOperation returns the message for an operation.
func EncodeOperation(o *rhumb.Operation) *rhumbpb.Operation {
	m := &rhumbpb.Operation{
		Id: uint64(o.ID), Kind: uint32(o.Kind), State: uint32(o.State), Version: o.Version, Node: uint32(o.Node), Target: uint32(o.Target),
		Region: uint32(o.Region), By: o.By, Done: o.Progress.Done, Total: o.Progress.Total, DoneBytes: o.Progress.DoneBytes,
		TotalBytes: o.Progress.TotalBytes, Waits: o.Waits, Error: o.Error,
		StartedNs: encodeTime(o.Started), EndedNs: encodeTime(o.Ended), SinceNs: encodeTime(o.Since), RanNs: int64(o.Ran),
	}
	if !o.Range.IsZero() {
		m.Range = EncodeRangeID(o.Range)
	}
	for _, s := range o.Steps {
		m.Steps = append(m.Steps, &rhumbpb.OperationStep{Name: s.Name, State: uint32(s.State)})
	}
	return m
}

// DecodeOperation returns an operation.
func DecodeOperation(m *rhumbpb.Operation) *rhumb.Operation {
	o := &rhumb.Operation{
		ID: rhumb.OperationID(m.GetId()), Kind: rhumb.OperationKind(m.GetKind()), State: rhumb.OperationState(m.GetState()), Version: m.GetVersion(),
		Node: rhumb.NodeID(m.GetNode()), Target: rhumb.NodeID(m.GetTarget()), Region: rhumb.RegionID(m.GetRegion()), By: m.GetBy(),
		Progress: rhumb.Progress{Done: m.GetDone(), Total: m.GetTotal(), DoneBytes: m.GetDoneBytes(), TotalBytes: m.GetTotalBytes()},
		Waits:    m.GetWaits(), Error: m.GetError(),
		Started: decodeTime(m.GetStartedNs()), Ended: decodeTime(m.GetEndedNs()), Since: decodeTime(m.GetSinceNs()), Ran: time.Duration(m.GetRanNs()),
	}
	if m.GetRange() != nil {
		o.Range = DecodeRangeID(m.GetRange())
	}
	for _, s := range m.GetSteps() {
		o.Steps = append(o.Steps, rhumb.OperationStep{Name: s.GetName(), State: rhumb.OperationState(s.GetState())})
	}
	return o
}

// encodeTime returns nanoseconds since 1970, and 0 for no time.
func encodeTime(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// decodeTime returns the time of a message, and the zero time for 0: a step that has not begun has none.
func decodeTime(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}
