package image

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// The records that a writer and a watching reader share: the stamp is in the value of record 0; the pairs follow.
const (
	stampAt    = 8 // offset in the value; what is before has the tag of the value
	pairsCount = 128
	watchMax   = 60 * time.Second
)

// stampOver tells a watcher that the writer is done.
const stampOver = 1

func stampKey() uint64 { return mix(0) }

func pairKey(i int) uint64 { return mix(uint64(1 + i)) }

// watch polls for new versions and takes the time from the stamp in record 0 until it could be read here. It ends with the
// stamp stampOver.
func (s *server) watch(_ int, _ string, r *reply) error {
	last := s.view.Version()
	for monotonic()-s.now < watchMax {
		v, err := s.client.Lock()
		if err != nil {
			return err
		}
		if v.Version() == last {
			v.Unlock()
			continue
		}
		last = v.Version()
		stamp, err := s.stamp(v)
		seen := monotonic()
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
	return fmt.Errorf("the writer did not end within %v", watchMax)
}

func (s *server) stamp(v reader.View) (int64, error) {
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

// pairs reads pairs of records that the writer always changes together: within one view both carry one number. Found
// counts the pairs read, Bad those that were mixed.
func (s *server) pairs(_ int, _ string, r *reply) error {
	var keys [2 * pairsCount]uint64
	for i := range keys {
		keys[i] = pairKey(i)
	}
	items := make([]reader.Item, len(keys))
	last := uint64(0)
	for monotonic()-s.now < watchMax {
		v, err := s.client.Lock()
		if err != nil {
			return err
		}
		if v.Version() != last {
			last = v.Version()
			r.Versions++
		}
		stamp, err := s.stamp(v)
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
	return fmt.Errorf("the writer did not end within %v", watchMax)
}

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
