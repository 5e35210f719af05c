#include "textflag.h"

// The kernels of kernel.go. All share these registers:
//
//	SI next of nodes   CX nodes left   R12 the node   AX, BX, R13 scratch   R14 packLanes
//	scan: DI next of sets
//	leaves: R10 next of refs   R13 the references   R11 next of firsts   DI next of hitRefs   R9 start of hitRefs   R8 next of hits
//	Z0 to Z3 (Y0 to Y3): MinX, MinY, MaxX, MaxY of the query in every lane
//	Z4 to Z7 (Y4 to Y7): minx, miny, maxx, maxy of the node
//	Z14 (Y14): the first leaf in every lane   Z15: 0, 1, 2, ..., the lanes of a node
//
// A node is 64 bytes each of minx, miny, maxx, maxy. No branch depends on what is in a node, so that the processor itself has
// a dozen nodes on their way.
//
// Hits are written a whole vector at a time, each over what the one before wrote too much. Those of node i begin at most 16*i
// words from the start, so that no vector reaches over the end.

DATA lanes<>+0(SB)/4, $0
DATA lanes<>+4(SB)/4, $1
DATA lanes<>+8(SB)/4, $2
DATA lanes<>+12(SB)/4, $3
DATA lanes<>+16(SB)/4, $4
DATA lanes<>+20(SB)/4, $5
DATA lanes<>+24(SB)/4, $6
DATA lanes<>+28(SB)/4, $7
DATA lanes<>+32(SB)/4, $8
DATA lanes<>+36(SB)/4, $9
DATA lanes<>+40(SB)/4, $10
DATA lanes<>+44(SB)/4, $11
DATA lanes<>+48(SB)/4, $12
DATA lanes<>+52(SB)/4, $13
DATA lanes<>+56(SB)/4, $14
DATA lanes<>+60(SB)/4, $15
GLOBL lanes<>(SB), RODATA|NOPTR, $64

// QUERY512 and QUERY2 spread the query at AX over the lanes.
#define QUERY512 \
	VPBROADCASTD 0(AX), Z0; \
	VPBROADCASTD 4(AX), Z1; \
	VPBROADCASTD 8(AX), Z2; \
	VPBROADCASTD 12(AX), Z3

#define QUERY2 \
	VPBROADCASTD 0(AX), Y0; \
	VPBROADCASTD 4(AX), Y1; \
	VPBROADCASTD 8(AX), Y2; \
	VPBROADCASTD 12(AX), Y3

// TOUCH512 gives in K1 the lanes that touch the query: MaxX >= minx, MaxY >= miny, MinX <= maxx, MinY <= maxy. The comparison
// 5 is >=, 2 is <=.
#define TOUCH512(minx, miny, maxx, maxy) \
	VPCMPD $5, minx, Z2, K1; \
	VPCMPD $5, miny, Z3, K2; \
	VPCMPD $2, maxx, Z0, K3; \
	VPCMPD $2, maxy, Z1, K4; \
	KANDW  K1, K2, K1; \
	KANDW  K3, K4, K3; \
	KANDW  K1, K3, K1

// func scanAVX512(nodes []*node, q *format.Box, sets *[batchNodes]uint32)
TEXT ·scanAVX512(SB), NOSPLIT, $0-40
	MOVQ nodes_base+0(FP), SI
	MOVQ nodes_len+8(FP), CX
	MOVQ q+24(FP), AX
	MOVQ sets+32(FP), DI
	QUERY512

loop:
	MOVQ      (SI), R12
	VMOVDQU32 0(R12), Z4
	VMOVDQU32 64(R12), Z5
	VMOVDQU32 128(R12), Z6
	VMOVDQU32 192(R12), Z7
	TOUCH512(Z4, Z5, Z6, Z7)
	VPCMPD    $2, Z4, Z0, K2
	VPCMPD    $2, Z5, Z1, K3
	VPCMPD    $5, Z6, Z2, K4
	VPCMPD    $5, Z7, Z3, K5
	KANDW     K2, K3, K2
	KANDW     K4, K5, K4
	KANDW     K2, K4, K2
	KANDW     K1, K2, K2
	KMOVW     K1, AX
	KMOVW     K2, BX
	SHLL      $16, BX
	ORL       BX, AX
	MOVL      AX, (DI)
	ADDQ      $8, SI
	ADDQ      $4, DI
	DECQ      CX
	JNZ       loop
	VZEROUPPER
	RET

// func leavesAVX512(nodes []*node, refs []*nodeRefs, firsts []Leaf, q *format.Box, hitRefs *[BatchMax]uint32, hits *[BatchMax]Leaf) int
TEXT ·leavesAVX512(SB), NOSPLIT, $0-104
	MOVQ nodes_base+0(FP), SI
	MOVQ nodes_len+8(FP), CX
	MOVQ refs_base+24(FP), R10
	MOVQ firsts_base+48(FP), R11
	MOVQ q+72(FP), AX
	MOVQ hitRefs+80(FP), DI
	MOVQ hits+88(FP), R8
	MOVQ DI, R9
	QUERY512
	VMOVDQU32 lanes<>(SB), Z15

loop:
	MOVQ         (SI), R12
	MOVQ         (R10), R13
	VPBROADCASTQ (R11), Z14
	TOUCH512(0(R12), 64(R12), 128(R12), 192(R12))
	VMOVDQU32    (R13), Z9
	VPCOMPRESSD  Z9, K1, Z9
	VMOVDQU32    Z9, (DI)
	VPCOMPRESSD  Z15, K1, Z10
	VEXTRACTI64X4 $1, Z10, Y11
	VPMOVZXDQ    Y10, Z10
	VPMOVZXDQ    Y11, Z11
	VPORQ        Z14, Z10, Z10
	VPORQ        Z14, Z11, Z11
	VMOVDQU64    Z10, (R8)
	VMOVDQU64    Z11, 64(R8)
	KMOVW        K1, AX
	POPCNTL      AX, AX
	LEAQ         (DI)(AX*4), DI
	LEAQ         (R8)(AX*8), R8
	ADDQ         $8, SI
	ADDQ         $8, R10
	ADDQ         $8, R11
	DECQ         CX
	JNZ          loop
	SUBQ         R9, DI
	SHRQ         $2, DI
	MOVQ         DI, ret+96(FP)
	VZEROUPPER
	RET

// TOUCH2 gives in AX the lanes of Y4 to Y7 that touch the query. AVX2 compares for > only, so that first come in Y8 those for
// which it fails in any direction.
#define TOUCH2 \
	VPCMPGTD  Y2, Y4, Y8; \
	VPCMPGTD  Y3, Y5, Y9; \
	VPCMPGTD  Y6, Y0, Y10; \
	VPCMPGTD  Y7, Y1, Y11; \
	VPOR      Y9, Y8, Y8; \
	VPOR      Y11, Y10, Y10; \
	VPOR      Y10, Y8, Y8; \
	VMOVMSKPS Y8, AX; \
	XORL      $255, AX

// LOAD2 loads the lanes at off (0 or 32) of the node at R12.
#define LOAD2(off) \
	VMOVDQU (0+off)(R12), Y4; \
	VMOVDQU (64+off)(R12), Y5; \
	VMOVDQU (128+off)(R12), Y6; \
	VMOVDQU (192+off)(R12), Y7

// INSIDE2 gives in BX those of the lanes that TOUCH2 gave which lie wholly in the query.
#define INSIDE2 \
	VPCMPGTD  Y4, Y0, Y9; \
	VPCMPGTD  Y5, Y1, Y10; \
	VPCMPGTD  Y2, Y6, Y11; \
	VPCMPGTD  Y3, Y7, Y12; \
	VPOR      Y10, Y9, Y9; \
	VPOR      Y12, Y11, Y11; \
	VPOR      Y11, Y9, Y9; \
	VPOR      Y8, Y9, Y9; \
	VMOVMSKPS Y9, BX; \
	XORL      $255, BX

// func scanAVX2(nodes []*node, q *format.Box, sets *[batchNodes]uint32)
TEXT ·scanAVX2(SB), NOSPLIT, $0-40
	MOVQ nodes_base+0(FP), SI
	MOVQ nodes_len+8(FP), CX
	MOVQ q+24(FP), AX
	MOVQ sets+32(FP), DI
	QUERY2

loop:
	MOVQ (SI), R12
	LOAD2(0)
	TOUCH2
	INSIDE2
	SHLL $16, BX
	ORL  BX, AX
	MOVL AX, R13
	LOAD2(32)
	TOUCH2
	INSIDE2
	SHLL $24, BX
	SHLL $8, AX
	ORL  BX, AX
	ORL  R13, AX
	MOVL AX, (DI)
	ADDQ $8, SI
	ADDQ $4, DI
	DECQ CX
	JNZ  loop
	VZEROUPPER
	RET

// LEAVES2 writes the hits among the lanes at off (0 or 32) of the node at R12 and of the references at R13.
#define LEAVES2(off) \
	LOAD2(off); \
	TOUCH2; \
	VPMOVZXBD (R14)(AX*8), Y9; \
	VPERMD    off(R13), Y9, Y9; \
	VMOVDQU   Y9, (DI); \
	VPMOVZXBQ 0(R14)(AX*8), Y10; \
	VPMOVZXBQ 4(R14)(AX*8), Y11; \
	VPADDQ    Y14, Y10, Y10; \
	VPADDQ    Y14, Y11, Y11; \
	VMOVDQU   Y10, (R8); \
	VMOVDQU   Y11, 32(R8); \
	POPCNTL   AX, AX; \
	LEAQ      (DI)(AX*4), DI; \
	LEAQ      (R8)(AX*8), R8

// func leavesAVX2(nodes []*node, refs []*nodeRefs, firsts []Leaf, q *format.Box, hitRefs *[BatchMax]uint32, hits *[BatchMax]Leaf) int
TEXT ·leavesAVX2(SB), NOSPLIT, $0-104
	MOVQ nodes_base+0(FP), SI
	MOVQ nodes_len+8(FP), CX
	MOVQ refs_base+24(FP), R10
	MOVQ firsts_base+48(FP), R11
	MOVQ q+72(FP), AX
	MOVQ hitRefs+80(FP), DI
	MOVQ hits+88(FP), R8
	MOVQ DI, R9
	LEAQ ·packLanes(SB), R14
	QUERY2
	MOVL $8, AX // from the first half of a node to the second
	VMOVD AX, X15
	VPBROADCASTQ X15, Y15

loop:
	MOVQ         (SI), R12
	MOVQ         (R10), R13
	VPBROADCASTQ (R11), Y14
	LEAVES2(0)
	VPADDQ       Y15, Y14, Y14
	LEAVES2(32)
	ADDQ         $8, SI
	ADDQ         $8, R10
	ADDQ         $8, R11
	DECQ         CX
	JNZ          loop
	SUBQ         R9, DI
	SHRQ         $2, DI
	MOVQ         DI, ret+96(FP)
	VZEROUPPER
	RET
