package model

import (
	"unsafe"

	"github.com/zeebo/xxh3"
)

// renaming maps each replica to its new name.
type renaming [Replicas]uint8

var renamings = [...]renaming{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}

// mapSet renames the members of a set.
func (n *renaming) mapSet(s set) set {
	var out set
	for i := range Replicas {
		if s.has(i) {
			out = out.with(int(n[i]))
		}
	}
	return out
}

// mapLives moves the life of each replica to its new name.
func (n *renaming) mapLives(of [Replicas]uint8) (out [Replicas]uint8) {
	for i, life := range of {
		out[n[i]] = life
	}
	return out
}

// mapName renames a replica, which may be nobody.
func (n *renaming) mapName(i uint8) uint8 {
	if i == nobody {
		return nobody
	}
	return n[i]
}

// fingerprint returns one number for all states that differ only in the names of replicas. Replicas
// are sorted by marks that do not depend on names; where marks are equal every order is tried and
// the least fingerprint is taken. Sorting by marks avoids five of the six renamings unless marks
// are equal; each renaming copies and hashes the state. With named set, names count.
func (s *state) fingerprint(named bool) uint64 {
	if named {
		return xxh3.Hash(s.rawBytes())
	}
	var marks [Replicas]uint64
	for i := range marks {
		marks[i] = s.replicaMark(i)
	}
	best := ^uint64(0)
	for k := range renamings {
		n := &renamings[k]
		var placed [Replicas]uint64
		for i, m := range marks {
			placed[n[i]] = m
		}
		// Only renamings that sort the marks in descending order are candidates.
		if placed[0] < placed[1] || placed[1] < placed[2] {
			continue
		}
		t := s.renamed(n)
		best = min(best, xxh3.Hash(t.rawBytes()))
	}
	return best
}

// rawBytes returns the memory of a state, which consists of one-byte fields without padding.
func (s *state) rawBytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s))
}

// replicaMark returns a number of replica i that does not change when replicas are renamed. It must
// not depend on data per pair or on other names; fewer fields only make ties more frequent.
func (s *state) replicaMark(i int) uint64 {
	r := &s.rep[i]
	flags := uint8(0)
	for k, on := range [...]bool{
		s.meta.isr.has(i), int(s.meta.primary) == i, int(s.meta.preparedFor) == i, r.isr.has(i), r.pending.has(i), r.sent == 1,
		s.damagedNow(i), int(s.image.of) == i+1,
	} {
		if on {
			flags |= 1 << k
		}
	}
	more := uint8(0)
	for k, members := range [...]set{s.meta.replicas, s.far, s.gone, s.older, s.fenced, s.back} {
		if members.has(i) {
			more |= 1 << k
		}
	}
	b := [...]uint8{
		flags, more, s.removedIn[i], r.promised, r.boot, r.seen, r.commit, uint8(r.role), r.epoch, r.version, r.start,
		r.closed, r.published, uint8(r.isr.size()), uint8(r.pending.size()), s.round[i],
		r.log.n, uint8(r.log.e[0]), uint8(r.log.e[1]), uint8(r.log.e[2]), uint8(r.log.e[3]), uint8(r.log.e[4]),
		s.proposals[i][0].epoch, s.proposals[i][1].epoch,
	}
	return xxh3.Hash(b[:])
}

// renamed returns the state with other names.
func (s *state) renamed(n *renaming) state {
	t := *s
	t.meta.primary, t.meta.preparedFor, t.meta.isr = n.mapName(s.meta.primary), n.mapName(s.meta.preparedFor), n.mapSet(s.meta.isr)
	t.meta.replicas, t.far, t.gone, t.older = n.mapSet(s.meta.replicas), n.mapSet(s.far), n.mapSet(s.gone), n.mapSet(s.older)
	t.fenced, t.back = n.mapSet(s.fenced), n.mapSet(s.back)
	t.removedIn = n.mapLives(s.removedIn)
	t.meta.lives = n.mapLives(s.meta.lives)
	if s.image.of != 0 {
		t.image.of = n[s.image.of-1] + 1
	}
	for e := range t.meta.elections {
		el := &t.meta.elections[e]
		el.primary, el.isr, el.lives = n.mapName(el.primary), n.mapSet(el.isr), n.mapLives(el.lives)
	}
	for i := range s.rep {
		to := n[i]
		t.rep[to] = s.rep[i].renamed(n)
		t.round[to] = s.round[i]
		t.lost[to] = s.lost[i]
		t.adoptions[to] = s.adoptions[i]
		for k, q := range s.proposals[i] {
			q.isr, q.lives = n.mapSet(q.isr), n.mapLives(q.lives)
			t.proposals[to][k] = q
		}
	}
	// Messages hold names in from and to; HANDOVER also carries a set.
	for k := range s.inNet {
		m := &t.net[k]
		m.from, m.to = n.mapName(m.from), n.mapName(m.to)
		if m.kind == msgHandover {
			m.x = uint8(n.mapSet(set(m.x)))
		}
	}
	// The order of messages depends on names.
	t.sortNet()
	return t
}

// renamed returns the replica with other names in its sets and per-pair arrays.
func (r *replica) renamed(n *renaming) replica {
	t := *r
	t.isr, t.pending, t.votes, t.lives = n.mapSet(r.isr), n.mapSet(r.pending), n.mapSet(r.votes), n.mapLives(r.lives)
	for j := range Replicas {
		k := n[j]
		t.match[k], t.heard[k], t.agreed[k] = r.match[j], r.heard[j], r.agreed[j]
		t.belief[k], t.floor[k] = r.belief[j], r.floor[j]
		t.given[k], t.owed[k], t.confirmed[k], t.life[k] = r.given[j], r.owed[j], r.confirmed[j], r.life[j]
	}
	return t
}
