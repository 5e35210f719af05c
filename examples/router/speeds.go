package main

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// speedField is the field of a road segment that has its live speed, in km/h.
const speedField = "speed"

// profileField is the field that has what is usual: a byte for each hour of the week from Monday 0:00 UTC on, the speed in
// km/h, 0 where it is not known.
const profileField = "profile"

const hoursOfWeek = 7 * 24

// liveFor is how far into the future the live speed holds; later, what is usual is the better guess.
const liveFor = 30 * time.Minute

func hourOfWeek(at time.Time) int {
	at = at.UTC()
	return (int(at.Weekday())+6)%7*24 + at.Hour()
}

// trip says when a route is driven.
type trip struct{ now, depart time.Time }

// speed tells how fast one drives so many seconds after the departure: as one does now, as is usual at that hour, or
// otherwise. It reads both from the stored value, without decoding the rest of it.
func (t trip) speed(value []byte, after, otherwise float64) (float64, error) {
	at := t.depart.Add(time.Duration(after * float64(time.Second)))
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
	if kmh := v.Text()[hourOfWeek(at)]; kmh > 0 {
		return float64(kmh), nil
	}
	return otherwise, nil
}

// imageSpeeds reads the speeds from one view of the image, a few hundred nanoseconds for all edges of a node.
type imageSpeeds struct {
	trip
	g     *graph
	roads *reader.Table
	names [][]byte
	items []reader.Item
}

func (s *imageSpeeds) kmh(edges []int32, after float64, out []float64) (err error) {
	s.names = s.names[:0]
	for _, e := range edges {
		s.names = append(s.names, s.g.edges[e].name)
	}
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
			out[i], err = s.speed(items[i].Value, after, out[i])
		}
	}
	return err
}

// clusterSpeeds reads the same through the network, each node's edges with one call.
type clusterSpeeds struct {
	trip
	ctx   context.Context
	g     *graph
	roads *client.Table
}

func (s *clusterSpeeds) kmh(edges []int32, after float64, out []float64) error {
	var names [][]byte
	for _, e := range edges {
		names = append(names, s.g.edges[e].name)
	}
	got, err := s.roads.GetMany(s.ctx, names, client.GetOptions{})
	if err != nil {
		return err
	}
	for i, e := range edges {
		out[i] = s.g.edges[e].kmh
		if got[i].Exists() {
			if out[i], err = s.speed(got[i].Value, after, out[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
