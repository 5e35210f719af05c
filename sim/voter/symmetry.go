package voter

import (
	"unsafe"

	"github.com/zeebo/xxh3"
)

// renaming maps the number of each voter to its new number.
type renaming [votersMax]uint8

// renameVoter returns the new number of a voter; nobody stays nobody.
func (n *renaming) renameVoter(i uint8) uint8 {
	if i == nobody {
		return nobody
	}
	return n[i]
}

func (n *renaming) renameSet(s set) (out set) {
	for i := range n {
		if s.has(i) {
			out = out.with(int(n[i]))
		}
	}
	return out
}

// renameLog renames the voters that the entries of a log admit.
func (n *renaming) renameLog(h *history) {
	for k := range h.n {
		if e := h.e[k]; !e.admits(nobody) {
			h.e[k] = e&^(7<<3) | entry(n[e>>3&7])<<3
		}
	}
}

// allRenamings returns all permutations of the first voters. The others keep their numbers.
func allRenamings(voters int) (out []renaming) {
	n := renaming{0, 1, 2, 3, 4}
	var permute func(int)
	permute = func(k int) {
		if k == voters {
			out = append(out, n)
			return
		}
		for i := k; i < voters; i++ {
			n[k], n[i] = n[i], n[k]
			permute(k + 1)
			// The exchange is undone before the next candidate for place k.
			n[k], n[i] = n[i], n[k]
		}
	}
	permute(0)
	return out
}

// fingerprint returns the same number for all states that differ only in the names of voters: the
// least hash over the renamings that sort the voters by their marks. all is the result of
// allRenamings.
//
// Without the marks every state would be hashed under all 120 renamings of five voters. With them,
// only voters with equal marks are permuted.
func (s *state) fingerprint(all []renaming) uint64 {
	var marks [votersMax]uint64
	for i := range marks {
		marks[i] = s.voterMark(i)
	}
	voters := len(marks)
	// Six renamings mean three voters.
	if len(all) == 6 {
		voters = 3
	}
	best := ^uint64(0)
	for k := range all {
		n := &all[k]
		// placed lists the marks by new number.
		var placed [votersMax]uint64
		for i := range voters {
			placed[n[i]] = marks[i]
		}
		// Marks do not depend on names, so two equivalent states have the same renamings left here.
		ordered := true
		for i := 1; i < voters; i++ {
			ordered = ordered && placed[i-1] >= placed[i]
		}
		if ordered {
			t := s.renameVoters(n)
			best = min(best, t.hash())
		}
	}
	return best
}

// hash hashes the memory of the state, which has no padding.
func (s *state) hash() uint64 {
	return xxh3.Hash(unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s)))
}

// voterMark returns a number of voter i that does not change when voters are renamed. It is a
// filter only: voters with equal marks may differ.
func (s *state) voterMark(i int) uint64 {
	v := &s.voters[i]
	flags, sent := uint8(0), uint8(0)
	for k := range s.inNet {
		if int(s.net[k].from) == i {
			sent++
		}
	}
	// Only facts without the number of another voter may enter the mark.
	for k, on := range [...]bool{
		s.damaged.has(i), int(s.image.of) == i+1, int(v.vote) == i, v.vote == nobody, s.leaders[2] == uint8(i+1),
		s.leaders[1] == uint8(i+1),
	} {
		if on {
			flags |= 1 << k
		}
	}
	return xxh3.Hash([]byte{
		flags, v.term, v.log.n, v.life, v.short, v.commit, uint8(v.role), v.silent, v.greatest, v.floor.term, v.floor.end, v.stored.term, v.stored.end,
		uint8(v.votes.size()), uint8(v.answers.size()), v.match[i], sent,
	})
}

// renameVoters returns the state under other names.
func (s *state) renameVoters(n *renaming) state {
	t := *s
	for i := range s.voters {
		// Every field that names a voter is mapped, in the voter itself and wherever else one is
		// named.
		v := s.voters[i]
		v.vote, v.votes, v.answers = n.renameVoter(v.vote), n.renameSet(v.votes), n.renameSet(v.answers)
		n.renameLog(&v.log)
		for j := range v.match {
			v.match[n[j]] = s.voters[i].match[j]
		}
		t.voters[n[i]] = v
	}
	for k := range s.inNet {
		t.net[k].from = n[t.net[k].from]
		n.renameLog(&t.net[k].log)
	}
	// The order of messages depends on the sender's number.
	t.sortNet()
	n.renameLog(&t.committed)
	for k, l := range s.leaders {
		if l != 0 {
			t.leaders[k] = n[l-1] + 1
		}
	}
	t.damaged = n.renameSet(s.damaged)
	if s.image.of != 0 {
		t.image.of, t.image.vote = n[s.image.of-1]+1, n.renameVoter(s.image.vote)
		n.renameLog(&t.image.log)
	}
	return t
}
