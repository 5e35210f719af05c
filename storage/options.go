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

// pebbleFormat is the format of the database below a store. It is raised only together with a step of the cluster's
// version (section 1.19 of the replication design). This one has log files that tell damage from their end, and tables
// with a checksum in their footer.
const pebbleFormat = pebble.FormatTableFormatV6

// comparer gives Pebble the order of package keys.
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

// formatKey shows a key in Pebble's messages.
type formatKey []byte

func (k formatKey) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, keys.Format(k)) }

const (
	bloomBits       = 10
	cacheDefault    = 64 << 20
	memTableDefault = 64 << 20
	// memTablesMax is how many full memtables may wait for their flush before writes wait; as many log files are recycled.
	memTablesMax = 4
	// memTablesUsual is how many memtables a store has at a time: one that fills, one that is flushed.
	memTablesUsual = 2
	// l0StopFiles is the number of sublevels at which writes wait for compaction.
	l0StopFiles = 24
)

// pebbleOptions gives the options of the database below s.
func (s *Store) pebbleOptions() *pebble.Options {
	o := &pebble.Options{
		Comparer:                    comparer,
		FormatMajorVersion:          pebbleFormat,
		FS:                          s.fs,
		Cache:                       s.cfg.cache,
		MemTableSize:                uint64(s.cfg.MemTableBytes),
		MemTableStopWritesThreshold: memTablesMax,
		L0StopWritesThreshold:       l0StopFiles,
		Logger:                      logger{s.log, s.cfg.FatalHandler},
		CompactionConcurrencyRange:  func() (int, int) { return 1, max(1, runtime.GOMAXPROCS(0)/2) },
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(bloomBits)
		o.Levels[i].FilterType = pebble.TableFilter
	}
	o.EventListener = s.eventListener()
	if s.cfg.Options != nil {
		s.cfg.Options(o)
	}
	return o
}

// eventListener takes what Pebble tells of itself.
func (s *Store) eventListener() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			s.metrics.backgroundErrors.Inc()
			if !errors.Is(err, pebble.ErrCancelledCompaction) {
				s.log.Warn("background work failed, it will be tried again", "store", s.cfg.Dir, "err", err)
			}
		},
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
			s.log.Warn("writes wait for flush or compaction", "store", s.cfg.Dir, "reason", info.Reason)
		},
		FlushEnd: func(pebble.FlushInfo) { s.noteFlushSoon() },
	}
}

// logger passes on what Pebble logs: information only to those who debug.
type logger struct {
	log   *slog.Logger
	fatal func(string)
}

func (l logger) Infof(format string, args ...any)  { l.log.Debug(fmt.Sprintf(format, args...)) }
func (l logger) Errorf(format string, args ...any) { l.log.Error(fmt.Sprintf(format, args...)) }

func (l logger) Fatalf(format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	l.log.Error("the database cannot go on", "why", msg)
	l.fatal(msg)
	panic("storage: Config.FatalHandler returned after: " + msg)
}

// exitProcess is the default FatalHandler.
func exitProcess(string) { os.Exit(1) }
