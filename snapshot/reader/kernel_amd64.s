//go:build amd64 && !purego

#include "textflag.h"

// func locateKernel(hashes *uint64, n int, lanes *lane, mask uint64, records *unsafe.Pointer) (lost uint64)
//
// SI hashes, CX n, R12 lanes, R11 mask, DI records (which hold the buckets between the passes), R15 position, R13 lost.
TEXT ·locateKernel(SB), NOSPLIT, $0-48
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

	// Compare the fingerprint with all ten.
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
	VMOVQ R9, X1
	VPBROADCASTW X1, Y1
	MOVQ (DI)(R15*8), DX
	VPCMPEQW (DX), Y1, Y0
	VPMOVMSKB Y0, AX
	ANDL $0xFFFFF, AX
	JZ   none
	BSFL AX, AX // twice the slot
	MOVL 20(DX)(AX*2), AX
	CMPQ AX, 24(R8)
	JCC  none // a reference past the heap
	SHLQ $6, AX
	ADDQ 8(R8), AX
	PREFETCHT1 (AX)
	PREFETCHT1 64(AX)
	MOVQ AX, (DI)(R15*8)
next:
	INCQ R15
	CMPQ R15, CX
	JLT  records
	VZEROUPPER
done:
	MOVQ R13, lost+40(FP)
	RET

none:
	MOVQ $0, (DI)(R15*8)
	BTSQ R15, R13
	JMP  next

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
