#include "textflag.h"

// func prefetch(addrs *[GroupSize]uintptr, n int)
TEXT ·prefetch(SB), NOSPLIT, $0-16
	MOVD addrs+0(FP), R0
	MOVD n+8(FP), R1
	CBZ  R1, done
loop:
	MOVD.P 8(R0), R2
	MOVBU (R2), R3
	SUB  $1, R1
	CBNZ R1, loop
done:
	RET

// func prefetchPairs(addrs *[GroupSize]uintptr, n int)
TEXT ·prefetchPairs(SB), NOSPLIT, $0-16
	MOVD addrs+0(FP), R0
	MOVD n+8(FP), R1
	CBZ  R1, done
loop:
	MOVD.P 8(R0), R2
	PRFM (R2), PLDL1KEEP
	PRFM 64(R2), PLDL1KEEP
	SUB  $1, R1
	CBNZ R1, loop
done:
	RET

// func prefetchPair(addr uintptr)
TEXT ·prefetchPair(SB), NOSPLIT, $0-8
	MOVD addr+0(FP), R0
	PRFM (R0), PSTL1KEEP
	PRFM 64(R0), PSTL1KEEP
	RET
