package ingest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/rhumbdb/rhumb"
)

// LineSizeMax bounds one line of input, in bytes. A longer line is rejected, and reading continues
// after it.
const LineSizeMax = 1 << 20

// blockSize is the number of bytes read at a time. Lines are slices of blocks; a block is freed
// when its last event has been written.
const blockSize = 256 << 10

// lineReader splits a stream into lines. Each line is a slice of a block that is never written
// again, so that events can keep parts of it without a copy.
type lineReader struct {
	src   io.Reader
	block []byte // read and not yet returned
	room  []byte // unused part of the block; it follows block in memory
	line  int64
	// unchecked reports that the stream is gzip and is read only once, so that lines are returned
	// before their checksum is known.
	unchecked bool
	// end is the error that ended the stream: io.EOF, or the fault after the last byte.
	end error
}

// openLines returns a reader of input, which it unpacks if it begins like gzip. If the input can be
// read twice, openLines first unpacks it to its end to learn how much is intact; the reader then
// returns no line of a damaged member.
func openLines(ctx context.Context, input io.Reader) (*lineReader, error) {
	const op rhumb.Op = "ingest.open"
	seeker, start := seekable(input)
	buffered := bufio.NewReaderSize(&interruptible{ctx: ctx, src: input}, 64<<10)
	// The extension of a file name is not used: the input may be a pipe.
	magic, err := buffered.Peek(2)
	if err != nil && err != io.EOF {
		return nil, rhumb.Wrap(op, err)
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return &lineReader{src: buffered}, nil
	}
	// Applying a line of a damaged member could apply a wrong value: a flipped bit is often still a
	// valid line. So the damage must be known before the first line is written.
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
	// The reader returns the error after the intact lines, so that they are written: a later run
	// with the repaired input then continues there.
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

// seekable returns the input as a Seeker together with its position, or nil for an input that
// cannot be read twice, such as a pipe.
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

// next returns the next line without its line break, and its number from 1. A line that is too long
// is truncated, and tooLong is set. At the end, next returns io.EOF.
func (r *lineReader) next() (line []byte, number int64, tooLong bool, err error) {
	for {
		if i := bytes.IndexByte(r.block, '\n'); i >= 0 {
			// The capacity is cut off, so that an append to a line cannot overwrite the next one.
			line, r.block = r.block[:i:i], r.block[i+1:]
			line, tooLong = r.finishLine(line)
			return line, r.line, tooLong, nil
		}
		// One byte more than the limit, because the last may be a carriage return of the line
		// break.
		if len(r.block) > LineSizeMax+1 {
			return r.skipLong()
		}
		switch {
		case r.end == io.EOF && len(r.block) > 0:
			line, tooLong = r.finishLine(r.block)
			r.block = nil
			return line, r.line, tooLong, nil
		// An unfinished line before damage is part of the damage.
		case r.end != nil:
			return nil, r.line, false, r.endError()
		}
		r.fill()
	}
}

// endError returns the error that ended the stream, with the number of the last line.
func (r *lineReader) endError() error {
	const op rhumb.Op = "ingest.read"
	damage, ok := errors.AsType[*gzipDamage](r.end)
	switch {
	case r.end == io.EOF:
		return io.EOF
	case !ok:
		return rhumb.Ef(op, rhumb.KindOf(r.end), "after line %d: %v; the lines up to there were accepted", r.line, r.end)
	case r.unchecked && !damage.cut:
		return rhumb.Ef(op, rhumb.Corrupt, "%v; the lines up to line %d were accepted before the damage was detected, because the input cannot be "+
			"read twice; pass the input as a file to accept no line of a damaged member", damage, r.line)
	}
	return rhumb.Ef(op, rhumb.Corrupt, "%v; the lines up to line %d were accepted, and none after them; repair the input and start the "+
		"same ingest again: it continues where it stopped", damage, r.line)
}

// finishLine counts a line and removes the carriage return of its line break.
func (r *lineReader) finishLine(line []byte) (_ []byte, tooLong bool) {
	r.line++
	// Files from Windows end lines with CR LF.
	line = bytes.TrimSuffix(line, []byte{'\r'})
	return line[:min(len(line), LineSizeMax)], len(line) > LineSizeMax
}

// skipLong returns the beginning of a line that is too long and skips the rest of it.
func (r *lineReader) skipLong() ([]byte, int64, bool, error) {
	// Cloned, because the rest of the line may need many blocks, which the beginning must not keep
	// alive.
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
			// The line is part of the damage, and not counted.
			r.line--
			return nil, r.line, false, r.endError()
		}
		r.fill()
	}
}

// fill reads more bytes after the unfinished line, into a new block if the current one is full.
// Bytes that were read together with an error are valid.
func (r *lineReader) fill() {
	if len(r.room) == 0 || len(r.block) == 0 && len(r.room) < blockSize/4 {
		// Only the unfinished line is copied. Doubling bounds the copies of a long line.
		grown := make([]byte, len(r.block), max(blockSize, 2*len(r.block)))
		copy(grown, r.block)
		r.block, r.room = grown, grown[len(grown):cap(grown)]
	}
	// The bytes after block are free, so the unfinished line grows in place.
	n, err := r.src.Read(r.room)
	if len(r.block) == 0 {
		r.block = r.room[:n]
	} else {
		r.block = r.block[:len(r.block)+n]
	}
	r.room = r.room[n:]
	r.end = err
}

// interruptible makes reads of src cancellable: a pipe may stay silent forever. A cancelled read
// ends when src returns; it writes to memory of its own.
type interruptible struct {
	ctx  context.Context
	src  io.Reader
	buf  []byte
	done chan readResult
}

// readResult is the result of a read of src.
type readResult struct {
	n   int
	err error
}

// Read reads from src until the context ends. A read that blocks then is left to end in its own time.
func (r *interruptible) Read(p []byte) (int, error) {
	// Allocated once. A cancelled read still writes to buf, which is therefore never used
	// again.
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
