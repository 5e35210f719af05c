package inspect

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// toolImage is an image of one ordered, spatial table with a few records of every kind of value.
func toolImage(t *testing.T) (root, dir string) {
	t.Helper()
	root = t.TempDir()
	dir = filepath.Join(root, "cluster", "n1")
	p, err := snapshot.Open(snapshot.Config{Dir: dir})
	check(t, err)
	t.Cleanup(func() { check(t, p.Close()) })
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "places", KeyKind: format.KeyName, Ordered: true, Spatial: true, Shards: 2})
	check(t, err)
	numbers, err := p.Table(snapshot.TableSpec{ID: 2, Name: "numbers", Shards: 1})
	check(t, err)
	c := p.Begin()
	for i := range 20 {
		point := format.MakePoint(rhumb.Point{Lat: 50, Lon: float64(i)})
		key := format.Key{Name: fmt.Appendf(nil, "p%02d", i)}
		check(t, c.Put(table, snapshot.Record{Key: key, HLC: 7, Box: point, HasBox: true, Value: rhumb.EncodeOpaque(nil, fmt.Appendf(nil, "text %d", i))}))
	}
	shardKey := format.Key{Name: []byte("\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03"), ShardKey: true}
	check(t, c.Put(table, snapshot.Record{Key: shardKey, Expiry: time.Now().Add(time.Hour).UnixNano(), Value: rhumb.EncodeOpaque(nil, []byte{0xff, 0xfe})}))
	check(t, c.Put(numbers, snapshot.Record{Key: format.Key{Number: 42}, Value: []byte("\x7fnot a record")}))
	check(t, c.Position(rhumb.RangeID{Region: 1, Slot: 2}, format.Position{Epoch: 3, Seq: 4, HLC: 5}))
	_, err = c.Publish(snapshot.CommitInfo{Closed: 6})
	check(t, err)
	p.Beat()
	return root, dir
}

// A list shows each image with what its root says, and the error of one that cannot be read.
func TestList(t *testing.T) {
	root, dir := toolImage(t)
	check(t, os.Mkdir(filepath.Join(dir, "quarantine"), 0o700))
	check(t, os.WriteFile(filepath.Join(dir, "quarantine", "seg.0.1.1"), []byte("damaged"), 0o600))
	broken := filepath.Join(root, "cluster", "n2")
	check(t, os.Mkdir(broken, 0o755))
	check(t, os.WriteFile(filepath.Join(broken, format.RootName), make([]byte, format.RootSize), 0o600))
	check(t, os.Mkdir(filepath.Join(root, "cluster", "empty"), 0o755))
	list, err := List(root)
	check(t, err)
	if len(list) != 2 {
		t.Fatalf("%d images are listed, want 2: %+v", len(list), list)
	}
	if l := list[0]; l.Cluster != "cluster" || l.Node != "n1" || l.Tables != 2 || l.Records != 22 || l.Quarantined != 1 || l.Version != 1 ||
		!l.Publisher.Alive || l.Publisher.PID != os.Getpid() || l.Age < 0 || l.Bytes < 3<<16 || l.Err != nil {
		t.Errorf("%+v", l)
	}
	if l := list[1]; l.Node != "n2" || rhumb.KindOf(l.Err) != rhumb.Corrupt {
		t.Errorf("%+v", l)
	}
	if none, err := List(filepath.Join(root, "missing")); err != nil || len(none) != 0 {
		t.Errorf("a folder that does not exist has %d images, %v", len(none), err)
	}
}

// Usages count what the publisher has written.
func TestUsages(t *testing.T) {
	_, dir := toolImage(t)
	im, err := Open(dir)
	check(t, err)
	defer im.Close()
	var keys, used, deltas int64
	for _, u := range im.Usages("places") {
		keys, used, deltas = keys+u.Keys, used+u.AppendUsed, deltas+u.Delta
		if u.AppendUsed > u.AppendMax || u.Delta > u.DeltaMax || u.OrderUsed > u.OrderMax || u.Load <= 0 || u.Load > 1 || u.Records != 0 {
			t.Errorf("%+v", u)
		}
	}
	if keys != 21 || deltas != 20 || used < 21*format.RecordAlign {
		t.Errorf("%d keys, %d entries of the delta and %d bytes are in use", keys, deltas, used)
	}
	if all := im.Usages(""); len(all) != 4 || all[0].Table != format.PositionsTable {
		t.Errorf("%d shards are described, want 4", len(all))
	}
	if age := im.Age(time.Now()); age < 0 || age > time.Hour {
		t.Errorf("the newest version is %v old", age)
	}
}

// attach locks the newest version.
func attach(t *testing.T, dir, name string) reader.Table {
	t.Helper()
	c, err := Attach(dir)
	check(t, err)
	t.Cleanup(func() { check(t, c.Close()) })
	v, err := c.Lock()
	check(t, err)
	t.Cleanup(v.Unlock)
	table, err := v.Table(name)
	check(t, err)
	return table
}

// A query returns what it asks for, or says what is wrong with it.
func TestQuery(t *testing.T) {
	_, dir := toolImage(t)
	places := attach(t, dir, "places")
	for _, c := range []struct {
		q    Query
		want int
		err  string
	}{
		{q: Query{}, want: 21},
		{q: Query{Prefix: "p1"}, want: 10},
		{q: Query{Prefix: "0x7030"}, want: 10},
		{q: Query{BBox: "2.5,49,7.5,51"}, want: 5},
		{q: Query{Radius: "50, 3, 80000"}, want: 3},
		{q: Query{Nearest: "50,3,4"}, want: 4},
		{q: Query{BBox: "1,2,3"}, err: "want W,S,E,N"},
		{q: Query{BBox: "1,2,3,x"}, err: `"x" is not a number`},
		{q: Query{Radius: "1,2,NaN"}, err: `"NaN" is not a number`},
		{q: Query{Nearest: "1,2,0"}, err: "from 1 to 10000"},
		{q: Query{Nearest: "1,2,1.5"}, err: "from 1 to 10000"},
		{q: Query{Nearest: "1,2,10001"}, err: "from 1 to 10000"},
		{q: Query{Nearest: "1,2,3", Prefix: "a"}, err: "one of bbox, radius, nearest and prefix"},
	} {
		items, err := c.q.Run(places)
		if c.err != "" {
			if rhumb.KindOf(err) != rhumb.InvalidArgument || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v: %v, want an error with %q", c.q, err, c.err)
			}
			continue
		}
		check(t, err)
		n := 0
		for it, err := range items {
			check(t, err)
			n++
			if measured := it.Distance > 0; measured && !c.q.Measured() {
				t.Errorf("%+v: a record has a distance", c.q)
			}
		}
		if n != c.want {
			t.Errorf("%+v: %d records, want %d", c.q, n, c.want)
		}
	}
}

// Take ends after so many items and says whether there were more.
func TestTake(t *testing.T) {
	_, dir := toolImage(t)
	places := attach(t, dir, "places")
	for most, want := range map[int]int{0: 21, 5: 5, 21: 21, 30: 21} {
		taken, more := Take(places.All(), most)
		n := 0
		for _, err := range taken {
			check(t, err)
			n++
		}
		if n != want || *more != (most == 5) {
			t.Errorf("of at most %d: %d records, more: %t", most, n, *more)
		}
	}
}

// A key is found as it is printed, and a record is printed whatever its value is.
func TestGetAndDescribe(t *testing.T) {
	_, dir := toolImage(t)
	places, numbers, positions := attach(t, dir, "places"), attach(t, dir, "numbers"), attach(t, dir, format.PositionsTable)
	for _, c := range []struct {
		table reader.Table
		key   string
		want  []string
	}{
		{places, "p03", []string{`"key":"p03"`, `"text":"text 3"`, `"west":3,`}},
		{places, "0x703033", []string{`"key":"p03"`}},
		{places, "0x00000001000000020000000000000003", []string{`"shard_key":`, `/3"`, `"bytes":"0xfffe"`, `"expiry":"20`}},
		{numbers, "42", []string{`"key":"42"`, `"bytes":"0x7f6e6f74`}},
		{numbers, "0x000000000000002a", []string{`"key":"42"`}},
		{positions, fmt.Sprint(format.PositionKey(rhumb.RangeID{Region: 1, Slot: 2})), []string{`"epoch":3`, `"seq":4`}},
	} {
		it, err := Get(c.table, c.key)
		check(t, err)
		r, err := Describe(c.table.Info(), &it, false)
		check(t, err)
		b, err := json.Marshal(r)
		check(t, err)
		for _, want := range c.want {
			if !strings.Contains(string(b), want) {
				t.Errorf("key %s: %s lacks %s", c.key, b, want)
			}
		}
	}
	if _, err := Get(places, "nobody"); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("a key that is not there: %v", err)
	}
	if _, err := Get(numbers, "p03"); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Errorf("a name in a table of numbers: %v", err)
	}
}

// The fields of a record can be read back from their JSON with their types.
func TestFields(t *testing.T) {
	r := rhumb.Record{
		{Name: "whole", Value: rhumb.Float64Field(3)},
		{Name: "int", Value: rhumb.Int64Field(3)},
		{Name: "text", Value: rhumb.StringField("a")},
		{Name: "bytes", Value: rhumb.BytesField([]byte{1, 2})},
		{Name: "with:colon", Value: rhumb.BoolField(true)},
		{Name: "at", Value: rhumb.PointField(rhumb.Point{Lat: 1, Lon: 2})},
	}
	b, err := json.Marshal(Fields(r))
	check(t, err)
	for _, want := range []string{`"whole":3.0`, `"int":3`, `"text":"a"`, `"bytes:bytes":`, `"with:colon:bool":true`, `"at":{"lat":1,"lon":2}`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s lacks %s", b, want)
		}
	}
}

// The mappings of a process become one pin per file, with its pieces added up.
func TestPinsOf(t *testing.T) {
	maps := strings.Join([]string{
		"7f0000000000-7f0000001000 r--s 00000000 00:1a 11                 /shm/rhumb/c/n1/seg.3.17",
		"7f0000001000-7f0000004000 r--s 00001000 00:1a 11                 /shm/rhumb/c/n1/seg.3.17",
		"7f0000005000-7f0000006000 r--s 00000000 00:1a 12                 /shm/rhumb/c/n1/seg.3.9 (deleted)",
		"7f0000007000-7f0000008000 r--s 00000000 00:1a 13                 /shm/rhumb/c/n1/root",
		"7f0000009000-7f000000a000 r-xp 00000000 00:1a 14                 /usr/lib/libc.so.6",
	}, "\n")
	pins := pinsOf(os.Getpid(), []byte(maps), "/shm/rhumb")
	want := []string{"17 16384 false", "9 4096 true"}
	var got []string
	for _, p := range pins {
		got = append(got, fmt.Sprint(p.Generation, p.Bytes, p.Deleted))
		if p.Slot != 3 || p.Dir != "/shm/rhumb/c/n1" || p.Command == "" {
			t.Errorf("%+v", p)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("pins %q, want %q", got, want)
	}
}
