package ingest

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"io"

	"github.com/rhumbdb/rhumb"
)

// LineSizeMax bounds one line of input, in bytes. A longer line is malformed; reading goes on behind it.
const LineSizeMax = 1 << 20

// blockSize is how much is read at once. Lines are slices of blocks; a block is garbage when its last event is written.
const blockSize = 256 << 10

// lineReader cuts a stream into lines. Each line is a slice of a block that is never written again, so that events can
// keep what they need of it without a copy.
type lineReader struct {
	src   io.Reader
	block []byte // read and not yet given out
	room  []byte // the part of the block that is not yet read into; it follows block in memory
	line  int64
	eof   bool
}

// openLines tells gzip by its magic bytes and reads it as it is.
func openLines(src io.Reader) (*lineReader, error) {
	const op rhumb.Op = "ingest.open"
	buffered := bufio.NewReaderSize(src, 64<<10)
	magic, err := buffered.Peek(2)
	if err != nil && err != io.EOF {
		return nil, rhumb.Wrap(op, err)
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return &lineReader{src: buffered}, nil
	}
	unzipped, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "the input begins like gzip, but its header is damaged: %v", err)
	}
	return &lineReader{src: unzipped}, nil
}

// next gives the next line without its line break, and its number from 1. A line that is too long comes cut, with
// tooLong set. At the end it returns io.EOF.
func (r *lineReader) next() (line []byte, number int64, tooLong bool, err error) {
	for {
		if i := bytes.IndexByte(r.block, '\n'); i >= 0 {
			line, r.block = r.block[:i:i], r.block[i+1:]
			line, tooLong = r.whole(line)
			return line, r.line, tooLong, nil
		}
		if len(r.block) > LineSizeMax+1 {
			return r.skipLong()
		}
		if r.eof {
			if len(r.block) == 0 {
				return nil, r.line, false, io.EOF
			}
			line, tooLong = r.whole(r.block)
			r.block = nil
			return line, r.line, tooLong, nil
		}
		if err := r.fill(); err != nil {
			return nil, r.line + 1, false, err
		}
	}
}

// whole counts a line, and takes off the other half of its line break.
func (r *lineReader) whole(line []byte) (_ []byte, tooLong bool) {
	r.line++
	line = bytes.TrimSuffix(line, []byte{'\r'})
	return line[:min(len(line), LineSizeMax)], len(line) > LineSizeMax
}

// skipLong gives the beginning of a line that is too long and drops the rest of it.
func (r *lineReader) skipLong() ([]byte, int64, bool, error) {
	head := bytes.Clone(r.block[:LineSizeMax])
	r.block = nil
	r.line++
	for {
		if i := bytes.IndexByte(r.block, '\n'); i >= 0 {
			r.block = r.block[i+1:]
			return head, r.line, true, nil
		}
		r.block = nil
		if r.eof {
			return head, r.line, true, nil
		}
		if err := r.fill(); err != nil {
			return nil, r.line, true, err
		}
	}
}

// fill reads more behind the unfinished line, in a new block when the present one is used up.
func (r *lineReader) fill() error {
	const op rhumb.Op = "ingest.read"
	if len(r.room) == 0 || len(r.block) == 0 && len(r.room) < blockSize/4 {
		grown := make([]byte, len(r.block), max(blockSize, 2*len(r.block)))
		copy(grown, r.block)
		r.block, r.room = grown, grown[len(grown):cap(grown)]
	}
	n, err := r.src.Read(r.room)
	if len(r.block) == 0 {
		r.block = r.room[:n]
	} else {
		r.block = r.block[:len(r.block)+n]
	}
	r.room = r.room[n:]
	switch {
	case err == io.EOF:
		r.eof = true
	case err == io.ErrUnexpectedEOF || err == gzip.ErrChecksum || err == gzip.ErrHeader:
		return rhumb.Ef(op, rhumb.Corrupt, "the gzip stream is cut short or damaged behind line %d: %v", r.line, err)
	case err != nil:
		return rhumb.Ef(op, rhumb.KindOf(err), "behind line %d: %v", r.line, err)
	}
	return nil
}

// interruptible lets a read of src be given up: a pipe may stay silent for ever. The read that was given up ends when
// src answers, into memory of its own.
type interruptible struct {
	ctx  context.Context
	src  io.Reader
	buf  []byte
	done chan readResult
}

type readResult struct {
	n   int
	err error
}

func (r *interruptible) Read(p []byte) (int, error) {
	if r.done == nil {
		r.done, r.buf = make(chan readResult, 1), make([]byte, 64<<10)
	}
	if r.ctx.Err() != nil {
		return 0, stopCause(r.ctx)
	}
	buf := r.buf[:min(len(p), len(r.buf))]
	go func() {
		n, err := r.src.Read(buf)
		r.done <- readResult{n, err}
	}()
	select {
	case res := <-r.done:
		return copy(p, buf[:res.n]), res.err
	case <-r.ctx.Done():
		return 0, stopCause(r.ctx)
	}
}
