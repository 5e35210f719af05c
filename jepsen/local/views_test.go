package local

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// TestViewJudge guards the check of views with planted faults: each of the broken ones must be found, and nothing else.
func TestViewJudge(t *testing.T) {
	home, other := rhumb.RangeID{Region: 1, Slot: 5}, rhumb.RangeID{Region: 1, Slot: 9}
	// view returns a newest view at a version in which the range home is followed until a time.
	view := func(version uint64, until rhumb.Timestamp, records ...sharedRecord) sharedView {
		return sharedView{Image: "one", Version: version, Positions: []sharedPosition{{other, 1000}, {home, until}}, Records: records}
	}
	cut := func(version uint64, closed rhumb.Timestamp, records ...sharedRecord) sharedView {
		return sharedView{Image: "one", Version: version, Closed: closed, Positions: []sharedPosition{{home, 1000}}, Records: records}
	}
	// foreign is a cut of a node that does not have the range.
	foreign := sharedView{Image: "one", Version: 1, Closed: 5}
	// One key: 1, 2 and 4 were acknowledged at 10, 20 and 40; 3 has an unknown outcome, and 5 was sent.
	one, two, three, four := sharedRecord{"k", "1", 10}, sharedRecord{"k", "2", 20}, sharedRecord{"k", "3", 30}, sharedRecord{"k", "4", 40}
	rebuilt := view(1, 20, two)
	rebuilt.Image = "two"
	for _, tt := range []struct {
		name  string
		views []sharedView
		want  string // part of the error of the last view; empty means valid
	}{
		{"nothing written yet", []sharedView{view(1, 5)}, ""},
		{"at the first write", []sharedView{view(1, 10, one)}, ""},
		{"between two writes", []sharedView{view(1, 19, one)}, ""},
		{"one after the other", []sharedView{view(1, 10, one), view(2, 25, two), view(3, 45, four)}, ""},
		{"a write of unknown outcome", []sharedView{view(1, 35, three)}, ""},
		{"the last try, which is not answered", []sharedView{view(1, 50, sharedRecord{"k", "5", 50})}, ""},
		{"a range that the image does not follow", []sharedView{{Image: "one", Version: 1}}, ""},
		{"a closed cut", []sharedView{cut(1, 5), cut(2, 20, two)}, ""},
		{"a cut without the range", []sharedView{foreign, {Image: "one", Version: 2, Closed: 50}}, ""},
		{"a range that came to the node is part of the next cut", []sharedView{foreign, cut(2, 20)}, ""},
		{"a rebuilt image is behind", []sharedView{view(9, 45, four), rebuilt}, ""},
		{"the newest and the closed view take turns", []sharedView{view(3, 45, four), cut(3, 20, two), view(4, 46, four)}, ""},
		{"lost", []sharedView{view(1, 10)}, "1 was written"},
		{"behind its position", []sharedView{view(1, 25, one)}, "2 was written"},
		{"ahead of its position", []sharedView{view(1, 10, two)}, "after the position"},
		{"behind its closed timestamp", []sharedView{cut(1, 5), cut(2, 40, three)}, "4 was written"},
		{"ahead of its closed timestamp", []sharedView{cut(1, 5), cut(2, 19, two)}, "after the position"},
		{"the time of another write", []sharedView{view(1, 20, sharedRecord{"k", "2", 19})}, "which was written at"},
		{"never sent", []sharedView{view(1, 60, sharedRecord{"k", "6", 60})}, "5 was the last try"},
		{"from nobody", []sharedView{view(1, 5, sharedRecord{"x", "1", 5})}, "0 was the last try"},
		{"an older version", []sharedView{view(2, 20, two), view(1, 20, two)}, "went back from version 2 to 1"},
		{"an older record in a newer version", []sharedView{view(1, 35, three), view(2, 29, two)}, "k went back from 3"},
		{"a record that is gone", []sharedView{view(1, 5), view(2, 10, one), view(3, 9)}, "k went back from 1"},
		{"the range left the node", []sharedView{view(2, 10, one), {Image: "one", Version: 3}}, ""},
		{"an older cut", []sharedView{cut(2, 20, two), cut(3, 19, one)}, "it went back from version"},
		{"a number that was never sent", []sharedView{view(1, 5, sharedRecord{"k", "0", 5})}, "5 was the last try"},
		{"no number", []sharedView{view(1, 5, sharedRecord{"k", "", 5})}, "5 was the last try"},
	} {
		judgeViews(t, tt.name, []viewWrite{{1, 10, home}, {2, 20, home}, {4, 40, home}}, tt.views, tt.want)
	}
	// After 4 the range was split, and 5 was acknowledged by its other part at 60.
	part := rhumb.RangeID{Region: 1, Slot: 7}
	parts := func(version uint64, until, untilPart rhumb.Timestamp, records ...sharedRecord) sharedView {
		return sharedView{Image: "one", Version: version, Positions: []sharedPosition{{home, until}, {part, untilPart}}, Records: records}
	}
	for _, tt := range []struct {
		name  string
		views []sharedView
		want  string
	}{
		{"the other part of a split is not in the image yet", []sharedView{view(1, 45, four), view(2, 50)}, ""},
		{"the other part of a split is ahead", []sharedView{view(1, 20, two), parts(2, 30, 50, four)}, ""},
		{"the other part of a split lacks a record", []sharedView{view(1, 20, two), parts(2, 45, 45, two)}, "4 was written"},
		{"the other part of a split has lost a record", []sharedView{view(1, 45, four), parts(2, 45, 39)}, "k went back from 4"},
		{"ahead of both parts of a split", []sharedView{view(1, 20, two), parts(2, 30, 39, four)}, "after the position"},
	} {
		judgeViews(t, tt.name, []viewWrite{{1, 10, home}, {2, 20, home}, {4, 40, home}, {5, 60, part}}, tt.views, tt.want)
	}
}

// judgeViews shows views to a judge that knows some acknowledged writes of a key. The last view must be judged as wanted.
func judgeViews(t *testing.T, name string, writes []viewWrite, views []sharedView, want string) {
	t.Helper()
	j := newViewJudge()
	j.try("k", 5)
	for _, w := range writes {
		j.ack("k", w)
	}
	for i, v := range views {
		err := j.see("eu-1", v)
		if last := i == len(views)-1; (err == nil) != (!last || want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s, view %d: %v, want %q", name, i+1, err, want)
		}
	}
}

// TestViewsVerdict guards that all views are judged at the end, and that a run without a closed cut
// is not valid.
func TestViewsVerdict(t *testing.T) {
	in := rhumb.RangeID{Region: 1, Slot: 5}
	newest := sharedView{Image: "one", Version: 1, Positions: []sharedPosition{{in, 20}}, Records: []sharedRecord{{"k", "1", 10}}}
	closed, lost := newest, newest
	closed.Closed, lost.Records = 20, nil
	for _, tt := range []struct {
		name  string
		views []sharedView
		want  string // part of the error; empty means valid
	}{
		{"views with a closed cut", []sharedView{newest, closed}, ""},
		{"no closed cut", []sharedView{newest}, "no closed cut was seen"},
		{"no view", nil, "no closed cut was seen"},
		{"a view without a record", []sharedView{closed, lost}, "1 was written"},
		{"a view without a record, before others that have it", []sharedView{lost, newest, closed}, "1 was written"},
	} {
		v := &views{e: &env{record: newRecord()}, judge: newViewJudge(), stop: func() {}}
		v.judge.try("k", 1)
		v.judge.ack("k", viewWrite{1, 10, in})
		for _, view := range tt.views {
			line, err := json.Marshal(sharedLine{View: &view})
			if err != nil {
				t.Fatal(err)
			}
			v.add("eu-1", line)
		}
		verdict := v.check(t.Context())
		if err := verdict.Err; (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) || verdict.Operations != len(tt.views) {
			t.Errorf("%s: %+v, want %q", tt.name, verdict, tt.want)
		}
	}
}

// TestReaderEnds guards that a reader which ends with an error that no fault excuses makes the workload not valid.
func TestReaderEnds(t *testing.T) {
	for _, tt := range []struct {
		kind     rhumb.Kind
		previous bool
		valid    bool
	}{
		{rhumb.NotFound, false, true},
		{rhumb.Unavailable, false, true},
		{rhumb.Expired, false, true},
		{rhumb.Corrupt, false, false},
		{rhumb.Internal, false, false},
		{rhumb.Incompatible, false, false},
		{rhumb.Overloaded, false, false},
		{rhumb.Other, false, false},
		{rhumb.Incompatible, true, true},
	} {
		v := &views{e: &env{record: newRecord(), previous: tt.previous}, judge: newViewJudge()}
		line, err := json.Marshal(sharedLine{End: &sharedEnd{tt.kind, "the reason"}})
		if err != nil {
			t.Fatal(err)
		}
		v.add("eu-1", line)
		if (v.err == nil) != tt.valid || v.err != nil && !strings.Contains(v.err.Error(), "the reason") || len(v.queue) > 0 {
			t.Errorf("%v, previous release %v: %v, %d views", tt.kind, tt.previous, v.err, len(v.queue))
		}
	}
}

// TestFollowViewsEnd guards that a reader prints the kind of the error with which it ends.
func TestFollowViewsEnd(t *testing.T) {
	missing, damaged := t.TempDir(), t.TempDir()
	image := filepath.Join(damaged, "cluster", "1")
	if err := os.MkdirAll(image, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(image, format.RootName), make([]byte, format.RootSize), 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]rhumb.Kind{missing: rhumb.NotFound, damaged: rhumb.Corrupt} {
		var out bytes.Buffer
		err := FollowViews(t.Context(), dir, "views", &out)
		var line sharedLine
		if decoded := json.Unmarshal(out.Bytes(), &line); err == nil || decoded != nil || line.End == nil || line.End.Kind != want {
			t.Errorf("%v, %v, %q; want an end as %v", err, decoded, out.String(), want)
		}
	}
}
