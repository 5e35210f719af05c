package nodelog

// place is a record and where it begins in its segment.
type place struct {
	head
	at int64
}

// segmentScan is the result of reading one segment. Its chain are the valid records from the first place of the segment on that follow one
// another: of one lap, with consecutive numbers and boots that never decrease. Everything after the chain is of an earlier lap, or of writes
// that were interrupted or discarded.
type segmentScan struct {
	// first and last are the ends of the chain; lap is 0 if the segment begins with no valid record.
	first, last head
	// end is the offset after the chain.
	end int64
	// loose are the records of the chain that no later record of it says to be durable.
	loose []place
	// flipped is the kind of the record that should follow in this lap, if it is there but for one bit.
	flipped byte
	// data is the greatest number of a valid record other than a mark.
	data Number
	// greatest holds, for each field on its own, the greatest value of any valid record in the file.
	greatest head
	// newer is the version of a record that this build cannot read, or 0.
	newer byte
}

// scanSegment reads a whole segment. All its sectors are examined: the promises of records after a gap count as well.
func scanSegment(b []byte, seed uint32) (s segmentScan) {
	s.end = Sector
	chained := true
	for at := int64(Sector); at+headerSize <= int64(len(b)); {
		h, payload, newer, ok := decodeRecord(b[at:], seed)
		if newer > s.newer {
			s.newer = newer
		}
		// The chain ends here, whether the record is invalid or only not the next one.
		if chained && !(ok && s.follows(h)) {
			chained = false
			if s.last.lap != 0 && !ok {
				s.flipped = oneBitOff(b[at:], seed, s.last.lap, s.last.number+1)
			}
		}
		if !ok {
			at += Sector
			continue
		}
		s.greatest.raise(h)
		if h.kind == kindData {
			s.data = max(s.data, h.number)
		}
		if chained {
			s.extendChain(place{h, at})
		}
		// A valid record is skipped whole, because its payload may hold bytes of a log.
		at += paddedSize(len(payload))
		if chained {
			s.end = at
		}
	}
	return s
}

// follows reports whether a record is the next one of the chain.
func (s *segmentScan) follows(h head) bool {
	if s.last.lap == 0 {
		return true
	}
	return h.lap == s.last.lap && h.number == s.last.number+1 && h.boot >= s.last.boot
}

// extendChain adds a record to the chain.
func (s *segmentScan) extendChain(p place) {
	if s.first.lap == 0 {
		s.first = p.head
	}
	s.last = p.head
	for len(s.loose) > 0 && s.loose[0].number <= p.synced {
		s.loose = s.loose[1:]
	}
	s.loose = append(s.loose, p)
}

// raise makes each field the greater one.
func (h *head) raise(o head) {
	h.lap, h.boot = max(h.lap, o.lap), max(h.boot, o.boot)
	h.number, h.synced, h.trimmed = max(h.number, o.number), max(h.synced, o.synced), max(h.trimmed, o.trimmed)
}
