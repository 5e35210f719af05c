package voter

import (
	"errors"
	"fmt"

	"github.com/rhumbdb/rhumb"
)

// Bounds of the arrays in a state. They are small because every byte of a state is copied and
// hashed once per transition.
const (
	votersMax   = 5
	termsMax    = 3
	messagesMax = 2
	logMax      = 4
)

// Config describes a group and the bounds within which it is explored.
type Config struct {
	// Voters is the size of the group, 3 or 5.
	Voters int
	// Terms bounds the terms, including the first. Entries bounds the entries of a log.
	Terms, Entries int
	// Restarts bounds the restarts, Damages those among them that lose data, and Damaged the voters
	// that lose data.
	Restarts, Damages, Damaged int
	// Messages bounds the APPENDs in flight.
	Messages int
	// Images makes every damage the return of an older image of a disk, which may be taken at any
	// time.
	Images bool
	// Asking lets starting voters ask the others. Answers is the number of answers after which the
	// voter takes part; default all others.
	Asking  bool
	Answers int
	// Noticed makes every damage one that is noticed at the start, by the voter itself or because
	// its peers know a later life. Such a voter needs the answers of all others even if Answers is
	// smaller.
	Noticed bool
	// Admission lets leaders admit voters.
	Admission bool
	// Learning lets leaders admit voters by two changes of the configuration: one makes the voter a learner, who counts for nothing, and
	// one promotes it.
	Learning bool
	// Without is the part of the rule to leave out.
	Without Mutation
}

// withDefaults returns c with defaults in its zero fields.
func (c Config) withDefaults() Config {
	if c.Answers == 0 {
		c.Answers = c.Voters - 1
	}
	return c
}

// Validate returns an error that lists every fault of the configuration after defaults are applied.
func (c Config) Validate() error {
	const op rhumb.Op = "voter.Config.Validate"
	c = c.withDefaults()
	var faults []error
	within := func(name string, v, lo, hi int) {
		if v < lo || v > hi {
			faults = append(faults, rhumb.Ef(op, rhumb.InvalidArgument, "%s is %d, but must be %d to %d", name, v, lo, hi))
		}
	}
	within("Voters", c.Voters, 3, votersMax)
	// Four voters tolerate no more failures than three, and fingerprint expects 6 or 120 renamings.
	if c.Voters == 4 {
		faults = append(faults, rhumb.E(op, rhumb.InvalidArgument, "Voters is 4, but must be 3 or 5"))
	}
	within("Terms", c.Terms, 1, termsMax)
	within("Entries", c.Entries, 0, logMax)
	within("Restarts", c.Restarts, 0, 3)
	within("Damages", c.Damages, 0, c.Restarts)
	within("Damaged", c.Damaged, 0, c.Voters)
	within("Messages", c.Messages, 1, messagesMax)
	within("Answers", c.Answers, 1, c.Voters-1)
	return errors.Join(faults...)
}

// String returns the bounds in one line, in the form used in docs/model.md.
func (c Config) String() string {
	c = c.withDefaults()
	s := fmt.Sprintf("N%d T%d E%d R%d D%d of %d M%d", c.Voters, c.Terms, c.Entries, c.Restarts, c.Damages, c.Damaged, c.Messages)
	if c.Asking {
		s += fmt.Sprintf(", asking %d", c.Answers)
	}
	for _, o := range []struct {
		on   bool
		name string
	}{{c.Admission, "admission"}, {c.Learning, "learning"}, {c.Images, "images"}, {c.Noticed, "noticed"}} {
		if o.on {
			s += ", " + o.name
		}
	}
	return s
}
