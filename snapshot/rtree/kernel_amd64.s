#include "textflag.h"

// The kernels of kernel.go. All share these registers:
//
//	SI nodes   BX references   DX next of list   R10 end of list   DI out (references)   R8 out (numbers)   R9 start of out
//	Z0 to Z3 (Y0 to Y3): MinX, MinY, MaxX, MaxY of the query in every lane
//	Z4 (Y4, Y13): 0, 1, 2, ...   Z5 (Y5): the mark inside in every lane
//	R11 the node   R12 its address   R13 or R14 packLanes   AX, CX, R13 scratch
//
// A node is 64 bytes each of minx, miny, maxx, maxy. No branch depends on what is in a node, so that the processor itself has
// a dozen nodes on their way; the loop asks for the lines of the node behind those.

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

// The node that is asked for ahead, in bytes of the list.
#define AHEAD 64

// ASK asks for the lines of the node at AX of the list. A marked one is not read: in its place a line that is at hand is
// asked for.
#define ASK \
	MOVL (AX), AX; \
	MOVQ AX, CX; \
	SHLQ $8, CX; \
	ADDQ SI, CX; \
	TESTL AX, AX; \
	CMOVQMI R9, CX; \
	PREFETCHT0 0(CX); \
	PREFETCHT0 64(CX); \
	PREFETCHT0 128(CX); \
	PREFETCHT0 192(CX)

// ASKREFS asks for the references too, and for those of the next leaves in place of a marked node.
#define ASKREFS \
	MOVL (AX), AX; \
	MOVQ AX, CX; \
	SHLQ $8, CX; \
	ADDQ SI, CX; \
	MOVL AX, R13; \
	ANDL $0x7fffffff, R13; \
	SHLQ $6, R13; \
	ADDQ BX, R13; \
	TESTL AX, AX; \
	CMOVQMI R13, CX; \
	PREFETCHT0 0(R13); \
	PREFETCHT0 0(CX); \
	PREFETCHT0 64(CX); \
	PREFETCHT0 128(CX); \
	PREFETCHT0 192(CX)

// LOAD512 and LOAD2 spread the query at AX over the lanes.
#define LOAD512 \
	VPBROADCASTD 0(AX), Z0; \
	VPBROADCASTD 4(AX), Z1; \
	VPBROADCASTD 8(AX), Z2; \
	VPBROADCASTD 12(AX), Z3; \
	VMOVDQU32 lanes<>(SB), Z4

#define LOAD2 \
	VPBROADCASTD 0(AX), Y0; \
	VPBROADCASTD 4(AX), Y1; \
	VPBROADCASTD 8(AX), Y2; \
	VPBROADCASTD 12(AX), Y3; \
	VMOVDQU lanes<>+0(SB), Y4; \
	VMOVDQU lanes<>+32(SB), Y13

// HITS512 gives in K1 the lanes of the node at R12 that touch the query: MaxX >= minx, MaxY >= miny, MinX <= maxx,
// MinY <= maxy. The comparison 5 is >=, 2 is <=.
#define HITS512 \
	VPCMPD $5, 0(R12), Z2, K1; \
	VPCMPD $5, 64(R12), Z3, K2; \
	VPCMPD $2, 128(R12), Z0, K3; \
	VPCMPD $2, 192(R12), Z1, K4; \
	KANDW K1, K2, K1; \
	KANDW K3, K4, K3; \
	KANDW K1, K3, K1

// NUMBERS512 gives in Z6 the numbers of the children of node R11; the shift drops the mark.
#define NUMBERS512 \
	MOVL R11, AX; \
	SHLL $4, AX; \
	VPBROADCASTD AX, Z6; \
	VPADDD Z4, Z6, Z6

// func nodesAVX512(nodes *byte, q *format.Box, list *uint32, n int, out *[listRoom]uint32) int
TEXT ·nodesAVX512(SB), NOSPLIT, $0-48
	MOVQ nodes+0(FP), SI
	MOVQ q+8(FP), AX
	LOAD512
	MOVL $0x80000000, AX
	VPBROADCASTD AX, Z5
	MOVQ list+16(FP), DX
	MOVQ n+24(FP), R10
	LEAQ (DX)(R10*4), R10
	MOVQ out+32(FP), DI
	MOVQ DI, R9
	MOVQ DX, R12


loop:
	LEAQ AHEAD(DX), AX
	CMPQ AX, R10
	JGE  test
	ASK

test:
	MOVL  (DX), R11
	ADDQ  $4, DX
	TESTL R11, R11
	JS    whole
	MOVQ  R11, R12
	SHLQ  $8, R12
	ADDQ  SI, R12
	HITS512
	VPCMPD $2, 0(R12), Z0, K2
	VPCMPD $2, 64(R12), Z1, K3
	VPCMPD $5, 128(R12), Z2, K4
	VPCMPD $5, 192(R12), Z3, K5
	KANDW K2, K3, K2
	KANDW K4, K5, K4
	KANDW K2, K4, K2
	NUMBERS512
	VPORD Z5, Z6, K2, Z6
	VPCOMPRESSD Z6, K1, Z7
	VMOVDQU32 Z7, (DI)
	KMOVW   K1, AX
	POPCNTL AX, AX
	LEAQ    (DI)(AX*4), DI
	CMPQ    DX, R10
	JLT     loop
	JMP     done

whole:
	NUMBERS512
	VPORD Z5, Z6, Z6
	VMOVDQU32 Z6, (DI)
	ADDQ $64, DI
	CMPQ DX, R10
	JLT  loop

done:
	SUBQ R9, DI
	SHRQ $2, DI
	MOVQ DI, ret+40(FP)
	VZEROUPPER
	RET

// func leavesAVX512(nodes, refs *byte, q *format.Box, list *uint32, n int, outRefs, outLeaves *[listRoom]uint32) int
TEXT ·leavesAVX512(SB), NOSPLIT, $0-64
	MOVQ nodes+0(FP), SI
	MOVQ refs+8(FP), BX
	MOVQ q+16(FP), AX
	LOAD512
	MOVQ list+24(FP), DX
	MOVQ n+32(FP), R10
	LEAQ (DX)(R10*4), R10
	MOVQ outRefs+40(FP), DI
	MOVQ DI, R9
	MOVQ outLeaves+48(FP), R8
	MOVQ DX, R12


loop:
	LEAQ AHEAD(DX), AX
	CMPQ AX, R10
	JGE  test
	ASKREFS

test:
	MOVL  (DX), R11
	ADDQ  $4, DX
	NUMBERS512
	TESTL R11, R11
	JS    whole
	MOVQ  R11, R12
	SHLQ  $8, R12
	ADDQ  SI, R12
	HITS512
	SHLQ  $6, R11
	VMOVDQU32 (BX)(R11*1), Z7
	VPCOMPRESSD Z6, K1, Z6
	VPCOMPRESSD Z7, K1, Z7
	VMOVDQU32 Z6, (R8)
	VMOVDQU32 Z7, (DI)
	KMOVW   K1, AX
	POPCNTL AX, AX
	LEAQ    (DI)(AX*4), DI
	LEAQ    (R8)(AX*4), R8
	CMPQ    DX, R10
	JLT     loop
	JMP     done

whole:
	ANDL $0x7fffffff, R11
	SHLQ $6, R11
	VMOVDQU32 (BX)(R11*1), Z7
	VMOVDQU32 Z6, (R8)
	VMOVDQU32 Z7, (DI)
	ADDQ $64, DI
	ADDQ $64, R8
	CMPQ DX, R10
	JLT  loop

done:
	SUBQ R9, DI
	SHRQ $2, DI
	MOVQ DI, ret+56(FP)
	VZEROUPPER
	RET

// HITS2 gives in AX the lanes at off (0 or 32) of the node at R12 that touch the query: those for which none of
// minx > MaxX, miny > MaxY, MinX > maxx, MinY > maxy holds.
#define HITS2(off) \
	VMOVDQU  (0+off)(R12), Y6; \
	VPCMPGTD Y2, Y6, Y6; \
	VMOVDQU  (64+off)(R12), Y7; \
	VPCMPGTD Y3, Y7, Y7; \
	VPOR     Y7, Y6, Y6; \
	VPCMPGTD (128+off)(R12), Y0, Y7; \
	VPOR     Y7, Y6, Y6; \
	VPCMPGTD (192+off)(R12), Y1, Y7; \
	VPOR     Y7, Y6, Y6; \
	VMOVMSKPS Y6, AX; \
	XORL     $255, AX

// MARKS2 gives in Y8 the mark inside for the lanes that lie wholly in the query.
#define MARKS2(off) \
	VPCMPGTD (0+off)(R12), Y0, Y8; \
	VPCMPGTD (64+off)(R12), Y1, Y7; \
	VPOR     Y7, Y8, Y8; \
	VMOVDQU  (128+off)(R12), Y7; \
	VPCMPGTD Y2, Y7, Y7; \
	VPOR     Y7, Y8, Y8; \
	VMOVDQU  (192+off)(R12), Y7; \
	VPCMPGTD Y3, Y7, Y7; \
	VPOR     Y7, Y8, Y8; \
	VPANDN   Y5, Y8, Y8

// NUMBERS2 gives in Y9 and Y10 the numbers of the children of node R11; the shift drops the mark.
#define NUMBERS2 \
	MOVL R11, CX; \
	SHLL $4, CX; \
	VMOVD CX, X9; \
	VPBROADCASTD X9, Y9; \
	VPADDD Y13, Y9, Y10; \
	VPADDD Y4, Y9, Y9

// func nodesAVX2(nodes *byte, q *format.Box, list *uint32, n int, out *[listRoom]uint32) int
TEXT ·nodesAVX2(SB), NOSPLIT, $0-48
	MOVQ nodes+0(FP), SI
	MOVQ q+8(FP), AX
	LOAD2
	MOVL $0x80000000, AX
	VMOVD AX, X5
	VPBROADCASTD X5, Y5
	MOVQ list+16(FP), DX
	MOVQ n+24(FP), R10
	LEAQ (DX)(R10*4), R10
	MOVQ out+32(FP), DI
	MOVQ DI, R9
	LEAQ ·packLanes(SB), R13
	MOVQ DX, R12


loop:
	LEAQ AHEAD(DX), AX
	CMPQ AX, R10
	JGE  test
	ASK

test:
	MOVL  (DX), R11
	ADDQ  $4, DX
	NUMBERS2
	TESTL R11, R11
	JS    whole
	MOVQ  R11, R12
	SHLQ  $8, R12
	ADDQ  SI, R12
	HITS2(0)
	MARKS2(0)
	VPOR  Y8, Y9, Y9
	VPMOVZXBD (R13)(AX*8), Y11
	VPERMD Y9, Y11, Y9
	VMOVDQU Y9, (DI)
	POPCNTL AX, AX
	LEAQ  (DI)(AX*4), DI
	HITS2(32)
	MARKS2(32)
	VPOR  Y8, Y10, Y10
	VPMOVZXBD (R13)(AX*8), Y11
	VPERMD Y10, Y11, Y10
	VMOVDQU Y10, (DI)
	POPCNTL AX, AX
	LEAQ  (DI)(AX*4), DI
	CMPQ  DX, R10
	JLT   loop
	JMP   done

whole:
	VPOR Y5, Y9, Y9
	VPOR Y5, Y10, Y10
	VMOVDQU Y9, (DI)
	VMOVDQU Y10, 32(DI)
	ADDQ $64, DI
	CMPQ DX, R10
	JLT  loop

done:
	SUBQ R9, DI
	SHRQ $2, DI
	MOVQ DI, ret+40(FP)
	VZEROUPPER
	RET

// func leavesAVX2(nodes, refs *byte, q *format.Box, list *uint32, n int, outRefs, outLeaves *[listRoom]uint32) int
TEXT ·leavesAVX2(SB), NOSPLIT, $0-64
	MOVQ nodes+0(FP), SI
	MOVQ refs+8(FP), BX
	MOVQ q+16(FP), AX
	LOAD2
	MOVQ list+24(FP), DX
	MOVQ n+32(FP), R10
	LEAQ (DX)(R10*4), R10
	MOVQ outRefs+40(FP), DI
	MOVQ DI, R9
	MOVQ outLeaves+48(FP), R8
	LEAQ ·packLanes(SB), R14
	MOVQ DX, R12


loop:
	LEAQ AHEAD(DX), AX
	CMPQ AX, R10
	JGE  test
	ASKREFS

test:
	MOVL  (DX), R11
	ADDQ  $4, DX
	NUMBERS2
	TESTL R11, R11
	JS    whole
	MOVQ  R11, R12
	SHLQ  $8, R12
	ADDQ  SI, R12
	SHLQ  $6, R11
	HITS2(0)
	VPMOVZXBD (R14)(AX*8), Y11
	VPERMD Y9, Y11, Y9
	VPERMD (BX)(R11*1), Y11, Y12
	VMOVDQU Y9, (R8)
	VMOVDQU Y12, (DI)
	POPCNTL AX, AX
	LEAQ  (DI)(AX*4), DI
	LEAQ  (R8)(AX*4), R8
	HITS2(32)
	VPMOVZXBD (R14)(AX*8), Y11
	VPERMD Y10, Y11, Y10
	VPERMD 32(BX)(R11*1), Y11, Y12
	VMOVDQU Y10, (R8)
	VMOVDQU Y12, (DI)
	POPCNTL AX, AX
	LEAQ  (DI)(AX*4), DI
	LEAQ  (R8)(AX*4), R8
	CMPQ  DX, R10
	JLT   loop
	JMP   done

whole:
	ANDL $0x7fffffff, R11
	SHLQ $6, R11
	VMOVDQU (BX)(R11*1), Y11
	VMOVDQU 32(BX)(R11*1), Y12
	VMOVDQU Y9, (R8)
	VMOVDQU Y10, 32(R8)
	VMOVDQU Y11, (DI)
	VMOVDQU Y12, 32(DI)
	ADDQ $64, DI
	ADDQ $64, R8
	CMPQ DX, R10
	JLT  loop

done:
	SUBQ R9, DI
	SHRQ $2, DI
	MOVQ DI, ret+56(FP)
	VZEROUPPER
	RET
