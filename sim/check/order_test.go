package check

import (
	"testing"

	"github.com/rhumbdb/rhumb"
)

func TestRealTime(t *testing.T) {
	v := record(t, "v", 1)
	for _, tc := range []struct {
		name, bad string
		build     func(h *hist)
	}{
		{"writes in order", "", func(h *hist) {
			h.write(0, 10, OK, 5, put("a", v))
			h.write(11, 20, OK, 6, put("b", v))
		}},
		{"concurrent writes in any order", "", func(h *hist) {
			h.write(0, 10, OK, 6, put("a", v))
			h.write(10, 20, OK, 5, put("b", v))
		}},
		{"a later write stands before", "greater log position", func(h *hist) {
			h.write(0, 10, OK, 6, put("a", v))
			h.write(11, 20, OK, 5, put("b", v))
		}},
		{"two writes with one version", "greater log position", func(h *hist) {
			h.write(0, 10, OK, 6, put("a", v))
			h.write(11, 20, OK, 6, put("b", v))
		}},
		{"a read of another key is stale", "greater log position", func(h *hist) {
			h.write(0, 10, OK, 6, put("a", v))
			h.read(11, 20, "b", 5, v)
		}},
		{"a later read of another key is stale", "greater log position", func(h *hist) {
			h.read(0, 10, "a", 6, v)
			h.read(11, 20, "b", 5, v)
		}},
		{"the greatest position counts, not the one that ended last", "greater log position", func(h *hist) {
			h.write(0, 10, OK, 6, put("a", v))
			h.write(5, 12, OK, 5, put("b", v))
			h.read(13, 20, "b", 5, v)
		}},
		{"the greatest position counts, not the one that ended first", "greater log position", func(h *hist) {
			h.write(0, 10, OK, 5, put("a", v))
			h.write(11, 20, OK, 6, put("a", v))
			h.read(21, 30, "b", 5, v)
		}},
		{"a read at the position of a write", "", func(h *hist) {
			h.write(0, 10, OK, 6, put("a", v))
			h.read(11, 20, "a", 6, v)
			h.read(21, 30, "a", 6, v)
		}},
		{"an operation without an answer is anywhere", "", func(h *hist) {
			h.write(0, -1, Unknown, 0, put("a", v))
			h.read(11, 20, "b", 5, v)
		}},
		{"other ranges have other logs", "", func(h *hist) {
			h.write(0, 10, OK, 6, put("a", v))
			h.write(11, 20, OK, 5, put("b", v)).Range = rhumb.RangeID{Region: 1, Slot: 8}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var h hist
			tc.build(&h)
			wantErr(t, RealTime(h.ops), tc.bad)
		})
	}
}

func TestAtomic(t *testing.T) {
	v := record(t, "v", 1)
	both := func(h *hist, a, b int) {
		op := h.read(20, 21, "a", a, v)
		op.Names = append(op.Names, []byte("b"))
		op.Items = append(op.Items, Item{version(b), v})
	}
	for _, tc := range []struct {
		name, bad string
		a, b      int
	}{
		{"all of it", "", 5, 5},
		{"nothing of it", "", 3, 4},
		{"one key written again", "", 5, 6},
		{"half of it", "torn batch", 5, 4},
		{"the other half", "torn batch", 3, 5},
		{"one key written again, the other one without it", "torn batch", 6, 4},
		{"a key deleted later", "", 5, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var h hist
			h.write(0, 10, OK, 5, put("a", v), put("b", v))
			both(&h, tc.a, tc.b)
			wantErr(t, Atomic(h.ops), tc.bad)
		})
	}
}
