package snapshot

// CopiedIndex reports whether the last roll that kept the layout of the base copied its index too.
func (p *Publisher) CopiedIndex() bool { return p.kept.copied }
