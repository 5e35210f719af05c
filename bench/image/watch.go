package image

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// The records that a writer and a watching reader share. The stamp is in the value of record 0; the
// pairs follow.
const (
	stampAt    = 8 // offset in the value, after the tag of the value
	pairsCount = 128
	watchMax   = 60 * time.Second
)

// stampOver signals a watcher that the writer has finished.
const stampOver = 1

// stampKey returns the key of the stamp.
func stampKey() uint64 { return mixKey(0) }

// pairKey returns the key of record i of the pairs.
func pairKey(i int) uint64 { return mixKey(uint64(1 + i)) }

// watchStamps polls for new versions and measures the time from the stamp in record 0 until it was
// readable here. It ends with the stamp stampOver.
func (s *server) watchStamps(_ int, _ string, r *reply) error {
	last := s.view.Version()
	for monotonicNow()-s.now < watchMax {
		v, err := s.client.Lock()
		if err != nil {
			return err
		}
		// An unchanged version is the common case, and must cost little.
		if v.Version() == last {
			v.Unlock()
			continue
		}
		// Only a new version can hold a new stamp.
		last = v.Version()
		stamp, err := s.readStamp(v)
		seen := monotonicNow()
		v.Unlock()
		if err != nil {
			return err
		}
		if stamp == stampOver {
			slices.Sort(r.Latencies)
			return s.lockNew()
		}
		r.Versions++
		r.Latencies = append(r.Latencies, int64(seen)-stamp)
	}
	return fmt.Errorf("the writer did not finish within %v", watchMax)
}

// readStamp returns the stamp in a view.
func (s *server) readStamp(v reader.View) (int64, error) {
	t, err := v.Table(s.table)
	if err != nil {
		return 0, err
	}
	it, err := t.GetUint64(stampKey())
	if err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(it.Value[stampAt:])), nil
}

// watchPairs reads pairs of records that the writer always changes together, so within one view
// both hold the same number. Found counts the pairs read, Bad the mixed ones.
func (s *server) watchPairs(_ int, _ string, r *reply) error {
	var keys [2 * pairsCount]uint64
	for i := range keys {
		keys[i] = pairKey(i)
	}
	items := make([]reader.Item, len(keys))
	last := uint64(0)
	for monotonicNow()-s.now < watchMax {
		v, err := s.client.Lock()
		if err != nil {
			return err
		}
		if v.Version() != last {
			last = v.Version()
			r.Versions++
		}
		// The stamp is read in the same view as the pairs.
		stamp, err := s.readStamp(v)
		if err == nil {
			err = s.comparePairs(v, keys[:], items, r)
		}
		v.Unlock()
		if err != nil {
			return err
		}
		if stamp == stampOver {
			return s.lockNew()
		}
	}
	return fmt.Errorf("the writer did not finish within %v", watchMax)
}

// comparePairs compares all pairs in one view.
func (s *server) comparePairs(v reader.View, keys []uint64, items []reader.Item, r *reply) error {
	t, err := v.Table(s.table)
	if err != nil {
		return err
	}
	if _, err := t.MultiGetUint64(keys, items); err != nil {
		return err
	}
	for i := 0; i < len(items); i += 2 {
		r.Found++
		if string(items[i].Value[stampAt:stampAt+8]) != string(items[i+1].Value[stampAt:stampAt+8]) {
			r.Bad++
		}
	}
	return nil
}
