package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/freeport"
)

const (
	// natsConns is the number of client connections, as for etcd.
	natsConns = 8
	// natsPending bounds the publications that a connection waits for.
	natsPending = 4096
)

// nats is a NATS server with its clients. Its key-value buckets and its feed are streams of JetStream.
type nats struct {
	server *server
	conns  []*natsclient.Conn
	// buckets has the bucket and streams the feed, as each connection sees them.
	buckets []jetstream.KeyValue
	streams []jetstream.JetStream
}

// serveNATS runs a NATS server that syncs every message before it answers.
func serveNATS(port, dir string) error {
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	// By default a server syncs every two minutes. SyncAlways syncs before each acknowledgement.
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: n, JetStream: true, StoreDir: dir, SyncAlways: true, NoLog: true, NoSigs: true})
	if err != nil {
		return err
	}
	// The process ends by a signal of the driver, which the server would handle with NoSigs unset.
	s.Start()
	s.WaitForShutdown()
	return errors.New("the server ended")
}

// startNATS starts a server and makes a bucket and a stream.
func startNATS(ctx context.Context, _ []string, dir string) (database, error) {
	addrs, err := freeport.Take(1)
	if err != nil {
		return nil, err
	}
	n := &nats{}
	if n.server, err = startServer(exec.Command(os.Args[0], "nats-server", fmt.Sprint(portOf(addrs[0])), dir), dir, "nats"); err != nil {
		return nil, err
	}
	if err := n.server.await(ctx, func(ctx context.Context) error { return n.connect(ctx, "nats://"+addrs[0]) }); err != nil {
		return nil, err
	}
	return n, nil
}

// connect opens the connections. The first makes the bucket and the stream.
func (n *nats) connect(ctx context.Context, url string) error {
	// An attempt that fails half-way continues where it ended.
	for len(n.conns) < natsConns {
		conn, err := natsclient.Connect(url, natsclient.Timeout(time.Second))
		if err != nil {
			return err
		}
		n.conns = append(n.conns, conn)
		js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(natsPending))
		if err != nil {
			return err
		}
		// Both exist after the first connection; the calls are the same for all.
		bucket, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "bench", Storage: jetstream.FileStorage, History: 1})
		if err != nil {
			return err
		}
		if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "feed", Subjects: []string{"feed"}, Storage: jetstream.FileStorage}); err != nil {
			return err
		}
		n.buckets, n.streams = append(n.buckets, bucket), append(n.streams, js)
	}
	return nil
}

func (n *nats) describe() load.Ready {
	return load.Ready{Version: natsserver.VERSION, Ops: []load.Op{load.Put, load.Get, load.Append}, Many: []load.Op{load.Append}}
}

func (n *nats) processes() []int { return []int{n.server.pid()} }

func (n *nats) prepare(context.Context, load.Case) error { return nil }

func (n *nats) call(ctx context.Context, s load.Step) error {
	at := (s.Caller + s.Key) % natsConns
	// A key of JetStream is a subject, in which slashes are allowed.
	switch s.Op {
	case load.Append:
		return n.publish(ctx, n.streams[s.Caller%natsConns], s)
	case load.Put:
		_, err := n.buckets[at].Put(ctx, keyOf(s.Caller, s.Key), s.Value)
		return err
	}
	_, err := n.buckets[at].Get(ctx, keyOf(s.Caller, s.Key))
	switch {
	case !errors.Is(err, jetstream.ErrKeyNotFound):
		return err
	case s.Written:
		return load.ErrAbsent
	}
	return nil // an answer too
}

// publish sends all messages of a step, and then waits for the acknowledgements.
func (n *nats) publish(ctx context.Context, js jetstream.JetStream, s load.Step) error {
	// The acknowledgements of one call wait together, as those of a batch do.
	acks := make([]jetstream.PubAckFuture, s.Keys)
	for i := range acks {
		var err error
		if acks[i], err = js.PublishAsync("feed", s.Value); err != nil {
			return err
		}
	}
	for _, a := range acks {
		select {
		case <-a.Ok():
		case err := <-a.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (n *nats) stop() {
	for _, c := range n.conns {
		c.Close()
	}
	n.server.stop(syscall.SIGKILL)
}
