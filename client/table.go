package client

import (
	"context"
	"strings"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/keys"
)

// Table is a table of a cluster. It stays valid as long as its Client.
type Table struct {
	c     *Client
	info  rhumb.Table
	slots int // hash slots of its class in a region
}

// Table gives a table by name, or an error of kind NotFound. A table that was created a moment ago through another node
// is found too.
func (c *Client) Table(ctx context.Context, name string) (*Table, error) {
	const op rhumb.Op = "client.Client.Table"
	if err := rhumb.ValidateTableName(name); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	if t := c.known(name); t != nil {
		return t, nil
	}
	resp, err := ask(ctx, c, op, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.DescribeTableResponse, error) {
		return cc.DescribeTable(ctx, &rhumbpb.DescribeTableRequest{Name: name})
	})
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	return c.await(ctx, op, name, resp.GetRevision())
}

func (c *Client) known(name string) *Table {
	t, class, ok := c.meta.table(name)
	if !ok || class.Settings.HashSlots < 1 {
		return nil
	}
	return &Table{c: c, info: t, slots: class.Settings.HashSlots}
}

// await waits until the watch has brought a table that exists at a revision.
func (c *Client) await(ctx context.Context, op rhumb.Op, name string, revision uint64) (*Table, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	for {
		changed := c.meta.next()
		if t := c.known(name); t != nil {
			return t, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, rhumb.Ef(op, rhumb.Unavailable, "table %s exists at revision %d, which this client has not seen yet; retry", name, revision)
		case <-c.ctx.Done():
			return nil, rhumb.E(op, rhumb.Canceled, "the client is closed")
		}
	}
}

// Info gives what metadata says of the table.
func (t *Table) Info() rhumb.Table { return t.info }

// Name gives the table's name.
func (t *Table) Name() string { return t.info.Name }

// home reads the home of a call: "" leaves it open; "REGION" is the name of a region, with hash slots; "ID/SLOT" is a
// range, as keys of inserts show it. fixed says that the slot is part of it.
func (t *Table) home(s string) (home rhumb.RangeID, fixed bool, err error) {
	if s == "" {
		return home, false, nil
	}
	if strings.Contains(s, "/") {
		home, err = rhumb.ParseRangeID(s)
		return home, true, err
	}
	r, err := t.c.meta.region(s)
	return rhumb.RangeID{Region: r.ID}, false, err
}

// rangeOf gives the range of a name in a home as Table.home reads it.
func (t *Table) rangeOf(home rhumb.RangeID, fixed bool, name []byte) (rhumb.RangeID, error) {
	if fixed {
		return home, nil
	}
	return t.c.meta.named(t, home.Region, name)
}

// slotOf gives the hash slot of a name, counted from the first of its block.
func (t *Table) slotOf(colocate byte, name []byte) rhumb.Slot {
	return keys.HashSlot(name, colocate, t.slots)
}
