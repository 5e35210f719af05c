package node

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// splitInterval is the interval at which a node looks for ranges that have grown too large.
const splitInterval = time.Second

// splitLoop splits the ranges of this node's primaries that are too large. It only reserves the records: the primaries divide
// their ranges without it.
func (m *member) splitLoop() {
	t := time.NewTicker(splitInterval)
	defer t.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-t.C:
		}
		st := m.group.State()
		for _, r := range place.Splits(st, m.self.Node, place.SplitBytes(st), m.host.DataBytes) {
			m.splitRange(r)
		}
	}
}

// splitRange reserves a range for the upper half of the data of one.
func (m *member) splitRange(r *rhumb.Range) {
	at, ok := m.n.engine.Store(r.ID).SplitSlot(r.ID)
	if !ok {
		return
	}
	if at, ok = catalog.FreeSlot(r, at); !ok {
		return
	}
	ctx, cancel := context.WithTimeout(m.ctx, splitInterval)
	defer cancel()
	res, err := m.group.Propose(ctx, catalog.PrepareSplit{Range: r.ID, Version: r.Version, At: at})
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		// The next look tries again, with a newer record.
		m.n.cfg.Logger.Debug("a range is too large and could not be split yet", "range", r.ID.String(), "err", err)
		return
	}
	m.n.cfg.Logger.Info("splitting a range that is too large", "range", r.ID.String(), "bytes", m.host.DataBytes(r.ID), "at", at)
}
