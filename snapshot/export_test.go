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
