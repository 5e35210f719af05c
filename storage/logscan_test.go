package storage

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	pebblelog "github.com/cockroachdb/pebble/v2/record"
)

// logBytes collects the output of Pebble's log writer and applies promiseSynced to it as a store
// does.
type logBytes struct {
	b      []byte
	synced int64
}

func (w *logBytes) Write(p []byte) (int, error) {
	promiseSynced(p, int64(len(w.b)), w.synced)
	w.b = append(w.b, p...)
	return len(p), nil
}

func (w *logBytes) Sync() error {
	w.synced = int64(len(w.b))
	return nil
}

func (w *logBytes) Close() error { return nil }

const testLog = 7

// writeLog writes records of the given sizes with Pebble's writer, syncs after each one, and
// returns the ends of the records.
func writeLog(t testing.TB, w *logBytes, sizes []int, closed bool) (ends []int64) {
	t.Helper()
	lw := pebblelog.NewLogWriter(w, testLog, pebblelog.LogWriterConfig{
		WALMinSyncInterval: func() time.Duration { return 0 }, WriteWALSyncOffsets: func() bool { return true },
		QueueSemChan: make(chan struct{}, 100),
	})
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range sizes {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		end, err := lw.WriteRecord(p)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	if err := lw.Close(); err != nil {
		t.Fatal(err)
	}
	if !closed {
		w.b = w.b[:ends[len(ends)-1]]
	}
	return ends
}

func scanBytes(t testing.TB, b []byte) logScan {
	t.Helper()
	scan, err := scanLog(bytes.NewReader(b), int64(len(b)), testLog)
	if err != nil {
		t.Fatal(err)
	}
	return scan
}

// TestScanLog reads logs of Pebble's writer: intact logs, and logs that were cut, reused, torn and
// damaged.
func TestScanLog(t *testing.T) {
	sizes := []int{12, 100, 0, 8 << 10, 40 << 10, 32<<10 - 2*chunkHeader, 5, 100 << 10, 3}
	w := &logBytes{}
	ends := writeLog(t, w, sizes, false)
	whole := w.b
	end := ends[len(ends)-1]
	closed := append(bytes.Clone(whole), logTrailer(testLog)...)
	flip := func(at int64) []byte {
		b := bytes.Clone(whole)
		b[at] ^= 0x10
		return b
	}
	zero := func(from, to int64) []byte {
		b := bytes.Clone(whole)
		clear(b[from:to])
		return b
	}
	older := &logBytes{}
	writeLog(t, older, []int{300 << 10}, true)
	for i := range older.b { // the bytes of an earlier log in the same file
		older.b[i] ^= 0xa5
	}
	reused := append(bytes.Clone(whole), older.b[len(whole):]...)
	for name, c := range map[string]struct {
		b      []byte
		synced int64
		strict bool
		what   int
		at     int64
		end    int64
		lost   bool
	}{
		"whole":                            {whole, end, false, logIntact, end, end, false},
		"whole, nothing known":             {whole, 0, false, logIntact, end, end, false},
		"closed":                           {closed, end + trailerSize, true, logIntact, end + trailerSize, end, false},
		"empty":                            {nil, 0, false, logIntact, 0, 0, false},
		"reused":                           {reused, end, false, logIntact, end, end, false},
		"followed by zeros":                {append(bytes.Clone(whole), make([]byte, 70<<10)...), end, false, logIntact, end, end, false},
		"the end was partly written":       {whole[:end-2], ends[7], false, logIntact, ends[7], ends[7], false},
		"cut below the synced length":      {whole[:end-2], end, false, logDamaged, ends[7], ends[7], true},
		"cut to nothing":                   {nil, end, false, logDamaged, 0, 0, true},
		"a closed log without trailer":     {whole, 0, true, logDamaged, end, end, true},
		"only the trailer is gone":         {whole, end + trailerSize, true, logDamaged, end, end, false},
		"a bit in the last record":         {flip(end - 1), 0, false, logDamaged, ends[7], ends[7], true},
		"a bit in the first record":        {flip(20), 0, false, logDamaged, 0, 0, true},
		"a bit in a record of many chunks": {flip(ends[7] - 40<<10), 0, false, logDamaged, -1, ends[6], true},
		"zeros in the synced part":         {zero(ends[2], ends[3]), end, false, logDamaged, ends[2], ends[2], true},
	} {
		t.Run(name, func(t *testing.T) {
			scan := scanBytes(t, c.b)
			v := scan.judge(c.synced, c.strict)
			if v.what != c.what || c.at >= 0 && v.at != c.at || v.end != c.end || v.lost != c.lost {
				t.Errorf("verdict %+v of %+v, want %d at %d, end %d, lost %v", v, scan, c.what, c.at, c.end, c.lost)
			}
		})
	}
}

// TestPromise guards that each chunk of a log, patched block by block, states the length that was
// synced when it was written, and is still valid.
func TestPromise(t *testing.T) {
	sizes := make([]int, 40)
	for i := range sizes {
		sizes[i] = 8 << 10
	}
	w := &logBytes{}
	ends := writeLog(t, w, sizes, true)
	b := bytes.Clone(w.b)
	for at := int64(0); at < int64(len(b)); {
		to := min(at+logBlock, int64(len(b)))
		promiseSynced(b[at:to], at, at)
		at = to
	}
	scan := scanBytes(t, b)
	if !scan.closed || scan.end != ends[len(ends)-1] || scan.promised < scan.end-logBlock {
		t.Errorf("%+v, want promises up to the last block of %d", scan, scan.end)
	}
	for at := 0; at+logBlock < len(b); at += logBlock {
		if got := binary.LittleEndian.Uint64(b[at+11:]); got != uint64(at) {
			t.Errorf("the block at %d promises %d", at, got)
		}
	}
}

// TestOneBitOff guards that every flipped bit of a chunk and of a trailer is recognized, and that
// bytes with several wrong bits are not taken for one flipped bit.
func TestOneBitOff(t *testing.T) {
	w := &logBytes{}
	writeLog(t, w, []int{33}, true)
	chunkLen := 33 + chunkHeader
	for bit := range 8 * len(w.b) {
		b := bytes.Clone(w.b)
		b[bit/8] ^= 1 << (bit % 8)
		at := 0
		if bit/8 >= chunkLen {
			at = chunkLen
		}
		if !oneBitOff(b[at:], testLog) {
			t.Errorf("the flip of bit %d is not recognized", bit)
		}
	}
	r := rand.New(rand.NewPCG(2, 2))
	for range 1000 {
		b := bytes.Clone(w.b[:chunkLen])
		from := r.IntN(len(b) - 4)
		for i := range 4 {
			b[from+i] ^= byte(3 + r.IntN(250))
		}
		if oneBitOff(b, testLog) {
			t.Errorf("four wrong bytes at %d pass for one wrong bit", from)
		}
	}
}

// FuzzScanLog guards that scanning any file ends, and that the offsets it finds are within the
// file.
func FuzzScanLog(f *testing.F) {
	w := &logBytes{}
	writeLog(f, w, []int{3, 50 << 10, 7}, true)
	f.Add(w.b)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		scan := scanBytes(t, b)
		if scan.end > scan.at || scan.at > int64(len(b)) || scan.closed && scan.flipped {
			t.Errorf("%+v of %d bytes", scan, len(b))
		}
		scan.judge(int64(len(b)/2), len(b)%2 == 0)
	})
}

// TestSyncedSlots guards that the newer of two slots counts, and that a damaged slot is named and
// does not count.
func TestSyncedSlots(t *testing.T) {
	b := make([]byte, syncedFileSize)
	old, young := syncedState{4, 1, 2, 300}, syncedState{5, 2, 3, 400}
	if st, fault := decodeSynced(b); st != (syncedState{}) || fault != -1 {
		t.Errorf("blank: %+v, %d", st, fault)
	}
	copy(b, old.encode())
	copy(b[syncedSector:], young.encode())
	if st, fault := decodeSynced(b); st != young || fault != -1 {
		t.Errorf("both: %+v, %d", st, fault)
	}
	for bit := range 8 * syncedSize {
		c := bytes.Clone(b)
		c[syncedSector+bit/8] ^= 1 << (bit % 8)
		if st, fault := decodeSynced(c); st != old || fault != syncedSector {
			t.Fatalf("bit %d: %+v, %d", bit, st, fault)
		}
	}
	if _, fault := decodeSynced(b[:syncedSector]); fault != syncedSector {
		t.Errorf("cut: fault at %d", fault)
	}
}
