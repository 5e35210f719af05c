#include "textflag.h"

// The kernels of kernel.go. Both share these registers:
//
//	R0 nodes   R1 references   R2 next of list   R3 end of list   R4 out (references)   R5 out (numbers)   R6 start of out
//	R7 the node   R8 its address, R9 the set of lanes that hit, R10 to R12 scratch   R13 packLanes   R14 packCount
//	V0 to V3: MinX, MinY, MaxX, MaxY of the query in every lane
//	V4 to V7: 1, 2, 4, ... 32768   V8 to V11: 0, 1, 2, ... 15   V12: the mark inside in every lane
//	V16 to V31: minx, miny, maxx, maxy of the node, four registers each   V13 to V15 scratch

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
DATA neonLanes<>+64(SB)/4, $0
DATA neonLanes<>+68(SB)/4, $1
DATA neonLanes<>+72(SB)/4, $2
DATA neonLanes<>+76(SB)/4, $3
DATA neonLanes<>+80(SB)/4, $4
DATA neonLanes<>+84(SB)/4, $5
DATA neonLanes<>+88(SB)/4, $6
DATA neonLanes<>+92(SB)/4, $7
DATA neonLanes<>+96(SB)/4, $8
DATA neonLanes<>+100(SB)/4, $9
DATA neonLanes<>+104(SB)/4, $10
DATA neonLanes<>+108(SB)/4, $11
DATA neonLanes<>+112(SB)/4, $12
DATA neonLanes<>+116(SB)/4, $13
DATA neonLanes<>+120(SB)/4, $14
DATA neonLanes<>+124(SB)/4, $15
GLOBL neonLanes<>(SB), RODATA|NOPTR, $128

// CMGE sets the lanes of register d where n >= m, signed: CMGE Vd.4S, Vn.4S, Vm.4S, which the assembler does not know.
#define CMGE(n, m, d) WORD $(0x4EA03C00 | (m)<<16 | (n)<<5 | (d))

// SETUP takes the query at R10 and the constants.
#define SETUP \
	VLD1 (R10), [V15.S4]; \
	VDUP V15.S[0], V0.S4; \
	VDUP V15.S[1], V1.S4; \
	VDUP V15.S[2], V2.S4; \
	VDUP V15.S[3], V3.S4; \
	MOVD $neonLanes<>(SB), R10; \
	VLD1.P 64(R10), [V4.S4, V5.S4, V6.S4, V7.S4]; \
	VLD1 (R10), [V8.S4, V9.S4, V10.S4, V11.S4]; \
	MOVD $·packLanes(SB), R13; \
	MOVD $·packCount(SB), R14

// LOAD takes the node R7.
#define LOAD \
	ADD R7<<8, R0, R8; \
	VLD1.P 64(R8), [V16.S4, V17.S4, V18.S4, V19.S4]; \
	VLD1.P 64(R8), [V20.S4, V21.S4, V22.S4, V23.S4]; \
	VLD1.P 64(R8), [V24.S4, V25.S4, V26.S4, V27.S4]; \
	VLD1.P 64(R8), [V28.S4, V29.S4, V30.S4, V31.S4]

// HITS adds to V15 the weights of the lanes that touch the query: MaxX >= minx, MaxY >= miny, maxx >= MinX, maxy >= MinY.
#define HITS(minx, miny, maxx, maxy, weights) \
	CMGE(2, minx, 13); \
	CMGE(3, miny, 14); \
	VAND V14.B16, V13.B16, V13.B16; \
	CMGE(maxx, 0, 14); \
	VAND V14.B16, V13.B16, V13.B16; \
	CMGE(maxy, 1, 14); \
	VAND V14.B16, V13.B16, V13.B16; \
	VAND weights, V13.B16, V13.B16; \
	VORR V13.B16, V15.B16, V15.B16

// ALLHITS gives in R9 the lanes of the node that touch the query, a bit each.
#define ALLHITS \
	VEOR V15.B16, V15.B16, V15.B16; \
	HITS(16, 20, 24, 28, V4.B16); \
	HITS(17, 21, 25, 29, V5.B16); \
	HITS(18, 22, 26, 30, V6.B16); \
	HITS(19, 23, 27, 31, V7.B16); \
	VADDV V15.S4, V15; \
	VMOV V15.S[0], R9

// MARKED turns minx of four lanes into the mark inside, for those that lie wholly in the query, together with the number
// of the child: V14 has that of the first child.
#define MARKED(minx, miny, maxx, maxy, minxV, minyV, maxxV, maxyV, lanes) \
	CMGE(minx, 0, minx); \
	CMGE(miny, 1, miny); \
	CMGE(2, maxx, maxx); \
	CMGE(3, maxy, maxy); \
	VAND minyV, minxV, minxV; \
	VAND maxyV, maxxV, maxxV; \
	VAND maxxV, minxV, minxV; \
	VAND V12.B16, minxV, minxV; \
	VADD lanes, V14.S4, V13.S4; \
	VORR V13.B16, minxV, minxV

// PICK gives in V13 which bytes to take for the next four lanes of R9, and in R11 how many bytes these are.
#define PICK \
	AND $15, R9, R10; \
	LSR $4, R9, R9; \
	ADD R10<<4, R13, R12; \
	VLD1 (R12), [V13.B16]; \
	MOVBU (R14)(R10), R11

// func nodesNEON(nodes *byte, q *format.Box, list *uint32, n int, out *[listRoom]uint32) int
TEXT ·nodesNEON(SB), NOSPLIT, $0-48
	MOVD nodes+0(FP), R0
	MOVD q+8(FP), R10
	SETUP
	MOVW $0x80000000, R10
	VDUP R10, V12.S4
	MOVD list+16(FP), R2
	MOVD n+24(FP), R3
	ADD  R3<<2, R2, R3
	MOVD out+32(FP), R4
	MOVD R4, R6

loop:
	MOVWU.P 4(R2), R7
	LSLW    $4, R7, R10      // the shift drops the mark
	VDUP    R10, V14.S4
	TBNZ    $31, R7, whole
	LOAD
	ALLHITS
	CBZ     R9, next
	VDUP    R10, V14.S4
	MARKED(16, 20, 24, 28, V16.B16, V20.B16, V24.B16, V28.B16, V8.S4)
	MARKED(17, 21, 25, 29, V17.B16, V21.B16, V25.B16, V29.B16, V9.S4)
	MARKED(18, 22, 26, 30, V18.B16, V22.B16, V26.B16, V30.B16, V10.S4)
	MARKED(19, 23, 27, 31, V19.B16, V23.B16, V27.B16, V31.B16, V11.S4)
	PICK
	VTBL V13.B16, [V16.B16], V15.B16
	VST1 [V15.B16], (R4)
	ADD  R11, R4, R4
	PICK
	VTBL V13.B16, [V17.B16], V15.B16
	VST1 [V15.B16], (R4)
	ADD  R11, R4, R4
	PICK
	VTBL V13.B16, [V18.B16], V15.B16
	VST1 [V15.B16], (R4)
	ADD  R11, R4, R4
	PICK
	VTBL V13.B16, [V19.B16], V15.B16
	VST1 [V15.B16], (R4)
	ADD  R11, R4, R4

next:
	CMP R3, R2
	BLT loop
	B   done

whole:
	VORR V12.B16, V14.B16, V14.B16
	VADD V8.S4, V14.S4, V16.S4
	VADD V9.S4, V14.S4, V17.S4
	VADD V10.S4, V14.S4, V18.S4
	VADD V11.S4, V14.S4, V19.S4
	VST1.P [V16.S4, V17.S4, V18.S4, V19.S4], 64(R4)
	CMP  R3, R2
	BLT  loop

done:
	SUB  R6, R4, R4
	LSR  $2, R4, R4
	MOVD R4, ret+40(FP)
	RET

// PUT writes the references and numbers of the next four lanes of R9.
#define PUT(refs, numbers) \
	PICK; \
	VTBL V13.B16, [refs], V15.B16; \
	VST1 [V15.B16], (R4); \
	ADD R11, R4, R4; \
	VTBL V13.B16, [numbers], V15.B16; \
	VST1 [V15.B16], (R5); \
	ADD R11, R5, R5

// func leavesNEON(nodes, refs *byte, q *format.Box, list *uint32, n int, outRefs, outLeaves *[listRoom]uint32) int
TEXT ·leavesNEON(SB), NOSPLIT, $0-64
	MOVD nodes+0(FP), R0
	MOVD refs+8(FP), R1
	MOVD q+16(FP), R10
	SETUP
	MOVD list+24(FP), R2
	MOVD n+32(FP), R3
	ADD  R3<<2, R2, R3
	MOVD outRefs+40(FP), R4
	MOVD R4, R6
	MOVD outLeaves+48(FP), R5

loop:
	MOVWU.P 4(R2), R7
	TBNZ    $31, R7, whole
	LOAD
	ALLHITS
	CBZ     R9, next
	ADD     R7<<6, R1, R12
	VLD1    (R12), [V16.S4, V17.S4, V18.S4, V19.S4]
	LSLW    $4, R7, R10
	VDUP    R10, V14.S4
	VADD    V8.S4, V14.S4, V20.S4
	VADD    V9.S4, V14.S4, V21.S4
	VADD    V10.S4, V14.S4, V22.S4
	VADD    V11.S4, V14.S4, V23.S4
	PUT(V16.B16, V20.B16)
	PUT(V17.B16, V21.B16)
	PUT(V18.B16, V22.B16)
	PUT(V19.B16, V23.B16)

next:
	CMP R3, R2
	BLT loop
	B   done

whole:
	AND    $0x7fffffff, R7, R7
	ADD    R7<<6, R1, R12
	VLD1   (R12), [V16.S4, V17.S4, V18.S4, V19.S4]
	LSLW   $4, R7, R10
	VDUP   R10, V14.S4
	VADD   V8.S4, V14.S4, V20.S4
	VADD   V9.S4, V14.S4, V21.S4
	VADD   V10.S4, V14.S4, V22.S4
	VADD   V11.S4, V14.S4, V23.S4
	VST1.P [V16.S4, V17.S4, V18.S4, V19.S4], 64(R4)
	VST1.P [V20.S4, V21.S4, V22.S4, V23.S4], 64(R5)
	CMP    R3, R2
	BLT    loop

done:
	SUB  R6, R4, R4
	LSR  $2, R4, R4
	MOVD R4, ret+56(FP)
	RET
