package storage

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
)

// storeDir is what a directory that is given for an engine holds.
type storeDir struct {
	dir    string
	found  bool // there is a STORE file
	header header
	stray  string // a file that no store makes; empty when there is none
}

// peekDirs looks into the directories of an engine and changes nothing.
func peekDirs(fsys vfs.FS, dirs []string) ([]storeDir, error) {
	out := make([]storeDir, len(dirs))
	for i, dir := range dirs {
		d := storeDir{dir: absolutePath(fsys, dir)}
		var err error
		if d.header, d.found, err = readHeader(fsys, d.dir); err != nil {
			return nil, err
		}
		if f := d.header.pebbleFormat; f > uint32(pebbleFormat) {
			return nil, rhumb.Ef("storage.Open", rhumb.Incompatible, "%s: database format %d, this binary writes %d; use the binary that wrote it, or a newer one", d.dir, f, pebbleFormat)
		}
		if d.stray, err = strayFile(fsys, d.dir); err != nil {
			return nil, err
		}
		out[i] = d
	}
	return out, nil
}

// strayFile names a file in a directory that an empty disk does not have.
func strayFile(fsys vfs.FS, dir string) (string, error) {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", accessError("storage.Open", dir, err)
	}
	if slices.Contains(names, dataName) {
		return dataName, nil
	}
	for _, n := range sortedNames(names) {
		// A start that ended early leaves the lock and an unfinished STORE file, a new file system its lost+found. Who
		// starts the process may write its log here.
		if !slices.Contains([]string{lockName, ownerName, headerName + ".tmp", "lost+found", "node.log"}, n) {
			return n, nil
		}
	}
	return "", nil
}

// enginePlan says which stores an engine has, and which of them have to be made.
type enginePlan struct {
	// headers are those of all stores; a header with boot 0, or of a lost store, is to be written.
	headers []header
	// make and lost hold the indices of stores to be made: all of them, and those that take the place of a lost one.
	make, lost []int
}

// planEngine decides what becomes of the directories of an engine. accept holds the numbers, from 1, of stores that the
// operator gives up, and fresh a new store id for each directory.
func planEngine(dirs []storeDir, accept []int, fresh []rhumb.UUID) (p enginePlan, err error) {
	const op rhumb.Op = "storage.OpenEngine"
	known, ok := newestHeader(dirs)
	if !ok { // no directory holds a store
		return newEngine(dirs, accept, fresh)
	}
	if n := int(known.count); n > len(dirs) {
		return p, rhumb.Ef(op, rhumb.InvalidArgument, "%s is one of %d stores of its node, and %d directories are given; give all of them in their order", known.dir, n, len(dirs))
	}
	if err := checkAccepted(dirs, accept); err != nil {
		return p, err
	}
	ids := slices.Clone(known.header.stores)
	for i := range dirs {
		d := &dirs[i]
		switch {
		case (!d.found || d.header.engine == known.header.engine) && isSwapped(dirs, i):
			err = rhumb.Ef(op, rhumb.InvalidArgument, "the directories are not in their order: %s does not hold store %d of the node, another one does; give them as %s", d.dir, i+1, rightOrder(dirs))
		case d.found:
			err = d.checkHeader(i, &known.header, dirs)
		case d.stray != "":
			err = d.foreignError()
		case i >= int(known.count): // added
			p.make = append(p.make, i)
		case known.header.boot == 0: // the first start did not get this far
			p.make = append(p.make, i)
		case slices.Contains(accept, i+1):
			p.make, p.lost = append(p.make, i), append(p.lost, i)
		default:
			err = rhumb.Ef(op, rhumb.Corrupt, "%s is empty, and held store %d of the %d stores of node %s (the others are there); mount the disk that holds it. If that disk is lost, start with --accept-lost-store %d: the node then begins a new life without what it held",
				d.dir, i+1, known.count, known.header.node, i+1)
		}
		if err != nil {
			return p, err
		}
	}
	p.headers = make([]header, len(dirs))
	for i := range dirs {
		h := dirs[i].header
		if slices.Contains(p.make, i) {
			h = header{pebbleFormat: uint32(pebbleFormat), cluster: known.header.cluster, node: known.header.node, index: uint16(i), store: fresh[i], engine: known.header.engine}
		}
		if slices.Contains(p.lost, i) {
			h.boot = known.header.boot // boots never go back
		}
		if i >= len(ids) {
			ids = append(ids, h.store)
		}
		ids[i] = h.store
		p.headers[i] = h
	}
	list := known.header.list
	if !slices.Equal(ids, known.header.stores) {
		list++
	}
	for i := range p.headers {
		p.headers[i].count, p.headers[i].stores, p.headers[i].list = uint16(len(dirs)), ids, list
	}
	return p, nil
}

// isSwapped reports whether the directory at an index holds nothing, or another store, and a later or earlier one holds the store
// that belongs there.
func isSwapped(dirs []storeDir, i int) bool {
	if dirs[i].found && int(dirs[i].header.index) == i {
		return false
	}
	return slices.ContainsFunc(dirs, func(d storeDir) bool { return d.found && int(d.header.index) == i })
}

// rightOrder returns the flags that give each store its place, and empty directories the places that are left.
func rightOrder(dirs []storeDir) string {
	place := make([]string, len(dirs))
	var rest []string
	for _, d := range dirs {
		if i := int(d.header.index); d.found && i < len(place) && place[i] == "" {
			place[i] = d.dir
		} else {
			rest = append(rest, d.dir)
		}
	}
	for i := range place {
		if place[i] == "" {
			place[i], rest = rest[0], rest[1:]
		}
		place[i] = "--dir " + place[i]
	}
	return strings.Join(place, " ")
}

type knownHeader struct {
	dir    string
	header header
	count  uint16
}

// newestHeader returns the header with the newest list of stores, and the greatest boot of all.
func newestHeader(dirs []storeDir) (known knownHeader, ok bool) {
	var boot rhumb.BootSeq
	for i := range dirs {
		d := &dirs[i]
		if !d.found {
			continue
		}
		boot = max(boot, d.header.boot)
		newer := d.header.list > known.header.list || d.header.list == known.header.list && d.header.count > known.count
		if !ok || newer {
			known, ok = knownHeader{d.dir, d.header, d.header.count}, true
		}
	}
	known.header.boot = boot
	return known, ok
}

func newEngine(dirs []storeDir, accept []int, fresh []rhumb.UUID) (p enginePlan, err error) {
	if len(accept) > 0 {
		return p, rhumb.E("storage.OpenEngine", rhumb.InvalidArgument, "a lost store is accepted, but no directory holds a store of the node; give the directories of the others, too")
	}
	for i := range dirs {
		if dirs[i].stray != "" {
			return p, dirs[i].foreignError()
		}
		p.make = append(p.make, i)
		p.headers = append(p.headers, header{
			pebbleFormat: uint32(pebbleFormat), index: uint16(i), count: uint16(len(dirs)), store: fresh[i], engine: fresh[0], stores: fresh, list: 1,
		})
	}
	return p, nil
}

// checkAccepted refuses to give up a store that is there.
func checkAccepted(dirs []storeDir, accept []int) error {
	const op rhumb.Op = "storage.OpenEngine"
	for _, n := range accept {
		if n < 1 || n > len(dirs) {
			return rhumb.Ef(op, rhumb.InvalidArgument, "store %d is accepted as lost, and %d directories are given; stores count from 1", n, len(dirs))
		}
		if d := &dirs[n-1]; d.found {
			return rhumb.Ef(op, rhumb.InvalidArgument, "store %d is accepted as lost, but %s holds it; start without --accept-lost-store, or move its files away first", n, d.dir)
		}
	}
	return nil
}

// checkHeader compares the header of the store at an index with what the engine knows.
func (d *storeDir) checkHeader(i int, known *header, dirs []storeDir) error {
	const op rhumb.Op = "storage.OpenEngine"
	h := &d.header
	switch {
	case h.engine != known.engine:
		return rhumb.Ef(op, rhumb.WrongCluster, "%s holds a store of another node (node %s of cluster %s) than the other directories (node %s of cluster %s); give the directories of one node", d.dir, h.node, h.cluster, known.node, known.cluster)
	case int(h.index) != i:
		return rhumb.Ef(op, rhumb.InvalidArgument, "%s holds store %d of its node and is given as directory %d; keep their order", d.dir, h.index+1, i+1)
	case i < len(known.stores) && h.store != known.stores[i]:
		return rhumb.Ef(op, rhumb.Corrupt, "%s holds store %s, and store %d of this node is %s: the store was replaced since; empty the directory and start with --accept-lost-store %d, or give the directory that took its place", d.dir, h.store, i+1, known.stores[i], i+1)
	}
	return nil
}

// foreignError refuses a directory that is not empty and no store.
func (d *storeDir) foreignError() error {
	const op rhumb.Op = "storage.Open"
	if d.stray == dataName {
		return rhumb.Ef(op, rhumb.Corrupt, "%s: the STORE file is missing and there is data; restore the file, or move the data away", d.dir)
	}
	return rhumb.Ef(op, rhumb.InvalidArgument, "%s holds no store, and is not empty (it holds %q); give an empty directory, or one that does not exist", d.dir, d.stray)
}
