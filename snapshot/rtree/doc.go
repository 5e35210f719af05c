// Package rtree implements the spatial index of an image: a packed R-tree over the records of a
// segment's base, and the spherical geometry for queries by radius, nearest neighbour and polygon.
// It works on byte slices and numbers; it maps no memory and opens no file.
//
// The tree is built at once from all boxes, sorted along a Hilbert curve and packed sixteen to a
// node. Every node is full except the last of each level (I. Kamel and C. Faloutsos, On Packing
// R-trees, CIKM 1993; flatbush by V. Agafonkin has the same shape). The coordinates of a node's
// sixteen boxes are in four columns, so that a vector unit tests a node in a few instructions.
//
// A search walks the trees of all shards together. For each level it keeps a list of nodes to be
// tested, from all trees. It tests a batch of nodes of the lowest level and lists their children.
// So the nodes of a batch are loaded from memory at the same time; searching one tree after the
// other would wait for each level of each tree. Nodes below a node that is entirely within the
// query are accepted without a test. On amd64 the whole walk is in assembly: a small query mostly
// waits for one cache line per level, and every instruction between two such waits adds to its
// time.
//
// The publisher uses Sorter, Size and Build; the reader uses Open, Cursor, FirstMatch and the
// geometry.
//
// # Invariants
//
//   - The boxes of a tree are plain: a box that crosses the antimeridian is stored as its two parts
//     (Box.Split), both with the reference of the record.
//   - Child j of node i of a level is node 16i+j of the level below; the lanes of leaf i are the
//     leaves 16i to 16i+15.
//   - Lanes that hold nothing have MinX and MinY at the greatest and MaxX and MaxY at the least
//     int32. They are only at the end of the last node of a level, which Open checks, so that no
//     search leaves the section.
//   - A cursor returns each leaf once for each box of the query that it touches, and those of one
//     tree in ascending order: the order of the records in memory.
//
// # Concurrency
//
// A Tree is immutable and may be used by any number of goroutines. A Cursor and a Sorter belong to
// one goroutine at a time.
//
// # Testing
//
// Every search is compared with a test of every box, by each kernel that the processor can run. The
// bytes of a small tree are kept in testdata.
package rtree
