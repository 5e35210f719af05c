package storage

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/zeebo/xxh3"
)

// The STORE file identifies the directory: cluster, node, store, and the other stores of the node.
// It is replaced as a whole (see replaceFile), so a crash leaves one of two complete files.
// Integers are big endian:
//
//	offset  size
//	 0       8   magic "RHUMBSTO"
//	 8       4   format of the store
//	12       4   format of the Pebble database below
//	16      16   cluster; zero until the node has joined
//	32       4   node; zero until then
//	36       2   index of this store in its engine
//	38       2   number n of stores in the engine
//	40      16   store: random, made with the store
//	56      16   engine: the store id of the first store that the engine had
//	72       8   boot: starts so far
//	80       8   flags: 1 = was once opened without syncs (lossy); no build does that any more;
//	             2 = the cluster version allows a log of its own; 4, in format 5 only: that log may hold
//	             log records and results that the database lacks
//	88       8   version of the list of stores: the list with the greatest one counts
//	96       8   in formats 3 to 5: starts of the log so far
//	104     16   in format 5: id of the log
//	96    16*n   the store ids of all stores of the engine; at 104 in formats 3 and 4, at 120 in format 5
//	 …       8   xxh3-64 of all bytes before
//
// Format 1 ended after the flags. Format 3 is that of stores with a log of their own (package nodelog): an earlier build
// would not see the batches in it. In format 4 the log also holds log records and results that the database lacks; a
// clean stop goes back to format 3, because the database has everything then. The id of such a log is that of the store. In
// format 5 each log has an id of its own, so that a copy of an earlier log of the store is not taken for the present one; a flag
// distinguishes what formats 3 and 4 do. Every format ends in the checksum of all bytes before it, so that a binary can
// distinguish a newer format, which it does not know, from a damaged file.
const (
	headerName   = "STORE"
	headerMagic  = "RHUMBSTO"
	headerFixed  = 96 // before the list of stores, but for the starts of the log
	headerSize1  = 88 // of format 1, before the checksum
	formatPlain  = 2  // of stores with the log of the database
	formatOwnLog = 3  // of stores with a log of their own that holds nothing else
	formatKeeps  = 4  // of stores with a log of their own that does
	formatStore  = 5  // of stores whose log has an id of its own
	flagLossy    = 1
	flagNodeLog  = 2
	flagLogKeeps = 4 // in files of format 5, and never in header.flags
	checksumSize = 8
)

// header is the content of a STORE file.
type header struct {
	pebbleFormat uint32
	cluster      rhumb.ClusterID
	node         rhumb.NodeID
	index, count uint16
	store        rhumb.UUID
	engine       rhumb.UUID
	boot         rhumb.BootSeq
	flags        uint64
	list         uint64
	stores       []rhumb.UUID // nil in format 1, else one for each store
	// nodeLog is set if the store has a log of its own, and logBoot counts the starts of that log. boot cannot serve for that: it is written when the
	// database is open and complete, and that needs the log.
	nodeLog bool
	logBoot rhumb.BootSeq
	// logKeeps is set if the log may hold log records and results that the database does not get from its main parts (keptTable).
	logKeeps bool
	// logID is the id of the log, and zero in formats 3 and 4. It is drawn for each log that is created.
	logID rhumb.UUID
}

// ownLogID returns the id of the store's own log.
func (h *header) ownLogID() rhumb.UUID {
	if h.logID.IsZero() {
		return h.store
	}
	return h.logID
}

// newUUID returns a random id.
func newUUID() (u rhumb.UUID) {
	_, _ = rand.Read(u[:]) // never fails
	return u
}

// encode returns the file in the format that the content needs, whatever format h was read from. So the first
// start of this build converts files of format 1.
func (h *header) encode() []byte {
	b := make([]byte, 0, headerFixed+8+len(h.logID)+len(h.stores)*len(h.store)+checksumSize)
	b = append(b, headerMagic...)
	format, flags := uint32(formatPlain), h.flags
	switch {
	case h.nodeLog && !h.logID.IsZero():
		format = formatStore
		if h.logKeeps {
			flags |= flagLogKeeps
		}
	case h.nodeLog && h.logKeeps:
		format = formatKeeps
	case h.nodeLog:
		format = formatOwnLog
	}
	b = binary.BigEndian.AppendUint32(b, format)
	b = binary.BigEndian.AppendUint32(b, h.pebbleFormat)
	b = append(b, h.cluster[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(h.node))
	b = binary.BigEndian.AppendUint16(b, h.index)
	b = binary.BigEndian.AppendUint16(b, h.count)
	b = append(b, h.store[:]...)
	b = append(b, h.engine[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(h.boot))
	b = binary.BigEndian.AppendUint64(b, flags)
	b = binary.BigEndian.AppendUint64(b, h.list)
	if h.nodeLog {
		b = binary.BigEndian.AppendUint64(b, uint64(h.logBoot))
	}
	if format == formatStore {
		b = append(b, h.logID[:]...)
	}
	for _, id := range h.stores {
		b = append(b, id[:]...)
	}
	return binary.BigEndian.AppendUint64(b, xxh3.Hash(b))
}

// decodeHeader decodes a STORE file; path is for the error. It checks the checksum before the
// format, so that a flipped bit in the format is reported as damage.
func decodeHeader(path string, b []byte) (h header, err error) {
	const op rhumb.Op = "storage.Open"
	bad := func(what string) error {
		return rhumb.Ef(op, rhumb.Corrupt, "%s: %s; restore the file. Or set the directory's files aside and start without them: a node with several directories needs --accept-lost-store for that, one with a single directory starts as a new node", path, what)
	}
	// The length, the magic and the checksum say whether the file is whole. Only then its format
	// counts.
	n := len(b) - checksumSize
	switch {
	case n < len(headerMagic)+4:
		return h, bad(fmt.Sprintf("the file has %d bytes at offset 0, at least %d are needed", len(b), len(headerMagic)+4+checksumSize))
	case string(b[:8]) != headerMagic:
		return h, bad(fmt.Sprintf("the magic at offset 0 is %q", b[:8]))
	case binary.BigEndian.Uint64(b[n:]) != xxh3.Hash(b[:n]):
		return h, bad(fmt.Sprintf("the checksum at offset %d does not match", n))
	}
	format := binary.BigEndian.Uint32(b[8:])
	if format < 1 || format > formatStore {
		return h, rhumb.Ef(op, rhumb.Incompatible, "%s: the store has format %d, and this binary reads formats 1 to %d; use the binary that wrote the store, or a newer one", path, format, formatStore)
	}
	// The length follows from the number of stores, so a file of another length was not written by
	// any build.
	fixed := headerFixed
	h.logKeeps = format == formatKeeps
	if h.nodeLog = format >= formatOwnLog; h.nodeLog {
		fixed += 8
	}
	if format == formatStore {
		fixed += len(h.logID)
	}
	if format == 1 && n != headerSize1 || format > 1 && (n < fixed || n != fixed+16*int(binary.BigEndian.Uint16(b[38:]))) {
		return h, bad(fmt.Sprintf("a file of format %d cannot have %d bytes", format, len(b)))
	}
	h.pebbleFormat = binary.BigEndian.Uint32(b[12:])
	copy(h.cluster[:], b[16:])
	h.node = rhumb.NodeID(binary.BigEndian.Uint32(b[32:]))
	h.index, h.count = binary.BigEndian.Uint16(b[36:]), binary.BigEndian.Uint16(b[38:])
	copy(h.store[:], b[40:])
	copy(h.engine[:], b[56:])
	h.boot = rhumb.BootSeq(binary.BigEndian.Uint64(b[72:]))
	h.flags = binary.BigEndian.Uint64(b[80:])
	if format == formatStore {
		h.logKeeps = h.flags&flagLogKeeps != 0
		h.flags &^= flagLogKeeps
		copy(h.logID[:], b[headerFixed+8:])
	}
	// Format 1 has no list. planEngine writes one into every header of the engine.
	if format > 1 {
		h.list = binary.BigEndian.Uint64(b[88:])
		if h.nodeLog {
			h.logBoot = rhumb.BootSeq(binary.BigEndian.Uint64(b[headerFixed:]))
		}
		for at := fixed; at < n; at += 16 {
			h.stores = append(h.stores, rhumb.UUID(b[at:at+16]))
		}
	}
	return h, nil
}

// readHeader reads the STORE file of a directory; found is false if there is none.
func readHeader(fsys vfs.FS, dir string) (h header, found bool, err error) {
	const op rhumb.Op = "storage.Open"
	path := fsys.PathJoin(dir, headerName)
	b, err := readFile(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		return h, false, nil
	}
	if err != nil {
		return h, false, accessError(op, path, err)
	}
	if h, err = decodeHeader(path, b); err != nil {
		return h, true, err
	}
	return h, true, h.checkLossy(path)
}

// checkLossy rejects a store that was once opened without syncs; path is for the error. Such a
// store may have forgotten acknowledged writes, and none of its files shows which: the seal and the
// synced lengths record syncs, and there were none. Under its old identity the store would count as
// a copy that holds everything. The flag is never cleared, because later syncs do not restore bytes
// that an earlier crash lost.
func (h *header) checkLossy(path string) error {
	if h.flags&flagLossy == 0 {
		return nil
	}
	return rhumb.Ef("storage.Open", rhumb.Corrupt, "%s: the store was once opened without syncs (flag %d), so it may lack writes that its node acknowledged; set the directory's files aside and start without them: a node with several directories needs --accept-lost-store for that, one with a single directory starts as a new node", path, flagLossy)
}

// writeHeader replaces the STORE file and makes the change durable.
func writeHeader(fsys vfs.FS, dir string, h *header) error {
	return replaceFile(fsys, dir, headerName, h.encode())
}

// replaceFile replaces a small file so that a crash leaves either the old or the new content,
// whole: it writes a temporary file, syncs it, renames it and syncs the directory. Without the
// first sync the rename could become durable before the content.
func replaceFile(fsys vfs.FS, dir, name string, content []byte) error {
	const op rhumb.Op = "storage.replaceFile"
	path := fsys.PathJoin(dir, name)
	tmp := path + ".tmp"
	f, err := fsys.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return ioError(op, tmp, err)
	}
	_, err = f.Write(bytes.Clone(content)) // a vfs.File may modify its argument
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return ioError(op, tmp, err)
	}
	// From here on the new content is visible, and after the sync of the directory it is durable.
	if err := fsys.Rename(tmp, path); err != nil {
		return ioError(op, path, err)
	}
	return syncDir(fsys, dir)
}

// makeDir creates a directory with its parents and makes their entries durable. A directory that
// vanished in a crash would look like a disk that was never used.
func makeDir(fsys vfs.FS, dir string) error {
	const op rhumb.Op = "storage.makeDir"
	// The missing parents are collected before MkdirAll creates them: the entry of each is in the
	// directory above it, which has to be synced.
	var missing []string
	for d := dir; ; d = fsys.PathDir(d) {
		if _, err := fsys.Stat(d); !errors.Is(err, fs.ErrNotExist) || fsys.PathDir(d) == d {
			break
		}
		missing = append(missing, d)
	}
	if err := fsys.MkdirAll(dir, 0o755); err != nil {
		return accessError(op, dir, err)
	}
	for _, d := range missing {
		if err := syncDir(fsys, fsys.PathDir(d)); err != nil {
			return err
		}
	}
	return nil
}

// syncDir syncs a directory, so that its entries are durable.
func syncDir(fsys vfs.FS, dir string) error {
	const op rhumb.Op = "storage.syncDir"
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return ioError(op, dir, err)
	}
	return ioError(op, dir, errors.Join(d.Sync(), d.Close()))
}

// readFile returns the content of a file.
func readFile(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}
