package snapshot

// CopiedIndex reports whether the last roll that kept the layout of the base copied its index too.
func (p *Publisher) CopiedIndex() bool { return p.kept.copied }

// RollAnew is Roll with a new layout, whether the one that is there could be kept or not.
func (p *Publisher) RollAnew(t *Table, shard int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	wall, _ := p.clock.now()
	seg, err := p.rollAnew(t.shards[shard], wall, room{})
	if err == nil {
		p.succeed(t.shards[shard], seg)
	}
	return err
}

// Idle gives how many tombstones the bases of a table have, and how many units lie idle there, as they were counted roll by roll
// and as they are.
func (t *Table) Idle() (counted, found [2]int64) {
	for _, s := range t.shards {
		seg := *s.seg
		counted[0], counted[1] = counted[0]+seg.dead, counted[1]+int64(seg.waste)
		seg.dead, seg.waste = 0, 0
		for ref := uint32(0); ref < seg.head.BaseUnits; ref += seg.unitsOf(ref) {
			seg.note(ref)
		}
		found[0], found[1] = found[0]+seg.dead, found[1]+int64(seg.waste)
	}
	return counted, found
}
