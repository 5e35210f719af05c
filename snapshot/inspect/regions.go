package inspect

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Lacks returns the names of the regions whose records of a table the image does not have, or not
// all of them. A node publishes only the ranges that it holds, so the records nearest to a place
// may be in the image of another node. known is false if the image has no such list, for example
// because no node published it.
func Lacks(dir, table string) (names []string, known bool, err error) {
	b, err := regionsFile(dir)
	if err != nil || b == nil {
		return nil, false, err
	}
	r, err := format.DecodeRegions(b)
	t, known := r.Tables[table]
	return t.Lacks, known, err
}

// regionsFile returns the content of the file that lists the regions of an image, or nil if there
// is no such file.
func regionsFile(dir string) ([]byte, error) {
	const op rhumb.Op = "inspect.Lacks"
	f, err := os.Open(filepath.Join(dir, format.RegionsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fileError(op, err)
	}
	defer f.Close()
	// One byte more than allowed is read, so that a file that is too long is an error instead of
	// being cut off.
	b, err := io.ReadAll(io.LimitReader(f, format.RegionsSizeMax+1))
	switch {
	case err != nil:
		return nil, fileError(op, err)
	case len(b) > format.RegionsSizeMax:
		return nil, rhumb.Ef(op, rhumb.Corrupt, "%s has more than %d bytes", f.Name(), format.RegionsSizeMax)
	}
	return b, nil
}
