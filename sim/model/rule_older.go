package model

// Two builds (docs/replication.md#rule-unknown-entry). An older one cannot read some entries; here these are the client writes, and not the
// entries that begin epochs. Entries after such an entry cannot be read either: the node waits there until it is upgraded.

// isRead reports whether node i can read an entry.
func (s *state) isRead(i int, e entry) bool { return !s.older.has(i) || e.isStart() }

// isStart reports whether the entry begins an epoch.
func (e entry) isStart() bool { return e&7 == 0 }

// readable returns the length of the part of a log that node i can read.
func (s *state) readable(i int, h *history) uint8 {
	for k := range h.n {
		if !s.isRead(i, h.e[k]) {
			return k
		}
	}
	return h.n
}

// upgradeNode restarts node i with the newer build.
func (g *stepper) upgradeNode(i int) {
	if !g.from.older.has(i) {
		return
	}
	t := *g.from
	t.older = t.older.without(i)
	g.newLife(&t, i)
	g.endStep(&t, Action{kind: actUpgrade, a: uint8(i)})
}

// readByOlder returns the message as an older build reads it, and whether it is received at all: an APPEND ends before the first unknown
// entry, and other messages with such an entry are lost.
func (g *stepper) readByOlder(i int, m message) (message, bool) {
	n := g.from.readable(i, &m.log)
	// An answer to PREPARE carries a position and a hash only.
	if n == m.log.n || m.kind == msgPromise {
		return m, true
	}
	if m.kind != msgAppend {
		return m, false
	}
	m.log.cut(n)
	m.x = min(m.x, m.log.n)
	return m, true
}
