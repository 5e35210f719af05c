package catalog

import (
	"maps"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// commandOperation holds the fields of commands about operations and settings.
type commandOperation struct {
	Operation    rhumb.OperationID    `cbor:"150,keyasint,omitempty"`
	Kind         rhumb.OperationKind  `cbor:"151,keyasint,omitempty"`
	Target       rhumb.NodeID         `cbor:"152,keyasint,omitempty"`
	By           string               `cbor:"153,keyasint,omitempty"`
	At           int64                `cbor:"154,keyasint,omitempty"` // nanoseconds since 1970
	StateOf      rhumb.OperationState `cbor:"155,keyasint,omitempty"`
	Steps        []wireStep           `cbor:"156,keyasint,omitempty"`
	Progress     *wireProgress        `cbor:"157,keyasint,omitempty"`
	Waits        string               `cbor:"158,keyasint,omitempty"`
	Error        string               `cbor:"159,keyasint,omitempty"`
	Action       OperationAction      `cbor:"160,keyasint,omitempty"`
	SettingValue string               `cbor:"161,keyasint,omitempty"`
	Empty        bool                 `cbor:"162,keyasint,omitempty"`
	Into         rhumb.RegionID       `cbor:"163,keyasint,omitempty"`
	Force        bool                 `cbor:"164,keyasint,omitempty"`
	Lost         uint32               `cbor:"165,keyasint,omitempty"`
	Restarts     []wireCopies         `cbor:"166,keyasint,omitempty"`
}

// wireCopies holds the nodes for the copies of a range, the primary first. It is an array: a command may name some thousands of
// ranges, and keys of fields would be a third of its bytes.
type wireCopies struct {
	_        struct{} `cbor:",toarray"`
	Region   rhumb.RegionID
	Slot     rhumb.Slot
	Replicas []rhumb.NodeID
}

// stateOperations holds the part of a state about operations, settings, and ranges that lose replicas.
type stateOperations struct {
	LastOperation rhumb.OperationID `cbor:"150,keyasint,omitempty"`
	Operations    []wireOperation   `cbor:"151,keyasint,omitempty"`
	Settings      []wireSetting     `cbor:"152,keyasint,omitempty"`
	Removals      []wireRemoval     `cbor:"153,keyasint,omitempty"`
}

type wireStep struct {
	_     struct{} `cbor:",toarray"`
	Name  string
	State rhumb.OperationState
}

type wireProgress struct {
	_                     struct{} `cbor:",toarray"`
	Done, Total           uint64
	DoneBytes, TotalBytes uint64
}

type wireSetting struct {
	_           struct{} `cbor:",toarray"`
	Name, Value string
}

// wireRemoval holds the leaving and the removed replicas of a range that has any.
type wireRemoval struct {
	_       struct{} `cbor:",toarray"`
	Region  rhumb.RegionID
	Slot    rhumb.Slot
	Leaving []rhumb.NodeID
	Removed []rhumb.NodeID
}

type wireOperation struct {
	ID       rhumb.OperationID    `cbor:"1,keyasint"`
	Kind     rhumb.OperationKind  `cbor:"2,keyasint"`
	State    rhumb.OperationState `cbor:"3,keyasint"`
	Version  uint64               `cbor:"4,keyasint"`
	Node     rhumb.NodeID         `cbor:"5,keyasint,omitempty"`
	Target   rhumb.NodeID         `cbor:"6,keyasint,omitempty"`
	Region   rhumb.RegionID       `cbor:"7,keyasint,omitempty"`
	Range    *wireRangeID         `cbor:"8,keyasint,omitempty"`
	By       string               `cbor:"9,keyasint,omitempty"`
	Steps    []wireStep           `cbor:"10,keyasint,omitempty"`
	Progress *wireProgress        `cbor:"11,keyasint,omitempty"`
	Waits    string               `cbor:"12,keyasint,omitempty"`
	Error    string               `cbor:"13,keyasint,omitempty"`
	Started  int64                `cbor:"14,keyasint,omitempty"`
	Ended    int64                `cbor:"15,keyasint,omitempty"`
	Since    int64                `cbor:"16,keyasint,omitempty"`
	Ran      time.Duration        `cbor:"17,keyasint,omitempty"`
}

// toWireTime returns nanoseconds since 1970, and 0 for no time.
func toWireTime(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromWireTime(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

func toWireSteps(steps []rhumb.OperationStep) (out []wireStep) {
	for _, s := range steps {
		out = append(out, wireStep{Name: s.Name, State: s.State})
	}
	return out
}

func fromWireSteps(steps []wireStep) (out []rhumb.OperationStep) {
	for _, s := range steps {
		out = append(out, rhumb.OperationStep{Name: s.Name, State: s.State})
	}
	return out
}

func toWireProgress(p rhumb.Progress) *wireProgress {
	if p == (rhumb.Progress{}) {
		return nil
	}
	return &wireProgress{Done: p.Done, Total: p.Total, DoneBytes: p.DoneBytes, TotalBytes: p.TotalBytes}
}

func (w *wireProgress) toProgress() rhumb.Progress {
	if w == nil {
		return rhumb.Progress{}
	}
	return rhumb.Progress{Done: w.Done, Total: w.Total, DoneBytes: w.DoneBytes, TotalBytes: w.TotalBytes}
}

// toWireRangeOrNil leaves the range out if there is none.
func toWireRangeOrNil(id rhumb.RangeID) *wireRangeID {
	if id.IsZero() {
		return nil
	}
	return toWireRangeID(id)
}

func (c StartOperation) fillWire(w *wireCommand) {
	w.Kind, w.Node, w.Target, w.Region, w.Range, w.By, w.At = c.Kind, c.Node, c.Target, c.Region, toWireRangeOrNil(c.Range), c.By, toWireTime(c.At)
	w.Into = c.Into
}

func (c RemoveRegion) fillWire(w *wireCommand) {
	w.Region, w.Into, w.Force, w.Lost, w.By, w.At = c.Region, c.Into, c.Force, c.Lost, c.By, toWireTime(c.At)
	for _, a := range c.Restarts {
		w.Restarts = append(w.Restarts, wireCopies{Region: a.Range.Region, Slot: a.Range.Slot, Replicas: a.Replicas})
	}
}

func (c UpdateOperation) fillWire(w *wireCommand) {
	w.Operation, w.RangeVersion, w.StateOf, w.Steps = c.ID, c.Version, c.State, toWireSteps(c.Steps)
	w.Progress, w.Waits, w.Error, w.At = toWireProgress(c.Progress), c.Waits, c.Error, toWireTime(c.At)
}

func (c ControlOperation) fillWire(w *wireCommand) {
	w.Operation, w.Action, w.At = c.ID, c.Action, toWireTime(c.At)
}

func (c SetLeaving) fillWire(w *wireCommand) {
	w.Range, w.RangeVersion, w.Nodes = toWireRangeID(c.Range), c.Version, c.Leaving
}

func (c SetSetting) fillWire(w *wireCommand) { w.Name, w.SettingValue = c.Name, c.Value }

// operationDecoders is the part of commandDecoders for the commands about operations.
var operationDecoders = map[commandCode]func(w *wireCommand) Command{
	codeStartOperation: func(w *wireCommand) Command {
		return StartOperation{
			Kind: w.Kind, Node: w.Node, Target: w.Target, Region: w.Region, Range: w.Range.toRangeID(), By: w.By, At: fromWireTime(w.At),
			Into: w.Into,
		}
	},
	codeRemoveRegion: func(w *wireCommand) Command {
		c := RemoveRegion{Region: w.Region, Into: w.Into, Force: w.Force, Lost: w.Lost, By: w.By, At: fromWireTime(w.At)}
		for _, a := range w.Restarts {
			c.Restarts = append(c.Restarts, RangeCopies{rhumb.RangeID{Region: a.Region, Slot: a.Slot}, a.Replicas})
		}
		return c
	},
	codeUpdateOperation: func(w *wireCommand) Command {
		return UpdateOperation{
			ID: w.Operation, Version: w.RangeVersion, State: w.StateOf, Steps: fromWireSteps(w.Steps),
			Progress: w.Progress.toProgress(), Waits: w.Waits, Error: w.Error, At: fromWireTime(w.At),
		}
	},
	codeControlOperation: func(w *wireCommand) Command {
		return ControlOperation{w.Operation, w.Action, fromWireTime(w.At)}
	},
	codeSetLeaving: func(w *wireCommand) Command { return SetLeaving{w.Range.toRangeID(), w.RangeVersion, w.Nodes} },
	codeSetSetting: func(w *wireCommand) Command { return SetSetting{w.Name, w.SettingValue} },
}

// toStateOperations returns the stored form of operations, settings and removals.
func toStateOperations(s *State) stateOperations {
	w := stateOperations{LastOperation: s.lastOperation}
	for o := range s.Operations() {
		w.Operations = append(w.Operations, wireOperation{
			ID: o.ID, Kind: o.Kind, State: o.State, Version: o.Version, Node: o.Node, Target: o.Target, Region: o.Region,
			Range: toWireRangeOrNil(o.Range), By: o.By, Steps: toWireSteps(o.Steps), Progress: toWireProgress(o.Progress), Waits: o.Waits,
			Error: o.Error, Started: toWireTime(o.Started), Ended: toWireTime(o.Ended), Since: toWireTime(o.Since), Ran: o.Ran,
		})
	}
	// A map has no order, and equal states must have equal bytes.
	for _, name := range slices.Sorted(maps.Keys(s.settings)) {
		w.Settings = append(w.Settings, wireSetting{Name: name, Value: s.settings[name]})
	}
	for r := range s.Ranges() {
		if len(r.Leaving)+len(r.Removed) > 0 {
			w.Removals = append(w.Removals, wireRemoval{Region: r.ID.Region, Slot: r.ID.Slot, Leaving: r.Leaving, Removed: r.Removed})
		}
	}
	return w
}

// addOperations adds the operations and settings of a stored state.
func (w *stateOperations) addOperations(t *tx) {
	t.lastOperation = w.LastOperation
	for _, o := range w.Operations {
		t.putOperation(&rhumb.Operation{
			ID: o.ID, Kind: o.Kind, State: o.State, Version: o.Version, Node: o.Node, Target: o.Target, Region: o.Region,
			Range: o.Range.toRangeID(), By: o.By, Steps: fromWireSteps(o.Steps), Progress: o.Progress.toProgress(), Waits: o.Waits,
			Error: o.Error, Started: fromWireTime(o.Started), Ended: fromWireTime(o.Ended), Since: fromWireTime(o.Since), Ran: o.Ran,
		})
	}
	for _, s := range w.Settings {
		if t.settings == nil {
			t.settings = make(map[string]string)
		}
		t.settings[s.Name] = s.Value
	}
}
