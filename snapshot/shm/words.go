package shm

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// The mapping begins at a page, so that the offset alone decides whether a word is aligned. An
// offset past the end panics: every offset is a constant of the format or was checked with its
// header.

// Load64 loads the word at an offset.
func (f *File) Load64(offset int) uint64 { return atomic.LoadUint64(word64At(f.Mem, offset)) }

// Store64 stores the word at an offset with release order.
func (f *File) Store64(offset int, v uint64) { atomic.StoreUint64(word64At(f.Mem, offset), v) }

// Store32 stores the half word at an offset with release order.
func (f *File) Store32(offset int, v uint32) { atomic.StoreUint32(word32At(f.Mem, offset), v) }

// word64At returns the address of 8 bytes of memory, after a bounds check.
func word64At(mem []byte, offset int) *uint64 {
	_ = mem[offset+7]
	return (*uint64)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(mem)), offset))
}

// word32At returns the address of 4 bytes of memory, after a bounds check.
func word32At(mem []byte, offset int) *uint32 {
	_ = mem[offset+3]
	return (*uint32)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(mem)), offset))
}

// StoreWord stores 8 bytes of mapped memory as one word.
func StoreWord(p []byte, offset int, v uint64) { atomic.StoreUint64(word64At(p, offset), v) }

// StoreWords changes mapped memory that readers may read at the same time. Encode fills a copy,
// which is then stored word by word: a reader may see some words from before and some from after,
// but never half a word. The length of p must be a multiple of 8.
func StoreWords(p []byte, encode func(p []byte)) {
	b := make([]byte, len(p))
	encode(b)
	for i := 0; i < len(p); i += 8 {
		StoreWord(p, i, binary.LittleEndian.Uint64(b[i:]))
	}
}

// View returns mapped memory as a slice of another type, without a copy. Bytes at the end that do
// not fill an element are left out. The memory must be aligned for T; sections of a segment are
// aligned to pages.
func View[T any](mem []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/int(unsafe.Sizeof(zero)))
}
