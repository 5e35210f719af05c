#include "textflag.h"

// The kernels of kernel.go. Both share these registers:
//
//	SI next of nodes   DX next of ahead   CX nodes left   DI next of sets   R12 the node   AX, BX, R13 scratch
//	Z0 to Z3 (Y0 to Y3): MinX, MinY, MaxX, MaxY of the query in every lane
//	Z4 to Z7 (Y4 to Y7): minx, miny, maxx, maxy of the node
//
// A node is 64 bytes each of minx, miny, maxx, maxy. No branch depends on what is in a node, so that the processor itself has
// a dozen nodes on their way.

// func scanAVX512(nodes **node, ahead **byte, n int, q *format.Box, sets *uint32)
TEXT ·scanAVX512(SB), NOSPLIT, $0-40
	MOVQ nodes+0(FP), SI
	MOVQ ahead+8(FP), DX
	MOVQ n+16(FP), CX
	MOVQ q+24(FP), AX
	MOVQ sets+32(FP), DI
	VPBROADCASTD 0(AX), Z0
	VPBROADCASTD 4(AX), Z1
	VPBROADCASTD 8(AX), Z2
	VPBROADCASTD 12(AX), Z3

	// Of the comparisons 5 is >=, 2 is <=.
loop:
	MOVQ (SI), R12
	MOVQ (DX), R13
	PREFETCHT0 (R13)
	VMOVDQU32 0(R12), Z4
	VMOVDQU32 64(R12), Z5
	VMOVDQU32 128(R12), Z6
	VMOVDQU32 192(R12), Z7
	VPCMPD $5, Z4, Z2, K1
	VPCMPD $5, Z5, Z3, K2
	VPCMPD $2, Z6, Z0, K3
	VPCMPD $2, Z7, Z1, K4
	KANDW  K1, K2, K1
	KANDW  K3, K4, K3
	KANDW  K1, K3, K1
	VPCMPD $2, Z4, Z0, K2
	VPCMPD $2, Z5, Z1, K3
	VPCMPD $5, Z6, Z2, K4
	VPCMPD $5, Z7, Z3, K5
	KANDW  K2, K3, K2
	KANDW  K4, K5, K4
	KANDW  K2, K4, K2
	KANDW  K1, K2, K2
	KMOVW  K1, AX
	KMOVW  K2, BX
	SHLL   $16, BX
	ORL    BX, AX
	MOVL   AX, (DI)
	ADDQ   $8, SI
	ADDQ   $8, DX
	ADDQ   $4, DI
	DECQ   CX
	JNZ    loop
	VZEROUPPER
	RET

// HALF gives in AX the lanes at off (0 or 32) of the node at R12 that touch the query, and in BX those of them that lie wholly
// in it. AVX2 compares for > only, so that first come those for which it fails in any direction.
#define HALF(off) \
	VMOVDQU   (0+off)(R12), Y4; \
	VMOVDQU   (64+off)(R12), Y5; \
	VMOVDQU   (128+off)(R12), Y6; \
	VMOVDQU   (192+off)(R12), Y7; \
	VPCMPGTD  Y2, Y4, Y8; \
	VPCMPGTD  Y3, Y5, Y9; \
	VPCMPGTD  Y6, Y0, Y10; \
	VPCMPGTD  Y7, Y1, Y11; \
	VPOR      Y9, Y8, Y8; \
	VPOR      Y11, Y10, Y10; \
	VPOR      Y10, Y8, Y8; \
	VPCMPGTD  Y4, Y0, Y9; \
	VPCMPGTD  Y5, Y1, Y10; \
	VPCMPGTD  Y2, Y6, Y11; \
	VPCMPGTD  Y3, Y7, Y12; \
	VPOR      Y10, Y9, Y9; \
	VPOR      Y12, Y11, Y11; \
	VPOR      Y11, Y9, Y9; \
	VPOR      Y8, Y9, Y9; \
	VMOVMSKPS Y8, AX; \
	VMOVMSKPS Y9, BX; \
	XORL      $255, AX; \
	XORL      $255, BX

// func scanAVX2(nodes **node, ahead **byte, n int, q *format.Box, sets *uint32)
TEXT ·scanAVX2(SB), NOSPLIT, $0-40
	MOVQ nodes+0(FP), SI
	MOVQ ahead+8(FP), DX
	MOVQ n+16(FP), CX
	MOVQ q+24(FP), AX
	MOVQ sets+32(FP), DI
	VPBROADCASTD 0(AX), Y0
	VPBROADCASTD 4(AX), Y1
	VPBROADCASTD 8(AX), Y2
	VPBROADCASTD 12(AX), Y3

loop:
	MOVQ (SI), R12
	MOVQ (DX), R13
	PREFETCHT0 (R13)
	HALF(0)
	SHLL $16, BX
	ORL  BX, AX
	MOVL AX, R13
	HALF(32)
	SHLL $24, BX
	SHLL $8, AX
	ORL  BX, AX
	ORL  R13, AX
	MOVL AX, (DI)
	ADDQ $8, SI
	ADDQ $8, DX
	ADDQ $4, DI
	DECQ CX
	JNZ  loop
	VZEROUPPER
	RET
