package main

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/rhumbdb/rhumb"
)

// open opens a file for reading, or standard input for "-".
func (a *app) open(name string) (io.ReadCloser, error) {
	const op rhumb.Op = "rhumb.open"
	if name == "-" {
		return io.NopCloser(a.in), nil
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "there is no file %s", name)
	}
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.Other, "%v", err)
	}
	return f, nil
}
