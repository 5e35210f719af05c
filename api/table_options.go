package api

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// TableOptions is a message that has the fields of rhumb.TableOptions: a Table, or a request to create one.
type TableOptions interface {
	GetColocate() uint32
	GetLocationField() string
	GetHistoryNs() int64
	GetSnapshot() uint32
}

// encodeTableOptions returns a table that has only its options.
func encodeTableOptions(o rhumb.TableOptions) *rhumbpb.Table {
	return &rhumbpb.Table{
		Colocate: uint32(o.Colocate), LocationField: o.LocationField, HistoryNs: int64(o.History), Snapshot: uint32(o.Snapshot),
	}
}

// EncodeCreateTable encodes a request to create a table.
func EncodeCreateTable(name string, settings rhumb.ClassSettings, o rhumb.TableOptions) *rhumbpb.CreateTableRequest {
	return &rhumbpb.CreateTableRequest{
		Name: name, Settings: EncodeSettings(settings),
		Colocate: uint32(o.Colocate), LocationField: o.LocationField, HistoryNs: int64(o.History), Snapshot: uint32(o.Snapshot),
	}
}

// DecodeTableOptions decodes the table options in a message.
func DecodeTableOptions(m TableOptions) (rhumb.TableOptions, error) {
	const op rhumb.Op = "api.DecodeTableOptions"
	colocate := m.GetColocate()
	if colocate > 255 {
		return rhumb.TableOptions{}, rhumb.Ef(op, rhumb.InvalidArgument, "colocate is %d, but must be a byte", colocate)
	}
	return rhumb.TableOptions{
		Colocate: byte(colocate), LocationField: m.GetLocationField(), History: time.Duration(m.GetHistoryNs()),
		Snapshot: rhumb.SnapshotFeatures(m.GetSnapshot()),
	}, nil
}
