package storage

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/rhumbdb/rhumb/keys"
)

// comparer is the key order of package keys in Pebble's form. The name is stored in every table:
// Pebble opens no table that another comparer wrote.
var comparer = &pebble.Comparer{
	Name:                 keys.ComparerName,
	Compare:              keys.Compare,
	Equal:                keys.Equal,
	Split:                keys.Split,
	AbbreviatedKey:       keys.Abbreviate,
	ComparePointSuffixes: keys.CompareSuffixes,
	CompareRangeSuffixes: keys.CompareSuffixes,
	Separator:            keys.Separator,
	Successor:            keys.Successor,
	ImmediateSuccessor:   keys.ImmediateSuccessor,
	FormatKey:            func(key []byte) fmt.Formatter { return formatKey(key) },
}

// formatKey formats a key in Pebble's messages.
type formatKey []byte

func (k formatKey) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, keys.Format(k)) }

const (
	// bloomBits is the size of the bloom filters per key: about 1 % of the lookups of absent keys
	// read a block. Version suffixes are not part of the filter's key, so one probe answers for a
	// record.
	bloomBits       = 10
	cacheDefault    = 64 << 20
	cacheLeast      = 64 << 10
	memTableDefault = 64 << 20
	// memTablesMax is how many full memtables may wait for their flush before writes wait. Pebble
	// keeps as many log files for reuse.
	memTablesMax = 4
	// memTablesUsual is how many memtables a store usually has: one is filled and one is flushed.
	memTablesUsual = 2
	// l0StopFiles is the number of sublevels of level 0 at which writes wait for compactions.
	l0StopFiles = 24
)

// pebbleOptions returns the options of the store's database.
func (s *Store) pebbleOptions() *pebble.Options {
	o := &pebble.Options{
		Comparer:                    comparer,
		FormatMajorVersion:          max(pebbleBase, pebble.FormatMajorVersion(s.header.pebbleFormat)),
		FS:                          s.fs,
		Cache:                       s.cfg.cache,
		MemTableSize:                uint64(s.cfg.MemTableBytes),
		MemTableStopWritesThreshold: memTablesMax,
		L0StopWritesThreshold:       l0StopFiles,
		Logger:                      logger{s.log, s.cfg.FatalHandler},
		CompactionConcurrencyRange:  func() (int, int) { return 1, max(1, runtime.GOMAXPROCS(0)/2) },
	}
	for i := range o.Levels {
		// Every level has filters, including the last. Creations look up names that do not exist, and
		// without a filter each of them would read a block of the last level. See absentOptions.
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(bloomBits)
		o.Levels[i].FilterType = pebble.TableFilter
	}
	o.EventListener = s.eventListener()
	// Tests change the options last, so that they can override everything.
	if s.cfg.Options != nil {
		s.cfg.Options(o)
	}
	return o
}

// eventListener returns the functions that Pebble calls on its events. Pebble may hold locks when
// it calls them, so none of them calls Pebble or blocks.
func (s *Store) eventListener() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			s.metrics.backgroundErrors.Inc()
			select {
			case s.flushFailed <- struct{}{}:
			default:
			}
			if !errors.Is(err, pebble.ErrCancelledCompaction) {
				s.log.Warn("a flush or compaction failed; Pebble retries it", "store", s.cfg.Dir, "err", err)
			}
		},
		// This event covers reads of callers and compactions alike: a caller's error alone would
		// not show damage that only a compaction met.
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			s.metrics.corruptions.Inc()
			f := faultOf(s.cfg.Dir, info.Details)
			f.File = info.Path
			s.metDamage(f)
		},
		PossibleAPIMisuse: func(info pebble.PossibleAPIMisuseInfo) {
			s.metrics.misuses.Inc()
			s.cfg.Misuse(fmt.Sprintf("%s of %s", info.Kind, keys.Format(info.UserKey)))
		},
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			s.metrics.stalls.Inc()
			s.log.Warn("writes wait for a flush or compaction", "store", s.cfg.Dir, "reason", info.Reason)
		},
		FlushEnd: func(pebble.FlushInfo) { s.noteFlushSoon() },
	}
}

// logger passes Pebble's messages on. Information is logged at debug level, because Pebble logs
// every flush and compaction.
type logger struct {
	log   *slog.Logger
	fatal func(string)
}

func (l logger) Infof(format string, args ...any)  { l.log.Debug(fmt.Sprintf(format, args...)) }
func (l logger) Errorf(format string, args ...any) { l.log.Error(fmt.Sprintf(format, args...)) }

// Fatalf implements pebble.Logger. Pebble relies on it not to return: it has no code for what
// follows.
func (l logger) Fatalf(format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	l.log.Error("the database cannot continue", "why", msg)
	l.fatal(msg)
	panic("storage: Config.FatalHandler returned after: " + msg)
}

// exitProcess is the default FatalHandler.
func exitProcess(string) { os.Exit(1) }
