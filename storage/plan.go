package storage

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
)

// storeDir describes the content of a directory of an engine.
type storeDir struct {
	dir    string
	found  bool // whether there is a STORE file
	header header
	stray  string // a file that a directory without a store should not have; "" if there is none
}

// peekDirs reads the headers in the directories of an engine. It changes nothing, so that a mistake
// in the list of directories changes nothing either.
func peekDirs(fsys vfs.FS, dirs []string) ([]storeDir, error) {
	out := make([]storeDir, len(dirs))
	for i, dir := range dirs {
		d := storeDir{dir: absolutePath(fsys, dir)}
		var err error
		if d.header, d.found, err = readHeader(fsys, d.dir); err != nil {
			return nil, err
		}
		if f := d.header.pebbleFormat; f > uint32(pebbleNewest) {
			return nil, rhumb.Ef("storage.Open", rhumb.Incompatible, "%s: the database has format %d, and this binary reads formats up to %d; use the binary that wrote the store, or a newer one", d.dir, f, pebbleNewest)
		}
		if d.stray, err = strayFile(fsys, d.dir); err != nil {
			return nil, err
		}
		out[i] = d
	}
	return out, nil
}

// strayFile returns the name of a file in a directory that an empty disk does not have, or "".
func strayFile(fsys vfs.FS, dir string) (string, error) {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", accessError("storage.Open", dir, err)
	}
	// Data is named first, because it calls for another error: see foreignError.
	if slices.Contains(names, dataName) {
		return dataName, nil
	}
	for _, n := range sortedNames(names) {
		// A start that ended early leaves the lock and an unfinished STORE file, and a new file
		// system has lost+found. Whoever starts the process may write its output to node.log. Enrolment writes the certificate of the
		// node to the folder identity before the first start.
		if !slices.Contains([]string{lockName, ownerName, headerName + ".tmp", "lost+found", "node.log", "identity"}, n) {
			return n, nil
		}
	}
	return "", nil
}

// enginePlan says which stores an engine has and which of them have to be created. It is computed
// from the headers alone, so that all mistakes are found before anything is written.
type enginePlan struct {
	// headers are the headers of all stores, in the order of the directories.
	headers []header
	// make holds the indices of all stores to be created, and lost those of them that replace a
	// lost store.
	make, lost []int
}

// planEngine decides what becomes of the directories of an engine. accept holds the numbers, from
// 1, of lost stores that the operator abandons, and fresh a new store id for each directory.
//
// Every header lists the ids of all stores of the engine, with a version. The newest list says
// which store each directory should hold. A directory that does not hold it is refused with the
// reason, because using it would drop the ranges of the missing store or bring back a store that
// was replaced.
func planEngine(dirs []storeDir, accept []int, fresh []rhumb.UUID) (p enginePlan, err error) {
	const op rhumb.Op = "storage.OpenEngine"
	known, ok := newestHeader(dirs)
	if !ok {
		// No directory holds a store: this is the first start of a node.
		return newEngine(dirs, accept, fresh)
	}
	if n := int(known.count); n > len(dirs) {
		return p, rhumb.Ef(op, rhumb.InvalidArgument, "%s is one of %d stores of its node, but only %d directories are given; give all of them in their order", known.dir, n, len(dirs))
	}
	if err := checkAccepted(dirs, accept); err != nil {
		return p, err
	}
	ids := slices.Clone(known.header.stores)
	for i := range dirs {
		d := &dirs[i]
		switch {
		case (!d.found || d.header.engine == known.header.engine) && isSwapped(dirs, i):
			// The order is checked first. Its error names the right order, and without it swapped
			// directories would be reported as lost or replaced stores.
			err = rhumb.Ef(op, rhumb.InvalidArgument, "the directories are out of order: %s does not hold store %d of the node, another directory does; give them as %s", d.dir, i+1, rightOrder(dirs))
		case d.found:
			err = d.checkHeader(i, &known.header, dirs)
		case d.stray != "":
			err = d.foreignError()
		case i >= int(known.count):
			// The operator added a directory.
			p.make = append(p.make, i)
		case known.header.boot == 0:
			// The first start ended before it created this store, so nothing is lost.
			p.make = append(p.make, i)
		case slices.Contains(accept, i+1):
			p.make, p.lost = append(p.make, i), append(p.lost, i)
		default:
			err = rhumb.Ef(op, rhumb.Corrupt, "%s is empty, but held store %d of the %d stores of node %s; mount the disk with that store. If the disk is lost, start with --accept-lost-store %d: the node then begins a new life without the data of that store",
				d.dir, i+1, known.count, known.header.node, i+1)
		}
		if err != nil {
			return p, err
		}
	}
	p.headers = make([]header, len(dirs))
	for i := range dirs {
		// A new store takes the identity of the node from the other stores, and gets an id of its
		// own.
		h := dirs[i].header
		if slices.Contains(p.make, i) {
			h = header{pebbleFormat: uint32(pebbleBase), cluster: known.header.cluster, node: known.header.node, index: uint16(i), store: fresh[i], engine: known.header.engine}
		}
		if slices.Contains(p.lost, i) {
			// Boot 0 would mean that the store never started. The boot sequence of a node never
			// goes back.
			h.boot = known.header.boot
		}
		// An added store extends the list, and a new id replaces that of a lost store, so that the
		// lost store is refused should it return.
		if i >= len(ids) {
			ids = append(ids, h.store)
		}
		ids[i] = h.store
		p.headers[i] = h
	}
	// The list gets a new version only if it changed, so that a normal start rewrites no header for
	// it.
	list := known.header.list
	if !slices.Equal(ids, known.header.stores) {
		list++
	}
	for i := range p.headers {
		p.headers[i].count, p.headers[i].stores, p.headers[i].list = uint16(len(dirs)), ids, list
	}
	return p, nil
}

// isSwapped reports whether the directory at an index does not hold the store that belongs there
// while another directory does.
func isSwapped(dirs []storeDir, i int) bool {
	if dirs[i].found && int(dirs[i].header.index) == i {
		return false
	}
	return slices.ContainsFunc(dirs, func(d storeDir) bool { return d.found && int(d.header.index) == i })
}

// rightOrder returns the flags with each store in its place, and the other directories in the
// places that are left.
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

// knownHeader is the header that describes the engine, with its directory and the number of stores.
type knownHeader struct {
	dir    string
	header header
	count  uint16
}

// newestHeader returns the header with the newest list of stores, and puts the greatest boot
// sequence of all headers into it. ok is false if no directory holds a store.
func newestHeader(dirs []storeDir) (known knownHeader, ok bool) {
	var boot rhumb.BootSeq
	for i := range dirs {
		d := &dirs[i]
		if !d.found {
			continue
		}
		// Stores count their starts separately, and a store that joined later has a lower count.
		boot = max(boot, d.header.boot)
		// Headers of format 1 have no list. Of those, the one that knows most stores is the newest.
		newer := d.header.list > known.header.list || d.header.list == known.header.list && d.header.count > known.count
		if !ok || newer {
			known, ok = knownHeader{d.dir, d.header, d.header.count}, true
		}
	}
	known.header.boot = boot
	return known, ok
}

// newEngine returns the plan of an engine none of whose directories holds a store.
func newEngine(dirs []storeDir, accept []int, fresh []rhumb.UUID) (p enginePlan, err error) {
	if len(accept) > 0 {
		return p, rhumb.E("storage.OpenEngine", rhumb.InvalidArgument, "a store is accepted as lost, but no directory holds a store of the node; also give the directories of the node's other stores")
	}
	for i := range dirs {
		if dirs[i].stray != "" {
			return p, dirs[i].foreignError()
		}
		p.make = append(p.make, i)
		p.headers = append(p.headers, header{
			pebbleFormat: uint32(pebbleBase), index: uint16(i), count: uint16(len(dirs)), store: fresh[i], engine: fresh[0], stores: fresh, list: 1,
		})
	}
	return p, nil
}

// checkAccepted rejects giving up a store that exists: the flag would otherwise stay in a start
// script and hide the next loss.
func checkAccepted(dirs []storeDir, accept []int) error {
	const op rhumb.Op = "storage.OpenEngine"
	for _, n := range accept {
		if n < 1 || n > len(dirs) {
			return rhumb.Ef(op, rhumb.InvalidArgument, "store %d is accepted as lost, but %d directories are given; stores are numbered from 1", n, len(dirs))
		}
		if d := &dirs[n-1]; d.found {
			return rhumb.Ef(op, rhumb.InvalidArgument, "store %d is accepted as lost, but %s holds it; start without --accept-lost-store, or move its files away first", n, d.dir)
		}
	}
	return nil
}

// checkHeader compares the header of the store at an index with the engine's header.
func (d *storeDir) checkHeader(i int, known *header, dirs []storeDir) error {
	const op rhumb.Op = "storage.OpenEngine"
	h := &d.header
	switch {
	case h.engine != known.engine:
		return rhumb.Ef(op, rhumb.WrongCluster, "%s holds a store of node %s of cluster %s, but the other directories belong to node %s of cluster %s; give the directories of one node", d.dir, h.node, h.cluster, known.node, known.cluster)
	case int(h.index) != i:
		return rhumb.Ef(op, rhumb.InvalidArgument, "%s holds store %d of its node, but is given as directory %d; give the directories in their order", d.dir, h.index+1, i+1)
	case i < len(known.stores) && h.store != known.stores[i]:
		return rhumb.Ef(op, rhumb.Corrupt, "%s holds store %s, but store %d of this node is %s: the store was replaced; empty the directory and start with --accept-lost-store %d, or give the directory that replaced it", d.dir, h.store, i+1, known.stores[i], i+1)
	}
	return nil
}

// foreignError rejects a directory that is not empty and holds no store. Data without a STORE file
// belonged to a store, and creating a new store there would delete it.
func (d *storeDir) foreignError() error {
	const op rhumb.Op = "storage.Open"
	if d.stray == dataName {
		return rhumb.Ef(op, rhumb.Corrupt, "%s: the STORE file is missing, but there is data; restore the file or move the data away", d.dir)
	}
	return rhumb.Ef(op, rhumb.InvalidArgument, "%s holds no store, but is not empty (it holds %q); give an empty directory or one that does not exist", d.dir, d.stray)
}
