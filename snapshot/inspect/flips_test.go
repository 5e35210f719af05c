package inspect

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"errors"
	"flag"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

var (
	everyBit    = flag.Bool("flips.every", false, "flip every bit of what is not padding, and not one in some")
	flipsSeed   = flag.Uint64("flips.seed", 0, "of the random images, flip the bits of the one that this seed makes")
	flipsImages = flag.Int("flips.images", 3, "how many random images have bits flipped")
)

// Strides of the bits that are flipped: of lines that hold something, and of those of zeros. They are prime, so that each
// place in a bucket, record or entry comes up.
const (
	strideFull = 61
	strideZero = 8191
	// Of the flips that verify passes over for one reason, one in readEvery is shown to readers, or in readEveryBit if all bits are
	// flipped: reading an image takes far longer than the check of one segment.
	readEvery    = 7
	readEveryBit = 100
)

// unsummed is the reason for what nobody can find in tables without checksums.
const unsummed = "records without a checksum"

// goldenImage unpacks one of the golden images.
func goldenImage(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(filepath.Join("../testdata/golden", name+".tar.gz"))
	check(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	check(t, err)
	dir := t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		check(t, err)
		content, err := io.ReadAll(r)
		check(t, err)
		check(t, os.WriteFile(filepath.Join(dir, h.Name), content, 0o600))
	}
}

// flipper flips the bits of one file of an image.
type flipper struct {
	t    *testing.T
	dir  string
	name string
	mem  []byte
	// shown is what the image shows at its version when it is whole.
	version uint64
	shown   map[string]string
	first   int // bit
	found   int
	// missed counts what verify passes over, by the reason that there is.
	missed map[string]int
}

func newFlipper(t *testing.T, dir, name string, version uint64, shown map[string]string, first int) *flipper {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	info, err := f.Stat()
	check(t, err)
	mem, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(t, err)
	t.Cleanup(func() { check(t, unix.Munmap(mem)) })
	return &flipper{t: t, dir: dir, name: name, mem: mem, version: version, shown: shown, first: first, missed: map[string]int{}}
}

// run flips one bit after the other and has the file checked each time. What is not found must have a reason, and unless that
// is that records carry no checksum, readers must see nothing of it.
func (f *flipper) run(verify func(at int) []Fault, reason func(at int) string) {
	full, read := strideFull, readEvery
	if *everyBit {
		full, read, f.first = 1, readEveryBit, 0
	}
	for bit := f.first; bit < 8*len(f.mem); {
		at, stride := bit/8, full
		if line := at &^ 63; allZero(f.mem[line:min(line+64, len(f.mem))]) {
			stride = strideZero
		}
		f.mem[at] ^= 1 << (bit % 8)
		faults := verify(at)
		why := ""
		if len(faults) == 0 {
			why = reason(at)
			f.missed[why]++
		}
		if len(faults) == 0 && why != unsummed && f.missed[why]%read == 1 && !maps.Equal(contents(f.t, f.dir, f.version), f.shown) {
			f.t.Errorf("%s, byte %d, bit %d, %s: readers see a difference", f.name, at, bit%8, why)
		}
		f.mem[at] ^= 1 << (bit % 8)
		switch {
		case slices.ContainsFunc(faults, func(x Fault) bool { return x.File == f.name && x.Offset >= 0 }):
			f.found++
		case len(faults) > 0:
			f.t.Errorf("%s, byte %d, bit %d: found elsewhere: %v", f.name, at, bit%8, faults[0])
		case why == "":
			f.t.Errorf("%s, byte %d, bit %d: not found", f.name, at, bit%8)
		}
		bit += stride
	}
	f.t.Logf("%s: %d flips found, not covered: %v", f.name, f.found, f.missed)
}

// TestVerifyEveryBit flips the bits of images of every kind, one at a time: all of them with -flips.every, else one in some.
// Each must be found, with its file and an offset, or lie where docs/formats/snapshot.md says that nothing is covered.
func TestVerifyEveryBit(t *testing.T) {
	for _, name := range []string{"appended", "rolled", "kept"} {
		t.Run(name, func(t *testing.T) { flipImage(t, goldenImage(t, name), 0) })
	}
	seed, images := *flipsSeed, 1
	if seed == 0 {
		seed, images = uint64(time.Now().UnixNano()), *flipsImages
	}
	for i := range uint64(images) {
		t.Run("aborted", func(t *testing.T) { flipImage(t, abortedImage(t, seed+i), int(seed+i)%strideFull) })
	}
}

// abortedImage makes an image of a few commits and rolls; some commits were given up, and one was cut off with its publisher.
func abortedImage(t *testing.T, seed uint64) string {
	t.Helper()
	w := newWorld(t, seed)
	w.short = true // most flips would be in long values
	for range 5 {
		w.commit(1+w.rng.IntN(2*changesFlipped), 40)
	}
	for range 2 { // so that bases have tombstones, and places that were left
		w.roll()
		w.commit(5, 40)
	}
	w.roll()
	w.kill(2*changesFlipped, 40)
	w.commit(changesFlipped, 40)
	check(t, w.p.Close())
	return w.dir
}

// changesFlipped is the mean number of changes in a commit of an image whose bits are flipped. Publishers link records in groups
// of 32, so that some of a commit's are linked before it ends.
const changesFlipped = 50

// flipImage flips bits in all files of an image, from some bit on.
func flipImage(t *testing.T, dir string, first int) {
	t.Helper()
	version := wantClean(t, dir).Version
	shown := contents(t, dir, version)
	flipRoot(newFlipper(t, dir, format.RootName, version, shown, first))
	im, err := Open(dir)
	check(t, err)
	defer im.Close()
	for i := range im.Tables {
		for _, s := range im.Tables[i].Shards {
			flipSegment(newFlipper(t, dir, s.File, version, shown, first), im, &im.Tables[i], s)
		}
	}
	wantClean(t, dir)
}

func flipRoot(f *flipper) {
	f.run(func(int) []Fault {
		im, err := Open(f.dir)
		if err != nil {
			return []Fault{{format.RootName, 0, err.Error()}}
		}
		defer im.Close()
		return append(im.Faults, im.checkRoot()...)
	}, uncoveredRoot)
}

// uncoveredRoot tells why a byte of the root is not covered, "" when it is.
func uncoveredRoot(at int) string {
	for _, w := range []struct {
		from, size int
		why        string
	}{
		{format.RootTableSeq, 8, "table_seq"},
		{format.RootLife, 8, "starts"},
		{format.RootHeartbeat, 8, "heartbeat"},
		{format.RootPID, 4, "process"},
		{format.RootGeneration, 8, "greatest generation"},
	} {
		if at >= w.from && at < w.from+w.size {
			return w.why
		}
	}
	return ""
}

func flipSegment(f *flipper, im *Image, table *Table, s *Shard) {
	g := im.captureSegment(table, s)
	spans := uncoveredSegment(g)
	f.run(func(at int) []Fault {
		if at < 4096 {
			again, err := Open(im.Dir)
			if err != nil {
				return []Fault{{s.File, 0, err.Error()}}
			}
			defer again.Close()
			if len(again.Faults) > 0 {
				return again.Faults
			}
		}
		faults, _ := im.verifyShard(table, s, true)
		return faults
	}, func(at int) string {
		if i := slices.IndexFunc(spans, func(s span) bool { return uint64(at) >= s.from && uint64(at) < s.to }); i >= 0 {
			return spans[i].why
		}
		return ""
	})
}

// span is a part of a file that is not covered, and why.
type span struct {
	from, to uint64
	why      string
}

// uncoveredSegment lists what the format has no check for; see docs/formats/snapshot.md, which has a row for each reason.
func uncoveredSegment(g *segment) (out []span) {
	at := uint64(format.SegmentHeader)
	sections := slices.SortedFunc(slices.Values(g.head.Sections), func(a, b format.Section) int { return cmp.Compare(a.Offset, b.Offset) })
	for _, sec := range sections {
		out = append(out, span{at, sec.Offset, "between sections"})
		at = sec.Offset + sec.Size
		switch sec.Type {
		case format.SectionHeap:
			out = append(out, span{sec.Offset + uint64(g.tail)*format.RecordAlign, at, "behind the records"})
		case format.SectionDelta:
			out = append(out, span{sec.Offset + uint64(g.deltas)*format.DeltaEntrySize, at, "behind the entries"})
		case format.SectionOrderDelta:
			out = append(out, span{sec.Offset, sec.Offset + format.OrderHead*4, "word 0"}, span{sec.Offset + uint64(g.words)*4, at, "behind the nodes"})
		}
	}
	out = append(out, span{at, uint64(len(g.mapped)), "between sections"})
	aborted := map[uint32]bool{}
	for ref := g.head.BaseUnits; ref < g.tail; {
		r, _ := g.recordAt(ref, g.tail)
		at := uint64(g.heapOffset(ref))
		end := at + uint64(len(r.bytes))
		switch {
		case r.ver == format.AbortedVersion:
			aborted[ref] = true
			out = append(out, span{at, end, "aborted records"})
		case !g.table.Summed():
			out = append(out, span{at + format.RecordVersion, at + format.RecordPrev, unsummed}, span{at + format.RecordLen, end, unsummed})
		}
		ref += r.units
	}
	if len(aborted) > 0 {
		out = append(out, span{format.SegmentOverflow, format.SegmentOverflow + 8, "overflow counter after aborts"})
		out = append(out, g.slotsOfAborts(aborted)...)
		out = append(out, g.entriesOfAborts(aborted)...)
		out = append(out, g.nodesOfAborts(aborted)...)
	}
	return out
}

// slotsOfAborts lists the slots of keys that only aborted records have, those that are free, and the links to buckets that have no
// others.
func (g *segment) slotsOfAborts(aborted map[uint32]bool) (out []span) {
	index, _ := g.head.Find(format.SectionIndex)
	idle := func(n uint32) bool { // has no slot of a record that counts
		return !slices.ContainsFunc(g.bucketAt(n).takenRefs(), func(ref uint32) bool { return !aborted[ref] })
	}
	for n := range g.head.BucketsMax {
		at, b := index.Offset+uint64(n)*format.BucketSize, g.bucketAt(n)
		for slot := range uint64(format.BucketSlots) {
			if ref := b.ref(int(slot)); b.fingerprint(int(slot)) == 0 || aborted[ref] {
				out = append(out, span{at + 2*slot, at + 2*slot + 2, "slots of aborted records"},
					span{at + format.BucketRefs + 4*slot, at + format.BucketRefs + 4*slot + 4, "slots of aborted records"})
			}
		}
		if next := b.next(); next != 0 && idle(next) {
			out = append(out, span{at + format.BucketNext, at + format.BucketNext + 4, "links to buckets of aborted records"})
		}
	}
	return out
}

// entriesOfAborts lists the versions of delta entries that are of aborted records, and the links to such entries.
func (g *segment) entriesOfAborts(aborted map[uint32]bool) (out []span) {
	delta, ok := g.head.Find(format.SectionDelta)
	if !ok {
		return nil
	}
	entry := func(i uint32) []byte {
		return g.sectionBytes(format.SectionDelta)[uint64(i)*format.DeltaEntrySize:][:format.DeltaEntrySize]
	}
	link := func(at uint64, next uint32) {
		if next != 0 && aborted[le.Uint32(entry(next - 1)[16:])] {
			out = append(out, span{at, at + 4, "links to entries of aborted records"})
		}
	}
	for i := range g.deltas {
		at := delta.Offset + uint64(i)*format.DeltaEntrySize
		if e := entry(i); aborted[le.Uint32(e[16:])] {
			out = append(out, span{at + 24, at + 28, "versions of entries of aborted records"})
		}
		link(at+20, le.Uint32(entry(i)[20:]))
	}
	cells, _ := g.head.Find(format.SectionDeltaCells)
	for i := range cells.Size / 4 {
		link(cells.Offset+4*i, le.Uint32(g.sectionBytes(format.SectionDeltaCells)[4*i:]))
	}
	return out
}

// nodesOfAborts lists the nodes of keys in the ordered delta that are of aborted records, and the links to them.
func (g *segment) nodesOfAborts(aborted map[uint32]bool) (out []span) {
	order, ok := g.head.Find(format.SectionOrderDelta)
	if !ok {
		return nil
	}
	word := func(at uint32) uint32 { return le.Uint32(g.sectionBytes(format.SectionOrderDelta)[at*4:]) }
	for at := uint32(format.OrderHead); at < g.words; at += 2 + word(at+1) {
		from, end := order.Offset+uint64(at)*4, order.Offset+uint64(at+2+word(at+1))*4
		if aborted[word(at)] {
			out = append(out, span{from, end, "nodes of aborted records"})
			continue
		}
		for level := range word(at + 1) {
			if next := word(at + 2 + level); next != 0 && aborted[word(next)] {
				out = append(out, span{from + 8 + uint64(level)*4, from + 12 + uint64(level)*4, "links to nodes of aborted records"})
			}
		}
	}
	return out
}
