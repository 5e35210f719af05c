package replica

import (
	"fmt"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// BenchmarkWrite measures the hot path of a range with three replicas: a Ready with some puts of
// 100 bytes at the primary, the Appends at both secondaries, their Acks, the commit and the
// answers. One op is one put. Storage and network cost nothing here.
func BenchmarkWrite(b *testing.B) {
	for _, group := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("group=%d", group), func(b *testing.B) {
			nodes := benchNodes()
			batches := make([]*rhumb.Batch, group)
			for i := range batches {
				batches[i] = putBatch(fmt.Sprintf("key-%04d", i), string(make([]byte, 100)))
			}
			ts, answers := rhumb.Timestamp(1000), 0
			b.ReportAllocs()
			for done := 0; b.Loop(); {
				if done++; done%group != 0 {
					continue
				}
				for i := range batches {
					ts++
					batches[i].ID = rhumb.RequestID{Client: rhumb.UUID{1}, Seq: uint64(ts)}
					nodes[0].Propose(ts, Proposal{Token: uint64(ts), Batch: batches[i]})
				}
				answers += benchPump(nodes)
			}
			if answers < b.N-group {
				b.Fatalf("%d answers to %d proposals", answers, b.N)
			}
		})
	}
}

// BenchmarkPatch measures the path of feeds at the primary: an IfNewer patch of a record that an
// unapplied entry holds.
func BenchmarkPatch(b *testing.B) {
	nodes := benchNodes()
	patch := rhumb.EncodeRecord(nil, rhumb.Record{
		{Name: "alt", Value: rhumb.Int64Field(35000)},
		{Name: "clock", Value: rhumb.Int64Field(1)},
		{Name: "ident", Value: rhumb.StringField("SWR123")},
		{Name: "speed", Value: rhumb.Float64Field(451)},
	})
	batch := &rhumb.Batch{Range: testRange, Mutations: []rhumb.Mutation{{
		Kind: rhumb.Patch, Table: 1, Name: []byte("SWR123-1"), Value: patch, Cond: rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{"clock"}},
	}}}
	base := []Base{{rhumb.Version{HLC: 1, Node: 1}, rhumb.EncodeRecord(nil, rhumb.Record{{Name: "clock", Value: rhumb.Int64Field(0)}})}}
	ts := rhumb.Timestamp(1000)
	b.ReportAllocs()
	for n := 1; b.Loop(); n++ {
		ts++
		nodes[0].Propose(ts, Proposal{Token: uint64(ts), Batch: batch, Base: base})
		if n%64 == 0 {
			benchPump(nodes)
		}
	}
}

// benchNodes returns a primary and two in-sync secondaries.
func benchNodes() []*Replica {
	ids := []rhumb.NodeID{1, 2, 3}
	var nodes []*Replica
	for _, id := range ids {
		r := New(Config{Range: testRange, Self: id}, Durable{})
		for _, peer := range ids {
			if peer != id {
				r.Peer(time.Second, peer, true, false)
			}
		}
		r.Describe(&rhumb.Range{ID: testRange, Epoch: 1, Allocated: 1, Version: 1, Primary: 1, InSync: ids, Replicas: ids})
		nodes = append(nodes, r)
	}
	benchPump(nodes)
	nodes[0].Activate(900)
	benchPump(nodes)
	return nodes
}

// benchPump carries out Readys until nothing is left, and returns the number of answers.
func benchPump(nodes []*Replica) (answers int) {
	for busy := true; busy; {
		busy = false
		for _, r := range nodes {
			for r.HasReady() {
				busy = true
				rd := r.Ready()
				if rd.MustSync {
					r.Persisted(rd.Batch)
				}
				answers += len(rd.Answers)
				for _, list := range [][]Message{rd.Messages, rd.AfterSync} {
					for i := range list {
						if err := nodes[list[i].To-1].Step(list[i]); err != nil {
							panic(err.Error())
						}
					}
				}
			}
		}
	}
	return answers
}

// BenchmarkClose closes one idle range with three members once.
func BenchmarkClose(b *testing.B) {
	nodes := benchNodes()
	agreed := func(rhumb.NodeID, rhumb.BootSeq) rhumb.Timestamp { return 1 << 40 }
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok := nodes[0].Close(1<<40, agreed); !ok {
			b.Fatal("not closed")
		}
	}
}
