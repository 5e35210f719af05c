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

// Lacks names the regions whose records of a table an image does not have, or not all: a node publishes the ranges that it holds,
// and what lies nearest to a place may be elsewhere. known is false for an image that does not say it, as one that no node
// published.
func Lacks(dir, table string) (names []string, known bool, err error) {
	b, err := regionsFile(dir)
	if err != nil || b == nil {
		return nil, false, err
	}
	r, err := format.DecodeRegions(b)
	t, known := r.Tables[table]
	return t.Lacks, known, err
}

// regionsFile reads the file that says of which regions an image has records; nil when there is none.
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
	b, err := io.ReadAll(io.LimitReader(f, format.RegionsSizeMax+1))
	switch {
	case err != nil:
		return nil, fileError(op, err)
	case len(b) > format.RegionsSizeMax:
		return nil, rhumb.Ef(op, rhumb.Corrupt, "%s has more than %d bytes", f.Name(), format.RegionsSizeMax)
	}
	return b, nil
}
