package storage

import "time"

// Opening says how long the parts of opening a store took. The parts grow with different things: Check
// with the log that was written since the last flush, Replay with the same and with the number of tables,
// and Load with the number of ranges. None of them reads all records.
type Opening struct {
	// Check is the comparison of all files with the seal, and of the logs with their checksums.
	// Replay is the opening of the database, which applies the logs again. Load reads the states of
	// the ranges.
	Check, Replay, Load time.Duration
}

// timePart runs a part of the opening of a store and adds its time to took.
func timePart(took *time.Duration, part func() error) error {
	begin := time.Now()
	err := part()
	// A part runs twice if the store starts empty in place of a damaged database.
	*took += time.Since(begin)
	return err
}

// Opening returns how long the parts of opening the engine took. Its stores open at the same time, so
// each part counts as long as in the slowest store.
func (e *Engine) Opening() (out Opening) {
	for _, s := range e.stores {
		out.Check = max(out.Check, s.opening.Check)
		out.Replay = max(out.Replay, s.opening.Replay)
		out.Load = max(out.Load, s.opening.Load)
	}
	return out
}
