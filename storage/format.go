package storage

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/rhumbdb/rhumb"
)

// pebbleBase is the format of new databases, which every supported build reads. pebbleNewest is the one that
// the features of this build allow. A database is never written in a format that the previous build cannot
// open before the cluster has the feature, so that a node can go back to that build.
const (
	pebbleBase   = pebble.FormatTableFormatV6
	pebbleNewest = pebble.FormatValueSeparation
)

// databaseFormat returns the format of a database in a cluster with the given version.
func databaseFormat(v rhumb.ClusterVersion) pebble.FormatMajorVersion {
	if v.Has(rhumb.FeaturePebbleFormat) {
		return pebbleNewest
	}
	return pebbleBase
}

// RaiseFormat raises the format of all databases to that of a cluster version. A database that has it is not
// changed, so the call may be repeated. The format never falls.
func (e *Engine) RaiseFormat(v rhumb.ClusterVersion) error {
	var errs []error
	for _, s := range e.stores {
		errs = append(errs, s.raiseFormat(databaseFormat(v)))
		if v.Has(rhumb.FeatureNodeLog) {
			errs = append(errs, s.allowLog())
		}
	}
	return errors.Join(errs...)
}

// allowLog records that the cluster version allows the store a log of its own. A store that has none yet gets it at its next start, because
// Pebble reads the options of its log once.
func (s *Store) allowLog() error {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	s.mu.RLock()
	allowed := s.header.flags&flagNodeLog != 0
	s.mu.RUnlock()
	if s.closed || allowed {
		return nil
	}
	return s.changeHeader(func(h *header) { h.flags |= flagNodeLog })
}

// Format returns the lowest format of the databases.
func (e *Engine) Format() uint32 {
	lowest := uint32(0)
	for i, s := range e.stores {
		if f := uint32(s.db.FormatMajorVersion()); i == 0 || f < lowest {
			lowest = f
		}
	}
	return lowest
}

// raiseFormat raises the format of one database.
//
// The STORE file names the format before the database has it. An earlier build reads that file first, and
// says which build it takes; in the other order a crash in between would leave that to an error of Pebble. The
// next start of this build opens the database with the format of the file.
func (s *Store) raiseFormat(to pebble.FormatMajorVersion) error {
	const op rhumb.Op = "storage.RaiseFormat"
	// Close waits for the lock, so the database stays open meanwhile.
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.closed || s.db.FormatMajorVersion() >= to {
		return nil
	}
	s.headerMu.Lock()
	defer s.headerMu.Unlock()
	s.mu.Lock()
	s.header.pebbleFormat = uint32(to)
	h := s.header
	s.mu.Unlock()
	if err := writeHeader(s.fs, s.cfg.Dir, &h); err != nil {
		return err
	}
	if err := s.db.RatchetFormatMajorVersion(to); err != nil {
		return s.dbError(op, err)
	}
	s.log.Info("the database has a newer format; earlier builds cannot open it any more", "dir", s.cfg.Dir, "format", uint32(to))
	return nil
}
