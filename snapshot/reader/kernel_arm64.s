//go:build arm64 && !purego

#include "textflag.h"

// MATCH marks in R14 the lanes of word W that equal the pattern R13: zeroLanes(W ^ pattern).
#define MATCH(W) \
	EOR W, R13, R14 \
	SUB R10, R14, R15 \
	BIC R14, R15, R14 \
	AND R11, R14, R14

// func locateKernel(hashes *uint64, n int, lanes *lane, mask uint64, records *unsafe.Pointer) (lost uint64)
//
// R0 hashes, R1 n, R2 lanes, R3 mask, R4 records (which hold the buckets between the passes), R5 position, R19 lost,
// R10 and R11 the constants of zeroLanes.
TEXT ·locateKernel(SB), NOSPLIT, $0-48
	MOVD hashes+0(FP), R0
	MOVD n+8(FP), R1
	MOVD lanes+16(FP), R2
	MOVD mask+24(FP), R3
	MOVD records+32(FP), R4
	MOVD $0x0001000100010001, R10
	MOVD $0x8000800080008000, R11
	MOVD $1, R12
	MOVD ZR, R19
	CMP  $1, R1
	BLT  done
	MOVD ZR, R5

	// Bucket = index + high(hash * buckets) * 64; prefetch it.
buckets:
	MOVD (R0)(R5<<3), R6
	LSR  $16, R6, R7
	AND  R3, R7, R7
	ADD  R7<<6, R2, R7 // laneSize
	MOVD 16(R7), R8
	UMULH R6, R8, R8
	MOVD 0(R7), R9
	ADD  R8<<6, R9, R9
	PRFM (R9), PLDL1KEEP
	MOVD R9, (R4)(R5<<3)
	ADD  $1, R5
	CMP  R1, R5
	BLT  buckets

	// Compare the fingerprint with all ten, four at a time.
	MOVD ZR, R5
records:
	MOVD (R0)(R5<<3), R6
	LSR  $16, R6, R7
	AND  R3, R7, R7
	ADD  R7<<6, R2, R7
	MOVHU R6, R6
	CMP  $0, R6
	CSEL EQ, R12, R6, R6
	MUL  R10, R6, R13 // the pattern in all lanes
	MOVD (R4)(R5<<3), R9
	MOVD ZR, R16
	MOVD 0(R9), R8
	MATCH(R8)
	CBNZ R14, found
	MOVD $4, R16
	MOVD 8(R9), R8
	MATCH(R8)
	CBNZ R14, found
	MOVD $8, R16
	MOVD 16(R9), R8
	MATCH(R8)
	ANDS $0x80008000, R14, R14 // the third word has two fingerprints
	BEQ  none
found:
	RBIT R14, R14
	CLZ  R14, R14
	ADD  R14>>4, R16, R16 // slot
	ADD  R16<<2, R9, R9
	MOVWU 20(R9), R8
	MOVD 24(R7), R17
	CMP  R17, R8
	BHS  none // a reference past the heap
	MOVD 8(R7), R9
	ADD  R8<<6, R9, R9
	PRFM (R9), PLDL1KEEP
	PRFM 64(R9), PLDL1KEEP
	MOVD R9, (R4)(R5<<3)
	B    next
none:
	MOVD ZR, (R4)(R5<<3)
	LSL  R5, R12, R17
	ORR  R17, R19, R19
next:
	ADD  $1, R5
	CMP  R1, R5
	BLT  records
done:
	MOVD R19, lost+40(FP)
	RET

// func fetchKernel(records *unsafe.Pointer, n int)
TEXT ·fetchKernel(SB), NOSPLIT, $0-16
	MOVD records+0(FP), R0
	MOVD n+8(FP), R1
fetch:
	MOVD.P 8(R0), R2
	PRFM (R2), PLDL1KEEP
	PRFM 64(R2), PLDL1KEEP
	SUBS $1, R1, R1
	BNE  fetch
	RET
