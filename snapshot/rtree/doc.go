// Package rtree is the spatial index of an image: a packed R-tree over the records of a segment's base, and the spherical
// geometry that queries by radius, by nearness and by polygon need. It works on byte slices and on numbers; it maps no
// memory and opens no file.
//
// The tree is built at once from all boxes, sorted along a Hilbert curve and packed sixteen to a node. Every node is full
// except the last of each level (I. Kamel and C. Faloutsos, On Packing R-trees, CIKM 1993; flatbush by V. Agafonkin has the
// same shape). The coordinates of a node's sixteen boxes are in four columns, so that a vector unit tests a node in a few
// instructions.
//
// A search walks the trees of all shards together. For each level it keeps a list of the nodes that wait for their test,
// whichever trees they belong to, and it tests a batch of the lowest level and lists the children. So the nodes of a batch
// come from memory at the same time; one tree after the other would wait for each of its levels. What is below a node that
// lies wholly in the query is taken without a look at its box. On amd64 the whole walk is in assembly: a small query does
// little else than wait for one line of memory per level, and every instruction between two such waits adds to it.
//
// The publisher uses Sorter, Size and Build; the reader uses Open, Cursor, FirstMatch and the geometry.
//
// # Invariants
//
//   - The boxes of a tree are plain: one that crosses the antimeridian is put in as its two parts (Box.Split), both with the
//     reference of the one record.
//   - Child j of node i of a level is node 16i+j of the level below; the lanes of leaf i are the leaves 16i to 16i+15.
//   - Lanes that hold nothing have MinX and MinY at the greatest and MaxX and MaxY at the least int32. They are only at the
//     end of the last node of a level, which Open checks, so that no search leaves the section.
//   - A cursor returns each leaf once for each box of the query that it touches, and those of one tree in ascending order:
//     the order in which the records lie in memory.
//
// # Concurrency
//
// A Tree is immutable and may be used by any number of goroutines. A Cursor and a Sorter belong to one goroutine at a time.
//
// # Testing
//
// Every search is compared with a test of every box, by each kernel that the processor can run. The bytes of a small tree
// are kept in testdata.
package rtree
