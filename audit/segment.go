package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rhumbdb/rhumb"
)

// suffix is the end of the names of segment files.
const suffix = ".audit"

// segment is a file of the log. Its name is the number of its first entry.
//
// The name sorts as the number does, up to the largest number, so a directory listing is the order
// of the log.
type segment struct {
	path  string
	first uint64
}

// name returns the file name without the directory.
func (s segment) name() string { return filepath.Base(s.path) }

// newSegment returns the segment that begins with an entry.
func newSegment(dir string, first uint64) segment {
	return segment{filepath.Join(dir, fmt.Sprintf("%020d%s", first, suffix)), first}
}

// listSegments returns the segments of a directory, oldest first.
func listSegments(dir string) (list []segment, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, rhumb.WrapKind("audit.list", rhumb.NotFound, err)
	}
	for _, f := range files {
		number, ok := strings.CutSuffix(f.Name(), suffix)
		if !ok {
			continue
		}
		// Only names that newSegment returns: other files are not of this log.
		if first, err := strconv.ParseUint(number, 10, 64); err == nil && len(number) == 20 {
			list = append(list, newSegment(dir, first))
		}
	}
	slices.SortFunc(list, func(a, b segment) int { return cmp.Compare(a.first, b.first) })
	return list, nil
}

// existingSegments is like listSegments, but a directory without a log is an error.
func existingSegments(dir string) ([]segment, error) {
	list, err := listSegments(dir)
	if err == nil && len(list) == 0 {
		err = rhumb.Ef("audit.list", rhumb.NotFound, "%s has no files of an audit log; the log of a node is in the folder audit of its first directory", dir)
	}
	return list, err
}

// flaw is the first place of a segment that cannot be read.
type flaw struct {
	offset int64
	err    error
	// torn reports that nothing complete follows: a write was interrupted here.
	torn bool
}

// scanSegment reads a segment. It calls visit for each valid entry with the offset of its line, and
// returns the head after the last of them, the offset after it and the first flaw, or nil. The
// returned error is one of reading the file or of visit.
func scanSegment(s segment, visit func(e Entry, h Head, offset int64) error) (before, head Head, end int64, bad *flaw, err error) {
	f, err := os.Open(s.path)
	if err != nil {
		return before, head, 0, nil, rhumb.Wrap("audit.scan", err)
	}
	defer f.Close()
	return scanBytes(f, s.first, visit)
}

// scanBytes is scanSegment for the content of the segment whose first entry has a number.
func scanBytes(content io.Reader, first uint64, visit func(e Entry, h Head, offset int64) error) (before, head Head, end int64, bad *flaw, err error) {
	// The buffer is the bound of a line.
	r := bufio.NewReaderSize(content, lineMax)
	line, flawed, err := readLine(r)
	if flawed != nil || err != nil {
		return before, head, 0, flawed, err
	}
	if line == nil {
		return before, head, 0, &flaw{torn: true, err: rhumb.E("audit.scan", rhumb.Corrupt, "the file is empty")}, nil
	}
	if before, err = decodeHeader(line); err != nil {
		return before, head, 0, &flaw{err: err}, nil
	}
	if before.Seq+1 != first {
		return before, before, 0, &flaw{err: rhumb.Ef("audit.scan", rhumb.Corrupt, "the header says that the file begins with entry %d, and its name says %d", before.Seq+1, first)}, nil
	}
	// From here on each line continues the chain of the header.
	head, end = before, int64(len(line))+1
	for {
		line, flawed, err := readLine(r)
		if err != nil || line == nil && flawed == nil {
			return before, head, end, nil, err
		}
		if flawed != nil {
			flawed.offset = end
			return before, head, end, flawed, nil
		}
		e, h, err := decodeEntry(line, head)
		if err != nil {
			return before, head, end, &flaw{end, err, isTorn(line, r)}, nil
		}
		if visit != nil {
			if err := visit(e, h, end); err != nil {
				return before, head, end, nil, err
			}
		}
		head, end = h, end+int64(len(line))+1
	}
}

// isTorn reports whether an invalid line is the end of an interrupted write. rest reads the file after the line. File systems
// fill blocks that were not written before a crash with zeros. A single zero is more likely a changed byte, and if complete
// entries follow, they were synced after the line, so the line was whole once. Neither may pass for the end of the log: the
// entries that follow would be ignored, and the next start would remove them.
func isTorn(line []byte, rest *bufio.Reader) bool {
	if bytes.Count(line, []byte{0}) < 2 {
		return false
	}
	for {
		line, err := rest.ReadSlice('\n')
		if err == nil && looksComplete(line) {
			return false
		}
		// A part of a long line is not an entry; the loop continues after it.
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return true
		}
	}
}

// looksComplete reports whether a line has the form of an entry. It checks neither content nor hash.
func looksComplete(line []byte) bool {
	sum, body, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
	return ok && parseHash(string(sum), new(Hash)) && json.Valid(body)
}

// readLine reads one line without its line feed. At the end of the file the line is nil.
func readLine(r *bufio.Reader) (line []byte, bad *flaw, err error) {
	line, err = r.ReadSlice('\n')
	switch {
	case err == nil:
		return line[:len(line)-1], nil, nil
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, &flaw{err: rhumb.Ef("audit.scan", rhumb.Corrupt, "a line is longer than %d bytes", lineMax), torn: isTorn(line, r)}, nil
	case !errors.Is(err, io.EOF):
		return nil, nil, rhumb.Wrap("audit.scan", err)
	case len(line) == 0:
		return nil, nil, nil
	}
	return nil, &flaw{err: rhumb.E("audit.scan", rhumb.Corrupt, "the last line has no end"), torn: true}, nil
}
