package main

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/rhumbdb/rhumb"
)

// standardInput may be a file too, by redirection. It stays open.
type standardInput struct{ *os.File }

// Close does nothing.
func (standardInput) Close() error { return nil }

// open opens a file for reading, or standard input for "-".
func (a *app) open(name string) (io.ReadCloser, error) {
	const op rhumb.Op = "rhumb.open"
	if name == "-" {
		if f, ok := a.in.(*os.File); ok {
			return standardInput{f}, nil
		}
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
