//go:build !linux

package reader

import (
	"os"
	"time"
	"unsafe"

	"github.com/rhumbdb/rhumb"
)

// mapping is a file mapped for reading. There are none on this system: nodes publish on Linux only.
type mapping struct {
	bytes []byte
	base  unsafe.Pointer
	info  os.FileInfo
}

func (c *Client) mapFile(string, uint64, uint64, bool) (*mapping, error) {
	return nil, rhumb.E("reader.mapFile", rhumb.Unavailable, "images are read on Linux only")
}

func (m *mapping) unmapFile() error { return nil }

func monotonicSince(uint64) (time.Duration, bool) { return 0, false }

// HugePages returns how many bytes the client has mapped and how many of them are on huge pages.
func (c *Client) HugePages() (mapped, huge int64, err error) { return 0, 0, nil }
