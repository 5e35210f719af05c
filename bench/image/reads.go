package image

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// valueSize is the length of a value. With box, key and header a record has 128 bytes.
const valueSize = 84

// consumeValue reads a whole value, since fetching it is what costs; the sum keeps the compiler
// from removing the reads.
func (s *server) consumeValue(p []byte) {
	w := (*[10]uint64)(unsafe.Pointer(unsafe.SliceData(p[:valueSize])))
	s.sum += w[0] + w[1] + w[2] + w[3] + w[4] + w[5] + w[6] + w[7] + w[8] + w[9]
}

// lockNew locks the newest version in place of the previous one.
func (s *server) lockNew() (err error) {
	s.view.Unlock()
	if s.view, err = s.client.Lock(); err == nil {
		s.current, err = s.view.Table(s.table)
	}
	return err
}

// lockOld locks the newest version as the old view, which stays locked while others move on.
func (s *server) lockOld() (err error) {
	s.old.Unlock()
	if s.old, err = s.client.Lock(); err == nil {
		s.superseded, err = s.old.Table(s.table)
	}
	return err
}

// makeKeys prepares the keys of the next turn.
func (s *server) makeKeys(ops int, arg string, _ *reply) error {
	from, err := strconv.ParseUint(arg, 10, 64)
	if cap(s.keys) < ops {
		s.keys = make([]uint64, ops)
	}
	s.keys = s.keys[:ops]
	shuffledKeys(s.keys, from, s.records, s.seed)
	return err
}

// readTiles reads the tiles of the next turns.
func (s *server) readTiles(_ int, path string, r *reply) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	s.tiles = make([]format.Box, len(b)/16)
	r.Found = uint64(len(s.tiles))
	return binary.Read(bytes.NewReader(b), binary.LittleEndian, s.tiles)
}

// getKeys reads single keys.
func (s *server) getKeys(t *reader.Table, ops int, r *reply) error {
	for _, k := range s.keys[:ops] {
		value, err := t.GetUint64Value(k)
		if err != nil {
			return fmt.Errorf("key %d: %w", k, err)
		}
		s.consumeValue(value)
	}
	r.Found = uint64(ops)
	return nil
}

// multiGet reads keys in groups.
func (s *server) multiGet(t *reader.Table, ops int, arg string, r *reply) error {
	group, err := strconv.Atoi(arg)
	if err != nil || group < 1 || group > groupMax {
		return fmt.Errorf("group size %q is invalid; want 1 to %d", arg, groupMax)
	}
	for keys := s.keys[:ops]; len(keys) > 0; {
		n := min(group, len(keys))
		found, err := t.MultiGetUint64Values(keys[:n], s.values[:n])
		if err != nil {
			return err
		}
		for _, value := range s.values[:n] {
			// The caller compares Found with the number of keys, so a missing key is an error
			// there.
			if value != nil {
				s.consumeValue(value)
			}
		}
		r.Found += uint64(found)
		keys = keys[n:]
	}
	return nil
}

// lockViews locks and unlocks views.
func (s *server) lockViews(ops int, _ string, r *reply) error {
	for range ops {
		v, err := s.client.Lock()
		if err != nil {
			return err
		}
		v.Unlock()
	}
	r.Found = uint64(ops)
	return nil
}

// searchImage queries the image for tiles, starting at the given one.
func (s *server) searchImage(ops int, arg string, r *reply) error {
	from, err := strconv.Atoi(arg)
	for i := range ops {
		if err != nil {
			return err
		}
		q := s.tiles[(from+i)%len(s.tiles)]
		err = s.current.VisitBBox(q.Degrees(), func(it *reader.Item) bool {
			s.sum += uint64(it.Value[0])
			r.Found++
			return true
		})
	}
	return err
}

// mapHeap is the simplest layout in Go: a map from key to position, and one slice of values.
type mapHeap struct {
	index  map[uint64]uint32
	values []byte
}

// buildMap copies the image into a map. Each value takes 128 bytes, as a record does in the image.
func (s *server) buildMap(_ int, _ string, r *reply) error {
	h := &mapHeap{index: make(map[uint64]uint32, s.records), values: make([]byte, s.records*128)}
	err := s.current.VisitAll(func(it *reader.Item) bool {
		copy(h.values[len(h.index)*128:], it.Value)
		h.index[it.Number] = uint32(len(h.index))
		return true
	})
	s.heap, r.Found = h, uint64(len(h.index))
	return err
}

// getMap reads keys from the map.
func (s *server) getMap(ops int, _ string, r *reply) error {
	for _, k := range s.keys[:ops] {
		if at, ok := s.heap.index[k]; ok {
			s.consumeValue(s.heap.values[uint64(at)*128:][:valueSize])
			r.Found++
		}
	}
	return nil
}
