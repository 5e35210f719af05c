package audit

import (
	"errors"
	"iter"
	"strconv"
	"strings"

	"github.com/rhumbdb/rhumb"
)

// itoa returns a number in decimal, for texts.
func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// Report is the result of Verify.
type Report struct {
	Files   int
	Entries uint64
	// First is the number of the first entry that exists, Head the last one.
	First uint64
	Head  Head
	// Unfinished is set if the last file ends within an entry. The node removes that part when it
	// starts, so this is normal while it runs or after a crash.
	Unfinished bool
}

// BreakError is the first place where a chain does not hold.
type BreakError struct {
	File   string
	Offset int64
	Err    error
}

func (e *BreakError) Error() string {
	return e.File + " offset " + itoa(e.Offset) + ": " + rhumb.Message(e.Err)
}

// Unwrap returns an error of kind Corrupt or Incompatible.
func (e *BreakError) Unwrap() error { return e.Err }

// Verify checks the chain of a directory. With a head other than zero it also checks that the chain
// contains that entry, so that a cut end or a chain that was written again is found. It returns a
// *BreakError for the first break, and an error of kind NotFound if the file of that entry was removed by age: nothing ties
// the log to an older head, since whoever can write the folder can invent a log that claims to begin after it.
//
// It reads without a lock, also while the node writes. The node only appends, so the worst that a
// reader can see is an unfinished last line, and a segment that was removed in between is reported
// as missing; the caller repeats the check then.
func Verify(dir string, want Head) (Report, error) {
	const op rhumb.Op = "audit.Verify"
	segs, err := existingSegments(dir)
	if err != nil {
		return Report{}, err
	}
	v := verifier{want: want, found: want.Seq == 0}
	for i, s := range segs {
		if err := v.checkSegment(s, i == len(segs)-1); err != nil {
			return v.report, err
		}
	}
	if v.start.Seq > 0 && !v.explained {
		return v.report, &BreakError{segs[0].path, 0, rhumb.Ef(op, rhumb.Corrupt, "the chain begins with entry %d, and no entry records that the files before it were removed", segs[0].first)}
	}
	if want.Seq > 0 && want.Seq < v.start.Seq {
		return v.report, rhumb.Ef(op, rhumb.NotFound, "entry %d cannot be checked, because the log begins with entry %d: compare with a later head, and keep one at least as often as old files are removed", want.Seq, v.report.First)
	}
	if !v.found {
		last := segs[len(segs)-1]
		return v.report, &BreakError{last.path, v.end, rhumb.Ef(op, rhumb.Corrupt, "the chain ends with entry %d, but entry %d was written: entries were cut off", v.report.Head.Seq, want.Seq)}
	}
	return v.report, nil
}

// verifier is the state of Verify between segments.
type verifier struct {
	report Report
	// want is the given head; found reports whether the chain contains it.
	want  Head
	found bool
	// start is the head before the first segment; explained reports whether an entry Drop names it.
	start     Head
	explained bool
	end       int64 // offset after the last valid entry
}

// checkSegment checks one segment, which continues the chain of the ones before it.
func (v *verifier) checkSegment(s segment, last bool) error {
	const op rhumb.Op = "audit.Verify"
	// The header is read apart: entries of a segment that belongs elsewhere must not count.
	before, err := readHeader(s)
	switch {
	case err == nil && v.report.Files == 0:
		v.start, v.report.Head, v.report.First = before, before, before.Seq+1
		v.found = v.found || v.want == before
	case err == nil && before != v.report.Head:
		return &BreakError{s.path, 0, rhumb.Ef(op, rhumb.Corrupt, "the file continues after %s, but the file before it ends with %s", before, v.report.Head)}
	}
	v.report.Files++
	_, head, end, bad, err := scanSegment(s, func(e Entry, h Head, offset int64) error { return v.checkEntry(s, e, h, offset) })
	if err != nil {
		return err
	}
	v.end = end
	// A crash during the creation of the first segment leaves an empty file.
	if bad != nil && (!last || !bad.torn) {
		return &BreakError{s.path, bad.offset, bad.err}
	}
	v.report.Unfinished = bad != nil
	// A segment without a whole header has no head.
	if end > 0 {
		v.report.Head = head
	}
	return nil
}

// checkEntry looks at a valid entry.
func (v *verifier) checkEntry(s segment, e Entry, h Head, offset int64) error {
	v.report.Entries++
	if e.Kind == Break {
		return &BreakError{s.path, offset, rhumb.Ef("audit.Verify", rhumb.Corrupt, "the node found the log damaged before entry %d: %s: %s", e.Seq, e.Object, e.Detail)}
	}
	if e.Kind == Drop && strings.HasSuffix(e.Detail, v.start.String()) {
		v.explained = true
	}
	// An entry with the number of the head but another hash: someone wrote the log again from there on.
	if h.Seq == v.want.Seq {
		v.found = h == v.want
		if !v.found {
			return &BreakError{s.path, offset, rhumb.Ef("audit.Verify", rhumb.Corrupt, "entry %d has another hash than the given head: the log was written again", h.Seq)}
		}
	}
	return nil
}

// All returns the entries of a directory, oldest first. A directory without a log is an error. All
// stops at the first break with a *BreakError. An unfinished entry at the end is left out.
func All(dir string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		segs, err := existingSegments(dir)
		if err != nil {
			yield(Entry{}, err)
			return
		}
		for i, s := range segs {
			_, _, _, bad, err := scanSegment(s, func(e Entry, _ Head, _ int64) error {
				if !yield(e, nil) {
					return errStop
				}
				return nil
			})
			switch {
			case errors.Is(err, errStop):
				return
			case err == nil && bad != nil && (i < len(segs)-1 || !bad.torn):
				err = &BreakError{s.path, bad.offset, bad.err}
			}
			if err != nil {
				yield(Entry{}, err)
				return
			}
		}
	}
}
