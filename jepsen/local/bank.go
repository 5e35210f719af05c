package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// Accounts of the bank, and what each has in the beginning. All are in one range, because the part of their names before the slash is equal.
const (
	bankAccounts = 8
	bankMoney    = 100
)

// bank is the workload that moves money between accounts in batches.
type bank struct {
	e *env

	mu         sync.Mutex // guards the fields below
	ops, acked int        // calls, and acknowledged writes
	opened     bool       // somebody knows that the accounts are there
	err        error      // the first wrong answer
}

// newBank starts the workload bank.
func newBank(e *env) script { return &bank{e: e} }

// accountNames returns the names of all accounts.
func accountNames() (names [][]byte) {
	for i := range bankAccounts {
		names = append(names, fmt.Appendf(nil, "bank/%d", i))
	}
	return names
}

// accounts reads all accounts at one time. ok is false if the read was not answered or the accounts
// are not open yet. A wrong answer is kept.
func (b *bank) accounts(ctx context.Context, c *caller) (money [bankAccounts]int, versions [bankAccounts]rhumb.Version, ok bool) {
	// Taken before the read begins: it must show the accounts if they were open by then.
	b.mu.Lock()
	opened := b.opened
	b.mu.Unlock()
	at := c.record.now()
	got, err := c.table.GetMany(ctx, accountNames(), client.GetOptions{Home: b.e.region})
	c.record.addRead(at, err)
	if err != nil {
		return money, versions, false
	}
	return b.saw(got, opened)
}

// saw judges a read that was answered. opened is set if the accounts were known to be open when it
// began.
func (b *bank) saw(got []client.Got, opened bool) (money [bankAccounts]int, versions [bankAccounts]rhumb.Version, ok bool) {
	money, versions, ok, err := judgeAccounts(got, opened)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened = b.opened || ok
	if b.err == nil {
		b.err = err
	}
	return money, versions, ok
}

// judgeAccounts returns the contents of all accounts. ok is false if they are not there. One batch
// opens them all and nobody closes one, so a read that shows some of them is wrong, and so is one
// that shows none after they were opened.
func judgeAccounts(got []client.Got, opened bool) (money [bankAccounts]int, versions [bankAccounts]rhumb.Version, ok bool, err error) {
	there := 0
	for i, g := range got {
		if g.Exists() {
			there++
			money[i], _ = strconv.Atoi(opaque(g.Value))
			versions[i] = g.Version
		}
	}
	switch {
	case there == bankAccounts:
		return money, versions, true, sumOf(money)
	case there > 0 || opened:
		err = fmt.Errorf("a read shows %d of %d accounts", there, bankAccounts)
	}
	return money, versions, false, err
}

// write writes amounts into accounts in one batch.
func (b *bank) write(ctx context.Context, c *caller, amounts map[int]int, conds map[int]rhumb.Condition) {
	var batch []rhumb.Mutation
	for i, name := range accountNames() {
		if amount, ok := amounts[i]; ok {
			batch = append(batch, rhumb.Mutation{
				Kind: rhumb.Put, Table: c.table.Info().ID, Name: name, Cond: conds[i], Value: rhumb.EncodeOpaque(nil, []byte(strconv.Itoa(amount))),
			})
		}
	}
	at := c.record.now()
	_, err := c.client.Batch(ctx, batch, client.BatchOptions{Home: b.e.region})
	c.record.add(at, err)
	if err == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.acked++
		b.opened = true
	}
}

// call moves money from one account to another, on the condition that neither has changed since all were read. The first calls open
// the accounts.
func (b *bank) call(ctx context.Context, c *caller) {
	b.mu.Lock()
	b.ops++
	b.mu.Unlock()
	money, versions, ok := b.accounts(ctx, c)
	if !ok {
		// Nobody has opened the accounts, or nobody knows: the condition decides.
		amounts, conds := map[int]int{}, map[int]rhumb.Condition{}
		for i := range bankAccounts {
			amounts[i], conds[i] = bankMoney, rhumb.Condition{Kind: rhumb.IfAbsent}
		}
		b.write(ctx, c, amounts, conds)
		return
	}
	from, to := c.random.IntN(bankAccounts), c.random.IntN(bankAccounts)
	if from == to || money[from] == 0 {
		return
	}
	amount := 1 + c.random.IntN(money[from])
	b.write(ctx, c, map[int]int{from: money[from] - amount, to: money[to] + amount}, map[int]rhumb.Condition{
		from: {Kind: rhumb.IfVersion, Version: versions[from]}, to: {Kind: rhumb.IfVersion, Version: versions[to]},
	})
}

// sumOf returns an error unless the accounts hold all the money together, and none has debts.
func sumOf(money [bankAccounts]int) error {
	sum := 0
	for _, m := range money {
		if m < 0 {
			return fmt.Errorf("an account has debts: %v", money)
		}
		sum += m
	}
	if sum != bankAccounts*bankMoney {
		return fmt.Errorf("the accounts hold %d, not %d: %v", sum, bankAccounts*bankMoney, money)
	}
	return nil
}

// check reads all accounts once more, when no fault and no caller is left.
func (b *bank) check(ctx context.Context) Verdict {
	v := Verdict{Operations: b.ops, Acknowledged: b.acked, Err: b.err}
	if v.Err != nil {
		return v
	}
	last := &caller{index: callersPerWorkload, table: b.e.tables[0], client: b.e.clients[0], record: b.e.record}
	v.Err = eventually(ctx, func() error {
		if _, _, ok := b.accounts(ctx, last); !ok {
			return fmt.Errorf("the accounts cannot be read")
		}
		return nil
	})
	// A wrong answer stays wrong, whatever a later one says.
	v.Err = errors.Join(b.err, v.Err)
	return v
}

// batchKeys is the number of keys of a batch.
const batchKeys = 4

// batches is the workload that writes the same value to several keys at once.
type batches struct {
	e *env

	mu         sync.Mutex // guards the fields below
	last       map[int]int
	ops, acked int // calls, and acknowledged batches
	err        error
}

// newBatch starts the workload batch.
func newBatch(e *env) script { return &batches{e: e, last: map[int]int{}} }

// batchNames returns the keys that one caller writes together.
func batchNames(index int) (names [][]byte) {
	for i := range batchKeys {
		names = append(names, fmt.Appendf(nil, "b%d/%d", index, i))
	}
	return names
}

// call writes the keys of the caller, or reads those of anyone.
func (b *batches) call(ctx context.Context, c *caller) {
	b.mu.Lock()
	b.ops++
	b.mu.Unlock()
	if c.random.IntN(2) == 0 {
		index := c.random.IntN(callersPerWorkload)
		b.mu.Lock()
		least := b.last[index]
		b.mu.Unlock()
		_ = b.read(ctx, c, index, least)
		return
	}
	c.count++
	var batch []rhumb.Mutation
	for _, name := range batchNames(c.index) {
		batch = append(batch, rhumb.Mutation{Kind: rhumb.Put, Table: c.table.Info().ID, Name: name, Value: rhumb.EncodeOpaque(nil, []byte(strconv.Itoa(c.count)))})
	}
	at := c.record.now()
	_, err := c.client.Batch(ctx, batch, client.BatchOptions{Home: b.e.region})
	c.record.add(at, err)
	if err == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.last[c.index] = c.count
		b.acked++
	}
}

// read reads the keys of a caller, and returns an error if it was not answered. A wrong answer is
// kept.
func (b *batches) read(ctx context.Context, c *caller, index, least int) error {
	at := c.record.now()
	got, err := c.table.GetMany(ctx, batchNames(index), client.GetOptions{Home: b.e.region})
	c.record.addRead(at, err)
	if err != nil {
		return err
	}
	var values []int
	for _, g := range got {
		n, _ := strconv.Atoi(opaque(g.Value))
		values = append(values, n)
	}
	b.saw(index, at, values, least)
	return nil
}

// saw judges a read that was answered.
func (b *batches) saw(index int, at time.Duration, values []int, least int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := judgeBatch(values, least); err != nil && b.err == nil {
		b.err = fmt.Errorf("a read of batch %d at %v %w", index, at, err)
	}
}

// judgeBatch returns an error unless a read shows all keys of one batch, and none older than the
// last one that was acknowledged before.
func judgeBatch(values []int, least int) error {
	if len(values) != batchKeys || slices.Min(values) != slices.Max(values) || values[0] < least {
		return fmt.Errorf("returned %v; %d was acknowledged before", values, least)
	}
	return nil
}

// check reads the keys of each caller once more.
func (b *batches) check(ctx context.Context) Verdict {
	v := Verdict{Operations: b.ops, Acknowledged: b.acked, Err: b.err}
	if v.Err != nil {
		return v
	}
	last := &caller{index: callersPerWorkload, table: b.e.tables[0], client: b.e.clients[0], record: b.e.record}
	for index := range callersPerWorkload {
		// Only a read that was not answered is repeated: a wrong answer stays wrong, whatever a
		// later one says.
		err := eventually(ctx, func() error { return b.read(ctx, last, index, b.last[index]) })
		if v.Err = errors.Join(b.err, err); v.Err != nil {
			break
		}
	}
	return v
}
