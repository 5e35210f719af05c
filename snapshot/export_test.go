package snapshot

import "github.com/rhumbdb/rhumb/snapshot/segment"

// RollAnew is Roll with a new layout, even if the layout of the base could be kept.
func (p *Publisher) RollAnew(t *Table, shard int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := t.shards[shard]
	seg, err := p.roller.PlanAnew(p.rollInput(s, segment.Room{})).Build()
	if err == nil {
		p.replaceSegment(s, seg)
	}
	return err
}

// IdleUnits returns how many tombstones the bases of a table have and how many units lie idle there: as they were counted from
// roll to roll, and as the records say.
func (t *Table) IdleUnits() (counted, found [2]int64) {
	for _, s := range t.shards {
		counted[0], counted[1] = counted[0]+s.seg.Base.Dead, counted[1]+int64(s.seg.Base.Waste)
		stats := s.seg.CountBase()
		found[0], found[1] = found[0]+stats.Dead, found[1]+int64(stats.Waste)
	}
	return counted, found
}
