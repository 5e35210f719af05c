package local

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// Names on the hosts: the folder with the images, and this program, which reads
// them there.
const (
	imagesDir     = "/dev/shm/rhumb"
	readerProgram = "/usr/bin/chaos-reader"
	// ReaderCommand is the command of this program that calls FollowViews.
	ReaderCommand = "follow-views"
)

// viewsTable is the table of the workload, which nodes publish.
const viewsTable = "views"

// viewsDelay is how long a view waits before it is judged. By then, the writes that
// it shows are answered, except for those of unknown outcome.
const viewsDelay = 15 * time.Second

// views is the workload of writes to a published table, while a process on the host
// of each node reads the image that the node publishes.
type views struct {
	e *env
	// stop ends the readers, and wait counts them.
	stop context.CancelFunc
	wait sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	judge  viewJudge
	queue  []queuedView // of all nodes, in the order of arrival
	err    error
	ops    int
	closed int // views of closed cuts among ops
	// acked counts the acknowledged writes.
	acked int
	// trouble is why a reader ended last. A reader ends when its host is down, or
	// the image is not there.
	trouble string
}

// queuedView is a view that waits to be judged.
type queuedView struct {
	node string
	at   time.Duration
	view sharedView
}

// newViews starts the workload views and its readers.
func newViews(e *env) script {
	v := &views{e: e, judge: newViewJudge()}
	// The readers end before the histories are checked, or with the hosts.
	var ctx context.Context
	ctx, v.stop = context.WithCancel(context.Background())
	v.wait.Go(func() { v.followNodes(ctx) })
	return v
}

// followNodes follows each node of the first region until the node leaves the
// cluster. Only there is the table: its names have that home.
func (v *views) followNodes(ctx context.Context) {
	followed := map[*Node]context.CancelFunc{}
	for wait(ctx, time.Second) == nil {
		// Nodes join and leave during the run.
		nodes := slices.DeleteFunc(v.e.nodes(), func(n *Node) bool { return n.Region != v.e.region })
		for _, n := range nodes {
			if followed[n] == nil {
				one, end := context.WithCancel(ctx)
				followed[n] = end
				v.wait.Go(func() { v.followNode(one, n) })
			}
		}
		for n, end := range followed {
			if !slices.Contains(nodes, n) {
				end()
				delete(followed, n)
			}
		}
	}
	for end := range maps.Values(followed) {
		end()
	}
}

// followNode runs the reader on the host of a node, again after each power cut.
func (v *views) followNode(ctx context.Context, n *Node) {
	// The reader is this program: a host has no Go and no sources.
	self, err := os.Executable()
	if err != nil {
		v.fail(err)
		return
	}
	for installed := false; wait(ctx, pollWait) == nil; {
		// The host may be down, or the image not there yet.
		if !installed {
			err = n.host.CopyIn(self, readerProgram)
		} else {
			err = v.readOn(ctx, n)
		}
		installed = installed || err == nil
		v.noteTrouble(n, err)
	}
}

// readOn runs the reader until it ends, and queues the views that it prints.
func (v *views) readOn(ctx context.Context, n *Node) error {
	cmd := n.host.Command(ctx, readerProgram, ReaderCommand, imagesDir, viewsTable)
	var trouble bytes.Buffer
	cmd.Stderr = &trouble
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, viewBytesMost)
	for lines.Scan() {
		v.add(n.Name, lines.Bytes())
	}
	// A view that is too long must not pass for the end of the reader.
	if err := lines.Err(); err != nil {
		v.fail(err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(trouble.Bytes()))
	}
	return nil
}

// noteTrouble keeps why a reader ended, for a run in which no view was read.
func (v *views) noteTrouble(n *Node, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.trouble = fmt.Sprintf("%s: %v", n.Name, err)
	}
}

// viewBytesMost bounds a view as JSON.
const viewBytesMost = 4 << 20

// fail keeps the first error.
func (v *views) fail(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.err == nil {
		v.err = err
	}
}

// readerEnds holds the kinds of errors with which a reader may end. The image is not
// there: its node is new, or its host has started again. The node was killed or
// stopped in the middle of a change of the image. The machine is busy, and a view
// grew too old while it was read. Nothing damages /dev/shm, so every other kind says
// that the node or the reader is wrong.
var readerEnds = []rhumb.Kind{rhumb.NotFound, rhumb.Unavailable, rhumb.Expired}

// judgeEnd fails if a reader ended with an error that no fault excuses.
func (v *views) judgeEnd(node string, end *sharedEnd) {
	// The previous release may write images of a format that this one does not read,
	// and a node that changes from one to the other makes a new image.
	if !v.e.previous && !slices.Contains(readerEnds, end.Kind) {
		v.fail(fmt.Errorf("the reader on the host of %s ended at %v as %v, which no fault excuses: %s", node, v.e.record.now(), end.Kind, end.Text))
	}
}

// add queues a view, and judges those that have waited long enough.
func (v *views) add(node string, text []byte) {
	var line sharedLine
	// A killed reader leaves half a line.
	if json.NewDecoder(bytes.NewReader(text)).Decode(&line) != nil {
		return
	}
	if line.End != nil {
		v.judgeEnd(node, line.End)
	}
	if line.View == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.e.record.now()
	v.queue = append(v.queue, queuedView{node, now, *line.View})
	v.settle(now - viewsDelay)
}

// closedAt describes the timestamp of a view.
func closedAt(at rhumb.Timestamp) string {
	if at == 0 {
		return "no closed cut"
	}
	return fmt.Sprintf("closed at %v", at)
}

// settle judges the views that arrived before a time.
func (v *views) settle(before time.Duration) {
	for len(v.queue) > 0 && v.queue[0].at <= before {
		q := v.queue[0]
		v.queue = v.queue[1:]
		v.ops++
		if q.view.Closed != 0 {
			v.closed++
		}
		if err := v.judge.see(q.node, q.view); err != nil && v.err == nil {
			v.err = fmt.Errorf("a view on the host of %s at %v (version %d, %s, %d records, %d ranges): %w", q.node, q.at, q.view.Version, closedAt(q.view.Closed),
				len(q.view.Records), len(q.view.Positions), err)
		}
	}
}

// call writes the next number to a key of the caller. Only this caller writes it.
func (v *views) call(ctx context.Context, c *caller) {
	// One key for each caller, so that the numbers in a key grow with its versions.
	name := fmt.Sprintf("view-%d", c.index)
	c.count++
	v.mu.Lock()
	v.judge.try(name, c.count)
	v.mu.Unlock()
	// The home is fixed, so that the record is in the images of the first region.
	at := c.record.now()
	result, err := c.table.Put(ctx, []byte(name), []byte(strconv.Itoa(c.count)), client.PutOptions{Home: v.e.region})
	c.record.add(at, err)
	if err != nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.acked++
	v.judge.ack(name, viewWrite{c.count, result.Version.HLC, result.Receipt.Range})
}

// check judges the views that are left. At least one closed cut must have been among
// all views of all nodes, or nothing was tested.
func (v *views) check(context.Context) Verdict {
	// The readers end first: their last views are in the queue then.
	v.stop()
	v.wait.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.settle(v.e.record.now())
	verdict := Verdict{Operations: v.ops, Acknowledged: v.acked, Text: fmt.Sprintf("%d views, %d of them closed cuts", v.ops, v.closed), Err: v.err}
	if verdict.Err == nil && v.closed == 0 {
		verdict.Err = errors.New("no closed cut was seen")
		if v.trouble != "" {
			verdict.Err = fmt.Errorf("no closed cut was seen; a reader ended last: %s", v.trouble)
		}
	}
	return verdict
}

// viewWrite is a write that was acknowledged: its number, its timestamp, and the
// range that took it.
type viewWrite struct {
	number  int
	written rhumb.Timestamp
	in      rhumb.RangeID
}

// viewJudge says whether views of images equal the log. Each key is written by one
// caller with growing numbers.
type viewJudge struct {
	// writes holds the acknowledged writes of each key in order, and tried the last
	// number that was sent.
	writes map[string][]viewWrite
	tried  map[string]int
	// newest and closed are the last views by node.
	newest, closed map[string]sharedView
}

// newViewJudge returns a judge that has seen nothing.
func newViewJudge() viewJudge {
	return viewJudge{map[string][]viewWrite{}, map[string]int{}, map[string]sharedView{}, map[string]sharedView{}}
}

// try notes that a number is sent.
func (j *viewJudge) try(name string, number int) { j.tried[name] = number }

// ack notes that a write was acknowledged.
func (j *viewJudge) ack(name string, w viewWrite) { j.writes[name] = append(j.writes[name], w) }

// see judges a view: it never goes back within an image, and equals the log up to
// its positions, or up to its timestamp if it is closed.
func (j *viewJudge) see(node string, v sharedView) error {
	last := j.newest
	if v.Closed != 0 {
		last = j.closed
	}
	before := last[node]
	last[node] = v
	// A record is looked up several times below.
	shown := map[string]sharedRecord{}
	for _, r := range v.Records {
		shown[r.Name] = r
	}
	if before.Image == v.Image {
		if err := j.goesForward(before, v, shown); err != nil {
			return err
		}
	}
	for name, r := range shown {
		if err := j.isWritten(name, r); err != nil {
			return err
		}
	}
	for name := range j.writes {
		if err := j.isCurrent(name, before, v, shown); err != nil {
			return err
		}
	}
	return nil
}

// goesForward compares a view with an earlier one of the same image. The records of
// a range that has left the node are gone.
func (j *viewJudge) goesForward(before, v sharedView, shown map[string]sharedRecord) error {
	if v.Version < before.Version || v.Closed < before.Closed {
		return fmt.Errorf("it went back from version %d to %d, or from %v to %v", before.Version, v.Version, before.Closed, v.Closed)
	}
	for _, r := range before.Records {
		held := 0
		ids := j.rangesOf(r.Name, r.Written)
		for _, id := range ids {
			if _, ok := v.position(id); ok {
				held++
			}
		}
		// The record may be in the one that the view does not have.
		if held == 0 || held < len(ids) {
			continue
		}
		if now, ok := shown[r.Name]; !ok || now.Written < r.Written {
			return fmt.Errorf("%s went back from %s of %v to %q of %v", r.Name, r.Text, r.Written, now.Text, now.Written)
		}
	}
	return nil
}

// rangesOf returns the ranges that may hold the newest version of a key at a timestamp: that of the last acknowledged
// write up to then, and that of the next one. They differ if the range was split, or merged, between the two, and nobody
// says when: the record may be in either.
func (j *viewJudge) rangesOf(name string, at rhumb.Timestamp) []rhumb.RangeID {
	writes := j.writes[name]
	next := slices.IndexFunc(writes, func(w viewWrite) bool { return w.written > at })
	if next < 0 {
		next = len(writes)
	}
	// At most these two, without repetition.
	var ids []rhumb.RangeID
	for _, w := range writes[max(next-1, 0):min(next+1, len(writes))] {
		if !slices.Contains(ids, w.in) {
			ids = append(ids, w.in)
		}
	}
	return ids
}

// isWritten returns an error if a record is not what somebody wrote: another
// timestamp for the same number, or a number that nobody has sent.
func (j *viewJudge) isWritten(name string, r sharedRecord) error {
	// Numbers begin at 1, and the try is noted before the write is sent.
	number, err := strconv.Atoi(r.Text)
	if err != nil || number < 1 || number > j.tried[name] {
		return fmt.Errorf("%s holds %q, and %d was the last try", name, r.Text, j.tried[name])
	}
	i, ok := slices.BinarySearchFunc(j.writes[name], number, func(w viewWrite, n int) int { return w.number - n })
	if ok && j.writes[name][i].written != r.Written {
		return fmt.Errorf("%s holds %d of %v, which was written at %v", name, number, r.Written, j.writes[name][i].written)
	}
	return nil
}

// isCurrent returns an error if a view lacks the newest acknowledged write of a key
// up to its position, or has a later one.
func (j *viewJudge) isCurrent(name string, before, v sharedView, shown map[string]sharedRecord) error {
	r, there := shown[name]
	number, _ := strconv.Atoi(r.Text)
	writes := j.writes[name]
	// A write that the view shows is in the log at or before the position of its
	// range.
	if _, ok := slices.BinarySearchFunc(writes, number, func(w viewWrite, n int) int { return w.number - n }); ok && there {
		ids := j.rangesOf(name, r.Written)
		if known := v.followed(before, ids); len(known) > 0 && slices.Max(known) < r.Written {
			return fmt.Errorf("%s holds %d of %v, after the position %v of range %v", name, number, r.Written, slices.Max(known), ids)
		}
	}
	for _, w := range slices.Backward(writes) {
		if w.number <= number {
			break // all earlier ones are superseded
		}
		ids := j.rangesOf(name, w.written)
		known := v.followed(before, ids)
		if len(known) == 0 || w.written > slices.Min(known) {
			continue
		}
		// If the view does not follow one of them, the record may be there.
		if len(known) < len(ids) {
			break
		}
		return fmt.Errorf("%s holds %q, but %d was written at %v, before the position %v of range %v", name, r.Text, w.number, w.written, slices.Min(known), ids)
	}
	return nil
}

// followed returns up to which timestamps a view follows ranges, without those that it does not follow.
func (v *sharedView) followed(before sharedView, ids []rhumb.RangeID) (known []rhumb.Timestamp) {
	for _, id := range ids {
		if until, ok := v.until(before, id); ok {
			known = append(known, until)
		}
	}
	return known
}

// until returns up to which timestamp a view follows a range. A node holds the
// ranges of its own copies only, and a range that has arrived at the node is part
// of the next cut, not of the present one. So a range counts in a closed cut if it
// was in an earlier one.
func (v *sharedView) until(before sharedView, id rhumb.RangeID) (rhumb.Timestamp, bool) {
	at, known := v.position(id)
	if v.Closed == 0 || !known {
		return at, known
	}
	_, earlier := before.position(id)
	return v.Closed, earlier && before.Image == v.Image && before.Closed < v.Closed
}

// position returns the timestamp of the last entry of a range in the version of a
// view.
func (v *sharedView) position(id rhumb.RangeID) (rhumb.Timestamp, bool) {
	for _, p := range v.Positions {
		if p.Range == id {
			return p.Until, true
		}
	}
	return 0, false
}
