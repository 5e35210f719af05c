package ingest

import (
	"context"
	"sync"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// memory is a Writer with the semantics of tables in memory, which fails on demand.
type memory struct {
	mu      sync.Mutex
	rows    map[string][]byte // by table and name
	writes  int               // batches applied
	tries   int
	inside  map[string]bool // records with a batch in flight
	overlap bool            // two batches of one record were in flight at the same time
	// fail is called before an attempt. A non-nil error is returned, after the batch was applied if
	// lost is true.
	fail func(try int, m []rhumb.Mutation) (err error, lost bool)
}

func newMemory() *memory { return &memory{rows: map[string][]byte{}, inside: map[string]bool{}} }

func rowKey(table rhumb.TableID, name []byte) string { return table.String() + " " + string(name) }

func (w *memory) Write(_ context.Context, mutations []rhumb.Mutation) (bool, error) {
	key := rowKey(mutations[0].Table, mutations[0].Name)
	w.enter(key)
	defer w.leave(key)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tries++
	if w.fail != nil {
		if err, lost := w.fail(w.tries, mutations); err != nil {
			if lost {
				_, _ = w.applyLocked(mutations)
			}
			return false, err
		}
	}
	return w.applyLocked(mutations)
}

func (w *memory) enter(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.overlap = w.overlap || w.inside[key]
	w.inside[key] = true
}

func (w *memory) leave(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.inside, key)
}

func (w *memory) applyLocked(mutations []rhumb.Mutation) (bool, error) {
	batch := rhumb.Batch{Mutations: mutations}
	if err := batch.Validate(); err != nil {
		return false, err
	}
	for _, m := range mutations {
		if m.Cond.Kind != rhumb.IfNewer {
			continue
		}
		has, wants := orderOf(w.rows[rowKey(m.Table, m.Name)], m.Cond.Fields), orderOf(m.Value, m.Cond.Fields)
		if has != nil && compareOrder(wants, has) <= 0 {
			return false, nil
		}
	}
	for _, m := range mutations {
		key, value := rowKey(m.Table, m.Name), m.Value
		if m.Kind == rhumb.Patch {
			merged, err := rhumb.MergeRecord(nil, w.rows[key], m.Value)
			if err != nil {
				return false, err
			}
			value = merged
		}
		w.rows[key] = value
	}
	w.writes++
	return true, nil
}

func (w *memory) Read(_ context.Context, table rhumb.TableID, name []byte) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	value, ok := w.rows[rowKey(table, name)]
	if !ok {
		return nil, rhumb.ErrNotFound
	}
	return value, nil
}

// row describes a stored row.
func (w *memory) row(t *testing.T, table rhumb.TableID, name string) rhumb.Record {
	t.Helper()
	value, err := w.Read(t.Context(), table, []byte(name))
	if err != nil {
		t.Fatalf("table %s holds no row %q", table, name)
	}
	record, err := rhumb.DecodeRecord(value)
	if err != nil {
		t.Fatal(err)
	}
	return record
}

// count returns the number of rows of a table.
func (w *memory) count(table rhumb.TableID) (n int) {
	prefix := table.String() + " "
	for key := range w.rows {
		if key[:len(prefix)] == prefix {
			n++
		}
	}
	return n
}

// builtinTables returns the tables that a mapping needs, numbered from 1 in the order of its rows.
func builtinTables(m *Mapping) (tables []rhumb.Table) {
	for i, name := range m.Tables() {
		t := rhumb.Table{ID: rhumb.TableID(i + 1), Name: name, Class: 1, TableOptions: rhumb.TableOptions{LocationField: rhumb.LocationFieldDefault}}
		if len(m.Rows) > 1 {
			t.Colocate = '/'
		}
		tables = append(tables, t)
	}
	return tables
}

func builtinMapping(t testing.TB, name string) *Mapping {
	t.Helper()
	text, ok := BuiltinMapping(name)
	if !ok {
		t.Fatalf("no built-in mapping %q", name)
	}
	m, err := ParseMapping(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
