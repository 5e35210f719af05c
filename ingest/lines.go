package ingest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
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
	// unchecked says that the stream is gzip and is read only once, so that lines are given out before their checksum is known.
	unchecked bool
	// end is what ended the stream: io.EOF, or what is wrong behind the last byte read.
	end error
}

// openLines tells gzip by its magic bytes and unpacks it. What can be read twice is unpacked twice: first to find out how
// much of it is intact, then to take that much and no line of what is damaged.
func openLines(ctx context.Context, input io.Reader) (*lineReader, error) {
	const op rhumb.Op = "ingest.open"
	seeker, start := seekable(input)
	buffered := bufio.NewReaderSize(&interruptible{ctx: ctx, src: input}, 64<<10)
	magic, err := buffered.Peek(2)
	if err != nil && err != io.EOF {
		return nil, rhumb.Wrap(op, err)
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return &lineReader{src: buffered}, nil
	}
	var intact int64
	var damage *gzipDamage
	if seeker != nil {
		if intact, damage, err = checkGzip(buffered); err != nil {
			return nil, rhumb.Wrap(op, err)
		}
		if _, err := seeker.Seek(start, io.SeekStart); err != nil {
			return nil, rhumb.Wrap(op, err)
		}
		buffered.Reset(&interruptible{ctx: ctx, src: input})
	}
	if damage != nil && intact == 0 {
		return &lineReader{src: &intactReader{damage: damage}}, nil
	}
	unzipped, err := newGzipReader(buffered)
	switch {
	case err != nil:
		return &lineReader{src: &intactReader{damage: err}}, nil
	case damage != nil:
		return &lineReader{src: &intactReader{src: unzipped, left: intact, damage: damage}}, nil
	}
	return &lineReader{src: unzipped, unchecked: seeker == nil}, nil
}

// seekable gives the place where an input stands that can be read again from there; a pipe cannot.
func seekable(input io.Reader) (io.Seeker, int64) {
	s, ok := input.(io.Seeker)
	if !ok {
		return nil, 0
	}
	at, err := s.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, 0
	}
	return s, at
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
		switch {
		case r.end == io.EOF && len(r.block) > 0:
			line, tooLong = r.whole(r.block)
			r.block = nil
			return line, r.line, tooLong, nil
		case r.end != nil: // an unfinished line before a damage is part of it
			return nil, r.line, false, r.ending()
		}
		r.fill()
	}
}

// ending says how the stream ended, and how far it came.
func (r *lineReader) ending() error {
	const op rhumb.Op = "ingest.read"
	damage, ok := errors.AsType[*gzipDamage](r.end)
	switch {
	case r.end == io.EOF:
		return io.EOF
	case !ok:
		return rhumb.Ef(op, rhumb.KindOf(r.end), "behind line %d: %v; the lines up to there were taken", r.line, r.end)
	case r.unchecked && !damage.cut:
		return rhumb.Ef(op, rhumb.Corrupt, "%v; the lines up to line %d were taken before that could be known, since the input cannot be "+
			"read twice; give it as a file, and no line of a damaged member is taken", damage, r.line)
	}
	return rhumb.Ef(op, rhumb.Corrupt, "%v; the lines up to line %d were taken, and nothing behind them; mend the input and start the "+
		"same ingest again: it goes on where it stopped", damage, r.line)
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
		switch {
		case r.end == io.EOF:
			return head, r.line, true, nil
		case r.end != nil:
			r.line--
			return nil, r.line, false, r.ending()
		}
		r.fill()
	}
}

// fill reads more behind the unfinished line, in a new block when the present one is used up. What
// was read together with an error is good.
func (r *lineReader) fill() {
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
	r.end = err
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
