package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/zeebo/xxh3"
)

// TestComparer runs Pebble's own check of a comparer on the prefixes and suffixes of every kind of
// key (docs/formats/keys.md).
func TestComparer(t *testing.T) {
	var prefixes [][]byte
	for _, id := range []rhumb.RangeID{{Region: 1, Slot: 13}, {Region: ^rhumb.RegionID(0), Slot: 0x0d0d0d0d}} {
		span := keys.HomeSpan(id)
		prefixes = append(
			prefixes, span.Lower, keys.AppendLog(nil, id, 13), keys.AppendState(nil, id, keys.StateCommit),
			keys.AppendDedup(nil, id, rhumb.RequestID{Seq: 13}), keys.AppendLocal(nil, 13, []byte{13, 0, 13}),
		)
		for _, name := range []string{"", "a", "a\x00", "\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d\x0d"} {
			prefixes = append(prefixes, keys.AppendDataPrefix(nil, rhumb.Key{Table: 13, Home: id, Name: []byte(name)}))
		}
	}
	var suffixes [][]byte
	for _, v := range []rhumb.Version{{}, {HLC: 1}, {HLC: 1, Node: 1}, {HLC: 1 << 40, Node: 13}, {HLC: ^rhumb.Timestamp(0), Node: ^rhumb.NodeID(0)}} {
		suffixes = append(suffixes, keys.AppendVersion(nil, v))
	}
	if err := pebble.CheckComparer(comparer, prefixes, suffixes); err != nil {
		t.Fatal(err)
	}
}

// TestHeaderForm guards the offsets of the STORE file (docs/formats/store.md).
func TestHeaderForm(t *testing.T) {
	h := header{pebbleFormat: 0x01020304, cluster: rhumb.UUID{0xc1}, node: 0x0a0b0c0d, index: 2, count: 3, store: rhumb.UUID{0x51}, engine: rhumb.UUID{0xe1}, boot: 9, flags: flagLossy, list: 7, stores: []rhumb.UUID{{0xe1}, {0x52}, {0x51}}}
	b := h.encode()
	if want := 96 + 3*16 + 8; len(b) != want {
		t.Fatalf("%d bytes, want %d", len(b), want)
	}
	for offset, want := range map[int]string{
		0: "5248554d4253544f", 8: "00000002", 12: "01020304", 16: "c1", 32: "0a0b0c0d", 36: "0002", 38: "0003", 40: "51", 56: "e1",
		72: "0000000000000009", 80: "0000000000000001", 88: "0000000000000007", 96: "e1", 112: "52", 128: "51",
	} {
		if got := fmt.Sprintf("%x", b[offset:offset+len(want)/2]); got != want {
			t.Errorf("offset %d: %s, want %s", offset, got, want)
		}
	}
	back, err := decodeHeader("STORE", b)
	if err != nil || !reflect.DeepEqual(back, h) {
		t.Errorf("decoded %+v, want %+v: %v", back, h, err)
	}
}

// TestHeaderOwnLog guards the fields of the STORE file of stores with a log of their own, in the formats of earlier builds and in the present one.
func TestHeaderOwnLog(t *testing.T) {
	base := header{pebbleFormat: 1, count: 1, store: rhumb.UUID{0x51}, boot: 9, flags: flagNodeLog, list: 7, stores: []rhumb.UUID{{0x51}}, nodeLog: true, logBoot: 0x0b}
	for _, c := range []struct {
		name   string
		change func(h *header)
		want   map[int]string
		size   int
		id     rhumb.UUID
	}{
		{"format 3", func(*header) {}, map[int]string{8: "00000003", 80: "0000000000000002", 96: "000000000000000b", 104: "51"}, 128, rhumb.UUID{0x51}},
		{"format 4", func(h *header) { h.logKeeps = true }, map[int]string{8: "00000004", 80: "0000000000000002", 96: "000000000000000b", 104: "51"}, 128, rhumb.UUID{0x51}},
		{"format 5", func(h *header) { h.logID = rhumb.UUID{0xd1} }, map[int]string{8: "00000005", 80: "0000000000000002", 96: "000000000000000b", 104: "d1", 120: "51"}, 144, rhumb.UUID{0xd1}},
		{"format 5 with keys", func(h *header) { h.logID, h.logKeeps = rhumb.UUID{0xd1}, true }, map[int]string{8: "00000005", 80: "0000000000000006", 104: "d1", 120: "51"}, 144, rhumb.UUID{0xd1}},
	} {
		h := base
		c.change(&h)
		b := h.encode()
		if len(b) != c.size {
			t.Errorf("%s has %d bytes, want %d", c.name, len(b), c.size)
			continue
		}
		for offset, want := range c.want {
			if got := fmt.Sprintf("%x", b[offset:offset+len(want)/2]); got != want {
				t.Errorf("%s, offset %d: %s, want %s", c.name, offset, got, want)
			}
		}
		back, err := decodeHeader("STORE", b)
		if err != nil || !reflect.DeepEqual(back, h) || back.ownLogID() != c.id {
			t.Errorf("%s: decoded %+v, want %+v: %v", c.name, back, h, err)
		}
	}
}

// TestHeaderDamage guards that every flipped bit and every cut of a STORE file is noticed, and that
// the error names file and offset.
func TestHeaderDamage(t *testing.T) {
	h := header{store: rhumb.UUID{1}, boot: 1}
	good := h.encode()
	for i := range len(good) * 8 {
		b := bytes.Clone(good)
		b[i/8] ^= 1 << (i % 8)
		if _, err := decodeHeader("disk/STORE", b); rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), "disk/STORE") || !strings.Contains(err.Error(), "offset") {
			t.Fatalf("bit %d flipped: %v", i, err)
		}
	}
	for n := range good {
		if _, err := decodeHeader("STORE", good[:n]); rhumb.KindOf(err) != rhumb.Corrupt {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
}

// TestLossy guards that a store that was once opened without syncs is not opened again, even if the
// other stores of its node are intact, that its header stays unchanged, and that Verify reports it.
func TestLossy(t *testing.T) {
	fs := vfs.NewMem()
	dirs := []string{"/d0", "/d1"}
	cfg := Config{FS: fs, MemTableBytes: 1 << 20, DiskFree: func(string) (uint64, uint64, error) { return 1, 1, nil }}
	e, err := OpenEngine(dirs, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for i, dir := range dirs {
		good, _, err := readHeader(fs, dir)
		if err != nil {
			t.Fatal(err)
		}
		lossy := good
		lossy.flags |= flagLossy
		if err := writeHeader(fs, dir, &lossy); err != nil {
			t.Fatal(err)
		}
		_, err = OpenEngine(dirs, cfg)
		if rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), dir+"/STORE: the store was once opened without syncs") {
			t.Errorf("open with a lossy store %d returns %v, want corrupt with the file and the reason", i+1, err)
		}
		if h, found, _ := readHeader(fs, dir); !found || !reflect.DeepEqual(h, lossy) {
			t.Errorf("the header of %s changed to %+v, want %+v", dir, h, lossy)
		}
		rep, err := Verify(dir, fs)
		if err != nil || len(rep.Faults) == 0 || !strings.Contains(rep.Faults[0].String(), "without syncs") {
			t.Errorf("verify of a lossy store reports %v, %v", rep.Faults, err)
		}
		if err := writeHeader(fs, dir, &good); err != nil {
			t.Fatal(err)
		}
	}
	if e, err = OpenEngine(dirs, cfg); err != nil {
		t.Fatalf("without the flag: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNewerFormat guards that a directory of a newer binary is refused as incompatible, not as
// damaged, and stays unchanged.
func TestNewerFormat(t *testing.T) {
	for name, change := range map[string]func(b []byte) []byte{
		"store": func(b []byte) []byte {
			b = append(b[:len(b)-checksumSize], "a field that this binary does not know"...)
			binary.BigEndian.PutUint32(b[8:], formatStore+1)
			return binary.BigEndian.AppendUint64(b, xxh3.Hash(b))
		},
		"database": func(b []byte) []byte {
			binary.BigEndian.PutUint32(b[12:], uint32(pebbleNewest)+1)
			return binary.BigEndian.AppendUint64(b[:len(b)-checksumSize], xxh3.Hash(b[:len(b)-checksumSize]))
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			s, err := Open(Config{Dir: "/d", FS: fs, MemTableBytes: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			old, err := readFile(fs, "/d/"+headerName)
			if err != nil {
				t.Fatal(err)
			}
			newer := change(bytes.Clone(old))
			if err := replaceFile(fs, "/d", headerName, newer); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(Config{Dir: "/d", FS: fs, MemTableBytes: 1 << 20}); rhumb.KindOf(err) != rhumb.Incompatible {
				t.Errorf("open: %v, want incompatible", err)
			}
			if b, err := readFile(fs, "/d/"+headerName); err != nil || !bytes.Equal(b, newer) {
				t.Errorf("the STORE file changed: %v", err)
			}
			if err := replaceFile(fs, "/d", headerName, old); err != nil {
				t.Fatal(err)
			}
			if s, err = Open(Config{Dir: "/d", FS: fs, MemTableBytes: 1 << 20}); err != nil {
				t.Fatalf("open of its own format after the refusal: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestHalfMade guards that a crash at any moment of the first start leaves either nothing or a
// store that opens.
func TestHalfMade(t *testing.T) {
	fs := vfs.NewMem()
	h := header{pebbleFormat: uint32(pebbleBase), store: newUUID()}
	h.engine = h.store
	if err := fs.MkdirAll("/d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeHeader(fs, "/d", &h); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Dir: "/d", FS: fs, MemTableBytes: 1 << 20})
	if err != nil {
		t.Fatalf("a STORE file and no database yet: %v", err)
	}
	if id := s.Identity(); !id.Fresh || id.Boot != 1 || id.Store != h.store {
		t.Errorf("identity is %+v", id)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestHeaderChanges changes the boot sequence and the identity of a store at the same time, from
// several goroutines. No boot sequence may be returned twice, and the STORE file must hold all
// changes.
func TestHeaderChanges(t *testing.T) {
	const callers, calls = 8, 20
	fs := vfs.NewMem()
	s := openMem(t, fs)
	var work sync.WaitGroup
	boots := make([][]rhumb.BootSeq, callers)
	for i := range callers {
		work.Go(func() {
			for range calls {
				boot, err := s.BumpBoot(0)
				if err != nil {
					t.Error(err)
				}
				boots[i] = append(boots[i], boot)
			}
		})
	}
	if err := s.SetIdentity(rhumb.UUID{1}, 3); err != nil {
		t.Error(err)
	}
	work.Wait()
	h, _, err := readHeader(fs, "store")
	if want := rhumb.BootSeq(1 + callers*calls); err != nil || h.boot != want || h.cluster != (rhumb.UUID{1}) || h.node != 3 {
		t.Errorf("the STORE file has boot sequence %d of node %s of cluster %s, want %d, n3 and %s: %v", h.boot, h.node, h.cluster, want, rhumb.UUID{1}, err)
	}
	all := slices.Concat(boots...)
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != callers*calls {
		t.Errorf("%d calls returned %d boot sequences", callers*calls, n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestSealForm(t *testing.T) {
	s := seal{clean: true, files: []sealedFile{{"000004.sst", 10, "-"}, {"MANIFEST-000001", 20, "0011"}}}
	b := s.encode()
	want := "rhumb seal 1\nclean\n000004.sst 10 -\nMANIFEST-000001 20 0011\nsum "
	if !strings.HasPrefix(string(b), want) {
		t.Errorf("seal is\n%s", b)
	}
	back, err := decodeSeal("SEAL", b)
	if err != nil || !reflect.DeepEqual(back, s) {
		t.Errorf("decoded %+v: %v", back, err)
	}
	for i := range len(b) * 8 {
		c := bytes.Clone(b)
		c[i/8] ^= 1 << (i % 8)
		if _, err := decodeSeal("SEAL", c); err == nil {
			t.Fatalf("bit %d flipped and not noticed", i)
		}
	}
	for n := range b {
		if _, err := decodeSeal("SEAL", b[:n]); err == nil {
			t.Fatalf("cut to %d bytes and not noticed", n)
		}
	}
}

func someEntry() *entry.Entry {
	e := &entry.Entry{Epoch: 2, Node: 3, Seq: 4, Requests: []entry.Request{
		{HLC: 10, ID: rhumb.RequestID{Client: rhumb.UUID{7}, Seq: 8}, Existed: []bool{true, false, true}, Names: [][]byte{[]byte("n"), {}}, Writes: []entry.Write{{Table: 1, Name: []byte("n"), Value: []byte("\x11value")}}},
		{HLC: 11, Noop: true},
	}}
	e.Seal(nil)
	return e
}

// TestRecordForm guards the offsets of a log record (docs/formats/log.md).
func TestRecordForm(t *testing.T) {
	e := someEntry()
	b := appendRecord(nil, e, Commit{3, 9}, weights{300, 400})
	if got := fmt.Sprintf("%x", b[:14]); got != "01"+"03"+"0000000000000009"+"ac02"+"9003" {
		t.Errorf("record begins with %s", got)
	}
	r, err := decodeRecord(b)
	if err != nil || r.commit != (Commit{3, 9}) || r.total != (weights{300, 400}) || r.entry.Position() != e.Position() {
		t.Errorf("decoded %+v: %v", r, err)
	}
	if _, err := decodeRecord([]byte{2}); rhumb.KindOf(err) != rhumb.Incompatible {
		t.Errorf("version 2: %v, want incompatible", err)
	}
	for n := range b {
		if _, err := decodeRecord(b[:n]); rhumb.KindOf(err) != rhumb.Corrupt {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(appendRecord(nil, someEntry(), Commit{3, 9}, weights{300, 400}))
	f.Add([]byte{recordVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err != nil {
			if k := rhumb.KindOf(err); k != rhumb.Corrupt && k != rhumb.Incompatible {
				t.Fatalf("kind %s", k)
			}
			return
		}
		if back, err := decodeRecord(appendRecord(nil, r.entry, r.commit, r.total)); err != nil || back.total != r.total || back.commit != r.commit {
			t.Fatalf("not stable: %v", err)
		}
	})
}

func FuzzDecodeSeen(f *testing.F) {
	e := someEntry()
	for i := range e.Requests {
		f.Add(appendSeen(nil, e, &e.Requests[i]))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		seen, hlc, err := decodeSeen(b)
		if err != nil {
			if rhumb.KindOf(err) != rhumb.Corrupt {
				t.Fatalf("kind %s", rhumb.KindOf(err))
			}
			return
		}
		r := entry.Request{HLC: hlc, Noop: !seen.Outcome.Applied, Existed: seen.Outcome.Existed, Names: seen.Outcome.Names}
		again, hlc2, err := decodeSeen(appendSeen(nil, &entry.Entry{Seq: seen.Seq, Node: seen.Outcome.Version.Node}, &r))
		if err != nil || hlc2 != hlc || !reflect.DeepEqual(again, seen) {
			t.Fatalf("not stable: %+v and %+v: %v", seen, again, err)
		}
	})
}

func FuzzDecodeFloor(f *testing.F) {
	f.Add(appendFloor(nil, floor{300, 1 << 40}))
	f.Add([]byte{floorVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeFloor(b)
		if err != nil {
			if rhumb.KindOf(err) != rhumb.Corrupt {
				t.Fatalf("kind %s", rhumb.KindOf(err))
			}
			return
		}
		if again, err := decodeFloor(appendFloor(nil, got)); err != nil || again != got {
			t.Fatalf("not stable: %+v and %+v: %v", got, again, err)
		}
	})
}

func FuzzDecodeSeal(f *testing.F) {
	s := seal{files: []sealedFile{{"MANIFEST-000001", 20, "0011"}}}
	f.Add(s.encode())
	f.Add([]byte("rhumb seal 1\nrunning\nsum 0\n"))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = decodeSeal("SEAL", b) })
}

// TestStateValues guards that a state key with a value of the wrong size is rejected.
func TestStateValues(t *testing.T) {
	for f, good := range map[keys.StateField][]byte{
		keys.StateRange: {stateVersion}, keys.StatePromised: encodeWords(1), keys.StateCommit: encodeWords(1, 2), keys.StateTrim: encodeWords(1, 2, 3),
		keys.StateCollected: encodeWords(1), keys.StateBase: encodeBase(base{}), keys.StateLineage: encodeLineage([]EpochStart{{1, 1}}),
		keys.StateSplit: encodeWords(1),
	} {
		if !new(rangeState).setField(f, good) {
			t.Errorf("%s: a good value is rejected", f)
		}
		if new(rangeState).setField(f, append(good, 0)) || new(rangeState).setField(f, good[1:]) {
			t.Errorf("%s: a value of the wrong size is accepted", f)
		}
	}
	if new(rangeState).setField('?', nil) {
		t.Error("an unknown field is accepted")
	}
}

// TestConfig guards that the error of an invalid configuration lists every mistake.
func TestConfig(t *testing.T) {
	c := Config{CacheBytes: -1, MemTableBytes: 1, RefuseFree: 2}
	err := c.Validate()
	if rhumb.KindOf(err) != rhumb.InvalidArgument || strings.Count(err.Error(), ";") != 3 {
		t.Errorf("faults: %v", err)
	}
	if _, err := Open(Config{}); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Errorf("no directory: %v", err)
	}
}

// TestLogsAreRecycled guards that a new log overwrites the blocks of an old one after the first
// flush, which makes a sync about twice as fast as growing a file.
func TestLogsAreRecycled(t *testing.T) {
	fs := &reuseCounter{FS: vfs.NewMem()}
	s, err := Open(Config{Dir: "/d", FS: fs, MemTableBytes: 1 << 20, DiskFree: func(string) (uint64, uint64, error) { return 1, 1, nil }})
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		if err := s.Local(SpaceRaft).Set([]byte("k"), make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if fs.reused == 0 {
		t.Error("no log was recycled")
	}
}

// reuseCounter counts recycled log files. Only one log is opened at a time.
type reuseCounter struct {
	vfs.FS
	reused int
}

func (fs *reuseCounter) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(newname, ".log") {
		fs.reused++
	}
	return fs.FS.ReuseForWrite(oldname, newname, c)
}

// TestRaiseFormat guards that a database gets a format which the previous build cannot open only with the
// cluster version, also if the process dies between the two files that name the format, and keeps its content.
func TestRaiseFormat(t *testing.T) {
	fs := vfs.NewMem()
	open := func() *Engine {
		t.Helper()
		e, err := OpenEngine([]string{"/a", "/b"}, Config{FS: fs, MemTableBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	closeEngine := func(e *Engine) {
		t.Helper()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(e *Engine, format pebble.FormatMajorVersion) {
		t.Helper()
		if got := e.Format(); got != uint32(format) {
			t.Errorf("format %d, want %d", got, format)
		}
		for i, s := range e.stores {
			if h, _, err := readHeader(fs, s.Dir()); err != nil || h.pebbleFormat != uint32(format) {
				t.Errorf("the STORE file %d names format %d, want %d (%v)", i, h.pebbleFormat, format, err)
			}
		}
		if v, ok, err := e.Local(9).Get([]byte("k")); format > pebbleBase && (err != nil || !ok || string(v) != "v") {
			t.Errorf("the content is %q, %v, %v", v, ok, err)
		}
	}
	e := open()
	if err := errors.Join(e.Local(9).Set([]byte("k"), []byte("v")), e.RaiseFormat(rhumb.VersionBase)); err != nil {
		t.Fatal(err)
	}
	expect(e, pebbleBase)
	closeEngine(e)
	e = open()
	expect(e, pebbleBase)
	for range 2 {
		if err := e.RaiseFormat(rhumb.VersionNewest); err != nil {
			t.Fatal(err)
		}
		expect(e, pebbleNewest)
	}
	// Versions never fall, and neither does a format.
	if err := e.RaiseFormat(rhumb.VersionBase); err != nil {
		t.Fatal(err)
	}
	closeEngine(e)
	e = open()
	expect(e, pebbleNewest)
	closeEngine(e)

	// A crash after the STORE file and before the database.
	fs = vfs.NewMem()
	e = open()
	if err := e.Local(9).Set([]byte("k"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	h := e.stores[1].header
	closeEngine(e)
	h.pebbleFormat = uint32(pebbleNewest)
	if err := writeHeader(fs, "/b", &h); err != nil {
		t.Fatal(err)
	}
	e = open()
	if got := e.stores[1].db.FormatMajorVersion(); got != pebbleNewest || e.stores[0].db.FormatMajorVersion() != pebbleBase {
		t.Errorf("formats %d and %d after the crash", e.stores[0].db.FormatMajorVersion(), got)
	}
	if err := e.RaiseFormat(rhumb.VersionNewest); err != nil {
		t.Fatal(err)
	}
	expect(e, pebbleNewest)
	closeEngine(e)
}

// FuzzDecodeSet: the decoder of descriptions of sets never panics, and accepts only what it encodes
// again without a change.
func FuzzDecodeSet(f *testing.F) {
	set := Set{
		ID:     SetID{Range: rhumb.RangeID{Region: 1, Slot: 7}, Donor: 2, Life: 3, Number: 4},
		State:  []SetField{{byte(keys.StateRange), []byte{stateVersion}}},
		Files:  []SetFile{{Bytes: ChunkBytes + 1, Chunks: []uint32{1, 2}}},
		SHA256: make([]byte, 32),
	}
	f.Add(set.Encode())
	f.Add([]byte("{}\nsum 0000000000000000\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		// Most inputs fail the checksum, so the body is also tried with the right one.
		for _, in := range [][]byte{b, fmt.Appendf(bytes.Clone(b), "\nsum %016x\n", xxh3.Hash(append(bytes.Clone(b), '\n')))} {
			s, err := DecodeSet(in)
			if err != nil {
				continue
			}
			again, err := DecodeSet(s.Encode())
			if err != nil || again.ID != s.ID || again.Chunks() != s.Chunks() {
				t.Fatalf("%q decodes to %+v, and then to %+v, %v", in, s, again, err)
			}
			if _, _, size, _, ok := s.chunkAt(s.Chunks() - 1); s.Chunks() > 0 && (!ok || size <= 0) {
				t.Fatalf("the last chunk of %+v has %d bytes", s, size)
			}
		}
	})
}
