package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/freeport"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// kafkaTopic is the feed, kafkaPartitions its number of partitions.
	kafkaTopic      = "feed"
	kafkaPartitions = 4
	// kafkaCluster is the ID of the cluster, any 16 bytes in base64.
	kafkaCluster = "rhumbbenchmarkfeedAAAA"
	// kafkaLinger is how long the client collects records, as the tuned producers of Kafka do.
	kafkaLinger = 5 * time.Millisecond
)

// kafka is a broker that is its own controller, with a client.
type kafka struct {
	server *server
	// client is shared by all callers: it collects their records into batches.
	client  *kgo.Client
	version string // from the name of the jar
}

// startKafka starts a broker that syncs every message before it answers.
func startKafka(ctx context.Context, args []string, dir string) (database, error) {
	jars, err := filepath.Abs(args[0])
	if err != nil {
		return nil, err
	}
	addrs, err := freeport.Take(2)
	if err != nil {
		return nil, err
	}
	// One process is broker and controller. A topic of one replica syncs each batch of messages as it
	// arrives; log.flush.interval.messages counts messages, so 1 syncs all.
	config := filepath.Join(dir, "server.properties")
	text := fmt.Sprintf(`process.roles=broker,controller
node.id=1
controller.quorum.voters=1@%[2]s
listeners=PLAINTEXT://%[1]s,CONTROLLER://%[2]s
advertised.listeners=PLAINTEXT://%[1]s
controller.listener.names=CONTROLLER
log.dirs=%[3]s
num.partitions=%[4]d
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
log.flush.interval.messages=1
`, addrs[0], addrs[1], filepath.Join(dir, "logs"), kafkaPartitions)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	// A directory must be formatted with the ID of the cluster before the first start.
	format, err := java(jars, dir, []string{"-Xmx256m"}, "kafka.tools.StorageTool", "format", "-t", kafkaCluster, "-c", config)
	if err != nil {
		return nil, err
	}
	if text, err := format.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("format the log directory: %w: %s", err, text)
	}
	cmd, err := java(jars, dir, []string{"-Xms1g", "-Xmx1g", "-XX:+UseG1GC"}, "kafka.Kafka", config)
	if err != nil {
		return nil, err
	}
	k := &kafka{version: versionOf(jars, "kafka_2.13")}
	if k.server, err = startServer(cmd, dir, "kafka"); err != nil {
		return nil, err
	}
	// The client has no connection until the first request, so it can be made before the server is
	// ready.
	k.client, err = kgo.NewClient(kgo.SeedBrokers(addrs[0]), kgo.DefaultProduceTopic(kafkaTopic), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(kafkaLinger), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		k.server.stop(syscall.SIGKILL)
		return nil, err
	}
	if err := k.server.await(ctx, k.createTopic); err != nil {
		return nil, err
	}
	return k, nil
}

// createTopic creates the topic, if no earlier attempt did.
func (k *kafka) createTopic(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// The topic of a request that timed out may exist.
	admin := kadm.NewClient(k.client)
	found, err := admin.ListTopics(ctx, kafkaTopic)
	if err != nil || found.Has(kafkaTopic) {
		return err
	}
	_, err = admin.CreateTopic(ctx, kafkaPartitions, 1, nil, kafkaTopic)
	return err
}

func (k *kafka) describe() load.Ready {
	ops := []load.Op{load.Append}
	return load.Ready{Version: k.version, Ops: ops, Many: ops}
}

func (k *kafka) processes() []int { return []int{k.server.pid()} }

func (k *kafka) prepare(context.Context, load.Case) error { return nil }

// call produces the records of a step and waits for their acknowledgements.
func (k *kafka) call(ctx context.Context, s load.Step) error {
	// Without keys the client fills one partition after the other, which makes the largest batches.
	records := make([]*kgo.Record, s.Keys)
	for i := range records {
		records[i] = &kgo.Record{Value: s.Value}
	}
	return k.client.ProduceSync(ctx, records...).FirstErr()
}

func (k *kafka) stop() {
	k.client.Close()
	k.server.stop(syscall.SIGKILL)
}
