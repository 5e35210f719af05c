package ingest

import (
	"strings"
	"unicode/utf8"

	"github.com/rhumbdb/rhumb"
)

// listScanner reads the elements of a Tcl list (Tcl's manual pages "Tcl", rules 3 to 9, and
// "list"). Elements are separated by spaces and tabs. Braces group and nest, and keep their
// contents unchanged. Quotes group, and backslashes are resolved within them, as in elements
// without grouping. An element without a backslash is a slice of the line; others are written to
// scratch.
type listScanner struct {
	line    []byte
	pos     int
	scratch []byte
}

const opList rhumb.Op = "ingest.list"

func isListSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// listStops marks the bytes with a meaning in an element without grouping: those that end it, and
// the backslash.
var listStops = func() (stops [256]bool) {
	for c := range stops {
		stops[c] = isListSpace(byte(c)) || c == '\\'
	}
	return stops
}()

// next returns the next element, or ok false after the last one.
func (s *listScanner) next() (element []byte, ok bool, err error) {
	for s.pos < len(s.line) && isListSpace(s.line[s.pos]) {
		s.pos++
	}
	if s.pos == len(s.line) {
		return nil, false, nil
	}
	// A brace or quote groups only at the beginning of an element; within one it is an ordinary
	// byte.
	switch s.line[s.pos] {
	case '{':
		element, err = s.readBraced()
	case '"':
		element, err = s.readQuoted()
	default:
		element = s.readBare()
	}
	return element, err == nil, err
}

// readBraced reads up to the brace that closes the one at pos. A brace after a backslash does not
// count.
func (s *listScanner) readBraced() ([]byte, error) {
	start, depth := s.pos, 0
	for i := start; i < len(s.line); i++ {
		switch s.line[i] {
		case '\\':
			i++
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				s.pos = i + 1
				// Tcl resolves nothing within braces, so the element is always a slice of the line.
				return s.line[start+1 : i], s.checkSeparator("a closing brace")
			}
		}
	}
	return nil, rhumb.Ef(opList, rhumb.InvalidArgument, "the brace at column %d is never closed", start+1)
}

// readQuoted reads up to the next quote that does not follow a backslash.
func (s *listScanner) readQuoted() ([]byte, error) {
	start, escaped := s.pos, false
	for i := start + 1; i < len(s.line); i++ {
		switch s.line[i] {
		case '\\':
			escaped = true
			i++
		case '"':
			s.pos = i + 1
			element := s.line[start+1 : i]
			if escaped {
				element = s.unescape(element)
			}
			return element, s.checkSeparator("a closing quote")
		}
	}
	return nil, rhumb.Ef(opList, rhumb.InvalidArgument, "the quote at column %d is never closed", start+1)
}

// readBare reads an element without grouping.
func (s *listScanner) readBare() []byte {
	start, i, escaped := s.pos, s.pos, false
	for {
		for i < len(s.line) && !listStops[s.line[i]] {
			i++
		}
		if i == len(s.line) || s.line[i] != '\\' {
			break
		}
		// A backslash at the end of the line represents itself.
		escaped = escaped || i+1 < len(s.line)
		i = min(i+2, len(s.line))
	}
	s.pos = i
	if escaped {
		return s.unescape(s.line[start:i])
	}
	return s.line[start:i]
}

// checkSeparator rejects an element that continues after its closing brace or quote.
func (s *listScanner) checkSeparator(after string) error {
	if s.pos == len(s.line) || isListSpace(s.line[s.pos]) {
		return nil
	}
	return rhumb.Ef(opList, rhumb.InvalidArgument, "column %d: want a space after %s, found %q", s.pos+1, after, s.line[s.pos])
}

// unescape writes raw to scratch with its backslashes resolved, and returns that part of scratch.
func (s *listScanner) unescape(raw []byte) []byte {
	start := len(s.scratch)
	for i := 0; i < len(raw); {
		if raw[i] != '\\' || i+1 == len(raw) {
			s.scratch = append(s.scratch, raw[i])
			i++
			continue
		}
		i += 1 + s.resolveEscape(raw[i+1:])
	}
	// The capacity is cut off: the next element is appended to scratch after it.
	return s.scratch[start:len(s.scratch):len(s.scratch)]
}

// resolveEscape appends the character of the escape sequence after a backslash. It returns the
// number of bytes that the sequence takes.
func (s *listScanner) resolveEscape(raw []byte) int {
	c := raw[0]
	switch {
	case c == 'x':
		return s.appendCode(raw, 1, 2, 16, utf8.MaxRune)
	case c == 'u':
		return s.appendCode(raw, 1, 4, 16, utf8.MaxRune)
	case c == 'U':
		return s.appendCode(raw, 1, 8, 16, utf8.MaxRune)
	case c >= '0' && c <= '7':
		return s.appendCode(raw, 0, 3, 8, 0xff)
	}
	// Any other character represents itself, as in Tcl.
	if i := strings.IndexByte("abfnrtv", c); i >= 0 {
		c = "\a\b\f\n\r\t\v"[i]
	}
	s.scratch = append(s.scratch, c)
	return 1
}

// appendCode appends the character whose number is in at most most digits from raw[from]. The
// number is at most top: digits that would exceed it are not part of the sequence. Without digits,
// it appends the letter.
func (s *listScanner) appendCode(raw []byte, from, most int, base, top rune) int {
	value, i := rune(0), from
	for ; i < len(raw) && i < from+most; i++ {
		d := digitValue(raw[i])
		// A digit that would exceed the greatest character ends the sequence.
		if d >= base || value*base+d > top {
			break
		}
		value = value*base + d
	}
	if i == from {
		s.scratch = append(s.scratch, raw[0])
		return 1
	}
	s.scratch = utf8.AppendRune(s.scratch, value)
	return i
}

// digitValue returns the value of a hexadecimal digit, or a value above every base.
func digitValue(c byte) rune {
	switch {
	case c >= '0' && c <= '9':
		return rune(c - '0')
	case c >= 'a' && c <= 'f':
		return rune(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return rune(c-'A') + 10
	}
	return 99
}
