package catalog

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// commandOptions and stateOptions are the stored forms of rhumb.TableOptions: in a command that creates
// a table, and in a table of the state. The two forms have different numbers for one option, and the
// numbers of commandOptions share a map with the other fields of wireCommand.
//
// Fields must have the names, types and order of those in rhumb.TableOptions: the codecs convert
// between the three types, so an option that is missing in one of them does not compile. A new option
// needs omitempty, so that commands and states without the option keep their bytes.
type commandOptions struct {
	Colocate      byte                   `cbor:"16,keyasint,omitempty"`
	LocationField string                 `cbor:"17,keyasint,omitempty"`
	History       time.Duration          `cbor:"18,keyasint,omitempty"` // nanoseconds
	Snapshot      rhumb.SnapshotFeatures `cbor:"30,keyasint,omitempty"`
}

type stateOptions struct {
	Colocate      byte                   `cbor:"4,keyasint,omitempty"`
	LocationField string                 `cbor:"5,keyasint"`
	History       time.Duration          `cbor:"6,keyasint,omitempty"` // nanoseconds
	Snapshot      rhumb.SnapshotFeatures `cbor:"7,keyasint,omitempty"`
}
