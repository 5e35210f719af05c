package snapshot_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// image reads an image as docs/formats/snapshot.md describes it, from copies of the files, sharing no code with the
// publisher. What it cannot read it reports by a panic with a text, which mustImage turns into a failure.
type image struct {
	root   []byte
	tables map[string]*imageTable
	// committed and closed are those of the newest version.
	committed, closed uint64
	seed0, seed1      uint64
}

type imageTable struct {
	flags, kind int
	shards      []*imageSegment
}

type imageSegment struct {
	img     *image
	mem     []byte
	kind    int
	base    uint64
	closed  uint64
	buckets uint64
	units   uint64 // of the base
	head    uint64 // end of the committed records
	tail    uint64
	at      map[uint32][]byte // sections by type
}

// version is what one record says.
type version struct {
	ref       uint32
	key       string
	ver, prev uint32
	flags     uint16
	hlc       uint64
	expiry    int64
	box       [4]int32
	value     string
	size      int
}

func u16(p []byte, at int) int    { return int(binary.LittleEndian.Uint16(p[at:])) }
func u32(p []byte, at int) uint32 { return binary.LittleEndian.Uint32(p[at:]) }
func u64(p []byte, at int) uint64 { return binary.LittleEndian.Uint64(p[at:]) }

func crc(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }

func assert(ok bool, format string, args ...any) {
	if !ok {
		panic(fmt.Sprintf(format, args...))
	}
}

// mustImage reads an image while no commit is open.
func mustImage(t testing.TB, dir string) *image {
	t.Helper()
	img := mustImageOf(t, dir)
	for name, table := range img.tables {
		for i, s := range table.shards {
			if s.head != s.tail {
				t.Fatalf("table %s, shard %d: records %d to %d are unfinished", name, i, s.head, s.tail)
			}
		}
	}
	return img
}

// mustImageOf reads an image, maybe in the middle of a commit.
func mustImageOf(t testing.TB, dir string) *image {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Fatalf("the image cannot be read: %v", r)
		}
	}()
	return readImage(dir)
}

func readImage(dir string) *image {
	root, err := os.ReadFile(filepath.Join(dir, "root"))
	assert(err == nil, "%v", err)
	assert(len(root) == 32768 && string(root[:8]) == "RHBROOT1" && u32(root, 8) == 2 && u32(root, 16) == 0x01020304, "root header %x", root[:64])
	assert(u32(root, 60) == crc(root[:60]), "root checksum")
	assert(u64(root, 128)%2 == 0, "the tables change")
	img := &image{root: root, tables: map[string]*imageTable{}, committed: u64(root, 64), seed0: u64(root, 40), seed1: u64(root, 48)}
	if e := root[256+64*(img.committed%16):]; u64(e, 0) == img.committed && img.committed > 0 {
		assert(u32(e, 44) == crc(e[:44]), "ring entry")
		img.closed = u64(e, 8)
	}
	for i := range 32 {
		e := root[4096+256*i:][:256]
		if u16(e, 4)&1 == 0 {
			continue
		}
		sum := u32(e, 12)
		copied := slices.Clone(e)
		clear(copied[12:16])
		assert(crc(copied) == sum, "checksum of table %d", i)
		t := &imageTable{flags: u16(e, 4), kind: int(e[6])}
		for s := range u16(e, 10) {
			t.shards = append(t.shards, img.readSegment(dir, u16(e, 8)+s, t, u32(e, 0)))
		}
		img.tables[string(e[16:16+e[7]])] = t
	}
	return img
}

func (img *image) readSegment(dir string, slot int, t *imageTable, id uint32) *imageSegment {
	e := img.root[12288+64*slot:][:64]
	assert(u32(e, 44) == crc(e[:44]), "checksum of shard %d", slot)
	mem, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("seg.%d.%d", slot, u64(e, 0))))
	assert(err == nil, "%v", err)
	assert(uint64(len(mem)) == u64(e, 16) && string(mem[:8]) == "RHBSEG01" && u32(mem, 4092) == crc(mem[:4092]), "header of shard %d", slot)
	assert(u64(mem, 24) == u64(e, 0) && int(u32(mem, 32)) == slot && u32(mem, 36) == id && u64(mem, 40) == u64(e, 8), "identity of shard %d", slot)
	assert(bytes.Equal(mem[64:80], img.root[24:40]) && u64(mem, 48) == uint64(len(mem)) && u64(mem, 4096) == 1, "image of shard %d", slot)
	s := &imageSegment{
		img: img, mem: mem, kind: t.kind, base: u64(mem, 40), closed: u64(mem, 96), buckets: uint64(u32(mem, 84)),
		units: uint64(u32(mem, 104)), head: u64(mem, 4160), tail: u64(mem, 4168), at: map[uint32][]byte{},
	}
	for i := range u32(mem, 88) {
		q := mem[128+40*i:]
		content := mem[u64(q, 8):][:u64(q, 16)]
		switch typ := u32(q, 0); typ {
		case 2:
			assert(u32(q, 36) == crc(content[:s.units*64]), "checksum of the base of shard %d", slot)
			s.at[typ] = content
		case 3, 4, 8:
			content = content[:u64(q, 24)*uint64(u32(q, 32))]
			assert(u32(q, 36) == crc(content), "checksum of section %d of shard %d", typ, slot)
			s.at[typ] = content
		default:
			s.at[typ] = content
		}
	}
	return s
}

func (s *imageSegment) record(ref uint32, summed bool) (v version) {
	p := s.at[2][uint64(ref)*64:]
	v = version{ref: ref, ver: u32(p, 8), prev: u32(p, 12), flags: uint16(u16(p, 18))}
	n, at := u16(p, 16), 24
	if v.flags&16 != 0 {
		v.hlc = u64(p, at)
		at += 8
	}
	if v.flags&4 != 0 {
		v.expiry = int64(u64(p, at))
		at += 8
	}
	if v.flags&2 != 0 {
		for i := range v.box {
			v.box[i] = int32(u32(p, at+4*i))
		}
		at += 16
	}
	if s.kind == 0 {
		v.key = string(binary.BigEndian.AppendUint64(nil, u64(p, 0)))
	} else {
		k := int(p[at])
		prefix := "n"
		if k == 255 {
			k, prefix = 16, "s"
		}
		v.key = prefix + string(p[at+1:at+1+k])
		assert(s.img.hashName(p[at], p[at+1:at+1+k]) == u64(p, 0), "hash of %q", v.key)
		at += 1 + k
	}
	if n == 65535 {
		n = int(u32(p, at))
		at += 4
	}
	v.value, v.size = string(p[at:at+n]), at+n
	if summed {
		fixed := slices.Concat(p[:8], p[16:20])
		binary.LittleEndian.PutUint16(fixed[10:], v.flags&^8)
		links := v.ver*0x9E3779B1 ^ v.prev*0x85EBCA77 ^ uint32(v.flags&8)*0xC2B2AE3D
		assert(v.ver == 1<<32-1 || u32(p, 20) == crc(append(fixed, p[24:v.size]...))^links, "checksum of record %d", ref)
	}
	return v
}

func mum(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

func (img *image) hashName(length byte, name []byte) uint64 {
	h := mum(img.seed0^uint64(length), img.seed1)
	for len(name) > 0 {
		var w [8]byte
		name = name[copy(w[:], name):]
		h = mum(h^u64(w[:], 0), img.seed1)
	}
	return mum(h^0x2d358dccaa6c78a5, img.seed1)
}

func (s *imageSegment) hash(key string) uint64 {
	if s.kind == 0 {
		return mum(binary.BigEndian.Uint64([]byte(key))^s.img.seed0, s.img.seed1)
	}
	length := byte(len(key) - 1)
	if key[0] == 's' {
		length = 255
	}
	return s.img.hashName(length, []byte(key[1:]))
}

// view is a version, closed or not.
type view struct{ version, closed uint64 }

// visible follows a chain to what a view sees.
func (s *imageSegment) visible(v view, ref uint32) (version, bool) {
	for ref != 0xFFFFFFFF {
		assert(uint64(ref) < s.tail, "reference %d behind the records", ref)
		r := s.record(ref, false)
		if uint64(r.ver) <= v.version-s.base && (v.closed == 0 || r.hlc <= v.closed) {
			return r, r.flags&1 == 0
		}
		assert(r.prev == 0xFFFFFFFF || r.prev < ref, "record %d refers to %d", ref, r.prev)
		ref = r.prev
	}
	return version{}, false
}

// get looks a key up.
func (t *imageTable) get(v view, key string) (version, bool) {
	h := t.shards[0].hash(key)
	s := t.shards[(h>>16)&uint64(len(t.shards)-1)]
	hi, _ := bits.Mul64(h, s.buckets)
	fp := max(int(h&0xFFFF), 1)
	for at := hi; ; {
		b := s.at[1][64*at:]
		for i := range 10 {
			if u16(b, 2*i) == fp && s.record(u32(b, 20+4*i), false).key == key {
				return s.visible(v, u32(b, 20+4*i))
			}
		}
		if at = uint64(u32(b, 60)); at == 0 {
			return version{}, false
		}
		assert(at >= s.buckets && at < s.buckets+u64(s.mem, 4224), "bucket %d", at)
	}
}

// all lists what a view sees by way of the buckets.
func (t *imageTable) all(v view) map[string]version {
	out := map[string]version{}
	for _, s := range t.shards {
		for at := range s.buckets + u64(s.mem, 4224) {
			b := s.at[1][64*at:]
			for i := range 10 {
				if u16(b, 2*i) == 0 {
					continue
				}
				if r, ok := s.visible(v, u32(b, 20+4*i)); ok {
					_, twice := out[r.key]
					assert(!twice, "key %q has two slots", r.key)
					s.record(r.ref, t.flags&8 != 0)
					out[r.key] = r
				}
			}
		}
	}
	return out
}

// ordered lists the keys that a view sees, in order.
func (t *imageTable) ordered(v view) (keys []string) {
	for _, s := range t.shards {
		var refs []uint32
		for i := 0; i < len(s.at[8]); i += 4 {
			refs = append(refs, u32(s.at[8], i))
		}
		inOrder := func(refs []uint32) bool {
			return slices.IsSortedFunc(refs, func(a, b uint32) int { return cmp.Compare(s.record(a, false).key, s.record(b, false).key) })
		}
		assert(inOrder(refs), "the order section is not in order")
		words := s.at[9]
		var skip []uint32
		for level := range 12 {
			skip = skip[:0]
			for at := u32(words, 4*(3+level)); at != 0; at = u32(words, 4*(int(at)+2+level)) {
				assert(uint64(at) < u64(s.mem, 4296) && int(u32(words, 4*int(at)+4)) > level, "skip list node %d at level %d", at, level)
				skip = append(skip, u32(words, 4*int(at)))
			}
			assert(inOrder(skip), "level %d of the skip list is not in order", level)
			if level == 0 {
				refs = append(refs, skip...)
			}
		}
		for _, ref := range refs {
			key := s.record(ref, false).key
			if _, ok := t.get(v, key); ok {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	return keys
}

func touches(a, b [4]int32) bool {
	return a[0] <= b[2] && b[0] <= a[2] && a[1] <= b[3] && b[1] <= a[3]
}

// parts splits a box that crosses the antimeridian.
func parts(b [4]int32) [][4]int32 {
	if b[0] <= b[2] {
		return [][4]int32{b}
	}
	return [][4]int32{{b[0], b[1], 1_800_000_000, b[3]}, {-1_800_000_000, b[1], b[2], b[3]}}
}

// within lists the keys whose box touches a plain query, by way of the tree and of the delta's chains. A key may be found
// through several parts of its box, but only in one of the two ways.
func (t *imageTable) within(v view, q [4]int32) []string {
	ways := map[string]string{}
	emit := func(key, way string) {
		assert(ways[key] == "" || ways[key] == way, "key %q is found through %s and %s", key, ways[key], way)
		ways[key] = way
	}
	for _, s := range t.shards {
		nodes, items := s.at[3][256:], u32(s.at[3], 4)
		for i := range items {
			node := nodes[256*(i/16):]
			lane := int(i % 16)
			var b [4]int32
			for c := range b {
				b[c] = int32(u32(node, 64*c+4*lane))
			}
			ref := u32(s.at[4], int(4*i))
			assert(uint64(ref) < s.units, "tree reference %d", ref)
			if !touches(b, q) {
				continue
			}
			changed := u64(s.at[5], int(ref/64*8))>>(ref%64)&1 != 0
			leaf := s.record(ref, false)
			assert(leaf.ver == 0, "the tree leads to record %d, which has another place", ref)
			r, ok := t.get(v, leaf.key)
			assert(changed || v.closed != 0 || r.key == leaf.key && r.ref == ref, "record %d has a newer version and is not marked", ref)
			if ok && r.flags&8 == 0 && r.flags&2 != 0 {
				emit(r.key, "tree")
			}
		}
		s.chains(v, q, func(ref uint32) {
			if r, ok := t.get(v, s.record(ref, false).key); ok && r.ref == ref {
				emit(r.key, "delta")
			}
		})
	}
	var keys []string
	for k := range ways {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// chains walks the chains of all cells that a query covers, widened by one cell at its lowest corner, or all entries when
// those are fewer.
func (s *imageSegment) chains(v view, q [4]int32, emit func(ref uint32)) {
	heads := uint64(len(s.at[7]) / 4)
	cells := map[uint64]bool{0: true}
	x0, y0 := (int64(q[0])+1_800_000_000)>>18-1, (int64(q[1])+900_000_000)>>18-1
	x1, y1 := (int64(q[2])+1_800_000_000)>>18, (int64(q[3])+900_000_000)>>18
	if (x1-x0+1)*(y1-y0+1) > int64(u64(s.mem, 4288)) {
		for h := range heads {
			cells[h] = true
		}
	} else {
		for x := max(x0, 0); x <= x1; x++ {
			for y := max(y0, 0); y <= y1; y++ {
				h := (uint32(x)*0x9E3779B1 ^ uint32(y)*0x85EBCA77) * 0xC2B2AE3D
				cells[1+uint64(h)*(heads-1)>>32] = true
			}
		}
	}
	for h := range cells {
		for at := u32(s.at[7], int(4*h)); at != 0; {
			e := s.at[6][32*(at-1):]
			b := [4]int32{int32(u32(e, 0)), int32(u32(e, 4)), int32(u32(e, 8)), int32(u32(e, 12))}
			if touches(b, q) && uint64(u32(e, 24)) <= v.version-s.base {
				emit(u32(e, 16))
			}
			next := u32(e, 20)
			assert(next < at, "delta entry %d leads to %d", at, next)
			at = next
		}
	}
}
