package check

import (
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

var testRange = rhumb.RangeID{Region: 1, Slot: 7}

// hist builds histories by hand. Times are milliseconds; a negative end means no answer.
type hist struct {
	ops []*Op
}

func version(n int) rhumb.Version {
	if n == 0 {
		return rhumb.Version{}
	}
	return rhumb.Version{HLC: rhumb.Timestamp(n), Node: 1}
}

func record(t *testing.T, fields ...any) []byte {
	t.Helper()
	var fs []rhumb.Field
	for i := 0; i < len(fields); i += 2 {
		fs = append(fs, rhumb.Field{Name: fields[i].(string), Value: rhumb.Int64Field(int64(fields[i+1].(int)))})
	}
	r, err := rhumb.NewRecord(fs...)
	if err != nil {
		t.Fatal(err)
	}
	return rhumb.EncodeRecord(nil, r)
}

func (h *hist) add(from, to int, res Result) *Op {
	op := &Op{ID: len(h.ops), Client: len(h.ops), Range: testRange, Table: 1, Call: time.Duration(from) * time.Millisecond, Return: time.Duration(to) * time.Millisecond, Result: res}
	if to < 0 {
		op.Return = Forever
	}
	op.Request = rhumb.RequestID{Client: rhumb.UUID{1}, Seq: uint64(len(h.ops) + 1)}
	h.ops = append(h.ops, op)
	return op
}

func (h *hist) write(from, to int, res Result, ver int, ms ...rhumb.Mutation) *Op {
	op := h.add(from, to, res)
	for i := range ms {
		ms[i].Table = 1
	}
	op.Mutations = ms
	if res == OK {
		op.Outcome = rhumb.Outcome{Applied: true, Version: version(ver), Seq: rhumb.Seq(ver), Existed: make([]bool, len(ms))}
	}
	return op
}

func (h *hist) read(from, to int, name string, ver int, value []byte) *Op {
	op := h.add(from, to, OK)
	op.Names, op.Items, op.At = [][]byte{[]byte(name)}, []Item{{version(ver), value}}, rhumb.Timestamp(ver)
	return op
}

func put(name string, value []byte) rhumb.Mutation {
	return rhumb.Mutation{Kind: rhumb.Put, Name: []byte(name), Value: value}
}

func TestLinearizable(t *testing.T) {
	one, two, three := record(t, "v", 1), record(t, "v", 2), record(t, "v", 3)
	for _, tc := range []struct {
		name string
		// bad is a part of the expected failure, or "" for a correct history.
		bad   string
		build func(h *hist)
	}{
		{"read after write", "", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			h.read(11, 12, "k", 5, one)
		}},
		{"stale read", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			h.write(11, 20, OK, 6, put("k", two))
			h.read(21, 22, "k", 5, one)
		}},
		{"concurrent reads may differ once", "", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			h.write(11, 30, OK, 6, put("k", two))
			h.read(15, 16, "k", 5, one)
			h.read(17, 18, "k", 6, two)
		}},
		{"reads go back", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			h.write(11, 30, OK, 6, put("k", two))
			h.read(15, 16, "k", 6, two)
			h.read(17, 18, "k", 5, one)
		}},
		{"lost write", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			h.read(11, 12, "k", 0, nil)
		}},
		{"unknown write seen late", "", func(h *hist) {
			h.write(0, -1, Unknown, 0, put("k", one))
			h.read(11, 12, "k", 0, nil)
			h.read(500, 501, "k", 9, one)
		}},
		{"unknown write seen, then gone", "not linearizable", func(h *hist) {
			h.write(0, -1, Unknown, 0, put("k", one))
			h.read(11, 12, "k", 9, one)
			h.read(13, 14, "k", 0, nil)
		}},
		{"unknown write applied twice", "not linearizable", func(h *hist) {
			h.write(0, -1, Unknown, 0, put("k", one))
			h.read(11, 12, "k", 9, one)
			h.write(13, 14, OK, 10, put("k", two))
			h.read(15, 16, "k", 9, one)
		}},
		{"value with a wrong version", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			h.read(11, 12, "k", 6, one)
		}},
		{"refused write has no effect", "not linearizable", func(h *hist) {
			h.write(0, 10, NotApplied, 0, put("k", one))
			h.read(11, 12, "k", 5, one)
		}},
		{"both if-absent writes succeed", "not linearizable", func(h *hist) {
			a, b := put("k", one), put("k", two)
			a.Cond.Kind, b.Cond.Kind = rhumb.IfAbsent, rhumb.IfAbsent
			h.write(0, 10, OK, 5, a)
			h.write(0, 10, OK, 6, b)
		}},
		{"one if-absent write fails", "", func(h *hist) {
			a, b := put("k", one), put("k", two)
			a.Cond.Kind, b.Cond.Kind = rhumb.IfAbsent, rhumb.IfAbsent
			h.write(0, 10, OK, 5, a)
			h.write(0, 10, ConditionFailed, 0, b)
		}},
		{"if-version on an old version", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			h.write(11, 20, OK, 6, put("k", two))
			c := put("k", three)
			c.Cond = rhumb.Condition{Kind: rhumb.IfVersion, Version: version(5)}
			h.write(21, 30, OK, 7, c).Outcome.Existed = []bool{true}
		}},
		{"if-version fails though it holds", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			c := put("k", three)
			c.Cond = rhumb.Condition{Kind: rhumb.IfVersion, Version: version(5)}
			h.write(21, 30, ConditionFailed, 0, c)
		}},
		{"if-version on a version that is not known", "", func(h *hist) {
			h.write(0, -1, Unknown, 0, put("k", one))
			c := put("k", three)
			c.Cond = rhumb.Condition{Kind: rhumb.IfVersion, Version: version(5)}
			h.write(21, 30, OK, 7, c).Outcome.Existed = []bool{true}
			h.read(31, 32, "k", 7, three)
		}},
		{"patch keeps other fields", "", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", record(t, "a", 1, "b", 1)))
			h.write(11, 20, OK, 6, rhumb.Mutation{Kind: rhumb.Patch, Name: []byte("k"), Value: record(t, "b", 2)}).Outcome.Existed = []bool{true}
			h.read(21, 22, "k", 6, record(t, "a", 1, "b", 2))
		}},
		{"lost update by a patch", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", record(t, "a", 1, "b", 1)))
			h.write(11, 20, OK, 6, rhumb.Mutation{Kind: rhumb.Patch, Name: []byte("k"), Value: record(t, "b", 2)}).Outcome.Existed = []bool{true}
			h.write(11, 20, OK, 7, rhumb.Mutation{Kind: rhumb.Patch, Name: []byte("k"), Value: record(t, "a", 2)}).Outcome.Existed = []bool{true}
			h.read(21, 22, "k", 7, record(t, "a", 2, "b", 1))
		}},
		{"patch says that the key did not exist", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", record(t, "a", 1)))
			h.write(11, 20, OK, 6, rhumb.Mutation{Kind: rhumb.Patch, Name: []byte("k"), Value: record(t, "b", 2)})
		}},
		{"if-newer ignores what is older", "", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", record(t, "s", 4)))
			m := rhumb.Mutation{Kind: rhumb.Patch, Name: []byte("k"), Value: record(t, "s", 4), Cond: rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{"s"}}}
			h.write(11, 20, Unchanged, 0, m)
		}},
		{"if-newer applied twice", "not linearizable", func(h *hist) {
			m := rhumb.Mutation{Kind: rhumb.Patch, Name: []byte("k"), Value: record(t, "s", 4), Cond: rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{"s"}}}
			h.write(0, 10, OK, 5, m)
			h.write(11, 20, OK, 6, m).Outcome.Existed = []bool{true}
		}},
		{"deleted and gone", "", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			h.write(11, 20, OK, 6, rhumb.Mutation{Kind: rhumb.Delete, Name: []byte("k")})
			h.read(21, 22, "k", 0, nil)
		}},
		{"deleted and back", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			h.write(11, 20, OK, 6, rhumb.Mutation{Kind: rhumb.Delete, Name: []byte("k")})
			h.read(21, 22, "k", 5, one)
		}},
		{"deleted, and read as an empty record", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			h.write(11, 20, OK, 6, rhumb.Mutation{Kind: rhumb.Delete, Name: []byte("k")})
			h.read(21, 22, "k", 6, nil)
		}},
		{"a version that changes without a write", "not linearizable", func(h *hist) {
			h.write(0, -1, Unknown, 0, put("k", one))
			h.read(11, 12, "k", 9, one)
			h.read(13, 14, "k", 10, one)
		}},
		{"unknown write seen although its condition never held", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			c := put("k", two)
			c.Cond.Kind = rhumb.IfAbsent
			h.write(11, -1, Unknown, 0, c)
			h.read(21, 22, "k", 9, two)
		}},
		{"a later write has an older version", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 6, put("k", one))
			h.write(11, 20, OK, 5, put("k", two))
		}},
		{"a later write has the same version", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 6, put("k", one))
			h.write(11, 20, OK, 6, put("k", two))
		}},
		{"if-absent on a key that exists", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			c := put("k", two)
			c.Cond.Kind = rhumb.IfAbsent
			h.write(11, 20, OK, 6, c).Outcome.Existed = []bool{true}
		}},
		{"if-present on a key that does not exist", "not linearizable", func(h *hist) {
			c := put("k", one)
			c.Cond.Kind = rhumb.IfPresent
			h.write(0, 10, OK, 5, c)
		}},
		{"if-version on a key that was deleted", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", one))
			h.write(11, 20, OK, 6, rhumb.Mutation{Kind: rhumb.Delete, Name: []byte("k")})
			c := put("k", two)
			c.Cond = rhumb.Condition{Kind: rhumb.IfVersion, Version: version(5)}
			h.write(21, 30, OK, 7, c)
		}},
		{"if-newer on what is older", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", record(t, "s", 4)))
			m := rhumb.Mutation{Kind: rhumb.Patch, Name: []byte("k"), Value: record(t, "s", 3), Cond: rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{"s"}}}
			h.write(11, 20, OK, 6, m).Outcome.Existed = []bool{true}
		}},
		{"if-newer on what cannot be compared", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", []byte("no record")))
			m := put("k", record(t, "s", 4))
			m.Cond = rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{"s"}}
			h.write(11, 20, OK, 6, m).Outcome.Existed = []bool{true}
		}},
		{"patch of what is no record", "not linearizable", func(h *hist) {
			h.write(0, 10, OK, 5, put("k", []byte("no record")))
			h.write(11, 20, OK, 6, rhumb.Mutation{Kind: rhumb.Patch, Name: []byte("k"), Value: record(t, "b", 2)}).Outcome.Existed = []bool{true}
		}},
		{"batch with a failed condition elsewhere", "", func(h *hist) {
			a, b := put("a", one), put("b", one)
			b.Cond.Kind = rhumb.IfPresent
			h.write(0, 10, ConditionFailed, 0, a, b)
			h.read(11, 12, "a", 0, nil)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var h hist
			tc.build(&h)
			wantErr(t, Linearizable(h.ops), tc.bad)
		})
	}
}

func wantErr(t *testing.T, err error, part string) {
	t.Helper()
	switch {
	case part == "" && err != nil:
		t.Fatalf("a good history is refused: %v", err)
	case part != "" && err == nil:
		t.Fatalf("a bad history passes; want %q", part)
	case part != "" && !strings.Contains(err.Error(), part):
		t.Fatalf("got %v, want %q", err, part)
	}
}

// TestUndecided checks that a history which cannot be decided in time does not pass.
func TestUndecided(t *testing.T) {
	var h hist
	var parts []part
	// Writes at the same time, and a read of what nobody wrote: every order would have to be tried.
	for i := range 30 {
		parts = append(parts, part{h.write(0, 10, Unknown, 0, put("k", record(t, "v", i))), 0})
	}
	parts = append(parts, part{h.read(11, 12, "k", 5, record(t, "v", 99)), 0})
	wantErr(t, linearizableKey(keyName{testRange, 1, "k"}, parts, time.Millisecond), "undecided after 1ms")
}

// TestReportEndsAtTheFault checks that the report of a broken history ends at the operation that
// cannot be explained.
func TestReportEndsAtTheFault(t *testing.T) {
	var h hist
	for i := 1; i <= 40; i++ {
		h.write(i*10, i*10+5, OK, i, put("k", record(t, "v", i)))
	}
	bad := h.read(200, 201, "k", 3, record(t, "v", 3))
	err := Linearizable(h.ops)
	wantErr(t, err, bad.String())
	if late := h.ops[30].String(); strings.Contains(err.Error(), late) {
		t.Errorf("the report shows %q, which came later:\n%v", late, err)
	}
}
