package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
)

// The files in the directory of a ledger.
const (
	FileName = "ledger"
	MarkName = "mark"
	lockName = "lock"
)

// sizeMax bounds the file. A node causes about 80 records of 400 bytes a year.
const sizeMax = 1 << 30

// lockWait bounds the wait for another process that uses the ledger; lockPoll is how often it
// looks.
const (
	lockWait = 10 * time.Second
	lockPoll = 5 * time.Millisecond
)

// Ledger is an open ledger. Several processes may have it open: each operation locks the file and
// reads the records of the others. It is safe for concurrent use.
//
// The file is a log in the sense of databases: records are appended and never changed, and the
// state is the sum of them. A database of its own was rejected, because an operator must be able to
// read the history of an authority with less and grep, years later and on another machine.
type Ledger struct {
	dir  string
	wall func() time.Time
	warn func(msg string, args ...any)

	mu    sync.Mutex // guards the fields below; the lock file excludes other processes
	lock  *os.File
	state *State
	size  int64       // how much of the file is in state
	file  os.FileInfo // the file that was read
}

// Create creates the ledger of a new authority.
//
// adopted says that the cluster is older than the authority.
func Create(dir string, cluster rhumb.ClusterID, adopted bool, wall func() time.Time) error {
	path := filepath.Join(dir, FileName)
	if _, err := os.Lstat(path); err == nil {
		return rhumb.Ef(opLedger, rhumb.AlreadyExists, "%s exists", path)
	}
	l, err := openLock(dir, wall, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	l.state = newState()
	return l.locked(func() error {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			err = errors.Join(handOver(f), f.Close(), SyncDir(dir))
		}
		if err != nil {
			return rhumb.WrapKind(opLedger, rhumb.Unavailable, err)
		}
		made := Record{Kind: Made, Cluster: cluster.String()}
		if adopted {
			made.Why = WhyAdopted
		}
		// The first record also creates the mark, without which every later operation would report
		// a loss.
		return l.append([]Record{made})
	})
}

// Open opens the ledger of a cluster and reads it. warn receives events that an operator should
// know.
func Open(dir string, cluster rhumb.ClusterID, wall func() time.Time, warn func(msg string, args ...any)) (*Ledger, error) {
	l, err := openLock(dir, wall, warn)
	if err != nil {
		return nil, err
	}
	// Reading once at the start shows damage to the operator who starts the server, not to the
	// first node that needs it.
	err = l.View(func(*State) {})
	if err == nil && l.state.Cluster != "" && l.state.Cluster != cluster.String() {
		err = rhumb.Ef(opLedger, rhumb.WrongCluster, "%s is the ledger of cluster %s, and the authority is that of %s", l.path(), l.state.Cluster, cluster)
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// openLock opens the lock file, which every process that uses the ledger has open. The lock file is
// never removed: two processes could then hold locks on two files of one name.
func openLock(dir string, wall func() time.Time, warn func(string, ...any)) (*Ledger, error) {
	if warn == nil {
		warn = func(string, ...any) {}
	}
	lock, err := openOwn(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, err
	}
	if err := handOver(lock); err != nil {
		return nil, errors.Join(rhumb.WrapKind(opLedger, rhumb.Unavailable, err), lock.Close())
	}
	return &Ledger{dir: dir, wall: wall, warn: warn, lock: lock}, nil
}

// Close closes the ledger.
func (l *Ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lock.Close()
}

// path returns the name of the file with the records, for errors and events.
func (l *Ledger) path() string { return filepath.Join(l.dir, FileName) }

// markPath returns the name of the file with the last acknowledged head.
func (l *Ledger) markPath() string { return filepath.Join(l.dir, MarkName) }

// View calls f with the current state.
func (l *Ledger) View(f func(s *State)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locked(func() error {
		if err := l.refresh(); err != nil {
			return err
		}
		f(l.state)
		return nil
	})
}

// Update calls f with the current state and appends the records that f returns. It returns once
// they are on disk. If f returns an error, the records are appended and the error is returned: a
// refusal may have to be recorded.
func (l *Ledger) Update(f func(s *State) ([]Record, error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locked(func() error {
		if err := l.refresh(); err != nil {
			return err
		}
		records, err := f(l.state)
		if errAppend := l.append(records); errAppend != nil {
			return errAppend
		}
		return err
	})
}

// Witness compares the ledger with a head that it had at a time. If the ledger does not contain
// that head, records were lost; then Witness appends a gap and returns true. A head from before the
// newest gap is not new evidence: that gap has voided all tokens of its time.
func (l *Ledger) Witness(h Head, at time.Time, who string) (lost bool, err error) {
	err = l.Update(func(s *State) ([]Record, error) {
		// Every node that was there before the loss brings back such a head. The first one voids
		// the tokens; without the second condition, each of the others would void the tokens that
		// were made since.
		if s.Holds(h) || s.Gaps > 0 && !at.After(s.LastGap) {
			return nil, nil
		}
		lost = true
		why := fmt.Sprintf("%s has seen record %d of %s, which this ledger does not hold", who, h.Seq, at.UTC().Format(time.RFC3339))
		// Numbers continue above everything that ever existed. If lost numbers were used again, a
		// head from before the loss could look valid again.
		return []Record{{Kind: Gap, Seq: max(h.Seq, s.head.Seq) + 1, Why: why}}, nil
	})
	if lost && err == nil {
		l.warn("the ledger has lost records; all tokens are void, make new ones", "witness", who, "record", h.Seq, "file", l.path())
	}
	return lost, err
}

// locked runs f while no other process uses the ledger. The caller holds l.mu.
func (l *Ledger) locked(f func() error) error {
	deadline := time.Now().Add(lockWait)
	for {
		// Polled rather than waited for in the kernel, where a deadline is impossible. The lock
		// ends with the process, so a crash leaves none.
		err := unix.Flock(int(l.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return rhumb.Ef(opLedger, rhumb.Unavailable, "cannot lock %s: %v", l.lock.Name(), err)
		}
		if time.Now().After(deadline) {
			return rhumb.Ef(opLedger, rhumb.Unavailable, "another process has held %s for %v; look for a hanging rhumb process", l.lock.Name(), lockWait)
		}
		time.Sleep(lockPoll)
	}
	defer func() { _ = unix.Flock(int(l.lock.Fd()), unix.LOCK_UN) }()
	return f()
}

// refresh reads what other processes appended, and finds damage and loss.
func (l *Ledger) refresh() error {
	known := Head{}
	if l.state != nil {
		known = l.state.head
	}
	info, err := os.Stat(l.path())
	if errors.Is(err, fs.ErrNotExist) {
		l.state, l.size = newState(), 0
		return l.refill("it does not exist", known)
	}
	if err != nil {
		return rhumb.WrapKind(opLedger, rhumb.Unavailable, err)
	}
	if info.Size() > sizeMax {
		return rhumb.Ef(opLedger, rhumb.TooLarge, "%s has %d bytes, more than %d; move the authority to a new directory and rotate its key", l.path(), info.Size(), sizeMax)
	}
	// The mark is read before the ledger. The other way round, a process that appends in between
	// without this lock, such as a backup program that restores files, could make an intact ledger
	// look old.
	mark, errMark := l.readMark()
	// Another file, or a shorter one, was not read by this process before. Then the whole file is
	// read again and has to contain everything that this process knows.
	if l.state == nil || !os.SameFile(info, l.file) || info.Size() < l.size {
		l.state, l.size = newState(), 0
	}
	l.file = info
	if info.Size() > l.size {
		if err := l.readTail(mark.Seq, errMark == nil); err != nil {
			l.state = nil // after an error nothing in memory may be relied on
			return err
		}
	}
	// Two witnesses of different strength: the mark survives a restart, and the memory of this
	// process survives a mark that was restored together with the ledger.
	for _, h := range []Head{mark, known} {
		if h.Seq != 0 && !l.state.Holds(h) {
			return l.refill(fmt.Sprintf("it does not hold record %d, which was on disk", h.Seq), known)
		}
	}
	// A mark that this user cannot read proves nothing about the ledger.
	if rhumb.KindOf(errMark) == rhumb.PermissionDenied {
		return errMark
	}
	if errMark != nil {
		return l.refill(rhumb.Message(errMark), known)
	}
	return nil
}

// refill appends a gap after a loss of records that the files themselves show.
//
// The loss is repaired at once and not only reported. An authority that refused to work after a
// restore could not be used to recover a cluster; with all tokens void, working is safe.
func (l *Ledger) refill(why string, known Head) error {
	mark, _ := l.readMark() // unreadable: the gap follows the records that are left
	l.warn("the ledger has lost records; all tokens are void, make new ones", "file", l.path(), "why", why)
	seq := max(mark.Seq, known.Seq, l.state.head.Seq) + 1
	return l.append([]Record{{Kind: Gap, Seq: seq, Why: why}})
}

// batchMax is the greatest number of records of one Update, and so of a torn end.
const batchMax = 4

// readTail reads the file from l.size. A torn end that no mark covers is cut off.
func (l *Ledger) readTail(marked uint64, hasMark bool) error {
	f, err := openOwn(l.path(), os.O_RDWR)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, l.size, sizeMax))
	if err != nil {
		return rhumb.WrapKind(opLedger, rhumb.Unavailable, err)
	}
	for len(data) > 0 {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		r, text, err := decodeLine(line)
		if err == nil && whole {
			err = l.state.apply(r, text)
			if err == nil {
				l.size += int64(len(line) + 1)
				data = rest
				continue
			}
		}
		if err == nil {
			err = errors.New("the line is not complete")
		}
		if rhumb.KindOf(err) == rhumb.Incompatible {
			return err
		}
		// Only the newest records can be torn, and only if nobody got an answer that relies on
		// them.
		if hasMark && bytes.Count(rest, []byte("\n")) < batchMax && l.state.head.Seq >= marked {
			l.warn("the last write to the ledger was not finished; it is cut off", "file", l.path(), "offset", l.size)
			if err := f.Truncate(l.size); err != nil {
				return rhumb.WrapKind(opLedger, rhumb.Unavailable, err)
			}
			return rhumb.WrapKind(opLedger, rhumb.Unavailable, f.Sync())
		}
		return rhumb.Ef(opLedger, rhumb.Corrupt, "%s is damaged at offset %d, after record %d: %v; `rhumb authority repair` keeps what is intact before it and voids all tokens",
			l.path(), l.size, l.state.head.Seq, err)
	}
	return nil
}

// decodeLine checks and decodes one line.
func decodeLine(line []byte) (Record, []byte, error) {
	text, err := openLine(line)
	if err != nil {
		return Record{}, nil, err
	}
	r, err := decodeRecord(text)
	return r, text, err
}

// append numbers the records and writes them, then the mark.
func (l *Ledger) append(records []Record) error {
	if len(records) == 0 {
		return nil
	}
	if len(records) > batchMax {
		panic("ledger: an update has too many records")
	}
	now := l.state.Now(l.wall().UTC().Truncate(time.Millisecond))
	var lines []byte
	next := *l.state // numbers only: apply changes the maps after the write
	var texts [][]byte
	for i := range records {
		r := &records[i]
		r.Time = now
		if r.Kind != Gap {
			r.Seq = next.head.Seq + 1
		}
		next.head.Seq = r.Seq
		text, err := json.Marshal(r)
		if err != nil {
			return rhumb.Wrap(opLedger, err)
		}
		texts = append(texts, text)
		lines = append(lines, sealLine(text)...)
	}
	if err := l.write(lines); err != nil {
		// The content of the disk is unknown; the next operation reads it again.
		l.state = nil
		return rhumb.Ef(opLedger, rhumb.Unavailable, "cannot write %s: %v", l.path(), err)
	}
	for i, r := range records {
		if err := l.state.apply(r, texts[i]); err != nil {
			panic("ledger: " + err.Error()) // Update built a record that contradicts the state
		}
	}
	l.size += int64(len(lines))
	// The mark follows the record and precedes the answer. A crash before it loses nothing that
	// anybody relies on; a crash after it leaves a mark that proves the record.
	if err := l.writeMark(); err != nil {
		l.state = nil
		return rhumb.Ef(opLedger, rhumb.Unavailable, "cannot write %s: %v", l.markPath(), err)
	}
	return nil
}

// write appends lines and syncs them.
func (l *Ledger) write(lines []byte) error {
	f, err := openOwn(l.path(), os.O_CREATE|os.O_WRONLY)
	if err != nil {
		return err
	}
	// At l.size and not at the end: an earlier failed write may have left a part of a line.
	_, err = f.WriteAt(lines, l.size)
	if err == nil {
		err = f.Truncate(l.size + int64(len(lines)))
	}
	if err == nil {
		err = f.Sync()
	}
	if info, errStat := f.Stat(); errStat == nil {
		l.file = info
	}
	return errors.Join(err, f.Close())
}

// markDoc is the text of the mark.
type markDoc struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"head"`
}

// writeMark records the head of the ledger.
func (l *Ledger) writeMark() error {
	text, err := json.Marshal(markDoc{l.state.head.Seq, l.state.head.Hash.String()})
	if err != nil {
		return err
	}
	return WriteFile(l.markPath(), sealLine(text), 0o600)
}

// readMark reads the mark. A missing or damaged mark is an error: without it, a loss would not
// show.
func (l *Ledger) readMark() (h Head, err error) {
	data, err := os.ReadFile(l.markPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return h, rhumb.Ef(opLedger, rhumb.PermissionDenied, "cannot read %s: %v; all files of an authority belong to one user", l.markPath(), err)
	}
	if err != nil {
		return h, rhumb.Ef(opLedger, rhumb.Corrupt, "cannot read %s: %v", l.markPath(), err)
	}
	h, err = decodeMark(data)
	if err != nil {
		return h, rhumb.Ef(opLedger, rhumb.Corrupt, "%s is damaged: %v", l.markPath(), err)
	}
	return h, nil
}

// decodeMark decodes the content of a mark. It accepts a missing line feed, because nothing follows
// the only line.
func decodeMark(data []byte) (h Head, err error) {
	var doc markDoc
	text, err := openLine(bytes.TrimSuffix(data, []byte("\n")))
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	hash, ok := ParseHash(doc.Hash)
	if err == nil && !ok {
		err = errors.New("the head has a wrong length")
	}
	if err != nil {
		return Head{}, err
	}
	return Head{doc.Seq, hash}, nil
}

// Repair sets a damaged ledger aside and begins a new one with the records before the damage and a
// gap. It returns the name of the copy, or "" if nothing was damaged.
func Repair(dir string, cluster rhumb.ClusterID, wall func() time.Time, warn func(string, ...any)) (aside string, err error) {
	l, err := openLock(dir, wall, warn)
	if err != nil {
		return "", err
	}
	defer l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	return aside, l.locked(func() error {
		err := l.refresh()
		// No damage, or damage of another kind, such as a full disk: truncating would then destroy
		// intact records.
		if rhumb.KindOf(err) != rhumb.Corrupt {
			return err
		}
		data, errRead := os.ReadFile(l.path())
		if errRead != nil {
			return rhumb.WrapKind(opLedger, rhumb.Unavailable, errRead)
		}
		aside = fmt.Sprintf("%s.damaged-%d", l.path(), wall().Unix())
		if err := WriteFile(aside, data, 0o600); err != nil {
			return rhumb.WrapKind(opLedger, rhumb.Unavailable, err)
		}
		// Reading stopped at the damage: l.size is its offset.
		intact := l.size
		// The copy is on disk by now. The cut part may be needed to find out who had which
		// token.
		if err := os.Truncate(l.path(), intact); err != nil {
			return rhumb.WrapKind(opLedger, rhumb.Unavailable, err)
		}
		l.state = nil
		// The mark is newer than the last record left, so refresh appends the gap.
		return l.refresh()
	})
}
