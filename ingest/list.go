package ingest

import (
	"strings"
	"unicode/utf8"

	"github.com/rhumbdb/rhumb"
)

// listScanner walks a Tcl list (Tcl's manual page "Tcl", rules 3 to 9, and "list"): elements stand between spaces and
// tabs; braces group and nest, and keep what they hold as it stands; quotes group and let backslashes speak; in bare
// elements backslashes speak too. An element without a backslash is a slice of the line; others are written to scratch.
type listScanner struct {
	line    []byte
	pos     int
	scratch []byte
}

const opList rhumb.Op = "ingest.list"

func isListSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// listStops has the bytes that are more to a bare element than themselves: those that end it, and the backslash.
var listStops = func() (stops [256]bool) {
	for c := range stops {
		stops[c] = isListSpace(byte(c)) || c == '\\'
	}
	return stops
}()

// next gives the next element, and ok false behind the last one.
func (s *listScanner) next() (element []byte, ok bool, err error) {
	for s.pos < len(s.line) && isListSpace(s.line[s.pos]) {
		s.pos++
	}
	if s.pos == len(s.line) {
		return nil, false, nil
	}
	switch s.line[s.pos] {
	case '{':
		element, err = s.braced()
	case '"':
		element, err = s.quoted()
	default:
		element = s.bare()
	}
	return element, err == nil, err
}

// braced reads up to the brace that closes the one at pos. A backslash keeps its next byte from counting as a brace.
func (s *listScanner) braced() ([]byte, error) {
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
				return s.line[start+1 : i], s.separated("a closing brace")
			}
		}
	}
	return nil, rhumb.Ef(opList, rhumb.InvalidArgument, "the brace at column %d is never closed", start+1)
}

// quoted reads up to the next quote that no backslash hides.
func (s *listScanner) quoted() ([]byte, error) {
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
			return element, s.separated("a closing quote")
		}
	}
	return nil, rhumb.Ef(opList, rhumb.InvalidArgument, "the quote at column %d is never closed", start+1)
}

func (s *listScanner) bare() []byte {
	start, i, escaped := s.pos, s.pos, false
	for {
		for i < len(s.line) && !listStops[s.line[i]] {
			i++
		}
		if i == len(s.line) || s.line[i] != '\\' {
			break
		}
		escaped = escaped || i+1 < len(s.line)
		i = min(i+2, len(s.line))
	}
	s.pos = i
	if escaped {
		return s.unescape(s.line[start:i])
	}
	return s.line[start:i]
}

// separated refuses an element that does not end where its grouping ends.
func (s *listScanner) separated(after string) error {
	if s.pos == len(s.line) || isListSpace(s.line[s.pos]) {
		return nil
	}
	return rhumb.Ef(opList, rhumb.InvalidArgument, "column %d: want a space after %s, found %q", s.pos+1, after, s.line[s.pos])
}

// unescape writes raw with its backslashes resolved to scratch, and gives that part of scratch.
func (s *listScanner) unescape(raw []byte) []byte {
	start := len(s.scratch)
	for i := 0; i < len(raw); {
		if raw[i] != '\\' || i+1 == len(raw) {
			s.scratch = append(s.scratch, raw[i])
			i++
			continue
		}
		i += 1 + s.escape(raw[i+1:])
	}
	return s.scratch[start:len(s.scratch):len(s.scratch)]
}

// escape appends what the escape behind a backslash stands for, and says how many bytes it took.
func (s *listScanner) escape(raw []byte) int {
	c := raw[0]
	switch {
	case c == 'x':
		return s.code(raw, 1, 2, 16, utf8.MaxRune)
	case c == 'u':
		return s.code(raw, 1, 4, 16, utf8.MaxRune)
	case c == 'U':
		return s.code(raw, 1, 8, 16, utf8.MaxRune)
	case c >= '0' && c <= '7':
		return s.code(raw, 0, 3, 8, 0xff)
	}
	if i := strings.IndexByte("abfnrtv", c); i >= 0 {
		c = "\a\b\f\n\r\t\v"[i]
	}
	s.scratch = append(s.scratch, c)
	return 1
}

// code appends the character, at most top, whose number stands in at most most digits from raw[from]; without digits,
// the letter.
func (s *listScanner) code(raw []byte, from, most int, base, top rune) int {
	value, i := rune(0), from
	for ; i < len(raw) && i < from+most; i++ {
		d := digit(raw[i])
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

func digit(c byte) rune {
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
