package main

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// speedField is the field of a road segment that has its live speed, in km/h.
const speedField = "speed"

// liveSpeed reads the live speed out of a stored value, without decoding the rest of it.
func liveSpeed(value []byte, otherwise float64) (float64, error) {
	v, ok, err := rhumb.RecordField(value, speedField)
	if err != nil || !ok || v.Kind() != rhumb.FieldFloat64 {
		return otherwise, err
	}
	return v.Float64(), nil
}

// imageSpeeds reads the speeds from one view of the image, a few hundred nanoseconds for all edges of a node.
type imageSpeeds struct {
	g     *graph
	roads *reader.Table
	names [][]byte
	items []reader.Item
}

func (s *imageSpeeds) kmh(edges []int32, out []float64) (err error) {
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
			out[i], err = liveSpeed(items[i].Value, out[i])
		}
	}
	return err
}

// clusterSpeeds reads the same through the network, each node's edges with one call.
type clusterSpeeds struct {
	ctx   context.Context
	g     *graph
	roads *client.Table
}

func (s *clusterSpeeds) kmh(edges []int32, out []float64) error {
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
			if out[i], err = liveSpeed(got[i].Value, out[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
