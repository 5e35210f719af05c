package client

import (
	"context"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/keys"
)

// Table is a table of a cluster. It is valid as long as its Client.
type Table struct {
	c     *Client
	info  rhumb.Table
	slots int // hash slots of its class in a region
}

// Table returns a table by name, or an error of kind NotFound. A table that was created a moment
// ago through another node is found as well.
func (c *Client) Table(ctx context.Context, name string) (*Table, error) {
	const op rhumb.Op = "client.Client.Table"
	if err := rhumb.ValidateTableName(name); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	if t := c.knownTable(name); t != nil {
		return t, nil
	}
	// This client's metadata may be older than the table.
	resp, err := askNearest(ctx, c, op, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.DescribeTableResponse, error) {
		return cc.DescribeTable(ctx, &rhumbpb.DescribeTableRequest{Name: name})
	})
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	return c.awaitTable(ctx, op, name, rhumb.TableID(resp.GetTable().GetId()), resp.GetRevision())
}

// knownTable returns a table that is in the client's metadata together with its class, otherwise
// nil.
func (c *Client) knownTable(name string) *Table {
	t, class, ok := c.meta.tableByName(name)
	// Without the number of slots no name can be hashed.
	if !ok || class.Settings.HashSlots < 1 {
		return nil
	}
	return &Table{c: c, info: t, slots: class.Settings.NameSlots()}
}

// awaitTable waits until the watch has delivered a table that exists at a revision. A table of the name with a smaller number was dropped.
func (c *Client) awaitTable(ctx context.Context, op rhumb.Op, name string, id rhumb.TableID, revision uint64) (*Table, error) {
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	for {
		// The channel is taken before the look, so that a change in between is not missed.
		changed := c.meta.nextChange()
		if t := c.knownTable(name); t != nil && t.info.ID >= id {
			return t, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, rhumb.Ef(op, rhumb.Unavailable, "table %s exists at metadata revision %d, which this client has not received yet; retry", name, revision)
		case <-c.ctx.Done():
			return nil, rhumb.E(op, rhumb.Canceled, "the client is closed")
		}
	}
}

// Info returns the table's record in the metadata.
func (t *Table) Info() rhumb.Table { return t.info }

// Name returns the table's name.
func (t *Table) Name() string { return t.info.Name }

// parseHome parses the home in the options of a call: "" for no home, "REGION" for the name of a
// region in which the record's name selects the slot, or "ID/SLOT" for a range, as in the keys of
// inserts. fixed reports whether the home has a slot.
func (t *Table) parseHome(s string) (home rhumb.RangeID, fixed bool, err error) {
	if s == "" {
		return home, false, nil
	}
	if strings.Contains(s, "/") {
		home, err = rhumb.ParseRangeID(s)
		return home, true, err
	}
	r, err := t.c.meta.regionByName(s)
	return rhumb.RangeID{Region: r.ID}, false, err
}

// HomeIn returns the home of a record that a range holds: the slot of its name if the range holds named keys. A range holds the
// slots of many records, and its ID changes for some of them when it is split; the home of a record does not.
func (t *Table) HomeIn(id rhumb.RangeID, name []byte) rhumb.RangeID {
	if b, ok := t.c.meta.hashBlock(t, id.Region); ok && b.Contains(id.Slot) {
		id.Slot = b.First + t.slotOf(t.info.Colocate, name)
	}
	return id
}

// homeOf returns the home of a name where parseHome has found it.
func (t *Table) homeOf(home rhumb.RangeID, fixed bool, name []byte) (rhumb.RangeID, error) {
	if fixed {
		return home, nil
	}
	return t.c.meta.homeOfName(t, home.Region, name)
}

// slotOf returns the hash slot of a name, counted from the first slot of its block.
func (t *Table) slotOf(colocate byte, name []byte) rhumb.Slot {
	return keys.HashSlot(name, colocate, t.slots)
}
