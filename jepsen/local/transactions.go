package local

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/sim/check"
)

// The lists of a group are in one range, because the part of their names before the
// slash is equal. After groupCalls transactions, the callers move to the next
// group, so that lists stay short.
const (
	groupLists = 4
	groupCalls = 400
)

// transactions is the workload of transactions on several lists of a range. A
// transaction reads lists at one time, and appends to some of them in one batch
// that holds only if none of the lists that it read has changed. So it happened at
// one moment, and all of them together must be strictly serializable, which
// check.Lists judges.
type transactions struct {
	e *env

	mu sync.Mutex // guards the fields below
	// history holds all transactions, and calls counts those that began.
	history []*check.ListTransaction
	calls   int
}

// newTransactions starts the workload transactions.
func newTransactions(e *env) script { return &transactions{e: e} }

// groupListName returns the name of a list of a group.
func groupListName(group, list int) string { return fmt.Sprintf("lists%d/%d", group, list) }

// begin records a transaction whose outcome is not known yet.
func (x *transactions) begin(one *check.ListTransaction) *check.ListTransaction {
	x.mu.Lock()
	defer x.mu.Unlock()
	one.ID, one.Call, one.Return = len(x.history)+1, x.e.record.now(), check.Forever
	x.history = append(x.history, one)
	return one
}

// end records how a transaction ended.
func (x *transactions) end(one *check.ListTransaction, r check.Result) {
	x.mu.Lock()
	defer x.mu.Unlock()
	one.Result, one.Return = r, x.e.record.now()
}

// drawLists draws one to three lists of the present group, and how many of them a
// transaction appends to.
func (x *transactions) drawLists(random *rand.Rand) (names []string, appends int) {
	x.mu.Lock()
	// All callers use the present group, so that they meet.
	group := x.calls / groupCalls
	x.calls++
	x.mu.Unlock()
	for _, list := range random.Perm(groupLists)[:1+random.IntN(groupLists-1)] {
		names = append(names, groupListName(group, list))
	}
	return names, random.IntN(len(names) + 1)
}

// call makes one transaction.
func (x *transactions) call(ctx context.Context, c *caller) {
	names, appends := x.drawLists(c.random)
	// The read is a transaction of its own unless the batch is acknowledged,
	// because it happened whatever became of the batch.
	reading := x.begin(&check.ListTransaction{})
	got, err := x.read(ctx, c, names)
	if err != nil {
		x.end(reading, check.NotApplied)
		return
	}
	for i, name := range names {
		reading.Reads = append(reading.Reads, check.ListRead{List: name, Elements: elementsOf(opaque(got[i].Value))})
	}
	x.end(reading, check.OK)
	if appends == 0 {
		return
	}
	writing := &check.ListTransaction{}
	var batch []rhumb.Mutation
	for i, name := range names {
		text := opaque(got[i].Value)
		if i < appends {
			element := c.unique()
			writing.Appends = append(writing.Appends, check.ListAppend{List: name, Element: element})
			text = strings.TrimPrefix(text+" "+element, " ")
		}
		// A list that was only read is written again as it was, so that the
		// condition on it is part of the batch.
		batch = append(batch, rhumb.Mutation{
			Kind: rhumb.Put, Table: c.table.Info().ID, Name: []byte(name), Value: rhumb.EncodeOpaque(nil, []byte(text)), Cond: unchanged(got[i].Version),
		})
	}
	x.begin(writing)
	at := c.record.now()
	_, err = c.client.Batch(ctx, batch, client.BatchOptions{Home: x.e.region})
	c.record.add(at, err)
	x.conclude(reading, writing, outcomeOf(err))
}

// conclude records the outcome of a batch. The reads and writes of an acknowledged
// batch are one transaction: nothing had changed in between.
func (x *transactions) conclude(reading, writing *check.ListTransaction, o outcome) {
	switch o {
	case acked:
		x.mu.Lock()
		writing.Reads, reading.Result, writing.Call = reading.Reads, check.NotApplied, reading.Call
		x.mu.Unlock()
		x.end(writing, check.OK)
	case refused:
		x.end(writing, check.NotApplied)
	}
}

// unchanged returns the condition that a record is still of a version, or still
// missing.
func unchanged(v rhumb.Version) rhumb.Condition {
	if v.IsZero() {
		return rhumb.Condition{Kind: rhumb.IfAbsent}
	}
	return rhumb.Condition{Kind: rhumb.IfVersion, Version: v}
}

// read reads lists at one time.
func (x *transactions) read(ctx context.Context, c *caller, names []string) ([]client.Got, error) {
	// One request for all lists: the range reads them at one timestamp.
	var keys [][]byte
	for _, name := range names {
		keys = append(keys, []byte(name))
	}
	at := c.record.now()
	got, err := c.table.GetMany(ctx, keys, client.GetOptions{Home: x.e.region})
	c.record.addRead(at, err)
	return got, err
}

// check reads all lists once more, as a transaction for each group, and judges the
// history.
func (x *transactions) check(ctx context.Context) Verdict {
	last := &caller{index: callersPerWorkload, table: x.e.tables[0], client: x.e.clients[0], record: x.e.record}
	// The last group may be empty.
	groups := x.calls/groupCalls + 1
	for group := range groups {
		var names []string
		for list := range groupLists {
			names = append(names, groupListName(group, list))
		}
		final := x.begin(&check.ListTransaction{})
		var got []client.Got
		err := eventually(ctx, func() (err error) {
			got, err = x.read(ctx, last, names)
			return err
		})
		if err != nil {
			return Verdict{Operations: len(x.history), Err: errors.Join(errors.New("the lists cannot be read"), err)}
		}
		for i, name := range names {
			final.Reads = append(final.Reads, check.ListRead{List: name, Elements: elementsOf(opaque(got[i].Value))})
		}
		x.end(final, check.OK)
	}
	v := x.verdict()
	v.Text = fmt.Sprintf("%d lists", groups*groupLists)
	return v
}

// verdict judges the history.
func (x *transactions) verdict() Verdict {
	v := Verdict{Operations: len(x.history), Err: check.Lists(x.history)}
	for _, one := range x.history {
		if len(one.Appends) > 0 && one.Result == check.OK {
			v.Acknowledged++
		}
	}
	return v
}
