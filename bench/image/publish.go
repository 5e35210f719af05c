package image

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// stampValue writes a number where watchers look for it.
func stampValue(value []byte, n uint64) { binary.LittleEndian.PutUint64(value[stampAt:], n) }

// change writes a new value of record i, which keeps its place.
func (r *run) change(c *snapshot.Commit, i uint64, value []byte) error {
	return c.Put(r.table, snapshot.Record{Key: format.Key{Number: mix(i)}, Box: r.boxes[i], HasBox: true, Value: value})
}

// changes commits n changes of records in shuffled order and gives the processor time. What is changed is decided before, and
// kept in few bytes: reading it should cost about as much as it costs a node, which has it in its caches from the log.
func (r *run) changes(n int) (time.Duration, error) {
	type place struct {
		key uint64
		box format.Box
	}
	total := uint64(r.cfg.Records)
	places := make([]place, n)
	for i := range places {
		k := shuffled(r.next+uint64(i), total, 99)
		places[i] = place{mix(k), r.boxes[k]}
	}
	r.next += uint64(n)
	value := newValue()
	begin := threadCPU()
	c := r.pub.Begin()
	for i, at := range places {
		stampValue(value, uint64(i)+2)
		rec := snapshot.Record{Key: format.Key{Number: at.key}, Box: at.box, HasBox: true, Value: value}
		if err := c.Put(r.table, rec); err != nil {
			c.Discard()
			return 0, err
		}
	}
	_, err := c.Publish(snapshot.CommitInfo{})
	return threadCPU() - begin, err
}

// changeFifth changes a fifth of the records, in commits of at most bulkMax.
func (r *run) changeFifth() error {
	for left := r.cfg.Records / 5; left > 0; left -= bulkMax {
		if _, err := r.changes(min(left, bulkMax)); err != nil {
			return err
		}
	}
	return nil
}

// publish makes so many commits of n changes each and adds the cost of a change in the median commit to the samples. When
// a shard was rolled meanwhile it tries again, since rolls are measured by themselves.
func (r *run) publish(name string, n, commits int) error {
	for range 3 {
		var costs []float64
		before := r.pub.Stats().Rolls
		for range commits {
			cpu, err := r.changes(n)
			if err != nil {
				return err
			}
			costs = append(costs, float64(cpu)/float64(n))
		}
		if r.pub.Stats().Rolls == before {
			r.s.add(name, "ns", spreadOf(costs).Median)
			return nil
		}
	}
	return errors.New("commits roll shards each time: the append areas are too small")
}

// rollAll rolls every shard, so that the append areas are empty.
func (r *run) rollAll() error {
	for i := range int(r.table.ShardCount) {
		if err := r.pub.Roll(r.table, i); err != nil {
			return err
		}
	}
	r.pub.Beat()
	return nil
}

// relock lets the workers take the newest version and give the old generations back.
func (r *run) relock() error {
	for _, w := range r.workers {
		if _, err := w.do("lock-new", 0, 0); err != nil {
			return err
		}
	}
	r.pub.Beat()
	return nil
}

// measurePublish takes the cost of commits of all sizes, and of inserts.
func (r *run) measurePublish(ctx context.Context) error {
	if err := r.rollAll(); err != nil {
		return err
	}
	if err := r.relock(); err != nil {
		return err
	}
	r.bulk = int(min(bulkMax, r.appendRatio()*float64(r.cfg.Records)*0.8))
	for range max(r.cfg.Rounds, 3) { // sizes take turns: the small ones are over in less time than a neighbour's burst
		for _, size := range []struct{ changes, times int }{{1, 300}, {1000, 20}, {100_000, 2}} {
			if err := r.publish(fmt.Sprintf("publish, %d a commit", size.changes), size.changes, size.times); err != nil {
				return err
			}
		}
		if err := errors.Join(r.rollAll(), r.publish(bulkName(r.bulk), r.bulk, 1), r.rollAll()); err != nil {
			return err
		}
	}
	return errors.Join(r.measureSmallBase(ctx), r.measureInserts())
}

// bulkMax is the size of a large commit; small images take smaller ones.
const bulkMax = 1_000_000

func bulkName(n int) string { return fmt.Sprintf("publish, %d a commit", n) }

// measureSmallBase commits to a table of a tenth of the records and as many shards as that takes, turn by turn with the whole
// one: what a commit costs must not depend on what is there.
func (r *run) measureSmallBase(ctx context.Context) error {
	n := max(r.cfg.Records/10, 1)
	whole, records := r.table, r.cfg.Records
	tenth, err := r.pub.Table(snapshot.TableSpec{ID: 2, Name: "tenth", Spatial: true, ExpectedRecords: int64(n)})
	if err != nil {
		return err
	}
	defer func() { r.table, r.cfg.Records = whole, records }()
	r.table, r.cfg.Records = tenth, n
	boxes := r.boxes
	r.boxes = boxes[:n]
	err = r.load(ctx, "load, a tenth")
	r.boxes = boxes
	if err != nil {
		return err
	}
	for range r.cfg.Rounds {
		r.table, r.cfg.Records = tenth, n
		if err := r.publish("base: a tenth, 1000 a commit", 1000, 20); err != nil {
			return err
		}
		r.table, r.cfg.Records = whole, records
		if err := r.publish("base: all, 1000 a commit", 1000, 20); err != nil {
			return err
		}
	}
	return r.pub.DropTable(tenth)
}

// measureInserts commits new keys, 100,000 at a time, to a table of its own without boxes that holds as many already.
func (r *run) measureInserts() error {
	const each = 100_000
	t, err := r.pub.Table(snapshot.TableSpec{ID: 3, Name: "inserts", Shards: 1})
	if err != nil {
		return err
	}
	value := newValue()
	put := func(c *snapshot.Commit, from uint64) error {
		for i := range uint64(each) {
			if err := c.Put(t, snapshot.Record{Key: format.Key{Number: mix(1<<40 + from + i)}, Value: value}); err != nil {
				c.Discard()
				return err
			}
		}
		_, err := c.Publish(snapshot.CommitInfo{})
		return err
	}
	from := uint64(0)
	for len(r.s.values["insert, 100000 a commit"]) < r.cfg.Rounds && from < 100*each {
		before := r.pub.Stats().Rolls
		begin := threadCPU()
		if err := put(r.pub.Begin(), from); err != nil {
			return err
		}
		spent := threadCPU() - begin
		from += each
		if r.pub.Stats().Rolls == before && from > each {
			r.s.add("insert, 100000 a commit", "ns", float64(spent)/each)
		}
	}
	return r.pub.DropTable(t)
}

// measureRoll rolls all shards into recycled files: as they are, and after a fifth of the records changed in place.
func (r *run) measureRoll(context.Context) error {
	for range 2 {
		if err := errors.Join(r.rollAll(), r.relock()); err != nil {
			return err
		}
	}
	for range r.cfg.Rounds {
		before := r.pub.Stats().Bytes
		if err := r.timeRolls("roll of all shards"); err != nil {
			return err
		}
		r.s.add("roll: memory more", "of the image", float64(r.pub.Stats().Bytes-before)/float64(r.report.Bytes))
		if err := errors.Join(r.relock(), r.changeFifth(), r.timeRolls("roll of all shards, a fifth changed"), r.relock()); err != nil {
			return err
		}
	}
	return nil
}

// timeRolls rolls all shards and takes the processor time of a record.
func (r *run) timeRolls(name string) error {
	begin := threadCPU()
	err := r.rollAll()
	r.s.add(name, "ns/record", float64(threadCPU()-begin)/float64(r.cfg.Records))
	return err
}

// measureVersions compares views: the newest of an image without changes, the newest after a fifth of the records changed,
// and the one from before.
func (r *run) measureVersions(context.Context) error {
	if err := errors.Join(r.rollAll(), r.relock()); err != nil {
		return err
	}
	n := r.ops(1)
	both := func(prefix, get, mget string) []turn {
		return []turn{
			{prefix + ": C get", r.c, get, 0, n},
			{prefix + ": C multiget ×32", r.c, mget, 32, n},
			{prefix + ": Go get", r.golang, get, 0, n},
			{prefix + ": Go multiget ×32", r.golang, mget, 32, n},
		}
	}
	limit := func(prefix string) []turn { return []turn{{prefix + ": limit ×32", r.c, "limit", 32, n}} }
	if err := r.rounds(append(both("unchanged", "get", "mget"), limit("unchanged")...)); err != nil {
		return err
	}
	for _, w := range []*worker{r.c, r.golang} {
		if _, err := w.do("lock-old", 0, 0); err != nil {
			return err
		}
	}
	if err := r.changeFifth(); err != nil {
		return err
	}
	if err := r.relock(); err != nil {
		return err
	}
	if err := r.rounds(append(append(both("changed", "get", "mget"), both("old lock", "get-old", "mget-old")...), limit("changed")...)); err != nil {
		return err
	}
	for _, w := range []*worker{r.c, r.golang} {
		if _, err := w.do("lock-old", 0, 0); err != nil {
			return err
		}
	}
	return nil
}
