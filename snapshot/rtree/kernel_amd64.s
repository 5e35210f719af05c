#include "textflag.h"
#include "go_asm.h"

// The walks of kernel.go. Both share these registers:
//
//	DX the cursor   R8 its trees   R9 the level   R10 everywhere   R14, AX scratch
//	SI next node of the list   CX nodes left   BX the tree, its position or address   R12 the node, then its first child or leaf
//	R13 address of the node   DI next child or hit (of hitRefs)   R11 first of them   R15 lanes that may have a child
//	Z0 to Z3 (Y0 to Y3): MinX, MinY, MaxX, MaxY of the query in every lane
//	Z13 (Y13): the position of the tree in every lane   Z14 (Y14): the first child or leaf in every lane
//
// A node is 64 bytes each of minx, miny, maxx, maxy. A small query waits for the lines of a few nodes, level after level: so
// what an inner node has few children of is written word by word and asked for, since the address of the next node is known
// soonest that way, and no line of references is read in vain. Otherwise children and hits are written a whole vector at a
// time, each over what the one before wrote too much, without a branch on their number, so that the processor itself has a
// dozen nodes on their way. Those of node i begin at most 16*i words from the start: no vector reaches over the end.

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

// wholes is nodeWhole in every lane.
DATA wholes<>+0(SB)/8, $0x8000000080000000
DATA wholes<>+8(SB)/8, $0x8000000080000000
DATA wholes<>+16(SB)/8, $0x8000000080000000
DATA wholes<>+24(SB)/8, $0x8000000080000000
GLOBL wholes<>(SB), RODATA|NOPTR, $32

// QUERY512 and QUERY2 spread the query of the cursor over the lanes.
#define QUERY512 \
	VPBROADCASTD (Cursor_box+0)(DX), Z0; \
	VPBROADCASTD (Cursor_box+4)(DX), Z1; \
	VPBROADCASTD (Cursor_box+8)(DX), Z2; \
	VPBROADCASTD (Cursor_box+12)(DX), Z3

#define QUERY2 \
	VPBROADCASTD (Cursor_box+0)(DX), Y0; \
	VPBROADCASTD (Cursor_box+4)(DX), Y1; \
	VPBROADCASTD (Cursor_box+8)(DX), Y2; \
	VPBROADCASTD (Cursor_box+12)(DX), Y3

// SPAN is the span of level R9.
#define SPAN(field) (Cursor_spans+field)(DX)(R9*span__size)

// TAKE takes a batch of nodes of the lowest level that has any; there is one.
#define TAKE(open, all, take) \
	TZCNTQ open, R9; \
	MOVL   SPAN(span_next), SI; \
	MOVL   SPAN(span_end), CX; \
	SUBL   SI, CX; \
	CMPL   CX, $const_batchNodes; \
	JLE    all; \
	MOVL   $const_batchNodes, CX; \
	ADDL   CX, SPAN(span_next); \
	JMP    take; \
all: \
	LEAQ   -1(open), AX; \
	ANDQ   open, AX; \
	MOVQ   AX, Cursor_open(DX); \
take: \
	IMUL3Q $nodeList__size, R9, R11; \
	LEAQ   Cursor_lists(DX)(R11*1), R11; \
	LEAQ   (R11)(SI*4), SI

// BELOW begins the list of the level below the list at R11.
#define BELOW \
	SUBQ $nodeList__size, R11; \
	MOVQ R11, DI

// LISTED ends it: the children wait, if there are any.
#define LISTED(next) \
	SUBQ R11, DI; \
	JZ   next; \
	SHRQ $2, DI; \
	DECQ R9; \
	MOVL $0, SPAN(span_next); \
	MOVL DI, SPAN(span_end); \
	MOVQ Cursor_open(DX), AX; \
	BTSQ R9, AX; \
	MOVQ AX, Cursor_open(DX)

// HITS begins the hits; these are their other words, from hitRefs.
#define HITS \
	LEAQ Cursor_hitRefs(DX), DI; \
	MOVQ DI, R11

#define HIT_LEAVES (Cursor_hitLeaves-Cursor_hitRefs)
#define HIT_TREES (Cursor_hitTrees-Cursor_hitRefs)

// NODE gives the node at SI and its tree.
#define NODE \
	MOVL nodeList_trees(SI), BX; \
	MOVL (SI), R12

// ADDRESS gives the address of node R12, whose level has its first node at first.
#define ADDRESS(first) \
	MOVQ    R12, R13; \
	SHLQ    $8, R13; \
	ADDQ    first, R13; \
	TESTL   R12, R12; \
	CMOVQMI R10, R13

// CHILDREN gives in R15 the lanes of node R12 of tree AX, of level R9, that have a child: all but in the last node. The others,
// being the highest, are written behind the children at most.
#define CHILDREN \
	MOVL     $const_allLanes, R15; \
	CMPL     R12, Tree_last(AX)(R9*4); \
	CMOVLEQ  Tree_tail(AX)(R9*4), R15

// FIRSTCHILD makes of node R12 its first child, marked as the node is.
#define FIRSTCHILD \
	MOVL R12, AX; \
	ANDL $const_nodeWhole, AX; \
	SHLL $const_nodeBits, R12; \
	ORL  AX, R12

// FEW writes the children of the lanes in R14 when they are few, asks for their lines, and goes on at next; otherwise it goes
// on at many.
#define FEW(one, many, next) \
	POPCNTL R14, AX; \
	CMPL    AX, $const_fewChildren; \
	JGT     many; \
	TESTL   R14, R14; \
	JZ      next; \
	MOVQ    (R8)(BX*8), R13; \
	MOVQ    (Tree_at-8)(R13)(R9*8), R13; \
one: \
	TZCNTL  R14, AX; \
	ADDL    R12, AX; \
	MOVL    AX, (DI); \
	MOVL    BX, nodeList_trees(DI); \
	ADDQ    $4, DI; \
	SHLQ    $8, AX; \
	PREFETCHT0 0(R13)(AX*1); \
	PREFETCHT0 64(R13)(AX*1); \
	PREFETCHT0 128(R13)(AX*1); \
	PREFETCHT0 192(R13)(AX*1); \
	LEAL    -1(R14), AX; \
	ANDL    AX, R14; \
	JNZ     one; \
	JMP     next

// TOUCH512 gives in K1 the lanes of the node at R13 that touch the query: MaxX >= minx, MaxY >= miny, MinX <= maxx,
// MinY <= maxy. The comparison 5 is >=, 2 is <=, 4 is !=.
#define TOUCH512 \
	VPCMPD $5, 0(R13), Z2, K1; \
	VPCMPD $5, 64(R13), Z3, K2; \
	VPCMPD $2, 128(R13), Z0, K3; \
	VPCMPD $2, 192(R13), Z1, K4; \
	KANDW  K1, K2, K1; \
	KANDW  K3, K4, K3; \
	KANDW  K1, K3, K1

// WHOLE512 gives in K2 those that lie wholly in the query and are not last, which is the last node of the level below.
#define WHOLE512(last) \
	VPCMPD.BCST $4, last, Z14, K6; \
	VPCMPD      $2, 0(R13), Z0, K2; \
	VPCMPD      $2, 64(R13), Z1, K3; \
	VPCMPD      $5, 128(R13), Z2, K4; \
	VPCMPD      $5, 192(R13), Z3, K5; \
	KANDW       K2, K3, K2; \
	KANDW       K4, K5, K4; \
	KANDW       K2, K6, K2; \
	KANDW       K2, K4, K2

// func walkAVX512(c *Cursor) int
TEXT ·walkAVX512(SB), NOSPLIT, $0-16
	MOVQ         c+0(FP), DX
	MOVQ         Cursor_trees(DX), R8
	LEAQ         ·everywhere(SB), R10
	QUERY512
	VMOVDQU32    lanes<>(SB), Z15
	VPBROADCASTD wholes<>(SB), Z12

lowest:
	MOVQ  Cursor_open(DX), R14
	TESTQ R14, R14
	JZ    done
	TAKE(R14, all, take)
	TESTQ R9, R9
	JZ    leaves
	BELOW

inner:
	NODE
	MOVQ         (R8)(BX*8), AX
	ADDRESS(Tree_at(AX)(R9*8))
	CHILDREN
	TOUCH512
	FIRSTCHILD
	KMOVW        K1, R14
	ANDL         R15, R14
	FEW(one, many, next)
many:
	VPBROADCASTD BX, Z13
	MOVQ         (R8)(BX*8), BX
	VPBROADCASTD R12, Z14
	VPADDD       Z15, Z14, Z14
	WHOLE512((Tree_last-4)(BX)(R9*4))
	VPORD        Z12, Z14, K2, Z14
	VPCOMPRESSD  Z14, K1, Z14
	VMOVDQU32    Z14, (DI)
	VMOVDQU32    Z13, nodeList_trees(DI)
	POPCNTL      R14, AX
	LEAQ         (DI)(AX*4), DI
next:
	ADDQ $4, SI
	DECQ CX
	JNZ  inner
	LISTED(lowest)
	JMP  lowest

leaves:
	HITS

leaf:
	NODE
	VPBROADCASTD BX, Z13
	MOVQ         (R8)(BX*8), BX
	ADDRESS(Tree_at(BX))
	TOUCH512
	KMOVW        K1, AX
	TESTL        AX, AX
	JZ           none
	SHLL         $const_nodeBits, R12
	MOVQ         Tree_refs(BX), BX
	VPBROADCASTD R12, Z14
	VPADDD       Z15, Z14, Z14
	VMOVDQU32    (BX)(R12*4), Z9
	VPCOMPRESSD  Z9, K1, Z9
	VPCOMPRESSD  Z14, K1, Z14
	VMOVDQU32    Z9, (DI)
	VMOVDQU32    Z14, HIT_LEAVES(DI)
	VMOVDQU32    Z13, HIT_TREES(DI)
	POPCNTL      AX, AX
	LEAQ         (DI)(AX*4), DI
none:
	ADDQ $4, SI
	DECQ CX
	JNZ  leaf
	SUBQ R11, DI
	JZ   lowest
	SHRQ $2, DI
	MOVQ DI, ret+8(FP)
	VZEROUPPER
	RET

done:
	MOVQ $0, ret+8(FP)
	VZEROUPPER
	RET

// TOUCH2 gives in AX the lanes at off (0 or 32) of the node at R13 that touch the query. AVX2 compares for > only, so that
// first come those for which it fails in any direction.
#define TOUCH2(off) \
	VMOVDQU   (0+off)(R13), Y4; \
	VMOVDQU   (64+off)(R13), Y5; \
	VPCMPGTD  Y2, Y4, Y8; \
	VPCMPGTD  Y3, Y5, Y9; \
	VPCMPGTD  (128+off)(R13), Y0, Y10; \
	VPCMPGTD  (192+off)(R13), Y1, Y11; \
	VPOR      Y9, Y8, Y8; \
	VPOR      Y11, Y10, Y10; \
	VPOR      Y10, Y8, Y8; \
	VMOVMSKPS Y8, AX; \
	XORL      $255, AX

// MANY2 writes the children for the lanes in AX, all at off. The last node of the level below is in Y15.
#define MANY2(off) \
	VMOVDQU   (128+off)(R13), Y6; \
	VMOVDQU   (192+off)(R13), Y7; \
	VPCMPGTD  (0+off)(R13), Y0, Y9; \
	VPCMPGTD  (64+off)(R13), Y1, Y10; \
	VPCMPGTD  Y2, Y6, Y11; \
	VPCMPGTD  Y3, Y7, Y12; \
	VPOR      Y10, Y9, Y9; \
	VPOR      Y12, Y11, Y11; \
	VPOR      Y11, Y9, Y9; \
	VPADDD    lanes<>+off(SB), Y14, Y10; \
	VPCMPEQD  Y15, Y10, Y11; \
	VPOR      Y11, Y9, Y9; \
	VPANDN    wholes<>(SB), Y9, Y9; \
	VPOR      Y9, Y10, Y10; \
	LEAQ      ·packLanes(SB), R12; \
	VPMOVZXBD (R12)(AX*8), Y11; \
	VPERMD    Y10, Y11, Y10; \
	VMOVDQU   Y10, (DI); \
	VMOVDQU   Y13, nodeList_trees(DI); \
	POPCNTL   AX, AX; \
	LEAQ      (DI)(AX*4), DI

// HITS2 writes the hits for the lanes in AX, all at off, of the references at BX.
#define HITS2(off) \
	VPADDD    lanes<>+off(SB), Y14, Y10; \
	VPMOVZXBD (R13)(AX*8), Y11; \
	VPERMD    Y10, Y11, Y10; \
	VPERMD    off(BX), Y11, Y9; \
	VMOVDQU   Y9, (DI); \
	VMOVDQU   Y10, HIT_LEAVES(DI); \
	VMOVDQU   Y13, HIT_TREES(DI); \
	POPCNTL   AX, AX; \
	LEAQ      (DI)(AX*4), DI

// SETS2 gives in R14 the lanes of the node at R13 that touch the query.
#define SETS2 \
	TOUCH2(0); \
	MOVL AX, R14; \
	TOUCH2(32); \
	SHLL $8, AX; \
	ORL  AX, R14

// func walkAVX2(c *Cursor) int
TEXT ·walkAVX2(SB), NOSPLIT, $0-16
	MOVQ c+0(FP), DX
	MOVQ Cursor_trees(DX), R8
	LEAQ ·everywhere(SB), R10
	QUERY2

lowest:
	MOVQ  Cursor_open(DX), R14
	TESTQ R14, R14
	JZ    done
	TAKE(R14, all, take)
	TESTQ R9, R9
	JZ    leaves
	BELOW

inner:
	NODE
	MOVQ         (R8)(BX*8), AX
	ADDRESS(Tree_at(AX)(R9*8))
	CHILDREN
	FIRSTCHILD
	SETS2
	ANDL         R15, R14
	FEW(one, many, next)
many:
	VPBROADCASTD nodeList_trees(SI), Y13
	MOVQ         (R8)(BX*8), BX
	VMOVD        R12, X14
	VPBROADCASTD X14, Y14
	VPBROADCASTD (Tree_last-4)(BX)(R9*4), Y15
	MOVBLZX      R14, AX
	MANY2(0)
	MOVL         R14, AX
	SHRL         $8, AX
	MANY2(32)
next:
	ADDQ $4, SI
	DECQ CX
	JNZ  inner
	LISTED(lowest)
	JMP  lowest

leaves:
	HITS

leaf:
	NODE
	MOVQ         (R8)(BX*8), BX
	ADDRESS(Tree_at(BX))
	SETS2
	TESTL        R14, R14
	JZ           none
	SHLL         $const_nodeBits, R12
	MOVQ         Tree_refs(BX), BX
	LEAQ         (BX)(R12*4), BX
	VPBROADCASTD nodeList_trees(SI), Y13
	VMOVD        R12, X14
	VPBROADCASTD X14, Y14
	LEAQ         ·packLanes(SB), R13
	MOVBLZX      R14, AX
	HITS2(0)
	MOVL         R14, AX
	SHRL         $8, AX
	HITS2(32)
none:
	ADDQ $4, SI
	DECQ CX
	JNZ  leaf
	SUBQ R11, DI
	JZ   lowest
	SHRQ $2, DI
	MOVQ DI, ret+8(FP)
	VZEROUPPER
	RET

done:
	MOVQ $0, ret+8(FP)
	VZEROUPPER
	RET
