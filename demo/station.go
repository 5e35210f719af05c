package demo

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// station is the client of the feed in one region.
type station struct {
	// client connects from the region, and meter counts its calls.
	region  Region
	client  *client.Client
	meter   *meter
	flights *client.Table
	// status and track are the IDs of the tables that a report writes to.
	status, track rhumb.TableID
}

// openTables looks up the tables.
func (s *station) openTables(ctx context.Context) error {
	flights, err := s.client.Table(ctx, "flights")
	if err != nil {
		return err
	}
	positions, err := s.client.Table(ctx, "positions")
	if err != nil {
		return err
	}
	s.flights, s.status, s.track = flights, flights.Info().ID, positions.Info().ID
	return nil
}

// probeRegion checks that the region is served. A scan reads from the primary of every range; a
// write also needs the secondaries.
func (s *station) probeRegion(ctx context.Context) error {
	for _, err := range s.flights.Scan(ctx, client.ScanOptions{Local: true, Limit: 1}) {
		if err != nil {
			return err
		}
	}
	// A name per region, because each record has one home.
	name := []byte("rhumb-demo-probe-" + s.region.Name)
	if _, err := s.flights.Put(ctx, name, []byte("probe"), client.PutOptions{Local: true}); err != nil {
		return err
	}
	_, err := s.flights.Delete(ctx, name, client.DeleteOptions{Local: true})
	return err
}

// newerBy holds the fields that increase from report to report.
var newerBy = []string{"_c", "_s"}

// report implements store.
func (s *station) report(ctx context.Context, f *flight, now time.Time) (local bool, err error) {
	status, position, err := f.report(now)
	if err != nil {
		return false, err
	}
	// A flight is new, so no other region needs to be searched: its home is where it is first
	// reported.
	if f.home == "" {
		f.home = s.region.Name
	}
	out, err := s.client.Batch(ctx, []rhumb.Mutation{
		{
			Kind: rhumb.Patch, Table: s.status, Name: []byte(f.id), Value: rhumb.EncodeRecord(nil, status),
			Cond: rhumb.Condition{Kind: rhumb.IfNewer, Fields: newerBy},
		},
		{Kind: rhumb.Put, Table: s.track, Name: []byte(rowName(f, now)), Value: rhumb.EncodeRecord(nil, position)},
	}, client.BatchOptions{Home: f.home})
	return out.Receipt.Region == s.client.Region().ID, err
}

// look implements store.
func (s *station) look(ctx context.Context, id string) (local bool, err error) {
	got, err := s.flights.Get(ctx, []byte(id), client.GetOptions{})
	return got.Receipt.Region == s.client.Region().ID, err
}
