package main

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// speedField is the field of a road segment with its live speed in km/h.
const speedField = "speed"

// profileField is the field with the usual speeds: one byte per hour of the week, from Monday 0:00
// UTC, in km/h; 0 is unknown.
const profileField = "profile"

const hoursOfWeek = 7 * 24

// liveFor is how long after now the live speed is a better guess than the usual one.
const liveFor = 30 * time.Minute

// hourOfWeek returns the hour of the week, from Monday 0:00 UTC. time.Weekday starts with Sunday.
func hourOfWeek(at time.Time) int {
	at = at.UTC()
	return (int(at.Weekday())+6)%7*24 + at.Hour()
}

// trip is the time at which a route is computed and driven.
type trip struct{ now, depart time.Time }

// speedAt returns the speed at a number of seconds after the departure: the live speed, the usual
// one of that hour, or otherwise. It reads single fields of the stored value without decoding the
// others.
func (t trip) speedAt(value []byte, after, otherwise float64) (float64, error) {
	at := t.depart.Add(time.Duration(after * float64(time.Second)))
	// A segment is reached while the live speed still says something about it.
	if at.Sub(t.now) <= liveFor {
		v, ok, err := rhumb.RecordField(value, speedField)
		if err != nil || ok && v.Kind() == rhumb.FieldFloat64 {
			return v.Float64(), err
		}
	}
	v, ok, err := rhumb.RecordField(value, profileField)
	if err != nil || !ok || v.Kind() != rhumb.FieldBytes || len(v.Text()) != hoursOfWeek {
		return otherwise, err
	}
	// The profile is read for the hour of arrival at the segment, not of the departure.
	if kmh := v.Text()[hourOfWeek(at)]; kmh > 0 {
		return float64(kmh), nil
	}
	return otherwise, nil
}

// imageSpeeds reads speeds from one view of the image, in a few hundred nanoseconds for all edges
// of a node.
type imageSpeeds struct {
	trip
	g     *graph
	roads *reader.Table
	names [][]byte
	items []reader.Item
}

// edgeSpeeds implements speeds.
func (s *imageSpeeds) edgeSpeeds(edges []int32, after float64, out []float64) (err error) {
	s.names = s.names[:0]
	for _, e := range edges {
		s.names = append(s.names, s.g.edges[e].name)
	}
	// The slices are reused, so that a search allocates nothing per node.
	if len(s.items) < len(edges) {
		s.items = make([]reader.Item, len(edges))
	}
	items := s.items[:len(edges)]
	if _, err := s.roads.MultiGet(s.names, items); err != nil {
		return err
	}
	for i, e := range edges {
		out[i] = s.g.edges[e].kmh
		if items[i].Found && err == nil {
			out[i], err = s.speedAt(items[i].Value, after, out[i])
		}
	}
	return err
}

// clusterSpeeds reads the same speeds through the network, with one call for the edges of a node.
type clusterSpeeds struct {
	trip
	ctx   context.Context
	g     *graph
	roads *client.Table
}

// edgeSpeeds implements speeds.
func (s *clusterSpeeds) edgeSpeeds(edges []int32, after float64, out []float64) error {
	var names [][]byte
	for _, e := range edges {
		names = append(names, s.g.edges[e].name)
	}
	// One call for all edges, so that the comparison with the image is fair.
	got, err := s.roads.GetMany(s.ctx, names, client.GetOptions{})
	if err != nil {
		return err
	}
	for i, e := range edges {
		out[i] = s.g.edges[e].kmh
		if got[i].Exists() {
			if out[i], err = s.speedAt(got[i].Value, after, out[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
