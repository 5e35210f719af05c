//go:build cgo && linux

// Programs that import this package bound the memory that the C library retains after stores free
// it. Pebble takes the block cache and the memtables from the C library. By default glibc has up to
// eight arenas for each core, and each arena retains what was freed in it. With 256 MiB and under
// overload, a node retained 200 MiB in this way, which no budget counts and the limit of Go's
// runtime does not hold. `rhumb bench overload --memory 768MiB --callers 50 --factor 30` showed 393
// to 426 MiB of resident memory with the default, and 269 and 278 MiB with two arenas, at
// equal throughput.

package storage

/*
#include <malloc.h>

// Two arenas suffice: stores allocate blocks and memtables, which are large and few, so threads
// seldom wait for each other. Other C libraries than glibc have no arenas.
//
// This is a constructor because glibc computes its limit when the second thread allocates, which Go's
// runtime does before main. A call of mallopt from Go has no effect.
__attribute__((constructor)) static void bound_arenas(void) {
#ifdef __GLIBC__
	mallopt(M_ARENA_MAX, 2);
#endif
}
*/
import "C"
