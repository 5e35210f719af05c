package server

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// view is the part of the catalog that one caller may see: all regions and nodes, the tables that it has any
// right to, and the classes, blocks and ranges of these tables, which requests need to find their
// way.
//
// Clients cache the metadata, so hiding a table later is not enough. The view guarantees that a
// client never receives anything about a table while it has no right to it.
type view struct {
	who access.Principal
	// policy and shown are those of the last update, shown the classes that it contained.
	policy *access.Policy
	shown  map[rhumb.ClassID]bool
}

// full returns everything that the caller may see.
func (v *view) full(st *catalog.State) *api.Metadata {
	m := wholeMetadata(st)
	v.policy = st.Access()
	subject := v.policy.Of(v.who)
	v.shown = visibleClasses(st, subject)
	v.filter(m, subject)
	return m
}

// update returns the part of an update of a watch that the caller may see. If the rights of the
// caller changed, or a table brings a class into view, that is everything.
func (v *view) update(u raftmeta.Update) *api.Metadata {
	st := u.State
	subject := st.Access().Of(v.who)
	if u.Full || v.shown == nil {
		return v.full(st)
	}
	// A right that was granted or revoked may show or hide any table.
	if v.policy != st.Access() && !subject.IsUnlimited() {
		return v.full(st)
	}
	// The class of a new table may have been hidden until now, and with it records that did not
	// change.
	for _, id := range u.Changes.Tables {
		if t, ok := st.Table(id); ok && !v.shown[t.Class] && subject.AllowsTable(t.Name) {
			return v.full(st)
		}
	}
	m := changedMetadata(st, u.Changes)
	v.filter(m, subject)
	return m
}

// visibleClasses returns the classes of the tables that a subject may see.
func visibleClasses(st *catalog.State, subject *access.Subject) map[rhumb.ClassID]bool {
	classes := map[rhumb.ClassID]bool{}
	for t := range st.Tables() {
		if subject.AllowsTable(t.Name) {
			classes[t.Class] = true
		}
	}
	return classes
}

// filter removes from m what the subject may not see.
func (v *view) filter(m *api.Metadata, subject *access.Subject) {
	// Whoever may see all tables may see everything, also classes that have no table yet.
	if subject.SeesAllTables() {
		return
	}
	m.Tables = keepIf(m.Tables, func(t rhumb.Table) bool { return subject.AllowsTable(t.Name) })
	m.Classes = keepIf(m.Classes, func(c rhumb.Class) bool { return v.shown[c.ID] })
	m.Blocks = keepIf(m.Blocks, func(b rhumb.Block) bool { return v.shown[b.Class] })
	m.Ranges = keepIf(m.Ranges, func(r *rhumb.Range) bool { return v.shown[r.Class] })
}

// keepIf returns the elements for which keep returns true. It reuses the array.
func keepIf[T any](all []T, keep func(T) bool) []T {
	kept := all[:0]
	for _, x := range all {
		if keep(x) {
			kept = append(kept, x)
		}
	}
	return kept
}
