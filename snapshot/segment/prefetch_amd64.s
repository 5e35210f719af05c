#include "textflag.h"

// func prefetch(addrs *[GroupSize]uintptr, n int)
TEXT ·prefetch(SB), NOSPLIT, $0-16
	MOVQ addrs+0(FP), SI
	MOVQ n+8(FP), CX
	TESTQ CX, CX
	JEQ  done
loop:
	MOVQ (SI), AX
	MOVBLZX (AX), DX
	ADDQ $8, SI
	DECQ CX
	JNZ  loop
done:
	RET

// func prefetchPairs(addrs *[GroupSize]uintptr, n int)
TEXT ·prefetchPairs(SB), NOSPLIT, $0-16
	MOVQ addrs+0(FP), SI
	MOVQ n+8(FP), CX
	TESTQ CX, CX
	JEQ  done
loop:
	MOVQ (SI), AX
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	ADDQ $8, SI
	DECQ CX
	JNZ  loop
done:
	RET

// func prefetchPair(addr uintptr)
TEXT ·prefetchPair(SB), NOSPLIT, $0-8
	MOVQ addr+0(FP), AX
	PREFETCHT0 (AX)
	PREFETCHT0 64(AX)
	RET
