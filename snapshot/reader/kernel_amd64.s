//go:build amd64 && !purego

#include "textflag.h"

// func locateKernel(hashes *uint64, n int, lanes *lane, mask uint64, records *unsafe.Pointer)
//
// SI hashes, CX n, R12 lanes, R11 mask, DI records (which hold the buckets between the passes), R15 position.
TEXT ·locateKernel(SB), NOSPLIT, $0-40
	MOVQ hashes+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ lanes+16(FP), R12
	MOVQ mask+24(FP), R11
	MOVQ records+32(FP), DI
	MOVQ $1, BX
	XORQ R13, R13
	XORQ R15, R15
	TESTQ CX, CX
	JLE  done

	// Bucket = index + high(hash * buckets) * 64; prefetch it.
buckets:
	MOVQ (SI)(R15*8), AX
	MOVQ AX, R8
	SHRQ $16, R8
	ANDQ R11, R8
	SHLQ $6, R8 // laneSize
	ADDQ R12, R8
	MULQ 16(R8) // DX = high half
	SHLQ $6, DX
	ADDQ 0(R8), DX
	PREFETCHT1 (DX)
	MOVQ DX, (DI)(R15*8)
	INCQ R15
	CMPQ R15, CX
	JLT  buckets

	// Compare the fingerprint with all ten; the bit at lane 10 stops the search where none is equal. Then the slot read is no
	// fingerprint's, and what its record is prefetched for fails the comparison of keys.
	XORQ R15, R15
records:
	MOVQ (SI)(R15*8), R9
	MOVQ R9, R8
	SHRQ $16, R8
	ANDQ R11, R8
	SHLQ $6, R8
	ADDQ R12, R8
	MOVWQZX R9, R9
	TESTQ R9, R9
	CMOVQEQ BX, R9
	MOVQ R9, X1
	VPBROADCASTW X1, Y1
	MOVQ (DI)(R15*8), DX
	VPCMPEQW (DX), Y1, Y0
	VPMOVMSKB Y0, AX
	ANDL $0xFFFFF, AX
	ORL  $0x80000, AX
	BSFL AX, AX
	SHRL $1, AX // slot, 9 when none
	MOVL 20(DX)(AX*4), AX
	MOVQ AX, R10
	SHLQ $6, R10
	ADDQ 8(R8), R10
	CMPQ AX, 24(R8)
	CMOVQCC R13, R10 // a reference past the heap: no record
	PREFETCHT1 (R10)
	PREFETCHT1 64(R10)
	MOVQ R10, (DI)(R15*8)
	INCQ R15
	CMPQ R15, CX
	JLT  records
	VZEROUPPER
done:
	RET

// func fetchKernel(records *unsafe.Pointer, n int)
TEXT ·fetchKernel(SB), NOSPLIT, $0-16
	MOVQ records+0(FP), SI
	MOVQ n+8(FP), CX
fetch:
	MOVQ -8(SI)(CX*8), AX
	PREFETCHT1 (AX)
	PREFETCHT1 64(AX)
	DECQ CX
	JNZ  fetch
	RET
