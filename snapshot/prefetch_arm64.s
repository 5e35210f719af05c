#include "textflag.h"

// func prefetch(addrs *[group]uintptr, n int)
TEXT ·prefetch(SB), NOSPLIT, $0-16
	MOVD addrs+0(FP), R0
	MOVD n+8(FP), R1
	CBZ  R1, done
loop:
	MOVD.P 8(R0), R2
	PRFM (R2), PLDL1KEEP
	SUB  $1, R1
	CBNZ R1, loop
done:
	RET

// func prefetchPairs(addrs *[group]uintptr, n int)
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

// func prefetchPut(bucket, tail uintptr)
TEXT ·prefetchPut(SB), NOSPLIT, $0-16
	MOVD bucket+0(FP), R0
	MOVD tail+8(FP), R1
	PRFM (R0), PLDL1KEEP
	PRFM (R1), PSTL1KEEP
	PRFM 64(R1), PSTL1KEEP
	RET
