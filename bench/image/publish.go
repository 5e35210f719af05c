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

// stampValue writes a number to the position where watchers read it.
func stampValue(value []byte, n uint64) { binary.LittleEndian.PutUint64(value[stampAt:], n) }

// putChange adds a new value of record i to a commit. The box of the record does not change.
func (r *run) putChange(c *snapshot.Commit, i uint64, value []byte) error {
	return c.Put(r.table, snapshot.Record{Key: format.Key{Number: mixKey(i)}, Box: r.boxes[i], HasBox: true, Value: value})
}

// commitChanges commits n changes of records in shuffled order and returns their processor time.
// Keys and boxes are computed in advance and compactly: reading them should cost about as much as
// it costs a node, which has them in its caches from the log.
func (r *run) commitChanges(n int) (time.Duration, error) {
	type place struct {
		key uint64
		box format.Box
	}
	total := uint64(r.cfg.Records)
	places := make([]place, n)
	for i := range places {
		k := shuffledIndex(r.next+uint64(i), total, 99)
		places[i] = place{mixKey(k), r.boxes[k]}
	}
	r.next += uint64(n)
	// The value is reused: only its stamp changes between records.
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
		if _, err := r.commitChanges(min(left, bulkMax)); err != nil {
			return err
		}
	}
	return nil
}

// measureCommits makes the given number of commits of n changes each, and adds the cost of a change
// in the median commit to the samples. If a shard was rolled meanwhile it tries again, because
// rolls are measured separately.
func (r *run) measureCommits(name string, n, commits int) error {
	for range 3 {
		var costs []float64
		before := r.pub.Stats().Rolls
		for range commits {
			cpu, err := r.commitChanges(n)
			if err != nil {
				return err
			}
			costs = append(costs, float64(cpu)/float64(n))
		}
		// A roll within the turn would be charged to the commits.
		if r.pub.Stats().Rolls == before {
			r.s.add(name, "ns", spreadOf(costs).Median)
			return nil
		}
	}
	return errors.New("every attempt rolled a shard: the append areas are too small")
}

// rollAll rolls every shard, so that the append areas are empty.
func (r *run) rollAll() error {
	for i := range int(r.table.ShardCount) {
		if err := r.pub.Roll(r.table, i); err != nil {
			return err
		}
	}
	// Beat reclaims the generations that the rolls have replaced.
	r.pub.Beat()
	return nil
}

// relockWorkers makes the workers lock the newest version, so that old generations can be
// reclaimed.
func (r *run) relockWorkers() error {
	for _, w := range r.workers {
		if _, err := w.do("lock-new", 0, 0); err != nil {
			return err
		}
	}
	r.pub.Beat()
	return nil
}

// measurePublish measures commits of all sizes, and inserts.
func (r *run) measurePublish(ctx context.Context) error {
	if err := r.rollAll(); err != nil {
		return err
	}
	if err := r.relockWorkers(); err != nil {
		return err
	}
	// A commit that exceeds the append areas would roll its shards, so it fills at most 80 % of
	// them.
	r.bulk = int(min(bulkMax, r.appendRatio()*float64(r.cfg.Records)*0.8))
	// Sizes take turns, because the small ones take less time than a burst of a neighbour.
	for range max(r.cfg.Rounds, 3) {
		for _, size := range []struct{ changes, times int }{{1, 300}, {1000, 20}, {100_000, 2}} {
			if err := r.measureCommits(fmt.Sprintf("publish, %d a commit", size.changes), size.changes, size.times); err != nil {
				return err
			}
		}
		// A bulk commit nearly fills the append areas, so they are emptied before and after.
		if err := errors.Join(r.rollAll(), r.measureCommits(bulkName(r.bulk), r.bulk, 1), r.rollAll()); err != nil {
			return err
		}
	}
	return errors.Join(r.measureSmallBase(ctx), r.measureInserts())
}

// bulkMax is the size of a large commit. Small images take smaller ones.
const bulkMax = 1_000_000

// bulkName returns the name of the samples of commits of n changes.
func bulkName(n int) string { return fmt.Sprintf("publish, %d a commit", n) }

// measureSmallBase commits in turn to a table with a tenth of the records, and correspondingly
// fewer shards, and to the whole table. The cost of a commit must not depend on the size of the
// base.
func (r *run) measureSmallBase(ctx context.Context) error {
	n := max(r.cfg.Records/10, 1)
	whole, records := r.table, r.cfg.Records
	tenth, err := r.pub.Table(snapshot.TableSpec{ID: 2, Name: "tenth", Spatial: true, ExpectedRecords: int64(n)})
	if err != nil {
		return err
	}
	// The helpers use r.table and r.cfg.Records, which are switched for each turn.
	// Later sections need the whole table again, also after an error.
	defer func() { r.table, r.cfg.Records = whole, records }()
	r.table, r.cfg.Records = tenth, n
	boxes := r.boxes
	r.boxes = boxes[:n]
	err = r.loadTable(ctx, "load, a tenth")
	r.boxes = boxes
	if err != nil {
		return err
	}
	for range r.cfg.Rounds {
		r.table, r.cfg.Records = tenth, n
		if err := r.measureCommits("base: a tenth, 1000 a commit", 1000, 20); err != nil {
			return err
		}
		r.table, r.cfg.Records = whole, records
		if err := r.measureCommits("base: all, 1000 a commit", 1000, 20); err != nil {
			return err
		}
	}
	return r.pub.DropTable(tenth)
}

// measureInserts commits new keys, 100,000 at a time, to a separate table without boxes that
// already holds at least as many.
func (r *run) measureInserts() error {
	const each = 100_000
	t, err := r.pub.Table(snapshot.TableSpec{ID: 3, Name: "inserts", Shards: 1})
	if err != nil {
		return err
	}
	value := newValue()
	put := func(c *snapshot.Commit, from uint64) error {
		for i := range uint64(each) {
			if err := c.Put(t, snapshot.Record{Key: format.Key{Number: mixKey(1<<40 + from + i)}, Value: value}); err != nil {
				c.Discard()
				return err
			}
		}
		_, err := c.Publish(snapshot.CommitInfo{})
		return err
	}
	from := uint64(0)
	// Commits that roll are repeated, at most 100 times.
	for len(r.s.values["insert, 100000 a commit"]) < r.cfg.Rounds && from < 100*each {
		before := r.pub.Stats().Rolls
		begin := threadCPU()
		if err := put(r.pub.Begin(), from); err != nil {
			return err
		}
		spent := threadCPU() - begin
		from += each
		// The first commit only fills the table, and a commit that rolls the shard is not counted.
		if r.pub.Stats().Rolls == before && from > each {
			r.s.add("insert, 100000 a commit", "ns", float64(spent)/each)
		}
	}
	return r.pub.DropTable(t)
}

// measureRoll rolls all shards into recycled files: unchanged, and after a fifth of the records
// changed in place.
func (r *run) measureRoll(context.Context) error {
	// Two rolls leave enough files for recycling.
	for range 2 {
		if err := errors.Join(r.rollAll(), r.relockWorkers()); err != nil {
			return err
		}
	}
	for range r.cfg.Rounds {
		// A roll builds the new shard while readers still use the old one. This is its extra
		// memory.
		before := r.pub.Stats().Bytes
		if err := r.timeRolls("roll of all shards"); err != nil {
			return err
		}
		r.s.add("roll: memory more", "of the image", float64(r.pub.Stats().Bytes-before)/float64(r.report.Bytes))
		if err := errors.Join(r.relockWorkers(), r.changeFifth(), r.timeRolls("roll of all shards, a fifth changed"), r.relockWorkers()); err != nil {
			return err
		}
	}
	return nil
}

// timeRolls rolls all shards and adds the processor time per record to the samples.
func (r *run) timeRolls(name string) error {
	begin := threadCPU()
	err := r.rollAll()
	r.s.add(name, "ns/record", float64(threadCPU()-begin)/float64(r.cfg.Records))
	return err
}

// measureVersions compares views: the newest of an image without changes, the newest after a fifth
// of the records changed, and the view from before those changes.
func (r *run) measureVersions(context.Context) error {
	if err := errors.Join(r.rollAll(), r.relockWorkers()); err != nil {
		return err
	}
	n := r.turnSize(1)
	both := func(prefix, get, mget string) []turn {
		return []turn{
			{prefix + ": C get", r.c, get, 0, n},
			{prefix + ": C multiget ×32", r.c, mget, 32, n},
			{prefix + ": Go get", r.golang, get, 0, n},
			{prefix + ": Go multiget ×32", r.golang, mget, 32, n},
		}
	}
	limit := func(prefix string) []turn { return []turn{{prefix + ": limit ×32", r.c, "limit", 32, n}} }
	if err := r.runRounds(append(both("unchanged", "get", "mget"), limit("unchanged")...)); err != nil {
		return err
	}
	// The old view pins the version before the changes.
	for _, w := range []*worker{r.c, r.golang} {
		if _, err := w.do("lock-old", 0, 0); err != nil {
			return err
		}
	}
	if err := r.changeFifth(); err != nil {
		return err
	}
	if err := r.relockWorkers(); err != nil {
		return err
	}
	if err := r.runRounds(append(append(both("changed", "get", "mget"), both("old lock", "get-old", "mget-old")...), limit("changed")...)); err != nil {
		return err
	}
	// Locking again releases the old generations for the next section.
	for _, w := range []*worker{r.c, r.golang} {
		if _, err := w.do("lock-old", 0, 0); err != nil {
			return err
		}
	}
	return nil
}
