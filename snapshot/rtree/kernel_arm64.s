#include "textflag.h"

// The test of the kernels of kernel.go. Its registers:
//
//	R0 next of nodes   R1 nodes left   R2 next of sets   R3 the node   R4, R5 scratch
//	V0 to V3: MinX, MinY, MaxX, MaxY of the query in every lane
//	V4 to V7: 1, 2, 4, ... 32768, the weights of the lanes
//	V16 to V31: minx, miny, maxx, maxy of the node, four registers each
//	V8: weights of the lanes that touch   V9: of those that lie wholly in the query   V10 to V13 scratch

DATA neonLanes<>+0(SB)/4, $1
DATA neonLanes<>+4(SB)/4, $2
DATA neonLanes<>+8(SB)/4, $4
DATA neonLanes<>+12(SB)/4, $8
DATA neonLanes<>+16(SB)/4, $16
DATA neonLanes<>+20(SB)/4, $32
DATA neonLanes<>+24(SB)/4, $64
DATA neonLanes<>+28(SB)/4, $128
DATA neonLanes<>+32(SB)/4, $256
DATA neonLanes<>+36(SB)/4, $512
DATA neonLanes<>+40(SB)/4, $1024
DATA neonLanes<>+44(SB)/4, $2048
DATA neonLanes<>+48(SB)/4, $4096
DATA neonLanes<>+52(SB)/4, $8192
DATA neonLanes<>+56(SB)/4, $16384
DATA neonLanes<>+60(SB)/4, $32768
GLOBL neonLanes<>(SB), RODATA|NOPTR, $64

// CMGE sets the lanes of register d where n >= m, signed: CMGE Vd.4S, Vn.4S, Vm.4S, which the assembler does not know.
#define CMGE(n, m, d) WORD $(0x4EA03C00 | (m)<<16 | (n)<<5 | (d))

// LANES adds to V8 the weights of four lanes that touch the query (MaxX >= minx, MaxY >= miny, maxx >= MinX, maxy >= MinY),
// and to V9 those of the lanes among them that lie wholly in it.
#define LANES(minx, miny, maxx, maxy, weights) \
	CMGE(2, minx, 10); \
	CMGE(3, miny, 11); \
	CMGE(maxx, 0, 12); \
	CMGE(maxy, 1, 13); \
	VAND V11.B16, V10.B16, V10.B16; \
	VAND V13.B16, V12.B16, V12.B16; \
	VAND V12.B16, V10.B16, V10.B16; \
	VAND weights, V10.B16, V10.B16; \
	VORR V10.B16, V8.B16, V8.B16; \
	CMGE(minx, 0, 11); \
	CMGE(miny, 1, 12); \
	CMGE(2, maxx, 13); \
	VAND V11.B16, V10.B16, V10.B16; \
	VAND V12.B16, V10.B16, V10.B16; \
	CMGE(3, maxy, 11); \
	VAND V13.B16, V10.B16, V10.B16; \
	VAND V11.B16, V10.B16, V10.B16; \
	VORR V10.B16, V9.B16, V9.B16

// func scanNEON(nodes []*node, q *format.Box, sets *[batchNodes]uint32)
TEXT ·scanNEON(SB), NOSPLIT, $0-40
	MOVD nodes_base+0(FP), R0
	MOVD nodes_len+8(FP), R1
	MOVD q+24(FP), R4
	MOVD sets+32(FP), R2
	VLD1 (R4), [V10.S4]
	VDUP V10.S[0], V0.S4
	VDUP V10.S[1], V1.S4
	VDUP V10.S[2], V2.S4
	VDUP V10.S[3], V3.S4
	MOVD $neonLanes<>(SB), R4
	VLD1 (R4), [V4.S4, V5.S4, V6.S4, V7.S4]

loop:
	MOVD.P 8(R0), R3
	VLD1.P 64(R3), [V16.S4, V17.S4, V18.S4, V19.S4]
	VLD1.P 64(R3), [V20.S4, V21.S4, V22.S4, V23.S4]
	VLD1.P 64(R3), [V24.S4, V25.S4, V26.S4, V27.S4]
	VLD1.P 64(R3), [V28.S4, V29.S4, V30.S4, V31.S4]
	VEOR   V8.B16, V8.B16, V8.B16
	VEOR   V9.B16, V9.B16, V9.B16
	LANES(16, 20, 24, 28, V4.B16)
	LANES(17, 21, 25, 29, V5.B16)
	LANES(18, 22, 26, 30, V6.B16)
	LANES(19, 23, 27, 31, V7.B16)
	VADDV  V8.S4, V8
	VADDV  V9.S4, V9
	VMOV   V8.S[0], R4
	VMOV   V9.S[0], R5
	ORR    R5<<16, R4, R4
	MOVW.P R4, 4(R2)
	SUBS   $1, R1, R1
	BNE    loop
	RET
