package local

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// tries holds the outcome of each value that callers tried to write.
type tries struct {
	mu       sync.Mutex // guards the fields below
	outcomes map[string]outcome
	ops      int
}

// set records a try. It is unknown until it is answered.
func (t *tries) set(value string, o outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Each try is set twice, before the call and with its answer, and counts once.
	if _, known := t.outcomes[value]; !known {
		t.ops++
	}
	t.outcomes[value] = o
}

// judge returns an error unless found holds each acknowledged value once, no
// refused one, and none that nobody wrote.
func (t *tries) judge(found map[string][]rhumb.Item) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	lost, first := 0, ""
	for value, o := range t.outcomes {
		// A value of unknown outcome may be there once or not at all.
		switch items := found[value]; {
		case o == acked && len(items) == 0:
			lost, first = lost+1, value
		case o == refused && len(items) > 0:
			return fmt.Errorf("%s was refused, and is there as %s", value, items[0].Key)
		case len(items) > 1:
			return fmt.Errorf("%s is there %d times, as %s of version %v and %s of version %v", value, len(items),
				items[0].Key, items[0].Version, items[1].Key, items[1].Version)
		}
	}
	if lost > 0 {
		return fmt.Errorf("%d acknowledged values are lost, %s among them", lost, first)
	}
	for value := range found {
		if _, ok := t.outcomes[value]; !ok {
			return fmt.Errorf("%s is there, and nobody wrote it", value)
		}
	}
	return nil
}

// count counts the outcomes.
func (t *tries) count() map[outcome]int {
	n := map[outcome]int{}
	for o := range maps.Values(t.outcomes) {
		n[o]++
	}
	return n
}

// generationNames is the number of names after which the workload set begins to use
// names with another prefix. A scan reads the names of the present prefix, and
// would otherwise read ever more.
const generationNames = 2000

// set is the workload that adds names, and scans them meanwhile.
type set struct {
	e *env
	tries
	scanErr error
	// generation is the present prefix of names, added the number of names that
	// were tried with it, and recent those that are acknowledged.
	generation, added int
	recent            map[string]bool
}

// newSet starts the workload set.
func newSet(e *env) script {
	return &set{e: e, tries: tries{outcomes: map[string]outcome{}}, recent: map[string]bool{}}
}

// scanShare is one scan for so many writes.
const scanShare = 50

// call adds a name that nobody has used, or scans.
func (s *set) call(ctx context.Context, c *caller) {
	if c.random.IntN(scanShare) == 0 {
		s.scan(ctx, c)
		return
	}
	// The prefix of a name never changes, even if the generation does meanwhile.
	prefix := s.next()
	name := prefix + c.unique()
	s.set(name, unknown)
	o := c.put(ctx, name, name, rhumb.Condition{Kind: rhumb.IfAbsent}, s.e.region)
	s.set(name, o)
	s.expect(name, prefix, o)
}

// expect notes that scans which begin later must have a name, if it was acknowledged and has the
// present prefix.
func (s *set) expect(name, prefix string, o outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o == acked && prefix == generationPrefix(s.generation) {
		s.recent[name] = true
	}
}

// generationPrefix returns the prefix of the names of a generation.
func generationPrefix(generation int) string { return fmt.Sprintf("g%d-", generation) }

// next returns the prefix of the next name.
func (s *set) next() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.added++; s.added > generationNames {
		s.generation, s.added = s.generation+1, 1
		s.recent = map[string]bool{}
	}
	return generationPrefix(s.generation)
}

// scan reads the names of the present prefix. A scan that was answered has all of
// them that were acknowledged before it began.
func (s *set) scan(ctx context.Context, c *caller) {
	// Names that are acknowledged while the scan runs may be missing from it.
	s.mu.Lock()
	prefix, want := generationPrefix(s.generation), maps.Clone(s.recent)
	s.mu.Unlock()
	at := c.record.now()
	for item, err := range c.table.Scan(ctx, client.ScanOptions{Prefix: []byte(prefix)}) {
		if err != nil {
			c.record.addRead(at, err)
			return
		}
		delete(want, opaque(item.Value))
	}
	c.record.addRead(at, nil)
	s.scanned(at, want)
}

// scanned judges a scan that was answered without the names that are left of those it had to have.
func (s *set) scanned(at time.Duration, left map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops++
	for name := range left {
		s.scanErr = fmt.Errorf("a scan that began at %v lacks %d acknowledged names, %s among them", at, len(left), name)
		return
	}
}

// check compares the tries with the names in the table.
func (s *set) check(ctx context.Context) Verdict {
	return s.verdict(ctx, s.e, s.scanErr)
}

// verdict compares the tries with the records in the table.
func (t *tries) verdict(ctx context.Context, e *env, earlier error) Verdict {
	n := t.count()
	v := Verdict{Operations: t.ops, Acknowledged: n[acked], Err: earlier}
	v.Text = fmt.Sprintf("%d acknowledged, %d refused, %d unknown", n[acked], n[refused], n[unknown])
	if v.Err != nil {
		return v
	}
	items, err := e.finalScan(ctx)
	if err != nil {
		v.Err = err
		return v
	}
	found := map[string][]rhumb.Item{}
	for _, item := range items {
		found[opaque(item.Value)] = append(found[opaque(item.Value)], item)
	}
	v.Err = t.judge(found)
	return v
}

// insert is the workload whose names the server chooses. A call that is sent again
// must not insert twice.
type insert struct {
	e *env
	tries
}

// newInsert starts the workload insert.
func newInsert(e *env) script { return &insert{e: e, tries: tries{outcomes: map[string]outcome{}}} }

// call inserts a value that nobody else writes. The value identifies the call,
// because the server chooses the name.
func (s *insert) call(ctx context.Context, c *caller) {
	value := c.unique()
	s.set(value, unknown)
	at := c.record.now()
	_, err := c.table.Insert(ctx, []byte(value), client.InsertOptions{})
	c.record.add(at, err)
	s.set(value, outcomeOf(err))
}

// check compares the tries with the values in the table. A value that is there
// twice was inserted by two attempts of one call.
func (s *insert) check(ctx context.Context) Verdict { return s.verdict(ctx, s.e, nil) }

// create is the workload in which callers of all regions create the same name.
type create struct {
	e *env

	// names has the attempts by name, and ops counts them.
	mu    sync.Mutex // guards names
	names map[string]*creation
	ops   int
}

// creation holds the attempts to create one name.
type creation struct {
	winners []winner
	values  map[string]struct{} // of all who tried
}

// winner is a creation that was acknowledged.
type winner struct {
	value string
	// home is the region and slot in which the record is.
	home string
	// began and answered bound the call.
	began, answered time.Duration
	// partial is set if a region was dead and therefore not asked whether it has
	// the name. The client says so in the receipt.
	partial bool
}

// newCreate starts the workload create.
func newCreate(e *env) script { return &create{e: e, names: map[string]*creation{}} }

// call creates the next name. Callers of all regions do so at about the same time.
func (s *create) call(ctx context.Context, c *caller) {
	// All callers count alike, so that they meet at the same names.
	value := c.unique()
	name := fmt.Sprintf("new-%d", c.count)
	s.mu.Lock()
	at := s.names[name]
	if at == nil {
		at = &creation{values: map[string]struct{}{}}
		s.names[name] = at
	}
	at.values[value] = struct{}{}
	s.ops++
	s.mu.Unlock()
	// Without a home, the caller's region gets the name, after all regions were
	// asked whether they have it.
	w := winner{value: value, began: c.record.now()}
	result, err := c.table.Put(ctx, []byte(name), []byte(value), client.PutOptions{If: rhumb.Condition{Kind: rhumb.IfAbsent}})
	c.record.add(w.began, err)
	if outcomeOf(err) != acked {
		return
	}
	w.answered, w.home, w.partial = c.record.now(), result.Key.Home.String(), len(result.Receipt.Unasked) > 0
	s.mu.Lock()
	defer s.mu.Unlock()
	at.winners = append(at.winners, w)
}

// judgeWinners returns an error if a name was created twice although the second
// creation had to be refused: in the same region, or in another one after the first
// was acknowledged. Creations in different regions at the same time do not know of
// each other, and client.Table.Duplicates finds them.
func judgeWinners(name string, winners []winner) error {
	for i, a := range winners {
		for k, b := range winners {
			switch {
			case i < k && a.home == b.home:
				return fmt.Errorf("%s was created twice in %s, as %s and %s", name, a.home, a.value, b.value)
			case a.answered < b.began && !b.partial:
				return fmt.Errorf("%s was created in %s at %v, and again in %s by a call that began at %v", name, a.home, a.answered, b.home, b.began)
			}
		}
	}
	return nil
}

// check judges the winners of each name, and reads each of them where it was
// created.
func (s *create) check(ctx context.Context) Verdict {
	v := Verdict{Operations: s.ops}
	several := 0
	for name, at := range s.names {
		v.Acknowledged += len(at.winners)
		if len(at.winners) > 1 {
			several++
		}
		if v.Err = s.checkName(ctx, name, at); v.Err != nil {
			return v
		}
	}
	v.Text = fmt.Sprintf("%d names, %d of them in several regions", len(s.names), several)
	return v
}

// checkName judges one name.
func (s *create) checkName(ctx context.Context, name string, at *creation) error {
	if err := judgeWinners(name, at.winners); err != nil {
		return err
	}
	// Each winner is read in its own region: a read without a home finds only one
	// of them.
	for _, w := range at.winners {
		text, exists, err := s.e.finalText(ctx, name, w.home)
		if err == nil {
			err = w.judge(name, text, exists)
		}
		if err != nil {
			return err
		}
	}
	// A name without a winner may be there by a call of unknown outcome.
	text, exists, err := s.e.finalText(ctx, name, "")
	if err != nil {
		return err
	}
	return at.judge(name, text, exists)
}

// judge returns an error unless the name of a winner holds its value, in the region of the winner.
func (w *winner) judge(name, text string, exists bool) error {
	switch {
	case !exists:
		return fmt.Errorf("%s was created by %s in %s and is lost", name, w.value, w.home)
	case text != w.value:
		return fmt.Errorf("%s was created by %s in %s and holds %s", name, w.value, w.home, text)
	}
	return nil
}

// judge returns an error if a name holds what nobody tried to write.
func (at *creation) judge(name, text string, exists bool) error {
	if _, tried := at.values[text]; exists && !tried {
		return fmt.Errorf("%s holds %s, which nobody wrote", name, text)
	}
	return nil
}
