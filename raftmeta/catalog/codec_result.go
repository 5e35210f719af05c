package catalog

import "github.com/rhumbdb/rhumb"

// wireResult is the form in which a result travels to its proposer.
type wireResult struct {
	Version  uint8          `cbor:"1,keyasint,omitempty"`
	Revision uint64         `cbor:"2,keyasint,omitempty"`
	Failure  *wireFailure   `cbor:"3,keyasint,omitempty"`
	Region   rhumb.RegionID `cbor:"4,keyasint,omitempty"`
	Node     rhumb.NodeID   `cbor:"5,keyasint,omitempty"`
	Class    rhumb.ClassID  `cbor:"6,keyasint,omitempty"`
	Table    rhumb.TableID  `cbor:"7,keyasint,omitempty"`
	Range    *wireRange     `cbor:"8,keyasint,omitempty"`
	Items    []wireResult   `cbor:"9,keyasint,omitempty"`
	// Quarantined, Lives, Recovery and Prepared belong to Range. wireRange is an array and has no room for
	// them.
	Quarantined []rhumb.NodeID `cbor:"10,keyasint,omitempty"`
	Life        rhumb.BootSeq  `cbor:"11,keyasint,omitempty"`
	Lives       []wireMember   `cbor:"12,keyasint,omitempty"`
	Recovery    *wireRecovery  `cbor:"13,keyasint,omitempty"`
	Prepared    *wireHandover  `cbor:"40,keyasint,omitempty"`
	Last        rhumb.Slot     `cbor:"60,keyasint,omitempty"`
	Birth       rhumb.Epoch    `cbor:"61,keyasint,omitempty"`
	TakesOver   uint64         `cbor:"62,keyasint,omitempty"`
	Ends        uint64         `cbor:"63,keyasint,omitempty"`
	Merged      []rhumb.Slot   `cbor:"64,keyasint,omitempty"`
	Kept        bool           `cbor:"65,keyasint,omitempty"`

	Operation rhumb.OperationID `cbor:"50,keyasint,omitempty"`
	Leaving   []rhumb.NodeID    `cbor:"51,keyasint,omitempty"` // of Range, like the next one
	Removed   []rhumb.NodeID    `cbor:"52,keyasint,omitempty"`
}

// wireFailure holds the part of a rhumb.Error that crosses the wire. The cause does not; Msg
// includes its text.
type wireFailure struct {
	Op    rhumb.Op     `cbor:"1,keyasint,omitempty"`
	Kind  rhumb.Kind   `cbor:"2,keyasint,omitempty"`
	Msg   string       `cbor:"3,keyasint,omitempty"`
	Range *wireRangeID `cbor:"4,keyasint,omitempty"`
}

// EncodeResult returns the form in which a result travels to its proposer.
func EncodeResult(r Result) []byte {
	w := toWireResult(r)
	w.Version = resultVersion
	return encodeWire(w)
}

// DecodeResult decodes what EncodeResult returned.
func DecodeResult(b []byte) (Result, error) {
	const op rhumb.Op = "catalog.DecodeResult"
	var w wireResult
	if err := decodeWire(op, b, &w); err != nil {
		return Result{}, err
	}
	if err := checkVersion(op, w.Version, resultVersion); err != nil {
		return Result{}, err
	}
	return w.toResult(), nil
}

func toWireResult(r Result) wireResult {
	w := wireResult{
		Revision: r.Revision, Region: r.Region, Node: r.Node, Life: r.Life, Class: r.Class, Table: r.Table, Range: toWireRange(r.Range),
		Operation: r.Operation,
	}
	if r.Range != nil {
		w.Quarantined, w.Lives = r.Range.Quarantined, toWireLives(r.Range.Lives)
		w.Recovery = toWireRecovery(r.Range.ID, r.Range.Recovery)
		w.Prepared = toWireHandover(r.Range.ID, r.Range.Prepared)
		w.Last, w.Birth = r.Range.Last, r.Range.Birth
		w.TakesOver, w.Ends, w.Merged, w.Kept = r.Range.TakesOver, r.Range.Ends, r.Range.Merged, r.Range.Kept
		w.Leaving, w.Removed = r.Range.Leaving, r.Range.Removed
	}
	if f := r.Failure; f != nil {
		w.Failure = &wireFailure{Op: f.Op, Kind: f.Kind, Msg: f.Msg}
		if !f.Range.IsZero() {
			w.Failure.Range = toWireRangeID(f.Range)
		}
	}
	// Items carry no version; that of the batch covers them.
	for _, item := range r.Items {
		w.Items = append(w.Items, toWireResult(item))
	}
	return w
}

func (w *wireResult) toResult() Result {
	r := Result{
		Revision: w.Revision, Region: w.Region, Node: w.Node, Life: w.Life, Class: w.Class, Table: w.Table, Range: w.Range.toRange(),
		Operation: w.Operation,
	}
	if r.Range != nil {
		r.Range.Quarantined, r.Range.Lives, r.Range.Recovery = w.Quarantined, fromWireLives(w.Lives), w.Recovery.toRecovery()
		r.Range.Prepared = w.Prepared.toHandover()
		r.Range.Last, r.Range.Birth = w.Last, w.Birth
		r.Range.TakesOver, r.Range.Ends, r.Range.Merged, r.Range.Kept = w.TakesOver, w.Ends, w.Merged, w.Kept
		r.Range.Leaving, r.Range.Removed = w.Leaving, w.Removed
	}
	if f := w.Failure; f != nil {
		r.Failure = &rhumb.Error{Op: f.Op, Kind: f.Kind, Msg: f.Msg, Range: f.Range.toRangeID()}
	}
	for i := range w.Items {
		r.Items = append(r.Items, w.Items[i].toResult())
	}
	return r
}
