package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/node/publish"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// VisibleReport reports how long a put of a client takes to appear in the images that nodes of its
// range publish in shared memory. Times count from before the call and are in microseconds.
type VisibleReport struct {
	Samples int `json:"samples"`
	// Acknowledged is the put itself. Primary and Secondary are the images on the node of the
	// primary and on a node of a secondary.
	Acknowledged Quantiles `json:"acknowledged"`
	Primary      Quantiles `json:"primary"`
	Secondary    Quantiles `json:"secondary"`
}

// Quantiles are latencies in microseconds.
type Quantiles struct {
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	Max float64 `json:"max_us"`
}

const (
	visibleTable = "visible"
	// visibleMax bounds the wait for one put, and for the images to appear.
	visibleMax = 30 * time.Second
	// visibleWait is the time between two attempts to find the table in an image.
	visibleWait = 10 * time.Millisecond
)

// RunVisible puts values into a published table and waits for each in an image, alternating between
// the image of the primary and that of a secondary. The cluster runs on this machine with at least
// two nodes, and publishes below publish.DirDefault.
func RunVisible(ctx context.Context, addrs []string, samples int) (*VisibleReport, error) {
	c, err := client.Open(ctx, client.Config{Addrs: addrs, Insecure: true})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	w, err := openVisible(ctx, c)
	if err != nil {
		return nil, err
	}
	r := &VisibleReport{Samples: samples}
	var acks []time.Duration
	seen := make([][]time.Duration, len(w.images))
	for i := range samples {
		// The images take turns, so that a slow phase of the machine affects both.
		at := i % len(w.images)
		ack, visible, err := w.takeSample(ctx, w.images[at], uint64(i)+1)
		if err != nil {
			return nil, errors.Join(err, w.close())
		}
		acks, seen[at] = append(acks, ack), append(seen[at], visible)
	}
	r.Acknowledged, r.Primary, r.Secondary = quantilesOf(acks), quantilesOf(seen[0]), quantilesOf(seen[1])
	return r, w.close()
}

// visible is the table that receives the puts, with the images of its primary and of a secondary.
type visible struct {
	table  *client.Table
	name   []byte
	images []*reader.Client
}

// openVisible creates the table and waits until both images hold it.
func openVisible(ctx context.Context, c *client.Client) (*visible, error) {
	settings := rhumb.DefaultClassSettings()
	settings.Replicas = min(settings.Replicas, len(c.Nodes()))
	settings.MinInSync = min(settings.MinInSync, settings.Replicas)
	w := &visible{name: []byte("stamp")}
	var err error
	if w.table, err = c.CreateTable(ctx, visibleTable, client.TableOptions{Settings: settings, TableOptions: rhumb.TableOptions{Snapshot: rhumb.SnapshotOn}}); rhumb.KindOf(err) == rhumb.AlreadyExists {
		w.table, err = c.Table(ctx, visibleTable)
	}
	if err != nil {
		return nil, err
	}
	// The receipt of a first put names the range, and with it the nodes that publish the table.
	put, err := w.putNumber(ctx, 0)
	if err != nil {
		return nil, err
	}
	status, err := c.DescribeRange(ctx, put.Receipt.Range)
	if err != nil {
		return nil, err
	}
	nodes := []rhumb.NodeID{status.Range.Primary}
	for _, replica := range status.Replicas {
		if replica.Node != status.Range.Primary && len(nodes) < 2 {
			nodes = append(nodes, replica.Node)
		}
	}
	if len(nodes) < 2 {
		return nil, fmt.Errorf("range %v has no secondary; start the cluster with at least two nodes", put.Receipt.Range)
	}
	for _, n := range nodes {
		image, err := w.attachImage(ctx, publish.ImageDir("", c.Cluster(), n))
		if err != nil {
			return nil, errors.Join(err, w.close())
		}
		w.images = append(w.images, image)
	}
	return w, nil
}

// attachImage attaches to an image and waits until the first value is in it.
func (w *visible) attachImage(ctx context.Context, dir string) (*reader.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, visibleMax)
	defer cancel()
	var last error
	for ctx.Err() == nil {
		c, err := reader.Attach(dir, reader.Options{Populate: true})
		for err == nil && ctx.Err() == nil {
			if _, err = w.readNumber(c); err == nil {
				return c, nil
			}
			// The condition of the loop checks ctx.
			_ = pauseFor(ctx, visibleWait)
			// The image exists; only the table or the value is missing yet.
			if k := rhumb.KindOf(err); k == rhumb.NotFound {
				// The table is not in the image yet.
				err = nil
			}
		}
		// A damaged or replaced image is attached again.
		last = err
		if c != nil {
			last = errors.Join(last, c.Close())
		}
		_ = pauseFor(ctx, visibleWait)
	}
	return nil, fmt.Errorf("image %s does not contain the first put: %w", dir, errors.Join(last, ctx.Err()))
}

// close detaches from the images.
func (w *visible) close() (err error) {
	for _, c := range w.images {
		err = errors.Join(err, c.Close())
	}
	return err
}

// putNumber puts a number under the one key.
func (w *visible) putNumber(ctx context.Context, n uint64) (client.Result, error) {
	return w.table.Put(ctx, w.name, binary.LittleEndian.AppendUint64(nil, n), client.PutOptions{})
}

// readNumber returns the number in an image.
func (w *visible) readNumber(c *reader.Client) (uint64, error) {
	v, err := c.Lock()
	if err != nil {
		return 0, err
	}
	defer v.Unlock()
	t, err := v.Table(visibleTable)
	if err != nil {
		return 0, err
	}
	it, err := t.Get(w.name)
	if err != nil {
		return 0, err
	}
	payload, ok := rhumb.DecodeOpaque(it.Value)
	if !ok || len(payload) != 8 {
		return 0, fmt.Errorf("the value has %d bytes, want an 8-byte number", len(it.Value))
	}
	return binary.LittleEndian.Uint64(payload), nil
}

// takeSample puts a number and reads an image until the number is there.
func (w *visible) takeSample(ctx context.Context, image *reader.Client, n uint64) (ack, seen time.Duration, err error) {
	type answer struct {
		took time.Duration
		err  error
	}
	answered := make(chan answer, 1)
	start := time.Now()
	// The put and the reading run concurrently: the image may show a value before the put is
	// answered.
	go func() {
		_, err := w.putNumber(ctx, n)
		answered <- answer{time.Since(start), err}
	}()
	for {
		got, err := w.readNumber(image)
		// Numbers increase, and each sample waits for its own.
		if seen = time.Since(start); err != nil || got == n || seen > visibleMax {
			a := <-answered
			if got != n && err == nil {
				err = fmt.Errorf("put %d is not in the image %s after %v", n, image.Dir(), seen)
			}
			return a.took, seen, errors.Join(err, a.err)
		}
		time.Sleep(visiblePoll)
	}
}

// visiblePoll is the time between two reads of an image; the figures include half of it on average.
// Reading without a pause would take a processor from the nodes.
const visiblePoll = 20 * time.Microsecond

// quantilesOf sorts d and returns its quantiles.
func quantilesOf(d []time.Duration) Quantiles {
	slices.Sort(d)
	at := func(p float64) float64 {
		if len(d) == 0 {
			return 0
		}
		return float64(d[max(int(math.Ceil(p*float64(len(d)))), 1)-1]) / 1e3
	}
	return Quantiles{at(0.5), at(0.99), at(1)}
}
