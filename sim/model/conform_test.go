package model

import (
	"slices"
	"testing"
)

// members lists the replicas of a set.
func (s set) members() (out []uint64) {
	for i := range Replicas {
		if s.has(i) {
			out = append(out, uint64(i))
		}
	}
	return out
}

// glimpse returns what an observer sees of replica i.
func (s *state) glimpse(i int) Glimpse {
	r := &s.rep[i]
	v := Glimpse{
		Self: uint64(i), Promised: uint64(r.promised), Primary: r.role == primary, Elected: r.role == activating,
		Last: uint64(r.log.n), Commit: uint64(r.commit), Start: uint64(r.start),
		Version: uint64(r.version), InSync: r.isr.members(), Pending: r.pending.members(), Sent: r.sent == 1, Match: map[uint64]uint64{},
		Answers: r.votes.members(), Vouched: r.vouched == 1,
	}
	for j, m := range r.match {
		v.Match[uint64(j)] = uint64(m)
	}
	return v
}

// checkGlimpses checks a step of every replica, and returns the name of the guard that it breaks, or "".
func checkGlimpses(c *Config, from *state, st *step) string {
	guards := Guards{MinInSync: c.MinInSync}
	for i := range Replicas {
		// A restart ends a life, and a copy that is dropped or installed replaces the replica.
		switch st.act.kind {
		case actCrash, actDamage, actDrop, actInstall, actUpgrade, actEndRegion, actLoseRegion, actReturn:
			continue
		}
		before, after := from.glimpse(i), st.next.glimpse(i)
		if a, b := &from.rep[i].log, &st.next.rep[i].log; a.common(b) < b.n {
			after.Appended++
		}
		// The model forgets the answers when the epoch begins.
		after.Answers, after.Vouched = append(after.Answers, before.Answers...), after.Vouched || before.Vouched
		if rule, _ := guards.Check(&before, &after); rule != "" {
			return rule
		}
	}
	return ""
}

// conform searches for a step that breaks a guard, among the first states of a configuration.
func conform(t *testing.T, cfg Config, states int) string {
	t.Helper()
	cfg = cfg.withDefaults()
	seen := newVisited()
	first := newState(&cfg)
	cfg.normaliseState(&first)
	seen.add(first.fingerprint(false), 0)
	g := &stepper{cfg: &cfg}
	for queue := []state{first}; len(queue) > 0 && len(seen.prints) < states; queue = queue[1:] {
		s := queue[0]
		for _, st := range slices.Clone(g.successors(&s)) {
			if rule := checkGlimpses(&cfg, &s, &st); rule != "" {
				return rule
			}
			cfg.normaliseState(&st.next)
			if _, fresh := seen.add(st.next.fingerprint(false), 0); fresh {
				queue = append(queue, st.next)
			}
		}
	}
	return ""
}

// TestGuards checks the guards by which runs of the implementation are judged: no step of the whole protocol breaks one, and where a
// rule is left out, its guard refuses a step. A guard that no mutation breaks is not known to judge anything.
func TestGuards(t *testing.T) {
	const states = 12_000
	for _, cfg := range []Config{small, changing, joiningClosed, damaging, handing, removing, spreading, copying, oneAnswer} {
		if rule := conform(t, cfg, states); rule != "" {
			t.Errorf("%v: the whole protocol breaks the guard %s", cfg, rule)
		}
	}
	caught := map[string]bool{}
	for name, want := range map[string]string{
		"commit-needs-pending": "commit-needs-all", "shrink-after-commit": "commit-needs-all",
		"prepare-quorum":  "prepare-quorum",
		"join-caught-up":  "join-from-start",
		"join-from-start": "join-from-start",
		"sent-stays":      "pending-until-version", "both-until-decided": "pending-until-version", "pending-until-version": "pending-until-version",
		"no-cut-to-commit": "no-cut-to-commit",
	} {
		f, ok := MutationByName(name)
		if !ok {
			t.Fatalf("no mutation %s", name)
		}
		if got := conform(t, f.Config, states); got != want {
			t.Errorf("without %s the guard %q refuses, want %q", name, got, want)
		}
		caught[want] = true
	}
	// These have no mutation: they are refused by hand.
	at := Glimpse{Self: 1, Promised: 2, Primary: true, Commit: 3, Last: 4, InSync: []uint64{1, 2}, Version: 5}
	for want, change := range map[string]func(*Glimpse){
		"durable-promise":  func(b *Glimpse) { b.Promised = 1 },
		"commit-is-stable": func(b *Glimpse) { b.Commit = 2 },
		"change-in-bounds": func(b *Glimpse) { b.Pending = []uint64{1} },
	} {
		after := at
		change(&after)
		if got, _ := (&Guards{MinInSync: 2}).Check(&at, &after); got != want {
			t.Errorf("the guard %q refuses, want %q", got, want)
		}
		caught[want] = true
	}
	for _, name := range GuardNames() {
		if !caught[name] {
			t.Errorf("the guard %s is never seen to refuse", name)
		}
	}
}
