package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// ListTransaction is a transaction on lists that first reads some of them and then
// appends to some, all at one moment between Call and Return.
type ListTransaction struct {
	// ID identifies the transaction in reports.
	ID int
	// Call and Return bound the transaction in true time. Return is Forever if no
	// answer came.
	Call, Return time.Duration
	// Result is OK, NotApplied, or Unknown. The reads count only if the transaction
	// is OK.
	Result Result
	// Reads are the lists that it read, with all of their elements, and Appends the
	// elements that it added.
	Reads   []ListRead
	Appends []ListAppend
}

// ListRead is a list as a transaction read it.
type ListRead struct {
	List     string
	Elements []string
}

// ListAppend is an element that a transaction added to the end of a list. Nobody
// else appends the same element to the list.
type ListAppend struct{ List, Element string }

// String names the transaction and the time in which it happened.
func (t *ListTransaction) String() string {
	if t.Return == Forever {
		return fmt.Sprintf("T%d (from %v)", t.ID, t.Call)
	}
	return fmt.Sprintf("T%d (%v to %v)", t.ID, t.Call, t.Return)
}

// Lists returns an error unless the transactions are strictly serializable: they
// could have happened one after the other, each between its call and its answer. It
// searches cycles of dependencies, as Elle does for list-append (Alvaro and
// Kingsbury, VLDB 2020): a list shows the order of all appends to it, so that the
// dependencies follow from the reads, and no search over orders is needed.
//
// Rhumb promises this for transactions within one range. Transactions on several
// ranges do not exist.
//
// The check is complete if a transaction at the end reads every list.
func Lists(history []*ListTransaction) error {
	h := listHistory{
		transactions: history,
		orders:       map[string][]string{}, writers: map[ListAppend]int{},
		graph: make(dependencies, len(history)),
	}
	if err := h.collectAppends(); err != nil {
		return err
	}
	if err := h.collectOrders(); err != nil {
		return err
	}
	if err := h.refuseBadReads(); err != nil {
		return err
	}
	h.addAppends()
	h.addReads()
	h.addTime()
	if name, start, path := h.graph.cycle(); name != "" {
		label := func(n int) string { return history[n].String() }
		return fmt.Errorf("lists are not strictly serializable, %s: %s", name, explain(start, path, len(history), label))
	}
	return nil
}

// listHistory holds what follows from a history of transactions.
type listHistory struct {
	transactions []*ListTransaction
	// orders holds the longest state of each list that was read, which begins with
	// every other state.
	orders map[string][]string
	// writers is the transaction that appended an element.
	writers map[ListAppend]int
	// graph has the transactions as its first nodes, and moments of time after
	// them.
	graph dependencies
}

// collectAppends notes who appended what.
func (h *listHistory) collectAppends() error {
	for i, t := range h.transactions {
		for _, a := range t.Appends {
			if other, twice := h.writers[a]; twice {
				return fmt.Errorf("the history is wrong: %s and %s both append %s to %s", h.transactions[other], t, a.Element, a.List)
			}
			h.writers[a] = i
		}
	}
	return nil
}

// collectOrders finds the order of the elements of each list. Of two states of a
// list, one must begin with the other.
func (h *listHistory) collectOrders() error {
	readers := map[string]*ListTransaction{}
	for _, t := range h.transactions {
		if t.Result != OK {
			continue
		}
		for _, r := range t.Reads {
			shorter, longer := r.Elements, h.orders[r.List]
			if len(shorter) > len(longer) {
				shorter, longer = longer, shorter
			}
			if !slices.Equal(shorter, longer[:len(shorter)]) {
				return fmt.Errorf("incompatible order: %s read %s as %v, and %s read it as %v", t, r.List, r.Elements, readers[r.List], h.orders[r.List])
			}
			if len(r.Elements) > len(h.orders[r.List]) {
				h.orders[r.List], readers[r.List] = r.Elements, t
			}
		}
	}
	return nil
}

// refuseBadReads returns an error if a list has an element twice, one that nobody
// appended, or one of a refused transaction (G1a), if a read has an element that
// the same transaction appends later, or ends in the middle of a transaction (G1b).
func (h *listHistory) refuseBadReads() error {
	for list, order := range h.orders {
		seen := map[string]bool{}
		for _, e := range order {
			writer, ok := h.writers[ListAppend{list, e}]
			switch {
			case seen[e]:
				return fmt.Errorf("%s has element %s twice: %v", list, e, order)
			case !ok:
				return fmt.Errorf("%s has element %s, which nobody appended", list, e)
			case h.transactions[writer].Result == NotApplied:
				return fmt.Errorf("G1a: %s has element %s of %s, which was refused", list, e, h.transactions[writer])
			}
			seen[e] = true
		}
	}
	for i, t := range h.transactions {
		for _, r := range t.Reads {
			if t.Result != OK || len(r.Elements) == 0 {
				continue
			}
			for _, a := range t.Appends {
				if a.List == r.List && slices.Contains(r.Elements, a.Element) {
					return fmt.Errorf("%s read %s as %v, with %s, which it itself appends later", t, r.List, r.Elements, a.Element)
				}
			}
			last := h.writers[ListAppend{r.List, r.Elements[len(r.Elements)-1]}]
			next, more := h.next(r.List, len(r.Elements))
			if more && next == last && last != i {
				return fmt.Errorf("G1b: %s read %s in the middle of %s", t, r.List, h.transactions[last])
			}
		}
	}
	return nil
}

// next returns who appended the element at a place of a list, if it was ever read.
func (h *listHistory) next(list string, place int) (writer int, ok bool) {
	order := h.orders[list]
	if place >= len(order) {
		return 0, false
	}
	return h.writers[ListAppend{list, order[place]}], true
}

// unread returns, by list, the transactions that were acknowledged and whose
// elements nobody ever read. They come after everything that was read.
func (h *listHistory) unread() map[string][]int {
	// The longest state of a list contains every element that anybody read.
	read := map[ListAppend]bool{}
	for list, order := range h.orders {
		for _, e := range order {
			read[ListAppend{list, e}] = true
		}
	}
	out := map[string][]int{}
	for i, t := range h.transactions {
		for _, a := range t.Appends {
			if t.Result == OK && !read[a] {
				out[a.List] = append(out[a.List], i)
			}
		}
	}
	return out
}

// addAppends adds the dependencies between those who appended to the same list.
func (h *listHistory) addAppends() {
	unread := h.unread()
	for list, order := range h.orders {
		for place := 1; place < len(order); place++ {
			from, _ := h.next(list, place-1)
			to, _ := h.next(list, place)
			h.graph.add(from, to, writeWrite, fmt.Sprintf("appended to %s before", list))
		}
		// Without an element that was read, nothing is known about the order.
		if len(order) == 0 {
			continue
		}
		last, _ := h.next(list, len(order)-1)
		for _, to := range unread[list] {
			h.graph.add(last, to, writeWrite, fmt.Sprintf("appended to %s before", list))
		}
	}
}

// addReads adds the dependencies between those who read a list and those who
// appended to it.
func (h *listHistory) addReads() {
	unread := h.unread()
	for i, t := range h.transactions {
		if t.Result != OK {
			continue
		}
		for _, r := range t.Reads {
			if place := len(r.Elements) - 1; place >= 0 {
				from, _ := h.next(r.List, place)
				h.graph.add(from, i, writeRead, fmt.Sprintf("appended to %s what was read by", r.List))
			}
			missed := fmt.Sprintf("read %s without the append of", r.List)
			if to, ok := h.next(r.List, len(r.Elements)); ok {
				h.graph.add(i, to, readWrite, missed)
				continue
			}
			for _, to := range unread[r.List] {
				h.graph.add(i, to, readWrite, missed)
			}
		}
	}
}

// addTime adds the order in real time. Each answer is a moment, moments follow each
// other, and a transaction follows the last moment before its call: that needs as
// many dependencies as there are transactions, and not the square of them.
func (h *listHistory) addTime() {
	var ended []int
	for i, t := range h.transactions {
		if t.Return != Forever && t.Result == OK {
			ended = append(ended, i)
		}
	}
	slices.SortFunc(ended, func(a, b int) int { return cmp.Compare(h.transactions[a].Return, h.transactions[b].Return) })
	// Moments are numbered after the transactions.
	first := len(h.graph)
	h.graph = append(h.graph, make(dependencies, len(ended))...)
	for k, i := range ended {
		h.graph.add(i, first+k, realTime, "")
		if k > 0 {
			h.graph.add(first+k-1, first+k, realTime, "")
		}
	}
	for i, t := range h.transactions {
		// The first answer that did not come before the call.
		k, _ := slices.BinarySearchFunc(ended, t.Call, func(e int, call time.Duration) int { return cmp.Compare(h.transactions[e].Return, call) })
		if k > 0 && t.Result != NotApplied {
			h.graph.add(first+k-1, i, realTime, "")
		}
	}
}
